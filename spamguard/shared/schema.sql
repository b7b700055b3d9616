-- The shared log: what `spamguard shared init` makes in the operator's database, and what
-- `spamguard shared upgrade` brings up to date. It may run any number of times. The role
-- spamguard_node must exist.
--
-- One row of `log` gives every event its position. Whoever appends locks that row, so positions are
-- 1, 2, 3 … without a hole, in the order of commits, and a reader that has all positions up to one
-- proves that it has missed nothing. `chain` is a hash over all identities up to a position: equal
-- chains are equal logs.
--
-- Nodes may read everything, and change it only by the functions below, once they have shown that
-- they know the installation's key (`require_key`). A function checks what it is told, takes one
-- lock and is one transaction. Nothing but `compact` deletes an event. No function puts a statement
-- together, and each names its own search path. What is in a row, nodes believe by its `mac` only,
-- which nobody can check here.
--
-- Only what other engines that speak PostgreSQL's language have too: row locks, unique keys, bytea.

CREATE SCHEMA IF NOT EXISTS spamguard;
REVOKE ALL ON SCHEMA spamguard FROM PUBLIC;
SET search_path = spamguard, pg_temp;

-- ---- tables

CREATE TABLE IF NOT EXISTS cluster (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    name uuid NOT NULL,
    schema_version integer NOT NULL,
    min_writer integer NOT NULL,         -- the oldest program, by its schema version, that may write
    fingerprint text NOT NULL,           -- of the installation's key, which is never here
    secret bytea NOT NULL,               -- SHA-256 of what proves that a node has the key
    bits integer NOT NULL,
    changes bigint NOT NULL DEFAULT 0    -- of credentials
);

CREATE TABLE IF NOT EXISTS log (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    last bigint NOT NULL DEFAULT 0,
    chain bytea NOT NULL DEFAULT '\x00',
    compacted bigint NOT NULL DEFAULT 0, -- up to here events may have been deleted
    events bigint NOT NULL DEFAULT 0,    -- how many there are
    clock bigint NOT NULL DEFAULT 0      -- the highest of all
) WITH (fillfactor = 10);                -- its one row changes all the time
INSERT INTO log DEFAULT VALUES ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS events (
    position bigint PRIMARY KEY,
    subject bytea NOT NULL,              -- keyed hash of message and user
    clock bigint NOT NULL,
    node text COLLATE "C" NOT NULL,      -- in the order of its bytes, as on every node
    content bytea NOT NULL,              -- the first 16 bytes of the hash of body
    time bigint NOT NULL,
    chain bytea NOT NULL,
    body bytea NOT NULL,                 -- the vote
    mac bytea NOT NULL,
    added bigint NOT NULL DEFAULT extract(epoch FROM clock_timestamp())::bigint, -- by our clock
    UNIQUE (subject, clock, node, content, mac) -- a wrong MAC is in nobody's way
);
ALTER TABLE events ALTER COLUMN body SET STORAGE EXTERNAL; -- bodies do not compress

-- Versions 1 and 2 had these, when one node settled for all.
DROP TABLE IF EXISTS snapshots, chunks, leases;
DROP FUNCTION IF EXISTS take_lease(text, text, integer), release_lease(text, bigint),
    holds_lease(text, bigint), put_chunk(bytea, integer, bytea), publish_snapshot(
        bigint, integer, integer, bytea, bigint, text, text, bytea, bigint),
    compact(bigint, bigint, bigint, bigint, bigint),
    note_node(text, text, text, text, integer, integer, bigint, bytea, bigint, bytea, bytea);

CREATE TABLE IF NOT EXISTS nodes (
    node text PRIMARY KEY,
    name text NOT NULL,
    url text NOT NULL,
    program text NOT NULL,
    extractor integer NOT NULL,
    learner integer NOT NULL,
    position bigint NOT NULL,
    chain bytea NOT NULL,
    waiting bigint NOT NULL,
    settings bytea NOT NULL,
    mac bytea NOT NULL,
    seen timestamptz NOT NULL,
    settled bigint NOT NULL DEFAULT 0,   -- the last position that its settled tables hold
    tables bytea NOT NULL DEFAULT ''     -- the hash of these
) WITH (fillfactor = 50);
ALTER TABLE nodes ADD COLUMN IF NOT EXISTS settled bigint NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN IF NOT EXISTS tables bytea NOT NULL DEFAULT '';

