"""What one user has said beside what all have: how far it moves a verdict for that user's mail.

For each class, how often a user's own votes have a token is held against how often all lessons of the class have it, which is the
prior: p = (own count + m·shared) / (own votes + m). Where that turns a token's log-likelihood ratio round, or where all say nothing
clear, the difference is evidence. Where the user agrees it is none, for all have said so already; a token that the user has said
nothing about changes nothing, one that everybody's mail has next to nothing. All of it is damped like the counting experts, and
the more of it there is the more of it counts: a few words in common with something that the user has said something about move
nothing, a sibling of it goes over.

Only whole numbers are kept, so the same votes give the same bits in any order. Must never change or count anything shared.
Source of keeping a user's tokens apart from all users': Weinberger et al. 2009, "Feature hashing for large scale multitask learning".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import experts
from spamguard.bayes.blocks import Placed
from spamguard.bayes.experts import Floats
from spamguard.bayes.tables import SETS, Evidence, Tables

# Tuned on users who disagree, on two corpora: corpora/RESULTS.md, "A user's own votes".
STRENGTH = 1.0  # votes that the shared frequencies count for
LEAK = 0.1  # how far the prior of one class is that of all: what all call spam this user may call ham
PSEUDO_COUNT = 0.05  # of the shared frequencies, shared out among the classes as their lessons are
CLEAR = 0.5  # nats from which on all say something about a token
SCALE = 2.0  # of the damped evidence
HALF = 24.0  # nats of evidence of which half is believed
LIMIT = 40.0  # nats by which a verdict may move at most


@dataclass(frozen=True, slots=True)
class Said:
    """The votes of one user, counted. classes: L names, sorted; votes (L,): how many for each.

    buckets uint32 (n,): sorted, unique; counts uint16 (L, n): how many votes for each class have them.
    """

    classes: tuple[str, ...]
    votes: NDArray[np.int64]
    buckets: NDArray[np.uint32]
    counts: NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Correction:
    """How far a user's votes move the log-odds of each class but the first against the first, in nats.

    evidence (K-1,): what they say, damped; moved (K-1,): as far as it is believed. parts (K-1, h): of what is believed, by token;
    places (h,): which of the message's tokens.
    """

    evidence: Floats
    moved: Floats
    parts: Floats
    places: NDArray[np.intp]

    def added(self, joint: list[float]) -> list[float]:
        """Unnormalised log-probabilities of the classes, moved."""
        return [joint[0], *(value + move for value, move in zip(joint[1:], self.moved.tolist(), strict=True))]

    def between(self, values: Floats, favoured: int, against: int) -> Floats:
        """Of values for each class but the first, (K-1, …), those of one class number against another's."""
        zero = np.zeros(values.shape[1:])
        return (values[favoured - 1] if favoured else zero) - (values[against - 1] if against else zero)


def counted(labels: Sequence[str], placed: Placed) -> Said:
    """Votes side by side, at most 2**16 - 1 and at least one, counted."""
    classes, buckets = sorted(set(labels)), placed.buckets.astype(np.uint32)
    of = np.array([classes.index(label) for label in labels]).repeat(placed.sizes.sum(axis=1))
    return summed([(_of_class(label, labels.count(label), buckets[of == number]), 1) for number, label in enumerate(classes)])


def _of_class(label: str, votes: int, buckets: NDArray[np.uint32]) -> Said:
    ordered = _in_order(buckets)
    first = _firsts(ordered)
    counts = np.diff(first.nonzero()[0], append=len(ordered))
    return Said((label,), np.array([votes]), ordered[first], counts[np.newaxis].astype(np.uint16))


def _in_order(runs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A stable sort takes ordered runs as they are: the buckets of a message are one, and so are those of a user."""
    return np.sort(runs, kind="stable")


def _firsts(ordered: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Where each value stands first; in a quarter of the time that `np.unique` takes."""
    return np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]


def summed(parts: Sequence[tuple[Said, int]]) -> Said:
    """As if all votes were counted anew: those to be added have a 1, those to be taken away, which were counted before, a -1.

    At least one vote must be left.
    """
    classes = sorted({name for said, _ in parts for name in said.classes})
    ordered = _in_order(np.concatenate([said.buckets for said, _ in parts]))
    buckets = ordered[_firsts(ordered)]
    votes, counts = np.zeros(len(classes), np.int64), np.zeros((len(classes), len(buckets)), np.int32)
    for said, sign in parts:
        rows = np.array([classes.index(name) for name in said.classes])
        votes[rows] += sign * said.votes
        counts[np.ix_(rows, buckets.searchsorted(said.buckets))] += sign * said.counts.astype(np.int32)
    stay, heard = votes > 0, counts.any(axis=0)
    return Said(tuple(compress(classes, stay)), votes[stay], buckets[heard], counts[np.ix_(stay, heard)].astype(np.uint16))


def frequencies(tables: Tables, counts: NDArray[np.int32]) -> Floats:
    """How likely a lesson of each class has a token, (K, n), as far as all lessons tell; never zero. counts (K, n): as `read_rows`."""
    shares = (tables.messages + 0.5) / (tables.messages + 0.5).sum()
    plain = (counts + (PSEUDO_COUNT * shares)[:, np.newaxis]) / (tables.messages + 1)[:, np.newaxis]
    return np.asarray((1 - LEAK) * plain + LEAK * plain.mean(axis=0))


def correct(said: Said, classes: Sequence[str], seen: Evidence, shared: Floats) -> Correction:
    """What a user's votes change about one message. classes: of the tables, votes for others do not count. shared: `frequencies`."""
    buckets = seen.buckets.astype(np.uint32)
    found = said.buckets.searchsorted(buckets)
    same = said.buckets.take(found, mode="clip") == buckets if len(said.buckets) else found[:0]
    places = same.nonzero()[0]
    expected = shared.take(places, axis=1)
    own = _log_ratios(_own_frequencies(said, classes, said.counts.take(found.take(places), axis=1), expected))
    of_all = _log_ratios(expected)
    news = np.where((own * of_all < 0) | (np.abs(of_all) < CLEAR), own - of_all, 0.0)
    parts = news * (SCALE * experts.damping(seen.sizes, 1, 1)[:SETS]).repeat(seen.sizes).take(places)
    evidence = parts.sum(axis=1)
    moved = believed(evidence)
    factors = np.divide(moved, evidence, out=np.zeros_like(moved), where=evidence != 0)
    return Correction(evidence, moved, parts * factors[:, np.newaxis], places)


def _own_frequencies(said: Said, classes: Sequence[str], own: NDArray[np.uint16], shared: Floats) -> Floats:
    """How likely a message of each class has each token as far as a user tells, (K, h), where all tell `shared`; own (L, h)."""
    found = shared.copy()
    for name, votes, counts in zip(said.classes, said.votes.tolist(), own, strict=True):
        if name in classes:
            index = classes.index(name)
            found[index] = (counts + STRENGTH * shared[index]) / (votes + STRENGTH)
    return found


def _log_ratios(likely: Floats) -> Floats:
    """Of each class but the first against the first."""
    return np.asarray(np.log(likely[1:] / likely[0]))


def believed(evidence: Floats) -> Floats:
    """Next to nothing of little evidence, nearly all of much, half at HALF; never more than LIMIT."""
    squares = evidence * evidence
    return np.asarray((evidence * (squares / (squares + HALF * HALF))).clip(-LIMIT, LIMIT))
