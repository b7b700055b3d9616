"""`run`: the daemon, in the foreground. A configuration with mistakes has an exit status of its
own: restarting would not mend it.

`check`: is the configuration right, and what is in force with it? Never writes and never connects.

`open-mailboxes`: the process that opens people's mail for the daemon, so that whatever parses mail
needs no right to do so.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from spamguard.cli import common
from spamguard.errors import ConfigError, StartError
from spamguard.storage import account_owner

if TYPE_CHECKING:
    from spamguard.config.options import Settings

_log = logging.getLogger("spamguard.config")


RUN_ABOUT = """Run the mail proxy. It takes mail by SMTP or LMTP, judges it, tags it and hands it on; it says yes only when the next hop has.

Without a file it listens on smtp://127.0.0.1:10025 and delivers to a Maildir in its state directory, spam to .Junk in it: to try it
out. Moving a message into .Junk there, or out of it, teaches.

SIGHUP: read the configuration anew, no connection is lost; SIGTERM: finish what is under way, within 10 seconds.
Exit status 78: the configuration has mistakes (`spamguard check FILE` tells the same), or the limit on memory (`ulimit -v`) is too low."""
RUN_EXAMPLE = """  spamguard run
  spamguard --state /var/lib/spamguard run --config /etc/spamguard/spamguard.yaml
  spamguard run --config /etc/spamguard/spamguard.yaml --watch '/home/*/Maildir'
  spamguard run --listen smtp://127.0.0.1:10025 --next-hop lmtp:/run/dovecot/lmtp"""


