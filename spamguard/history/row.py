"""One judgement as the history keeps it. Must never let a text in that is not bounded and printable: senders choose most of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any
from unicodedata import normalize

from spamguard.records import Word

RECIPIENTS = 50  # that are kept, as many as Postfix names in one transaction; and users for whom a message was judged otherwise
_WORDS = 50
_ADDRESS, _SUBJECT, _AUTHOR, _REPLY, _SHORT = 320, 200, 200, 500, 100  # characters

COLUMNS = (
    "id", "time", "listener", "client", "sender", "recipients", "subject", "size", "digest", "label", "probability", "log_odds",
    "action", "reply", "packed", "words", "extractor", "fingerprint", "personal", "author",
)  # fmt: skip
LARGE = ("packed", "words")
"""What is not read when rows are looked through."""
FOLDED = ("sender", "recipients", "subject", "author")
"""What is looked for whatever its case."""
LOWERED = ("subject", "author")
"""What of it has A to Z folded when it is looked for: nearly all have some, and would be kept twice."""
_PLACES = [(COLUMNS.index(name), name in LOWERED) for name in FOLDED]
_JOINERS = frozenset("\u200c\u200d")
"""Unprintable by Unicode's word, yet without them Persian, Hindi and many emoji are not what was written."""
_OF_SUBJECT = ("subject:",)  # how words begin, that stood there
_OF_ADDRESSES = ("address:", "from:", "to:", "cc:", "reply-to:", "sender:")


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one message. id: `ids.new_id`. time: seconds since 1970. client: its address. reply: the next hop's.

    recipients: the first `RECIPIENTS` of them are kept. size: bytes. label: of the verdict, or "not-scanned"; then digest and
    packed are b"". packed: the features (`ledger.codec`) that `extractor` took out with the key of that `fingerprint`.
    words: that weighed most, strongest first. personal: users for whom it was decided otherwise than for all, each with the label
    that it has by what that user has said; the first `RECIPIENTS` are kept. author: as `mail.author` has it, "" in rows of versions before.
    Longer texts than a person reads are cut.
    """

    id: str
    time: float
    listener: str
    client: str
    sender: str
    recipients: tuple[str, ...]
    subject: str
    size: int
    digest: bytes
    label: str
    probability: float
    log_odds: float
    action: str
    reply: str
    packed: bytes
    words: tuple[Word, ...]
    extractor: int
    fingerprint: str
    personal: Mapping[str, str] = field(default_factory=dict)
    author: str = ""

    @property
    def was_scanned(self) -> bool:
        """Whether anything is known of what it says."""
        return bool(self.digest)


def without(row: Row, *, subjects: bool, addresses: bool) -> Row:
    """The row as it is kept where either is not to be: nor words that stood there.

    Addresses are those of sender, author and recipients, users, the client, and what the next hop has said behind its code.
    """
    left_out = (() if subjects else _OF_SUBJECT) + (() if addresses else _OF_ADDRESSES)
    if left_out:
        row = replace(row, words=tuple(word for word in row.words if not word.text.startswith(left_out)))
    if not subjects:
        row = replace(row, subject="")
    return row if addresses else replace(row, sender="", author="", recipients=(), client="", reply=row.reply[:3], personal={})


Columns = tuple[Any, ...]
"""The values of a row as they are kept: those of `COLUMNS`, then those of `FOLDED` as `fold` makes them, None where that is the same, or
is but for A to Z, in subject and author."""


def columns(row: Row) -> Columns:
    """The values to keep."""
    values = _columns(row)
    return (*values, *[_folded(values[place], lowered=lowered) for place, lowered in _PLACES])


def _folded(text: str, *, lowered: bool) -> str | None:
    return None if (lowered and text.isascii()) or (folded := fold(text)) == text else folded


def fold(text: str) -> str:
    """A text without what people do not mind when they look for it: case, and forms of the same letter (NFKC, UAX #15)."""
    return text.lower() if text.isascii() else normalize("NFKC", text).casefold()


_json = json.JSONEncoder(ensure_ascii=False).encode  # `dumps` would make one each time


def _columns(row: Row) -> Columns:
    return (
        row.id,
        row.time,
        printable(row.listener, _SHORT),
        printable(row.client, _SHORT),
        printable(row.sender, _ADDRESS),
        _json([printable(one, _ADDRESS) for one in row.recipients[:RECIPIENTS]]),
        readable(row.subject, _SUBJECT),
        row.size,
        row.digest,
        printable(row.label, _SHORT),
        row.probability,
        row.log_odds,
        printable(row.action, _SHORT),
        printable(row.reply, _REPLY),
        row.packed,
        _told(row.words[:_WORDS]),
        row.extractor,
        row.fingerprint,
        _json({printable(user, _ADDRESS): label for user, label in islice(row.personal.items(), RECIPIENTS)}),
        readable(row.author, _AUTHOR),
    )


def _told(words: Sequence[Word]) -> str:
    """As JSON, put together by hand: each number is rounded and written in one step, which halves what a row costs."""
    return "[" + ", ".join([f"[{token}, {_json(readable(text, _SHORT))}, {part:.6f}]" for token, text, part in words]) + "]"


def from_columns(values: Sequence[Any], names: Sequence[str] = COLUMNS) -> Row:
    """The row, without its large values where names has none of them; ValueError, TypeError when the values are damaged."""
    named = {"packed": b"", "words": "[]"} | dict(zip(names, values, strict=True))
    named["recipients"] = tuple(json.loads(named["recipients"]))
    named["personal"] = json.loads(named["personal"])
    named["words"] = tuple(Word(*word) for word in json.loads(named["words"]))
    return Row(**named)


def printable(value: str, most: int) -> str:
    """A stranger's text without what speaks to terminals, cut to so many characters."""
    cut = value[:most]
    return cut if cut.isprintable() else "".join(letter if letter.isprintable() else "\ufffd" for letter in cut)


def readable(value: str, most: int) -> str:
    """The same for what is written in sentences, unlike addresses, which must not look like others: with its joiners."""
    cut = value[:most]
    return cut if cut.isprintable() else "".join(letter if letter in _JOINERS else printable(letter, 1) for letter in cut)
