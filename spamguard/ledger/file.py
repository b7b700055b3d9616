"""The open file of a ledger: transactions, notes, and whether anything was committed.

Notes ("meta") are short texts under keys. Those whose key begins with "ledger." are the ledger's
own; other rooms keep theirs here because a note is written in the same file as the votes that it
speaks of, so both are restored, copied and lost together.

SQLite recovers a damaged log (ledger.sqlite-wal) up to its first bad frame and reports nothing. So
the number of the last event stands in a file beside the ledger, too: `LastNumber`.

Must never write into a file that no longer has the ledger's name: nobody would read it.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from spamguard.database import ClosedOnExit, Database
from spamguard.ledger import schema
from spamguard.ledger.schema import LEDGER_SCHEMA
from spamguard.storage import as_directory_owner

_NUMBER_DIGITS = 20


class LastNumber:
    """The number of the last event, in a file of its own. OSError: the file cannot be opened.

    It is written after each commit, so it is never ahead of a ledger that has lost nothing.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with as_directory_owner(path.parent):
            self._descriptor = os.open(path, flags, 0o600)

    def read(self) -> tuple[int, int]:
        """The number, 0 if none is known, and when it was written, in seconds since 1970."""
        text = os.pread(self._descriptor, _NUMBER_DIGITS, 0)
        return int(text) if text.isdigit() else 0, int(os.fstat(self._descriptor).st_mtime)

    def write(self, number: int) -> None:
        with suppress(OSError):  # what was committed is safe, and a full disk fails elsewhere
            os.pwrite(self._descriptor, b"%0*d" % (_NUMBER_DIGITS, number), 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LedgerFile(ClosedOnExit):
    """An open ledger without its votes. It belongs to one thread of one process."""

    def __init__(self, path: Path, database: Database, fingerprint: str) -> None:
        """Use `open`."""
        self.path = path
        self.fingerprint = fingerprint
        self._db = database
        with database.errors():
            self.node = self._read_meta("ledger.node")
            self._last_counters = self._change_counters()
            self._opened_file = self._current_file()
            self._last_number = LastNumber(path.with_name(path.name + schema.LAST_SUFFIX))

    @classmethod
    def open(cls, path: Path, fingerprint: str, *, durable: bool = True) -> Self:
        """Open the ledger at `path`; make it, with mode 0600, when there is none.

        fingerprint: of the installation's key. durable: whether a committed vote survives a power
        cut (SQLite: synchronous FULL). Without it a power cut may cost the last votes, never the
        file (NORMAL), and writing is three times as fast. LedgerError: the file is of another key,
        schema or program, or cannot be read and written.
        """
        database = schema.open_ledger_file(path, fingerprint, durable=durable)
        try:
            return cls(path, database, fingerprint)
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        """Close the file; any later call is a LedgerError."""
        self._db.close()
        self._last_number.close()

    # ---- commits

    def has_grown(self) -> bool:
        """Whether anything was committed since the last call; takes microseconds.

        True once for each change: the caller then folds everything there is. A write that failed
        may count as a change.
        """
        before = self._last_counters
        try:  # faster than `Database.errors`: this runs before every verdict
            self._last_counters = self._change_counters()
        except sqlite3.Error as error:
            raise LEDGER_SCHEMA.explain(self.path, error) from error
        return self._last_counters != before

    def _change_counters(self) -> tuple[int, int]:
        """Counters of commits by other connections and of writes by this one."""
        connection = self._db.connection
        ((version,),) = connection.execute("PRAGMA data_version")
        return version, connection.total_changes

    def skip_own_writes(self) -> None:
        """Have `has_grown` leave out what this object has written so far."""
        self._last_counters = self._last_counters[0], self._db.connection.total_changes

    def trusted_time(self, now: float) -> int:
        """The time by which votes grow old (`Database.trusted_time`), seconds since 1970."""
        with self._writing():
            return int(self._db.trusted_time(now))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction in which nobody else can write."""
        with self._db.transaction():
            # Else the votes would go where nobody ever reads them, and the caller would not know.
            if self._current_file() != self._opened_file:
                raise LEDGER_SCHEMA.make_error(
                    self.path,
                    "it was moved, removed or replaced while it was open: restart what uses it",
                )
            yield

    def _current_file(self) -> tuple[int, int] | None:
        """Device and inode of the file that has the ledger's name now."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    # ---- size

    def file_bytes(self) -> int:
        """Bytes of the file, with those still in its log."""
        with self._db.errors():
            return int(self._db.pragma("page_count") * self._db.pragma("page_size"))

    # ---- notes

    def get_meta(self, key: str) -> str | None:
        """The text that `set_meta` keeps under this key."""
        rows = self._db.query(schema.META_VALUE, (key,))
        return str(rows[0][0]) if rows else None

    def set_meta(self, key: str, value: str) -> None:
        """Keep a short text under a key of the caller's."""
        if key.startswith("ledger."):
            problem = "meta keys that begin with 'ledger.' are its own: choose another"
            raise LEDGER_SCHEMA.make_error(self.path, problem)
        with self._writing():
            self._set_meta(key, value)

    def replace_meta(
        self,
        key: str,
        expected: str | None,
        value: str,
        is_valid: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Do as `set_meta` if the value still is the expected one; whether it was.

        is_valid: asked in the same transaction; False: nothing is changed either.
        """
        with self._writing():
            is_expected = self.get_meta(key) == expected and is_valid()
            if is_expected:
                self._set_meta(key, value)
        return is_expected

    def drop_meta(self, keys: Iterable[str]) -> None:
        """Remove the texts under these keys of the caller's."""
        with self._writing():
            self._db.execute(schema.DROP_META, (json.dumps(list(keys)),))

    def _set_meta(self, key: str, value: str) -> None:
        self._db.execute(schema.SET_META, (key, value))

    def _read_meta(self, key: str) -> str:
        """A text that every ledger has."""
        if (value := self.get_meta(key)) is None:
            raise sqlite3.DatabaseError(f"no {key}")
        return value

    def _read_number(self, key: str) -> int:
        """A number that every ledger has. Call it within a transaction: it may find damage."""
        return self._parse_number(key, self.get_meta(key))

    def _parse_number(self, key: str, text: str | None) -> int:
        try:
            return int(text or "")
        except ValueError as error:
            raise sqlite3.DatabaseError(f"{key} is no number") from error
