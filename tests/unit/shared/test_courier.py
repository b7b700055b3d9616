"""A courier's turns between a real ledger and a real PostgreSQL, and what can go wrong there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import pytest

from spamguard.errors import SharedError, UnavailableError
from spamguard.ledger.events import Server
from spamguard.ledger.schema import PROVISIONAL
from spamguard.ledger.shared import SharedLog
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.shared.courier import Courier
from spamguard.shared.postgres import SharedDatabase
from tests.contract.ledgers import new_vote
from tests.support.partition import Partition, partition
from tests.support.postgres import MAC, TestDatabase, needs_postgres

pytestmark = needs_postgres


@dataclass
class Node:
    """A node without processes: a ledger, its courier, and a proxy between it and the database."""

    ledger: SqliteLedger
    log: SharedLog
    courier: Courier
    proxy: Partition
    database: TestDatabase
    settled: list[bool] = field(default_factory=list)

    def cast(self, *digests: bytes, label: str = "spam") -> None:
        """Cast votes; nobody pushes them meanwhile."""
        self.ledger.append([new_vote(label, digest) for digest in digests])

    def turn(self, database: TestDatabase | None = None) -> None:
        """Take one turn with a connection of its own."""
        asyncio.run(self._turn())

    async def _turn(self) -> None:
        try:
            await self.courier.take_turn()
        finally:
            self.courier.close()

    def events(self) -> list[tuple[int, bytes, str]]:
        """Position, digest and node of all events that have a position."""
        return [
            (seq, vote.digest, vote.node)
            for seq, vote in zip(
                (row[0] for row in self.ledger._db.query("SELECT seq FROM events ORDER BY seq")),
                self.ledger.all_votes(),
                strict=False,
            )
            if seq < PROVISIONAL
        ]


class Cluster:
    """Nodes of one database. The database may be replaced."""

    def __init__(self, directory: Path, database: TestDatabase, stack: ExitStack) -> None:
        self.directory = directory
        self.database = database
        self._stack = stack
        self._numbers = iter(range(100))

    def node(self) -> Node:
        """A new node, which has joined."""
        state = self.directory / f"node{next(self._numbers)}"
        state.mkdir()
        path = state / "ledger.sqlite"
        ledger = SqliteLedger.open(path, MAC.fingerprint, durable=False)
        ledger.join()
        ledger.close()
        return self.open(path)

    def open(self, path: Path) -> Node:
        """The node with this ledger."""
        ledger = SqliteLedger.open(path, MAC.fingerprint, durable=False)
        self._stack.callback(ledger.close)
        proxy = self._stack.enter_context(partition(self.database.server.port))
        assert ledger.shared is not None
        settled: list[bool] = []

        async def connect(known: Server | None) -> SharedDatabase:
            # without TLS, so that the proxy can tell one statement from another
            settings = self.database.settings(proxy.port, tls=False)
            return await SharedDatabase.connect(settings, ledger.node, MAC, known)

        courier = Courier(ledger, connect, lambda: settled.append(True))
        return Node(ledger, ledger.shared, courier, proxy, self.database, settled)


@pytest.fixture
def cluster(tmp_path: Path, shared_database: TestDatabase) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, shared_database, stack)


def names(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def test_a_lost_answer_doubles_nothing(cluster):
    a, b = cluster.node(), cluster.node()
    a.proxy.lose_answers(b"spamguard.append", 2)
    a.cast(*names("a", 300))
    failures = 0
    while a.log.waiting()[0]:
        try:
            a.turn()
        except UnavailableError:
            failures += 1
            assert failures < 50
    assert failures
    assert a.proxy.losses == failures
    b.turn()
    assert [digest for _, digest, _ in b.events()] == names("a", 300)
    assert a.events() == b.events()


def cut_database(database: TestDatabase, position: int) -> None:
    """Set the log back, as a standby that lacked the last rows does."""
    database.query("DELETE FROM spamguard.events WHERE position > %s", position)
    database.query(
        "UPDATE spamguard.log SET last = %s, chain = coalesce((SELECT chain FROM spamguard.events "
        "WHERE position = %s), '\\x00'), events = (SELECT count(*) FROM spamguard.events)",
        position,
        position,
    )


@pytest.mark.parametrize("kept", [0, 1, 17, 39])
def test_a_tail_that_a_failover_has_lost_comes_back(cluster, kept):
    a, b = cluster.node(), cluster.node()
    a.cast(*names("a", 40))
    a.turn()
    b.turn()
    cut_database(cluster.database, kept)
    b.cast(*names("b", 3))
    for node in (b, a, b):
        node.turn()
    assert a.events() == b.events()
    digests = [digest for _, digest, _ in a.events()]
    assert sorted(digests) == sorted([*names("a", 40), *names("b", 3)])
    assert digests[:kept] == names("a", kept)


def test_a_tail_that_was_replaced_by_others_of_the_same_length(cluster):
    """Log and copy are equally long, and only the chains tell that they differ."""
    a, b, c = cluster.node(), cluster.node(), cluster.node()
    a.cast(*names("a", 20))
    a.turn()
    b.turn()
    cut_database(cluster.database, 10)
    c.cast(*names("c", 10))
    c.turn()
    for node in (a, b, c, a, b):
        node.turn()
    assert a.events() == b.events() == c.events()
    assert len(a.events()) == 30


def test_a_copy_longer_than_its_marks_is_cut_at_the_last_thousandth(cluster):
    a, b = cluster.node(), cluster.node()
    a.cast(*names("a", 2600))
    a.turn()
    cut_database(cluster.database, 1400)
    for node in (a, b):
        node.turn()
    assert a.events() == b.events()
    assert len(a.events()) == 2600


def test_hostile_rows_are_named_once_and_skipped(cluster, caplog):
    a, b = cluster.node(), cluster.node()
    a.cast(*names("a", 3))
    a.turn()
    b.turn()
    body = b"\x07ab"
    row = (bytes(range(16)), 9, "evil", sha256(body).digest()[:16], 1, body)
    cluster.database.query(
        "SELECT place FROM spamguard.append(ARRAY[%s]::bytea[], ARRAY[%s]::bigint[], ARRAY[%s],"
        " ARRAY[%s]::bytea[], ARRAY[%s]::bigint[], ARRAY[%s]::bytea[], ARRAY[%s]::bytea[])",
        *row,
        MAC.sign("vote", row),
    )
    a.cast(b"later")
    a.turn()
    for _ in range(3):
        b.turn()
    assert [digest for _, digest, _ in b.events()] == [*names("a", 3), b"later"]
    assert b.courier.skipped == 1
    lines = [record.message for record in caplog.records if "is skipped" in record.message]
    assert len(lines) == 2  # a's and b's
    assert "event 4 of the shared log is skipped" in lines[0]
    assert b.courier.alarms == {"skipped": "events that could not be read: 1, see the log"}


def test_a_broken_chain_is_an_error_and_changes_nothing(cluster):
    a, b = cluster.node(), cluster.node()
    a.cast(*names("a", 5))
    a.turn()
    cluster.database.query("UPDATE spamguard.events SET chain = '\\x01' WHERE position = 3")
    with pytest.raises(SharedError, match="damaged behind event 0: restore") as caught:
        b.turn()
    assert not isinstance(caught.value, UnavailableError)
    assert b.events() == []


def test_a_missing_row_is_an_error(cluster):
    a, b = cluster.node(), cluster.node()
    a.cast(*names("a", 5))
    a.turn()
    cluster.database.query("DELETE FROM spamguard.events WHERE position > 3")
    with pytest.raises(SharedError, match="lacks event 4: restore"):
        b.turn()


def test_copies_of_a_state_directory_both_have_their_say(cluster, tmp_path):
    a = cluster.node()
    a.cast(b"first")
    a.turn()
    a.ledger.close()
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in a.ledger.path.parent.glob("ledger.sqlite*"):
        (copy / file.name).write_bytes(file.read_bytes())
    a, b = cluster.open(a.ledger.path), cluster.open(copy / "ledger.sqlite")
    a.cast(b"same", label="spam")
    b.cast(b"same", label="ham")
    for node in (a, b, a):
        node.turn()
    assert a.events() == b.events()
    assert len({node for _, digest, node in a.events() if digest == b"same"}) == 2
    assert a.ledger.get_vote(b"same", "") == b.ledger.get_vote(b"same", "")


def test_any_order_of_trouble_ends_in_equal_logs(cluster):
    chance = random.Random(11)
    nodes = [cluster.node() for _ in range(3)]
    cast = set()
    for step in range(120):
        node = chance.choice(nodes)
        action = chance.random()
        if action < 0.5:
            digests = names(f"{step}-", chance.randrange(1, 9))
            node.cast(*digests)
            cast.update(digests)
        elif action < 0.6:
            node.proxy.cut_after(chance.randrange(2000))
        elif action < 0.63:
            ((last,),) = cluster.database.query("SELECT last FROM spamguard.log")
            cut_database(cluster.database, chance.randrange(last + 1))
        else:
            try:
                node.turn()
            except UnavailableError:
                node.proxy.pass_on()
    for node in (*nodes, *nodes, *nodes):
        node.proxy.pass_on()
        node.turn()
    assert nodes[0].events() == nodes[1].events() == nodes[2].events()
    digests = [digest for _, digest, _ in nodes[0].events()]
    assert len(digests) == len(set(digests))
    assert set(digests) == cast


# ---- the loop


@contextmanager
def taking_turns(node: Node) -> Iterator[Callable[[Coroutine], object]]:
    """Run coroutines beside the courier's loop."""

    def run(work: Coroutine) -> object:
        async def beside() -> object:
            running = asyncio.create_task(node.courier.run())
            try:
                return await work
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                node.courier.close()

        return asyncio.run(beside())

    yield run


