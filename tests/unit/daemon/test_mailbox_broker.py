"""The mailbox broker may read every file, so it loads no parser of mail and no large library; and
clients that send nonsense.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from spamguard.config.options import Settings
from spamguard.daemon.mailbox_broker import MailboxBroker


def test_the_same_fault_of_clients_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(tmp_path, ())
    broker = MailboxBroker(lambda: settings)
    for request in (b"nonsense\n", b"nonsense\n", b"[]\n"):
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(request)
            broker._serve(ours, settings)
    assert [record.message for record in caplog.records] == [
        "a client was sent away: Expecting value: line 1 column 1 (char 0)",
        "a client was sent away: it is no question",
    ]
