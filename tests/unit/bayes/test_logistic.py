"""Whole numbers against floats: the same regression, up to rounding."""

from __future__ import annotations

import numpy as np
import pytest
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
@given(st.lists(st.integers(0, 10**9), min_size=1))
def test_roots_are_rounded_down(sizes: list[int]) -> None:
    exact = 2.0**20 / np.sqrt(np.maximum(sizes, 1))
    found = logistic.inverse_roots(np.array(sizes))
    assert ((found <= exact) & (found > exact - 1)).all()


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
@given(st.floats(-40, 40), st.integers(0, 1))
def test_softmax_of_two_classes_is_the_binary_case(nats: float, target: int) -> None:
    found = logistic.errors(fixed([nats]), np.array([target]))
    assert abs(found[0] / ONE - (target - 1 / (1 + np.exp(-nats)))) < 2 / ONE


@repeatable
@given(st.floats(-40, 40), st.integers(0, 2))
def test_a_class_that_is_out_of_the_question_changes_nothing_for_the_others(
    nats: float, target: int
) -> None:
    three = logistic.errors(fixed([nats, -100.0]), np.array([target]))
    if target < 2:
        assert three[0] == logistic.errors(fixed([nats]), np.array([target]))[0]
        assert three[1] == 0


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


def test_a_step_is_rate_times_error_times_root() -> None:
    error = np.array([ONE // 2, -ONE // 4])
    found = logistic.weight_steps(
        error, logistic.LEARNING_RATE * logistic.inverse_roots(np.array([4]))
    )
    assert found.tolist() == [
        logistic.LEARNING_RATE * ONE // 64,
        -logistic.LEARNING_RATE * ONE // 128,
    ]


def test_what_both_classes_have_moves_less() -> None:
    ham, others = (
        np.array([0, 500, 5, 30, 3, 1 << 30], np.int32),
        np.array([[900, 0, 5, 5, 30, 1 << 30], [0, 0, 0, 0, 0, -1]], np.int32),
    )
    found = logistic.step_shares(ham, others)
    assert found[0, :4].tolist() == [ONE, ONE, ONE // 2, ONE // 2]
    assert ONE // 2 < found[0, 4] < ONE
    assert 0 < found[0, 5] < ONE // 400
    assert found[1].tolist() == [ONE] * 6
    moves = np.array([[1 << 28, -(1 << 28), 101, -101, 0, 1]], np.int32)
    exact = moves * (found[:1] / ONE)
    assert np.abs(logistic.weight_moves(moves, found[:1], NOTHING, NOTHING) - exact).max() <= 0.5


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


def test_who_is_all_but_certain_is_not_taught() -> None:
    sure = np.array([logistic.MIN_ERROR, -logistic.MIN_ERROR])
    assert logistic.weight_steps(sure, np.array([logistic.LEARNING_RATE << 20])).tolist() == [0, 0]
    assert logistic.weight_steps(
        sure + np.sign(sure), np.array([logistic.LEARNING_RATE << 20])
    ).all()


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


def test_extremes_neither_overflow_nor_warn() -> None:
    far = np.array([[10**15], [-(10**15)]])
    assert logistic.errors(far, np.array([[0], [1]])).tolist() == [[-ONE], [ONE]]
    heaviest = np.array([(1 << 28) * 100_000_000])
    root = logistic.inverse_roots(np.array([100_000_000]))
    assert logistic.margins(heaviest, np.array([0]), root)[0] > 0
    limit = np.array([2**31 - 1, -(2**31)], np.int32)
    assert logistic.cap_weights(limit).tolist() == [1 << 28, -(1 << 28)]
    assert logistic.cap_weights(limit).dtype == np.int32


def test_a_little_corpus_is_learnt() -> None:
    """Features 0-4 speak for one class, 5-9 for the other: whole numbers find what gradient descent
    on floats finds.
    """
    random = np.random.default_rng(1)
    weights, exact = np.zeros((10, 1), np.int64), np.zeros((10, 1))
    root = logistic.inverse_roots(np.array([3]))
    for _ in range(300):
        target = int(random.integers(2))
        seen = 5 * target + random.permutation(5)[:3]
        error = logistic.errors(
            logistic.margins(weights[seen].sum(axis=0), np.array([0]), root), np.array([target])
        )
        weights[seen] += logistic.weight_steps(error, logistic.LEARNING_RATE * root)
        slope = target - softmax(exact[seen].sum(axis=0) / np.sqrt(3))[1]
        exact[seen] += (
            logistic.LEARNING_RATE
            / 16
            * (slope if abs(slope) > logistic.MIN_ERROR / ONE else 0.0)
            / np.sqrt(3)
        )
    assert np.abs(weights / ONE - exact).max() < 0.01
    assert (weights[:5] < 0).all()
    assert (weights[5:] > 0).all()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 800, 1 << 20])
def test_one_sum_is_weighed_as_an_array_of_them(size: int) -> None:
    root, sums, biases = (
        logistic.inverse_roots(np.array([size])),
        np.array([-(1 << 33), 12345]),
        np.array([7, -7]),
    )
    assert [logistic.inverse_root(size)] == root.tolist()
    alone = [
        logistic.margin(total, bias, logistic.inverse_root(size))
        for total, bias in zip(sums.tolist(), biases.tolist(), strict=True)
    ]
    assert alone == logistic.margins(sums, biases, root).tolist()


def test_weights_that_move_fade_and_others_do_not() -> None:
    fades = logistic.weight_decay(np.array([0, 1, 100, 10_000]))
    assert fades.tolist() == [49152, 49152, 491, 4]
    weights = np.array([[-(1 << 28), 1 << 28, 100 * ONE, 100 * ONE]], np.int32)
    none, some = np.zeros((1, 4), np.int32), np.full((1, 4), 5, np.int32)
    shares = np.full((1, 4), ONE, np.int32)
    assert not logistic.weight_moves(none, shares, weights, fades).any()
    exact = 5 - weights * (fades / ONE)
    assert np.abs(logistic.weight_moves(some, shares, weights, fades) - exact).max() <= 0.5
