"""A courier's turns between a real ledger and a real PostgreSQL, and what can go wrong there."""

from __future__ import annotations

import asyncio
import random
from hashlib import sha256

import pytest

from spamguard.errors import SharedError, UnavailableError
from tests.support.postgres import MAC, needs_postgres
from tests.support.waiting import until
from tests.unit.shared.nodes import set_back

pytestmark = needs_postgres


def names(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def test_a_lost_answer_doubles_nothing(nodes):
    a, b = nodes.node(), nodes.node()
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


def test_a_tail_that_was_replaced_by_others_of_the_same_length(nodes):
    """Log and copy are equally long, and only the chains tell that they differ."""
    a, b, c = nodes.node(), nodes.node(), nodes.node()
    a.cast(*names("a", 20))
    a.turn()
    b.turn()
    set_back(nodes.database, 10)
    c.cast(*names("c", 10))
    c.turn()
    for node in (a, b, c, a, b):
        node.turn()
    assert a.events() == b.events() == c.events()
    assert len(a.events()) == 30


def test_a_copy_longer_than_its_marks_is_cut_at_the_last_thousandth(nodes):
    a, b = nodes.node(), nodes.node()
    a.cast(*names("a", 2600))
    a.turn()
    set_back(nodes.database, 1400)
    for node in (a, b):
        node.turn()
    assert a.events() == b.events()
    assert len(a.events()) == 2600


def test_hostile_rows_are_named_once_and_skipped(nodes, caplog):
    a, b = nodes.node(), nodes.node()
    a.cast(*names("a", 3))
    a.turn()
    b.turn()
    body = b"\x07ab"
    row = (bytes(range(16)), 9, "evil", sha256(body).digest()[:16], 1, body)
    nodes.database.query(
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


def test_a_broken_chain_is_an_error_and_changes_nothing(nodes):
    a, b = nodes.node(), nodes.node()
    a.cast(*names("a", 5))
    a.turn()
    nodes.database.query("UPDATE spamguard.events SET chain = '\\x01' WHERE position = 3")
    with pytest.raises(SharedError, match="damaged behind event 0: restore") as caught:
        b.turn()
    assert not isinstance(caught.value, UnavailableError)
    assert b.events() == []


def test_a_missing_row_is_an_error(nodes):
    a, b = nodes.node(), nodes.node()
    a.cast(*names("a", 5))
    a.turn()
    nodes.database.query("DELETE FROM spamguard.events WHERE position > 3")
    with pytest.raises(SharedError, match="lacks event 4: restore"):
        b.turn()


def test_any_order_of_trouble_ends_in_equal_logs(nodes):
    chance = random.Random(11)
    three = [nodes.node() for _ in range(3)]
    cast = set()
    for step in range(120):
        node = chance.choice(three)
        action = chance.random()
        if action < 0.5:
            digests = names(f"{step}-", chance.randrange(1, 9))
            node.cast(*digests)
            cast.update(digests)
        elif action < 0.6:
            node.proxy.cut_after(chance.randrange(2000))
        elif action < 0.63:
            ((last,),) = nodes.database.query("SELECT last FROM spamguard.log")
            set_back(nodes.database, chance.randrange(last + 1))
        else:
            try:
                node.turn()
            except UnavailableError:
                node.proxy.pass_on()
    for node in 3 * three:
        node.proxy.pass_on()
        node.turn()
    assert three[0].events() == three[1].events() == three[2].events()
    digests = [digest for _, digest, _ in three[0].events()]
    assert len(digests) == len(set(digests))
    assert set(digests) == cast


# ---- the loop


def test_what_somebody_has_to_mend_is_an_alarm(nodes):
    a = nodes.node()
    nodes.database.query("UPDATE spamguard.cluster SET fingerprint = 'ffff'")

    async def run() -> None:
        running = asyncio.create_task(a.courier.run())
        await until(lambda: a.courier.alarms, "it is told")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
    assert "copy the key" in a.courier.alarms["log"]
    assert a.log.state().away
