"""The scorer process, which judges messages for one worker, and the protocol between the two.

A request is a fixed header with lengths, then header fields that count as on top of the message,
the users whose mail it may be, and the message, or the descriptor of its file. An answer is a scan,
or the reason why there is none. The arguments of the process are SPAM_THRESHOLD WORDS
AUTHSERV_IDS STRIPPED STATE FD PARENT.

A scorer is killed when a message takes too long: it must hold nothing that would be missed, write
nothing but its answers, and never outlive its worker. It has read hostile mail and is not trusted:
the worker must accept an answer only if every part has the right form and is within bounds.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import socket
import struct
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spamguard import log, process
from spamguard.errors import SpamguardError
from spamguard.records import DIGEST_BYTES, MAX_LINE, SENDER_PREFIX, Scan, Verdict, Word
from spamguard.storage import LEDGER_FILE

if TYPE_CHECKING:
    from spamguard.engine.filter import Filter

_log = logging.getLogger("spamguard.scorer")

READY, SCANNED, NOT_SCANNED = range(3)
MAX_USERS = 200
"""How many users a request names; each has at most 255 bytes."""
_MAX_ON_TOP_BYTES = (1 << 16) - 1
_MAX_VERDICT_BYTES = 512 << 10
_MAX_PACKED_BYTES = 4 << 20
_MAX_WORDS = 1000
_MAX_WORD_LENGTH = 100  # characters
_MAX_MEMORY_BYTES = 2 << 30  # of the process, beyond the tables
_CHUNK_BYTES = 64 << 10

# Whether the message is a file; bytes of the fields on top, of the users, of the message.
_REQUEST_HEADER = struct.Struct(">BHIQ")
# Kind; bytes of the verdict, of the packed features.
_ANSWER_HEADER = struct.Struct(">BII")
# Probability, log-odds, threshold, settle, digest, digest of the sender or NULs; how many classes,
# words, users.
_SCAN_HEADER = struct.Struct(">ddd?16s16sHHH")
# Numbers of the classes, of the words, of each user (probability, log-odds, classes); then the
# tokens of the words.
_NUMBERS_FORMAT = ">{}d{}I"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


# ---- the process


class ScorerRequest(NamedTuple):
    """A message to judge, header fields as on top of it, and users whose mail it may be."""

    message: bytes
    on_top: bytes
    users: Sequence[str]


class Scorer:
    """Judges by the filter in a directory, which may appear, break and be mended meanwhile.

    words: as in `Filter.scan`. authserv_ids, results_stripped: as in `Filter.open`.
    """

    def __init__(
        self,
        state: Path,
        spam_threshold: float,
        words: int,
        authserv_ids: Collection[str] = (),
        *,
        results_stripped: bool = False,
    ) -> None:
        self._ledger = state / LEDGER_FILE
        self._words = words
        from spamguard.engine.filter import Filter  # noqa: PLC0415  not for the worker

        self._open = partial(
            Filter.open,
            state,
            spam_threshold=spam_threshold,
            authserv_ids=authserv_ids,
            results_stripped=results_stripped,
        )
        self._filter: Filter | None = None

    def open(self) -> Filter | None:
        """The filter, or None if there is none of use."""
        try:
            # Learning makes it, a scorer never does.
            if self._filter is None and self._ledger.exists():
                self._filter = self._open()
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
            return encode_answer(NOT_SCANNED, b"no-model")
        try:
            return encode_scan(
                spam_filter.scan(request.message, self._words, request.on_top, request.users)
            )
        except MemoryError:
            raise
        except SpamguardError as error:
            _log.error("%s", error)
            self._filter = None
            with suppress(SpamguardError):
                spam_filter.close()
            return encode_answer(NOT_SCANNED, b"no-model")
        except Exception:  # noqa: BLE001  the next message may be better
            _log.exception("a fault in judging")
            return encode_answer(NOT_SCANNED, b"error")


def read_requests(connection: socket.socket) -> Iterator[ScorerRequest]:
    """The requests, until the worker closes the connection."""
    while True:
        # A worker sends one request at a time, so no more than this one can be there.
        data, descriptors, _, _ = socket.recv_fds(connection, _CHUNK_BYTES, 1)
        if not data:
            return
        data += _read_exactly(connection, _REQUEST_HEADER.size - len(data))
        in_file, on_top_size, users_size, size = _REQUEST_HEADER.unpack_from(data)
        users_start = _REQUEST_HEADER.size + on_top_size
        start = users_start + users_size
        data += _read_exactly(connection, start + (0 if in_file else size) - len(data))
        # A large message is in no local variable: suspended, this generator would keep it.
        yield ScorerRequest(
            _read_file(descriptors[0], size) if in_file else data[start:],
            data[_REQUEST_HEADER.size : users_start],
            decode_users(data[users_start:start]),
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
    process.end_with_parent(parent, signal.SIGKILL)


def _limit_memory() -> None:
    """Limit memory to what is used now, with the tables, and `_MAX_MEMORY_BYTES`."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + _MAX_MEMORY_BYTES
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def main(arguments: list[str]) -> None:
    """Answer requests until the worker closes the connection."""
    spam_threshold, words, authserv_ids, stripped, state, descriptor, parent = arguments
    confine(int(parent))
    servers = authserv_ids.split(",")[:-1]
    scorer = Scorer(
        Path(state), float(spam_threshold), int(words), servers, results_stripped=bool(stripped)
    )
    scorer.open()
    _limit_memory()
    with socket.socket(fileno=int(descriptor)) as connection, suppress(EOFError, ConnectionError):
        connection.sendall(encode_answer(READY))
        for request in read_requests(connection):
            answer = scorer.answer(request)
            del request  # a large message is not kept until the next one comes
            connection.sendall(answer)


