"""Who has said what: the ledger asked by users instead of by messages. Only reads, by an index of
its own, never by walking the log.

Must never decide which vote counts; that is the business of `lessons`.

A walk along the log: what each event changes, read some hundred events at a time.

A mail that reaches hundreds of people has hundreds of votes. They are read without their features,
which only those that are lessons are asked for; and once, not again for every hundred events that
has one more of them. Must never tell other changes for that.

What experts said of messages before these were taught, by which fusion and calibration learn. Only
reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple, TypeVar

from spamguard.ledger import schema
from spamguard.ledger.schema import Query, query_digests
from spamguard.ledger.votes import (
    Change,
    VotesInForce,
    lesson_changes,
    resolve_lesson,
    votes_in_force,
    winning_votes,
)
from spamguard.ledger.wordlists import WORD_LIST_LABEL
from spamguard.records import EXTRACTOR, Vote

_DAY_SECONDS = 86_400  # seconds

Item = TypeVar("Item")


class LastVote(NamedTuple):
    """The newest vote of a user from some place. time: seconds since 1970."""

    time: int
    origin: str


class Receipt(NamedTuple):
    """What a vote says, and the features of its message."""

    seq: int
    label: str
    packed: bytes


class MessageStanding(NamedTuple):
    """How a message stands. label: the class of its lesson, None: it has none. own: the class by
    one user's vote, None: there is none.
    """

    label: str | None
    user_label: str | None


NO_STANDING = MessageStanding(None, None)
"""Of a message that nobody has ever said anything about."""


class CastVote(NamedTuple):
    """A vote that was cast. time: seconds since 1970."""

    digest: bytes
    user: str
    label: str
    time: int


class UserQueries:
    """The users of a ledger. ask: runs a statement. Every method raises LedgerError."""

    def __init__(self, ask: Query) -> None:
        self._query = ask

    def count_lessons(self) -> dict[str, dict[str, int]]:
        """By user and class, how many messages each user's votes in force name; without those who
        have none.
        """
        counts = Counter(
            {
                (user, label): number
                for user, label, number in self._query(schema.LABELS_BY_USER, ())
            }
        )
        counts.subtract(
            {
                (user, label): number
                for user, label, number in self._query(schema.SUPERSEDED_BY_USER, ())
            }
        )
        found: dict[str, dict[str, int]] = {}
        for (user, label), number in sorted(counts.items()):
            if number > 0 and label != WORD_LIST_LABEL:
                found.setdefault(user, {})[label] = number
        return found

    def count_votes(self, user: str, origin: str, since: int, until: int, max_votes: int) -> int:
        """How many votes a user has cast from a place (`origins`) in this time, those replaced
        included; counts to `most` only.
        """
        return int(
            self._query(
                schema.COUNT_VOTES_OF_USER,
                (user, since, until, *origin_patterns(origin), max_votes),
            )[0][0]
        )

    def apply_quota(
        self,
        max_votes: int,
        user: str,
        places: Sequence[str],
        now: int,
        lessons: Sequence[Item],
        vote: Callable[[Item], tuple[bytes, str]],
    ) -> tuple[list[Item], list[Item]]:
        """Those of a user's lessons that may be taught if at most so many votes may be cast from
        these places in a day, and the others.

        vote: digest and class of a lesson. One that stands already changes nothing, and so costs
        nothing. For those that say the opposite of what this user has said there is as much room
        again: whoever moved too much by a slip can take all of it back. now: seconds since 1970;
        what was cast while the clock was far ahead does not count until the clock comes there.
        """
        done = sum(
            self.count_votes(user, place, now - _DAY_SECONDS, now + _DAY_SECONDS, 2 * max_votes)
            for place in places
        )
        if max_votes - done >= len(lessons):
            return list(lessons), []
        known: list[Item] = []
        opposite: list[Item] = []
        new: list[Item] = []
        for one in lessons:
            digest, label = vote(one)
            said, extractor, _ = next(
                iter(self._query(schema.STANDING_LABEL, (digest, user))), (None, 0, 0)
            )
            of_this_kind = (
                opposite
                if said not in (None, label)
                else known
                if said == label and extractor >= EXTRACTOR
                else new
            )
            of_this_kind.append(one)
        back = max(0, 2 * max_votes - done)
        room = max(0, max_votes - done - len(opposite[:back]))
        return [*known, *opposite[:back], *new[:room]], [*opposite[back:], *new[room:]]

    def find_standings(self, digests: Sequence[bytes], user: str) -> dict[bytes, MessageStanding]:
        """How these messages stand, those that anybody ever said anything about."""
        found: dict[bytes, MessageStanding] = {}
        rows = query_digests(self._query, schema.VOTES_OF_DIGESTS, digests)
        for digest, group in groupby((Vote(*row) for row in rows), lambda vote: vote.digest):
            cast = list(group)
            taught, own = (
                resolve_lesson(cast),
                winning_votes(vote for vote in cast if vote.user == user).get((digest, user)),
            )
            found[digest] = MessageStanding(
                taught.label if taught else None, own.label if own else None
            )
        return found

    def changed_labels(self, after: int, upto: int) -> dict[bytes, str | None]:
        """How the messages stand now that events after one number up to another are about: the
        class of the lesson.
        """
        rows = self._query(schema.LABELS_OF_DIGESTS_BETWEEN, (after, upto))
        found = {
            digest: label
            for digest, label, events in rows
            if events == 1 and label != WORD_LIST_LABEL
        }
        several = self.find_standings(
            [digest for digest, label, events in rows if events > 1 and label != WORD_LIST_LABEL],
            "",
        )
        return found | {digest: standing.label for digest, standing in several.items()}

    def count_by_hour(self, user: str | None, since: int, until: int) -> dict[int, int]:
        """How many votes were cast in each hour from `since` on, those replaced included. user:
        whose; None: everybody's.
        """
        counts: Counter[int] = Counter()
        for hour, label, number in self._query(schema.VOTES_BY_HOUR, (user, since, until)):
            counts[hour] += number if label != WORD_LIST_LABEL else 0
        return dict(counts)

    def latest_votes(self, user: str | None, since: int, until: int, limit: int) -> list[CastVote]:
        """These votes, the latest of them, newest first."""
        found = self._query(schema.LATEST_VOTES, (user, since, until, limit))
        return [CastVote(*row) for row in found if row[2] != WORD_LIST_LABEL]

    def count_by_day(self) -> dict[int, int]:
        """How many votes in force were cast on each day, counted from 1970."""
        counts = Counter(
            {(day, label): number for day, label, number in self._query(schema.VOTES_BY_DAY, ())}
        )
        counts.subtract(
            {
                (day, label): number
                for day, label, number in self._query(schema.SUPERSEDED_BY_DAY, ())
            }
        )
        days: Counter[int] = Counter()
        for (day, label), number in counts.items():
            days[day] += number if label != WORD_LIST_LABEL else 0
        return {day: days[day] for day in sorted(days)}

    def last_vote_times(self) -> dict[str, int]:
        """When each user last said anything, or took it back."""
        return dict(self._query(schema.LAST_TIME_BY_USER, ()))

    def scores_after(self, seq: int, extractor: int) -> dict[bytes, tuple[str, bytes]]:
        """Of the messages that votes after an event are about: the class by the last of these votes
        that has not been replaced or taken back, and its first-time scores, those by this
        extractor.
        """
        last: dict[tuple[bytes, str], tuple[str, bytes, int]] = {}
        for digest, user, *vote in self._query(schema.SCORES_AFTER, (seq,)):
            last.pop((digest, user), None)  # what comes again comes last
            last[digest, user] = (vote[0], vote[1], vote[2])
        return {
            digest: (label, scores)
            for (digest, _), (label, scores, read_by) in last.items()
            if scores and read_by == extractor
        }

    def last_vote(self, user: str, origin: str) -> LastVote | None:
        """The newest vote of a user from a place (`origins`)."""
        rows = self._query(schema.LAST_VOTE_OF_USER, (user, *origin_patterns(origin)))
        return LastVote(*rows[0]) if rows else None

    def last_vote_time(self, places: Sequence[str]) -> int | None:
        """When anybody last cast a vote from one of these places (`origins`), seconds since 1970."""
        found = [
            row[0]
            for place in places
            for row in self._query(schema.LAST_TIME_OF_ORIGIN, origin_patterns(place))
            if row[0] is not None
        ]
        return max(found, default=None)

    def votes_by_origin(self, after: int, upto: int) -> list[tuple[str, str, int, int]]:
        """Of the events after one and up to another: class, origin, how many votes, and the time of
        the newest of them.
        """
        found = self._query(schema.VOTES_BY_ORIGIN, (after, upto))
        return [
            (label, origin, number, newest)
            for label, origin, number, newest in found
            if label != WORD_LIST_LABEL
        ]

    def voted_digests(self, user: str, since: int) -> list[bytes]:
        """Digests of the messages on which a user has cast, or taken back, a vote since then."""
        return [digest for (digest,) in self._query(schema.DIGESTS_OF_USER, (user, since))]

    def outdated_digests(self, extractor: int, after: int, upto: int) -> list[bytes]:
        """Of the events after one number up to another: messages on which a vote is in force that
        an older extractor has read.
        """
        return [
            digest for (digest,) in self._query(schema.OUTDATED_DIGESTS, (after, upto, extractor))
        ]

    def latest_seqs(self, user: str, upto_seq: int, extractor: int, limit: int) -> list[int]:
        """Numbers of the events that are a user's votes in force at event `upto_seq`, the latest
        `most` by their time, in any order.
        """
        return [
            seq
            for (seq,) in self._query(
                schema.LATEST_SEQS_OF_USER, (user, upto_seq, extractor, limit)
            )
        ]

    def read_receipts(self, seqs: Sequence[int]) -> list[Receipt]:
        """Votes by the numbers of their events, in any order, without those that are no more."""
        marks = ",".join("?" * len(seqs))
        return (
            [
                Receipt(*row)
                for row in self._query(schema.RECEIPTS_BY_SEQ.format(marks), tuple(seqs))
            ]
            if seqs
            else []
        )

    def users_between(self, after: int, upto: int) -> list[str]:
        """Who has cast a vote, or taken one back, in the events after one number up to another."""
        return [user for (user,) in self._query(schema.USERS_BETWEEN, (after, upto))]

    def all_votes(self, user: str, digest: bytes) -> list[Vote]:
        """All votes of a user on a message that are still known, the one in force first."""
        return [Vote(*row) for row in self._query(schema.VOTES_OF_KEY, (digest, user))]

    def votes_on_message(self, digest: bytes) -> Iterator[Vote]:
        """The vote in force of each user on a message, those taken back left out."""
        for (user,) in self._query(schema.USERS_OF_DIGEST, (digest,)):
            vote = self.all_votes(user, digest)[0]
            if vote.label is not None:
                yield vote


def origin_patterns(place: str) -> tuple[str, str]:
    """What the origin of a vote from a place is, or begins with: "folder" stands for "folder Junk"
    and all others, not for "folders".
    """
    return place, f"{place} "


# votes on a message from which on they are kept: reading fewer again costs less than the room for
# those of every message
_MIN_CACHED_VOTES = 16
_MAX_CACHED_VOTES = 65_536  # votes, some 30 MB


class ChangeWalk:
    """Begins anywhere. ask: runs a statement."""

    def __init__(self, ask: Query) -> None:
        self._query = ask
        self._cache: VotesInForce = {}  # as of the last event; the message met last stands last

    def read_changes(
        self, seq: int, events: Sequence[tuple[int, Vote]], extractor: int | None
    ) -> list[Change]:
        """What the next events change. seq: of the last one before them. To be called in a
        transaction. LedgerError.
        """
        digests = list({vote.digest: None for _, vote in events})
        kept = {digest: self._cache.pop(digest) for digest in digests if digest in self._cache}
        new = [digest for digest in digests if digest not in kept]
        read = query_digests(self._query, schema.EARLIER_VOTES_OF_DIGESTS, new, seq)
        winning = kept | votes_in_force(map(Vote._make, read))
        found = list(lesson_changes(winning, events, extractor, partial(load_vote, self._query)))
        self._cache_votes(winning, events)
        return found

    def _cache_votes(self, winning: VotesInForce, events: Sequence[tuple[int, Vote]]) -> None:
        self._cache |= {
            digest: votes for digest, votes in winning.items() if len(votes) >= _MIN_CACHED_VOTES
        }
        for _, event in events:
            if event.digest in self._cache:
                vote = self._cache[event.digest][event.user]
                self._cache[event.digest][event.user] = vote._replace(packed=b"", scores=b"")
        too_many = sum(map(len, self._cache.values())) - _MAX_CACHED_VOTES
        while too_many > 0:
            too_many -= len(self._cache.pop(next(iter(self._cache))))


def load_vote(ask: Query, vote: Vote) -> Vote:
    """A vote that was read without features and scores, with them."""
    return (
        vote
        if vote.packed
        else Vote(*ask(schema.VOTE_OF_VERSION, (vote.digest, vote.user, *vote.version))[0])
    )


_BATCH_EVENTS = 128  # events in one statement


class ScoreQueries:
    """Of a ledger. ask: runs a statement. Every method raises LedgerError."""

    def __init__(self, ask: Query) -> None:
        self._query = ask

    def first_scores(self, digests: Sequence[bytes], extractor: int) -> dict[bytes, bytes]:
        """The scores of the oldest vote in force on each of these messages that anybody teaches, of
        those by this extractor.
        """
        known = query_digests(self._query, schema.KNOWN_DIGESTS, digests)  # hardly ever any
        return {
            digest: bytes(scores)
            for (digest,) in known
            for (scores,) in self._query(schema.FIRST_SCORES, (digest, extractor))
        }

    def lesson_scores(self, extractor: int) -> Iterator[tuple[str, bytes]]:
        """Label and first-time scores of every lesson that has any, in the order in which the
        messages were first heard of.
        """
        seq, done = 0, set[bytes]()
        ((end,),) = self._query(schema.LAST_SEQ, ())
        repeated = {digest for (digest,) in self._query(schema.DIGESTS_OF_SEVERAL_EVENTS, (end,))}
        while rows := self._query(schema.SCORES_BETWEEN, (seq, end, _BATCH_EVENTS)):
            seq = rows[-1][0]
            for _, digest, label, scores, version in rows:
                if digest not in repeated:
                    if label is not None and version == extractor and scores:
                        yield label, scores
                elif digest not in done:
                    done.add(digest)
                    yield from self._scores_of_lesson(digest, extractor)

    def _scores_of_lesson(self, digest: bytes, extractor: int) -> list[tuple[str, bytes]]:
        found = resolve_lesson(
            [Vote(*row) for row in self._query(schema.VOTES_OF_DIGEST, (digest,))], extractor
        )
        return [(found.label, found.scores)] if found is not None and found.scores else []
