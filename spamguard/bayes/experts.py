"""The experts' scores: counting experts by naive Bayes, logistic experts by their weights.

Every expert answers, for each class but the first, its log-odds against the first (ham), as a sum
over the message's features. With more than two classes the experts also compare unwanted mail with
wanted, each side taken as a whole. Sums over many dependent words are too sure of themselves, so
each is damped by the number of its features, clipped and rounded to 1/256 before fusion sees it; an
explanation scales the parts by the same factor.

When a message is judged, neither one expert nor two may decide that it is wanted: their scores for
that are bounded more tightly, and by a third expert's (`bound_scores`).

One message is scored with plain numbers, which are faster than short arrays (`two_class_scores`).
Replays and judging in bulk score many messages side by side, as runs of one long array
(`batch_scores`). Both give the same bits.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from operator import getitem, mul
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import formulas, logistic
from spamguard.bayes.tables import (
    N_BASE,
    N_TOKEN_SETS,
    N_TRAIT_VALUES,
    BucketRows,
    Evidence,
    EvidenceBatch,
    Sides,
    Tables,
    append_unwanted_log_odds,
    partition_classes,
    read_rows,
    run_sums,
    set_sums,
    sum_by_side,
)
from spamguard.records import TOKEN_SETS

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Sizes = NDArray[np.intp]

EXPERTS = (
    *(f"multinomial {name}" for name in TOKEN_SETS),
    *(f"logistic {name}" for name in TOKEN_SETS),
    "categorical",
    "gaussian",
)
_N_TOKEN_EXPERTS = 2 * N_TOKEN_SETS  # the first ones; those of traits and numbers come last
_LOGISTIC = slice(N_TOKEN_SETS, _N_TOKEN_EXPERTS)
_WORDS_SET, _CLUES_SET = TOKEN_SETS.index("words"), TOKEN_SETS.index("clues")
STEPS_PER_NAT = 256  # steps per nat in which scores are kept
MAX_SCORE_NATS = 12.0
# How far a single expert may speak for a wanted class when a message is judged, and how much
# further than the third one the two that speak most for it. If spam is filled with words of good
# mail, the experts of words speak for it and no others do; they must not win by themselves. Fusion
# learns from scores without either bound (corpora/RESULTS.md, "Evasion and poison", "The floor",
# "What a third confirms"). With few lessons both are wider, by the geometric mean of what holds
# everything else back: while one class alone is known, nobody imitates it, and likeness to it is
# all there is to tell mail apart.
WANTED_FLOOR_NATS = 5.0  # with many lessons
MAX_LEAD_NATS = WANTED_FLOOR_NATS / 2
# The third lowest score, of those that can confirm: grams are letters of the words in question.
_CONFIRMING_RANK = 2
_CONFIRMING_EXPERTS = [
    number for number, name in enumerate(EXPERTS[:_N_TOKEN_EXPERTS]) if not name.endswith(" grams")
]
# Tuned online on two corpora: corpora/RESULTS.md, "First fusion".
PSEUDO_COUNT = 0.05  # of the multinomial, shared out among the classes as their features are
_PSEUDO_COUNT_ARRAY = np.array(PSEUDO_COUNT)  # without dimensions, which is faster than a scalar
TRAIT_ALPHA = 0.5
N_NUMBER_VALUES = 256  # numbers are 0 to 255
MIN_NUMBER_VARIANCE = 16.0  # half a doubling
# Ratios of single traits and numbers are rounded to 2^-32: their sums are exact in any order.
RATIO_STEPS_PER_NAT = 2.0**32
# lessons of the rarer class at which half of full confidence is reached (corpora/RESULTS.md, "Few
# lessons")
WARM_UP_LESSONS = 2


# ---- parameters, estimated before a message is seen


class ScoreBounds(NamedTuple):
    """Bounds of a score of unwanted mail against wanted when judging, in 1/STEPS_PER_NAT nats.

    min_score bounds every expert. max_below_third bounds how far an expert of tokens may be below
    the third lowest of them; the bound never changes the sign of a score.
    """

    min_score: int
    max_below_third: int


class ExpertEstimates(NamedTuple):
    """Parameters of the counting experts.

    scales (K, SETS) is one over `multinomial_shares`. traits (K-1, T, TRAIT_VALUES) and numbers
    (K-1, D, NUMBER_VALUES) hold the log-likelihood ratio of every possible value against the first
    class.
    """

    scales: Floats
    traits: Floats
    numbers: Floats


@dataclass(frozen=True)
class ExpertParameters:
    """All parameters of judging.

    confidence is the factor of the fused log-odds. class_estimates compare each class with the
    first, side_estimates unwanted mail with wanted; with two classes both are the same. traits and
    numbers are those of side_estimates, as lists.
    """

    sides: Sides
    confidence: float
    bounds: ScoreBounds
    class_estimates: ExpertEstimates
    side_estimates: ExpertEstimates
    traits: list[list[float]]
    numbers: list[list[float]]


def estimate_parameters(
    tables: Tables, unwanted: Set[str] = frozenset({"spam"})
) -> ExpertParameters:
    """Estimate from the sums as they are now; valid until the tables change.

    unwanted names the unwanted classes; all others are wanted.
    """
    sides = partition_classes(tables.classes, unwanted)
    sums = (
        *(tables.messages, tables.totals, tables.trait_counts),
        *(tables.number_sums, tables.number_products),
    )
    of_classes = of_sides = make_estimates(*sums)
    if len(tables.classes) != N_BASE:
        of_sides = make_estimates(*(sum_by_side(values, sides) for values in sums))
    confidence = side_confidence(tables.messages, sides)
    return ExpertParameters(
        sides,
        confidence,
        score_bounds(confidence),
        of_classes,
        of_sides,
        of_sides.traits[0].tolist(),
        of_sides.numbers[0].tolist(),
    )


def make_estimates(
    messages: Integers,
    totals: Integers,
    trait_counts: Integers,
    number_sums: Integers,
    number_products: Integers,
) -> ExpertEstimates:
    """The parameters of the second class and all others against the first.

    The sums, as in `Tables`, are those of K classes or of two sides.
    """
    lessons = messages[:, np.newaxis, np.newaxis]
    traits = formulas.smoothed_log(trait_counts, lessons, TRAIT_ALPHA, N_TRAIT_VALUES)
    squares = np.diagonal(number_products, axis1=1, axis2=2)
    mean, variance = formulas.gaussian_moments(messages, number_sums, squares)
    values = np.arange(N_NUMBER_VALUES)[:, np.newaxis]
    densities = formulas.gaussian_log_density(
        values, mean, np.maximum(variance, MIN_NUMBER_VARIANCE)
    )  # (values, K, D)
    numbers = _round_ratios(densities[:, 1:] - densities[:, :1]).transpose(1, 2, 0)
    return ExpertEstimates(
        1.0 / multinomial_shares(totals),
        _round_ratios(traits[1:] - traits[0]),
        np.ascontiguousarray(numbers),
    )


def _round_ratios(ratios: Floats) -> Floats:
    return np.asarray(np.rint(ratios * RATIO_STEPS_PER_NAT) / RATIO_STEPS_PER_NAT)


def multinomial_shares(totals: Integers) -> Floats:
    """Each class's share of all features counted, by token set, (K, SETS); never zero."""
    return np.asarray((totals + 0.5) / (totals + 0.5).sum(axis=0))


