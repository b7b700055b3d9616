"""A process that appends its events in batches of random sizes, from a place that it is told.

    python -m tests.unit.shared.appender DATABASE PASSWORD_FILE AUTHORITY NODE COUNT START SEED

The parent kills it at any moment and starts it again. Some events are those of other processes too.
It prints how many it knows to be in the log.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from spamguard.config.options import SharedSettings
from spamguard.config.shared import DatabaseTls
from spamguard.ledger.events import SharedEvent
from spamguard.shared.postgres import SharedDatabase
from tests.support.postgres import MAC
from tests.unit.shared.events import event

COMMON = 10  # each so-manieth event is one that all processes append


def events_of(node: str, count: int) -> list[SharedEvent]:
    """All events of a process, in its order."""
    own = int(node, 16) * 1_000_000
    return [
        event(number) if number % COMMON == 0 else event(own + number, node)
        for number in range(count)
    ]


async def _append(settings: SharedSettings, node: str, count: int, start: int, seed: str) -> None:
    events, choose = events_of(node, count), random.Random(seed)
    database = await SharedDatabase.connect(settings, node, MAC)
    while start < count:
        batch = events[start : start + choose.randint(1, 12)]
        positions = await database.append(batch)
        assert len(positions) == len(batch)
        start += len(batch)
        print(start, flush=True)
    database.close()


if __name__ == "__main__":
    database, password, authority, node, count, start, seed = sys.argv[1:]
    settings = SharedSettings(
        database=database,
        password_file=Path(password),
        tls=DatabaseTls(ca=Path(authority)),
    )
    asyncio.run(_append(settings, node, int(count), int(start), seed))
