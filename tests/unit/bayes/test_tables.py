"""Counting and its inverse, and sums that always equal a recount from the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.bayes.tables import (
    BASE_CLASSES,
    N_TOKEN_SETS,
    Tables,
    find_places,
    make_evidence,
    read_counts,
    read_rows,
)
from spamguard.errors import TableError
from spamguard.records import Features
from tests.unit.bayes.lessons import (
    BITS,
    NUMBERS,
    TRAITS,
    Taught,
    add,
    all_counts,
    counted,
    empty,
    folded,
    learnt,
    made_up,
    take_away,
)
from tests.unit.bayes.support import repeatable, seeds

CLASSES = ("ham", "spam", "alpha", "news", "zoo")


def recounted(tables: Tables) -> tuple[list[int], list[list[int]]]:
    """Vocabulary by token set, and how many words have each count in each class, from the rows
    alone.
    """
    counts = all_counts(tables)
    used = counts.any(axis=0)
    vocabulary = used.reshape(N_TOKEN_SETS, -1).sum(axis=1).tolist()
    words = counts[:, : 1 << (tables.bits - 2)][:, used[: 1 << (tables.bits - 2)]]
    return vocabulary, [
        np.bincount(row, minlength=tables.histogram.shape[1]).tolist() for row in words
    ]


def assert_sums_are_true(tables: Tables) -> None:
    vocabulary, histogram = recounted(tables)
    assert tables.vocabulary.tolist() == vocabulary
    assert tables.histogram.tolist() == histogram
    by_set = all_counts(tables).reshape(len(tables.classes), N_TOKEN_SETS, -1)
    assert tables.totals.tolist() == by_set.sum(axis=2).tolist()
    assert (
        tables.trait_counts.sum(axis=2).tolist()
        == np.repeat(tables.messages, TRAITS).reshape(-1, TRAITS).tolist()
    )


@repeatable
@given(seeds, st.lists(st.integers(0, 19), max_size=40))
def test_sums_equal_a_recount_after_any_teaching_and_taking_away(
    seed: int, moves: list[int]
) -> None:
    lessons = made_up(seed, 20, CLASSES)
    tables, held = empty(), set()
    for move in moves:
        (take_away if move in held else add)(tables, lessons[move])
        held ^= {move}
        assert_sums_are_true(tables)
        assert tables.classes == [
            *BASE_CLASSES,
            *sorted({lessons[one].label for one in held} - set(BASE_CLASSES)),
        ]
    assert counted(tables) == counted(folded(lessons[one] for one in sorted(held)))


@repeatable
@given(seeds)
def test_taking_away_is_the_exact_inverse_of_counting(seed: int) -> None:
    lessons = made_up(seed, 12, CLASSES)
    tables = folded(lessons[:6])
    before = counted(tables)
    for lesson in lessons[6:]:
        add(tables, lesson)
    for lesson in lessons[6:]:
        take_away(tables, lesson)
    assert counted(tables) == before


@pytest.mark.parametrize("classes", [BASE_CLASSES, CLASSES])
def test_a_lesson_that_was_never_counted_is_refused_and_nothing_changes(
    classes: tuple[str, ...],
) -> None:
    lessons = made_up(3, 20, classes)
    tables = folded(lessons)
    before, state = counted(tables), learnt(tables)
    strangers = [
        lesson for lesson in made_up(4, 20, (*classes, "never")) if len(lesson.features.tokens)
    ]
    for lesson in strangers:
        with pytest.raises(TableError, match=r"never counted.*rebuild"):
            take_away(tables, lesson)
    assert counted(tables) == before
    assert learnt(tables) == state


def test_a_class_without_lessons_and_a_trait_that_was_never_seen_are_refused_too() -> None:
    nothing = np.zeros(0, np.uint32)
    numbers = np.zeros(NUMBERS, np.int16)
    seen, other = (Features(nothing, np.full(TRAITS, value, np.uint8), numbers) for value in (1, 2))
    tables = folded([Taught("ham", seen)])
    for lesson in (Taught("spam", seen), Taught("ham", other)):
        with pytest.raises(TableError):
            take_away(tables, lesson)
    take_away(tables, Taught("ham", seen))
    assert counted(tables) == counted(empty())


@repeatable
@given(seeds, st.permutations(range(15)))
def test_the_order_of_lessons_and_the_appearance_of_classes_do_not_matter(
    seed: int, order: list[int]
) -> None:
    lessons = made_up(seed, 15, CLASSES)
    assert counted(folded(lessons[at] for at in order)) == counted(folded(lessons))


@repeatable
@given(seeds, st.sampled_from((BASE_CLASSES, CLASSES)))
def test_what_is_read_of_rows_is_a_copy_of_every_class(seed: int, classes: tuple[str, ...]) -> None:
    lessons = made_up(seed, 8, classes)
    tables = folded(lessons)
    before = counted(tables)
    features = made_up(seed + 1, 1, classes)[0].features
    seen = make_evidence(features, BITS, tables)
    counts, weights = read_rows(tables, seen)
    assert counts.tolist() == all_counts(tables)[:, seen.buckets].tolist()
    assert weights.shape == (len(tables.classes) - 1, len(seen.buckets))
    places = find_places(tables, seen.buckets)
    counted_here = read_counts(tables, places)
    assert counted_here.tolist() == counts.tolist()
    counted_here += 1
    assert counted(tables) == before