CREATE TABLE IF NOT EXISTS credentials (
    id text PRIMARY KEY,
    kind text NOT NULL,
    digest bytea NOT NULL,
    name text NOT NULL,
    person text NOT NULL,
    operator boolean NOT NULL,
    created bigint NOT NULL,
    expires bigint NOT NULL,
    seen bigint NOT NULL,
    ended bigint NOT NULL DEFAULT 0,     -- seconds since 1970; 0: it is valid
    changed bigint NOT NULL UNIQUE,      -- the number of its last change
    mac bytea NOT NULL                   -- of what stands before `seen`
);

-- ---- who may call

-- The password of the nodes' role is not enough to change anything: whoever calls a function below
-- must have said, on this connection, a secret that only the installation's key gives.
CREATE OR REPLACE FUNCTION require_key() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = spamguard, pg_temp AS $$
BEGIN
    IF (SELECT secret FROM cluster)
        = sha256(convert_to(current_setting('spamguard.secret', true), 'UTF8')) THEN
        RETURN;
    END IF;
    RAISE EXCEPTION 'this connection has not shown the key of the installation'
        USING ERRCODE = 'insufficient_privilege';
END $$;

-- ---- the log

-- The position of each event. An event that is there already keeps its position, so a client that
-- does not know whether a call succeeded calls again. A clock that is far above all others would
-- leave no number to those that come after it.
CREATE OR REPLACE FUNCTION append(
    subjects bytea[], clocks bigint[], nodes text[], contents bytea[], times bigint[],
    bodies bytea[], macs bytea[]
) RETURNS TABLE (ordinal integer, place bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = spamguard, pg_temp AS $$
DECLARE
    total integer := coalesce(array_length(subjects, 1), 0);
    head log%ROWTYPE;
    link bytea;
    added integer := 0;
BEGIN
    PERFORM require_key();
    IF total NOT BETWEEN 1 AND 1000 OR array_ndims(subjects) <> 1
        OR (array_length(clocks, 1) = total AND array_length(nodes, 1) = total
            AND array_length(contents, 1) = total AND array_length(times, 1) = total
            AND array_length(bodies, 1) = total AND array_length(macs, 1) = total) IS NOT TRUE THEN
        RAISE EXCEPTION 'append: not 1 to 1,000 events' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR i IN 1 .. total LOOP
        IF (octet_length(subjects[i]) = 16 AND clocks[i] > 0 AND times[i] >= 0
            AND octet_length(nodes[i]) BETWEEN 1 AND 255
            AND octet_length(bodies[i]) BETWEEN 1 AND 1048576 AND octet_length(macs[i]) = 16
            AND contents[i] = substr(sha256(bodies[i]), 1, 16)) IS NOT TRUE THEN
            RAISE EXCEPTION 'append: event % is too large or damaged', i
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END LOOP;
    SELECT * INTO STRICT head FROM log FOR UPDATE;
    FOR i IN 1 .. total LOOP
        IF clocks[i] - head.clock > 4294967296 THEN
            RAISE EXCEPTION 'append: event % has a clock far above all others', i
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        head.clock := greatest(head.clock, clocks[i]);
        link := sha256(head.chain || subjects[i] || int8send(clocks[i])
            || convert_to(nodes[i], 'UTF8') || contents[i]);
        INSERT INTO events (position, subject, clock, node, content, time, chain, body, mac)
            VALUES (head.last + 1, subjects[i], clocks[i], nodes[i], contents[i], times[i], link,
                bodies[i], macs[i])
            ON CONFLICT (subject, clock, node, content, mac) DO NOTHING;
        IF FOUND THEN
            head.last := head.last + 1;
            head.chain := link;
            added := added + 1;
            place := head.last;
        ELSE
            SELECT e.position INTO STRICT place FROM events e
                WHERE e.subject = subjects[i] AND e.clock = clocks[i] AND e.node = nodes[i]
                AND e.content = contents[i] AND e.mac = macs[i];
        END IF;
        ordinal := i;
        RETURN NEXT;
    END LOOP;
    IF added > 0 THEN
        UPDATE log SET last = head.last, chain = head.chain, events = log.events + added,
            clock = head.clock;
    END IF;
END $$;

-- ---- compacting

-- Of the events in a range of positions, delete those that a later vote of the same key supersedes,
-- where that vote stands up to `upto`, is older than `before` (seconds since 1970) and has been here
-- for 30 days, whatever time it claims; and tombstones of ageing as old as that of whose key nothing
-- else is left. Returns how many.
CREATE OR REPLACE FUNCTION compact(
    range_start bigint, range_end bigint, upto bigint, before bigint
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = spamguard, pg_temp AS $$
DECLARE
    month_ago bigint := extract(epoch FROM clock_timestamp())::bigint - 30 * 86400;
    head log%ROWTYPE;
    dropped bigint;
    aged bigint;
BEGIN
    PERFORM require_key();
    SELECT * INTO STRICT head FROM log FOR UPDATE;
    IF (range_start <= range_end AND range_end <= upto AND upto <= head.last) IS NOT TRUE THEN
        RAISE EXCEPTION 'compact: bad positions' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    DELETE FROM events e WHERE e.position BETWEEN range_start AND range_end AND EXISTS (
        SELECT 1 FROM events l WHERE l.subject = e.subject AND l.position <= upto
        AND (l.clock, l.node) > (e.clock, e.node) AND l.time < before AND l.added < month_ago);
    GET DIAGNOSTICS dropped = ROW_COUNT;
    -- A body is: format, clock, time, extractor; lengths of digest, user, node, label (-1: none),
    -- features, scores and origin; these.
    DELETE FROM events e WHERE e.position BETWEEN range_start AND range_end
        AND e.time < before AND e.added < month_ago
        AND octet_length(e.body) < 4096 AND substr(e.body, 1, 1) = '\x01'
        AND substr(e.body, 38, 4) = '\xffffffff' AND substr(e.body, 50, 4) = '\x00000006'
        AND substr(e.body, octet_length(e.body) - 5) = convert_to('ageing', 'UTF8')
        AND NOT EXISTS (
            SELECT 1 FROM events o WHERE o.subject = e.subject AND o.position <> e.position);
    GET DIAGNOSTICS aged = ROW_COUNT;
    UPDATE log SET compacted = greatest(log.compacted, range_end),
        events = log.events - dropped - aged;
    RETURN dropped + aged;
END $$;

-- ---- nodes

CREATE OR REPLACE FUNCTION note_node(
    id text, its_name text, its_url text, its_program text, its_extractor integer,
    its_learner integer, its_position bigint, its_chain bytea, its_waiting bigint,
    its_settings bytea, its_settled bigint, its_tables bytea, its_mac bytea
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = spamguard, pg_temp AS $$
BEGIN
    PERFORM require_key();
    IF (octet_length(id) BETWEEN 1 AND 255 AND octet_length(its_name) <= 255
        AND octet_length(its_url) <= 2000 AND octet_length(its_program) <= 255
        AND octet_length(its_chain) <= 32 AND octet_length(its_settings) <= 64
        AND octet_length(its_tables) <= 32
        AND octet_length(its_mac) = 16) IS NOT TRUE THEN
        RAISE EXCEPTION 'note_node: too long' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO nodes (node, name, url, program, extractor, learner, position, chain, waiting,
            settings, settled, tables, mac, seen)
        VALUES (id, its_name, its_url, its_program, its_extractor, its_learner, its_position,
            its_chain, its_waiting, its_settings, its_settled, its_tables, its_mac,
            clock_timestamp())
        ON CONFLICT (node) DO UPDATE SET
            name = excluded.name, url = excluded.url, program = excluded.program,
            extractor = excluded.extractor, learner = excluded.learner,
            position = excluded.position, chain = excluded.chain, waiting = excluded.waiting,
            settings = excluded.settings, settled = excluded.settled, tables = excluded.tables,
            mac = excluded.mac, seen = excluded.seen;
    DELETE FROM nodes WHERE seen < clock_timestamp() - interval '30 days';
END $$;

CREATE OR REPLACE FUNCTION forget_node(id text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = spamguard, pg_temp AS $$
    SELECT require_key();
    DELETE FROM nodes WHERE node = id;
$$;

-- ---- credentials
-- Each change gets the next number, under the lock of the row that counts them: a reader that asks
-- for what came after a number misses nothing. What has ended stays, so that every node hears of it.

CREATE OR REPLACE FUNCTION next_change() RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = spamguard, pg_temp AS $$
    UPDATE cluster SET changes = changes + 1 RETURNING changes;
$$;

-- Make a credential known, or note a later use of it. One that has ended stays ended.
CREATE OR REPLACE FUNCTION put_credential(
    new_id text, new_kind text, new_digest bytea, new_name text, new_person text,
    new_operator boolean, new_created bigint, new_expires bigint, new_seen bigint, new_mac bytea
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = spamguard, pg_temp AS $$
DECLARE
    today bigint := extract(epoch FROM clock_timestamp())::bigint;
BEGIN
    PERFORM require_key();
    IF (octet_length(new_id) BETWEEN 1 AND 64 AND new_kind IN ('token', 'link', 'session')
        AND octet_length(new_digest) = 32 AND octet_length(new_name) <= 255
        AND octet_length(new_person) <= 1000 AND new_operator IS NOT NULL
        AND new_created >= 0 AND new_expires >= 0 AND new_seen >= 0
        AND octet_length(new_mac) = 16) IS NOT TRUE THEN
        RAISE EXCEPTION 'put_credential: bad value' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM 1 FROM cluster FOR UPDATE;
    DELETE FROM credentials WHERE (expires > 0 AND expires < today - 86400)
        OR (kind <> 'token' AND ended > 0 AND ended < today - 40 * 86400);
    IF NOT EXISTS (SELECT 1 FROM credentials c WHERE c.id = new_id) THEN
        INSERT INTO credentials (id, kind, digest, name, person, operator, created, expires, seen,
                changed, mac)
            VALUES (new_id, new_kind, new_digest, new_name, new_person, new_operator, new_created,
                new_expires, new_seen, next_change(), new_mac);
    ELSIF EXISTS (SELECT 1 FROM credentials c
            WHERE c.id = new_id AND c.ended = 0 AND c.seen < new_seen) THEN
        UPDATE credentials SET seen = new_seen, changed = next_change() WHERE id = new_id;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION end_credential(ending text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = spamguard, pg_temp AS $$
BEGIN
    PERFORM require_key();
    PERFORM 1 FROM cluster FOR UPDATE;
    IF NOT EXISTS (SELECT 1 FROM credentials c WHERE c.id = ending AND c.ended = 0) THEN
        RETURN false;
    END IF;
    UPDATE credentials SET ended = extract(epoch FROM clock_timestamp())::bigint,
        changed = next_change() WHERE id = ending;
    RETURN true;
END $$;

-- Use up a link. Of many callers one gets true.
CREATE OR REPLACE FUNCTION burn_link(link text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = spamguard, pg_temp AS $$
BEGIN
    PERFORM require_key();
    PERFORM 1 FROM cluster FOR UPDATE;
    RETURN EXISTS (SELECT 1 FROM credentials c WHERE c.id = link AND c.kind = 'link'
            AND c.expires > extract(epoch FROM clock_timestamp()))
        AND end_credential(link);
END $$;

-- ---- rights

REVOKE ALL ON ALL TABLES IN SCHEMA spamguard FROM PUBLIC, spamguard_node;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA spamguard FROM PUBLIC, spamguard_node;
GRANT USAGE ON SCHEMA spamguard TO spamguard_node;
GRANT SELECT ON ALL TABLES IN SCHEMA spamguard TO spamguard_node;
GRANT EXECUTE ON FUNCTION
    append, compact, note_node, forget_node, put_credential, end_credential, burn_link
    TO spamguard_node;

-- Large objects would be another place to fill. PostgreSQL lets everybody make them, and only a
-- superuser can end that; `spamguard shared init` tells an owner who is none.
DO $$
BEGIN
    IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        REVOKE EXECUTE ON FUNCTION lo_creat(integer), lo_create(oid), lo_from_bytea(oid, bytea)
            FROM PUBLIC;
    END IF;
END $$;

RESET search_path;
