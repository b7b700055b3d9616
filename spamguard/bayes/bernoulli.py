"""Bernoulli naive Bayes: which features a sample shows, and which it does not.

It must never count how often a feature occurs in one sample: that is the multinomial family's evidence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from spamguard.bayes.estimator_base import Codes, NaiveBayes, Sums
from spamguard.bayes.exact import class_sums
from spamguard.bayes.formulas import Floats, absent_log_likelihood, bernoulli_log_likelihood, bernoulli_logs, bernoulli_presence


class BernoulliNB(NaiveBayes):
    """Naive Bayes over features that are there or not (McCallum & Nigam 1998, section 2.1).

    Parameters
    ----------
    alpha : pseudo-count of presence and of absence; or a pair (a, b), the Beta(a, b) prior on each probability.
        0 is maximum likelihood.
    class_alpha : Dirichlet prior on the class, scalar or (K,).
    binarize : a feature is there where its value is greater than this; not negative, for 0 is what sparse matrices omit.

    Attributes
    ----------
    classes_, class_count_, class_log_prior_ : shape (K,).
    feature_count_ : samples of each class that show each feature, shape (K, n).
    feature_log_prob_ : log P(feature is there | class), shape (K, n).
    n_features_in_, feature_names_in_ : as scikit-learn has them.
    """

    feature_count_: Floats
    feature_log_prob_: Floats

    def __init__(self, *, alpha: float | tuple[float, float] = 1.0, class_alpha: ArrayLike = 0.0, binarize: float = 0.0) -> None:
        self.alpha = alpha
        self.class_alpha = class_alpha
        self.binarize = binarize

    def __sklearn_tags__(self) -> Any:
        """Takes sparse matrices; scikit-learn's generic data suit it badly."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.poor_score = True
        return tags

    def _evidence(self, X: Any, codes: Codes, n_classes: int) -> Sums:
        return (class_sums(self._presence(X), codes, n_classes),)

    def _presence(self, X: Any) -> Any:
        """Where the features are there; bool, of the form of X."""
        if isinstance(X, np.ndarray):
            return np.greater(X, self.binarize)
        present = X.copy()
        present.sum_duplicates()  # an entry stored in two parts is one value
        present.data = present.data > self.binarize
        return present

    def _possible(self, sums: Sums) -> bool:
        sizes, shown = (values.numerators for values in sums)
        return super()._possible(sums) and bool((shown <= sizes[:, np.newaxis]).all())

    def _estimate(self, sums: Sums) -> None:
        a, b = np.broadcast_to(np.asarray(self.alpha, dtype=np.float64), 2)
        self.feature_count_ = sums[1].floats()
        total = self.class_count_[:, np.newaxis]
        self.feature_log_prob_ = bernoulli_logs(self.feature_count_, total, a, b)[0]
        self._features = bernoulli_presence(self.feature_count_, total, a, b)
        self._absence = absent_log_likelihood(self.feature_count_, np.ones(self.feature_count_.shape[1], np.int64), self.class_count_, a, b)

    def _log_likelihood(self, X: Any) -> Floats:
        return bernoulli_log_likelihood(self._presence(X), self._features, self._absence)
