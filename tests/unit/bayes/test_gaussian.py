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

HEIGHTS = [
    182.0,
    171.0,
    165.0,
    176.0,
    101.0,
    98.0,
    121.0,
    110.0,
    131.0,
    127.0,
    93.0,
    118.0,
    105.0,
    125.0,
    115.0,
    136.0,
]  # cm
WEIGHTS = [
    81.0,
    70.0,
    58.0,
    77.0,
    16.0,
    15.0,
    23.0,
    19.0,
    29.0,
    25.0,
    13.0,
    22.0,
    18.0,
    26.0,
    20.0,
    30.0,
]  # kg
PEOPLE = np.array([HEIGHTS, WEIGHTS]).T
AGES = np.array(["adult"] * 4 + ["child"] * 12)


def normal(x: float, mean: float, variance: float) -> float:
    return float(np.exp(-((x - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance))


def test_adults_and_children() -> None:
    model = GaussianNB(var_floor=TINY).fit(PEOPLE, AGES)
    np.testing.assert_allclose(np.exp(model.class_log_prior_), [0.25, 0.75], rtol=1e-14)
    adults, children = PEOPLE[:4], PEOPLE[4:]
    np.testing.assert_allclose(
        model.theta_, [adults.mean(axis=0), children.mean(axis=0)], rtol=1e-14
    )
    np.testing.assert_allclose(model.var_, [adults.var(axis=0), children.var(axis=0)], rtol=1e-13)
    query = (150.0, 40.0)
    joints = []
    for prior, people in ((0.25, adults), (0.75, children)):
        joints.append(
            prior
            * np.prod(
                [
                    normal(x, column.mean(), column.var())
                    for x, column in zip(query, people.T, strict=True)
                ]
            )
        )
    np.testing.assert_allclose(np.exp(model.predict_joint_log_proba([query])), [joints], rtol=1e-10)
    np.testing.assert_allclose(
        model.predict_proba([query]), [np.array(joints) / sum(joints)], rtol=1e-10
    )


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


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_the_boundary_is_quadratic(covariance: Any) -> None:
    """Along any straight line third differences of the log-odds vanish, and second ones do not."""
    random = np.random.default_rng(4)
    y = labels(random, 80, n_classes=2)
    model = GaussianNB(covariance=covariance).fit(correlated(random, y), y)
    line = np.arange(8.0)[:, np.newaxis] * random.normal(size=3) + random.normal(size=3)
    odds = np.diff(model.predict_joint_log_proba(line), axis=1)[:, 0]
    np.testing.assert_allclose(np.diff(odds, 3), 0.0, atol=1e-8 * np.abs(odds).max())
    assert np.abs(np.diff(odds, 2)).min() > 1e-3


def test_with_one_feature_full_is_diagonal() -> None:
    one = PEOPLE[:, :1]
    full, diagonal = (GaussianNB(covariance=form).fit(one, AGES) for form in ("full", "diagonal"))
    np.testing.assert_allclose(
        full.predict_joint_log_proba(one), diagonal.predict_joint_log_proba(one), rtol=1e-12
    )


def drawn(model: GaussianNB, size: int, random: np.random.Generator) -> tuple[Any, Any]:
    """A class from the prior, then a point from that class's model."""
    codes = random.choice(len(model.classes_), size=size, p=np.exp(model.class_log_prior_))
    points = model.theta_[codes] + random.normal(size=(size, model.theta_.shape[1])) * np.sqrt(
        model.var_[codes]
    )
    return points, model.classes_[codes]


def test_parameters_come_back_from_samples() -> None:
    """Within three standard errors: sqrt(pq/N), sqrt(variance/n), variance * sqrt(2/n)."""
    size = 100_000
    model = GaussianNB().fit(PEOPLE, AGES)
    again = GaussianNB().fit(*drawn(model, size, np.random.default_rng(16)))
    prior, counts = np.exp(model.class_log_prior_), again.class_count_[:, np.newaxis]
    assert (
        np.abs(np.exp(again.class_log_prior_) - prior) < 3 * np.sqrt(prior * (1 - prior) / size)
    ).all()
    assert (np.abs(again.theta_ - model.theta_) < 3 * np.sqrt(model.var_ / counts)).all()
    assert (np.abs(again.var_ - model.var_) < 3 * model.var_ * np.sqrt(2 / counts)).all()


@pytest.mark.parametrize("covariance", ["diagonal", "shared", "full"])
class TestFloor:
    def test_a_constant_feature_says_nothing(self, covariance: Any) -> None:
        constant = np.full((16, 1), 3.0)
        model = GaussianNB(covariance=covariance).fit(np.hstack([PEOPLE, constant]), AGES)
        plain = GaussianNB(covariance=covariance).fit(PEOPLE, AGES)
        for value in (3.0, 4.0, -1e3):
            queries = np.hstack([PEOPLE, np.full((16, 1), value)])
            np.testing.assert_allclose(
                model.predict_proba(queries), plain.predict_proba(PEOPLE), rtol=1e-6
            )

    def test_a_feature_constant_in_one_class_costs_no_more_than_the_floor_allows(
        self, covariance: Any
    ) -> None:
        X, y = np.array([[0.0], [0.0], [0.0], [1.0], [2.0], [3.0]]), ["ham"] * 3 + ["spam"] * 3
        model = GaussianNB(covariance=covariance).fit(X, y)
        one_deviation = X.mean() + X.std()
        log_odds = np.diff(model.predict_joint_log_proba([[0.0], [one_deviation]]), axis=1)
        assert np.isfinite(log_odds).all()
        assert (np.abs(log_odds) < 4 * 500).all()

    def test_a_floor_for_each_feature(self, covariance: Any) -> None:
        model = GaussianNB(covariance=covariance, var_floor=[4.0, 1e-6]).fit(
            [[0.0, 0.0], [0.0, 2.0]], ["ham", "ham"]
        )
        expected = -0.5 * (1.0 / 4.0 + 1.0 / 1.0 + np.log(4.0 * 1.0)) - np.log(2 * np.pi)
        assert model.predict_joint_log_proba([[1.0, 2.0]]).item() == pytest.approx(
            expected, rel=1e-9
        )

    def test_units_do_not_matter(self, covariance: Any) -> None:
        small, great = (
            GaussianNB(covariance=covariance).fit(PEOPLE * unit, AGES) for unit in (1.0, 1e6)
        )
        np.testing.assert_allclose(
            small.predict_proba(PEOPLE), great.predict_proba(PEOPLE * 1e6), rtol=1e-8
        )

    def test_a_class_without_samples_neither_gains_nor_loses(self, covariance: Any) -> None:
        model = GaussianNB(covariance=covariance, class_alpha=1.0).partial_fit(
            PEOPLE[:4], AGES[:4], classes=["adult", "child"]
        )
        np.testing.assert_allclose(
            model.predict_proba(PEOPLE), np.tile([5 / 6, 1 / 6], (16, 1)), rtol=1e-9
        )

    def test_extreme_numbers_are_no_nan(self, covariance: Any) -> None:
        X = np.array([[1e300, 1e-300], [-1e300, 2e-300], [1e308, 0.0], [-1e308, 5e-324]])
        model = GaussianNB(covariance=covariance).fit(X, ["ham", "ham", "spam", "spam"])
        assert np.isfinite(model.predict_proba(np.vstack([X, -X, np.zeros((1, 2))]))).all()
