"""From numbers to labels, actions and header fields."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.config.options import Action, Policy, Rule
from spamguard.engine import policy
from spamguard.engine.policy import Decision
from spamguard.records import Verdict
from tests.unit.bayes.support import repeatable

BAD = frozenset({"spam", "promo"})
MANY = {"ham": 100, "spam": 100, "promo": 100, "news": 100}


def judged(
    bad: float, *, lessons: dict[str, int] = MANY, promo: float = 0.3, news: float = 0.3
) -> Verdict:
    """A verdict on a message that is unwanted with probability `bad`; promo and news have these
    shares of each side.
    """
    probabilities = {
        "ham": (1 - bad) * (1 - news),
        "spam": bad * (1 - promo),
        "promo": bad * promo,
        "news": (1 - bad) * news,
    }
    return policy.make_verdict(probabilities, math.log(bad / (1 - bad)), BAD, lessons)


@pytest.mark.parametrize(
    ("bad", "promo", "news", "label"),
    [
        (policy.SPAM_THRESHOLD + 1e-9, 0.3, 0.3, "spam"),
        (0.999, 0.6, 0.3, "promo"),
        (policy.SPAM_THRESHOLD - 1e-9, 0.3, 0.3, "unsure"),
        (0.5, 0.3, 0.3, "unsure"),
        (policy.HAM_THRESHOLD + 1e-9, 0.3, 0.3, "unsure"),
        (policy.HAM_THRESHOLD - 1e-9, 0.3, 0.3, "ham"),
        (0.001, 0.3, 0.7, "news"),
    ],
)
def test_labels(bad: float, promo: float, news: float, label: str) -> None:
    verdict = judged(bad, promo=promo, news=news)
    assert verdict.label == label
    assert verdict.probability == pytest.approx(bad, abs=1e-12)


@pytest.mark.parametrize(
    ("at", "spam_from", "label"),
    [(0.99, 0.995, "unsure"), (0.7, 0.6, "spam"), (0.05, 0.5, "ham"), (0.995, 0.995, "spam")],
)
def test_labels_by_another_threshold(at: float, spam_from: float, label: str) -> None:
    verdict = policy.make_verdict(
        {"ham": 1 - at, "spam": at}, math.log(at / (1 - at)) + 1e-9, BAD, MANY, spam_from
    )
    assert verdict.label == label
    assert policy.decide(verdict, Policy(), spam_from).is_unwanted is (label == "spam")
    assert verdict.log_odds + policy.distance_to_threshold(
        verdict.log_odds, spam_from
    ) == pytest.approx(
        min(
            (policy.logit(border) for border in (policy.HAM_THRESHOLD, spam_from)),
            key=lambda border: abs(border - verdict.log_odds),
        )
    )


FEW = policy.MIN_LESSONS


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
def test_few_lessons_of_a_side_give_no_label_but_a_probability(
    lessons: dict[str, int], sure: bool
) -> None:
    for bad in (0.999, 0.001):
        verdict = judged(bad, lessons=lessons)
        assert (verdict.label != "unsure") is sure
        assert verdict.probability == pytest.approx(bad)


@pytest.mark.parametrize(
    ("lessons", "told"),
    [
        ({}, "everything is unsure"),
        ({"ham": 1000, "spam": FEW - 1}, "everything is unsure"),
        (
            {"ham": 20, "news": 10, "spam": 80, "promo": 11},
            "much good mail is unsure: 30 good messages have been taught beside 91",
        ),
        (
            {"ham": 20, "news": 10, "spam": 80, "promo": 10},
            "only plain spam is called spam, the rest is unsure: 30 of 500",
        ),
        ({"ham": 500, "spam": 5000}, ""),
        ({"ham": 5000, "spam": 5}, ""),
    ],
)
def test_what_keeps_mail_unsure_for_want_of_lessons(lessons: dict[str, int], told: str) -> None:
    reason = policy.missing_lessons(lessons, BAD)
    assert reason.startswith(told)
    assert bool(reason) is bool(told)


@repeatable
@given(st.floats(-1000, 1000))
def test_probability_is_the_logistic_function_of_the_log_odds(odds: float) -> None:
    verdict = policy.make_verdict({"ham": 0.5, "spam": 0.5}, odds, BAD, MANY)
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
    st.sampled_from((MANY, {"ham": 1, "spam": 1})),
    st.sampled_from((0.5, 0.7, 0.95, 0.9987, 1 - 1e-9)),
)
def test_the_score_never_contradicts_the_answer(
    odds: float, lessons: dict[str, int], spam_from: float
) -> None:
    verdict = policy.make_verdict({"ham": 0.5, "spam": 0.5}, odds, BAD, lessons, spam_from)
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


def test_the_score_is_five_at_the_threshold_and_zero_when_even() -> None:
    assert policy.spam_score(judged(policy.SPAM_THRESHOLD)) == pytest.approx(5.0)
    assert policy.spam_score(judged(0.5)) == 0.0
    assert policy.spam_score(judged(0.9)) < policy.spam_score(judged(0.91))
    for spam_from in (0.5, 0.9, 0.999):
        assert policy.spam_score(judged(spam_from), spam_from) == pytest.approx(5.0)
        assert policy.spam_score(judged(0.9), spam_from) < policy.spam_score(
            judged(0.91), spam_from
        )


def test_every_field_written_is_one_that_may_be_forged() -> None:
    verdict = judged(0.99)
    decision = policy.decide(verdict, Policy(), policy.SPAM_THRESHOLD)
    fields = [
        *policy.header_fields(verdict, decision, b"signed", tell_probability=True),
        *policy.not_scanned_fields("x"),
    ]
    assert fields[3] == b"X-Spamguard-Probability: 0.9900"
    assert {field.partition(b":")[0] for field in fields} == set(policy.VERDICT_FIELDS)


def test_a_class_name_becomes_a_name_of_a_test() -> None:
    verdict = Verdict("my-news_2", 0.01, -5.0, {})
    assert b"tests=SPAMGUARD_MY_NEWS_2" in told(verdict)[0]


@repeatable
@given(st.text())
def test_a_reason_is_one_short_line_of_ascii(reason: str) -> None:
    (field,) = policy.not_scanned_fields(reason)
    assert re.fullmatch(rb"X-Spamguard: not-scanned; reason=[A-Za-z0-9?-]{1,60}", field)


@pytest.mark.parametrize(
    ("at", "border"),
    [
        (0.99, "SPAM_THRESHOLD"),
        (0.9, "SPAM_THRESHOLD"),
        (0.2, "HAM_THRESHOLD"),
        (0.001, "HAM_THRESHOLD"),
    ],
)
def test_the_nearest_border_is_so_far_away(at: float, border: str) -> None:
    odds = math.log(at / (1 - at))
    reached = 1 / (1 + math.exp(-(odds + policy.distance_to_threshold(odds))))
    assert reached == pytest.approx(getattr(policy, border))


@pytest.mark.parametrize(
    ("parts", "away", "number"),
    [
        ([3.0, -1.0, 2.0], -4.0, 2),
        ([3.0, -1.0, 2.0], -3.0, 1),
        ([3.0, 2.0], -5.5, None),
        ([3.0, -2.0], 2.0, 1),
        ([], 1.0, None),
    ],
)
def test_how_many_parts_must_go_for_another_label(
    parts: list[float], away: float, number: int | None
) -> None:
    assert policy.count_flips(parts, away) == number


# What is done

QUARANTINED = Rule("spam", Action.QUARANTINE, 0.99)
PREFIXED = Rule("promo", Action.TAG, subject_prefix="[promo] ")
ASIDE = Rule("unsure", Action.REDIRECT, to="postmaster@example.org")


@pytest.mark.parametrize(
    ("rules", "bad", "promo", "taken"),
    [
        ((), 0.999, 0.3, None),
        ((QUARANTINED,), 0.999, 0.3, QUARANTINED),
        ((QUARANTINED,), 0.98, 0.3, None),
        ((QUARANTINED,), 0.999, 0.7, QUARANTINED),
        ((PREFIXED, QUARANTINED), 0.999, 0.7, PREFIXED),
        ((PREFIXED, QUARANTINED), 0.999, 0.3, QUARANTINED),
        ((QUARANTINED, PREFIXED), 0.999, 0.7, QUARANTINED),
        ((QUARANTINED, ASIDE), 0.5, 0.3, ASIDE),
        ((QUARANTINED, ASIDE), 0.01, 0.3, None),
        ((Rule("ham", Action.REJECT),), 0.01, 0.3, Rule("ham", Action.REJECT)),
        ((Rule("spam", Action.REJECT),), 0.5, 0.3, None),
    ],
)
def test_the_first_rule_that_fits_is_taken(
    rules: tuple[Rule, ...], bad: float, promo: float, taken: Rule | None
) -> None:
    decision = policy.decide(judged(bad, promo=promo), Policy(rules), policy.SPAM_THRESHOLD)
    assert decision == Decision(
        taken.action if taken else Action.TAG,
        bad >= policy.SPAM_THRESHOLD,
        policy.SPAM_THRESHOLD,
        taken,
    )
    assert (decision.to, decision.subject_prefix) == (
        (taken.to, taken.subject_prefix) if taken else ("", "")
    )


def test_with_few_lessons_nothing_is_unwanted_however_probable() -> None:
    verdict = judged(0.999, lessons={"ham": 1, "spam": 1})
    assert policy.decide(
        verdict, Policy((Rule("spam", Action.REJECT),)), policy.SPAM_THRESHOLD
    ) == Decision(Action.TAG, False)


# The first days


def test_enough_good_mail_asks_for_no_caution() -> None:
    assert policy.compute_caution(499, 0.99) is not None
    assert policy.compute_caution(500, 0.99) is None


SHARES = st.floats(0, 1)
NATS = st.floats(-12, 12)


@repeatable
@given(st.integers(0, 499), st.floats(0, 1), NATS, SHARES, st.floats(0, 5), SHARES)
def test_caution_asks_for_more_the_less_of_a_message_is_known(
    good: int, confidence: float, text: float, unknown: float, clearer: float, familiar: float
) -> None:
    caution = policy.compute_caution(good, confidence)
    assert caution is not None
    needed = caution.required_probability(text, unknown)
    assert policy.SPAM_THRESHOLD < needed < 1
    assert caution.required_probability(text + clearer, unknown * familiar) <= needed


def test_caution_falls_with_the_good_messages_taught() -> None:
    for text, unknown in ((9.0, 0.0), (1.0, 0.3), (-3.0, 1.0)):
        needed = [
            caution.required_probability(text, unknown)
            for good in (1, 10, 100, 300, 499)
            if (caution := policy.compute_caution(good, 0.9))
        ]
        assert len(needed) == 5
        assert needed == sorted(needed, reverse=True)
        assert needed[0] > 0.999999


@repeatable
@given(st.floats(-20, 20), st.floats(policy.SPAM_THRESHOLD, 1 - 1e-9))
def test_a_higher_threshold_keeps_the_order_of_scores_and_the_score_of_what_is_even(
    odds: float, spam_from: float
) -> None:
    def score(log_odds: float) -> float:
        return policy.spam_score(
            policy.make_verdict({"ham": 0.5, "spam": 0.5}, log_odds, BAD, MANY, spam_from),
            spam_from,
        )

    assert score(odds) < score(odds + 0.01)
    assert score(0.0) == 0.0
    assert (score(odds) >= policy.REQUIRED_SCORE) == (
        odds >= policy.logit(spam_from)
    ) or odds == pytest.approx(policy.logit(spam_from))
