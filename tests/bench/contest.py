"""What is asked of every filter on trial, and what they answer.

Scores are log-odds of spam (natural logarithm; higher is more likely spam), bounded by what the
filter prints, so that a probability printed as 1 is not infinite evidence. Every process ends with
`close`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Answer(NamedTuple):
    """score: log-odds of spam. label: "spam", "ham" or "unsure". doubt: taught by those who teach
    only what went wrong or nearly so.
    """

    score: float
    label: str
    doubt: bool


def log_odds(probability: float, resolution: float) -> float:
    """Of a printed probability; no nearer to 0 and 1 than half its last digit."""
    return math.log(max(probability, resolution / 2)) - math.log(
        max(1 - probability, resolution / 2)
    )


def answer(probability: float, resolution: float, ham_to: float, spam_from: float) -> Answer:
    label = "spam" if probability >= spam_from else "ham" if probability <= ham_to else "unsure"
    return Answer(log_odds(probability, resolution), label, label == "unsure")


class Rival:
    """A filter on trial. place: a directory for it alone, made here."""

    def __init__(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        self.place = place

    def judge(self, path: Path) -> Answer:
        """What it says about the message in this file; nothing is taught by that."""
        raise NotImplementedError

    def judge_all(self, paths: Sequence[Path]) -> list[Answer]:
        """The same for many, as it is."""
        return [self.judge(path) for path in paths]

    def teach(self, path: Path, label: str) -> None:
        """Teach it this message."""
        raise NotImplementedError

    def bulk_taught(self) -> None:
        """A pile of lessons is over, and somebody has time; most have nothing to do then."""

    def close(self) -> None:
        """End its processes; most keep none."""
