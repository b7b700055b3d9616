"""The socket on which the master answers `spamguard status`. A client never waits long for a master
that hangs.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack

import pytest

from spamguard.daemon import status
from spamguard.daemon.status import StatusSocket, ask_daemon
from tests.e2e.ports import open_directory
from tests.support.waiting import PATIENCE


@pytest.fixture
def serve(selector, tmp_path):
    """Opens the master's end in this directory, or another, and closes it in the end."""
    with ExitStack() as stack:

        def start(answer, state=tmp_path):
            status_socket = StatusSocket(selector, lambda: answer)
            status_socket.open(state)
            stack.callback(status_socket.close)
            return status_socket

        yield start


def answer_of_served(selector, state):
    """The answer that a client gets while the master serves its selector."""
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ask_daemon(state)))
    asking.start()
    while asking.is_alive():
        for key, _ in selector.select(0.05):
            key.data()
    asking.join()
    return answers[0]


def test_clients_get_the_status(serve, selector, tmp_path):
    status_socket = serve({"pid": 7, "list": ["é"] * 5000})
    assert (tmp_path / status.STATUS_SOCKET).stat().st_mode & 0o777 == 0o600
    for _ in range(3):
        assert answer_of_served(selector, tmp_path) == {"pid": 7, "list": ["é"] * 5000}
    status_socket.close()
    status_socket.close()
    assert ask_daemon(tmp_path) is None


def test_without_a_master_there_is_no_answer(tmp_path):
    assert ask_daemon(tmp_path) is None
    assert ask_daemon(tmp_path / "none") is None
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / status.STATUS_SOCKET))
    assert ask_daemon(tmp_path) is None


def test_the_name_of_the_state_directory_may_be_long(serve, selector, tmp_path):
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    serve({"pid": 1}, deep)
    assert answer_of_served(selector, deep) == {"pid": 1}


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


def test_a_client_that_hangs_up_early_does_no_harm(serve, selector, tmp_path):
    serve({"pid": 1})
    with socket.socket(socket.AF_UNIX) as hasty:
        hasty.connect(str(tmp_path / status.STATUS_SOCKET))
    assert answer_of_served(selector, tmp_path) == {"pid": 1}


SERVE = """
import os, selectors, sys
from pathlib import Path
from spamguard.daemon.status import StatusSocket, ask_daemon
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
state = Path(sys.argv[1])
with selectors.DefaultSelector() as selector:
    one = StatusSocket(selector, lambda: {"pid": os.getpid(), "uid": os.getuid()})
    one.open(state)
    if not os.fork():
        os._exit(ask_daemon(state) != {"pid": os.getppid(), "uid": 65534})
    print(flush=True)
    for _ in range(2):
        for key, _ in selector.select(20):
            key.data()
    one.close()
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_the_user_of_the_service_and_root_may_ask():
    with open_directory() as place:
        state = place / "state"
        state.mkdir(mode=0o700)
        os.chown(state, 65534, 65534)
        with subprocess.Popen(
            [sys.executable, "-c", SERVE, str(state)], stdout=subprocess.PIPE
        ) as serving:
            assert serving.stdout is not None
            serving.stdout.readline()
            assert ask_daemon(state) == {"pid": serving.pid, "uid": 65534}
            assert serving.wait(PATIENCE) == 0
