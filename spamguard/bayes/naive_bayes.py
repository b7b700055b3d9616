"""What the four estimators share: teaching, unlearning and Bayes' rule.

An estimator knows a tuple of exact sums over the samples it was taught. `partial_fit` adds to
them, `unlearn` subtracts, and all parameters are computed from them by `formulas`. So the result
never depends on the order or portions of teaching. Sums of floating-point numbers would: but every
float64 is a whole number of units of 2**-1074, and the sums are kept in Python's integers of such
units. They are never rounded on the way in, and no integer wraps around.

A family (`estimators`) says which sums it needs, how its parameters follow from them, and how
likely a sample is.

It is written by hand because scikit-learn's naive Bayes cannot unlearn, and its sums depend on
their order; `fractions` is exact too, but for one number at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add, sub
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import get_tags
from sklearn.utils.multiclass import (
    _check_partial_fit_first_call,
    check_classification_targets,
)
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from spamguard.bayes import formulas
from spamguard.bayes.formulas import Floats, Indices
from spamguard.errors import TableError

ExactSums = tuple[NDArray[Any], ...]
"""Samples per class, (K,), then the sums of the family, each with the classes on its first axis;
all of them whole numbers.
"""

_NEVER_TAUGHT = "Some of these samples were never taught: nothing was unlearned."


class NaiveBayes(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # untyped bases
    """Base of the four families: teaching, unlearning and Bayes' rule.

    `class_alpha` is the Dirichlet prior on the class, scalar or (K,); 0 is maximum likelihood.

    A family has three methods of its own: `_sum_evidence(X, codes, n_classes)`, what samples of
    these classes add to its sums; `_set_estimates(sums)`, which computes the parameters when the
    class prior is set already; and `_log_likelihood(X)`, log P(sample | class), (N, K).
    """

    _input_tags: tuple[str, ...] = ()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        for name in self._input_tags:
            setattr(tags.input_tags, name, True)
        # scikit-learn's generic data suit families of counts badly
        tags.classifier_tags.poor_score = bool(self._input_tags)
        return tags

    def _is_possible(self, sums: ExactSums) -> bool:
        """Whether samples can have these sums; no sum of counts is negative."""
        return all(bool((values >= 0).all()) for values in sums)

    def _combine(self, operation: Any, evidence: ExactSums) -> ExactSums:
        """All sums after `operator.add` or `operator.sub` of new evidence."""
        return tuple(map(operation, self._sums, evidence))

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
        """Learn these samples too. The first call needs all classes there will ever be."""
        _check_partial_fit_first_call(self, classes)
        is_first = not hasattr(self, "_sums")
        X, y = self._validate_input(X, y=y, reset=is_first)
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            raise ValueError(
                f"The labels {unknown.tolist()} are not among the classes {self.classes_.tolist()}."
            )
        evidence = self._sum_samples(X, y, self.classes_)
        return self._set_sums(evidence if is_first else self._combine(add, evidence))

    def unlearn(self, X: Any, y: Any) -> Self:
        """Undo `partial_fit` exactly: as if these samples had never been taught.

        Raises
        ------
        TableError
            The sums show that the samples cannot have been taught; nothing is changed.
        """
        check_is_fitted(self, "classes_")
        X, y = self._validate_input(X, y=y, reset=False)
        if not np.isin(y, self.classes_).all():
            raise TableError(_NEVER_TAUGHT)
        sums = self._combine(sub, self._sum_samples(X, y, self.classes_))
        sizes = sums[0]
        if (
            any(values[sizes == 0].any() for values in sums)
            or (sizes < 0).any()
            or not self._is_possible(sums)
        ):
            raise TableError(_NEVER_TAUGHT)
        return self._set_sums(sums)

    def _validate_input(self, X: Any, **options: Any) -> Any:
        accepted = get_tags(self).input_tags
        sparse = "csr" if accepted.sparse else False
        checked = validate_data(self, X, accept_sparse=sparse, **options)
        if accepted.positive_only:
            check_non_negative(checked[0] if "y" in options else checked, type(self).__name__)
        return checked

    def _sum_samples(self, X: Any, y: NDArray[Any], classes: NDArray[Any]) -> ExactSums:
        codes = np.searchsorted(classes, y)
        sizes = np.bincount(codes, minlength=len(classes)).astype(object)
        return (sizes, *self._sum_evidence(X, codes, len(classes)))

    def _set_sums(self, sums: ExactSums) -> Self:
        self._sums = sums
        self.class_count_ = sums[0].astype(np.float64)
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
        joint = self.predict_joint_log_proba(X)
        prior = self.class_log_prior_
        prior = prior if prior.max() > -np.inf else np.zeros_like(prior)  # nothing was taught
        possible = joint.max(axis=-1, keepdims=True) > -np.inf
        return np.asarray(log_softmax(np.where(possible, joint, prior), axis=-1))

    def predict_proba(self, X: Any) -> Floats:
        """P(class | sample), (N, K)."""
        return np.asarray(np.exp(self.predict_log_proba(X)))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each sample, (N,)."""
        winners = np.argmax(self.predict_log_proba(X), axis=1)
        return np.asarray(self.classes_[winners])


# ---- exact sums

UNIT_BITS = 1074  # every finite float64 is a whole number of 2**-1074


def _count_units(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator << UNIT_BITS + 1 - denominator.bit_length()


to_units: Callable[[NDArray[Any]], NDArray[np.object_]] = np.frompyfunc(_count_units, 1, 1)
"""Exactly these finite numbers, in units of 2**-1074."""


def to_floats(units: NDArray[np.object_]) -> Floats:
    """Each value rounded once, to the nearest float64."""
    return formulas.divide_arrays(units, 1 << UNIT_BITS)


def class_sums(matrix: Any, codes: Indices, n_classes: int) -> NDArray[np.object_]:
    """Sum of the rows of each class in units, (n_classes, n), of a dense or scipy sparse matrix."""
    if isinstance(matrix, np.ndarray):
        return _sum_classes(to_units(matrix), codes, n_classes)
    matrix = matrix.tocoo()
    sums = np.zeros((n_classes, matrix.shape[1]), np.object_)
    np.add.at(sums, (codes[matrix.row], matrix.col), to_units(matrix.data))
    return sums


def class_squares(matrix: NDArray[Any], codes: Indices, n_classes: int) -> NDArray[np.object_]:
    """Sum of the squares in each column over the rows of each class, in units squared."""
    return _sum_classes(to_units(matrix) ** 2, codes, n_classes)


def class_products(matrix: NDArray[Any], codes: Indices, n_classes: int) -> NDArray[np.object_]:
    """Sum of x xᵀ over the rows x of each class, (n_classes, n, n), in units squared."""
    rows = to_units(matrix)
    return np.stack([rows[codes == code].T @ rows[codes == code] for code in range(n_classes)])


def _sum_classes(rows: NDArray[np.object_], codes: Indices, n_classes: int) -> NDArray[np.object_]:
    return np.stack([rows[codes == code].sum(axis=0) for code in range(n_classes)])
