"""`export`: the filter as one file that another installation imports. Never shows half a file under its name."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from spamguard.batches import batches
from spamguard.cli import output, rim, usage
from spamguard.framed import PIECE

if TYPE_CHECKING:
    from spamguard.cli.portable import Header, Writer
    from spamguard.engine import Filter

ABOUT = """Write the filter to a file for another installation.

With receipts (the default) everything can be taught, taken back and merged where it is imported. Without them the file holds only
the tables as they are now: where they are imported the filter judges as this one does, but cannot learn. Either needs the same key
there; --with-key puts it into the file, which then is as secret as the key."""
EXAMPLE = """  spamguard export filter.spamguard
  spamguard export --without-receipts --with-key - | ssh gateway spamguard import -"""


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "export", run, ABOUT, EXAMPLE)
    parser.add_argument("--without-receipts", action="store_true", help="only the tables: for a copy that judges but does not learn")
    parser.add_argument("--with-key", action="store_true", help="put the key into the file too")
    parser.add_argument(
        "file", type=usage.stream, metavar="FILE", help="where to, or - for standard output; a file of that name is replaced"
    )


def run(options: argparse.Namespace) -> int:
    """Write the file; say what is in it."""
    from spamguard.cli.portable import Writer

    with rim.open_existing(options) as spam_filter, output.output(options.file) as stream:
        if not options.without_receipts:
            spam_filter.refuse_without_receipts()
        writer = Writer(stream, _header(spam_filter, options))
        held = _write_table(spam_filter, writer) if options.without_receipts else _write_votes(spam_filter, writer)
        writer.end()
    rim.say(f"exported {held} ({writer.bytes:,} bytes)")
    if options.with_key:
        rim.say("note: the file holds the key: keep it as secret as a password")
    return 0


def _header(spam_filter: Filter, options: argparse.Namespace) -> Header:
    from spamguard import __version__
    from spamguard.cli.portable import FORMAT, Header
    from spamguard.records import EXTRACTOR

    key = spam_filter.key.hex() if options.with_key else ""
    fingerprint, classes = spam_filter.ledger.fingerprint, spam_filter.ledger.classes()
    return Header(FORMAT, __version__, EXTRACTOR, fingerprint, key, spam_filter.least_bits, classes, not options.without_receipts)


def _write_votes(spam_filter: Filter, writer: Writer) -> str:
    from spamguard.cli.portable import VOTES
    from spamguard.ledger.arriving import refuse_unusable

    number = 0
    for some in batches(spam_filter.ledger.votes(), VOTES):
        for vote in some:
            refuse_unusable(vote)  # nobody could take it in
        writer.votes(some)
        number += len(some)
    return rim.counted(number, "receipt")


def _write_table(spam_filter: Filter, writer: Writer) -> str:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tables"
        spam_filter.save_tables(path)
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                writer.table(piece)
    return "the tables, without receipts"