# ---- the protocol


def encode_request(on_top: bytes, users: Sequence[str], size: int, *, in_file: bool) -> bytes:
    """A request without its message. size: of the message. in_file: it comes as a descriptor."""
    on_top, names = on_top[:_MAX_ON_TOP_BYTES], encode_users(users)
    return _REQUEST_HEADER.pack(in_file, len(on_top), len(names), size) + on_top + names


def encode_users(names: Sequence[str]) -> bytes:
    """The users of a request as bytes, at most `MAX_USERS`.

    >>> decode_users(encode_users(["anna", "ben"]))
    ('anna', 'ben')
    """
    return "\0".join(names[:MAX_USERS]).encode("utf-8")


def decode_users(data: bytes) -> tuple[str, ...]:
    return tuple(data.decode("utf-8").split("\0")) if data else ()


class NotScanned(NamedTuple):
    """A message that could not be judged.

    reason: a word such as "timeout", "crashed", "no-model", "poison".
    """

    reason: str

    @property
    def settle(self) -> bool:
        """Whether the tables may be missing, which settling makes anew."""
        return self.reason == "no-model"


class ScorerAnswer(NamedTuple):
    """One answer as it came. kind: READY, SCANNED or NOT_SCANNED."""

    kind: int
    text: bytes
    packed: bytes


