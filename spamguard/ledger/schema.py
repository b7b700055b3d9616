"""The SQLite file of a ledger: its tables, and every statement on them.

Three tables: `events` holds the votes in the order in which they were committed, `classes` the
classes, and `meta` short texts. Columns come in the order of the fields of `records.Vote`. Where
several events match a key, the winning vote comes first: highest clock, then highest node. A `+`
before a column forbids SQLite to use an index on it, whatever statistics it may have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spamguard.database import Schema
from spamguard.errors import LedgerError
from spamguard.ledger.votes import SENDER_VERSION
from spamguard.users import Origin

# ---- the file

SCHEMA_VERSION = 2
PAGE_BYTES = 16384
# 6,000 receipts, log-normal sizes, mean 2,676 bytes; bytes of file per receipt, receipts/s (FULL):
#
#     page     bytes    one per transaction    64 per transaction
#     4,096    3,449    5,062                  35,277
#     8,192    3,464    4,115                  36,970
#     16,384   3,228    3,981                  43,462    chosen: the file is the larger cost
#     32,768   3,020    3,991                  44,627    but small commits write twice as much
LOG_SUFFIXES = ("-wal", "-journal")
LAST_SUFFIX = "-last"
"""Of the name of the file that has the number of a ledger's last event."""

LEDGER_SCHEMA = Schema(
    kind="ledger",
    error=LedgerError,
    application_id=0x7367_6C64,  # "sgld"
    version=SCHEMA_VERSION,
    # The large columns stand last: SQLite reads a row from its front and leaves the pages behind
    # the last column that it needs alone. seq needs no AUTOINCREMENT: the row with the highest seq
    # is never deleted, so no number comes twice. The index is for `UserQueries`; it takes some 200
    # bytes for each receipt.
    tables="""
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
CREATE INDEX events_of_users ON events (user, time, origin, label);
""",
    pragmas=(f"page_size = {PAGE_BYTES}",),
    busy_seconds=30.0,
    damage_remedy="restore it from a backup",
    foreign_remedy="name another path, or move this file away",
)


# ---- statements

Query = Callable[[str, tuple[object, ...]], list[tuple[Any, ...]]]
"""Runs a statement; LedgerError."""

_COLUMNS = "digest, user, clock, node, label, packed, scores, origin, time, extractor"
_IN_ORDER = "ORDER BY clock DESC, node DESC"

# Another vote of the same key wins.
_IS_SUPERSEDED = """EXISTS (
    SELECT 1 FROM events AS later WHERE later.digest = events.digest AND later.user = events.user
    AND (later.clock, later.node) > (events.clock, events.node))"""

# Votes in force about messages. Keys of several events are few, and are found in the index of keys.
_IS_IN_FORCE = f"""(substr(label, 1, 1) <> '(' AND +seq NOT IN (
    SELECT events.seq
    FROM (SELECT digest, user FROM events GROUP BY digest, user HAVING count(*) > 1) AS several
    CROSS JOIN events ON events.digest = several.digest AND events.user = several.user
    WHERE {_IS_SUPERSEDED}))"""

# A tombstone of ageing.
_IS_AGEING = f"(label IS NULL AND origin = '{Origin.AGEING}')"

PROVISIONAL = 2**62
"""Numbers of events without a position in the shared log are from this one on."""
LAST = 2**63 - 1
"""The highest number of an event."""

INSERT_VOTE = f"""
INSERT INTO events ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (digest, user, clock, node) DO NOTHING"""

# In a joined ledger what has no position counts while the log is away only.
LAST_SEQ = f"""
SELECT max(
    (SELECT coalesce(max(seq), 0) FROM events WHERE seq < CASE
        (SELECT value FROM meta WHERE key = 'ledger.away')
        WHEN '' THEN {PROVISIONAL} ELSE {LAST} END),
    coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'ledger.position'), 0))"""
NEXT_STEP = """
SELECT coalesce(max(seq), ?1) FROM (
    SELECT seq FROM events WHERE seq > ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3)"""
LAST_TIME = "SELECT coalesce((SELECT time FROM events ORDER BY seq DESC LIMIT 1), 0)"
FILE_BYTES = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"

STANDING_LABEL = (
    f"SELECT label, extractor FROM events WHERE digest = ? AND user = ? {_IN_ORDER} LIMIT 1"
)
LAST_WORD = f"""
SELECT seq, clock FROM events
WHERE digest = ? AND user = ? AND NOT {_IS_AGEING} {_IN_ORDER} LIMIT 1"""
VOTES_OF_KEY = f"SELECT {_COLUMNS} FROM events WHERE digest = ? AND user = ? {_IN_ORDER}"
VOTES_ON_MESSAGE = f"""
SELECT {_COLUMNS} FROM events
WHERE digest = ? AND label IS NOT NULL AND NOT {_IS_SUPERSEDED} ORDER BY user"""
VOTE_OF_VERSION = f"""
SELECT {_COLUMNS} FROM events WHERE digest = ? AND user = ? AND clock = ? AND node = ?"""
EVENT_BETWEEN = "SELECT 1 FROM events WHERE digest = ? AND +seq > ? AND +seq < ? LIMIT 1"

