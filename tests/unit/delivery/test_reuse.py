"""When a session serves the next message, and what happens when it was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from spamguard.delivery.smtp import SmtpNextHop
from spamguard.smtp.envelope import Recipient, Reply, Sender
from tests.support.hops import Act, Answer, FakeHop, Script, Then
from tests.support.waiting import until
from tests.unit.delivery.talks import (
    CLIENT,
    LOST,
    UNREACHABLE,
    codes,
    content,
    hand_on,
    parameters,
    talk,
)

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


@pytest.mark.parametrize("lmtp", [False, True])
def test_a_session_serves_many_messages(lmtp: bool) -> None:
    fake = FakeHop({}, lmtp=lmtp)
    assert codes(talk(fake, messages(5))) == [250] * 15
    (session,) = fake.sessions
    assert len(session.messages) == 5
    assert session.commands[-1] == "QUIT"


@pytest.mark.parametrize("step", ["MAIL", "RCPT", "DATA", "DOT"])
@pytest.mark.parametrize("answer", [b"450 4.2.0 later\r\n", b"550 5.7.1 no\r\n"])
def test_after_a_refusal_it_serves_none(step: str, answer: bytes) -> None:
    fake = FakeHop({step: [answer, b"354 go on\r\n" if step == "DATA" else b"250 ok\r\n"]})
    talk(fake, messages(2))
    assert len(fake.sessions) == 2
    assert fake.sessions[0].commands[-1] == "QUIT"


def test_one_refused_recipient_of_two_is_a_refusal() -> None:
    fake = FakeHop({"RCPT": [b"250 ok\r\n", b"550 5.1.1 who?\r\n", b"250 ok\r\n"]})

    async def run(hop: SmtpNextHop) -> None:
        await hand_on(hop, ["a@r.example", "b@r.example"])
        await hand_on(hop)

    talk(fake, run)
    assert [len(session.messages) for session in fake.sessions] == [1, 1]


def test_a_transaction_without_a_message_ends_the_session() -> None:
    fake = FakeHop({})

    async def run(hop: SmtpNextHop) -> None:
        transaction = hop.transaction(CLIENT)
        await transaction.mail(Sender("a@s.example"))
        await transaction.recipient(Recipient("b@r.example"))
        await transaction.end()
        await transaction.end()
        await hand_on(hop)

    talk(fake, run)
    assert fake.sessions[0].commands[-1] == "QUIT"
    assert len(fake.sessions) == 2


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


@pytest.mark.parametrize(
    "garbage", [b"250 ok\r\n250 more\r\n", b"250 ok\r\n4", b"250 ok\r\n421 bye\r\n"]
)
def test_a_session_that_says_too_much_serves_none(garbage: bytes) -> None:
    fake = FakeHop({"DOT": [garbage, b"250 ok\r\n"]})
    assert codes(talk(fake, messages(2))) == [250] * 6
    assert [len(session.messages) for session in fake.sessions] == [1, 1]
    assert "QUIT" not in fake.sessions[0].commands


def test_what_comes_while_a_session_waits_makes_it_unfit() -> None:
    fake = FakeHop({"DOT": [Then(b"250 ok\r\n", Act.STALL), b"250 ok\r\n"]})

    async def run(hop: SmtpNextHop) -> list[Reply]:
        replies = await hand_on(hop)
        await fake.hang_up()
        await asyncio.sleep(0.05)
        return replies + await hand_on(hop)

    assert codes(talk(fake, run)) == [250] * 6
    assert [len(session.messages) for session in fake.sessions] == [1, 1]


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


@pytest.mark.slow
def test_the_idle_time_restarts_with_every_message() -> None:
    fake = FakeHop({})
    talk(fake, messages(3, pause=1.6), idle=3.0)
    assert len(fake.sessions) == 1


def test_what_is_not_needed_goes_while_another_is_in_use() -> None:
    fake = FakeHop({})

    async def run(hop: SmtpNextHop) -> None:
        await asyncio.gather(hand_on(hop), hand_on(hop))
        while "QUIT" not in fake.commands:
            await hand_on(hop)
            await asyncio.sleep(0.05)

    talk(fake, run, idle=0.5)
    assert min(len(session.messages) for session in fake.sessions[:2]) == 1


def test_what_is_out_of_step_is_not_kept() -> None:
    fake = FakeHop({"RCPT": Act.STALL})

    async def run(hop: SmtpNextHop) -> None:
        assert (await hand_on(hop))[-1] == LOST
        assert not hop.pool._idle

    talk(fake, run, command=0.2)
    assert "QUIT" not in fake.commands


def test_only_so_many_are_kept() -> None:
    fake = FakeHop({})

    async def run(hop: SmtpNextHop) -> None:
        await asyncio.gather(*[hand_on(hop) for _ in range(5)])
        await until(lambda: fake.commands.count("QUIT") == 3)

    talk(fake, run, sessions=2)
    assert fake.commands.count("QUIT") == 5


def test_a_hop_that_does_not_answer_quit_is_not_waited_for() -> None:
    fake = FakeHop({"QUIT": Act.STALL})

    async def run(hop: SmtpNextHop) -> None:
        await hand_on(hop)
        await hop.close()

    talk(fake, run)


def test_what_is_running_at_close_finishes_and_is_not_kept() -> None:
    fake = FakeHop({})

    async def run(hop: SmtpNextHop) -> list[Reply]:
        replies = await hand_on(hop, before_data=hop.close)
        await until(lambda: fake.commands[-1] == "QUIT")
        return replies

    assert codes(talk(fake, run)) == [250] * 3


FIRST: list[Answer] = [b"250 ok\r\n"]


@pytest.mark.parametrize("death", [Act.DROP, Act.RESET, Then(b"421 4.4.2 idle\r\n", Act.DROP)])
@pytest.mark.parametrize("step", ["MAIL", "RCPT", "DATA"])
def test_a_kept_session_that_dies_is_replaced(step: str, death: Act | Then) -> None:
    good = b"354 go on\r\n" if step == "DATA" else b"250 ok\r\n"
    fake = FakeHop({step: [good, death, good]})
    assert codes(talk(fake, messages(2))) == [250] * 6
    first, second = fake.sessions
    assert (len(first.messages), len(second.messages)) == (1, 1)
    assert [command.split()[0] for command in second.commands] == [
        "EHLO",
        "MAIL",
        "RCPT",
        "DATA",
        "QUIT",
    ]


def test_a_kept_session_that_stalls_is_not() -> None:
    fake = FakeHop({"MAIL": [b"250 ok\r\n", Act.STALL, b"250 ok\r\n"]})
    assert talk(fake, messages(2), command=0.6)[3:] == [LOST]
    assert len(fake.sessions) == 1


def test_every_recipient_is_sent_again() -> None:
    answers: list[Answer] = [b"250 a\r\n", b"550 5.1.1 b\r\n", b"250 c\r\n"]
    fake = FakeHop({"RCPT": [*answers, *answers], "DATA": [Act.DROP, b"354 go on\r\n"]}, lmtp=True)
    replies = talk(fake, lambda hop: hand_on(hop, ["a@r.example", "b@r.example", "c@r.example"]))
    assert codes(replies) == [250, 250, 550, 250, 250, 250]
    assert fake.sessions[1].messages[0].recipients == ["a@r.example", "c@r.example"]


DIFFERENT: list[Script] = [
    {"MAIL": [b"250 ok\r\n", b"450 4.2.0 later\r\n"]},
    {"MAIL": [b"250 ok\r\n", b"251 other\r\n"]},
    {"RCPT": [b"250 ok\r\n", b"550 5.1.1 who?\r\n", b"550 5.1.1 who?\r\n"]},
    {"RCPT": [b"250 ok\r\n", b"550 5.1.1 who?\r\n", b"250 ok\r\n", b"250 ok\r\n"]},
    {"RCPT": [b"250 ok\r\n", b"550 5.1.1 who?\r\n", b"250 ok\r\n", b"551 5.1.1 who?\r\n"]},
    {"RCPT": [b"250 ok\r\n", b"550 5.1.1 who?\r\n", Act.DROP]},
    {"RCPT": [b"250 ok\r\n", b"550 5.1.1 who?\r\n", Act.STALL]},
]


@pytest.mark.parametrize("script", DIFFERENT)
def test_answers_that_changed_end_the_transaction(script: Script) -> None:
    fake = FakeHop({**script, "DATA": [Act.DROP, b"354 go on\r\n"]}, lmtp=True)
    replies = talk(fake, lambda hop: hand_on(hop, ["a@r.example", "b@r.example"]), command=0.6)
    assert set(replies[3:]) == {LOST}
    assert not fake.messages
    assert len(fake.sessions) == 2


def test_a_hop_that_is_down_by_then() -> None:
    fake = FakeHop({"GREETING": [b"220 hop\r\n", b"450 not now\r\n"], "DATA": Act.DROP})
    assert talk(fake, hand_on) == [Reply.from_text(250, "2.0.0 fine")] * 2 + [UNREACHABLE]


def test_it_is_tried_once_only() -> None:
    fake = FakeHop({"DATA": [b"354 go on\r\n", Act.DROP, Act.DROP, b"354 go on\r\n"]})
    assert talk(fake, messages(2))[5:] == [LOST]
    assert len(fake.sessions) == 2


def test_it_is_tried_once_for_the_whole_transaction() -> None:
    fake = FakeHop({"RCPT": [Act.DROP, b"250 ok\r\n"], "DATA": [Act.DROP, b"354 go on\r\n"]})
    assert talk(fake, hand_on)[1:] == [Reply.from_text(250, "ok"), LOST]
    assert len(fake.sessions) == 2


@pytest.mark.parametrize("lmtp", [False, True])
@pytest.mark.parametrize(
    "death",
    [Act.DROP, Act.RESET, Act.STALL, Then(b"421 4.3.2 bye\r\n", Act.DROP), b"354 go on\r\n"],
)
def test_never_after_the_final_dot(lmtp: bool, death: Answer) -> None:
    fake = FakeHop({"DOT": [b"250 ok\r\n", death, b"250 ok\r\n"]}, lmtp=lmtp)
    replies = talk(fake, messages(2), data=1)
    assert codes(replies) == [250, 250, 250, 250, 250, 451]
    assert len(fake.messages) == 2
    assert len(fake.sessions) == 1


def test_a_session_that_timed_out_during_a_long_message_is_replaced() -> None:
    """The hop says 421 unasked, while the client is still sending us its message."""
    fake = FakeHop({"RCPT": [Then(b"250 ok\r\n421 4.4.2 timeout\r\n", Act.DROP), b"250 ok\r\n"]})
    replies = talk(fake, lambda hop: hand_on(hop, before_data=lambda: asyncio.sleep(0.1)))
    assert codes(replies) == [250, 250, 250]
    assert [len(session.messages) for session in fake.sessions] == [0, 1]


def test_waiting_transactions_that_are_cancelled_leave_nothing_behind() -> None:
    fake = FakeHop({"DOT": Act.STALL})

    async def run(hop: SmtpNextHop) -> None:
        task = asyncio.create_task(hand_on(hop, message=content()))
        await until(lambda: bool(fake.messages))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    talk(fake, run)
    assert "QUIT" not in fake.commands
