"""What the four naive Bayes estimators have in common: being taught, being untaught, and Bayes' rule.

An estimator's knowledge is a tuple of exact sums over the samples it was taught; teaching adds, unteaching subtracts,
and whatever else it holds is computed from those sums. So it can never depend on the order or portions of teaching.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from operator import add, sub
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from spamguard.bayes.exact import FixedPoint
from spamguard.bayes.formulas import Floats, class_log_prior, log_posterior
from spamguard.errors import TableError

Codes = NDArray[np.intp]
Operation = Callable[[FixedPoint, FixedPoint], FixedPoint]
Sums = tuple[FixedPoint, ...]
"""First the samples per class, shape (K,); then what the family sums, each with the classes on the first axis."""


class NaiveBayes(ClassifierMixin, BaseEstimator, metaclass=ABCMeta):  # type: ignore[misc]
    """Base of the families; `class_alpha` is the Dirichlet prior on the class, scalar or (K,), 0 for maximum likelihood."""

    class_alpha: ArrayLike
    classes_: NDArray[Any]
    class_count_: Floats
    class_log_prior_: Floats
    _sums: Sums

    # What a family says for itself.

    @abstractmethod
    def _evidence(self, X: Any, codes: Codes, n_classes: int) -> Sums:
        """What these samples add to the family's sums."""

    @abstractmethod
    def _estimate(self, sums: Sums) -> None:
        """Sets the parameters that follow from all sums; those of the class prior are set already."""

    @abstractmethod
    def _log_likelihood(self, X: Any) -> Floats:
        """log P(sample | class), shape (N, K)."""

    def _possible(self, sums: Sums) -> bool:
        """Whether there can be samples with these sums, as far as it shows; sums of counts are not negative."""
        return all(bool((values.numerators >= 0).all()) for values in sums)

    def _combined(self, operation: Operation, known: FixedPoint, new: FixedPoint) -> FixedPoint:
        """One of the family's sums after new evidence is added or subtracted."""
        return operation(known, new)

    # Teaching.

    def fit(self, X: Any, y: Any) -> Self:
        """Learns these samples and nothing else; X: (N, n), y: (N,)."""
        X, y = self._validated(X, y=y, reset=True)
        check_classification_targets(y)
        classes = np.unique(y)
        return self._begin(classes, self._all_evidence(X, y, classes))

    def partial_fit(self, X: Any, y: Any, classes: ArrayLike | None = None) -> Self:
        """Learns these samples too. classes: all there will ever be, shape (K,); needed at the first call."""
        first = not hasattr(self, "classes_")
        known = self._known_classes(classes)
        X, y = self._validated(X, y=y, reset=first)
        unknown = np.setdiff1d(y, known)
        if unknown.size:
            raise ValueError(f"The labels {unknown.tolist()} are not among the classes {known.tolist()}.")
        evidence = self._all_evidence(X, y, known)
        return self._begin(known, evidence) if first else self._learn(self._changed(add, evidence))

    def unlearn(self, X: Any, y: Any) -> Self:
        """The exact inverse of `partial_fit`: as if these samples had never been taught.

        Raises TableError, and changes nothing, where the sums show that they cannot have been taught.
        """
        check_is_fitted(self, "classes_")
        X, y = self._validated(X, y=y, reset=False)
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            raise TableError(f"Samples of the classes {unknown.tolist()} were never taught: nothing was unlearned.")
        sums = self._changed(sub, self._all_evidence(X, y, self.classes_))
        if not self._taught(sums):
            raise TableError("Some of these samples were never taught (a count would become negative): nothing was unlearned.")
        return self._learn(sums)

    def _validated(self, X: Any, **options: Any) -> Any:
        """X (and y, where options hold it) after scikit-learn's checks of form."""
        accepted = get_tags(self).input_tags
        checked = validate_data(self, X, accept_sparse="csr" if accepted.sparse else False, **options)
        if accepted.positive_only:
            check_non_negative(checked[0] if "y" in options else checked, type(self).__name__)
        return checked

    def _known_classes(self, classes: ArrayLike | None) -> NDArray[Any]:
        given = None if classes is None else np.unique(np.asarray(classes))
        known = getattr(self, "classes_", given)
        if known is None:
            raise ValueError("The first call of partial_fit needs all classes: pass classes=[...].")
        if given is not None and not np.array_equal(given, known):
            raise ValueError(f"The classes {given.tolist()} are not those of the first call of partial_fit, {known.tolist()}.")
        return np.asarray(known)

    def _all_evidence(self, X: Any, y: NDArray[Any], classes: NDArray[Any]) -> Sums:
        self._check_parameters()
        codes = np.searchsorted(classes, y)
        sizes = FixedPoint.of(np.bincount(codes, minlength=len(classes)))
        return (sizes, *self._evidence(X, codes, len(classes)))

    def _changed(self, operation: Operation, evidence: Sums) -> Sums:
        pairs = zip(self._sums[1:], evidence[1:], strict=True)
        return (operation(self._sums[0], evidence[0]), *(self._combined(operation, known, new) for known, new in pairs))

    def _check_parameters(self) -> None:
        for name in ("alpha", "class_alpha", "binarize"):
            if not np.all(np.asarray(getattr(self, name, 0.0)) >= 0.0):
                raise ValueError(f"{name} must not be negative, and is {getattr(self, name)!r}.")

    def _taught(self, sums: Sums) -> bool:
        sizes = sums[0].numerators
        left_over = any(values.numerators[sizes == 0].any() for values in sums)
        return not left_over and bool((sizes >= 0).all()) and self._possible(sums)

    def _begin(self, classes: NDArray[Any], sums: Sums) -> Self:
        self.classes_ = classes
        return self._learn(sums)

    def _learn(self, sums: Sums) -> Self:
        self._sums = sums
        self.class_count_ = sums[0].floats()
        self.class_log_prior_ = class_log_prior(self.class_count_, self.class_alpha)
        self._estimate(sums)
        return self

    # Bayes' rule.

    def predict_joint_log_proba(self, X: Any) -> Floats:
        """log P(class) + log P(sample | class), shape (N, K); -inf where that cannot be."""
        check_is_fitted(self, "classes_")
        X = self._validated(X, reset=False)
        return np.asarray(self.class_log_prior_ + self._log_likelihood(X))

    def predict_log_proba(self, X: Any) -> Floats:
        """log P(class | sample), shape (N, K); the class prior where no class can have had such a sample."""
        return log_posterior(self.predict_joint_log_proba(X), self.class_log_prior_)

    def predict_proba(self, X: Any) -> Floats:
        """P(class | sample), shape (N, K)."""
        return np.asarray(np.exp(self.predict_log_proba(X)))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each sample, shape (N,)."""
        winners = np.argmax(self.predict_log_proba(X), axis=1)
        return np.asarray(self.classes_[winners])
