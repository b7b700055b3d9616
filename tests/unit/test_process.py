"""Unix sockets at paths, and notifications to systemd."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from spamguard import process
from spamguard.process import Notifier
from tests.support.waiting import PATIENCE

# ---- sockets


def test_what_others_put_in_its_place_is_not_opened_to_anybody(tmp_path, monkeypatch):
    """A directory may belong to somebody else, and root listen there before it becomes who it is to
    be.
    """
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)

    class Raced(socket.socket):
        """The owner of the directory is quick."""

        def bind(self, path):
            super().bind(path)
            Path(path).unlink()
            Path(path).symlink_to(secret)

    monkeypatch.setattr(socket, "socket", Raced)
    with pytest.raises(OSError, match="no socket"):
        process.listen_at(tmp_path / "sock", 0o666)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


# ---- systemd


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


@pytest.mark.parametrize("address", [None, "", "/nowhere/notify", "@nobody-listens-here"])
def test_without_a_listener_nothing_is_sent(address: str | None) -> None:
    Notifier(address).ready("x")
