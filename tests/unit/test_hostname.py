"""Our name, whatever this machine is called."""

from __future__ import annotations

import socket

import pytest

from spamguard.config.options import Endpoint, Hop, Protocol
from spamguard.delivery.smtp import SmtpNextHop
from spamguard.log import hostname


@pytest.mark.parametrize(
    ("machine", "told"),
    [
        ("mx.example.org", "mx.example.org"),
        ("under_scored", "under_scored"),
        ("MX-1", "MX-1"),
        ("bücherei.example", "xn--bcherei-n2a.example"),
        ("", "localhost"),
        ("two words", "localhost"),
        ("evil\r\nRSET", "localhost"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), "localhost"),
        ("ü" * 60, "localhost"),
    ],
)
def test_it_can_be_said_to_any_server(
    monkeypatch: pytest.MonkeyPatch, machine: str, told: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: machine)
    assert hostname() == told
    SmtpNextHop(Hop(Endpoint(Protocol.SMTP, "127.0.0.1", 25)), hostname())
