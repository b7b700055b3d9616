"""A database that is not there, falls silent, loses answers or is the wrong one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
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
    needs_postgres,
    running_standby,
)
from tests.unit.shared.events import event

pytestmark = needs_postgres
NODE = "a" * 16
SOON = 60.0  # seconds: much longer than the deadlines in these tests, much shorter than for ever


@pytest.fixture
def proxy(shared_database: TestDatabase) -> Iterator[Partition]:
    """A network between the node and the database."""
    with partition(shared_database.server.port) as between:
        yield between


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
    refused = "it refuses us: check user"
    return [
        (replace(good, password_file=wrong), refused),
        (replace(good, password_file=directory / "none"), "give this user read permission"),
        (replace(good, tls=DatabaseTls(ca=self_signed(directory, "other"))), refused),
        (replace(good, tls=DatabaseTls()), refused),
        (replace(good, database=good.database.replace("=localhost", "=db.example")), refused),
        (replace(good, database="dbname='"), "shared: database"),
    ]


@pytest.mark.parametrize("number", range(6))
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
        ("REVOKE SELECT ON spamguard.cluster FROM spamguard_node", "run `spamguard shared init`"),
        ("UPDATE spamguard.cluster SET schema_version = 1", "run `spamguard shared upgrade`"),
        ("UPDATE spamguard.cluster SET min_writer = 4", "update spamguard on this node"),
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
