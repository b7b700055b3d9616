"""Naive Bayes as four scikit-learn estimators: Bernoulli, multinomial, categorical and Gaussian.

`naive_bayes` has what they share: teaching, unlearning and Bayes' rule.
The Gaussian family also draws samples of its model.

The filter judges mail by `experts` and `fusion`, on the same formulas.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from spamguard.bayes import formulas
from spamguard.bayes.formulas import Floats, Indices, Integers
from spamguard.bayes.naive_bayes import (
    UNIT_BITS,
    ExactSums,
    NaiveBayes,
    class_products,
    class_squares,
    class_sums,
    to_floats,
)

DEFAULT_VARIANCE_FLOOR = 1e-3
"""Least variance, as a share of the feature's variance over all samples.

Small enough to leave ordinary data as they are: in Fisher's irises the smallest share is 0.0095.
Large enough that a feature constant in a class costs a sample one overall standard deviation away
at most 1 / (2 * 1e-3) = 500 nats, which other evidence can outweigh.
"""


class BernoulliNB(NaiveBayes):
    """Naive Bayes over features that are there or not (McCallum & Nigam 1998, section 2.1).

    Parameters
    ----------
    alpha
        Pseudo-count of presence and of absence; or a pair (a, b), the Beta(a, b) prior on each
        probability. 0 is maximum likelihood.
    class_alpha
        Dirichlet prior on the class, scalar or (K,).
    binarize
        A feature is there where its value is greater than this. Not negative, because 0 is the
        value that sparse matrices omit.

    Attributes
    ----------
    classes_, class_count_, class_log_prior_
        (K,).
    feature_count_
        Samples of each class that show each feature, (K, n).
    feature_log_prob_
        log P(feature is there | class), (K, n).
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from spamguard.bayes import BernoulliNB
    >>> model = BernoulliNB().fit([[1, 0], [1, 1], [0, 1]], ["spam", "spam", "ham"])
    >>> model.predict_proba([[1, 0]]).round(3).tolist()
    [[0.129, 0.871]]
    >>> model.unlearn([[1, 1]], ["spam"]).class_count_.tolist()
    [1.0, 1.0]
    """

    _input_tags = ("sparse",)

    def __init__(
        self,
        *,
        alpha: float | tuple[float, float] = 1.0,
        class_alpha: ArrayLike = 0.0,
        binarize: float = 0.0,
    ) -> None:
        self.alpha = alpha
        self.class_alpha = class_alpha
        self.binarize = binarize

    def _sum_evidence(self, X: Any, codes: Indices, n_classes: int) -> ExactSums:
        return (class_sums(self._find_present(X), codes, n_classes),)

    def _find_present(self, X: Any) -> Any:
        return X.copy() > self.binarize  # which sums what is stored in two parts, in place

    def _is_possible(self, sums: ExactSums) -> bool:
        sizes, counts = sums
        most = sizes[:, np.newaxis] << UNIT_BITS
        return super()._is_possible(sums) and bool((counts <= most).all())

    def _set_estimates(self, sums: ExactSums) -> None:
        a, b = np.broadcast_to(np.asarray(self.alpha, dtype=np.float64), 2)
        self.feature_count_ = counts = to_floats(sums[1])
        size = self.class_count_[:, np.newaxis]
        whole = formulas.log_count(size, a + b)
        self.feature_log_prob_ = formulas.log_ratio(formulas.log_count(counts, a), whole)
        absent = formulas.log_ratio(formulas.log_count(size - counts, b), whole)
        self._certain = np.isneginf(absent).astype(np.float64)
        self._absent = np.where(self._certain, 0.0, absent)
        self._weights = formulas.log_ratio(self.feature_log_prob_, self._absent)

    def _log_likelihood(self, X: Any) -> Floats:
        present = self._find_present(X)
        likelihood = formulas.weighted_log_sum(present, self._weights) + self._absent.sum(axis=1)
        missing = self._certain.sum(axis=1) - present @ self._certain.T
        return np.where(missing > 0, -np.inf, likelihood)


class MultinomialNB(NaiveBayes):
    """Naive Bayes over numbers of occurrences, which may be fractions.

    Source: Manning, Raghavan & Schütze 2008, section 13.2.

    Parameters
    ----------
    alpha
        Pseudo-count of each feature in each class; 0 is maximum likelihood.
    class_alpha
        Dirichlet prior on the class, scalar or (K,).

    Attributes
    ----------
    classes_, class_count_, class_log_prior_
        (K,).
    feature_count_
        Occurrences of each feature in each class, (K, n).
    feature_log_prob_
        log P(an occurrence is of this feature | class), (K, n).
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from spamguard.bayes import MultinomialNB
    >>> model = MultinomialNB().fit([[3, 0], [1, 4]], ["spam", "ham"])
    >>> model.predict([[2, 0], [0, 1]]).tolist()
    ['spam', 'ham']
    """

    _input_tags = ("sparse", "positive_only")

    def __init__(self, *, alpha: float = 1.0, class_alpha: ArrayLike = 0.0) -> None:
        self.alpha = alpha
        self.class_alpha = class_alpha

    def _sum_evidence(self, X: Any, codes: Indices, n_classes: int) -> ExactSums:
        return (class_sums(X, codes, n_classes),)

    def _set_estimates(self, sums: ExactSums) -> None:
        self.feature_count_ = counts = to_floats(sums[1])
        total = counts.sum(axis=1, keepdims=True)
        self.feature_log_prob_ = formulas.smoothed_log(counts, total, self.alpha, counts.shape[1])

    def _log_likelihood(self, X: Any) -> Floats:
        return formulas.weighted_log_sum(X, self.feature_log_prob_)


class CategoricalNB(NaiveBayes):
    """Naive Bayes over categories, coded 0, 1, 2 ….

    A feature has as many categories as the highest code taught needs, and at least min_categories
    and one. A code beyond them is judged like a category that was never counted: alpha / (class
    size + alpha * number of categories).

    Parameters
    ----------
    alpha
        Pseudo-count of each category in each class; 0 is maximum likelihood.
    class_alpha
        Dirichlet prior on the class, scalar or (K,).
    min_categories
        Least number of categories, scalar or (n,).

    Attributes
    ----------
    classes_, class_count_, class_log_prior_
        (K,).
    n_categories_
        Number of categories of each feature, (n,).
    category_count_
        For each feature j, samples of each class in each category, (K, n_categories_[j]).
    feature_log_prob_
        For each feature j, log P(category | class), (K, n_categories_[j]).
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from spamguard.bayes import CategoricalNB
    >>> model = CategoricalNB().fit([[0, 2], [1, 2], [1, 0]], ["ham", "ham", "spam"])
    >>> model.n_categories_.tolist(), model.predict([[0, 2], [1, 0]]).tolist()
    ([2, 3], ['ham', 'spam'])
    """

    _input_tags = ("categorical", "positive_only")

    def __init__(
        self, *, alpha: float = 1.0, class_alpha: ArrayLike = 0.0, min_categories: ArrayLike = 0
    ) -> None:
        self.alpha = alpha
        self.class_alpha = class_alpha
        self.min_categories = min_categories

    def _check_categories(self, X: NDArray[Any]) -> Integers:
        with np.errstate(invalid="ignore"):  # codes beyond int64 are refused below
            categories = X.astype(np.int64)
        if not np.array_equal(categories, X):
            raise ValueError(
                f"{type(self).__name__} takes category codes, which are whole numbers."
            )
        return categories

    def _sum_evidence(self, X: Any, codes: Indices, n_classes: int) -> ExactSums:
        sums = []
        for column in self._check_categories(X).T:
            width = int(column.max()) + 1
            counts = np.bincount(codes * width + column, minlength=n_classes * width)
            sums.append(counts.reshape(n_classes, width))
        return tuple(sums)

    def _combine(self, operation: Any, evidence: ExactSums) -> ExactSums:
        """Unlearning takes categories away: there are as many as the last one counted."""
        sums = [operation(self._sums[0], evidence[0])]
        for old, new in zip(self._sums[1:], evidence[1:], strict=True):
            width = max(old.shape[1], new.shape[1])
            counts = operation(_pad_categories(old, width), _pad_categories(new, width))
            used = np.flatnonzero(counts.any(axis=0))
            sums.append(counts[:, : used.max(initial=-1) + 1])
        return tuple(sums)

    def _set_estimates(self, sums: ExactSums) -> None:
        widths = [values.shape[1] for values in sums[1:]]
        self.n_categories_ = np.maximum(np.maximum(widths, self.min_categories), 1).astype(np.int64)
        total = self.class_count_[:, np.newaxis]
        self.category_count_, self._log_proba = [], []
        for values, width in zip(sums[1:], self.n_categories_.tolist(), strict=True):
            counts = _pad_categories(values, width + 1) + 0.0  # the last: a code beyond them
            self.category_count_.append(counts[:, :-1])
            self._log_proba.append(formulas.smoothed_log(counts, total, self.alpha, width))
        self.feature_log_prob_ = [log_proba[:, :-1] for log_proba in self._log_proba]

    def _log_likelihood(self, X: Any) -> Floats:
        columns = np.minimum(self._check_categories(X), self.n_categories_).T
        pairs = zip(self._log_proba, columns, strict=True)
        return np.asarray(np.sum([proba[:, column] for proba, column in pairs], axis=0).T)


def _pad_categories(counts: NDArray[Any], width: int) -> NDArray[Any]:
    return np.pad(counts, ((0, 0), (0, width - counts.shape[1])))


class GaussianNB(NaiveBayes):
    """Naive Bayes over real numbers, by maximum likelihood (Bishop 2006, 4.2.1 and 4.2.2).

    Parameters
    ----------
    covariance
        "diagonal": features are independent within a class, naive Bayes proper; "shared": one
        covariance matrix for all classes, boundaries are linear; "full": one for each class,
        boundaries are quadratic.
    class_alpha
        Dirichlet prior on the class, scalar or (K,); 0 is maximum likelihood.
    var_floor
        Least variance, positive, in the features' units squared, scalar or (n,). None:
        DEFAULT_VARIANCE_FLOOR of each feature's variance over all samples, or 1 where that is zero.
        For covariance matrices see `formulas.whitening`.

    Attributes
    ----------
    classes_, class_count_, class_log_prior_
        (K,).
    theta_
        means, (K, n). A class without samples gets mean and variance of all samples.
    var_
        Variances with the floor applied, (K, n); with covariance="diagonal" only.
    covariance_
        Before the floor, (n, n) with covariance="shared", (K, n, n) with "full".
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> from spamguard.bayes import GaussianNB
    >>> model = GaussianNB().fit([[1.0], [3.0], [7.0], [9.0]], ["ham", "ham", "spam", "spam"])
    >>> model.theta_.tolist(), model.predict([[2.5], [8.0]]).tolist()
    ([[2.0], [8.0]], ['ham', 'spam'])
    """

    def __init__(
        self,
        *,
        covariance: Literal["diagonal", "shared", "full"] = "diagonal",
        class_alpha: ArrayLike = 0.0,
        var_floor: ArrayLike | None = None,
    ) -> None:
        self.covariance = covariance
        self.class_alpha = class_alpha
        self.var_floor = var_floor

    def _sum_evidence(self, X: Any, codes: Indices, n_classes: int) -> ExactSums:
        second = {"diagonal": class_squares, "shared": class_products, "full": class_products}
        return class_sums(X, codes, n_classes), second[self.covariance](X, codes, n_classes)

    def _is_possible(self, sums: ExactSums) -> bool:
        """Sums of numbers may be negative; variances may not."""
        return bool((self._moments(sums)[1] >= 0.0).all())

    def _moments(self, sums: ExactSums) -> tuple[Floats, Floats]:
        sizes, total, second = sums
        if second.ndim > total.ndim:
            second = np.diagonal(second, axis1=1, axis2=2)
        return formulas.gaussian_moments(sizes, total, second, UNIT_BITS)

    def _set_estimates(self, sums: ExactSums) -> None:
        floor, (sizes, total, second) = self._variance_floor(sums), sums
        self.theta_, spread = formulas.gaussian_moments(sizes, total, second, UNIT_BITS)
        if self.covariance == "diagonal":
            self.var_ = np.maximum(spread, floor)
            return
        if self.covariance == "shared":  # the mean within classes (Bishop 2006, eq. 4.78)
            shares = self.class_count_ / max(1.0, self.class_count_.sum())
            spread = np.average(spread, axis=0, weights=shares if shares.any() else None)
        self.covariance_, self._factor = spread, formulas.whitening(spread, floor)

    def _variance_floor(self, sums: ExactSums) -> Floats:
        if self.var_floor is not None:
            return np.asarray(self.var_floor, dtype=np.float64)
        over_all = tuple(values.sum(axis=0, keepdims=True) for values in sums)
        variance = self._moments(over_all)[1][0]
        return np.where(variance > 0.0, DEFAULT_VARIANCE_FLOOR * variance, 1.0)

    def _log_likelihood(self, X: Any) -> Floats:
        if self.covariance == "diagonal":
            return np.asarray(formulas.gaussian_log_density(X, self.theta_, self.var_).sum(axis=-1))
        return formulas.whitened_log_density(X, self.theta_, self._factor)

    def sample(
        self, n_samples: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> tuple[Floats, NDArray[Any]]:
        """Draw labelled samples: a class from the prior, then a point from that class's model.

        This is the generative half of naive Bayes (Bishop 2006, section 8.1.2, ancestral sampling).
        Points have the variances that judging uses, those with the floor applied.

        Parameters
        ----------
        n_samples : int, default=1
            How many samples to draw, at least one.
        random_state : int, RandomState instance or None, default=None
            An int gives the same samples at each call.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            The points.
        y : ndarray of shape (n_samples,)
            The class of each.

        Examples
        --------
        >>> from spamguard.bayes import GaussianNB
        >>> model = GaussianNB().fit([[1.0], [3.0], [7.0], [9.0]], ["ham", "ham", "spam", "spam"])
        >>> X, y = model.sample(1000, random_state=0)
        >>> X.shape, y.shape
        ((1000, 1), (1000,))
        >>> GaussianNB().fit(X, y).predict([[2.5], [8.0]]).tolist()
        ['ham', 'spam']
        """
        check_is_fitted(self, "classes_")
        random, prior = check_random_state(random_state), np.exp(self.class_log_prior_)
        codes = random.choice(len(prior), size=n_samples, p=prior)
        points = self.theta_[codes]
        standard = random.standard_normal(points.shape)
        if self.covariance == "diagonal":
            points += np.sqrt(self.var_)[codes] * standard
        else:
            colouring = np.linalg.inv(self._factor)
            for code in np.unique(codes):
                of_class = colouring if self.covariance == "shared" else colouring[code]
                points[codes == code] += standard[codes == code] @ of_class
        return points, self.classes_[codes]
