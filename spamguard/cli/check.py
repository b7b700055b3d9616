"""`check`: is the configuration right, and what is in force with it? Never writes and never connects."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from spamguard.cli import rim, usage
from spamguard.errors import ConfigError, StartError
from spamguard.owner import owner_from

if TYPE_CHECKING:
    from spamguard.settings import Settings

ABOUT = """Check a configuration. Prints everything that is in force, defaults too, as YAML; or every mistake with its line.

Without FILE: what holds without a configuration. Warnings go to standard error and leave the exit status 0. Run as root, or as
the daemon's user, it warns of watched mailboxes that this user cannot read; run as root, also of files that this user cannot, and
where the daemon would not start: no such user, or a state directory of somebody else.

With --schema: instead, the JSON Schema of the file, with which editors complete and check it as you type. Begin the file with
`# yaml-language-server: $schema=PATH`, or name it in the settings of your editor."""
EXAMPLE = """  spamguard check /etc/spamguard/spamguard.yaml
  spamguard check --schema > /etc/spamguard/schema.json"""


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "check", run, ABOUT, EXAMPLE)
    parser.add_argument("file", nargs="?", type=usage.file, metavar="FILE", help="the configuration (YAML)")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of the configuration, for editors")


def run(options: argparse.Namespace) -> int:
    """Print what is in force, or what is wrong, or what there is."""
    from spamguard import config
    from spamguard.daemon import privileges

    if options.schema:
        return _schema()
    settings = rim.reader(options, options.file)()
    itself = [] if options.file is None else [options.file]  # root starts the daemon even so, but it cannot reload
    seen = [*_not_startable(settings), *_closed(settings, itself), *_mailboxes(settings), *_left(settings)]
    for warning in [*config.warnings(settings), *seen]:
        rim.say(f"warning: {warning}")
    if closed := _closed(settings, privileges.named_files(settings)):
        raise ConfigError(*closed)
    print(config.effective(settings), end="")
    return 0


def _schema() -> int:
    from spamguard.config.editors import schema_for_editors

    print(rim.as_json(schema_for_editors(), indent=2))
    return 0


def _not_startable(settings: Settings) -> list[str]:
    """Why root cannot start the daemon so. (Whoever is not root may ask for another machine.)"""
    from spamguard.daemon import privileges

    try:
        if os.geteuid() == 0:
            privileges.check(settings)
    except StartError as error:
        return [str(error)]
    return []


def _closed(settings: Settings, files: Sequence[Path]) -> list[str]:
    """Which of these the daemon's user cannot read. Root alone can tell."""
    from spamguard.daemon import privileges

    if os.geteuid() != 0:
        return []
    with suppress(StartError), owner_from(privileges.service_account(settings)).acting():
        return privileges.unreadable(files)
    return []


def _left(settings: Settings) -> list[str]:
    """Lessons that wait for nobody."""
    from spamguard.teaching.dropped import learnt_by_nobody

    lost = learnt_by_nobody(settings.teach.spool) if settings.teach is not None else ""
    return [lost] if lost else []


def _mailboxes(settings: Settings) -> Iterator[str]:
    """What the daemon's user has no right to, where that can be told."""
    from spamguard.daemon import privileges

    if not settings.watch or settings.watch_socket is not None:
        return
    from spamguard.doctor import access

    with suppress(StartError):  # the user is on another machine, or yet to come
        account = privileges.service_account(settings)
        if (found := access.of_user(settings, account)) is not None:
            yield from found.idle
            if trouble := found.trouble(account.pw_name):
                yield "; ".join(trouble)
