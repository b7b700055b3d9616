"""What the log in PostgreSQL takes and gives: appending and reading.

    python -m tests.bench.bench_shared [--seconds 10] [--rows 20000]

A server of Debian's package with its usual settings (fsync on, TLS, 64 MB of shared buffers) on the
disk of the temporary directory; clients and server share the machine. Events have 2.7 kB, as
receipts have on the average.

PostgreSQL 15, 2 cores on which four times as much ran as they can do (`pgbench -N`: 247/s with one
client, 1,122/s with four):

    append, 1 node, batches of 1        154/s   p50 6.1 ms, p99 16 ms
    append, 4 nodes, batches of 1       350/s   p50 8.5 ms, p99 42 ms
    append, 1 node, batches of 64     3,697/s   p50 14 ms, p99 47 ms
    append, 4 nodes, batches of 64    6,231/s   p50 34 ms, p99 105 ms
    append 64 events again                      p50 12 ms, p99 72 ms
    read, pages of 256               27,413/s
    read, pages of 1,000             33,969/s
    an event on the disk               3,103 bytes, 2,601 of them the vote

Nodes append one after the other, but wait for the disk and the network at the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator

from spamguard.ledger.events import SharedEvent
from spamguard.shared.postgres import SharedDatabase
from tests.support.postgres import MAC, TestDatabase, running_server
from tests.unit.shared.events import event

_NODE = "a" * 16
_SIZE = 2600  # bytes of a body, before what belongs to every event


class Bench:
    """The measurements, in one database."""

    def __init__(self, place: TestDatabase, seconds: float) -> None:
        self._place = place
        self._seconds = seconds
        self._numbers = itertools.count()

    def events(self, count: int) -> list[SharedEvent]:
        """So many new events."""
        return [event(next(self._numbers), size=_SIZE) for _ in range(count)]

    async def connect(self) -> SharedDatabase:
        return await SharedDatabase.connect(self._place.settings(), _NODE, MAC)

    async def append(self, writers: int, batch: int) -> str:
        """Events per second, and the time of a call."""
        databases = [await self.connect() for _ in range(writers)]
        prepared = [self.events(batch) for _ in range(writers)]
        calls: list[float] = []
        begin = time.perf_counter()

        async def write(database: SharedDatabase, events: list[SharedEvent]) -> None:
            while time.perf_counter() - begin < self._seconds:
                start = time.perf_counter()
                await database.append(events)
                calls.append(time.perf_counter() - start)
                events = self.events(batch)

        await asyncio.gather(*map(write, databases, prepared))
        duration = time.perf_counter() - begin
        for database in databases:
            database.close()
        return f"{len(calls) * batch / duration:8,.0f}/s   {_milliseconds(calls)}"

    async def read(self, limit: int) -> str:
        """Rows per second, from the beginning of the log to its end."""
        database = await self.connect()
        after, begin = 0, time.perf_counter()
        while rows := await database.read_page(after, limit):
            after = rows[-1].position
        rate = after / (time.perf_counter() - begin)
        database.close()
        return f"{rate:8,.0f}/s   {after:,} rows"

    async def again(self) -> str:
        """What a call costs whose events are in the log already."""
        database, events = await self.connect(), self.events(64)
        await database.append(events)
        calls = [await _timed(lambda: database.append(events)) for _ in range(50)]
        database.close()
        return _milliseconds(calls)

    def bytes_of_event(self) -> str:
        """All of the table, its indexes included."""
        ((size, count),) = self._place.query(
            "SELECT pg_total_relation_size('spamguard.events'), count(*) FROM spamguard.events"
        )
        return f"{size / count:8,.0f} bytes of {_SIZE + 1:,}"


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    begin = time.perf_counter()
    await work()
    return time.perf_counter() - begin


def _milliseconds(times: list[float]) -> str:
    ordered = sorted(times)
    middle, late = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    return f"p50 {middle * 1e3:.1f} ms, p99 {late * 1e3:.1f} ms"


def results(seconds: float, rows: int) -> Iterator[tuple[str, str]]:
    """What is measured, in words."""
    with running_server(durable=True) as server, server.database() as place:
        bench = Bench(place, seconds)
        for writers, batch in ((1, 1), (4, 1), (1, 64), (4, 64)):
            words = f"append, nodes: {writers}, batches of {batch}"
            yield words, asyncio.run(bench.append(writers, batch))
        yield "append 64 events again", asyncio.run(bench.again())
        asyncio.run(_fill(bench, rows))
        yield "read, pages of 256", asyncio.run(bench.read(256))
        yield "read, pages of 1,000", asyncio.run(bench.read(1000))
        yield "an event on the disk", bench.bytes_of_event()


async def _fill(bench: Bench, rows: int) -> None:
    database = await bench.connect()
    while (await database.head()).last < rows:
        await database.append(bench.events(256))
    database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each rate")
    parser.add_argument("--rows", type=int, default=20_000, help="at least, for reading")
    arguments = parser.parse_args()
    for words, result in results(arguments.seconds, arguments.rows):
        print(f"{words:32}{result}", flush=True)


if __name__ == "__main__":
    main()
