"""Why: parts that sum to the verdict, in words, and what would flip it."""

from __future__ import annotations

from math import log
from pathlib import Path

import pytest

from spamguard import Filter, policy
from spamguard.errors import UsageError
from spamguard.records import Explanation
from tests.unit.filters import mail, opened, teach

MAIL = mail(90)
HAM, SPAM = ([raw for label, raw in MAIL if label == kind] for kind in ("ham", "spam"))
ODD = (b"", b"\n", b"no header", b"\0" * 500, b": \n :\n", b"x" * 100_000)


def assert_it_adds_up(found: Explanation) -> None:
    exact = pytest.approx(found.log_odds, abs=1e-9)
    assert found.prior + sum(found.shares.values()) == exact
    clues = sum(clue.part for clue in found.clues)
    assert found.prior + found.biases + clues + sum(found.traits.values()) + sum(found.numbers.values()) == exact


def test_explanations_add_up_to_the_verdict(tmp_path: Path) -> None:
    with opened(tmp_path) as one:
        for step in range(4):
            for raw in (*HAM[-6:], *SPAM[-6:], *ODD):
                found = one.explain(raw)
                assert (found.favoured, found.against) == ("spam", "ham")
                assert found.verdict == one.judge(raw)
                assert found.log_odds == pytest.approx(found.verdict.log_odds, abs=1e-9)
                assert_it_adds_up(found)
            teach(one, MAIL[15 * step : 15 * step + 15])
            if step == 2:
                one.settle()


def test_explanations_among_many_classes_are_of_the_verdict_and_tell_the_two_strongest(taught: Filter) -> None:
    for raw in (*HAM[-8:], *SPAM[-8:], *ODD):
        found = taught.explain(raw)
        assert_it_adds_up(found)
        of = found.verdict.probabilities
        assert of[found.favoured] == max(of["spam"], of["promo"])
        assert of[found.against] == max(of["ham"], of["news"])
        assert found.log_odds == pytest.approx(found.verdict.log_odds, abs=1e-9)


def test_without_the_clues_that_flip_it_the_label_would_be_another(tmp_path: Path) -> None:
    with opened(tmp_path) as one:
        teach(one, MAIL[:40])
        flipped = 0
        for raw in (*HAM[-15:], *SPAM[-15:]):
            found = one.explain(raw)
            lessons = one.status().classes
            holding = [clue.part for clue in found.clues if clue.part * found.to_threshold < 0]
            assert found.log_odds + found.to_threshold == pytest.approx(_nearest_border(found.log_odds, one.scan(raw).threshold))
            if found.flip is None:
                assert sum(map(abs, holding)) < abs(found.to_threshold)
                continue
            flipped += 1
            labels = []
            for gone in (found.flip - 1, found.flip):
                left = found.log_odds - sum(holding[:gone])
                threshold = one.scan(raw).threshold
                labels.append(policy.verdict(found.verdict.probabilities, left, one.unwanted, lessons, threshold).label)
            assert labels[0] == found.verdict.label != labels[1]
        assert flipped > 5


def test_no_words_would_change_what_is_unsure_for_want_of_lessons(tmp_path: Path) -> None:
    with opened(tmp_path) as one:
        for label, raw, few in (("ham", HAM[:9], True), ("spam", SPAM[: policy.FEWEST_LESSONS - 1], True), ("spam", SPAM[5:6], False)):
            teach(one, [(label, each) for each in raw])
            found = one.explain(SPAM[-1])
            assert found.few is few
            assert not few or (found.flip, found.verdict.label) == (None, "unsure")


def _nearest_border(odds: float, spam_from: float) -> float:
    borders = [log(at / (1 - at)) for at in (policy.HAM_TO, spam_from)]
    return min(borders, key=lambda border: abs(border - odds))


def test_clues_are_told_in_words_with_their_counts(tmp_path: Path) -> None:
    with opened(tmp_path) as one:
        teach(one, [("spam", b"Subject: x\n\nwatches\n"), ("spam", b"Subject: y\n\nwatches now\n"), ("ham", b"Subject: z\n\nnow\n")])
        clues = {clue.text: clue.counts for clue in one.explain(b"Subject: q\n\nwatches now never\n").clues}
        strongest = [abs(clue.part) for clue in one.explain(SPAM[0]).clues]
    assert clues["watches"] == {"ham": 0, "spam": 2}
    assert clues["now"] == {"ham": 1, "spam": 1}
    assert clues["never"] == {"ham": 0, "spam": 0}
    assert strongest == sorted(strongest, reverse=True)


def test_only_the_default_profile_is_explained(tmp_path: Path) -> None:
    with opened(tmp_path, profile="bernoulli") as one, pytest.raises(UsageError, match="default profile"):
        one.explain(MAIL[0][1])
