"""Unix sockets at paths, and notifications to systemd."""

from __future__ import annotations

import os
import socket
import stat
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


def test_notifications_are_sent(tmp_path: Path) -> None:
    for name in (str(tmp_path / "notify"), f"@spamguard-{os.getpid()}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
            ear.bind(f"\0{name[1:]}" if name.startswith("@") else name)
            ear.settimeout(PATIENCE)
            notifier = Notifier(name, 60.0)
            notifier.ready("all well")
            assert ear.recv(1000) == b"READY=1\nSTATUS=all well"
            notifier.ping_watchdog()
            assert ear.recv(1000) == b"WATCHDOG=1"
            notifier.stopping()
            assert ear.recv(1000).startswith(b"STOPPING=1\n")
