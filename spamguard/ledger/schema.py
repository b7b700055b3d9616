"""Every SQL statement on events, in one place to read them together. Text only: must never be put
together from values.

Columns come in the order of the fields of `records.Vote`. Where several events match a key, the
winning vote comes first: highest clock, then highest node.

The ledger asked about many messages: so many of them in each statement, as no statement takes any
number.

Turns what SQLite and the system report into one line that names the file and the remedy.

Must never hide a failure: every error that enters leaves as a `LedgerError` that carries its cause.

Brings a ledger of an older schema to today's, keeping a copy of what it was beside it.

Must never change the ledger before the copy is complete and on the disk, and never leave it between
two schemas: all steps and the new number are one transaction, so that whoever is killed in the
middle leaves the old ledger.

What the schemas are:

    1    events, classes, meta. The index of users may be missing: it was thought of later.
    2    The index is there. Events may be word lists of other filters (`wordlists`), which a program that knows only 1 would leave
         out of its tables without a word.

Creates and opens the SQLite file of a ledger, and refuses every file that is not this
installation's ledger.

Must never change a file that it did not create, but for bringing an older ledger to today's schema
(`migration`), and never show a half-made one: a new ledger is made whole under another name and
then linked to its own, so of several processes that create it at once exactly one succeeds and the
others open what that one made.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spamguard.errors import LedgerError, error_text, is_disk_full
from spamguard.storage import (
    as_directory_owner,
    create_once,
    enable_wal,
    sync_directory,
)
from spamguard.storage import open_database as connect_file

INSERT_VOTE = """
INSERT INTO events (digest, user, clock, node, label, packed, scores, origin, time, extractor) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (digest, user, clock, node) DO NOTHING"""

LAST_SEQ = "SELECT coalesce(max(seq), 0) FROM events"
LAST_TIME = "SELECT time FROM events ORDER BY seq DESC LIMIT 1"

STANDING_LABEL = "SELECT label, extractor, seq FROM events WHERE digest = ? AND user = ? ORDER BY clock DESC, node DESC LIMIT 1"

VOTES_OF_KEY = """
SELECT digest, user, clock, node, label, packed, scores, origin, time, extractor FROM events
WHERE digest = ? AND user = ? ORDER BY clock DESC, node DESC"""

STANDING_VOTE = VOTES_OF_KEY + " LIMIT 1"

VOTE_OF_VERSION = """
SELECT digest, user, clock, node, label, packed, scores, origin, time, extractor FROM events
WHERE digest = ? AND user = ? AND clock = ? AND node = ?"""

FIRST_SCORES = """
SELECT scores FROM events WHERE digest = ? AND extractor = ? AND label IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM events AS later WHERE later.digest = events.digest AND later.user = events.user
    AND (later.clock, later.node) > (events.clock, events.node)) ORDER BY clock, node, user LIMIT 1"""

KNOWN_DIGESTS = "SELECT DISTINCT digest FROM events WHERE digest IN ({})"

EVENT_BETWEEN = "SELECT 1 FROM events WHERE digest = ? AND +seq > ? AND +seq < ? LIMIT 1"

OUTDATED_DIGESTS = """
SELECT DISTINCT digest FROM events WHERE seq > ? AND seq <= ? AND label IS NOT NULL AND extractor < ? AND NOT EXISTS (
    SELECT 1 FROM events AS later WHERE later.digest = events.digest AND later.user = events.user
    AND (later.clock, later.node) > (events.clock, events.node))"""

EVENTS_BETWEEN = """
SELECT seq, digest, user, clock, node, label, packed, scores, origin, time, extractor FROM events
WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"""

# Votes without features and scores, which then stay on the disk, and without from where and when
# they were cast: which of them is the lesson depends on none of that.
_SELECT_BARE_VOTE = (
    "SELECT digest, user, clock, node, label, x'', x'', '', 0, extractor FROM events "
)

# The + forbids SQLite, whatever statistics it may have, to walk all events up to that seq: it is to
# look the few digests up.
EARLIER_VOTES_OF_DIGESTS = _SELECT_BARE_VOTE + "WHERE digest IN ({}) AND +seq <= ?"

NEXT_BATCH_END = "SELECT max(digest) FROM (SELECT DISTINCT digest FROM events WHERE digest > ? ORDER BY digest LIMIT ?)"

# By the index alone: which messages in a range have several events.
_DIGESTS_WITH_SEVERAL_EVENTS = "SELECT digest FROM events WHERE digest > ?1 AND digest <= ?2 AND +seq <= ?3 GROUP BY digest HAVING count(*) > 1"

# What a lesson holds, and its version: less than half of a vote's columns, as nearly always the
# only vote is the lesson.
LESSONS_OF_DIGESTS = f"""
SELECT digest, label, packed, scores, extractor FROM events
WHERE digest > ?1 AND digest <= ?2 AND +seq <= ?3 AND digest NOT IN ({_DIGESTS_WITH_SEVERAL_EVENTS})"""

# The votes on the others.
EVENTS_OF_DIGESTS = (
    _SELECT_BARE_VOTE
    + f"WHERE digest IN ({_DIGESTS_WITH_SEVERAL_EVENTS}) AND +seq <= ?3 ORDER BY digest"
)

# One walk along the file: in the order of digests every row would be a page of its own.
LABELS_OF_EVENTS = """
SELECT label, count(*) FROM events WHERE seq <= :upto AND label IS NOT NULL AND (:extractor IS NULL OR extractor = :extractor)
GROUP BY label"""

DIGESTS_OF_SEVERAL_EVENTS = (
    "SELECT digest FROM events WHERE +seq <= ?1 GROUP BY digest HAVING count(*) > 1"
)
VOTES_OF_SEVERAL_EVENTS = (
    _SELECT_BARE_VOTE
    + f"WHERE +seq <= ?1 AND digest IN ({DIGESTS_OF_SEVERAL_EVENTS}) ORDER BY digest"
)

# Without features.
SCORES_BETWEEN = "SELECT seq, digest, label, scores, extractor FROM events WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"

VOTES_OF_DIGEST = "SELECT digest, user, clock, node, label, x'', scores, '', 0, extractor FROM events WHERE digest = ?"

SEQS_OF_KEY = "SELECT seq FROM events WHERE digest = ? AND user = ?"

VOTES_OF_DIGESTS = _SELECT_BARE_VOTE + "WHERE digest IN ({}) ORDER BY digest"

# Of a digest with one event, as nearly all have, its label is that of the lesson.
LABELS_OF_DIGESTS_BETWEEN = """
SELECT digest, max(label), count(*) FROM events WHERE digest IN (SELECT digest FROM events WHERE seq > ? AND seq <= ?) GROUP BY digest"""

# The row with the highest seq stays whatever it is, or SQLite would give its number again. Keys of
# several events are found in the index alone, so that all others are not even read.
DROP_SUPERSEDED = """
DELETE FROM events WHERE seq <= :upto AND seq < (SELECT max(seq) FROM events) AND digest IN (
    SELECT digest FROM events GROUP BY digest, user HAVING count(*) > 1) AND EXISTS (
    SELECT 1 FROM events AS later WHERE later.digest = events.digest AND later.user = events.user
    AND (later.clock, later.node) > (events.clock, events.node) AND later.seq <= :upto
    AND (:before IS NULL OR later.time < :before OR (
        (later.label, later.origin, later.time) = (events.label, events.origin, events.time) AND later.extractor > events.extractor
        AND NOT EXISTS (
            SELECT 1 FROM events AS middle WHERE middle.digest = events.digest AND middle.user = events.user
            AND (middle.clock, middle.node) > (events.clock, events.node)
            AND (middle.clock, middle.node) < (later.clock, later.node)))))"""

# By user, found in the index `events_of_users` alone unless said otherwise. Two values tell a
# place: what the origin is, or begins with.
LABELS_BY_USER = "SELECT user, label, count(*) FROM events INDEXED BY events_of_users WHERE label IS NOT NULL GROUP BY user, label"

# Keys of several events, hardly ever many, are found in the index of keys.
SUPERSEDED_BY_USER = """
SELECT events.user, label, count(*) FROM (SELECT digest, user FROM events GROUP BY digest, user HAVING count(*) > 1) AS several
CROSS JOIN events ON events.digest = several.digest AND events.user = several.user
WHERE label IS NOT NULL AND EXISTS (
    SELECT 1 FROM events AS later WHERE later.digest = events.digest AND later.user = events.user
    AND (later.clock, later.node) > (events.clock, events.node)) GROUP BY events.user, label"""

# Of one vote that was cast anew, with its own time (`renewal`, `undo`), once.
COUNT_VOTES_OF_USER = """
SELECT count(*) FROM (SELECT DISTINCT digest, label, time FROM events WHERE user = ?1 AND time BETWEEN ?2 AND ?3 AND label IS NOT NULL
    AND (origin = ?4 OR substr(origin, 1, length(?5)) = ?5) LIMIT ?6)"""

LAST_VOTE_OF_USER = """
SELECT time, origin FROM events WHERE user = ?1 AND label IS NOT NULL AND (origin = ?2 OR substr(origin, 1, length(?3)) = ?3)
ORDER BY time DESC LIMIT 1"""

LAST_TIME_OF_ORIGIN = """
SELECT max(time) FROM events INDEXED BY events_of_users WHERE label IS NOT NULL AND (origin = ?1 OR substr(origin, 1, length(?2)) = ?2)"""

# By the log, not by user.
VOTES_BY_ORIGIN = """
SELECT label, origin, count(*), max(time) FROM events WHERE seq > ? AND seq <= ? AND label IS NOT NULL GROUP BY label, origin"""

# rows are read, up to their large columns
DIGESTS_OF_USER = "SELECT DISTINCT digest FROM events WHERE user = ? AND time >= ?"

# By indexes alone. The + as above.
LATEST_SEQS_OF_USER = """
SELECT seq FROM events AS own WHERE user = ?1 AND label IS NOT NULL AND +seq <= ?2 AND extractor = ?3 AND NOT EXISTS (
    SELECT 1 FROM events AS later WHERE later.digest = own.digest AND later.user = own.user
    AND (later.clock, later.node) > (own.clock, own.node) AND +later.seq <= ?2)
