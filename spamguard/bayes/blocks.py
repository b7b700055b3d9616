"""Many messages side by side: where their features lie, and what the experts say of all of them in one go.

The same sums as for one message (`experts`), over runs of one long array; for replays and for teaching and judging in bulk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard import kernel
from spamguard.bayes import experts, logistic
from spamguard.bayes.experts import Estimates, Floats, Integers, Parameters, Parts
from spamguard.bayes.sides import Sides, merged, with_sides
from spamguard.bayes.tables import BASE_CLASSES, SETS, Evidence, Rows, Tables, read_rows
from spamguard.records import Features


class Placed(NamedTuple):
    """m messages on tables of a certain size. buckets (n,): unique in each message; sizes (m, SETS); traits (m, T); numbers (m, D)."""

    buckets: NDArray[np.intp]
    sizes: NDArray[np.intp]
    traits: NDArray[np.intp]
    numbers: Integers

    @property
    def runs(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Where the run of each token set of each message starts, and its size: (m * SETS,) both."""
        sizes = self.sizes.ravel()
        return sizes.cumsum() - sizes, sizes


def place(tokens: NDArray[np.uint32], offsets: Integers, traits: NDArray[np.uint8], numbers: NDArray[np.int16], bits: int) -> Placed:
    """Where the tokens (n,) of m messages, cut at offsets (m+1,), lie in tables of 2**bits buckets."""
    messages = len(offsets) - 1
    compiled = kernel.functions()
    if compiled is not None:
        found, runs = np.frombuffer(compiled.place(tokens, offsets, bits), np.intp), messages * SETS
        return Placed(found[2 * runs :], found[runs : 2 * runs].reshape(-1, SETS), traits.astype(np.intp), numbers.astype(np.int64))
    places = (tokens >> np.uint32(32 - bits)).astype(np.intp)
    places += (np.arange(messages) << bits).repeat(np.diff(offsets))  # those of each message above those of the one before
    again = (places[1:] == places[:-1]).nonzero()[0]
    if len(again):
        places = np.delete(places, again)
    borders = places.searchsorted(np.arange(messages * SETS + 1) << (bits - 2))
    places &= (1 << bits) - 1
    return Placed(places, np.diff(borders).reshape(-1, SETS), traits.astype(np.intp), numbers.astype(np.int64))


def side_by_side(messages: Sequence[Features], bits: int) -> Placed:
    """Some messages, at least one, placed."""
    offsets = np.cumsum([0, *(len(one.tokens) for one in messages)])
    traits = np.stack([one.traits for one in messages])
    numbers = np.stack([one.numbers for one in messages])
    return place(np.concatenate([one.tokens for one in messages]), offsets, traits, numbers, bits)


def counting_sums(known: Parameters, counts: NDArray[np.int32], placed: Placed) -> Floats:
    """Undamped log-odds of the counting experts, (R, m, EXPERTS), from counts (K, n); those of the logistic ones are zero.

    R rows: of each class but the first and, with more than two classes, of unwanted mail.
    """
    of_classes = _counting_sums(known.of_classes, counts, placed)
    if len(counts) == len(BASE_CLASSES):
        return of_classes
    return np.concatenate((of_classes, _counting_sums(known.of_sides, merged(counts, known.sides), placed)))


def _counting_sums(known: Estimates, counts: NDArray[np.integer], placed: Placed) -> Floats:
    starts, sizes = placed.runs
    messages = len(placed.sizes)
    parts = experts.multinomial_parts(counts, np.tile(known.scales, messages), sizes)
    raw = np.zeros((len(parts), messages, len(experts.EXPERTS)))
    raw[:, :, :SETS] = experts.run_sums(parts, starts, sizes).reshape(len(parts), messages, SETS)
    raw[:, :, -2] = experts.looked_up(known.traits, placed.traits).sum(axis=-1)
    raw[:, :, -1] = experts.looked_up(known.numbers, placed.numbers).sum(axis=-1)
    return raw


def margins(weights: NDArray[np.int32], biases: Integers, placed: Placed) -> tuple[Integers, Integers]:
    """Of every message and token set: 1/√size (m, SETS, 1), and the logistic expert's log-odds (m, SETS, K-1), from weights (K-1, n)."""
    sums = experts.run_sums(weights, *placed.runs)
    roots = logistic.inverse_roots(placed.sizes)[:, :, np.newaxis]
    return roots, logistic.margins(sums.T.reshape(*placed.sizes.shape, -1), biases.T, roots)


def joined(raw: Floats, log_odds: Integers, placed: Placed, sides: Sides) -> Integers:
    """The experts' scores, (m, R, EXPERTS) in 1/STEPS nats: counting sums damped (in place), logistic log-odds (m, SETS, K-1) put in."""
    raw *= experts.damping(placed.sizes, placed.traits.shape[1], placed.numbers.shape[1])
    raw[:, :, SETS : 2 * SETS] = with_sides(log_odds.transpose(2, 0, 1) / logistic.ONE, sides)
    return experts.quantised(raw).swapaxes(0, 1)


def scores(tables: Tables, known: Parameters, placed: Placed) -> Integers:
    """What all experts say of each message, (m, R, EXPERTS) in 1/STEPS nats; rows as in `counting_sums`: the last is of unwanted mail."""
    return _scores(tables, known, placed, read_rows(tables, placed.buckets))


def _scores(tables: Tables, known: Parameters, placed: Placed, rows: Rows) -> Integers:
    raw = counting_sums(known, rows.counts, placed)
    return joined(raw, margins(rows.weights, tables.biases, placed)[1], placed, known.sides)


def scores_of_one(tables: Tables, known: Parameters, seen: Evidence, rows: Rows, found: Parts) -> list[list[int]]:
    """The same of one message, as they count in judging. rows: of its buckets; found: its parts."""
    if len(tables.classes) == len(BASE_CLASSES):
        return experts.scores(found, seen, tables.biases, known.bounds)
    alone = Placed(seen.buckets, seen.sizes[np.newaxis], seen.traits.astype(np.intp)[np.newaxis], seen.numbers.astype(np.int64)[np.newaxis])
    counting: list[list[int]] = experts.believed(_scores(tables, known, alone, rows), known.bounds)[0].tolist()
    return counting
