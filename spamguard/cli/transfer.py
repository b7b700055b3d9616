"""`export` and `import`: the filter as one file that another installation takes in.

An export is a SQLite file. Its tables are `about` (what the file is), `classes`, `votes` (the
receipts, in the order of the ledger) and `tables` (a table file in pieces, each compressed; only
without receipts). Behind the last page of SQLite stand the SHA-256 of all bytes before it: SQLite
itself keeps no checksum. `PRAGMA user_version` is the number of the format; a reader refuses a
higher one than its own.

`import` looks at the whole file before it takes in anything; importing twice changes nothing. It
also takes in word lists of other filters, as a start that fades; these never count as mail.

Must never show half a file under its name, never hold a whole file in memory, and never let SQLite
read a file whose checksum is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import secrets
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from spamguard import keys
from spamguard.cli import common
from spamguard.cli.common import open_seekable
from spamguard.errors import LedgerError, SourceError, UsageError
from spamguard.records import Vote
from spamguard.storage import (
    KEY_FILE,
    LEDGER_FILE,
    batches,
    create_private,
    draft_file,
    map_cache_errors,
    open_database,
)

if TYPE_CHECKING:
    from spamguard.bayes.online import WordOdds
    from spamguard.engine.filter import Filter
    from spamguard.learning.importers import WordListFormat
    from spamguard.ledger.wordlists import WordListInfo


EXPORT_FORMAT = 1
VOTES_PER_BATCH = 128
HEAD_BYTES = 4096  # by which a file is recognised
_APPLICATION_ID = 0x7367_6578  # "sgex" in the file's header, bytes 68 to 71
_SQLITE_MAGIC = b"SQLite format 3\0"
_DIGEST_BYTES = 32
_PIECE_BYTES = 1 << 20  # of a table file in one row, before it is compressed
_MAX_VALUE_BYTES = 64 << 20  # a longer value is damage, not a reason to take memory

_TABLES = {
    "about": "CREATE TABLE about (program TEXT, extractor INTEGER, fingerprint TEXT, key TEXT,"
    " bits INTEGER, receipts INTEGER)",
    "classes": "CREATE TABLE classes (name TEXT, unwanted INTEGER)",
    "tables": "CREATE TABLE tables (piece BLOB)",
    "votes": "CREATE TABLE votes (digest BLOB, user TEXT, clock INTEGER, node TEXT, label TEXT,"
    " packed BLOB, scores BLOB, origin TEXT, time INTEGER, extractor INTEGER)",
}
_ABOUT_TYPES = (str, int, str, str, int, int)
# SQLite lets any column hold a value of any type, so the reader looks for rows that no export has.
_SELECT_FOREIGN_ROW = """
SELECT 1 FROM votes WHERE typeof(digest) != 'blob' OR typeof(user) != 'text'
OR typeof(clock) != 'integer' OR typeof(node) != 'text' OR typeof(label) NOT IN ('text', 'null')
OR typeof(packed) != 'blob' OR typeof(scores) != 'blob' OR typeof(origin) != 'text'
OR typeof(time) != 'integer' OR typeof(extractor) != 'integer' OR extractor NOT BETWEEN 0 AND 255
OR max(length(digest), length(user), length(node), ifnull(length(label), 0), length(origin),
       length(scores)) > 65535
