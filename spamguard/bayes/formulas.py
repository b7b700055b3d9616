"""The arithmetic of naive Bayes, once: counts and sums in, logarithms of probabilities out.

Everything is natural logarithms in float64. An impossible thing has the logarithm -inf; nothing here may ever answer
NaN to possible counts (whole numbers, none above its total), raise a floating-point warning, or know about estimators or mail.

Shapes: K classes, n features, V features in the whole vocabulary; "..." is any leading shape. Functions of counts need
the counts of the features concerned only, so a message costs as much as it has features.

Sources: McCallum & Nigam 1998, "A comparison of event models for naive Bayes text classification"; Manning, Raghavan
& Schütze 2008, "Introduction to information retrieval", ch. 13; Metsis, Androutsopoulos & Paliouras 2006, "Spam
filtering with naive Bayes: which naive Bayes?"; Bishop 2006, "Pattern recognition and machine learning", ch. 2.3, 4.2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamguard.bayes.exact import quotients

Floats = NDArray[np.float64]


# Smoothed estimates (Laplace, Lidstone, Dirichlet).


def log_count(counts: ArrayLike, alpha: ArrayLike) -> Floats:
    """log(counts + alpha), the upper half of `smoothed_log`; depends on a whole number, so it can be tabulated."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.add(counts, alpha, dtype=np.float64)))


def log_total(total: ArrayLike, alpha: ArrayLike, n_values: ArrayLike) -> Floats:
    """log(total + alpha * n_values), the lower half of `smoothed_log`."""
    return log_count(total, np.multiply(alpha, n_values))


def log_ratio(upper: ArrayLike, lower: ArrayLike) -> Floats:
    """upper - lower for logarithms, where nothing out of nothing is -inf rather than NaN."""
    upper, lower = np.broadcast_arrays(np.asarray(upper, dtype=np.float64), lower)
    return np.asarray(np.subtract(upper, lower, out=np.full(upper.shape, -np.inf), where=~np.isneginf(upper)))


def smoothed_log(counts: ArrayLike, total: ArrayLike, alpha: ArrayLike, n_values: ArrayLike) -> Floats:
    """log((counts + alpha) / (total + alpha * n_values)): the predictive mean under a Dirichlet(alpha, ...) prior.

    counts: how often each value was seen, e.g. (K, n); total: out of how many, broadcast against counts, e.g. (K, 1);
    alpha: pseudo-count of each value, 0 for maximum likelihood (then 0/0 is -inf); n_values: how many values there are.
    Source: Manning, Raghavan & Schütze 2008, eq. 13.7.
    """
    return log_ratio(log_count(counts, alpha), log_total(total, alpha, n_values))


def class_log_prior(class_counts: ArrayLike, class_alpha: ArrayLike) -> Floats:
    """log((class_counts + class_alpha) / (N + sum of class_alpha)) under a Dirichlet prior, shape (K,).

    class_alpha: one pseudo-count for all classes or one for each, shape (K,). Nothing at all gives -inf everywhere.
    """
    smoothed = np.add(class_counts, class_alpha, dtype=np.float64)
    return smoothed_log(smoothed, smoothed.sum(), 0.0, 1)


def log_posterior(log_joint: Floats, log_prior: ArrayLike) -> Floats:
    """Joint log-probabilities normalised along the last axis, shape (..., K).

    Where every class is impossible the evidence says nothing and the prior, shape (K,), answers; where that is
    impossible too, every class is equally likely.
    """
    log_prior = np.asarray(log_prior, dtype=np.float64)
    fallback = log_prior if np.max(log_prior) > -np.inf else np.zeros_like(log_prior)
    possible = np.max(log_joint, axis=-1, keepdims=True) > -np.inf
    joint = np.where(possible, log_joint, fallback)
    joint = joint - np.max(joint, axis=-1, keepdims=True)
    return np.asarray(joint - np.log(np.exp(joint).sum(axis=-1, keepdims=True)))


def weighted_log_sum(weights: Any, log_probabilities: Floats) -> Floats:
    """Sum over features of weight times log-probability, where no times impossible is 0: the multinomial likelihood.

    weights: how often each feature occurs, shape (..., n), dense or scipy sparse; log_probabilities: (K, n). Answers
    (..., K). The multinomial coefficient is left out: it is the same in every class (McCallum & Nigam 1998, eq. 7).
    """
    impossible = np.isneginf(log_probabilities)
    if not impossible.any():
        return np.asarray(weights @ log_probabilities.T)
    finite = np.asarray(weights @ np.where(impossible, 0.0, log_probabilities).T)
    hits = np.asarray((weights != 0) @ impossible.T.astype(np.float64))
    return np.where(hits > 0, -np.inf, finite)


