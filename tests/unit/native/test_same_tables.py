"""The kernel places, gathers, sums and adds as numpy does; the settled state is the same bits,
whichever made it.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.bayes import logistic
from spamguard.bayes.tables import (
    Evidence,
    Tables,
    batch_features,
    make_evidence,
)
from spamguard.records import Features
from tests.unit.bayes.lessons import (
    Taught,
    counted,
    empty,
    folded,
    learnt,
    made_up,
    take_away,
)
from tests.unit.native.both import both, needs_kernel, repeatable

pytestmark = needs_kernel
seeds = st.integers(0, 2**32 - 1)
tokens = st.lists(
    st.integers(0, 2**32 - 1) | st.sampled_from((0, 2**30, 2**31, 2**32 - 1)), max_size=60
).map(lambda some: np.array(sorted(some), np.uint32))


def of_tokens(some: np.ndarray) -> Features:
    return Features(some, np.zeros(3, np.uint8), np.zeros(2, np.int16))


@repeatable
@given(tokens, st.integers(8, 28))
def test_evidence(some: np.ndarray, bits: int) -> None:
    assert_same(*both(lambda: make_evidence(of_tokens(some), bits)))


@repeatable
@given(seeds, tokens, tokens)
def test_what_is_known_of_evidence(seed: int, some: np.ndarray, more: np.ndarray) -> None:
    tables, several = folded(made_up(seed, 9)), [of_tokens(some), of_tokens(more)]
    assert_same(*both(lambda: make_evidence(several[0], tables.bits, tables)))
    assert_same(*both(lambda: batch_features(several, tables.bits, tables)))


def assert_same(compiled: Evidence, plain: Evidence) -> None:
    for first, second in zip(compiled, plain, strict=True):
        np.testing.assert_array_equal(first, second)
        assert first.dtype == second.dtype


@repeatable
@given(st.lists(tokens, min_size=1, max_size=6), st.integers(8, 28))
def test_messages_side_by_side(several: list[np.ndarray], bits: int) -> None:
    assert_same(*both(lambda: batch_features([of_tokens(one) for one in several], bits)))


def with_rows(rows: np.ndarray) -> Tables:
    tables = empty()
    tables.rows = rows.astype(np.int32)  # a copy
    return tables


@repeatable
@given(seeds, st.lists(st.integers(0, 20), max_size=12))
def test_sums_and_moves_over_runs(seed: int, lengths: list[int]) -> None:
    random = np.random.default_rng(seed)
    sizes = np.array(lengths, np.intp)
    buckets = np.concatenate(
        [np.zeros(0, np.intp), *(random.permutation(40)[:size] for size in lengths)]
    )  # so few that runs share some
    most = int(logistic.MAX_WEIGHT)
    table = random.integers(-most - 9, most + 9, (40, 4)) // random.choice((1, 1000))
    table = table.astype(np.int32)
    table[:, :2] = random.choice((0, 1, 2, 9, 10, 5000), (40, 2))  # beyond the last share too
    moves = random.choice((0, 1, -1, 5, -5, 1 << 20, -(1 << 20), 999_999), len(sizes)).astype(
        np.int32
    )
    columns = random.integers(0, 2, len(sizes))

    def work() -> tuple[list[int], list[int]]:
        tables = with_rows(table)
        sums = logistic.sum_weights(tables, buckets, sizes.cumsum() - sizes, sizes)
        logistic.count_features(tables, buckets, sizes, columns)
        decay = logistic.weight_decay(sizes)
        logistic.move_weights(tables, buckets, sizes, moves[:, np.newaxis], decay)
        return sums.tolist(), tables.rows.ravel().tolist()

    compiled, plain = both(work)
    assert compiled == plain


def test_weights_beyond_their_bounds_are_brought_back_before_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = 1000
    monkeypatch.setattr(logistic, "MAX_WEIGHT", np.int32(most))

    def work() -> tuple[list[int], list[int]]:
        tables = with_rows(np.array([[0, 0, most + 3, 0], [0, 0, 7, 0], [0, 0, -most - 3, 0]]))
        sums = logistic.sum_weights(tables, np.arange(3), np.arange(3), np.ones(3, np.intp))
        return sums.ravel().tolist(), tables.rows[:, 2].tolist()

    compiled, plain = both(work)
    assert compiled == plain == ([most, 7, -most], [most, 7, -most])


def bits_of(tables: Tables) -> tuple[object, object]:
    return counted(tables), learnt(tables)


@pytest.mark.parametrize("classes", [("ham", "spam"), ("ham", "spam", "alpha", "news", "zoo")])
def test_lessons_one_at_a_time(classes: tuple[str, ...]) -> None:
    for seed in range(12):
        lessons = made_up(seed, 5 * seed + 1, classes)

        def work(lessons: list[Taught] = lessons) -> tuple[object, object]:
            tables = folded(lessons)
            for lesson in lessons[::3]:
                take_away(tables, lesson)
            return bits_of(tables)

        compiled, plain = both(work)
        assert compiled == plain
