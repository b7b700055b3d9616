"""The measures against slow definitions, known cases, and those of scikit-learn."""

from __future__ import annotations

import json
import math
import time
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, roc_auc_score
from sklearn.metrics import log_loss as sklearn_log_loss

from spamguard.engine.measures import (
    Measures,
    calibration_error,
    confusion,
    log_loss,
    logistic_average,
    measures,
    roca,
    roca_interval,
    sm_at,
)

SCORES = (-math.inf, -2.5, -0.0, 0.0, 1e-300, 1.0, 7.0, math.inf)


def run(seed: int, n: int = 300, digits: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """gold, score (with ties, by rounding) and label of a made-up run."""
    rng = np.random.default_rng(seed)
    gold = rng.random(n) < 0.4
    gold[:2] = [True, False]
    score = np.round(rng.normal(size=n) + 2 * gold, digits)
    return gold, score, np.where(score > 1.5, "spam", np.where(score > 0.8, "unsure", "ham"))


def slow_roca(gold: np.ndarray, score: np.ndarray) -> float:
    pairs = list(product(score[gold], score[~gold]))
    return 100 * sum((ham > spam) + (ham == spam) / 2 for spam, ham in pairs) / len(pairs)


def slow_sm_at(gold: np.ndarray, score: np.ndarray, hm: float) -> float:
    best = 100.0
    for threshold in score:
        called_spam = score >= threshold
        if sum(called_spam & ~gold) <= hm * sum(~gold) + 1e-9:
            best = min(best, 100 * sum(~called_spam & gold) / sum(gold))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_point_estimates_equal_the_definitions(seed: int) -> None:
    gold, score, label = run(seed, 250 + seed, seed % 3)
    estimates = measures(gold, score, label, resamples=5)
    ham, spam = int(sum(~gold)), int(sum(gold))
    lost = sum(1 for g, answer in zip(gold, label, strict=True) if not g and answer == "spam")
    missed = sum(1 for g, answer in zip(gold, label, strict=True) if g and answer != "spam")
    assert (
        estimates.messages,
        estimates.ham,
        estimates.spam,
        estimates.ham_as_spam,
        estimates.spam_missed,
    ) == (
        len(gold),
        ham,
        spam,
        lost,
        missed,
    )
    assert estimates.hm == pytest.approx(100 * lost / ham, abs=1e-9)
    assert estimates.sm == pytest.approx(100 * missed / spam, abs=1e-9)
    odds = [(lost + 0.5) / (ham - lost + 0.5), (missed + 0.5) / (spam - missed + 0.5)]
    mean = math.sqrt(odds[0] * odds[1])
    assert estimates.lam == pytest.approx(100 * mean / (1 + mean), abs=1e-9)
    assert estimates.roca == pytest.approx(slow_roca(gold, score), abs=1e-9)
    assert estimates.roca == pytest.approx(100 - 100 * roc_auc_score(gold, score), abs=1e-9)
    assert estimates.sm_at_hm_01 == pytest.approx(slow_sm_at(gold, score, 0.001), abs=1e-9)
    assert estimates.sm_at_hm_05 == pytest.approx(slow_sm_at(gold, score, 0.005), abs=1e-9)
    assert estimates.unsure_ham + estimates.unsure_spam == sum(label == "unsure")


@pytest.mark.slow
@settings(derandomize=True, max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(st.booleans(), st.sampled_from(SCORES)), min_size=2, max_size=30))
def test_few_messages_many_ties_infinite_scores(rows: list[tuple[bool, float]]) -> None:
    gold, score = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    if gold.all() or not gold.any():
        assert math.isnan(roca(gold, score))
        return
    assert roca(gold, score) == pytest.approx(slow_roca(gold, score), abs=1e-9)
    assert roca(gold, score) == pytest.approx(100 - roca(~gold, score), abs=1e-9)
    for hm in (0.0, 0.1, 0.5, 1.0):
        assert sm_at(gold, score, hm) == pytest.approx(slow_sm_at(gold, score, hm), abs=1e-9)


def test_known_cases() -> None:
    gold = [True, True, False, False]
    assert roca(gold, [4, 3, 2, 1]) == 0
    assert roca(gold, [1, 2, 3, 4]) == 100
    assert roca(gold, [1, 1, 1, 1]) == 50
    assert roca(gold, [3, 1, 2, 0]) == 25
    assert sm_at(gold, [1, 1, 1, 1], 0.1) == 100  # ham ties at the very top
    assert sm_at(gold, [4, 3, 2, 1], 1.0) == 0
    assert logistic_average(0, 100, 0, 100) == pytest.approx(100 * 0.5 / 101)


def test_allowed_ham_is_not_lost_to_rounding() -> None:
    gold = np.array([False] * 1000 + [True])
    score = np.concatenate([np.arange(1000.0), [994.5]])
    assert sm_at(gold, score, 0.005) == 0  # five hams score above 994.5, and 0.005 * 1000 is five


