"""Take back what one user has taught since some time.

For each message, what the user had said before is in force again. Votes are taken back by new
votes, as all teaching is done, so undoing can be repeated, interrupted and merged: doing it twice
changes nothing. Must never touch another user's votes.
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
"""Origin of the votes that take back. They are nobody's opinion, and are never undone."""
_opinion_key = attrgetter("label", "origin", "time")  # the same for a vote and its later copies


class VoteSelection(NamedTuple):
    """Which votes to take back.

    since: seconds since 1970; 0: all. origin: as in `ledger.queries.origin_patterns`; "": any.
    """

    user: str
    since: int = 0
    origin: str = ""

    def matches(self, vote: Vote) -> bool:
        """Whether a vote of this user is selected."""
        exact, prefix = origin_patterns(self.origin)
        is_from = not self.origin or vote.origin == exact or vote.origin.startswith(prefix)
        is_opinion = vote.origin != UNDO_ORIGIN and not wordlists.is_word_list(vote.extractor)
        return vote.time >= self.since and is_opinion and is_from


class UndoneVote(NamedTuple):
    """What the user said about a message before and after undoing; None: nothing."""

    digest: bytes
    old_label: str | None
    new_label: str | None


def affected_messages(spam_filter: Filter, chosen: VoteSelection) -> list[bytes]:
    """Digests of the messages that `undo_votes` has to look at."""
    return spam_filter.ledger.users.voted_digests(chosen.user, chosen.since)


def undo_votes(
    spam_filter: Filter, digests: Sequence[bytes], chosen: VoteSelection, *, dry_run: bool = False
) -> Iterator[list[UndoneVote]]:
    """Take back the chosen votes on these messages, in batches; yields what has changed. Does not
    settle.

    Raises
    ------
    LedgerError, UsageError
        Batches that were yielded before are undone.
    """
    spam_filter.require_receipts()
    for batch in batches(digests):
        # Votes that are cast from now on count, and are not taken back. `force`: undoing is
        # recorded also where nothing of the user is in force.
        with spam_filter.ledger.exclusive(force=True) as cast:
            reversals = [_reverse_message(spam_filter, digest, chosen) for digest in batch]
            if not dry_run:
                cast([vote for _, votes in reversals for vote in votes])
        yield [
            UndoneVote(votes[-1].digest, label, votes[-1].label)
            for label, votes in reversals
            if votes and label != votes[-1].label
        ]


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


def reverse_votes(votes: Sequence[Vote], chosen: VoteSelection, now: int) -> list[NewVote]:
    """Votes that leave in force what would be without the chosen ones, for good: no later undoing
    brings the chosen ones back.

    Parameters
    ----------
    votes
        All known votes of one user on one message, at least one.

    Returns
    -------
    list
        Empty if the chosen votes are gone. A vote that comes back has all that it had, its time
        too.
    """
    opinions = _current_opinions(votes)
    kept = [vote for vote in opinions if not chosen.matches(vote)]
    if len(kept) == len(opinions):
        return []
    if kept and kept == opinions[: len(kept)] and kept[-1].label != opinions[-1].label:
        return [_recast(kept[-1], votes)]
    # the last opinion stays, or repeats one that stays: all are cast once more
    undo = NewVote(
        votes[0].digest, chosen.user, None, b"", b"", UNDO_ORIGIN, now, votes[0].extractor
    )
    return [undo, *(_recast(vote, votes) for vote in kept)]


def _current_opinions(votes: Sequence[Vote]) -> list[Vote]:
    """What the user has said, oldest first, without what was taken back. The copy of an older vote
    takes back all that came behind the original.
    """
    opinions: list[Vote] = []
    for vote in sorted(votes, key=attrgetter("version")):
        keys = [_opinion_key(opinion) for opinion in opinions]
        key = _opinion_key(vote)
        opinions[keys.index(key) if key in keys else len(keys) :] = [vote]
        if vote.origin == UNDO_ORIGIN:
            opinions.clear()
    return opinions


def _recast(vote: Vote, votes: Sequence[Vote]) -> NewVote:
    """A copy of a vote, with the features of the newest extractor that are known of its message."""
    source = vote
    if vote.label is not None:
        newest = max(votes, key=lambda other: (other.extractor, other is vote))
        source = newest if newest.packed else vote
    return NewVote(
        vote.digest,
        vote.user,
        vote.label,
        source.packed,
        source.scores,
        vote.origin,
        vote.time,
        source.extractor,
    )
