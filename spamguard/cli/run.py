"""`run`, `check` and `open-mailboxes`: the daemon, its configuration, and the mailbox broker.

`run` is the daemon in the foreground. `check` prints the configuration that is in force, or every
mistake in it, and warns of what would keep the daemon from working. `open-mailboxes` is the process
that opens people's mail for the daemon, so that the code that parses mail needs no right to do so.

A configuration with mistakes has an exit status of its own, because restarting would not mend it.
`check` must never write and never connect. `open-mailboxes` must never load what parses mail.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spamguard import log
from spamguard.cli import arguments, common
from spamguard.errors import ConfigError, StartError
from spamguard.storage import account_owner

if TYPE_CHECKING:
    from spamguard.config.options import Settings

_log = logging.getLogger("spamguard.config")


# ---- run

RUN_ABOUT = """\
Run the mail proxy. It takes mail by SMTP or LMTP, judges it, tags it and hands it on; it accepts a
message only when the next hop has.

Without a file it listens on smtp://127.0.0.1:10025 and delivers to a Maildir in its state
directory, spam to .Junk in it: to try it out. Moving a message into .Junk there, or out of it,
teaches.

SIGHUP: read the configuration again, no connection is lost; SIGTERM: finish running work within 10
seconds. Exit status 78: the configuration has mistakes (`spamguard check FILE` tells the same), or
the limit on memory (`ulimit -v`) is too low."""
RUN_EXAMPLE = """  spamguard run
  spamguard --state /var/lib/spamguard run --config /etc/spamguard/spamguard.yaml
  spamguard run --config /etc/spamguard/spamguard.yaml --watch '/home/*/Maildir'
  spamguard run --listen smtp://127.0.0.1:10025 --next-hop lmtp:/run/dovecot/lmtp"""


def add_run(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "run", run_run, RUN_ABOUT, RUN_EXAMPLE)
    about = "the configuration (YAML); see config/spamguard.yaml"
    parser.add_argument("--config", type=arguments.parse_file, metavar="FILE", help=about)
    about = "smtp://ADDRESS:PORT or lmtp://ADDRESS:PORT, instead of what the file says"
    parser.add_argument("--listen", metavar="ENDPOINT", help=about)
    about = (
        "smtp://HOST:PORT, lmtp://HOST:PORT, lmtp:/path/to/socket or maildir:/path, "
        "instead of what the file says"
    )
    parser.add_argument("--next-hop", metavar="ENDPOINT", help=about)
    about = (
        "where moving mail teaches, such as /home/*/Maildir, instead of what the file says; "
        "may be repeated"
    )
    parser.add_argument(
        "--watch",
        metavar="MAILDIR",
        type=arguments.parse_directory,
        action="append",
        default=[],
        help=about,
    )