def test_only_the_class_of_that_name_counts_as_spam() -> None:
    gold = [True, True, False, False]
    run = measures(gold, [3, 2, 1, 0], ["spam", "junk", "newsletters", "spam"], resamples=5)
    assert (run.ham_as_spam, run.spam_missed) == (1, 1)


@pytest.mark.parametrize("gold", [[], [True, True], [False, False]])
def test_what_is_not_defined_is_nan_and_null_in_json(gold: list[bool]) -> None:
    run = measures(gold, [0.5] * len(gold), ["ham"] * len(gold), probability=[0.5] * len(gold))
    assert math.isnan(run.roca)
    assert math.isnan(run.sm_at_hm_01)
    assert json.loads(json.dumps(run.as_dict(), allow_nan=False))["lam"] is None


# ---- intervals


@pytest.mark.slow
def test_interval_is_the_same_each_time_and_covers_the_estimate() -> None:
    gold, score, _ = run(3, 600, 2)
    first = roca_interval(gold, score)
    assert first == roca_interval(gold, score)
    assert first.low < first.value < first.high


@pytest.mark.slow
def test_interval_has_the_width_of_an_independent_bootstrap() -> None:
    gold, score, _ = run(4, 400, 2)
    rng = np.random.default_rng(9)
    spam, ham = score[gold], score[~gold]
    areas = []
    for _ in range(400):
        resample = np.concatenate([rng.choice(spam, len(spam)), rng.choice(ham, len(ham))])
        areas.append(100 - 100 * roc_auc_score(np.arange(len(resample)) < len(spam), resample))
    low, high = np.percentile(areas, [2.5, 97.5])
    interval = roca_interval(gold, score)
    assert interval.high - interval.low == pytest.approx(high - low, rel=0.2)
    assert interval.low == pytest.approx(low, abs=0.25 * (high - low))


@pytest.mark.slow
def test_interval_is_fast() -> None:
    gold, score, _ = run(5, 6000, 9)
    began = time.process_time()
    roca_interval(gold, score)
    assert time.process_time() - began < 1.0  # of the processor, whatever else it is busy with


def test_no_resamples_no_bounds() -> None:
    gold, score, _ = run(6)
    assert math.isnan(roca_interval(gold, score, resamples=0).low)


def test_a_single_message_of_a_kind_gives_no_bounds() -> None:
    interval = roca_interval([True, False, False], [2, 1, 3])
    assert interval.value == 50
    assert math.isnan(interval.low)


# ---- calibration


def test_calibration_error_of_honest_and_of_lying_probabilities() -> None:
    rng = np.random.default_rng(2)
    probability = rng.random(40_000)
    gold = rng.random(40_000) < probability
    assert calibration_error(gold, probability) < 0.01
    assert calibration_error(gold, probability**3) > 0.15
    assert calibration_error([True, False], [1.0, 0.0]) == 0
    assert calibration_error([True, False], [0.0, 1.0]) == 1


def test_calibration_error_by_hand() -> None:
    found = calibration_error([True, False, True, True], [0.04, 0.05, 0.5, 1.0])
    assert found == pytest.approx((2 * 0.455 + 0.5) / 4)


def test_log_loss() -> None:
    gold, score, _ = run(10)
    probability = 1 / (1 + np.exp(-score))
    assert log_loss(gold, probability) == pytest.approx(
        sklearn_log_loss(gold, probability), abs=1e-12
    )
    assert log_loss([True], [0.0]) == pytest.approx(
        -math.log(np.finfo(float).eps)
    )  # finite, however sure and wrong


# ---- classes


def test_confusion_of_several_classes() -> None:
    rng = np.random.default_rng(3)
    actual = rng.choice(["ham", "spam", "newsletters"], 200)
    predicted = rng.choice(["ham", "spam", "unsure", "receipts"], 200)
    matrix = confusion(actual.tolist(), predicted.tolist())
    assert matrix.actual == ("ham", "newsletters", "receipts", "spam")
    assert matrix.predicted == ("ham", "newsletters", "receipts", "spam", "unsure")
    expected = confusion_matrix(predicted, actual, labels=list(matrix.predicted))
    assert (matrix.counts == expected[:, :4]).all()
    assert matrix.counts.sum() == 200


def test_measures_as_dict_is_complete() -> None:
    gold, score, label = run(11)
    estimates = measures(gold, score, label, resamples=5)
    assert set(estimates.as_dict()) == set(Measures.__dataclass_fields__)


def test_other_classes_may_be_unwanted_too() -> None:
    gold, score, label = (
        [True, True, False, False],
        [3, 2, 1, 0],
        ["spam", "fraud", "fraud", "newsletter"],
    )
    run = measures(gold, score, label, unwanted={"spam", "fraud"}, resamples=5)
    assert (run.spam_missed, run.ham_as_spam) == (0, 1)
