"""What the users have said themselves, counted for judging their mail; made from the ledger when somebody's mail first asks for it.

A pure function of a user's own votes in force (the latest of them) up to an event: so what is taken back was never said, and
every process that folded the same events holds the same bits. Must never hold more than a bounded number of tokens.
"""

from __future__ import annotations

from collections import OrderedDict

from spamguard.bayes import blocks
from spamguard.bayes.personal import Said, counted
from spamguard.ledger import SqliteLedger
from spamguard.model.fold import features_of
from spamguard.records import EXTRACTOR

LATEST = 500  # votes of a user that count (corpora/RESULTS.md, "A user's own votes")
_TOKENS = 1 << 23  # of all users, eight bytes each with two classes
_NAMES = 1 << 14  # of users, most of whom have said nothing
_MANY = 5000  # events after which it is cheaper to forget everybody than to ask who is concerned


class People:
    """The users of a ledger, those used last. Belongs to one process and thread."""

    def __init__(self, ledger: SqliteLedger, bits: int) -> None:
        """bits: size of the tables, 2**bits buckets."""
        self._ledger = ledger
        self._bits = bits
        self._known: OrderedDict[str, Said | None] = OrderedDict()
        self._tokens = 0
        self._seq = 0

    def said(self, user: str, seq: int) -> Said | None:
        """What a user has said by the event of this number; None: nothing that counts. LedgerError: a receipt is damaged."""
        if seq != self._seq:
            self._forget_changed(seq)
        if user in self._known:
            self._known.move_to_end(user)
            return self._known[user]
        found = self._read(user)
        self._known[user] = found
        self._tokens += _size(found)
        while len(self._known) > 1 and (self._tokens > _TOKENS or len(self._known) > _NAMES):
            self._tokens -= _size(self._known.popitem(last=False)[1])
        return found

    def _forget_changed(self, seq: int) -> None:
        """Everything about those who have said anything, or taken it back, since the last time."""
        if not self._seq <= seq <= self._seq + _MANY:  # an older ledger was restored, or very much was taught
            self._known.clear()
            self._tokens = 0
        else:
            for user in self._ledger.users.heard_between(self._seq, seq) if self._known else ():
                self._tokens -= _size(self._known.pop(user, None))
        self._seq = seq

    def _read(self, user: str) -> Said | None:
        votes = self._ledger.users.latest(user, self._seq, EXTRACTOR, LATEST)
        if not votes:
            return None
        placed = blocks.side_by_side(features_of([packed for _, packed in votes]), self._bits)
        return counted([label for label, _ in votes], placed)


def _size(said: Said | None) -> int:
    return 0 if said is None else len(said.buckets)
