"""Naive Bayes as four scikit-learn estimators: Bernoulli, multinomial, categorical and Gaussian.

An estimator knows a tuple of exact sums over the samples it was taught. `partial_fit` adds to
them, `unlearn` subtracts, and all parameters are computed from them by `formulas`. So the result
never depends on the order or portions of teaching.

Each family reads its own evidence and must not read another's: Bernoulli never counts how often a
feature occurs in a sample, multinomial never holds the absence of a feature against a class,
categorical never takes the code of a category for a quantity, and Gaussian is never certain because
a feature happened to be constant, since every variance has a floor.

The filter judges mail by `experts` and `profiles`, on the same formulas.
It is written by hand because scikit-learn's naive Bayes cannot unlearn, and its sums depend on
their order.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from operator import add, sub
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from spamguard.bayes import formulas
from spamguard.bayes.fixed_point import FixedPoint, class_products, class_squares, class_sums
from spamguard.bayes.formulas import Floats
from spamguard.errors import TableError

ClassCodes = NDArray[np.intp]
ExactSums = tuple[FixedPoint, ...]
"""Samples per class, (K,), then the sums of the family, each with the classes on its first axis."""

DEFAULT_VARIANCE_FLOOR = 1e-3
"""Least variance, as a share of the feature's variance over all samples.