def score_bounds(confidence: float) -> ScoreBounds:
    """The bounds of scores in judging; the less confidence, the wider."""
    floor, lead = (
        round(nats / sqrt(confidence) * STEPS_PER_NAT)
        for nats in (WANTED_FLOOR_NATS, MAX_LEAD_NATS)
    )
    return ScoreBounds(-floor, lead)


def class_trust(messages: Integers) -> Floats:
    """How far classes with so many lessons can be trusted, in (0, 1): rises smoothly."""
    return np.asarray((messages + 1) / (messages + 1 + WARM_UP_LESSONS))


def side_confidence(messages: Integers, sides: Sides) -> float:
    """How far the odds of unwanted mail can be trusted, in (0, 1): as far as its rarer side.

    messages, (K,), counts lessons. So neither one side alone nor a further class makes the filter
    sure, and a filter without ham can learn all the same.
    """
    return float(class_trust(sum_by_side(messages, sides).min()))


# ---- the parts of the sums


class ExpertParts(NamedTuple):
    """The undamped part of every feature in every expert's sum, for unwanted mail against wanted.

    multinomial (1, n) is by bucket; logistic (K-1, n) is of each class but the first. categorical
    and gaussian are by trait and number; so few values are faster without arrays.
    """

    multinomial: Floats
    logistic: NDArray[np.int32]
    categorical: list[float]
    gaussian: list[float]


