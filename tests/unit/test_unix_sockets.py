"""Sockets at paths."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from spamguard import process


def test_the_socket_takes_the_place_of_an_older_one(tmp_path):
    path = tmp_path / "door" / "sock"
    with (
        process.listen_at(path, 0o600),
        process.listen_at(path, 0o666),
        socket.socket(socket.AF_UNIX) as one,
    ):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        one.connect(str(path))
    assert [each.name for each in path.parent.iterdir()] == ["sock"]


def test_what_is_no_socket_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="no socket"):
        process.listen_at(tmp_path / "file", 0o666)
    assert (tmp_path / "file").read_text() == "x"


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


def test_who_is_at_the_other_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert process.peer_credentials(ours) == (os.getpid(), os.getuid())
