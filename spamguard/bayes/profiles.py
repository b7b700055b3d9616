"""Ways to judge: the default, a calibrated fusion of all experts, and single experts by name, uncalibrated, over words only.

A profile turns the tables and one message's evidence into each class's share of belief. All read the same tables and use the
same formulas; choosing one changes nothing that is learnt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import among, blocks, experts, formulas, fusion, logistic
from spamguard.bayes.blocks import Placed
from spamguard.bayes.experts import Floats, Integers, Parameters
from spamguard.bayes.tables import Evidence, Tables, read_rows

Judge = Callable[[Tables, Parameters, Evidence], list[float]]
"""Unnormalised log-probability of each class."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How to judge. words_only: it looks at nothing but the words of the body."""

    name: str
    about: str
    words_only: bool
    judge: Judge


def fuse(tables: Tables, known: Parameters, seen: Evidence) -> list[float]:
    """The default: all experts, fused, held back while there are few lessons."""
    rows = read_rows(tables, seen.buckets)
    return fused(tables, known, blocks.scores_of_one(tables, known, seen, rows, experts.parts(known, seen, rows)))


def fused(tables: Tables, known: Parameters, scores: list[list[int]]) -> list[float]:
    """The same from the experts' scores of one message."""
    if len(scores) > 1:
        return _fused(tables, known, np.array([scores]))[0]
    log_odds = fusion.nats(scores[0], fusion.of_sides(tables.fusion_weights).tolist(), int(tables.fusion_biases[0]))
    return [0.0, fusion.tempered_one(known.confidence * log_odds)]


def fuse_all(tables: Tables, known: Parameters, placed: Placed) -> list[list[float]]:
    """The default's judgements of several messages at once."""
    return _fused(tables, known, experts.believed(blocks.scores(tables, known, placed), known.bounds))


def _fused(tables: Tables, known: Parameters, scores: Integers) -> list[list[float]]:
    """How likely unwanted mail is comes first; then, on both sides, which class it is. scores (m, R, EXPERTS)."""
    weights, bias = fusion.of_sides(tables.fusion_weights), tables.fusion_biases[:1]
    shares = among.log_shares(tables, known.sides, scores[:, : len(tables.classes) - 1])
    shares[:, known.sides.unwanted] += fusion.tempered(known.confidence * fusion.in_nats(fusion.log_odds(scores[:, -1:], weights, bias)))
    joint: list[list[float]] = shares.tolist()
    return joint


def known_words(tables: Tables, seen: Evidence) -> NDArray[np.int32]:
    """Counts (K, n) of the words that any class knows; the vocabulary is what has been taught."""
    counts = read_rows(tables, seen.buckets[: int(seen.sizes[0])]).counts
    return counts.compress(np.bitwise_or.reduce(counts), axis=1)


def prior(tables: Tables) -> Floats:
    """Maximum-likelihood log prior of the classes; -inf everywhere before the first lesson."""
    return formulas.class_log_prior(tables.messages, 0.0)


def _plain(joint: Floats) -> list[float]:
    found: list[float] = joint.tolist()
    return found


def _bernoulli(alpha: float) -> Judge:
    def judge(tables: Tables, _known: Parameters, seen: Evidence) -> list[float]:
        counts = known_words(tables, seen)
        presence = formulas.bernoulli_presence(counts, tables.messages[:, np.newaxis], alpha, alpha)
        absence = absent_words(tables, alpha)
        likelihood = formulas.bernoulli_log_likelihood(np.ones(counts.shape[1]), presence, absence)
        return _plain(prior(tables) + likelihood)

    return judge


def absent_words(tables: Tables, alpha: float) -> formulas.Absence:
    """What a message without any word would say: from the histogram of counts, never a walk over the vocabulary."""
    values = np.flatnonzero(tables.histogram.any(axis=0))
    possible = np.minimum(values, tables.messages[:, np.newaxis])  # no word has a larger count in a smaller class
    return formulas.absent_log_likelihood(possible, tables.histogram[:, values], tables.messages, alpha, alpha)


def _multinomial(alpha: float) -> Judge:
    def judge(tables: Tables, _known: Parameters, seen: Evidence) -> list[float]:
        counts = known_words(tables, seen)
        if not counts.size:
            return _plain(prior(tables))
        # as the sum of smoothed_log over the words, whose lower half is the same for all of them
        upper = formulas.log_count(counts, alpha).sum(axis=1)
        lower = counts.shape[1] * formulas.log_total(tables.totals[:, 0], alpha, tables.vocabulary[0])
        return _plain(prior(tables) + formulas.log_ratio(upper, lower))

    return judge


def _logistic(tables: Tables, _known: Parameters, seen: Evidence) -> list[float]:
    weights = read_rows(tables, seen.buckets[: int(seen.sizes[0])]).weights
    sums = weights.sum(axis=1, dtype=np.int64)
    margins = logistic.margins(sums, tables.biases[:, 0], logistic.inverse_roots(seen.sizes[:1]))
    return _plain(np.concatenate(([0.0], margins / logistic.ONE)))


def _categorical(tables: Tables, known: Parameters, seen: Evidence) -> list[float]:
    parts = experts.looked_up(known.of_classes.traits, seen.traits)
    return _plain(prior(tables) + np.concatenate(([0.0], parts.sum(axis=-1))))


def _gaussian(tables: Tables, known: Parameters, seen: Evidence) -> list[float]:
    parts = experts.looked_up(known.of_classes.numbers, seen.numbers)
    return _plain(prior(tables) + np.concatenate(([0.0], parts.sum(axis=-1))))


DEFAULT = "default"
PROFILES = {
    profile.name: profile
    for profile in (
        Profile(DEFAULT, f"calibrated fusion of {len(experts.EXPERTS)} experts over words, clues, pairs, traits and numbers", False, fuse),
        Profile("bernoulli", "Bernoulli naive Bayes over words, add-one smoothing", True, _bernoulli(1.0)),
        Profile("bernoulli-ml", "Bernoulli naive Bayes over words, maximum likelihood", True, _bernoulli(0.0)),
        Profile("multinomial", "multinomial naive Bayes over words, add-one smoothing", True, _multinomial(1.0)),
        Profile("multinomial-ml", "multinomial naive Bayes over words, maximum likelihood", True, _multinomial(0.0)),
        Profile("logistic", "logistic regression over words", True, _logistic),
        Profile("categorical", "categorical naive Bayes over traits", False, _categorical),
        Profile("gaussian", "Gaussian naive Bayes over numbers", False, _gaussian),
    )
}