def feature_parts(
    parameters: ExpertParameters, evidence: Evidence, rows: BucketRows
) -> ExpertParts:
    """Every feature's part in every expert's log-odds."""
    counts = sum_by_side(rows.counts, parameters.sides)
    return ExpertParts(
        multinomial_parts(counts, parameters.side_estimates.scales, evidence.sizes),
        rows.weights,
        list(map(getitem, parameters.traits, evidence.traits.tolist())),
        list(map(getitem, parameters.numbers, evidence.numbers.tolist())),
    )


def multinomial_parts(counts: NDArray[np.integer], scales: Floats, sizes: Sizes) -> Floats:
    """Log-likelihood ratios of features against the first class, (K-1, n).

    Dirichlet smoothing with the class's share of one pseudo-count a: p = (count + a·share) / (share
    · constant), so p_k / p_0 = (count_k / share_k + a) / (count_0 / share_0 + a). A feature that
    was never seen says nothing, however unequal the classes are.

    Parameters
    ----------
    counts : how often each class has each feature, (K, n).
    scales : one over the class's share of all features, (K, runs).
    sizes : the number of features in each run.
    """
    rates = counts.astype(np.float64)  # beforehand: a product of two types takes twice as long
    rates *= scales.repeat(sizes, axis=1)
    rates += _PSEUDO_COUNT_ARRAY
    ratios = rates[1:]
    ratios /= rates[0]
    return np.log(ratios, out=ratios)


def look_up_ratios(ratios: Floats, values: NDArray[np.integer]) -> Floats:
    """Entries of ratios (K-1, m, V) for values (..., m): (K-1, ..., m)."""
    rows, features, each = ratios.shape
    starts = np.arange(features) * each  # the values of all features stand side by side
    return np.asarray(ratios.reshape(rows, -1).take(values + starts, axis=1))


def damping_factors(sizes: Sizes, traits: int, numbers: int) -> Floats:
    """Factor of every expert's sum, (..., EXPERTS), for messages with sizes (..., SETS)."""
    root = 1.0 / np.sqrt(np.maximum(sizes, 1))
    factors = np.empty((*sizes.shape[:-1], len(EXPERTS)))
    factors[..., :N_TOKEN_SETS] = root * np.sqrt(root)  # to the power of -3/4
    factors[..., _LOGISTIC] = root
    factors[..., -2:] = traits**-0.5, numbers**-0.5
    return factors


# ---- one message


def message_scores(
    tables: Tables,
    parameters: ExpertParameters,
    evidence: Evidence,
    rows: BucketRows,
    parts: ExpertParts,
) -> list[list[int]]:
    """The experts' scores of one message as they count in judging, rows as by `batch_scores`.

    rows are those of its buckets, parts its `feature_parts`.
    """
    if len(tables.classes) == N_BASE:
        return two_class_scores(parts, evidence, tables.biases, parameters.bounds)
    batch = EvidenceBatch(
        evidence.buckets,
        evidence.sizes[np.newaxis],
        evidence.traits.astype(np.intp)[np.newaxis],
        evidence.numbers.astype(np.int64)[np.newaxis],
    )
    scores = _batch_scores(tables, parameters, batch, rows)
    bounded: list[list[int]] = bound_scores(scores, parameters.bounds)[0].tolist()
    return bounded


