"""The scorer process: judges messages, one after the other, for one worker.

Its arguments are FD PARENT ONE_WRONG_IN WORDS STATE. It is killed when a message takes too long: it
must hold nothing that would be missed, write nothing but its answers, and never outlive its worker.
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
from spamguard.engine.filter import Filter
from spamguard.errors import SpamguardError
from spamguard.proxy import ipc
from spamguard.storage import LEDGER_FILE

_log = logging.getLogger("spamguard.scorer")

_MAX_MEMORY_BYTES = 2 << 30  # beyond the tables
_RETRY_SECONDS = 1.0  # between attempts to open a filter that cannot be opened
_CHUNK_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1  # prctl(2)
_PAGE_BYTES = resource.getpagesize()


class ScorerRequest(NamedTuple):
    """A message to judge, header fields as on top of it, and users whose mail it may be."""

    message: bytes
    on_top: bytes
    users: Sequence[str]


class Scorer:
    """Judges by the filter in a directory, which may appear, break and be mended meanwhile.

    words: as in `Filter.scan`.
    """

    def __init__(self, state: Path, one_wrong_in: int, words: int) -> None:
        self._state = state
        self._words = words
        self._one_wrong_in = one_wrong_in
        self._filter: Filter | None = None
        self._next_attempt = 0.0

    def open(self) -> Filter | None:
        """The filter, or None if there is none of use; tried at most once a second."""
        if self._filter is None and time.monotonic() >= self._next_attempt:
            self._next_attempt = time.monotonic() + _RETRY_SECONDS
            try:
                if (self._state / LEDGER_FILE).exists():  # learning makes it, a scorer never does
                    self._filter = Filter.open(self._state, one_wrong_in=self._one_wrong_in)
            except SpamguardError as error:
                _log.error("%s", error)
        return self._filter

    def answer(self, request: ScorerRequest) -> bytes:
        """The answer to one request.

        Raises
        ------
        MemoryError
            Whatever it left behind is in no known state.
        """
        spam_filter = self.open()
        if spam_filter is None:
            return ipc.encode_answer(ipc.NOT_SCANNED, b"no-model")
        try:
            return ipc.encode_scan(
                spam_filter.scan(request.message, self._words, request.on_top, request.users)
            )
        except MemoryError:
            raise
        except SpamguardError as error:
            _log.error("%s", error)
            self._filter = None
            with suppress(SpamguardError):
                spam_filter.close()
            return ipc.encode_answer(ipc.NOT_SCANNED, b"no-model")
        except Exception:  # noqa: BLE001  the next message may be better
            _log.exception("a fault in judging")
            return ipc.encode_answer(ipc.NOT_SCANNED, b"error")


def read_requests(connection: socket.socket) -> Iterator[ScorerRequest]:
    """The requests, until the worker closes the connection."""
    while True:
        header, descriptors, _, _ = socket.recv_fds(connection, ipc.REQUEST_HEADER.size, 1)
        if not header:
            return
        header += _read_exactly(connection, ipc.REQUEST_HEADER.size - len(header))
        in_file, on_top_size, users_size, size = ipc.REQUEST_HEADER.unpack(header)
        on_top = _read_exactly(connection, on_top_size)
        users = ipc.decode_users(_read_exactly(connection, users_size))
        # The message is in no local variable: suspended, this generator would keep it in memory.
        yield ScorerRequest(
            _read_file(descriptors[0], size) if in_file else _read_exactly(connection, size),
            on_top,
            users,
        )


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(min(size - len(data), _CHUNK_BYTES))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _read_file(descriptor: int, size: int) -> bytes:
    """The whole file in one copy: the digest of a message goes to its last byte."""
    try:
        return os.pread(descriptor, size, 0)
    finally:
        os.close(descriptor)


def confine(parent: int) -> None:
    """End with the worker, leave no core file, and ignore signals to the whole process group."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        sys.exit(0)


def _limit_memory() -> None:
    """Limit memory to what is used now, with the tables, and `_MAX_MEMORY_BYTES`."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE_BYTES
    limit = used + _MAX_MEMORY_BYTES
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def main(arguments: list[str]) -> None:
    """Answer requests until the worker closes the connection."""
    descriptor, parent, one_wrong_in, words, state = arguments
    confine(int(parent))
    scorer = Scorer(Path(state), int(one_wrong_in), int(words))
    scorer.open()
    _limit_memory()
    with socket.socket(fileno=int(descriptor)) as connection, suppress(EOFError, ConnectionError):
        connection.sendall(ipc.encode_answer(ipc.READY))
        for request in read_requests(connection):
            answer = scorer.answer(request)
            del request  # a large message is not kept until the next one comes
            connection.sendall(answer)


if __name__ == "__main__":
    log.configure(os.environ, logging.WARNING)
    main(sys.argv[1:])
