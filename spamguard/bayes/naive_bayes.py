"""What the four estimators share: teaching, unlearning, Bayes' rule, and samples of the model.

An estimator knows a tuple of exact sums over the samples it was taught. `partial_fit` adds to
them, `unlearn` subtracts, and all parameters are computed from them by `formulas`. So the result
never depends on the order or portions of teaching. Sums of floating-point numbers would: but every
float64 is a whole number times a power of two, and the sums (`FixedPoint`) are kept as such whole
numbers. They are never rounded on the way in, and no integer wraps around.

`sample` draws from the fitted model: a class from the prior, then a point from that class's model.

A family (`estimators`) says which sums it needs, how its parameters follow from them, how likely a
sample is, and how to draw one. The base must never know what a feature means.

It is written by hand because scikit-learn's naive Bayes cannot unlearn, and its sums depend on
their order; `fractions` is exact too, but for one number at a time.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from dataclasses import dataclass
from operator import add, sub
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from spamguard.bayes import formulas
from spamguard.bayes.formulas import Floats
from spamguard.errors import TableError

ClassCodes = NDArray[np.intp]
ExactSums = tuple["FixedPoint", ...]
"""Samples per class, (K,), then the sums of the family, each with the classes on its first axis."""


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

    @abstractmethod
    def _draw(self, codes: ClassCodes, random: np.random.RandomState) -> NDArray[Any]:
        """A point of each of these classes, (N, n)."""

    def _is_possible(self, sums: ExactSums) -> bool:
        """Whether samples can have these sums; no sum of counts is negative."""
        return all(bool((values.numerators >= 0).all()) for values in sums)

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
        remainder = any(values.numerators[sizes == 0].any() for values in sums)
        if remainder or (sizes < 0).any() or not self._is_possible(sums):
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

    # The generative model

    def sample(
        self, n_samples: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Draw labelled samples: a class from the prior, then a point from that class's model.

        This is the generative half of naive Bayes (Bishop 2006, section 8.1.2, ancestral sampling).

        Parameters
        ----------
        n_samples : int, default=1
            How many samples to draw, at least one.
        random_state : int, RandomState instance or None, default=None
            An int gives the same samples at each call.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            The points, dense.
        y : ndarray of shape (n_samples,)
            The class of each.

        Raises
        ------
        ValueError
            n_samples is below one, or the model of a class or the prior is undefined: nothing was
            taught and the pseudo-counts are 0.

        Examples
        --------
        >>> from spamguard.bayes import BernoulliNB
        >>> model = BernoulliNB().fit([[1, 0], [1, 1], [0, 1]], ["spam", "spam", "ham"])
        >>> X, y = model.sample(1000, random_state=0)
        >>> X.shape, y.shape
        ((1000, 2), (1000,))
        >>> again = BernoulliNB().fit(X, y)
        >>> again.predict([[1, 0], [0, 1]]).tolist()
        ['spam', 'ham']
        """
        check_is_fitted(self, "classes_")
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1, and is {n_samples!r}.")
        prior = np.exp(self.class_log_prior_)
        if not prior.any():
            raise ValueError("No sample was taught and class_alpha is 0: there is no class prior.")
        random = check_random_state(random_state)
        codes = random.choice(len(prior), size=n_samples, p=prior)
        return self._draw(codes, random), np.asarray(self.classes_[codes])

    def _check_drawable(self, is_defined: Any) -> None:
        """ValueError if the prior allows a class whose model is undefined; is_defined is (K,)."""
        undefined = self.classes_[~is_defined & (self.class_log_prior_ > -np.inf)].tolist()
        if undefined:
            raise ValueError(
                f"The classes {undefined} were taught nothing and alpha is 0: "
                "there is nothing to draw from."
            )


# ---- exact sums

Integers = NDArray[Any]
"""An array of int64, or of Python integers (dtype object) where int64 is too small."""

_INT64_LIMIT = 1 << 62  # int64 holds every integer below this, and the sum of any two of them
_MANTISSA_BITS = 53


