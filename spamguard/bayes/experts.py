"""The experts' scores: counting experts by naive Bayes, logistic experts by their weights.

Every expert answers, for each class but the first, its log-odds against the first (ham), as a sum
over the message's features. With more than two classes the experts also compare unwanted mail with
wanted, each side taken as a whole. Sums over many dependent words are too sure of themselves, so
each is damped by the number of its features, clipped and rounded to 1/256 before fusion sees it; an
explanation scales the parts by the same factor.

When a message is judged, neither one expert nor two may decide that it is wanted: their scores for
that are bounded more tightly, and by a third expert's (`bound_scores`).

One message of two classes is scored with plain numbers, which are faster than short arrays
(`score_message`). Replays and judging in bulk score many messages side by side, as runs of one long
array (`batch_scores`). Both give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from operator import getitem
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import formulas, logistic
from spamguard.bayes.formulas import Floats, Indices, Integers
from spamguard.bayes.tables import (
    N_BASE,
    N_TOKEN_SETS,
    N_TRAIT_VALUES,
    PER_CLASS,
    Evidence,
    Sides,
    Tables,
    batch_features,
    make_evidence,
    partition_classes,
    read_rows,
    set_sums,
    sum_by_side,
)
from spamguard.records import TOKEN_SETS, Features

EXPERTS = (
    *(f"multinomial {name}" for name in TOKEN_SETS),
    *(f"logistic {name}" for name in TOKEN_SETS),
    "categorical",
    "gaussian",
)
_N_TOKEN_EXPERTS = 2 * N_TOKEN_SETS  # the first ones; those of traits and numbers come last
LOGISTIC = slice(N_TOKEN_SETS, _N_TOKEN_EXPERTS)
_WORDS_SET, _PAIRS_SET = TOKEN_SETS.index("words"), TOKEN_SETS.index("pairs")
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


class ExpertEstimates(NamedTuple):
    """Parameters of the counting experts: `traits` and `numbers` hold the log-likelihood ratio of
    every possible value against the first class.
    """

    scales: Floats  # (K, SETS): one over `multinomial_shares`
    traits: Floats  # (K-1, T, TRAIT_VALUES)
    numbers: Floats  # (K-1, D, NUMBER_VALUES)


class PlainParameters(NamedTuple):
    """Parameters as plain numbers, which are faster than short arrays."""

    traits: list[list[float]]
    numbers: list[list[float]]
    biases: list[int]
    fusion_weights: list[int]
    fusion_bias: int


@dataclass(frozen=True)
class ExpertParameters:
    """All parameters of judging by these tables, until they change (`Tables.changes`).

    Attributes
    ----------
    unwanted
        Names of the unwanted classes; all others are wanted.
    wanted, fewest
        Lessons of the wanted side, and of the rarer one.
    confidence
        Factor of the fused log-odds.
    min_score, max_lead
        Bounds of scores of unwanted mail against wanted, in 1/STEPS_PER_NAT nats: no expert's is
        below min_score, and no expert of tokens further than max_lead below the third lowest.
    class_estimates, side_estimates
        Each class against the first, and unwanted mail against wanted; the same with two classes.
    """

    tables: Tables
    changes: int
    unwanted: frozenset[str]
    sides: Sides
    wanted: int
    fewest: int
    confidence: float
    min_score: int
    max_lead: int
    class_estimates: ExpertEstimates
    side_estimates: ExpertEstimates

    @cached_property
    def plain(self) -> PlainParameters:
        """Those of side_estimates and of the tables as lists, for judging one by one."""
        known, tables = self.side_estimates, self.tables
        return PlainParameters(
            known.traits[0].tolist(),
            known.numbers[0].tolist(),
            tables.biases[0].tolist(),
            tables.fusion_weights.tolist(),
            int(tables.fusion_biases[0]),
        )


def estimate_parameters(
    tables: Tables, unwanted: frozenset[str] = frozenset({"spam"})
) -> ExpertParameters:
    """Estimate from the sums as they are now."""
    sides = partition_classes(tables.classes, unwanted)
    of_classes = of_sides = make_estimates(tables)
    if len(tables.classes) != N_BASE:
        by_side = copy(tables)
        for name in PER_CLASS:
            setattr(by_side, name, sum_by_side(getattr(tables, name), sides))
        of_sides = make_estimates(by_side)
    lessons = sum_by_side(tables.messages, sides).tolist()
    confidence = float(class_trust(min(lessons)))
    floor, lead = (
        round(nats / sqrt(confidence) * STEPS_PER_NAT)
        for nats in (WANTED_FLOOR_NATS, MAX_LEAD_NATS)
    )
    return ExpertParameters(
        tables,
        tables.changes,
        unwanted,
        sides,
        lessons[0],
        min(lessons),
        confidence,
        -floor,
        lead,
        of_classes,
        of_sides,
    )


def make_estimates(learnt: Tables) -> ExpertEstimates:
    """The parameters of the second class and all others against the first.

    The sums of the tables are those of K classes or of two sides.
    """
    lessons = learnt.messages[:, np.newaxis, np.newaxis]
    traits = formulas.smoothed_log(learnt.trait_counts, lessons, TRAIT_ALPHA, N_TRAIT_VALUES)
    squares = np.diagonal(learnt.number_products, axis1=1, axis2=2)
    mean, variance = formulas.gaussian_moments(learnt.messages, learnt.number_sums, squares)
    values = np.arange(N_NUMBER_VALUES)[:, np.newaxis]
    densities = formulas.gaussian_log_density(
        values, mean, np.maximum(variance, MIN_NUMBER_VARIANCE)
    )  # (values, K, D)
    numbers = _round_ratios(densities[:, 1:] - densities[:, :1]).transpose(1, 2, 0)
    return ExpertEstimates(
        1.0 / multinomial_shares(learnt.totals),
        _round_ratios(traits[1:] - traits[0]),
        np.ascontiguousarray(numbers),
    )


def _round_ratios(ratios: Floats) -> Floats:
    return np.asarray(np.rint(ratios * RATIO_STEPS_PER_NAT) / RATIO_STEPS_PER_NAT)


def multinomial_shares(totals: Integers) -> Floats:
    """Each class's share of all features counted, by token set, (K, SETS); never zero."""
    return np.asarray((totals + 0.5) / (totals + 0.5).sum(axis=0))


