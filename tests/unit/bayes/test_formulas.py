"""The formulas at their edges: infinities, empty classes, and the histogram in place of the walk
over the vocabulary.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spamguard.bayes import formulas
from tests.unit.bayes.support import repeatable, seeds

alphas = st.sampled_from([0.0, 0.01, 1.0])


class TestPosterior:
    prior = np.log([0.25, 0.75])

    def test_where_the_prior_is_impossible_too_all_are_equal(self) -> None:
        nothing = np.array([-np.inf, -np.inf])
        assert np.exp(formulas.log_posterior(nothing, nothing)).tolist() == [0.5, 0.5]
        assert np.exp(
            formulas.log_posterior(nothing, formulas.class_log_prior([0, 0], 0.0))
        ).tolist() == [0.5, 0.5]


class TestBernoulli:
    @repeatable
    @given(seeds, alphas, alphas)
    def test_histogram_is_the_walk_over_the_vocabulary(self, seed: int, a: float, b: float) -> None:
        """A message scored from its own features and the histogram, against the product over every
        feature.
        """
        random = np.random.default_rng(seed)
        total = np.array([4, 1, 0])
        counts = random.binomial(total[:, np.newaxis], 0.6, (3, 12))
        here = random.integers(0, 2, 12).astype(bool)
        histograms = [np.unique(row, return_counts=True) for row in counts]
        absences = [
            formulas.absent_log_likelihood(*histogram, size, a, b)
            for histogram, size in zip(histograms, total, strict=True)
        ]
        absence = formulas.Absence(
            np.array([each.finite for each in absences]),
            np.array([each.certain for each in absences]),
        )
        features = formulas.bernoulli_presence(counts[:, here], total[:, np.newaxis], a, b)
        answer = formulas.bernoulli_log_likelihood(np.ones(here.sum()), features, absence)
        sizes = total[:, np.newaxis]
        whole = formulas.log_count(sizes, a + b)
        present = formulas.log_ratio(formulas.log_count(counts, a), whole)
        absent = formulas.log_ratio(formulas.log_count(sizes - counts, b), whole)
        np.testing.assert_allclose(
            answer, np.where(here, present, absent).sum(axis=1), rtol=1e-11, atol=1e-11
        )


class TestGaussian:
    @repeatable
    @given(seeds)
    def test_one_floor_for_variances_and_matrices(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        variance, floor, mean = (
            random.exponential(size=(2, 3)),
            random.exponential(size=3),
            random.normal(size=(2, 3)),
        )
        x = random.normal(size=(5, 3))
        matrices = np.stack([np.diag(row) for row in variance])
        by_features = formulas.gaussian_log_density(x, mean, np.maximum(variance, floor)).sum(
            axis=-1
        )
        by_matrix = formulas.whitened_log_density(x, mean, formulas.whitening(matrices, floor))
        np.testing.assert_allclose(by_matrix, by_features, rtol=1e-9)
