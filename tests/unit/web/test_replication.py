"""Tokens and sessions of two nodes with one real database between them."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from spamguard.shared.postgres import SharedDatabase
from spamguard.web.auth import CredentialKind, CredentialStore, Person
from spamguard.web.replication import CredentialReplica, replicate
from tests.support.postgres import (
    MAC,
    TestDatabase,
    needs_postgres,
    postgres_server,
    shared_database,
)

pytestmark = needs_postgres
__all__ = ["postgres_server", "shared_database"]
NOW = 4_000_000_000  # nothing is too old for the database's clock
ANNA, OPERATOR = Person("anna"), Person("boss", operator=True)
TOKEN, LINK, SESSION = CredentialKind.TOKEN, CredentialKind.LINK, CredentialKind.SESSION


class Node:
    """The credentials of one node."""

    def __init__(self, state: Path, database: TestDatabase) -> None:
        state.mkdir()
        self.state = state
        self.database = database

    def create(self, kind: CredentialKind, person: Person = ANNA, **more: object) -> str:
        with closing(CredentialStore.open(self.state)) as store:
            return store.create(kind, person, NOW, **more)

    def find(self, kind: CredentialKind, secret: str):
        with closing(CredentialStore.open(self.state)) as store:
            return store.find(kind, secret, NOW)

    def names(self) -> list[str]:
        with closing(CredentialStore.open(self.state)) as store:
            return [each.name for each in store.list_valid(NOW)]

    def replicate(self) -> None:
        async def run() -> None:
            settings = self.database.settings(tls=False)
            database = await SharedDatabase.connect(settings, "a" * 16, MAC)
            try:
                with closing(CredentialReplica(self.state)) as replica:
                    await replicate(database, replica)
            finally:
                database.close()

        asyncio.run(run())


@pytest.fixture
def nodes(tmp_path, shared_database):
    return [Node(tmp_path / name, shared_database) for name in "ab"]


def test_what_one_node_ends_is_ended_on_all(nodes):
    a, b = nodes
    token, session = a.create(TOKEN, name="x"), a.create(SESSION)
    for node in (a, b):
        node.replicate()
    with closing(CredentialStore.open(b.state)) as store:
        assert store.revoke("x")
        assert store.end_sessions("anna") == 1
    for node in (b, a, b):
        node.replicate()
    for node in nodes:
        assert node.find(TOKEN, token) is None
        assert node.find(SESSION, session) is None


def test_two_tokens_of_one_name_are_both_valid(nodes):
    a, b = nodes
    secrets = [node.create(TOKEN, name="same") for node in nodes]
    for node in (a, b, a):
        node.replicate()
    for node in nodes:
        for secret in secrets:
            assert node.find(TOKEN, secret)
        assert len(set(node.names())) == 2
