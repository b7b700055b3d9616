"""Notifications to systemd, which are optional."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from spamguard.process import Notifier
from tests.support.waiting import PATIENCE


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    name = (
        f"@spamguard-{os.getpid()}-{tmp_path.name}"
        if request.param == "abstract"
        else str(tmp_path / "notify")
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        sock.settimeout(PATIENCE)
        yield sock, name


def test_notifications_are_sent(systemd: tuple[socket.socket, str]) -> None:
    ear, name = systemd
    notifier = Notifier(name)
    notifier.ready("all well")
    assert ear.recv(1000) == b"READY=1\nSTATUS=all well"
    notifier.ping_watchdog()
    assert ear.recv(1000) == b"WATCHDOG=1"
    notifier.stopping()
    assert ear.recv(1000).startswith(b"STOPPING=1\n")


def test_the_environment_is_not_for_children() -> None:
    environment = {
        "NOTIFY_SOCKET": "/x",
        "WATCHDOG_USEC": "3000000",
        "WATCHDOG_PID": str(os.getpid()),
        "OTHER": "1",
    }
    assert Notifier.from_environment(environment).watchdog_seconds == 3.0
    assert environment == {"OTHER": "1"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "x"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"},
    ],
    ids=str,
)
def test_a_watchdog_that_is_not_ours(environment: dict[str, str]) -> None:
    assert Notifier.from_environment(environment).watchdog_seconds is None


@pytest.mark.parametrize("address", [None, "", "/nowhere/notify", "@nobody-listens-here"])
def test_without_a_listener_nothing_is_sent(address: str | None) -> None:
    Notifier(address).ready("x")
