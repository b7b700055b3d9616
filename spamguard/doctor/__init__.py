"""Shows that teaching by moving mail works here, or at which step it does not.

Each check looks at one thing that it rests on (state directory, kernel, watcher, mailboxes,
Dovecot, next hops) and returns a `Step`, or yields some: its outcome, what was seen, and
the remedy if it failed. Other programs are asked for their configuration, with a deadline; of a
program that is missing or fails, nothing is known. `probe` sends a message through the mail server,
which must be judged once and filed. `proof` moves one of ours to Junk, which the filter must learn,
and takes everything back.

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
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spamguard import keys
from spamguard.config.options import Settings
from spamguard.delivery.smtp import probe_next_hops
from spamguard.errors import SpamguardError
from spamguard.folders import roles
from spamguard.folders.broker import make_mailboxes
from spamguard.folders.changes import InotifyEvents
from spamguard.folders.maildir import owner_name
from spamguard.folders.roles import is_maildir
from spamguard.learning import status_files
from spamguard.log import hostname
from spamguard.process import run_command
from spamguard.records import EXTRACTOR
from spamguard.storage import KEY_FILE, LEDGER_FILE, account_owner, describe_disk
from spamguard.times import local_time

if TYPE_CHECKING:
    from spamguard.ledger.sqlite import SqliteLedger

MAILDIR_REMEDY = (
    "name the Maildirs themselves, such as /home/*/Maildir; mbox, mdbox and sdbox cannot be watched"
)
_MAX_LINES = 5  # of the watcher's troubles
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

    Who may write into the directory, and who may read its files: sockets may be meant for
    everybody. There must be room for new tables beside the old ones, as settling needs it.
    """
    from spamguard.engine import snapshot  # noqa: PLC0415  `spamguard check` must load no numpy

    step, readable = "state directory", False
    try:
        mode = state.stat().st_mode
        with os.scandir(state) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # a daemon makes and removes some all the time
                    status = entry.stat(follow_symlinks=False)
                    readable |= stat.S_ISREG(status.st_mode) and bool(status.st_mode & 0o004)
    except OSError as error:
        remedy = "name it with --state, or run this as root, or start the daemon, which makes it"
        yield failed(step, f"{state}: {error.strerror}", remedy)
        return
    owner = owner_name(str(state))
    detail = f"{state}, of {owner}, mode {stat.S_IMODE(mode):04o}"
    if mode & 0o022:
        yield failed(step, f"{detail}: others may write into it", f"chmod go-w {state}")
    elif not os.access(state, os.W_OK):
        remedy = f"run as {owner}, or let it be written"
        yield failed(step, f"{detail}: we may not write into it", remedy)
    elif mode & 0o005 and readable:
        yield failed(step, f"{detail}: others may read files in it", f"chmod go-rx {state}")
    else:
        yield ok(step, detail)
    key = state / KEY_FILE
    if not (key.exists() or (state / LEDGER_FILE).exists()):
        yield skipped("key", "there is none yet: the daemon makes it, or the first lesson")
    else:
        try:
            fingerprint = keys.key_fingerprint(keys.load_key(key, create=False))
            mode = stat.S_IMODE(key.stat().st_mode)
        except SpamguardError as error:
            yield failed("key", str(error), "")
        else:
            text = f"{key}: others may read it (mode {mode:04o})"
            is_safe = not mode & 0o077
            yield ok("key", fingerprint) if is_safe else failed("key", text, f"chmod 600 {key}")
    detail, remedy = describe_disk(state, snapshot.snapshot_bytes(state))
    yield failed("disk", detail, remedy) if remedy else ok("disk", detail)


def check_old_lessons(ledger: SqliteLedger) -> Iterator[Step]:
    """Lessons of no use since an upgrade, if any.

    A few may stay so for ever, because their mail is gone: that is no failure.
    """
    from spamguard.learning import undo  # noqa: PLC0415  `check` must load no numpy

    count = undo.count_outdated(ledger)
    detail, remedy = undo.describe_outdated(count), undo.REEXTRACT_REMEDY
    if count > sum(ledger.lesson_counts(EXTRACTOR).values()):
        yield failed("lessons", detail, remedy)
    elif count:
        yield skipped("lessons", f"{detail}; {remedy}")


# ---- the folder watcher


def check_watcher(state: Path, *, expected: bool) -> Iterator[Step]:
    """The daemon's watcher, by its status file. expected: the configuration names mailboxes."""
    status = status_files.read_watcher_status(state)
    remedy = "start the daemon, with `watch` in its configuration"
    if status is None:
        detail = "none has run with this state directory"
        yield failed("watcher", detail, remedy) if expected else skipped("watcher", detail)
        return
    detail = f"last seen {local_time(status.seen, exact=True)}"
    if status.is_alive(time.time()):
        yield ok("watcher", f"{detail}, mailboxes: {status.mailboxes:,}")
    else:
        yield failed("watcher", detail, remedy)
    for trouble in status.troubles[-_MAX_LINES:]:
        yield failed("watcher", trouble.text, "see the log of the daemon")


def check_file_events() -> Step:
    name = "file events"
    try:
        InotifyEvents({}).close()
    except OSError as error:
        detail = f"there are none ({error}): folders are polled, moves teach some seconds later"
        return failed(name, detail, "raise sysctl fs.inotify.max_user_instances")
    return ok(name)


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
        local_remedy = "look at the disk and its permissions"
        remedy = "systemctl status spamguard-watch" if settings.watch_socket else local_remedy
        return failed("mailboxes", str(error), remedy)
    if access is None:
        return ok("mailboxes", "to be read by the daemon itself")
    if access.trouble:
        return failed("mailboxes", *access.trouble)
    if not access.paths:  # they may come with the first mail
        patterns = ", ".join(watch.maildir for watch in settings.watch)
        return skipped("mailboxes", f"there are none yet: nothing fits {patterns}")
    socket = settings.watch_socket
    reader = f"opened at {socket}" if socket else f"{account.pw_name} can read them"
    return ok("mailboxes", f"{len(access.paths):,}, {reader}")


# ---- other programs


def check_dovecot(settings: Settings | None) -> Step:
    """How Dovecot keeps mail; without mailboxes to watch it may do so as it likes."""
    dovecot = roles.read_dovecot()
    if not dovecot.mail_format:
        return skipped("Dovecot", "there is none here, or it does not say how it keeps mail")
    if not dovecot.obstacles:
        folders = f"special uses of {len(dovecot.special_uses)} folders known"
        return ok("Dovecot", f"keeps mail as {dovecot.mail_format}, {folders}")
    if settings is None or not settings.watch:
        return skipped("Dovecot", "; ".join(dovecot.obstacles))
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
