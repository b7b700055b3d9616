"""A process that judges messages, one after the other, for one worker, with these arguments: FD PARENT ONE_WRONG_IN WORDS STATE.

It may be killed at any moment, and is, when a message takes too long: it must hold nothing that would be missed, write nothing
but its answers, and never outlive its worker.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from spamguard import log
from spamguard.engine import Filter
from spamguard.errors import SpamguardError
from spamguard.files import LEDGER
from spamguard.proxy import frames

_MOST_MEMORY = 2 << 30  # bytes beyond what the tables take
_TRY_AGAIN = 1.0  # seconds between attempts to open a filter that cannot be opened
_PIECE = 1 << 20
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_PAGE = resource.getpagesize()

_log = logging.getLogger("spamguard.scorer")


class Request(NamedTuple):
    """A message to judge, and whose mail it may be."""

    message: bytes
    on_top: bytes
    users: Sequence[str]


class Scorer:
    """Judges by the filter in a directory, which may appear, break and be mended meanwhile. words: as in `Filter.scan`."""

    def __init__(self, state: Path, one_wrong_in: int, words: int) -> None:
        self._state = state
        self._words = words
        self._one_wrong_in = one_wrong_in
        self._filter: Filter | None = None
        self._next_attempt = 0.0

    def open(self) -> Filter | None:
        """The filter, or None when there is none that can be used; tried at most once a second."""
        if self._filter is None and time.monotonic() >= self._next_attempt:
            self._next_attempt = time.monotonic() + _TRY_AGAIN
            try:
                if (self._state / LEDGER).exists():  # made by whoever teaches, never from here
                    self._filter = Filter.open(self._state, one_wrong_in=self._one_wrong_in)
            except SpamguardError as error:
                _log.error("%s", error)
        return self._filter

    def answer(self, request: Request) -> bytes:
        """The answer to one request. MemoryError is not caught: nobody knows what it has left behind."""
        found = self.open()
        if found is None:
            return frames.answer(frames.NOT_SCANNED, b"no-model")
        try:
            return frames.scanned(found.scan(request.message, self._words, request.on_top, request.users))
        except MemoryError:
            raise
        except SpamguardError as error:
            _log.error("%s", error)
            self._filter = None
            with suppress(SpamguardError):
                found.close()
            return frames.answer(frames.NOT_SCANNED, b"no-model")
        except Exception:  # noqa: BLE001  the next message may be better
            _log.exception("a fault in judging")
            return frames.answer(frames.NOT_SCANNED, b"error")


def requests(connection: socket.socket) -> Iterator[Request]:
    """What is asked, until the worker hangs up."""
    while True:
        head, descriptors, _, _ = socket.recv_fds(connection, frames.REQUEST.size, 1)
        if not head:
            return
        head += _read(connection, frames.REQUEST.size - len(head))
        in_file, on_top, named, size = frames.REQUEST.unpack(head)
        above = _read(connection, on_top)
        users = frames.users_of(_read(connection, named))
        yield Request(_read_file(descriptors[0], size) if in_file else _read(connection, size), above, users)


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(min(size - len(data), _PIECE))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _read_file(descriptor: int, size: int) -> bytes:
    """All of it: the identity of a message goes to its last byte. One copy in memory."""
    try:
        return os.pread(descriptor, size, 0)
    finally:
        os.close(descriptor)


def confine(parent: int) -> None:
    """End with the worker, leave no core file, and let signals to the whole group be the worker's business."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we could say so
        sys.exit(0)


def _limit_memory() -> None:
    """To what is taken now, the tables among it, and some more."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = taken + _MOST_MEMORY if hard == resource.RLIM_INFINITY else min(taken + _MOST_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def main(arguments: list[str]) -> None:
    """Serve until the worker hangs up."""
    descriptor, parent, one_wrong_in, words, state = arguments
    confine(int(parent))
    scorer = Scorer(Path(state), int(one_wrong_in), int(words))
    scorer.open()
    _limit_memory()
    with socket.socket(fileno=int(descriptor)) as connection, suppress(EOFError, ConnectionError):
        connection.sendall(frames.answer(frames.READY))
        for request in requests(connection):
            answer = scorer.answer(request)
            del request  # a large message is not kept until the next one comes
            connection.sendall(answer)


if __name__ == "__main__":
    log.configure(os.environ, logging.WARNING)
    main(sys.argv[1:])
