"""Mail in order of arrival, and the trials made of it: halves, splices, unequal classes, lessons
and the messages after them.

Pure but for reading an index: it never reads a message and never asks a filter. No judged message
comes before a lesson, and order is kept, because near-copies arrive together: mail split at random
would be known already.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Mail(NamedTuple):
    """One message: its true class, and its file."""

    label: str
    path: Path


def labelled(index: str | Path) -> list[Mail]:
    """The messages of a TREC index."""
    place = Path(index)
    if not place.exists():
        raise SystemExit(f"no corpus at {place}; `python corpora/fetch.py` gets one")
    pairs = [line.split(maxsplit=1) for line in place.read_text("utf-8").splitlines()]
    return [Mail(label, place.parent / name) for label, name in pairs]


def thinned(mail: Sequence[Mail], label: str, others: int) -> list[Mail]:
    """The same stream with so little of one class, evenly chosen, that there is one to so many
    others.
    """
    total = sum(message.label == label for message in mail)
    wanted = max(1, round((len(mail) - total) / others))
    kept, seen = [], 0
    for message in mail:
        if message.label == label:
            seen += 1
            if seen * wanted // total == (seen - 1) * wanted // total:
                continue
        kept.append(message)
    return kept


@dataclass(frozen=True, slots=True)
class Draw:
    """The messages that one trial teaches, in this order, and those that it then judges, frozen."""

    lessons: list[Mail]
    judged: list[Mail]


def balanced(mail: Sequence[Mail], split: int, each: int, judged: int, seed: int) -> Draw:
    """As many of each class, in turns, drawn from before place `split`; the next `judged` messages
    are judged.
    """
    chance = random.Random(seed)
    sides = [
        chance.sample([message for message in mail[:split] if message.label == label], each)
        for label in ("spam", "ham")
    ]
    return Draw(
        [one for pair in zip(*sides, strict=True) for one in pair],
        list(mail[split : split + judged]),
    )


def splits(mail: Sequence[Mail], each: int, judged: int, draws: int) -> list[int]:
    """Places at equal distances, between the one where as many of each class have arrived and the
    one where as many are left to be judged.
    """
    counts = {"spam": 0, "ham": 0}
    first = len(mail)
    for place, message in enumerate(mail):
        counts[message.label] += 1
        if min(counts.values()) == each:
            first = place + 1
            break
    last = len(mail) - judged
    if last < first:
        raise SystemExit(
            f"too little mail: {each} of each class are there after {first} messages, "
            f"{judged} more are to be judged"
        )
    return [first + (last - first) * number // max(draws - 1, 1) for number in range(draws)]


def natural(mail: Sequence[Mail], start: int, lessons: int, judged: int) -> Draw:
    """So many messages from place `start` on, in their order; the next `judged` are judged."""
    return Draw(
        list(mail[start : start + lessons]), list(mail[start + lessons : start + lessons + judged])
    )


def in_turns(streams: Sequence[Sequence[Mail]]) -> list[Mail]:
    """Several streams as one: each in its own order, all running out together."""
    due = [
        ((number + 0.5) / len(some), place, one)
        for place, some in enumerate(streams)
        for number, one in enumerate(some)
    ]
    return [one for _, _, one in sorted(due, key=lambda item: item[:2])]


def side_by_side(mail: Sequence[Mail]) -> list[Mail]:
    """Ham and spam each in its own order, mixed so that both run out together: however unequal they
    came, every stretch holds both.
    """
    return in_turns(
        [[message for message in mail if message.label == label] for label in ("ham", "spam")]
    )
