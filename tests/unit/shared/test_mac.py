"""The password of the database alone does no harm: what it opens, and what nodes believe."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from psycopg import errors, sql

from spamguard.errors import SharedError
from spamguard.ledger.events import SharedEvent, encode_event
from spamguard.ledger.votes import add_version, make_class_vote
from spamguard.shared.mac import RowMac
from spamguard.shared.postgres import SharedDatabase
from tests.support.postgres import MAC, TestDatabase, needs_postgres
from tests.unit.filters import mail, teach
from tests.unit.shared.nodes import Site
from tests.unit.shared.test_rights import FUNCTIONS, node_connection

pytestmark = needs_postgres
MAIL = mail(60)
NODE = "a" * 16
APPEND = f"SELECT * FROM spamguard.append({', '.join(['ARRAY[%s]'] * 7)})"


def class_event(clock: int) -> SharedEvent:
    """A vote on a class, as a node that somebody broke into could cast it."""
    return encode_event(add_version(make_class_vote("ham", False, int(time.time())), clock, "evil"))


def run(
    place: TestDatabase, mac: RowMac, work: Callable[[SharedDatabase], Awaitable[None]]
) -> None:
    """Do this with an open connection."""

    async def connected() -> None:
        database = await SharedDatabase.connect(place.settings(tls=False), NODE, mac)
        try:
            await work(database)
        finally:
            database.close()

    asyncio.run(connected())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_without_the_key_no_function_does_anything(
    shared_database: TestDatabase, name: str
) -> None:
    ((arguments,),) = shared_database.query(
        "SELECT array(SELECT unnest(proargtypes)::regtype::text) FROM pg_proc "
        "WHERE proname = %s AND pronamespace = 'spamguard'::regnamespace",
        name,
    )
    values = sql.SQL(", ").join(sql.SQL("NULL::" + kind) for kind in arguments)
    call = sql.SQL("SELECT spamguard.{}({})").format(sql.Identifier(name), values)
    with node_connection(shared_database) as node:
        for secret in (None, "", MAC.secret[::-1]):
            if secret is not None:
                node.execute("SELECT set_config('spamguard.secret', %s, false)", (secret,))
            with pytest.raises(errors.InsufficientPrivilege, match="key of the installation"):
                node.execute(call)


def test_a_vote_that_no_node_cast_teaches_nobody_and_stops_nobody(nodes: Site) -> None:
    first, second = nodes.node(), nodes.node()
    teach(first.filter, MAIL[:20])
    nodes.converge()
    forged = "UPDATE spamguard.events SET mac = %s WHERE position = 10 RETURNING position"
    assert nodes.database.query(forged, b"m" * 16) == [(10,)]
    third = nodes.node()
    teach(second.filter, MAIL[20:40])
    teach(first.filter, MAIL[40:41])
    (waiting,) = first.log.read_pending(1, 1 << 20)
    nodes.database.query(APPEND, *waiting, b"m" * 16)  # it is there before the real one
    nodes.converge()
    votes = [set(node.filter.ledger.all_votes()) for node in nodes.nodes]
    assert votes[0] == votes[1]
    assert votes[2] < votes[0]
    assert len(votes[0] - votes[2]) == 1
    assert third.courier.skipped == 0  # it is counted as what nobody wrote


def test_a_clock_far_above_all_others_is_refused_and_skipped(nodes: Site) -> None:
    first, second = nodes.node(), nodes.node()
    teach(first.filter, MAIL[:5])
    nodes.converge()
    position = first.log.head().position
    fine, far = class_event(2**32), class_event(2**62 - 1)

    async def push(opened: SharedDatabase) -> None:
        with pytest.raises(SharedError, match="far above all others"):
            await opened.append([fine, far])
        assert await opened.append([fine]) == [position + 1]

    run(nodes.database, MAC, push)
    nodes.database.query("UPDATE spamguard.log SET clock = %s", 2**62 - 2)  # it took more then
    run(nodes.database, MAC, lambda opened: opened.append([far]))
    nodes.converge()
    assert [node.courier.skipped for node in (first, second)] == [1, 1]
    assert "skipped" in second.courier.alarms
    teach(first.filter, MAIL[5:10])
    teach(second.filter, MAIL[10:15])
    nodes.converge()
    votes = [set(node.filter.ledger.all_votes()) for node in (first, second)]
    assert votes[0] == votes[1]
    assert max(vote.clock for vote in votes[0]) < 2**33
