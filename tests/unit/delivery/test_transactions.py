"""The replies of a transaction for every reply or failure of the next hop before the data."""

from __future__ import annotations

import asyncio
import logging

import pytest

from spamguard.delivery.smtp import SmtpNextHop
from spamguard.smtp.envelope import Recipient, Reply, Sender
from tests.support.hops import EVERYTHING, Act, Answer, FakeHop, Then
from tests.unit.delivery.talks import (
    CLIENT,
    LOST,
    MESSAGE,
    UNREACHABLE,
    codes,
    hand_on,
    hop_to,
    parameters,
    talk,
)

pytestmark = pytest.mark.slow  # waits for seconds

REFUSED = b"550-5.7.1 no, and here\r\n550 5.7.1 is why\r\n"
FINE = Reply.from_text(250, "2.0.0 fine")
NO = Reply(550, (b"5.7.1 no, and here", b"5.7.1 is why"))


def test_a_message_goes_out_as_it_is() -> None:
    fake = FakeHop({})
    assert talk(fake, hand_on) == [FINE, FINE, FINE]
    (delivered,) = fake.messages
    assert (delivered.sender, delivered.recipients, delivered.data) == (
        "from@s.example",
        ["to@r.example"],
        MESSAGE,
    )
    assert fake.commands == [
        "EHLO me.example",
        "MAIL FROM:<from@s.example>",
        "RCPT TO:<to@r.example>",
        "DATA",
        "QUIT",
    ]


@pytest.mark.parametrize("step", ["MAIL", "RCPT", "DATA", "DOT"])
@pytest.mark.parametrize(
    ("answer", "told"), [(REFUSED, NO), (b"452 4.3.1 full\r\n", Reply.from_text(452, "4.3.1 full"))]
)
def test_a_refusal_comes_back_as_it_is(step: str, answer: bytes, told: Reply) -> None:
    fake = FakeHop({step: answer})
    assert talk(fake, hand_on)[-1] == told
    assert [session.commands[-1] for session in fake.sessions] == ["QUIT"]


@pytest.mark.parametrize("step", ["MAIL", "RCPT", "DATA", "DOT"])
@pytest.mark.parametrize(
    "nonsense",
    [
        b"hello\r\n",
        b"150 wait\r\n",
        b"\x00\xff\r\n",
        b"25",
        b"250 fine\r\n250 twice\r\n354 thrice\r\n",
    ],
)
def test_nonsense_is_never_a_yes_to_a_message(step: str, nonsense: bytes) -> None:
    fake = FakeHop({step: Then(nonsense, Act.DROP)})
    replies = talk(fake, hand_on)
    if step != "DOT" or not nonsense.startswith(b"250"):  # there, the first reply is a good one
        assert replies[-1] == LOST
    assert "QUIT" not in fake.commands


@pytest.mark.parametrize(
    ("step", "wrong"),
    [
        ("DATA", b"250 fine\r\n"),
        ("DOT", b"354 go on\r\n"),
        ("MAIL", b"354 go on\r\n"),
        ("RCPT", b"334 x\r\n"),
    ],
)
def test_a_yes_out_of_place_is_not_one(step: str, wrong: bytes) -> None:
    assert talk(FakeHop({step: wrong}), hand_on)[-1] == LOST


@pytest.mark.parametrize("step", ["GREETING", "EHLO", "MAIL", "RCPT", "DATA", "DOT"])
def test_a_hop_that_never_answers_is_given_up(step: str) -> None:
    fake = FakeHop({step: Act.STALL})
    replies = talk(fake, hand_on, command=0.6, data=0.6)
    assert replies[-1] == (UNREACHABLE if step in {"GREETING", "EHLO"} else LOST)
    assert len(fake.sessions) == 1
    assert not fake.messages or step == "DOT"


@pytest.mark.parametrize("act", [Act.DROP, Act.RESET])
@pytest.mark.parametrize("step", ["GREETING", "EHLO", "MAIL", "RCPT", "DATA", "DOT"])
def test_a_hop_that_always_hangs_up_is_given_up(step: str, act: Act) -> None:
    fake = FakeHop({step: act})
    assert talk(fake, hand_on)[-1] == (UNREACHABLE if step in {"GREETING", "EHLO"} else LOST)
    assert len(fake.sessions) == (1 if step in {"GREETING", "EHLO", "DOT"} else 2)
    assert len(fake.messages) == (step == "DOT")


