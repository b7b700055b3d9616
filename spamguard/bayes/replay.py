"""The settled state: what the error-driven experts are defined to be, a deterministic replay of all lessons.

Lessons are replayed in the order they are handed over (the caller's canonical one, which interleaves the classes), in
blocks: a block's scores are taken before anything of the block is counted, so fusion never sees a score taken after teaching.
Counting on the way, it also builds every table from nothing. Whole numbers throughout: the same lessons give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import experts, fusion, logistic
from spamguard.bayes.experts import Floats, Integers
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


class _Lessons(NamedTuple):
    """A block on tables of a certain size. targets (m,); buckets (n,), unique in each lesson; sizes (m, SETS)."""

    targets: NDArray[np.intp]
    buckets: NDArray[np.intp]
    sizes: NDArray[np.intp]
    traits: NDArray[np.intp]
    numbers: Integers


def replay(blocks: Iterable[Block], lessons: int, classes: Sequence[str], bits: int, traits: int, numbers: int) -> Tables:
    """Tables that hold exactly these lessons, settled.

    lessons: how many there are in all. classes: beside ham and spam, sorted; every label must be among them.
    """
    player = _Player(lessons, list(classes), bits, traits, numbers)
    for block in blocks:
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
        lessons = self._place(block)
        if self.lessons - self.played <= FUSION_LESSONS:
            counting = self._counting_scores(lessons)
            margins = self._step(lessons)
            self._fuse(lessons, counting, margins)
        else:
            self._step(lessons)
        self._count(lessons)
        self.played += len(block.labels)

    def _place(self, block: Block) -> _Lessons:
        bits = self.tables.bits
        buckets = (block.tokens >> np.uint32(32 - bits)).astype(np.intp)
        keep = np.ones(len(buckets), np.bool_)
        np.not_equal(buckets[1:], buckets[:-1], out=keep[1:])
        borders = block.offsets[1:-1]
        keep[borders[borders < len(buckets)]] = True
        buckets = buckets[keep]
        owner = np.repeat(np.arange(len(block.labels)), np.diff(block.offsets))[keep]
        sizes = np.bincount(owner * SETS + (buckets >> (bits - 2)), minlength=len(block.labels) * SETS).reshape(-1, SETS)
        number = {name: index for index, name in enumerate(self.tables.classes)}
        targets = np.array([number[label] for label in block.labels], np.intp)
        return _Lessons(targets, buckets, sizes, block.traits.astype(np.intp), block.numbers.astype(np.int64))

    def _counting_scores(self, lessons: _Lessons) -> Floats:
        """Undamped log-odds of the counting experts before the block, (K-1, m, EXPERTS); the logistic ones are left at zero."""
        tables = self.tables
        counts = read_rows(tables, lessons.buckets).counts
        known = experts.parameters(tables)
        shares = np.tile(known.shares, len(lessons.targets))
        sizes = lessons.sizes.ravel()
        parts = experts.multinomial_parts(counts, shares, sizes)
        raw = np.zeros((len(parts), len(lessons.targets), len(experts.EXPERTS)))
        raw[:, :, :SETS] = experts.run_sums(parts, sizes.cumsum() - sizes, sizes).reshape(len(parts), -1, SETS)
        raw[:, :, -2] = experts.looked_up(known.traits, lessons.traits).sum(axis=-1)
        raw[:, :, -1] = experts.looked_up(known.numbers, lessons.numbers).sum(axis=-1)
        return raw

    def _step(self, lessons: _Lessons) -> Integers:
        """Teach the logistic experts, some lessons at a time; their margins before each step, (K-1, m, SETS)."""
        borders = np.concatenate([[0], lessons.sizes.sum(axis=1).cumsum()]).tolist()
        found = []
        for first in range(0, len(lessons.targets), STEP):
            last = min(first + STEP, len(lessons.targets))
            buckets = lessons.buckets[borders[first] : borders[last]]
            found.append(self._step_some(buckets, lessons.sizes[first:last], lessons.targets[first:last]))
        return np.concatenate(found).transpose(2, 0, 1)

    def _step_some(self, buckets: NDArray[np.intp], sizes: NDArray[np.intp], targets: NDArray[np.intp]) -> Integers:
        flat = sizes.ravel()
        starts = flat.cumsum() - flat
        sums = experts.run_sums(read_rows(self.tables, buckets).weights, starts, flat)
        roots = logistic.inverse_roots(sizes)[:, :, np.newaxis]
        margins = logistic.margins(sums.T.reshape(*sizes.shape, -1), self.tables.biases.T, roots)
        errors = logistic.errors(margins, targets[:, np.newaxis, np.newaxis])
        self.tables.biases += logistic.bias_steps(errors.sum(axis=0)).T
        steps = logistic.steps(errors, roots, self._rate()).reshape(len(flat), -1)
        moving = np.flatnonzero(steps.any(axis=1).repeat(flat))
        self._move(buckets.take(moving), steps.repeat(flat, axis=0).take(moving, axis=0))
        return margins

    def _rate(self) -> int:
        """Falls from the first rate to the last as the replay goes on, so that the latest lessons do not weigh most."""
        return logistic.FIRST_RATE - (logistic.FIRST_RATE - logistic.LAST_RATE) * self.played // max(self.lessons, 1)

    def _move(self, buckets: NDArray[np.intp], steps: NDArray[np.int32]) -> None:
        for index, step in enumerate(steps.T, start=1):
            column = weight_column(self.tables, index)
            np.add.at(column, buckets, step)
            column[buckets] = logistic.capped(column[buckets])

    def _fuse(self, lessons: _Lessons, raw: Floats, margins: Integers) -> None:
        raw *= experts.damping(lessons.sizes, lessons.traits.shape[1], lessons.numbers.shape[1])
        raw[:, :, SETS : 2 * SETS] = margins / logistic.ONE
        scores = experts.quantised(raw)
        for first in range(0, len(lessons.targets), STEP):
            some = slice(first, first + STEP)
            fusion.learn(scores[:, some].swapaxes(0, 1), lessons.targets[some], self.tables.fusion_weights, self.tables.fusion_biases)

    def _count(self, lessons: _Lessons) -> None:
        tables = self.tables
        per_lesson = lessons.sizes.sum(axis=1)
        for index in np.unique(lessons.targets).tolist():
            mine = lessons.targets == index
            np.add.at(count_column(tables, index), lessons.buckets[mine.repeat(per_lesson)], np.int32(1))
            tables.messages[index] += int(mine.sum())
            tables.totals[index] += lessons.sizes[mine].sum(axis=0)
            traits = lessons.traits[mine]
            np.add.at(tables.trait_counts[index], (np.arange(traits.shape[1]), traits), 1)
            numbers = lessons.numbers[mine]
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