# Bernoulli, with a Beta(a, b) prior on each conditional probability; a = b = alpha is additive smoothing.


class Presence(NamedTuple):
    """What it says that a feature is there: the log-likelihood of presence less that of absence.

    weight: log p - log(1-p), shape (K, n); where p is 1 the impossible log(1-p) is left out, and counted instead.
    certain: where absence is impossible (p is 1), bool, shape (K, n).
    """

    weight: Floats
    certain: NDArray[np.bool_]


class Absence(NamedTuple):
    """The log-likelihood of a message without any feature: sum over the vocabulary of log(1-p), per class.

    finite: the sum over features with p < 1, shape (K,); certain: how many features have p = 1, shape (K,).
    """

    finite: Floats
    certain: NDArray[np.int64]


def bernoulli_logs(counts: ArrayLike, total: ArrayLike, a: float, b: float) -> tuple[Floats, Floats]:
    """log p and log(1-p) for p = (counts + a) / (total + a + b), the predictive mean under a Beta(a, b) prior.

    counts: samples of the class that show the feature, (K, n); total: samples of the class, (K, 1).
    """
    lower = log_count(total, a + b)
    return log_ratio(log_count(counts, a), lower), log_ratio(log_count(np.subtract(total, counts), b), lower)


def bernoulli_presence(counts: ArrayLike, total: ArrayLike, a: float, b: float) -> Presence:
    """The weight of each of these features; counts (K, n), total (K, 1).

    The size of the class cancels out of a weight: it is log_count(counts, a) - log_count(total - counts, b).
    """
    absent = log_count(np.subtract(total, counts), b)
    certain = np.isneginf(absent)
    return Presence(log_ratio(log_count(counts, a), np.where(certain, log_count(total, a + b), absent)), certain)


def absent_log_likelihood(values: ArrayLike, multiplicities: ArrayLike, total: ArrayLike, a: float, b: float) -> Absence:
    """The sum of log(1-p) over the vocabulary, from the histogram of its counts.

    multiplicities[..., i] features have the count values[..., i] in a class of total[...] samples; values may be shared
    by all classes (shape (H,)) or not (shape (K, H)). So the walk over the vocabulary shrinks to its distinct counts.
    """
    multiplicities = np.asarray(multiplicities)
    total = np.asarray(total)[..., np.newaxis]
    upper = log_count(np.subtract(total, values), b)
    certain = np.isneginf(upper)
    terms = np.where(certain, 0.0, log_ratio(upper, log_count(total, a + b)))
    return Absence((multiplicities * terms).sum(axis=-1), (multiplicities * certain).sum(axis=-1, dtype=np.int64))


def bernoulli_log_likelihood(presence: Any, features: Presence, absence: Absence) -> Floats:
    """log P(which features are there and which are not | class), shape (..., K).

    presence: 1 where a feature is there, shape (..., n), dense or scipy sparse: over the whole vocabulary, or, which comes
    to the same, np.ones(n) for just the features that are there. features: of those n; absence: of the whole vocabulary.
    Source: McCallum & Nigam 1998, eq. 3; the decomposition is that of Manning, Raghavan & Schütze 2008, eq. 11.18.
    """
    likelihood = absence.finite + weighted_log_sum(presence, features.weight)
    if not absence.certain.any():
        return np.asarray(likelihood)
    shown = np.asarray(presence @ features.certain.T.astype(np.float64))
    return np.where(shown < absence.certain, -np.inf, likelihood)


# Gaussian, from exact sums: whole numbers in units of 2**-fraction_bits.


def gaussian_moments(count: ArrayLike, total: ArrayLike, square: ArrayLike, fraction_bits: int = 0) -> tuple[Floats, Floats]:
    """Maximum-likelihood mean and variance (divided by n) of each feature in each class, both (K, n).

    count: samples per class, (K,); total: sum of x, (K, n); square: sum of x squared, (K, n): integers (int64 or Python's),
    x being in units of 2**-fraction_bits. Rounded once, at the end: a large mean costs the variance no digits.
    A class without samples says nothing: it gets the moments of all samples together.
    """
    number, totals, squares = _shared_out(count, total, square)
    number = number[:, np.newaxis]
    return _mean(number, totals, fraction_bits), _central(number, totals * totals, squares, fraction_bits)