def class_trust(messages: Integers) -> Floats:
    """How far classes with so many lessons can be trusted, in (0, 1): rises smoothly.

    The odds of unwanted mail are trusted as far as its rarer side. So neither one side alone nor a
    further class makes the filter sure, and a filter without ham can learn all the same.
    """
    return np.asarray((messages + 1) / (messages + 1 + WARM_UP_LESSONS))


# ---- the parts of the sums


def multinomial_parts(counts: Floats, scales: Floats, sizes: Indices) -> Floats:
    """Log-likelihood ratios of features against the first class, (K-1, n).

    Dirichlet smoothing with the class's share of one pseudo-count a: p = (count + a·share) / (share
    · constant), so p_k / p_0 = (count_k / share_k + a) / (count_0 / share_0 + a). A feature that
    was never seen says nothing, however unequal the classes are. Shapes: counts (K, n), scales, one
    over the share, (K, runs); sizes are those of the runs.
    """
    rates = scales.repeat(sizes, axis=1)
    rates *= counts
    rates += _PSEUDO_COUNT_ARRAY
    ratios = rates[1:]
    ratios /= rates[0]
    return np.log(ratios, out=ratios)


def look_up_ratios(ratios: Floats, values: NDArray[np.integer]) -> Floats:
    """Entries of ratios (K-1, m, V) for values (..., m): (K-1, ..., m)."""
    return ratios[:, np.arange(ratios.shape[1]), values]


