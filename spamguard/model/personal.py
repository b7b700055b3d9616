"""What the users have said themselves, counted for judging their mail; made from the ledger when somebody's mail first asks for it.

A pure function of a user's own votes in force (the latest of them) up to an event: so what is taken back was never said, and
every process that folded the same events holds the same bits. What changes is added and taken away: whole numbers come out the
same. Must never hold more than a bounded number of tokens, and never let one user's damaged receipts cost a verdict.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import blocks
from spamguard.bayes.personal import Said, counted, summed
from spamguard.errors import LedgerError
from spamguard.ledger import SqliteLedger
from spamguard.ledger.users import Receipt
from spamguard.model.fold import features_of
from spamguard.records import EXTRACTOR

LATEST = 500  # votes of a user that count (corpora/RESULTS.md, "A user's own votes")
_TOKENS = 1 << 23  # of all users, eight bytes each with two classes; and votes, eight bytes too
_NAMES = 1 << 14  # of users, most of whom have said nothing
_MANY = 5000  # events after which it is cheaper to forget everybody than to ask who is concerned

_log = logging.getLogger("spamguard.model")


class _Known(NamedTuple):
    """What a user has said, and the numbers of the events in which."""

    said: Said | None = None
    seqs: NDArray[np.int64] = np.empty(0, np.int64)


class People:
    """The users of a ledger, those used last. Belongs to one process and thread."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self._ledger = ledger
        self._bits = 0
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._changed: set[str] = set()  # of those who are known
        self._damaged: set[str] = set()  # of whom that was told
        self._tokens = 0
        self._seq = 0

    def said(self, user: str, seq: int, bits: int) -> Said | None:
        """What a user has said by the event of this number; None: nothing that counts, or receipts that cannot be read.

        bits: of the tables that judge, 2**bits buckets.
        """
        if (seq, bits) != (self._seq, self._bits):
            self._note_changed(seq, bits)
        if user in self._known and user not in self._changed:
            self._known.move_to_end(user)
            return self._known[user].said
        before = self._forget(user)
        try:
            found = self._read(user, before)
        except LedgerError as error:
            self._tell(user, error)
            return None
        self._damaged.discard(user)
        self._known[user] = found
        self._tokens += _size(found)
        while len(self._known) > 1 and (self._tokens > _TOKENS or len(self._known) > _NAMES):
            self._forget(next(iter(self._known)))
        return found.said

    def _note_changed(self, seq: int, bits: int) -> None:
        """Who has said anything, or taken it back, since the last time."""
        # Other buckets, an older ledger was restored, or very much was taught.
        if bits != self._bits or not self._seq <= seq <= self._seq + _MANY:
            self._known.clear()
            self._changed.clear()
            self._tokens = 0
        elif self._known:
            self._changed.update(self._known.keys() & self._ledger.users.heard_between(self._seq, seq))
        self._seq, self._bits = seq, bits

    def _forget(self, user: str) -> _Known:
        """What was known of a user."""
        self._changed.discard(user)
        found = self._known.pop(user, _Known())
        self._tokens -= _size(found)
        return found

    def _read(self, user: str, before: _Known) -> _Known:
        """By what has changed since `before`, or by everything where that is hardly more. LedgerError: a receipt is damaged."""
        seqs = np.array(self._ledger.users.latest(user, self._seq, EXTRACTOR, LATEST), np.int64)
        new, old = np.setdiff1d(seqs, before.seqs).tolist(), set(np.setdiff1d(before.seqs, seqs).tolist())
        if before.said is not None and len(new) + len(old) < len(seqs):
            votes = self._ledger.users.receipts([*new, *old])
            if len(votes) == len(new) + len(old):  # else the ledger was compacted
                added, gone = (self._counted([vote for vote in votes if (vote.seq in old) == taken]) for taken in (False, True))
                return _Known(summed([(said, sign) for said, sign in ((before.said, 1), (added, 1), (gone, -1)) if said]), seqs)
        return _Known(self._counted(self._ledger.users.receipts(seqs.tolist())), seqs)

    def _counted(self, votes: Sequence[Receipt]) -> Said | None:
        if not votes:
            return None
        features = features_of([vote.packed for vote in votes])
        return counted([vote.label for vote in votes], blocks.side_by_side(features, self._bits))

    def _tell(self, user: str, error: LedgerError) -> None:
        """Once for each user: the next message asks again."""
        if user not in self._damaged and len(self._damaged) < _NAMES:
            self._damaged.add(user)
            _log.error("%s gets the verdicts of all, as what this user has said cannot be read: %s", user, error)


def _size(known: _Known) -> int:
    return len(known.seqs) + (0 if known.said is None else len(known.said.buckets))
