"""The protocol between a worker and its scorers on a socket: fixed headers with lengths.

A scorer has read hostile mail and is not trusted: the worker accepts an answer only if every part
has the right form and is within bounds.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator, Sequence
from math import isfinite
from typing import NamedTuple

from spamguard.records import Scan, Verdict, Word

# Whether the message is a file; bytes of the fields on top, of the users, of the message.
REQUEST_HEADER = struct.Struct(">BHIQ")
# Kind; bytes of the verdict, of the packed features.
_ANSWER_HEADER = struct.Struct(">BII")
# Probability, log-odds, threshold, settle, digest; how many classes, words, users.
_SCAN_HEADER = struct.Struct(">ddd?16sHHH")
# Numbers of the classes, of the words, of each user (probability, log-odds, classes); then the
# tokens of the words.
_NUMBERS_FORMAT = ">{}d{}I"
READY, SCANNED, NOT_SCANNED = range(3)
MAX_ON_TOP_BYTES = (1 << 16) - 1
MAX_USERS = 200
"""How many users a request names; each has at most 255 bytes."""
_MAX_VERDICT_BYTES = 256 << 10
_MAX_PACKED_BYTES = 4 << 20
_MAX_WORDS = 64
_MAX_WORD_LENGTH = 200  # characters
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


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


def encode_users(names: Sequence[str]) -> bytes:
    """The users of a request as bytes, at most `MAX_USERS`.

    >>> decode_users(encode_users(["anna", "ben"]))
    ('anna', 'ben')
    """
    return "\0".join(names[:MAX_USERS]).encode("utf-8")


def decode_users(data: bytes) -> tuple[str, ...]:
    """The users that `encode_users` encoded."""
    return tuple(data.decode("utf-8").split("\0")) if data else ()


def encode_answer(kind: int, text: bytes = b"", packed: bytes = b"") -> bytes:
    """An answer as bytes."""
    return _ANSWER_HEADER.pack(kind, len(text), len(packed)) + text + packed


def encode_scan(scan: Scan) -> bytes:
    """The answer with a scan.

    After the numbers come, as text with NUL between: label, classes, words, users and their labels.
    """
    verdict, words, personal = scan.verdict, scan.words[:_MAX_WORDS], scan.personal
    classes = verdict.probabilities
    header = _SCAN_HEADER.pack(
        verdict.probability,
        verdict.log_odds,
        scan.threshold,
        scan.settle,
        scan.digest,
        len(classes),
        len(words),
        len(personal),
    )
    numbers = [*classes.values(), *[word.part for word in words]]
    for own in personal.values():
        numbers += own.probability, own.log_odds, *[own.probabilities[name] for name in classes]
    form = _NUMBERS_FORMAT.format(len(numbers), len(words))
    numbers_bytes = struct.pack(form, *numbers, *[word.token for word in words])
    word_texts = [word.text[:_MAX_WORD_LENGTH].replace("\0", " ") for word in words]
    labels = [own.label for own in personal.values()]
    texts = "\0".join([verdict.label, *classes, *word_texts, *personal, *labels])
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
        probability, log_odds, threshold, settle, digest, class_count, word_count, user_count = (
            _SCAN_HEADER.unpack_from(answer.text)
        )
        number_count = class_count + word_count + user_count * (class_count + 2)
        form = _NUMBERS_FORMAT.format(number_count, word_count)
        numbers = struct.unpack_from(form, answer.text, _SCAN_HEADER.size)
    except struct.error as error:
        raise ValueError("not a scan") from error
    text = answer.text[_SCAN_HEADER.size + struct.calcsize(form) :].decode("utf-8")
    label, *texts = text.split("\0")
    if len(texts) != class_count + word_count + 2 * user_count:
        raise ValueError("not a scan")
    classes, own_start = texts[:class_count], class_count + word_count
    probabilities = dict(zip(classes, numbers, strict=False))
    verdict = Verdict(label, probability, log_odds, probabilities)
    words = tuple(
        map(Word, numbers[number_count:], texts[class_count:], numbers[class_count:own_start])
    )
    personal = {}
    width = class_count + 2
    for index in range(user_count):
        start = own_start + index * width
        own_probability, own_log_odds, *own = numbers[start : start + width]
        user, own_label = texts[own_start + index], texts[own_start + user_count + index]
        own_probabilities = dict(zip(classes, own, strict=True))
        personal[user] = Verdict(own_label, own_probability, own_log_odds, own_probabilities)
    words_are_valid = len(words) <= _MAX_WORDS and all(
        isfinite(word.part) and len(word.text) <= _MAX_WORD_LENGTH for word in words
    )
    if not (_is_valid_verdict(verdict) and 0.0 <= threshold <= 1.0 and words_are_valid):
        raise ValueError("not a scan of ours")
    if (
        len(personal) != user_count
        or not personal.keys() <= set(users)
        or not all(map(_is_valid_verdict, personal.values()))
    ):
        raise ValueError("not a scan of what was asked")
    return Scan(verdict, digest, answer.packed, words, threshold, settle, personal)


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