Small enough to leave ordinary data as they are: in Fisher's irises the smallest share is 0.0095.
Large enough that a feature constant in a class costs a sample one overall standard deviation away
at most 1 / (2 * 1e-3) = 500 nats, which other evidence can outweigh.
"""


class NaiveBayes(ClassifierMixin, BaseEstimator, metaclass=ABCMeta):  # type: ignore[misc]  # untyped bases
    """Base of the four families: teaching, unlearning and Bayes' rule.

    `class_alpha` is the Dirichlet prior on the class, scalar or (K,); 0 is maximum likelihood.
    """

    class_alpha: ArrayLike
    classes_: NDArray[Any]
    class_count_: Floats
    class_log_prior_: Floats
    _sums: ExactSums

    @abstractmethod
    def _sum_evidence(self, X: Any, codes: ClassCodes, n_classes: int) -> ExactSums:
        """What these samples add to the family's sums."""

    @abstractmethod
    def _set_estimates(self, sums: ExactSums) -> None:
        """Compute the parameters from all sums; the class prior is set already."""

    @abstractmethod
    def _log_likelihood(self, X: Any) -> Floats:
        """log P(sample | class), (N, K)."""

    def _is_possible(self, sums: ExactSums) -> bool:
        """Whether samples can have these sums; no sum of counts is negative."""
        return all(bool((values.numerators >= 0).all()) for values in sums)

    def _align(self, old: FixedPoint, new: FixedPoint) -> tuple[FixedPoint, FixedPoint]:
        """Two of the family's sums brought to the same shape."""
        return old, new

    def _trim(self, sums: FixedPoint) -> FixedPoint:
        """One of the family's sums in the shape that its values need."""
        return sums

    # Teaching

    def fit(self, X: Any, y: Any) -> Self:
        """Learn these samples and nothing else; X is (N, n), y (N,)."""
        X, y = self._validate_input(X, y=y, reset=True)
        check_classification_targets(y)
        classes = np.unique(y)
        sums = self._sum_samples(X, y, classes)
        self.classes_ = classes
        return self._set_sums(sums)

    def partial_fit(self, X: Any, y: Any, classes: ArrayLike | None = None) -> Self:
        """Learn these samples too.

        classes, (K,), are all there will ever be; the first call needs them.
        """
        first = not hasattr(self, "classes_")
        sorted_classes = None if classes is None else np.unique(np.asarray(classes))
        known_classes = sorted_classes if first else self.classes_
        if known_classes is None:
            raise ValueError("The first call of partial_fit needs all classes: pass classes=[...].")
        if sorted_classes is not None and not np.array_equal(sorted_classes, known_classes):
            raise ValueError(
                f"The classes {sorted_classes.tolist()} are not those of the first call of "
                f"partial_fit, {known_classes.tolist()}."
            )
        X, y = self._validate_input(X, y=y, reset=first)
        unknown = np.setdiff1d(y, known_classes)
        if unknown.size:
            raise ValueError(
                f"The labels {unknown.tolist()} are not among the classes {known_classes.tolist()}."
            )
        evidence = self._sum_samples(X, y, known_classes)
        if not first:
            return self._set_sums(self._combine(add, evidence))
        self.classes_ = known_classes
        return self._set_sums(evidence)

    def unlearn(self, X: Any, y: Any) -> Self:
        """Undo `partial_fit` exactly: as if these samples had never been taught.

        Raises
        ------
        TableError
            The sums show that the samples cannot have been taught; nothing is changed.
        """
        check_is_fitted(self, "classes_")
        X, y = self._validate_input(X, y=y, reset=False)
        unknown = np.setdiff1d(y, self.classes_).tolist()
        if unknown:
            raise TableError(
                f"Samples of the classes {unknown} were never taught: nothing was unlearned."
            )
        sums = self._combine(sub, self._sum_samples(X, y, self.classes_))
        sizes = sums[0].numerators
        left_over = any(values.numerators[sizes == 0].any() for values in sums)
        if left_over or (sizes < 0).any() or not self._is_possible(sums):
            raise TableError(
                "Some of these samples were never taught (a count would become negative): "
                "nothing was unlearned."
            )
        return self._set_sums(sums)

    def _validate_input(self, X: Any, **options: Any) -> Any:
        """X (and y, where options hold it) after scikit-learn's checks of form."""
        accepted = get_tags(self).input_tags
        sparse = "csr" if accepted.sparse else False
        checked = validate_data(self, X, accept_sparse=sparse, **options)
        if accepted.positive_only:
            check_non_negative(checked[0] if "y" in options else checked, type(self).__name__)
        return checked

    def _check_parameters(self) -> None:
        for name in ("alpha", "class_alpha", "binarize"):
            if not np.all(np.asarray(getattr(self, name, 0.0)) >= 0.0):
                raise ValueError(f"{name} must not be negative, and is {getattr(self, name)!r}.")

    def _sum_samples(self, X: Any, y: NDArray[Any], classes: NDArray[Any]) -> ExactSums:
        self._check_parameters()
        codes = np.searchsorted(classes, y)
        sizes = FixedPoint.from_array(np.bincount(codes, minlength=len(classes)))
        return (sizes, *self._sum_evidence(X, codes, len(classes)))

    def _combine(self, operation: Any, evidence: ExactSums) -> ExactSums:
        """All sums after `operator.add` or `operator.sub` of new evidence."""
        pairs = zip(self._sums[1:], evidence[1:], strict=True)
        return (
            operation(self._sums[0], evidence[0]),
            *(self._trim(operation(*self._align(old, new))) for old, new in pairs),
        )

    def _set_sums(self, sums: ExactSums) -> Self:
        self._sums = sums
        self.class_count_ = sums[0].to_floats()
        self.class_log_prior_ = formulas.class_log_prior(self.class_count_, self.class_alpha)
        self._set_estimates(sums)
        return self

    # Bayes' rule

    def predict_joint_log_proba(self, X: Any) -> Floats:
        """log P(class) + log P(sample | class), (N, K); -inf where that is impossible."""
        check_is_fitted(self, "classes_")
        X = self._validate_input(X, reset=False)
        return np.asarray(self.class_log_prior_ + self._log_likelihood(X))

    def predict_log_proba(self, X: Any) -> Floats:
        """log P(class | sample), (N, K); the class prior where no class can have such a sample."""
        return formulas.log_posterior(self.predict_joint_log_proba(X), self.class_log_prior_)

    def predict_proba(self, X: Any) -> Floats:
        """P(class | sample), (N, K)."""
        return np.asarray(np.exp(self.predict_log_proba(X)))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each sample, (N,)."""
        winners = np.argmax(self.predict_log_proba(X), axis=1)
        return np.asarray(self.classes_[winners])


class BernoulliNB(NaiveBayes):
    """Naive Bayes over features that are there or not (McCallum & Nigam 1998, section 2.1).

    Parameters
    ----------
    alpha : pseudo-count of presence and of absence; or a pair (a, b), the Beta(a, b) prior on each
        probability. 0 is maximum likelihood.
    class_alpha : Dirichlet prior on the class, scalar or (K,).
    binarize : a feature is there where its value is greater than this. Not negative, because 0 is
        the value that sparse matrices omit.

    Attributes
    ----------
    classes_, class_count_, class_log_prior_ : (K,).
    feature_count_ : samples of each class that show each feature, (K, n).
    feature_log_prob_ : log P(feature is there | class), (K, n).
    n_features_in_, feature_names_in_ : as in scikit-learn.
    """

    feature_count_: Floats
    feature_log_prob_: Floats

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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.poor_score = True  # scikit-learn's generic data suit it badly
        return tags

    def _sum_evidence(self, X: Any, codes: ClassCodes, n_classes: int) -> ExactSums:
        return (class_sums(self._find_present(X), codes, n_classes),)

    def _find_present(self, X: Any) -> Any:
        """Where the features are there: bool, of the form of X."""
        if isinstance(X, np.ndarray):
            return np.greater(X, self.binarize)
        present = X.copy()
        present.sum_duplicates()  # an entry stored in two parts is one value
        present.data = present.data > self.binarize
        return present

    def _is_possible(self, sums: ExactSums) -> bool:
        sizes, counts = (values.numerators for values in sums)
        return super()._is_possible(sums) and bool((counts <= sizes[:, np.newaxis]).all())

    def _set_estimates(self, sums: ExactSums) -> None:
        a, b = np.broadcast_to(np.asarray(self.alpha, dtype=np.float64), 2)
        self.feature_count_ = counts = sums[1].to_floats()
        total = self.class_count_[:, np.newaxis]
        self.feature_log_prob_ = formulas.bernoulli_logs(counts, total, a, b)[0]
        self._presence = formulas.bernoulli_presence(counts, total, a, b)
        once = np.ones(counts.shape[1], np.int64)
        self._absence = formulas.absent_log_likelihood(counts, once, self.class_count_, a, b)

    def _log_likelihood(self, X: Any) -> Floats:
        present = self._find_present(X)
        return formulas.bernoulli_log_likelihood(present, self._presence, self._absence)


class MultinomialNB(NaiveBayes):
    """Naive Bayes over numbers of occurrences, which may be fractions.

    Source: Manning, Raghavan & Schütze 2008, section 13.2.

    Parameters
    ----------
    alpha : pseudo-count of each feature in each class; 0 is maximum likelihood.
    class_alpha : Dirichlet prior on the class, scalar or (K,).

    Attributes
    ----------
    classes_, class_count_, class_log_prior_ : (K,).
    feature_count_ : occurrences of each feature in each class, (K, n).
    feature_log_prob_ : log P(an occurrence is of this feature | class), (K, n).
    n_features_in_, feature_names_in_ : as in scikit-learn.
    """

    feature_count_: Floats
    feature_log_prob_: Floats

    def __init__(self, *, alpha: float = 1.0, class_alpha: ArrayLike = 0.0) -> None:
        self.alpha = alpha
        self.class_alpha = class_alpha

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.classifier_tags.poor_score = True  # scikit-learn's generic data suit it badly
        return tags

    def _sum_evidence(self, X: Any, codes: ClassCodes, n_classes: int) -> ExactSums:
        return (class_sums(X, codes, n_classes),)

    def _set_estimates(self, sums: ExactSums) -> None:
        self.feature_count_ = counts = sums[1].to_floats()
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
    alpha : pseudo-count of each category in each class; 0 is maximum likelihood.
    class_alpha : Dirichlet prior on the class, scalar or (K,).
    min_categories : least number of categories, scalar or (n,).

    Attributes
    ----------
    classes_, class_count_, class_log_prior_ : (K,).
    n_categories_ : number of categories of each feature, (n,).
    category_count_ : for each feature j, samples of each class in each category,
        (K, n_categories_[j]).
    feature_log_prob_ : for each feature j, log P(category | class), (K, n_categories_[j]).
    n_features_in_, feature_names_in_ : as in scikit-learn.
    """

    n_categories_: NDArray[np.int64]
    category_count_: list[Floats]
    feature_log_prob_: list[Floats]

    def __init__(
        self, *, alpha: float = 1.0, class_alpha: ArrayLike = 0.0, min_categories: ArrayLike = 0
    ) -> None:
        self.alpha = alpha
        self.class_alpha = class_alpha
        self.min_categories = min_categories

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.positive_only = True
        tags.classifier_tags.poor_score = True  # scikit-learn's generic data suit it badly
        return tags

    def _check_categories(self, X: NDArray[Any]) -> NDArray[np.int64]:
        with np.errstate(invalid="ignore"):  # codes beyond int64 are refused below
            categories = X.astype(np.int64)
        if not np.array_equal(categories, X):
            name = type(self).__name__
            raise ValueError(f"{name} takes category codes, which are whole numbers.")
        return categories

    def _sum_evidence(self, X: Any, codes: ClassCodes, n_classes: int) -> ExactSums:
        sums = []
        for column in self._check_categories(X).T:
            width = int(column.max()) + 1
            counts = np.bincount(codes * width + column, minlength=n_classes * width)
            sums.append(FixedPoint.from_array(counts.reshape(n_classes, width)))
        return tuple(sums)

    def _align(self, old: FixedPoint, new: FixedPoint) -> tuple[FixedPoint, FixedPoint]:
        width = max(old.numerators.shape[1], new.numerators.shape[1])
        return _pad_categories(old, width), _pad_categories(new, width)

    def _trim(self, sums: FixedPoint) -> FixedPoint:
        """Unlearning takes categories away: there are as many as the last one counted."""
        used = np.flatnonzero(sums.numerators.any(axis=0))
        return FixedPoint(sums.numerators[:, : used.max(initial=-1) + 1], sums.bits)

    def _set_estimates(self, sums: ExactSums) -> None:
        widths = [values.numerators.shape[1] for values in sums[1:]]
        self.n_categories_ = np.maximum(np.maximum(widths, self.min_categories), 1).astype(np.int64)
        total = self.class_count_[:, np.newaxis]
        self.category_count_, self._log_proba = [], []
        for values, width in zip(sums[1:], self.n_categories_.tolist(), strict=True):
            counts = _pad_categories(values, width + 1).to_floats()  # the last: a code beyond them
            self.category_count_.append(counts[:, :-1])
            self._log_proba.append(formulas.smoothed_log(counts, total, self.alpha, width))
        self.feature_log_prob_ = [log_proba[:, :-1] for log_proba in self._log_proba]

    def _log_likelihood(self, X: Any) -> Floats:
        columns = np.minimum(self._check_categories(X), self.n_categories_).T
        pairs = zip(self._log_proba, columns, strict=True)
        return np.asarray(np.sum([proba[:, column] for proba, column in pairs], axis=0).T)


