"""An explanation on a page adds up to its score."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spamguard.records import Clue
from spamguard.web.models import WordPart
from spamguard.web.pages import rendering
from tests.unit.web.pages.fixed import SPAM, explanation, judgement


@pytest.mark.parametrize("words", [0, 1, 12])
def test_the_shown_parts_add_up(words: int) -> None:
    explained = rendering.build_explanation(explanation(), None, words)
    assert sum(row.part for row in (*explained.words, *explained.rest)) == pytest.approx(
        explained.total, abs=1e-9
    )
    assert sum(row.part for row in explained.experts) == pytest.approx(explained.total, abs=1e-9)
    assert len(explained.words) == min(2, 2 * words)


def test_the_question_of_an_explanation() -> None:
    assert rendering.build_explanation(explanation(), None, 1).question == "spam against ham"
    several = replace(SPAM, probabilities={"ham": 0.001, "news": 0.0003, "spam": 0.9987})
    assert (
        rendering.build_explanation(explanation(several), None, 1).question
        == "unwanted mail against wanted, most likely spam against ham"
    )


def test_the_part_of_a_word_at_the_time() -> None:
    explained = rendering.build_explanation(
        explanation(), judgement(words=[WordPart("solar", 2.5)]), 12
    )
    assert {row.name: row.then for row in explained.words} == {"solar": 2.5, "meeting": None}


def test_the_sum_of_all_other_words_has_no_bar() -> None:
    (other,) = [
        row
        for row in rendering.build_explanation(explanation(), None, 12).rest
        if row.name == "all other words"
    ]
    assert (other.bar, other.remark) == (None, "1 of them")


def test_parts_that_round_to_nothing_are_left_out() -> None:
    why = replace(
        explanation(),
        clues=[Clue("a", 6.5579, {}), Clue("b", 0.0001, {})],
        traits={},
        numbers={},
        biases=0.0,
    )
    assert [row.name for row in rendering.build_explanation(why, None, 12).words] == ["a"]
