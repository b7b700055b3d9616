"""The same answers as scikit-learn's estimators: taught in one go, in pieces, and after teaching
and unteaching.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.naive_bayes as theirs
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.estimator_checks import (
    parametrize_with_checks,
)

from spamguard.bayes import estimators
from spamguard.bayes.naive_bayes import NaiveBayes
from tests.unit.bayes.support import labels, repeatable, seeds

alphas = st.sampled_from([0.001, 0.5, 1.0, 3.0])


def in_one_go(model: NaiveBayes, X: Any, y: Any) -> NaiveBayes:
    return model.fit(X, y)


def in_pieces(model: NaiveBayes, X: Any, y: Any) -> NaiveBayes:
    for start in range(0, len(y), 7):
        model.partial_fit(X[start : start + 7], y[start : start + 7], np.unique(y))
    return model


def taught_and_untaught(model: NaiveBayes, X: Any, y: Any) -> NaiveBayes:
    model.partial_fit(X[::-1], y, np.unique(y))
    model.partial_fit(X, y)
    return model.unlearn(X[::-1], y)


ways = pytest.mark.parametrize("teach", [in_one_go, in_pieces, taught_and_untaught])
Teach = Callable[[NaiveBayes, Any, Any], NaiveBayes]


def assert_agree(mine: NaiveBayes, reference: Any, queries: Any) -> None:
    np.testing.assert_allclose(
        mine.predict_joint_log_proba(queries),
        reference.predict_joint_log_proba(queries),
        rtol=1e-9,
        atol=1e-9,
    )
    np.testing.assert_allclose(
        mine.predict_log_proba(queries), reference.predict_log_proba(queries), rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(
        mine.predict_proba(queries), reference.predict_proba(queries), rtol=1e-9, atol=1e-9
    )
    assert mine.predict(queries).tolist() == reference.predict(queries).tolist()


@ways
@repeatable
@given(seeds, alphas, st.sampled_from([0.0, 0.5]))
def test_bernoulli(teach: Teach, seed: int, alpha: float, binarize: float) -> None:
    random = np.random.default_rng(seed)
    X, y = random.normal(size=(40, 8)), labels(random, 40)
    mine = teach(estimators.BernoulliNB(alpha=alpha, binarize=binarize), X, y)
    assert_agree(
        mine,
        theirs.BernoulliNB(alpha=alpha, binarize=binarize).fit(X, y),
        random.normal(size=(20, 8)),
    )


@ways
@pytest.mark.parametrize("fractional", [False, True])
@repeatable
@given(seeds, alphas)
def test_multinomial(teach: Teach, fractional: bool, seed: int, alpha: float) -> None:
    random = np.random.default_rng(seed)
    X, y = random.poisson(1.5, (40, 8)), labels(random, 40)
    X = X * random.random((40, 8)) if fractional else X
    mine = teach(estimators.MultinomialNB(alpha=alpha), X, y)
    assert_agree(mine, theirs.MultinomialNB(alpha=alpha).fit(X, y), random.poisson(1.5, (20, 8)))


@ways
@repeatable
@given(seeds, alphas)
def test_categorical(teach: Teach, seed: int, alpha: float) -> None:
    random = np.random.default_rng(seed)
    sizes = np.array([2, 3, 5, 9])
    X, y = random.integers(0, sizes, (40, 4)), labels(random, 40)
    mine = teach(estimators.CategoricalNB(alpha=alpha, min_categories=sizes), X, y)
    assert_agree(
        mine,
        theirs.CategoricalNB(alpha=alpha, min_categories=sizes).fit(X, y),
        random.integers(0, sizes, (20, 4)),
    )


@ways
@repeatable
@given(seeds)
def test_gaussian(teach: Teach, seed: int) -> None:
    random = np.random.default_rng(seed)
    y = labels(random, 40)
    X = random.normal(size=(40, 4)) * [1.0, 10.0, 0.1, 3.0] + (y == "spam")[:, np.newaxis] * [
        0.5,
        5.0,
        0.0,
        -3.0,
    ]
    mine = teach(estimators.GaussianNB(var_floor=1e-12), X, y)
    reference = theirs.GaussianNB(var_smoothing=0.0).fit(X, y)
    assert_agree(mine, reference, random.normal(size=(20, 4)))
    np.testing.assert_allclose(mine.theta_, reference.theta_, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mine.var_, reference.var_, rtol=1e-9)


FAMILIES = [
    estimators.BernoulliNB(),
    estimators.MultinomialNB(),
    estimators.CategoricalNB(),
    estimators.GaussianNB(),
]


@parametrize_with_checks(FAMILIES)
def test_contract_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)
