"""`backup`: the installation as one file, while it runs. Never shows half a file under its name."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from spamguard.cli import output, rim, usage

ABOUT = """Back up to one file, while the daemon runs. It holds all that cannot be had again: the key, the ledger, and where messages were
seen.

The file is as secret as the key in it. Tables are made anew from the ledger; the history of verdicts, mail that waits in the
quarantine and in spools, tokens and sessions of page and API, and the configuration are not in it. `restore` puts it back."""
EXAMPLE = """  spamguard backup /srv/backup/spamguard-$(date +%F)
  spamguard backup - | ssh elsewhere 'umask 077; cat > spamguard-backup'"""


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "backup", run, ABOUT, EXAMPLE)
    usage.add_json(parser)
    parser.add_argument(
        "file", type=usage.stream, metavar="FILE", help="where to, or - for standard output; a file of that name is replaced"
    )


def run(options: argparse.Namespace) -> int:
    """Copy, write, check; say what is in it."""
    from spamguard.backup import archive, making

    with rim.open_existing(options, load=False) as spam_filter:
        spam_filter.refuse_without_receipts()
        fingerprint = spam_filter.ledger.fingerprint
    name = options.file
    beside = output.directory_of(name) if output.is_file(name) else Path(tempfile.gettempdir())
    with (
        rim.tidying_up(),
        making.copies(rim.state_directory(options), beside) as files,
        output.output(name, lambda file: archive.Archive(name, file).check()) as to,
    ):
        header = making.header_of(files, fingerprint)
        with rim.progress(sum(header.sizes.values()), "B") as advance:
            size = archive.write(to, header, files, advance)
    text = f"backed up {', '.join(header.sizes)} to {name} ({size:,} bytes); it holds the key: keep it as secret as a password"
    if name == "-":
        rim.say(text)
    else:
        rim.answer(options, text, {"file": name, "bytes": size, "files": header.sizes, "key": fingerprint})
    return 0
