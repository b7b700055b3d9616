"""Compaction: what goes, and what does not."""

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

pytestmark = needs_postgres
NODE = "a" * 16
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
            _vote(5, 8, old),  # 9: superseded by 10, which is not settled yet
            _vote(5, 9, old),
        ]
        await database.append(votes)
        _age(shared_database)
        head = await database.head()
        assert await database.compact(9, now) == 3
        assert [row.position for row in await database.read_page(0, 99)] == [2, 3, 4, 5, 8, 9, 10]
        assert await database.head() == (10, head.chain, 9)
        assert shared_database.query("SELECT events FROM spamguard.log") == [(7,)]
        assert await database.compact(9, now) == 0
        assert await database.append(votes[1:2]) == [2]
        with pytest.raises(SharedError, match="bad positions"):
            await database.compact(11, now)

    run(shared_database, work)
