"""What a worker and its scorers say to each other over a socket: fixed heads, lengths in front, JSON for verdicts.

Whoever has read hostile mail is not trusted: an answer is believed only if it has the right form and bounds in every part.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from math import isfinite
from typing import Any, NamedTuple, NoReturn

from spamguard.records import Scan, Verdict, Word

REQUEST = struct.Struct(">BBHQ")  # requests that follow at once; whether the message is a file; bytes on top, of the message
_ANSWER = struct.Struct(">BII")  # kind; bytes of JSON, of packed features
READY, SCANNED, NOT_SCANNED = range(3)
MOST_ON_TOP = (1 << 16) - 1  # bytes
_MOST_JSON = 64 << 10
_MOST_PACKED = 4 << 20
_MOST_WORDS = 64
_MOST_TEXT = 200  # characters of a word
_DIGEST = 16  # bytes


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
            if kind > NOT_SCANNED or text > _MOST_JSON or packed > _MOST_PACKED:
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
    """The answer that holds a scan."""
    verdict = scan.verdict
    words = [[word.token, word.text[:_MOST_TEXT].encode("utf-8", "replace").decode(), word.part] for word in scan.words[:_MOST_WORDS]]
    values = [
        verdict.label,
        verdict.probability,
        verdict.log_odds,
        dict(verdict.probabilities),
        scan.digest.hex(),
        words,
        scan.threshold,
        scan.settle,
    ]
    return answer(SCANNED, json.dumps(values).encode(), scan.packed)


def scan_of(found: Answer) -> Scan:
    """The scan that an answer holds; ValueError when it is none."""
    values = json.loads(found.text, parse_constant=_refuse)
    if not isinstance(values, list) or len(values) != 8:
        raise ValueError("not a scan")
    label, probability, log_odds, probabilities, digest, words, threshold, settle = values
    if not isinstance(probabilities, dict) or not isinstance(words, list) or len(words) > _MOST_WORDS or not isinstance(settle, bool):
        raise ValueError("not a scan")
    shares = {_name(name): _number(share, 0.0, 1.0) for name, share in probabilities.items()}
    verdict = Verdict(_name(label), _number(probability, 0.0, 1.0), _number(log_odds, -1000.0, 1000.0), shares)
    name = bytes.fromhex(_text(digest, 2 * _DIGEST))
    if len(name) != _DIGEST:
        raise ValueError("not a digest")
    return Scan(verdict, name, found.packed, tuple(map(_word, words)), _number(threshold, 0.0, 1.0), settle)


def reason_of(found: Answer) -> str:
    """Why a message was not scanned; ValueError when that is no plain word."""
    return _name(found.text.decode("ascii"))


def _word(value: Any) -> Word:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("not a word")
    token, text, part = value
    if not isinstance(token, int) or not 0 <= token < 1 << 32:
        raise ValueError("not a token")
    return Word(token, _text(text, _MOST_TEXT), _number(part, -1e6, 1e6))


def _number(value: Any, low: float, high: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value) or not low <= value <= high:
        raise ValueError("not such a number")
    return float(value)


def _name(value: Any) -> str:
    name = _text(value, 32)
    if not name or not name.replace("-", "a").replace("_", "a").isalnum() or not name.isascii():
        raise ValueError("not a name")
    return name


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise ValueError("not such a text")
    value.encode()  # half a surrogate pair is a ValueError too
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
