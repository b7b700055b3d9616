"""What a worker and its scorers say to each other over a socket: fixed forms with lengths in front.

Whoever has read hostile mail is not trusted: an answer is believed only if it has the right form and bounds in every part.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from math import isfinite
from typing import NamedTuple

from spamguard.records import Scan, Verdict, Word

REQUEST = struct.Struct(">BBHQ")  # requests that follow at once; whether the message is a file; bytes on top, of the message
_ANSWER = struct.Struct(">BII")  # kind; bytes of the verdict, of packed features
_SCAN = struct.Struct(">ddd?16sHH")  # probability, log-odds, threshold, settle, digest; how many classes, words
_CLASS = struct.Struct(">d")  # probability
_WORD = struct.Struct(">Id")  # token, part
READY, SCANNED, NOT_SCANNED = range(3)
MOST_ON_TOP = (1 << 16) - 1  # bytes
_MOST_VERDICT = 64 << 10
_MOST_PACKED = 4 << 20
_MOST_WORDS = 64
_MOST_TEXT = 200  # characters of a word
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


class Answer(NamedTuple):
    """One answer as it came. kind: READY, SCANNED or NOT_SCANNED."""

    kind: int
    text: bytes
    packed: bytes


class Answers:
    """Cuts what comes from a scorer into answers; ValueError as soon as it cannot be one."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Answer]:
        """The answers that are complete now."""
        self._buffer += data
        while len(self._buffer) >= _ANSWER.size:
            kind, text, packed = _ANSWER.unpack_from(self._buffer)
            if kind > NOT_SCANNED or text > _MOST_VERDICT or packed > _MOST_PACKED:
                raise ValueError("not an answer")
            middle = _ANSWER.size + text
            end = middle + packed
            if len(self._buffer) < end:
                return
            found = Answer(kind, bytes(self._buffer[_ANSWER.size : middle]), bytes(self._buffer[middle:end]))
            del self._buffer[:end]
            yield found


def answer(kind: int, text: bytes = b"", packed: bytes = b"") -> bytes:
    """An answer as it goes over the socket."""
    return _ANSWER.pack(kind, len(text), len(packed)) + text + packed


def scanned(scan: Scan) -> bytes:
    """The answer that holds a scan: the numbers, then label, classes and words as text with NUL between."""
    verdict, words = scan.verdict, scan.words[:_MOST_WORDS]
    shares = verdict.probabilities
    head = (verdict.probability, verdict.log_odds, scan.threshold, scan.settle, scan.digest, len(shares), len(words))
    texts = [verdict.label, *shares, *[word.text[:_MOST_TEXT].replace("\0", " ") for word in words]]
    parts = (
        _SCAN.pack(*head),
        *map(_CLASS.pack, shares.values()),
        *[_WORD.pack(word.token, word.part) for word in words],
        "\0".join(texts).encode("utf-8", "replace"),
    )
    return answer(SCANNED, b"".join(parts), scan.packed)


def scan_of(found: Answer) -> Scan:
    """The scan that an answer holds; ValueError when it is none."""
    try:
        probability, log_odds, threshold, settle, digest, classes, words = _SCAN.unpack_from(found.text)
        first, second = _SCAN.size + classes * _CLASS.size, _SCAN.size + classes * _CLASS.size + words * _WORD.size
        shares = [share for (share,) in _CLASS.iter_unpack(found.text[_SCAN.size : first])]
        weights = list(_WORD.iter_unpack(found.text[first:second]))
    except struct.error as error:
        raise ValueError("not a scan") from error
    label, *texts = found.text[second:].decode("utf-8").split("\0")
    if len(shares) != classes or len(weights) != words or len(texts) != classes + words:
        raise ValueError("not a scan")
    told = tuple([Word(token, text, part) for (token, part), text in zip(weights, texts[classes:], strict=True)])
    verdict = Verdict(label, probability, log_odds, dict(zip(texts, shares, strict=False)))
    _check(verdict, threshold, told)
    return Scan(verdict, digest, found.packed, told, threshold, settle)


def _check(verdict: Verdict, threshold: float, words: tuple[Word, ...]) -> None:
    """ValueError unless every number and every name is such as ours are. No comparison is true of what is not a number."""
    shares_are_right = all(0.0 <= share <= 1.0 for share in (verdict.probability, threshold, *verdict.probabilities.values()))
    names_are_right = all(map(_NAME.fullmatch, (verdict.label, *verdict.probabilities)))
    words_are_right = all(isfinite(word.part) and len(word.text) <= _MOST_TEXT for word in words) and len(words) <= _MOST_WORDS
    if not (shares_are_right and names_are_right and words_are_right and -1000.0 <= verdict.log_odds <= 1000.0):
        raise ValueError("not a scan of ours")


def reason_of(found: Answer) -> str:
    """Why a message was not scanned; ValueError when that is no plain word."""
    reason = found.text.decode("ascii")
    if not _NAME.fullmatch(reason):
        raise ValueError("not a reason")
    return reason
