"""Explanations: the fused log-odds of one message taken apart, into parts that sum to it.

A part that was clipped or rounded on its way to the sum is scaled, so that the sum stays true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import experts, fusion, logistic
from spamguard.bayes.experts import EXPERTS, STEPS_PER_NAT, ExpertParameters, Floats
from spamguard.bayes.fusion import MessageScores
from spamguard.bayes.tables import N_BASE, N_TOKEN_SETS, Evidence, Tables

# Rounding doubles a score of half a step; nothing else makes a score larger.
_MAX_FACTOR = 2.0
_LOGISTIC = slice(N_TOKEN_SETS, 2 * N_TOKEN_SETS)


@dataclass(frozen=True, slots=True)
class LogOddsBreakdown:
    """The parts, in nats, of unwanted mail against wanted; together they sum to `log_odds`.

    prior is what no message has a part in. experts (EXPERTS,) are the experts' shares, each the sum
    of its features' parts and biases. buckets (n,), traits (T,) and numbers (D,) say what each
    token, trait and number adds over all experts. counts (K, n).
    """

    log_odds: float
    prior: float
    experts: Floats
    scores: Floats
    biases: float
    buckets: Floats
    traits: Floats
    numbers: Floats
    counts: NDArray[np.int32]


def break_down(
    message: MessageScores,
    tables: Tables,
    parameters: ExpertParameters,
    evidence: Evidence,
    favoured: int,
    against: int,
) -> LogOddsBreakdown:
    """Take apart the default profile's log-odds of unwanted mail.

    favoured and against are numbers of the unwanted and of the wanted class whose weights tell the
    logistic experts' shares, where there are more than these two.
    """
    parts, nats = message.parts, np.array(message.scores[-1]) / STEPS_PER_NAT
    confidence = _fused_confidence(message, tables, parameters)
    weights = _expert_weights(tables, confidence)
    factors, remainder = _scale_experts(message, tables, evidence, favoured, against)
    factors = factors * weights
    shares = weights * nats
    prior = float(confidence * tables.fusion_biases[0] / fusion.ONE)
    return LogOddsBreakdown(
        log_odds=prior + float(shares.sum()),
        prior=prior,
        experts=shares,
        scores=nats,
        biases=float(weights @ remainder),
        buckets=_token_parts(parts, evidence, factors, favoured, against),
        traits=np.array(parts.categorical) * factors[-2],
        numbers=np.array(parts.gaussian) * factors[-1],
        counts=message.rows.counts,
    )


def bucket_parts(
    message: MessageScores,
    tables: Tables,
    parameters: ExpertParameters,
    evidence: Evidence,
    favoured: int,
    against: int,
) -> Floats:
    """Only `LogOddsBreakdown.buckets`: the part of each token."""
    weights = _expert_weights(tables, _fused_confidence(message, tables, parameters))
    factors = _scale_experts(message, tables, evidence, favoured, against)[0] * weights
    return _token_parts(message.parts, evidence, factors, favoured, against)


def strongest_parts(parts: Floats, number: int) -> NDArray[np.intp]:
    """Indices of the `number` highest parts above zero and lowest below it, strongest first.

    >>> strongest_parts(np.array([0.5, -2.0, 1.0, 0.0]), 1).tolist()
    [1, 2]
    """
    size = len(parts)
    number = min(number, size)
    if not number:
        return np.empty(0, np.intp)
    both_ends = (number - 1, size - number)
    order = parts.argpartition(both_ends) if size > 2 * number else parts.argsort()
    low, high = order[:number], order[size - number :]
    below = zip(parts[low].tolist(), low.tolist(), strict=True)
    ranked = [(part, at) for part, at in below if part < 0]
    above = zip(parts[high].tolist(), high.tolist(), strict=True)
    ranked += [(-part, at) for part, at in above if part > 0]
    return np.array([at for _, at in sorted(ranked)], np.intp)


def _fused_confidence(
    message: MessageScores, tables: Tables, parameters: ExpertParameters
) -> float:
    """The factor of the fused log-odds: confidence in the lessons, and in log-odds so high."""
    weights = fusion.side_weights(tables.fusion_weights).tolist()
    fused = fusion.fused_nats(message.scores[-1], weights, int(tables.fusion_biases[0]))
    log_odds = parameters.confidence * fused
    if not log_odds:
        return parameters.confidence
    return parameters.confidence * fusion.temper_one(log_odds) / log_odds


def _expert_weights(tables: Tables, confidence: float) -> Floats:
    weights = fusion.side_weights(tables.fusion_weights)
    return np.multiply(confidence / fusion.ONE, weights, dtype=np.float64)


def _scale_experts(
    message: MessageScores, tables: Tables, evidence: Evidence, favoured: int, against: int
) -> tuple[Floats, Floats]:
    """The factor of the parts in each expert's sum, and the remainder of each score, in nats.

    The factors contain damping, clipping and rounding; the remainder belongs to no feature.
    """
    parts, scores = message.parts, np.array(message.scores[-1]) / STEPS_PER_NAT
    damping = experts.damping_factors(evidence.sizes, len(evidence.traits), len(evidence.numbers))
    differences = _class_difference(parts.logistic, favoured, against)
    by_set = experts.set_sums(np.stack((parts.multinomial[0], differences)), evidence)
    counted, weighed = by_set.tolist()
    of_logistic = [weight / logistic.ONE for weight in weighed]
    sums = np.array([*counted, *of_logistic, sum(parts.categorical), sum(parts.gaussian)]) * damping
    biases = np.zeros(len(EXPERTS))
    biases[_LOGISTIC] = _class_difference(tables.biases, favoured, against) / logistic.ONE
    totals = sums + biases
    factors = np.divide(scores, totals, out=np.zeros(len(EXPERTS)), where=totals != 0)
    # With two classes always inside. With more, two of them do not give all of what the logistic
    # experts make of both sides.
    factors = np.minimum(np.maximum(factors, 0.0), _MAX_FACTOR)
    two_classes = len(tables.classes) == N_BASE
    return factors * damping, factors * biases if two_classes else scores - factors * sums


def _class_difference(rows: NDArray[Any], favoured: int, against: int) -> NDArray[Any]:
    """One class against another, from values of each class but the first against the first."""
    return np.asarray(rows[favoured - 1] - rows[against - 1] if against else rows[favoured - 1])


def _token_parts(
    parts: experts.ExpertParts, evidence: Evidence, factors: Floats, favoured: int, against: int
) -> Floats:
    """What each token adds over all experts."""
    total = parts.multinomial[0] * factors[:N_TOKEN_SETS].repeat(evidence.sizes)
    weights = _class_difference(parts.logistic, favoured, against)
    total += weights * (factors[_LOGISTIC] / logistic.ONE).repeat(evidence.sizes)
    return np.asarray(total)