def damping_factors(evidence: Evidence) -> Floats:
    """Factor of every expert's sum, (..., EXPERTS)."""
    root = 1.0 / np.sqrt(np.maximum(evidence.sizes, 1))
    factors = np.empty((*root.shape[:-1], len(EXPERTS)))
    factors[..., :N_TOKEN_SETS] = root * np.sqrt(root)  # to the power of -3/4
    factors[..., LOGISTIC] = root
    factors[..., -2:] = evidence.traits.shape[-1] ** -0.5, evidence.numbers.shape[-1] ** -0.5
    return factors


# ---- one message


class ScoredMessage(NamedTuple):
    """One message with all that its scores are made of.

    `multinomial`, `traits` and `numbers` are the undamped part of every bucket, trait and number in
    its expert's log-odds of unwanted mail against wanted.
    """

    parameters: ExpertParameters
    evidence: Evidence
    counts: Floats  # (K, n), of its buckets
    weights: Floats  # (K-1, n)
    multinomial: Floats  # (1, n)
    traits: list[float]  # so few are faster as lists
    numbers: list[float]
    scores: list[list[int]]  # as they count in judging; rows as by `batch_scores`


def score_message(parameters: ExpertParameters, features: Features) -> ScoredMessage:
    """Score one message, for judging."""
    tables = parameters.tables
    evidence = make_evidence(features, tables.bits, tables)
    counts, weights = read_rows(tables, evidence)
    of_sides, scales = sum_by_side(counts, parameters.sides), parameters.side_estimates.scales
    multinomial = multinomial_parts(of_sides, scales, evidence.sizes)
    plain = parameters.plain
    traits: list[float] = list(map(getitem, plain.traits, evidence.traits.tolist()))
    numbers: list[float] = list(map(getitem, plain.numbers, evidence.numbers.tolist()))
    if len(tables.classes) > N_BASE:
        of_all = _score_all(parameters, evidence, counts, weights)
        scores = bound_scores(of_all, parameters).tolist()
    else:
        log_odds, sizes, margins = [], evidence.sizes.tolist(), []
        if 0 in sizes:
            counted = set_sums(multinomial, evidence)[0].tolist()
        else:
            counted = np.add.reduceat(multinomial[0], evidence.starts).tolist()
        sums = sizes, counted, evidence.weighed.tolist(), plain.biases
        for size, total, weight, bias in zip(*sums, strict=True):
            root = 1.0 / sqrt(size or 1)
            log_odds.append(total * (root * sqrt(root)))
            margin = logistic.margins(weight, bias, int(root * logistic.ROOT_ONE))
            margins.append(margin / logistic.ONE)
        log_odds += margins
        log_odds.append(sum(traits) * len(traits) ** -0.5)
        log_odds.append(sum(numbers) * len(numbers) ** -0.5)
        scores = [_bounded_scores(log_odds, parameters)]
    return ScoredMessage(
        parameters, evidence, counts, weights, multinomial, traits, numbers, scores
    )


def _bounded_scores(log_odds: Sequence[float], parameters: ExpertParameters) -> list[int]:
    """`quantise_scores` and `bound_scores` with plain numbers, for two classes."""
    # conditional expressions take a third of the time of `min` and `max`
    highest = round(MAX_SCORE_NATS * STEPS_PER_NAT)
    lowest = max(parameters.min_score, -highest)
    low, high = lowest / STEPS_PER_NAT, MAX_SCORE_NATS
    inside = [
        lowest if nats < low else highest if nats > high else round(nats * STEPS_PER_NAT)
        for nats in log_odds
    ]
    third = sorted(map(inside.__getitem__, _CONFIRMING_EXPERTS))[_CONFIRMING_RANK]
    floor = min(third - parameters.max_lead, 0)
    of_tokens = [floor if score < floor else score for score in inside[:_N_TOKEN_EXPERTS]]
    return of_tokens + inside[_N_TOKEN_EXPERTS:]


