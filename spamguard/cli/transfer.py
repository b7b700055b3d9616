"""`export` and `import`: the filter as one file that another installation takes in.

The file is a SQLite database. Its tables are `about` (what the file is), `classes` and `votes`
(the receipts, in the order of the ledger). Behind the last page of SQLite stands the SHA-256 of all
bytes before it: SQLite itself keeps no checksum. `PRAGMA user_version` is the number of the format.

`import` checks the whole file before it takes in anything; importing twice changes nothing. Must
never show half a file under its name, hold a whole file in memory, or let SQLite read a file whose
checksum is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, NoReturn

from spamguard import keys
from spamguard.cli import arguments, common
from spamguard.errors import LedgerError, SourceError, UsageError
from spamguard.records import EXTRACTOR, Vote
from spamguard.storage import KEY_FILE, LEDGER_FILE, batches

if TYPE_CHECKING:
    from spamguard.engine.filter import Filter

# ---- export

EXPORT_ABOUT = """Write the filter to a file for another installation.

Where it is imported, all can be taught, taken back and merged. It needs the same key there;
--with-key puts it into the file, which then is as secret as the key."""
EXPORT_EXAMPLE = """  spamguard export filter.spamguard
  spamguard export --with-key - | ssh gateway spamguard import -"""


def add_export(parser: argparse.ArgumentParser) -> None:
    arguments.add_flag(parser, "--with-key", "put the key into the file too")
    about = "where to, or - for standard output; a file of that name is replaced"
    parser.add_argument("file", type=arguments.parse_stream, metavar="FILE", help=about)


def run_export(options: argparse.Namespace) -> int:
    """Write the file; say what is in it."""
    from spamguard import __version__
    from spamguard.database import Schema
    from spamguard.ledger.arriving import check_votes

    with (
        common.open_existing(options) as spam_filter,
        common.open_output(options.file) as stream,
        _export_path(options.file, stream) as path,
    ):
        ledger = spam_filter.ledger
        key = spam_filter.key.hex() if options.with_key else ""
        header = ExportHeader(
            __version__, EXTRACTOR, ledger.fingerprint, key, spam_filter.min_bits, ledger.classes()
        )
        schema = Schema("export", UsageError, _APPLICATION_ID, EXPORT_FORMAT, "")
        with schema.errors(Path(options.file)):
            receipts = write_export(path, header, check_votes(ledger.all_votes()))
        size = path.stat().st_size
    common.say(f"exported {common.count_text(receipts, 'receipt')} ({size:,} bytes)")
    if options.with_key:
        common.say("note: the file holds the key: keep it as secret as a password")
    return 0


@contextmanager
def _export_path(name: str, stream: BinaryIO) -> Iterator[Path]:
    """Yield the path of the file that the stream writes; for a pipe, that of a temporary file."""
    if common.is_regular_file(name):
        yield Path(stream.name)
        return
    with tempfile.NamedTemporaryFile() as file:
        yield Path(file.name)
        shutil.copyfileobj(file, stream)
        stream.flush()


# ---- import

IMPORT_ABOUT = """Take in an export of another installation.

Receipts are added to those that are here; what was taught here stays, and of two votes of one user
about one message the later one counts. The key here must be the one of the file; a new state
directory takes the file's, if it holds one.