class ScorerAnswerReader:
    """Cuts the bytes of a scorer into answers."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[ScorerAnswer]:
        """The answers that are complete now. ValueError: the bytes can be no answer."""
        self._buffer += data
        while len(self._buffer) >= _ANSWER_HEADER.size:
            kind, text, packed = _ANSWER_HEADER.unpack_from(self._buffer)
            if kind > NOT_SCANNED or text > _MAX_VERDICT_BYTES or packed > _MAX_PACKED_BYTES:
                raise ValueError("not an answer")
            middle = _ANSWER_HEADER.size + text
            end = middle + packed
            if len(self._buffer) < end:
                return
            text_bytes = bytes(self._buffer[_ANSWER_HEADER.size : middle])
            answer = ScorerAnswer(kind, text_bytes, bytes(self._buffer[middle:end]))
            del self._buffer[:end]
            yield answer


def encode_answer(kind: int, text: bytes = b"", packed: bytes = b"") -> bytes:
    return _ANSWER_HEADER.pack(kind, len(text), len(packed)) + text + packed


def encode_scan(scan: Scan) -> bytes:
    """The answer with a scan.

    After the numbers come, as text with NUL between: label, line, classes, words, users and their
    labels.
    """
    verdict, words, personal = scan.verdict, scan.words[:_MAX_WORDS], scan.personal
    classes = verdict.probabilities
    header = _SCAN_HEADER.pack(
        verdict.probability,
        verdict.log_odds,
        scan.threshold,
        scan.settle,
        scan.digest,
        scan.sender.ljust(DIGEST_BYTES, b"\0"),
        len(classes),
        len(words),
        len(personal),
    )
    tokens, word_texts, parts = zip(*words, strict=True) if words else ((), (), ())
    numbers = [*classes.values(), *parts]
    for other in personal.values():
        numbers += other.probability, other.log_odds
        numbers += [other.probabilities[name] for name in classes]
    numbers_bytes = struct.pack(_NUMBERS_FORMAT.format(len(numbers), len(words)), *numbers, *tokens)
    cut = [text[:_MAX_WORD_LENGTH].replace("\0", " ") for text in word_texts]
    labels = [other.label for other in personal.values()]
    line = scan.line[:MAX_LINE].replace("\0", " ")
    texts = "\0".join([verdict.label, line, *classes, *cut, *personal, *labels])
    text = header + numbers_bytes + texts.encode("utf-8", "replace")
    return encode_answer(SCANNED, text, scan.packed)


def decode_scan(answer: ScorerAnswer, users: Collection[str] = ()) -> Scan:
    """The scan in an answer. users: of the request.

    Raises
    ------
    ValueError
        The answer is not of the right form, or not an answer to this request.
    """
    try:
        probability, log_odds, threshold, settle, digest, sender, *counts = (
            _SCAN_HEADER.unpack_from(answer.text)
        )
        class_count, word_count, user_count = counts
        number_count = class_count + word_count + user_count * (class_count + 2)
        form = _NUMBERS_FORMAT.format(number_count, word_count)
        numbers = struct.unpack_from(form, answer.text, _SCAN_HEADER.size)
    except struct.error as error:
        raise ValueError("not a scan") from error
    text = answer.text[_SCAN_HEADER.size + struct.calcsize(form) :].decode("utf-8")
    label, line, *texts = text.split("\0")
    if len(texts) != class_count + word_count + 2 * user_count:
        raise ValueError("not a scan")
    classes, personal_start = texts[:class_count], class_count + word_count
    probabilities = dict(zip(classes, numbers, strict=False))
    verdict = Verdict(label, probability, log_odds, probabilities)
    word_texts, parts = texts[class_count:personal_start], numbers[class_count:personal_start]
    words = tuple(map(Word, numbers[number_count:], word_texts, parts))
    personal = {}
    width = class_count + 2
    for index in range(user_count):
        start = personal_start + index * width
        probability, log_odds, *by_class = numbers[start : start + width]
        user, label = texts[personal_start + index], texts[personal_start + user_count + index]
        probabilities = dict(zip(classes, by_class, strict=True))
        personal[user] = Verdict(label, probability, log_odds, probabilities)
    if not (
        word_count <= _MAX_WORDS
        and all(-1000.0 <= part <= 1000.0 for part in parts)
        and max(map(len, word_texts), default=0) <= _MAX_WORD_LENGTH
        and len(line) <= MAX_LINE
        and 0.0 <= threshold <= 1.0
        and len(personal) == user_count
        and personal.keys() <= set(users)
        and all(map(_is_valid_verdict, (verdict, *personal.values())))
    ):
        raise ValueError("not a scan of what was asked")
    sender = sender if sender.startswith(SENDER_PREFIX) else b""
    return Scan(verdict, digest, answer.packed, words, threshold, settle, personal, sender, line)


def _is_valid_verdict(verdict: Verdict) -> bool:
    """Every comparison with NaN is false."""
    probabilities = (verdict.probability, *verdict.probabilities.values())
    return (
        all(0.0 <= probability <= 1.0 for probability in probabilities)
        and all(map(_NAME.fullmatch, (verdict.label, *verdict.probabilities)))
        and -1000.0 <= verdict.log_odds <= 1000.0
    )


def decode_reason(answer: ScorerAnswer) -> str:
    """Why a message was not scanned. ValueError: that is no plain word."""
    reason = answer.text.decode("ascii")
    if not _NAME.fullmatch(reason):
        raise ValueError("not a reason")
    return reason


if __name__ == "__main__":
    log.configure(logging.WARNING)
    main(sys.argv[1:])
