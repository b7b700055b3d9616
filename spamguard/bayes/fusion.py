"""Fusion: the log-odds of several experts combined into one, and ways to judge.

The combination is a small logistic regression. It is linear, so an explanation stays a sum, and
because it minimises log-loss it calibrates as well. It learns during the replay, from scores taken
before the message was taught. All is in whole numbers, as in `logistic`. Sources: Mattern 2012,
"Mixing strategies in data compression" (mixing in the logistic domain); Lynam & Cormack 2006,
"On-line spam filter fusion".

One set of weights tells unwanted mail from wanted. Where a side has more classes than one, a second
set tells which class of its side a message belongs to, since what separates two kinds of good mail
is weaker than what separates good mail from bad. The second never changes the first.

A *profile* is a way to judge: it turns the tables and one message's features into an unnormalised
log-probability of each class. The default fuses all experts, and alone is calibrated; the others
are single experts by name, on the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import copysign
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import experts, formulas, logistic
from spamguard.bayes.experts import (
    EXPERTS,
    LOGISTIC,
    STEPS_PER_NAT,
    ExpertParameters,
    ScoredMessage,
)
from spamguard.bayes.formulas import Floats, Indices, Integers, Ints32
from spamguard.bayes.tables import (
    N_BASE,
    N_TOKEN_SETS,
    Sides,
    Tables,
    find_places,
    make_evidence,
    read_counts,
    set_sums,
)
from spamguard.records import Features

ONE = 1 << 16
# Where fusion starts from, by set of tokens (corpora/RESULTS.md, "What fusion starts from").
# Logistic experts learn fastest, counting experts steady them. Words and pairs of a few lessons
# hold for later mail; header fields and words with one between hold less.
START_WEIGHTS: Integers = np.rint(
    ONE
    * np.array(
        [
            *(0.3, 0.1, 0.2, 0.1),  # multinomial
            *(0.4, 0.25, 0.4, 0.25),  # logistic
            *(0.1, 0.1),  # categorical, Gaussian
        ]
    )
).astype(np.int64)
_RATE_SHIFT = 7  # rate 2^-7 per nat of score
_STEP_BITS = STEPS_PER_NAT.bit_length() - 1
KNEE_NATS = 9.0
"""Log-odds beyond this grow only as their logarithm.

