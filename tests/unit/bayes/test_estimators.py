"""What the estimators promise beyond scikit-learn's contract: defined answers, and clear errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.exceptions import NotFittedError

from spamguard.bayes.estimators import BernoulliNB, CategoricalNB, MultinomialNB


def test_a_sparse_entry_in_two_parts_is_one_value() -> None:
    in_parts = csr_array(
        (np.array([1, 1, 1]), np.array([0, 0, 1]), np.array([0, 2, 3])), shape=(2, 2)
    )
    assert BernoulliNB().fit(in_parts, [0, 1]).feature_count_.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert MultinomialNB().fit(in_parts, [0, 1]).feature_count_.tolist() == [[2.0, 0.0], [0.0, 1.0]]


ERRORS: dict[str, tuple[Any, Any, str]] = {
    "half a category": (CategoricalNB(), [[0.5], [1]], "whole numbers"),
    "a category beyond the integers": (CategoricalNB(), [[1e300], [1]], "whole numbers"),
    "negative occurrences": (MultinomialNB(), [[-1], [1]], "Negative values"),
}


@pytest.mark.parametrize(("model", "X", "words"), ERRORS.values(), ids=ERRORS.keys())
def test_clear_errors(model: Any, X: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        model.fit(X, [0, 1])
    with pytest.raises(NotFittedError):
        model.predict([[0]])


def test_where_nothing_is_taught_any_more_all_classes_are_equal() -> None:
    model = (
        BernoulliNB(alpha=0).fit([[1], [0]], ["ham", "spam"]).unlearn([[1], [0]], ["ham", "spam"])
    )
    assert model.predict_proba([[1]]).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("alpha", [0.0, 0.01, 1.0, (0.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("sparse", [np.array, csr_array])
def test_bernoulli_is_the_product_over_every_feature(alpha: Any, sparse: Any) -> None:
    random = np.random.default_rng(1)
    y = np.repeat([0, 1], [4, 1])
    X = random.binomial(1, 0.6, (5, 8))
    model = BernoulliNB(alpha=alpha).partial_fit(X, y, classes=[0, 1, 2])
    a, b = np.broadcast_to(alpha, 2)
    for query in random.integers(0, 2, (40, 8)):
        joint = model.predict_joint_log_proba(sparse(query[np.newaxis]))[0]
        for code, size in enumerate((4, 1, 0)):
            counts = X[y == code].sum(axis=0)
            hits = np.where(query, counts + a, size - counts + b)
            expected = (size * (hits / max(size + a + b, 1e-300)).prod()) / 5
            assert np.exp(joint[code]) == pytest.approx(expected, rel=1e-11)


class TestClasses:
    def test_the_first_portion_must_name_them(self) -> None:
        with pytest.raises(ValueError, match="classes"):
            BernoulliNB().partial_fit([[1]], ["ham"])

    def test_later_portions_may_repeat_them_but_not_change_them(self) -> None:
        model = BernoulliNB().partial_fit([[1]], ["ham"], classes=["spam", "ham"])
        model.partial_fit([[0]], ["spam"], classes=["ham", "spam"])
        with pytest.raises(ValueError, match="last call"):
            model.partial_fit([[0]], ["spam"], classes=["ham", "other", "spam"])

    def test_labels_must_be_among_them(self) -> None:
        with pytest.raises(ValueError, match="zoo"):
            BernoulliNB().partial_fit([[1]], ["zoo"], classes=["ham", "spam"])

    def test_nothing_taught_nothing_unlearned(self) -> None:
        with pytest.raises(NotFittedError):
            BernoulliNB().unlearn([[1]], ["ham"])
