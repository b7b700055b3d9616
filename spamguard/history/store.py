"""The history in a SQLite file of its own, which any number of processes may read and write at once.

Must never let an error of SQLite or the system out as anything but a `HistoryError`, and never prune in one long transaction.
A power cut may cost the last rows, not the file (WAL, synchronous NORMAL).
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from spamguard.errors import HistoryError
from spamguard.files import create_private
from spamguard.history.row import COLUMNS, Columns, Row, columns, from_columns
from spamguard.sqlitefile import cache_explained, connect, transaction

LEAST = 8 << 20  # bytes; with less there is no room to work in

_APPLICATION = 0x7367_6869  # "sghi" in the file's header
_VERSION = 2
_BUSY_SECONDS = 5.0
_PAGE = 16384  # bytes; as for the ledger, whose rows have the same size
_ROWS_SHARE = 0.75  # of the bytes for rows; the rest is for free pages, which the next rows take, and for the log
_FREE_SHARE = 1 / 16
_LOG_SHARE = 1 / 32
_LOG_PAGES = 256  # at most, before it is written back
_STEP_ROWS = 64  # that one transaction removes
_STEP_PAGES = 64  # that one transaction gives back to the file system
_DAY = 86_400

_TABLE = """
CREATE TABLE judgements (
    id TEXT NOT NULL UNIQUE, time REAL NOT NULL, listener TEXT NOT NULL, client TEXT NOT NULL, sender TEXT NOT NULL,
    recipients TEXT NOT NULL, subject TEXT NOT NULL, size INTEGER NOT NULL, digest BLOB NOT NULL, label TEXT NOT NULL,
    probability REAL NOT NULL, log_odds REAL NOT NULL, action TEXT NOT NULL, reply TEXT NOT NULL, packed BLOB NOT NULL,
    words TEXT NOT NULL, extractor INTEGER NOT NULL, fingerprint TEXT NOT NULL, personal TEXT NOT NULL DEFAULT '{}'
)
"""
_FROM_VERSION_1 = "ALTER TABLE judgements ADD COLUMN personal TEXT NOT NULL DEFAULT '{}'"
_TIME = COLUMNS.index("time")
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM judgements"  # noqa: S608  names of our own
_INSERT = f"INSERT OR IGNORE INTO judgements ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608
_OLDEST = f"SELECT rowid, time FROM judgements ORDER BY rowid LIMIT {_STEP_ROWS}"  # noqa: S608
_PRUNE = f"DELETE FROM judgements WHERE rowid IN (SELECT rowid FROM ({_OLDEST}) WHERE ? OR time < ?)"  # noqa: S608


class History:
    """Judgements by id. Belongs to one thread of one process. Every method raises HistoryError: one line, naming the file."""

    def __init__(self, path: Path, db: sqlite3.Connection, size: int, days: int) -> None:
        """Use `open`."""
        self.path = path
        self._db = db
        self._size = max(size, LEAST)
        self._days = days

    @classmethod
    def open(cls, path: Path, size: int, days: int) -> History:
        """The history at `path`, created (mode 0600) when there is none.

        size: bytes that its files may take together, at least `LEAST`. days: how long a row is kept. Both take effect by and by, as
        rows are appended.
        """
        with _explained(path):
            if not path.exists():
                _create(path)
            db = connect(path, _BUSY_SECONDS)
            try:
                _bring_up_to_date(db)
                _refuse_strangers(db, path)
                pages = min(_LOG_PAGES, int(max(size, LEAST) * _LOG_SHARE) // _PAGE)
                db.execute(f"PRAGMA wal_autocheckpoint = {pages}")
                db.execute(f"PRAGMA journal_size_limit = {pages * _PAGE}")
                db.execute("PRAGMA synchronous = NORMAL")
            except BaseException:
                db.close()
                raise
        return cls(path, db, size, days)

    def close(self) -> None:
        """Give the file back."""
        with _explained(self.path):
            self._db.close()

    def __enter__(self) -> History:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def append(self, rows: Sequence[Row]) -> None:
        """Keep these, all or none, then remove what is too old or too much, about as many as came. An id that is known stays as it is."""
        self.append_columns([columns(row) for row in rows])

    def append_columns(self, rows: Sequence[Columns]) -> None:
        """The same for the `columns` of rows."""
        if not rows:
            return
        with _explained(self.path):
            with transaction(self._db):
                self._db.executemany(_INSERT, rows)
            oldest = max(row[_TIME] for row in rows) - self._days * _DAY
            for _ in range(2 + 2 * len(rows) // _STEP_ROWS):
                if not self._prune(oldest):
                    break
            self._give_back()

    def find(self, name: str) -> Row | None:
        """The judgement of that id, or None."""
        return next(iter(self._rows("WHERE id = ?", (name,))), None)

    def recent(self, limit: int, before: str = "") -> list[Row]:
        """The newest judgements, newest first; those of them older than `before`, an id."""
        return self._rows("WHERE id < ? ORDER BY id DESC LIMIT ?", (before or "~", limit))

    def _rows(self, condition: str, values: tuple[object, ...]) -> list[Row]:
        with _explained(self.path):
            return [from_columns(found) for found in self._db.execute(f"{_SELECT} {condition}", values)]

    # Staying small

    def _prune(self, oldest: float) -> bool:
        """Remove some of the oldest rows if there are too many bytes, else those of them that are too old; whether there were any."""
        too_much = self._pragma("page_count") - self._pragma("freelist_count") > self._size * _ROWS_SHARE / _PAGE
        with transaction(self._db):
            return self._db.execute(_PRUNE, (too_much, oldest)).rowcount > 0

    def _give_back(self) -> None:
        """Some of the free pages, if they are more than the next rows will take."""
        if self._pragma("freelist_count") > self._size * _FREE_SHARE / _PAGE:
            self._db.executescript(f"PRAGMA incremental_vacuum({_STEP_PAGES})")  # `execute` would stop after the first page

    def _pragma(self, name: str) -> int:
        return _pragma(self._db, name)


def _explained(path: Path) -> AbstractContextManager[None]:
    return cache_explained("history", path, HistoryError)


def _create(path: Path) -> None:
    """Makes it whole under another name and links it to its own: of several processes that do so, one succeeds, the others open that."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    create_private(draft).close()
    try:
        _fill(draft)
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink()


def _fill(draft: Path) -> None:
    db = connect(draft, _BUSY_SECONDS)
    try:
        for setting in (f"page_size = {_PAGE}", "auto_vacuum = INCREMENTAL", "journal_mode = WAL"):
            db.execute(f"PRAGMA {setting}")
        db.execute(f"PRAGMA application_id = {_APPLICATION}")
        db.execute(f"PRAGMA user_version = {_VERSION}")
        db.execute(_TABLE)
    finally:
        db.close()


def _bring_up_to_date(db: sqlite3.Connection) -> None:
    """A file of the version before, in place; processes of that version that have it open go on."""
    if _is_of_version_1(db):
        with transaction(db):
            if _is_of_version_1(db):  # else another process was faster
                db.execute(_FROM_VERSION_1)
                db.execute(f"PRAGMA user_version = {_VERSION}")


def _is_of_version_1(db: sqlite3.Connection) -> bool:
    return (_pragma(db, "application_id"), _pragma(db, "user_version")) == (_APPLICATION, 1)


def _refuse_strangers(db: sqlite3.Connection, path: Path) -> None:
    if (_pragma(db, "application_id"), _pragma(db, "user_version")) != (_APPLICATION, _VERSION):
        raise HistoryError(f"history {path}: it is of another program or another version of this one: move it away, a new one will be made")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])