DIGEST_BETWEEN = "SELECT 1 FROM events WHERE digest >= ? AND digest < ? LIMIT 1"

DEFINE_CLASS = """
INSERT INTO classes VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET unwanted = excluded.unwanted"""
FINGERPRINT = "SELECT max(value) FROM meta WHERE key = 'ledger.fingerprint'"
META_VALUE = "SELECT value FROM meta WHERE key = ?"
SET_META = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
# Those of tables hold numbers of events: joining gives every event another number.
DROP_NUMBERED_NOTES = "DELETE FROM meta WHERE key GLOB 'tables.*'"
DROP_META = "DELETE FROM meta WHERE key IN (SELECT value FROM json_each(?))"

# A joined ledger (`shared.SharedLog`).

# AUTOINCREMENT: a number of a provisional event never comes twice, so what readers have noted of
# one never means another. The index holds all that is counted, so rows need not be read for that.
# body: only of a row whose event stands in `events` otherwise, or no more.
JOINED_TABLES = (
    """
CREATE TABLE pending (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    subject BLOB NOT NULL,
    clock INTEGER NOT NULL,
    node TEXT NOT NULL,
    content BLOB NOT NULL,
    time INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    body BLOB,
    UNIQUE (subject, clock, node, content, bytes)
)""",
    "CREATE TABLE marks (position INTEGER PRIMARY KEY, chain BLOB NOT NULL)",
    f"INSERT INTO sqlite_sequence (name, seq) VALUES ('pending', {PROVISIONAL - 1})",
)
LEAVE = (
    "DROP TABLE pending",
    "DROP TABLE marks",
    """DELETE FROM meta WHERE key IN (
    'ledger.position', 'ledger.generation', 'ledger.away', 'ledger.joining',
    'ledger.server')""",
)
HAS_JOINED = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'pending'"

INSERT_EVENT = f"""
INSERT INTO events (seq, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
EVENT_OF_VERSION = f"""
SELECT seq, {_COLUMNS} FROM events WHERE digest = ? AND user = ? AND clock = ? AND node = ?"""

INSERT_PENDING = """
INSERT INTO pending (subject, clock, node, content, time, bytes) VALUES (?, ?, ?, ?, ?, ?)"""
INSERT_PENDING_AT = """
INSERT INTO pending (seq, subject, clock, node, content, time, bytes)
VALUES (?, ?, ?, ?, ?, ?, ?)"""
PENDING_IDENTITY = """
SELECT seq FROM pending WHERE subject = ? AND clock = ? AND node = ? AND content = ?"""
LAST_POSITION_OF_DIGEST = f"""
SELECT coalesce(max(seq), 0) FROM events WHERE digest = ? AND +seq < {PROVISIONAL}"""
WAITING = "SELECT count(*), (SELECT time FROM pending ORDER BY seq LIMIT 1) FROM pending"
OLDEST_PENDING = f"""
SELECT subject, pending.clock, pending.node, content, pending.time, body, events.*
FROM pending LEFT JOIN (SELECT seq, {_COLUMNS} FROM events) AS events USING (seq)
ORDER BY pending.seq LIMIT ?"""

LOG_STATE = """
SELECT CAST(generation.value AS INTEGER), away.value, coalesce(position, 0), coalesce(chain, x'00')
FROM meta AS generation, meta AS away
LEFT JOIN (SELECT position, chain FROM marks ORDER BY position DESC LIMIT 1) ON true
WHERE generation.key = 'ledger.generation' AND away.key = 'ledger.away'"""
MARKS = "SELECT position, chain FROM marks ORDER BY position DESC"
MARK_AT = "SELECT chain FROM marks WHERE position = ?"
PRUNE_MARKS = "DELETE FROM marks WHERE position > ? AND position <= ? AND position % ? != 0"
MOVE_EVENTS = "UPDATE events SET seq = seq + ? WHERE seq BETWEEN ? AND ?"
MOVE_PENDING = "UPDATE pending SET seq = seq + ?"
RESERVE_NUMBERS = """
UPDATE sqlite_sequence SET seq = max(?, (SELECT coalesce(max(seq), 0) FROM pending))
WHERE name = 'pending'"""

# Along the log.

EVENTS_BETWEEN = f"""
SELECT seq, {_COLUMNS} FROM events WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"""


USERS_BETWEEN = "SELECT DISTINCT user FROM events WHERE seq > ? AND seq <= ?"

VOTES_BY_ORIGIN = """
SELECT label, origin, count(*), max(time) FROM events
WHERE seq > ? AND seq <= ? AND substr(label, 1, 1) <> '(' GROUP BY label, origin"""

OUTDATED_DIGESTS = f"""
SELECT DISTINCT digest FROM events
WHERE seq > ? AND seq <= ? AND label IS NOT NULL AND extractor < ? AND NOT {_IS_SUPERSEDED}"""

EVENTS_OF_KEYS = f"""
SELECT seq, {_COLUMNS} FROM events
WHERE digest >= ? AND digest < ? AND user = '' AND +seq <= ? ORDER BY seq"""

# Lessons. Which vote decides does not depend on features, scores, origin and time, so these stay on
# the disk.

_SELECT_BARE_VOTE = (
    "SELECT digest, user, clock, node, label, x'', x'', '', 0, extractor FROM events"
)
EARLIER_VOTES_OF_DIGESTS = f"{_SELECT_BARE_VOTE} WHERE digest IN ({{}}) AND +seq <= ?"
VOTES_OF_DIGESTS = f"{_SELECT_BARE_VOTE} WHERE digest IN ({{}}) ORDER BY digest"

NEXT_BATCH_END = """
SELECT max(digest) FROM (
    SELECT DISTINCT digest FROM events WHERE digest > ? ORDER BY digest LIMIT ?)"""

VOTES_OF_RANGE = f"""
SELECT {_COLUMNS} FROM events WHERE digest > ? AND digest <= ? AND +seq <= ? ORDER BY digest"""

# Nearly every message has one event, whose label is that of its lesson. One walk along the file: in
# the order of digests every row would be a page of its own.
LABELS_OF_SINGLE_EVENTS = """
SELECT label, count(*) FROM events
WHERE seq <= :upto AND substr(label, 1, 1) <> '('
AND (:extractor IS NULL OR extractor = :extractor) AND NOT EXISTS (
    SELECT 1 FROM events AS other
    WHERE other.digest = events.digest AND +other.seq <= :upto AND +other.seq <> events.seq)
