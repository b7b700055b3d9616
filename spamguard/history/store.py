"""The history in a SQLite file of its own, which any number of processes may read and write at once.

Must never let an error of SQLite or the system out as anything but a `HistoryError`, and never prune in one long transaction.
A power cut may cost the last rows, not the file (WAL, synchronous NORMAL).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType

from spamguard import ages
from spamguard.errors import HistoryError
from spamguard.history import schema
from spamguard.history.looks import Looks
from spamguard.history.row import COLUMNS, Columns, Row, columns, from_columns
from spamguard.sqlitefile import cache_explained, transaction

LEAST = 8 << 20  # bytes; with less there is no room to work in

_ROWS_SHARE = 0.75  # of the bytes for rows; the rest is for free pages, which the next rows take, and for the log
_FREE_SHARE = 1 / 16
_LOG_SHARE = 1 / 32
_LOG_PAGES = 256  # at most, before it is written back
_STEP_ROWS = 64  # that one transaction removes
_STEP_PAGES = 64  # that one transaction gives back to the file system
_DAY = 86_400

_TIME = COLUMNS.index("time")
_FIND = f"SELECT {', '.join(COLUMNS)} FROM judgements JOIN contents ON judgement = judgements.rowid WHERE id = ?"  # noqa: S608  names of our own
_CONTENTS = "SELECT id, packed FROM judgements JOIN contents ON judgement = judgements.rowid"
# What tells a time to come is as old as what came after it: the clock was ahead for a while.
_OLDEST = f"""
WITH first(number, time) AS (SELECT rowid, time FROM judgements ORDER BY rowid LIMIT {_STEP_ROWS})
SELECT number FROM first WHERE :all OR time < :oldest
    OR time > :newest AND (:older OR number < (SELECT max(number) FROM first WHERE time < :oldest))"""  # noqa: S608
_AFTER = "SELECT time FROM judgements WHERE rowid >= (SELECT min(rowid) FROM judgements) + ? ORDER BY rowid LIMIT 1"
_STEPS = [0, *(1 << power for power in range(32))]  # of `_AFTER`: each twice as far
_PRUNE = ("DELETE FROM contents WHERE judgement = ?", "DELETE FROM judgements WHERE rowid = ?")


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

        size: bytes that its files may take together, at least `LEAST`. days: how long a row is kept, by the time of `ages`. Both take
        effect by and by, as rows are appended.
        """
        with _explained(path):
            db = schema.connect(path)
            try:
                pages = min(_LOG_PAGES, int(max(size, LEAST) * _LOG_SHARE) // schema.PAGE)
                db.execute(f"PRAGMA wal_autocheckpoint = {pages}")
                db.execute(f"PRAGMA journal_size_limit = {pages * schema.PAGE}")
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
                schema.insert(self._db, rows)
                newest = ages.believed(self._db, max(row[_TIME] for row in rows))
            for _ in range(2 + 2 * len(rows) // _STEP_ROWS):
                if not self._prune(newest):
                    break
            self._give_back()

    def find(self, name: str) -> Row | None:
        """The judgement of that id, or None."""
        with _explained(self.path):
            found = self._db.execute(_FIND, (name,)).fetchone()
            return from_columns(found) if found else None

    @cached_property
    def looks(self) -> Looks:
        """For looking through many."""
        return Looks(self._db, partial(_explained, self.path))

    def contents(self, names: Sequence[str]) -> list[tuple[str, bytes]]:
        """Ids and features (`Row.packed`) of these judgements, those that are there, in any order."""
        marks = ",".join("?" * len(names))
        with _explained(self.path):
            return self._db.execute(f"{_CONTENTS} WHERE id IN ({marks})", names).fetchall()

    # Staying small

    def _prune(self, newest: float) -> bool:
        """Remove some of the oldest rows if there are too many bytes, else those of them that are too old; whether there were any."""
        oldest = newest - self._days * _DAY
        too_much = self._pragma("page_count") - self._pragma("freelist_count") > self._size * _ROWS_SHARE / schema.PAGE
        with transaction(self._db):
            older = self._begins_ahead(newest, oldest)
            old = self._db.execute(_OLDEST, {"all": too_much, "oldest": oldest, "newest": newest, "older": older}).fetchall()
            for statement in _PRUNE:
                self._db.executemany(statement, old)
        return bool(old)

    def _begins_ahead(self, newest: float, oldest: float) -> bool:
        """Whether the first row tells a time to come, and one that came well after it, which is looked for here and there, is too old."""
        for step in _STEPS:
            row = self._db.execute(_AFTER, (step,)).fetchone()
            if row is None or (step == 0 and row[0] <= newest):
                return False
            if row[0] < oldest:
                return True
        return False

    def _give_back(self) -> None:
        """Some of the free pages, if they are more than the next rows will take."""
        if self._pragma("freelist_count") > self._size * _FREE_SHARE / schema.PAGE:
            self._db.executescript(f"PRAGMA incremental_vacuum({_STEP_PAGES})")  # `execute` would stop after the first page

    def _pragma(self, name: str) -> int:
        return schema.pragma(self._db, name)


def _explained(path: Path) -> AbstractContextManager[None]:
    return cache_explained("history", path, HistoryError)
