"""`run`, `check`, `doctor` and `open-mailboxes`: the daemon, and whether it can work here.

`run` is the daemon in the foreground. `check` prints the configuration that is in force, or every
mistake in it, and warns of what would keep the daemon from working. `doctor` shows that mail passes
here and that moving it teaches: each step of `spamguard.doctor` is a line. First come the state
directory and the daemon, then everything around them that the configuration names, at last a
message through the mail server, and the proof. `open-mailboxes` is the process that opens people's
mail for the daemon, so that the code that parses mail needs no right to do so.

A configuration with mistakes has an exit status of its own, because restarting would not mend it.
`check` must never write and never connect, `doctor` never leave a message or a lesson behind, and
`open-mailboxes` never load what parses mail.
"""

from __future__ import annotations

import getpass
import logging
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from spamguard import log
from spamguard.cli import arguments, common, status
from spamguard.cli.arguments import argument, command
from spamguard.config import types
from spamguard.errors import ConfigError, SpamguardError, StartError
from spamguard.storage import account_owner, directory_owner

if TYPE_CHECKING:
    from spamguard.config.options import Settings
    from spamguard.doctor import Step
    from spamguard.engine.filter import Filter

_log = logging.getLogger("spamguard.config")
_children: list[subprocess.Popen[bytes]] = []  # Popen objects must outlive their processes


# ---- run


EXIT_CONFIG = 78  # EX_CONFIG of sysexits.h: restarting would not mend it


@command(
    "run",
    """\
Run the mail proxy. It takes mail by SMTP or LMTP, judges it, tags it and hands it on; it accepts a
message only when the next hop has.

Without a file it listens on smtp://127.0.0.1:10025 and delivers to a Maildir in its state
directory, spam to .Junk in it: to try it out. Moving a message into .Junk there, or out of it,
teaches.

SIGHUP: read the configuration again, no connection is lost; SIGTERM: finish running work within 10
seconds. Exit status 78: the configuration has mistakes (`spamguard check FILE` tells the same), or
the limit on memory (`ulimit -v`) is too low.""",
    example="""  spamguard run
  spamguard run --config /etc/spamguard/spamguard.yaml""",
)
def run_run(options: Namespace) -> int:
    from spamguard.daemon.master import Master

    read = common.config_reader(options, options.config and options.config.absolute())

    def read_and_warn() -> Settings:
        from spamguard.config import schema

        settings = read()
        for warning in schema.find_warnings(settings):
            _log.warning("%s", warning)
        return settings

    return _serve(lambda: Master(read_and_warn, on_ready=_show_page).run())


def _serve(service: Callable[[], int]) -> int:
    log.configure()
    try:
        return service()
    except ConfigError as error:
        common.fail(*error.problems)
        return EXIT_CONFIG


def _show_page(settings: Settings) -> None:
    """Print a link that lets the person at the terminal in, and the way there over ssh."""
    if settings.web is None or not sys.stdout.isatty():
        return
    if connection := os.environ.get("SSH_CONNECTION", "").split():
        host, port = settings.web.listen.host, settings.web.listen.port
        server = f"{getpass.getuser()}@{connection[2]}"
        print(f"from your own machine: ssh -L {port}:{host}:{port} {server}, then open this link:")
    else:
        print("open the page by this link, which lets you in once:")
    sys.stdout.flush()
    command = [sys.executable, "-m", "spamguard", "--state", str(settings.state)]
    # a process of its own, because it asks the daemon, which waits for nothing
    _children.append(subprocess.Popen([*command, "login-link", "--operator"]))


# ---- check


@command(
    "check",
    """\
Check a configuration. Prints everything that is in force, defaults too, as YAML that ends with
`# ok`; or every mistake with its line.

Without FILE: that of --config, or of the service; else what holds without a file. Warnings go to
standard error and leave the exit status 0. Run as root, it reads with the rights of the daemon's
user, too, and warns where the daemon would not start: no such user, or a state directory of another
user. `doctor` looks at the mailboxes.""",
    argument("file", "the configuration (YAML)", "FILE", nargs="?", type=arguments.parse_path),
    example="""  spamguard check
  spamguard check spamguard.yaml""",
)
def run_check(options: Namespace) -> int:
    from spamguard.config import schema
    from spamguard.daemon import startup

    options.config = file = options.file or options.config
    read = common.config_reader(options, file)
    settings = read()
    warnings = list(schema.find_warnings(settings))
    if os.geteuid() == 0:  # another user may check for another machine
        try:
            with account_owner(startup.check_account(settings)).impersonate():
                read()
        except StartError as error:
            warnings.append(str(error))
    for warning in warnings:
        common.say(f"warning: {warning}")
    print(schema.dump_settings(settings), end="")
    print("# ok")
    return 0


