"""Fusion: the log-odds of several experts combined into one, by a small logistic regression.

The combination is linear, so an explanation stays a sum, and because it minimises log-loss it
calibrates as well. It learns during the replay, from scores taken before the message was taught.
All is in whole numbers, as in `logistic`. Sources: Mattern 2012, "Mixing strategies in data
compression" (mixing in the logistic domain); Lynam & Cormack 2006, "On-line spam filter fusion".

One set of weights tells unwanted mail from wanted. Where a side has more classes than one, a second
set tells which class of its side a message belongs to, since what separates two kinds of good mail
is weaker than what separates good mail from bad. The second never changes the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import experts, logistic
from spamguard.bayes.experts import EXPERTS, STEPS_PER_NAT, ExpertParameters, Floats, Integers
from spamguard.bayes.tables import BucketRows, Evidence, EvidenceBatch, Sides, Tables, read_rows

ONE = 1 << 16
# Where fusion starts from, by set of tokens (corpora/RESULTS.md, "What fusion starts from").
# Logistic experts learn fastest, counting experts steady them. Words and pairs of a few lessons
# hold for later mail; header fields and words with one between hold less.
_MULTINOMIAL_START = (0.3, 0.1, 0.2, 0.1)
_LOGISTIC_START = (0.4, 0.25, 0.4, 0.25)
_CATEGORICAL_START = _GAUSSIAN_START = 0.1
START_WEIGHTS: Integers = np.array(
    [
        round(ONE * weight)
        for weight in (*_MULTINOMIAL_START, *_LOGISTIC_START, _CATEGORICAL_START, _GAUSSIAN_START)
    ],
    np.int64,
)
_RATE_SHIFT = 7  # rate 2^-7 per nat of score
_STEP_BITS = STEPS_PER_NAT.bit_length() - 1
KNEE_NATS = 9.0
"""Log-odds beyond this grow only as their logarithm.

One label in some thousands is wrong, so no verdict can be surer than that (corpora/RESULTS.md,
"Wrong labels and the tail").
"""

if len(START_WEIGHTS) != len(EXPERTS):
    raise AssertionError("one starting weight for each expert")


def make_start_weights(classes: int) -> Integers:
    """Weights before the first lesson, with more than two classes a second set for those."""
    return START_WEIGHTS.copy() if classes == 2 else np.concatenate((START_WEIGHTS, START_WEIGHTS))


def side_weights(weights: Integers) -> Integers:
    """The weights for unwanted mail against wanted: a view."""
    return weights[: len(EXPERTS)]


def class_weights(weights: Integers) -> Integers:
    """The weights for the classes of one side: a view.

    Start weights serve where a class is newer than the last settling.
    """
    return weights[len(EXPERTS) :] if len(weights) > len(EXPERTS) else START_WEIGHTS


def fused_log_odds(scores: Integers, weights: Integers, biases: Integers) -> Integers:
    """Fused log-odds against the first class, (..., K-1), in 1/(ONE * STEPS_PER_NAT) nats.

    Shapes: scores (..., K-1, E), weights (E,), biases (K-1,).
    """
    return np.asarray(scores @ weights + biases * STEPS_PER_NAT)


def to_nats(fused: Integers) -> Floats:
    """Fused log-odds as floats."""
    return np.asarray(fused / (ONE * STEPS_PER_NAT))


def fused_nats(scores: Sequence[int], weights: Sequence[int], bias: int) -> float:
    """Fused log-odds of one message in nats; plain numbers are faster than arrays here."""
    return float((sum(map(mul, scores, weights)) + bias * STEPS_PER_NAT) / (ONE * STEPS_PER_NAT))


def temper(log_odds: Floats) -> Floats:
    """Log-odds in nats as they are reported: flat beyond `KNEE_NATS`, but in the same order.

    >>> temper(np.array([-3.0, 9.0, 20.0])).round(2).tolist()
    [-3.0, 9.0, 11.48]
    """
    beyond = np.maximum(np.abs(log_odds) - KNEE_NATS, 0.0)
    inside = np.clip(log_odds, -KNEE_NATS, KNEE_NATS)
    return np.asarray(inside + np.copysign(np.log1p(beyond), log_odds))


def temper_one(log_odds: float) -> float:
    """`temper` of a plain number, which is faster than an array."""
    return log_odds if -KNEE_NATS <= log_odds <= KNEE_NATS else float(temper(np.array(log_odds)))


def update_weights(
    scores: Integers, targets: NDArray[np.intp], weights: Integers, biases: Integers
) -> None:
    """Take one step, in place, towards the true classes of some messages.

    Shapes: scores (m, K-1, E), taken before the messages were taught, and targets (m,). No weight
    falls below 0: an expert that seems to be right the other way round has been unlucky
    (corpora/RESULTS.md, "What fusion starts from, and that it never turns an expert round").
    """
    fused = fused_log_odds(scores, weights, biases) // STEPS_PER_NAT
    errors = logistic.errors(fused, targets[:, np.newaxis])
    weights += (errors.ravel() @ scores.reshape(-1, len(weights))) >> (_RATE_SHIFT + _STEP_BITS)
    np.maximum(weights, 0, out=weights)
    biases += errors.sum(axis=0) >> _RATE_SHIFT


def class_log_shares(tables: Tables, sides: Sides, scores: Integers) -> Floats:
    """log P(class | its side), (m, K), from scores of each class against the first, (m, K-1, E).

    A class with few lessons is held back: its log-odds against the most taught class of its side
    count in part.
    """
    trust = experts.class_trust(tables.messages)
    shares = np.zeros((len(scores), len(tables.classes)))
    for side in sides:
        if len(side) > 1:
            weights = class_weights(tables.fusion_weights)
            biases = tables.fusion_biases[_score_rows(side)]
            fused = fused_log_odds(_scores_within(scores, side), weights, biases)
            odds = np.zeros((len(scores), len(side)))
            odds[:, 1:] = to_nats(fused)
            most_taught = tables.messages[side].argmax()
            reference = odds[:, [most_taught]]
            odds = reference + trust[side] * (odds - reference)
            shares[:, side] = odds - np.logaddexp.reduce(odds, axis=1, keepdims=True)
    return shares


def update_class_weights(
    scores: Integers, targets: NDArray[np.intp], tables: Tables, sides: Sides
) -> None:
    """Take one step of fusion within each side, from the messages of that side.

    Shapes: scores (m, K-1, E), targets (m,).
    """
    for side in sides:
        chosen = np.isin(targets, side).nonzero()[0]
        if len(side) > 1 and len(chosen):
            rows = _score_rows(side)
            biases = tables.fusion_biases[rows]
            numbers = np.array([side.index(target) for target in targets[chosen].tolist()])
            weights = class_weights(tables.fusion_weights)
            update_weights(_scores_within(scores[chosen], side), numbers, weights, biases)
            tables.fusion_biases[rows] = biases


def _score_rows(side: list[int]) -> list[int]:
    """The rows of scores and biases of all but the first class of a side."""
    return [number - 1 for number in side[1:]]


def _scores_within(scores: Integers, side: list[int]) -> Integers:
    """Scores of all but the first class of a side, against that first class."""
    differences = scores[:, _score_rows(side)]
    return differences - scores[:, [side[0] - 1]] if side[0] else differences


# ---- judging by all experts


class MessageScores(NamedTuple):
    """The steps of judging one message: its rows, its parts, and the experts' scores."""

    rows: BucketRows
    parts: experts.ExpertParts
    scores: list[list[int]]


