"""Writes the history beside the mail's path, in a thread of its own.

Must never raise into that path, never keep it waiting, and never hold more than a bounded number of rows: what does not fit, or
cannot be written, is dropped and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from pathlib import Path

from spamguard.errors import HistoryError
from spamguard.history.row import COLUMNS, Columns, Row, columns, without
from spamguard.history.store import History

BATCH = 256  # rows of a transaction
_BATCH_BYTES = 1 << 20
_SECONDS = 0.5  # that a row waits for others
_QUEUE_ROWS = 4096
_QUEUE_BYTES = 32 << 20
_ROW_BYTES = 1024  # of a row beside its features
_QUIET_SECONDS = 60.0  # between two lines in the log about the same trouble

_PACKED = COLUMNS.index("packed")

_log = logging.getLogger("spamguard.history")


class HistoryWriter:
    """Takes rows from any thread. Start it after the last fork. path, size, days: as `History.open` takes them. subjects, addresses:
    whether they are kept (`row.without`).

    written, dropped: how many rows so far.
    """

    def __init__(self, path: Path, size: int, days: int, *, subjects: bool = True, addresses: bool = True) -> None:
        self._place = path, size, days
        self._subjects = subjects
        self._addresses = addresses
        self._rows: deque[Columns] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._history: History | None = None
        self._quiet_until = 0.0
        self.written = 0
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)  # a hanging disk must not keep the process
        self._thread.start()

    def put(self, row: Row) -> bool:
        """Have a row written soon; False when there is no room for it: it is dropped. Never waits for the disk.

        What it takes in Python is done here: the thread would hold the interpreter lock for it, and so hold up the mail.
        """
        values = columns(without(row, subjects=self._subjects, addresses=self._addresses))
        with self._changed:
            if self._closing or len(self._rows) >= _QUEUE_ROWS or self._bytes + _weight(values) > _QUEUE_BYTES:
                self.dropped += 1
                self._complain("the disk is too slow for the history")
                return False
            self._rows.append(values)
            self._bytes += _weight(values)
            if len(self._rows) in (1, BATCH):
                self._changed.notify()
        return True

    def close(self, seconds: float = 5.0) -> bool:
        """Write what waits and end, within so many seconds; whether it was done. Idempotent; later rows are dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while batch := self._take():
            self._write(batch)
        self._forget()

    def _take(self) -> list[Columns]:
        """The next rows, once there are enough or the first has waited; none: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._rows or self._closing)
            self._changed.wait_for(lambda: len(self._rows) >= BATCH or self._closing, _SECONDS)
            batch: list[Columns] = []
            size = 0
            while self._rows and len(batch) < BATCH and size < _BATCH_BYTES:
                batch.append(self._rows.popleft())
                size += _weight(batch[-1])
            self._bytes -= size
            return batch

    def _write(self, batch: list[Columns]) -> None:
        try:
            if self._history is None:
                self._history = History.open(*self._place)
            self._history.append_columns(batch)
            self.written += len(batch)
        except Exception as error:  # noqa: BLE001  whatever it is, mail goes on
            self._drop(len(batch), error)

    def _drop(self, number: int, error: Exception) -> None:
        with self._changed:
            self.dropped += number
            self._complain(str(error))
        self._forget()  # the next batch opens it anew: the file may have been moved away, or mended

    def _complain(self, what: str) -> None:
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _QUIET_SECONDS
            _log.error("%s; %d rows dropped so far", what, self.dropped)

    def _forget(self) -> None:
        history, self._history = self._history, None
        if history is not None:
            try:
                history.close()
            except HistoryError as error:
                _log.error("%s", error)


def _weight(values: Columns) -> int:
    return len(values[_PACKED]) + _ROW_BYTES
