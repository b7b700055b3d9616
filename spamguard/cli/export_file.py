"""The file that `export` writes and `import` reads: a SQLite database.

Its tables are `about` (what the file is), `classes`, `votes` (the receipts, in the order of the
ledger) and `tables` (a table file in pieces, each compressed; only without receipts). Behind the
last page of SQLite stands the SHA-256 of all bytes before it: SQLite itself keeps no checksum.
`PRAGMA user_version` is the number of the format; a reader refuses a higher one than its own.

Must never hold a whole file in memory, and never let SQLite read a file whose checksum is wrong.
"""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from spamguard import keys
from spamguard.database import Schema, open_database
from spamguard.errors import SourceError, UsageError
from spamguard.records import Vote

EXPORT_FORMAT = 1
HEAD_BYTES = 4096  # enough to recognise a file
_APPLICATION_ID = 0x7367_6578  # "sgex" in the file's header, bytes 68 to 71
EXPORT_SCHEMA = Schema("export", UsageError, _APPLICATION_ID, EXPORT_FORMAT, "")  # for errors
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
