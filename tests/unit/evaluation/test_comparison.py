"""A run is held against another on the same mail, and on no other."""

from __future__ import annotations

import numpy as np
import pytest

from spamguard.errors import UsageError
from spamguard.evaluation.comparison import difference
from spamguard.evaluation.report import Scored


def run(noise: float) -> list[Scored]:
    rng = np.random.default_rng(2)
    gold = rng.random(400) < 0.5
    scores = 2 * gold + noise * rng.normal(size=400)
    return [
        Scored(n, "spam" if spam else "ham", "unsure", float(score), False)
        for n, (spam, score) in enumerate(zip(gold, scores, strict=True), 1)
    ]


def test_the_better_one_is_below_zero() -> None:
    gain = difference(run(0.7), run(2.0))
    assert gain.low <= gain.value <= gain.high < 0
    back = difference(run(2.0), run(0.7))
    assert back.value == pytest.approx(-gain.value)


def test_a_run_does_not_differ_from_itself() -> None:
    gain = difference(run(1.0), run(1.0))
    assert (gain.value, gain.low, gain.high) == (0, 0, 0)


@pytest.mark.parametrize("other", [run(1.0)[1:], [row._replace(gold="ham") for row in run(1.0)], []])
def test_other_mail_is_refused(other: list[Scored]) -> None:
    with pytest.raises(UsageError, match="other mail"):
        difference(run(1.0), other)
