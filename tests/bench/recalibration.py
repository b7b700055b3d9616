"""Probabilities beside filters whose scores are none.

Pure: arrays in, numbers out, in the terms of `spamguard.engine.measures`. It must never change a
filter's probability: each fit here knows the truth, which is fair to peers, and is only shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest

from spamguard.bayes.formulas import Floats
from spamguard.engine.measures import Interval, log_loss
from spamguard.errors import UsageError

Bools = NDArray[np.bool_]
_CLIPS = (
    5.0,
    10.0,
    20.0,
    40.0,
    math.inf,
)  # nats: some filters print certainty that no constant could turn into odds
_ROUNDS = 100
_NEAR_ENOUGH = 1e-10


@dataclass(frozen=True, slots=True)
class Recalibration:
    """log-odds = slope * score + offset, where scores beyond `clip` count as `clip`. log_loss: of
    the result, in nats.
    """

    slope: float
    offset: float
    clip: float
    log_loss: float

    def probability(self, score: ArrayLike) -> Floats:
        """Of being unwanted, for scores of shape (n,)."""
        return _logistic(self.slope * _clipped(score, self.clip) + self.offset)


def best_recalibration(gold: ArrayLike, score: ArrayLike) -> Recalibration:
    """The constant recalibration that fits these very messages best: affine in the score (Platt
    1999), at the best of a few clips.

    Knowing the truth flatters it: a filter's honest log-loss is not below this. Raises UsageError
    unless there are ham and spam.
    """
    truth, scores = np.asarray(gold, dtype=np.bool_), np.asarray(score, dtype=np.float64)
    if truth.all() or not truth.any():
        raise UsageError("a recalibration needs both spam and ham; evaluate on mail of both kinds")
    found = [
        _fitted(truth, scores, clip)
        for clip in _CLIPS
        if math.isfinite(clip) or np.isfinite(scores).all()
    ]
    return min(found, key=lambda one: one.log_loss)


def _fitted(truth: Bools, scores: Floats, clip: float) -> Recalibration:
    """Logistic regression on one variable, by Newton's method with halved steps. Where scores
    separate the classes it ends early.
    """
    design = np.column_stack([_clipped(scores, clip), np.ones(len(scores))])
    weights = np.zeros(2)
    loss = _loss(truth, design @ weights)
    for _ in range(_ROUNDS):
        chance = _logistic(design @ weights)
        curvature = (design * (chance * (1 - chance))[:, None]).T @ design + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, design.T @ (truth - chance))
        better = next(
            (
                (tried, part)
                for part in 0.5 ** np.arange(20)
                if (tried := _loss(truth, design @ (weights + part * step))) < loss
            ),
            None,
        )
        if better is None:
            break
        gained, loss = loss - better[0], better[0]
        weights = weights + better[1] * step
        if gained < _NEAR_ENOUGH:
            break
    return Recalibration(float(weights[0]), float(weights[1]), clip, loss)


def _loss(truth: Bools, odds: Floats) -> float:
    return log_loss(truth, _logistic(odds))


def _clipped(score: ArrayLike, clip: float) -> Floats:
    return np.clip(np.asarray(score, dtype=np.float64), -clip, clip)


def _logistic(odds: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(odds, -700, 700))))


def share_interval(part: int, total: int) -> Interval:
    """A share in [0, 1] with its 95 % interval (Wilson 1927)."""
    bounds = binomtest(part, total).proportion_ci(method="wilson")
    return Interval(part / total, float(bounds.low), float(bounds.high))
