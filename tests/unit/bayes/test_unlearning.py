"""Taught in one go, in pieces, in any order, after teaching and unteaching: bit for bit the same
knowledge.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from spamguard.bayes.estimators import (
    BernoulliNB,
    CategoricalNB,
    GaussianNB,
    MultinomialNB,
)
from spamguard.bayes.naive_bayes import NaiveBayes
from spamguard.errors import TableError
from tests.unit.bayes.support import assert_same_knowledge, labels, repeatable, seeds


def real_numbers(random: np.random.Generator) -> np.ndarray:
    """Of very different sizes, where sums in floating point would lose bits."""
    return random.normal(size=(40, 3)) * 10.0 ** random.integers(-12, 13, (40, 3))


def fractions(random: np.random.Generator) -> np.ndarray:
    return np.abs(real_numbers(random)) * random.integers(0, 2, (40, 3))


def numbers(random: np.random.Generator) -> np.ndarray:
    return random.poisson(1.0, (40, 3))


MODELS = {
    "bernoulli": (BernoulliNB(), numbers),
    "bernoulli, maximum likelihood": (BernoulliNB(alpha=0), numbers),
    "multinomial": (MultinomialNB(), numbers),
    "multinomial, fractional": (MultinomialNB(), fractions),
    "categorical": (CategoricalNB(), numbers),
    "categorical, maximum likelihood": (CategoricalNB(alpha=0, min_categories=2), numbers),
    "gaussian": (GaussianNB(), real_numbers),
    "gaussian, integers": (GaussianNB(), numbers),
    "gaussian, shared": (GaussianNB(covariance="shared", class_alpha=1.0), real_numbers),
    "gaussian, full": (GaussianNB(covariance="full"), real_numbers),
}
every_model = pytest.mark.parametrize(("model", "sample"), MODELS.values(), ids=MODELS.keys())


@pytest.mark.slow
@every_model
@repeatable
@given(seeds)
def test_order_portions_and_detours_leave_no_trace(
    model: NaiveBayes, sample: Any, seed: int
) -> None:
    random = np.random.default_rng(seed)
    X, y, classes = sample(random), labels(random, 40), ["ham", "newsletter", "spam"]
    whole = deepcopy(model).fit(X, y)

    order = random.permutation(40)
    pieces = deepcopy(model)
    for part in np.split(order, np.sort(random.integers(1, 40, 3))):
        if part.size:
            pieces.partial_fit(X[part], y[part], classes)
    assert_same_knowledge(pieces, whole)

    other, names = sample(random) * 7, labels(random, 40)
    detour = pieces.partial_fit(other, names).unlearn(other[::-1], names[::-1])
    assert_same_knowledge(detour, whole)

    kept, gone = order[:15], order[15:]
    assert_same_knowledge(
        detour.unlearn(X[gone], y[gone]), deepcopy(model).partial_fit(X[kept], y[kept], classes)
    )


@every_model
def test_what_was_never_taught_cannot_be_unlearned(model: NaiveBayes, sample: Any) -> None:
    random = np.random.default_rng(2)
    X, y = sample(random), labels(random, 40)
    taught = deepcopy(model).partial_fit(X[:20], y[:20], np.unique(y))
    before = deepcopy(taught)
    for samples, names in [
        (X, y),
        (X[:20] + 90, y[:20]),
        (X[:1], np.array(["zoo"])),
        (X[:20], np.roll(y[:20], 1)),
    ]:
        with pytest.raises(TableError):
            taught.unlearn(samples, names)
        assert_same_knowledge(taught, before)


def test_unlearning_half_of_a_presence_is_noticed() -> None:
    """A sample without the feature goes instead of one with it: one sample cannot show two."""
    model = BernoulliNB().fit([[1], [1], [0]], [0, 0, 1])
    with pytest.raises(TableError):
        model.unlearn([[0]], [0])
