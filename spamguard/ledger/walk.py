"""A walk along the log: what each event changes, read some hundred events at a time.

A mail that reaches hundreds of people has hundreds of votes. They are read without their features, which only those that are lessons
are asked for; and once, not again for every hundred events that has one more of them. Must never tell other changes for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from spamguard.ledger import statements
from spamguard.ledger.asking import Ask, of_digests
from spamguard.ledger.lessons import Change, InForce, changes, in_force
from spamguard.records import Vote

_CROWD = 16  # votes on a message from which on they are kept: reading fewer again costs less than the room for those of every message
_KEPT = 65_536  # votes, some 30 MB


class Walk:
    """Begins anywhere. ask: runs a statement."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._kept: InForce = {}  # as of the last event; the message met last stands last

    def step(self, seq: int, events: Sequence[tuple[int, Vote]], extractor: int | None) -> list[Change]:
        """What the next events change. seq: of the last one before them. To be called in a transaction. LedgerError."""
        digests = list({vote.digest: None for _, vote in events})
        kept = {digest: self._kept.pop(digest) for digest in digests if digest in self._kept}
        new = [digest for digest in digests if digest not in kept]
        read = of_digests(self._ask, statements.EARLIER_VOTES_OF_DIGESTS, new, seq)
        winning = kept | in_force(map(Vote._make, read))
        found = list(changes(winning, events, extractor, partial(whole, self._ask)))
        self._keep(winning, events)
        return found

    def _keep(self, winning: InForce, events: Sequence[tuple[int, Vote]]) -> None:
        self._kept |= {digest: votes for digest, votes in winning.items() if len(votes) >= _CROWD}
        for _, event in events:
            if event.digest in self._kept:
                vote = self._kept[event.digest][event.user]
                self._kept[event.digest][event.user] = vote._replace(packed=b"", scores=b"")
        too_many = sum(map(len, self._kept.values())) - _KEPT
        while too_many > 0:
            too_many -= len(self._kept.pop(next(iter(self._kept))))


def whole(ask: Ask, vote: Vote) -> Vote:
    """A vote that was read without features and scores, with them."""
    return vote if vote.packed else Vote(*ask(statements.VOTE_OF_VERSION, (vote.digest, vote.user, *vote.version))[0])
