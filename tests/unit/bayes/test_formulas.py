"""The formulas at their edges: infinities, empty classes, and the histogram in place of the walk
over the vocabulary.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from spamguard.bayes import formulas
from tests.unit.bayes.support import repeatable, seeds

alphas = st.sampled_from([0.0, 0.01, 1.0])


@pytest.mark.parametrize(
    "module", ["spamguard.bayes", "spamguard.bayes.formulas", "spamguard.bayes.fusion"]
)
def test_formulas_do_not_load_scikit_learn(module: str) -> None:
    code = (
        f"import sys, {module}; print(sorted({{'sklearn', 'scipy', 'pandas'}} & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"


class TestSmoothedLog:
    def test_value(self) -> None:
        counts, totals = np.array([[0, 3], [7, 1]]), np.array([[4], [9]])
        np.testing.assert_allclose(
            formulas.smoothed_log(counts, totals, 0.5, 2),
            np.log((counts + 0.5) / (totals + 1.0)),
            rtol=1e-14,
        )

    def test_nothing_out_of_something_and_out_of_nothing(self) -> None:
        assert formulas.smoothed_log([0, 2, 0], [2, 2, 0], 0.0, 2).tolist() == [
            -np.inf,
            0.0,
            -np.inf,
        ]

    def test_halves_make_the_whole(self) -> None:
        table = formulas.log_count(np.arange(10), 0.1)
        whole = formulas.smoothed_log([0, 9], 12, 0.1, 3)
        assert (table[[0, 9]] - formulas.log_total(12, 0.1, 3)).tolist() == whole.tolist()

    def test_small_unsigned_counts_do_not_wrap_around(self) -> None:
        assert formulas.log_count(np.array([255], dtype=np.uint8), 1).tolist() == [np.log(256.0)]


class TestPosterior:
    prior = np.log([0.25, 0.75])

    def test_normalises(self) -> None:
        answer = np.exp(formulas.log_posterior(np.log([[0.1, 0.3], [1e-300, 3e-300]]), self.prior))
        np.testing.assert_allclose(answer, [[0.25, 0.75], [0.25, 0.75]], rtol=1e-12)

    def test_far_below_the_floats(self) -> None:
        assert formulas.log_posterior(np.array([-1e6, -1e6 - 2000.0]), self.prior).tolist() == [
            0.0,
            -2000.0,
        ]

    def test_where_all_is_impossible_the_prior_answers(self) -> None:
        joint = np.array([[-np.inf, -np.inf], [-np.inf, -3.0]])
        np.testing.assert_allclose(
            np.exp(formulas.log_posterior(joint, self.prior)),
            [[0.25, 0.75], [0.0, 1.0]],
            rtol=1e-14,
        )

    def test_where_the_prior_is_impossible_too_all_are_equal(self) -> None:
        nothing = np.array([-np.inf, -np.inf])
        assert np.exp(formulas.log_posterior(nothing, nothing)).tolist() == [0.5, 0.5]
        assert np.exp(
            formulas.log_posterior(nothing, formulas.class_log_prior([0, 0], 0.0))
        ).tolist() == [0.5, 0.5]


def test_no_occurrence_of_the_impossible_costs_nothing() -> None:
    log_p = np.log([[0.5, 0.5, 1.0], [1.0, 0.25, 0.75]])
    log_p[0, 2] = -np.inf
    weights = np.array([[2, 1, 0], [0, 0, 1]])
    expected = np.array([[3 * np.log(0.5), np.log(0.25)], [-np.inf, np.log(0.75)]])
    np.testing.assert_allclose(formulas.weighted_log_sum(weights, log_p), expected, rtol=1e-14)
    np.testing.assert_allclose(
        formulas.weighted_log_sum(csr_array(weights), log_p), expected, rtol=1e-14
    )


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
        present, absent = formulas.bernoulli_logs(counts, total[:, np.newaxis], a, b)
        np.testing.assert_allclose(
            answer, np.where(here, present, absent).sum(axis=1), rtol=1e-11, atol=1e-11
        )

    def test_one_histogram_for_all_classes(self) -> None:
        multiplicities, total = np.array([[5, 0, 1], [2, 3, 1]]), np.array([4, 2])
        together = formulas.absent_log_likelihood(np.arange(3), multiplicities, total, 0.0, 0.0)
        for k in range(2):
            alone = formulas.absent_log_likelihood(
                np.arange(3), multiplicities[k], total[k], 0.0, 0.0
            )
            assert (together.finite[k], together.certain[k]) == (alone.finite, alone.certain)
        assert together.certain.tolist() == [0, 1]

    def test_a_certain_feature_present_and_absent(self) -> None:
        counts, total = np.array([[4, 2]]), np.array([[4]])
        absence = formulas.absent_log_likelihood(
            counts, np.ones_like(counts), total[:, 0], 0.0, 0.0
        )
        features = formulas.bernoulli_presence(counts, total, 0.0, 0.0)
        answers = formulas.bernoulli_log_likelihood(
            np.array([[1, 0], [1, 1], [0, 1]]), features, absence
        )
        np.testing.assert_allclose(answers, [[np.log(0.5)], [np.log(0.5)], [-np.inf]], rtol=1e-14)

    def test_an_empty_message(self) -> None:
        absence = formulas.absent_log_likelihood([0, 1], [10, 2], 3, 1.0, 1.0)
        features = formulas.bernoulli_presence(np.zeros((1, 0)), [[3]], 1.0, 1.0)
        answer = formulas.bernoulli_log_likelihood(np.ones(0), features, absence)
        np.testing.assert_allclose(answer, [10 * np.log(4 / 5) + 2 * np.log(3 / 5)], rtol=1e-14)


class TestGaussian:
    def test_moments_of_quantised_numbers(self) -> None:
        """x = 0.25, 0.75 in class 0 and 1.5 in class 1, in quarters; class 2 is empty."""
        mean, variance = formulas.gaussian_moments(
            [2, 1, 0], [[4], [6], [0]], [[10], [36], [0]], fraction_bits=2
        )
        np.testing.assert_allclose(mean[:, 0], [0.5, 1.5, 2.5 / 3], rtol=1e-15)
        np.testing.assert_allclose(
            variance[:, 0], [0.0625, 0.0, np.var([0.25, 0.75, 1.5])], rtol=1e-15
        )

    def test_no_samples_at_all(self) -> None:
        mean, variance = formulas.gaussian_moments(
            [0, 0], np.zeros((2, 3), int), np.zeros((2, 3), int)
        )
        assert not mean.any()
        assert not variance.any()

    def test_a_great_mean_costs_the_variance_no_digits(self) -> None:
        x = 2**40 + np.array([[0], [1], [2]], dtype=object)
        assert (
            formulas.gaussian_moments([3], [x.sum(axis=0)], [(x * x).sum(axis=0)])[1].item()
            == 2 / 3
        )

    def test_counts_may_be_whole_floats(self) -> None:
        mean, _ = formulas.gaussian_moments([2.0], [[3]], [[5]])
        assert mean.item() == 1.5

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

    def test_a_singular_matrix_has_a_density(self) -> None:
        whitened = formulas.whitening(np.ones((2, 2)), 0.01)
        density = formulas.whitened_log_density(
            [[0.0, 0.0], [1.0, -1.0]], np.zeros((1, 2)), whitened
        )
        along, across = 2.0, 0.01
        constant = -0.5 * np.log(along * across) - np.log(2 * np.pi)
        np.testing.assert_allclose(
            density[:, 0], [constant, constant - 0.5 * 2.0 / across], rtol=1e-9
        )

    def test_far_out_is_impossible_and_never_nan(self) -> None:
        x, mean = [1.7e308, -1.7e308], np.array([[-1.7e308, 1.7e308]])
        assert formulas.whitened_log_density(
            x, mean, formulas.whitening(np.array([[2.0, 1.0], [1.0, 2.0]]), 1e-3)
        ).tolist() == [-np.inf]
        assert formulas.gaussian_log_density(x, mean, np.ones((1, 2))).sum(axis=-1).tolist() == [
            -np.inf
        ]
