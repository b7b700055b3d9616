"""`restore`: what `backup` wrote, put into a state directory. Proves it before it touches anything; what was there is kept."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spamguard.cli import rim, usage
from spamguard.cli.given import given
from spamguard.daemon import desk
from spamguard.errors import UsageError
from spamguard.times import moment

if TYPE_CHECKING:
    from spamguard.backup.archive import Archive, Header

ABOUT = """Put what `backup` wrote into the state directory. The daemon there must have been stopped.

Where systemd listens for the daemon, stop that too: the next mail would start it again.

The file is read to its end, its ledger opened and all tables made from it before anything there is touched; with --replace what was
there is kept beside it in a directory before-restore-TIME."""
EXAMPLE = """  systemctl stop spamguard.socket spamguard
  spamguard --state /var/lib/spamguard restore --replace backup
  systemctl start spamguard.socket spamguard
  spamguard --state /new/place restore backup"""


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "restore", run, ABOUT, EXAMPLE)
    usage.add_json(parser)
    parser.add_argument("--replace", action="store_true", help="put aside what is in the state directory")
    parser.add_argument("file", type=usage.stream, metavar="FILE", help="a file that `backup` wrote, or - for standard input")


def run(options: argparse.Namespace) -> int:
    """Check, prove, replace; say what is there now."""
    from spamguard import renewal
    from spamguard.backup.archive import Archive

    state = rim.state_directory(options)
    _refuse(state, replace=options.replace)
    with given(options.file) as stream:
        archive = Archive(options.file, stream)
        header = archive.check()
        if sys.stderr.isatty():
            rim.say("reading every receipt and making all tables; nothing is touched before that is done")
        aside = _restored(archive, header, state, replace=options.replace)
    with rim.open_existing(options) as spam_filter:
        classes, left = dict(spam_filter.status().classes), renewal.left_behind(spam_filter.ledger)
    kept = f"; what was there is in {aside}" if aside else ""
    text = f"restored the backup of {moment(header.time)} into {state}: lessons of {rim.counted(sum(classes.values()))}{kept}"
    rim.answer(options, text, {"state": str(state), "made": header.time, "classes": classes, "kept": str(aside) if aside else None})
    if left:
        rim.say(f"note: {renewal.told(left)}; {renewal.REMEDY}")
    return 0


def _restored(archive: Archive, header: Header, state: Path, *, replace: bool) -> Path | None:
    """Where what was there is kept."""
    from spamguard.backup import restoring

    with rim.progress(sum(header.sizes.values()), "B") as advance, restoring.proved(archive, header, state, advance) as draft:
        return restoring.put_in_place(draft, state, lambda: _refuse(state, replace=replace))


def _refuse(state: Path, *, replace: bool) -> None:
    from spamguard.backup import restoring

    restoring.refuse_to_overwrite(state, replace=replace)
    if state.is_dir() and (daemon := desk.ask(state)) is not None:
        raise UsageError(f"{state}: a daemon runs on it (process {daemon['pid']}): stop it, then restore")
