"""F: Gaussian features, their boundaries, and parameters that come back from samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis

from spamguard.bayes.estimators import GaussianNB
from tests.unit.bayes.support import labels, repeatable, seeds

TINY = 1e-12  # a floor far below every variance here, for comparison with estimators that have none


def normal(x: float, mean: float, variance: float) -> float:
    return float(np.exp(-((x - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance))


def correlated(random: np.random.Generator, y: Any) -> Any:
    """Classes that differ in place and in shape."""
    X = random.normal(size=(len(y), 3))
    for index, name in enumerate(np.unique(y)):
        X[y == name] = X[y == name] @ random.normal(size=(3, 3)) + 2 * index
    return X


@repeatable
@given(seeds)
def test_shared_covariance_is_linear_discriminant_analysis(seed: int) -> None:
    """Its covariance, too, is the mean of the classes' maximum-likelihood ones, weighted by their
    sizes.
    """
    random = np.random.default_rng(seed)
    y = labels(random, 60)
    X = correlated(random, y)
    mine = GaussianNB(covariance="shared", var_floor=TINY).fit(X, y)
    reference = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True).fit(X, y)
    np.testing.assert_allclose(mine.covariance_, reference.covariance_, rtol=1e-9, atol=1e-12)
    queries = random.normal(size=(30, 3)) * 2
    np.testing.assert_allclose(
        mine.predict_proba(queries), reference.predict_proba(queries), rtol=1e-9, atol=1e-9
    )

    inverse = np.linalg.inv(mine.covariance_)
    w = inverse @ (mine.theta_[1] - mine.theta_[0])
    b = (
        mine.class_log_prior_[1]
        - mine.class_log_prior_[0]
        - w @ (mine.theta_[1] + mine.theta_[0]) / 2
    )
    log_posteriors = mine.predict_log_proba(queries)
    np.testing.assert_allclose(
        log_posteriors[:, 1] - log_posteriors[:, 0], queries @ w + b, rtol=1e-8, atol=1e-8
    )


@repeatable
@given(seeds)
def test_full_covariance_is_quadratic_discriminant_analysis(seed: int) -> None:
    """scikit-learn divides a class's scatter by n or, in older versions, by n - 1: by n before
    comparing.
    """
    random = np.random.default_rng(seed)
    y = labels(random, 60)
    X = correlated(random, y)
    mine = GaussianNB(covariance="full", var_floor=TINY).fit(X, y)
    reference = QuadraticDiscriminantAnalysis(tol=0.0).fit(X, y)
    traces = [X[y == name].var(axis=0).sum() for name in reference.classes_]
    reference.scalings_ = [
        variances * trace / variances.sum()
        for variances, trace in zip(reference.scalings_, traces, strict=True)
    ]
    queries = random.normal(size=(30, 3)) * 2
    np.testing.assert_allclose(
        mine.predict_proba(queries), reference.predict_proba(queries), rtol=1e-9, atol=1e-9
    )
    for covariance, name in zip(mine.covariance_, reference.classes_, strict=True):
        np.testing.assert_allclose(
            covariance, np.cov(X[y == name].T, bias=True), rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("covariance", ["diagonal", "shared", "full"])
class TestFloor:
    def test_extreme_numbers_are_no_nan(self, covariance: Any) -> None:
        X = np.array([[1e300, 1e-300], [-1e300, 2e-300], [1e308, 0.0], [-1e308, 5e-324]])
        model = GaussianNB(covariance=covariance).fit(X, ["ham", "ham", "spam", "spam"])
        assert np.isfinite(model.predict_proba(np.vstack([X, -X, np.zeros((1, 2))]))).all()
