"""What every reader of a word list makes of its file. Values only."""

from __future__ import annotations

from typing import NamedTuple


class Word(NamedTuple):
    """One entry. section: of a message as we read it (`mail.fields`), b"" is the body; None: there is no such thing here.

    ham, spam: in how much mail of each class the other filter had seen it.
    """

    section: bytes | None
    text: str
    ham: int
    spam: int


class Sizes(NamedTuple):
    """How much of each class the other filter had been taught, in what its counts are counted in: messages, or words."""

    ham: int
    spam: int


Entry = Word | Sizes
"""What a reader yields; sizes come once, anywhere."""


def text_of(raw: bytes) -> str:
    """A word, whose charset no list names: UTF-8, or else what most lists of before that were written in."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("cp1252", "replace")


HIGHEST = 1 << 40  # of a count: more is no count
