"""One lesson more or less, at once: counts exactly, logistic weights by one step. Fusion waits for the settled state: its dozen
weights serve every message, and ten corrections in a row, which contradict all experts, would turn them round
(corpora/RESULTS.md, "Fusion between settlings").

A lesson that is taken back soon after it was taught gives its own step back, so that a slip of the hand leaves nothing behind. One
that is part of the settled state does not: subtracting old steps is wrong, because other lessons have compensated. Of what each weight
says for its class, or against another one, goes the part of one lesson among all with the feature that have moved it that way.
Either way the exact state comes from `replay`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import cells, experts, logistic
from spamguard.bayes.experts import Integers
from spamguard.bayes.tables import SETS, Evidence, Tables, class_index, count, drop_empty_class, not_counted, read_counts

_NO_FADES = np.zeros(SETS, np.int32)  # what fades could not be taken back; settling sees to it


def add(tables: Tables, seen: Evidence, name: str) -> None:
    """Teach one message as class `name`."""
    index = class_index(tables, name)
    counts = read_counts(tables, seen.buckets)
    roots, margins = _margins(tables, seen)
    _step(tables, seen, roots, logistic.errors(margins, np.array([index])))
    _count(tables, seen, counts, index, 1)


def take_away(tables: Tables, seen: Evidence, name: str, scores: Integers) -> None:
    """Take back one message that is counted as class `name`. TableError, and nothing changed, when it is not.

    scores: what the experts said of it before it was taught as anything, flat, if it was taught by `add` on these tables; empty
    when it came with the settled state.
    """
    if name not in tables.classes:
        raise not_counted(name)
    index = tables.classes.index(name)
    counts = read_counts(tables, seen.buckets)
    _count(tables, seen, counts, index, -1)
    if len(scores) == (len(tables.classes) - 1) * len(experts.EXPERTS):
        counts[index] -= 1
        _step_back(tables, seen, counts, index, scores)
    else:  # none, or of a time with other classes
        _give_up(tables, seen, counts, index)
    drop_empty_class(tables, index)


def _count(tables: Tables, seen: Evidence, counts: NDArray[np.int32], index: int, sign: int) -> None:
    """In the rows, and in the sums over them. counts (K, n): as they were before."""
    count(tables, seen, counts, index, sign)
    cells.of_counts(tables, index).add(seen.buckets, sign)


def _margins(tables: Tables, seen: Evidence) -> tuple[Integers, Integers]:
    """Of every token set: 1/√size (SETS, 1), and the logistic expert's log-odds (SETS, K-1)."""
    roots = logistic.inverse_roots(seen.sizes)[:, np.newaxis]
    sums = np.empty((len(tables.biases), SETS), np.int64)
    for weights, found in zip(cells.of_weights(tables), sums, strict=True):
        weights.sums(weights.places(seen.buckets), seen.starts, seen.sizes, found)
    return roots, logistic.margins(sums.T, tables.biases.T, roots)


def _step_back(tables: Tables, seen: Evidence, counts: NDArray[np.int32], index: int, scores: Integers) -> None:
    shares = logistic.shares(counts[0], counts[1:])
    reach = np.maximum(experts.set_sums(shares, seen).T // np.maximum(seen.sizes, 1)[:, np.newaxis], 1)
    before = scores.reshape(-1, len(experts.EXPERTS))[:, SETS : 2 * SETS].T * (logistic.ONE // experts.STEPS)
    roots, margins = _margins(tables, seen)
    _step(tables, seen, roots, logistic.errors_back(margins, before, np.array([index]), reach))


def _give_up(tables: Tables, seen: Evidence, counts: NDArray[np.int32], index: int) -> None:
    """counts (K, n): lessons of every class that had each feature, this one counted.

    Its own lessons alone have moved the weights of a class up, those of all others down.
    """
    everybody = np.add.reduce(counts, axis=0, dtype=np.int32)
    for number, weights in enumerate(cells.of_weights(tables), start=1):
        lessons, sign = (counts[index], 1) if number == index else (everybody - counts[number], -1)
        weights.give_up(seen.buckets, lessons, sign)


def _step(tables: Tables, seen: Evidence, roots: Integers, errors: Integers) -> None:
    """Logistic steps of every token set on weights and biases, where the lesson itself is not counted. errors (SETS, K-1)."""
    tables.biases += logistic.bias_steps(errors).T
    moves = np.ascontiguousarray(logistic.steps(errors, roots).T)
    for weights, move in zip(cells.of_weights(tables), moves, strict=True):
        weights.learn(weights.places(seen.buckets), seen.sizes, move, tables.rows, _NO_FADES)
