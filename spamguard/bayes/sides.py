"""Wanted and unwanted: which classes are which, and what numbers of each class make for all of one side together.

Whether mail is unwanted is asked of both sides as wholes, so that no answer depends on how finely people sort good mail; which class
of its side it is comes after. Pure: must know nothing about experts or tables.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Sides(NamedTuple):
    """Numbers of the wanted classes, ham first, and of the unwanted ones, spam first."""

    wanted: list[int]
    unwanted: list[int]


def sides_of(classes: Sequence[str], unwanted: Set[str]) -> Sides:
    """classes: ham, spam and then others; unwanted: names of those that are, whatever is said of the first two."""
    bad = [number for number, name in enumerate(classes) if number == 1 or (number > 1 and name in unwanted)]
    return Sides([number for number in range(len(classes)) if number not in bad], bad)


def merged(values: NDArray[Any], sides: Sides) -> NDArray[Any]:
    """Sums over the classes of each side, (2, ...), of values for each class, (K, ...)."""
    return values if len(values) == 2 else np.stack([values[side].sum(axis=0) for side in sides])


def with_sides(log_odds: Floats, sides: Sides) -> Floats:
    """Log-odds of every class but the first against it, (K-1, ...), and behind them those of unwanted mail, (K, ...).

    With two classes these are the same, and there once.
    """
    if len(log_odds) == 1:
        return log_odds
    every = np.concatenate((np.zeros_like(log_odds[:1]), log_odds))
    good, bad = (np.logaddexp.reduce(every[side], axis=0) for side in sides)
    return np.concatenate((log_odds, (bad - good)[np.newaxis]))