async def reached(check: Callable[[], object], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not check():
            await asyncio.sleep(0.01)


def test_it_notes_when_the_log_is_away_and_when_it_is_back(cluster, caplog):
    a = cluster.node()
    caplog.set_level("INFO")

    async def story() -> None:
        await reached(lambda: a.courier.contact)
        a.proxy.refuse()
        await reached(lambda: a.courier.away_since)
        assert a.log.counts().away
        assert a.courier.problem
        assert a.courier.alarms == {}
        a.cast(b"meanwhile")  # returns at once
        assert a.ledger.last_seq() >= PROVISIONAL
        a.proxy.pass_on()
        await reached(lambda: not a.courier.away_since and not a.log.waiting()[0])
        assert not a.log.counts().away
        assert a.ledger.last_seq() == 1

    with taking_turns(a) as run:
        run(story())
    lines = [record.message for record in caplog.records]
    assert sum("lessons are learnt here" in line for line in lines) == 1
    assert "the shared log is there again" in lines


def test_what_somebody_has_to_mend_is_an_alarm(cluster):
    a = cluster.node()
    cluster.database.query("UPDATE spamguard.cluster SET fingerprint = 'ffff'")

    async def story() -> None:
        await reached(lambda: a.courier.alarms)
        assert "copy the key" in a.courier.alarms["log"]
        assert a.log.counts().away

    with taking_turns(a) as run:
        run(story())
