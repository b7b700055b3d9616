"""The history of judgements, in a SQLite file of its own.

Any number of processes may read and write it at once. It stays within a size and an age by removing
the oldest rows as new ones come. A search looks through some rows at a time, newest first, and
says how far it came; it reads no features or words.

Must never let an error of SQLite or the system out as anything but a `HistoryError`, never prune in
one long transaction, and never take features of another extractor or another key for comparable. A
power cut may cost the last rows, not the file (WAL, synchronous NORMAL).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from spamguard import storage
from spamguard.engine.filter import Filter
from spamguard.engine.fold import unpack_features
from spamguard.engine.prepare import Example
from spamguard.errors import HistoryError, LedgerError, UsageError
from spamguard.proxy.history_schema import (
    COLUMNS,
    LOWERED_COLUMNS,
    PAGE_BYTES,
    SMALL_COLUMNS,
    HistoryRow,
    RowValues,
    fold_text,
    insert_rows,
    open_history_file,
    read_pragma,
    row_from_values,
    row_values,
)
from spamguard.records import EXTRACTOR

MIN_BYTES = 8 << 20
"""The least size; with less there is no room to work in."""
# Shares of the size. The rest is for free pages, which the next rows fill, and for the log.
_ROWS_SHARE = 0.75
_FREE_SHARE = 1 / 16
_LOG_SHARE = 1 / 32
_MAX_LOG_PAGES = 256  # before it is written back
_PRUNE_ROWS = 64  # that one transaction removes
_VACUUM_PAGES = 64  # that one transaction gives back to the file system
_DAY_SECONDS = 86_400

_TIME_INDEX = COLUMNS.index("time")
_JOIN = "FROM judgements JOIN contents ON judgement = judgements.rowid"
_SELECT_BY_ID = f"SELECT {', '.join(COLUMNS)} {_JOIN} WHERE id = ?"
_SELECT_FEATURES = f"SELECT id, packed {_JOIN}"
# A row with a time to come is as old as the rows after it: the clock was ahead for a while.
_SELECT_OLDEST = f"""
WITH first(number, time) AS (SELECT rowid, time FROM judgements ORDER BY rowid LIMIT {_PRUNE_ROWS})
SELECT number FROM first WHERE :all OR time < :oldest OR time > :newest
    AND (:older OR number < (SELECT max(number) FROM first WHERE time < :oldest))"""
_SELECT_TIME_AFTER = (
    "SELECT time FROM judgements "
    "WHERE rowid >= (SELECT min(rowid) FROM judgements) + ? ORDER BY rowid LIMIT 1"
)
_PROBE_STEPS = [0, *(1 << power for power in range(32))]  # from the first row: each twice as far
_DELETIONS = (
    "DELETE FROM contents WHERE judgement = ?",
    "DELETE FROM judgements WHERE rowid = ?",
)


class History:
    """Judgements by id. Belongs to one thread of one process.

    Every method raises HistoryError: one line that names the file.
    """

    def __init__(self, path: Path, db: sqlite3.Connection, size: int, days: int) -> None:
        """Use `open`."""
        self.path = path
        self._db = db
        self._size = max(size, MIN_BYTES)
        self._days = days

    @classmethod
    def open(cls, path: Path, size: int, days: int) -> History:
        """The history at `path`, created (mode 0600) when there is none.

        Parameters
        ----------
        size : bytes that its files may take together, at least `MIN_BYTES`.
        days : how long a row is kept, by the time of `storage.trusted_time`.

        Both take effect by and by, as rows are appended.
        """
        with _map_errors(path):
            db = open_history_file(path)
            try:
                log_pages = int(max(size, MIN_BYTES) * _LOG_SHARE) // PAGE_BYTES
                log_pages = min(_MAX_LOG_PAGES, log_pages)
                db.execute(f"PRAGMA wal_autocheckpoint = {log_pages}")
                db.execute(f"PRAGMA journal_size_limit = {log_pages * PAGE_BYTES}")
                db.execute("PRAGMA synchronous = NORMAL")
            except BaseException:
                db.close()
                raise
        return cls(path, db, size, days)

    def close(self) -> None:
        """Close the file."""
        with _map_errors(self.path):
            self._db.close()

    def __enter__(self) -> History:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def append(self, rows: Sequence[HistoryRow]) -> None:
        """Keep these rows, all or none; a row whose id is there stays as it is.

        Then remove rows that are too old or too many, about as many as came.
        """
        self.append_values([row_values(row) for row in rows])

    def append_values(self, rows: Sequence[RowValues]) -> None:
        """The same for rows that are encoded already."""
        if not rows:
            return
        with _map_errors(self.path):
            with storage.transaction(self._db):
                insert_rows(self._db, rows)
                newest = storage.trusted_time(self._db, max(row[_TIME_INDEX] for row in rows))
            for _ in range(2 + 2 * len(rows) // _PRUNE_ROWS):
                if not self._prune(newest):
                    break
            # Give pages back only if they are more than the next rows fill.
            if read_pragma(self._db, "freelist_count") > self._size * _FREE_SHARE / PAGE_BYTES:
                # `execute` would stop after the first page
                self._db.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")

    def find(self, name: str) -> HistoryRow | None:
        """The judgement of that id, or None."""
        with _map_errors(self.path):
            values = self._db.execute(_SELECT_BY_ID, (name,)).fetchone()
            return row_from_values(values) if values else None

    @cached_property
    def search(self) -> HistorySearch:
        """Looks through many rows."""
        return HistorySearch(self._db, lambda: _map_errors(self.path))

    def read_features(self, names: Sequence[str]) -> list[tuple[str, bytes]]:
        """Ids and packed features of these judgements, as far as they are there, in any order."""
        marks = ",".join("?" * len(names))
        with _map_errors(self.path):
            return self._db.execute(f"{_SELECT_FEATURES} WHERE id IN ({marks})", names).fetchall()

    def _prune(self, newest: float) -> bool:
        """Remove some of the oldest rows: any if they are too many, else those that are too old.

        Whether there were any.
        """
        oldest = newest - self._days * _DAY_SECONDS
        used = read_pragma(self._db, "page_count") - read_pragma(self._db, "freelist_count")
        values = {
            "all": used > self._size * _ROWS_SHARE / PAGE_BYTES,
            "oldest": oldest,
            "newest": newest,
        }
        with storage.transaction(self._db):
            values["older"] = self._starts_in_future(newest, oldest)
            rows = self._db.execute(_SELECT_OLDEST, values).fetchall()
            for statement in _DELETIONS:
                self._db.executemany(statement, rows)
        return bool(rows)

    def _starts_in_future(self, newest: float, oldest: float) -> bool:
        """Whether the first row has a time to come, and a later one, looked for at growing
        distances, is too old.
        """
        for step in _PROBE_STEPS:
            row = self._db.execute(_SELECT_TIME_AFTER, (step,)).fetchone()
            if row is None or (step == 0 and row[0] <= newest):
                return False
            if row[0] < oldest:
                return True
        return False


def _map_errors(path: Path) -> AbstractContextManager[None]:
    return storage.map_cache_errors("history", path, HistoryError)


# ---- search

WINDOW_ROWS = 25_000
"""Rows that one search goes through."""
# Patterns of recipients that SQLite is asked for; it bounds the depth of expressions (limits.html).
_MAX_PARTS = 400
_ABOVE_ALL_IDS = "~"  # after every id

_SELECT_ROWS = f"SELECT {', '.join(SMALL_COLUMNS)} FROM judgements"
_SELECT_WINDOW_END = "SELECT id FROM judgements WHERE id < ? ORDER BY id DESC LIMIT 1 OFFSET ?"
_HAS_LESSON = "EXISTS (SELECT 1 FROM temp.taught WHERE taught.digest = judgements.digest)"
_HAS_LESSON_LABEL = (
    "EXISTS (SELECT 1 FROM temp.taught INDEXED BY taught_by_label "
    "WHERE taught.label = ? AND taught.digest = judgements.digest)"
)
_TEMP_TABLES = (
    "CREATE TEMP TABLE IF NOT EXISTS taught "
    "(digest BLOB PRIMARY KEY, label TEXT NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS temp.taught_by_label ON taught (label, digest)",
    "CREATE TEMP TABLE IF NOT EXISTS asked (digest BLOB PRIMARY KEY) WITHOUT ROWID",
)
_COUNT_BY_HOUR = (
    "SELECT CAST((time - ?) / 3600 AS INTEGER), label, {}, count(*) FROM judgements "
    "WHERE {} GROUP BY 1, 2, 3"
)
_COUNT_VERDICTS_AND_LESSONS = (
    "SELECT judgements.label, taught.label, {}, count(*) "
    "FROM judgements CROSS JOIN temp.taught ON taught.digest = judgements.digest "
    "WHERE {} GROUP BY 1, 2, 3"
)
_FROM_ASKED = "FROM judgements WHERE digest IN (SELECT digest FROM temp.asked)"
_SELECT_BY_DIGEST = f"SELECT digest, label, personal {_FROM_ASKED}"
_SELECT_NEWEST = (
    f"{_SELECT_ROWS} WHERE id IN "
    f"(SELECT max(id) {_FROM_ASKED} AND {{}} GROUP BY digest, {{}}) ORDER BY id DESC"
)


class HistoryFilter(NamedTuple):
    """Conditions of a search; a row must meet all that are not empty.

    sender, recipient, subject: found anywhere in the field, whatever the case; a sender in the
    envelope's or in the author. since, until: seconds since 1970, the second excluded. first,
    before: ids between which to look, the second excluded. taught: a class, or "any", as
    `HistorySearch.set_lessons` was told. parts: patterns of recipients (`recipient_pattern`), one
    of which must be there.
    """

    sender: str = ""
    recipient: str = ""
    subject: str = ""
    label: str = ""
    taught: str = ""
    since: float = 0.0
    until: float = 0.0
    first: str = ""
    before: str = ""
    parts: Sequence[str] = ()

    def where_clause(self) -> tuple[str, list[object]]:
        """The conditions in SQL, and their values."""
        terms = ["id >= ? AND id < ?"]
        values: list[object] = [self.first, self.before or _ABOVE_ALL_IDS]
        if self.since:
            terms.append("time >= ?")
            values.append(self.since)
        if self.until:
            terms.append("time < ?")
            values.append(self.until)
        if self.label:
            terms.append("judgements.label = ?")
            values.append(self.label)
        if sender := fold_text(self.sender):
            terms.append(f"({_contains('sender')} OR {_contains('author')})")
            values += sender, sender
        if recipient := recipient_pattern(self.recipient):
            terms.append(_contains("recipients"))
            values.append(recipient)
        if subject := fold_text(self.subject):
            terms.append(_contains("subject"))
            values.append(subject)
        # With more patterns the caller must look at each row, which it always does anyway.
        if 0 < len(self.parts) <= _MAX_PARTS:
            terms.append(f"({' OR '.join([_contains('recipients')] * len(self.parts))})")
            values += self.parts
        if self.taught == "any":
            terms.append(_HAS_LESSON)
        elif self.taught:
            terms.append(_HAS_LESSON_LABEL)
            values.append(self.taught)
        return " AND ".join(terms), values


def _contains(column: str) -> str:
    """In SQL, whether a folded text is in that column."""
    text = f"lower({column})" if column in LOWERED_COLUMNS else column
    return f"instr(ifnull(folded_{column}, {text}), ?)"


def recipient_pattern(text: str, *, at_start: bool = False, at_end: bool = False) -> str:
    """A part of an address, as it stands in the column of recipients.

    >>> recipient_pattern("@Example.org", at_end=True)
    '@example.org"'
    """
    return '"' * at_start + json.dumps(fold_text(text), ensure_ascii=False)[1:-1] + '"' * at_end


class HistoryRows(NamedTuple):
    """The rows of one search, newest first, without features and words.

    next_before: `HistoryFilter.before` of the next search; "": all rows were seen.
    """

    rows: Sequence[HistoryRow]
    next_before: str


class HistorySearch:
    """Looks through the rows of a history. Belongs to one thread.

    map_errors: a context in which every error becomes a HistoryError.
    """

    def __init__(
        self, db: sqlite3.Connection, map_errors: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._db = db
        self._map_errors = map_errors
        for statement in _TEMP_TABLES:
            self._query(statement, ())

    def find_page(self, wanted: HistoryFilter, limit: int) -> HistoryRows:
        """At most so many rows, of the next `WINDOW_ROWS`."""
        before = wanted.before or _ABOVE_ALL_IDS
        window = self._query(_SELECT_WINDOW_END, (before, WINDOW_ROWS - 1))
        border = window[0][0] if window else ""
        condition, values = wanted._replace(first=max(border, wanted.first)).where_clause()
        rows = self._select_rows(
            f"{_SELECT_ROWS} WHERE {condition} ORDER BY id DESC LIMIT ?", (*values, limit)
        )
        if len(rows) == limit:
            return HistoryRows(rows, rows[-1].id)
        return HistoryRows(rows, border if border > wanted.first else "")

    def count_by_hour(
        self, start: float, wanted: HistoryFilter
    ) -> list[tuple[int, str, tuple[str, ...], int]]:
        """How many rows there are by hours since `start`, label and recipients.

        Recipients are empty unless `wanted.parts` asks for some.
        """
        return self._count(_COUNT_BY_HOUR, wanted, [start])

    def count_verdicts_and_lessons(
        self, wanted: HistoryFilter
    ) -> list[tuple[str, str, tuple[str, ...], int]]:
        """How many rows with a lesson (`set_lessons`) there are by label of the verdict, class of
        the lesson and recipients, as above.
        """
        return self._count(_COUNT_VERDICTS_AND_LESSONS, wanted, [])

    def _count(self, query: str, wanted: HistoryFilter, values: list[object]) -> list[Any]:
        condition, wanted_values = wanted.where_clause()
        recipients_column = "recipients" if wanted.parts else "''"
        query = query.format(recipients_column, condition)
        rows = self._query(query, values + wanted_values)
        with self._map_errors():
            return [
                (*head, tuple(json.loads(recipients or "[]")), count)
                for *head, recipients, count in rows
            ]

    def find_newest(self, digests: Iterable[bytes], parts: Sequence[str]) -> list[HistoryRow]:
        """The newest row of each of these messages, newest first; looks at all rows.

        parts: as in `HistoryFilter`; then the newest for each list of recipients, since the caller
        must check whose they are.
        """
        self._set_asked(digests)
        condition, values = HistoryFilter(parts=parts).where_clause()
        query = _SELECT_NEWEST.format(condition, "recipients" if parts else "''")
        return self._select_rows(query, values)

    def find_verdicts(self, digests: Iterable[bytes]) -> list[tuple[bytes, str, Mapping[str, str]]]:
        """The rows of these messages: digest, label, and labels by user where they differ; looks at
        all rows.
        """
        self._set_asked(digests)
        rows = self._query(_SELECT_BY_DIGEST, ())
        with self._map_errors():
            return [(digest, label, json.loads(personal)) for digest, label, personal in rows]

    def _set_asked(self, digests: Iterable[bytes]) -> None:
        self._write(
            ("DELETE FROM temp.asked", [()]),
            ("INSERT OR IGNORE INTO temp.asked VALUES (?)", [(digest,) for digest in digests]),
        )

    def set_lessons(self, taught: Mapping[bytes, str | None], *, replace_all: bool = False) -> None:
        """Set the classes of messages, for `HistoryFilter.taught`. None: no lesson.

        Kept for this connection only, in a temporary file of SQLite's if they are many.
        replace_all: forget those set before.
        """
        removed = [(digest,) for digest, label in taught.items() if label is None]
        # Sorted, they cost half.
        added = sorted((digest, label) for digest, label in taught.items() if label is not None)
        self._write(
            ("DELETE FROM temp.taught", [()] * replace_all),
            ("DELETE FROM temp.taught WHERE digest = ?", removed),
            ("INSERT OR REPLACE INTO temp.taught VALUES (?, ?)", added),
        )

    def _write(self, *statements: tuple[str, Sequence[tuple[object, ...]]]) -> None:
        """Write into temporary tables, which keeps nobody else from writing."""
        with self._map_errors(), storage.transaction(self._db, "BEGIN"):
            for statement, values in statements:
                self._db.executemany(statement, values)

    def _query(self, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with self._map_errors():
            return self._db.execute(query, values).fetchall()

    def _select_rows(self, query: str, values: Sequence[object]) -> list[HistoryRow]:
        with self._map_errors():
            rows = self._db.execute(query, values).fetchall()
            return [row_from_values(row, SMALL_COLUMNS) for row in rows]


# ---- lessons from the history


def example_from_row(spam_filter: Filter, row: HistoryRow) -> Example:
    """The message as an example to learn.

    Raises
    ------
    UsageError
        As `row_digest`, or the row is of another extractor.
    """
    digest = row_digest(spam_filter, row)
    if row.extractor != EXTRACTOR:
        raise UsageError(
            f"{row.id}: was read by another version (extractor {row.extractor}, this is "
            f"{EXTRACTOR}), so the message itself is needed: name its file (learn, explain), "
            "hand it over on the page, or move it between watched folders"
        )
    try:
        return Example(digest, unpack_features([row.packed])[0])
    except LedgerError as error:
        raise UsageError(f"{row.id}: what is kept of it is damaged ({error})") from error


def row_digest(spam_filter: Filter, row: HistoryRow) -> bytes:
    """The digest of the message.

    Raises
    ------
    UsageError
        It was not scanned, or with the key of another filter.
    """
    if not row.was_scanned:
        raise UsageError(f"{row.id}: was not scanned, so nothing is known of what it says")
    fingerprint = spam_filter.ledger.fingerprint
    if row.fingerprint != fingerprint:
        raise UsageError(
            f"{row.id}: was read with key {row.fingerprint}, this filter has {fingerprint}"
        )
    return row.digest
