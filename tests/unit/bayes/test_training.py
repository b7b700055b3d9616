"""Training: one lesson more or less, and the settled state.

That is a function of the lessons in their canonical order, with the same counts as teaching one by
one.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from spamguard.bayes import experts, fusion, logistic, training
from spamguard.bayes.experts import Floats
from spamguard.bayes.fusion import fuse, score_message
from spamguard.bayes.tables import (
    BASE_CLASSES,
    Evidence,
    Tables,
    make_evidence,
    read_rows,
)
from spamguard.bayes.training import BLOCK_LESSONS
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

CLASSES = ("ham", "spam", "news")


def logistic_scores(tables: Tables, lesson: Taught) -> Floats:
    """Of each class but the first and the sets the lesson has features in, (K-1, sets)."""
    seen = make_evidence(lesson.features, tables.bits)
    return (
        scores(tables, seen)[: len(tables.biases), 4:8][:, seen.sizes > 0] / experts.STEPS_PER_NAT
    )


def scores(tables: Tables, seen: Evidence) -> NDArray[np.int64]:
    """First scores: without the bounds of judging, which depend on the number of lessons."""
    most = round(experts.MAX_SCORE_NATS * experts.STEPS_PER_NAT)
    return np.array(
        score_message(
            tables,
            replace(
                experts.estimate_parameters(tables), bounds=experts.ScoreBounds(-most, 2 * most)
            ),
            seen,
        ).scores
    )


@repeatable
@given(seeds, st.sampled_from(CLASSES))
def test_a_lesson_raises_the_odds_of_its_class_at_once(seed: int, label: str) -> None:
    lessons = made_up(seed, 6, CLASSES)
    tables = folded(lessons)
    lesson = Taught(label, lessons[0].features)
    add(tables, Taught("news", lesson.features))  # so that the class is there
    take_away(tables, Taught("news", lesson.features))
    add(tables, Taught("news", made_up(seed + 1, 1)[0].features))
    before = logistic_scores(tables, lesson).sum(axis=1)
    add(tables, lesson)
    after = logistic_scores(tables, lesson).sum(axis=1)
    mine = tables.classes.index(label)
    assert (after < before + 1e-9).all() if mine == 0 else after[mine - 1] > before[mine - 1] - 1e-9


@pytest.mark.parametrize("label", CLASSES)
def test_of_what_lessons_have_taught_together_each_takes_its_part_with_it(label: str) -> None:
    others, kind = made_up(1, 40, CLASSES), made_up(2, 1)[0].features
    tables = replayed([*others, *[Taught(label, kind)] * 10])
    ours, mine = make_evidence(kind, BITS).buckets, tables.classes.index(label)
    alone = ours[read_rows(tables, ours).counts.sum(axis=0) == 10]  # of no other lesson
    weights = [
        column.cells[alone * column.width + column.offset]
        for column in logistic.weight_table_columns(tables)
    ]
    assert len(alone)
    for left in range(9, -1, -1):
        take_away(tables, Taught(label, kind))
        for number, (column, before) in enumerate(
            zip(logistic.weight_table_columns(tables), weights, strict=False), start=1
        ):
            assert (before > 0).all() if mine == number else (before < 0).all()
            now = column.cells[alone * column.width + column.offset]
            assert np.abs(now - before * (left / 10)).max() <= 10


@pytest.mark.slow
@repeatable
@given(seeds)
def test_nothing_of_the_weights_is_left_when_all_lessons_of_many_classes_are_taken_back(
    seed: int,
) -> None:
    lessons = made_up(seed, 40, (*CLASSES, "offers"))
    tables = replayed(lessons)
    for lesson in lessons:
        take_away(tables, lesson)
    assert not tables.columns
    assert not tables.rows.any()


@pytest.mark.parametrize("label", ["ham", "news"])
def test_what_another_class_says_against_a_third_is_its_own(label: str) -> None:
    """One lesson of many that speak against spam takes its part of that alone, whatever class the
    others are of.
    """
    kind = made_up(2, 1)[0].features
    tables = replayed(
        [
            *made_up(1, 40, CLASSES),
            *[Taught("news" if label == "ham" else "ham", kind)] * 9,
            Taught(label, kind),
        ]
    )
    ours = make_evidence(kind, BITS).buckets
    alone = ours[read_rows(tables, ours).counts.sum(axis=0) == 10]
    before = tables.rows[alone, 2]
    take_away(tables, Taught(label, kind))
    assert (before < 0).all()
    assert np.abs(tables.rows[alone, 2] - before * 0.9).max() <= 1


def test_a_damaged_count_of_another_class_does_no_harm() -> None:
    lesson = Taught("news", made_up(2, 1)[0].features)
    tables = replayed([*made_up(1, 40, CLASSES), lesson])
    tables.rows[:, 0] = -1
    take_away(tables, lesson)  # and divides by nothing


def test_many_of_a_kind_that_are_taken_back_do_not_drive_one_another_to_the_other_side() -> None:
    disputed = made_up(4, 1)[0].features
    lessons = [*made_up(3, 60), *[Taught("spam", disputed)] * 10]
    poison = [Taught("ham", disputed)] * 30
    tables = replayed([*lessons, *poison])
    tables.rows[:, 2] //= 50  # as if others had nearly made up for them
    before = logistic_scores(tables, poison[0])
    for lesson in poison:
        take_away(tables, lesson)
    after = logistic_scores(tables, poison[0])
    assert (before < 0).any()
    assert (after[before < 0] > before[before < 0]).any()
    assert (after <= np.maximum(before, 0.5)).all()
    assert counted(tables) == counted(folded(lessons))


@repeatable
@given(seeds, st.sampled_from(("ham", "spam")))
def test_a_lesson_that_is_taken_back_at_once_leaves_nothing_behind(seed: int, label: str) -> None:
    tables = replayed(made_up(seed, 60))
    lesson = Taught(label, made_up(seed + 1, 1)[0].features)
    seen = make_evidence(lesson.features, BITS)
    before, joint_before = (
        scores(tables, seen),
        fuse(tables, experts.estimate_parameters(tables), seen),
    )
    add(tables, lesson)
    take_away(tables, lesson, before.ravel())
    assert np.abs(scores(tables, seen) - before).max() <= 0.1 * experts.STEPS_PER_NAT
    assert fuse(tables, experts.estimate_parameters(tables), seen) == pytest.approx(
        joint_before, abs=0.2
    )


def test_what_others_have_made_up_for_is_not_taken_back_again() -> None:
    tables = folded(made_up(1, 20))
    lesson = Taught("spam", made_up(2, 1)[0].features)
    before = scores(tables, make_evidence(lesson.features, BITS)).ravel()
    add(tables, lesson)
    for _ in range(5):
        add(tables, Taught("ham", lesson.features))
    weights = tables.rows[:, 2].copy()
    assert (
        logistic_scores(tables, lesson)
        < before[4:8][make_evidence(lesson.features, BITS).sizes > 0] / experts.STEPS_PER_NAT
    ).all()
    take_away(tables, lesson, before)
    assert tables.rows[:, 2].tolist() == weights.tolist()


@pytest.mark.slow
def test_overflow_is_out_of_reach_under_ten_thousand_identical_lessons() -> None:
    lesson = made_up(2, 1)[0]
    tables = empty()
    for _ in range(10_000):
        add(tables, Taught("spam", lesson.features))
    assert int(np.abs(tables.rows[:, 2]).max()) < 20 * logistic.ONE
    assert int(np.abs(tables.biases).max()) < 100 * logistic.ONE
    assert tables.messages.tolist() == [0, 10_000]
    for _ in range(10_000):
        take_away(tables, Taught("spam", lesson.features))
    assert counted(tables) == counted(empty())
    assert int(np.abs(tables.rows[:, 2]).max()) < 100 * logistic.ONE


def test_fusion_waits_for_the_settled_state() -> None:
    assert folded(made_up(4, 30)).fusion_weights.tolist() == fusion.START_WEIGHTS.tolist()
    assert replayed(made_up(4, 30)).fusion_weights.tolist() != fusion.START_WEIGHTS.tolist()


@repeatable
@given(seeds)
def test_the_same_lessons_in_the_same_order_give_the_same_bits(seed: int) -> None:
    lessons = made_up(seed, 12, CLASSES)
    assert learnt(folded(lessons)) == learnt(folded(lessons))


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_any_number_of_features_can_be_taught_and_taken_back(size: int) -> None:
    tokens = np.unique(np.random.default_rng(5).integers(0, 2**32, size, dtype=np.uint32))
    lesson = Taught("spam", replace(made_up(6, 1)[0].features, tokens=tokens))
    tables = folded(made_up(7, 5))
    before = counted(tables)
    add(tables, lesson)
    assert counted(tables) != before
    take_away(tables, lesson)
    assert counted(tables) == before


TOKENS = np.array(
    [5 << 22, (5 << 22) + 1, 9 << 22, 3 << 30], np.uint32
)  # the first two share a bucket of 2**10
ODDS = np.array([16, 16, -127, 1], np.int8)


SEVERAL_CLASSES = {
    2: BASE_CLASSES,
    3: (*BASE_CLASSES, "news"),
    5: ("ham", "spam", "alpha", "news", "zoo"),
}
_MUCH = 100 * logistic.ONE  # where weights are capped is forty times as far
several = pytest.mark.parametrize("classes", SEVERAL_CLASSES.values(), ids=str)


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
    monkeypatch.setattr(training, "FUSION_LESSONS", window)
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
        training.replay(there, there, len(lessons), [], BITS, TRAITS, NUMBERS),
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
