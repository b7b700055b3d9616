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
    classes = tuple(sorted(set(labels)))
    targets = np.array([classes.index(label) for label in labels], np.intp)
    buckets, places = np.unique(placed.buckets, return_inverse=True)
    cells = targets.repeat(placed.sizes.sum(axis=1)) * len(buckets) + places
    counts = np.bincount(cells, minlength=len(classes) * len(buckets)).reshape(len(classes), -1)
    return Said(classes, np.bincount(targets), buckets.astype(np.uint32), counts.astype(np.uint16))


def frequencies(tables: Tables, counts: NDArray[np.int32]) -> Floats:
    """How likely a lesson of each class has a token, (K, n), as far as all lessons tell; never zero. counts (K, n): as `read_rows`."""
    shares = (tables.messages + 0.5) / (tables.messages + 0.5).sum()
    plain = (counts + (PSEUDO_COUNT * shares)[:, np.newaxis]) / (tables.messages + 1)[:, np.newaxis]
    return np.asarray((1 - LEAK) * plain + LEAK * plain.mean(axis=0))


def correct(said: Said, classes: Sequence[str], seen: Evidence, shared: Floats) -> Correction:
    """What a user's votes change about one message. classes: of the tables, votes for others do not count. shared: `frequencies`."""
    buckets = seen.buckets.astype(np.uint32)
    found = said.buckets.searchsorted(buckets)
    places = (said.buckets.take(found, mode="clip") == buckets).nonzero()[0]
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
