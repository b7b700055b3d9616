"""What has been counted: integer tables over hashed features, one 16-byte row per bucket.

Adding and taking away a lesson are exact inverses, bit for bit; a count that would become negative is an error and changes
nothing. This module knows arrays and class names, nothing about mail, files or time.

Layout of a row (int32): ham count, spam count, logistic weight of spam against ham, nothing (a row is one aligned 16-byte
load). Each further class has a column array of its own (int32, shape (buckets, 2)): count, logistic weight against ham.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard import kernel
from spamguard.errors import TableError
from spamguard.records import TOKEN_SETS, Features

Buckets = NDArray[np.intp]
Counts = NDArray[np.int64]

SETS = len(TOKEN_SETS)
TRAIT_VALUES = 16
DEFAULT_BITS = 22
# Tables of many lessons are larger: corpora/RESULTS.md, "How large the tables are".
_BUCKETS_OF_A_LESSON = 256
_GROWN_BITS = 26  # a gigabyte: what is larger has been asked for
BASE_CLASSES = ("ham", "spam")


def table_bits(lessons: int, least: int) -> int:
    """How large tables are when they are made anew from so many lessons, 2**bits buckets: a pure function, as all of that state is.

    least: of few lessons; twice as many buckets at most.
    """
    full = lessons * _BUCKETS_OF_A_LESSON > 1 << least
    return least + 1 if full and least < _GROWN_BITS else least


class Evidence(NamedTuple):
    """The features of one message on tables of a certain size.

    buckets: sorted, unique, shape (n,). sizes: how many of them lie in each token set; starts: where each set begins (both
    (SETS,)). traits, numbers: as in `records.Features`.
    """

    buckets: Buckets
    sizes: NDArray[np.intp]
    starts: NDArray[np.intp]
    traits: NDArray[np.uint8]
    numbers: NDArray[np.int16]


def evidence(features: Features, bits: int) -> Evidence:
    """Where the features lie in tables of 2**bits buckets. The token set is in the top bits, so each has a quarter.

    The tokens need not be unique here, only sorted.
    """
    compiled = kernel.functions()
    if compiled is not None:
        found = np.frombuffer(compiled.place(features.tokens, None, bits), np.intp)
        return Evidence(found[2 * SETS :], found[SETS : 2 * SETS], found[:SETS], features.traits, features.numbers)
    narrow = features.tokens >> _dropped(bits)
    if len(narrow) > 1:
        keep = np.empty(len(narrow), np.bool_)
        keep[0] = True
        np.not_equal(narrow[1:], narrow[:-1], out=keep[1:])
        narrow = narrow[keep]
    borders = narrow.searchsorted(_borders(bits))
    starts = borders[:-1]
    return Evidence(narrow.astype(np.intp), borders[1:] - starts, starts, features.traits, features.numbers)


@lru_cache(maxsize=32)
def _dropped(bits: int) -> NDArray[np.uint32]:
    """How many bits of a token its bucket leaves out, as an array without dimensions, which is faster than a scalar."""
    return np.array(32 - bits, np.uint32)


@lru_cache(maxsize=32)
def _borders(bits: int) -> NDArray[np.uint32]:
    """Where the buckets of each token set begin, and where those of the last one end."""
    return (np.arange(SETS + 1) << (bits - 2)).astype(np.uint32)


@dataclass(slots=True)
class Rows:
    """The rows of one message's buckets: counts int32 (K, n), weights int32 (K-1, n) of every class but the first."""

    counts: NDArray[np.int32]
    weights: NDArray[np.int32]