@dataclass(frozen=True, slots=True, eq=False)
class FixedPoint:
    """The exact numbers numerators * 2**-bits, bits >= 0.

    Sums come out in *canonical* form: as few bits as the values allow, and int64 wherever it can
    hold them. So equal values have equal representations, however they came about.
    """

    numerators: Integers
    bits: int

    @classmethod
    def from_array(cls, values: NDArray[Any]) -> FixedPoint:
        """Exactly these finite numbers: integers as they are, anything else by way of float64."""
        if np.can_cast(values.dtype, np.int64):
            return cls(values.astype(np.int64), 0)
        if np.issubdtype(values.dtype, np.integer):
            return cls(values.astype(object), 0)
        floats = values.astype(np.float64)
        mantissas, exponents = np.frexp(floats)
        integers = np.ldexp(mantissas, _MANTISSA_BITS).astype(np.int64)
        trailing_zeros = np.bitwise_count((integers & -integers) - 1).astype(np.int64)
        trailing_zeros[integers == 0] = 0
        lowest = exponents.astype(np.int64) - _MANTISSA_BITS + trailing_zeros
        lowest[integers == 0] = 0  # the exponent of the last bit set
        bits = max(0, -int(lowest.min(initial=0)))
        if int(exponents.max(initial=0)) + bits < _INT64_LIMIT.bit_length():
            return cls(np.ldexp(floats, bits).astype(np.int64), bits)
        wide = (integers >> trailing_zeros).astype(object)
        return cls(wide << (lowest + bits).astype(object), bits)

    def numerators_at(self, bits: int) -> Integers:
        """The numerators of the same values with more fractional bits."""
        shift = bits - self.bits
        return _ensure_room(self.numerators, 1 << shift) << shift

    def __add__(self, other: FixedPoint) -> FixedPoint:
        return self._add(other, 1)

    def __sub__(self, other: FixedPoint) -> FixedPoint:
        return self._add(other, -1)

    def _add(self, other: FixedPoint, sign: int) -> FixedPoint:
        shape, other_shape = self.numerators.shape, other.numerators.shape
        if shape != other_shape:
            raise ValueError(f"Sums of shape {shape} do not go with sums of shape {other_shape}.")
        bits = max(self.bits, other.bits)
        left, right = (_ensure_room(sums.numerators_at(bits), 2) for sums in (self, other))
        return _canonicalise(left + sign * right, bits)

    def to_floats(self) -> NDArray[np.float64]:
        """Each value rounded once, to the nearest float64."""
        if self.numerators.dtype == object or self.bits:
            return formulas.divide_arrays(self.numerators, 1 << self.bits)
        return self.numerators.astype(np.float64)


def class_sums(matrix: Any, codes: NDArray[np.intp], n_classes: int) -> FixedPoint:
    """Exact sum of the rows of each class, shape (n_classes, n).

    Parameters
    ----------
    matrix : (N, n), dense or any scipy sparse form.
    codes : the class of each row, in [0, n_classes).
    """
    if isinstance(matrix, np.ndarray):
        fixed = FixedPoint.from_array(matrix)
        rows = _ensure_room(fixed.numerators, len(codes))
        parts = [rows[codes == code].sum(axis=0) for code in range(n_classes)]
        return _canonicalise(np.stack(parts), fixed.bits)
    matrix = matrix.tocoo()
    fixed = FixedPoint.from_array(matrix.data)
    values = _ensure_room(fixed.numerators, max(1, len(matrix.data)))
    sums = np.zeros(n_classes * matrix.shape[1], dtype=values.dtype)
    np.add.at(sums, codes[matrix.row] * matrix.shape[1] + matrix.col, values)
    return _canonicalise(sums.reshape(n_classes, -1), fixed.bits)


def class_squares(matrix: NDArray[Any], codes: NDArray[np.intp], n_classes: int) -> FixedPoint:
    """Exact sum of the squares in each column over the rows of each class, (n_classes, n)."""
    rows, bits = _rows_for_products(matrix)
    squares = rows * rows
    parts = [squares[codes == code].sum(axis=0) for code in range(n_classes)]
    return _canonicalise(np.stack(parts), bits)


def class_products(matrix: NDArray[Any], codes: NDArray[np.intp], n_classes: int) -> FixedPoint:
    """Exact sum of x xᵀ over the rows x of each class, (n_classes, n, n)."""
    rows, bits = _rows_for_products(matrix)
    parts = [part.T @ part for part in (rows[codes == code] for code in range(n_classes))]
    return _canonicalise(np.stack(parts), bits)


def _rows_for_products(matrix: NDArray[Any]) -> tuple[Integers, int]:
    """Numerators with room for sums of their products, and the bits of these."""
    fixed = FixedPoint.from_array(matrix)
    growth = _max_magnitude(fixed.numerators) * max(1, len(fixed.numerators))
    return _ensure_room(fixed.numerators, growth), 2 * fixed.bits


def _canonicalise(numerators: Integers, bits: int) -> FixedPoint:
    """The one representation of these values."""
    spare = bits
    if bits and (used := int(np.bitwise_or.reduce(numerators, axis=None))):
        spare = min(bits, (used & -used).bit_length() - 1)
    shifted = numerators >> spare
    kind = np.int64 if _max_magnitude(shifted) < _INT64_LIMIT else object
    return FixedPoint(shifted.astype(kind), bits - spare)


def _max_magnitude(numerators: Integers) -> int:
    """The greatest magnitude; abs() will not do, for int64 has one negative number too many."""
    return max(int(numerators.max(initial=0)), -int(numerators.min(initial=0)))


def _ensure_room(numerators: Integers, growth: int) -> Integers:
    """These integers in a type that still holds them when multiplied by growth."""
    if numerators.dtype == object or _max_magnitude(numerators) * growth < _INT64_LIMIT:
        return numerators
    return numerators.astype(object)
