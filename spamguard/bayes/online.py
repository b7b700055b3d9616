"""One lesson more or less, at once: counts exactly, logistic weights by one step.

Fusion waits for the settled state. Its dozen weights serve every message, and ten corrections in a
row, which contradict all experts, would turn them round (corpora/RESULTS.md, "Fusion between
settlings").

A lesson that is taken back soon after it was taught gives its own step back, so a slip of the hand
leaves nothing behind. One that is part of the settled state does not: subtracting old steps would
be wrong, because other lessons have compensated. Instead each weight loses the part of one lesson
among all that have moved it that way. In both cases the exact state comes from `replay`.

Word lists of other filters (`apply_prior`) are where the logistic experts of single tokens start.
The boundary of naive Bayes over words is linear, and the logistic experts learn the same linear
form; so another filter's counts become log-odds, the log-odds become starting weights, and lessons
correct them. They fade as lessons come. No count is touched: counting experts hold own lessons only
(corpora/RESULTS.md, "Moving in").

`TableColumn` is the inner loop of learning and of the replay: one number of every row of a table,
summed and changed over runs of buckets. It is compiled where there is a compiler, else numpy does
it: whole numbers, so both give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard import native
from spamguard.bayes import experts, logistic, tables
from spamguard.bayes.logistic import Integers, Ints32
from spamguard.bayes.tables import BASE_CLASSES, N_BASE, N_TOKEN_SETS, Evidence, Tables

Indices = NDArray[np.intp]
_ONE = np.int32(1)
_NO_DECAY = np.zeros(N_TOKEN_SETS, np.int32)  # decay could not be taken back; settling applies it

WORD_ODDS_STEPS = 16  # per nat, of imported log-odds
# Of a step. Sums over n tokens are multiplied by n^-1/2, so twice the log-odds are not too much.
_STEP_WEIGHT = 2 * logistic.ONE // WORD_ODDS_STEPS
_HALF_WEIGHT_LESSONS = 50  # after so many lessons a word list weighs half as much


class WordOdds(NamedTuple):
    """How much more often single tokens occur in spam than in ham.

    tokens: uint32 (n,), sorted and unique, as in `records.Features`. log_odds: int8 (n,), in
    1/WORD_ODDS_STEPS nats.
    """

    tokens: NDArray[np.uint32]
    log_odds: NDArray[np.int8]


def apply_prior(learnt: Tables, word_odds: Iterable[WordOdds], lessons: int) -> None:
    """Have the weights of empty tables start from word lists.

    lessons says how many lessons the tables will be taught.
    """
    weights = tables.weight_column(learnt, BASE_CLASSES.index("spam"))
    fading = _HALF_WEIGHT_LESSONS + lessons
    for tokens, log_odds in word_odds:
        steps = log_odds.astype(np.int64) * (_STEP_WEIGHT * _HALF_WEIGHT_LESSONS) // fading
        np.add.at(weights, tokens >> np.uint32(32 - learnt.bits), steps.astype(np.int32))


# ---- one lesson


def add_lesson(learnt: Tables, evidence: Evidence, name: str) -> None:
    """Teach one message as class `name`."""
    index = tables.ensure_class_index(learnt, name)
    counts = tables.read_counts(learnt, evidence.buckets)
    roots, margins = _lesson_margins(learnt, evidence)
    _apply_step(learnt, evidence, roots, logistic.errors(margins, np.array([index])))
    tables.count_lesson(learnt, evidence, counts, index, 1)
    count_table_column(learnt, index).add_number(evidence.buckets, 1)


def subtract_lesson(learnt: Tables, evidence: Evidence, name: str, scores: Integers) -> None:
    """Take back one message that is counted as class `name`.

    Parameters
    ----------
    scores : the experts' scores of the message before it was taught, flat, if `add_lesson` taught
        it on these tables; empty when it came with the settled state.

    Raises
    ------
    TableError
        It is not counted as that class; nothing is changed.
    """
    if name not in learnt.classes:
        raise tables.not_counted_error(name)
    index = learnt.classes.index(name)
    counts = tables.read_counts(learnt, evidence.buckets)
    tables.count_lesson(learnt, evidence, counts, index, -1)
    count_table_column(learnt, index).add_number(evidence.buckets, -1)
    if len(scores) == (len(learnt.classes) - 1) * len(experts.EXPERTS):
        counts[index] -= 1
        _undo_step(learnt, evidence, counts, index, scores)
    else:  # no scores, or scores from a time with other classes
        _remove_shares(learnt, evidence, counts, index)
    tables.drop_empty_class(learnt, index)


def _lesson_margins(learnt: Tables, evidence: Evidence) -> tuple[Integers, Integers]:
    """1/√size (SETS, 1) and the logistic experts' log-odds (SETS, K-1) of every token set."""
    roots = logistic.inverse_roots(evidence.sizes)[:, np.newaxis]
    sums = np.empty((len(learnt.biases), N_TOKEN_SETS), np.int64)
    for weights, out in zip(weight_table_columns(learnt), sums, strict=True):
        weights.sum_runs(weights.locate(evidence.buckets), evidence.starts, evidence.sizes, out)
    return roots, logistic.margins(sums.T, learnt.biases.T, roots)


