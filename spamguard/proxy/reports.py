"""A verdict in words, for people who ask from a program that shows a text. Pure: what a message brings along cannot become a line of it."""

from __future__ import annotations

from collections.abc import Sequence

from spamguard.policy import REQUIRED
from spamguard.proxy.asking import Judged


def words(judged: Judged, *, tell_parts: bool) -> Sequence[str]:
    """The words that weighed most, harmless as text. tell_parts: with their weights, which would help spammers to write."""
    found = judged.scan.words if judged.scan else ()
    return [_harmless(word.text) + (f" {word.part:+.2f}" if tell_parts else "") for word in found]


def text(judged: Judged, *, tell_parts: bool) -> str:
    """Some lines, CRLF line ends."""
    if judged.scan is None:
        lines = [f"spamguard: not judged ({judged.reason}), id {judged.id}"]
    else:
        told = [f"    {word}" for word in words(judged, tell_parts=tell_parts)]
        lines = [f"spamguard: {judged.label}, {judged.score:.1f} points of {REQUIRED:.1f} required, id {judged.id}", "words:", *told]
    return "".join(f"{line}\r\n" for line in lines)


def _harmless(word: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in word)
