"""What the filter judges mail by and an estimator of `spamguard.bayes` say the same.

Both stand on `bayes.formulas`. What they are given differs in form: a profile gets tables of hash
buckets and one message, an estimator a matrix. The experts over traits and over numbers have no
profile of their own and are asked alone.

They agree to `ROUNDING` and not to the last bit, because they add the same logarithms in another
order: a profile sums the words that are there, and takes those that are not from a histogram.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from spamguard import keys
from spamguard.bayes import BernoulliNB, CategoricalNB, GaussianNB, MultinomialNB, experts, formulas
from spamguard.bayes.fusion import PROFILES
from spamguard.bayes.tables import N_TRAIT_VALUES, Tables, make_evidence
from spamguard.engine.filter import Filter
from spamguard.records import Features
from tests.unit.bayes.lessons import (
    BITS,
    NUMBERS,
    TRAITS,
    Taught,
    all_counts,
    made_up,
    replayed,
)

ROUNDING = 1e-12
# Profiles keep the ratio of each single trait or number in steps of 2^-32, so that their sums are
# exact in any order (`experts.RATIO_STEPS_PER_NAT`). A ratio of two classes is off by half a step.
STEPS = max(TRAITS, NUMBERS) / experts.RATIO_STEPS_PER_NAT

Form = Callable[[Tables, Sequence[Taught]], NDArray[Any]]
"""The evidence of messages as an estimator takes it, (messages, features)."""


def as_words(tables: Tables, messages: Sequence[Taught]) -> NDArray[Any]:
    """Which of the buckets that any lesson filled each message has."""
    filled = np.flatnonzero(all_counts(tables).any(axis=0))
    rows = [np.isin(filled, make_evidence(each.features, BITS).buckets) for each in messages]
    return np.array(rows, int)


def as_traits(_: Tables, messages: Sequence[Taught]) -> NDArray[Any]:
    return np.array([each.features.traits for each in messages])


def as_numbers(_: Tables, messages: Sequence[Taught]) -> NDArray[Any]:
    return np.array([each.features.numbers for each in messages])


FAMILIES: dict[str, tuple[Callable[[], Any], Form, float]] = {
    "bernoulli": (lambda: BernoulliNB(alpha=1.0), as_words, ROUNDING),
    "multinomial": (lambda: MultinomialNB(alpha=1.0), as_words, ROUNDING),
    "categorical": (
        lambda: CategoricalNB(alpha=experts.TRAIT_ALPHA, min_categories=N_TRAIT_VALUES),
        as_traits,
        STEPS,
    ),
    "gaussian": (lambda: GaussianNB(var_floor=experts.MIN_NUMBER_VARIANCE), as_numbers, STEPS),
}


def judged(family: str, parameters: experts.ExpertParameters, features: Features) -> NDArray[Any]:
    """The unnormalised log-probability of each class."""
    if judge := PROFILES.get(family):
        return np.array(judge(parameters, features))
    known = parameters.class_estimates
    if family == "categorical":
        ratios = experts.look_up_ratios(known.traits, features.traits)
    else:
        ratios = experts.look_up_ratios(known.numbers, features.numbers)
    prior = formulas.class_log_prior(parameters.tables.messages, 0.0)
    return np.array(prior + np.concatenate(([0.0], ratios.sum(axis=-1))))


def words_only(message: Taught) -> Taught:
    """With tokens that are words, and a few of them that many messages share."""
    of_message = message.features
    words = np.unique(of_message.tokens >> np.uint32(2))
    return message._replace(features=Features(words, of_message.traits, of_message.numbers))


def test_every_family_is_compared() -> None:
    assert set(PROFILES) - set(FAMILIES) == {"default"}


@pytest.mark.parametrize("classes", [("ham", "spam"), ("ham", "spam", "news", "work")])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("profile", FAMILIES)
def test_both_say_the_same_of_the_same_evidence(
    profile: str, seed: int, classes: tuple[str, ...]
) -> None:
    make, form, tolerance = FAMILIES[profile]
    lessons = [*map(words_only, made_up(seed, 40, classes))]
    messages = [*map(words_only, made_up(seed + 100, 20))]
    tables = replayed(lessons)
    labels = [tables.classes.index(lesson.label) for lesson in lessons]
    estimator = make().fit(form(tables, lessons), labels)
    posteriors = estimator.predict_log_proba(form(tables, messages))
    parameters = experts.estimate_parameters(tables)
    for message, posterior in zip(messages, posteriors, strict=True):
        joint = judged(profile, parameters, message.features)
        if joint.max() > -np.inf:  # else the prior answers, which is the verdict's business
            np.testing.assert_allclose(
                joint - np.logaddexp.reduce(joint), posterior, rtol=tolerance, atol=tolerance
            )


KEY = b"a key under which no words share"  # a bucket
LETTERS = (
    ("ham", "buy this online today"),
    ("spam", "send us money today"),
    ("spam", "send money today"),
    ("spam", "buy online today"),
    ("ham", "send us money"),
    ("spam", "send this money"),
)
UNSEEN = ("buy money online today", "send this today", "us", "money money money", "robots dance")


@pytest.mark.parametrize("profile", ["bernoulli", "multinomial"])
def test_both_say_the_same_of_the_same_words(tmp_path: Path, profile: str) -> None:
    """From letters to probabilities: nothing but the words is common to both."""
    vocabulary = sorted({word for _, text in LETTERS for word in text.split()})

    def as_matrix(texts: Sequence[str]) -> NDArray[Any]:
        return np.array([[word in text.split() for word in vocabulary] for text in texts], int)

    labels, texts = zip(*LETTERS, strict=True)
    estimator = FAMILIES[profile][0]().fit(as_matrix(texts), labels)
    keys.store_key(tmp_path / "key", KEY)
    with Filter.open(tmp_path, profile=profile, _bits=16, _durable=False) as spam_filter:
        for label, text in LETTERS:
            spam_filter.learn(f"{text}\n".encode(), label)
        for text, chances in zip(UNSEEN, estimator.predict_proba(as_matrix(UNSEEN)), strict=True):
            verdict = spam_filter.judge(f"{text}\n".encode())
            expected = dict(zip(estimator.classes_.tolist(), chances.tolist(), strict=True))
            assert verdict.probabilities == pytest.approx(expected, rel=ROUNDING)