GROUP BY label"""

VOTES_OF_SEVERAL_EVENTS = f"""
{_SELECT_BARE_VOTE} WHERE +seq <= :upto AND extractor < {SENDER_VERSION} AND digest IN (
    SELECT digest FROM events WHERE +seq <= :upto GROUP BY digest HAVING count(*) > 1)
ORDER BY digest"""

DIGESTS_BETWEEN = f"""
SELECT DISTINCT digest FROM events WHERE seq > ? AND seq <= ? AND extractor < {SENDER_VERSION}"""

# The first scores of messages.

FIRST_SCORES = f"""
SELECT scores FROM events
WHERE digest = ? AND extractor = ? AND label IS NOT NULL AND NOT {_IS_SUPERSEDED}
ORDER BY clock, node, user LIMIT 1"""

# Compaction. The row with the highest seq stays, or SQLite would give its number again. Keys of
# several events are found in the index alone, so other rows are not even read. In a joined ledger
# an event stays that only another vote of its version supersedes: a third one has to find it.
DROP_SUPERSEDED = """
DELETE FROM events WHERE seq <= :upto AND seq < (SELECT max(seq) FROM events) AND digest IN (
    SELECT digest FROM events GROUP BY digest, user HAVING count(*) > 1) AND EXISTS (
    SELECT 1 FROM events AS later WHERE later.digest = events.digest AND later.user = events.user
    AND (later.clock, later.node) > (events.clock, events.node) AND later.seq <= :upto
    AND NOT (:joined AND later.clock = events.clock
        AND substr(later.node, 1, length(events.node) + 1) = events.node || '+')
    AND (:before IS NULL OR later.time < :before OR (
        (later.label, later.origin, later.time) = (events.label, events.origin, events.time)
        AND later.extractor > events.extractor AND NOT EXISTS (
            SELECT 1 FROM events AS middle
            WHERE middle.digest = events.digest AND middle.user = events.user
            AND (middle.clock, middle.node) > (events.clock, events.node)
            AND (middle.clock, middle.node) < (later.clock, later.node)))))"""

# What has aged goes once all events of its key are folded: nothing is in force without the
# tombstone either. The index of users finds these, that of keys the other events.
DROP_AGED = f"""
DELETE FROM events WHERE (digest, user) IN (
    SELECT digest, user FROM events AS aged INDEXED BY events_of_users
    WHERE {_IS_AGEING} AND (:before IS NULL OR time < :before) AND NOT EXISTS (
        SELECT 1 FROM events AS other
        WHERE other.digest = aged.digest AND other.user = aged.user
        AND (other.seq > min(:upto, (SELECT max(seq) FROM events) - 1)
            OR (other.clock, other.node) > (aged.clock, aged.node))))"""

# By user, in the index `events_of_users` alone unless a comment says otherwise.

LESSONS_BY_USER = f"""
SELECT user, label, count(*) FROM events INDEXED BY events_of_users
WHERE {_IS_IN_FORCE} GROUP BY user, label"""

# Votes in force about messages, by the two indexes alone: those that do not count for their user
# alone before the others, then the oldest first. Votes of one hour are as old as each other, and
# their order is as good as random: so the classes of an import, taught one after the other, grow
# old together.
OLDEST_VOTES = f"""
SELECT events.digest, events.user, events.extractor
FROM (
    SELECT seq, row_number() OVER (
        ORDER BY user <> '' AND place <= ?3, time / 3600,
            (seq % 1073741824 * 2654435761) & 4294967295) AS turn
    FROM (
        SELECT seq, user, time,
            row_number() OVER (PARTITION BY user ORDER BY time DESC, seq DESC) AS place
        FROM events INDEXED BY events_of_users
        WHERE {_IS_IN_FORCE} AND +seq <= ?1)
    WHERE ?2 IS NULL OR time < ?2
    ORDER BY turn LIMIT ?4) AS oldest
