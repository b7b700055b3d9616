"""Categorical naive Bayes: each feature has one of several values.

It must never take the codes of the values for quantities: 2 is not more than 1 here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamguard.bayes.estimator_base import Codes, NaiveBayes, Operation, Sums
from spamguard.bayes.exact import FixedPoint
from spamguard.bayes.formulas import Floats, smoothed_log


class CategoricalNB(NaiveBayes):
    """Naive Bayes over categories, coded 0, 1, 2 ….

    A feature has as many categories as the highest code taught needs, and at least min_categories and one. A code beyond them is
    judged like a category that was never counted: alpha / (class size + alpha * number of categories).

    Parameters
    ----------
    alpha : pseudo-count of each category in each class; 0 is maximum likelihood.
    class_alpha : Dirichlet prior on the class, scalar or (K,).
    min_categories : least number of categories, scalar or (n,).

    Attributes
    ----------
    classes_, class_count_, class_log_prior_ : shape (K,).
    n_categories_ : number of categories of each feature, shape (n,).
    category_count_ : for each feature, samples of each class in each category, shape (K, n_categories_[j]).
    feature_log_prob_ : for each feature, log P(category | class), shape (K, n_categories_[j]).
    n_features_in_, feature_names_in_ : as scikit-learn has them.
    """

    n_categories_: NDArray[np.int64]
    category_count_: list[Floats]
    feature_log_prob_: list[Floats]

    def __init__(self, *, alpha: float = 1.0, class_alpha: ArrayLike = 0.0, min_categories: ArrayLike = 0) -> None:
        self.alpha = alpha
        self.class_alpha = class_alpha
        self.min_categories = min_categories

    def __sklearn_tags__(self) -> Any:
        """Takes category codes; scikit-learn's generic data suit it badly."""
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.positive_only = True
        tags.classifier_tags.poor_score = True
        return tags

    def _evidence(self, X: Any, codes: Codes, n_classes: int) -> Sums:
        return tuple(FixedPoint.of(_category_counts(column, codes, n_classes)) for column in self._categories(X).T)

    def _categories(self, X: NDArray[Any]) -> NDArray[np.int64]:
        with np.errstate(invalid="ignore"):  # codes beyond int64 are refused below
            categories = X.astype(np.int64)
        if not np.array_equal(categories, X):
            raise ValueError(f"{type(self).__name__} takes category codes, which are whole numbers.")
        return categories

    def _combined(self, operation: Operation, known: FixedPoint, new: FixedPoint) -> FixedPoint:
        """Categories come by teaching and go by unteaching: there are as many as the last one counted."""
        width = max(known.numerators.shape[1], new.numerators.shape[1])
        return _trimmed(operation(_widened(known, width), _widened(new, width)))

    def _estimate(self, sums: Sums) -> None:
        widths = [values.numerators.shape[1] for values in sums[1:]]
        self.n_categories_ = np.maximum(np.maximum(widths, self.min_categories), 1).astype(np.int64)
        padded = [_widened(values, width + 1).floats() for values, width in zip(sums[1:], self.n_categories_.tolist(), strict=True)]
        total = self.class_count_[:, np.newaxis]
        self._log_proba = [smoothed_log(counts, total, self.alpha, counts.shape[1] - 1) for counts in padded]  # the last: unseen
        self.category_count_ = [counts[:, :-1] for counts in padded]
        self.feature_log_prob_ = [log_proba[:, :-1] for log_proba in self._log_proba]

    def _log_likelihood(self, X: Any) -> Floats:
        categories = np.minimum(self._categories(X), self.n_categories_)
        terms = [log_proba[:, column] for log_proba, column in zip(self._log_proba, categories.T, strict=True)]
        return np.asarray(np.sum(terms, axis=0).T)


def _category_counts(column: NDArray[np.int64], codes: Codes, n_classes: int) -> NDArray[np.int64]:
    width = int(column.max()) + 1
    return np.bincount(codes * width + column, minlength=n_classes * width).reshape(n_classes, width)


def _widened(counts: FixedPoint, width: int) -> FixedPoint:
    return FixedPoint(np.pad(counts.numerators, ((0, 0), (0, width - counts.numerators.shape[1]))), counts.bits)


def _trimmed(counts: FixedPoint) -> FixedPoint:
    used = np.flatnonzero(counts.numerators.any(axis=0))
    return FixedPoint(counts.numerators[:, : used.max(initial=-1) + 1], counts.bits)
