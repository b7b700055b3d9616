"""The logistic expert: the linear form of naive Bayes learnt discriminatively, in whole numbers.

One softmax regression per token set over the same buckets, features scaled by 1/√n, stochastic gradient steps in
fixed point (Goodman & Yih 2006, "Online discriminative spam filter training"). Whole numbers make a replay of the same
lessons give the same bits everywhere; the only function that is not exact, exp, is rounded to 2^-16 at once. Weights and
biases are in 1/ONE nat. Shapes: "..." is lessons and token sets, K classes.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

_ONE_BITS = 16
ONE = 1 << _ONE_BITS  # a nat, or a probability of 1
# Tuned together: corpora/RESULTS.md, "Features that both classes have".
RATE = 25 << 4  # of the weights, in sixteenths
_HALVING = 5  # lessons of a feature's rarer class after which it moves by half of what others do
SHARES = np.rint(ONE * _HALVING / (_HALVING + np.arange(4096))).astype(np.int32)
"""Share of a step, in 1/ONE, of a feature with so many lessons in the rarer one of two classes; the last for every larger number.

What both classes have says little about either: whatever fits the lessons may lie there as well as in what tells them apart, but does
not hold for mail of a new kind.
"""
_FADING = 3  # hundredths of a step's square of which a weight that moves loses as much of itself
_HALF = ONE // 2
CERTAIN = ONE // 128  # an error this small teaches nothing: half the steps of a replay saved
_BIAS_SHIFT = 4  # rate 2^-4 of the biases
_ROOT_BITS = 20
_HIGHEST = 600.0  # nats; beyond, all are equally far from any doubt, and their powers still have a sum
MAX_WEIGHT = np.int32(1 << 28)  # far above any weight reached; keeps a weight plus a step inside 32 bits

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def inverse_roots(sizes: NDArray[np.intp]) -> Integers:
    """1/√size in 2^-20, rounded down; square root and division are exactly rounded on every machine (IEEE 754)."""
    return np.asarray(np.sqrt((1 << 2 * _ROOT_BITS) / np.maximum(sizes, 1)).astype(np.int64))


def inverse_root(size: int) -> int:
    """The same of one size above zero."""
    return int(sqrt((1 << 2 * _ROOT_BITS) / size))


def margins(sums: Integers, biases: Integers, roots: Integers) -> Integers:
    """Log-odds of each class but the first; sums (..., K-1) of its weights over the features, roots (..., 1)."""
    return np.asarray(((sums * roots) >> _ROOT_BITS) + biases)


def margin(total: int, bias: int, root: int) -> int:
    """The same for one sum."""
    return ((total * root) >> _ROOT_BITS) + bias


def truth(targets: NDArray[np.intp], others: int) -> Floats:
    """The probability in 1/ONE of each class but the first, (..., others), when the true one is known: its number, (..., 1)."""
    return np.where(targets == np.arange(1, others + 1), float(ONE), 0.0)


def errors(log_odds: Integers, targets: NDArray[np.intp]) -> Integers:
    """How much too small each probability but the first's is, (..., K-1) in 1/ONE; targets: number of the true class, (..., 1)."""
    return errors_against(log_odds, truth(targets, log_odds.shape[-1]))


def errors_against(log_odds: Integers, true: Floats) -> Integers:
    """The same for who has the truth already."""
    powers = np.multiply(log_odds, 1.0 / ONE)
    np.minimum(powers, _HIGHEST, out=powers)
    np.exp(powers, out=powers)
    total = np.add.reduce(powers, axis=-1, keepdims=True)
    total += 1.0
    powers *= np.divide(ONE, total, out=total)
    np.rint(powers, out=powers)
    return np.subtract(true, powers, out=powers).astype(np.int64)


def steps(errors: Integers, roots: Integers) -> NDArray[np.int32]:
    """What a lesson adds to the weight of each of its features, before `moved`; nothing when it was all but certain already."""
    return steps_by(errors, RATE * roots)


def steps_by(errors: Integers, gains: Integers) -> NDArray[np.int32]:
    """The same for who has multiplied rate and roots already."""
    taught = errors * (np.abs(errors) > CERTAIN)
    taught *= gains
    taught >>= _ROOT_BITS + 4
    return taught.astype(np.int32)


def shares(first: NDArray[np.int32], others: NDArray[np.int32]) -> NDArray[np.int32]:
    """What of a step each feature takes, (K-1, n) in 1/ONE: by its lessons in the first class, (n,), and in each other one, (K-1, n)."""
    return SHARES.take(np.minimum(first, others), mode="clip")


def fades(sizes: NDArray[np.intp]) -> NDArray[np.int32]:
    """What a weight that moves loses of itself, in 1/ONE, in messages with so many features: so that none stays large for nothing."""
    return np.asarray((ONE * RATE * _FADING // (1600 * np.maximum(sizes, 1))).astype(np.int32))


def moved(steps: NDArray[np.int32], shares: NDArray[np.int32], weights: NDArray[np.int32], fades: NDArray[np.int32]) -> NDArray[np.int32]:
    """By how much weights move: steps times shares, less what fades where there is a step; rounded."""
    whole = steps * shares.astype(np.int64) - weights * np.where(steps != 0, fades, 0).astype(np.int64)
    return np.asarray((whole + _HALF >> _ONE_BITS).astype(np.int32))


def bias_steps(errors: Integers) -> Integers:
    """What a lesson adds to the biases."""
    return errors >> _BIAS_SHIFT


def errors_back(log_odds: Integers, before: Integers, targets: NDArray[np.intp], reach: Integers) -> Integers:
    """The errors whose step takes a lesson's own step back, as far as it is still there.

    before: the log-odds from which the lesson was taught, as its own step is known from them; never further back than there.
    reach: what its features take of a step on average, as `shares`, for each of these log-odds; above zero.
    """
    caused = errors(before, targets)
    all_the_way = ((before - log_odds) << (4 + _ONE_BITS)) // (RATE * reach)
    return np.asarray(np.minimum(np.maximum(all_the_way, np.minimum(-caused, 0)), np.maximum(-caused, 0)))


def given_up(weights: NDArray[np.int32], lessons: NDArray[np.int32], sign: int) -> NDArray[np.int32]:
    """Weights, (n,), less the part of one lesson; of each feature so many have moved them the way of sign, this one counted.

    The others do not owe it what they are. In whatever order all lessons of a feature are taken back, nothing of the weight is left.
    """
    speaking = np.maximum(weights * np.int32(sign), 0)
    return np.asarray(weights - np.int32(sign) * -(-speaking // np.maximum(lessons, 1)))  # none or less: a damaged table


def capped(weights: NDArray[np.int32]) -> NDArray[np.int32]:
    """Weights after a step, bounded."""
    return np.minimum(np.maximum(weights, -MAX_WEIGHT), MAX_WEIGHT)
