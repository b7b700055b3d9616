"""What is known before the first lesson: log-odds of words from elsewhere, as where the logistic experts of single tokens start from.

The boundary of naive Bayes over words is linear, and the logistic experts learn the same linear form: so the counts of another filter
become log-odds, the log-odds become starting weights, and own lessons correct them where they are wrong. They fade as lessons come.
No count is touched: counting experts hold own lessons only, and nothing else (corpora/RESULTS.md, "Moving in").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import logistic
from spamguard.bayes.tables import BASE_CLASSES, Tables, weight_column

STEPS = 16  # per nat, of imported log-odds
_STRENGTH = 2 * logistic.ONE // STEPS  # of a step: sums over n tokens are multiplied by n^-1/2, so twice the log-odds are not too much
_HALF_LESSONS = 50  # after so many lessons it weighs half as much


class WordOdds(NamedTuple):
    """How much rather single tokens occur in spam than in ham.

    tokens: uint32 (n,), sorted and unique, as in `records.Features`. log_odds: int8 (n,), natural logarithm in 1/STEPS.
    """

    tokens: NDArray[np.uint32]
    log_odds: NDArray[np.int8]


def lay(tables: Tables, known: Iterable[WordOdds], lessons: int) -> None:
    """Have the weights of spam against ham start from what is known. tables: taught nothing yet; lessons: how many will be."""
    weights = weight_column(tables, BASE_CLASSES.index("spam"))
    for tokens, log_odds in known:
        steps = log_odds.astype(np.int64) * (_STRENGTH * _HALF_LESSONS) // (_HALF_LESSONS + lessons)
        np.add.at(weights, tokens >> np.uint32(32 - tables.bits), steps.astype(np.int32))
