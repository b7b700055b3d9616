"""The history of judgements, in a SQLite file of its own, and its writer.

Any number of processes may read and write it at once. It stays within a size and an age by removing
the oldest rows as new ones come. `HistoryWriter` writes beside the path of the mail, in a thread of
its own: rows that do not fit into its queue, or cannot be written, are dropped and counted.

Must never keep the mail waiting or raise into its path, let an error of SQLite or the system out as
anything but a `HistoryError`, prune in one long transaction, or take features of another extractor
or another key for comparable. A power cut may cost the last rows, not the file (WAL, synchronous
NORMAL).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from spamguard.database import ClosedOnExit, Database
from spamguard.engine.filter import Filter
from spamguard.engine.fold import unpack_features
from spamguard.engine.prepare import Example
from spamguard.errors import HistoryError, LedgerError, UsageError
from spamguard.proxy.history_schema import (
    COLUMNS,
    HISTORY_SCHEMA,
    PAGE_BYTES,
    HistoryRow,
    RowValues,
    insert_rows,
    redact_row,
    row_from_values,
    row_values,
)
from spamguard.proxy.history_search import HistorySearch
from spamguard.records import EXTRACTOR

_log = logging.getLogger("spamguard.history")

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


class History(ClosedOnExit):
    """Judgements by id. Belongs to one thread of one process.

    Every method raises HistoryError: one line that names the file.
    """

    def __init__(self, db: Database, size: int, days: int) -> None:
        """Use `open`."""
        self.path = db.path
        self._db = db
        self._size = max(size, MIN_BYTES)
        self._days = days

    @classmethod
    def open(cls, path: Path, size: int, days: int) -> History:
        """The history at `path`, created (mode 0600) when there is none.

        Parameters
        ----------
        size : bytes that its files may take together, at least `MIN_BYTES`.
        days : how long a row is kept, by the time of `Database.trusted_time`.

        Both take effect by and by, as rows are appended.
        """
        db = Database.open(path, HISTORY_SCHEMA, durable=False)
        try:
            log_pages = min(_MAX_LOG_PAGES, int(max(size, MIN_BYTES) * _LOG_SHARE) // PAGE_BYTES)
            db.query(f"PRAGMA wal_autocheckpoint = {log_pages}")
            db.query(f"PRAGMA journal_size_limit = {log_pages * PAGE_BYTES}")
        except BaseException:
            db.close()
            raise
        return cls(db, size, days)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def append(self, rows: Sequence[HistoryRow]) -> None:
        """Keep these rows, all or none; a row whose id is there stays as it is.

        Then remove rows that are too old or too many, about as many as came.
        """
        self.append_values([row_values(row) for row in rows])

    def append_values(self, rows: Sequence[RowValues]) -> None:
        """The same for rows that are encoded already."""
        if not rows:
            return
        with self._db.errors():
            with self._db.transaction():
                insert_rows(self._db, rows)
                newest = self._db.trusted_time(max(row[_TIME_INDEX] for row in rows))
            for _ in range(2 + 2 * len(rows) // _PRUNE_ROWS):
                if not self._prune(newest):
                    break
            # Give pages back only if they are more than the next rows fill.
            if self._db.pragma("freelist_count") > self._size * _FREE_SHARE / PAGE_BYTES:
                # `execute` would stop after the first page
                self._db.connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")

    def find(self, name: str) -> HistoryRow | None:
        """The judgement of that id, or None."""
        rows = self._db.query(_SELECT_BY_ID, (name,))
        with self._db.errors(ValueError, TypeError):
            return row_from_values(rows[0]) if rows else None

    @cached_property
    def search(self) -> HistorySearch:
        """Looks through many rows."""
        return HistorySearch(self._db)

    def read_features(self, names: Sequence[str]) -> list[tuple[str, bytes]]:
        """Ids and packed features of these judgements, as far as they are there, in any order."""
        marks = ",".join("?" * len(names))
        return self._db.query(f"{_SELECT_FEATURES} WHERE id IN ({marks})", names)

    def _prune(self, newest: float) -> bool:
        """Remove some of the oldest rows: any if they are too many, else those that are too old.

        Whether there were any.
        """
        oldest = newest - self._days * _DAY_SECONDS
        used = self._db.pragma("page_count") - self._db.pragma("freelist_count")
        values = {
            "all": used > self._size * _ROWS_SHARE / PAGE_BYTES,
            "oldest": oldest,
            "newest": newest,
        }
        with self._db.transaction():
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


# ---- the writer

BATCH_ROWS = 256
"""Rows of one transaction."""
_MAX_BATCH_BYTES = 1 << 20
_MAX_WAIT_SECONDS = 0.5  # that a row waits for others
_MAX_QUEUE_ROWS = 4096
_MAX_QUEUE_BYTES = 32 << 20
_ROW_BYTES = 1024  # of a row without its features
_LOG_SECONDS = 60.0  # between two lines in the log
_PACKED_INDEX = COLUMNS.index("packed")


class HistoryWriter:
    """Takes rows from any thread. Start it after the last fork.

    path, size, days: as in `History.open`. subjects, addresses: whether they are kept
    (`redact_row`). written, dropped: how many rows so far.
    """

    def __init__(
        self, path: Path, size: int, days: int, *, subjects: bool = True, addresses: bool = True
    ) -> None:
        self._open_arguments = path, size, days
        self._subjects = subjects
        self._addresses = addresses
        self._rows: deque[RowValues] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._history: History | None = None
        self._quiet_until = 0.0
        self.written = 0
        self.dropped = 0
        # A daemon thread: a hanging disk must not keep the process.
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def put(self, row: HistoryRow) -> bool:
        """Have a row written soon; False if it is dropped for want of room. Never waits.

        The row is encoded here: the thread would hold the interpreter lock for it, and the mail
        would wait.
        """
        values = row_values(redact_row(row, subjects=self._subjects, addresses=self._addresses))
        size = _row_bytes(values)
        with self._changed:
            is_full = len(self._rows) >= _MAX_QUEUE_ROWS or self._bytes + size > _MAX_QUEUE_BYTES
            if self._closing or is_full:
                self.dropped += 1
                self._log_rarely("the disk is too slow for the history")
                return False
            self._rows.append(values)
            self._bytes += size
            if len(self._rows) in (1, BATCH_ROWS):
                self._changed.notify()
        return True

    def close(self, seconds: float = 5.0) -> bool:
        """Write the waiting rows and end; whether that was done within so many seconds.

        Idempotent; later rows are dropped.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                if self._history is None:
                    self._history = History.open(*self._open_arguments)
                self._history.append_values(batch)
                self.written += len(batch)
            except Exception as error:  # noqa: BLE001  whatever it is, mail goes on
                with self._changed:
                    self.dropped += len(batch)
                    self._log_rarely(str(error))
                # The next batch opens it anew: the file may have been moved away, or mended.
                self._close_history()
        self._close_history()

    def _next_batch(self) -> list[RowValues]:
        """The next rows, once there are enough or the first has waited; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._rows or self._closing)
            self._changed.wait_for(
                lambda: len(self._rows) >= BATCH_ROWS or self._closing, _MAX_WAIT_SECONDS
            )
            batch: list[RowValues] = []
            size = 0
            while self._rows and len(batch) < BATCH_ROWS and size < _MAX_BATCH_BYTES:
                batch.append(self._rows.popleft())
                size += _row_bytes(batch[-1])
            self._bytes -= size
            return batch

    def _log_rarely(self, reason: str) -> None:
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _LOG_SECONDS
            _log.error("%s; %d rows dropped so far", reason, self.dropped)

    def _close_history(self) -> None:
        history, self._history = self._history, None
        if history is not None:
            try:
                history.close()
            except HistoryError as error:
                _log.error("%s", error)


def _row_bytes(values: RowValues) -> int:
    return len(values[_PACKED_INDEX]) + _ROW_BYTES


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