@dataclass(slots=True)
class Tables:
    """Everything that is learnt. K classes in the order of `classes`; the first one, ham, is the reference.

    messages (K,), totals (K, SETS): lessons, and features of them by token set. vocabulary (SETS,): buckets in use.
    histogram (K, H): how many words in use have count v in class k. trait_counts (K, traits, TRAIT_VALUES).
    number_sums (K, D), number_products (K, D, D). biases (K-1, SETS), fusion_weights (E,) or (2E,),
    fusion_biases (K-1,): fixed point, see `logistic`, `fusion` and `among`. changes: rises with every change, for caches.
    """

    bits: int
    rows: NDArray[np.int32]
    columns: list[NDArray[np.int32]]
    classes: list[str]
    messages: Counts
    totals: Counts
    vocabulary: Counts
    histogram: Counts
    trait_counts: Counts
    number_sums: Counts
    number_products: Counts
    biases: Counts
    fusion_weights: Counts
    fusion_biases: Counts
    changes: int = field(default=0, compare=False)


PER_CLASS = ("messages", "totals", "histogram", "trait_counts", "number_sums", "number_products")
"""Arrays whose first axis is the class."""
PER_OTHER_CLASS = ("biases", "fusion_biases")
"""Arrays whose first axis is every class but the first."""


def empty_tables(bits: int, traits: int, numbers: int, fusion_weights: Counts) -> Tables:
    """Tables that have been taught nothing. Memory of rows is only taken when they are written."""
    classes = len(BASE_CLASSES)
    return Tables(
        bits,
        np.zeros((1 << bits, 4), np.int32),
        [],
        list(BASE_CLASSES),
        np.zeros(classes, np.int64),
        np.zeros((classes, SETS), np.int64),
        np.zeros(SETS, np.int64),
        np.zeros((classes, 2), np.int64),
        np.zeros((classes, traits, TRAIT_VALUES), np.int64),
        np.zeros((classes, numbers), np.int64),
        np.zeros((classes, numbers, numbers), np.int64),
        np.zeros((classes - 1, SETS), np.int64),
        fusion_weights.copy(),
        np.zeros(classes - 1, np.int64),
    )


def read_rows(tables: Tables, buckets: Buckets) -> Rows:
    """Counts and weights of these buckets: one gather per table."""
    base = base_columns(tables, buckets, 3)
    if not tables.columns:
        return Rows(base[:2], base[2:3])
    others = [column.take(buckets, axis=0).T for column in tables.columns]
    counts = np.vstack([base[:2], *(other[:1] for other in others)])
    return Rows(counts, np.vstack([base[2:3], *(other[1:] for other in others)]))


def base_columns(tables: Tables, buckets: Buckets, number: int) -> NDArray[np.int32]:
    """The first columns of these rows, (number, n)."""
    compiled = kernel.functions()
    if compiled is None:
        return np.ascontiguousarray(tables.rows.take(buckets, axis=0).T)[:number]
    found = np.empty((number, len(buckets)), np.int32)
    compiled.gather(tables.rows, buckets, found, tables.rows.shape[1])
    return found


def read_counts(tables: Tables, buckets: Buckets) -> NDArray[np.int32]:
    """Counts of every class in these buckets, (K, n)."""
    base = base_columns(tables, buckets, len(BASE_CLASSES))
    return base if not tables.columns else np.vstack([base, *(column[buckets, 0] for column in tables.columns)])


def count_column(tables: Tables, index: int) -> NDArray[np.int32]:
    """The counts of class `index` in all buckets: a view."""
    base = len(BASE_CLASSES)
    return tables.rows[:, index] if index < base else tables.columns[index - base][:, 0]


def weight_column(tables: Tables, index: int) -> NDArray[np.int32]:
    """The logistic weights of class `index`, any but the first, in all buckets: a view."""
    base = len(BASE_CLASSES)
    return tables.rows[:, base] if index < base else tables.columns[index - base][:, 1]


def class_index(tables: Tables, name: str) -> int:
    """Number of a class; a new one gets a column of its own, in the order of names, whenever it first appears."""
    if name in tables.classes:
        return tables.classes.index(name)
    base = len(BASE_CLASSES)
    index = base + sum(other < name for other in tables.classes[base:])
    tables.classes.insert(index, name)
    tables.columns.insert(index - base, np.zeros((len(tables.rows), 2), np.int32))
    for attribute in (*PER_CLASS, *PER_OTHER_CLASS):
        at = index - (attribute in PER_OTHER_CLASS)
        setattr(tables, attribute, np.insert(getattr(tables, attribute), at, 0, axis=0))
    tables.histogram[index, 0] = tables.vocabulary[0]
    return index


