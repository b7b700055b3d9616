"""The settled state: what the error-driven experts are defined to be, a deterministic replay of all lessons.

Lessons are replayed in the order they are handed over (the caller's canonical one, which interleaves the classes), in
blocks: a block's scores are taken before anything of the block is counted, so fusion never sees a score taken after teaching.
Counting on the way, it also builds every table from nothing. All in whole numbers, or rounded to such at once: the same
lessons give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import blocks, experts, fusion, logistic
from spamguard.bayes.blocks import Placed
from spamguard.bayes.experts import Integers
from spamguard.bayes.tables import BASE_CLASSES, SETS, TRAIT_VALUES, Tables, class_index, count_column, empty_tables, read_rows

BLOCK = 128  # lessons scored together, before any of them is taught
STEP = 8  # lessons of a block that the logistic experts learn together: one gather, one scatter
FUSION_LESSONS = 2048  # fusion learns from the last so many (corpora/RESULTS.md, "How many lessons fusion learns from")
_ONE = np.int32(1)
_TEMPORARIES = 1 << 24  # bytes, more than all of a block's


class Block(NamedTuple):
    """Lessons side by side: labels (m,), tokens uint32 (n,) of all of them, offsets (m+1,), traits (m, T), numbers (m, D)."""

    labels: Sequence[str]
    tokens: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    traits: NDArray[np.uint8]
    numbers: NDArray[np.int16]


def replay(played: Iterable[Block], lessons: int, classes: Sequence[str], bits: int, traits: int, numbers: int) -> Tables:
    """Tables that hold exactly these lessons, settled.

    lessons: how many there are in all. classes: beside ham and spam, sorted; every label must be among them.
    """
    _keep_memory()
    player = _Player(lessons, list(classes), bits, traits, numbers)
    for block in played:
        player.play(block)
    return player.finish()


class _Weights(NamedTuple):
    """The weights of one class: cells number bucket * width + first of a whole table, which can be gathered without its neighbours."""

    cells: NDArray[np.int32]
    width: int
    first: int

    def places(self, buckets: NDArray[np.intp]) -> NDArray[np.intp]:
        """Where in the cells the weights of these buckets are."""
        return np.asarray(buckets * self.width + self.first)

    def gather(self, places: NDArray[np.intp], found: NDArray[np.int32]) -> None:
        """Fill `found`. What steps have moved beyond the bounds is brought back now, long before it could overflow."""
        self.cells.take(places, out=found, mode="clip")  # no place is outside: so nothing need be checked
        if np.maximum.reduce(found, initial=0) > logistic.MAX_WEIGHT or np.minimum.reduce(found, initial=0) < -logistic.MAX_WEIGHT:
            found[:] = logistic.capped(found)
            self.cells[places] = found


def _all_weights(tables: Tables) -> list[_Weights]:
    """Of every class but the first."""
    of_spam = _Weights(tables.rows.reshape(-1), tables.rows.shape[1], len(BASE_CLASSES))
    return [of_spam, *(_Weights(column.reshape(-1), 2, 1) for column in tables.columns)]


class _Player:
    """Tables while they grow."""

    def __init__(self, lessons: int, classes: list[str], bits: int, traits: int, numbers: int) -> None:
        self.tables = empty_tables(bits, traits, numbers, fusion.START)
        for name in classes:
            class_index(self.tables, name)
        self.number = {name: index for index, name in enumerate(self.tables.classes)}
        self.counts = [count_column(self.tables, index) for index in range(len(self.number))]
        self.weights = _all_weights(self.tables)
        self.lessons, self.played = lessons, 0

    def play(self, block: Block) -> None:
        """Score, step and count a block of lessons, in this order."""
        tables = self.tables
        placed = blocks.place(block.tokens, block.offsets, block.traits, block.numbers, tables.bits)
        targets = np.array([self.number[label] for label in block.labels], np.intp)
        fusing = self.lessons - self.played <= FUSION_LESSONS
        raw = blocks.counting_sums(experts.parameters(tables), read_rows(tables, placed.buckets).counts, placed) if fusing else None
        margins = self._teach(placed, targets)
        if raw is not None:
            self._fuse(blocks.joined(raw, margins, placed), targets)
        self._sum_up(placed, targets)
        self.played += len(targets)

    def _teach(self, placed: Placed, targets: NDArray[np.intp]) -> Integers:
        """Weights and counts, some lessons at a time; the logistic log-odds before each step, (m, SETS, K-1)."""
        places = [weights.places(placed.buckets) for weights in self.weights]
        roots = logistic.inverse_roots(placed.sizes)[:, :, np.newaxis]
        wanted = targets[:, np.newaxis, np.newaxis]
        borders = [0, *placed.sizes.sum(axis=1).cumsum().tolist()]
        rate = self._rate()
        count = self._counter(placed, targets, borders)
        found = []
        for first in range(0, len(targets), STEP):
            last = min(first + STEP, len(targets))
            here = [column[borders[first] : borders[last]] for column in places]
            found.append(self._step(here, placed.sizes[first:last], roots[first:last], wanted[first:last], rate))
            count(first, last)  # now, while their rows are in the cache
        return np.concatenate(found)

    def _counter(self, placed: Placed, targets: NDArray[np.intp], borders: list[int]) -> Callable[[int, int], None]:
        """Counts the features of lessons first to last of a block."""
        rows, numbers = self.tables.rows, targets.tolist()

        def by_lesson(first: int, last: int) -> None:
            for lesson in range(first, last):
                np.add.at(self.counts[numbers[lesson]], placed.buckets[borders[lesson] : borders[lesson + 1]], _ONE)

        if max(numbers) >= len(BASE_CLASSES):
            return by_lesson
        cells = placed.buckets * rows.shape[1] + targets.repeat(np.diff(borders))  # all in one table: all in one go
        return lambda first, last: np.add.at(rows.reshape(-1), cells[borders[first] : borders[last]], _ONE)

    def _step(
        self, places: list[NDArray[np.intp]], sizes: NDArray[np.intp], roots: Integers, targets: NDArray[np.intp], rate: int
    ) -> Integers:
        """places: of each class's weights. sizes (m, SETS), and two that go with their shape."""
        found = np.empty((len(places), len(places[0])), np.int32)
        for weights, here, row in zip(self.weights, places, found, strict=True):
            weights.gather(here, row)
        runs = sizes.ravel()
        sums = experts.run_sums(found, runs.cumsum() - runs, runs)
        margins = logistic.margins(sums.T.reshape(*sizes.shape, -1), self.tables.biases.T, roots)
        errors = logistic.errors(margins, targets)
        self.tables.biases += logistic.bias_steps(np.add.reduce(errors)).T
        self._move(places, runs, logistic.steps(errors, roots, rate).reshape(len(runs), -1))
        return margins

    def _rate(self) -> int:
        """Falls from the first rate to the last as the replay goes on, so that the latest lessons do not weigh most."""
        return logistic.FIRST_RATE - (logistic.FIRST_RATE - logistic.LAST_RATE) * self.played // max(self.lessons, 1)

    def _move(self, places: list[NDArray[np.intp]], runs: NDArray[np.intp], steps: NDArray[np.int32]) -> None:
        """Add a step to the weights of each run of features; many runs have none to make."""
        moving = steps.any(axis=1)
        if not moving.any():
            return
        chosen = moving.repeat(runs)
        for weights, here, step in zip(self.weights, places, steps[moving].T, strict=True):
            np.add.at(weights.cells, here[chosen], step.repeat(runs[moving]))

    def _fuse(self, scores: Integers, targets: NDArray[np.intp]) -> None:
        for first in range(0, len(targets), STEP):
            some = slice(first, first + STEP)
            fusion.learn(scores[some], targets[some], self.tables.fusion_weights, self.tables.fusion_biases)

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
        used = np.zeros(len(tables.rows), np.bool_)
        for column in self.counts:
            used |= column != 0
        tables.vocabulary = np.count_nonzero(used.reshape(SETS, -1), axis=1)
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
