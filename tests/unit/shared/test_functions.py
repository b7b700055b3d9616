"""Leases, snapshots, compaction, nodes and credentials: what nodes may do, and what not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256

import pytest

from spamguard.errors import SharedError
from spamguard.ledger.events import SharedEvent, encode_event
from spamguard.records import Vote
from spamguard.shared import postgres
from spamguard.shared.postgres import CredentialRow, NodeRow, SharedDatabase
from tests.support.postgres import MAC, TestDatabase, needs_postgres
from tests.unit.shared.events import event

pytestmark = needs_postgres
NODE, OTHER = "a" * 16, "b" * 16
MIB = 1 << 20
DAY = 86_400


def run(place: TestDatabase, work: Callable[[SharedDatabase], Awaitable[None]]) -> None:
    """Do this with an open connection."""

    async def connected() -> None:
        database = await SharedDatabase.connect(place.settings(), NODE, MAC)
        try:
            await work(database)
        finally:
            database.close()

    asyncio.run(connected())


def test_one_holder_has_the_lease_and_each_new_one_a_higher_token(
    shared_database: TestDatabase,
) -> None:
    async def work(database: SharedDatabase) -> None:
        first = await database.take_lease("settle", NODE, 60)
        assert first is not None
        assert await database.take_lease("settle", OTHER, 60) is None
        assert await database.take_lease("settle", NODE, 60) == first  # renewed
        await database.release_lease("settle", first + 1)  # not its token
        assert await database.take_lease("settle", OTHER, 60) is None
        await database.release_lease("settle", first)
        second = await database.take_lease("settle", OTHER, 60)
        assert second == first + 1
        shared_database.query("UPDATE spamguard.leases SET until = now() - interval '1 second'")
        assert await database.take_lease("settle", NODE, 60) == first + 2  # it had ended
        assert await database.take_lease("other", OTHER, 60) == 1

    run(shared_database, work)


async def _publish(
    database: SharedDatabase, data: bytes, position: int, token: int, size: int | None = None
) -> str:
    snapshot = sha256(data).digest()
    for number in range(0, len(data), MIB):
        await database.put_chunk(snapshot, number // MIB, data[number : number + MIB])
    return await database.publish_snapshot(
        position, 12, 3, snapshot, size or len(data), NODE, '{"before": 1}', token
    )


def test_the_two_newest_snapshots_are_kept_with_their_chunks(shared_database: TestDatabase) -> None:
    async def work(database: SharedDatabase) -> None:
        await database.append([event(number) for number in range(9)])
        token = await database.take_lease("settle", NODE, 60)
        assert token is not None
        files = [bytes([number]) * (MIB + number) for number in range(1, 5)]
        for number, data in enumerate(files):
            assert await _publish(database, data, number + 1, token) == "published"
        assert await _publish(database, files[3], 4, token) == "same"
        assert await _publish(database, files[0], 4, token) == "different"
        assert await _publish(database, files[0], 5, token + 1) == "lost"
        with pytest.raises(SharedError, match="bad position"):
            await _publish(database, files[0], 10, token)  # there are 9 events
        with pytest.raises(SharedError, match="chunks"):
            await _publish(database, files[1][:5], 5, token, size=MIB + 1)  # one of two is missing

        snapshots = await database.read_snapshots()
        assert [row.position for row in snapshots] == [4, 3]
        assert snapshots[0][1:6] == (12, 3, sha256(files[3]).digest(), len(files[3]), NODE)
        assert snapshots[0].notes == '{"before": 1}'
        chunks = [await database.read_chunk(snapshots[0].hash, number) for number in range(3)]
        assert chunks == [files[3][:MIB], files[3][MIB:], None]
        await _publish(database, b"next", 6, token)
        ((count,),) = shared_database.query("SELECT count(*) FROM spamguard.chunks")
        assert count == 1 + 2  # of positions 6 and 4

    run(shared_database, work)


def _age(place: TestDatabase, *positions: int) -> None:
    """As if these events had been in the log for 31 days; none: as if all had."""
    place.query(
        "UPDATE spamguard.events SET added = added - %s WHERE position = ANY(%s) OR %s",
        31 * DAY, list(positions), not positions,
    )  # fmt: skip


def _vote(key: int, clock: int, when: int, node: str = NODE) -> SharedEvent:
    body = b"\x01%d/%d/%d" % (key, clock, when)
    subject = sha256(b"%d" % key).digest()[:16]
    return SharedEvent(subject, clock, node, sha256(body).digest()[:16], when, body)


def test_compacting_drops_only_what_was_superseded_long_ago(shared_database: TestDatabase) -> None:
    now = int(time.time())
    old = now - 60 * DAY

    async def work(database: SharedDatabase) -> None:
        votes = [
            _vote(1, 1, old),  # 1: superseded by 2
            _vote(1, 2, old),
            _vote(2, 3, old),  # 3: superseded, but not long ago
            _vote(2, 4, now),
            _vote(3, 6, old),
            _vote(3, 5, old),  # 6: superseded by 5, an earlier position
            _vote(4, 7, old, "B" * 16),  # 7: superseded by 8 in the order of bytes
            _vote(4, 7, old, "a" * 16),
            _vote(5, 8, old),  # 9: superseded by 10, which the snapshot does not hold yet
            _vote(5, 9, old),
        ]
        await database.append(votes)
        _age(shared_database)
        head = await database.head()
        token = await database.take_lease("settle", NODE, 60)
        assert token is not None
        assert await database.compact(9, now, token + 1) is None
        assert await database.compact(9, now, token) == 3
        assert [row.position for row in await database.read_page(0, 99)] == [2, 3, 4, 5, 8, 9, 10]
        assert await database.head() == (10, head.chain, 9)
        assert shared_database.query("SELECT events FROM spamguard.log") == [(7,)]
        assert await database.compact(9, now, token) == 0
        assert await database.append(votes[1:2]) == [2]
        with pytest.raises(SharedError, match="bad positions"):
            await database.compact(11, now, token)

    run(shared_database, work)


def test_a_turn_passes_between_two_calls_of_compacting(
    shared_database: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "COMPACT_POSITIONS", 1)
    now = int(time.time())

    async def work(database: SharedDatabase) -> None:
        await database.append([_vote(number, number, now) for number in range(1, 9)])
        token = await database.take_lease("settle", NODE, 60)
        assert token is not None
        compacting = asyncio.create_task(database.compact(8, now, token))
        turns = list[list[int]]()
        while not compacting.done():
            turns.append([(await database.head()).compacted for _ in range(3)])
        assert [turn for turn in turns if 0 < turn[0] == turn[-1] < 8], turns

    run(shared_database, work)


def test_no_node_gets_rid_of_what_was_said_by_claiming_another_time(
    shared_database: TestDatabase,
) -> None:
    now = int(time.time())

    async def work(database: SharedDatabase) -> None:
        await database.append([_vote(1, 1, now - 90 * DAY), _vote(1, 2, now - 60 * DAY)])
        _age(shared_database, 1)  # the second one has just come
        token = await database.take_lease("settle", NODE, 60)
        assert token is not None
        assert await database.compact(2, now + 90 * DAY, token) == 0
        _age(shared_database, 2)
        assert await database.compact(2, now - 59 * DAY, token) == 1

    run(shared_database, work)


def _real(digest: bytes, clock: int, label: str | None, origin: str, when: int) -> SharedEvent:
    packed = b"" if label is None else b"features"
    return encode_event(Vote(digest, "ann", clock, NODE, label, packed, b"", origin, when, 1))


def test_tombstones_of_ageing_go_last(shared_database: TestDatabase) -> None:
    now = int(time.time())
    old = now - 60 * DAY

    async def work(database: SharedDatabase) -> None:
        await database.append(
            [
                _real(b"one", 1, "spam", "move", old),
                _real(b"one", 2, None, "ageing", old),  # goes, with the one before
                _real(b"two", 3, None, "ageing", now),  # too young
                _real(b"three", 4, None, "move", old),  # a user's word
                _real(b"four", 7, None, "ageing", old),  # goes when 6 has gone
                _real(b"four", 6, "spam", "move", old),
                _real(b"five", 8, None, "ageing", old),  # not the last word
                _real(b"five", 9, "spam", "move", now),
            ]
        )
        _age(shared_database)
        token = await database.take_lease("settle", NODE, 60)
        assert token is not None
        for number in range(1, 6):  # as in a log of some size, which is compacted in parts
            values = (number, number, 5, now, token)
            shared_database.query("SELECT spamguard.compact(%s, %s, %s, %s, %s)", *values)
        assert [row.position for row in await database.read_page(0, 99)] == [3, 4, 5, 6, 7, 8]
        assert await database.compact(6, now, token) == 2
        assert await database.compact(8, now, token) == 0
        assert [row.position for row in await database.read_page(0, 99)] == [3, 4, 7, 8]
        assert shared_database.query("SELECT events, compacted FROM spamguard.log") == [(4, 8)]

    run(shared_database, work)


def test_nodes_say_how_they_are(shared_database: TestDatabase) -> None:
    async def work(database: SharedDatabase) -> None:
        row = NodeRow(NODE, "mx1", "https://mx1:8443", "1.0.0", 12, 3, 7, b"c" * 32, 2, b"s" * 16)
        await database.note_node(row)
        await database.note_node(row._replace(node=OTHER, name="mx0"))
        await database.note_node(row._replace(position=9))
        other, own = await database.nodes()
        assert abs(own.seen - time.time()) < 3600
        assert own._replace(seen=0) == row._replace(position=9)
        assert other.name == "mx0"
        shared_database.query(
            "UPDATE spamguard.nodes SET seen = now() - interval '31 days' WHERE node = %s", OTHER
        )
        await database.note_node(row)
        assert [node.name for node in await database.nodes()] == ["mx1"]
        with pytest.raises(SharedError, match="too long"):
            await database.note_node(row._replace(name="x" * 256))

    run(shared_database, work)


def _credential(identity: str, kind: str = "session", **changes: object) -> CredentialRow:
    now = int(time.time())
    expires = 0 if kind == "token" else now + 600
    row = CredentialRow(identity, kind, b"d" * 32, "", "ann", False, now, expires, now)
    return row._replace(**changes)  # type: ignore[arg-type]


def test_credentials_are_known_everywhere_until_they_end(shared_database: TestDatabase) -> None:
    async def work(database: SharedDatabase) -> None:
        session, token = _credential("s1"), _credential("t1", "token", name="backup")
        await database.put_credential(session)
        await database.put_credential(token)
        rows = await database.changed_credentials(0)
        assert [row._replace(changed=0) for row in rows] == [session, token]
        assert [row.changed for row in rows] == [1, 2]
        assert (await database.cluster()).changes == 2

        await database.put_credential(session)  # as it was
        assert await database.changed_credentials(2) == []
        later = session._replace(seen=session.seen + 5, digest=b"x" * 32, operator=True)
        await database.put_credential(later)
        (row,) = await database.changed_credentials(2)
        assert row._replace(changed=0) == session._replace(seen=later.seen)  # nothing else changes

        assert await database.end_credential("s1")
        assert not await database.end_credential("s1")
        assert not await database.end_credential("nobody's")
        await database.put_credential(session._replace(seen=session.seen + 9))
        (row,) = await database.changed_credentials(3)
        assert row.ended > 0
        assert row.changed == 4

        await database.put_credential(_credential("s2", expires=int(time.time()) - 2 * DAY))
        await database.put_credential(_credential("s3"))
        assert {row.id for row in await database.changed_credentials(0)} == {"s1", "t1", "s3"}

    run(shared_database, work)


def test_of_a_hundred_who_burn_a_link_one_wins(shared_database: TestDatabase) -> None:
    async def run_all() -> None:
        databases = [
            await SharedDatabase.connect(shared_database.settings(), f"{number:016x}", MAC)
            for number in range(10)
        ]
        for turn in range(10):
            await databases[0].put_credential(_credential(f"link{turn}", "link"))
            burnt = await asyncio.gather(*(each.burn_link(f"link{turn}") for each in databases))
            assert sorted(burnt) == [False] * 9 + [True]
        await databases[0].put_credential(_credential("session"))
        assert not await databases[0].burn_link("session")
        expired = _credential("old", "link", expires=int(time.time()) - 1)
        await databases[0].put_credential(expired)
        assert not await databases[0].burn_link("old")
        for each in databases:
            each.close()

    asyncio.run(run_all())
