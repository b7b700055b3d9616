"""Leases, snapshots, compaction, nodes and credentials: what nodes may do, and what not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256

import pytest

from spamguard.errors import SharedError
from spamguard.ledger.events import SharedEvent
from spamguard.shared.postgres import SharedDatabase
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
