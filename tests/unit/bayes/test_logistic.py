"""Whole numbers against floats: the same regression, up to rounding."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from spamguard.bayes import logistic
from spamguard.bayes.logistic import ONE
from tests.unit.bayes.support import repeatable, seeds

NOTHING = np.zeros(1, np.int32)
odds = st.lists(st.floats(-40, 40), min_size=1, max_size=4)


def softmax(nats: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of all classes, the first having log-odds 0."""
    joint = np.concatenate(([0.0], nats))
    powers = np.exp(joint - joint.max())
    return np.asarray(powers / powers.sum())


def fixed(nats: list[float]) -> NDArray[np.int64]:
    return np.rint(np.array(nats) * ONE).astype(np.int64)


@repeatable
@given(seeds, st.integers(1, 400))
def test_margins_are_sums_over_root_n_plus_bias(seed: int, size: int) -> None:
    random = np.random.default_rng(seed)
    weights = random.integers(-50 * ONE, 50 * ONE, (size, 3))
    biases = random.integers(-5 * ONE, 5 * ONE, 3)
    found = logistic.margins(weights.sum(axis=0), biases, logistic.inverse_roots(np.array([size])))
    exact = weights.sum(axis=0) / np.sqrt(size) + biases
    assert np.abs(found - exact).max() <= 1 + np.abs(weights.sum(axis=0)).max() / 2**20


@repeatable
@given(odds, st.data())
def test_errors_are_truth_less_probability(nats: list[float], data: st.DataObject) -> None:
    target = data.draw(st.integers(0, len(nats)))
    found = logistic.errors(fixed(nats), np.array([target]))
    truth = np.eye(len(nats) + 1)[target]
    assert np.abs(found / ONE - (truth - softmax(np.array(nats)))[1:]).max() < 2 / ONE


@repeatable
@given(odds, st.data())
def test_a_step_goes_towards_the_true_class(nats: list[float], data: st.DataObject) -> None:
    target = data.draw(st.integers(0, len(nats)))
    error = logistic.errors(fixed(nats), np.array([target]))
    steps = logistic.weight_steps(
        error, logistic.LEARNING_RATE * logistic.inverse_roots(np.array([9]))
    )
    for number, step in enumerate(steps.tolist(), start=1):
        assert step >= 0 if number == target else step <= 0
    assert (logistic.bias_steps(error) * np.sign(error) >= 0).all()


@repeatable
@given(st.lists(st.integers(-(10**6), 10**6), min_size=1), st.integers(0, 5000))
def test_shares_are_rounded_the_same_way_up_and_down(moves: list[int], lessons: int) -> None:
    """Or else thousands of steps to and fro would drift."""
    some, share = (
        np.array(moves, np.int32),
        logistic.STEP_SHARES[min(lessons, len(logistic.STEP_SHARES) - 1)].repeat(len(moves)),
    )
    back, forth = (logistic.weight_moves(each, share, NOTHING, NOTHING) for each in (some, -some))
    assert (np.abs(back + forth) <= (some * share.astype(np.int64) % ONE == ONE // 2)).all()


@repeatable
@given(odds, st.data())
def test_a_step_is_taken_back_as_far_as_it_is_still_there(
    nats: list[float], data: st.DataObject
) -> None:
    target = np.array([data.draw(st.integers(0, len(nats)))])
    before = fixed(nats)
    caused = logistic.errors(before, target)
    reach = np.array([data.draw(st.sampled_from((ONE, ONE // 2, ONE // 100))) for _ in nats])
    whole = logistic.LEARNING_RATE * caused * reach // (16 * ONE)
    least = 1 + 16 * ONE // (
        logistic.LEARNING_RATE * reach.min()
    )  # one step of log-odds is so many of the error
    assert (
        np.abs(logistic.undo_errors(before + whole, before, target, reach) + caused).max() <= least
    )
    assert (
        np.abs(logistic.undo_errors(before + whole // 2, before, target, reach) + caused // 2).max()
        <= least
    )
    assert (
        np.abs(logistic.undo_errors(before + 2 * whole, before, target, reach) + caused).max()
        <= least
    )  # never more than its own
    assert not logistic.undo_errors(before, before, target, reach).any()
    assert not logistic.undo_errors(
        before - whole, before, target, reach
    ).any()  # others have more than made up for it


@repeatable
@given(
    st.lists(st.tuples(st.integers(-(1 << 28), 1 << 28), st.integers(1, 30)), min_size=1),
    st.sampled_from((1, -1)),
)
def test_each_lesson_that_is_given_up_takes_its_part(
    found: list[tuple[int, int]], sign: int
) -> None:
    weights, lessons = (np.array(column, np.int32) for column in zip(*found, strict=True))
    left = logistic.remove_lesson_share(weights, lessons, sign)
    assert left.dtype == np.int32
    for weight, number, now in zip(weights.tolist(), lessons.tolist(), left.tolist(), strict=True):
        assert (
            now == weight if weight * sign <= 0 else abs(now - weight * (number - 1) / number) < 1
        )
    for gone in range(1, 30):
        left = logistic.remove_lesson_share(left, np.maximum(lessons - gone, 1), sign)
    assert not (left * sign > 0).any()
