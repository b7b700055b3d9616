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

from typing import Any, NamedTuple

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


def log_posterior(log_joint: Floats, log_prior: ArrayLike) -> Floats:
    """Joint log-probabilities normalised along the last axis, (..., K).

    Where every class is impossible the evidence says nothing and the prior, (K,), answers; if the
    prior is impossible too, every class is equally likely.
    """
    log_prior = np.asarray(log_prior, dtype=np.float64)
    fallback = log_prior if np.max(log_prior) > -np.inf else np.zeros_like(log_prior)
    possible = np.max(log_joint, axis=-1, keepdims=True) > -np.inf
    joint = np.where(possible, log_joint, fallback)
    joint = joint - np.max(joint, axis=-1, keepdims=True)
    return np.asarray(joint - np.log(np.exp(joint).sum(axis=-1, keepdims=True)))


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


# ---- Bernoulli, with a Beta(a, b) prior on each probability; a = b = alpha is additive smoothing


class Presence(NamedTuple):
    """The log-likelihood of presence less that of absence, for each feature, (K, n)."""

    weight: Floats  # log p - log(1-p), or log p alone where p is 1
    certain: NDArray[np.bool_]  # where p is 1: absence is impossible


class Absence(NamedTuple):
    """The log-likelihood of a message without any feature, per class, (K,)."""

    finite: Floats  # the sum of log(1-p) over the features with p < 1
    certain: NDArray[np.int64]  # how many features have p = 1


def bernoulli_presence(counts: ArrayLike, total: ArrayLike, a: float, b: float) -> Presence:
    """The weight of each feature; counts (K, n), total (K, 1).

    The size of the class cancels out: a weight is log(counts + a) - log(total - counts + b).
    """
    absent = log_count(np.subtract(total, counts), b)
    certain = np.isneginf(absent)
    lower = np.where(certain, log_count(total, a + b), absent)
    return Presence(log_ratio(log_count(counts, a), lower), certain)


def absent_log_likelihood(
    values: ArrayLike, multiplicities: ArrayLike, total: ArrayLike, a: float, b: float
) -> Absence:
    """The sum of log(1-p) over the vocabulary, from the histogram of its counts.

    multiplicities[..., i] features have the count values[..., i] in a class of total[...] samples.
    All classes may share the values, (H,), or have their own, (K, H). So the sum runs over the
    distinct counts, not over the vocabulary.
    """
    multiplicities = np.asarray(multiplicities)
    total = np.asarray(total)[..., np.newaxis]
    upper = log_count(np.subtract(total, values), b)
    certain = np.isneginf(upper)
    terms = np.where(certain, 0.0, log_ratio(upper, log_count(total, a + b)))
    return Absence(
        (multiplicities * terms).sum(axis=-1),
        (multiplicities * certain).sum(axis=-1, dtype=np.int64),
    )


def bernoulli_log_likelihood(presence: Any, features: Presence, absence: Absence) -> Floats:
    """log P(the features that are there, and those that are not | class), (..., K).

    `presence` is 1 where a feature is there, (..., n), dense or scipy sparse: over the whole
    vocabulary, or just over the features that are there. Sources: McCallum & Nigam 1998, eq. 3;
    decomposed as in Manning, Raghavan & Schütze 2008, eq. 11.18.
    """
    likelihood = absence.finite + weighted_log_sum(presence, features.weight)
    if not absence.certain.any():
        return np.asarray(likelihood)
    certain_hits = np.asarray(presence @ features.certain.T.astype(np.float64))
    return np.where(certain_hits < absence.certain, -np.inf, likelihood)


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
    count: ArrayLike, total: ArrayLike, square: ArrayLike, fraction_bits: int = 0
) -> tuple[Floats, Floats]:
    """Maximum-likelihood mean and variance (divided by n), both (K, n).

    From the samples of each class, (K,), and integer sums of x and of x squared, (K, n), x being in
    units of 2**-fraction_bits. Each is rounded once, at the end: a large mean costs the variance no
    digits. A class without samples gets the moments of all samples together.
    """
    number, totals, squares = _pool_empty_classes(count, total, square)
    number = number[:, np.newaxis]
    variance = number * squares - totals * totals
    return divide_arrays(totals, number << fraction_bits), divide_arrays(
        variance, number * number << 2 * fraction_bits
    )


