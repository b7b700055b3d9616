"""Fusion: linear, and learning from its errors; profiles; explanations that sum to the log-odds.

`tests/contract/test_profiles_and_estimators.py` holds the profiles against the estimators.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from spamguard import keys
from spamguard.bayes import experts, fusion, logistic
from spamguard.bayes.experts import EXPERTS, MAX_SCORE_NATS, STEPS_PER_NAT
from spamguard.bayes.fusion import (
    DEFAULT_PROFILE,
    ONE,
    PROFILES,
    START_WEIGHTS,
    break_down,
    fuse,
    score_message,
)
from spamguard.bayes.tables import Tables, make_evidence
from spamguard.engine.filter import Filter
from spamguard.records import Features
from tests.unit.bayes.lessons import BITS, features, made_up, replayed
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


KEY = b"a key under which no words share"  # a bucket
TEXTS = (
    ("ham", "Buy this online today"),
    ("spam", "Send us money today"),
    ("spam", "Send money today"),
    ("spam", "Buy online today"),
    ("ham", "Send us money"),
    ("spam", "Send this money"),
)
QUERY = "Buy money online today"
KNOWN = {"bernoulli": 0.651918, "multinomial": 0.657628}

Wrap = Callable[[str, int], bytes]


def _plain(text: str, number: int) -> bytes:
    return text.encode() + b"\n"


def _with_subject(text: str, number: int) -> bytes:
    return b"Subject: number %d\n\n%s\n" % (number, text.encode())


wraps = pytest.mark.parametrize("wrap", [_plain, _with_subject])


def opened(directory: Path, profile: str = DEFAULT_PROFILE) -> Filter:
    directory.mkdir(exist_ok=True)
    if not (directory / "key").exists():
        keys.store_key(directory / "key", KEY)
    return Filter.open(directory, profile=profile, _bits=16, _durable=False)


def teach(spam_filter: Filter, wrap: Wrap) -> None:
    for number, (label, text) in enumerate(TEXTS):
        spam_filter.learn(wrap(text, number), label)


def probability(directory: Path, profile: str, wrap: Wrap) -> float:
    with opened(directory, profile) as spam_filter:
        return spam_filter.judge(wrap(QUERY, 99)).probability


@wraps
@pytest.mark.parametrize("profile", KNOWN)
def test_the_notes_example(tmp_path: Path, wrap: Wrap, profile: str) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, wrap)
    assert probability(tmp_path, profile, wrap) == pytest.approx(KNOWN[profile], abs=5e-7)


@wraps
def test_the_notes_example_after_settling_and_after_lessons_that_were_taken_back(
    tmp_path: Path, wrap: Wrap
) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, wrap)
        spam_filter.settle()
        assert {name: probability(tmp_path, name, wrap) for name in KNOWN} == pytest.approx(
            KNOWN, abs=5e-7
        )
        others = [wrap(f"Robots {number} sell watches online", 50 + number) for number in range(12)]
        for number, raw in enumerate(others):
            spam_filter.learn(raw, "ham" if number % 2 else "spam")
        assert probability(tmp_path, "bernoulli", wrap) != pytest.approx(
            KNOWN["bernoulli"], abs=1e-3
        )
        for raw in others:
            spam_filter.forget(raw)
        assert {name: probability(tmp_path, name, wrap) for name in KNOWN} == pytest.approx(
            KNOWN, abs=5e-7
        )
        spam_filter.settle()
    assert {name: probability(tmp_path, name, wrap) for name in KNOWN} == pytest.approx(
        KNOWN, abs=5e-7
    )


def test_a_word_never_seen_in_spam_does_not_acquit(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, _plain)
        spam_filter.learn(b"robot\n", "ham")
    robot = b"Send money today robot\n"
    for profile in KNOWN:
        with opened(tmp_path, profile) as spam_filter:
            assert spam_filter.judge(robot).probability > 1e-300


@pytest.mark.slow
@pytest.mark.parametrize("profile", [name for name in PROFILES if name != DEFAULT_PROFILE])
def test_a_profile_knows_certainty_but_never_nan(tmp_path: Path, profile: str) -> None:
    mails = [
        b"one two\n",
        b"two three\n",
        b"\n",
        b"",
        b"Subject: x\n\none one one\n",
        b"new words only\n",
    ]
    for taught in itertools.product(("", "ham", "spam", "news"), repeat=2):
        with opened(tmp_path / "-".join(("x", *taught)), profile) as spam_filter:
            for raw, label in zip(mails, taught, strict=False):
                if label:
                    spam_filter.learn(raw, label)
            for raw in mails:
                verdict = spam_filter.judge(raw)
                assert 0.0 <= verdict.probability <= 1.0
                assert abs(verdict.log_odds) <= 1000
                assert sum(verdict.probabilities.values()) == pytest.approx(1.0)


def test_the_prior_of_a_profile_is_the_share_of_lessons() -> None:
    lessons = made_up(9, 30)
    tables = replayed(lessons)
    silent: NDArray[np.uint32] = np.zeros(0, np.uint32)
    nothing = make_evidence(
        Features(silent, lessons[0].features.traits, lessons[0].features.numbers), BITS
    )
    joint = PROFILES["multinomial"].judge(tables, experts.estimate_parameters(tables), nothing)
    np.testing.assert_allclose(np.exp(joint), tables.messages / 30)


CLASSES = ("ham", "spam", "alpha", "zoo")


def settled(seed: int) -> Tables:
    tables = replayed(made_up(seed, 60, CLASSES))
    tables.fusion_biases += np.arange(1, len(tables.classes)) * 9999
    return tables


@repeatable
@given(seeds, st.sampled_from((0, 1, 30, 300)), st.sampled_from((1, 2)), st.sampled_from((0, 3)))
def test_parts_sum_to_the_log_odds_of_unwanted_mail_whichever_classes_are_told(
    seed: int, tokens: int, favoured: int, against: int
) -> None:
    tables = settled(seed % 5)
    known = experts.estimate_parameters(tables, {"spam", "alpha"})
    seen = make_evidence(features(np.random.default_rng(seed), tokens), tables.bits)
    ham, spam, alpha, zoo = fuse(tables, known, seen)
    found = break_down(score_message(tables, known, seen), tables, known, seen, favoured, against)
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
    seen = make_evidence(features(np.random.default_rng(seed)), tables.bits)
    known = experts.estimate_parameters(tables)
    found = break_down(score_message(tables, known, seen), tables, known, seen, 1, 0)
    assert found.experts[-2] == pytest.approx(found.traits.sum(), abs=1e-9)
    assert found.experts[-1] == pytest.approx(found.numbers.sum(), abs=1e-9)
    assert found.experts[:-2].sum() == pytest.approx(found.buckets.sum() + found.biases, abs=1e-9)


@pytest.mark.parametrize(("sign", "kept"), [(1, experts.MAX_SCORE_NATS), (-1, None)])
def test_a_clipped_expert_shares_out_what_was_kept(sign: int, kept: float | None) -> None:
    tables = settled(1)
    tables.rows[:, 2] = sign * 1000 * logistic.ONE
    seen = make_evidence(features(np.random.default_rng(2)), tables.bits)
    known = experts.estimate_parameters(tables)
    found = break_down(score_message(tables, known, seen), tables, known, seen, 1, 0)
    assert sign * (sign * found.scores[4:8]).max() == (
        known.bounds.min_score / experts.STEPS_PER_NAT if kept is None else kept
    )
    whole = (
        found.prior + found.biases + found.buckets.sum() + found.traits.sum() + found.numbers.sum()
    )
    assert whole == pytest.approx(found.log_odds, abs=1e-9)


@pytest.mark.parametrize("words", [12, 0])
def test_what_no_other_expert_confirms_counts_for_nothing(words: int) -> None:
    """Words of good mail alone, or none at all, in what all else knows for spam."""
    tables = replayed(made_up(1, 60))
    borders = np.arange(5) << (tables.bits - 2)
    tables.rows[: borders[1]] = 40, 0, -3 * logistic.ONE, 0
    tables.rows[borders[1] :] = 0, 40, 3 * logistic.ONE, 0
    tokens = [
        np.arange(first, first + number)
        for first, number in zip(borders, (words, 12, 12, 12), strict=False)
    ]
    shifted = np.concatenate(tokens).astype(np.uint32) << np.uint32(32 - tables.bits)
    message = Features(shifted, np.zeros(3, np.uint8), np.zeros(2, np.int16))
    seen, known = make_evidence(message, tables.bits), experts.estimate_parameters(tables)
    weighed = score_message(tables, known, seen)
    found = break_down(weighed, tables, known, seen, 1, 0)
    assert found.scores[0] == 0
    assert not found.buckets[:words].any()
    assert (found.buckets[words:] > 0).all()
    whole = (
        found.prior + found.biases + found.buckets.sum() + found.traits.sum() + found.numbers.sum()
    )
    assert whole == pytest.approx(found.log_odds, abs=1e-9)


def test_counts_are_those_of_the_tables() -> None:
    tables = settled(3)
    seen = make_evidence(features(np.random.default_rng(4)), tables.bits)
    known = experts.estimate_parameters(tables)
    found = break_down(score_message(tables, known, seen), tables, known, seen, 1, 0)
    assert found.counts[:2].T.tolist() == tables.rows[seen.buckets, :2].tolist()
    assert found.counts.shape == (4, len(seen.buckets))
