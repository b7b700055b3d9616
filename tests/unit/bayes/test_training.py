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

from spamguard.bayes import experts, logistic
from spamguard.bayes.experts import Floats, score_message
from spamguard.bayes.fusion import fuse
from spamguard.bayes.tables import (
    BASE_CLASSES,
    Tables,
    make_evidence,
)
from spamguard.records import Features
from tests.unit.bayes.lessons import (
    Taught,
    add,
    counted,
    empty,
    folded,
    made_up,
    replayed,
    take_away,
)
from tests.unit.bayes.support import repeatable, seeds

CLASSES = ("ham", "spam", "news")


def logistic_scores(tables: Tables, lesson: Taught) -> Floats:
    """Of each class but the first and the sets the lesson has features in, (K-1, sets)."""
    filled = make_evidence(lesson.features, tables.bits).sizes > 0
    found = scores(tables, lesson.features)[: len(tables.biases), 4:8]
    return found[:, filled] / experts.STEPS_PER_NAT


def scores(tables: Tables, seen: Features) -> NDArray[np.int64]:
    """First scores: without the bounds of judging, which depend on the number of lessons."""
    most = round(experts.MAX_SCORE_NATS * experts.STEPS_PER_NAT)
    unbounded = replace(experts.estimate_parameters(tables), min_score=-most, max_lead=2 * most)
    return np.array(score_message(unbounded, seen).scores)


def judged(tables: Tables, seen: Features) -> list[float]:
    return fuse(score_message(experts.estimate_parameters(tables), seen))


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


@repeatable
@given(seeds, st.sampled_from(("ham", "spam")))
def test_a_lesson_that_is_taken_back_at_once_leaves_nothing_behind(seed: int, label: str) -> None:
    tables = replayed(made_up(seed, 60))
    lesson = Taught(label, made_up(seed + 1, 1)[0].features)
    seen = lesson.features
    before, joint_before = scores(tables, seen), judged(tables, seen)
    add(tables, lesson)
    take_away(tables, lesson, before.ravel())
    assert np.abs(scores(tables, seen) - before).max() <= 0.1 * experts.STEPS_PER_NAT
    assert judged(tables, seen) == pytest.approx(joint_before, abs=0.2)


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


def test_contradicting_lessons_stay_far_from_overflow_too() -> None:
    lesson = made_up(5, 1)[0]
    tables = replayed([Taught(BASE_CLASSES[at % 2], lesson.features) for at in range(5_000)])
    assert int(np.abs(tables.rows[:, 2]).max()) < _MUCH
