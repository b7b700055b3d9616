"""The worked examples this filter grew from; their numbers were computed with exact fractions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from sklearn.metrics import confusion_matrix

from spamguard.bayes.estimators import BernoulliNB
from tests.unit.bayes.support import repeatable, seeds


class TestPitfalls:
    """C: Bernoulli, two classes."""

    samples = np.array(
        [[1, 1, 1], [1, 1, 1], [0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 1], [0, 1, 0]]
    )
    outcomes = np.array([1, 0, 1, 0, 1, 1, 0])

    @repeatable
    @given(seeds)
    def test_pseudo_samples_are_add_one_smoothing(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        samples, outcomes = (
            random.integers(0, 2, (20, 4)),
            np.append(random.integers(0, 2, 18), [0, 1]),
        )
        padded = BernoulliNB(alpha=0).fit(*with_pseudo_samples(samples, outcomes))
        smoothed = BernoulliNB(alpha=1).fit(samples, outcomes)
        np.testing.assert_array_equal(padded.feature_log_prob_, smoothed.feature_log_prob_)

    @repeatable
    @given(seeds)
    def test_the_boundary_is_linear(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        samples, outcomes = (
            random.integers(0, 2, (40, 6)),
            np.append(random.integers(0, 2, 38), [0, 1]),
        )
        model = BernoulliNB(alpha=0.5).fit(samples, outcomes)
        p = np.exp(model.feature_log_prob_)
        w = np.log(p[1] / (1 - p[1])) - np.log(p[0] / (1 - p[0]))
        b = (
            np.log((1 - p[1]) / (1 - p[0])).sum()
            + model.class_log_prior_[1]
            - model.class_log_prior_[0]
        )
        queries = random.integers(0, 2, (50, 6))
        log_posteriors = model.predict_log_proba(queries)
        np.testing.assert_allclose(
            log_posteriors[:, 1] - log_posteriors[:, 0], queries @ w + b, rtol=1e-9, atol=1e-9
        )


def with_pseudo_samples(samples: np.ndarray, outcomes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All ones and all zeros, once in each class."""
    n = samples.shape[1]
    extra = np.array([[1] * n, [0] * n, [1] * n, [0] * n])
    return np.vstack([samples, extra]), np.append(outcomes, [0, 0, 1, 1])


def test_accuracy_of_the_confusion_matrix() -> None:
    """G: rows predicted, columns actual; scikit-learn has them the other way round."""
    table = np.array([[5, 2, 0], [3, 3, 2], [0, 1, 11]])
    predicted, actual = (
        np.repeat(index.ravel(), table.ravel()) for index in np.indices(table.shape)
    )
    confusion = confusion_matrix(actual, predicted).T
    assert confusion.tolist() == table.tolist()
    assert confusion.trace() / confusion.sum() == pytest.approx(19 / 27)
