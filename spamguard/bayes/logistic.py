"""The logistic expert: the linear form of naive Bayes learnt discriminatively, in whole numbers.

One softmax regression per token set over the same buckets, with features scaled by 1/√n, learns by
stochastic gradient steps in fixed point (Goodman & Yih 2006, "Online discriminative spam filter
training"). Whole numbers make a replay of the same lessons give the same bits on every machine. The
only function that is not exact, exp, is rounded to 2^-16 at once. Weights and biases are in 1/ONE
nat. Shapes: "..." is lessons and token sets, K classes.

`sum_weights` and `move_weights` are the inner loops of learning and of the replay: one number of
every row of a table, summed and changed over runs of rows. They are compiled where there is a
compiler, else numpy does it, with the same bits.

It is written by hand because `SGDClassifier` computes in floating point, which differs between
machines.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from spamguard import native
from spamguard.bayes.formulas import Indices, Integers, Ints32
from spamguard.bayes.tables import N_BASE, Tables, count_columns, run_sums

_ONE_BITS = 16
ONE = 1 << _ONE_BITS  # a nat, or a probability of 1
# Tuned together: corpora/RESULTS.md, "Features that both classes have".
LEARNING_RATE = 25 << 4  # of the weights, in sixteenths
_HALF_SHARE_LESSONS = 5  # lessons of the rarer class after which a feature moves half as far
STEP_SHARES = np.rint(ONE * _HALF_SHARE_LESSONS / (_HALF_SHARE_LESSONS + np.arange(4096))).astype(
    np.int32
)
"""Share of a step, in 1/ONE, by the number of the feature's lessons in the rarer of two classes.

