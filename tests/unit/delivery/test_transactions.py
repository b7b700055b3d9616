"""The replies of a transaction for every reply or failure of the next hop before the data."""

from __future__ import annotations

import logging

import pytest

from spamguard.smtp.envelope import Recipient, Reply, Sender
from tests.support.hops import Act, FakeHop, Then
from tests.unit.delivery.talks import codes, hand_on, parameters, talk

pytestmark = pytest.mark.slow  # waits for seconds


@pytest.mark.parametrize("step", ["MAIL", "RCPT", "DATA", "DOT"])
@pytest.mark.parametrize(
    ("closing", "told"),
    [
        (b"421 4.3.2 going down\r\n", b"4.3.2 going down"),
        (b"421 bye\r\n", b"bye"),
        (b"421\r\n", b""),
    ],
)
def test_a_closing_hop_does_not_close_the_client(step: str, closing: bytes, told: bytes) -> None:
    fake = FakeHop({step: Then(closing, Act.DROP)})
    assert talk(fake, hand_on)[-1] == Reply(451, (told,))
    assert len(fake.sessions) == 1


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


def test_parameters_are_kept_from_a_hop_that_does_not(caplog: pytest.LogCaptureFixture) -> None:
    assert both(b"250 hop.example\r\n", caplog) == [
        "MAIL FROM:<From@s.example>",
        "RCPT TO:<To@r.example>",
    ]


@pytest.mark.parametrize("answer", [b"250 ok\r\n", b"501 5.5.4 no\r\n"])
def test_the_client_is_forwarded_whatever_the_hop_thinks_of_it(answer: bytes) -> None:
    fake = FakeHop(
        {
            "EHLO": b"250-hop\r\n250 XFORWARD NAME ADDR PROTO HELO IDENT\r\n",
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
