"""The file of the sightings: how it is made, opened, and set aside when it is damaged. A cache: what is lost is one look at all mail.

Must never open what another program has written, nor let what lies beside a damaged file into the next one.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import suppress
from pathlib import Path

from spamguard.errors import SpamguardError
from spamguard.files import create_private
from spamguard.owner import as_owner_of
from spamguard.sqlitefile import cache_explained, connect, transaction

ASIDE = ".damaged"  # behind the name of a damaged one

_APPLICATION = 0x7367_7369  # "sgsi" in the file's header
_VERSION = 1
_BUSY_SECONDS = 5.0
_TABLES = (
    "CREATE TABLE IF NOT EXISTS mailboxes (id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, scanned INTEGER NOT NULL DEFAULT 0)",
    """CREATE TABLE IF NOT EXISTS folders (
        id INTEGER PRIMARY KEY, mailbox INTEGER NOT NULL, name BLOB NOT NULL, UNIQUE (mailbox, name)
    )""",
    """CREATE TABLE IF NOT EXISTS sightings (
        folder INTEGER NOT NULL, name INTEGER NOT NULL, digest BLOB NOT NULL, delivery INTEGER NOT NULL, origin BLOB,
        waiting INTEGER NOT NULL, followed INTEGER NOT NULL, seen INTEGER NOT NULL, gone INTEGER NOT NULL, PRIMARY KEY (folder, name)
    ) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS digests ON sightings (digest) WHERE digest != x''",
    "CREATE INDEX IF NOT EXISTS gone ON sightings (gone) WHERE gone > 0",
    # of messages that show evidence: 0: nothing more is to be learnt from it; else when they were first seen read
    "CREATE TABLE IF NOT EXISTS marks (folder INTEGER NOT NULL, name INTEGER NOT NULL, since INTEGER NOT NULL, PRIMARY KEY (folder, name)) "
    "WITHOUT ROWID",
    # of mailboxes: the evidence that has been asked for since everything in them was looked at
    "CREATE TABLE IF NOT EXISTS weighed (mailbox INTEGER PRIMARY KEY, asked TEXT NOT NULL)",
    # votes that follow from the sightings and are not in the ledger yet, or were not when this was written
    """CREATE TABLE IF NOT EXISTS pending (
        id INTEGER PRIMARY KEY, digest BLOB NOT NULL, user TEXT NOT NULL, label TEXT NOT NULL, packed BLOB NOT NULL, scores BLOB NOT NULL,
        origin TEXT NOT NULL, time INTEGER NOT NULL, extractor INTEGER NOT NULL, decided_at INTEGER NOT NULL, came_from TEXT NOT NULL,
        came_to TEXT NOT NULL, why TEXT NOT NULL
    )""",
    # of mailboxes that are not there any more: since when
    "CREATE TABLE IF NOT EXISTS missing (mailbox INTEGER PRIMARY KEY, since INTEGER NOT NULL)",
)
_MENDED = (
    "sightings %s: they are damaged and lie in %s now: all folders are looked at as if for the first time. What was moved since they were "
    "last looked at teaches nothing"
)

_log = logging.getLogger("spamguard.folders")


class SightingsError(SpamguardError):
    """The sightings cannot be opened, read or written."""


def opened(path: Path) -> sqlite3.Connection:
    """Of mode 0600, made when there is none. SightingsError."""
    with cache_explained("sightings", path, SightingsError), as_owner_of(path.parent):
        with suppress(FileExistsError):
            create_private(path).close()
        db = connect(path, _BUSY_SECONDS)
        try:
            _prepare(db, path)
        except BaseException:
            db.close()
            raise
    return db


def set_aside(path: Path) -> None:
    """With its log, which would be taken for the next one's. SightingsError."""
    aside = path.with_name(path.name + ASIDE)
    with cache_explained("sightings", path, SightingsError), as_owner_of(path.parent):
        with suppress(FileNotFoundError):  # it lies there already, or somebody was faster
            path.replace(aside)
        for log in ("-wal", "-shm"):
            path.with_name(path.name + log).unlink(missing_ok=True)
    _log.error(_MENDED, path, aside)


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")  # a power cut must not lose a sighting whose vote is in the ledger
    with transaction(db):
        if not _number(db, "SELECT count(*) FROM sqlite_master") and not _number(db, "PRAGMA application_id"):
            db.execute(f"PRAGMA application_id = {_APPLICATION}")
            db.execute(f"PRAGMA user_version = {_VERSION}")
        if (_number(db, "PRAGMA application_id"), _number(db, "PRAGMA user_version")) != (_APPLICATION, _VERSION):
            raise SightingsError(f"sightings {path}: they are of another program or version: move the file away, a new one will be made")
        for table in _TABLES:  # the later ones are not in files that were made before there was a use for them
            db.execute(table)


def _number(db: sqlite3.Connection, query: str) -> int:
    return int(db.execute(query).fetchone()[0])
