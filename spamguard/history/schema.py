"""The file of the history: made, opened, and brought up to date from what earlier versions have written.

What is looked through stands apart from what is large (features and words), so that looking through many rows reads little.

What the versions are:

    1, 2    One table. It is begun anew: it was never released, and held no more than some days.
    3       Features and words have a table of their own; texts stand folded beside themselves, where that differs.
    4       `author` is there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from spamguard.errors import HistoryError
from spamguard.files import make_once
from spamguard.history.row import COLUMNS, FOLDED, LARGE, Columns
from spamguard.owner import as_owner_of
from spamguard.sqlitefile import connect as connect_file
from spamguard.sqlitefile import transaction, use_log

PAGE = 16384  # bytes; as for the ledger, whose rows have the same size
SMALL = tuple(name for name in COLUMNS if name not in LARGE)
_APPLICATION = 0x7367_6869  # "sghi" in the file's header
_VERSION = 4
_BUSY_SECONDS = 5.0
_NEWER = "a newer version has opened it: restart what is left of the old one, or install the newer one here"
_FOREIGN = "it is of another program: move it away, a new one will be made"

_TABLES = """
CREATE TABLE judgements (
    id TEXT NOT NULL UNIQUE, time REAL NOT NULL, label TEXT NOT NULL, digest BLOB NOT NULL, sender TEXT NOT NULL,
    recipients TEXT NOT NULL, subject TEXT NOT NULL, folded_sender TEXT, folded_recipients TEXT, folded_subject TEXT,
    listener TEXT NOT NULL, client TEXT NOT NULL, size INTEGER NOT NULL, probability REAL NOT NULL, log_odds REAL NOT NULL,
    action TEXT NOT NULL, reply TEXT NOT NULL, extractor INTEGER NOT NULL, fingerprint TEXT NOT NULL, personal TEXT NOT NULL,
    author TEXT NOT NULL DEFAULT '', folded_author TEXT
);
CREATE TABLE contents (judgement INTEGER PRIMARY KEY, packed BLOB NOT NULL, words TEXT NOT NULL)
"""

_NAMES = (*COLUMNS, *(f"folded_{name}" for name in FOLDED))  # of the values in `Columns`
_KEPT = [name for name in _NAMES if name not in LARGE]
_SMALL_AT, _LARGE_AT = [_NAMES.index(name) for name in _KEPT], [_NAMES.index(name) for name in (*LARGE, "id")]
_INSERT = f"INSERT OR IGNORE INTO judgements ({', '.join(_KEPT)}) VALUES ({', '.join('?' * len(_KEPT))})"  # noqa: S608
_INSERT_LARGE = "INSERT OR IGNORE INTO contents SELECT rowid, ?, ? FROM judgements WHERE id = ?"


def insert(db: sqlite3.Connection, rows: Sequence[Columns]) -> None:
    """Inside a transaction. A row whose id is known stays as it is."""
    db.executemany(_INSERT, [[row[place] for place in _SMALL_AT] for row in rows])
    db.executemany(_INSERT_LARGE, [[row[place] for place in _LARGE_AT] for row in rows])


def connect(path: Path) -> sqlite3.Connection:
    """The file opened, made (mode 0600) when there is none. HistoryError: it is none of ours; sqlite3.Error, OSError."""
    with as_owner_of(path.parent):
        if not path.exists():
            make_once(path, _fill)
        db = connect_file(path, _BUSY_SECONDS)
        try:
            _bring_up_to_date(db)
            if _version(db) != _VERSION:
                raise HistoryError(f"history {path}: {_NEWER if _version(db) > _VERSION else _FOREIGN}")
            use_log(db)
        except BaseException:
            db.close()
            raise
    return db


def _fill(draft: Path) -> None:
    db = connect_file(draft, _BUSY_SECONDS)
    try:
        for setting in (f"page_size = {PAGE}", "auto_vacuum = INCREMENTAL"):
            db.execute(f"PRAGMA {setting}")
        db.execute(f"PRAGMA application_id = {_APPLICATION}")
        db.execute(f"PRAGMA user_version = {_VERSION}")
        db.executescript(_TABLES)
        use_log(db)
    finally:
        db.close()


def _bring_up_to_date(db: sqlite3.Connection) -> None:
    """A file of a version before, in place."""
    if 0 < _version(db) < _VERSION:
        with transaction(db):
            version = _version(db)  # another process may have been faster
            if version < 3:
                for statement in ("DROP TABLE judgements", *_TABLES.split(";")):
                    db.execute(statement)
            elif version < _VERSION:
                db.execute("ALTER TABLE judgements ADD COLUMN author TEXT NOT NULL DEFAULT ''")  # which touches no row
                db.execute("ALTER TABLE judgements ADD COLUMN folded_author TEXT")
            db.execute(f"PRAGMA user_version = {_VERSION}")
    # Left by an earlier state that was killed while it moved their rows: what came later would be removed at once, as too much.
    db.execute("DROP TABLE IF EXISTS judgements_of_version_2")


def _version(db: sqlite3.Connection) -> int:
    """0: of another program."""
    ours = pragma(db, "application_id") == _APPLICATION
    return pragma(db, "user_version") if ours else 0


def pragma(db: sqlite3.Connection, name: str) -> int:
    """A number that SQLite keeps about the file."""
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])
