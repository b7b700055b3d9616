"""The tables: what has been counted of all lessons, and the logistic weights, by hashed feature.

A feature's hash names its *bucket*. A row of the main table is one aligned 16-byte load of four
int32: ham count, spam count, logistic weight of spam against ham, padding. Each further class has
an array of its own, int32, two numbers for each row: count, logistic weight against ham. Beside the
rows there are sums over all lessons of each class.

Few lessons use few of the buckets. So the rows are kept by *blocks* of neighbouring buckets, and
only those of which something is known have a *place*; all others share one block of zeros, which is
never written.

Classes fall into two *sides*, wanted and unwanted. Judging compares the sides as wholes, so no
verdict depends on how finely people sort good mail.

Adding a lesson and taking it away are exact inverses, bit for bit. A count that would become
negative is an error and changes nothing. This module knows arrays and class names, and nothing
about experts, mail, files or time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from spamguard import native
from spamguard.bayes.formulas import Floats, Indices, Integers, Ints32
from spamguard.errors import TableError
from spamguard.records import TOKEN_SETS, Features

BASE_CLASSES = ("ham", "spam")
N_BASE = len(BASE_CLASSES)
N_TOKEN_SETS = len(TOKEN_SETS)
N_TRAIT_VALUES = 16
_Integer = TypeVar("_Integer", bound=np.integer)
DEFAULT_BITS = 22
# Tables of many lessons are larger: corpora/RESULTS.md, "How large the tables are".
_BUCKETS_PER_LESSON = 256
_MAX_GROWN_BITS = 26  # a gigabyte; larger tables must be asked for
_BLOCK_BITS = 2
BLOCK = 1 << _BLOCK_BITS  # buckets that stand together: a line of the processor's cache
_KNOWN_COLUMNS = 3  # of a row: all but the padding
_NO_TABLE = np.zeros((0, 0), np.int32)
_NOTHING: NDArray[Any] = np.zeros(0)
_RESERVE, _MIN_RESERVE = 8, 256  # an eighth of the blocks, and some


def table_bits(lessons: int, min_bits: int) -> int:
    """The bits of tables (2**bits buckets) made from so many lessons; `min_bits` or one more.

    >>> table_bits(1_000, min_bits=22), table_bits(20_000, min_bits=22)
    (22, 23)
    """
    full = lessons * _BUCKETS_PER_LESSON > 1 << min_bits
    return min_bits + 1 if full and min_bits < _MAX_GROWN_BITS else min_bits


# ---- sides


class Sides(NamedTuple):
    """Numbers of the wanted classes, ham first, and of the unwanted ones, spam first."""

    wanted: list[int]
    unwanted: list[int]


def partition_classes(classes: Sequence[str], unwanted: Set[str]) -> Sides:
    """Sort class numbers by side: ham is always wanted, spam never, others by the names given.

    >>> partition_classes(["ham", "spam", "news", "virus"], {"virus"})
    Sides(wanted=[0, 2], unwanted=[1, 3])
    """
    names = enumerate(classes)
    bad = [number for number, name in names if number == 1 or (number > 1 and name in unwanted)]
    return Sides([number for number in range(len(classes)) if number not in bad], bad)


def sum_by_side(values: NDArray[Any], sides: Sides) -> NDArray[Any]:
    """Sums over the classes of each side, (2, ...), of values for each class, (K, ...)."""
    return values if len(values) == 2 else np.stack([values[side].sum(axis=0) for side in sides])


# ---- features as buckets


class Evidence(NamedTuple):
    """The features of one message on tables of a certain size, or of m messages side by side.

    In the shapes "..." is nothing or m.
    """

    buckets: Indices  # (n,), sorted and unique in each message
    sizes: Indices  # (..., SETS): how many buckets lie in each token set
    starts: Indices  # (..., SETS): where each set begins
    traits: NDArray[np.uint8]  # (..., T), as in `records.Features`
    numbers: NDArray[np.int16]  # (..., D)
    # in the tables for which it was made, if any: of ham and spam
    known: Floats = _NOTHING  # (3, n): both counts, and the weight
    weighed: Integers = _NOTHING  # (..., SETS), sums of that weight


def make_evidence(features: Features, bits: int, learnt: Tables | None = None) -> Evidence:
    """Locate one message's features in tables of 2**bits buckets, and read there what is learnt."""
    return locate_features(features.tokens, None, features.traits, features.numbers, bits, learnt)


