"""Fusion: linear, and learning from its errors; profiles; explanations that sum to the log-odds.

`tests/contract/test_profiles_and_estimators.py` holds the profiles against the estimators.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.bayes import experts, fusion
from spamguard.bayes.experts import EXPERTS, MAX_SCORE_NATS, STEPS_PER_NAT, score_message
from spamguard.bayes.fusion import (
    ONE,
    START_WEIGHTS,
    break_down,
    fuse,
)
from spamguard.bayes.tables import Tables
from tests.unit.bayes.lessons import features, made_up, replayed
from tests.unit.bayes.support import repeatable, seeds

LIMIT = round(MAX_SCORE_NATS * STEPS_PER_NAT)


@repeatable
@given(seeds, st.integers(1, 4))
def test_log_odds_are_the_weighted_sum_of_scores(seed: int, others: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(-LIMIT, LIMIT + 1, (others, len(EXPERTS)))
    biases = random.integers(-ONE, ONE, others)
    found = fusion.fused_log_odds(scores, START_WEIGHTS, biases)
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


@repeatable
@given(st.lists(st.floats(-1000, 1000), min_size=2, max_size=20))
def test_high_log_odds_are_flattened_and_keep_their_order(values: list[float]) -> None:
    log_odds = np.array(sorted(values))
    tempered = np.array([fusion.temper(value) for value in log_odds.tolist()])
    assert np.all(np.diff(tempered) >= 0)
    assert [fusion.temper(-value) for value in log_odds.tolist()] == (-tempered).tolist()
    small = np.abs(log_odds) <= fusion.KNEE_NATS
    assert tempered[small].tolist() == log_odds[small].tolist()
    assert np.all(np.abs(tempered) < fusion.KNEE_NATS + 7)


CLASSES = ("ham", "spam", "alpha", "zoo")


def settled(seed: int) -> Tables:
    tables = replayed(made_up(seed, 60, CLASSES))
    tables.fusion_biases += np.arange(1, len(tables.classes)) * 9999
    return tables


@repeatable
@given(
    seeds,
    st.sampled_from((0, 1, 30, 300)),
    st.sampled_from(("spam", "alpha")),
    st.sampled_from(("ham", "zoo")),
)
def test_parts_sum_to_the_log_odds_of_unwanted_mail_whichever_classes_are_told(
    seed: int, tokens: int, favoured: str, against: str
) -> None:
    tables = settled(seed % 5)
    known = experts.estimate_parameters(tables, frozenset({"spam", "alpha"}))
    scored = score_message(known, features(np.random.default_rng(seed), tokens))
    ham, spam, alpha, zoo = fuse(scored)
    found = break_down(scored, favoured, against)
    exact = pytest.approx(np.logaddexp(spam, alpha) - np.logaddexp(ham, zoo), abs=1e-9)
    assert found.log_odds == exact
    assert found.prior + found.experts.sum() == exact
    assert (
        found.prior + found.biases + found.buckets.sum() + found.traits.sum() + found.numbers.sum()
        == exact
    )


@repeatable
@given(seeds)
def test_an_expert_s_share_is_the_sum_of_its_features(seed: int) -> None:
    tables = settled(seed % 5)
    seen = features(np.random.default_rng(seed))
    found = break_down(score_message(experts.estimate_parameters(tables), seen), "spam", "ham")
    assert found.experts[-2] == pytest.approx(found.traits.sum(), abs=1e-9)
    assert found.experts[-1] == pytest.approx(found.numbers.sum(), abs=1e-9)
    assert found.experts[:-2].sum() == pytest.approx(found.buckets.sum() + found.biases, abs=1e-9)
