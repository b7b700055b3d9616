"""Many experts' opinions to one: linear, and learning from its errors."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spamguard.bayes import fusion
from spamguard.bayes.experts import EXPERTS, MAX_SCORE_NATS, STEPS_PER_NAT
from spamguard.bayes.fusion import ONE, START_WEIGHTS
from tests.unit.bayes.support import repeatable, seeds

LIMIT = round(MAX_SCORE_NATS * STEPS_PER_NAT)


@repeatable
@given(seeds, st.integers(1, 4))
def test_log_odds_are_the_weighted_sum_of_scores(seed: int, others: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(-LIMIT, LIMIT + 1, (others, len(EXPERTS)))
    biases = random.integers(-ONE, ONE, others)
    found = fusion.to_nats(fusion.fused_log_odds(scores, START_WEIGHTS, biases))
    np.testing.assert_allclose(
        found, scores / STEPS_PER_NAT @ (START_WEIGHTS / ONE) + biases / ONE, rtol=1e-12, atol=1e-12
    )


@repeatable
@given(seeds, st.integers(1, 4), st.integers(1, 8))
def test_a_step_is_the_gradient_of_the_log_loss(seed: int, others: int, messages: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(-LIMIT, LIMIT + 1, (messages, others, len(EXPERTS)))
    targets = random.integers(0, others + 1, messages)
    weights, biases = START_WEIGHTS.copy(), np.zeros(others, np.int64)
    joint = np.concatenate(
        (np.zeros((messages, 1)), scores / STEPS_PER_NAT @ (START_WEIGHTS / ONE)), axis=1
    )
    powers = np.exp(joint - joint.max(axis=1, keepdims=True))
    errors = (np.eye(others + 1)[targets] - powers / powers.sum(axis=1, keepdims=True))[:, 1:]
    fusion.update_weights(scores, targets, weights, biases)
    gradient = np.einsum("mk,mke->e", errors, scores / STEPS_PER_NAT) / 128
    np.testing.assert_allclose(
        weights / ONE, np.maximum(START_WEIGHTS / ONE + gradient, 0), atol=0.01
    )
    np.testing.assert_allclose(biases / ONE, errors.sum(axis=0) / 128, atol=2 / ONE * messages)


def test_whoever_was_right_gains_and_whoever_was_wrong_loses() -> None:
    weights, biases = START_WEIGHTS.copy(), np.zeros(1, np.int64)
    scores = np.zeros((1, 1, len(EXPERTS)), np.int64)
    scores[0, 0, :2] = 600, -600
    fusion.update_weights(scores, np.array([1]), weights, biases)
    assert weights[0] > START_WEIGHTS[0]
    assert weights[1] < START_WEIGHTS[1]
    assert weights[2:].tolist() == START_WEIGHTS[2:].tolist()
    assert biases[0] > 0


def test_nobody_is_believed_the_other_way_round() -> None:
    weights, biases = START_WEIGHTS.copy(), np.zeros(1, np.int64)
    scores = np.zeros((1, 1, len(EXPERTS)), np.int64)
    scores[0, 0, 1] = -LIMIT
    for _ in range(100):
        fusion.update_weights(scores, np.array([1]), weights, biases)
    assert weights[1] == 0


def test_two_classes_are_the_binary_case_of_many() -> None:
    scores = np.random.default_rng(2).integers(-LIMIT, LIMIT, (6, 1, len(EXPERTS)))
    targets = np.array([0, 1, 1, 0, 1, 0])
    two, three = START_WEIGHTS.copy(), START_WEIGHTS.copy()
    fusion.update_weights(scores, targets, two, np.zeros(1, np.int64))
    hopeless = np.array([0, -1000 * ONE])  # the third class is out of the question
    with_third = np.concatenate((scores, np.zeros_like(scores)), axis=1)
    fusion.update_weights(with_third, targets, three, hopeless)
    assert two.tolist() == three.tolist()


def test_ten_thousand_steps_of_the_most_extreme_scores_stay_bounded() -> None:
    weights, biases = START_WEIGHTS.copy(), np.zeros(1, np.int64)
    for step in range(10_000):
        scores = np.full((8, 1, len(EXPERTS)), LIMIT if step % 2 else -LIMIT)
        fusion.update_weights(scores, np.full(8, step % 3 % 2), weights, biases)
    assert np.abs(weights).max() < 100 * ONE
    assert np.abs(biases).max() < 100 * ONE


@repeatable
@given(st.lists(st.floats(-1000, 1000), min_size=2, max_size=20))
def test_high_log_odds_are_flattened_and_keep_their_order(values: list[float]) -> None:
    log_odds = np.array(sorted(values))
    tempered = fusion.temper(log_odds)
    assert np.all(np.diff(tempered) >= 0)
    assert tempered.tolist() == [fusion.temper_one(value) for value in log_odds.tolist()]
    assert fusion.temper(-log_odds).tolist() == (-tempered).tolist()
    small = np.abs(log_odds) <= fusion.KNEE_NATS
    assert tempered[small].tolist() == log_odds[small].tolist()
    assert np.all(np.abs(tempered) < fusion.KNEE_NATS + 7)
