"""`export` and `import`: the filter as one file that another installation takes in.

`export_file` describes the file. `import` checks the whole file before it takes in anything;
importing twice changes nothing. It also takes in word lists of other filters, as a start that
fades; these never count as mail. Must never show half a file under its name.
"""

from __future__ import annotations

import argparse
import io
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from spamguard import keys
from spamguard.cli import common
from spamguard.cli.common import open_seekable
from spamguard.errors import LedgerError, SourceError, UsageError
from spamguard.log import printable
from spamguard.storage import (
    KEY_FILE,
    LEDGER_FILE,
    batches,
    create_private,
    draft_file,
)

if TYPE_CHECKING:
    from spamguard.bayes.online import WordOdds
    from spamguard.cli.export_file import ExportHeader, ExportReader
    from spamguard.engine.filter import Filter
    from spamguard.learning.importers import WordListFormat
    from spamguard.ledger.wordlists import WordListInfo


VOTES_PER_BATCH = 128


EXPORT_ABOUT = """Write the filter to a file for another installation.

With receipts (the default) everything can be taught, taken back and merged where it is imported. Without them the file holds only
the tables as they are now: where they are imported the filter judges as this one does, but cannot learn. Either needs the same key
there; --with-key puts it into the file, which then is as secret as the key."""
EXPORT_EXAMPLE = """  spamguard export filter.spamguard
  spamguard export --without-receipts --with-key - | ssh gateway spamguard import -"""


def add_export(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(commands, "export", run_export, EXPORT_ABOUT, EXPORT_EXAMPLE)
    parser.add_argument(
        "--without-receipts",
        action="store_true",
        help="only the tables: for a copy that judges but does not learn",
    )
    parser.add_argument("--with-key", action="store_true", help="put the key into the file too")
    parser.add_argument(
        "file",
        type=common.stream_argument,
        metavar="FILE",
        help="where to, or - for standard output; a file of that name is replaced",
    )


def run_export(options: argparse.Namespace) -> int:
    """Write the file; say what is in it."""
    from spamguard import __version__
    from spamguard.cli.export_file import EXPORT_SCHEMA, ExportHeader, write_export
    from spamguard.ledger.validate import check_votes
    from spamguard.records import EXTRACTOR

    with (
        common.open_existing(options) as spam_filter,
        common.open_output(options.file) as stream,
        _export_path(options.file, stream) as path,
        tempfile.TemporaryDirectory() as directory,
    ):
        ledger, receipts = spam_filter.ledger, not options.without_receipts
        header = ExportHeader(
            __version__,
            EXTRACTOR,
            ledger.fingerprint,
            spam_filter.key.hex() if options.with_key else "",
            spam_filter.min_bits,
            ledger.classes(),
            receipts,
        )
        if receipts:
            spam_filter.require_receipts()
            votes, table = check_votes(ledger.all_votes()), None
        else:
            votes, table = iter(()), Path(directory) / "tables"
            spam_filter.save_tables(table)
        with EXPORT_SCHEMA.errors(Path(options.file)):
            number = write_export(path, header, votes, table)
        size = path.stat().st_size
    content = common.count_text(number, "receipt") if receipts else "the tables, without receipts"
    common.say(f"exported {content} ({size:,} bytes)")
    if options.with_key:
        common.say("note: the file holds the key: keep it as secret as a password")
    return 0


@contextmanager
def _export_path(name: str, stream: BinaryIO) -> Iterator[Path]:
    """A file to write to: the one that the stream writes; for a pipe, a temporary one."""
    if common.is_regular_file(name):
        yield Path(stream.name)
        return
    with tempfile.NamedTemporaryFile() as file:
        yield Path(file.name)
        shutil.copyfileobj(file, stream)
        stream.flush()


def import_word_list(
    options: argparse.Namespace, head: bytes, path: Path | None, stream: BinaryIO
) -> int:
    """Recognise, read, take in, settle; say how much of it is of use. head: its first bytes; path:
    None for standard input.
    """
    from spamguard.learning.importers import WordListFormat, detect_format
    from spamguard.ledger import wordlists

    kind = (
        detect_format(options.file, head, path)
        if options.source is None
        else WordListFormat(options.source)
    )
    name = options.name or kind.value
    if not wordlists.LIST_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a word list: use up to 64 letters, digits and . @ _ -"
        )
    new = None
    if options.dry_run:
        about, _ = _read_words(options, kind, path, stream, secrets.token_bytes(32))
    else:
        about, new = _take_in_words(options, kind, name, path, stream)
    common.print_answer(options, _words_summary(about, name, new), _words_values(about, name, new))
    return 0