def two_class_scores(
    parts: ExpertParts, evidence: Evidence, biases: Integers, bounds: ScoreBounds
) -> list[list[int]]:
    """The scores of one message where there are two classes, (1, EXPERTS), in 1/STEPS_PER_NAT.

    The same bits as `batch_scores` and `bound_scores` give for many messages.
    """
    damping, roots = zip(*map(_set_factors, evidence.sizes.tolist()), strict=True)
    counted = set_sums(parts.multinomial, evidence)[0].tolist()
    weighed: list[int] = set_sums(parts.logistic, evidence)[0].tolist()
    of_logistic = [
        logistic.margin(total, bias, root) / logistic.ONE
        for total, bias, root in zip(weighed, biases[0].tolist(), roots, strict=True)
    ]
    raw = (
        *map(mul, counted, damping),
        *of_logistic,
        sum(parts.categorical) * len(evidence.traits) ** -0.5,
        sum(parts.gaussian) * len(evidence.numbers) ** -0.5,
    )
    # conditional expressions take a third of the time of `min` and `max`
    lowest_score, highest_score = -MAX_SCORE_NATS, MAX_SCORE_NATS
    clipped = [
        lowest_score if nats < lowest_score else highest_score if nats > highest_score else nats
        for nats in raw
    ]
    lowest, below = bounds
    scores = [round(nats * STEPS_PER_NAT) for nats in clipped]
    inside = [lowest if score < lowest else score for score in scores]
    third = sorted(map(inside.__getitem__, _CONFIRMING_EXPERTS))[_CONFIRMING_RANK]
    floor = min(third - below, 0)
    of_tokens = [floor if score < floor else score for score in inside[:_N_TOKEN_EXPERTS]]
    return [of_tokens + inside[_N_TOKEN_EXPERTS:]]


@lru_cache(maxsize=4096)
def _set_factors(size: int) -> tuple[float, int]:
    """Factors of the sums over a token set: damping of the multinomial, root of the logistic."""
    root = 1.0 / sqrt(max(size, 1))
    return root * sqrt(root), logistic.inverse_root(max(size, 1))


def familiarity(
    counts: NDArray[np.int32], scores: list[list[int]], evidence: Evidence
) -> tuple[float, float]:
    """What one message has in common with the lessons, for the caution of the first days.

    counts, (K, n), are lessons of each class with each feature; scores are as by `message_scores`.

    Returns
    -------
    The log-odds of unwanted mail by the words of the text, in nats, and the share of other single
    tokens (header fields, hosts, structure) that no lesson has.
    """
    row = scores[-1]
    start, size = int(evidence.starts[_CLUES_SET]), int(evidence.sizes[_CLUES_SET])
    familiar = np.count_nonzero(counts[:, start : start + size].any(axis=0))
    # a logistic score is about twice as large
    text = max(row[_WORDS_SET], row[N_TOKEN_SETS + _WORDS_SET] / 2) / STEPS_PER_NAT
    return text, 1.0 - familiar / size if size else 1.0


# ---- many messages


def batch_scores(tables: Tables, parameters: ExpertParameters, batch: EvidenceBatch) -> Integers:
    """The scores of all experts for each message, (m, R, EXPERTS), in 1/STEPS_PER_NAT nats.

    One row for each class but the first; with more than two classes one more, of unwanted mail.
    """
    return _batch_scores(tables, parameters, batch, read_rows(tables, batch.buckets))


