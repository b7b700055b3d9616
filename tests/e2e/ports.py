"""Ports on loopback, and directories that servers under other users can reach."""

from __future__ import annotations

import atexit
import shutil
import socket
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import PATIENCE, eventually

_KEPT = 200  # ports; more than any test needs at a time, fewer than files may be open
_ours: deque[socket.socket] = deque()


def free_port() -> int:
    """A port on which nothing listens, and which the system gives to no other process. Tests run in
    parallel, and some time may pass until the server starts, or restarts. A socket that is bound
    and does not listen holds the port: a server can bind to it all the same, because both set
    SO_REUSEADDR, and until then connections are refused.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    _ours.append(sock)
    if len(_ours) > _KEPT:
        _ours.popleft().close()
    return int(sock.getsockname()[1])


@atexit.register
def _give_back() -> None:
    for one in _ours:
        one.close()


def wait_for_port(port: int, seconds: float = PATIENCE) -> None:
    """Return once a server listens there. AssertionError when none does."""
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < until, f"nobody listens on port {port}"
            time.sleep(0.05)


@contextmanager
def open_directory() -> Iterator[Path]:
    """A directory that servers under other users can walk to; those of pytest are for this user
    only. Removed at the end.
    """
    place = Path(tempfile.mkdtemp(prefix="spamguard-"))
    place.chmod(0o755)
    try:
        yield place
    finally:
        eventually(lambda: not _left(place), f"{place} is removed")


def _left(place: Path) -> bool:
    """Try to remove the directory; whether it is still there. Processes of a server may outlive it
    and write until they end.
    """
    shutil.rmtree(place, ignore_errors=True)
    return place.exists()
