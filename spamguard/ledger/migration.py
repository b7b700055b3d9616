"""Brings a ledger of an older schema to today's, keeping a copy of what it was beside it.

Must never change the ledger before the copy is complete and on the disk, and never leave it between two schemas: all steps and the
new number are one transaction, so that whoever is killed in the middle leaves the old ledger.

What the schemas are:

    1    events, classes, meta. The index of users may be missing: it was thought of later.
    2    The index is there. Events may be word lists of other filters (`wordlists`), which a program that knows only 1 would leave
         out of its tables without a word.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from spamguard.files import create_private, sync_directory
from spamguard.sqlitefile import copy, transaction

EVENTS_OF_USERS = "CREATE INDEX IF NOT EXISTS events_of_users ON events (user, time, origin, label)"
"""For `users`, some 200 bytes for each receipt."""

STEPS: dict[int, tuple[str, ...]] = {1: (EVENTS_OF_USERS,)}
"""What leads from each schema to the next."""

SCHEMA_VERSION = max(STEPS) + 1


def upgrade(db: sqlite3.Connection, path: Path, busy_seconds: float) -> None:
    """Bring the ledger at `path`, which `db` has open, to SCHEMA_VERSION; nothing if it is there.

    The copy is named after the old schema: `ledger.sqlite.v1`. sqlite3.Error, OSError: no room for it, for example; then nothing has
    changed.
    """
    if schema_of(db) == SCHEMA_VERSION:
        return
    with transaction(db):  # of several that open it at once, the others wait here and find it done
        version = schema_of(db)
        if version < SCHEMA_VERSION:
            _keep_copy(path, version, busy_seconds)
        for number in range(version, SCHEMA_VERSION):
            for statement in STEPS[number]:
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def schema_of(db: sqlite3.Connection) -> int:
    """The number of the schema of an opened ledger."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _keep_copy(path: Path, version: int, busy_seconds: float) -> None:
    """Nobody else writes meanwhile, so one draft has room; what a killed process left of one is written anew."""
    draft = path.with_name(f".{path.name}.v{version}.new")
    draft.unlink(missing_ok=True)
    create_private(draft).close()
    try:
        copy(path, draft, busy_seconds)
        draft.replace(path.with_name(f"{path.name}.v{version}"))
        sync_directory(path.parent)
    finally:
        draft.unlink(missing_ok=True)