# ---- open-mailboxes


@command(
    "open-mailboxes",
    """\
Open people's mail for a daemon that has no right to. Messages of the mailboxes that `watch` names
go to it over the socket `watch_socket`.

For a service of its own (systemd/spamguard-watch.service), which may read everything, while the
daemon, which parses mail, may not. It reads the configuration itself, again for each client,
answers the daemon's user and root only, writes nothing and knows no network. It does not run as
root: the unit gives its user the right to read everything (CAP_DAC_READ_SEARCH), and nothing else.

Exit status 78: the configuration has mistakes.""",
    example="""  spamguard open-mailboxes --config /etc/spamguard/spamguard.yaml""",
)
def run_open_mailboxes(options: Namespace) -> int:
    from spamguard.daemon.mailbox_broker import MailboxBroker

    if options.config is None:
        options.wrong_usage("the following arguments are required: --config")
    read = common.config_reader(options, options.config.absolute())
    return _serve(lambda: MailboxBroker(read).run())


# ---- doctor


_POLL_SECONDS = 0.1


@command(
    "doctor",
    """\
Show that mail passes and that moving it teaches. Each step is a line; what fails comes with a
remedy.

Passing: with a configuration, a daemon must run that serves what it says, and a marked message goes
to the mail server of this machine, which must let it be judged once and file it as spam. It goes
into the first mailbox that is there, teaches nothing and is removed.

Moving: with --maildir, a marked message is put into that mailbox and moved to Junk. The
running daemon must learn it, within 10 seconds; then both are taken back. The mailbox needs a Junk
folder, and the ledger keeps that the lesson was taken back. The other message goes there, too.

Exit status: 0 if nothing failed, 1 otherwise.""",
    argument(
        "--maildir",
        "a mailbox that the running daemon watches; root acts with its owner's rights",
        "PATH",
        type=arguments.parse_path,
    ),
    argument(
        "--smtp",
        "where this machine takes mail (default: %(default)s)",
        "ADDRESS:PORT",
        type=arguments.parsed_by(types.check_host_port),
        default="127.0.0.1:25",
    ),
    argument(
        "--to",
        "an address whose mail comes into the mailbox (default: of its user, at localhost)",
        "ADDRESS",
    ),
    arguments.JSON,
    example="""  spamguard doctor
  spamguard doctor --config spamguard.yaml
  spamguard doctor --maildir ~anna/Maildir
  spamguard doctor --maildir /var/vmail/example.org/anna/Maildir --to anna@example.org""",
)
def run_doctor(options: Namespace) -> int:
    with common.terminate_cleanly(), closing(_all_steps(options)) as running:
        return 1 if common.print_steps(running, as_json=options.json) else 0


def _all_steps(options: Namespace) -> Generator[Step]:
    from spamguard import doctor
    from spamguard.daemon import startup
    from spamguard.doctor.accounts import check_account
    from spamguard.engine import snapshot

    settings = common.load_config(options) if options.config else None
    state = common.state_directory(options)
    first = list(doctor.check_installation(state))
    yield from first
    if len(first) > 1:  # else the daemon does not answer this user either
        yield from _daemon_steps(settings, state)
    if settings:
        if settings.watch:
            yield doctor.check_dovecot(settings)
            try:
                yield doctor.check_mailboxes(settings, startup.service_account(settings))
            except StartError as error:
                yield doctor.failed("mailboxes", str(error), "")
        yield from doctor.check_next_hops(settings)
        for account in settings.accounts:
            yield from check_account(account)
    try:
        with common.open_filter(options, must_exist=True) as spam_filter:
            if (loss := spam_filter.find_loss()) is not None:
                yield doctor.failed("ledger", snapshot.describe_loss(loss), snapshot.LOSS_REMEDY)
            else:
                yield doctor.ok(
                    "ledger", common.count_text(spam_filter.ledger.event_count(), "event")
                )
            if settings:
                yield from _mail_steps(options, spam_filter, settings)
            if options.maildir:
                yield from _mailbox_steps(options, spam_filter, settings)
    except (SpamguardError, OSError) as error:
        yield doctor.failed("filter", common.describe_error(error), "")


