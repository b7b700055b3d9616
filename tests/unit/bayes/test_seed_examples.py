"""The worked examples this filter grew from; their numbers were computed with exact fractions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from sklearn.metrics import confusion_matrix

from spamguard.bayes.estimators import BernoulliNB, CategoricalNB, MultinomialNB
from spamguard.bayes.formulas import class_log_prior, smoothed_log, weighted_log_sum
from tests.unit.bayes.support import repeatable, seeds

BACTERIA = """
1 1 1 1 1 1 1 1 1 1 1 1 1 0 1 1
0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0
0 1 1 0 0 0 1 1 1 1 0 0 0 1 0 1
1 1 0 0 1 1 1 0 1 1 0 0 1 0 0 0
0 0 0 0 0 0 0 1 0 0 0 1 0 0 1 0
0 0 1 0 0 1 1 1 0 0 1 0 1 1 0 0
0 0 0 1 0 0 0 1 1 0 0 0 1 0 1 0
0 1 0 0 0 0 1 1 1 0 1 1 0 0 0 1
0 0 1 0 0 1 0 1 0 0 1 0 1 1 1 1
0 1 0 1 1 0 0 1 1 0 0 1 0 1 0 1
"""


class TestBacteria:
    """A: Bernoulli, three classes."""

    genes = np.array([line.split() for line in BACTERIA.split("\n") if line], dtype=int).T
    kinds = np.array([1, 3, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 3, 1])
    query = np.array([[1, 0, 0, 1, 0, 1, 1, 0, 1, 1]])
    conditionals = np.array(
        [11 / 12, 1 / 12, 7 / 12, 1 / 2, 1 / 12, 7 / 12, 1 / 3, 5 / 12, 7 / 12, 5 / 12]
    )

    def test_maximum_likelihood_estimates(self) -> None:
        model = BernoulliNB(alpha=0).fit(self.genes, self.kinds)
        np.testing.assert_allclose(
            np.exp(model.class_log_prior_), [12 / 16, 2 / 16, 2 / 16], rtol=1e-14
        )
        np.testing.assert_allclose(
            np.exp(model.feature_log_prob_[0]), self.conditionals, rtol=1e-14
        )

    def test_joint_with_zero_frequencies(self) -> None:
        model = BernoulliNB(alpha=0).fit(self.genes, self.kinds)
        joint = np.exp(model.predict_joint_log_proba(self.query))[0]
        assert joint[0] == pytest.approx(3.317968e-3, rel=1e-6)
        assert joint[1:].tolist() == [0.0, 0.0]
        assert model.predict(self.query).tolist() == [1]
        assert model.predict_proba(self.query).tolist() == [[1.0, 0.0, 0.0]]

    def test_add_one_posteriors(self) -> None:
        posteriors = BernoulliNB().fit(self.genes, self.kinds).predict_proba(self.query)
        np.testing.assert_allclose(posteriors, [[0.930894, 0.024878, 0.044228]], atol=5e-7)

    def test_product_of_the_printed_parameters(self) -> None:
        printed = self.conditionals.copy()
        printed[1] = 11 / 12
        present, absent = np.log(printed)[np.newaxis], np.log1p(-printed)[np.newaxis]
        likelihood = weighted_log_sum(self.query, present) + weighted_log_sum(
            1 - self.query, absent
        )
        assert 12 / 16 * np.exp(likelihood).item() == pytest.approx(3.0163e-4, rel=1e-4)


VOCABULARY = ["buy", "this", "online", "today", "send", "us", "money"]
MESSAGES = (
    "buy this online today",
    "send us money today",
    "send money today",
    "buy online today",
    "send us money",
    "send this money",
)


def words_of(text: str) -> list[int]:
    return [int(word in text.split()) for word in VOCABULARY]


class TestSixMessages:
    """B: zero-frequency and smoothing."""

    classes = np.array(["ham", "spam", "spam", "spam", "ham", "spam"])
    words = np.array([words_of(text) for text in MESSAGES])
    query = np.array([words_of("buy money online today")])

    def test_maximum_likelihood_estimates(self) -> None:
        model = BernoulliNB(alpha=0).fit(self.words, self.classes)
        np.testing.assert_allclose(np.exp(model.class_log_prior_), [2 / 6, 4 / 6], rtol=1e-14)
        np.testing.assert_allclose(
            np.exp(model.feature_log_prob_[0]), np.full(7, 1 / 2), rtol=1e-14
        )
        np.testing.assert_allclose(
            np.exp(model.feature_log_prob_[1]),
            [1 / 4, 1 / 4, 1 / 4, 3 / 4, 3 / 4, 1 / 4, 3 / 4],
            rtol=1e-14,
        )

    def test_unsmoothed_verdict(self) -> None:
        model = BernoulliNB(alpha=0).fit(self.words, self.classes)
        likelihoods = np.exp(model.predict_joint_log_proba(self.query) - model.class_log_prior_)
        np.testing.assert_allclose(likelihoods, [[0.0078125, 0.0049438]], atol=5e-8)
        assert model.predict_proba(self.query)[0, 1] == pytest.approx(0.558621, abs=5e-7)

    def test_add_one_verdict(self) -> None:
        model = BernoulliNB().fit(self.words, self.classes)
        assert model.predict_proba(self.query)[0, 1] == pytest.approx(0.651918, abs=5e-7)

    def test_multinomial_verdict(self) -> None:
        model = MultinomialNB().fit(self.words, self.classes)
        assert model.predict_proba(self.query)[0, 1] == pytest.approx(0.657628, abs=5e-7)

    def test_a_word_never_seen_in_spam_cannot_acquit_alone(self) -> None:
        robot_in_ham = np.array([[0], [0], [0], [0], [1], [0]])
        words, query = np.hstack([self.words, robot_in_ham]), np.hstack([self.query, [[1]]])
        assert BernoulliNB(alpha=0).fit(words, self.classes).predict_proba(query)[0, 1] == 0.0
        for k in (0.5, 1.0, 3.0):
            model = BernoulliNB(alpha=k).fit(words, self.classes)
            assert np.exp(model.feature_log_prob_[1, -1]) == pytest.approx((0 + k) / (4 + 2 * k))
            assert 0.0 < model.predict_proba(query)[0, 1] < 1.0
        assert 0.0 < MultinomialNB().fit(words, self.classes).predict_proba(query)[0, 1] < 1.0


class TestPitfalls:
    """C: Bernoulli, two classes."""

    samples = np.array(
        [[1, 1, 1], [1, 1, 1], [0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 1], [0, 1, 0]]
    )
    outcomes = np.array([1, 0, 1, 0, 1, 1, 0])

    def test_maximum_likelihood_estimates(self) -> None:
        estimates = np.exp(BernoulliNB(alpha=0).fit(self.samples, self.outcomes).feature_log_prob_)
        np.testing.assert_allclose(
            estimates, [[1 / 3, 2 / 3, 1 / 3], [3 / 4, 1 / 4, 1 / 2]], rtol=1e-14
        )

    def test_pseudo_samples_give_the_notes_numbers(self) -> None:
        samples, outcomes = with_pseudo_samples(self.samples, self.outcomes)
        estimates = np.exp(BernoulliNB(alpha=0).fit(samples, outcomes).feature_log_prob_)
        np.testing.assert_allclose(
            estimates, [[2 / 5, 3 / 5, 2 / 5], [2 / 3, 1 / 3, 1 / 2]], rtol=1e-14
        )

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

    @pytest.mark.parametrize("constant", [0, 1])
    @pytest.mark.parametrize("other", [0, 1])
    def test_a_constant_feature_is_no_certainty(self, constant: int, other: int) -> None:
        samples = np.hstack([self.samples, np.full((7, 1), constant)])
        query = np.append(self.samples, np.full((7, 1), other), axis=1)
        posteriors = BernoulliNB().fit(samples, self.outcomes).predict_proba(query)
        assert ((posteriors > 0.05) & (posteriors < 0.95)).all()

    @pytest.mark.parametrize("constant", [0, 1])
    @pytest.mark.parametrize("other", [0, 1])
    def test_a_constant_feature_is_no_nan_without_smoothing(
        self, constant: int, other: int
    ) -> None:
        samples = np.hstack([self.samples, np.full((7, 1), constant)])
        query = np.append(self.samples, np.full((7, 1), other), axis=1)
        plain, model = (
            BernoulliNB(alpha=0).fit(self.samples, self.outcomes),
            BernoulliNB(alpha=0).fit(samples, self.outcomes),
        )
        expected = (
            plain.predict_proba(self.samples)
            if constant == other
            else np.tile([3 / 7, 4 / 7], (7, 1))
        )
        np.testing.assert_allclose(model.predict_proba(query), expected, rtol=1e-12)

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


class TestBayesianEstimates:
    """D: Beta and Dirichlet priors."""

    samples, outcomes = TestPitfalls.samples, TestPitfalls.outcomes

    @pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.5, 2.0), (3.0, 0.25)])
    def test_beta_predictive_mean(self, a: float, b: float) -> None:
        model = BernoulliNB(alpha=(a, b)).fit(self.samples, self.outcomes)
        counts, sizes = np.array([[1, 2, 1], [3, 1, 2]]), np.array([[3], [4]])
        np.testing.assert_allclose(
            np.exp(model.feature_log_prob_), (counts + a) / (sizes + a + b), rtol=1e-14
        )

    def test_dirichlet_predictive_mean(self) -> None:
        np.testing.assert_allclose(
            np.exp(class_log_prior([12, 2, 0], [0.5, 1.0, 4.0])),
            np.array([12.5, 3.0, 4.0]) / 19.5,
            rtol=1e-14,
        )
        model = BernoulliNB(class_alpha=[2.0, 5.0]).fit(self.samples, self.outcomes)
        np.testing.assert_allclose(np.exp(model.class_log_prior_), [5 / 14, 9 / 14], rtol=1e-14)

    def test_ones_are_add_one_smoothing_of_both(self) -> None:
        bayesian = BernoulliNB(alpha=(1.0, 1.0), class_alpha=[1.0, 1.0]).fit(
            self.samples, self.outcomes
        )
        add_one = BernoulliNB(alpha=1.0, class_alpha=1.0).fit(self.samples, self.outcomes)
        np.testing.assert_array_equal(
            bayesian.predict_log_proba(self.samples), add_one.predict_log_proba(self.samples)
        )
        np.testing.assert_allclose(np.exp(add_one.class_log_prior_), [4 / 9, 5 / 9], rtol=1e-14)

    def test_a_feature_a_class_never_showed_keeps_a_chance(self) -> None:
        model = BernoulliNB(alpha=(0.1, 0.2)).fit([[1, 0], [0, 1]], [0, 1])
        np.testing.assert_allclose(
            np.exp(model.feature_log_prob_),
            [[1.1 / 1.3, 0.1 / 1.3], [0.1 / 1.3, 1.1 / 1.3]],
            rtol=1e-14,
        )


class TestGenotypes:
    """E: categorical features."""

    values = ("P.LOW", "P.HIGH", "N.LOW", "N.HIGH")
    rows = """
    P.LOW P.HIGH N.HIGH P.HIGH
    N.LOW P.HIGH P.HIGH N.HIGH
    P.LOW P.LOW N.LOW P.LOW
    P.HIGH P.HIGH N.HIGH P.HIGH
    N.LOW P.HIGH N.LOW P.LOW
    N.HIGH N.LOW P.LOW N.LOW
    P.LOW N.LOW N.HIGH P.LOW
    P.LOW N.HIGH N.LOW P.LOW
    P.HIGH P.LOW P.LOW N.LOW
    P.HIGH P.LOW P.LOW P.LOW
    """
    table = np.array([line.split() for line in rows.strip().split("\n")])

    def test_maximum_likelihood(self) -> None:
        X, y = np.vectorize(self.values.index)(self.table[:, :3]), self.table[:, 3]
        model = CategoricalNB(alpha=0).fit(X, y)
        query = [[self.values.index(value) for value in ("N.LOW", "N.HIGH", "N.LOW")]]
        joint = dict(
            zip(model.classes_, np.exp(model.predict_joint_log_proba(query))[0], strict=True)
        )
        assert joint == {
            "P.HIGH": 0.0,
            "P.LOW": pytest.approx(5 / 10 * 1 / 5 * 1 / 5 * 3 / 5, rel=1e-14),
            "N.HIGH": 0.0,
            "N.LOW": 0.0,
        }
        assert joint["P.LOW"] == pytest.approx(0.012)
        assert model.predict(query).tolist() == ["P.LOW"]

    def test_smoothing_leaves_no_class_without_a_chance(self) -> None:
        X, y = np.vectorize(self.values.index)(self.table[:, :3]), self.table[:, 3]
        model = CategoricalNB(min_categories=4).fit(X, y)
        query = [[2, 3, 2]]
        assert (model.predict_proba(query) > 0.0).all()
        expected = np.log(5 / 10) + smoothed_log([1, 1, 3], 5, 1.0, 4).sum()
        assert model.predict_joint_log_proba(query)[
            0, model.classes_.tolist().index("P.LOW")
        ] == pytest.approx(expected, rel=1e-14)


def test_accuracy_of_the_confusion_matrix() -> None:
    """G: rows predicted, columns actual; scikit-learn has them the other way round."""
    table = np.array([[5, 2, 0], [3, 3, 2], [0, 1, 11]])
    predicted, actual = (
        np.repeat(index.ravel(), table.ravel()) for index in np.indices(table.shape)
    )
    confusion = confusion_matrix(actual, predicted).T
    assert confusion.tolist() == table.tolist()
    assert confusion.trace() / confusion.sum() == pytest.approx(19 / 27)
