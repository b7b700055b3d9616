"""What a message is made of: how little text a reader sees, and what stands there in its place. A picture with the text drawn into it
leaves no words to know spam by, and few honest messages are a picture that leads to a link and nothing else. A handful of words may be
such as come only once, and then only how they look says anything.

Says only how much and of what kind, in a few steps, never what: so what is learnt holds for pictures never seen. Pure; never raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_STEPS = ((0, b"no"), (3, b"scarce"), (10, b"few"), (30, b"some"))  # at most so many words
_MOST = _STEPS[-1][0]
_NO_TEXT = 3  # words, or fewer
_MOST_KINDS = 6
_HANDFUL = 10  # words (corpora/RESULTS.md, "What a handful of words looks like")
_LONG = 16  # bytes; longer ones are all alike
_NO_SIGNS = re.compile(rb"[A-Za-z0-9\x80-\xff]*")


class Makeup(NamedTuple):
    """clues: tokens of how a message is built. standing_in: what counts as its words where next to none are, in capitals, which no
    text has any more."""

    clues: list[bytes]
    standing_in: bytes


def of(text: bytes, letters: int, leaves: Iterable[bytes], *, pictures: bool, linked: bool) -> Makeup:
    """text: what a reader sees. letters: of scripts without blanks, beside it. leaves: media types. pictures: any are shown or attached;
    linked: within a link.
    """
    clues = [b"leaves_" + b"_".join(list(dict.fromkeys(map(_kind, leaves)))[:_MOST_KINDS])]
    words = len(text.split(None, _MOST)) + letters if pictures else _MOST + 1
    if words > _MOST:
        return Makeup(clues, b"")
    size = next(name for most, name in _STEPS if words <= most)
    clues += [size + b"_words_picture", b"little_text_picture", b"little_text_picture_" + (b"link" if linked else b"alone")]
    return Makeup(clues, b" ".join(clues).upper() if linked and words <= _NO_TEXT else b"")


def of_handful(text: bytes, letters: int, subjects: Iterable[bytes]) -> list[bytes]:
    """Where a reader sees a handful of words at most: how many, and how each of them looks, in the subject too.

    text, letters: as in `of`.
    """
    words = text.split(None, _HANDFUL)
    if len(words) + letters > _HANDFUL:
        return []
    clues = _looks(b"text", words, letters)
    for subject in subjects:
        clues += _looks(b"subject", subject.split(None, _HANDFUL), 0)
    return clues


def _looks(place: bytes, words: list[bytes], letters: int) -> list[bytes]:
    if len(words) > _HANDFUL:
        return []
    looks = [b"few_%b_%b_%d" % (place, _made_of(word), min(len(word), _LONG)) for word in words]
    return [b"few_%b_%d" % (place, len(words) + letters), *looks]


def _made_of(word: bytes) -> bytes:
    if not _NO_SIGNS.fullmatch(word):
        return b"signs"
    without = len(word.translate(None, b"0123456789"))
    if without == len(word):
        return b"letters"
    return b"mixed" if without else b"digits"


def _kind(media: bytes) -> bytes:
    """Of text which one, of anything else its main type."""
    main, _, kind = media.partition(b"/")
    return kind if main == b"text" else main
