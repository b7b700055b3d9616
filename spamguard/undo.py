"""Taking back what one user has said since some time: whatever that user had said about each message before is in force again.

Votes are taken back by votes, as all teaching is, so that it can be repeated, interrupted and merged: doing it twice changes nothing.
Must never touch another user's votes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from spamguard.engine import Filter
from spamguard.ledger import NewVote, wordlists
from spamguard.ledger.users import origins
from spamguard.records import Vote

ORIGIN = "undo"
"""Of the votes that take back. They are nobody's opinion, so they are never undone themselves."""
BATCH = 64  # messages in one transaction


class Chosen(NamedTuple):
    """Which votes to take back. since: seconds since 1970, 0: all. origin: where they come from (`ledger.users.origins`); empty: any."""

    user: str
    since: int = 0
    origin: str = ""

    def has(self, vote: Vote) -> bool:
        """Whether it is one of them."""
        exact, beginning = origins(self.origin)
        from_there = not self.origin or vote.origin == exact or vote.origin.startswith(beginning)
        an_opinion = vote.origin != ORIGIN and not wordlists.is_list(vote.extractor)
        return vote.time >= self.since and an_opinion and from_there


class Done(NamedTuple):
    """What became of the votes on one message. back: the class that is in force again, None: nothing is."""

    digest: bytes
    taken: str | None
    back: str | None


def reversal(votes: Sequence[Vote], chosen: Chosen, now: int) -> NewVote | None:
    """The vote that leaves in force what would be without the chosen ones; None when that is so already.

    votes: all that are known of one user on one message, at least one. A vote that comes back does so with everything it had, the
    time too: it is the old one.
    """
    standing = max(votes, key=attrgetter("version"))
    before = max((vote for vote in votes if not chosen.has(vote)), key=attrgetter("version"), default=None)
    if standing.label == (before.label if before else None):
        return None
    if before is None or before.label is None:
        return NewVote(standing.digest, chosen.user, None, b"", b"", ORIGIN, now, standing.extractor)
    return NewVote(
        before.digest, chosen.user, before.label, before.packed, before.scores, before.origin, before.time, before.extractor
    )  # fmt: skip


def messages(spam_filter: Filter, chosen: Chosen) -> list[bytes]:
    """The messages to look at, for `undo`."""
    return spam_filter.ledger.users.messages(chosen.user, chosen.since)


def undo(spam_filter: Filter, digests: Sequence[bytes], chosen: Chosen, *, dry: bool = False) -> Iterator[list[Done]]:
    """Take back what is chosen on these messages; what became of each batch, those that did not change left out. Does not settle.

    dry: change nothing. LedgerError, UsageError: what came out before is done.
    """
    spam_filter.refuse_without_receipts()
    for start in range(0, len(digests), BATCH):
        with spam_filter.ledger.alone() as cast:  # what is said from now on counts, and is not taken back
            found = [_reversed(spam_filter, digest, chosen) for digest in digests[start : start + BATCH]]
            votes = [(taken, vote) for taken, vote in found if vote is not None]
            if not dry:
                cast([vote for _, vote in votes])
        yield [Done(vote.digest, taken, vote.label) for taken, vote in votes]


def _reversed(spam_filter: Filter, digest: bytes, chosen: Chosen) -> tuple[str | None, NewVote | None]:
    """The label that is in force, and the vote to cast."""
    votes = spam_filter.ledger.users.votes(chosen.user, digest)
    return votes[0].label, reversal(votes, chosen, int(time.time()))
