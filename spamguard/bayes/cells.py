"""One number of every row of a table, summed and changed over runs of buckets: the inner loop of learning and of the replay.

Compiled where there is a compiler, else by numpy: whole numbers, so both give the same bits. What the numbers mean is the
caller's business.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard import kernel
from spamguard.bayes import experts, logistic
from spamguard.bayes.tables import BASE_CLASSES, Tables

Places = NDArray[np.intp]
_ONE = np.int32(1)


class Cells(NamedTuple):
    """Cell number bucket * width + first of a whole table, so that its neighbours need not be gathered. first: (1,)."""

    cells: NDArray[np.int32]
    width: int
    first: Places

    def places(self, buckets: Places) -> Places:
        """What the other functions want for these buckets. Made once for many calls, since a part of it serves a part of the buckets."""
        return buckets if kernel.functions() is not None else np.asarray(buckets * self.width + self.first)

    def sums(self, places: Places, starts: Places, sizes: Places, found: NDArray[np.int64]) -> None:
        """Fill `found` with the sums over runs of weights.

        What steps have moved beyond the bounds is brought back now, long before it could overflow.
        """
        compiled = kernel.functions()
        if compiled is None:
            found[:] = experts.run_sums(self._gathered(places)[np.newaxis], starts, sizes)[0]
        else:
            compiled.run_sums(self.width, self.cells, self.first, places, sizes, found, int(logistic.MAX_WEIGHT))

    def _gathered(self, places: Places) -> NDArray[np.int32]:
        found = self.cells.take(places, mode="clip")  # no place is outside: so nothing need be checked
        if np.maximum.reduce(found, initial=0) > logistic.MAX_WEIGHT or np.minimum.reduce(found, initial=0) < -logistic.MAX_WEIGHT:
            found[:] = logistic.capped(found)
            self.cells[places] = found
        return found

    def learn(self, places: Places, sizes: Places, steps: NDArray[np.int32], rows: NDArray[np.int32], fades: NDArray[np.int32]) -> None:
        """Move each run of places by its step, one run after the other, as `logistic.moved`; many runs have none.

        The counts that shares depend on: of the class, in the cell before each; of the first class, in the first column of rows.
        No place is twice in one run.
        """
        compiled = kernel.functions()
        if compiled is not None:
            shares, wide = logistic.SHARES, rows.shape[1]
            compiled.add_shares(self.width, self.cells, self.first, places, sizes, steps, rows, wide, shares, fades)
            return
        ends, first = sizes.cumsum(), rows.reshape(-1)  # `take` of a column alone would copy the column
        for run in steps.nonzero()[0]:
            here = places[ends[run] - sizes[run] : ends[run]]
            shares = logistic.shares(first.take(here // self.width * rows.shape[1]), self.cells.take(here - 1))
            self.cells[here] += logistic.moved(steps[run : run + 1], shares, self.cells.take(here), fades[run : run + 1])

    def give_up(self, buckets: Places, lessons: NDArray[np.int32], sign: int) -> None:
        """`logistic.given_up` of these weights, none of which is there twice."""
        places = buckets * self.width + self.first
        self.cells[places] = logistic.given_up(self.cells.take(places), lessons, sign)

    def add(self, buckets: Places, number: int) -> None:
        """Add a number to each of these, none of which is there twice."""
        compiled = kernel.functions()
        if compiled is None:
            self.cells[buckets * self.width + self.first] += np.int32(number)
        else:
            compiled.add_runs(self.width, self.cells, self.first, buckets, np.array([len(buckets)]), np.array([number], np.int32))


def of_counts(tables: Tables, index: int) -> Cells:
    """How many lessons of class number `index` each bucket has."""
    base = len(BASE_CLASSES)
    if index < base:
        return Cells(tables.rows.reshape(-1), tables.rows.shape[1], np.array([index]))
    return Cells(tables.columns[index - base].reshape(-1), 2, np.array([0]))


def of_weights(tables: Tables) -> list[Cells]:
    """The logistic weights of every class but the first."""
    of_spam = Cells(tables.rows.reshape(-1), tables.rows.shape[1], np.array([len(BASE_CLASSES)]))
    return [of_spam, *(Cells(column.reshape(-1), 2, np.array([1])) for column in tables.columns)]


def count(rows: NDArray[np.int32], buckets: Places, sizes: Places, columns: Places) -> None:
    """Add one in each of these rows, for each run of buckets in its own column."""
    compiled, width = kernel.functions(), rows.shape[1]
    if compiled is None:
        np.add.at(rows.reshape(-1), buckets * width + columns.repeat(sizes), _ONE)
    else:
        compiled.add_runs(width, rows, columns, buckets, sizes, np.ones(len(sizes), np.int32))
