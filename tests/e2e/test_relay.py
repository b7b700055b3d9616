"""Delivery to servers of other projects: Postfix, Dovecot, smtp-sink."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from spamguard.config.options import Endpoint, Hop, Protocol
from spamguard.delivery.smtp import SmtpNextHop
from spamguard.smtp.envelope import Client, EsmtpParameter, Recipient, Reply, Sender
from spamguard.storage import Spool, SpoolView
from tests.e2e import dovecot, postfix
from tests.support.sinks import SINK, smtp_sink

SENDER = Sender(
    "from@example.org",
    (
        EsmtpParameter("SIZE", "100"),
        EsmtpParameter("BODY", "8BITMIME"),
        EsmtpParameter("RET", "HDRS"),
    ),
)
FIELDS = (
    b"From: <from@example.org>\r\nDate: Fri, 20 Nov 2026 12:00:00 +0000\r\n"
    b"Message-Id: <1@example.org>\r\n"
)  # Postfix adds what lacks
BODIES = [
    FIELDS + b"Subject: dots\r\n\r\n.\r\n..\r\n.x\r\n\r\n.\r\n",
    FIELDS + b"Subject: 8 bits\r\n\r\n\xc3\xa4\xff\x80\r\n",
    FIELDS + b"Subject: empty\r\n\r\n",
    FIELDS + b"Subject: large\r\n\r\n" + b"0123456789012345678901234567890123456789\r\n" * 50_000,
]
with_sink = pytest.mark.skipif(SINK is None, reason="no smtp-sink here")
with_dovecot = pytest.mark.skipif(shutil.which("dovecot") is None, reason="no Dovecot here")
with_postfix = pytest.mark.skipif(shutil.which("postfix") is None, reason="no Postfix here")


def way_to(endpoint: Endpoint) -> SmtpNextHop:
    return SmtpNextHop(Hop(endpoint, command=20, data=20), "me.example.org")


async def hand_on(
    hop: SmtpNextHop, body: bytes, recipients: Sequence[str], directory: Path
) -> list[Reply]:
    """Replies to MAIL, to each RCPT, to the data."""
    spool = Spool(directory)
    spool.write(body)
    transaction = hop.transaction(Client("192.0.2.7", "client.example.org", peer="127.0.0.1"))
    try:
        replies = [await transaction.mail(SENDER)]
        if replies[0].is_positive:
            replies += [
                await transaction.recipient(Recipient(recipient)) for recipient in recipients
            ]
        return (
            [*replies, *await transaction.send(SpoolView(b"X-Spam-Flag: NO\r\n", spool, 0))]
            if replies[-1].is_positive
            else replies
        )
    finally:
        await transaction.end()
        spool.close()


def hand_on_all(
    endpoint: Endpoint, bodies: Sequence[bytes], recipients: Sequence[str], directory: Path
) -> list[list[int]]:
    """The codes of the replies to each message."""

    async def run() -> list[list[int]]:
        hop = way_to(endpoint)
        await hop.probe()
        replies = [await hand_on(hop, body, recipients, directory) for body in bodies]
        await hop.close()
        return [[reply.code for reply in some] for some in replies]

    return asyncio.run(run())


def bodies_of(messages: Sequence[bytes]) -> list[bytes]:
    """From our own field on, with CRLF line ends; in no order."""
    return sorted(
        message[message.index(b"X-Spam-Flag: NO") :]
        .split(b"\n", 1)[1]
        .replace(b"\r\n", b"\n")
        .replace(b"\n", b"\r\n")
        for message in messages
    )


@with_dovecot
def test_dovecot_by_lmtp(tmp_path: Path) -> None:
    with dovecot.running() as server:
        endpoints = [
            Endpoint(Protocol.LMTP, path=server.lmtp_socket),
            Endpoint(Protocol.LMTP, "127.0.0.1", server.lmtp_port),
        ]
        for endpoint in endpoints:
            codes = hand_on_all(
                endpoint,
                BODIES,
                ["anna@example.net", "ben@example.net", "anna@example.net"],
                tmp_path,
            )
            assert codes == [[250] * 7] * len(BODIES)
        assert (
            server.log().count("Connect from") <= 2 + 1
        )  # the first only looked whether the port is open
        for user in ("anna", "ben"):  # Dovecot keeps one copy for each, however often she is named
            assert bodies_of(server.delivered(user, len(BODIES) * 2)) == sorted(BODIES * 2)


@with_postfix
def test_postfix_by_smtp(tmp_path: Path) -> None:
    with postfix.running(None) as server:
        endpoint = Endpoint(Protocol.SMTP, "127.0.0.1", server.smtp_port)
        assert hand_on_all(endpoint, BODIES, ["anna@example.net"], tmp_path) == [[250] * 3] * len(
            BODIES
        )
        assert hand_on_all(endpoint, BODIES[:1], ["nobody@example.net"], tmp_path) == [[250, 550]]
        assert bodies_of(server.delivered(len(BODIES))) == sorted(BODIES)
        assert (
            server.log().count(" connect from ") <= 2 + 1
        )  # the first only looked whether the port is open
        assert "improper" not in server.log()


@with_sink
@pytest.mark.parametrize(
    ("protocol", "options", "codes"),
    [
        (Protocol.SMTP, (), [250, 250, 250, 250]),
        (Protocol.SMTP, ("-e", "-p", "-8"), [250, 250, 250, 250]),
        (Protocol.LMTP, (), [250, 250, 250, 250, 250]),
        (Protocol.SMTP, ("-f", "mail"), [500]),
        (Protocol.SMTP, ("-r", "rcpt"), [250, 450, 450]),
        (Protocol.SMTP, ("-f", "."), [250, 250, 250, 500]),
        (Protocol.LMTP, ("-r", "."), [250, 250, 250, 450, 450]),
        (Protocol.SMTP, ("-f", "data"), [250, 250, 250, 500]),
        (Protocol.SMTP, ("-q", "data"), [250, 250, 250, 451]),
        (Protocol.SMTP, ("-Q", "."), [250, 250, 250, 451]),
        (Protocol.SMTP, ("-q", "connect"), [451]),
        (Protocol.SMTP, ("-q", "mail"), [451]),
    ],
)
def test_smtp_sink_in_all_moods(
    protocol: Protocol, options: Sequence[str], codes: list[int], tmp_path: Path
) -> None:
    with smtp_sink(*options, protocol=protocol) as endpoint:
        assert (
            hand_on_all(endpoint, [BODIES[0]] * 3, ["a@r.example", "b@r.example"], tmp_path)
            == [codes] * 3
        )
