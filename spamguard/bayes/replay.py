"""The settled state: what the error-driven experts are defined to be, a deterministic replay of all lessons.

Lessons are replayed in the order they are handed over (the caller's canonical one, which interleaves the classes), in
blocks: a block's scores are taken before anything of the block is counted, so fusion never sees a score taken after teaching.
Counting on the way, it also builds every table from nothing. All in whole numbers, or rounded to such at once: the same
lessons give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import blocks, experts, fusion, logistic
from spamguard.bayes.blocks import Placed
from spamguard.bayes.experts import Integers
from spamguard.bayes.tables import SETS, Tables, class_index, count_column, empty_tables, read_rows, weight_column

BLOCK = 64  # lessons scored and counted together
STEP = 8  # lessons of a block that the logistic experts learn together: one gather, one scatter
FUSION_LESSONS = 4096  # fusion learns from the last so many: its dozen weights need no more


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
    player = _Player(lessons, list(classes), bits, traits, numbers)
    for block in played:
        player.play(block)
    return player.finish()


class _Player:
    """Tables while they grow."""

    def __init__(self, lessons: int, classes: list[str], bits: int, traits: int, numbers: int) -> None:
        self.tables = empty_tables(bits, traits, numbers, fusion.START)
        for name in classes:
            class_index(self.tables, name)
        self.lessons, self.played = lessons, 0

    def play(self, block: Block) -> None:
        """Score, step and count a block of lessons, in this order."""
        tables = self.tables
        placed = blocks.place(block.tokens, block.offsets, block.traits, block.numbers, tables.bits)
        number = {name: index for index, name in enumerate(tables.classes)}
        targets = np.array([number[label] for label in block.labels], np.intp)
        if self.lessons - self.played <= FUSION_LESSONS:
            raw = blocks.counting_sums(experts.parameters(tables), read_rows(tables, placed.buckets).counts, placed)
            self._fuse(blocks.joined(raw, self._step(placed, targets), placed), targets)
        else:
            self._step(placed, targets)
        self._count(placed, targets)
        self.played += len(targets)

    def _step(self, placed: Placed, targets: NDArray[np.intp]) -> Integers:
        """Teach the logistic experts, some lessons at a time; their log-odds before each step, (m, SETS, K-1)."""
        borders = np.concatenate([[0], placed.sizes.sum(axis=1).cumsum()]).tolist()
        found = []
        for first in range(0, len(targets), STEP):
            last = min(first + STEP, len(targets))
            some = Placed(placed.buckets[borders[first] : borders[last]], *(column[first:last] for column in placed[1:]))
            found.append(self._step_some(some, targets[first:last]))
        return np.concatenate(found)

    def _step_some(self, some: Placed, targets: NDArray[np.intp]) -> Integers:
        roots, margins = blocks.margins(read_rows(self.tables, some.buckets).weights, self.tables.biases, some)
        errors = logistic.errors(margins, targets[:, np.newaxis, np.newaxis])
        self.tables.biases += logistic.bias_steps(errors.sum(axis=0)).T
        sizes = some.sizes.ravel()
        steps = logistic.steps(errors, roots, self._rate()).reshape(len(sizes), -1)
        moving = np.flatnonzero(steps.any(axis=1).repeat(sizes))
        self._move(some.buckets.take(moving), steps.repeat(sizes, axis=0).take(moving, axis=0))
        return margins

    def _rate(self) -> int:
        """Falls from the first rate to the last as the replay goes on, so that the latest lessons do not weigh most."""
        return logistic.FIRST_RATE - (logistic.FIRST_RATE - logistic.LAST_RATE) * self.played // max(self.lessons, 1)

    def _move(self, buckets: NDArray[np.intp], steps: NDArray[np.int32]) -> None:
        for index, step in enumerate(steps.T, start=1):
            column = weight_column(self.tables, index)
            np.add.at(column, buckets, step)
            column[buckets] = logistic.capped(column[buckets])

    def _fuse(self, scores: Integers, targets: NDArray[np.intp]) -> None:
        for first in range(0, len(targets), STEP):
            some = slice(first, first + STEP)
            fusion.learn(scores[some], targets[some], self.tables.fusion_weights, self.tables.fusion_biases)

    def _count(self, placed: Placed, targets: NDArray[np.intp]) -> None:
        tables = self.tables
        per_lesson = placed.sizes.sum(axis=1)
        for index in np.unique(targets).tolist():
            mine = targets == index
            np.add.at(count_column(tables, index), placed.buckets[mine.repeat(per_lesson)], np.int32(1))
            tables.messages[index] += int(mine.sum())
            tables.totals[index] += placed.sizes[mine].sum(axis=0)
            traits = placed.traits[mine]
            np.add.at(tables.trait_counts[index], (np.arange(traits.shape[1]), traits), 1)
            numbers = placed.numbers[mine]
            tables.number_sums[index] += numbers.sum(axis=0)
            tables.number_products[index] += numbers.T @ numbers

    def finish(self) -> Tables:
        """Vocabulary and histogram, from the counts."""
        tables = self.tables
        counts = [count_column(tables, index) for index in range(len(tables.classes))]
        used = (np.bitwise_or.reduce(counts) != 0).reshape(SETS, -1)
        tables.vocabulary = np.count_nonzero(used, axis=1)
        words = used[0].nonzero()[0]
        of_words = [column[words] for column in counts]
        width = max(int(column.max(initial=0)) for column in of_words) + 2
        tables.histogram = np.stack([np.bincount(column, minlength=width) for column in of_words])
        return tables
