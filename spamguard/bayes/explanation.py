"""Why: the fused log-odds of one message taken apart, into parts that sum to it.

Compares two classes. A part that was clipped or rounded on its way is scaled, so that the sum stays true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import experts, fusion, logistic
from spamguard.bayes.experts import EXPERTS, STEPS, Floats, Parameters
from spamguard.bayes.tables import SETS, Evidence, Rows, Tables, read_rows

_NO_BIASES = (0.0,) * SETS
_NO_COUNTS = np.zeros((0, 0), np.int32)


@dataclass(frozen=True, slots=True)
class Dissection:
    """Parts in nats, for one class against another; all of them sum to `log_odds`.

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
    """What judging one message goes through: its rows, every feature's part, and the experts' scores (K-1, EXPERTS)."""

    rows: Rows
    parts: experts.Parts
    scores: list[list[int]]


def weigh(tables: Tables, known: Parameters, seen: Evidence) -> Weighed:
    """The way of the default profile, with what it passes kept."""
    rows = read_rows(tables, seen.buckets)
    found = experts.parts(known, seen, rows)
    return Weighed(rows, found, experts.scores(found, seen, tables.biases, known.bounds))


def dissect(weighed: Weighed, tables: Tables, known: Parameters, seen: Evidence, favoured: int, against: int) -> Dissection:
    """The default profile's judgement of class number `favoured` against number `against`, part by part."""
    rows, found, scores = weighed
    buckets, traits, numbers = (np.zeros(part.shape[1]) for part in (found.multinomial, found.categorical, found.gaussian))
    nothing = np.zeros(len(EXPERTS))
    total = Dissection(0.0, 0.0, nothing, nothing, 0.0, buckets, traits, numbers, rows.counts)
    for number, sign in ((favoured, 1.0), (against, -1.0)):
        if number:
            trust, weights = _trust(tables, known, number)
            prior = trust * float(tables.fusion_biases[number - 1])
            total = _plus(total, _one_class(found, scores, seen, tables, weights, number - 1), sign, prior)
    return total


def bucket_parts(weighed: Weighed, tables: Tables, known: Parameters, seen: Evidence, favoured: int, against: int) -> Floats:
    """Of all this only what each token adds, `Dissection.buckets`."""
    total = np.zeros(len(seen.buckets))
    for number, sign in ((favoured, 1.0), (against, -1.0)):
        if number:
            factor = _factors(weighed.parts, weighed.scores, seen, tables, number - 1)[1] * _trust(tables, known, number)[1]
            total += sign * _buckets(weighed.parts, seen, factor, number - 1)
    return total


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


def _trust(tables: Tables, known: Parameters, number: int) -> tuple[float, Floats]:
    """Factor of everything said about a class, in steps of fusion, and with it the weight of every expert."""
    trust = float(known.confidence[number - 1]) / fusion.ONE
    return trust, np.multiply(trust, tables.fusion_weights, dtype=np.float64)


def _plus(total: Dissection, more: Dissection, sign: float, prior: float) -> Dissection:
    return Dissection(
        total.log_odds + sign * (more.log_odds + prior),
        total.prior + sign * prior,
        total.experts + sign * more.experts,
        total.scores + sign * more.scores,
        total.biases + sign * more.biases,
        total.buckets + sign * more.buckets,
        total.traits + sign * more.traits,
        total.numbers + sign * more.numbers,
        total.counts,
    )


def _one_class(found: experts.Parts, scores: list[list[int]], seen: Evidence, tables: Tables, weights: Floats, row: int) -> Dissection:
    """One class against the first, without the prior."""
    kept, damped = _factors(found, scores, seen, tables, row)
    nats = np.array(scores[row]) / STEPS
    factor = damped * weights
    shares = weights * nats
    bias = float((weights * kept)[SETS : 2 * SETS] @ (tables.biases[row] / logistic.ONE))
    return Dissection(
        float(shares.sum()),
        0.0,
        shares,
        nats,
        bias,
        _buckets(found, seen, factor, row),
        found.categorical[row] * factor[-2],
        found.gaussian[row] * factor[-1],
        _NO_COUNTS,
    )


def _factors(found: experts.Parts, scores: list[list[int]], seen: Evidence, tables: Tables, row: int) -> tuple[Floats, Floats]:
    """What clipping and rounding left of each expert's sum, as a factor; the same times the damping."""
    damping = experts.damping(seen.sizes, len(seen.traits), len(seen.numbers))
    words, weights = experts.set_sums(np.stack((found.multinomial[row], found.logistic[row])), seen).tolist()
    traits, numbers = float(found.categorical[row].sum()), float(found.gaussian[row].sum())
    sums = (*words, *[weight / logistic.ONE for weight in weights], traits, numbers)
    biases = (*_NO_BIASES, *[bias / logistic.ONE for bias in tables.biases[row].tolist()], 0.0, 0.0)
    raw = [part * factor + bias for part, factor, bias in zip(sums, damping.tolist(), biases, strict=True)]
    kept = np.array([steps / STEPS / whole if whole else 0.0 for steps, whole in zip(scores[row], raw, strict=True)])
    return kept, kept * damping


def _buckets(found: experts.Parts, seen: Evidence, factor: Floats, row: int) -> Floats:
    """What each token adds over all experts."""
    parts = found.multinomial[row] * factor[:SETS].repeat(seen.sizes)
    parts += found.logistic[row] * (factor[SETS : 2 * SETS] / logistic.ONE).repeat(seen.sizes)
    return np.asarray(parts)
