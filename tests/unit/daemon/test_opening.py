"""The process that opens mailboxes, and clients that make no sense."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from spamguard.config.options import Settings
from spamguard.daemon.mailbox_broker import MailboxBroker


def test_a_client_that_comes_again_and_again_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(tmp_path, ())
    opening = MailboxBroker(lambda: settings, "nobody")
    for said in (b"nonsense\n", b"nonsense\n", b"[]\n"):
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(said)
            opening._serve(ours, settings)
    assert [record.message for record in caplog.records] == [
        "a client was sent away: Expecting value: line 1 column 1 (char 0)",
        "a client was sent away: it is no question",
    ]