UNION ALL SELECT 1 FROM classes WHERE typeof(name) != 'text' OR unwanted NOT IN (0, 1)
UNION ALL SELECT 1 FROM tables WHERE typeof(piece) != 'blob' LIMIT 1"""


@dataclass(frozen=True, slots=True)
class ExportHeader:
    """What the file holds.

    fingerprint: of the key. key: the key itself in hexadecimal, or "". bits: the least size of the
    tables. classes: name to unwanted. receipts: whether the file holds receipts; else it holds
    tables.
    """

    program: str
    extractor: int
    fingerprint: str
    key: str
    bits: int
    classes: dict[str, bool]
    receipts: bool


def write_export(
    path: Path, header: ExportHeader, votes: Iterable[Vote], table: Path | None = None
) -> int:
    """Write an export into the empty file at `path`; return the number of votes.

    table: a table file to put in. OSError, sqlite3.Error: the file cannot be written.
    """
    with closing(open_database(path, 0)) as db:
        db.execute("PRAGMA journal_mode = MEMORY")  # no second file; half a file is thrown away
        db.execute("PRAGMA synchronous = OFF")
        db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {EXPORT_FORMAT}")
        db.execute("BEGIN")
        for statement in _TABLES.values():
            db.execute(statement)
        values = asdict(header)
        classes = values.pop("classes")
        db.execute("INSERT INTO about VALUES (?, ?, ?, ?, ?, ?)", tuple(values.values()))
        db.executemany("INSERT INTO classes VALUES (?, ?)", classes.items())
        number = db.executemany(
            "INSERT INTO votes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", votes
        ).rowcount
        if table is not None:
            with table.open("rb") as file:
                while piece := file.read(_PIECE_BYTES):
                    db.execute("INSERT INTO tables VALUES (?)", (zlib.compress(piece, 1),))
        db.execute("COMMIT")
    with path.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").digest()
    with path.open("ab") as file:
        file.write(digest)
    return max(number, 0)


def is_export(head: bytes) -> bool:
    """Whether these are the first bytes of an export."""
    return head.startswith(_SQLITE_MAGIC) and head[68:72] == _APPLICATION_ID.to_bytes(4, "big")


class ExportReader:
    """An export whose checksum is right. Every method raises SourceError for a damaged file.

    name: of the file, for errors. path: of a file that nobody changes meanwhile.
    """

    def __init__(self, name: str, path: Path) -> None:
        self._name = name
        self._path = path
        self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def check(self) -> tuple[ExportHeader, set[str], int]:
        """Look at the whole file: its header, the labels of all votes, and how many there are."""
        self._check_digest()
        with self._map_errors():
            ((version,),) = self._db.execute("PRAGMA user_version")
            if version > EXPORT_FORMAT:
                self._refuse(
                    f"it has format {version}, this program reads {EXPORT_FORMAT}: update spamguard"
                )
            self._db.execute("PRAGMA trusted_schema = OFF")
            if dict(self._db.execute("SELECT name, sql FROM sqlite_schema")) != _TABLES:
                self._refuse("it is damaged: it holds other tables than an export")
            if self._db.execute(_SELECT_FOREIGN_ROW).fetchone():
                self._refuse("it is damaged: it holds a value of a wrong type or size")
            header = self._read_header()
            for _ in self.read_table():
                pass
            labels = self._db.execute("SELECT DISTINCT label FROM votes WHERE label IS NOT NULL")
            ((number,),) = self._db.execute("SELECT count(*) FROM votes")
            return header, {label for (label,) in labels}, number

    def read_votes(self) -> Iterator[Vote]:
        """All votes."""
        with self._map_errors():
            yield from map(Vote._make, self._db.execute("SELECT * FROM votes ORDER BY rowid"))

    def read_table(self) -> Iterator[bytes]:
        """The table file, piece by piece."""
        with self._map_errors():
            for (piece,) in self._db.execute("SELECT piece FROM tables ORDER BY rowid"):
                whole = zlib.decompressobj()
                data = whole.decompress(piece, _PIECE_BYTES + 1)
                if not whole.eof:
                    self._refuse("it is damaged: a piece of its tables is cut off or too long")
                yield data

    def _check_digest(self) -> None:
        checksum, unread = hashlib.sha256(), self._path.stat().st_size - _DIGEST_BYTES
        with self._path.open("rb") as file:
            while unread > 0 and (data := file.read(min(unread, _PIECE_BYTES))):
                checksum.update(data)
                unread -= len(data)
            if file.read() != checksum.digest():
                self._refuse("it is damaged: its checksum is wrong")

    def _read_header(self) -> ExportHeader:
        rows = self._db.execute("SELECT * FROM about").fetchall()
        if len(rows) != 1 or tuple(map(type, rows[0])) != _ABOUT_TYPES:
            self._refuse("its header is damaged")
        program, extractor, fingerprint, key, bits, receipts = rows[0]
        try:
            fits = not key or keys.key_fingerprint(bytes.fromhex(key)) == fingerprint
        except ValueError:
            fits = False
        if not fits:
            self._refuse("its key is not the one it was taught with")
        classes = {name: bool(side) for name, side in self._db.execute("SELECT * FROM classes")}
        return ExportHeader(program, extractor, fingerprint, key, bits, classes, bool(receipts))

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, zlib.error) as error:
            self._refuse(f"it is damaged ({error})")

    def _refuse(self, why: str) -> NoReturn:
        raise SourceError(f"{self._name}: {why}; nothing was imported")


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
    from spamguard.ledger.sqlite import check_votes
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
        with map_cache_errors("export", Path(options.file), UsageError):
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
    what = f"{common.count_text(about.used, 'word')} of {about.words:,} from {common.printable(about.source)}, {learnt}"
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
    from spamguard.ledger.sqlite import check_votes
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
