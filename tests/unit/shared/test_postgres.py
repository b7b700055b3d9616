"""The shared log in a real PostgreSQL, as one node uses it."""

from __future__ import annotations

import asyncio

from spamguard.shared.postgres import LogHead, SharedDatabase
from tests.support.postgres import MAC, TestDatabase, needs_postgres
from tests.unit.shared.events import event

pytestmark = needs_postgres
NODE = "a" * 16


def test_events_get_positions_in_order_and_keep_them(shared_database: TestDatabase) -> None:
    async def run() -> None:
        database = await SharedDatabase.connect(shared_database.settings(), NODE, MAC)
        assert await database.head() == LogHead(0, b"\0", 0)
        events = [event(number) for number in range(5)]
        assert await database.append(events[:3]) == [1, 2, 3]
        assert await database.append(events[1:]) == [2, 3, 4, 5]
        rows = await database.read_page(0, 100)
        assert [row.position for row in rows] == [1, 2, 3, 4, 5]
        assert [row.event for row in rows] == events
        assert await database.head() == LogHead(5, rows[-1].chain, 0)
        assert await database.read_page(3, 1) == rows[3:4]
        assert await database.chains([2, 5, 9]) == {2: rows[1].chain, 5: rows[4].chain}
        database.close()

    asyncio.run(run())
