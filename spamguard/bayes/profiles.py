"""Profiles: ways to judge. The default fuses all experts; the others are single experts by name.

A profile turns the tables and one message's evidence into an unnormalised log-probability of each
class. All read the same tables and use the same formulas, so choosing a profile changes nothing
that is learnt. Only the default is calibrated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import experts, formulas, logistic
from spamguard.bayes.experts import ExpertParameters, Floats
from spamguard.bayes.fusion import fuse
from spamguard.bayes.tables import Evidence, Tables, read_rows

JudgeFunction = Callable[[Tables, ExpertParameters, Evidence], list[float]]
"""Returns the unnormalised log-probability of each class."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to judge. With words_only it reads nothing but the words of the body."""

    name: str
    about: str
    words_only: bool
    judge: JudgeFunction


# ---- single experts


def _word_counts(tables: Tables, evidence: Evidence) -> NDArray[np.int32]:
    """Counts (K, n) of the words that any class knows: the vocabulary is what has been taught."""
    counts = read_rows(tables, evidence.buckets[: int(evidence.sizes[0])]).counts
    return counts.compress(np.bitwise_or.reduce(counts), axis=1)


def _add_prior(tables: Tables, log_likelihood: Floats) -> list[float]:
    """Add the maximum-likelihood prior of the classes; -inf everywhere before the first lesson."""
    joint: list[float] = (formulas.class_log_prior(tables.messages, 0.0) + log_likelihood).tolist()
    return joint


def _make_bernoulli_judge(alpha: float) -> JudgeFunction:
    def judge(tables: Tables, _parameters: ExpertParameters, evidence: Evidence) -> list[float]:
        counts, messages = _word_counts(tables, evidence), tables.messages[:, np.newaxis]
        presence = formulas.bernoulli_presence(counts, messages, alpha, alpha)
        # a message without any word, from the histogram of counts instead of the vocabulary
        values = np.flatnonzero(tables.histogram.any(axis=0))
        absence = formulas.absent_log_likelihood(
            np.minimum(values, messages),  # no word has a larger count in a smaller class
            tables.histogram[:, values],
            tables.messages,
            alpha,
            alpha,
        )
        likelihood = formulas.bernoulli_log_likelihood(np.ones(counts.shape[1]), presence, absence)
        return _add_prior(tables, likelihood)

    return judge


def _make_multinomial_judge(alpha: float) -> JudgeFunction:
    def judge(tables: Tables, _parameters: ExpertParameters, evidence: Evidence) -> list[float]:
        counts = _word_counts(tables, evidence)
        if not counts.size:
            return _add_prior(tables, np.zeros(len(tables.classes)))
        # the sum of smoothed_log over the words; its denominator is the same for all of them
        upper = formulas.log_count(counts, alpha).sum(axis=1)
        total = formulas.log_total(tables.totals[:, 0], alpha, tables.vocabulary[0])
        return _add_prior(tables, formulas.log_ratio(upper, counts.shape[1] * total))

    return judge


def _judge_logistic(
    tables: Tables, _parameters: ExpertParameters, evidence: Evidence
) -> list[float]:
    weights = read_rows(tables, evidence.buckets[: int(evidence.sizes[0])]).weights
    sums = weights.sum(axis=1, dtype=np.int64)
    margins = logistic.margins(
        sums, tables.biases[:, 0], logistic.inverse_roots(evidence.sizes[:1])
    )
    return [0.0, *(margins / logistic.ONE).tolist()]


def _judge_categorical(
    tables: Tables, parameters: ExpertParameters, evidence: Evidence
) -> list[float]:
    parts = experts.look_up_ratios(parameters.class_estimates.traits, evidence.traits)
    return _add_prior(tables, np.concatenate(([0.0], parts.sum(axis=-1))))


def _judge_gaussian(
    tables: Tables, parameters: ExpertParameters, evidence: Evidence
) -> list[float]:
    parts = experts.look_up_ratios(parameters.class_estimates.numbers, evidence.numbers)
    return _add_prior(tables, np.concatenate(([0.0], parts.sum(axis=-1))))


DEFAULT_PROFILE = "default"
_ALL_EXPERTS = (
    f"calibrated fusion of {len(experts.EXPERTS)} experts over words, clues, pairs, "
    "traits and numbers"
)
_BERNOULLI, _MULTINOMIAL = "Bernoulli naive Bayes over words", "multinomial naive Bayes over words"
_ADD_ONE, _ML = "add-one smoothing", "maximum likelihood"
PROFILES = {
    profile.name: profile
    for profile in (
        Profile(DEFAULT_PROFILE, _ALL_EXPERTS, False, fuse),
        Profile("bernoulli", f"{_BERNOULLI}, {_ADD_ONE}", True, _make_bernoulli_judge(1.0)),
        Profile("bernoulli-ml", f"{_BERNOULLI}, {_ML}", True, _make_bernoulli_judge(0.0)),
        Profile("multinomial", f"{_MULTINOMIAL}, {_ADD_ONE}", True, _make_multinomial_judge(1.0)),
        Profile("multinomial-ml", f"{_MULTINOMIAL}, {_ML}", True, _make_multinomial_judge(0.0)),
        Profile("logistic", "logistic regression over words", True, _judge_logistic),
        Profile("categorical", "categorical naive Bayes over traits", False, _judge_categorical),
        Profile("gaussian", "Gaussian naive Bayes over numbers", False, _judge_gaussian),
    )
}
