"""Multinomial naive Bayes: how often each feature occurs in a sample.

It must never hold it against a class that a feature is absent: that is the Bernoulli family's evidence.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from spamguard.bayes.estimator_base import Codes, NaiveBayes, Sums
from spamguard.bayes.exact import class_sums
from spamguard.bayes.formulas import Floats, smoothed_log, weighted_log_sum


class MultinomialNB(NaiveBayes):
    """Naive Bayes over numbers of occurrences, which may be fractions (Manning, Raghavan & Schütze 2008, section 13.2).

    Parameters
    ----------
    alpha : pseudo-count of each feature in each class; 0 is maximum likelihood.
    class_alpha : Dirichlet prior on the class, scalar or (K,).

    Attributes
    ----------
    classes_, class_count_, class_log_prior_ : shape (K,).
    feature_count_ : occurrences of each feature in each class, shape (K, n).
    feature_log_prob_ : log P(an occurrence is of this feature | class), shape (K, n).
    n_features_in_, feature_names_in_ : as scikit-learn has them.
    """

    feature_count_: Floats
    feature_log_prob_: Floats

    def __init__(self, *, alpha: float = 1.0, class_alpha: ArrayLike = 0.0) -> None:
        self.alpha = alpha
        self.class_alpha = class_alpha

    def __sklearn_tags__(self) -> Any:
        """Takes sparse matrices, nothing negative; scikit-learn's generic data suit it badly."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.classifier_tags.poor_score = True
        return tags

    def _evidence(self, X: Any, codes: Codes, n_classes: int) -> Sums:
        return (class_sums(X, codes, n_classes),)

    def _estimate(self, sums: Sums) -> None:
        self.feature_count_ = sums[1].floats()
        total = self.feature_count_.sum(axis=1, keepdims=True)
        self.feature_log_prob_ = smoothed_log(self.feature_count_, total, self.alpha, self.feature_count_.shape[1])

    def _log_likelihood(self, X: Any) -> Floats:
        return weighted_log_sum(X, self.feature_log_prob_)