Of other filters nothing is taken in: teach from the folders instead."""
IMPORT_EXAMPLE = """  spamguard import filter.spamguard
  spamguard --state /new/place import filter-with-key.spamguard"""


def add_import(parser: argparse.ArgumentParser) -> None:
    arguments.add_dry_run(parser)
    about = "a file that `export` wrote, or - for standard input"
    parser.add_argument("file", type=arguments.parse_stream, metavar="FILE", help=about)


def run_import(options: argparse.Namespace) -> int:
    """Check the whole export, then take it in."""
    with (
        common.open_seekable(options.file) as stream,
        closing(ExportReader(options.file, Path(stream.name))) as reader,
    ):
        header, labels, receipts = reader.check()
        # Receipts of another extractor are kept for a program that reads them.
        _check_votes(options.file, reader)
        new = None if options.dry_run else _take_in_export(options, reader, header, labels)
    content = common.count_text(receipts, "receipt")
    print(f"would import {content}" if new is None else f"imported {content}, {new:,} of them new")
    return 0


def _check_votes(name: str, reader: ExportReader) -> None:
    """Raise SourceError for votes that the ledger would refuse half-way.

    A receipt of our extractor that cannot be read would stop every reader for good.
    """
    from spamguard.engine.fold import unpack_features
    from spamguard.ledger import codec
    from spamguard.ledger.arriving import check_votes

    readable = (
        vote
        for vote in check_votes(reader.read_votes())
        if vote.label is not None and vote.extractor == EXTRACTOR
    )
    try:
        for votes in batches(readable):
            unpack_features([vote.packed for vote in votes])
            for vote in votes:
                codec.unpack_scores(vote.scores)
    except LedgerError as error:
        raise SourceError(
            f"{name}: a receipt in it cannot be read; nothing was imported"
        ) from error


def _take_in_export(
    options: argparse.Namespace, reader: ExportReader, header: ExportHeader, labels: set[str]
) -> int:
    """Return the number of new receipts."""
    _ensure_key(common.state_directory(options), options.file, header)
    with common.open_filter(options, _bits=header.bits) as spam_filter:
        _define_classes(spam_filter, header, labels)
        new = spam_filter.ledger.merge(reader.read_votes())
        # Settle from the receipts at once: to fold each of them first would take longer. Also if
        # there is nothing new, since an earlier import may have been interrupted.
        if new or spam_filter.status().unsettled:
            spam_filter.settle_everywhere()
        return new


def _ensure_key(state: Path, name: str, header: ExportHeader) -> None:
    """Require the key of the file; a directory without key and ledger takes it from the file."""
    from spamguard.engine import store

    path = state / KEY_FILE
    if not path.exists() and not (state / LEDGER_FILE).exists():
        if not header.key:
            raise UsageError(
                f"{name}: needs the key {header.fingerprint}, {state} has none: "
                "put its key file there, or export --with-key"
            )
        store.make_state_directory(state)
        keys.store_key(path, bytes.fromhex(header.key))
    fingerprint = keys.key_fingerprint(keys.load_key(path, create=False))
    if fingerprint != header.fingerprint:
        raise UsageError(
            f"{name}: was taught with key {header.fingerprint}, {state} has {fingerprint}: "
            "import it into a new state directory"
        )


def _define_classes(spam_filter: Filter, header: ExportHeader, labels: set[str]) -> None:
    """Define the file's classes that are new here; classes that are here stay as they are."""
    from spamguard.ledger.votes import is_class_label

    classes = spam_filter.ledger.classes()
    for name in sorted({*filter(is_class_label, labels), *header.classes}):
        spam_filter.check_class(name, new=True)
    for name, unwanted in header.classes.items():
        if name not in classes:
            spam_filter.define_class(name, unwanted=unwanted)
        elif unwanted != classes[name]:
            # With the same receipts both filters would go on judging differently.
            common.say(
                f"note: {name} is unwanted {'there' if unwanted else 'here'} alone; "
                f"`learn --unwanted --as {name}` on the other side ends that"
            )


# ---- the file

EXPORT_FORMAT = 2
_APPLICATION_ID = 0x7367_6578  # "sgex" in the file's header, bytes 68 to 71
_DIGEST_BYTES = 32
_PIECE_BYTES = 1 << 20  # that are read at a time
_MAX_VALUE_BYTES = 64 << 20  # a longer value is damage, not a reason to take memory

_TABLES = {
    "about": "CREATE TABLE about (program TEXT, extractor INTEGER, fingerprint TEXT, key TEXT,"
    " bits INTEGER)",
    "classes": "CREATE TABLE classes (name TEXT, unwanted INTEGER)",
    "votes": "CREATE TABLE votes (digest BLOB, user TEXT, clock INTEGER, node TEXT, label TEXT,"
    " packed BLOB, scores BLOB, origin TEXT, time INTEGER, extractor INTEGER)",
}
# SQLite lets any column hold a value of any type, so the reader looks for rows that no export has.
_SELECT_FOREIGN_ROW = """
SELECT 1 FROM votes WHERE typeof(digest) != 'blob' OR typeof(user) != 'text'
OR typeof(clock) != 'integer' OR typeof(node) != 'text' OR typeof(label) NOT IN ('text', 'null')
OR typeof(packed) != 'blob' OR typeof(scores) != 'blob' OR typeof(origin) != 'text'
OR typeof(time) != 'integer' OR typeof(extractor) != 'integer' OR extractor NOT BETWEEN 0 AND 255
OR max(length(digest), length(user), length(node), ifnull(length(label), 0), length(origin),
       length(scores)) > 65535
UNION ALL SELECT 1 FROM classes WHERE typeof(name) != 'text' OR unwanted NOT IN (0, 1)
UNION ALL SELECT 1 FROM about WHERE typeof(program) != 'text' OR typeof(extractor) != 'integer'
OR typeof(fingerprint) != 'text' OR typeof(key) != 'text' OR typeof(bits) != 'integer'
LIMIT 1"""


