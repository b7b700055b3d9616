"""What the courier's process does beside its turns, with a real PostgreSQL: requests and status."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from spamguard.config.options import Settings
from spamguard.daemon.courier import Node
from spamguard.engine.filter import Filter
from spamguard.engine.snapshot import SnapshotStamp
from spamguard.errors import LedgerError, UnavailableError
from spamguard.keys import store_key
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.shared import client
from spamguard.shared.status import SharedStatus, read_status
from tests.support.partition import Partition, partition
from tests.support.postgres import TestDatabase, needs_postgres
from tests.support.waiting import until

pytestmark = needs_postgres
KEY = b"the key of all filters in tests!"


@dataclass
class Place:
    """A state directory that has joined, and the way from there to the database."""

    state: Path
    proxy: Partition
    settings: Settings
    settled: list[bool]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Node]:
        """A courier that runs, after its first turn."""
        with Filter.open(self.state) as spam_filter:
            fingerprint = spam_filter.ledger.fingerprint
        assert self.settings.shared is not None
        ledger = SqliteLedger.open(self.state / "ledger.sqlite", fingerprint)
        with closing(ledger):
            request = lambda: self.settled.append(True)  # noqa: E731
            node = Node(self.settings, self.settings.shared, ledger, KEY, request)
            serving = asyncio.create_task(node.run())
            try:
                await until(lambda: self.status().contact, "the first turn")
                yield node
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)

    def status(self) -> SharedStatus:
        return read_status(self.state)


@pytest.fixture
def places(tmp_path: Path, shared_database: TestDatabase) -> Iterator[list[Place]]:
    with ExitStack() as stack:
        found = []
        for name in "ab":
            state = tmp_path / name
            state.mkdir()
            store_key(state / "key", KEY)
            with Filter.open(state, _bits=12) as spam_filter:
                spam_filter.ledger.join()
                fingerprint = spam_filter.ledger.fingerprint
            proxy = stack.enter_context(partition(shared_database.server.port))
            shared = shared_database.settings(proxy.port, tls=False)
            found.append(Place(state, proxy, Settings(state, (), shared=shared), []))
        shared_database.query("UPDATE spamguard.cluster SET fingerprint = %s", fingerprint)
        yield found


def test_all_nodes_tell_where_settled_tables_differ(places, caplog):
    a, b = places
    mail = [(label, b"Subject: %d\n\n%s words\n" % (n, label.encode())) for n in range(6)
            for label in ("ham", "spam")]  # fmt: skip
    with Filter.open(a.state) as spam_filter:
        for label, raw in mail:
            spam_filter.learn(raw, label)

    def settle(place: Place) -> None:
        with Filter.open(place.state) as spam_filter:
            assert spam_filter.follow_shared_log()

    def harm(place: Place) -> None:
        with Filter.open(place.state) as spam_filter:
            store = spam_filter._store
            store.tables.fusion_biases += 1
            stamp = SnapshotStamp(seq=10, settled=10)
            assert store._publish(store.tables, stamp, store._snapshot_line, lambda: True)

    async def run() -> None:
        async with a.running() as first, b.running() as second:
            for place in places:
                await until(lambda place=place: place.status().position == 12, "all is here")
                assert place.settled, "the process that settles is asked for"
                assert place.status().joining, "it has not settled yet"
                await asyncio.to_thread(settle, place)
                await until(lambda place=place: not place.status().joining, "it has settled")
            for node in (first, second, first):
                await node._report(node._database())
            assert not a.status().alarms
            await asyncio.to_thread(harm, b)
            for node in (second, first):
                await node._report(node._database())
            for place in places:
                await until(lambda place=place: place.status().alarms, "it is told")
                assert "settled at position 10 of the shared log differ" in a.status().alarms[0]

    asyncio.run(run())


def test_away_is_told_to_those_who_ask(places):
    a, _ = places

    async def run() -> None:
        async with a.running():
            a.proxy.refuse()
            await until(lambda: a.status().away_since, "it notices")
            for ask in (client.burn, client.forget):
                with pytest.raises(UnavailableError, match="away: try again"):
                    await asyncio.to_thread(ask, a.state, "0" * 16)
            status = a.status()
            assert next(status.notes(status.written + 20)).startswith("shared log: away for")

    asyncio.run(run())
    with pytest.raises(UnavailableError, match="the courier does not answer"):
        client.burn(a.state, "0" * 16)


@pytest.mark.parametrize(
    "data",
    [b"\n", b"{}\n", b"[1]\n", b'{"do": "forget"}\n', b"\xff\n", b"[" * 60_000 + b"\n",
     b'{"do": "burn"}\n', b"x" * 200_000],
)  # fmt: skip
def test_odd_requests_do_no_harm(places, data):
    a, _ = places

    def send() -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(a.state / client.COURIER_SOCKET))
            try:
                connection.sendall(data)
                return connection.recv(65536)
            except ConnectionError:
                return b""

    async def run() -> None:
        async with a.running():
            answer = await asyncio.to_thread(send)
            assert not answer or json.loads(answer).keys() & {"error", "ok"}
            assert not await asyncio.to_thread(client.burn, a.state, "0" * 16)

    asyncio.run(run())


def test_only_its_own_user_may_ask(places):
    a, _ = places

    async def run() -> None:
        async with a.running():
            assert (a.state / client.COURIER_SOCKET).stat().st_mode & 0o777 == 0o600

    asyncio.run(run())


def test_a_ledger_that_has_not_joined_is_an_error(tmp_path, shared_database):
    with Filter.open(tmp_path, _bits=12) as spam_filter:
        shared = shared_database.settings()
        settings = Settings(tmp_path, (), shared=shared)
        with pytest.raises(LedgerError, match="run `spamguard shared join`"):
            Node(settings, shared, spam_filter.ledger, KEY, lambda: None)


def test_a_damaged_file_of_credentials_keeps_no_lesson_back(places):
    a, _ = places
    (a.state / "access.sqlite").write_bytes(b"no database" * 500)

    async def run() -> None:
        async with a.running():
            with Filter.open(a.state) as spam_filter:
                spam_filter.learn(b"Subject: x\n\none two\n", "spam")
            await until(lambda: a.status().position and not a.status().waiting, "it is sent")

    asyncio.run(run())
