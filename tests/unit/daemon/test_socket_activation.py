"""Listening sockets that are there before the daemon and stay while it is not: a restart refuses
nobody.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from tests.e2e.ports import free_port
from tests.support.waiting import PATIENCE, eventually
from tests.unit.daemon.conftest import ROOT, Client, Daemon
from tests.unit.daemon.test_master import Load, start_with_socket

pytestmark = pytest.mark.slow

ACTIVATE = shutil.which("systemd-socket-activate")


def listening(host: str = "127.0.0.1") -> socket.socket:
    return socket.create_server(
        (host, 0), backlog=1024, family=socket.AF_INET6 if ":" in host else socket.AF_INET
    )


def test_a_restart_under_load_refuses_no_connection(daemon: Daemon) -> None:
    """As `systemctl restart`: the daemon stops, and then starts; in between only the socket is
    there.
    """
    with listening() as ours:
        daemon.configure([ours.getsockname()[1]])
        start_with_socket(daemon, ours.fileno())
        daemon.logged("serving")
        with Load(daemon.ports[0], 4) as load:
            for number in range(2, 4):
                eventually(lambda: load.answered)
                assert daemon.stop() == 0
                load.answered.clear()
                start_with_socket(daemon, ours.fileno())
                daemon.logged("serving", number)
            eventually(lambda: load.done >= 200)
        assert daemon.stop() == 0
    assert load.failed == []
    assert "Traceback" not in daemon.log()


def test_clients_wait_while_no_daemon_runs(daemon: Daemon) -> None:
    with listening() as ours:
        daemon.configure([ours.getsockname()[1]])
        with socket.create_connection(ours.getsockname(), timeout=PATIENCE) as early:
            start_with_socket(daemon, ours.fileno())
            assert early.recv(100).startswith(b"220 ")
        assert daemon.stop() == 0


def test_after_a_kill_no_connection_is_refused_either(daemon: Daemon) -> None:
    with listening() as ours:
        daemon.configure([ours.getsockname()[1]])
        start_with_socket(daemon, ours.fileno())
        daemon.logged("serving")
        eventually(lambda: len(daemon.workers()) == 2)
        assert daemon.stop(signal.SIGKILL) == -signal.SIGKILL
        with socket.create_connection(ours.getsockname(), timeout=PATIENCE) as late:
            start_with_socket(daemon, ours.fileno())
            assert late.recv(100).startswith(b"220 ")
        daemon.logged("serving", 2)
        assert daemon.stop() == 0


def test_a_socket_where_nothing_is_configured_is_refused(daemon: Daemon) -> None:
    with listening() as ours:
        start_with_socket(daemon, ours.fileno())
        assert daemon.process is not None
        assert daemon.process.wait(PATIENCE) == 2  # 78 of `spamguard run`, by its ConfigError
        port = ours.getsockname()[1]
    assert (
        f"systemd listens on 127.0.0.1:{port}, where no listener of the configuration is"
        in daemon.log()
    )
    assert f"(smtp://127.0.0.1:{daemon.ports[0]})" in daemon.log()
    assert "ListenStream= of spamguard.socket" in daemon.log()


def test_the_other_sockets_are_warned_of(daemon: Daemon) -> None:
    """One that is wanted, one that is not, and a listener without a socket."""
    own = free_port()
    with listening() as wanted, listening() as other:
        daemon.configure([wanted.getsockname()[1], own])
        start_with_socket(daemon, wanted.fileno(), other.fileno())
        daemon.logged("serving")
        assert (
            f"systemd listens on 127.0.0.1:{other.getsockname()[1]}, where no listener"
            in daemon.log()
        )
        for number in (0, 1):
            with daemon.client(number) as client:
                assert client.ask("hello") == "hello"
        assert daemon.stop() == 0


def test_addresses_of_ipv6_are_compared_and_not_their_texts(daemon: Daemon) -> None:
    try:
        ours = listening("::1")
    except OSError:
        pytest.skip("no IPv6 here")
    with ours:
        port = ours.getsockname()[1]
        daemon.configure([port], listener={"listen": f"smtp://[0:0:0:0:0:0:0:1]:{port}"})
        start_with_socket(daemon, ours.fileno())
        daemon.logged(f"serving smtp on [::1]:{port}")
        assert daemon.stop() == 0


@pytest.mark.skipif(
    ACTIVATE is None, reason="needs systemd-socket-activate: apt-get install systemd"
)
def test_as_systemd_itself_hands_it_over(daemon: Daemon) -> None:
    """With LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES of its own making. It begins with the first
    connection.
    """
    port = daemon.ports[0]
    program = [sys.executable, str(ROOT / "tests/unit/daemon/run_master.py"), str(daemon.file)]
    command = [
        str(ACTIVATE),
        f"--listen=127.0.0.1:{port}",
        "--fdname=smtp",
        f"--setenv=PYTHONPATH={ROOT}",
        *program,
    ]
    with daemon.log_file.open("ab") as log:
        daemon.process = subprocess.Popen(command, stderr=log, env=os.environ)
    eventually(lambda: "Listening on" in daemon.log())
    with Client(port) as client:
        assert client.ask("hello") == "hello"
    assert daemon.stop() == 0
    assert f"serving smtp on 127.0.0.1:{port}" in daemon.log()