ORDER BY time DESC, digest LIMIT ?4"""

RECEIPTS_BY_SEQ = "SELECT seq, label, packed FROM events WHERE seq IN ({})"

# Each user is found by one step into the index, then the votes of some time: what was cast at other
# times costs nothing.
_WITH_USERS = """
WITH RECURSIVE names (user) AS (
    SELECT min(user) FROM events UNION ALL
    SELECT (SELECT min(user) FROM events WHERE user > names.user) FROM names WHERE names.user IS NOT NULL)
"""
_VOTES_IN_PERIOD = """
FROM names CROSS JOIN events INDEXED BY events_of_users ON events.user = names.user
WHERE (?1 IS NULL OR names.user = ?1) AND events.time >= ?2 AND events.time < ?3 AND label IS NOT NULL"""

VOTES_BY_HOUR = (
    _WITH_USERS
    + "SELECT (events.time - ?2) / 3600, label, count(*)"
    + _VOTES_IN_PERIOD
    + " GROUP BY 1, 2"
)

LATEST_VOTES = (
    _WITH_USERS
    + "SELECT digest, events.user, label, events.time"
    + _VOTES_IN_PERIOD
    + " ORDER BY events.time DESC LIMIT ?4"
)

LAST_TIME_BY_USER = (
    _WITH_USERS
    + "SELECT user, (SELECT max(time) FROM events WHERE events.user = names.user) FROM names WHERE user IS NOT NULL"
)

VOTES_BY_DAY = """
SELECT time / 86400, label, count(*) FROM events INDEXED BY events_of_users WHERE label IS NOT NULL GROUP BY 1, 2"""

SUPERSEDED_BY_DAY = SUPERSEDED_BY_USER.replace("events.user, label", "events.time / 86400, label")

SCORES_AFTER = (
    "SELECT digest, user, label, scores, extractor FROM events WHERE seq > ? ORDER BY seq"
)

USERS_BETWEEN = "SELECT DISTINCT user FROM events WHERE seq > ? AND seq <= ?"

USERS_OF_DIGEST = "SELECT DISTINCT user FROM events WHERE digest = ? ORDER BY user"

EVENTS_OF_KEYS = """
SELECT seq, digest, user, clock, node, label, packed, scores, origin, time, extractor FROM events
WHERE digest >= ? AND digest < ? AND user = '' AND +seq <= ? ORDER BY seq"""

DEFINE_CLASS = "INSERT INTO classes VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET unwanted = excluded.unwanted"

SET_META = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


Query = Callable[[str, tuple[object, ...]], list[tuple[Any, ...]]]
"""Runs a statement; LedgerError."""

_BATCH_DIGESTS = 128  # digests in one statement, or range: some 500 kB of receipts

DigestRange = tuple[bytes, bytes]
"""Digests between two, the first excluded, the last one of them."""


def query_digests(
    ask: Query, statement: str, digests: Sequence[bytes], *more: object
) -> Iterator[tuple[Any, ...]]:
    """Rows of a statement with `IN ({})`; those of one digest are answers to the same one. more:
    values that stand after them.
    """
    for start in range(0, len(digests), _BATCH_DIGESTS):
        some = digests[start : start + _BATCH_DIGESTS]
        yield from ask(statement.format(",".join("?" * len(some))), (*some, *more))


def digest_ranges(ask: Query, *, backwards: bool) -> Iterator[DigestRange]:
    """All digests, in their order or the other way round, some at a time."""
    found = _ascending_ranges(ask)
    return reversed(list(found)) if backwards else found


def _ascending_ranges(ask: Query) -> Iterator[DigestRange]:
    after = b""
    while (last := ask(NEXT_BATCH_END, (after, _BATCH_DIGESTS))[0][0]) is not None:
        yield after, last
        after = last


_REMEDY_BY_CODE = {
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
_READ_ERRORS = (sqlite3.OperationalError, sqlite3.DatabaseError)
"""Without a name of SQLite's: text that is none, and a note that every ledger has. What Python's
own checks raise is of other types.
"""
_MISUSE_REMEDY = (
    "it was used wrongly (closed, used from another thread, or given a value it cannot hold)"
)


def ledger_error(path: Path, error: Exception) -> LedgerError:
    """The error in one line: file, remedy, and in brackets what was reported."""
    if isinstance(error, sqlite3.Error):
        missing = "SQLITE_CORRUPT" if type(error) in _READ_ERRORS else ""
        name = getattr(error, "sqlite_errorname", missing)
        remedy = _REMEDY_BY_CODE.get("_".join(name.split("_")[:2]), _MISUSE_REMEDY)
    elif is_disk_full(error):
        remedy = _REMEDY_BY_CODE["SQLITE_FULL"]
    elif isinstance(error, OSError):
        remedy = "it cannot be opened: check that its directory exists and that this user may read and write both"
    else:
        remedy = _MISUSE_REMEDY
    return LedgerError(f"ledger {path}: {remedy} [{error_text(error)}]")


@contextmanager
def map_ledger_errors(path: Path) -> Iterator[None]:
    """Whatever SQLite, the system or a value that SQLite cannot hold raises inside leaves as a
    LedgerError.
    """
    try:
        yield
    except (sqlite3.Error, OSError, OverflowError, UnicodeError) as error:
        raise ledger_error(path, error) from error


CREATE_USERS_INDEX = (
    "CREATE INDEX IF NOT EXISTS events_of_users ON events (user, time, origin, label)"
)
"""For `users`, some 200 bytes for each receipt."""

SCHEMA_VERSION = 2
"""The number of this schema, `PRAGMA user_version`."""

APPLICATION_ID = 0x7367_6C64  # "sgld" in the file's header, so that `file` and we know whose it is
BUSY_SECONDS = 30

PAGE_BYTES = 16384
# Which page size? 6,000 receipts, log-normal sizes, mean 2,676 bytes; bytes of file per receipt,
# receipts/s (FULL):
#
#     page     bytes    one per transaction    64 per transaction
#     4,096    3,449    5,062                  35,277
#     8,192    3,464    4,115                  36,970
#     16,384   3,228    3,981                  43,462    chosen: the file is the larger cost
#     32,768   3,020    3,991                  44,627    but each small commit writes twice as much as at 16,384

_LOG_SUFFIXES = (
    "-wal",
    "-journal",
)

_CREATE_TABLES = """
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
# The large columns stand last: SQLite reads a row from its front and leaves the pages behind what
# it needs alone. seq needs no AUTOINCREMENT: the row with the highest seq is never deleted
# (`compact`), so no number comes twice.


