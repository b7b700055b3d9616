"""What a worker and its scorers say to each other over a socket: fixed forms with lengths in front.

Whoever has read hostile mail is not trusted: an answer is believed only if it has the right form and bounds in every part.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from spamguard.records import Scan, Verdict, Word

REQUEST = struct.Struct(">BHIQ")  # whether the message is a file; bytes on top, of users, of the message
_ANSWER = struct.Struct(">BII")  # kind; bytes of the verdict, of packed features
_SCAN = struct.Struct(">ddd?16sHHH")  # probability, log-odds, threshold, settle, digest; how many classes, words, users
_NUMBERS = ">{}d{}I"  # of the classes, of the words, of each user (probability, log-odds, classes); then the tokens of the words
READY, SCANNED, NOT_SCANNED = range(3)
MOST_ON_TOP = (1 << 16) - 1  # bytes
MOST_USERS = 200  # that a scorer is asked about; each of at most 255 bytes
_MOST_VERDICT = 256 << 10
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


def users(names: Sequence[str]) -> bytes:
    """Whom a scorer is asked about, as it goes over the socket; no more than `MOST_USERS`."""
    return "\0".join(names[:MOST_USERS]).encode("utf-8")


def users_of(data: bytes) -> tuple[str, ...]:
    """The same as it was."""
    return tuple(data.decode("utf-8").split("\0")) if data else ()


def answer(kind: int, text: bytes = b"", packed: bytes = b"") -> bytes:
    """An answer as it goes over the socket."""
    return _ANSWER.pack(kind, len(text), len(packed)) + text + packed


def scanned(scan: Scan) -> bytes:
    """The answer that holds a scan: the numbers, then label, classes, words, users and their labels as text with NUL between."""
    verdict, words, personal = scan.verdict, scan.words[:_MOST_WORDS], scan.personal
    shares = verdict.probabilities
    head = (verdict.probability, verdict.log_odds, scan.threshold, scan.settle, scan.digest, len(shares), len(words), len(personal))
    numbers = [*shares.values(), *[word.part for word in words], *[number for own in personal.values() for number in _numbers(own, shares)]]
    packed = struct.pack(_NUMBERS.format(len(numbers), len(words)), *numbers, *[word.token for word in words])
    told = [word.text[:_MOST_TEXT].replace("\0", " ") for word in words]
    texts = [verdict.label, *shares, *told, *personal, *[own.label for own in personal.values()]]
    return answer(SCANNED, _SCAN.pack(*head) + packed + "\0".join(texts).encode("utf-8", "replace"), scan.packed)


def _numbers(own: Verdict, classes: Iterable[str]) -> list[float]:
    """What is told of a verdict for a user."""
    return [own.probability, own.log_odds, *[own.probabilities[name] for name in classes]]


def scan_of(found: Answer, users: Collection[str] = ()) -> Scan:
    """The scan that an answer holds; ValueError when it is none. users: who was asked about."""
    try:
        probability, log_odds, threshold, settle, digest, classes, words, people = _SCAN.unpack_from(found.text)
        form = _NUMBERS.format(classes + words + people * (classes + 2), words)
        numbers = struct.unpack_from(form, found.text, _SCAN.size)
    except struct.error as error:
        raise ValueError("not a scan") from error
    label, *texts = found.text[_SCAN.size + struct.calcsize(form) :].decode("utf-8").split("\0")
    if len(texts) != classes + words + 2 * people:
        raise ValueError("not a scan")
    owned, tokens = classes + words, len(numbers) - words
    told = tuple(map(Word, numbers[tokens:], texts[classes:], numbers[classes:owned]))
    verdict = Verdict(label, probability, log_odds, dict(zip(texts[:classes], numbers, strict=False)))
    personal = _personal(texts[:classes], texts[owned:], numbers[owned:tokens]) if people else {}
    _check(verdict, threshold, told)
    _check_personal(personal, people, users)
    return Scan(verdict, digest, found.packed, told, threshold, settle, personal)


def _personal(classes: Sequence[str], texts: Sequence[str], numbers: Sequence[float]) -> dict[str, Verdict]:
    """Verdicts by user. texts: the users, then their labels. numbers: of each, probability, log-odds, then those of the classes."""
    width = len(classes) + 2
    rows = [numbers[at : at + width] for at in range(0, len(numbers), width)]
    told = zip(texts, texts[len(rows) :], rows, strict=False)
    return {user: Verdict(label, row[0], row[1], dict(zip(classes, row[2:], strict=True))) for user, label, row in told}


def _check(verdict: Verdict, threshold: float, words: tuple[Word, ...]) -> None:
    """ValueError unless every number and every name is such as ours are."""
    words_are_right = all(isfinite(word.part) and len(word.text) <= _MOST_TEXT for word in words) and len(words) <= _MOST_WORDS
    if not (_is_sound(verdict) and 0.0 <= threshold <= 1.0 and words_are_right):
        raise ValueError("not a scan of ours")


def _check_personal(personal: Mapping[str, Verdict], people: int, users: Collection[str]) -> None:
    """ValueError unless these are verdicts for different users, all of whom were asked about."""
    if len(personal) != people or not personal.keys() <= set(users) or not all(map(_is_sound, personal.values())):
        raise ValueError("not a scan of what was asked")


def _is_sound(verdict: Verdict) -> bool:
    """No comparison is true of what is not a number."""
    shares_are_right = all(0.0 <= share <= 1.0 for share in (verdict.probability, *verdict.probabilities.values()))
    return shares_are_right and all(map(_NAME.fullmatch, (verdict.label, *verdict.probabilities))) and -1000.0 <= verdict.log_odds <= 1000.0


def reason_of(found: Answer) -> str:
    """Why a message was not scanned; ValueError when that is no plain word."""
    reason = found.text.decode("ascii")
    if not _NAME.fullmatch(reason):
        raise ValueError("not a reason")
    return reason
