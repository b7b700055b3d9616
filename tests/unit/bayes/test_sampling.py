"""`sample` draws from the fitted model: whoever fits its points finds the model's parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from spamguard.bayes import BernoulliNB, CategoricalNB, GaussianNB, MultinomialNB

SAMPLES = 100_000
CLASSES = ["ham", "newsletter", "spam"]
FAMILIES: list[Any] = [BernoulliNB, CategoricalNB, GaussianNB, MultinomialNB]


def taught(model: Any) -> Any:
    """A model of three classes of different sizes, fitted on numbers from 0 to 4."""
    random = np.random.default_rng(5)
    codes = np.repeat([0, 1, 2], [60, 30, 10])
    X = random.binomial(4, np.array([[0.1, 0.5, 0.7], [0.3, 0.3, 0.2], [0.8, 0.4, 0.5]])[codes])
    return model.fit(X, np.array(CLASSES)[codes])


def assert_within_three(estimates: Any, values: Any, standard_errors: Any) -> None:
    deviations = np.abs(np.asarray(estimates) - values)
    assert (deviations <= 3.0 * np.asarray(standard_errors)).all()


def share_error(share: Any, number: Any) -> NDArray[np.float64]:
    return np.sqrt(share * (1.0 - share) / number)


def drawn(model: Any) -> tuple[Any, Any]:
    """The model's samples and a model fitted on them, after a look at the classes."""
    X, y = model.sample(SAMPLES, random_state=42)
    assert X.shape == (SAMPLES, 3)
    assert y.dtype == model.classes_.dtype
    again = type(model)(**model.get_params()).set_params(class_alpha=0.0).fit(X, y)
    assert again.classes_.tolist() == CLASSES
    prior = np.exp(model.class_log_prior_)
    assert_within_three(np.exp(again.class_log_prior_), prior, share_error(prior, SAMPLES))
    return X, again


def test_multinomial_parameters_come_back() -> None:
    model = taught(MultinomialNB())
    X, again = drawn(model)
    probability = np.exp(model.feature_log_prob_)
    total = again.feature_count_.sum(axis=1, keepdims=True)
    errors = share_error(probability, total)
    assert_within_three(again.feature_count_ / total, probability, errors)
    length = model.feature_count_.sum() / model.class_count_.sum()
    assert_within_three(X.sum() / SAMPLES, length, np.sqrt(length / SAMPLES))


@pytest.mark.parametrize("covariance", ["diagonal", "shared", "full"])
def test_a_constant_feature_is_drawn_with_the_floor_of_its_variance(covariance: Any) -> None:
    X = np.array([[1.0, 7.0], [2.0, 7.0], [3.0, 7.0], [5.0, 7.0]])
    model = GaussianNB(covariance=covariance, var_floor=0.25).fit(X, [0, 0, 1, 1])
    points, _ = model.sample(SAMPLES, random_state=1)
    assert_within_three(points[:, 1].var(), 0.25, 0.25 * np.sqrt(2.0 / SAMPLES))


@pytest.mark.parametrize("family", FAMILIES)
def test_one_sample_is_drawn_if_nothing_is_said(family: Any) -> None:
    X, y = taught(family()).sample()
    assert (X.shape, y.shape) == ((1, 3), (1,))
