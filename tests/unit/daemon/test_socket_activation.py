"""Listening sockets that are there before the daemon and stay while it is not: a restart refuses
nobody.
"""

from __future__ import annotations

import socket

import pytest

from tests.e2e.ports import free_port
from tests.support.waiting import PATIENCE
from tests.unit.daemon.conftest import Daemon
from tests.unit.daemon.test_master import start_with_socket

pytestmark = pytest.mark.slow


def listening(host: str = "127.0.0.1") -> socket.socket:
    return socket.create_server(
        (host, 0), backlog=1024, family=socket.AF_INET6 if ":" in host else socket.AF_INET
    )


def test_clients_wait_while_no_daemon_runs(daemon: Daemon) -> None:
    with listening() as ours:
        daemon.configure([ours.getsockname()[1]])
        with socket.create_connection(ours.getsockname(), timeout=PATIENCE) as early:
            start_with_socket(daemon, ours.fileno())
            assert early.recv(100).startswith(b"220 ")
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