def _take_in_words(
    options: argparse.Namespace,
    kind: WordListFormat,
    name: str,
    path: Path | None,
    stream: BinaryIO,
) -> tuple[WordListInfo, bool]:
    from spamguard.engine.policy import missing_lessons
    from spamguard.learning import importers

    if not common.has_filter(options):  # what is no word list must leave none behind either
        _read_words(options, kind, path, stream, secrets.token_bytes(32))
        stream.seek(0)
    with common.open_filter(options) as spam_filter:
        about, odds = _read_words(options, kind, path, stream, spam_filter.key)
        new = importers.import_word_list(spam_filter, name, about, odds)
        known = spam_filter.status()
    if lacking := missing_lessons(known.classes, known.unwanted):
        common.say(f"note: {lacking}")
    return about, new


def _read_words(
    options: argparse.Namespace,
    kind: WordListFormat,
    path: Path | None,
    stream: BinaryIO,
    key: bytes,
) -> tuple[WordListInfo, WordOdds]:
    from spamguard.learning import importers

    return importers.compute_word_odds(
        common.with_progress(importers.read_entries(kind, path, stream), None, " words"),
        f"{kind.value} ({options.file})",
        key,
    )


def _words_summary(about: WordListInfo, name: str, new: bool | None) -> str:
    unit = "words" if about.source.startswith("popfile") else "messages"
    learnt = f"learnt there from {about.ham:,} {unit} of good mail and {about.spam:,} of spam"
    what = f"{common.count_text(about.used, 'word')} of {about.words:,} from {printable(about.source)}, {learnt}"
    if new is None:
        return f"would import {what}"
    return f"imported {what}, as {name!r}" if new else f"{name!r} had been imported already: {what}"


def _words_values(about: WordListInfo, name: str, new: bool | None) -> dict[str, object]:
    counts = {"ham": about.ham, "spam": about.spam, "words": about.words, "used": about.used}
    return {"name": name, "source": about.source, **counts, "new": new, "dry_run": new is None}


IMPORT_ABOUT = """Take in an export, or what another filter knew about words.

Receipts are added to those that are here; what was taught here stays, and of two words about one message the later one counts.
Tables without receipts make a filter that judges but does not learn: they go into a new state directory, or replace tables that came
the same way. The key here must be the one of the file; a new state directory takes the file's, if it holds one.

Word lists are recognised by what is in them: bogofilter (`bogoutil -d wordlist.db`), SpamBayes (`sb_dbexpimp.py -e`), POPFile
(popfile.db, or the corpus directory of older versions; buckets spam and junk are spam, all others are good mail). They are where the
filter starts from, and fade as it is taught: after 50 messages they weigh half as much. `status` lists them, `undo --import` takes them
back. SpamAssassin and rspamd keep hashes, no words: teach from the folders instead."""
IMPORT_EXAMPLE = """  spamguard import filter.spamguard
  spamguard --state /new/place import filter-with-key.spamguard
  bogoutil -d ~/.bogofilter/wordlist.db | spamguard import -
  spamguard import --dry-run hammie.csv"""
WORD_LIST_KINDS = ("bogofilter", "spambayes", "popfile")


