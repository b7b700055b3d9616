"""Shows that teaching by moving mail works here, or at which step it does not.

Each check looks at one thing that it rests on (state directory, mailboxes, Dovecot, next hops) and
returns a `Step`, or yields some: its outcome, what was seen, and the remedy if it failed. Other
programs are asked for their configuration, with a deadline; of a program that is missing or fails,
nothing is known. `probe` sends a message through the mail server, which must be judged once and
filed. `proof` moves one of ours to Junk, which the daemon must learn, and takes everything back.

Must never leave a message or a lesson behind, and never repair anything. The checks must never
change or create anything, and never open a message for more than a moment, with the rights of the
daemon's user, without reading it.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from spamguard.config.options import Settings
from spamguard.delivery.smtp import probe_next_hops
from spamguard.errors import SpamguardError
from spamguard.folders import roles
from spamguard.folders.broker import make_mailboxes
from spamguard.folders.maildir import owner_name
from spamguard.folders.roles import is_maildir
from spamguard.log import hostname
from spamguard.process import run_command
from spamguard.storage import KEY_FILE, account_owner, describe_disk

MAILDIR_REMEDY = (
    "name the Maildirs themselves, such as /home/*/Maildir; mbox, mdbox and sdbox cannot be watched"
)
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class StepOutcome(StrEnum):
    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"  # nothing to look at, or no way to look; no failure


class Step(NamedTuple):
    """One thing that was looked at. detail: what was seen. remedy: of a failure."""

    name: str
    outcome: StepOutcome
    detail: str = ""
    remedy: str = ""


def ok(name: str, detail: str = "") -> Step:
    return Step(name, StepOutcome.OK, detail)


def failed(name: str, detail: str, remedy: str) -> Step:
    return Step(name, StepOutcome.FAILED, detail, remedy)


def skipped(name: str, detail: str) -> Step:
    return Step(name, StepOutcome.SKIPPED, detail)


# ---- the state directory


def check_installation(state: Path) -> Iterator[Step]:
    """The state directory, its key, and free space; the first alone where we may not look.

    Others may look into it, because sockets may be meant for everybody. There must be room for new
    tables beside the old ones, as settling needs it.
    """
    from spamguard.engine import snapshot  # noqa: PLC0415  `spamguard check` must load no numpy

    step = "state directory"
    try:
        mode = state.stat().st_mode
        os.scandir(state).close()
    except OSError as error:
        remedy = "name it with --state, or run this as root, or start the daemon, which makes it"
        yield failed(step, f"{state}: {error.strerror}", remedy)
        return
    detail = f"{state}, of {owner_name(str(state))}, mode {stat.S_IMODE(mode):04o}"
    if mode & 0o022:
        yield failed(step, f"{detail}: others may write into it", f"chmod go-w {state}")
    else:
        yield ok(step, detail)
    key = state / KEY_FILE
    if key.exists() and key.stat().st_mode & 0o077:
        yield failed("key", f"{key}: others may read it", f"chmod 600 {key}")
    detail, remedy = describe_disk(state, snapshot.snapshot_bytes(state))
    yield failed("disk", detail, remedy) if remedy else ok("disk", detail)


# ---- mailboxes


class MailboxAccess(NamedTuple):
    """Whether the daemon can read people's mailboxes.

    paths: of all mailboxes. trouble: what is wrong, and its remedy.
    """

    paths: Sequence[str]
    trouble: tuple[str, str] | None = None


def check_access(settings: Settings, account: pwd.struct_passwd) -> MailboxAccess | None:
    """What the daemon can read with the rights of its user, or through the mailbox broker.

    None: we are neither that user nor root, and cannot know. SpamguardError, OSError: the broker
    does not answer.
    """
    is_local = settings.watch_socket is None
    if is_local and os.geteuid() not in (0, account.pw_uid):
        return None
    with closing(make_mailboxes(settings.watch, settings.watch_socket, notify=False)) as backend:
        mailboxes = list(backend.find_mailboxes())
        has_maildir = any(is_maildir(backend, each, if_unreadable=True) for each in mailboxes)
    paths = [mailbox.path for mailbox in mailboxes]
    with account_owner(account).impersonate():
        unreadable = [path for path in paths if is_local and not _is_readable(path)]
    trouble = None
    if unreadable:
        detail = (
            f"{len(unreadable):,} of {len(paths):,} mailboxes cannot be read by "
            f"{account.pw_name}, such as {unreadable[0]}: moving mail there teaches nothing"
        )
        remedy = "let spamguard-watch.service open them: watch_socket: "
        trouble = detail, f"{remedy}/run/spamguard-watch/mailboxes.sock"
    elif paths and not has_maildir:
        detail = (
            "no directory that `watch` names is a Maildir, with `cur` in it, such as "
            f"{paths[0]}: moving mail there teaches nothing"
        )
        trouble = detail, MAILDIR_REMEDY
    return MailboxAccess(paths, trouble)


def _is_readable(path: str) -> bool:
    """Whether the INBOX can be listed, as far as it is there, and a message in it be opened."""
    try:
        for part in ("new", "cur"):
            with os.scandir(f"{path}/{part}") as entries:
                for entry in islice(entries, 1):
                    os.close(os.open(entry.path, _OPEN_FLAGS))
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def check_mailboxes(settings: Settings, account: pwd.struct_passwd) -> Step:
    try:
        access = check_access(settings, account)
    except (SpamguardError, OSError) as error:
        remedy = "look at the disk and its permissions"
        if settings.watch_socket:
            remedy = "systemctl status spamguard-watch"
        return failed("mailboxes", str(error), remedy)
    if access is None:
        return ok("mailboxes", "to be read by the daemon itself")
    if access.trouble:
        return failed("mailboxes", *access.trouble)
    if not access.paths:  # they may come with the first mail
        return skipped("mailboxes", "there are none yet: nothing that `watch` names exists")
    return ok("mailboxes", f"{len(access.paths):,} can be read")


# ---- other programs


def check_dovecot(settings: Settings) -> Step:
    """How Dovecot keeps mail; where it has no Maildirs, those that are watched are not its own."""
    dovecot = roles.read_dovecot()
    if not dovecot.mail_format:
        return skipped("Dovecot", "there is none here, or it does not say how it keeps mail")
    if not dovecot.obstacles:
        folders = f"special uses of {len(dovecot.special_uses)} folders known"
        return ok("Dovecot", f"keeps mail as {dovecot.mail_format}, {folders}")
    with closing(make_mailboxes(settings.watch, settings.watch_socket, notify=False)) as backend:
        obstacles = roles.find_obstacles(dovecot, settings, backend)
    if obstacles:
        remedy = "see Dovecot's configuration, `doveconf -n`"
        return failed("Dovecot", "; ".join(obstacles), remedy)
    detail = f"keeps its mail as {dovecot.mail_format}"
    return skipped("Dovecot", f"{detail}, so the Maildirs that are watched are not its own")


_DOMAIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")


def find_local_domain() -> str:
    """A domain whose mail Postfix or Exim delivers on this machine to its users."""
    postfix = re.split(r"[,\s]+", run_command("postconf", "-x", "-h", "mydestination"))
    program = shutil.which("exim4") or "exim"
    exim = run_command(program, "-be", "${listnamed:local_domains}").split(":")
    names = [name for name in map(str.strip, (*postfix, *exim)) if _DOMAIN.fullmatch(name)]
    return "localhost" if "localhost" in names or not names else names[0]


def check_next_hops(settings: Settings) -> Iterator[Step]:
    """Whether each next hop greets us, or can be written. Nothing is sent but a greeting."""
    hops = [listener.next_hop for listener in settings.listeners]
    for endpoint, trouble in asyncio.run(probe_next_hops(hops, hostname())).items():
        if trouble:
            remedy = "start it, or correct `next_hop` in the configuration"
            yield failed("next hop", f"{endpoint}: {trouble}", remedy)
        else:
            yield ok("next hop", str(endpoint))
