"""What a message is made of: how little text a reader sees, and what stands there in its place. A picture with the text drawn into it
leaves no words to know spam by, and few honest messages are a picture that leads to a link and nothing else.

Says only how much and of what kind, in a few steps, never what: so what is learnt holds for pictures never seen. Pure; never raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_STEPS = ((0, b"no"), (3, b"scarce"), (10, b"few"), (30, b"some"))  # at most so many words
_MOST = _STEPS[-1][0]
_NO_TEXT = 3  # words, or fewer
_MOST_KINDS = 6


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


def _kind(media: bytes) -> bytes:
    """Of text which one, of anything else its main type."""
    main, _, kind = media.partition(b"/")
    return kind if main == b"text" else main