def _daemon_steps(settings: Settings | None, state: Path) -> Iterator[Step]:
    """The running daemon; without a configuration none need run."""
    from spamguard import doctor
    from spamguard.daemon.status import ask_daemon
    from spamguard.doctor import proof

    deadline = time.monotonic() + proof.STEP_TIMEOUT  # it may have only just started
    while (daemon := ask_daemon(state)) is not None and time.monotonic() < deadline:
        if status.daemon_trouble(daemon) or not any(status.daemon_problems(daemon)):
            break
        time.sleep(_POLL_SECONDS)
    trouble = status.daemon_trouble(daemon)
    if daemon is None and settings is None:
        yield doctor.skipped("daemon", trouble)
    elif daemon is None:
        remedy = "start it: `systemctl start spamguard` where it is a service"
        yield doctor.failed("daemon", trouble, remedy)
    elif trouble:
        yield doctor.failed("daemon", trouble, "")
    else:
        problems = list(status.daemon_problems(daemon))
        yield from (doctor.failed("daemon", problem, "see its log") for problem in problems)
        in_force = {f"{each['listen']} to {each['next_hop']}" for each in daemon["listeners"]}
        in_force.update(daemon["scanners"])
        configured = settings and {
            *(f"{each.listen} to {each.next_hop.to}" for each in settings.listeners),
            *(str(scanner.listen) for scanner in settings.scanners),
        }
        if settings and configured != in_force:
            detail = "it listens elsewhere, or hands on to others, than the configuration says"
            remedy = "have it read that anew: `systemctl reload spamguard`, or SIGHUP"
            yield doctor.failed("daemon", detail, remedy)
        elif not problems:
            yield doctor.ok("daemon", f"pid {daemon['pid']}, ready")


def _mailbox_steps(
    options: Namespace, spam_filter: Filter, settings: Settings | None
) -> Iterator[Step]:
    """The proof in a real mailbox."""
    from spamguard import doctor
    from spamguard.doctor import proof
    from spamguard.folders import roles

    path = options.maildir.absolute()  # as the daemon names it: symbolic links stay
    special_uses = roles.read_dovecot().special_uses
    owner = directory_owner(path)
    with owner.impersonate():
        junk = proof.find_junk(path, settings.watch if settings else (), special_uses)
    if junk is None:
        remedy = "make a folder Junk with a mail program"
        yield doctor.failed("mailbox", f"{path}: it has no folder of spam", remedy)
        return
    mailbox = proof.ProofMailbox(path, junk, owner, spam_filter.directory)
    yield from proof.prove(spam_filter, mailbox)


def _mail_steps(options: Namespace, spam_filter: Filter, settings: Settings) -> Iterator[Step]:
    """A message through the mail server into a mailbox that is watched."""
    from spamguard import doctor
    from spamguard.doctor import probe
    from spamguard.folders import roles
    from spamguard.folders.maildir import LocalMailboxes

    with closing(LocalMailboxes(settings.watch, notify=False)) as backend:
        mailboxes = [mailbox for mailbox in backend.find_mailboxes() if mailbox.user]
    if options.maildir:
        path = str(options.maildir.absolute())
        mailboxes = [mailbox for mailbox in mailboxes if mailbox.path == path]
    if not mailboxes:
        yield doctor.skipped("mail", "there is no mailbox yet in which it could be looked for")
        return
    mailbox = mailboxes[0]
    domain = "" if "@" in mailbox.user else f"@{doctor.find_local_domain()}"
    recipient = options.to or mailbox.user + domain
    special_uses = roles.read_dovecot().special_uses
    yield from probe.try_mail(spam_filter, settings, special_uses, mailbox, recipient, options.smtp)
