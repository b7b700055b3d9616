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
from spamguard.errors import LedgerError, SharedError, UnavailableError
from spamguard.keys import store_key
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.shared import client
from spamguard.shared.status import SharedStatus, read_status
from tests.support.partition import Partition, partition
from tests.support.postgres import TestDatabase, needs_postgres, postgres_server, shared_database
from tests.support.waiting import until

pytestmark = needs_postgres
__all__ = ["postgres_server", "shared_database"]
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


def take_lease(state: Path) -> bool:
    with client.settle_lease(state) as lease:
        return lease is not None


def test_one_of_all_nodes_has_the_lease_while_its_connection_is_open(places):
    a, b = places

    async def run() -> None:
        async with a.running(), b.running():
            held = client.settle_lease(a.state)
            assert await asyncio.to_thread(held.__enter__)
            for place in places:
                assert not await asyncio.to_thread(take_lease, place.state)
            await asyncio.to_thread(held.__exit__, None, None, None)
            async with asyncio.timeout(30):
                while not await asyncio.to_thread(take_lease, b.state):
                    await asyncio.sleep(0.05)

    asyncio.run(run())


def test_away_is_told_to_those_who_ask(places):
    a, _ = places

    async def run() -> None:
        async with a.running():
            a.proxy.refuse()
            await until(lambda: a.status().away_since, "it notices")
            for ask in (take_lease, lambda state: client.burn(state, "0" * 16)):
                with pytest.raises(UnavailableError, match="away: try again"):
                    await asyncio.to_thread(ask, a.state)
            status = a.status()
            assert next(status.notes(status.written + 20)).startswith("shared log: away for")

    asyncio.run(run())
    with pytest.raises(UnavailableError, match="the courier does not answer"):
        client.burn(a.state, "0" * 16)


def test_publishing_without_a_settled_snapshot_is_refused(places):
    a, _ = places

    async def run() -> None:
        async with a.running():

            def publish() -> None:
                with client.settle_lease(a.state) as send:
                    assert send is not None
                    send()

            with pytest.raises(SharedError, match="no settled snapshot"):
                await asyncio.to_thread(publish)

    asyncio.run(run())


@pytest.mark.parametrize(
    "data",
    [b"\n", b"{}\n", b"[1]\n", b'{"do": "publish"}\n', b"\xff\n", b"[" * 60_000 + b"\n",
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
