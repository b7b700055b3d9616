"""Wait until a peer has read all that was sent to it, as the kernel shows it, instead of guessing
how long a busy peer takes.
"""

from __future__ import annotations

import socket
from pathlib import Path

from tests.support.waiting import eventually


def taken(connected: socket.socket) -> None:
    """Wait until the peer of an IPv4 connection on this machine has read all that was sent."""
    ours, theirs = connected.getsockname()[1], connected.getpeername()[1]
    eventually(lambda: not _on_its_way(ours, theirs), f"all is read on port {theirs}")


def _on_its_way(ours: int, theirs: int) -> bool:
    """Whether bytes are unsent here or unread there (proc(5): /proc/net/tcp)."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues = line.split()[:5]
        ports, (unsent, unread) = (_port(local), _port(remote)), queues.split(":")
        if (ports == (ours, theirs) and int(unsent, 16)) or (
            ports == (theirs, ours) and int(unread, 16)
        ):
            return True
    return False


def _port(address: str) -> int:
    return int(address.partition(":")[2], 16)
