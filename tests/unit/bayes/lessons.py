"""What the tests of tables and experts share: lessons made up from a seed, small tables, and states
to compare bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import fusion, training
from spamguard.bayes.experts import Integers
from spamguard.bayes.tables import (
    BASE_CLASSES,
    N_TRAIT_VALUES,
    PER_CLASS,
    PER_OTHER_CLASS,
    Tables,
    batch_features,
    count_columns,
    empty_tables,
    make_evidence,
    spread_rows,
)
from spamguard.bayes.training import BLOCK_LESSONS, LessonBlock, replay
from spamguard.records import Features

BITS = 10  # so few buckets that features of one lesson share some
TRAITS, NUMBERS = 3, 2
NO_SCORES: Integers = np.zeros(0, np.int64)


class Taught(NamedTuple):
    """One lesson."""

    label: str
    features: Features


def features(random: np.random.Generator, tokens: int = 30) -> Features:
    """Of a made-up message: some tokens that many messages share, some of its own, in every token
    set or none.
    """
    common = random.integers(0, 60, tokens).astype(np.uint32) * np.uint32(2**32 // 60)
    own = random.integers(0, 2**32, tokens // 3, dtype=np.uint32)
    kept = np.unique(np.concatenate([common, own]))
    least = np.uint32(random.integers(0, 4)) << np.uint32(30)  # now and then a token set is empty
    some = kept[kept >= least] if random.random() < 0.5 else kept[kept < (1 << 32) - int(least)]
    return Features(
        some,
        random.integers(0, N_TRAIT_VALUES, TRAITS).astype(np.uint8),
        random.integers(0, 256, NUMBERS).astype(np.int16),
    )


def made_up(seed: int, size: int, classes: Sequence[str] = BASE_CLASSES) -> list[Taught]:
    """Lessons, each class leaning to traits and numbers of its own."""
    random = np.random.default_rng(seed)
    return [Taught(classes[random.integers(len(classes))], features(random)) for _ in range(size)]


def empty() -> Tables:
    return empty_tables(BITS, TRAITS, NUMBERS, fusion.START_WEIGHTS)


def add(tables: Tables, lesson: Taught) -> None:
    training.add_lesson(tables, make_evidence(lesson.features, tables.bits), lesson.label)


def take_away(tables: Tables, lesson: Taught, scores: Integers = NO_SCORES) -> None:
    training.subtract_lesson(
        tables, make_evidence(lesson.features, tables.bits), lesson.label, scores
    )


def folded(lessons: Iterable[Taught]) -> Tables:
    """Taught one by one."""
    tables = empty()
    for lesson in lessons:
        add(tables, lesson)
    return tables


def replayed(lessons: Sequence[Taught], size: int = BLOCK_LESSONS) -> Tables:
    """Replayed from nothing, in this order, `size` to a block."""
    there, back = in_blocks(lessons, size), in_blocks(lessons[::-1], size)
    names = sorted({lesson.label for lesson in lessons} - set(BASE_CLASSES))
    return replay(there, back, len(lessons), names, BITS, TRAITS, NUMBERS)


def in_blocks(lessons: Sequence[Taught], size: int = BLOCK_LESSONS) -> list[LessonBlock]:
    """Lessons in this order, as they are replayed."""
    blocks = [lessons[at : at + size] for at in range(0, len(lessons), size)]
    return [
        ([one.label for one in block], batch_features([one.features for one in block], BITS))
        for block in blocks
    ]


def all_counts(tables: Tables) -> NDArray[np.int32]:
    """How many lessons of every class have each bucket, (K, 2**bits)."""
    columns = [spread_rows(tables, each)[:, :1] for each in tables.columns]
    return np.hstack([spread_rows(tables, tables.rows)[:, :2], *columns]).T


def counted_arrays(tables: Tables) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Every array that is a sum over the lessons, by name: these must agree bit for bit."""
    for name, column in zip(tables.classes, count_columns(tables), strict=True):
        yield f"column {name}", spread_rows(tables, column)
    for name in ("vocabulary", *PER_CLASS):
        if name != "histogram":
            yield name, getattr(tables, name)
    used = np.flatnonzero(tables.histogram.any(axis=0))
    yield "histogram", tables.histogram[:, : used.max(initial=-1) + 1]


def counted(tables: Tables) -> dict[str, tuple[list[str], tuple[int, ...], bytes]]:
    """All sums over the lessons, comparable bit for bit."""
    return {
        name: (tables.classes, array.shape, array.tobytes())
        for name, array in counted_arrays(tables)
    }


def learnt(tables: Tables) -> dict[str, bytes]:
    """All that depends on the order of lessons, comparable bit for bit."""
    columns: list[NDArray[np.int32]] = [
        spread_rows(tables, tables.rows)[:, 2],
        *(spread_rows(tables, column)[:, 1] for column in tables.columns),
    ]
    small = {name: getattr(tables, name).tobytes() for name in (*PER_OTHER_CLASS, "fusion_weights")}
    return {"weights": b"".join(column.tobytes() for column in columns), **small}
