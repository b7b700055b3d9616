"""The arithmetic of naive Bayes, once: counts and sums in, logarithms of probabilities out.

Everything is natural logarithms in float64. The logarithm of an impossible event is -inf. No
function may answer NaN to possible counts (whole numbers, none above its total) or raise a
floating-point warning, and none knows about estimators or mail.

Shapes: K classes, n features, V features in the whole vocabulary; "..." is any leading shape.
Functions of counts need the counts of the features concerned only, so the cost of a message grows
with its own features.

Sources: McCallum & Nigam 1998, "A comparison of event models for naive Bayes text classification";
Manning, Raghavan & Schütze 2008, "Introduction to information retrieval", ch. 13; Metsis,
Androutsopoulos & Paliouras 2006, "Spam filtering with naive Bayes: which naive Bayes?"; Bishop
2006, "Pattern recognition and machine learning", ch. 2.3, 4.2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Ints32 = NDArray[np.int32]
Indices = NDArray[np.intp]


# ---- smoothed estimates (Laplace, Lidstone, Dirichlet)


def log_count(counts: ArrayLike, alpha: ArrayLike) -> Floats:
    """log(counts + alpha), the numerator of `smoothed_log`."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.add(counts, alpha, dtype=np.float64)))


def log_ratio(upper: ArrayLike, lower: ArrayLike) -> Floats:
    """upper - lower for logarithms, where nothing out of nothing is -inf rather than NaN."""
    upper, lower = np.broadcast_arrays(np.asarray(upper, dtype=np.float64), lower)
    impossible = np.full(upper.shape, -np.inf)
    return np.asarray(np.subtract(upper, lower, out=impossible, where=~np.isneginf(upper)))


def smoothed_log(
    counts: ArrayLike, total: ArrayLike, alpha: ArrayLike, n_values: ArrayLike
) -> Floats:
    """log((counts + alpha) / (total + alpha * n_values)): the mean under a Dirichlet prior.

    Shapes: counts, e.g., (K, n), total (K, 1). Without a pseudo-count alpha this is maximum
    likelihood, where 0/0 gives -inf. Source: Manning, Raghavan & Schütze 2008, eq. 13.7.

    >>> np.exp(smoothed_log([3, 0], 3, 1, 2)).round(3).tolist()
    [0.8, 0.2]
    """
    return log_ratio(log_count(counts, alpha), log_count(total, np.multiply(alpha, n_values)))


def class_log_prior(class_counts: ArrayLike, class_alpha: ArrayLike) -> Floats:
    """log((class_counts + class_alpha) / (N + sum of class_alpha)), shape (K,).

    The pseudo-count is one for all classes, or one of each. Without any count the result is -inf
    everywhere.
    """
    smoothed = np.add(class_counts, class_alpha, dtype=np.float64)
    return smoothed_log(smoothed, smoothed.sum(), 0.0, 1)


def weighted_log_sum(weights: Any, log_probabilities: Floats) -> Floats:
    """Sum over features of weight times log-probability, (..., K): the multinomial likelihood.

    Weights are (..., n), dense or scipy sparse. An impossible feature with weight 0 adds 0. The
    multinomial coefficient is the same in every class and left out (McCallum & Nigam 1998, eq. 7).
    """
    impossible = np.isneginf(log_probabilities)
    if not impossible.any():
        return np.asarray(weights @ log_probabilities.T)
    finite = np.asarray(weights @ np.where(impossible, 0.0, log_probabilities).T)
    hits = np.asarray((weights != 0) @ impossible.T.astype(np.float64))
    return np.where(hits > 0, -np.inf, finite)


# ---- Gaussian, from exact sums: whole numbers in units of 2**-fraction_bits


def divide(numerator: int, denominator: int) -> float:
    """The float64 nearest to a fraction; the greatest finite one if the fraction is greater."""
    try:
        return int(numerator) / int(denominator)
    except OverflowError:
        return float(np.copysign(np.finfo(np.float64).max, 1 if numerator > 0 else -1))


