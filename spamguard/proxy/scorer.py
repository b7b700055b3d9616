"""The scorer process, which judges messages for one worker, and the protocol between the two.

Each side sends frames: four bytes of length, then MessagePack. A request is a message, or the
descriptor of its file, with header fields that count as on top of it, users whose mail it may be,
and how to judge. An answer is a scan, or the reason why there is none. The arguments of the process
are STATE PARENT; its standard input is a socket to the worker.

A scorer is killed when a message takes too long: it must hold nothing that would be missed, and
never outlive its worker. It has read hostile mail and is not trusted: the worker must accept an
answer only if every part has the right form and is within bounds.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import MsgspecError, msgpack

from spamguard import log, process
from spamguard.engine.policy import SPAM_THRESHOLD
from spamguard.errors import SpamguardError
from spamguard.records import MAX_WORD_LENGTH, SENDER_PREFIX, Label, Scan
from spamguard.storage import LEDGER_FILE

if TYPE_CHECKING:
    from spamguard.engine.filter import Filter

_log = logging.getLogger("spamguard.scorer")

READY = "ready"
"""The first answer, to no request."""
KEPT_WORDS = 100  # with their texts, in the history
_MAX_ANSWER_BYTES = 5 << 20
_MAX_MEMORY_BYTES = 2 << 30  # of the process, beyond the tables
_CHUNK_BYTES = 64 << 10


# ---- the process


class ScanOptions(NamedTuple):
    """How to judge (as in `Filter.open`), and how many words to report.

    unmarked: without a prefix that we put before the subject.
    """

    spam_threshold: float = SPAM_THRESHOLD
    authserv_ids: tuple[str, ...] = ()
    results_stripped: bool = False
    words: int = KEPT_WORDS
    unmarked: bool = False


class ScorerRequest(NamedTuple):
    """What is judged, and how; the parameters are those of `Filter.scan`."""

    message: bytes | None  # None: the file whose descriptor comes with the request
    on_top: bytes
    users: tuple[str, ...]
    options: ScanOptions


class Scorer:
    """Judges by the filter in a directory, which may appear, break and be mended meanwhile."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._filters: dict[ScanOptions, Filter] = {}

    def open(self, options: ScanOptions) -> Filter | None:
        """The filter, or None if there is none yet. Raises SpamguardError if it is of no use."""
        from spamguard.engine.filter import Filter  # noqa: PLC0415  not for the worker

        # Learning makes it, a scorer never does.
        if options not in self._filters and (self._state / LEDGER_FILE).exists():
            self._filters[options] = Filter.open(
                self._state,
                spam_threshold=options.spam_threshold,
                authserv_ids=options.authserv_ids,
                results_stripped=options.results_stripped,
            )
        return self._filters.get(options)

    def answer(self, request: ScorerRequest) -> bytes:
        """The answer to one request.

        Raises MemoryError, which must end the process: what it left behind is in no known state.
        """
        from spamguard.mail.message import remove_subject_prefix  # noqa: PLC0415  as above

        raw, on_top, users, options = request
        try:
            spam_filter = self.open(options)
            if spam_filter is None:
                return encode_answer("no-model")
            raw = raw or b""
            raw = remove_subject_prefix(raw) if options.unmarked else raw
            return encode_answer(spam_filter.scan(raw, options.words, on_top, users))
        except MemoryError:
            raise
        except SpamguardError as error:
            _log.error("%s", error)
            self._filters.pop(options, None)  # the next message has it opened anew
            return encode_answer("no-model")
        except Exception:  # noqa: BLE001  the next message may be better
            _log.exception("a fault in judging")
            return encode_answer("error")


def read_requests(connection: socket.socket) -> Iterator[ScorerRequest]:
    """The requests, until the worker closes the connection; it sends one at a time."""
    while True:
        data, descriptors = b"", list[int]()
        while _end_of_frame(data) > len(data):
            piece, found, _, _ = socket.recv_fds(connection, _CHUNK_BYTES, 1)
            if not piece:
                return
            data += piece
            descriptors += found
        request = _decode_request(memoryview(data)[_FRAME.size :])
        if descriptors:
            with os.fdopen(descriptors.pop()) as file:  # in one copy: the digest goes to the end
                whole = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)
            request = request._replace(message=whole)
            del whole
        yield request
        del request, data  # a large message is not kept until the next one comes


def main(arguments: list[str]) -> None:
    """Answer requests until the worker closes the connection, and end with the worker."""
    state, parent = arguments
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the whole process group
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    process.end_with_parent(int(parent), signal.SIGKILL)
    scorer = Scorer(Path(state))
    with suppress(SpamguardError):  # the first message is told of it
        scorer.open(ScanOptions())
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY:  # else the operator has limited it
        # Above what is used now, with the tables.
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _MAX_MEMORY_BYTES, hard))
    with socket.socket(fileno=sys.stdin.fileno()) as connection, suppress(ConnectionError):
        connection.sendall(encode_answer(READY))
        for request in read_requests(connection):
            answer = scorer.answer(request)
            del request
            connection.sendall(answer)


# ---- the protocol

_FRAME = struct.Struct(">I")
_encode = msgpack.Encoder().encode
_decode_request = msgpack.Decoder(ScorerRequest).decode
_decode_answer = msgpack.Decoder(Scan | Label).decode


class NotScanned(NamedTuple):
    """A message that could not be judged."""

    reason: str  # such as "timeout", "crashed", "no-model", "poison"

    @property
    def settle(self) -> bool:
        """Whether the tables may be missing, which settling makes anew."""
        return self.reason == "no-model"


def encode_answer(answer: Scan | str) -> bytes:
    """The frame of a scan, or of a reason why there is none."""
    if isinstance(answer, Scan):
        words = tuple(word._replace(text=word.text[:MAX_WORD_LENGTH]) for word in answer.words)
        line = answer.line.encode("utf-8", "replace").decode()
        answer = replace(answer, words=words, line=line)
    return encode_frame(answer)


def decode_answer(data: bytes | bytearray, users: Collection[str] = ()) -> Scan | str | None:
    """The answer to a request about these users in what has come; None if more is to come.

    Raises ValueError if it is not of the right form, or not an answer to this request.
    """
    end = _end_of_frame(data)
    if end > _MAX_ANSWER_BYTES:
        raise ValueError("not an answer")
    if end > len(data):
        return None
    try:
        answer: Scan | str = _decode_answer(data[_FRAME.size :])
    except MsgspecError as error:
        raise ValueError("not an answer") from error
    if isinstance(answer, Scan) and not (
        answer.personal.keys() <= set(users)
        and (not answer.sender or answer.sender.startswith(SENDER_PREFIX))
    ):
        raise ValueError("not a scan of what was asked")
    return answer


def encode_frame(value: ScorerRequest | Scan | str) -> bytes:
    data = _encode(value)
    return _FRAME.pack(len(data)) + data


def _end_of_frame(data: bytes | bytearray) -> int:
    """Where the first frame ends; before its length is there, where that ends."""
    return _FRAME.size + (_FRAME.unpack_from(data)[0] if len(data) >= _FRAME.size else 1)


if __name__ == "__main__":
    log.configure(logging.WARNING)
    main(sys.argv[1:])
