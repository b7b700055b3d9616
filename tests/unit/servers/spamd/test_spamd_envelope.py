"""The envelope that clients of spamd put on top of a message."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from spamguard.config.options import Protocol
from spamguard.servers.spamd import parse_envelope
from tests.support.scanners import serving

MAIL = b"Received: from x\r\nX-Envelope-From: <evil@example.org>\r\nSubject: x\r\n\r\ntext\r\n"
EXIM = (
    b"From MAILER-DAEMON Sat Nov 21 00:05:55 2026\nX-Envelope-From: <a@x.example>\n"
    b"X-Envelope-To: anna@y.example, ben@y.example\n"
)
SPAMASS_MILTER = (
    b"X-Envelope-From: <a@x.example>\r\nX-Envelope-To: <anna@y.example>\r\n"
    b"X-Envelope-To: <ben@y.example>\r\n"
)
BOTH = ("a@x.example", ("anna@y.example", "ben@y.example"))


def test_no_bytes_make_it_slow() -> None:
    assert parse_envelope(b"X-Envelope-To: " + b"\n " * 30_000) == ("", ())
    assert parse_envelope(b"X-Envelope-To:\n" * 4000) == ("", ())


@pytest.mark.parametrize("raw", [EXIM + MAIL, SPAMASS_MILTER + MAIL])
def test_the_history_knows_them(tmp_path: Path, raw: bytes) -> None:
    async def talk() -> None:
        async with serving(tmp_path, Protocol.SPAMD) as served:
            answer = await served.say(
                b"REPORT SPAMC/1.2\r\nUser: nobody\r\nContent-length: %d\r\n\r\n" % len(raw) + raw
            )
            assert b"Spam: True" in answer
            assert served.judge.raws == [raw]
            (entry,) = served.entries
            assert entry.envelope.sender.address == BOTH[0]
            assert tuple(recipient.address for recipient in entry.envelope.recipients) == BOTH[1]

    asyncio.run(talk())
