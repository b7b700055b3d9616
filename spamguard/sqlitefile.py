"""What our SQLite files have in common: how they are opened, written in one transaction, and what is said when that fails.

SQLite believes what lies beside a file: a journal may name files that it deletes. So where root opens one in somebody else's
directory, that must be done with the owner's rights, up to the log of a file in mode WAL; from then on it looks for no journal.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from spamguard.errors import SpamguardError, is_full, reported
from spamguard.owner import as_owner_of


def connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """Opens an existing file only: SQLite must not create one, which would have the wrong permissions."""
    return sqlite3.connect(f"file:{quote(os.fsencode(path.absolute()))}?mode=rw", uri=True, timeout=busy_seconds, isolation_level=None)


def use_log(db: sqlite3.Connection) -> None:
    """Mode WAL, in which readers and writers do not wait for each other; nothing if the file has it already, unless somebody meddled.

    Of a new file last: closing says nothing when a full disk keeps what is in the log out of the file.
    """
    db.execute("PRAGMA journal_mode = WAL")


def copy(path: Path, target: Path, busy_seconds: float) -> None:
    """Copy the database at `path`, as it is at one moment whoever writes, into an empty file, and wait for the disk."""
    with closing(_to_be_read(path, busy_seconds)) as source, closing(connect(target, busy_seconds)) as new:
        source.backup(new)
    with target.open("rb") as written:
        os.fsync(written.fileno())


def _to_be_read(path: Path, busy_seconds: float) -> sqlite3.Connection:
    with as_owner_of(path.parent):
        db = connect(path, busy_seconds)
        try:
            db.execute("BEGIN")
            db.execute("SELECT 1 FROM sqlite_schema").fetchone()
        except BaseException:
            db.close()
            raise
    return db


@contextmanager
def transaction(db: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """All of what is done inside, or nothing."""
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite itself has rolled back after some errors
            db.execute("ROLLBACK")
        raise


@contextmanager
def cache_explained(what: str, path: Path, error_type: type[SpamguardError]) -> Iterator[None]:
    """Whatever fails with a file that may be thrown away leaves as one line that names it and the remedy."""
    try:
        yield
    except (sqlite3.Error, OSError, ValueError, TypeError, OverflowError) as error:
        raise error_type(f"{what} {path}: {_remedy(error)} [{reported(error)}]") from error


def is_damage(error: BaseException | None) -> bool:
    """Whether what SQLite says is that there is no sense in the file."""
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def _remedy(error: Exception) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_FULL") or is_full(error):
        return "the disk is full: make room"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "another process kept the file locked for too long: try again"
    if is_damage(error) or name.startswith("SQLITE_ERROR"):
        return "the file is damaged: move it away and restart the daemon, a new one will be made"
    return "the file cannot be read or written: check its directory, its permissions and the disk"