def _pad_categories(counts: FixedPoint, width: int) -> FixedPoint:
    missing = width - counts.numerators.shape[1]
    return FixedPoint(np.pad(counts.numerators, ((0, 0), (0, missing))), counts.bits)


class GaussianNB(NaiveBayes):
    """Naive Bayes over real numbers, by maximum likelihood (Bishop 2006, 4.2.1 and 4.2.2).

    Parameters
    ----------
    covariance : "diagonal": features are independent within a class, naive Bayes proper; "shared":
        one covariance matrix for all classes, boundaries are linear; "full": one for each class,
        boundaries are quadratic.
    class_alpha : Dirichlet prior on the class, scalar or (K,); 0 is maximum likelihood.
    var_floor : least variance, positive, in the features' units squared, scalar or (n,). None:
        DEFAULT_VARIANCE_FLOOR of each feature's variance over all samples, or 1 where that is
        zero. For covariance matrices see `formulas.whitening`.

    Attributes
    ----------
    classes_, class_count_, class_log_prior_ : (K,).
    theta_ : means, (K, n). A class without samples gets mean and variance of all samples.
    var_ : variances with the floor applied, (K, n); with covariance="diagonal" only.
    covariance_ : before the floor, (n, n) with covariance="shared", (K, n, n) with "full".
    n_features_in_, feature_names_in_ : as in scikit-learn.
    """

    theta_: Floats
    var_: Floats
    covariance_: Floats
    _whitening: formulas.Whitening

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

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.covariance not in ("diagonal", "shared", "full"):
            raise ValueError(
                f'covariance must be "diagonal", "shared" or "full", and is {self.covariance!r}.'
            )
        if self.var_floor is not None and not np.all(np.asarray(self.var_floor) > 0.0):
            raise ValueError(f"var_floor must be positive, and is {self.var_floor!r}.")

    def _sum_evidence(self, X: Any, codes: ClassCodes, n_classes: int) -> ExactSums:
        second = class_squares if self.covariance == "diagonal" else class_products
        return class_sums(X, codes, n_classes), second(X, codes, n_classes)

    def _is_possible(self, sums: ExactSums) -> bool:
        """Sums of numbers may be negative; variances may not."""
        return bool((self._moments(sums)[1] >= 0.0).all())

    def _moments(self, sums: ExactSums) -> tuple[Floats, Floats]:
        """Mean and variance of each feature in each class, from either kind of second sums."""
        sizes, total, second = sums
        if self.covariance != "diagonal":
            second = FixedPoint(np.diagonal(second.numerators, axis1=1, axis2=2), second.bits)
        return formulas.gaussian_moments(sizes.numerators, *_common_units(total, second))

    def _set_estimates(self, sums: ExactSums) -> None:
        if self.covariance == "diagonal":
            self.theta_, variances = self._moments(sums)
            self.var_ = np.maximum(variances, self._variance_floor(sums))
            return
        sizes, total, second = sums
        self.theta_, covariances = formulas.gaussian_covariances(
            sizes.numerators, *_common_units(total, second)
        )
        if self.covariance == "shared":
            covariances = formulas.shared_covariance(sizes.numerators, covariances)
        self.covariance_ = covariances
        self._whitening = formulas.whitening(covariances, self._variance_floor(sums))

    def _variance_floor(self, sums: ExactSums) -> Floats:
        if self.var_floor is not None:
            return np.asarray(self.var_floor, dtype=np.float64)
        over_all = tuple(
            FixedPoint(values.numerators.astype(object).sum(axis=0, keepdims=True), values.bits)
            for values in sums
        )
        variance = self._moments(over_all)[1][0]
        return np.where(variance > 0.0, DEFAULT_VARIANCE_FLOOR * variance, 1.0)

    def _log_likelihood(self, X: Any) -> Floats:
        if self.covariance == "diagonal":
            return np.asarray(formulas.gaussian_log_density(X, self.theta_, self.var_).sum(axis=-1))
        return formulas.whitened_log_density(X, self.theta_, self._whitening)


def _common_units(total: FixedPoint, second: FixedPoint) -> tuple[Any, Any, int]:
    """Sums of x and of products in the same units of x, and the fractional bits of x."""
    bits = max(total.bits, -(-second.bits // 2))
    return total.numerators_at(bits), second.numerators_at(2 * bits), bits
