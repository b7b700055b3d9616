"""A database that is not there, falls silent, loses answers or is the wrong one."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import psycopg
import pytest

from spamguard.config.options import SharedSettings
from spamguard.config.shared import DatabaseTls
from spamguard.errors import SharedError, UnavailableError
from spamguard.ledger.events import Server
from spamguard.shared import connection
from spamguard.shared.postgres import SharedDatabase
from tests.support.certificates import self_signed
from tests.support.partition import Partition, partition
from tests.support.postgres import (
    MAC,
    PostgresServer,
    TestDatabase,
    free_port,
    needs_postgres,
    running_server,
    running_standby,
)
from tests.support.waiting import eventually
from tests.unit.shared.events import event

pytestmark = needs_postgres
NODE = "a" * 16
SOON = 60.0  # seconds: much longer than the deadlines in these tests, much shorter than for ever


@pytest.fixture
def proxy(shared_database: TestDatabase) -> Iterator[Partition]:
    """A network between the node and the database."""
    with partition(shared_database.server.port) as between:
        yield between


def test_lost_answers_lose_nothing_and_double_nothing(
    shared_database: TestDatabase, proxy: Partition
) -> None:
    """Every third answer to `append` is lost; the node calls again, as it cannot know."""
    events = [event(number) for number in range(1000)]
    choose = random.Random(1)

    async def run() -> None:
        database: SharedDatabase | None = None
        done = 0
        while done < len(events):
            batch = events[done : done + choose.randint(1, 9)]
            try:
                if database is None:
                    settings = shared_database.settings(proxy.port, tls=False)
                    database = await SharedDatabase.connect(settings, NODE, MAC)
                positions = await database.append(batch)
            except UnavailableError:
                if database is not None:
                    database.close()
                database = None
                continue
            assert positions == list(range(done + 1, done + len(batch) + 1))
            done += len(batch)
        assert database is not None
        assert (await database.head()).last == len(events)
        database.close()

    proxy.lose_answers(b"spamguard.append", every=3)
    asyncio.run(run())
    assert proxy.losses > 50
    ((count, distinct),) = shared_database.query(
        "SELECT count(*), count(DISTINCT (subject, clock, node, content)) FROM spamguard.events"
    )
    assert (count, distinct) == (1000, 1000)


@pytest.mark.parametrize("tls", [True, False])
def test_a_peer_that_never_answers_is_left_after_the_deadline(
    shared_database: TestDatabase, proxy: Partition, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    async def run() -> None:
        settings = shared_database.settings(proxy.port, tls=tls)
        database = await SharedDatabase.connect(settings, NODE, MAC)
        await database.append([event(1)])
        proxy.swallow()
        monkeypatch.setattr(connection, "EXCHANGE_SECONDS", 0.5)
        async with asyncio.timeout(SOON):
            with pytest.raises(UnavailableError, match="no answer within"):
                await database.append([event(2)])
            with pytest.raises(UnavailableError, match="closed"):
                await database.head()
            database.close()
            while proxy.connections:  # ours were closed, although nobody answered
                await asyncio.sleep(0.01)
            with pytest.raises(UnavailableError, match="cannot be reached"):
                await SharedDatabase.connect(settings, NODE, MAC)
        proxy.pass_on()
        monkeypatch.undo()
        database = await SharedDatabase.connect(settings, NODE, MAC)
        assert await database.append([event(2)]) == [2]
        database.close()

    asyncio.run(run())


def test_closing_and_cancelling_wait_for_nobody(
    shared_database: TestDatabase, proxy: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "EXCHANGE_SECONDS", 2 * SOON)

    async def run() -> None:
        for is_cancelled in (True, False):
            database = await SharedDatabase.connect(shared_database.settings(proxy.port), NODE, MAC)
            proxy.swallow()
            query = asyncio.create_task(database.head())
            await asyncio.sleep(0.05)
            async with asyncio.timeout(SOON):
                if is_cancelled:
                    query.cancel()
                else:
                    database.close()
                with pytest.raises((asyncio.CancelledError, UnavailableError)):
                    await query
                database.close()
                while proxy.connections:
                    await asyncio.sleep(0.01)
            proxy.pass_on()

    asyncio.run(run())


async def _append_many(settings: SharedSettings) -> None:
    database = await SharedDatabase.connect(settings, NODE, MAC)
    try:
        for number in range(10_000):  # until the network has sent as much as it will
            await database.append([event(number)])
    finally:
        database.close()


def test_a_refused_or_cut_connection_is_told_at_once(
    shared_database: TestDatabase, proxy: Partition
) -> None:
    async def run() -> None:
        settings = shared_database.settings(proxy.port)
        database = await SharedDatabase.connect(settings, NODE, MAC)
        proxy.refuse()
        with pytest.raises(UnavailableError):
            await database.head()
        database.close()
        with pytest.raises(UnavailableError, match="cannot be reached"):
            await SharedDatabase.connect(settings, NODE, MAC)
        proxy.pass_on()
        for count in (0, 1, 100, 1500, 4000):  # in all stages of a connection
            proxy.cut_after(count)
            with pytest.raises(UnavailableError):
                await _append_many(settings)
            proxy.pass_on()
        proxy.delay(0.02)
        database = await SharedDatabase.connect(settings, NODE, MAC)
        await database.head()
        database.close()

    asyncio.run(run())


# ---- what somebody has to mend: one line with the remedy


async def _error(settings: SharedSettings) -> SharedError:
    with pytest.raises(SharedError) as caught:
        await SharedDatabase.connect(settings, NODE, MAC)
    assert "\n" not in str(caught.value)
    return caught.value


def _wrong_settings(place: TestDatabase, directory: Path) -> list[tuple[SharedSettings, str]]:
    good = place.settings()
    wrong = directory / "password"
    wrong.write_text("wrong\n")
    other = self_signed(directory, "other")
    odd = directory / "odd.pem"
    odd.write_text("no certificate")
    return [
        (replace(good, password_file=wrong), "it refuses us: check user"),
        (replace(good, password_file=None), "it refuses us: check user"),
        (replace(good, password_file=directory / "none"), "give this user read permission"),
        (replace(good, tls=DatabaseTls(ca=other)), "it refuses us: check user"),
        (replace(good, tls=DatabaseTls()), "it refuses us: check user"),
        (replace(good, tls=DatabaseTls(ca=odd)), "it refuses us: check user"),
        (
            replace(good, database=good.database.replace("host=localhost", "host=db.example")),
            "it refuses us: check user",
        ),
        (
            replace(good, database=good.database.replace(place.name, "none")),
            "it refuses us: check user",
        ),
        (
            replace(good, database=good.database.replace("_node", "_nobody")),
            "it refuses us: check user",
        ),
        (replace(good, database="dbname='"), "shared: database"),
    ]


@pytest.mark.parametrize("number", range(10))
def test_wrong_settings_are_told_with_the_remedy(
    shared_database: TestDatabase, tmp_path: Path, number: int
) -> None:
    settings, remedy = _wrong_settings(shared_database, tmp_path)[number]
    error = asyncio.run(_error(settings))
    assert remedy in str(error)
    assert not isinstance(error, UnavailableError)


@pytest.mark.parametrize(
    ("statement", "remedy"),
    [
        ("DROP SCHEMA spamguard CASCADE", "run `spamguard shared init`"),
        ("DELETE FROM spamguard.cluster", "run `spamguard shared init`"),
        ("REVOKE USAGE ON SCHEMA spamguard FROM spamguard_node", "run `spamguard shared init`"),
        ("REVOKE SELECT ON spamguard.cluster FROM spamguard_node", "run `spamguard shared init`"),
        ("UPDATE spamguard.cluster SET schema_version = 1", "run `spamguard shared upgrade`"),
        ("UPDATE spamguard.cluster SET min_writer = 3", "update spamguard on this node"),
        ("UPDATE spamguard.cluster SET fingerprint = 'fedc'", "copy the key of another node"),
    ],
)
def test_a_wrong_database_is_told_with_the_remedy(
    shared_database: TestDatabase, statement: str, remedy: str
) -> None:
    shared_database.query(statement)
    error = asyncio.run(_error(shared_database.settings()))
    assert remedy in str(error)
    assert not isinstance(error, UnavailableError)


def test_a_newer_schema_is_used_while_it_admits_this_program(
    shared_database: TestDatabase,
) -> None:
    async def run() -> None:
        shared_database.query("UPDATE spamguard.cluster SET schema_version = 7")
        database = await SharedDatabase.connect(shared_database.settings(), NODE, MAC)
        assert await database.append([event(1)]) == [1]
        database.close()

    asyncio.run(run())


def test_a_missing_function_or_right_is_told_and_the_connection_stays(
    shared_database: TestDatabase,
) -> None:
    async def run() -> None:
        database = await SharedDatabase.connect(shared_database.settings(), NODE, MAC)
        shared_database.query("DROP FUNCTION spamguard.burn_link")
        with pytest.raises(SharedError, match="run `spamguard shared init`"):
            await database.burn_link("x")
        shared_database.query("REVOKE SELECT ON spamguard.nodes FROM spamguard_node")
        with pytest.raises(SharedError, match="run `spamguard shared init`"):
            await database.nodes()
        assert (await database.head()).last == 0
        database.close()

    asyncio.run(run())


def test_a_host_that_is_not_there_is_tried_again(shared_database: TestDatabase) -> None:
    settings = shared_database.settings()
    port = f"port={shared_database.server.port}"
    gone = replace(settings, database=settings.database.replace(port, f"port={free_port()}"))
    error = asyncio.run(_error(gone))
    assert isinstance(error, UnavailableError)


def test_of_several_hosts_the_primary_is_found(
    shared_database: TestDatabase, postgres_server: PostgresServer, proxy: Partition
) -> None:
    """Also when it is another one than before, and what the old one alone had is missing."""

    async def run(standby: PostgresServer) -> None:
        settings = shared_database.settings(free_port(), standby.port, proxy.port)
        database = await SharedDatabase.connect(settings, NODE, MAC)
        await database.append([event(1), event(2)])
        copy = TestDatabase(standby, shared_database.name)
        last = "SELECT last FROM spamguard.log"
        await asyncio.to_thread(eventually, lambda: copy.query(last) == [(2,)])
        proxy.swallow()
        database.close()
        with pytest.raises(UnavailableError):
            await SharedDatabase.connect(settings, NODE, MAC)
        copy.query("SELECT pg_promote()")
        database = await SharedDatabase.connect(settings, NODE, MAC)
        assert await database.append([event(2), event(3)]) == [2, 3]
        assert copy.query(last) == [(3,)]
        database.close()

    with running_standby(postgres_server, postgres_server.port) as standby:
        asyncio.run(run(standby))


def test_an_old_primary_and_another_server_are_refused(
    shared_database: TestDatabase, postgres_server: PostgresServer
) -> None:
    """Both take writes. The next host is tried, and who has seen no timeline believes any."""

    async def connect(known: Server | None, *ports: int) -> tuple[Server, str]:
        settings = shared_database.settings(*ports)
        database = await SharedDatabase.connect(settings, NODE, MAC, known)
        database.close()
        return database.server, database.refused

    async def run(standby: PostgresServer) -> None:
        old, _ = await connect(None, postgres_server.port)
        with psycopg.connect(standby.superuser_dsn("postgres")) as admin:
            admin.execute("SELECT pg_promote()")
        new, _ = await connect(old, standby.port)  # at once, before any checkpoint
        assert new == (old.system, old.timeline + 1)
        for known in (old, None):
            assert await connect(known, postgres_server.port, standby.port) == (old, "")
        server, refused = await connect(new, postgres_server.port, standby.port)
        assert server == new
        assert f"{postgres_server.port}: an old primary: stop it" in refused
        for known, problem in (
            (new, "an old primary: stop it"),
            (old._replace(system=1), "another server than before"),
        ):
            with pytest.raises(SharedError, match=problem) as caught:
                await connect(known, postgres_server.port)
            assert "spamguard shared join" in str(caught.value)
            assert not isinstance(caught.value, UnavailableError)

    with running_standby(postgres_server, postgres_server.port) as standby:
        asyncio.run(run(standby))


def test_what_was_acknowledged_survives_a_crash_of_the_server(tmp_path: Path) -> None:
    events = [event(number) for number in range(50)]

    async def run() -> None:
        with running_server() as server, server.database() as place:
            database = await SharedDatabase.connect(place.settings(), NODE, MAC)
            await database.append(events)
            rows = await database.read_page(0, 99)
            server.stop(signal.SIGKILL)
            with pytest.raises(UnavailableError):
                await database.head()
            database.close()
            server.start()
            database = await SharedDatabase.connect(place.settings(), NODE, MAC)
            assert await database.read_page(0, 99) == rows
            assert sha256(rows[-1].event.body).digest()[:16] == rows[-1].event.content
            place.query(f"ALTER DATABASE {place.name} SET default_transaction_read_only = on")
            with pytest.raises(UnavailableError, match="cannot be reached"):
                await SharedDatabase.connect(place.settings(), NODE, MAC)  # no primary
            database.close()

    asyncio.run(run())
