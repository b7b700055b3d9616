"""Models of users: their own votes, counted for judging their mail.

A model is read from the ledger when the first message for its user is judged. It is a pure function
of the user's latest votes in force up to an event: a vote that is taken back leaves no trace, and
all processes that folded the same events hold the same bits. An outdated model is brought up to
date by adding and subtracting counts, which is exact because they are whole numbers.

Must never hold more than a bounded number of tokens. A user's damaged receipts must never cost a
verdict.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import tables
from spamguard.bayes.personal import UserVoteCounts, count_votes, sum_votes
from spamguard.engine.fold import unpack_features
from spamguard.errors import LedgerError
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import Receipt
from spamguard.records import EXTRACTOR

_log = logging.getLogger("spamguard.model")

MAX_VOTES = 500  # votes of a user that count (corpora/RESULTS.md, "A user's own votes")
_MAX_TOKENS = 1 << 23  # of all users, eight bytes each with two classes; and votes, eight bytes too
_MAX_USERS = 1 << 14  # most of whom have not voted
# Behind more events than this, it is cheaper to forget all models than to ask which users voted.
_MAX_EVENTS_BEHIND = 5000


class _UserModel(NamedTuple):
    """A user's counted votes, and the numbers of their events."""

    counts: UserVoteCounts | None = None
    seqs: NDArray[np.int64] = np.empty(0, np.int64)

    @property
    def size(self) -> int:
        return len(self.seqs) + (0 if self.counts is None else len(self.counts.buckets))


class UserModels:
    """The recently used models of a ledger's users. For one thread."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self._ledger = ledger
        self._bits = 0
        self._models: OrderedDict[str, _UserModel] = OrderedDict()
        self._outdated: set[str] = set()  # among the models
        self._damaged: set[str] = set()  # logged already
        self._tokens = 0
        self._seq = 0

    def load(self, user: str, seq: int, bits: int) -> UserVoteCounts | None:
        """The counts of a user's votes up to event number `seq`; None: there are none, or they are
        damaged. The tables that judge have 2**bits buckets.
        """
        if (seq, bits) != (self._seq, self._bits):
            self._mark_outdated(seq, bits)
        if user in self._models and user not in self._outdated:
            self._models.move_to_end(user)
            return self._models[user].counts
        try:
            model = self._read_model(user, self._evict(user))
        except LedgerError as error:
            if user not in self._damaged and len(self._damaged) < _MAX_USERS:
                self._damaged.add(user)  # once for each user: the next message asks again
                _log.error(
                    "%s gets the verdicts of all, as what this user has said cannot be read: %s",
                    user,
                    error,
                )
            return None
        self._damaged.discard(user)
        self._models[user] = model
        self._tokens += model.size
        while len(self._models) > 1 and (
            self._tokens > _MAX_TOKENS or len(self._models) > _MAX_USERS
        ):
            self._evict(next(iter(self._models)))
        return model.counts

    def _mark_outdated(self, seq: int, bits: int) -> None:
        """Mark the users who have voted, or taken a vote back, since the last time."""
        # other buckets, an older ledger was restored, or very much was taught
        if bits != self._bits or not self._seq <= seq <= self._seq + _MAX_EVENTS_BEHIND:
            self._models.clear()
            self._outdated.clear()
            self._tokens = 0
        elif self._models:
            voters = self._ledger.users.users_between(self._seq, seq)
            self._outdated.update(self._models.keys() & voters)
        self._seq, self._bits = seq, bits

    def _evict(self, user: str) -> _UserModel:
        """Forget a user's model and return it."""
        self._outdated.discard(user)
        model = self._models.pop(user, _UserModel())
        self._tokens -= model.size
        return model

    def _read_model(self, user: str, before: _UserModel) -> _UserModel:
        """Read the changes since `before`, or everything where that is hardly more."""
        latest = self._ledger.users.latest_seqs(user, self._seq, EXTRACTOR, MAX_VOTES)
        seqs = np.array(latest, np.int64)
        new = np.setdiff1d(seqs, before.seqs).tolist()
        old = set(np.setdiff1d(before.seqs, seqs).tolist())
        if before.counts is not None and len(new) + len(old) < len(seqs):
            votes = self._ledger.users.read_receipts([*new, *old])
            if len(votes) == len(new) + len(old):  # else the ledger was compacted
                added = self._count_votes([vote for vote in votes if vote.seq not in old])
                gone = self._count_votes([vote for vote in votes if vote.seq in old])
                parts = ((before.counts, 1), (added, 1), (gone, -1))
                changes = [(counts, sign) for counts, sign in parts if counts]
                return _UserModel(sum_votes(changes), seqs)
        return _UserModel(self._count_votes(self._ledger.users.read_receipts(seqs.tolist())), seqs)

    def _count_votes(self, votes: Sequence[Receipt]) -> UserVoteCounts | None:
        if not votes:
            return None
        features = unpack_features([vote.packed for vote in votes])
        batch = tables.batch_features(features, self._bits)
        return count_votes([vote.label for vote in votes], batch)
