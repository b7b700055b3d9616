"""A filter that knows little good mail calls only plain spam spam."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from corpora.synthetic import generate
from spamguard import Filter, policy
from tests.unit.filters import opened

JUDGED = 100  # of each class
MAIL = {label: [raw for name, raw in generate(2400, seed=7) if name == label] for label in ("ham", "spam")}


def labels(spam_filter: Filter, first: int, lessons: int) -> dict[str, Counter[str]]:
    """Teach a stretch of each class, and count the labels of what follows."""
    for pair in zip(*(mail[first : first + lessons] for mail in MAIL.values()), strict=True):
        for label, raw in zip(MAIL, pair, strict=True):
            spam_filter.learn(raw, label)
    start = first + lessons
    return {name: Counter(spam_filter.judge(raw).label for raw in mail[start : start + JUDGED]) for name, mail in MAIL.items()}


@pytest.mark.parametrize("lessons", [5, 15])
def test_no_good_mail_is_called_spam_after_a_few_lessons(tmp_path: Path, lessons: int) -> None:
    for first in (0, 200, 400):
        with opened(tmp_path / str(first)) as one:
            assert labels(one, first, lessons)["ham"]["spam"] == 0


def test_plain_spam_is_called_spam_in_the_first_days(tmp_path: Path) -> None:
    with opened(tmp_path) as one:
        counted = labels(one, 0, 60)
        assert counted["ham"]["spam"] <= 1
        assert counted["spam"]["spam"] > JUDGED / 2


def test_what_a_message_needs_is_told_and_the_same_wherever_it_is_judged(tmp_path: Path) -> None:
    with opened(tmp_path) as one:
        labels(one, 0, 20)
        judged = [raw for mail in MAIL.values() for raw in mail[20:60]]
        one.learn(judged[0], "ham", user="anna")
        for raw, together in zip(judged, one.judge_all(judged), strict=True):
            scan, why = one.scan(raw, users=["anna"]), one.explain(raw)
            assert together == one.judge(raw) == scan.verdict == why.verdict
            assert scan.personal["anna"] == one.judge(raw, user="anna")
            assert why.spam_from == policy.logit(scan.threshold) > policy.logit(policy.SPAM_FROM)
            assert (scan.verdict.label == "spam") == (scan.verdict.log_odds >= policy.logit(scan.threshold))
