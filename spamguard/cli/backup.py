"""`backup`: the installation as one file, while it runs. Never shows half a file under its name.

`restore`: what `backup` wrote, put into a state directory. Proves it before it touches anything;
what was there is kept.

`rebuild`: all tables anew from the receipts. Reads nothing but the ledger, so that damaged tables
cannot stand in its way.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from spamguard.cli import common
from spamguard.cli.common import open_seekable
from spamguard.errors import UsageError
from spamguard.log import local_time

if TYPE_CHECKING:
    from spamguard.backup import BackupHeader, BackupReader


BACKUP_ABOUT = """Back up to one file, while the daemon runs. It holds all that cannot be had again: the key, the ledger, and where messages were
seen.

The file is as secret as the key in it. Tables are made anew from the ledger; the history of verdicts, mail that waits in the
quarantine and in spools, tokens and sessions of page and API, and the configuration are not in it. `restore` puts it back."""
BACKUP_EXAMPLE = """  spamguard backup /srv/backup/spamguard-$(date +%F)
  spamguard backup - | ssh elsewhere 'umask 077; cat > spamguard-backup'"""


def add_backup(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(commands, "backup", run_backup, BACKUP_ABOUT, BACKUP_EXAMPLE)
    common.add_json(parser)
    parser.add_argument(
        "file",
        type=common.stream_argument,
        metavar="FILE",
        help="where to, or - for standard output; a file of that name is replaced",
    )


def run_backup(options: argparse.Namespace) -> int:
    """Copy, write, check; say what is in it."""
    from spamguard import backup

    with common.open_existing(options, load=False) as spam_filter:
        spam_filter.require_receipts()
        fingerprint = spam_filter.ledger.fingerprint
    name = options.file
    beside = (
        common.output_directory(name)
        if common.is_regular_file(name)
        else Path(tempfile.gettempdir())
    )
    with (
        common.terminate_cleanly(),
        backup.copy_state(common.state_directory(options), beside) as files,
        common.open_output(name, lambda file: backup.BackupReader(name, file).verify()) as to,
    ):
        header = backup.make_header(files, fingerprint)
        with common.progress(sum(header.sizes.values()), "B") as advance:
            size = backup.write_backup(to, header, files, advance)
    text = f"backed up {', '.join(header.sizes)} to {name} ({size:,} bytes); it holds the key: keep it as secret as a password"
    if name == "-":
        common.say(text)
    else:
        common.print_answer(
            options, text, {"file": name, "bytes": size, "files": header.sizes, "key": fingerprint}
        )
    return 0


RESTORE_ABOUT = """Put what `backup` wrote into the state directory. The daemon there must have been stopped.

Where systemd listens for the daemon, stop that too: the next mail would start it again.

The file is read to its end, its ledger opened and all tables made from it before anything there is touched; with --replace what was
there is kept beside it in a directory before-restore-TIME."""
RESTORE_EXAMPLE = """  systemctl stop spamguard.socket spamguard
  spamguard --state /var/lib/spamguard restore --replace backup
  systemctl start spamguard.socket spamguard
  spamguard --state /new/place restore backup"""


def add_restore(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(commands, "restore", run_restore, RESTORE_ABOUT, RESTORE_EXAMPLE)
    common.add_json(parser)
    parser.add_argument(
        "--replace", action="store_true", help="put aside what is in the state directory"
    )
    parser.add_argument(
        "file",
        type=common.stream_argument,
        metavar="FILE",
        help="a file that `backup` wrote, or - for standard input",
    )


def run_restore(options: argparse.Namespace) -> int:
    """Check, prove, replace; say what is there now."""
    from spamguard.backup import BackupReader
    from spamguard.learning import reextract

    state = common.state_directory(options)
    _refuse_overwrite(state, replace=options.replace)
    with open_seekable(options.file) as stream:
        archive = BackupReader(options.file, stream)
        header = archive.verify()
        if sys.stderr.isatty():
            common.say(
                "reading every receipt and making all tables; nothing is touched before that is done"
            )
        aside = _prove_and_replace(archive, header, state, replace=options.replace)
    with common.open_existing(options) as spam_filter:
        classes, left = (
            dict(spam_filter.status().classes),
            reextract.count_outdated(spam_filter.ledger),
        )
    kept = f"; what was there is in {aside}" if aside else ""
    text = f"restored the backup of {local_time(header.time)} into {state}: lessons of {common.count_text(sum(classes.values()))}{kept}"
    common.print_answer(
        options,
        text,
        {
            "state": str(state),
            "made": header.time,
            "classes": classes,
            "kept": str(aside) if aside else None,
        },
    )
    if left:
        common.say(f"note: {reextract.describe_outdated(left)}; {reextract.REEXTRACT_REMEDY}")
    return 0


def _prove_and_replace(
    archive: BackupReader, header: BackupHeader, state: Path, *, replace: bool
) -> Path | None:
    """Where what was there is kept."""
    from spamguard import backup

    with (
        common.progress(sum(header.sizes.values()), "B") as advance,
        backup.prove_backup(archive, header, state, advance) as draft,
    ):
        return backup.install_backup(
            draft, state, lambda: _refuse_overwrite(state, replace=replace)
        )


def _refuse_overwrite(state: Path, *, replace: bool) -> None:
    from spamguard import backup

    backup.check_overwrite(state, replace=replace)
    from spamguard.daemon import status

    if state.is_dir() and (daemon := status.ask_daemon(state)) is not None:
        raise UsageError(
            f"{state}: a daemon runs on it (process {daemon['pid']}): stop it, then restore"
        )


REBUILD_ABOUT = """Make the tables anew from the receipts. For tables that are damaged or missing; nothing is taught anew.

If the old tables prove that the ledger has lost events, as from a damaged log, it says so."""
REBUILD_EXAMPLE = """  spamguard rebuild"""


def add_rebuild(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(commands, "rebuild", run_rebuild, REBUILD_ABOUT, REBUILD_EXAMPLE)
    common.add_json(parser)


def run_rebuild(options: argparse.Namespace) -> int:
    """Rebuild; say from how much."""
    from spamguard.engine import snapshot

    begun = time.monotonic()
    with common.open_existing(options, load=False) as spam_filter:
        if sys.stderr.isatty():
            common.say("replaying all receipts; judging and teaching go on meanwhile")
        spam_filter.settle()
        classes, lost = spam_filter.status().classes, spam_filter.find_loss()
        spam_filter.clear_loss()
    seconds = time.monotonic() - begun
    number = sum(classes.values())
    text = f"rebuilt the tables from the receipts of {common.count_text(number)} in {seconds:.1f} s"
    if lost is not None:
        text += f"\n{snapshot.describe_loss(lost)}: {snapshot.LOSS_ADVICE}"
    common.print_answer(
        options,
        text,
        {
            "classes": dict(classes),
            "seconds": round(seconds, 3),
            "lost_events": lost.events if lost else 0,
        },
    )
    return 0
