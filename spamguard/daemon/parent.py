"""What the processes of the master share: how they begin, how they tell it something, and that they are gone when it is."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from spamguard import log
from spamguard.daemon import children
from spamguard.daemon.words import SETTLE
from spamguard.metrics.counters import Board
from spamguard.settings import Settings

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def begin() -> None:
    """Leave signals that go to everybody at a terminal, and reloads, to the master; log as it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    log.configure(os.environ)


@contextmanager
def begun(arguments: Sequence[str]) -> Iterator[tuple[Settings, socket.socket, Board]]:
    """The same for one that stands beside the workers, and ends with the master. arguments: as `kept.Kept` gives them.

    What the master says: the settings, the channel to it, and the counters.
    """
    begin()
    channel, settings, master, counters = map(int, arguments)
    end_with(master)
    with socket.socket(fileno=channel) as to_master:
        yield children.read(settings), to_master, Board(counters)


def wish_to_settle(channel: socket.socket) -> Callable[[], None]:
    """What tells the master over this channel that lessons wait for settling. Never waits: one that does not read is not told."""
    channel.set_inheritable(False)
    channel.setblocking(False)

    def settle() -> None:
        with suppress(OSError):
            channel.send(SETTLE)

    return settle


def end_with(master: int) -> None:
    """The kernel ends this process by SIGTERM when its parent ends. master: its number."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
    if os.getppid() != master:  # it has ended before we could ask for that
        sys.exit(1)