def _apply_step(learnt: Tables, evidence: Evidence, roots: Integers, errors: Integers) -> None:
    """Step weights and biases of every token set; the lesson itself is not counted meanwhile.

    errors are (SETS, K-1).
    """
    learnt.biases += logistic.bias_steps(errors).T
    moves = np.ascontiguousarray(logistic.weight_steps(errors, roots).T)
    for weights, move in zip(weight_table_columns(learnt), moves, strict=True):
        weights.apply_steps(
            weights.locate(evidence.buckets), evidence.sizes, move, learnt.rows, _NO_DECAY
        )


def _undo_step(
    learnt: Tables, evidence: Evidence, counts: Ints32, index: int, scores: Integers
) -> None:
    shares = logistic.step_shares(counts[0], counts[1:])
    sizes = np.maximum(evidence.sizes, 1)[:, np.newaxis]
    reach = np.maximum(experts.set_sums(shares, evidence).T // sizes, 1)
    of_logistic = scores.reshape(-1, len(experts.EXPERTS))[:, N_TOKEN_SETS : 2 * N_TOKEN_SETS]
    before = of_logistic.T * (logistic.ONE // experts.STEPS_PER_NAT)
    roots, margins = _lesson_margins(learnt, evidence)
    errors = logistic.undo_errors(margins, before, np.array([index]), reach)
    _apply_step(learnt, evidence, roots, errors)


def _remove_shares(learnt: Tables, evidence: Evidence, counts: Ints32, index: int) -> None:
    """Take the share of one lesson from every weight.

    counts (K, n) are the lessons of every class with each feature, this one included. Lessons of a
    class have moved its weights up, those of all others down.
    """
    of_all = np.add.reduce(counts, axis=0, dtype=np.int32)
    for number, weights in enumerate(weight_table_columns(learnt), start=1):
        lessons, sign = (counts[index], 1) if number == index else (of_all - counts[number], -1)
        weights.remove_lesson_share(evidence.buckets, lessons, sign)


# ---- the inner loop


class TableColumn(NamedTuple):
    """One column of a table: cell number bucket * width + offset of all its cells.

    So its neighbours need not be gathered. offset is an array, (1,).
    """

    cells: Ints32
    width: int
    offset: Indices

    def locate(self, buckets: Indices) -> Indices:
        """The places of these buckets, as the other methods take them.

        Made once for many calls: a slice of the result serves a slice of the buckets.
        """
        if native.functions() is not None:
            return buckets
        return np.asarray(buckets * self.width + self.offset)

    def sum_runs(self, places: Indices, starts: Indices, sizes: Indices, out: Integers) -> None:
        """Fill `out` with the sums over runs of weights.

        Weights that steps have moved beyond the bounds are brought back, long before they could
        overflow.
        """
        compiled, limit = native.functions(), logistic.MAX_WEIGHT
        if compiled is not None:
            compiled.run_sums(self.width, self.cells, self.offset, places, sizes, out, int(limit))
            return
        weights = self.cells.take(places, mode="clip")  # no place is outside: nothing to check
        highest = np.maximum.reduce(weights, initial=0)
        if highest > limit or np.minimum.reduce(weights, initial=0) < -limit:
            weights[:] = logistic.cap_weights(weights)
            self.cells[places] = weights
        out[:] = experts.run_sums(weights[np.newaxis], starts, sizes)[0]

    def apply_steps(
        self, places: Indices, sizes: Indices, steps: Ints32, rows: Ints32, decay: Ints32
    ) -> None:
        """Move each run of places by its step, in order, as `logistic.weight_moves`.

        Many runs have a step of zero, and no place is twice in one run. Shares depend on the counts
        of the class, in the cell before each place, and of ham, in the first column of rows.
        """
        compiled, width = native.functions(), rows.shape[1]
        if compiled is not None:
            column, shares = (self.width, self.cells, self.offset), logistic.STEP_SHARES
            compiled.add_shares(*column, places, sizes, steps, rows, width, shares, decay)
            return
        ends, first = sizes.cumsum(), rows.reshape(-1)  # `take` of a column would copy the column
        for run in steps.nonzero()[0]:
            here = places[ends[run] - sizes[run] : ends[run]]
            ham, counts = first.take(here // self.width * width), self.cells.take(here - 1)
            step, weights = steps[run : run + 1], self.cells.take(here)
            shares = logistic.step_shares(ham, counts)
            self.cells[here] += logistic.weight_moves(step, shares, weights, decay[run : run + 1])

    def remove_lesson_share(self, buckets: Indices, lessons: Ints32, sign: int) -> None:
        """`logistic.remove_lesson_share` of these weights, none of which is there twice."""
        places = buckets * self.width + self.offset
        self.cells[places] = logistic.remove_lesson_share(self.cells.take(places), lessons, sign)

    def add_number(self, buckets: Indices, number: int) -> None:
        """Add a number to each of these cells, none of which is there twice."""
        compiled = native.functions()
        if compiled is None:
            self.cells[buckets * self.width + self.offset] += np.int32(number)
        else:
            runs = np.array([len(buckets)]), np.array([number], np.int32)
            compiled.add_runs(self.width, self.cells, self.offset, buckets, *runs)


def count_table_column(learnt: Tables, index: int) -> TableColumn:
    """How many lessons of class number `index` each bucket has."""
    if index < N_BASE:
        return TableColumn(learnt.rows.reshape(-1), learnt.rows.shape[1], np.array([index]))
    return TableColumn(learnt.columns[index - N_BASE].reshape(-1), 2, np.array([0]))


def weight_table_columns(learnt: Tables) -> list[TableColumn]:
    """The logistic weights of every class but the first."""
    of_spam = TableColumn(learnt.rows.reshape(-1), learnt.rows.shape[1], np.array([N_BASE]))
    columns = (TableColumn(column.reshape(-1), 2, np.array([1])) for column in learnt.columns)
    return [of_spam, *columns]


def count_features(rows: Ints32, buckets: Indices, sizes: Indices, columns: Indices) -> None:
    """Add one in each of these rows, for each run of buckets in a column of its own."""
    compiled, width = native.functions(), rows.shape[1]
    if compiled is None:
        np.add.at(rows.reshape(-1), buckets * width + columns.repeat(sizes), _ONE)
    else:
        compiled.add_runs(width, rows, columns, buckets, sizes, np.ones(len(sizes), np.int32))