_divide_elementwise = np.frompyfunc(divide, 2, 1)


def divide_arrays(numerators: NDArray[Any], denominators: NDArray[Any] | int) -> Floats:
    """`divide` elementwise, with broadcasting."""
    return np.asarray(_divide_elementwise(numerators, denominators), dtype=np.float64)


def gaussian_moments(
    count: ArrayLike, total: ArrayLike, second: ArrayLike, fraction_bits: int = 0
) -> tuple[Floats, Floats]:
    """Maximum-likelihood mean, (K, n), and variance (divided by n) or covariance matrix.

    From the samples of each class, (K,), and integer sums of x, (K, n), and of x squared, (K, n),
    or of x xᵀ, (K, n, n), x being in units of 2**-fraction_bits. Each is rounded once, at the end:
    a large mean costs the variance no digits. A class without samples gets the moments of all
    samples together.
    """
    number, totals, seconds = (np.array(values, object) for values in (count, total, second))
    empty = number == 0
    for values in (number, totals, seconds):
        values[empty] = values.sum(axis=0)
    number[number == 0] = 1  # no sample at all: mean and variance are 0
    sizes = column = number[:, np.newaxis]
    squares = totals * totals
    if seconds.ndim > totals.ndim:
        sizes = column[:, np.newaxis]
        squares = totals[:, :, np.newaxis] * totals[:, np.newaxis, :]
    return divide_arrays(totals, column << fraction_bits), divide_arrays(
        sizes * seconds - squares, sizes * sizes << 2 * fraction_bits
    )


def gaussian_log_density(x: ArrayLike, mean: Floats, variance: Floats) -> Floats:
    """log N(x | mean, variance) of each feature by itself, (..., K, n).

    x is (..., n); mean and variance are (K, n). The variance must be positive: apply a floor.
    """
    deviation = np.sqrt(variance)
    with np.errstate(over="ignore"):  # to infinity: so far out that the density is zero
        squares = np.square(_deviations(x, mean) / deviation)
    return np.asarray(-0.5 * squares - np.log(deviation) - 0.5 * np.log(2.0 * np.pi))


def whitening(covariance: Floats, floor: ArrayLike) -> Floats:
    """A factor W, (..., n, n), of the inverse W Wᵀ of a covariance matrix, with its variance in
    every direction raised.

    floor is the least variance of each feature, positive, a scalar or (n,). In units of the floor,
    directions whose variance is below 1 get 1. So a diagonal matrix becomes maximum(variance,
    floor), and no matrix is singular.
    """
    scale = np.sqrt(np.broadcast_to(np.asarray(floor, dtype=np.float64), covariance.shape[-1:]))
    variances, directions = np.linalg.eigh(covariance / np.multiply.outer(scale, scale))
    spread = np.sqrt(np.maximum(variances, 1.0))
    return np.asarray(directions / spread[..., np.newaxis, :] / scale[:, np.newaxis])


def whitened_log_density(x: ArrayLike, mean: Floats, factor: Floats) -> Floats:
    """log N(x | mean, covariance), (..., K), of x (..., n) and mean (K, n).

    There is one factor by `whitening` for each class, or one for all.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        standard = (_deviations(x, mean)[..., np.newaxis, :] @ factor)[..., 0, :]
        squares = np.square(standard).sum(axis=-1)
    # infinities of both signs: so far out that the density is zero
    squares = np.where(np.isnan(squares), np.inf, squares)
    constant = mean.shape[-1] * np.log(2.0 * np.pi)
    return np.asarray(np.linalg.slogdet(factor)[1] - 0.5 * (squares + constant))


def _deviations(x: ArrayLike, mean: Floats) -> Floats:
    return np.asarray(np.asarray(x, dtype=np.float64)[..., np.newaxis, :] - mean)
