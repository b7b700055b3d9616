"""What the estimators promise beyond scikit-learn's contract: defined answers, and clear errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.exceptions import NotFittedError

import spamguard
from spamguard import bayes
from spamguard.bayes.estimators import BernoulliNB, CategoricalNB, MultinomialNB


def test_the_families_are_exported() -> None:
    assert [getattr(spamguard.bayes, name).__name__ for name in bayes.__all__] == bayes.__all__
    with pytest.raises(AttributeError, match="ComplementNB"):
        bayes.ComplementNB  # noqa: B018  asking for it fails


@pytest.mark.parametrize(
    "model", [BernoulliNB(alpha=0), MultinomialNB(alpha=0), CategoricalNB(alpha=0)]
)
def test_where_every_class_is_impossible_the_prior_answers(model: Any) -> None:
    model.fit([[1, 0], [1, 0], [0, 1]], ["ham", "ham", "spam"])
    assert model.predict_joint_log_proba([[1, 1]]).tolist() == [[-np.inf, -np.inf]]
    np.testing.assert_allclose(model.predict_proba([[1, 1]]), [[2 / 3, 1 / 3]], rtol=1e-14)
    assert model.predict([[1, 1]]).tolist() == ["ham"]


def test_a_class_that_comes_later() -> None:
    model = MultinomialNB(class_alpha=1.0).partial_fit([[2, 1]], ["ham"], classes=["ham", "spam"])
    assert (model.predict_proba([[1, 1]]) > 0.0).all()
    model.partial_fit([[0, 5]], ["spam"])
    assert model.predict([[0, 1]]).tolist() == ["spam"]


def test_an_unseen_category_is_judged_like_one_never_counted() -> None:
    model = CategoricalNB(alpha=0.5).fit([[0], [0], [1]], ["ham", "ham", "spam"])
    expected = np.log([2 / 3 * 0.5 / 3.0, 1 / 3 * 0.5 / 2.0])
    np.testing.assert_allclose(
        model.predict_joint_log_proba([[2], [10**9]]), [expected, expected], rtol=1e-14
    )


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
