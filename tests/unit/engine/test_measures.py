"""The measures against slow definitions, known cases, and those of scikit-learn."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard.engine.measures import (
    calibration_error,
    roca,
    sm_at,
)

SCORES = (-math.inf, -2.5, -0.0, 0.0, 1e-300, 1.0, 7.0, math.inf)


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


# ---- calibration


def test_calibration_error_by_hand() -> None:
    found = calibration_error([True, False, True, True], [0.04, 0.05, 0.5, 1.0])
    assert found == pytest.approx((2 * 0.455 + 0.5) / 4)
