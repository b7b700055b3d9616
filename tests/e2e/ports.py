"""Ports of loopback for servers of tests."""

from __future__ import annotations

import socket
import time


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