def score_message(
    tables: Tables, parameters: ExpertParameters, evidence: Evidence
) -> MessageScores:
    """Score a message as the default profile does, and keep the steps."""
    rows = read_rows(tables, evidence.buckets)
    parts = experts.feature_parts(parameters, evidence, rows)
    scores = experts.message_scores(tables, parameters, evidence, rows, parts)
    return MessageScores(rows, parts, scores)


def fuse(tables: Tables, parameters: ExpertParameters, evidence: Evidence) -> list[float]:
    """Fuse all experts; the result is held back while there are few lessons."""
    return fuse_scores(tables, parameters, score_message(tables, parameters, evidence).scores)


def fuse_scores(
    tables: Tables, parameters: ExpertParameters, scores: list[list[int]]
) -> list[float]:
    """`fuse`, from the scores of `experts.message_scores`."""
    if len(scores) > 1:
        return _fuse_batch_scores(tables, parameters, np.array([scores]))[0]
    weights = side_weights(tables.fusion_weights).tolist()
    log_odds = fused_nats(scores[0], weights, int(tables.fusion_biases[0]))
    return [0.0, temper_one(parameters.confidence * log_odds)]


def fuse_batch(
    tables: Tables, parameters: ExpertParameters, batch: EvidenceBatch
) -> list[list[float]]:
    """`fuse` for several messages at once."""
    scores = experts.batch_scores(tables, parameters, batch)
    return _fuse_batch_scores(tables, parameters, experts.bound_scores(scores, parameters.bounds))


def _fuse_batch_scores(
    tables: Tables, parameters: ExpertParameters, scores: Integers
) -> list[list[float]]:
    """First how likely unwanted mail is, then which class of its side; scores (m, R, EXPERTS)."""
    weights, bias = side_weights(tables.fusion_weights), tables.fusion_biases[:1]
    of_classes = scores[:, : len(tables.classes) - 1]
    shares = class_log_shares(tables, parameters.sides, of_classes)
    fused = to_nats(fused_log_odds(scores[:, -1:], weights, bias))
    shares[:, parameters.sides.unwanted] += temper(parameters.confidence * fused)
    joint: list[list[float]] = shares.tolist()
    return joint
