"""Why: the fused log-odds of one message taken apart, into parts that sum to it.

Compares two classes. A part that was clipped or rounded on its way is scaled, so that the sum stays true.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import experts, fusion, logistic
from spamguard.bayes.experts import EXPERTS, STEPS, Floats, Integers, Parameters
from spamguard.bayes.tables import SETS, Evidence, Tables, read_rows

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


def dissect(tables: Tables, known: Parameters, seen: Evidence, favoured: int, against: int) -> Dissection:
    """The default profile's judgement of class number `favoured` against number `against`, part by part."""
    rows = read_rows(tables, seen.buckets)
    found = experts.parts(known, seen, rows)
    scores = experts.scores(found, seen, tables.biases)
    buckets, traits, numbers = (np.zeros(part.shape[1]) for part in (found.multinomial, found.categorical, found.gaussian))
    nothing = np.zeros(len(EXPERTS))
    total = Dissection(0.0, 0.0, nothing, nothing, 0.0, buckets, traits, numbers, rows.counts)
    for number, sign in ((favoured, 1.0), (against, -1.0)):
        if number:
            trust = float(known.confidence[number - 1]) / fusion.ONE
            weights, prior = np.multiply(trust, tables.fusion_weights, dtype=np.float64), trust * float(tables.fusion_biases[number - 1])
            total = _plus(total, _one_class(found, scores, seen, tables, weights, number - 1), sign, prior)
    return total


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


def _one_class(found: experts.Parts, scores: Integers, seen: Evidence, tables: Tables, weights: Floats, row: int) -> Dissection:
    """One class against the first, without the prior."""
    damping = experts.damping(seen.sizes, len(seen.traits), len(seen.numbers))
    nats = scores[row] / STEPS
    raw = np.empty(len(EXPERTS))
    biases = tables.biases[row] / logistic.ONE
    raw[:SETS] = experts.set_sums(found.multinomial, seen)[row]
    raw[SETS : 2 * SETS] = experts.set_sums(found.logistic, seen)[row] / logistic.ONE
    raw[-2:] = found.categorical[row].sum(), found.gaussian[row].sum()
    raw *= damping
    raw[SETS : 2 * SETS] += biases
    kept = np.divide(nats, raw, out=np.zeros_like(raw), where=raw != 0)  # clipped and rounded
    factor = weights * kept * damping
    buckets = found.multinomial[row] * factor[:SETS].repeat(seen.sizes)
    buckets += found.logistic[row] / logistic.ONE * factor[SETS : 2 * SETS].repeat(seen.sizes)
    shares = weights * nats
    bias = float((weights * kept)[SETS : 2 * SETS] @ biases)
    return Dissection(
        float(shares.sum()),
        0.0,
        shares,
        nats,
        bias,
        buckets,
        found.categorical[row] * factor[-2],
        found.gaussian[row] * factor[-1],
        _NO_COUNTS,
    )
