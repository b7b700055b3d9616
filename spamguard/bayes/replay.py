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
from spamguard.bayes.tables import SETS, Tables, class_index, count_column, empty_tables, weight_column

BLOCK = 64  # lessons scored and counted together
STEP = 8  # lessons of a block that the logistic experts learn together: one gather, one scatter
FUSION_LESSONS = 4096  # fusion learns from the last so many: its dozen weights need no more
_CAPPING = 1024  # lessons between two cappings of the weights: each steps by less than 2**20, which leaves 32 bits room for 1,792
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


class _Player:
    """Tables while they grow: what is known of each bucket stands class by class, which is what gathers and scatters are fast at."""

    def __init__(self, lessons: int, classes: list[str], bits: int, traits: int, numbers: int) -> None:
        self.tables = empty_tables(bits, traits, numbers, fusion.START)
        for name in classes:
            class_index(self.tables, name)
        self.number = {name: index for index, name in enumerate(self.tables.classes)}
        self.counts = np.zeros((len(self.number), 1 << bits), np.int32)
        self.weights = np.zeros((len(self.number) - 1, 1 << bits), np.int32)
        self.lessons, self.played = lessons, 0

    def play(self, block: Block) -> None:
        """Score, step and count a block of lessons, in this order."""
        tables = self.tables
        placed = blocks.place(block.tokens, block.offsets, block.traits, block.numbers, tables.bits)
        targets = np.array([self.number[label] for label in block.labels], np.intp)
        margins = self._step(placed, targets)
        if self.lessons - self.played <= FUSION_LESSONS:
            raw = blocks.counting_sums(experts.parameters(tables), _gathered(self.counts, placed.buckets), placed)
            self._fuse(blocks.joined(raw, margins, placed), targets)
        self._count(placed, targets)
        self.played += len(targets)
        if self.played % _CAPPING < len(targets):
            self._cap()

    def _step(self, placed: Placed, targets: NDArray[np.intp]) -> Integers:
        """Teach the logistic experts, some lessons at a time; their log-odds before each step, (m, SETS, K-1)."""
        roots = logistic.inverse_roots(placed.sizes)[:, :, np.newaxis]
        wanted = targets[:, np.newaxis, np.newaxis]
        borders = np.concatenate([[0], placed.sizes.sum(axis=1).cumsum()]).tolist()
        found = []
        for first in range(0, len(targets), STEP):
            some = slice(first, min(first + STEP, len(targets)))
            buckets = placed.buckets[borders[first] : borders[some.stop]]
            found.append(self._step_some(buckets, placed.sizes[some], roots[some], wanted[some]))
        return np.concatenate(found)

    def _step_some(self, buckets: NDArray[np.intp], sizes: NDArray[np.intp], roots: Integers, targets: NDArray[np.intp]) -> Integers:
        runs = sizes.ravel()
        sums = experts.run_sums(_gathered(self.weights, buckets), runs.cumsum() - runs, runs)
        margins = logistic.margins(sums.T.reshape(*sizes.shape, -1), self.tables.biases.T, roots)
        errors = logistic.errors(margins, targets)
        self.tables.biases += logistic.bias_steps(errors.sum(axis=0)).T
        self._move(buckets, runs, logistic.steps(errors, roots, self._rate()).reshape(len(runs), -1))
        return margins

    def _rate(self) -> int:
        """Falls from the first rate to the last as the replay goes on, so that the latest lessons do not weigh most."""
        return logistic.FIRST_RATE - (logistic.FIRST_RATE - logistic.LAST_RATE) * self.played // max(self.lessons, 1)

    def _move(self, buckets: NDArray[np.intp], runs: NDArray[np.intp], steps: NDArray[np.int32]) -> None:
        """Add a step to the weights of each run's buckets; many runs have none to make."""
        moving = steps.any(axis=1)
        if not moving.any():
            return
        buckets = buckets[moving.repeat(runs)]
        for weights, step in zip(self.weights, steps[moving].T, strict=True):
            np.add.at(weights, buckets, step.repeat(runs[moving]))

    def _cap(self) -> None:
        logistic.capped(self.weights, out=self.weights)

    def _fuse(self, scores: Integers, targets: NDArray[np.intp]) -> None:
        for first in range(0, len(targets), STEP):
            some = slice(first, first + STEP)
            fusion.learn(scores[some], targets[some], self.tables.fusion_weights, self.tables.fusion_biases)

    def _count(self, placed: Placed, targets: NDArray[np.intp]) -> None:
        tables = self.tables
        places = (targets << tables.bits).repeat(placed.sizes.sum(axis=1))
        places += placed.buckets
        np.add.at(self.counts.reshape(-1), places, np.int32(1))
        for index in np.unique(targets).tolist():
            mine = targets == index
            tables.messages[index] += int(mine.sum())
            tables.totals[index] += placed.sizes[mine].sum(axis=0)
            traits = placed.traits[mine]
            np.add.at(tables.trait_counts[index], (np.arange(traits.shape[1]), traits), 1)
            numbers = placed.numbers[mine]
            tables.number_sums[index] += numbers.sum(axis=0)
            tables.number_products[index] += numbers.T @ numbers

    def finish(self) -> Tables:
        """The tables, with vocabulary and histogram from the counts."""
        self._cap()
        tables = self.tables
        used = (np.bitwise_or.reduce(self.counts) != 0).reshape(SETS, -1)
        tables.vocabulary = np.count_nonzero(used, axis=1)
        words = used[0].nonzero()[0]
        of_words = [column[words] for column in self.counts]
        width = max(int(column.max(initial=0)) for column in of_words) + 2
        tables.histogram = np.stack([np.bincount(column, minlength=width) for column in of_words])
        for index, counts in enumerate(self.counts):
            count_column(tables, index)[:] = counts
        for index, weights in enumerate(self.weights, start=1):
            weight_column(tables, index)[:] = weights
        return tables


def _gathered(columns: NDArray[np.int32], buckets: NDArray[np.intp]) -> NDArray[np.int32]:
    """What each class has in these buckets, (classes, n); places were cut to the table's size, so need no check."""
    return columns.take(buckets, axis=1, mode="clip")


def _keep_memory() -> None:
    """Have the C library keep what is freed: it gives back to the system what is larger than anything that was freed before.

    Otherwise the temporaries of every block are pages faulted in anew: six for each lesson.
    """
    np.empty(_TEMPORARIES, np.uint8)