def run_run(options: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    from spamguard.daemon.master import Master

    read = common.config_reader(
        options,
        options.config and options.config.absolute(),
        listen=options.listen,
        next_hop=options.next_hop,
        watch=[str(maildir.absolute()) for maildir in options.watch],
    )
    log.configure(os.environ)
    try:
        return Master(lambda: _log_warnings(read())).run()
    except ConfigError as error:
        return common.fail_config(error)


def _log_warnings(settings: Settings) -> Settings:
    """Write the warnings of the settings to the log; return the settings."""
    from spamguard.config import checks

    for warning in checks.find_warnings(settings):
        _log.warning("%s", warning)
    return settings


# ---- check

CHECK_ABOUT = """\
Check a configuration. Prints everything that is in force, defaults too, as YAML that ends with
`# ok`; or every mistake with its line.

Without FILE: the configuration that holds without a file. Warnings go to standard error and leave
the exit status 0. Run as root, or as the daemon's user, it warns of watched mailboxes that this
user cannot read; run as root, also of files that this user cannot, and where the daemon would not
start: no such user, or a state directory of another user.

With --schema: instead, the JSON Schema of the file, with which editors complete and check it as you
type. Begin the file with `# yaml-language-server: $schema=PATH`, or name it in the settings of your
editor."""
CHECK_EXAMPLE = """  spamguard check /etc/spamguard/spamguard.yaml
  spamguard check --schema > /etc/spamguard/schema.json"""


def add_check(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "check", run_check, CHECK_ABOUT, CHECK_EXAMPLE)
    about = "the configuration (YAML)"
    parser.add_argument("file", nargs="?", type=arguments.parse_file, metavar="FILE", help=about)
    about = "print the JSON Schema of the configuration, for editors"
    parser.add_argument("--schema", action="store_true", help=about)
    arguments.add_json(parser, "answer in JSON: ok, problems, warnings, and what is in force")


def run_check(options: argparse.Namespace) -> int:
    """Print the configuration in force, its mistakes, or its schema."""
    from spamguard.config import schema
    from spamguard.daemon import privileges

    if options.schema:
        print(common.to_json(schema.schema_for_editors(), indent=2))
        return 0
    warnings: list[str] = []
    in_force: dict[str, Any] = {}
    problems: tuple[str, ...] = ()
    try:
        settings = common.config_reader(options, options.file)()
        warnings += _find_warnings(settings, options.file)
        if unreadable := _unreadable_files(settings, privileges.required_files(settings)):
            raise ConfigError(*unreadable)
        in_force = schema.to_plain(settings)
    except ConfigError as error:
        if not options.json:
            _say_warnings(warnings)
            raise
        problems = error.problems
    if options.json:
        values = {"ok": not problems, "problems": problems, "warnings": warnings}
        print(common.to_json(values | {"settings": in_force or None}))
        return common.EXIT_ERROR if problems else 0
    _say_warnings(warnings)
    print(schema.dump_settings(settings), end="")
    print("# ok" + (f", with {common.count_text(len(warnings), 'warning')}" if warnings else ""))
    return 0


def _say_warnings(warnings: Sequence[str]) -> None:
    for warning in warnings:
        common.say(f"warning: {warning}")


def _find_warnings(settings: Settings, file: Path | None) -> list[str]:
    """What is no mistake, but would keep the daemon from working, or is not what people mean."""
    from spamguard.config import checks
    from spamguard.learning.queue import explain_unread_spool

    warnings = [
        *checks.find_warnings(settings),
        *_start_errors(settings),
        # root can start the daemon if this file is unreadable, but the daemon cannot reload it
        *_unreadable_files(settings, [] if file is None else [file]),
        *_mailbox_warnings(settings),
    ]
    if settings.teach is not None and (lost := explain_unread_spool(settings.teach.spool)):
        warnings.append(lost)
    return warnings


def _start_errors(settings: Settings) -> list[str]:
    """Why root cannot start the daemon here. Another user may check for another machine."""
    from spamguard.daemon import privileges

    try:
        if os.geteuid() == 0:
            privileges.check_account(settings)
    except StartError as error:
        return [str(error)]
    return []


def _unreadable_files(settings: Settings, files: Sequence[Path]) -> list[str]:
    """Complaints about files that the daemon's user cannot read; only root can find out."""
    from spamguard.daemon import privileges

    if os.geteuid() != 0:
        return []
    with suppress(StartError), account_owner(privileges.service_account(settings)).impersonate():
        return privileges.find_unreadable(files)
    return []


def _mailbox_warnings(settings: Settings) -> Iterator[str]:
    """Warn of mailboxes that the daemon's user has no right to, as far as we can find out."""
    from spamguard.daemon import privileges

    if not settings.watch or settings.watch_socket is not None:
        return
    from spamguard.doctor import checks

    with suppress(StartError):  # the user is on another machine, or yet to come
        account = privileges.service_account(settings)
        if (access := checks.check_access(settings, account)) is not None:
            yield from access.unmatched
            if trouble := access.find_trouble(account.pw_name):
                yield "; ".join(trouble)


# ---- open-mailboxes

OPEN_MAILBOXES_ABOUT = """\
Open people's mail for a daemon that has no right to. Messages of the mailboxes that `watch` names
go to it over the socket `watch_socket`.

For a service of its own (systemd/spamguard-watch.service), which may read everything, while the
daemon, which parses mail, may not. It reads the configuration itself, answers the daemon's user and
root only, writes nothing and knows no network. Started by root it becomes the user below, and keeps
the right to read of all of root's (CAP_DAC_READ_SEARCH).

SIGHUP: read the configuration again. Exit status 78: the configuration has mistakes."""
OPEN_MAILBOXES_EXAMPLE = """  spamguard open-mailboxes --config /etc/spamguard/spamguard.yaml"""

DEFAULT_USER = "spamguard-watch"


def add_open_mailboxes(commands: arguments.Commands) -> None:
    parser = arguments.add_command(
        commands, "open-mailboxes", run_open_mailboxes, OPEN_MAILBOXES_ABOUT, OPEN_MAILBOXES_EXAMPLE
    )
    about = "the configuration of the daemon (YAML)"
    parser.add_argument(
        "--config", type=arguments.parse_file, metavar="FILE", required=True, help=about
    )
    about = "the user to become when started as root (default: %(default)s)"
    parser.add_argument("--user", metavar="NAME", default=DEFAULT_USER, help=about)


def run_open_mailboxes(options: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    from spamguard.daemon.mailbox_broker import MailboxBroker

    read = common.config_reader(options, options.config.absolute())
    log.configure(os.environ)
    try:
        return MailboxBroker(read, options.user).run()
    except ConfigError as error:
        return common.fail_config(error)
