"""From numbers to labels, actions and header fields."""

from __future__ import annotations

import math
import re
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.bayes import experts
from spamguard.bayes.fusion import START_WEIGHTS
from spamguard.bayes.tables import empty_tables
from spamguard.config.options import Policy
from spamguard.engine import policy
from spamguard.records import Verdict
from tests.unit.bayes.support import repeatable


@cache
def known(lessons: int) -> experts.ExpertParameters:
    """So many lessons of each class."""
    tables = empty_tables(8, 1, 1, START_WEIGHTS)
    tables.messages[:] = lessons
    return experts.estimate_parameters(tables)


@repeatable
@given(st.floats(-1000, 1000))
def test_probability_is_the_logistic_function_of_the_log_odds(odds: float) -> None:
    verdict = policy.make_verdict(known(100), [0.0, odds])
    assert 0.0 <= verdict.probability <= 1.0
    assert verdict.probability == pytest.approx(0.5 * (1 + math.tanh(odds / 2)), abs=1e-12)


STATUS = re.compile(
    rb"X-Spam-Status: (Yes|No), score=(-?\d+\.\d) required=5\.0 tests=SPAMGUARD_([A-Z0-9_]+)"
)


def told(verdict: Verdict, spam_from: float = policy.SPAM_THRESHOLD) -> list[bytes]:
    return policy.header_fields(verdict, policy.decide(verdict, Policy(), spam_from), b"signed")


@repeatable
@given(
    st.floats(-1000, 1000),
    st.sampled_from((100, 1)),
    st.sampled_from((0.5, 0.7, 0.95, 0.9987, 1 - 1e-9)),
)
def test_the_score_never_contradicts_the_answer(odds: float, fewest: int, spam_from: float) -> None:
    verdict = policy.make_verdict(known(fewest), [0.0, odds], spam_from)
    *flag, status, label = told(verdict, spam_from)
    match = STATUS.fullmatch(status)
    assert match
    assert (
        (match[1] == b"Yes")
        == (float(match[2]) >= 5.0)
        == (verdict.label == "spam")
        == (flag == [b"X-Spam-Flag: YES"])
    )
    assert label == b"X-Spamguard: signed"
    assert match[3] == verdict.label.upper().encode()


@repeatable
@given(st.text())
def test_a_reason_is_one_short_line_of_ascii(reason: str) -> None:
    (field,) = policy.not_scanned_fields(reason)
    assert re.fullmatch(rb"X-Spamguard: not-scanned; reason=[A-Za-z0-9?-]{1,60}", field)


# What is done

# The first days


SHARES = st.floats(0, 1)
NATS = st.floats(-12, 12)


@repeatable
@given(st.integers(0, 499), st.floats(0, 1), NATS, SHARES, st.floats(0, 5), SHARES)
def test_caution_asks_for_more_the_less_of_a_message_is_known(
    good: int, confidence: float, text: float, unknown: float, clearer: float, familiar: float
) -> None:
    needed = policy.required_probability(good, confidence, text, unknown)
    assert policy.SPAM_THRESHOLD < needed < 1
    better = text + clearer, unknown * familiar
    assert policy.required_probability(good, confidence, *better) <= needed
    assert policy.required_probability(good + 1, confidence, text, unknown) <= needed


@repeatable
@given(st.floats(-20, 20), st.floats(policy.SPAM_THRESHOLD, 1 - 1e-9))
def test_a_higher_threshold_keeps_the_order_of_scores_and_the_score_of_what_is_even(
    odds: float, spam_from: float
) -> None:
    def score(log_odds: float) -> float:
        return policy.spam_score(
            policy.make_verdict(known(100), [0.0, log_odds], spam_from),
            spam_from,
        )

    assert score(odds) < score(odds + 0.01)
    assert score(0.0) == 0.0
    assert (score(odds) >= policy.REQUIRED_SCORE) == (
        odds >= policy.logit(spam_from)
    ) or odds == pytest.approx(policy.logit(spam_from))
