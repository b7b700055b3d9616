"""The socket on which the master answers `spamguard status`. A client never waits long for a master
that hangs.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import ExitStack

import pytest

from spamguard.daemon import status
from spamguard.daemon.status import answer_clients, ask_daemon


@pytest.fixture
def serve(selector, tmp_path):
    """Opens the master's end in this directory, or another, and closes it in the end."""
    with ExitStack() as stack:

        def start(answer, state=tmp_path):
            answer_clients(state, selector, lambda: answer, stack)

        yield start


def test_one_that_hangs_is_not_waited_for(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(status, "ANSWER_TIMEOUT", 0.2)
    serve({})
    assert ask_daemon(tmp_path) == {"pid": os.getpid()}


@pytest.mark.parametrize("said", [b"", b"{", b"\xff"])
def test_an_invalid_answer(tmp_path, said):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / status.STATUS_SOCKET))
        listening.listen()

        def serve():
            connected, _ = listening.accept()
            with connected:
                connected.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        assert ask_daemon(tmp_path) == {"pid": os.getpid()}
        thread.join()