def locate_features(
    tokens: NDArray[np.uint32],
    offsets: Integers | None,
    traits: NDArray[np.uint8],
    numbers: NDArray[np.int16],
    bits: int,
    learnt: Tables | None = None,
) -> Evidence:
    """Locate the tokens of m messages, cut at offsets (m+1,), or with None of one, in tables.

    The tokens of each message must be sorted, and may repeat. The token set is in their top bits,
    so each set has a quarter of the 2**bits buckets.
    """
    borders = np.array((0, len(tokens))) if offsets is None else offsets
    messages, compiled, known, weighed = len(borders) - 1, native.functions, _NOTHING, _NOTHING
    runs = messages * N_TOKEN_SETS
    if compiled is not None:
        read = (_NO_TABLE, _NO_TABLE) if learnt is None else (learnt.rows, learnt.blocks)
        packed = np.frombuffer(compiled.place(tokens, borders, *read, bits), np.intp)
        starts, sizes, buckets = packed[:runs], packed[runs : 2 * runs], packed[3 * runs :]
        if learnt is not None:  # behind the buckets
            number = len(buckets) // (1 + _KNOWN_COLUMNS)
            known = buckets[number:].view(np.float64).reshape(_KNOWN_COLUMNS, number)
            weighed, buckets = packed[2 * runs : 3 * runs], buckets[:number]
    else:
        buckets = (tokens >> np.uint32(32 - bits)).astype(np.intp)
        # those of each message above those of the message before
        buckets += (np.arange(messages) << bits).repeat(np.diff(borders))
        buckets = np.delete(buckets, (buckets[1:] == buckets[:-1]).nonzero()[0])
        ends = buckets.searchsorted(np.arange(runs + 1) << (bits - 2))
        buckets &= (1 << bits) - 1
        starts, sizes = ends[:-1], np.diff(ends)
        if learnt is not None:
            rows = learnt.rows.take(find_places(learnt, buckets), axis=0)
            known = np.ascontiguousarray(rows.T[:_KNOWN_COLUMNS], np.float64)
            weighed = run_sums(known[N_BASE:], starts, sizes)[0].astype(np.int64)
    if offsets is not None:
        starts, sizes, weighed = (
            each.reshape(-1, N_TOKEN_SETS) for each in (starts, sizes, weighed)
        )
    return Evidence(buckets, sizes, starts, traits, numbers, known, weighed)


def batch_features(
    messages: Sequence[Features], bits: int, learnt: Tables | None = None
) -> Evidence:
    """The features of some messages, at least one, side by side."""
    return locate_features(
        np.concatenate([features.tokens for features in messages]),
        np.cumsum([0, *(len(features.tokens) for features in messages)]),
        np.stack([features.traits for features in messages]),
        np.stack([features.numbers for features in messages]),
        bits,
        learnt,
    )


def find_distinct(values: NDArray[_Integer]) -> tuple[NDArray[_Integer], NDArray[np.bool_]]:
    """The values sorted, and where each stands first; a quarter of the time of `np.unique`.

    A stable sort takes ordered runs as they are, and the buckets of a message or a user are one.
    """
    ordered = np.sort(values, kind="stable")
    return ordered, np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]


def set_sums(terms: NDArray[Any], evidence: Evidence) -> NDArray[Any]:
    """Sums of columns (K-1, n) over each token set, (K-1, ..., SETS)."""
    sums = run_sums(terms, evidence.starts.ravel(), evidence.sizes.ravel())
    return sums.reshape(len(terms), *evidence.sizes.shape)


def run_sums(terms: NDArray[Any], starts: Indices, sizes: Indices) -> NDArray[Any]:
    """Sums over runs of columns, (K-1, runs), zero for an empty run; integers sum in 64 bits."""
    filled = sizes.nonzero()[0]  # reduceat cannot express an empty run
    sums = np.zeros((len(terms), len(sizes)), np.result_type(terms, np.int64))
    if len(filled):
        sums[:, filled] = np.add.reduceat(terms, starts.take(filled), axis=1, dtype=sums.dtype)
    return sums


# ---- the tables


@dataclass
class Tables:
    """Everything that is learnt. K classes in the order of `classes`; the first, ham, is reference.

    Biases and fusion weights are in fixed point, see `logistic` and `fusion`.
    """

    bits: int
    blocks: Ints32  # (2**bits / BLOCK,), which rows each block of buckets has; 0: none of its own
    used_blocks: int  # of the rows; those behind them are in reserve, and zero
    rows: Ints32
    columns: list[Ints32]
    classes: list[str]
    messages: Integers  # (K,), lessons
    totals: Integers  # (K, SETS), features of all lessons
    vocabulary: Integers  # (SETS,), buckets in use
    histogram: Integers  # (K, H): how many words in use have count v in class k
    trait_counts: Integers  # (K, T, TRAIT_VALUES)
    number_sums: Integers  # (K, D)
    number_products: Integers  # (K, D, D)
    biases: Integers  # (K-1, SETS)
    fusion_weights: Integers  # (E,) or (2E,)
    fusion_biases: Integers  # (K-1,)
    changes: int = 0  # rises with every change, for caches