def open_ledger_file(path: Path, fingerprint: str, *, durable: bool) -> sqlite3.Connection:
    """A checked connection to the ledger at `path`, created when there is none; LedgerError says
    why not.
    """
    with map_ledger_errors(path), as_directory_owner(path.parent):
        left = [name for end in _LOG_SUFFIXES if (name := path.with_name(path.name + end)).exists()]
        if not path.exists():
            # looked for first: whoever creates the ledger meanwhile has made the file before its
            # log
            if left:
                raise LedgerError(
                    f"ledger {path}: it is gone, but its log {left[0]} is not: put the ledger back, or move its log away"
                )
            _create_ledger(path, fingerprint)
        if (
            not path.is_file()
            or not os.access(path, os.R_OK | os.W_OK)
            or not os.access(path.parent, os.W_OK)
        ):
            raise LedgerError(
                f"ledger {path}: it must be a file that this user may read and write, in a directory that it may write"
            )
        db = connect_file(path, BUSY_SECONDS)
        try:
            _check_identity(db, path, fingerprint)
            enable_wal(db)
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        except BaseException:
            db.close()
            raise
        return db


def _create_ledger(path: Path, fingerprint: str) -> None:
    """Not opened in place: closing a descriptor of a file drops the locks that this process's other
    connections hold on it (POSIX advisory locks), and a reader could meet a file without tables.
    """
    create_once(path, lambda draft: _create_tables(draft, fingerprint))
    sync_directory(path.parent)


