"""One lesson more or less, at once: counts exactly, error-driven weights by one step.

The step of a forgotten lesson is the inverse of the step it would cause now, not of the one it once caused: subtracting old
steps is wrong, because later lessons have compensated. The exact state comes from `replay`.
"""

from __future__ import annotations

import numpy as np

from spamguard.bayes import experts, fusion, logistic
from spamguard.bayes.experts import Integers
from spamguard.bayes.tables import Evidence, Rows, Tables, class_index, count, drop_empty_class, not_counted, read_rows, write_rows


def add(tables: Tables, seen: Evidence, name: str, scores: Integers) -> None:
    """Teach one message as class `name`.

    scores: what the experts said of it before it was taught for the first time, flat, for fusion to learn from; empty when it was
    taught before. Scores among other classes than there are now teach nothing.
    """
    index = class_index(tables, name)
    rows = read_rows(tables, seen.buckets)
    if len(scores) == (len(tables.classes) - 1) * len(experts.EXPERTS):
        fusion.learn(scores.reshape(1, -1, len(experts.EXPERTS)), np.array([index]), tables.fusion_weights, tables.fusion_biases)
    _step(tables, seen, rows, index, 1)
    count(tables, seen, rows, index, 1)
    write_rows(tables, seen.buckets, rows)


def take_away(tables: Tables, seen: Evidence, name: str) -> None:
    """Take back one message that is counted as class `name`. TableError, and nothing changed, when it is not."""
    if name not in tables.classes:
        raise not_counted(name)
    index = tables.classes.index(name)
    rows = read_rows(tables, seen.buckets)
    count(tables, seen, rows, index, -1)
    _step(tables, seen, rows, index, -1)
    write_rows(tables, seen.buckets, rows)
    drop_empty_class(tables, index)


def _step(tables: Tables, seen: Evidence, rows: Rows, index: int, sign: int) -> None:
    """Logistic steps of every token set on the rows and biases, in place."""
    roots = logistic.inverse_roots(seen.sizes)[:, np.newaxis]
    margins = logistic.margins(experts.set_sums(rows.weights, seen).T, tables.biases.T, roots)
    errors = sign * logistic.errors(margins, np.array([index]))
    tables.biases += logistic.bias_steps(errors).T
    steps = logistic.steps(errors, roots)
    rows.weights = logistic.capped(rows.weights + steps.T.repeat(seen.sizes, axis=1))
