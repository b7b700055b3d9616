"""The settled state: a function of the lessons in their canonical order, with the same counts as
teaching one by one.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.bayes import experts, logistic, replay
from spamguard.bayes.replay import BLOCK_LESSONS
from spamguard.bayes.tables import BASE_CLASSES, Tables
from tests.unit.bayes.lessons import (
    BITS,
    NUMBERS,
    TRAITS,
    Taught,
    add,
    counted,
    empty,
    folded,
    in_blocks,
    learnt,
    made_up,
    replayed,
    take_away,
)
from tests.unit.bayes.support import repeatable, seeds

CLASSES = {2: BASE_CLASSES, 3: (*BASE_CLASSES, "news"), 5: ("ham", "spam", "alpha", "news", "zoo")}
_MUCH = 100 * logistic.ONE  # where weights are capped is forty times as far
several = pytest.mark.parametrize("classes", CLASSES.values(), ids=str)


@pytest.mark.slow
@several
@repeatable
@given(seeds, st.randoms(use_true_random=False))
def test_folding_in_any_order_and_forgetting_counts_what_replay_counts(
    classes: tuple[str, ...], seed: int, random: Random
) -> None:
    lessons = made_up(seed, 70, classes)
    tables = empty()
    for lesson in random.sample(lessons, 70):
        slips = [
            Taught(random.choice(classes), lesson.features) for _ in range(random.randrange(3))
        ]
        for slip in slips:  # first something else is said, and taken back
            add(tables, slip)
            take_away(tables, slip)
        add(tables, lesson)
    for lesson in random.sample(lessons, 10):  # taught again after it was forgotten
        take_away(tables, lesson)
        add(tables, lesson)
    assert counted(tables) == counted(replayed(lessons))


@several
@pytest.mark.parametrize("size", [0, 1, 7, 128, 129, 300])
def test_replaying_twice_gives_the_same_bits_in_everything(
    classes: tuple[str, ...], size: int
) -> None:
    lessons = made_up(size, size, classes)
    one, other = replayed(lessons), replayed(lessons)
    assert counted(one) == counted(other) == counted(folded(lessons))
    assert learnt(one) == learnt(other)


def test_replay_of_nothing_is_the_empty_table() -> None:
    assert (counted(replayed([])), learnt(replayed([]))) == (counted(empty()), learnt(empty()))


@pytest.mark.parametrize("label", ["ham", "spam", "news"])
def test_one_class_alone_can_be_replayed(label: str) -> None:
    tables = replayed([Taught(label, lesson.features) for lesson in made_up(1, 100)])
    assert tables.messages.sum() == 100
    assert learnt(tables)["weights"].strip(b"\0")  # something was learnt


def test_lessons_that_say_nothing_at_all_can_be_replayed() -> None:
    silent = [
        Taught(label, replace(said, tokens=np.zeros(0, np.uint32)))
        for label, said in made_up(2, 20)
    ]
    assert counted(replayed(silent)) == counted(folded(silent))


def test_forty_classes() -> None:
    names = [f"class{number:02}" for number in range(40)]
    lessons = made_up(3, 400, (*BASE_CLASSES, *names))
    assert counted(replayed(lessons)) == counted(folded(lessons))


def test_ten_thousand_identical_lessons_stay_far_from_overflow() -> None:
    lesson = Taught("spam", made_up(4, 1)[0].features)
    tables = replayed([lesson] * 10_000)
    assert int(np.abs(tables.rows[:, 2]).max()) < _MUCH
    assert int(np.abs(tables.fusion_weights).max()) < 100 * logistic.ONE
    assert (
        tables.number_products.max() == 10_000 * int(lesson.features.numbers.astype(int).max()) ** 2
    )
    assert tables.number_sums.shape == (2, NUMBERS)


def test_contradicting_lessons_stay_far_from_overflow_too() -> None:
    lesson = made_up(5, 1)[0]
    tables = replayed([Taught(BASE_CLASSES[at % 2], lesson.features) for at in range(5_000)])
    assert int(np.abs(tables.rows[:, 2]).max()) < _MUCH


@pytest.mark.parametrize(
    ("window", "scored"),
    [
        (10 * BLOCK_LESSONS, [0, BLOCK_LESSONS, 2 * BLOCK_LESSONS]),
        (BLOCK_LESSONS, [2 * BLOCK_LESSONS]),
    ],
    ids=["all", "the last"],
)
def test_fusion_takes_scores_before_their_block_is_counted(
    monkeypatch: pytest.MonkeyPatch, window: int, scored: list[int]
) -> None:
    seen: list[int] = []
    parameters = experts.estimate_parameters

    def noting(tables: Tables, unwanted: set[str]) -> experts.ExpertParameters:
        seen.append(int(tables.messages.sum()))
        return parameters(tables, unwanted)

    monkeypatch.setattr(experts, "estimate_parameters", noting)
    monkeypatch.setattr(replay, "FUSION_LESSONS", window)
    replayed(made_up(6, 2 * BLOCK_LESSONS + 22))
    assert seen == 2 * scored  # there and back


def test_the_order_is_the_callers() -> None:
    lessons = made_up(7, 200)
    others = lessons[100:] + lessons[:100]
    assert learnt(replayed(lessons)) != learnt(replayed(others))
    assert counted(replayed(lessons)) == counted(replayed(others))


@several
def test_nothing_is_owed_to_the_end_at_which_the_order_begins(classes: tuple[str, ...]) -> None:
    lessons = made_up(8, 2 * BLOCK_LESSONS + 44, classes)
    one, other = replayed(lessons), replayed(lessons[::-1])
    assert learnt(one)["weights"].strip(b"\0")
    assert learnt(one) == learnt(other)


def test_fusion_is_believed_on_the_way_on_which_it_met_both_sides() -> None:
    spam, ham = (
        [one for one in made_up(9, 600) if one.label == label] for label in ("spam", "ham")
    )
    lessons = [
        *spam[: BLOCK_LESSONS + 40],
        *ham[:3],
    ]  # ham are among the first that are played on the way back
    there = in_blocks(lessons)
    alone, met = (
        replay.replay(there, there, len(lessons), [], BITS, TRAITS, NUMBERS),
        replayed(lessons),
    )
    assert learnt(met)["fusion_weights"] == learnt(alone)["fusion_weights"]
    assert learnt(met)["weights"] != learnt(alone)["weights"]


def test_weights_of_both_ways_are_halved_without_a_sum_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logistic, "LEARNING_RATE", 700_000)
    lesson = Taught("spam", replace(made_up(4, 1)[0].features, tokens=np.array([1], np.uint32)))
    weights = replayed([lesson]).rows[:, 2]
    assert weights.max() > np.iinfo(np.int32).max // 2
    assert weights.min() == 0
