"""A Unix socket in the state directory on which the master says how the daemon is, and who asks there: `spamguard status`.

Whoever connects is told at once and let go; nothing is ever read from them. Only root and the daemon's user get there. Must never make
the master wait, and never make the one who asks wait for a master that hangs.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any

from spamguard import log, unixsocket

NAME = "daemon.sock"
SECONDS = 2.0  # that a master may take to answer
RETRY_SECONDS = 15.0  # where it cannot listen, as on a disk that is full or may not be written
_MODE = 0o600
_LONGEST = 1 << 20

_log = logging.getLogger("spamguard.daemon")


class Desk:
    """tell: what to say, as JSON can."""

    def __init__(self, selector: selectors.BaseSelector, tell: Callable[[], object]) -> None:
        self._selector = selector
        self._tell = tell
        self._listening: socket.socket | None = None
        self._state = Path()
        self._inode = 0
        self._due = inf  # when it is tried again to listen
        self._trouble = log.Repeated(_log, logging.WARNING)  # why this cannot be done

    def open(self, state: Path) -> None:
        """Listen in this directory. Without, nothing but `status` is worse off."""
        self._state, self._due = state, inf
        try:
            with _short(state) as place:
                self._listening = unixsocket.listening(place / NAME, _MODE)
                self._inode = (place / NAME).lstat().st_ino
        except OSError as error:
            told = "%s: cannot listen there (%s): until it can `spamguard status` finds no daemon"
            self._trouble.tell(told, state / NAME, error.strerror)
            self._due = time.monotonic() + RETRY_SECONDS
            return
        self._trouble.over()
        self._listening.setblocking(False)
        self._selector.register(self._listening, selectors.EVENT_READ, self._serve)

    def tend(self) -> None:
        """Be there again when that is possible, and when another daemon that took the place has gone: without, nothing keeps `restore`
        from the ledger in use."""
        if self._listening is None:
            if time.monotonic() >= self._due:
                self.open(self._state)
            return
        try:
            if (self._state / NAME).lstat().st_ino == self._inode:
                return
            with _short(self._state) as place:
                if unixsocket.is_served(place / NAME):
                    return
        except FileNotFoundError:
            pass
        except OSError:
            return
        self.close()
        self.open(self._state)

    def close(self) -> None:
        """Be there no more, unless another daemon has taken the place; idempotent."""
        self._due = inf
        if self._listening is not None:
            self._selector.unregister(self._listening)
            self._listening.close()
            self._listening = None
            with suppress(OSError):
                if (self._state / NAME).lstat().st_ino == self._inode:
                    (self._state / NAME).unlink()

    def _serve(self) -> None:
        if self._listening is None:
            return
        try:
            connected, _ = self._listening.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptors are left: it would be tried again at once, for ever
            _log.error("%s: nobody is answered for a while (%s)", self._state / NAME, error.strerror)
            self.close()
            self._due = time.monotonic() + RETRY_SECONDS
            return
        with connected, suppress(OSError):  # who has gone is told nothing
            connected.setblocking(False)
            connected.send(json.dumps(self._tell()).encode())


def ask(state: Path) -> dict[str, Any] | None:
    """What the daemon that runs on this state directory says; None: none runs. `pid` is always there; where nothing else is, it does
    not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(SECONDS)
        try:
            with _short(state) as place:
                asking.connect(str(place / NAME))
            pid = unixsocket.process(asking)
        except OSError:  # nobody listens, or nobody has for so long that there is no room in the queue
            return None
        try:
            found = json.loads(_all(asking))
        except (OSError, ValueError):
            return {"pid": pid}
    return found if isinstance(found, dict) else {"pid": pid}


def _all(asking: socket.socket) -> bytes:
    until, found = time.monotonic() + SECONDS, bytearray()
    while len(found) < _LONGEST and (piece := asking.recv(65536)):
        found += piece
        asking.settimeout(max(0.001, until - time.monotonic()))
    return bytes(found)


@contextmanager
def _short(directory: Path) -> Iterator[Path]:
    """Another name of a directory: that of a socket has room for 107 bytes only (unix(7))."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