def drop_empty_class(tables: Tables, index: int) -> None:
    """Forget a class (not ham, not spam) that no lesson has any more, so that it is as if it had never been taught."""
    base = len(BASE_CLASSES)
    if index < base or tables.messages[index]:
        return
    del tables.classes[index], tables.columns[index - base]
    for attribute in (*PER_CLASS, *PER_OTHER_CLASS):
        at = index - (attribute in PER_OTHER_CLASS)
        setattr(tables, attribute, np.delete(getattr(tables, attribute), at, axis=0))


def count(tables: Tables, seen: Evidence, counts: NDArray[np.int32], index: int, sign: int) -> None:
    """Count one lesson of class `index` (sign 1) or take it away (-1) in all sums. counts (K, n): `read_counts`, which the caller changes.

    TableError, with nothing changed, when any count would become negative: the lesson was never counted here.
    """
    _refuse_negative(tables, seen, counts, index, sign)
    _count_vocabulary(tables, seen, counts, index, sign)
    tables.messages[index] += sign
    tables.totals[index] += sign * seen.sizes
    tables.trait_counts[index, np.arange(len(seen.traits)), seen.traits] += sign
    numbers = seen.numbers.astype(np.int64)
    tables.number_sums[index] += sign * numbers
    tables.number_products[index] += sign * np.multiply.outer(numbers, numbers)
    tables.changes += 1


def _refuse_negative(tables: Tables, seen: Evidence, counts: NDArray[np.int32], index: int, sign: int) -> None:
    if sign > 0:
        return
    traits = tables.trait_counts[index, np.arange(len(seen.traits)), seen.traits]
    least = counts[index].min(initial=1)
    if least < 1 or tables.messages[index] < 1 or traits.min(initial=1) < 1 or (tables.totals[index] < seen.sizes).any():
        raise not_counted(tables.classes[index])


def not_counted(name: str) -> TableError:
    """What taking away a lesson that is not there deserves."""
    return TableError(f"a lesson of class {name!r} was never counted here: the tables are damaged, run `spamguard rebuild`")


def _count_vocabulary(tables: Tables, seen: Evidence, counts: NDArray[np.int32], index: int, sign: int) -> None:
    """Keep vocabulary and histogram. counts: those before."""
    words = int(seen.sizes[0])
    everybody = np.add.reduce(counts, axis=0)
    changed = everybody == 0 if sign > 0 else everybody == 1  # new here; or going, since the only one is ours
    _, first, second, third = seen.starts.tolist()
    parts = (changed[:first], changed[first:second], changed[second:third], changed[third:])
    by_set = [np.count_nonzero(part) for part in parts]
    tables.vocabulary += sign * np.array(by_set)
    before = counts[index, :words]
    width = int(before.max(initial=0)) + 2
    if width > tables.histogram.shape[1]:
        tables.histogram = np.pad(tables.histogram, ((0, 0), (0, 2 * width - tables.histogram.shape[1])))
    moved = np.bincount(before, minlength=width)
    tables.histogram[index, :width] -= moved
    if sign > 0:
        tables.histogram[index, 1:width] += moved[: width - 1]
    else:
        tables.histogram[index, : width - 1] += moved[1:]
    tables.histogram[:, 0] += sign * by_set[0]


def counted_state(tables: Tables) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Every array that is a sum over the lessons, by name, in a form that compares: what must agree bit for bit."""
    yield "rows", tables.rows[:, :2]
    for name, column in zip(tables.classes[len(BASE_CLASSES) :], tables.columns, strict=True):
        yield f"column {name}", column[:, 0]
    for attribute in ("messages", "totals", "vocabulary", "trait_counts", "number_sums", "number_products"):
        yield attribute, getattr(tables, attribute)
    used = np.flatnonzero(tables.histogram.any(axis=0))
    yield "histogram", tables.histogram[:, : used[-1] + 1 if len(used) else 0]
