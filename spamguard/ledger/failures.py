"""Turns what SQLite and the system report into one line that names the file and the remedy.

Must never hide a failure: every error that enters leaves as a `LedgerError` that carries its cause.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spamguard.errors import LedgerError, is_full, reported

_REMEDIES = {
    "SQLITE_FULL": "the disk is full: make room and try again, nothing was half written",
    "SQLITE_IOERR": "the disk refused to read or write: make room on it if it is full, check it, its quota and limits on file size",
    "SQLITE_BUSY": "another process kept it locked for too long: find out which one writes, or try again",
    "SQLITE_LOCKED": "another process kept it locked for too long: find out which one writes, or try again",
    "SQLITE_ERROR": "its tables are damaged: restore it from a backup",
    "SQLITE_CORRUPT": "it is damaged: restore it from a backup",
    "SQLITE_NOTADB": "it is not a spamguard ledger: name another path, or move this file away",
    "SQLITE_READONLY": "it may not be written: give this user write permission on the file and its directory",
    "SQLITE_CANTOPEN": "it cannot be opened: give this user read and write permission on the file and its directory",
    "SQLITE_PERM": "it may not be opened: give this user read and write permission on the file and its directory",
    "SQLITE_NOMEM": "there is not enough memory",
    "SQLITE_TOOBIG": "a receipt is too large for it",
    "SQLITE_CONSTRAINT": "a vote breaks its rules (empty digest, or features on a vote that is taken back)",
}
_OF_WHAT_WAS_READ = (sqlite3.OperationalError, sqlite3.DatabaseError)
"""Without a name of SQLite's: text that is none, and a note that every ledger has. What Python's own checks raise is of other types."""
_MISUSE = "it was used wrongly (closed, used from another thread, or given a value it cannot hold)"


def failure(path: Path, error: Exception) -> LedgerError:
    """The error in one line: file, remedy, and in brackets what was reported."""
    if isinstance(error, sqlite3.Error):
        missing = "SQLITE_CORRUPT" if type(error) in _OF_WHAT_WAS_READ else ""
        name = getattr(error, "sqlite_errorname", missing)
        remedy = _REMEDIES.get("_".join(name.split("_")[:2]), _MISUSE)
    elif is_full(error):
        remedy = _REMEDIES["SQLITE_FULL"]
    elif isinstance(error, OSError):
        remedy = "it cannot be opened: check that its directory exists and that this user may read and write both"
    else:
        remedy = _MISUSE
    return LedgerError(f"ledger {path}: {remedy} [{reported(error)}]")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Whatever SQLite, the system or a value that SQLite cannot hold raises inside leaves as a LedgerError."""
    try:
        yield
    except (sqlite3.Error, OSError, OverflowError, UnicodeError) as error:
        raise failure(path, error) from error
