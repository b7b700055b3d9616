"""`doctor`: does moving mail teach here, from the file to the verdict? Leaves neither message nor
lesson behind.
"""

from __future__ import annotations

import argparse
import os
import pwd
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spamguard.cli import common, status
from spamguard.doctor import Step, StepOutcome, failed, ok, skipped
from spamguard.errors import SpamguardError, StartError, UsageError
from spamguard.log import printable
from spamguard.storage import Owner, account_owner, directory_owner

if TYPE_CHECKING:
    from spamguard.config.options import Settings
    from spamguard.engine.filter import Filter


DOCTOR_ABOUT = """Show that moving mail teaches. A marked message is put into a Maildir and moved to Junk: the filter must learn it, and is shown
to have forgotten it afterwards. Each step is a line; what fails comes with a remedy.

Without --maildir that is a Maildir of its own in a temporary directory, and nothing need run. With it, the running daemon must learn
from that mailbox, within 10 seconds; it needs a Junk folder. With --config, a daemon must run that serves what the file says.

Exit status: 0 if nothing failed, 1 otherwise."""
DOCTOR_EXAMPLE = """  spamguard doctor
  spamguard doctor --config /etc/spamguard/spamguard.yaml
  spamguard --state /var/lib/spamguard doctor --user anna
  spamguard --state /var/lib/spamguard doctor --maildir /var/vmail/example.org/anna/Maildir"""

EXIT_FAILED = 1
_POLL_SECONDS = 0.1


