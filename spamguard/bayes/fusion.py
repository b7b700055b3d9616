"""Several experts' log-odds to one: a small logistic combination, learnt in the replay from scores taken before teaching.

The combination is linear, so an explanation stays a sum; being fitted to minimise log-loss it calibrates as well. All
in whole numbers, like `logistic`. Source: the mixing of experts in the logistic domain of Mattern 2012, "Mixing strategies in data
compression", and Lynam & Cormack 2006, "On-line spam filter fusion".
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import logistic
from spamguard.bayes.experts import EXPERTS, STEPS

Integers = NDArray[np.int64]

ONE = 1 << 16
# Where fusion starts from, by set of tokens (corpora/RESULTS.md, "What fusion starts from"): logistic experts learn fastest, counting
# experts steady them; words and pairs of a few lessons hold for later mail, header fields and words with one between hold less.
_MULTINOMIAL, _LOGISTIC, _CATEGORICAL, _GAUSSIAN = (0.3, 0.1, 0.2, 0.1), (0.4, 0.25, 0.4, 0.25), 0.1, 0.1
START: Integers = np.array([round(ONE * weight) for weight in (*_MULTINOMIAL, *_LOGISTIC, _CATEGORICAL, _GAUSSIAN)], np.int64)
_RATE_SHIFT = 7  # rate 2^-7 per nat of score
_STEP_BITS = STEPS.bit_length() - 1
KNEE = 9.0
"""Nats from which on log-odds grow only as their logarithm: one label in some thousands is wrong, so nothing is surer than that
(corpora/RESULTS.md, "Wrong labels and the tail")."""

if len(START) != len(EXPERTS):
    raise AssertionError("one starting weight for each expert")


def start(classes: int) -> Integers:
    """Weights before the first lesson: of unwanted mail against wanted; with more than two classes also of those of one side."""
    return START.copy() if classes == 2 else np.concatenate((START, START))


def of_sides(weights: Integers) -> Integers:
    """Those for unwanted mail against wanted: a view."""
    return weights[: len(EXPERTS)]


def among_classes(weights: Integers) -> Integers:
    """Those for the classes of one side: a view; where a class has come since the last settling, the ones to start from."""
    return weights[len(EXPERTS) :] if len(weights) > len(EXPERTS) else START


def log_odds(scores: Integers, weights: Integers, biases: Integers) -> Integers:
    """Fused log-odds against the first class in 1/(ONE·STEPS) nats; scores (..., K-1, E), weights (E,), biases (K-1,)."""
    return np.asarray(scores @ weights + biases * STEPS)


def in_nats(fused: Integers) -> NDArray[np.float64]:
    """Fused log-odds as float."""
    return np.asarray(fused / (ONE * STEPS))


def nats(scores: Sequence[int], weights: Sequence[int], bias: int) -> float:
    """The same for one class of one message, where plain numbers are faster than arrays."""
    return float((sum(map(mul, scores, weights)) + bias * STEPS) / (ONE * STEPS))


def tempered(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-odds in nats as they are told: beyond `KNEE` flat, but in the same order.

    >>> tempered(np.array([-3.0, 9.0, 20.0])).round(2).tolist()
    [-3.0, 9.0, 11.48]
    """
    beyond = np.maximum(np.abs(log_odds) - KNEE, 0.0)
    return np.asarray(np.clip(log_odds, -KNEE, KNEE) + np.copysign(np.log1p(beyond), log_odds))


def tempered_one(log_odds: float) -> float:
    """As `tempered`, where a plain number is faster than an array."""
    return log_odds if -KNEE <= log_odds <= KNEE else float(tempered(np.array(log_odds)))


def learn(scores: Integers, targets: NDArray[np.intp], weights: Integers, biases: Integers) -> None:
    """One step, in place, towards the true classes of some messages: scores (m, K-1, E), targets (m,).

    The scores must have been taken before the messages were taught. No weight falls below 0: an expert that seems to be right the other
    way round has been unlucky (corpora/RESULTS.md, "What fusion starts from, and that it never turns an expert round").
    """
    fused = log_odds(scores, weights, biases) // STEPS
    errors = logistic.errors(fused, targets[:, np.newaxis])
    weights += (errors.ravel() @ scores.reshape(-1, len(weights))) >> (_RATE_SHIFT + _STEP_BITS)
    np.maximum(weights, 0, out=weights)
    biases += errors.sum(axis=0) >> _RATE_SHIFT
