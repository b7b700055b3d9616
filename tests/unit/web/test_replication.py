"""Tokens and sessions of two nodes with one real database between them."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from spamguard.errors import AccessError
from spamguard.shared.postgres import CredentialRow, SharedDatabase
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


def test_a_token_is_valid_on_every_node(nodes):
    a, b = nodes
    secret = a.create(TOKEN, OPERATOR, name="backup")
    a.replicate()
    b.replicate()
    found = b.find(TOKEN, secret)
    assert found == a.find(TOKEN, secret)
    assert found.person == OPERATOR
    assert found.name == "backup"


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


def test_what_was_ended_while_another_node_was_away_stays_ended(nodes):
    a, b = nodes
    secret = a.create(TOKEN, name="x")
    a.replicate()
    b.replicate()
    with closing(CredentialStore.open(a.state)) as store:
        store.revoke("x")
    a.replicate()
    for _ in range(3):  # b still has it, and must not bring it back
        b.replicate()
        a.replicate()
    assert a.find(TOKEN, secret) is None
    assert b.find(TOKEN, secret) is None


def test_a_link_made_on_one_node_burns_once_for_all(nodes, shared_database):
    a, b = nodes
    secret = a.create(LINK, expires=NOW + 600)
    a.replicate()
    b.replicate()
    identity = secret.partition(".")[0]

    async def burn() -> list[bool]:
        settings = shared_database.settings(tls=False)
        opened = [await SharedDatabase.connect(settings, name * 16, MAC) for name in "abcd"]
        try:
            return await asyncio.gather(*(each.burn_link(identity) for each in opened))
        finally:
            for each in opened:
                each.close()

    assert sorted(asyncio.run(burn())) == [False, False, False, True]
    for node in (a, b):
        node.replicate()
        assert node.find(LINK, secret) is None


def test_two_tokens_of_one_name_are_both_valid(nodes):
    a, b = nodes
    secrets = [node.create(TOKEN, name="same") for node in nodes]
    for node in (a, b, a):
        node.replicate()
    for node in nodes:
        for secret in secrets:
            assert node.find(TOKEN, secret)
        assert len(set(node.names())) == 2


def test_a_later_use_is_known_elsewhere_once_an_hour(nodes, shared_database):
    a, b = nodes
    secret = a.create(SESSION)
    for node in nodes:
        node.replicate()
    with closing(CredentialStore.open(a.state)) as store:
        for later in (600, 1200):
            store.note_use(store.find(SESSION, secret, NOW), NOW + later)
            a.replicate()
        ((seen,),) = shared_database.query("SELECT seen FROM spamguard.credentials")
        assert seen == NOW
        store.note_use(store.find(SESSION, secret, NOW), NOW + 4000)
    for node in nodes:
        node.replicate()
    assert b.find(SESSION, secret).last_used == NOW + 4000


def test_another_database_gets_everything_again(nodes, postgres_server):
    a, b = nodes
    secret = a.create(TOKEN, name="x")
    a.replicate()
    with postgres_server.database() as empty:
        a.database = b.database = empty
        a.replicate()
        b.replicate()
        assert b.find(TOKEN, secret)


def test_rows_that_no_store_may_hold_are_left_out(tmp_path):
    (tmp_path / "key").write_bytes(b"k" * 32)
    with closing(CredentialReplica(tmp_path)) as replica:
        good = CredentialRow("0" * 16, "token", b"d" * 32, "n", "p", False, 1, 0, 1, 0, 7)
        odd = [
            good._replace(id="../../etc"),
            good._replace(id="1" * 16, kind="root"),
            good._replace(id="2" * 16, digest=b""),
            good._replace(id="3" * 16, person="p" * 2000),
        ]
        replica.take_in([*odd, good])
        assert replica.list_made() == []
        assert replica.begin("", 7) == 7
    with closing(CredentialStore.open(tmp_path)) as store:
        assert [each.id for each in store.list_valid(2)] == ["0" * 16]


def test_a_damaged_file_is_an_error_with_a_remedy(tmp_path):
    (tmp_path / "access.sqlite").write_bytes(b"no database" * 500)
    with pytest.raises(AccessError, match="move it away"):
        CredentialReplica(tmp_path)