def familiarity(message: ScoredMessage) -> tuple[float, float]:
    """What one message has in common with the lessons, for the caution of the first days.

    Returns
    -------
    The log-odds of unwanted mail by the words of the text, in nats, and the share of all single
    tokens (words, header fields, hosts, structure) that no lesson has.
    """
    row, size = message.scores[-1], int(message.evidence.sizes[:_PAIRS_SET].sum())
    familiar = np.count_nonzero(message.counts[:, :size].any(axis=0))
    # a logistic score is about twice as large
    text = max(row[_WORDS_SET], row[N_TOKEN_SETS + _WORDS_SET] / 2) / STEPS_PER_NAT
    return text, 1.0 - familiar / size if size else 1.0


# ---- any number of messages


def batch_scores(parameters: ExpertParameters, messages: Sequence[Features]) -> Integers:
    """The scores of all experts for each message, (m, R, EXPERTS), in 1/STEPS_PER_NAT nats.

    One row for each class but the first; with more than two classes one more, of unwanted mail.
    """
    tables = parameters.tables
    evidence = batch_features(messages, tables.bits, tables)
    return _score_all(parameters, evidence, *read_rows(tables, evidence))


def _score_all(
    parameters: ExpertParameters,
    evidence: Evidence,
    counts: Floats,
    weights: Floats,
) -> Integers:
    sums = np.moveaxis(set_sums(weights, evidence), 0, -1).astype(np.int64)
    roots = logistic.inverse_roots(evidence.sizes)[..., np.newaxis]
    margins = logistic.margins(sums, parameters.tables.biases.T, roots)
    return combine_scores(parameters, evidence, counts, margins)


def combine_scores(
    parameters: ExpertParameters, evidence: Evidence, counts: Floats, margins: Integers
) -> Integers:
    """The experts' scores, (..., R, EXPERTS) in 1/STEPS_PER_NAT nats, rows as by `batch_scores`.

    From counts (K, n) and the logistic experts' log-odds (..., SETS, K-1).
    """
    log_odds = np.moveaxis(margins, -1, 0) / logistic.ONE
    sizes, sides, rows = evidence.sizes, parameters.sides, []
    compared = [(parameters.class_estimates, counts)]
    if len(counts) != N_BASE:
        compared.append((parameters.side_estimates, sum_by_side(counts, sides)))
        every = np.concatenate((np.zeros_like(log_odds[:1]), log_odds))
        good, bad = (np.logaddexp.reduce(every[side], axis=0) for side in sides)
        log_odds = np.concatenate((log_odds, [bad - good]))
    for known, of_each in compared:
        scales = np.tile(known.scales, sizes.size // N_TOKEN_SETS)
        parts = multinomial_parts(of_each, scales, sizes.ravel())
        counted = np.zeros((len(parts), *sizes.shape[:-1], len(EXPERTS)))
        counted[..., :N_TOKEN_SETS] = set_sums(parts, evidence)
        counted[..., -2] = look_up_ratios(known.traits, evidence.traits).sum(axis=-1)
        counted[..., -1] = look_up_ratios(known.numbers, evidence.numbers).sum(axis=-1)
        rows.append(counted)
    raw = np.concatenate(rows) * damping_factors(evidence)
    raw[..., LOGISTIC] = log_odds
    return np.moveaxis(quantise_scores(raw), 0, -2)


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


def bound_scores(scores: Integers, parameters: ExpertParameters) -> Integers:
    """Scores (..., R, EXPERTS) with the last row, of unwanted mail, bounded for judging."""
    inside = scores.copy()
    last = inside[..., -1, :]
    np.maximum(last, parameters.min_score, out=last)
    of_tokens = last[..., :_N_TOKEN_EXPERTS]
    third = np.sort(last[..., _CONFIRMING_EXPERTS], axis=-1)[..., _CONFIRMING_RANK, np.newaxis]
    floor = np.minimum(third - parameters.max_lead, 0)  # no score changes its sign
    np.maximum(of_tokens, floor, out=of_tokens)
    return inside