PER_CLASS = ("messages", "totals", "histogram", "trait_counts", "number_sums", "number_products")
"""Arrays whose first axis is the class."""
PER_OTHER_CLASS = ("biases", "fusion_biases")
"""Arrays whose first axis is every class but the first."""


def empty_tables(bits: int, traits: int, numbers: int, fusion_weights: Integers) -> Tables:
    """Tables that have been taught nothing."""

    def zeros(*shape: int) -> Integers:
        return np.zeros(shape, np.int64)

    return Tables(
        bits=bits,
        blocks=np.zeros(1 << bits - _BLOCK_BITS, np.int32),
        used_blocks=1,
        rows=np.zeros((BLOCK, 4), np.int32),
        columns=[],
        classes=list(BASE_CLASSES),
        messages=zeros(N_BASE),
        totals=zeros(N_BASE, N_TOKEN_SETS),
        vocabulary=zeros(N_TOKEN_SETS),
        histogram=zeros(N_BASE, 2),
        trait_counts=zeros(N_BASE, traits, N_TRAIT_VALUES),
        number_sums=zeros(N_BASE, numbers),
        number_products=zeros(N_BASE, numbers, numbers),
        biases=zeros(N_BASE - 1, N_TOKEN_SETS),
        fusion_weights=fusion_weights.copy(),
        fusion_biases=zeros(N_BASE - 1),
    )


def find_places(tables: Tables, buckets: Indices) -> Indices:
    """The numbers of the rows of these buckets; those without one share the row of zeros."""
    return _places(tables.blocks.take(buckets >> _BLOCK_BITS), buckets)


def _places(found: Ints32, buckets: Indices) -> Indices:
    return np.asarray(found << _BLOCK_BITS | buckets & BLOCK - 1)


def claim_places(tables: Tables, buckets: Indices) -> Indices:
    """The numbers of the rows of these buckets, to be written."""
    blocks = buckets >> _BLOCK_BITS
    found = tables.blocks.take(blocks)
    missing, is_first = find_distinct(blocks[found == 0])
    if len(missing):
        new = missing[is_first]
        first, last = tables.used_blocks, tables.used_blocks + len(new)
        if last * BLOCK > len(tables.rows):
            _resize(tables, 2 * last)
        tables.blocks[new] = np.arange(first, last)
        tables.used_blocks = last
        found = tables.blocks.take(blocks)
    return _places(found, buckets)


