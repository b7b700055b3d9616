"""The file of the history: made, opened, and brought up to date from what earlier versions have written.

What is looked through stands apart from what is large (features and words), so that looking through many rows reads little. Must
never move many rows in one transaction, nor let the file grow by moving them: who is killed in between leaves the rest to the next.

What the versions are:

    1    One table.
    2    `personal` is there.
    3    Features and words have a table of their own; texts stand folded beside themselves, where that differs.
    4    `author` is there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from spamguard.errors import HistoryError
from spamguard.files import make_once
from spamguard.history.row import COLUMNS, FOLDED, LARGE, Columns, with_folded
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
_STEP_ROWS = 64  # that one transaction moves
_BEFORE = "judgements_of_version_2"

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
_FROM_VERSION_1 = "ALTER TABLE judgements ADD COLUMN personal TEXT NOT NULL DEFAULT '{}'"
_AUTHOR = "ALTER TABLE {} ADD COLUMN author TEXT NOT NULL DEFAULT ''"  # which touches no row
_OLDEST_BEFORE = f"SELECT rowid, {', '.join(COLUMNS)} FROM {_BEFORE} ORDER BY rowid LIMIT {_STEP_ROWS}"  # noqa: S608

_KEPT = (*SMALL, *(f"folded_{name}" for name in FOLDED))
_INSERT = f"INSERT OR IGNORE INTO judgements (rowid, {', '.join(_KEPT)}) VALUES (?, {', '.join('?' * len(_KEPT))})"  # noqa: S608
_INSERT_LARGE = "INSERT OR IGNORE INTO contents SELECT rowid, ?, ? FROM judgements WHERE id = ?"


def insert(db: sqlite3.Connection, rows: list[Columns], numbers: Iterable[int | None]) -> None:
    """Inside a transaction. numbers: of the rows in the table, None: the next. A row whose id is known stays as it is."""
    at = {name: place for place, name in enumerate((*COLUMNS, *_KEPT[len(SMALL) :]))}
    small, large = [at[name] for name in _KEPT], [at[name] for name in (*LARGE, "id")]
    db.executemany(_INSERT, [(number, *[row[place] for place in small]) for number, row in zip(numbers, rows, strict=False)])
    db.executemany(_INSERT_LARGE, [[row[place] for place in large] for row in rows])


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
    """A file of a version before, in place. Nobody has it open for writing before all rows are moved, so that they keep their order."""
    if 0 < _version(db) < _VERSION:
        with transaction(db):
            version = _version(db)  # another process may have been faster
            if version == 1:
                db.execute(_FROM_VERSION_1)
            if version in (1, 2):
                db.execute(f"ALTER TABLE judgements RENAME TO {_BEFORE}")
                for statement in _TABLES.split(";"):
                    db.execute(statement)
            elif version < _VERSION:
                db.execute(_AUTHOR.format("judgements"))
                db.execute("ALTER TABLE judgements ADD COLUMN folded_author TEXT")
            if version < _VERSION:
                if _has_old_rows(db):
                    db.execute(_AUTHOR.format(_BEFORE))
                db.execute(f"PRAGMA user_version = {_VERSION}")
    db.execute(f"PRAGMA wal_autocheckpoint = {_STEP_ROWS}")  # pages
    while _has_old_rows(db):
        with transaction(db):
            if _has_old_rows(db) and not _move(db):
                db.execute(f"DROP TABLE {_BEFORE}")


def _has_old_rows(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (_BEFORE,)).fetchone() is not None


def _move(db: sqlite3.Connection) -> int:
    """Some rows, the oldest first, which fills pages best; how many there were."""
    found = db.execute(_OLDEST_BEFORE).fetchall()
    insert(db, [with_folded(tuple(values)) for _, *values in found], [number for number, *_ in found])
    db.execute(f"DELETE FROM {_BEFORE} WHERE rowid <= ?", (found[-1][0] if found else 0,))  # noqa: S608
    return len(found)


def _version(db: sqlite3.Connection) -> int:
    """0: of another program."""
    ours = pragma(db, "application_id") == _APPLICATION
    return pragma(db, "user_version") if ours else 0


def pragma(db: sqlite3.Connection, name: str) -> int:
    """A number that SQLite keeps about the file."""
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])
