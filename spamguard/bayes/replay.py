"""The settled state: what the error-driven experts are defined to be, a deterministic replay of all lessons.

Lessons are replayed in the order they are handed over (the caller's canonical one, which interleaves the classes), in
blocks: a block's scores are taken before anything of the block is counted, so fusion never sees a score taken after teaching.
Counting on the way, it also builds every table from nothing. The lessons are replayed from the last one to the first as well, and the
weights of the logistic experts are the mean of both, those of fusion too, each way by how much there was to learn from: much of what
they owe to an order alone is then gone (corpora/RESULTS.md, "There and back", "Last words, and fusion from both ends"). All in whole
numbers, or rounded to such at once: the same lessons give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import among, blocks, cells, experts, fusion, logistic, prior
from spamguard.bayes.blocks import Placed
from spamguard.bayes.experts import Floats, Integers
from spamguard.bayes.sides import sides_of
from spamguard.bayes.tables import (
    BASE_CLASSES,
    SETS,
    TRAIT_VALUES,
    Tables,
    class_index,
    count_column,
    empty_tables,
    read_counts,
    weight_column,
)

LEARNER = 1
"""Version of what a replay makes of the same lessons: tables of another one are due for settling."""
BLOCK = 128  # lessons scored together, before any of them is taught
STEP = 8  # lessons of a block that the logistic experts learn together: one gather, one scatter
FUSION_LESSONS = 2048  # fusion learns from the last so many of each way (corpora/RESULTS.md, "How many lessons fusion learns from")
_ONE = np.int32(1)
_TEMPORARIES = 1 << 24  # bytes, more than all of a block's


class Block(NamedTuple):
    """Lessons side by side: labels (m,), tokens uint32 (n,) of all of them, offsets (m+1,), traits (m, T), numbers (m, D)."""

    labels: Sequence[str]
    tokens: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    traits: NDArray[np.uint8]
    numbers: NDArray[np.int16]


def replay(
    played: Iterable[Block],
    backwards: Iterable[Block],
    lessons: int,
    classes: Sequence[str],
    bits: int,
    traits: int,
    numbers: int,
    known: Sequence[prior.WordOdds] = (),
    unwanted: Set[str] = frozenset({"spam"}),
) -> Tables:
    """Tables that hold exactly these lessons, settled.

    backwards: the same lessons, the last one first. lessons: how many there are in all. classes: beside ham and spam, sorted; every
    label must be among them. known: from elsewhere, before the first of them. unwanted: classes that are.
    """
    _keep_memory()

    def player(order: Iterable[Block]) -> _Player:
        tables = empty_tables(bits, traits, numbers, fusion.start(len(classes) + len(BASE_CLASSES)))
        prior.lay(tables, known, lessons)
        playing = _Player(lessons, list(classes), unwanted, tables)
        for block in order:
            playing.play(block)
        return playing

    back = player(backwards).learnt()  # its tables are gone before others are made
    there = player(played)
    there.meet(back)
    return there.finish()


class _Learnt(NamedTuple):
    """What depends on the order of lessons. weights, biases: of the logistic experts, those of every class but the first, (buckets,).

    fused: how many lessons of the rarer side fusion has learnt from.
    """

    weights: list[NDArray[np.int32]]
    biases: Integers
    fusion_weights: Integers
    fusion_biases: Integers
    fused: int


class _Step(NamedTuple):
    """m lessons that are learnt together. places: in each class's weights; starts, runs (m * SETS,): of each token set of each lesson.

    roots and gains (m, SETS, 1); true (m, 1, K-1).
    """

    places: list[NDArray[np.intp]]
    starts: NDArray[np.intp]
    runs: NDArray[np.intp]
    roots: Integers
    gains: Integers
    true: Floats


class _Player:
    """Tables while they grow."""

    def __init__(self, lessons: int, classes: list[str], unwanted: Set[str], tables: Tables) -> None:
        self.tables = tables
        for name in classes:
            class_index(self.tables, name)
        self.unwanted, self.sides = unwanted, sides_of(self.tables.classes, unwanted)
        self.number = {name: index for index, name in enumerate(self.tables.classes)}
        self.counts = [count_column(self.tables, index) for index in range(len(self.number))]
        self.weights = cells.of_weights(self.tables)
        self.columns = [weight_column(self.tables, index) for index in range(1, len(self.number))]
        self.lessons, self.played = lessons, 0
        self.fused = np.zeros(2, np.intp)  # lessons, of wanted and unwanted mail

    def play(self, block: Block) -> None:
        """Score, step and count a block of lessons, in this order."""
        tables = self.tables
        placed, targets = self._placed(block)
        fusing = self.lessons - self.played <= FUSION_LESSONS
        known = experts.parameters(tables, self.unwanted) if fusing else None
        raw = blocks.counting_sums(known, read_counts(tables, placed.buckets), placed) if known else None
        margins = self._teach(placed, targets)
        if raw is not None:
            self._fuse(blocks.joined(raw, margins, placed, self.sides), targets)
        self._sum_up(placed, targets)
        self.played += len(targets)

    def learnt(self) -> _Learnt:
        """What is left of the order in which lessons were played, without the tables."""
        tables = self.tables
        weights = [column.copy() for column in self.columns]
        return _Learnt(weights, tables.biases, tables.fusion_weights, tables.fusion_biases, int(self.fused.min()))

    def meet(self, other: _Learnt) -> None:
        """Half way between what was learnt here and there; of fusion by how much there was to learn from.

        A handful of lessons of one side may all come first on one of the ways, where nothing is known yet that they could correct.
        """
        tables = self.tables
        for column, weights in zip(self.columns, other.weights, strict=True):
            known = ((column | weights) != 0).nonzero()[0]
            one, two = column.take(known), weights.take(known)
            column[known] = (one >> 1) + (two >> 1) + (one & two & 1)  # rounded down; their sum might not fit
        tables.biases[:] = tables.biases + other.biases >> 1
        shares = int(self.fused.min()), other.fused
        here, there = shares if any(shares) else (1, 1)
        for ours, theirs in ((tables.fusion_weights, other.fusion_weights), (tables.fusion_biases, other.fusion_biases)):
            ours[:] = (ours * here + theirs * there) // (here + there)

    def _placed(self, block: Block) -> tuple[Placed, NDArray[np.intp]]:
        """Where the features of its lessons lie, and the numbers of their classes."""
        placed = blocks.place(block.tokens, block.offsets, block.traits, block.numbers, self.tables.bits)
        return placed, np.array([self.number[label] for label in block.labels], np.intp)

    def _teach(self, placed: Placed, targets: NDArray[np.intp]) -> Integers:
        """Weights and counts, some lessons at a time; the logistic log-odds before each step, (m, SETS, K-1)."""
        borders = [0, *placed.sizes.sum(axis=1).cumsum().tolist()]
        count = self._counter(placed, targets, borders)
        found = []
        for number, step in enumerate(self._steps(placed, targets, borders)):
            found.append(self._step(step))
            count(number * STEP, min((number + 1) * STEP, len(targets)))  # now, while their rows are in the cache
        return np.concatenate(found)

    def _steps(self, placed: Placed, targets: NDArray[np.intp], borders: list[int]) -> Iterator[_Step]:
        """A block in order."""
        places = [weights.places(placed.buckets) for weights in self.weights]
        starts, runs = placed.runs
        roots = logistic.inverse_roots(placed.sizes)[:, :, np.newaxis]
        gains = logistic.RATE * roots
        true = logistic.truth(targets[:, np.newaxis, np.newaxis], len(places))
        for first in range(0, len(targets), STEP):
            some, ours = slice(first, first + STEP), slice(first * SETS, (first + STEP) * SETS)
            start, end = borders[first], borders[min(first + STEP, len(targets))]
            here = [column[start:end] for column in places]
            yield _Step(here, starts[ours] - start, runs[ours], roots[some], gains[some], true[some])

    def _counter(self, placed: Placed, targets: NDArray[np.intp], borders: list[int]) -> Callable[[int, int], None]:
        """Counts the features of lessons first to last of a block."""
        rows, numbers = self.tables.rows, targets.tolist()

        def by_lesson(first: int, last: int) -> None:
            for lesson in range(first, last):
                np.add.at(self.counts[numbers[lesson]], placed.buckets[borders[lesson] : borders[lesson + 1]], _ONE)

        if max(numbers) >= len(BASE_CLASSES):
            return by_lesson  # else all are in one table, and counted in one go
        sizes = np.diff(borders)
        return lambda first, last: cells.count(rows, placed.buckets[borders[first] : borders[last]], sizes[first:last], targets[first:last])

    def _step(self, step: _Step) -> Integers:
        """Learn it; the log-odds before."""
        sums = np.empty((len(step.places), len(step.runs)), np.int64)
        for weights, here, found in zip(self.weights, step.places, sums, strict=True):
            weights.sums(here, step.starts, step.runs, found)
        margins = logistic.margins(sums.T.reshape(step.true.shape[0], SETS, -1), self.tables.biases.T, step.roots)
        errors = logistic.errors_against(margins, step.true)
        self.tables.biases += logistic.bias_steps(np.add.reduce(errors)).T
        self._move(step, logistic.steps_by(errors, step.gains).reshape(len(step.runs), -1))
        return margins

    def _move(self, step: _Step, moves: NDArray[np.int32]) -> None:
        """Add a move to the weights of each run of features."""
        fades = logistic.fades(step.runs)
        for weights, here, move in zip(self.weights, step.places, np.ascontiguousarray(moves.T), strict=True):
            weights.learn(here, step.runs, move, self.tables.rows, fades)

    def _fuse(self, scores: Integers, targets: NDArray[np.intp]) -> None:
        """Learn from scores (m, R, EXPERTS) what is unwanted, and which class of its side a message is."""
        tables, further = self.tables, len(self.tables.classes) > len(BASE_CLASSES)
        bad = np.isin(targets, self.sides.unwanted).astype(np.intp)
        if self.played:  # nothing has been counted before the first block, of which is nothing to learn
            self.fused += np.bincount(bad, minlength=2)
        for first in range(0, len(targets), STEP):
            some = slice(first, first + STEP)
            fusion.learn(scores[some, -1:], bad[some], fusion.of_sides(tables.fusion_weights), tables.fusion_biases[:1])
            if further:
                among.learn(scores[some, :-1], targets[some], tables, self.sides)

    def _sum_up(self, placed: Placed, targets: NDArray[np.intp]) -> None:
        """Count what is not counted by feature."""
        tables = self.tables
        by_class = (np.arange(len(tables.classes))[:, np.newaxis] == targets).astype(np.int64)
        tables.messages += by_class.sum(axis=1)
        tables.totals += by_class @ placed.sizes
        tables.number_sums += by_class @ placed.numbers
        values = tables.trait_counts.reshape(-1)
        rows = targets[:, np.newaxis] * placed.traits.shape[1] + np.arange(placed.traits.shape[1])
        values += np.bincount((rows * TRAIT_VALUES + placed.traits).ravel(), minlength=len(values))
        for index in set(targets.tolist()):
            numbers = placed.numbers[targets == index].astype(np.float64)  # sums below 2**53 are exact, and products fast
            tables.number_products[index] += (numbers.T @ numbers).astype(np.int64)

    def finish(self) -> Tables:
        """The tables, with vocabulary and histogram from the counts."""
        tables = self.tables
        used = tables.rows.view(np.int64)[:, 0] != 0  # ham and spam count side by side
        for column in self.counts[len(BASE_CLASSES) :]:
            used |= column != 0
        tables.vocabulary = np.array([np.count_nonzero(of_set) for of_set in used.reshape(SETS, -1)])
        words = used[: len(used) // SETS].nonzero()[0]
        of_words = [column[words] for column in self.counts]
        width = max(int(column.max(initial=0)) for column in of_words) + 2
        tables.histogram = np.stack([np.bincount(column, minlength=width) for column in of_words])
        return tables


def _keep_memory() -> None:
    """Have the C library keep what is freed: it gives back to the system what is larger than anything that was freed before.

    Otherwise the temporaries of every block are pages faulted in anew: six for each lesson.
    """
    np.empty(_TEMPORARIES, np.uint8)