def claim_blocks(tables: Tables, blocks: Ints32) -> None:
    """Give rows to the blocks of other tables in empty ones, in order, and a reserve to the next.

    The reserve keeps processes that map tables from copying them for a few new buckets.
    """
    used = used_blocks(blocks)
    blocks[used] = np.arange(1, len(used) + 1)
    tables.blocks, tables.used_blocks = blocks, len(used) + 1
    _resize(tables, tables.used_blocks + tables.used_blocks // _RESERVE + _MIN_RESERVE)


def _resize(tables: Tables, blocks: int) -> None:
    """Make room for so many blocks of rows, or for all that there are."""
    length = min(blocks, len(tables.blocks) + 1) * BLOCK

    def resize(rows: Ints32) -> Ints32:
        roomy = np.zeros((length, rows.shape[1]), np.int32)
        roomy[: len(rows)] = rows
        return roomy

    tables.rows, tables.columns = resize(tables.rows), list(map(resize, tables.columns))


def used_blocks(blocks: Ints32) -> Indices:
    """Which blocks have rows, in order."""
    return np.flatnonzero(blocks != 0)  # of numbers it would take four times as long


def block_places(tables: Tables, blocks: Indices) -> Indices:
    """The numbers of all rows of these blocks."""
    first = tables.blocks.take(blocks).astype(np.intp) << _BLOCK_BITS
    return np.asarray((first[:, np.newaxis] + np.arange(BLOCK)).ravel())


def spread_rows(tables: Tables, rows: Ints32) -> Ints32:
    """Rows, or a column, of all 2**bits buckets, in their order."""
    return rows[block_places(tables, np.arange(len(tables.blocks)))]


def read_rows(tables: Tables, evidence: Evidence) -> tuple[Floats, Floats]:
    """Counts (K, n) and weights (K-1, n) of evidence made for these tables, for judging: all that
    follows is in floats.
    """
    known = evidence.known
    if not tables.columns:
        return known[:N_BASE], known[N_BASE:]
    places = find_places(tables, evidence.buckets)
    columns = [column.take(places, axis=0).T for column in tables.columns]
    counts = np.vstack([known[:N_BASE], *(column[:1] for column in columns)])
    return counts, np.vstack([known[N_BASE:], *(column[1:] for column in columns)])


def count_columns(tables: Tables) -> list[Ints32]:
    """How many lessons of each class the rows have: views."""
    return [*tables.rows.T[:N_BASE], *(column[:, 0] for column in tables.columns)]


def read_counts(tables: Tables, places: Indices) -> Ints32:
    """Counts (K, n) of rows, for lessons."""
    base = tables.rows.take(places, axis=0).T[:N_BASE]
    if not tables.columns:
        return base
    return np.vstack([base, *(column[places, 0] for column in tables.columns)])


def ensure_class_index(tables: Tables, name: str) -> int:
    """Number of a class. A new one gets a column; further classes stand in the order of names."""
    if name in tables.classes:
        return tables.classes.index(name)
    index = N_BASE + sum(other < name for other in tables.classes[N_BASE:])
    tables.classes.insert(index, name)
    tables.columns.insert(index - N_BASE, np.zeros((len(tables.rows), 2), np.int32))
    _change_classes(tables, lambda values, at: np.insert(values, at, 0, axis=0), index)
    tables.histogram[index, 0] = tables.vocabulary[0]
    return index


def drop_empty_class(tables: Tables, index: int) -> None:
    """Remove a further class without lessons, so that it is as if it had never been taught."""
    if index < N_BASE or tables.messages[index]:
        return
    del tables.classes[index], tables.columns[index - N_BASE]
    _change_classes(tables, lambda values, at: np.delete(values, at, axis=0), index)


def _change_classes(
    tables: Tables, change: Callable[[Integers, int], Integers], index: int
) -> None:
    for attribute in (*PER_CLASS, *PER_OTHER_CLASS):
        at = index - (attribute in PER_OTHER_CLASS)
        setattr(tables, attribute, change(getattr(tables, attribute), at))


# ---- counting


def count_lesson(tables: Tables, evidence: Evidence, counts: Ints32, index: int, sign: int) -> None:
    """Count one lesson of class `index` (sign 1), or take it away (-1), in all sums.

    The counts of the buckets themselves, (K, n) as by `read_counts`, are changed by the caller.

    Raises
    ------
    TableError
        A count would become negative, so the lesson was never counted; nothing is changed.
    """
    traits = np.arange(len(evidence.traits))
    if sign < 0 and (
        counts[index].min(initial=1) < 1
        or tables.messages[index] < 1
        or tables.trait_counts[index, traits, evidence.traits].min(initial=1) < 1
        or (tables.totals[index] < evidence.sizes).any()
    ):
        raise not_counted_error(tables.classes[index])
    _update_vocabulary(tables, evidence, counts, index, sign)
    add_sums(tables, evidence, np.array([index]), sign)
    tables.changes += 1


def add_sums(tables: Tables, evidence: Evidence, targets: Indices, sign: int = 1) -> None:
    """Add one lesson or several of these classes to all sums that have no buckets."""
    of_lessons: tuple[NDArray[Any], ...] = evidence.sizes, evidence.traits, evidence.numbers
    sizes, traits, numbers = (each.reshape(len(targets), -1) for each in of_lessons)
    by_class = sign * (np.arange(len(tables.classes))[:, np.newaxis] == targets)
    tables.messages += by_class.sum(axis=1)
    tables.totals += by_class @ sizes
    tables.number_sums += by_class @ numbers
    cells = targets[:, np.newaxis], np.arange(traits.shape[1]), traits
    np.add.at(tables.trait_counts, cells, sign)
    for index in set(targets.tolist()):
        # sums below 2**53 are exact in floats, and their products are fast
        of_class = numbers[targets == index].astype(np.float64)
        tables.number_products[index] += sign * (of_class.T @ of_class).astype(np.int64)


def not_counted_error(name: str) -> TableError:
    """The error of taking away a lesson that is not there."""
    return TableError(
        f"a lesson of class {name!r} was never counted here: the tables are damaged, "
        "run `spamguard rebuild`"
    )


def _update_vocabulary(
    tables: Tables, evidence: Evidence, counts: Ints32, index: int, sign: int
) -> None:
    """Keep vocabulary and histogram. counts are those before the change."""
    of_all = np.add.reduce(counts, axis=0)
    changed = of_all == (0 if sign > 0 else 1)  # a first lesson with the feature comes, or goes
    by_set = np.diff(changed.nonzero()[0].searchsorted(evidence.starts), append=changed.sum())
    tables.vocabulary += sign * by_set
    before = counts[index, : int(evidence.sizes[0])]
    width = int(before.max(initial=0)) + 2
    spare = tables.histogram.shape[1]
    if width > spare:
        tables.histogram = np.pad(tables.histogram, ((0, 0), (0, 2 * width - spare)))
    tables.histogram[index, :width] -= np.bincount(before, minlength=width)
    tables.histogram[index, :width] += np.bincount(before + sign, minlength=width)
    tables.histogram[:, 0] += sign * by_set[0]