@pytest.mark.parametrize("step", ["MAIL", "RCPT", "DATA", "DOT"])
@pytest.mark.parametrize(
    ("closing", "told"),
    [
        (b"421 4.3.2 going down\r\n", b"4.3.2 going down"),
        (b"421 bye\r\n", b"4.4.2 bye"),
        (b"421\r\n", b"4.4.2 "),
    ],
)
def test_a_closing_hop_does_not_close_the_client(step: str, closing: bytes, told: bytes) -> None:
    fake = FakeHop({step: Then(closing, Act.DROP)})
    assert talk(fake, hand_on)[-1] == Reply(451, (told,))
    assert len(fake.sessions) == 1


def test_after_trouble_everything_is_answered_alike_and_nothing_sent() -> None:
    fake = FakeHop({"RCPT": [b"250 ok\r\n", Act.STALL]}, lmtp=True)
    replies = talk(
        fake, lambda hop: hand_on(hop, ["a@r.example", "b@r.example", "c@r.example"]), command=0.6
    )
    assert replies == [FINE, Reply.from_text(250, "ok"), LOST, LOST, LOST]
    assert not fake.messages
    assert len(fake.sessions) == 1


def test_an_unreachable_hop() -> None:
    fake = FakeHop({})
    talk(fake, SmtpNextHop.close)

    async def run() -> list[Reply]:
        return await hand_on(hop_to(fake))

    assert asyncio.run(run()) == [UNREACHABLE]


