"""Listening sockets: kept while they are wanted, and errors in words; and reading the settings."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spamguard.config.options import Endpoint, Protocol
from spamguard.daemon import startup
from spamguard.errors import StartError
from tests.e2e.ports import free_port
from tests.support.waiting import PATIENCE


def at(port: int, host: str = "127.0.0.1") -> Endpoint:
    return Endpoint(Protocol.SMTP, host, port)


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "BIND_TIMEOUT", 0.2)


def test_ipv6() -> None:
    try:
        opened = startup.open_all([at(0, "::1")], {})
    except StartError:
        pytest.skip("no IPv6 here")
    ((address, one),) = opened.items()
    assert (address, one.family) == (("::1", 0), socket.AF_INET6)
    with socket.create_connection(("::1", one.getsockname()[1]), timeout=PATIENCE):
        pass
    startup.close_all(opened.values())


def test_an_address_in_use_leaves_nothing_open() -> None:
    mine = free_port()
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(StartError, match="stop what listens there"):
            startup.open_all([at(mine), at(other.getsockname()[1])], {})
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", mine), timeout=PATIENCE)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(
        StartError,
        match=r"cannot listen on smtp://192\.0\.2\.1:2525 .*another address",
    ):
        startup.open_all([at(2525, "192.0.2.1")], {})


def test_a_path_that_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, remedy in (
        ("file", "(something else is there, and is no socket)"),
        ("no/such/directory", "(No such file or directory)"),
        ("/sys/sock", "directory of a path must belong to us"),  # nobody can put a file there
    ):
        place = tmp_path / path
        with pytest.raises(
            StartError, match=rf"cannot listen on milter:{place} .*{re.escape(remedy)}"
        ):
            startup.open_all([Endpoint(Protocol.MILTER, path=place)], {})


def test_a_socket_in_the_file_system(tmp_path: Path) -> None:
    endpoint = Endpoint(Protocol.MILTER, path=tmp_path / "milter.sock")
    first = startup.open_all([endpoint], {})
    assert startup.open_all([endpoint], first) == first
    (address,) = first
    assert startup.format_address(address) == str(endpoint.path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(endpoint.path))
    with pytest.raises(StartError, match="stop what listens there"):
        startup.open_all([endpoint], {})
    startup.close_all(first.values())
    startup.close_all(startup.open_all([endpoint], {}).values())


def test_a_reader_of_settings_that_fails_never_goes_on_as_the_master() -> None:
    code = """
from spamguard.daemon.startup import read_apart
try:
    read_apart(lambda: lambda: "cannot be handed over")
except Exception as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "ConfigError\n"