One label in some thousands is wrong, so no verdict can be surer than that (corpora/RESULTS.md,
"Wrong labels and the tail").
"""


def side_weights(weights: Integers) -> Integers:
    """The weights for unwanted mail against wanted: a view."""
    return weights[: len(EXPERTS)]


def class_weights(weights: Integers) -> Integers:
    """The weights for the classes of one side: a view.

    Start weights serve where a class is newer than the last settling.
    """
    return weights[len(EXPERTS) :] if len(weights) > len(EXPERTS) else START_WEIGHTS


def fused_log_odds(scores: Integers, weights: Integers, biases: Integers) -> Floats:
    """Fused log-odds against the first class, (..., K-1), in nats.

    Shapes: scores (..., K-1, E), weights (E,), biases (K-1,).
    """
    fused = scores @ weights + biases * STEPS_PER_NAT
    return np.asarray(fused / (ONE * STEPS_PER_NAT))


def temper(log_odds: float) -> float:
    """Log-odds in nats as they are reported: flat beyond `KNEE_NATS`, but in the same order.

    >>> [round(temper(nats), 2) for nats in (-3.0, 9.0, 20.0)]
    [-3.0, 9.0, 11.48]
    """
    beyond = abs(log_odds) - KNEE_NATS
    # numpy's logarithm: that of `math` may be rounded otherwise
    inside = log_odds if beyond <= 0 else KNEE_NATS + float(np.log1p(beyond))
    return copysign(inside, log_odds)


def update_weights(scores: Integers, targets: Indices, weights: Integers, biases: Integers) -> None:
    """Take one step, in place, towards the true classes of some messages.

    Shapes: scores (m, K-1, E), taken before the messages were taught, and targets (m,). No weight
    falls below 0: an expert that seems to be right the other way round has been unlucky
    (corpora/RESULTS.md, "What fusion starts from, and that it never turns an expert round").
    """
    fused = scores @ weights // STEPS_PER_NAT + biases
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
            odds = np.zeros((len(scores), len(side)))
            odds[:, 1:] = fused_log_odds(_scores_within(scores, side), weights, biases)
            reference = odds[:, [tables.messages[side].argmax()]]
            odds = reference + trust[side] * (odds - reference)
            shares[:, side] = odds - np.logaddexp.reduce(odds, axis=1, keepdims=True)
    return shares


def update_class_weights(scores: Integers, targets: Indices, tables: Tables, sides: Sides) -> None:
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
    return [number - 1 for number in side[1:]]


def _scores_within(scores: Integers, side: list[int]) -> Integers:
    """Scores of all but the first class of a side, against that first class."""
    differences = scores[:, _score_rows(side)]
    return differences - scores[:, [side[0] - 1]] if side[0] else differences


# ---- judging by all experts


def fuse(message: ScoredMessage) -> list[float]:
    """Fuse all experts; the result is held back while there are few lessons."""
    parameters, scores = message.parameters, message.scores
    if len(scores) > 1:
        return _fuse_scores(parameters, np.array([scores]))[0]
    return [0.0, temper(parameters.confidence * _fused_nats(message))]


def fuse_batch(parameters: ExpertParameters, messages: Sequence[Features]) -> list[list[float]]:
    """`fuse` for several messages at once."""
    scores = experts.batch_scores(parameters, messages)
    return _fuse_scores(parameters, experts.bound_scores(scores, parameters))


def _fused_nats(message: ScoredMessage) -> float:
    """Fused log-odds of unwanted mail; plain numbers are faster than arrays here."""
    plain = message.parameters.plain
    weighted = map(mul, message.scores[-1], plain.fusion_weights)
    fused: int = sum(weighted) + plain.fusion_bias * STEPS_PER_NAT
    return fused / (ONE * STEPS_PER_NAT)


def _fuse_scores(parameters: ExpertParameters, scores: Integers) -> list[list[float]]:
    """First how likely unwanted mail is, then which class of its side; scores (m, R, EXPERTS)."""
    tables, sides = parameters.tables, parameters.sides
    weights, bias = side_weights(tables.fusion_weights), tables.fusion_biases[:1]
    shares = class_log_shares(tables, sides, scores[:, : len(tables.classes) - 1])
    fused = parameters.confidence * fused_log_odds(scores[:, -1:], weights, bias)
    shares[:, sides.unwanted] += np.array([[temper(nats)] for (nats,) in fused.tolist()])
    joint: list[list[float]] = shares.tolist()
    return joint


# ---- profiles

_ALPHA = 1.0  # add-one smoothing


Judge = Callable[[ExpertParameters, Features], list[float]]
"""Returns the unnormalised log-probability of each class."""


def _word_counts(tables: Tables, features: Features) -> Ints32:
    """Counts (K, n) of the words that any class knows: the vocabulary is what has been taught."""
    evidence = make_evidence(features, tables.bits)
    words = evidence.buckets[: int(evidence.sizes[0])]
    counts = read_counts(tables, find_places(tables, words))
    return counts.compress(np.bitwise_or.reduce(counts), axis=1)


def _add_prior(tables: Tables, log_likelihood: Floats) -> list[float]:
    """Add the maximum-likelihood prior of the classes; -inf everywhere before the first lesson."""
    joint: list[float] = (formulas.class_log_prior(tables.messages, 0.0) + log_likelihood).tolist()
    return joint


def _judge_bernoulli(parameters: ExpertParameters, features: Features) -> list[float]:
    tables = parameters.tables
    counts, messages = _word_counts(tables, features), tables.messages[:, np.newaxis]
    weights = formulas.log_count(counts, _ALPHA) - formulas.log_count(messages - counts, _ALPHA)
    # a message without any word, from the histogram of counts instead of the vocabulary
    values = np.flatnonzero(tables.histogram.any(axis=0))
    known = np.minimum(values, messages)  # no word has a larger count in a smaller class
    absent = formulas.log_count(messages - known, _ALPHA) - formulas.log_count(messages, 2 * _ALPHA)
    absence = (tables.histogram[:, values] * absent).sum(axis=1)
    return _add_prior(tables, absence + formulas.weighted_log_sum(np.ones(len(weights.T)), weights))


def _judge_multinomial(parameters: ExpertParameters, features: Features) -> list[float]:
    tables = parameters.tables
    counts = _word_counts(tables, features)
    # the sum of smoothed_log over the words; its denominator is the same for all of them
    upper = formulas.log_count(counts, _ALPHA).sum(axis=1)
    total = formulas.log_count(tables.totals[:, 0], _ALPHA * max(1, tables.vocabulary[0]))
    return _add_prior(tables, upper - counts.shape[1] * total)


DEFAULT_PROFILE = "default"
PROFILES: dict[str, Judge | None] = {
    DEFAULT_PROFILE: None,  # all experts are fused
    "bernoulli": _judge_bernoulli,
    "multinomial": _judge_multinomial,
}


# ---- explanations

# Rounding doubles a score of half a step; nothing else makes a score larger.
_MAX_FACTOR = 2.0


class LogOddsBreakdown(NamedTuple):
    """The parts, in nats, of unwanted mail against wanted; together they sum to `log_odds`.

    Attributes
    ----------
    prior
        What no message has a part in.
    experts
        The experts' shares, (EXPERTS,), each the sum of its features' parts and biases.
    buckets, traits, numbers
        What each token, trait and number adds over all experts: (n,), (T,), (D,).
    """

    log_odds: float
    prior: float
    experts: Floats
    scores: Floats
    biases: float
    buckets: Floats
    traits: Floats
    numbers: Floats


def break_down(message: ScoredMessage, favoured: str, against: str) -> LogOddsBreakdown:
    """Take apart the default profile's log-odds of unwanted mail.

    Where there are more classes than two, the weights of an unwanted class (`favoured`) and of a
    wanted one (`against`) tell the logistic experts' shares.
    """
    buckets, factors, weights, remainder = token_parts(message, favoured, against)
    nats = np.array(message.scores[-1]) / STEPS_PER_NAT
    bias = message.parameters.tables.fusion_biases[0]
    shares, prior = weights * nats, float(_confidence(message) * bias / ONE)
    return LogOddsBreakdown(
        log_odds=prior + float(shares.sum()),
        prior=prior,
        experts=shares,
        scores=nats,
        biases=float(weights @ remainder),
        buckets=buckets,
        traits=np.array(message.traits) * factors[-2],
        numbers=np.array(message.numbers) * factors[-1],
    )


def _confidence(message: ScoredMessage) -> float:
    """The factor of the fused log-odds: the confidence in the lessons, and in log-odds so high."""
    confidence = message.parameters.confidence
    log_odds = confidence * _fused_nats(message)
    return confidence * temper(log_odds) / log_odds if log_odds else confidence


def token_parts(
    message: ScoredMessage, favoured: str, against: str
) -> tuple[Floats, Floats, Floats, Floats]:
    """`LogOddsBreakdown.buckets`, which each scan wants; and what they are made with.

    These are factors of the parts in each expert's sum, weights of the experts, and the remainder
    of each score, which belongs to no feature, (EXPERTS,).
    """
    evidence, counted, tables = message.evidence, message.multinomial[0], message.parameters.tables
    nats = np.array(message.scores[-1]) / STEPS_PER_NAT
    fused = side_weights(tables.fusion_weights)
    weights = np.multiply(_confidence(message) / ONE, fused, dtype=np.float64)
    # each expert's sum once more, by its features
    pair = tables.classes.index(favoured), tables.classes.index(against)
    weighed = class_difference(message.weights, pair)
    by_set = set_sums(np.stack((counted, weighed)), evidence)
    by_set[1] /= logistic.ONE
    damping = experts.damping_factors(evidence)
    sums = np.array([*by_set.ravel(), sum(message.traits), sum(message.numbers)]) * damping
    biases = np.zeros(len(EXPERTS))
    biases[LOGISTIC] = class_difference(tables.biases, pair) / logistic.ONE
    totals = sums + biases
    # The factors contain clipping and rounding. With two classes they are always inside. With more,
    # two of them do not give all of what the logistic experts make of both sides.
    factors = np.divide(nats, totals, out=np.zeros(len(EXPERTS)), where=totals != 0)
    factors = np.minimum(np.maximum(factors, 0.0), _MAX_FACTOR)
    remainder = factors * biases if len(tables.classes) == N_BASE else nats - factors * sums
    factors = factors * damping * weights
    buckets = counted * factors[:N_TOKEN_SETS].repeat(evidence.sizes)
    buckets += weighed * (factors[LOGISTIC] / logistic.ONE).repeat(evidence.sizes)
    return buckets, factors, weights, remainder


def strongest_parts(parts: Floats, number: int) -> Indices:
    """Indices of the `number` parts that are farthest from zero, strongest first; none is zero.

    >>> strongest_parts(np.array([0.5, -2.0, 1.0, 0.0]), 2).tolist()
    [1, 2]
    """
    weights = -np.abs(parts)
    size = len(parts)
    chosen = weights.argpartition(number)[:number] if number < size else np.arange(size)
    chosen = chosen[weights.take(chosen).argsort(kind="stable")]
    return chosen[: np.count_nonzero(weights.take(chosen))]


def class_difference(rows: NDArray[Any], pair: tuple[int, int]) -> NDArray[Any]:
    """One class against another, from values of each class but the first against the first."""
    favoured, against = pair
    return np.asarray(
        (rows[favoured - 1] if favoured else 0) - (rows[against - 1] if against else 0)
    )
