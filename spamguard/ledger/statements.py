"""Every SQL statement on events, in one place to read them together. Text only: must never be put together from values.

Columns come in the order of the fields of `records.Vote`. Where several events match a key, the winning vote comes
first: highest clock, then highest node.
"""

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

TOUCHED = "SELECT 1 FROM events WHERE digest = ? AND +seq > ? AND +seq < ? LIMIT 1"

STANDING_READ_BEFORE = """
SELECT DISTINCT digest FROM events WHERE seq > ? AND seq <= ? AND label IS NOT NULL AND extractor < ? AND NOT EXISTS (
    SELECT 1 FROM events AS later WHERE later.digest = events.digest AND later.user = events.user
    AND (later.clock, later.node) > (events.clock, events.node))"""

EVENTS_BETWEEN = """
SELECT seq, digest, user, clock, node, label, packed, scores, origin, time, extractor FROM events
WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"""

# Votes without features and scores, which then stay on the disk, and without from where and when they were cast: which of them is the
# lesson depends on none of that.
_CAST = "SELECT digest, user, clock, node, label, x'', x'', '', 0, extractor FROM events "

# The + forbids SQLite, whatever statistics it may have, to walk all events up to that seq: it is to look the few digests up.
EARLIER_VOTES_OF_DIGESTS = _CAST + "WHERE digest IN ({}) AND +seq <= ?"

LAST_OF_NEXT_DIGESTS = "SELECT max(digest) FROM (SELECT DISTINCT digest FROM events WHERE digest > ? ORDER BY digest LIMIT ?)"

# By the index alone: which messages in a range have several events.
_SEVERAL = "SELECT digest FROM events WHERE digest > ?1 AND digest <= ?2 AND +seq <= ?3 GROUP BY digest HAVING count(*) > 1"

# What a lesson holds, and its version: less than half of a vote's columns, as nearly always the only vote is the lesson.
LESSONS_OF_DIGESTS = f"""
SELECT digest, label, packed, scores, extractor FROM events
WHERE digest > ?1 AND digest <= ?2 AND +seq <= ?3 AND digest NOT IN ({_SEVERAL})"""  # noqa: S608

# The votes on the others.
EVENTS_OF_DIGESTS = _CAST + f"WHERE digest IN ({_SEVERAL}) AND +seq <= ?3 ORDER BY digest"

# One walk along the file: in the order of digests every row would be a page of its own.
LABELS_OF_EVENTS = """
SELECT label, count(*) FROM events WHERE seq <= :upto AND label IS NOT NULL AND (:extractor IS NULL OR extractor = :extractor)
GROUP BY label"""

DIGESTS_OF_SEVERAL_EVENTS = "SELECT digest FROM events WHERE +seq <= ?1 GROUP BY digest HAVING count(*) > 1"
VOTES_OF_SEVERAL_EVENTS = _CAST + f"WHERE +seq <= ?1 AND digest IN ({DIGESTS_OF_SEVERAL_EVENTS}) ORDER BY digest"

# Without features.
SCORES_BETWEEN = "SELECT seq, digest, label, scores, extractor FROM events WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"

VOTES_OF_DIGEST = "SELECT digest, user, clock, node, label, x'', scores, '', 0, extractor FROM events WHERE digest = ?"

SEQS_OF_KEY = "SELECT seq FROM events WHERE digest = ? AND user = ?"

VOTES_OF_DIGESTS = _CAST + "WHERE digest IN ({}) ORDER BY digest"

# Of a digest with one event, as nearly all have, its label is that of the lesson.
LABELS_OF_DIGESTS_BETWEEN = """
SELECT digest, max(label), count(*) FROM events WHERE digest IN (SELECT digest FROM events WHERE seq > ? AND seq <= ?) GROUP BY digest"""

# The row with the highest seq stays whatever it is, or SQLite would give its number again. Keys of several events are found in
# the index alone, so that all others are not even read.
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

# By user, found in the index `events_of_users` alone unless said otherwise. Two values tell a place: what the origin is, or begins with.
LABELS_BY_USER = "SELECT user, label, count(*) FROM events INDEXED BY events_of_users WHERE label IS NOT NULL GROUP BY user, label"

