"""One lesson more or less, at once: counts exactly, logistic weights by one step. Fusion waits for the settled state: its dozen
weights serve every message, and ten corrections in a row, which contradict all experts, would turn them round
(corpora/RESULTS.md, "Fusion between settlings").

A lesson that is taken back soon after it was taught gives its own step back, so that a slip of the hand leaves nothing behind. One
that is part of the settled state does not: subtracting old steps is wrong, because other lessons have compensated. Its step
is the inverse of the one that it would cause now, and goes no further than to where
nothing is known. Either way the exact state comes from `replay`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import experts, logistic
from spamguard.bayes.experts import Integers
from spamguard.bayes.tables import SETS, Evidence, Rows, Tables, class_index, count, drop_empty_class, not_counted, read_rows, write_rows

_NO_FADES = np.zeros(1, np.int32)  # what fades could not be taken back; settling sees to it


def add(tables: Tables, seen: Evidence, name: str) -> None:
    """Teach one message as class `name`."""
    index = class_index(tables, name)
    rows = read_rows(tables, seen.buckets)
    roots, margins = _margins(tables, seen, rows)
    _step(tables, seen, rows, roots, logistic.errors(margins, np.array([index])))
    count(tables, seen, rows, index, 1)
    write_rows(tables, seen.buckets, rows)


def take_away(tables: Tables, seen: Evidence, name: str, scores: Integers) -> None:
    """Take back one message that is counted as class `name`. TableError, and nothing changed, when it is not.

    scores: what the experts said of it before it was taught as anything, flat, if it was taught by `add` on these tables; empty
    when it came with the settled state.
    """
    if name not in tables.classes:
        raise not_counted(name)
    index = tables.classes.index(name)
    rows = read_rows(tables, seen.buckets)
    count(tables, seen, rows, index, -1)
    roots, margins = _margins(tables, seen, rows)
    _step(tables, seen, rows, roots, _errors_back(tables, seen, rows, margins, scores, np.array([index])))
    write_rows(tables, seen.buckets, rows)
    drop_empty_class(tables, index)


def _margins(tables: Tables, seen: Evidence, rows: Rows) -> tuple[Integers, Integers]:
    """Of every token set: 1/√size (SETS, 1), and the logistic expert's log-odds (SETS, K-1)."""
    roots = logistic.inverse_roots(seen.sizes)[:, np.newaxis]
    return roots, logistic.margins(experts.set_sums(rows.weights, seen).T, tables.biases.T, roots)


def _errors_back(tables: Tables, seen: Evidence, rows: Rows, margins: Integers, scores: Integers, target: NDArray[np.intp]) -> Integers:
    reach = np.maximum(experts.set_sums(_shares(rows), seen).T // np.maximum(seen.sizes, 1)[:, np.newaxis], 1)
    if len(scores) != (len(tables.classes) - 1) * len(experts.EXPERTS):  # none, or of a time with other classes
        return logistic.errors_undone(margins, target, reach)
    before = scores.reshape(-1, len(experts.EXPERTS))[:, SETS : 2 * SETS].T * (logistic.ONE // experts.STEPS)
    return logistic.errors_back(margins, before, target, reach)


def _shares(rows: Rows) -> NDArray[np.int32]:
    return logistic.shares(rows.counts[0], rows.counts[1:])


def _step(tables: Tables, seen: Evidence, rows: Rows, roots: Integers, errors: Integers) -> None:
    """Logistic steps of every token set on the rows and biases, in place. errors (SETS, K-1). rows: without the lesson's own counts."""
    tables.biases += logistic.bias_steps(errors).T
    steps = logistic.steps(errors, roots).T.repeat(seen.sizes, axis=1)
    rows.weights = logistic.capped(rows.weights + logistic.moved(steps, _shares(rows), rows.weights, _NO_FADES))