The last entry serves every larger number. A feature that both classes have says little about
either: it may fit the lessons at hand, but that does not hold for new kinds of mail.
"""
_WEIGHT_DECAY = 3  # hundredths of a step's square: the part of itself that a moving weight loses
MIN_ERROR = ONE // 128  # smaller errors teach nothing, which saves half the steps of a replay
_BIAS_RATE_SHIFT = 4  # rate 2^-4 of the biases
_ROOT_BITS = 20
ROOT_ONE = 1 << _ROOT_BITS  # 1/√1
_MAX_LOG_ODDS = 600.0  # nats; beyond, there is no doubt anyway, and sums of powers stay finite
MAX_WEIGHT = np.int32(1 << 28)  # far above any weight reached: a weight plus a step fits 32 bits

Whole = TypeVar("Whole", int, Integers)


def inverse_roots(sizes: Indices) -> Integers:
    """1/√size in 2^-20, rounded down.

    Square root and division are exactly rounded on every machine (IEEE 754).

    >>> (inverse_roots(np.array([1, 4])) / 2**20).tolist()
    [1.0, 0.5]
    """
    return np.asarray((ROOT_ONE / np.sqrt(np.maximum(sizes, 1))).astype(np.int64))


def margins(sums: Whole, biases: Whole, roots: Whole) -> Whole:
    """Log-odds of each class but the first, (..., K-1).

    sums, (..., K-1), are of the class's weights over the features; roots, (..., 1), of their
    number. Of one sum, plain numbers are faster.
    """
    return ((sums * roots) >> _ROOT_BITS) + biases


def errors(log_odds: Integers, targets: Indices) -> Integers:
    """How much too small each probability but the first is, (..., K-1) in 1/ONE.

    targets, (..., 1), are the numbers of the true classes.
    """
    true = np.where(targets == np.arange(1, log_odds.shape[-1] + 1), float(ONE), 0.0)
    powers = np.multiply(log_odds, 1.0 / ONE)
    np.minimum(powers, _MAX_LOG_ODDS, out=powers)
    np.exp(powers, out=powers)
    total = np.add.reduce(powers, axis=-1, keepdims=True)
    total += 1.0
    powers *= np.divide(ONE, total, out=total)
    np.rint(powers, out=powers)
    return np.subtract(true, powers, out=powers).astype(np.int64)


def weight_steps(errors: Integers, gains: Integers) -> Ints32:
    """What a lesson adds to the weight of each of its features, before `weight_moves`.

    Nothing, when the lesson was all but certain already. gains are LEARNING_RATE times roots.
    """
    steps = errors * (np.abs(errors) > MIN_ERROR)
    steps *= gains
    steps >>= _ROOT_BITS + 4
    return steps.astype(np.int32)


def step_shares(first: Ints32, other_counts: Ints32) -> Ints32:
    """The share of a step that each feature takes, (K-1, n) in 1/ONE.

    first, (n,), counts its lessons in the first class, other_counts, (K-1, n), in each other class.
    """
    return STEP_SHARES.take(np.minimum(first, other_counts), mode="clip")


def weight_decay(sizes: Indices) -> Ints32:
    """The part of itself, in 1/ONE, that a moving weight loses, by the message's features.

    So no weight stays large without a reason.
    """
    loss = ONE * LEARNING_RATE * _WEIGHT_DECAY // (1600 * np.maximum(sizes, 1))
    return np.asarray(loss.astype(np.int32))


def weight_moves(steps: Ints32, shares: Ints32, weights: Ints32, decay: Ints32) -> Ints32:
    """How far weights move: steps times shares, less the decay where there is a step; rounded."""
    lost = weights * np.where(steps != 0, decay, 0).astype(np.int64)
    moves = steps * shares.astype(np.int64) - lost
    return np.asarray((moves + ONE // 2 >> _ONE_BITS).astype(np.int32))


def bias_steps(errors: Integers) -> Integers:
    """What a lesson adds to the biases."""
    return errors >> _BIAS_RATE_SHIFT


def undo_errors(
    log_odds: Integers, before: Integers, targets: Indices, reach: Integers
) -> Integers:
    """The errors whose step takes a lesson's own step back, as far as it is still there.

    Parameters
    ----------
    before
        The log-odds from which the lesson was taught; they tell its own step, and undoing never
        goes further back than there.
    reach
        The share of a step that its features take on average, above zero, for each log-odds.
    """
    caused = errors(before, targets)
    all_the_way = ((before - log_odds) << (4 + _ONE_BITS)) // (LEARNING_RATE * reach)
    return np.asarray(all_the_way.clip(np.minimum(-caused, 0), np.maximum(-caused, 0)))


def remove_lesson_share(weights: Ints32, lessons: Ints32, sign: int) -> Ints32:
    """Weights, (n,), less the part of one lesson.

    lessons counts those that have moved each weight in the direction of sign, this one included.
    When all lessons of a feature are taken back, in any order, nothing of its weight is left.
    """
    speaking = np.maximum(weights * np.int32(sign), 0)
    # fewer than one lesson: a damaged table
    return np.asarray(weights - np.int32(sign) * -(-speaking // np.maximum(lessons, 1)))


# ---- the inner loop


def weight_columns(learnt: Tables) -> list[Ints32]:
    """The weights of every class but the first: views."""
    return [cells[:, number] for cells, number in _weight_tables(learnt)]


def _weight_tables(learnt: Tables) -> list[tuple[Ints32, int]]:
    """For each of these columns its table, whose other columns need not be gathered."""
    return [(learnt.rows, N_BASE), *((column, 1) for column in learnt.columns)]


def sum_weights(learnt: Tables, places: Indices, starts: Indices, sizes: Indices) -> Integers:
    """Sums of all these weights over runs of rows, (runs, K-1).

    Weights that steps have moved beyond the bounds are brought back, long before they could
    overflow.
    """
    compiled, most = native.functions, int(MAX_WEIGHT)
    sums = np.empty((len(learnt.biases), len(sizes)), np.int64)
    for (cells, number), out in zip(_weight_tables(learnt), sums, strict=True):
        if compiled is not None:
            compiled.run_sums(cells, places, sizes, out, number, most)
        else:
            cells[places, number] = weights = cells[places, number].clip(-MAX_WEIGHT, MAX_WEIGHT)
            out[:] = run_sums(weights[np.newaxis], starts, sizes)[0]
    return sums.T


def move_weights(
    learnt: Tables, places: Indices, sizes: Indices, steps: Ints32, decay: Ints32
) -> None:
    """Move the weights of each run by its steps, (runs, K-1), in order, as `weight_moves`.

    Many runs have a step of zero, and no place is twice in one run. Shares depend on the counts of
    the class, in the cell before, and of ham, in the first column of rows.
    """
    compiled, ends = native.functions, sizes.cumsum()
    moves = np.ascontiguousarray(steps.T)
    for (cells, number), of_class in zip(_weight_tables(learnt), moves, strict=True):
        if compiled is not None:
            numbers = of_class, learnt.rows, STEP_SHARES, decay
            compiled.add_shares(cells, places, sizes, *numbers, number)
            continue
        for run in of_class.nonzero()[0]:
            here = places[ends[run] - sizes[run] : ends[run]]
            shares = step_shares(learnt.rows[here, 0], cells[here, number - 1])
            step, weights = of_class[run : run + 1], cells[here, number]
            cells[here, number] += weight_moves(step, shares, weights, decay[run : run + 1])


def count_features(learnt: Tables, places: Indices, sizes: Indices, classes: Indices) -> None:
    """Count lessons, each a run of places without one twice, of these classes."""
    if native.functions is not None and not learnt.columns:
        native.functions.count_runs(learnt.rows, places, sizes, classes)
        return
    columns = count_columns(learnt)
    for here, number in zip(np.split(places, sizes.cumsum()), classes.tolist(), strict=False):
        columns[number][here] += 1
