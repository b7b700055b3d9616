"""Scans, explanations and caution: the verdicts of a filter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spamguard.engine import policy
from spamguard.engine.filter import Filter
from spamguard.ledger import codec
from spamguard.records import Explanation, Scan
from tests.unit.filters import mail, opened, teach

MAIL = mail(90)
JAPANESE = "Subject: 今日は\n\n今日は良い天気です。ありがとう ok\n".encode()
ODD = (
    b"",
    b"\n",
    b"no header",
    b"\0" * 500,
    b": \n :\n",
    b"x" * 100_000,
    JAPANESE,
    b" blank first\nSubject: x\n\nbody\n",
    b"one",
)


def clues(found: Explanation, words: int) -> dict[str, float]:
    """The strongest of an explanation."""
    return {clue.text: clue.part for clue in found.clues[:words] if clue.part}


def assert_same_words(found: Scan, whole: Explanation, words: int) -> None:
    """Words that weigh the same may come in any order, and any of them may be the last."""
    told = {clue.text: clue.part for clue in whole.clues}
    assert sorted(word.part for word in found.words) == sorted(clues(whole, words).values())
    assert all(told[word.text] == word.part for word in found.words)
    assert [abs(word.part) for word in found.words] == sorted(
        (abs(word.part) for word in found.words), reverse=True
    )


def test_a_scan_is_the_verdict_of_judge_and_the_words_of_explain(taught: Filter) -> None:
    for raw in (*(raw for _, raw in MAIL), *ODD):
        scan = taught.scan(raw)
        assert scan.verdict == taught.judge(raw)
        assert_same_words(scan, taught.explain(raw), 16)
        ready = taught._reader.read_example(raw)
        assert (scan.digest, scan.packed) == (ready.digest, codec.pack(ready.features))
        assert {word.token for word in scan.words} <= set(ready.features.tokens.tolist())
        assert (scan.verdict.label in ("spam", "promo")) == (
            scan.verdict.probability >= scan.threshold
        )


RECEIVED = b"Received: from shady.example.net ([192.0.2.7])\r\n"


def test_a_first_line_that_begins_with_a_blank_is_no_tail_of_what_is_on_top(taught: Filter) -> None:
    assert taught.scan(b" viagra\n\nbody\n", extra_fields=RECEIVED).verdict == taught.judge(
        RECEIVED + b"\r\n viagra\n\nbody\n"
    )


def test_whether_settling_is_due(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, MAIL[:9])
        assert not spam_filter.scan(b"x").settle
        teach(spam_filter, MAIL[9:10])
        assert spam_filter.scan(b"x").settle
        assert spam_filter.settle_if_due()
        assert not spam_filter.scan(b"x").settle


# The threshold by a bound


@pytest.fixture
def _enough_good_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of spam but its threshold, as where hundreds of good messages are known."""
    monkeypatch.setattr(policy, "ENOUGH_HAM", 0)


@pytest.mark.usefixtures("_enough_good_mail")
def test_a_threshold_moves_label_and_scan(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, MAIL[:60])
        spam_filter.settle()
        ranked = sorted(
            (spam_filter.judge(raw).log_odds, raw) for label, raw in MAIL if label == "spam"
        )
    odds, raw = ranked[-2]
    border = 1 / (1 + np.exp(-odds - 0.001))
    with opened(tmp_path, spam_threshold=border) as strict, opened(tmp_path) as usual:
        assert strict.scan(raw).threshold > usual.scan(raw).threshold == policy.SPAM_THRESHOLD
        assert strict.scan(raw).verdict.label == strict.judge(raw).label == "unsure"
        assert usual.judge(raw).label == "spam"
        assert strict.judge(ranked[-1][1]).label == "spam"


HAM, SPAM = ([raw for label, raw in MAIL if label == kind] for kind in ("ham", "spam"))