# Keys of several events, hardly ever many, are found in the index of keys.
SUPERSEDED_BY_USER = """
SELECT events.user, label, count(*) FROM (SELECT digest, user FROM events GROUP BY digest, user HAVING count(*) > 1) AS several
CROSS JOIN events ON events.digest = several.digest AND events.user = several.user
WHERE label IS NOT NULL AND EXISTS (
    SELECT 1 FROM events AS later WHERE later.digest = events.digest AND later.user = events.user
    AND (later.clock, later.node) > (events.clock, events.node)) GROUP BY events.user, label"""

# Of one vote that was cast anew, with its own time (`renewal`, `undo`), once.
CAST_BY_USER = """
SELECT count(*) FROM (SELECT DISTINCT digest, label, time FROM events WHERE user = ?1 AND time BETWEEN ?2 AND ?3 AND label IS NOT NULL
    AND (origin = ?4 OR substr(origin, 1, length(?5)) = ?5) LIMIT ?6)"""

LAST_OF_USER = """
SELECT time, origin FROM events WHERE user = ?1 AND label IS NOT NULL AND (origin = ?2 OR substr(origin, 1, length(?3)) = ?3)
ORDER BY time DESC LIMIT 1"""

LAST_OF_PLACES = """
SELECT max(time) FROM events INDEXED BY events_of_users WHERE label IS NOT NULL AND (origin = ?1 OR substr(origin, 1, length(?2)) = ?2)"""

# By the log, not by user.
TAUGHT_BETWEEN = """
SELECT label, origin, count(*), max(time) FROM events WHERE seq > ? AND seq <= ? AND label IS NOT NULL GROUP BY label, origin"""

DIGESTS_OF_USER = "SELECT DISTINCT digest FROM events WHERE user = ? AND time >= ?"  # rows are read, up to their large columns

# By indexes alone. The + as above.
LATEST_OF_USER = """
SELECT seq FROM events AS own WHERE user = ?1 AND label IS NOT NULL AND +seq <= ?2 AND extractor = ?3 AND NOT EXISTS (
    SELECT 1 FROM events AS later WHERE later.digest = own.digest AND later.user = own.user
    AND (later.clock, later.node) > (own.clock, own.node) AND +later.seq <= ?2)
ORDER BY time DESC, digest LIMIT ?4"""

RECEIPTS = "SELECT seq, label, packed FROM events WHERE seq IN ({})"

# Each user is found by one step into the index, then the votes of some time: what was cast at other times costs nothing.
_USERS = """
WITH RECURSIVE names (user) AS (
    SELECT min(user) FROM events UNION ALL
    SELECT (SELECT min(user) FROM events WHERE user > names.user) FROM names WHERE names.user IS NOT NULL)
"""
_AT_SOME_TIME = """
FROM names CROSS JOIN events INDEXED BY events_of_users ON events.user = names.user
WHERE (?1 IS NULL OR names.user = ?1) AND events.time >= ?2 AND events.time < ?3 AND label IS NOT NULL"""

CAST_BY_HOUR = _USERS + "SELECT (events.time - ?2) / 3600, label, count(*)" + _AT_SOME_TIME + " GROUP BY 1, 2"

CAST_LATELY = _USERS + "SELECT digest, events.user, label, events.time" + _AT_SOME_TIME + " ORDER BY events.time DESC LIMIT ?4"

LAST_BY_USER = _USERS + "SELECT user, (SELECT max(time) FROM events WHERE events.user = names.user) FROM names WHERE user IS NOT NULL"  # noqa: S608

CAST_BY_DAY = """
SELECT time / 86400, label, count(*) FROM events INDEXED BY events_of_users WHERE label IS NOT NULL GROUP BY 1, 2"""

SUPERSEDED_BY_DAY = SUPERSEDED_BY_USER.replace("events.user, label", "events.time / 86400, label")

SCORES_AFTER = "SELECT digest, user, label, scores, extractor FROM events WHERE seq > ? ORDER BY seq"

USERS_BETWEEN = "SELECT DISTINCT user FROM events WHERE seq > ? AND seq <= ?"

USERS_OF_DIGEST = "SELECT DISTINCT user FROM events WHERE digest = ? ORDER BY user"

EVENTS_OF_KEYS = """
SELECT seq, digest, user, clock, node, label, packed, scores, origin, time, extractor FROM events
WHERE digest >= ? AND digest < ? AND user = '' AND +seq <= ? ORDER BY seq"""

DEFINE_CLASS = "INSERT INTO classes VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET unwanted = excluded.unwanted"

SET_META = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
