"""When a session serves the next message, and what happens when it was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from spamguard.delivery.smtp import SmtpNextHop
from spamguard.smtp.envelope import Reply, Sender
from tests.support.hops import Act, FakeHop, Then
from tests.support.waiting import until
from tests.unit.delivery.talks import UNREACHABLE, codes, content, hand_on, parameters, talk

pytestmark = pytest.mark.slow  # waits for seconds


def messages(count: int, pause: float = 0.0) -> Callable[[SmtpNextHop], Awaitable[list[Reply]]]:
    """So many messages, one after the other; all replies."""

    async def run(hop: SmtpNextHop) -> list[Reply]:
        replies: list[Reply] = []
        for _ in range(count):
            replies += await hand_on(hop)
            await asyncio.sleep(pause)
        return replies

    return run


def test_an_unused_transaction_keeps_the_session() -> None:
    fake = FakeHop({"EHLO": b"250 hop\r\n"})

    async def run(hop: SmtpNextHop) -> None:
        await hand_on(hop)
        assert codes(
            await hand_on(hop, sender=Sender("ä@s.example", parameters(("SMTPUTF8", None))))
        ) == [553]
        await hand_on(hop)

    talk(fake, run)
    assert len(fake.sessions) == 1


def test_a_session_that_died_while_it_waited_costs_no_attempt() -> None:
    fake = FakeHop(
        {
            "DOT": [Then(b"250 ok\r\n", Act.DROP), b"250 ok\r\n"],
            "DATA": [b"354 go on\r\n", Act.DROP, b"354 go on\r\n"],
        }
    )
    assert codes(talk(fake, messages(2, pause=0.1))) == [250] * 6
    assert [len(session.messages) for session in fake.sessions] == [1, 0, 1]


def test_sessions_are_kept_for_a_time() -> None:
    fake = FakeHop({})

    async def run(hop: SmtpNextHop) -> None:
        await hand_on(hop)
        await until(lambda: fake.commands[-1] == "QUIT")
        await hand_on(hop)

    talk(fake, run, idle=0.1)
    assert len(fake.sessions) == 2


def test_a_hop_that_is_down_by_then() -> None:
    fake = FakeHop({"GREETING": [b"220 hop\r\n", b"450 not now\r\n"], "DATA": Act.DROP})
    assert talk(fake, hand_on) == [Reply.from_text(250, "2.0.0 fine")] * 2 + [UNREACHABLE]


def test_waiting_transactions_that_are_cancelled_leave_nothing_behind() -> None:
    fake = FakeHop({"DOT": Act.STALL})

    async def run(hop: SmtpNextHop) -> None:
        task = asyncio.create_task(hand_on(hop, message=content()))
        await until(lambda: bool(fake.messages))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    talk(fake, run)
    assert "QUIT" not in fake.commands
