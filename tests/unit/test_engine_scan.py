"""A scan is the verdict of `judge` with what is kept of a message: its digest, its features, its strongest words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spamguard import Filter, policy
from spamguard.bayes.explanation import strongest
from spamguard.ledger import codec
from spamguard.model import goodmail
from spamguard.policy import GoodMail
from spamguard.records import Explanation, Scan
from tests.unit.bayes.support import repeatable
from tests.unit.filters import mail, opened, teach

MAIL = mail(90)
JAPANESE = "Subject: 今日は\n\n今日は良い天気です。ありがとう ok\n".encode()
ODD = (b"", b"\n", b"no header", b"\0" * 500, b": \n :\n", b"x" * 100_000, JAPANESE, b" blank first\nSubject: x\n\nbody\n", b"one")


def clues(found: Explanation, words: int) -> dict[str, float]:
    """The strongest of an explanation, each way."""
    up = [clue for clue in found.clues if clue.part > 0][:words]
    down = [clue for clue in found.clues if clue.part < 0][:words]
    return {clue.text: clue.part for clue in (*up, *down)}


def assert_same_words(found: Scan, whole: Explanation, words: int) -> None:
    """Words that weigh the same may come in any order, and any of them may be the last."""
    told = {clue.text: clue.part for clue in whole.clues}
    assert sorted(word.part for word in found.words) == sorted(clues(whole, words).values())
    assert all(told[word.text] == word.part for word in found.words)
    assert [abs(word.part) for word in found.words] == sorted((abs(word.part) for word in found.words), reverse=True)


def test_a_scan_is_the_verdict_of_judge_and_the_words_of_explain(taught: Filter) -> None:
    for raw in (*(raw for _, raw in MAIL), *ODD):
        found = taught.scan(raw)
        assert found.verdict == taught.judge(raw)
        assert_same_words(found, taught.explain(raw), 8)
        ready = taught._preparer.ready(raw)
        assert (found.digest, found.packed) == (ready.digest, codec.pack(ready.features))
        assert {word.token for word in found.words} <= set(ready.features.tokens.tolist())
        assert (found.verdict.label in ("spam", "promo")) == (found.verdict.probability >= found.threshold)


@pytest.mark.parametrize("words", [0, 1, 3, 10_000])
def test_as_many_words_as_asked_for(taught: Filter, words: int) -> None:
    for raw in (MAIL[0][1], MAIL[1][1], JAPANESE):
        assert_same_words(taught.scan(raw, words), taught.explain(raw), words)


@repeatable
@given(st.lists(st.sampled_from((-2.0, -1.5, -1.0, 0.0, 0.5, 1.0, 3.0)), max_size=12), st.integers(0, 8))
@example([1.0, 2.0], 8)
@example([-1.0] * 5, 2)
def test_the_strongest_each_way(parts: list[float], number: int) -> None:
    found = [parts[place] for place in strongest(np.array(parts), number).tolist()]
    up = sorted((part for part in parts if part > 0), reverse=True)[:number]
    down = sorted(part for part in parts if part < 0)[:number]
    assert sorted(found) == sorted((*up, *down))
    assert list(map(abs, found)) == sorted(map(abs, found), reverse=True)


@pytest.mark.parametrize("profile", ["bernoulli", "multinomial", "logistic", "categorical", "gaussian"])
def test_other_profiles_have_no_words(taught: Filter, profile: str) -> None:
    with Filter.open(taught.directory, profile=profile) as other:
        for raw in (MAIL[0][1], MAIL[1][1], JAPANESE, b""):
            found = other.scan(raw)
            assert (found.verdict, found.words) == (other.judge(raw), ())
            assert found.digest == taught.scan(raw).digest


RECEIVED = b"Received: from shady.example.net ([192.0.2.7])\r\n"


def test_fields_on_top_are_evidence_and_no_part_of_the_identity(taught: Filter) -> None:
    for raw in (*(raw for _, raw in MAIL[:20]), *ODD, b"From a b\nSubject: x\n\nbody\n", b"no field\nSubject: y\n\nz\n"):
        found = taught.scan(raw, on_top=RECEIVED)
        assert found.digest == taught.scan(raw).digest
        if raw[:1].isalpha() and b": " in raw.partition(b"\n")[0]:
            assert found.verdict == taught.judge(RECEIVED + raw)
            assert found.packed != taught.scan(raw).packed


@pytest.mark.parametrize("line", [b"From anna@example.com Mon Jan  1 10:00:00 2024\n", b">From anna\r\n"])
def test_fields_on_top_stand_below_an_envelope_line(taught: Filter, line: bytes) -> None:
    for raw in (MAIL[0][1], MAIL[1][1], JAPANESE, b" blank first\n\nx"):
        found, without = taught.scan(line + raw, on_top=RECEIVED), taught.scan(raw, on_top=RECEIVED)
        assert (found.verdict, found.digest, found.packed) == (without.verdict, without.digest, without.packed)


def test_a_first_line_that_begins_with_a_blank_is_no_tail_of_what_is_on_top(taught: Filter) -> None:
    assert taught.scan(b" viagra\n\nbody\n", on_top=RECEIVED).verdict == taught.judge(RECEIVED + b"\r\n viagra\n\nbody\n")


def test_whether_settling_is_due(tmp_path: Path) -> None:
    with opened(tmp_path) as one:
        teach(one, MAIL[:9])
        assert not one.scan(b"x").settle
        teach(one, MAIL[9:10])
        assert one.scan(b"x").settle
        assert one.settle_if_due()
        assert not one.scan(b"x").settle


# The threshold by a bound


@pytest.fixture
def _enough_good_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of spam but its threshold, as where hundreds of good messages have been taught."""
    monkeypatch.setattr(policy, "caution", lambda good, confidence: None)


@pytest.mark.usefixtures("_enough_good_mail")
def test_a_threshold_in_force_moves_label_and_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as one:
        teach(one, MAIL[:60])
        one.settle()
        ranked = sorted((one.judge(raw).log_odds, raw) for label, raw in MAIL if label == "spam")
        odds, raw = ranked[-2]
        border = GoodMail(5000, [odds + 0.001] * 50)
        monkeypatch.setattr(goodmail, "known", lambda ledger: border)
        assert one.threshold(0) == policy.Threshold()
        assert one.threshold(1000).in_force
    with opened(tmp_path, one_wrong_in=1000) as strict, opened(tmp_path) as fixed:
        assert strict.scan(raw).threshold > fixed.scan(raw).threshold == policy.SPAM_FROM
        assert strict.scan(raw).verdict.label == strict.judge(raw).label == "unsure"
        assert fixed.judge(raw).label == "spam"
        assert strict.judge(ranked[-1][1]).label == "spam"
        assert strict.explain(raw).to_threshold == pytest.approx(0.001, abs=1e-4)


@pytest.mark.usefixtures("_enough_good_mail")
def test_a_threshold_measured_elsewhere_is_in_force_at_once(tmp_path: Path) -> None:
    with opened(tmp_path) as teacher, opened(tmp_path, one_wrong_in=1000) as other:
        teach(teacher, MAIL[:30])
        assert other.scan(b"x").threshold == policy.SPAM_FROM
        teacher.ledger.set_meta(goodmail._KEY, '{"confirmed": 4000, "highest": [5000, 4000]}')
        assert other.scan(b"x").threshold == pytest.approx(1 / (1 + np.exp(-5.0)), abs=1e-6)