def _batch_scores(
    tables: Tables, parameters: ExpertParameters, batch: EvidenceBatch, rows: BucketRows
) -> Integers:
    raw = counting_log_odds(parameters, rows.counts, batch)
    sums = run_sums(rows.weights, *batch.runs)
    roots = logistic.inverse_roots(batch.sizes)[:, :, np.newaxis]
    margins = logistic.margins(sums.T.reshape(*batch.sizes.shape, -1), tables.biases.T, roots)
    return combine_scores(raw, margins, batch, parameters.sides)


def counting_log_odds(
    parameters: ExpertParameters, counts: NDArray[np.int32], batch: EvidenceBatch
) -> Floats:
    """Undamped log-odds of the counting experts, (R, m, EXPERTS), from counts (K, n).

    Rows are as for `batch_scores`; the places of the logistic experts are zero.
    """
    of_classes = _counting_log_odds(parameters.class_estimates, counts, batch)
    if len(counts) == N_BASE:
        return of_classes
    of_sides = _counting_log_odds(
        parameters.side_estimates, sum_by_side(counts, parameters.sides), batch
    )
    return np.concatenate((of_classes, of_sides))


def _counting_log_odds(
    estimates: ExpertEstimates, counts: NDArray[np.integer], batch: EvidenceBatch
) -> Floats:
    starts, sizes = batch.runs
    messages = len(batch.sizes)
    parts = multinomial_parts(counts, np.tile(estimates.scales, messages), sizes)
    raw = np.zeros((len(parts), messages, len(EXPERTS)))
    raw[:, :, :N_TOKEN_SETS] = run_sums(parts, starts, sizes).reshape(len(parts), messages, -1)
    raw[:, :, -2] = look_up_ratios(estimates.traits, batch.traits).sum(axis=-1)
    raw[:, :, -1] = look_up_ratios(estimates.numbers, batch.numbers).sum(axis=-1)
    return raw


def combine_scores(raw: Floats, margins: Integers, batch: EvidenceBatch, sides: Sides) -> Integers:
    """The experts' scores, (m, R, EXPERTS) in 1/STEPS_PER_NAT nats.

    Counting sums, raw, are damped in place; logistic log-odds, margins (m, SETS, K-1), are put in.
    """
    raw *= damping_factors(batch.sizes, batch.traits.shape[1], batch.numbers.shape[1])
    log_odds = margins.transpose(2, 0, 1) / logistic.ONE
    raw[:, :, _LOGISTIC] = append_unwanted_log_odds(log_odds, sides)
    return quantise_scores(raw).swapaxes(0, 1)


def quantise_scores(raw: Floats) -> Integers:
    """Log-odds (R, ...) in 1/STEPS_PER_NAT nats, clipped at MAX_SCORE_NATS.

    With more than two classes, scores more than that behind the likeliest class are raised, so that
    classes are told apart however far the first one is from all of them.
    """
    clipped = raw.clip(-MAX_SCORE_NATS, MAX_SCORE_NATS)
    if len(raw) > 1:
        floor = np.maximum(raw[:-1].max(axis=0), 0.0) - MAX_SCORE_NATS
        clipped[:-1] = np.maximum(raw[:-1], floor) - np.maximum(floor, 0.0)
    return np.asarray(np.rint(clipped * STEPS_PER_NAT).astype(np.int64))


def bound_scores(scores: Integers, bounds: ScoreBounds) -> Integers:
    """Scores (..., R, EXPERTS) with the last row, of unwanted mail, bounded for judging."""
    inside = scores.copy()
    last = inside[..., -1, :]
    np.maximum(last, bounds.min_score, out=last)
    of_tokens = last[..., :_N_TOKEN_EXPERTS]
    third = np.sort(last[..., _CONFIRMING_EXPERTS], axis=-1)[..., _CONFIRMING_RANK, np.newaxis]
    floor = np.minimum(third - bounds.max_below_third, 0)  # no score changes its sign
    np.maximum(of_tokens, floor, out=of_tokens)
    return inside
