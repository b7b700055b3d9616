"""Nodes of a shared log for tests: a filter and its courier, without processes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from spamguard.engine.filter import Filter
from spamguard.engine.snapshot import SNAPSHOT_KEY, SnapshotStamp
from spamguard.engine.store import parse_if_whole
from spamguard.ledger.events import Server
from spamguard.ledger.schema import PROVISIONAL
from spamguard.ledger.shared import joined_log
from spamguard.shared.courier import Courier
from spamguard.shared.postgres import SharedDatabase
from tests.contract.ledgers import new_vote
from tests.support.partition import Partition, partition
from tests.support.postgres import MAC, TestDatabase
from tests.unit.filters import BITS, bits_of, opened

Result = TypeVar("Result")


@dataclass
class FilterNode:
    """A node: a filter, and what its courier does, one call after the other."""

    filter: Filter
    database: TestDatabase
    proxy: Partition
    wanted: list[bool] = field(default_factory=list)  # calls of the process that settles

    def __post_init__(self) -> None:
        self.ledger = self.filter.ledger
        self.log = joined_log(self.ledger)
        self.courier = Courier(self.ledger, self._connect, lambda: self.wanted.append(True))

    async def _connect(self, known: Server | None = None) -> SharedDatabase:
        # without TLS, so that the proxy can tell one statement from another
        settings = self.database.settings(self.proxy.port, tls=False)
        return await SharedDatabase.connect(settings, self.filter.ledger.node, MAC, known)

    def with_database(self, work: Callable[[SharedDatabase], Awaitable[Result]]) -> Result:
        """Do some work with a connection of its own."""

        async def run() -> Result:
            database = await self._connect()
            try:
                return await work(database)
            finally:
                database.close()

        return asyncio.run(run())

    def turn(self) -> None:
        """Make copy and log equal."""

        async def run() -> None:
            try:
                await self.courier.take_turn()
            finally:
                self.courier.close()

        asyncio.run(run())

    def cast(self, *digests: bytes) -> None:
        """Cast votes that are no lessons; nobody pushes them meanwhile."""
        self.ledger.append([new_vote("spam", digest) for digest in digests])

    def events(self) -> list[tuple[int, bytes, str]]:
        """Position, digest and node of all events that have a position."""
        query = "SELECT seq, digest, node FROM events WHERE seq < ? ORDER BY seq"
        return self.ledger._db.query(query, (PROVISIONAL,))

    def settle(self) -> bool:
        """What the process that settles does; returns whether it has settled."""
        return self.filter.follow_shared_log()

    def stamp(self) -> SnapshotStamp:
        return parse_if_whole(self.filter.ledger.get_meta(SNAPSHOT_KEY))

    def tables(self) -> str:
        """A hash of all bits of the tables."""
        self.filter._refresh()
        return hashlib.sha256(repr(bits_of(self.filter._store.tables)).encode()).hexdigest()

    def verdicts(self, messages: Sequence[bytes]) -> list[tuple[str, float]]:
        """The verdicts on messages, to the last bit."""
        judged = [self.filter.judge(raw) for raw in messages]
        return [(verdict.label, verdict.log_odds) for verdict in judged]


@dataclass
class Site:
    """All nodes of a database."""

    root: Path
    database: TestDatabase
    stack: ExitStack
    nodes: list[FilterNode] = field(default_factory=list)

    def node(self, state: Path | None = None) -> FilterNode:
        """One more node, a new one or one that has a state directory and has not joined."""
        state = state or self.root / f"node{len(self.nodes)}"
        spam_filter = self.stack.enter_context(opened(state))
        if spam_filter.ledger.shared is None:
            spam_filter.ledger.join()
        proxy = self.stack.enter_context(partition(self.database.server.port))
        self.nodes.append(FilterNode(spam_filter, self.database, proxy))
        return self.nodes[-1]

    def converge(self) -> None:
        """Take turns until all logs are equal; tables are then made anew at once."""
        for _ in range(3):
            for node in self.nodes:
                node.turn()
                node.filter._store._next_reset = 0.0
        heads = {node.log.head() for node in self.nodes}
        assert len(heads) == 1
        assert all(node.log.waiting()[0] == 0 for node in self.nodes)


def set_back(database: TestDatabase, position: int) -> None:
    """Make the database one that was restored from a backup, or that has lost its tail."""
    database.query("DELETE FROM spamguard.events WHERE position > %s", position)
    database.query(
        "UPDATE spamguard.log SET last = %s, chain = coalesce((SELECT chain FROM spamguard.events "
        "WHERE position = %s), '\\x00'), events = (SELECT count(*) FROM spamguard.events)",
        position,
        position,
    )


@contextmanager
def site(root: Path, database: TestDatabase) -> Iterator[Site]:
    """No node yet."""
    database.query("UPDATE spamguard.cluster SET bits = %s", BITS)
    with ExitStack() as stack:
        yield Site(root, database, stack)