def test_the_log_has_the_story(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeHop({"GREETING": b"554 5.7.1 secret reason\r\n"})
    assert talk(fake, hand_on) == [UNREACHABLE]
    assert "secret reason" in caplog.text


def test_refused_recipients_do_not_count() -> None:
    answers: list[Answer] = [b"250 ok\r\n", b"550 5.1.1 who?\r\n", b"250 ok\r\n"]
    smtp, lmtp = (
        FakeHop({"RCPT": answers}),
        FakeHop({"RCPT": answers, "DOT": [b"250 one\r\n", b"452 4.2.2 two\r\n"]}, lmtp=True),
    )
    three = ["a@r.example", "b@r.example", "a@r.example"]
    assert codes(talk(smtp, lambda hop: hand_on(hop, three))) == [250, 250, 550, 250, 250]
    assert talk(lmtp, lambda hop: hand_on(hop, three))[4:] == [
        Reply.from_text(250, "one"),
        Reply.from_text(452, "4.2.2 two"),
    ]
    assert lmtp.messages[0].recipients == ["a@r.example", "a@r.example"]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_lmtp_replies_that_do_not_come_are_temporary_failures(count: int) -> None:
    fake = FakeHop({"DOT": [*[b"250 ok\r\n"] * count, Act.DROP]}, lmtp=True)
    replies = talk(fake, lambda hop: hand_on(hop, ["a@r.example", "b@r.example", "c@r.example"]))
    assert replies[4:] == [Reply.from_text(250, "ok")] * count + [LOST] * (3 - count)


@pytest.mark.parametrize(
    ("behind", "told"),
    [(b"250 ok\r\n", [250, 250]), (Act.DROP, [451, 451]), (Act.STALL, [451, 451])],
)
def test_a_421_for_one_recipient_by_lmtp_does_not_hide_what_became_of_the_others(
    behind: Answer, told: list[int]
) -> None:
    """A proxy passes on what one of its servers has said. Whoever has the message must not be sent
    it again.
    """
    fake = FakeHop({"DOT": [b"421 4.3.2 bye\r\n", behind]}, lmtp=True)

    async def two_messages(hop: SmtpNextHop) -> list[Reply]:
        first = await hand_on(hop, ["a@r.example", "b@r.example", "c@r.example"])
        await (following := hop.transaction(CLIENT)).mail(Sender("next@s.example"))
        await following.end()
        return first

    assert codes(talk(fake, two_messages, data=60.0))[4:] == [451, *told]
    assert len(fake.sessions) == 2  # one that has said so serves no other message


def test_lmtp_data_that_is_refused_is_refused_for_each() -> None:
    fake = FakeHop({"DATA": b"503 5.5.1 no\r\n"}, lmtp=True)
    assert (
        talk(fake, lambda hop: hand_on(hop, ["a@r.example", "b@r.example"]))[3:]
        == [Reply.from_text(503, "5.5.1 no")] * 2
    )


ASKED = parameters(
    ("SIZE", "77"), ("BODY", "8BITMIME"), ("RET", "HDRS"), ("ENVID", "QqXx+2B"), ("AUTH", "<>")
)
WANTED = parameters(("NOTIFY", "SUCCESS,DELAY"), ("ORCPT", "rfc822;Ab@x"))


def both(extensions: bytes, caplog: pytest.LogCaptureFixture) -> list[str]:
    """MAIL and RCPT as they go out to a hop with these extensions."""
    fake = FakeHop({"EHLO": extensions})
    caplog.set_level(logging.INFO, "spamguard.relay")
    talk(
        fake,
        lambda hop: hand_on(
            hop, [Recipient("To@r.example", WANTED)] * 2, Sender("From@s.example", ASKED)
        ),
    )
    return fake.commands[1:3]


def test_parameters_go_to_a_hop_that_takes_them(caplog: pytest.LogCaptureFixture) -> None:
    mail, rcpt = both(EVERYTHING, caplog)
    assert mail == "MAIL FROM:<From@s.example> SIZE=77 BODY=8BITMIME RET=HDRS ENVID=QqXx+2B"
    assert rcpt == "RCPT TO:<To@r.example> NOTIFY=SUCCESS,DELAY ORCPT=rfc822;Ab@x"
    assert not caplog.records


def test_parameters_are_kept_from_a_hop_that_does_not(caplog: pytest.LogCaptureFixture) -> None:
    assert both(b"250 hop.example\r\n", caplog) == [
        "MAIL FROM:<From@s.example>",
        "RCPT TO:<To@r.example>",
    ]


def test_internationalised_mail_needs_a_hop_that_takes_it() -> None:
    lacking, speaking = FakeHop({"EHLO": b"250-hop\r\n250 DSN\r\n"}), FakeHop({})
    sender = Sender("ä@s.example", parameters(("SMTPUTF8", None)))
    assert talk(lacking, lambda hop: hand_on(hop, ["ä@r.example"], sender)) == [
        Reply.from_text(553, "5.6.7 next hop does not take internationalised mail")
    ]
    assert codes(talk(speaking, lambda hop: hand_on(hop, ["ä@r.example"], sender))) == [
        250,
        250,
        250,
    ]
    assert speaking.commands[1:3] == ["MAIL FROM:<ä@s.example> SMTPUTF8", "RCPT TO:<ä@r.example>"]


def test_what_goes_beyond_ascii_without_saying_so_is_for_the_hop_to_judge() -> None:
    fake = FakeHop({"EHLO": b"250-hop\r\n250 DSN\r\n", "RCPT": b"553 5.6.7 not here\r\n"})
    replies = talk(fake, lambda hop: hand_on(hop, ["ä@r.example"], Sender("ä@s.example")))
    assert (fake.commands[1:3], codes(replies)) == (
        ["MAIL FROM:<ä@s.example>", "RCPT TO:<ä@r.example>"],
        [250, 553],
    )


@pytest.mark.parametrize("pipelining", [b"", b"250-PIPELINING\r\n"])
@pytest.mark.parametrize("answer", [b"250 ok\r\n", b"501 5.5.4 no\r\n"])
def test_the_client_is_forwarded_whatever_the_hop_thinks_of_it(
    pipelining: bytes, answer: bytes
) -> None:
    fake = FakeHop(
        {
            "EHLO": b"250-hop\r\n" + pipelining + b"250 XFORWARD NAME ADDR PROTO HELO IDENT\r\n",
            "XFORWARD": answer,
        }
    )

    async def twice(hop: object) -> list[Reply]:
        return [*await hand_on(hop), *await hand_on(hop)]

    assert codes(talk(fake, twice)) == [250] * 6
    told = [command for command in fake.commands if command.startswith("XFORWARD")]
    assert len(told) == 2
    for name in (
        "NAME=client.example",
        "ADDR=192.0.2.7",
        "PROTO=ESMTP",
        "HELO=helo.example",
        "IDENT=[UNAVAILABLE]",
    ):
        assert name in told[0]
    assert "PORT" not in told[0]
    assert len(fake.sessions) == (1 if answer.startswith(b"250") else 2)


def test_a_hop_that_hangs_up_on_xforward_is_lost() -> None:
    fake = FakeHop(
        {
            "EHLO": b"250-hop\r\n250-PIPELINING\r\n250 XFORWARD NAME\r\n",
            "XFORWARD": Then(b"421 4.7.0 no\r\n", Act.DROP),
        }
    )
    assert talk(fake, hand_on) == [Reply.from_text(451, "4.7.0 no")]
