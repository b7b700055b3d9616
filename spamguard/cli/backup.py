"""`backup`, `restore` and `rebuild`: keep the installation, put it back, repair its tables.

`backup` writes one file while the daemon runs. `restore` checks that file to its end, opens its
ledger and makes all tables from it before it touches the state directory, and keeps what was there.
`rebuild` makes the tables from the receipts; it reads nothing but the ledger, so that damaged
tables cannot hinder it.

Must never show half a backup under its name, and never restore under a running daemon.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from spamguard.cli import arguments, common
from spamguard.errors import UsageError
from spamguard.log import local_time

if TYPE_CHECKING:
    from spamguard.backup import BackupHeader, BackupReader


# ---- backup

BACKUP_ABOUT = """\
Back up to one file, while the daemon runs. It holds everything that cannot be made again: the key,
the ledger, and where messages were seen.

The file is as secret as the key in it. Tables are made again from the ledger; the history of
verdicts, mail that waits in the quarantine and in spools, tokens and sessions of page and API, and
the configuration are not in it. `restore` puts it back."""
BACKUP_EXAMPLE = """  spamguard backup /srv/backup/spamguard-$(date +%F)
  spamguard backup - | ssh elsewhere 'umask 077; cat > spamguard-backup'"""


def add_backup(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "backup", run_backup, BACKUP_ABOUT, BACKUP_EXAMPLE)
    arguments.add_json(parser)
    about = "where to, or - for standard output; a file of that name is replaced"
    parser.add_argument("file", type=arguments.parse_stream, metavar="FILE", help=about)


def run_backup(options: argparse.Namespace) -> int:
    """Copy the state, write the file, check it."""
    from spamguard import backup

    with common.open_existing(options, load=False) as spam_filter:
        spam_filter.require_receipts()
        fingerprint = spam_filter.ledger.fingerprint
    name = options.file
    copies = Path(tempfile.gettempdir())
    if common.is_regular_file(name):
        copies = common.output_directory(name)
    with (
        common.terminate_cleanly(),
        backup.copy_state(common.state_directory(options), copies) as files,
        common.open_output(name, lambda file: backup.BackupReader(name, file).verify()) as stream,
    ):
        header = backup.make_header(files, fingerprint)
        with common.progress(sum(header.sizes.values()), "B") as advance:
            size = backup.write_backup(stream, header, files, advance)
    text = (
        f"backed up {', '.join(header.sizes)} to {name} ({size:,} bytes); "
        "it holds the key: keep it as secret as a password"
    )
    if name == "-":
        common.say(text)
    else:
        values = {"file": name, "bytes": size, "files": header.sizes, "key": fingerprint}
        common.print_answer(options, text, values)
    return 0


# ---- restore

RESTORE_ABOUT = """\
Put what `backup` wrote into the state directory. The daemon there must have been stopped.

Where systemd listens for the daemon, stop that too: the next mail would start it again.

The file is read to its end, its ledger opened and all tables made from it before anything there is
touched; with --replace what was there is kept beside it in a directory before-restore-TIME."""
RESTORE_EXAMPLE = """  systemctl stop spamguard.socket spamguard
  spamguard --state /var/lib/spamguard restore --replace backup
  systemctl start spamguard.socket spamguard
  spamguard --state /new/place restore backup"""


def add_restore(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "restore", run_restore, RESTORE_ABOUT, RESTORE_EXAMPLE)
    arguments.add_json(parser)
    about = "put aside what is in the state directory"
    parser.add_argument("--replace", action="store_true", help=about)
    about = "a file that `backup` wrote, or - for standard input"
    parser.add_argument("file", type=arguments.parse_stream, metavar="FILE", help=about)


def run_restore(options: argparse.Namespace) -> int:
    """Check the file, prove that it works, install it."""
    from spamguard.backup import BackupReader
    from spamguard.learning import undo

    state = common.state_directory(options)
    _check_overwrite(state, replace=options.replace)
    with common.open_seekable(options.file) as stream:
        reader = BackupReader(options.file, stream)
        header = reader.verify()
        if sys.stderr.isatty():
            common.say(
                "reading every receipt and making all tables; nothing is touched before that is "
                "done"
            )
        aside = _prove_and_install(reader, header, state, replace=options.replace)
    with common.open_existing(options) as spam_filter:
        classes = dict(spam_filter.status().classes)
        outdated = undo.count_outdated(spam_filter.ledger)
    text = (
        f"restored the backup of {local_time(header.time)} into {state}: "
        f"lessons of {common.count_text(sum(classes.values()))}"
    )
    if aside:
        text += f"; what was there is in {aside}"
    values = {"state": str(state), "made": header.time, "classes": classes}
    common.print_answer(options, text, values | {"kept": str(aside) if aside else None})
    if outdated:
        common.say(f"note: {undo.describe_outdated(outdated)}; {undo.REEXTRACT_REMEDY}")
    return 0


def _prove_and_install(
    reader: BackupReader, header: BackupHeader, state: Path, *, replace: bool
) -> Path | None:
    """Install the backup; return where the old state is kept, if there was any."""
    from spamguard import backup

    with (
        common.progress(sum(header.sizes.values()), "B") as advance,
        backup.prove_backup(reader, header, state, advance) as draft,
    ):
        return backup.install_backup(draft, state, lambda: _check_overwrite(state, replace=replace))


def _check_overwrite(state: Path, *, replace: bool) -> None:
    """Raise UsageError if the state directory must not be replaced."""
    from spamguard import backup
    from spamguard.daemon import status

    backup.check_overwrite(state, replace=replace)
    if state.is_dir() and (daemon := status.ask_daemon(state)) is not None:
        raise UsageError(
            f"{state}: a daemon runs on it (process {daemon['pid']}): stop it, then restore"
        )


# ---- rebuild

REBUILD_ABOUT = """\
Make the tables again from the receipts. It repairs tables that are damaged or missing; nothing is
taught again.

If the old tables prove that the ledger has lost events, as from a damaged log, it says so."""
REBUILD_EXAMPLE = """  spamguard rebuild"""


def add_rebuild(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "rebuild", run_rebuild, REBUILD_ABOUT, REBUILD_EXAMPLE)
    arguments.add_json(parser)


def run_rebuild(options: argparse.Namespace) -> int:
    """Settle from the receipts."""
    from spamguard.engine import snapshot

    start = time.monotonic()
    with common.open_existing(options, load=False) as spam_filter:
        if sys.stderr.isatty():
            common.say("replaying all receipts; judging and teaching go on meanwhile")
        spam_filter.settle()
        classes, loss = spam_filter.status().classes, spam_filter.find_loss()
        spam_filter.clear_loss()
    seconds = time.monotonic() - start
    messages = common.count_text(sum(classes.values()))
    text = f"rebuilt the tables from the receipts of {messages} in {seconds:.1f} s"
    if loss is not None:
        text += f"\n{snapshot.describe_loss(loss)}: {snapshot.LOSS_ADVICE}"
    values = {"classes": dict(classes), "seconds": round(seconds, 3)}
    common.print_answer(options, text, values | {"lost_events": loss.events if loss else 0})
    return 0