def add_doctor(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(commands, "doctor", run_doctor, DOCTOR_ABOUT, DOCTOR_EXAMPLE)
    parser.add_argument(
        "--config",
        type=common.file_argument,
        metavar="FILE",
        help="look at the daemon, Postfix, next hops and folders, too, as it tells of them",
    )
    parser.add_argument(
        "--user",
        metavar="NAME",
        help="act with the rights of this user (as root); in ~NAME/Maildir unless --maildir is given",
    )
    parser.add_argument(
        "--maildir",
        type=common.directory_argument,
        metavar="PATH",
        help="a mailbox that the running daemon watches",
    )
    common.add_json(parser)


def run_doctor(options: argparse.Namespace) -> int:
    """Look at everything, one line for each step."""
    steps = []
    with common.terminate_cleanly(), closing(_all_steps(options)) as found:
        for step in found:
            steps.append(step)
            if not options.json:
                print(_step_line(step), flush=True)
    good = all(step.outcome is not StepOutcome.FAILED for step in steps)
    if options.json:
        common.print_answer(options, "", {"ok": good, "steps": [step._asdict() for step in steps]})
    return 0 if good else EXIT_FAILED


def _step_line(step: Step) -> str:
    outcome = {"ok": "ok", "failed": "FAILED", "skipped": "-"}[step.outcome]
    return printable(
        f"{outcome:7} {step.name}: {step.detail}" + (f" -> {step.remedy}" if step.remedy else "")
    )


def _all_steps(options: argparse.Namespace) -> Generator[Step]:
    from spamguard.doctor import checks

    settings = common.load_config(options) if options.config else None
    state = common.state_directory(options)
    yield from checks.check_installation(state)
    if not checks.is_unreadable(
        state
    ):  # who may not look into it is not answered by a daemon either
        yield from _daemon_steps(settings, state)
        yield from checks.check_watcher(state, wanted=bool(settings and settings.watch))
    yield checks.check_file_events(settings)
    yield checks.check_dovecot(settings)
    if settings:
        yield from _environment_steps(settings)
    yield from _filter_steps(options, settings)


def _daemon_steps(settings: Settings | None, state: Path) -> Iterator[Step]:
    """The running one. Without a configuration none need run."""
    told = _wait_for_daemon(state)
    trouble = status.daemon_trouble(told)
    if told is None and settings is None:
        yield skipped("daemon", trouble)
    elif told is None or trouble:
        yield failed(
            "daemon",
            trouble,
            "" if told else "start it: `systemctl start spamguard` where it is a service",
        )
    else:
        wrong = list(status.daemon_problems(told))
        yield from (failed("daemon", one, "see its log") for one in wrong)
        if settings and _configured_doors(settings) != {
            *_listener_texts(told["listeners"]),
            *told["scanners"],
        }:
            text = "it listens elsewhere, or hands on to others, than the configuration says"
            yield failed(
                "daemon", text, "have it read that anew: `systemctl reload spamguard`, or SIGHUP"
            )
        elif not wrong:
            yield ok("daemon", f"pid {told['pid']}, ready")


def _wait_for_daemon(state: Path) -> dict[str, Any] | None:
    """What the daemon says of itself; one that has only just begun is given some time to be ready."""
    from spamguard.doctor import proof

    until = time.monotonic() + proof.STEP_TIMEOUT
    while True:
        told = status.ask_daemon(state)
        if (
            told is None
            or status.daemon_trouble(told)
            or not any(status.daemon_problems(told))
            or time.monotonic() > until
        ):
            return told
        time.sleep(_POLL_SECONDS)


def _configured_doors(settings: Settings) -> set[str]:
    listeners = [
        {"listen": str(one.listen), "next_hop": str(one.next_hop.to)} for one in settings.listeners
    ]
    return {*_listener_texts(listeners), *(str(one.listen) for one in settings.scanners)}


def _listener_texts(listeners: list[dict[str, str]]) -> list[str]:
    return [f"{one['listen']} to {one['next_hop']}" for one in listeners]


def _environment_steps(settings: Settings) -> Iterator[Step]:
    """What mail comes from and goes to."""
    from spamguard.daemon import privileges
    from spamguard.doctor import checks

    if settings.watch:
        try:
            yield checks.check_mailboxes(settings, privileges.service_account(settings))
        except StartError as error:
            yield failed("mailboxes", str(error), "")
    yield from checks.check_postfix(settings)
    yield from checks.check_filing(settings)
    yield from checks.check_next_hops(settings)


def _filter_steps(options: argparse.Namespace, settings: Settings | None) -> Iterator[Step]:
    """Its ledger, and whether it learns."""
    from spamguard.doctor import checks
    from spamguard.engine import snapshot

    try:
        with common.open_existing(options) as spam_filter:
            if (lost := spam_filter.find_loss()) is not None:
                yield failed("ledger", snapshot.describe_loss(lost), snapshot.LOSS_REMEDY)
            else:
                yield ok("ledger", f"{common.count_text(spam_filter.ledger.last_seq(), 'event')}")
            yield from checks.check_old_lessons(spam_filter.ledger)
            spam_filter.require_receipts()
            yield from _proof_steps(options, spam_filter, settings)
    except (SpamguardError, OSError) as error:
        yield failed("filter", common.describe_error(error), "")


def _proof_steps(
    options: argparse.Namespace, spam_filter: Filter, settings: Settings | None
) -> Iterator[Step]:
    from spamguard.doctor import proof

    if options.maildir is None and options.user is None:
        with proof.scratch_mailbox(spam_filter) as box:
            yield from proof.prove(
                spam_filter, box, "is the temporary directory on a disk that can be watched?"
            )
        return
    yield from _mailbox_steps(_chosen_maildir(options), options, spam_filter, settings)


def _mailbox_steps(
    path: Path, options: argparse.Namespace, spam_filter: Filter, settings: Settings | None
) -> Iterator[Step]:
    """In a real mailbox."""
    from spamguard.doctor import proof
    from spamguard.doctor.proof import ProofMailbox, find_junk
    from spamguard.folders import doveconf

    special = doveconf.read().special_uses
    try:
        owner = _mailbox_owner(options, path)
        with owner.impersonate():
            junk = find_junk(path, settings.watch if settings else (), special)
    except OSError as error:
        yield failed(
            "mailbox", f"{path}: {error.strerror}", "name a Maildir that is there with --maildir"
        )
        return
    if junk is None:
        yield failed(
            "mailbox", f"{path}: it has no folder of spam", "make a folder Junk with a mail program"
        )
        return
    box = ProofMailbox(path, junk, owner, spam_filter.directory, lambda: time.sleep(_POLL_SECONDS))
    yield from proof.prove(
        spam_filter,
        box,
        f"does the daemon run, does its `watch` name {path}, may it read it? See its log",
    )


def _chosen_maildir(options: argparse.Namespace) -> Path:
    if options.maildir is not None:
        return Path(os.path.abspath(options.maildir))  # noqa: PTH100  as the daemon names it: symbolic links stay
    return Path(_find_account(options.user).pw_dir) / "Maildir"


def _mailbox_owner(options: argparse.Namespace, path: Path) -> Owner:
    if options.user is None:
        return directory_owner(path)
    account = _find_account(options.user)
    if os.geteuid() not in (0, account.pw_uid):
        raise UsageError(f"to act as {options.user} run this as root, or as {options.user}")
    return account_owner(account)


def _find_account(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise UsageError(
            f"{name!r} is no user of this system: name the mailbox with --maildir"
        ) from None
