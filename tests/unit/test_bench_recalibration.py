"""Recalibration finds what was done to honest scores, and doubt is counted completely."""

from __future__ import annotations

import math

import numpy as np
import pytest

from spamguard.engine.measures import log_loss
from spamguard.errors import UsageError
from tests.bench.recalibration import best_recalibration, reliability_in_doubt

RNG = np.random.default_rng(7)
ODDS = RNG.normal(scale=3, size=20_000)
CHANCE = 1 / (1 + np.exp(-ODDS))
GOLD = RNG.random(20_000) < CHANCE


def test_a_scale_and_a_shift_are_undone() -> None:
    found = best_recalibration(GOLD, 4 * ODDS + 10)
    assert found.slope == pytest.approx(0.25, rel=0.05)
    assert found.offset == pytest.approx(-2.5, rel=0.05)
    assert found.log_loss <= log_loss(GOLD, CHANCE)  # hindsight flatters
    assert found.log_loss == pytest.approx(log_loss(GOLD, CHANCE), rel=0.01)
    assert found.log_loss == pytest.approx(log_loss(GOLD, found.probability(4 * ODDS + 10)))


def test_false_certainty_is_clipped() -> None:
    certain = np.where(RNG.random(len(ODDS)) < 0.05, np.sign(ODDS) * 1e6, ODDS)
    assert best_recalibration(GOLD, certain).clip <= 10
    assert best_recalibration(
        GOLD, np.where(certain > 1e5, np.inf, certain)
    ).log_loss < 1.2 * log_loss(GOLD, CHANCE)


@pytest.mark.slow
@pytest.mark.parametrize("score", [np.where(GOLD, 1.0, -1.0), np.zeros(len(GOLD)), -ODDS])
def test_scores_that_part_the_classes_say_nothing_or_are_upside_down(score: np.ndarray) -> None:
    found = best_recalibration(GOLD, score)
    assert math.isfinite(found.slope)
    assert 0 <= found.log_loss <= math.log(2)


def test_one_kind_of_mail_cannot_be_recalibrated() -> None:
    with pytest.raises(UsageError, match="both spam and ham"):
        best_recalibration([True, True], [1.0, 2.0])


def test_honest_probabilities_follow_the_diagonal() -> None:
    found = reliability_in_doubt(GOLD, CHANCE)
    assert len(found) == 6
    assert sum(one.messages for one in found) == np.sum((CHANCE >= 0.05) & (CHANCE < 0.95))
    assert all(abs(one.predicted - one.observed.value) < 0.05 for one in found)
    assert sum(one.honest for one in found) >= 5


def test_boasting_is_seen() -> None:
    boast = 1 / (1 + np.exp(-3 * ODDS))
    assert not any(
        one.honest for one in reliability_in_doubt(GOLD, boast) if abs(one.predicted - 0.5) > 0.2
    )


def test_what_is_outside_or_empty_is_left_out() -> None:
    (only,) = reliability_in_doubt([True, False, True, True], [0.99, 0.01, 0.5, 0.95])
    assert only.messages == 1
    assert (only.predicted, only.observed.value) == (0.5, 1.0)
