"""`sample` draws from the fitted model: whoever fits its points finds the model's parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spamguard.bayes import GaussianNB

SAMPLES = 100_000
CLASSES = ["ham", "newsletter", "spam"]
every_kind = pytest.mark.parametrize("covariance", ["diagonal", "shared", "full"])


def taught(model: Any) -> Any:
    """A model of three classes of different sizes, fitted on numbers from 0 to 4."""
    random = np.random.default_rng(5)
    codes = np.repeat([0, 1, 2], [60, 30, 10])
    X = random.binomial(4, np.array([[0.1, 0.5, 0.7], [0.3, 0.3, 0.2], [0.8, 0.4, 0.5]])[codes])
    return model.fit(X, np.array(CLASSES)[codes])


def assert_within_three(estimates: Any, values: Any, standard_errors: Any) -> None:
    deviations = np.abs(np.asarray(estimates) - values)
    assert (deviations <= 3.0 * np.asarray(standard_errors)).all()


@every_kind
def test_parameters_come_back(covariance: Any) -> None:
    model = taught(GaussianNB(covariance=covariance))
    X, y = model.sample(SAMPLES, random_state=42)
    assert X.shape == (SAMPLES, 3)
    assert y.dtype == model.classes_.dtype
    again = GaussianNB(covariance=covariance).fit(X, y)
    assert again.classes_.tolist() == CLASSES
    prior = np.exp(model.class_log_prior_)
    errors = np.sqrt(prior * (1.0 - prior) / SAMPLES)
    assert_within_three(np.exp(again.class_log_prior_), prior, errors)
    variances = (
        model.var_
        if covariance == "diagonal"
        else np.broadcast_to(np.diagonal(model.covariance_, axis1=-2, axis2=-1), (3, 3))
    )
    sizes = again.class_count_[:, np.newaxis]
    assert_within_three(again.theta_, model.theta_, np.sqrt(variances / sizes))
    found = np.stack([X[y == name].var(axis=0) for name in CLASSES])
    assert_within_three(found, variances, variances * np.sqrt(2.0 / sizes))


@every_kind
def test_a_constant_feature_is_drawn_with_the_floor_of_its_variance(covariance: Any) -> None:
    X = np.array([[1.0, 7.0], [2.0, 7.0], [3.0, 7.0], [5.0, 7.0]])
    model = GaussianNB(covariance=covariance, var_floor=0.25).fit(X, [0, 0, 1, 1])
    points, _ = model.sample(SAMPLES, random_state=1)
    assert_within_three(points[:, 1].var(), 0.25, 0.25 * np.sqrt(2.0 / SAMPLES))


def test_one_sample_is_drawn_if_nothing_is_said() -> None:
    X, y = taught(GaussianNB()).sample()
    assert (X.shape, y.shape) == ((1, 3), (1,))
