"""Creates and opens the SQLite file of a ledger, and refuses every file that is not this installation's ledger.

Must never change a file that it did not create, but for bringing an older ledger to today's schema (`migration`), and never show a
half-made one: a new ledger is made whole under another name and then linked to its own, so of several processes that create it at
once exactly one succeeds and the others open what that one made.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from pathlib import Path

from spamguard.errors import LedgerError
from spamguard.files import make_once, sync_directory
from spamguard.ledger.failures import explained
from spamguard.ledger.migration import EVENTS_OF_USERS, SCHEMA_VERSION, schema_of, upgrade
from spamguard.owner import as_owner_of
from spamguard.sqlitefile import connect as connect_file
from spamguard.sqlitefile import use_log

APPLICATION = 0x7367_6C64  # "sgld" in the file's header, so that `file` and we know whose it is
BUSY_SECONDS = 30

PAGE_BYTES = 16384
# Which page size? 6,000 receipts, log-normal sizes, mean 2,676 bytes; bytes of file per receipt, receipts/s (FULL):
#
#     page     bytes    one per transaction    64 per transaction
#     4,096    3,449    5,062                  35,277
#     8,192    3,464    4,115                  36,970
#     16,384   3,228    3,981                  43,462    chosen: the file is the larger cost
#     32,768   3,020    3,991                  44,627    but each small commit writes twice as much as at 16,384

_LOGS = ("-wal", "-journal")  # SQLite would write what is in them into any new file of that name

_TABLES = """
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    digest BLOB NOT NULL CHECK (length(digest) > 0),
    user TEXT NOT NULL,
    clock INTEGER NOT NULL,
    node TEXT NOT NULL,
    label TEXT,
    origin TEXT NOT NULL,
    time INTEGER NOT NULL,
    extractor INTEGER NOT NULL,
    scores BLOB NOT NULL,
    packed BLOB NOT NULL CHECK (label IS NOT NULL OR length(packed) = 0),
    UNIQUE (digest, user, clock, node)
);
CREATE TABLE classes (name TEXT PRIMARY KEY, unwanted INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
# The large columns stand last: SQLite reads a row from its front and leaves the pages behind what it needs alone.
# seq needs no AUTOINCREMENT: the row with the highest seq is never deleted (`compact`), so no number comes twice.


def connect(path: Path, fingerprint: str, *, durable: bool) -> sqlite3.Connection:
    """A checked connection to the ledger at `path`, created when there is none; LedgerError says why not."""
    with explained(path), as_owner_of(path.parent):
        left = [name for end in _LOGS if (name := path.with_name(path.name + end)).exists()]
        if not path.exists():
            if left:  # looked for first: whoever creates the ledger meanwhile has made the file before its log
                raise LedgerError(f"ledger {path}: it is gone, but its log {left[0]} is not: put the ledger back, or move its log away")
            _create(path, fingerprint)
        if not path.is_file() or not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK):
            raise LedgerError(f"ledger {path}: it must be a file that this user may read and write, in a directory that it may write")
        db = connect_file(path, BUSY_SECONDS)
        try:
            _refuse_strangers(db, path, fingerprint)
            upgrade(db, path, BUSY_SECONDS)
            use_log(db)
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        except BaseException:
            db.close()
            raise
        return db


def _create(path: Path, fingerprint: str) -> None:
    """Not opened in place: closing a descriptor of a file drops the locks that this process's other connections hold on
    it (POSIX advisory locks), and a reader could meet a file without tables.
    """
    make_once(path, lambda draft: _fill(draft, fingerprint))
    sync_directory(path.parent)


def _fill(draft: Path, fingerprint: str) -> None:
    db = connect_file(draft, BUSY_SECONDS)
    try:
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.executescript(_TABLES)
        db.execute(EVENTS_OF_USERS)
        first = {"ledger.fingerprint": fingerprint, "ledger.node": secrets.token_hex(8), "ledger.clock": "0", "ledger.compacted": "0"}
        db.executemany("INSERT INTO meta VALUES (?, ?)", first.items())
        use_log(db)
    finally:
        db.close()


def _refuse_strangers(db: sqlite3.Connection, path: Path, fingerprint: str) -> None:
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise LedgerError(f"ledger {path}: it is not a spamguard ledger: name another path, or move this file away")
    version = schema_of(db)
    if not 0 < version <= SCHEMA_VERSION:
        raise LedgerError(
            f"ledger {path}: it has schema {version}, this program knows up to {SCHEMA_VERSION}: use the spamguard that wrote it, or newer"
        )
    theirs = dict(db.execute("SELECT key, value FROM meta")).get("ledger.fingerprint")
    if theirs is None:
        raise sqlite3.DatabaseError("no ledger.fingerprint")
    if theirs != fingerprint:
        raise LedgerError(
            f"ledger {path}: it was taught with key {theirs}, this installation has {fingerprint}: restore its key from the backup"
        )
