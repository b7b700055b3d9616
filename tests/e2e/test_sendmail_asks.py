"""The milter door with a real Sendmail, which differs from Postfix in some events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e import daemon, sendmail
from tests.e2e.peers import Client, Hop
from tests.e2e.ports import free_port
from tests.e2e.test_milter import MAIL, stuffed
from tests.e2e.test_positions import body, fields
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(
    not sendmail.RUNS, reason="needs root, m4, and a Sendmail, unpacked by .ci/packages"
)

STRICT = """
    rules:
      - {when: spam, from_probability: 0.95, action: reject}
      - {when: spam, from_probability: 0.3, action: defer}
      - {when: unsure, from_probability: 0.3, action: defer}
"""


@dataclass
class SendmailSite:
    """A Sendmail at a port that asks a daemon, and where its mail goes."""

    port: int
    running: daemon.Daemon
    hop: Hop

    def sent(self, raw: bytes) -> bytes:
        """The last reply to a message with CRLF line ends."""
        with Client(self.port, 60) as client:
            return client.hello().begin(b"<anna@example.net>").data(stuffed(raw))

    def arrived(self, count: int) -> list[bytes]:
        """The messages; waits until there are `count`."""
        eventually(lambda: len(self.hop.messages) >= count, f"{count} messages at the next hop")
        assert len(self.hop.messages) == count
        return self.hop.messages


@contextmanager
def asked(directory: Path, more: str = "") -> Iterator[SendmailSite]:
    milter = free_port()
    file = directory / "spamguard.yaml"
    file.write_text(f"workers: 1\nscanners:\n  - listen: milter://127.0.0.1:{milter}\n{more}")
    state = daemon.taught(directory / "state")
    with (
        Hop().serving() as hop,
        daemon.running(state, "--config", str(file), port=milter) as running,
        sendmail.running(hop.port, milter) as port,
    ):
        yield SendmailSite(port, running, hop)


def test_mail_is_judged_and_tagged(tmp_path: Path) -> None:
    forged = (
        b"X-Spam-Flag: NO\r\nX-Spam-Flag : NO\r\nx-spam-STATUS: No,\r\n score=-99\r\n"
        b"X-Spamguard: ham\r\nX-Bogosity:Ham\r\n"
    )
    with asked(tmp_path) as place:
        for number, label in enumerate(("spam", "ham"), start=1):
            sent = MAIL[label][0]
            reply = place.sent(forged + sent)
            assert reply.startswith(b"250 "), reply
            raw = place.arrived(number)[-1]
            assert fields(raw, "X-Spam-Flag") == (["YES"] if label == "spam" else [])
            assert [field[:5] for field in fields(raw, "X-Spam-Status")] == [
                "Yes, " if label == "spam" else "No, s"
            ]
            assert fields(raw, "X-Bogosity") == []
            assert body(raw) == body(sent)
            assert raw.startswith(
                b"X-Spam-Flag: YES\r\n" if label == "spam" else b"X-Spam-Status: No, "
            )
            (ours,) = fields(raw, "X-Spamguard")
            (line,) = place.running.lines(re.findall("id=([0-9a-v]{16})", ours)[0])
            assert f"queue={reply.split()[2].decode()} " in line
            assert (
                "client=127.0.0.1 helo=client.example from=<a@example.org> to=<anna@example.net>"
                in line
            )


def test_transactions_aborted_between_messages(tmp_path: Path) -> None:
    """At RSET it says nothing to a filter that does not answer MAIL; the next message must not be
    put off for that.
    """
    with asked(tmp_path) as place, Client(place.port, 60) as client:
        client.hello()
        sent = (
            ("spam", b"RSET"),
            ("ham", b"EHLO again.example"),
            ("spam", b"RSET"),
            ("ham", b"XYZZY"),
        )
        for number, (label, between) in enumerate(sent, start=1):
            client.begin(b"<gone@example.net>")
            client.ask(between)
            client.ask(b"RSET")
            reply = client.begin(b"<anna@example.net>").data(stuffed(MAIL[label][0]))
            assert reply.startswith(b"250 "), reply
            raw = place.arrived(number)[
                -1
            ]  # one after the other: Sendmail hands on what it has taken in any order
            assert fields(raw, "X-Spam-Flag") == (["YES"] if label == "spam" else [])
        assert "hanging up" not in place.running.log()
        assert "gone@example.net" not in place.running.log()