def add_run(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(commands, "run", run_run, RUN_ABOUT, RUN_EXAMPLE)
    parser.add_argument(
        "--config",
        type=common.file_argument,
        metavar="FILE",
        help="the configuration (YAML); see config/spamguard.yaml",
    )
    parser.add_argument(
        "--listen",
        metavar="ENDPOINT",
        help="smtp://ADDRESS:PORT or lmtp://ADDRESS:PORT, instead of what the file says",
    )
    parser.add_argument(
        "--next-hop",
        metavar="ENDPOINT",
        help="smtp://HOST:PORT, lmtp://HOST:PORT, lmtp:/path/to/socket or maildir:/path, instead of what the file says",
    )
    parser.add_argument(
        "--watch",
        metavar="MAILDIR",
        type=common.directory_argument,
        action="append",
        default=[],
        help="where moving mail teaches, such as /home/*/Maildir, instead of what the file says; may be repeated",
    )


def run_run(options: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from spamguard import log
    from spamguard.daemon.master import Master

    file = options.config and options.config.absolute()
    watch = [str(one.absolute()) for one in options.watch]
    read = common.config_reader(
        options, file, listen=options.listen, next_hop=options.next_hop, watch=watch
    )
    log.configure(os.environ)
    try:
        return Master(lambda: _log_warnings(read())).run()
    except ConfigError as error:
        return common.fail_config(error)


def _log_warnings(settings: Settings) -> Settings:
    """The same; warnings go to the log."""
    from spamguard.config import checks

    for warning in checks.find_warnings(settings):
        _log.warning("%s", warning)
    return settings


CHECK_ABOUT = """Check a configuration. Prints everything that is in force, defaults too, as YAML; or every mistake with its line.

Without FILE: what holds without a configuration. Warnings go to standard error and leave the exit status 0. Run as root, or as
the daemon's user, it warns of watched mailboxes that this user cannot read; run as root, also of files that this user cannot, and
where the daemon would not start: no such user, or a state directory of somebody else.

With --schema: instead, the JSON Schema of the file, with which editors complete and check it as you type. Begin the file with
`# yaml-language-server: $schema=PATH`, or name it in the settings of your editor."""
CHECK_EXAMPLE = """  spamguard check /etc/spamguard/spamguard.yaml
  spamguard check --schema > /etc/spamguard/schema.json"""


def add_check(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(commands, "check", run_check, CHECK_ABOUT, CHECK_EXAMPLE)
    parser.add_argument(
        "file",
        nargs="?",
        type=common.file_argument,
        metavar="FILE",
        help="the configuration (YAML)",
    )
    parser.add_argument(
        "--schema",
        action="store_true",
        help="print the JSON Schema of the configuration, for editors",
    )


def run_check(options: argparse.Namespace) -> int:
    """Print what is in force, or what is wrong, or what there is."""
    from spamguard.config import checks, schema
    from spamguard.daemon import privileges

    if options.schema:
        return _print_schema()
    settings = common.config_reader(options, options.file)()
    itself = (
        [] if options.file is None else [options.file]
    )  # root starts the daemon even so, but it cannot reload
    seen = [
        *_start_errors(settings),
        *_unreadable_files(settings, itself),
        *_mailbox_warnings(settings),
        *_lost_lessons(settings),
    ]
    for warning in [*checks.find_warnings(settings), *seen]:
        common.say(f"warning: {warning}")
    if closed := _unreadable_files(settings, privileges.required_files(settings)):
        raise ConfigError(*closed)
    print(schema.dump_settings(settings), end="")
    return 0


def _print_schema() -> int:
    from spamguard.config.schema import schema_for_editors

    print(common.to_json(schema_for_editors(), indent=2))
    return 0


def _start_errors(settings: Settings) -> list[str]:
    """Why root cannot start the daemon so. (Whoever is not root may ask for another machine.)"""
    from spamguard.daemon import privileges

    try:
        if os.geteuid() == 0:
            privileges.check_account(settings)
    except StartError as error:
        return [str(error)]
    return []


def _unreadable_files(settings: Settings, files: Sequence[Path]) -> list[str]:
    """Which of these the daemon's user cannot read. Root alone can tell."""
    from spamguard.daemon import privileges

    if os.geteuid() != 0:
        return []
    with suppress(StartError), account_owner(privileges.service_account(settings)).impersonate():
        return privileges.find_unreadable(files)
    return []


def _lost_lessons(settings: Settings) -> list[str]:
    """Lessons that wait for nobody."""
    from spamguard.learning.queue import explain_unread_spool

    lost = explain_unread_spool(settings.teach.spool) if settings.teach is not None else ""
    return [lost] if lost else []


def _mailbox_warnings(settings: Settings) -> Iterator[str]:
    """What the daemon's user has no right to, where that can be told."""
    from spamguard.daemon import privileges

    if not settings.watch or settings.watch_socket is not None:
        return
    from spamguard.doctor import checks

    with suppress(StartError):  # the user is on another machine, or yet to come
        account = privileges.service_account(settings)
        if (found := checks.check_access(settings, account)) is not None:
            yield from found.unmatched
            if trouble := found.find_trouble(account.pw_name):
                yield "; ".join(trouble)


OPEN_MAILBOXES_ABOUT = """Open people's mail for a daemon that has no right to. Messages of the mailboxes that `watch` names go to it over the socket
`watch_socket`.

For a service of its own (systemd/spamguard-watch.service), which may read everything, while the daemon, which parses mail, may not.
It reads the configuration itself, answers the daemon's user and root only, writes nothing and knows no network. Started by root it
becomes the user below, and keeps the right to read of all of root's (CAP_DAC_READ_SEARCH).

SIGHUP: read the configuration anew. Exit status 78: the configuration has mistakes."""
OPEN_MAILBOXES_EXAMPLE = """  spamguard open-mailboxes --config /etc/spamguard/spamguard.yaml"""

DEFAULT_USER = "spamguard-watch"


def add_open_mailboxes(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(
        commands, "open-mailboxes", run_open_mailboxes, OPEN_MAILBOXES_ABOUT, OPEN_MAILBOXES_EXAMPLE
    )
    parser.add_argument(
        "--config",
        type=common.file_argument,
        metavar="FILE",
        required=True,
        help="the configuration of the daemon (YAML)",
    )
    parser.add_argument(
        "--user",
        metavar="NAME",
        default=DEFAULT_USER,
        help="whom to run as when started as root (default: %(default)s)",
    )


def run_open_mailboxes(options: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from spamguard import log
    from spamguard.daemon.mailbox_broker import MailboxBroker

    log.configure(os.environ)
    try:
        return MailboxBroker(
            common.config_reader(options, options.config.absolute()), options.user
        ).run()
    except ConfigError as error:
        return common.fail_config(error)
