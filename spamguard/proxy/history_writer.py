"""Writes the history beside the path of the mail, in a thread of its own.

Must never raise into that path, never keep it waiting, and never hold more than a bounded number of
rows: rows that do not fit, or cannot be written, are dropped and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from pathlib import Path

from spamguard.errors import HistoryError
from spamguard.proxy.history import History
from spamguard.proxy.history_schema import COLUMNS, HistoryRow, RowValues, redact_row, row_values

_log = logging.getLogger("spamguard.history")

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
