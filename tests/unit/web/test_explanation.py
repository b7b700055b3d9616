"""An explanation on a page adds up to its score."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spamguard.engine.explain_text import KINDS
from spamguard.records import Clue
from spamguard.web import formatting
from spamguard.web.models import WordPart
from tests.unit.web.fixed import SPAM, explanation, judgement


def long_explanation(number: int):
    parts = [2.0 / (1 + position) for position in range(number)]
    return replace(
        explanation(),
        log_odds=sum(parts),
        prior=0.0,
        biases=0.0,
        traits={},
        numbers={},
        clues=[Clue(f"w{position}", part, {}) for position, part in enumerate(parts)],
    )


def test_groups_features_and_experts_add_up() -> None:
    explained = formatting.build_explanation(explanation(), None)
    for rows in (explained.groups, explained.features, explained.experts):
        assert sum(row.part for row in rows) == pytest.approx(explained.total, abs=1e-9)


@pytest.mark.parametrize("number", [1, 25, 26, 400])
def test_every_page_adds_up_and_every_feature_is_on_one(number: int) -> None:
    why = long_explanation(number)
    pages = formatting.build_explanation(why, None).pages
    names = []
    for page in range(1, pages + 1):
        explained = formatting.build_explanation(why, None, page)
        total = sum(row.part for row in explained.features)
        assert total == pytest.approx(explained.total, abs=1e-9)
        names += [row.name for row in explained.features if row.name != "all other features"]
    assert names == [f"w{position}" for position in range(number)]


def test_the_first_page_leaves_out_a_third_at_most() -> None:
    rows = formatting.build_explanation(long_explanation(400), None).features
    others = sum(row.part for row in rows if row.name == "all other features")
    assert 0 < others <= sum(row.part for row in rows) / 3 + 0.001


@pytest.mark.parametrize("page", [-1, 0, 10**6])
def test_a_page_that_is_not_there_is_the_nearest(page: int) -> None:
    explained = formatting.build_explanation(long_explanation(400), None, page)
    assert explained.page == (1 if page < 1 else explained.pages)


def test_the_question_of_an_explanation() -> None:
    assert formatting.build_explanation(explanation(), None).question == "spam against ham"
    several = replace(SPAM, probabilities={"ham": 0.001, "news": 0.0003, "spam": 0.9987})
    assert (
        formatting.build_explanation(explanation(several), None).question
        == "unwanted mail against wanted, most likely spam against ham"
    )


def test_the_part_of_a_word_at_the_time() -> None:
    explained = formatting.build_explanation(
        explanation(), judgement(words=[WordPart("solar", 2.5)])
    )
    then = {row.name: row.then for row in explained.features}
    assert (then["solar"], then["meeting"]) == (2.5, None)


def test_sums_of_several_features_have_no_bar() -> None:
    why = long_explanation(400)
    unkept = [Clue("", 1.0, {}, "pairs"), Clue("", 1.0, {}, "pairs")]
    why = replace(why, clues=[*why.clues, *unkept], log_odds=why.log_odds + 2)
    rows = {row.name: row for row in formatting.build_explanation(why, None).features}
    assert rows["all other features"].bar is None
    pairs = rows["pairs of words, text not kept"]
    assert (pairs.bar, pairs.remark, pairs.counts) == (None, "2 features", None)


def test_every_kind_that_is_shown_has_its_sentence() -> None:
    explained = formatting.build_explanation(explanation(), None)
    kinds = {row.kind for row in explained.features if row.kind}
    assert dict(explained.kinds) == {kind: KINDS[kind].about for kind in kinds}


def test_parts_that_round_to_nothing_are_left_out() -> None:
    why = replace(
        explanation(),
        clues=[Clue("a", 6.5579, {}), Clue("b", 0.0001, {})],
        traits={},
        numbers={},
        biases=0.0,
    )
    names = [row.name for row in formatting.build_explanation(why, None).features]
    assert names == ["a", "prior"]
