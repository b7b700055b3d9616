"""Signals as bytes on a socket, for a loop that waits for sockets anyway."""

from __future__ import annotations

import signal
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager


@contextmanager
def received(wanted: Collection[signal.Signals]) -> Iterator[socket.socket]:
    """A socket to read the numbers of received signals from; what was done about them before is so again afterwards."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    old = {one: signal.signal(one, _in_the_socket) for one in wanted}
    before = signal.set_wakeup_fd(theirs.fileno())
    try:
        yield ours
    finally:
        signal.set_wakeup_fd(before)
        for one, handler in old.items():
            signal.signal(one, handler)
        ours.close()
        theirs.close()


def _in_the_socket(*_: object) -> None:
    """The wake-up file has it already."""
