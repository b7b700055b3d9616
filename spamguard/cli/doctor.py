"""`doctor`: show that moving mail teaches here, from the file to the verdict.

Each step of `spamguard.doctor` is printed as a line: what was looked at, its outcome, and the
remedy of a failure. First come the state directory and the daemon, then everything around them that
the configuration names, at last the proof: a message of ours is moved and must be learnt.

Must never leave a message or a lesson behind.
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

from spamguard.cli import arguments, common, status
from spamguard.doctor import Step, StepOutcome, failed, ok, skipped
from spamguard.errors import SpamguardError, StartError, UsageError
from spamguard.log import printable
from spamguard.storage import Owner, account_owner, directory_owner

if TYPE_CHECKING:
    from spamguard.config.options import Settings
    from spamguard.engine.filter import Filter

DOCTOR_ABOUT = """\
Show that moving mail teaches. A marked message is put into a Maildir and moved to Junk: the filter
must learn it, and is shown to have forgotten it afterwards. Each step is a line; what fails comes
with a remedy.

Without --maildir that is a Maildir of its own in a temporary directory, and nothing need run. With
it, the running daemon must learn from that mailbox, within 10 seconds; it needs a Junk folder. With
--config, a daemon must run that serves what the file says.

Exit status: 0 if nothing failed, 1 otherwise."""
DOCTOR_EXAMPLE = """  spamguard doctor
  spamguard doctor --config /etc/spamguard/spamguard.yaml
  spamguard --state /var/lib/spamguard doctor --user anna
  spamguard --state /var/lib/spamguard doctor --maildir /var/vmail/example.org/anna/Maildir"""

EXIT_FAILED = 1
_OUTCOMES = {StepOutcome.OK: "ok", StepOutcome.FAILED: "FAILED", StepOutcome.SKIPPED: "-"}
_POLL_SECONDS = 0.1


def add_doctor(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "doctor", run_doctor, DOCTOR_ABOUT, DOCTOR_EXAMPLE)
    about = "also check the daemon, Postfix, next hops and folders that it names"
    parser.add_argument("--config", type=arguments.parse_file, metavar="FILE", help=about)
    about = "act with the rights of this user (as root); in ~NAME/Maildir unless --maildir is given"
    parser.add_argument("--user", metavar="NAME", help=about)
    about = "a mailbox that the running daemon watches"
    parser.add_argument("--maildir", type=arguments.parse_directory, metavar="PATH", help=about)
    arguments.add_json(parser)


def run_doctor(options: argparse.Namespace) -> int:
    """Take every step, and print each as a line."""
    steps = []
    with common.terminate_cleanly(), closing(_all_steps(options)) as running:
        for step in running:
            steps.append(step)
            if not options.json:
                print(_step_line(step), flush=True)
    passed = all(step.outcome is not StepOutcome.FAILED for step in steps)
    if options.json:
        values = {"ok": passed, "steps": [step._asdict() for step in steps]}
        common.print_answer(options, "", values)
    return 0 if passed else EXIT_FAILED


def _step_line(step: Step) -> str:
    line = f"{_OUTCOMES[step.outcome]:7} {step.name}: {step.detail}"
    return printable(line + (f" -> {step.remedy}" if step.remedy else ""))


def _all_steps(options: argparse.Namespace) -> Generator[Step]:
    from spamguard.doctor import checks

    settings = common.load_config(options) if options.config else None
    state = common.state_directory(options)
    yield from checks.check_installation(state)
    if not checks.is_unreadable(state):  # else the daemon does not answer this user either
        yield from _daemon_steps(settings, state)
        yield from checks.check_watcher(state, wanted=bool(settings and settings.watch))
    yield checks.check_file_events(settings)
    yield checks.check_dovecot(settings)
    if settings:
        yield from _environment_steps(settings)
    yield from _filter_steps(options, settings)


def _daemon_steps(settings: Settings | None, state: Path) -> Iterator[Step]:
    """The running daemon; without a configuration none need run."""
    daemon = _wait_for_daemon(state)
    trouble = status.daemon_trouble(daemon)
    if daemon is None and settings is None:
        yield skipped("daemon", trouble)
    elif daemon is None:
        remedy = "start it: `systemctl start spamguard` where it is a service"
        yield failed("daemon", trouble, remedy)
    elif trouble:
        yield failed("daemon", trouble, "")
    else:
        problems = list(status.daemon_problems(daemon))
        yield from (failed("daemon", problem, "see its log") for problem in problems)
        if settings and _configured_doors(settings) != _open_doors(daemon):
            detail = "it listens elsewhere, or hands on to others, than the configuration says"
            remedy = "have it read that anew: `systemctl reload spamguard`, or SIGHUP"
            yield failed("daemon", detail, remedy)
        elif not problems:
            yield ok("daemon", f"pid {daemon['pid']}, ready")


def _wait_for_daemon(state: Path) -> dict[str, Any] | None:
    """What the daemon says; one that has only just started gets some time to be ready."""
    from spamguard.doctor import proof

    deadline = time.monotonic() + proof.STEP_TIMEOUT
    while True:
        daemon = status.ask_daemon(state)
        if (
            daemon is None
            or status.daemon_trouble(daemon)
            or not any(status.daemon_problems(daemon))
            or time.monotonic() > deadline
        ):
            return daemon
        time.sleep(_POLL_SECONDS)


def _configured_doors(settings: Settings) -> set[str]:
    listeners = (f"{each.listen} to {each.next_hop.to}" for each in settings.listeners)
    return {*listeners, *(str(scanner.listen) for scanner in settings.scanners)}


def _open_doors(daemon: dict[str, Any]) -> set[str]:
    listeners = (f"{each['listen']} to {each['next_hop']}" for each in daemon["listeners"])
    return {*listeners, *daemon["scanners"]}


def _environment_steps(settings: Settings) -> Iterator[Step]:
    """Everything that mail comes from and goes to."""
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
    """The ledger, and whether the filter learns."""
    from spamguard.doctor import checks
    from spamguard.engine import snapshot

    try:
        with common.open_existing(options) as spam_filter:
            if (loss := spam_filter.find_loss()) is not None:
                yield failed("ledger", snapshot.describe_loss(loss), snapshot.LOSS_REMEDY)
            else:
                yield ok("ledger", common.count_text(spam_filter.ledger.last_seq(), "event"))
            yield from checks.check_old_lessons(spam_filter.ledger)
            spam_filter.require_receipts()
            if options.maildir is None and options.user is None:
                yield from _scratch_steps(spam_filter)
            else:
                yield from _mailbox_steps(options, spam_filter, settings)
    except (SpamguardError, OSError) as error:
        yield failed("filter", common.describe_error(error), "")


def _scratch_steps(spam_filter: Filter) -> Iterator[Step]:
    """The proof in a mailbox of our own."""
    from spamguard.doctor import proof

    question = "is the temporary directory on a disk that can be watched?"
    with proof.scratch_mailbox(spam_filter) as mailbox:
        yield from proof.prove(spam_filter, mailbox, question)


def _mailbox_steps(
    options: argparse.Namespace, spam_filter: Filter, settings: Settings | None
) -> Iterator[Step]:
    """The proof in a real mailbox."""
    from spamguard.doctor import proof
    from spamguard.folders import doveconf

    path = _chosen_maildir(options)
    special_uses = doveconf.read().special_uses
    try:
        owner = _mailbox_owner(options, path)
        with owner.impersonate():
            junk = proof.find_junk(path, settings.watch if settings else (), special_uses)
    except OSError as error:
        remedy = "name a Maildir that is there with --maildir"
        yield failed("mailbox", f"{path}: {error.strerror}", remedy)
        return
    if junk is None:
        remedy = "make a folder Junk with a mail program"
        yield failed("mailbox", f"{path}: it has no folder of spam", remedy)
        return
    mailbox = proof.ProofMailbox(
        path, junk, owner, spam_filter.directory, lambda: time.sleep(_POLL_SECONDS)
    )
    question = f"does the daemon run, does its `watch` name {path}, may it read it? See its log"
    yield from proof.prove(spam_filter, mailbox, question)


def _chosen_maildir(options: argparse.Namespace) -> Path:
    if options.maildir is not None:  # as the daemon names it: symbolic links stay
        return Path(os.path.abspath(options.maildir))  # noqa: PTH100  resolve() would follow them
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
