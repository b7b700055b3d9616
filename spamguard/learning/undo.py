"""Votes that are cast without a person's word: undoing, reading old messages again, and ageing.

`undo_votes` takes back what one user has taught since some time, or what one of many nodes has cast
for the user. What the user had said before is in force again. Votes are taken back by new votes, as
all teaching is done, so doing it twice changes nothing.

`reextract_votes` is for votes that an older version's extractor has read, which teach nothing until
their messages are read again. Each is cast once more, with today's features. Label, user, origin
and time stay, so for counts, lists and undo it is the same vote.

`age_votes` takes back the oldest votes, so that ledger, tables and settling stay bounded (`keep`).
Its tombstones have an origin of their own: undoing neither undoes them nor brings back what is
behind them. Settling compacts the ledger; 30 days after a vote has aged, nothing of it is left
there. If it comes back later, it ages again. A number is exceeded by up to a twentieth before
anything ages, because forgetting makes settling due. Then the votes of the site go first, and those
of users that do not count for them alone (`engine.fold`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from math import inf
from operator import attrgetter
from typing import NamedTuple

from spamguard.config.values import KeptLessons
from spamguard.engine.filter import Filter
from spamguard.engine.fold import MAX_VOTES
from spamguard.engine.prepare import Example
from spamguard.ledger.codec import pack
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import CLASS_VERSION, SETTLING_VERSION, NewVote
from spamguard.records import EXTRACTOR, Vote
from spamguard.storage import batches
from spamguard.users import Origin

_opinion_key = attrgetter("label", "origin", "time")  # the same for a vote and its later copies


class VoteSelection(NamedTuple):
    """Which votes to take back."""

    user: str
    since: int = 0  # seconds since 1970
    origin: str = ""  # or what it begins with, before a blank; "" for any
    until: int = 0  # excluded; 0 for all
    node: str = ""  # that cast them, of which nothing stays, also not what it has undone

    def matches(self, vote: Vote) -> bool:
        is_from = not self.origin or f"{vote.origin} ".startswith(f"{self.origin} ")
        is_opinion = bool(self.node or not _is_end(vote)) and (
            vote.extractor not in (CLASS_VERSION, SETTLING_VERSION)
        )
        is_of_node = not self.node or vote.node.partition("+")[0] == self.node
        is_then = self.since <= vote.time < (self.until or inf)
        return is_then and is_opinion and is_from and is_of_node


class UndoneVote(NamedTuple):
    """What the user said about a message before and after undoing; None for nothing."""

    digest: bytes
    old_label: str | None
    new_label: str | None


def undo_votes(
    spam_filter: Filter, digests: Sequence[bytes], chosen: VoteSelection, *, dry_run: bool = False
) -> Iterator[list[UndoneVote]]:
    """Take back the chosen votes on these messages, in batches; yields what has changed. Does not
    settle.
    """
    users = spam_filter.ledger.users
    for batch in batches(digests):
        # Votes that are cast from now on count, and are not taken back. `force`: undoing is
        # recorded also where nothing of the user is in force.
        with spam_filter.ledger.exclusive(force=True) as cast:
            reversals: list[NewVote] = []
            undone: list[UndoneVote] = []
            for digest in batch:
                votes = users.all_votes(chosen.user, digest)
                if not votes:  # they had aged, and were compacted meanwhile
                    continue
                new = reverse_votes(votes, chosen, int(time.time()))
                reversals += new
                if new and new[-1].label != votes[0].label:
                    undone.append(UndoneVote(digest, votes[0].label, new[-1].label))
            if not dry_run:
                cast(reversals)
        yield undone


def reverse_votes(votes: Sequence[Vote], chosen: VoteSelection, now: int) -> list[NewVote]:
    """Votes that leave in force what would be without the chosen ones among all votes of one user
    on one message; none if these have gone. They do so for good, and a vote that comes back has all
    that it had, its time too.
    """
    opinions = _current_opinions(votes)
    if chosen.node:
        # Without what the node said, also where others have cast it again.
        first: dict[object, Vote] = {}
        for vote in sorted(votes, key=attrgetter("version")):
            first.setdefault(_opinion_key(vote), vote)
        others = [
            vote
            for vote in votes
            if not chosen.matches(vote if _is_end(vote) else first[_opinion_key(vote)])
        ]
        earlier = _current_opinions(others)
    else:
        earlier = [vote for vote in opinions if not chosen.matches(vote)]
    if [*map(_opinion_key, earlier)] == [*map(_opinion_key, opinions)]:
        return []
    if earlier and earlier == opinions[: len(earlier)] and earlier[-1].label != opinions[-1].label:
        return [_recast_newest(earlier[-1], votes)]
    # the last opinion stays, or repeats one that stays: all are cast once more
    undo = NewVote(
        votes[0].digest, chosen.user, None, b"", b"", Origin.UNDO, now, votes[0].extractor
    )
    return [undo, *(_recast_newest(vote, votes) for vote in earlier)]


def _current_opinions(votes: Sequence[Vote]) -> list[Vote]:
    """What the user has said and not taken back, oldest first.

    The copy of an older vote takes back all that came behind the original.
    """
    opinions: list[Vote] = []
    for vote in sorted(votes, key=attrgetter("version")):
        keys = [_opinion_key(opinion) for opinion in opinions]
        key = _opinion_key(vote)
        opinions[keys.index(key) if key in keys else len(keys) :] = [vote]
        if _is_end(vote):
            opinions.clear()
    return opinions


def _is_end(vote: Vote) -> bool:
    return vote.origin == Origin.UNDO or vote.has_aged


def _recast_newest(vote: Vote, votes: Sequence[Vote]) -> NewVote:
    """A copy of a vote, with the features of the newest extractor that are known of its message."""
    source = vote
    if vote.label is not None:
        newest = max(votes, key=lambda other: (other.extractor, other is vote))
        source = newest if newest.packed else vote
    return _recast(vote, source.packed, source.scores, source.extractor)


def _recast(vote: Vote, packed: bytes, scores: bytes, extractor: int) -> NewVote:
    return NewVote(
        vote.digest, vote.user, vote.label, packed, scores, vote.origin, vote.time, extractor
    )


# ---- votes of an older extractor


def count_outdated(ledger: SqliteLedger) -> int:
    lessons, current = ledger.lesson_counts(), ledger.lesson_counts(EXTRACTOR)
    return sum(lessons.values()) - sum(current.values())


def describe_outdated(number: int) -> str:
    lessons = "1 lesson" if number == 1 else f"{number:,} lessons"
    return (
        f"{lessons} from before an upgrade that reads mail otherwise: "
        "no use until the mail is read again; the daemon does that with what lies in watched "
        "folders, teach the rest again (teach-folders, learn)"
    )


def reextract_votes(
    spam_filter: Filter, examples: Sequence[Example], user: str | None = None
) -> list[bytes]:
    """Cast a user's or everybody's outdated votes on these messages once more, all or none; the
    digest of each.
    """
    outdated = [example for example in examples if _outdated_votes(spam_filter, example, user)]
    all_scores = spam_filter.first_scores(outdated)
    # Exclusive: no user may say anything else between looking and casting.
    with spam_filter.ledger.exclusive() as cast:
        votes = [
            _recast(vote, pack(example.features), scores, EXTRACTOR)
            for example, scores in zip(outdated, all_scores, strict=True)
            for vote in _outdated_votes(spam_filter, example, user)
        ]
        cast(votes)
    return [vote.digest for vote in votes]


def _outdated_votes(spam_filter: Filter, example: Example, user: str | None) -> list[Vote]:
    return [
        vote
        for vote in spam_filter.ledger.users.votes_on_message(example.digest)
        if vote.extractor < EXTRACTOR and user in (None, vote.user)
    ]


# ---- ageing

_DAY_SECONDS = 86_400
_SLACK = 20  # a number may be exceeded by this part of it


def age_votes(spam_filter: Filter, kept: KeptLessons, now: float) -> int:
    """Take back the votes that are too old, in batches; how many. Does not settle. A clock that has
    jumped ahead is not believed (`trusted_time`).
    """
    ledger = spam_filter.ledger
    trusted, upto, moment = ledger.trusted_time(now), ledger.last_seq(), ledger.voting_moment()
    aged = 0
    if kept.days:
        old = ledger.users.oldest_votes(upto, before=trusted - kept.days * _DAY_SECONDS)
    else:
        by_user = ledger.users.count_lessons().values()
        excess = sum(sum(labels.values()) for labels in by_user) - kept.number
        if excess * _SLACK < kept.number:
            return 0
        old = ledger.users.oldest_votes(upto, number=excess, personal=MAX_VOTES)
    for keys in batches(old):
        tombstones = [
            NewVote(digest, user, None, b"", b"", Origin.AGEING, trusted, extractor)
            for digest, user, extractor in keys
        ]
        aged += sum(spam_filter.cast_votes(tombstones, unless_voted_since=moment))
    return aged
