"""`doctor`: does moving mail teach here, from the file to the verdict? Leaves neither message nor lesson behind."""

from __future__ import annotations

import argparse
import os
import pwd
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spamguard.cli import rim, running, usage
from spamguard.doctor.step import Outcome, Step, failed, ok, skipped
from spamguard.errors import SpamguardError, StartError, UsageError
from spamguard.owner import Owner, owner_from, owner_of

if TYPE_CHECKING:
    from spamguard.engine import Filter
    from spamguard.settings import Settings

ABOUT = """Show that moving mail teaches. A marked message is put into a Maildir and moved to Junk: the filter must learn it, and is shown
to have forgotten it afterwards. Each step is a line; what fails comes with a remedy.

Without --maildir that is a Maildir of its own in a temporary directory, and nothing need run. With it, the running daemon must learn
from that mailbox, within 10 seconds; it needs a Junk folder. With --config, a daemon must run that serves what the file says.

Exit status: 0 if nothing failed, 1 otherwise."""
EXAMPLE = """  spamguard doctor
  spamguard doctor --config /etc/spamguard/spamguard.yaml
  spamguard --state /var/lib/spamguard doctor --user anna
  spamguard --state /var/lib/spamguard doctor --maildir /var/vmail/example.org/anna/Maildir"""