def gaussian_covariances(
    count: ArrayLike, total: ArrayLike, product: ArrayLike, fraction_bits: int
) -> tuple[Floats, Floats]:
    """Maximum-likelihood mean (K, n) and covariance matrix (K, n, n) of each class.

    As `gaussian_moments`, from sums of x xᵀ, (K, n, n).
    """
    number, totals, products = _pool_empty_classes(count, total, product)
    column, matrix = number[:, np.newaxis], number[:, np.newaxis, np.newaxis]
    covariance = matrix * products - totals[:, :, np.newaxis] * totals[:, np.newaxis, :]
    return divide_arrays(totals, column << fraction_bits), divide_arrays(
        covariance, matrix * matrix << 2 * fraction_bits
    )


def shared_covariance(count: ArrayLike, covariances: Floats) -> Floats:
    """The covariance matrix within classes, (n, n): the mean of (K, n, n) weighted by class sizes.

    Without any sample it is the plain mean. Source: Bishop 2006, eq. 4.78.
    """
    sizes = np.asarray(count, dtype=np.float64)
    shares = sizes / sizes.sum() if sizes.any() else np.full(len(sizes), 1.0 / len(sizes))
    return np.asarray(np.tensordot(shares, covariances, axes=1))


def _pool_empty_classes(count: ArrayLike, *sums: ArrayLike) -> tuple[NDArray[np.object_], ...]:
    """Count and sums as Python integers; an empty class gets those of all classes."""
    counts = np.asarray(count).astype(np.int64)
    exact = [np.asarray(values).astype(object) for values in (counts, *sums)]
    empty = np.equal(exact[0], 0).astype(bool)
    for values in exact:
        values[empty] = values.sum(axis=0)
    exact[0][np.equal(exact[0], 0).astype(bool)] = 1  # no sample at all: mean and variance are 0
    return tuple(exact)


def gaussian_log_density(x: ArrayLike, mean: Floats, variance: Floats) -> Floats:
    """log N(x | mean, variance) of each feature by itself, (..., K, n).

    x is (..., n); mean and variance are (K, n). The variance must be positive: apply a floor.
    """
    deviation = np.sqrt(variance)
    with np.errstate(over="ignore"):  # to infinity: so far out that the density is zero
        squares = np.square(_deviations(x, mean) / deviation)
    return np.asarray(-0.5 * squares - np.log(deviation) - 0.5 * np.log(2.0 * np.pi))


class Whitening(NamedTuple):
    """A covariance matrix in the form in which densities need it."""

    factor: Floats  # W, (..., n, n), with W Wᵀ the inverse of the covariance
    log_determinant: Floats  # (...), of the covariance


def whitening(covariance: Floats, floor: ArrayLike) -> Whitening:
    """Factor a covariance matrix, (..., n, n), with its variance in every direction raised.

    floor is the least variance of each feature, positive, a scalar or (n,). In units of the floor,
    directions whose variance is below 1 get 1. So a diagonal matrix becomes maximum(variance,
    floor), and no matrix is singular.
    """
    scale = np.sqrt(np.broadcast_to(np.asarray(floor, dtype=np.float64), covariance.shape[-1:]))
    variances, directions = np.linalg.eigh(covariance / np.multiply.outer(scale, scale))
    variances = np.maximum(variances, 1.0)
    factor = directions / np.sqrt(variances)[..., np.newaxis, :] / scale[:, np.newaxis]
    return Whitening(factor, np.log(variances).sum(axis=-1) + 2.0 * np.log(scale).sum())


def whitened_log_density(x: ArrayLike, mean: Floats, whitened: Whitening) -> Floats:
    """log N(x | mean, covariance), (..., K), of x (..., n) and mean (K, n).

    There is one matrix for each class, or one for all.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        standard = (_deviations(x, mean)[..., np.newaxis, :] @ whitened.factor)[..., 0, :]
        squares = np.square(standard).sum(axis=-1)
    # infinities of both signs: so far out that the density is zero
    squares = np.where(np.isnan(squares), np.inf, squares)
    constant = mean.shape[-1] * np.log(2.0 * np.pi)
    return np.asarray(-0.5 * (squares + whitened.log_determinant + constant))


def _deviations(x: ArrayLike, mean: Floats) -> Floats:
    return np.asarray(np.asarray(x, dtype=np.float64)[..., np.newaxis, :] - mean)
