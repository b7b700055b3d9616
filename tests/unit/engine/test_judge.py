"""Scans, explanations and caution: the verdicts of a filter."""

from __future__ import annotations

from collections import Counter
from functools import cache
from math import log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from corpora.synthetic import generate
from spamguard.bayes.fusion import strongest_parts
from spamguard.engine import policy
from spamguard.engine.filter import Filter
from spamguard.errors import UsageError
from spamguard.ledger import codec
from spamguard.records import Explanation, Scan
from tests.unit.bayes.support import repeatable
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


@pytest.mark.parametrize("words", [0, 1, 3, 10_000])
def test_as_many_words_as_asked_for(taught: Filter, words: int) -> None:
    for raw in (MAIL[0][1], MAIL[1][1], JAPANESE):
        assert_same_words(taught.scan(raw, words), taught.explain(raw), words)


@repeatable
@given(
    st.lists(st.sampled_from((-2.0, -1.5, -1.0, 0.0, 0.5, 1.0, 3.0)), max_size=12),
    st.integers(0, 8),
)
@example([1.0, 2.0], 8)
@example([-1.0] * 5, 2)
def test_the_strongest(parts: list[float], number: int) -> None:
    found = [parts[place] for place in strongest_parts(np.array(parts), number).tolist()]
    strongest = sorted((abs(part) for part in parts if part), reverse=True)[:number]
    assert list(map(abs, found)) == strongest


@pytest.mark.parametrize("profile", ["bernoulli", "multinomial"])
def test_other_profiles_have_no_words(taught: Filter, profile: str) -> None:
    with Filter.open(taught.directory, profile=profile) as other:
        for raw in (MAIL[0][1], MAIL[1][1], JAPANESE, b""):
            scan = other.scan(raw)
            assert (scan.verdict, scan.words) == (other.judge(raw), ())
            assert scan.digest == taught.scan(raw).digest


RECEIVED = b"Received: from shady.example.net ([192.0.2.7])\r\n"


def test_fields_on_top_are_evidence_and_no_part_of_the_identity(taught: Filter) -> None:
    for raw in (
        *(raw for _, raw in MAIL[:20]),
        *ODD,
        b"From a b\nSubject: x\n\nbody\n",
        b"no field\nSubject: y\n\nz\n",
    ):
        scan = taught.scan(raw, extra_fields=RECEIVED)
        assert scan.digest == taught.scan(raw).digest
        if raw[:1].isalpha() and b": " in raw.partition(b"\n")[0]:
            assert scan.verdict == taught.judge(RECEIVED + raw)
            assert scan.packed != taught.scan(raw).packed


@pytest.mark.parametrize(
    "line", [b"From anna@example.com Mon Jan  1 10:00:00 2024\n", b">From anna\r\n"]
)
def test_fields_on_top_stand_below_an_envelope_line(taught: Filter, line: bytes) -> None:
    for raw in (MAIL[0][1], MAIL[1][1], JAPANESE, b" blank first\n\nx"):
        scan, without = (
            taught.scan(line + raw, extra_fields=RECEIVED),
            taught.scan(raw, extra_fields=RECEIVED),
        )
        assert (scan.verdict, scan.digest, scan.packed) == (
            without.verdict,
            without.digest,
            without.packed,
        )


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
    """Nothing is asked of spam but its threshold, as where hundreds of good messages have been
    taught.
    """
    monkeypatch.setattr(policy, "compute_caution", lambda good, confidence: None)


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
        assert strict.explain(raw).to_threshold == pytest.approx(0.001, abs=1e-4)


HAM, SPAM = ([raw for label, raw in MAIL if label == kind] for kind in ("ham", "spam"))


def assert_it_adds_up(found: Explanation) -> None:
    exact = pytest.approx(found.log_odds, abs=1e-9)
    assert found.prior + sum(found.shares.values()) == exact
    clues = sum(clue.part for clue in found.clues)
    assert (
        found.prior
        + found.biases
        + clues
        + sum(found.traits.values())
        + sum(found.numbers.values())
        == exact
    )