class ExportHeader(NamedTuple):
    """What the file holds.

    fingerprint: of the key. key: the key itself in hexadecimal, or "". bits: the least size of the
    tables. classes: name to unwanted.
    """

    program: str
    extractor: int
    fingerprint: str
    key: str
    bits: int
    classes: dict[str, bool]


def write_export(path: Path, header: ExportHeader, votes: Iterable[Vote]) -> int:
    """Write an export into the empty file at `path`; return the number of votes.

    OSError, sqlite3.Error: the file cannot be written.
    """
    from spamguard.database import open_database

    with closing(open_database(path, 0)) as db:
        db.execute("PRAGMA journal_mode = MEMORY")  # no second file; half a file is thrown away
        db.execute("PRAGMA synchronous = OFF")
        db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {EXPORT_FORMAT}")
        db.execute("BEGIN")
        for statement in _TABLES.values():
            db.execute(statement)
        *about, classes = header
        db.execute("INSERT INTO about VALUES (?, ?, ?, ?, ?)", about)
        db.executemany("INSERT INTO classes VALUES (?, ?)", classes.items())
        number = db.executemany(
            "INSERT INTO votes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", votes
        ).rowcount
        db.execute("COMMIT")
    with path.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").digest()
    with path.open("ab") as file:
        file.write(digest)
    return max(number, 0)


class ExportReader:
    """An export whose checksum is right. Every method raises SourceError for a damaged file.

    name: of the file, for errors. path: of a file that nobody changes meanwhile.
    """

    def __init__(self, name: str, path: Path) -> None:
        import sqlite3

        self._name, self._path = name, path
        self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)

    def close(self) -> None:
        self._db.close()

    def check(self) -> tuple[ExportHeader, set[str], int]:
        """Look at the whole file: its header, the labels of all votes, and how many there are."""
        checksum, unread = hashlib.sha256(), self._path.stat().st_size - _DIGEST_BYTES
        with self._path.open("rb") as file:
            while unread > 0 and (data := file.read(min(unread, _PIECE_BYTES))):
                checksum.update(data)
                unread -= len(data)
            if file.read() != checksum.digest():
                self._refuse(
                    "it is damaged, or no file of `spamguard export`, but of `backup`: "
                    "`spamguard restore`"
                )
        with self._map_errors():
            if self._db.execute("PRAGMA user_version").fetchone() != (EXPORT_FORMAT,):
                self._refuse("it is of another version: export it again")
            self._db.execute("PRAGMA trusted_schema = OFF")
            if dict(self._db.execute("SELECT name, sql FROM sqlite_schema")) != _TABLES:
                self._refuse("it is damaged: it holds other tables than an export")
            if self._db.execute(_SELECT_FOREIGN_ROW).fetchone():
                self._refuse("it is damaged: it holds a value of a wrong type or size")
            header = self._read_header()
            labels = self._db.execute("SELECT DISTINCT label FROM votes WHERE label IS NOT NULL")
            ((number,),) = self._db.execute("SELECT count(*) FROM votes")
            return header, {label for (label,) in labels}, number

    def read_votes(self) -> Iterator[Vote]:
        with self._map_errors():
            yield from map(Vote._make, self._db.execute("SELECT * FROM votes ORDER BY rowid"))

    def _read_header(self) -> ExportHeader:
        ((*about,),) = self._db.execute("SELECT * FROM about")
        classes = {name: bool(side) for name, side in self._db.execute("SELECT * FROM classes")}
        header = ExportHeader._make((*about, classes))
        if header.key and keys.key_fingerprint(bytes.fromhex(header.key)) != header.fingerprint:
            self._refuse("its key is not the one it was taught with")
        return header

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        import sqlite3

        try:
            yield
        except (sqlite3.Error, TypeError, ValueError) as error:
            self._refuse(f"it is damaged ({error})")

    def _refuse(self, why: str) -> NoReturn:
        raise SourceError(f"{self._name}: {why}; nothing was imported")
