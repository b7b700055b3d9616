"""`import`: take in what `export` wrote, or another filter's word list (`import_words`).

Looks at the whole file before it takes in anything; importing twice changes nothing.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from spamguard import secret
from spamguard.batches import batches
from spamguard.cli import rim, usage
from spamguard.cli.given import given
from spamguard.errors import LedgerError, SourceError, UsageError
from spamguard.files import KEY, LEDGER, create_private, draft_of

if TYPE_CHECKING:
    from spamguard.cli.portable import Header, Reader
    from spamguard.engine import Filter

ABOUT = """Take in an export, or what another filter knew about words.

Receipts are added to those that are here; what was taught here stays, and of two words about one message the later one counts.
Tables without receipts make a filter that judges but does not learn: they go into a new state directory, or replace tables that came
the same way. The key here must be the one of the file; a new state directory takes the file's, if it holds one.

Word lists are recognised by what is in them: bogofilter (`bogoutil -d wordlist.db`), SpamBayes (`sb_dbexpimp.py -e`), POPFile
(popfile.db, or the corpus directory of older versions; buckets spam and junk are spam, all others are good mail). They are where the
filter starts from, and fade as it is taught: after 50 messages they weigh half as much. `status` lists them, `undo --import` takes them
back. SpamAssassin and rspamd keep hashes, no words: teach from the folders instead."""
EXAMPLE = """  spamguard import filter.spamguard
  spamguard --state /new/place import filter-with-key.spamguard
  bogoutil -d ~/.bogofilter/wordlist.db | spamguard import -
  spamguard import --dry-run hammie.csv"""
KINDS = ("bogofilter", "spambayes", "popfile")


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "import", run, ABOUT, EXAMPLE)
    usage.add_json(parser)
    parser.add_argument("--from", dest="source", choices=KINDS, help="of a word list: whose it is (default: as recognised)")
    parser.add_argument("--name", metavar="NAME", help="of a word list: what `status` and `undo --import` call it (default: as --from)")
    parser.add_argument("--dry-run", action="store_true", help="only look at the file and say what would be taken in")
    parser.add_argument("file", type=usage.stream, metavar="FILE", help="a file that `export` wrote, a word list, or - for standard input")


def run(options: argparse.Namespace) -> int:
    """Take in whatever it is."""
    from spamguard.cli import import_words
    from spamguard.cli.portable import MAGIC

    path = None if options.file == "-" else Path(options.file)
    if path is not None and path.is_dir():
        return import_words.run(options, b"", path, io.BytesIO())
    with given(options.file) as stream:
        stream.seek(0)
        head = stream.read(import_words.HEAD_BYTES)
        stream.seek(0)
        if head.startswith(MAGIC) and options.source is None:
            return _take_export(options, stream)
        return import_words.run(options, head, path, stream)


def _take_export(options: argparse.Namespace, stream: BinaryIO) -> int:
    """Check, take in, settle; say how much was new."""
    from spamguard.cli.portable import Reader

    reader = Reader(options.file, stream)
    header, labels, number = reader.check()
    _refuse_extractor(options.file, header)
    _refuse_unreadable(options.file, reader)
    new = None if options.dry_run else _taken(options, reader, header, labels)
    text = f"{rim.counted(number, 'receipt')}" if header.receipts else "tables without receipts"
    told = f"would import {text}" if new is None else f"imported {text}" + (f", {new:,} of them new" if header.receipts else "")
    rim.answer(options, told, {"receipts": number, "new": new, "tables": not header.receipts, "dry_run": options.dry_run})
    return 0


def _taken(options: argparse.Namespace, reader: Reader, header: Header, labels: set[str]) -> int:
    _bring_key(rim.state_directory(options), options.file, header)
    with rim.open_filter(options, bits=header.bits) as spam_filter:
        _define_classes(spam_filter, header, labels)
        return _merge(spam_filter, reader) if header.receipts else _adopt(spam_filter, reader)


def _refuse_extractor(name: str, header: Header) -> None:
    """Receipts of another extractor are kept for the program that reads them; tables of another one are of no use."""
    from spamguard.records import EXTRACTOR

    if not header.receipts and header.extractor != EXTRACTOR:
        raise SourceError(
            f"{name}: its tables are of extractor {header.extractor}, this program's is {EXTRACTOR}: export them from the same version"
        )


def _refuse_unreadable(name: str, reader: Reader) -> None:
    """What the ledger would refuse half-way; and what says it is of this extractor and is not, which would stop every reader for good."""
    from spamguard.cli.portable import VOTES
    from spamguard.ledger import codec
    from spamguard.ledger.arriving import usable
    from spamguard.model.fold import features_of
    from spamguard.records import EXTRACTOR

    ours = (vote for vote in usable(reader.votes()) if vote.label is not None and vote.extractor == EXTRACTOR)
    try:
        for some in batches(ours, VOTES):
            features_of([vote.packed for vote in some])
            for vote in some:
                codec.unpack_scores(vote.scores)
    except LedgerError as error:
        raise SourceError(f"{name}: a receipt in it cannot be read; nothing was imported") from error


def _bring_key(place: Path, name: str, header: Header) -> None:
    """See that the key here is the one of the file; a place without key and ledger takes it from the file."""
    from spamguard.model import directory

    path = place / KEY
    if not path.exists() and not (place / LEDGER).exists():
        if not header.key:
            raise UsageError(f"{name}: needs the key {header.fingerprint}, {place} has none: put its key file there, or export --with-key")
        directory.make(place)
        secret.store(path, bytes.fromhex(header.key))
    here = secret.fingerprint(secret.load(path, create=False))
    if here != header.fingerprint:
        raise UsageError(f"{name}: was taught with key {header.fingerprint}, {place} has {here}: import it into a new state directory")


def _define_classes(spam_filter: Filter, header: Header, labels: set[str]) -> None:
    """Make the file's classes known; whether a class is unwanted is for the people here to say, if they have."""
    from spamguard.ledger import wordlists

    here = spam_filter.ledger.classes()
    for name in sorted((labels - {wordlists.LABEL}) | set(header.classes)):
        spam_filter.check_class(name, new=True)
    for name, unwanted in header.classes.items():
        if name not in here:
            spam_filter.define_class(name, unwanted=unwanted)
        elif unwanted != here[name]:  # with the same receipts both would go on saying different things, and nobody would know why
            side, other, place = ("wanted", "unwanted", "here") if unwanted else ("unwanted", "wanted", "there")
            rim.say(f"note: {name} is {side} here, and stays so, but {other} there; `learn --unwanted --as {name}` {place} ends that")


def _merge(spam_filter: Filter, reader: Reader) -> int:
    spam_filter.refuse_without_receipts()
    new = spam_filter.ledger.merge(reader.votes())
    if new or spam_filter.status().unsettled:  # also when whoever imported it before was interrupted
        spam_filter.settle()  # at once, from the receipts: folding each of them first would take longer
    return new


def _adopt(spam_filter: Filter, reader: Reader) -> int:
    with draft_of(spam_filter.directory / "import") as path:
        with create_private(path) as file:
            file.writelines(reader.table())
        spam_filter.adopt_tables(path)
    return 0
