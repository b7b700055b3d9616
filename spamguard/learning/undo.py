"""Taking back what one user has said since some time: whatever that user had said about each
message before is in force again.

Votes are taken back by votes, as all teaching is, so that it can be repeated, interrupted and
merged: doing it twice changes nothing. Must never touch another user's votes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from spamguard.engine.filter import Filter
from spamguard.errors import LedgerError
from spamguard.ledger import wordlists
from spamguard.ledger.queries import origin_patterns
from spamguard.ledger.votes import NewVote
from spamguard.records import Vote
from spamguard.storage import batches

UNDO_ORIGIN = "undo"
"""Of the votes that take back. They are nobody's opinion, so they are never undone themselves."""
_vote_identity = attrgetter("label", "origin", "time")  # of a vote and of what was cast anew for it


class VoteSelection(NamedTuple):
    """Which votes to take back. since: seconds since 1970, 0: all. origin: where they come from
    (`ledger.users.origins`); empty: any.
    """

    user: str
    since: int = 0
    origin: str = ""

    def matches(self, vote: Vote) -> bool:
        """Whether it is one of them."""
        exact, beginning = origin_patterns(self.origin)
        from_there = not self.origin or vote.origin == exact or vote.origin.startswith(beginning)
        an_opinion = vote.origin != UNDO_ORIGIN and not wordlists.is_word_list(vote.extractor)
        return vote.time >= self.since and an_opinion and from_there


class UndoneVote(NamedTuple):
    """What became of the votes on one message. back: the class that is in force again, None:
    nothing is.
    """

    digest: bytes
    old_label: str | None
    new_label: str | None


def reverse_votes(votes: Sequence[Vote], chosen: VoteSelection, now: int) -> list[NewVote]:
    """Votes that leave in force what would be without the chosen ones, so that no later undoing
    brings those back; none if they are gone.

    votes: all that are known of one user on one message, at least one. What comes back does so with
    everything it had, the time too.
    """
    said = _standing_opinions(votes)
    kept = [vote for vote in said if not chosen.matches(vote)]
    if len(kept) == len(said):
        return []
    taken_back = NewVote(
        votes[0].digest, chosen.user, None, b"", b"", UNDO_ORIGIN, now, votes[0].extractor
    )
    last = kept[-1:]
    if last and kept == said[: len(kept)] and last[0].label != said[-1].label:
        return [_recast_vote(last[0], votes)]
    return [
        taken_back,
        *(_recast_vote(vote, votes) for vote in kept),
    ]  # what was said since, or said anew, stays


def _standing_opinions(votes: Sequence[Vote]) -> list[Vote]:
    """What was said, oldest first, without what has been taken back: behind that came what had been
    there before, once more.
    """
    said: list[Vote] = []
    for vote in sorted(votes, key=attrgetter("version")):
        place = next(
            (
                place
                for place, one in enumerate(said)
                if _vote_identity(one) == _vote_identity(vote)
            ),
            len(said),
        )
        said[place:] = [vote]
        if vote.origin == UNDO_ORIGIN:
            said.clear()
    return said


def _recast_vote(vote: Vote, votes: Sequence[Vote]) -> NewVote:
    """The same once more, by the features of the newest extractor that are known of its message."""
    read = (
        max(votes, key=lambda one: (one.extractor, one is vote)) if vote.label is not None else vote
    )
    read = read if read.packed else vote
    return NewVote(
        vote.digest,
        vote.user,
        vote.label,
        read.packed,
        read.scores,
        vote.origin,
        vote.time,
        read.extractor,
    )


def affected_messages(spam_filter: Filter, chosen: VoteSelection) -> list[bytes]:
    """The messages to look at, for `undo`."""
    return spam_filter.ledger.users.voted_digests(chosen.user, chosen.since)


def undo_votes(
    spam_filter: Filter, digests: Sequence[bytes], chosen: VoteSelection, *, dry_run: bool = False
) -> Iterator[list[UndoneVote]]:
    """Take back what is chosen on these messages; what became of each batch, those that did not
    change left out. Does not settle.

    dry: change nothing. LedgerError, UsageError: what came out before is done.
    """
    spam_filter.require_receipts()
    for some in batches(digests):
        # What is said from now on counts, and is not taken back. Where nothing is in force it is
        # noted all the same.
        with spam_filter.ledger.exclusive(force=True) as cast:
            found = [_reverse_message(spam_filter, digest, chosen) for digest in some]
            if not dry_run:
                cast([vote for _, anew in found for vote in anew])
        told = (UndoneVote(anew[-1].digest, label, anew[-1].label) for label, anew in found if anew)
        yield [one for one in told if one.old_label != one.new_label]


def _reverse_message(
    spam_filter: Filter, digest: bytes, chosen: VoteSelection
) -> tuple[str | None, list[NewVote]]:
    """The label that is in force, and the votes to cast."""
    votes = spam_filter.ledger.users.all_votes(chosen.user, digest)
    if not votes:
        raise LedgerError(
            f"ledger {spam_filter.ledger.path}: it is damaged: restore it from a backup "
            "[votes of a user are not there]"
        )
    return votes[0].label, reverse_votes(votes, chosen, int(time.time()))