FAILED = 1
_POLL_SECONDS = 0.1


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "doctor", run, ABOUT, EXAMPLE)
    parser.add_argument(
        "--config", type=usage.file, metavar="FILE", help="look at the daemon, Postfix, next hops and folders, too, as it tells of them"
    )
    parser.add_argument(
        "--user", metavar="NAME", help="act with the rights of this user (as root); in ~NAME/Maildir unless --maildir is given"
    )
    parser.add_argument("--maildir", type=usage.directory, metavar="PATH", help="a mailbox that the running daemon watches")
    usage.add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Look at everything, one line for each step."""
    steps = []
    with rim.tidying_up(), closing(_steps(options)) as found:
        for step in found:
            steps.append(step)
            if not options.json:
                print(_line(step), flush=True)
    good = all(step.outcome is not Outcome.FAILED for step in steps)
    if options.json:
        rim.answer(options, "", {"ok": good, "steps": [step._asdict() for step in steps]})
    return 0 if good else FAILED


def _line(step: Step) -> str:
    outcome = {"ok": "ok", "failed": "FAILED", "skipped": "-"}[step.outcome]
    return rim.printable(f"{outcome:7} {step.name}: {step.detail}" + (f" -> {step.remedy}" if step.remedy else ""))


def _steps(options: argparse.Namespace) -> Generator[Step]:
    from spamguard.doctor import checks

    settings = rim.configured(options) if options.config else None
    state = rim.state_directory(options)
    yield from checks.installation(state)
    if not checks.is_closed(state):  # who may not look into it is not answered by a daemon either
        yield from _of_daemon(settings, state)
        yield from checks.watching(state, wanted=bool(settings and settings.watch))
    yield checks.file_events(settings)
    yield checks.dovecot(settings)
    if settings:
        yield from _of_surroundings(settings)
    yield from _of_filter(options, settings)


def _of_daemon(settings: Settings | None, state: Path) -> Iterator[Step]:
    """The running one. Without a configuration none need run."""
    told = _heard(state)
    trouble = running.trouble(told)
    if told is None and settings is None:
        yield skipped("daemon", trouble)
    elif told is None or trouble:
        yield failed("daemon", trouble, "" if told else "start it: `systemctl start spamguard` where it is a service")
    else:
        wrong = list(running.not_working(told))
        yield from (failed("daemon", one, "see its log") for one in wrong)
        if settings and _doors_of(settings) != {*_ways(told["listeners"]), *told["scanners"]}:
            text = "it listens elsewhere, or hands on to others, than the configuration says"
            yield failed("daemon", text, "have it read that anew: `systemctl reload spamguard`, or SIGHUP")
        elif not wrong:
            yield ok("daemon", f"pid {told['pid']}, ready")


def _heard(state: Path) -> dict[str, Any] | None:
    """What the daemon says of itself; one that has only just begun is given some time to be ready."""
    from spamguard.doctor import proof

    until = time.monotonic() + proof.SECONDS
    while True:
        told = running.asked(state)
        if told is None or running.trouble(told) or not any(running.not_working(told)) or time.monotonic() > until:
            return told
        time.sleep(_POLL_SECONDS)


def _doors_of(settings: Settings) -> set[str]:
    listeners = [{"listen": str(one.endpoint), "next_hop": str(one.next_hop.endpoint)} for one in settings.listeners]
    return {*_ways(listeners), *(str(one.endpoint) for one in settings.scanners)}


def _ways(listeners: list[dict[str, str]]) -> list[str]:
    return [f"{one['listen']} to {one['next_hop']}" for one in listeners]


def _of_surroundings(settings: Settings) -> Iterator[Step]:
    """What mail comes from and goes to."""
    from spamguard.daemon import privileges
    from spamguard.doctor import access, checks, filing, postfix

    if settings.watch:
        try:
            yield access.step(settings, privileges.service_account(settings))
        except StartError as error:
            yield failed("mailboxes", str(error), "")
    yield from postfix.steps(settings)
    yield from filing.steps(settings)
    yield from checks.next_hops(settings)


def _of_filter(options: argparse.Namespace, settings: Settings | None) -> Iterator[Step]:
    """Its ledger, and whether it learns."""
    from spamguard.doctor import checks
    from spamguard.model import loss

    try:
        with rim.open_existing(options) as spam_filter:
            if (lost := spam_filter.loss()) is not None:
                yield failed("ledger", loss.describe(lost), loss.REMEDY)
            else:
                yield ok("ledger", f"{rim.counted(spam_filter.ledger.last_seq(), 'event')}")
            yield from checks.left_behind(spam_filter.ledger)
            spam_filter.refuse_without_receipts()
            yield from _proof(options, spam_filter, settings)
    except (SpamguardError, OSError) as error:
        yield failed("filter", rim.in_words(error), "")


def _proof(options: argparse.Namespace, spam_filter: Filter, settings: Settings | None) -> Iterator[Step]:
    from spamguard.doctor import proof

    if options.maildir is None and options.user is None:
        with proof.scratch(spam_filter) as box:
            yield from proof.prove(spam_filter, box, "is the temporary directory on a disk that can be watched?")
        return
    yield from _proof_in(_maildir(options), options, spam_filter, settings)


def _proof_in(path: Path, options: argparse.Namespace, spam_filter: Filter, settings: Settings | None) -> Iterator[Step]:
    """In a real mailbox."""
    from spamguard.doctor import proof
    from spamguard.doctor.box import Box, junk_of
    from spamguard.folders import doveconf

    special = doveconf.read().special
    try:
        owner = _owner(options, path)
        with owner.acting():
            junk = junk_of(path, settings.watch if settings else (), special)
    except OSError as error:
        yield failed("mailbox", f"{path}: {error.strerror}", "name a Maildir that is there with --maildir")
        return
    if junk is None:
        yield failed("mailbox", f"{path}: it has no folder of spam", "make a folder Junk with a mail program")
        return
    box = Box(path, junk, owner, spam_filter.directory, lambda: time.sleep(_POLL_SECONDS))
    yield from proof.prove(spam_filter, box, f"does the daemon run, does its `watch` name {path}, may it read it? See its log")


def _maildir(options: argparse.Namespace) -> Path:
    if options.maildir is not None:
        return Path(os.path.abspath(options.maildir))  # noqa: PTH100  as the daemon names it: symbolic links stay
    return Path(_account(options.user).pw_dir) / "Maildir"


def _owner(options: argparse.Namespace, path: Path) -> Owner:
    if options.user is None:
        return owner_of(path)
    account = _account(options.user)
    if os.geteuid() not in (0, account.pw_uid):
        raise UsageError(f"to act as {options.user} run this as root, or as {options.user}")
    return owner_from(account)


def _account(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise UsageError(f"{name!r} is no user of this system: name the mailbox with --maildir") from None