def add_import(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(commands, "import", run_import, IMPORT_ABOUT, IMPORT_EXAMPLE)
    common.add_json(parser)
    parser.add_argument(
        "--from",
        dest="source",
        choices=WORD_LIST_KINDS,
        help="of a word list: whose it is (default: as recognised)",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="of a word list: what `status` and `undo --import` call it (default: as --from)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only look at the file and say what would be taken in",
    )
    parser.add_argument(
        "file",
        type=common.stream_argument,
        metavar="FILE",
        help="a file that `export` wrote, a word list, or - for standard input",
    )


def run_import(options: argparse.Namespace) -> int:
    """Take in whatever it is."""
    from spamguard.cli.export_file import HEAD_BYTES, is_export

    path = None if options.file == "-" else Path(options.file)
    if path is not None and path.is_dir():
        return import_word_list(options, b"", path, io.BytesIO())
    with open_seekable(options.file) as stream:
        stream.seek(0)
        head = stream.read(HEAD_BYTES)
        stream.seek(0)
        if is_export(head) and options.source is None:
            with _open_export(options.file, stream) as reader:
                return _import_export(options, reader)
        return import_word_list(options, head, path, stream)


@contextmanager
def _open_export(name: str, stream: BinaryIO) -> Iterator[ExportReader]:
    """SQLite opens files by their names: a pipe's content gets one for a moment."""
    from spamguard.cli.export_file import ExportReader

    if name != "-" and common.is_regular_file(name):
        with closing(ExportReader(name, Path(name))) as reader:
            yield reader
        return
    with tempfile.NamedTemporaryFile() as copy:
        shutil.copyfileobj(stream, copy)
        copy.flush()
        with closing(ExportReader(name, Path(copy.name))) as reader:
            yield reader


def _import_export(options: argparse.Namespace, reader: ExportReader) -> int:
    """Check, take in, settle; say how much was new."""
    header, labels, number = reader.check()
    _check_extractor(options.file, header)
    _check_votes(options.file, reader)
    new = None if options.dry_run else _take_in_export(options, reader, header, labels)
    text = (
        f"{common.count_text(number, 'receipt')}" if header.receipts else "tables without receipts"
    )
    told = (
        f"would import {text}"
        if new is None
        else f"imported {text}" + (f", {new:,} of them new" if header.receipts else "")
    )
    common.print_answer(
        options,
        told,
        {"receipts": number, "new": new, "tables": not header.receipts, "dry_run": options.dry_run},
    )
    return 0


def _take_in_export(
    options: argparse.Namespace, reader: ExportReader, header: ExportHeader, labels: set[str]
) -> int:
    _ensure_key(common.state_directory(options), options.file, header)
    with common.open_filter(options, bits=header.bits) as spam_filter:
        _define_classes(spam_filter, header, labels)
        return (
            _merge_votes(spam_filter, reader)
            if header.receipts
            else _adopt_tables(spam_filter, reader)
        )


def _check_extractor(name: str, header: ExportHeader) -> None:
    """Receipts of another extractor are kept for the program that reads them; tables of another one
    are of no use.
    """
    from spamguard.records import EXTRACTOR

    if not header.receipts and header.extractor != EXTRACTOR:
        raise SourceError(
            f"{name}: its tables are of extractor {header.extractor}, this program's is {EXTRACTOR}: export them from the same version"
        )


def _check_votes(name: str, reader: ExportReader) -> None:
    """What the ledger would refuse half-way; and what says it is of this extractor and is not,
    which would stop every reader for good.
    """
    from spamguard.engine.fold import unpack_features
    from spamguard.ledger import codec
    from spamguard.ledger.validate import check_votes
    from spamguard.records import EXTRACTOR

    ours = (
        vote
        for vote in check_votes(reader.read_votes())
        if vote.label is not None and vote.extractor == EXTRACTOR
    )
    try:
        for some in batches(ours, VOTES_PER_BATCH):
            unpack_features([vote.packed for vote in some])
            for vote in some:
                codec.unpack_scores(vote.scores)
    except LedgerError as error:
        raise SourceError(
            f"{name}: a receipt in it cannot be read; nothing was imported"
        ) from error


def _ensure_key(place: Path, name: str, header: ExportHeader) -> None:
    """See that the key here is the one of the file; a place without key and ledger takes it from
    the file.
    """
    from spamguard.engine import store

    path = place / KEY_FILE
    if not path.exists() and not (place / LEDGER_FILE).exists():
        if not header.key:
            raise UsageError(
                f"{name}: needs the key {header.fingerprint}, {place} has none: put its key file there, or export --with-key"
            )
        store.make_state_directory(place)
        keys.store_key(path, bytes.fromhex(header.key))
    here = keys.key_fingerprint(keys.load_key(path, create=False))
    if here != header.fingerprint:
        raise UsageError(
            f"{name}: was taught with key {header.fingerprint}, {place} has {here}: import it into a new state directory"
        )


def _define_classes(spam_filter: Filter, header: ExportHeader, labels: set[str]) -> None:
    """Make the file's classes known; whether a class is unwanted is for the people here to say, if
    they have.
    """
    from spamguard.ledger import wordlists

    here = spam_filter.ledger.classes()
    for name in sorted((labels - {wordlists.WORD_LIST_LABEL}) | set(header.classes)):
        spam_filter.check_class(name, new=True)
    for name, unwanted in header.classes.items():
        if name not in here:
            spam_filter.define_class(name, unwanted=unwanted)
        elif (
            unwanted != here[name]
            # with the same receipts both would go on saying different things, and nobody would know why
        ):
            side, other, place = (
                ("wanted", "unwanted", "here") if unwanted else ("unwanted", "wanted", "there")
            )
            common.say(
                f"note: {name} is {side} here, and stays so, but {other} there; `learn --unwanted --as {name}` {place} ends that"
            )


def _merge_votes(spam_filter: Filter, reader: ExportReader) -> int:
    spam_filter.require_receipts()
    new = spam_filter.ledger.merge(reader.read_votes())
    if (
        new or spam_filter.status().unsettled
    ):  # also when whoever imported it before was interrupted
        # at once, from the receipts: folding each of them first would take longer
        spam_filter.settle()
    return new


def _adopt_tables(spam_filter: Filter, reader: ExportReader) -> int:
    with draft_file(spam_filter.directory / "import") as path:
        with create_private(path) as file:
            file.writelines(reader.read_table())
        spam_filter.adopt_tables(path)
    return 0
