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
from spamguard.ledger.events import Server
from spamguard.shared.courier import Courier
from spamguard.shared.postgres import SharedDatabase
from spamguard.shared.snapshots import SnapshotExchange
from tests.support.postgres import MAC, TestDatabase
from tests.unit.filters import BITS, bits_of, opened

Result = TypeVar("Result")


@dataclass
class FilterNode:
    """A node: a filter, and what its courier does, one call after the other."""

    filter: Filter
    database: TestDatabase
    wanted: list[bool] = field(default_factory=list)  # calls of the process that settles

    def __post_init__(self) -> None:
        self.exchange = SnapshotExchange(self.filter.ledger, self.filter.directory)
        log = self.filter.ledger.shared
        assert log is not None
        self.log = log
        self.courier = Courier(log, self._connect, self.exchange, lambda: self.wanted.append(True))

    async def _connect(self, known: Server | None = None) -> SharedDatabase:
        settings = self.database.settings(tls=False)
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
        """Make copy and log equal, and fetch new tables."""

        async def run() -> None:
            try:
                await self.exchange.fetch(await self.courier.take_turn())
            finally:
                self.courier.close()

        asyncio.run(run())

    def settle(self) -> bool:
        """What the process that settles does; returns whether it settled for all."""
        if not self.filter.look_after_snapshot():
            return False

        async def take(database: SharedDatabase) -> int | None:
            token = await database.take_lease("settle", self.filter.ledger.node, 120)
            if token:
                await self.exchange.fetch(database)
            return token

        token = self.with_database(take)
        if token is None:
            return False
        self.filter._refresh()
        if due := self.filter.look_after_snapshot():
            self.publish(token)
        self.with_database(lambda database: database.release_lease("settle", token))
        return due

    def publish(self, token: int | None = None) -> None:
        """Settle and publish."""
        self.filter.settle()

        async def publish(database: SharedDatabase) -> None:
            held = token or await database.take_lease("settle", self.filter.ledger.node, 120)
            assert held
            await self.exchange.publish(database, held)
            await database.release_lease("settle", held)

        self.with_database(publish)

    def stamp(self) -> SnapshotStamp:
        return SnapshotStamp.parse(self.filter.ledger.get_meta(SNAPSHOT_KEY) or "")

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
        self.nodes.append(FilterNode(spam_filter, self.database))
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


@contextmanager
def site(root: Path, database: TestDatabase) -> Iterator[Site]:
    """No node yet."""
    database.query("UPDATE spamguard.cluster SET bits = %s", BITS)
    with ExitStack() as stack:
        yield Site(root, database, stack)