def test_explanations_add_up_to_the_verdict(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        for step in range(4):
            for raw in (*HAM[-6:], *SPAM[-6:], *ODD):
                explanation = spam_filter.explain(raw)
                assert (explanation.favoured, explanation.against) == ("spam", "ham")
                assert explanation.verdict == spam_filter.judge(raw)
                assert explanation.log_odds == pytest.approx(explanation.verdict.log_odds, abs=1e-9)
                assert_it_adds_up(explanation)
            teach(spam_filter, MAIL[15 * step : 15 * step + 15])
            if step == 2:
                spam_filter.settle()


def test_explanations_among_many_classes_are_of_the_verdict_and_tell_the_two_strongest(
    taught: Filter,
) -> None:
    for raw in (*HAM[-8:], *SPAM[-8:], *ODD):
        explanation = taught.explain(raw)
        assert_it_adds_up(explanation)
        of = explanation.verdict.probabilities
        assert of[explanation.favoured] == max(of["spam"], of["promo"])
        assert of[explanation.against] == max(of["ham"], of["news"])
        assert explanation.log_odds == pytest.approx(explanation.verdict.log_odds, abs=1e-9)


def test_without_the_clues_that_flip_it_the_label_would_be_another(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, MAIL[:40])
        flipped = 0
        for raw in (*HAM[-15:], *SPAM[-15:]):
            explanation = spam_filter.explain(raw)
            lessons = spam_filter.status().classes
            holding = [
                clue.part for clue in explanation.clues if clue.part * explanation.to_threshold < 0
            ]
            assert explanation.log_odds + explanation.to_threshold == pytest.approx(
                _nearest_border(explanation.log_odds, spam_filter.scan(raw).threshold)
            )
            if explanation.flip is None:
                assert sum(map(abs, holding)) < abs(explanation.to_threshold)
                continue
            flipped += 1
            labels = []
            for gone in (explanation.flip - 1, explanation.flip):
                left = explanation.log_odds - sum(holding[:gone])
                threshold = spam_filter.scan(raw).threshold
                labels.append(
                    policy.make_verdict(
                        explanation.verdict.probabilities,
                        left,
                        spam_filter.unwanted,
                        lessons,
                        threshold,
                    ).label
                )
            assert labels[0] == explanation.verdict.label != labels[1]
        assert flipped > 5


def test_no_words_would_change_what_is_unsure_for_want_of_lessons(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        for label, raw, few in (
            ("ham", HAM[:9], True),
            ("spam", SPAM[: policy.MIN_LESSONS - 1], True),
            ("spam", SPAM[5:6], False),
        ):
            teach(spam_filter, [(label, each) for each in raw])
            explanation = spam_filter.explain(SPAM[-1])
            assert explanation.few is few
            assert not few or (explanation.flip, explanation.verdict.label) == (None, "unsure")


def _nearest_border(odds: float, spam_from: float) -> float:
    borders = [log(at / (1 - at)) for at in (policy.HAM_THRESHOLD, spam_from)]
    return min(borders, key=lambda border: abs(border - odds))


def test_clues_are_told_in_words_with_their_counts(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        teach(
            spam_filter,
            [
                ("spam", b"Subject: x\n\nwatches\n"),
                ("spam", b"Subject: y\n\nwatches now\n"),
                ("ham", b"Subject: z\n\nnow\n"),
            ],
        )
        clues = {
            clue.text: clue.counts
            for clue in spam_filter.explain(b"Subject: q\n\nwatches now never\n").clues
        }
        strongest = [abs(clue.part) for clue in spam_filter.explain(SPAM[0]).clues]
    assert clues["watches"] == {"ham": 0, "spam": 2}
    assert clues["now"] == {"ham": 1, "spam": 1}
    assert clues["never"] == {"ham": 0, "spam": 0}
    assert strongest == sorted(strongest, reverse=True)


def test_only_the_default_profile_is_explained(tmp_path: Path) -> None:
    with (
        opened(tmp_path, profile="bernoulli") as spam_filter,
        pytest.raises(UsageError, match="default profile"),
    ):
        spam_filter.explain(MAIL[0][1])


JUDGED = 100  # of each class


@cache
def stretches() -> dict[str, list[bytes]]:
    """Much mail of each class."""
    messages = list(generate(1400, seed=7))
    return {label: [raw for name, raw in messages if name == label] for label in ("ham", "spam")}


def labels(spam_filter: Filter, first: int, lessons: int) -> dict[str, Counter[str]]:
    """Teach a stretch of each class, and count the labels of what follows."""
    for pair in zip(
        *(stretch[first : first + lessons] for stretch in stretches().values()), strict=True
    ):
        for label, raw in zip(stretches(), pair, strict=True):
            spam_filter.learn(raw, label)
    start = first + lessons
    return {
        name: Counter(spam_filter.judge(raw).label for raw in stretch[start : start + JUDGED])
        for name, stretch in stretches().items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("lessons", [5, 15])
def test_no_good_mail_is_called_spam_after_a_few_lessons(tmp_path: Path, lessons: int) -> None:
    for first in (0, 200, 400):
        with opened(tmp_path / str(first)) as spam_filter:
            assert labels(spam_filter, first, lessons)["ham"]["spam"] == 0


@pytest.mark.slow
def test_plain_spam_is_called_spam_in_the_first_days(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        counted = labels(spam_filter, 0, 60)
        assert counted["ham"]["spam"] <= 1
        assert counted["spam"]["spam"] > JUDGED / 2


def test_what_a_message_needs_is_told_and_the_same_wherever_it_is_judged(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        labels(spam_filter, 0, 20)
        judged = [raw for stretch in stretches().values() for raw in stretch[20:60]]
        spam_filter.learn(judged[0], "ham", user="anna")
        for raw, together in zip(judged, spam_filter.judge_all(judged), strict=True):
            scan, why = spam_filter.scan(raw, users=["anna"]), spam_filter.explain(raw)
            assert together == spam_filter.judge(raw) == scan.verdict == why.verdict
            assert scan.personal["anna"] == spam_filter.judge(raw, user="anna")
            assert scan.threshold > policy.SPAM_THRESHOLD
            assert why.cautious == (
                policy.SPAM_THRESHOLD <= scan.verdict.probability < scan.threshold
            )
            assert (scan.verdict.label == "spam") == (
                scan.verdict.log_odds >= policy.logit(scan.threshold)
            )
