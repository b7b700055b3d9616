"""Gaussian naive Bayes: numbers, each class a normal distribution.

It must never be certain because a feature happened to be constant: every variance has a floor.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from spamguard.bayes.estimator_base import Codes, NaiveBayes, Sums
from spamguard.bayes.exact import FixedPoint, class_products, class_squares, class_sums
from spamguard.bayes.formulas import (
    Floats,
    Whitening,
    gaussian_covariances,
    gaussian_log_density,
    gaussian_moments,
    shared_covariance,
    whitened_log_density,
    whitening,
)

DEFAULT_FLOOR = 1e-3
"""Least variance, as a share of the feature's variance over all samples. Small enough to leave ordinary data as they are
(in Fisher's irises the smallest share is 0.0095); so large that a feature constant in a class costs a sample one
overall standard deviation away at most 1 / (2 * 1e-3) = 500 nats, which other evidence can outweigh."""


class GaussianNB(NaiveBayes):
    """Naive Bayes over real numbers, with maximum-likelihood estimates (Bishop 2006, sections 4.2.1 and 4.2.2).

    Parameters
    ----------
    covariance : "diagonal": features independent within a class, which is naive Bayes proper; "shared": one covariance
        matrix for all classes, boundaries are linear; "full": one for each class, boundaries are quadratic.
    class_alpha : Dirichlet prior on the class, scalar or (K,), 0 for maximum likelihood.
    var_floor : least variance, positive, in the features' units squared, scalar or (n,). None: DEFAULT_FLOOR of each
        feature's variance over all samples, or 1 where that is zero. Covariance matrices: see `formulas.whitening`.

    Attributes
    ----------
    classes_, class_count_, class_log_prior_ : shape (K,).
    theta_ : means, shape (K, n). A class without samples gets the mean and the variance of all samples.
    var_ : variances as used, floor applied, shape (K, n); with covariance="diagonal" only.
    covariance_ : before the floor, shape (n, n) with covariance="shared", (K, n, n) with "full".
    n_features_in_, feature_names_in_ : as scikit-learn has them.
    """

    theta_: Floats
    var_: Floats
    covariance_: Floats
    _whitening: Whitening

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
            raise ValueError(f'covariance must be "diagonal", "shared" or "full", and is {self.covariance!r}.')
        if self.var_floor is not None and not np.all(np.asarray(self.var_floor) > 0.0):
            raise ValueError(f"var_floor must be positive, and is {self.var_floor!r}.")

    def _evidence(self, X: Any, codes: Codes, n_classes: int) -> Sums:
        second = class_squares if self.covariance == "diagonal" else class_products
        return class_sums(X, codes, n_classes), second(X, codes, n_classes)

    def _possible(self, sums: Sums) -> bool:
        """No variance can be negative; sums of x themselves can."""
        return bool((self._moments(sums)[1] >= 0.0).all())

    def _moments(self, sums: Sums) -> tuple[Floats, Floats]:
        """Mean and variance of each feature in each class, whichever sums of second order are kept."""
        sizes, total, second = sums
        if self.covariance != "diagonal":
            second = FixedPoint(np.diagonal(second.numerators, axis1=1, axis2=2), second.bits)
        bits = _common_bits(total, second)
        return gaussian_moments(sizes.numerators, total.at(bits), second.at(2 * bits), bits)

    def _estimate(self, sums: Sums) -> None:
        if self.covariance == "diagonal":
            self.theta_, variances = self._moments(sums)
            self.var_ = np.maximum(variances, self._floor(sums))
        else:
            sizes, total, second = sums
            bits = _common_bits(total, second)
            self.theta_, covariances = gaussian_covariances(sizes.numerators, total.at(bits), second.at(2 * bits), bits)
            self.covariance_ = covariances if self.covariance == "full" else shared_covariance(sizes.numerators, covariances)
            self._whitening = whitening(self.covariance_, self._floor(sums))

    def _floor(self, sums: Sums) -> Floats:
        if self.var_floor is not None:
            return np.asarray(self.var_floor, dtype=np.float64)
        overall = self._moments(tuple(_over_classes(values) for values in sums))[1][0]
        return np.where(overall > 0.0, DEFAULT_FLOOR * overall, 1.0)

    def _log_likelihood(self, X: Any) -> Floats:
        if self.covariance == "diagonal":
            return np.asarray(gaussian_log_density(X, self.theta_, self.var_).sum(axis=-1))
        return whitened_log_density(X, self.theta_, self._whitening)


def _common_bits(total: FixedPoint, second: FixedPoint) -> int:
    """Fractional bits of x that suit sums of x and, twice as many, sums of products."""
    return max(total.bits, -(-second.bits // 2))


def _over_classes(sums: FixedPoint) -> FixedPoint:
    return FixedPoint(sums.numerators.astype(object).sum(axis=0, keepdims=True), sums.bits)
