"""Why: the fused log-odds of one message being unwanted taken apart, into parts that sum to it.

A part that was clipped or rounded on its way is scaled, so that the sum stays true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import blocks, experts, fusion, logistic
from spamguard.bayes.experts import EXPERTS, STEPS, Floats, Parameters
from spamguard.bayes.tables import BASE_CLASSES, SETS, Evidence, Rows, Tables, read_rows

_MOST = 2.0  # times: rounding doubles a score of half a step, and nothing else makes one larger


@dataclass(frozen=True, slots=True)
class Dissection:
    """Parts in nats, for unwanted mail against wanted; all of them sum to `log_odds`.

    prior: what the message has no part in. experts (EXPERTS,): each expert's share, itself the sum of its features' parts and
    biases. buckets (n,): what each token adds over all experts, traits (T,), numbers (D,) likewise. counts (K, n).
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


class Weighed(NamedTuple):
    """What judging one message goes through: its rows, every feature's part, and the experts' scores, (R, EXPERTS) as `blocks.scores`."""

    rows: Rows
    parts: experts.Parts
    scores: list[list[int]]


def weigh(tables: Tables, known: Parameters, seen: Evidence) -> Weighed:
    """The way of the default profile, with what it passes kept."""
    rows = read_rows(tables, seen.buckets)
    found = experts.parts(known, seen, rows)
    return Weighed(rows, found, blocks.scores_of_one(tables, known, seen, rows, found))


def dissect(weighed: Weighed, tables: Tables, known: Parameters, seen: Evidence, favoured: int, against: int) -> Dissection:
    """The default profile's judgement whether mail is unwanted, part by part.

    favoured, against: numbers of the unwanted class and of the wanted one by whose weights the logistic experts' shares are told, where
    there are more than these two.
    """
    found, nats, confidence = weighed.parts, np.array(weighed.scores[-1]) / STEPS, _confidence(weighed, tables, known)
    weights = _weights(tables, confidence)
    kept = _kept(weighed, tables, seen, favoured, against)
    factor = kept.damped * weights
    shares = weights * nats
    prior = float(confidence * tables.fusion_biases[0] / fusion.ONE)
    return Dissection(
        prior + float(shares.sum()),
        prior,
        shares,
        nats,
        float(weights @ kept.rest),
        _buckets(found, seen, factor, favoured, against),
        np.array(found.categorical) * factor[-2],
        np.array(found.gaussian) * factor[-1],
        weighed.rows.counts,
    )


def bucket_parts(weighed: Weighed, tables: Tables, known: Parameters, seen: Evidence, favoured: int, against: int) -> Floats:
    """Of all this only what each token adds, `Dissection.buckets`."""
    factor = _kept(weighed, tables, seen, favoured, against).damped * _weights(tables, _confidence(weighed, tables, known))
    return _buckets(weighed.parts, seen, factor, favoured, against)


def strongest(parts: Floats, number: int) -> NDArray[np.intp]:
    """Places of the `number` highest above zero and of as many lowest below it, the strongest first."""
    size = len(parts)
    number = min(number, size)
    if not number:
        return np.empty(0, np.intp)
    order = parts.argpartition((number - 1, size - number)) if size > 2 * number else parts.argsort()
    low, high = order[:number], order[size - number :]
    found = [pair for pair in zip(parts.take(low).tolist(), low.tolist(), strict=True) if pair[0] < 0]
    found += [(-part, place) for part, place in zip(parts.take(high).tolist(), high.tolist(), strict=True) if part > 0]
    return np.array([place for _, place in sorted(found)], np.intp)


def _confidence(weighed: Weighed, tables: Tables, known: Parameters) -> float:
    """The factor of the fused log-odds: how far the lessons can be trusted, and how far so high log-odds can."""
    weights, bias = fusion.of_sides(tables.fusion_weights).tolist(), int(tables.fusion_biases[0])
    log_odds = known.confidence * fusion.nats(weighed.scores[-1], weights, bias)
    return known.confidence * fusion.tempered_one(log_odds) / log_odds if log_odds else known.confidence


def _weights(tables: Tables, confidence: float) -> Floats:
    """The weight of every expert."""
    return np.multiply(confidence / fusion.ONE, fusion.of_sides(tables.fusion_weights), dtype=np.float64)


class _Kept(NamedTuple):
    """What clipping and rounding left of each expert's sum: damped, its factor times the damping. rest: what is of no feature, in nats."""

    damped: Floats
    rest: Floats


def _kept(weighed: Weighed, tables: Tables, seen: Evidence, favoured: int, against: int) -> _Kept:
    found, scores = weighed.parts, np.array(weighed.scores[-1]) / STEPS
    damping = experts.damping(seen.sizes, len(seen.traits), len(seen.numbers))
    words, weights = experts.set_sums(np.stack((found.multinomial[0], _between(found.logistic, favoured, against))), seen).tolist()
    sums = np.array([*words, *[weight / logistic.ONE for weight in weights], sum(found.categorical), sum(found.gaussian)]) * damping
    biases = np.zeros(len(EXPERTS))
    biases[SETS : 2 * SETS] = _between(tables.biases, favoured, against) / logistic.ONE
    whole = sums + biases
    factors = np.divide(scores, whole, out=np.zeros(len(EXPERTS)), where=whole != 0)
    # With two classes always inside. With more, two of them do not say all of what the logistic experts make of both sides.
    factors = np.minimum(np.maximum(factors, 0.0), _MOST)
    rest = factors * biases if len(tables.classes) == len(BASE_CLASSES) else scores - factors * sums
    return _Kept(factors * damping, rest)


def _between(rows: NDArray[Any], favoured: int, against: int) -> NDArray[Any]:
    """One class against another, of values for each class but the first against that one."""
    return np.asarray(rows[favoured - 1] - rows[against - 1] if against else rows[favoured - 1])


def _buckets(found: experts.Parts, seen: Evidence, factor: Floats, favoured: int, against: int) -> Floats:
    """What each token adds over all experts."""
    parts = found.multinomial[0] * factor[:SETS].repeat(seen.sizes)
    parts += _between(found.logistic, favoured, against) * (factor[SETS : 2 * SETS] / logistic.ONE).repeat(seen.sizes)
    return np.asarray(parts)