def gaussian_covariances(count: ArrayLike, total: ArrayLike, product: ArrayLike, fraction_bits: int = 0) -> tuple[Floats, Floats]:
    """Maximum-likelihood mean (K, n) and covariance matrix (K, n, n) of each class.

    As `gaussian_moments`, with product: sum of x xᵀ, (K, n, n).
    """
    number, totals, products = _shared_out(count, total, product)
    outer = totals[:, :, np.newaxis] * totals[:, np.newaxis, :]
    return _mean(number[:, np.newaxis], totals, fraction_bits), _central(number[:, np.newaxis, np.newaxis], outer, products, fraction_bits)


def shared_covariance(count: ArrayLike, covariances: Floats) -> Floats:
    """The covariance matrix within classes, (n, n): the mean of (K, n, n) weighted by class sizes (Bishop 2006, eq. 4.78).

    Without any sample, the plain mean.
    """
    sizes = np.asarray(count, dtype=np.float64)
    shares = sizes / sizes.sum() if sizes.any() else np.full(len(sizes), 1.0 / len(sizes))
    return np.asarray(np.tensordot(shares, covariances, axes=1))


def _shared_out(count: ArrayLike, *sums: ArrayLike) -> tuple[NDArray[np.object_], ...]:
    """Count and sums as Python integers, those of an empty class replaced by those of all classes."""
    exact = [np.asarray(values).astype(object) for values in (np.asarray(count).astype(np.int64), *sums)]
    empty = np.equal(exact[0], 0).astype(bool)
    for values in exact:
        values[empty] = values.sum(axis=0)
    exact[0][np.equal(exact[0], 0).astype(bool)] = 1  # no sample anywhere: mean and variance are zero
    return tuple(exact)


def _mean(number: NDArray[np.object_], totals: NDArray[np.object_], fraction_bits: int) -> Floats:
    return quotients(totals, number << fraction_bits)


def _central(number: NDArray[np.object_], outer: NDArray[np.object_], products: NDArray[np.object_], fraction_bits: int) -> Floats:
    return quotients(number * products - outer, number * number << 2 * fraction_bits)


def gaussian_log_density(x: ArrayLike, mean: Floats, variance: Floats) -> Floats:
    """log N(x | mean, variance) of each feature by itself, shape (..., K, n), to be summed over the last axis.

    x: (..., n); mean and variance (which must be positive: apply a floor): (K, n).
    """
    deviation = np.sqrt(variance)
    with np.errstate(over="ignore"):  # to infinity: so far out that the density is zero
        squares = np.square(_deviations(x, mean) / deviation)
    return np.asarray(-0.5 * squares - np.log(deviation) - 0.5 * np.log(2.0 * np.pi))


class Whitening(NamedTuple):
    """A covariance matrix in the form in which densities need it.

    factor: W with W Wᵀ the inverse of the covariance, (..., n, n); log_determinant: of the covariance, (...).
    """

    factor: Floats
    log_determinant: Floats


def whitening(covariance: Floats, floor: ArrayLike) -> Whitening:
    """Factors a covariance matrix, (..., n, n), with its variance in every direction raised to a floor.

    floor: least variance of each feature, positive, scalar or (n,). Measured in units of the floor, directions whose
    variance is below 1 get 1; so for a diagonal matrix this is maximum(variance, floor), and no matrix is singular.
    """
    scale = np.sqrt(np.broadcast_to(np.asarray(floor, dtype=np.float64), covariance.shape[-1:]))
    variances, directions = np.linalg.eigh(covariance / np.multiply.outer(scale, scale))
    variances = np.maximum(variances, 1.0)
    factor = directions / np.sqrt(variances)[..., np.newaxis, :] / scale[:, np.newaxis]
    return Whitening(factor, np.log(variances).sum(axis=-1) + 2.0 * np.log(scale).sum())


def whitened_log_density(x: ArrayLike, mean: Floats, whitened: Whitening) -> Floats:
    """log N(x | mean, covariance), shape (..., K); x: (..., n), mean: (K, n), whitened: one for each class or one for all."""
    with np.errstate(over="ignore", invalid="ignore"):
        standard = (_deviations(x, mean)[..., np.newaxis, :] @ whitened.factor)[..., 0, :]
        squares = np.square(standard).sum(axis=-1)
    squares = np.where(np.isnan(squares), np.inf, squares)  # infinities of both signs met: so far out that the density is zero
    return np.asarray(-0.5 * (squares + whitened.log_determinant + mean.shape[-1] * np.log(2.0 * np.pi)))


def _deviations(x: ArrayLike, mean: Floats) -> Floats:
    return np.asarray(np.asarray(x, dtype=np.float64)[..., np.newaxis, :] - mean)
