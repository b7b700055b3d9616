"""Ports of loopback and directories for servers of tests."""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for_port(port: int, seconds: float = 20) -> None:
    """Until somebody listens there. AssertionError when nobody does."""
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
    """A directory that servers under other users can walk to; those of pytest are for this user only. Removed at the end."""
    place = Path(tempfile.mkdtemp(prefix="spamguard-"))
    place.chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(place)