def _create_tables(draft: Path, fingerprint: str) -> None:
    db = connect_file(draft, BUSY_SECONDS)
    try:
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.executescript(_CREATE_TABLES)
        db.execute(CREATE_USERS_INDEX)
        first = {
            "ledger.fingerprint": fingerprint,
            "ledger.node": secrets.token_hex(8),
            "ledger.clock": "0",
            "ledger.compacted": "0",
        }
        db.executemany("INSERT INTO meta VALUES (?, ?)", first.items())
        enable_wal(db)
    finally:
        db.close()


def _check_identity(db: sqlite3.Connection, path: Path, fingerprint: str) -> None:
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise LedgerError(
            f"ledger {path}: it is not a spamguard ledger: name another path, or move this file away"
        )
    ((version,),) = db.execute("PRAGMA user_version")
    if version != SCHEMA_VERSION:
        raise LedgerError(
            f"ledger {path}: it has schema {version}, this program reads {SCHEMA_VERSION} only: "
            "use the spamguard that wrote it"
        )
    theirs = dict(db.execute("SELECT key, value FROM meta")).get("ledger.fingerprint")
    if theirs is None:
        raise sqlite3.DatabaseError("no ledger.fingerprint")
    if theirs != fingerprint:
        raise LedgerError(
            f"ledger {path}: it was taught with key {theirs}, this installation has {fingerprint}: restore its key from the backup"
        )
