"""The interface of every filter on trial: questions and answers.

Scores are log-odds of spam (natural logarithm; higher is more likely spam), bounded by the
precision of the printed value, so that a probability printed as 1 is not infinite evidence. Every
process ends with `close`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Answer(NamedTuple):
    """score: log-odds of spam. label: "spam", "ham" or "unsure". doubt: a filter that is trained on
    errors would be taught this.
    """

    score: float
    label: str
    doubt: bool


def log_odds(probability: float, resolution: float) -> float:
    """Of a printed probability, no nearer to 0 and 1 than half its last digit."""
    return math.log(max(probability, resolution / 2)) - math.log(
        max(1 - probability, resolution / 2)
    )


def answer(probability: float, resolution: float, ham_to: float, spam_from: float) -> Answer:
    label = "spam" if probability >= spam_from else "ham" if probability <= ham_to else "unsure"
    return Answer(log_odds(probability, resolution), label, label == "unsure")


class Rival:
    """A filter on trial. place: its own directory, made here."""

    def __init__(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        self.place = place

    def judge(self, path: Path) -> Answer:
        """Its answer for the message in this file; that teaches nothing."""
        raise NotImplementedError

    def judge_all(self, paths: Sequence[Path]) -> list[Answer]:
        """Its answers for many messages, in its present state."""
        return [self.judge(path) for path in paths]

    def teach(self, path: Path, label: str) -> None:
        """Teach it this message."""
        raise NotImplementedError

    def close(self) -> None:
        """End its processes; most have none."""