CROSS JOIN events ON events.seq = oldest.seq ORDER BY turn"""

KEPT = f"""SELECT
    (SELECT min(time) FROM events INDEXED BY events_of_users WHERE {_IS_IN_FORCE}),
    (SELECT count(*) FROM events INDEXED BY events_of_users WHERE {_IS_AGEING})"""

_HAS_ORIGIN = "substr(origin || ' ', 1, length({0}) + 1) = {0} || ' '"

# A vote that was cast again with its own time (`learning.undo`) counts once.
COUNT_VOTES_OF_USER = f"""
SELECT count(*) FROM (
    SELECT DISTINCT digest, label, time FROM events
    WHERE user = ?1 AND time BETWEEN ?2 AND ?3 AND label IS NOT NULL
    AND {_HAS_ORIGIN.format("?4")} LIMIT ?5)"""

LAST_VOTE_OF_USER = f"""
SELECT time, origin FROM events
WHERE user = ?1 AND label IS NOT NULL AND {_HAS_ORIGIN.format("?2")}
ORDER BY time DESC LIMIT 1"""

LAST_TIME_OF_ORIGINS = f"""
SELECT max(time) FROM events INDEXED BY events_of_users
WHERE label IS NOT NULL AND EXISTS (
    SELECT 1 FROM json_each(?) WHERE {_HAS_ORIGIN.format("value")})"""

# Rows are read, up to their large columns.
DIGESTS_OF_USER = f"""
SELECT DISTINCT digest FROM events WHERE user = ? AND time >= ? AND NOT {_IS_AGEING}"""

# A node of copies of its files has a name behind its own (`arriving.with_unique_node`).
KEYS_OF_NODE = """
SELECT DISTINCT user, digest FROM events
WHERE substr(node || '+', 1, length(?1) + 1) = ?1 || '+' AND time >= ?2
ORDER BY user, digest"""

LATEST_SEQS_OF_USER = """
SELECT seq FROM events AS own
WHERE user = ?1 AND label IS NOT NULL AND +seq <= ?2 AND extractor = ?3 AND NOT EXISTS (
    SELECT 1 FROM events AS later WHERE later.digest = own.digest AND later.user = own.user
    AND (later.clock, later.node) > (own.clock, own.node) AND +later.seq <= ?2)
ORDER BY time DESC, digest LIMIT ?4"""

RECEIPTS_BY_SEQ = """
SELECT seq, label, packed FROM events WHERE seq IN (SELECT value FROM json_each(?))"""

# One step into the index finds each user, then the votes of a period: other votes cost nothing.
_WITH_USERS = """
WITH RECURSIVE names (user) AS (
    SELECT min(user) FROM events UNION ALL
    SELECT (SELECT min(user) FROM events WHERE user > names.user) FROM names
    WHERE names.user IS NOT NULL)
"""
_VOTES_IN_PERIOD = """
FROM names CROSS JOIN events INDEXED BY events_of_users ON events.user = names.user
WHERE (?1 IS NULL OR names.user = ?1) AND events.time >= ?2 AND events.time < ?3
AND substr(label, 1, 1) <> '('
"""

VOTES_BY_HOUR = f"""{_WITH_USERS}
SELECT (events.time - ?2) / 3600, count(*) {_VOTES_IN_PERIOD} GROUP BY 1"""

LAST_TIME_BY_USER = f"""{_WITH_USERS}
SELECT user, (
    SELECT max(time) FROM events WHERE events.user = names.user AND NOT {_IS_AGEING}) AS last
FROM names WHERE last IS NOT NULL"""
