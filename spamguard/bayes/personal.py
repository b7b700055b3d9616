"""A user's own votes: how far they move a verdict for that user's mail.

For each class, how often the user's votes have a token is compared with how often all lessons of
the class have it, which is the prior: p = (own count + m·shared) / (own votes + m). Where that
changes the sign of a token's log-likelihood ratio, or where the lessons of all say nothing clear,
the difference is evidence. Where the user agrees there is none, because it is counted already; and
a token on which the user has not voted changes nothing. All evidence is damped like that of the
counting experts, and the more there is, the more of it counts: a few words in common with a message
on which the user has voted move nothing, a sibling of that message is moved entirely.

Only whole numbers are kept, so the same votes give the same bits in any order. Must never change or
count anything shared. Source of keeping a user's tokens apart from all users': Weinberger et al.
2009, "Feature hashing for large scale multitask learning".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import experts
from spamguard.bayes.experts import ScoredMessage
from spamguard.bayes.formulas import Floats, Indices, Integers
from spamguard.bayes.tables import N_TOKEN_SETS, Evidence, find_distinct

# Tuned on users who disagree, on two corpora: corpora/RESULTS.md, "A user's own votes".
PRIOR_VOTES = 1.0  # votes that the shared frequencies count for
CLASS_LEAK = 0.1  # share of all classes in the prior of one: others' spam may be this user's ham
PSEUDO_COUNT = 0.05  # of the shared frequencies, shared out among the classes as their lessons are
CLEAR_NATS = 0.5  # from which on the lessons of all say something about a token
EVIDENCE_SCALE = 2.0  # of the damped evidence
HALF_BELIEVED_NATS = 24.0  # of evidence, of which half is believed
MAX_SHIFT_NATS = 40.0  # by which a verdict may move at most


@dataclass(frozen=True)
class UserVoteCounts:
    """The votes of one user, counted."""

    classes: tuple[str, ...]  # L names, sorted
    votes: Integers  # (L,)
    buckets: NDArray[np.uint32]  # (n,), sorted, unique
    counts: NDArray[np.uint16]  # (L, n): how many votes for each class have each bucket


class UserCorrection(NamedTuple):
    """How far a user's votes move the log-odds of each class but the first, in nats."""

    evidence: Floats  # (K-1,), damped
    shifts: Floats  # (K-1,), as far as the evidence is believed
    parts: Floats  # (K-1, h), of the shifts, by token
    token_indices: Indices  # (h,), the tokens' places in the message

    def apply(self, joint: list[float]) -> list[float]:
        """Move the unnormalised log-probabilities of the classes."""
        pairs = zip(joint[1:], self.shifts.tolist(), strict=True)
        return [joint[0], *(value + shift for value, shift in pairs)]


def count_votes(labels: Sequence[str], batch: Evidence) -> list[UserVoteCounts]:
    """Count some votes, at most 2**16 - 1, those for each class by themselves."""
    classes, buckets = sorted(set(labels)), batch.buckets.astype(np.uint32)
    numbers = np.array([classes.index(label) for label in labels])
    of_class, found = numbers.repeat(batch.sizes.sum(axis=1)), []
    for number, label in enumerate(classes):
        ordered, first = find_distinct(buckets[of_class == number])
        counts = np.diff(first.nonzero()[0], append=len(ordered))[np.newaxis].astype(np.uint16)
        votes = np.array([labels.count(label)])
        found.append(UserVoteCounts((label,), votes, ordered[first], counts))
    return found


def sum_votes(parts: Sequence[tuple[UserVoteCounts, int]]) -> UserVoteCounts:
    """Add counts (sign 1) and take away counts that were added before (sign -1).

    The result is as if all votes were counted again. At least one vote must be left.
    """
    classes = sorted({name for counted, _ in parts for name in counted.classes})
    ordered, first = find_distinct(np.concatenate([counted.buckets for counted, _ in parts]))
    buckets = ordered[first]
    votes = np.zeros(len(classes), np.int64)
    counts = np.zeros((len(classes), len(buckets)), np.int32)
    for counted, sign in parts:
        rows = np.array([classes.index(name) for name in counted.classes])
        votes[rows] += sign * counted.votes
        cells = np.ix_(rows, buckets.searchsorted(counted.buckets))
        counts[cells] += sign * counted.counts.astype(np.int32)
    used_classes, used = votes > 0, counts.any(axis=0)
    return UserVoteCounts(
        tuple(compress(classes, used_classes)),
        votes[used_classes],
        buckets[used],
        counts[np.ix_(used_classes, used)].astype(np.uint16),
    )


def token_frequencies(message: ScoredMessage, places: Indices) -> Floats:
    """How likely a lesson of each class has a token, by all lessons, of the tokens of a message at
    some places, (K, h); never zero.
    """
    messages, counts = message.parameters.tables.messages, message.counts.take(places, axis=1)
    shares = (messages + 0.5) / (messages + 0.5).sum()
    plain = (counts + (PSEUDO_COUNT * shares)[:, np.newaxis]) / (messages + 1)[:, np.newaxis]
    return np.asarray((1 - CLASS_LEAK) * plain + CLASS_LEAK * plain.mean(axis=0))


def compute_correction(user_votes: UserVoteCounts, message: ScoredMessage) -> UserCorrection:
    """What a user's votes change about one message; votes for unknown classes do not count."""
    evidence, classes = message.evidence, message.parameters.tables.classes
    buckets = evidence.buckets.astype(np.uint32)
    at = user_votes.buckets.searchsorted(buckets)
    same = (
        user_votes.buckets.take(at, mode="clip") == buckets if len(user_votes.buckets) else at[:0]
    )
    places = same.nonzero()[0]
    expected = token_frequencies(message, places)
    frequencies = expected.copy()
    own_counts = user_votes.counts.take(at.take(places), axis=1)
    for name, votes, counts in zip(
        user_votes.classes, user_votes.votes.tolist(), own_counts, strict=True
    ):
        if name in classes:
            index = classes.index(name)
            prior = PRIOR_VOTES * expected[index]
            frequencies[index] = (counts + prior) / (votes + PRIOR_VOTES)
    of_user, of_all = np.log(frequencies[1:] / frequencies[0]), np.log(expected[1:] / expected[0])
    is_news = (of_user * of_all < 0) | (np.abs(of_all) < CLEAR_NATS)
    damping = EVIDENCE_SCALE * experts.damping_factors(evidence)[:N_TOKEN_SETS]
    parts = np.where(is_news, of_user - of_all, 0.0) * damping.repeat(evidence.sizes).take(places)
    damped = parts.sum(axis=1)
    shifts = shrink_evidence(damped)
    factors = np.divide(shifts, damped, out=np.zeros_like(shifts), where=damped != 0)
    return UserCorrection(damped, shifts, parts * factors[:, np.newaxis], places)


def shrink_evidence(evidence: Floats) -> Floats:
    """Believe little of little evidence, half at HALF_BELIEVED_NATS, nearly all of much.

    >>> shrink_evidence(np.array([1.0, 24.0, 1000.0])).round(3).tolist()
    [0.002, 12.0, 40.0]
    """
    squares = evidence * evidence
    believed = squares / (squares + HALF_BELIEVED_NATS * HALF_BELIEVED_NATS)
    return np.asarray((evidence * believed).clip(-MAX_SHIFT_NATS, MAX_SHIFT_NATS))
