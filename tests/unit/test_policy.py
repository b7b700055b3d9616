"""From numbers to a label and to header fields."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard import policy
from spamguard.records import Verdict
from tests.unit.bayes.support import repeatable

BAD = frozenset({"spam", "promo"})
MANY = {"ham": 100, "spam": 100, "promo": 100, "news": 100}


def judged(bad: float, *, lessons: dict[str, int] = MANY, promo: float = 0.3, news: float = 0.3) -> Verdict:
    """A verdict on a message that is unwanted with probability `bad`; promo and news have these shares of each side."""
    probabilities = {"ham": (1 - bad) * (1 - news), "spam": bad * (1 - promo), "promo": bad * promo, "news": (1 - bad) * news}
    return policy.verdict(probabilities, math.log(bad / (1 - bad)), BAD, lessons)


@pytest.mark.parametrize(
    ("bad", "promo", "news", "label"),
    [
        (policy.SPAM_FROM + 1e-9, 0.3, 0.3, "spam"),
        (0.999, 0.6, 0.3, "promo"),
        (policy.SPAM_FROM - 1e-9, 0.3, 0.3, "unsure"),
        (0.5, 0.3, 0.3, "unsure"),
        (policy.HAM_TO + 1e-9, 0.3, 0.3, "unsure"),
        (policy.HAM_TO - 1e-9, 0.3, 0.3, "ham"),
        (0.001, 0.3, 0.7, "news"),
    ],
)
def test_labels(bad: float, promo: float, news: float, label: str) -> None:
    verdict = judged(bad, promo=promo, news=news)
    assert verdict.label == label
    assert verdict.probability == pytest.approx(bad, abs=1e-12)


FEW = policy.FEWEST_LESSONS


@pytest.mark.parametrize(
    ("lessons", "sure"),
    [
        ({"ham": 1000, "spam": FEW - 1}, False),
        ({"ham": FEW - 1, "spam": 1000}, False),
        ({"ham": FEW, "spam": FEW}, True),
        ({"ham": 0, "spam": 0, "news": FEW, "promo": FEW}, True),
        ({"ham": FEW - 1, "news": 1, "spam": FEW - 1, "promo": 1}, True),
        ({"ham": 1000, "news": 1000, "spam": 0}, False),
        ({}, False),
    ],
)
def test_few_lessons_of_a_side_give_no_label_but_a_probability(lessons: dict[str, int], sure: bool) -> None:
    for bad in (0.999, 0.001):
        verdict = judged(bad, lessons=lessons)
        assert (verdict.label != "unsure") is sure
        assert verdict.probability == pytest.approx(bad)


@repeatable
@given(st.floats(-1000, 1000))
def test_probability_is_the_logistic_function_of_the_log_odds(odds: float) -> None:
    verdict = policy.verdict({"ham": 0.5, "spam": 0.5}, odds, BAD, MANY)
    assert 0.0 <= verdict.probability <= 1.0
    assert verdict.probability == pytest.approx(0.5 * (1 + math.tanh(odds / 2)), abs=1e-12)


STATUS = re.compile(rb"X-Spam-Status: (Yes|No), score=(-?\d+\.\d) required=5\.0 tests=SPAMGUARD_([A-Z0-9_]+)")


@repeatable
@given(st.floats(-1000, 1000), st.sampled_from((MANY, {"ham": 1, "spam": 1})))
def test_the_score_never_contradicts_the_answer(odds: float, lessons: dict[str, int]) -> None:
    verdict = policy.verdict({"ham": 0.5, "spam": 0.5}, odds, BAD, lessons)
    *flag, status, label = policy.header_fields(verdict, is_unwanted=verdict.label in BAD)
    found = STATUS.fullmatch(status)
    assert found
    assert (found[1] == b"Yes") == (float(found[2]) >= 5.0) == (verdict.label == "spam") == (flag == [b"X-Spam-Flag: YES"])
    assert label == b"X-Spamguard: " + verdict.label.encode()
    assert found[3] == verdict.label.upper().encode()


def test_the_score_is_five_at_the_threshold_and_zero_when_even() -> None:
    assert policy.score(judged(policy.SPAM_FROM)) == pytest.approx(5.0)
    assert policy.score(judged(0.5)) == 0.0
    assert policy.score(judged(0.9)) < policy.score(judged(0.91))


def test_every_field_written_is_one_that_may_be_forged() -> None:
    fields = [*policy.header_fields(judged(0.99), is_unwanted=True), *policy.not_scanned("x")]
    assert {field.partition(b":")[0] for field in fields} == set(policy.VERDICT_FIELDS)


def test_a_class_name_becomes_a_name_of_a_test() -> None:
    verdict = Verdict("my-news_2", 0.01, -5.0, {})
    assert b"tests=SPAMGUARD_MY_NEWS_2" in policy.header_fields(verdict, is_unwanted=False)[0]


@repeatable
@given(st.text())
def test_a_reason_is_one_short_line_of_ascii(reason: str) -> None:
    (field,) = policy.not_scanned(reason)
    assert re.fullmatch(rb"X-Spamguard: not-scanned; reason=[A-Za-z0-9?-]{1,60}", field)


@pytest.mark.parametrize(("at", "border"), [(0.99, "SPAM_FROM"), (0.9, "SPAM_FROM"), (0.2, "HAM_TO"), (0.001, "HAM_TO")])
def test_the_nearest_border_is_so_far_away(at: float, border: str) -> None:
    odds = math.log(at / (1 - at))
    reached = 1 / (1 + math.exp(-(odds + policy.distance(odds))))
    assert reached == pytest.approx(getattr(policy, border))


@pytest.mark.parametrize(
    ("parts", "away", "number"),
    [([3.0, -1.0, 2.0], -4.0, 2), ([3.0, -1.0, 2.0], -3.0, 1), ([3.0, 2.0], -5.5, None), ([3.0, -2.0], 2.0, 1), ([], 1.0, None)],
)
def test_how_many_parts_must_go_for_another_label(parts: list[float], away: float, number: int | None) -> None:
    assert policy.flips(parts, away) == number
