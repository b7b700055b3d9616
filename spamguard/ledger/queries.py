"""Reading the ledger: by user, by message, along the log, and the first scores of messages.

All run their statements by a `Query`, and raise LedgerError. Which vote counts, `votes` decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from spamguard.ledger import schema
from spamguard.ledger.schema import Query
from spamguard.ledger.votes import (
    Change,
    LastVote,
    MessageStanding,
    Receipt,
    is_class_label,
    lesson_changes,
    resolve_lesson,
    votes_in_force,
    winning_votes,
)
from spamguard.records import EXTRACTOR, Vote
from spamguard.storage import batches

_DAY_SECONDS = 86_400
_BATCH_DIGESTS = 128  # of one statement, or range: some 500 kB of receipts

Item = TypeVar("Item")

DigestRange = tuple[bytes, bytes]
"""Digests between two; the first is excluded, the second included."""


def query_digests(
    query: Query, statement: str, digests: Sequence[bytes], *values: object
) -> Iterator[tuple[Any, ...]]:
    """Rows of a statement with `IN ({})`, asked for some digests at a time.

    All rows of one digest come from the same statement. values: those behind the digests.
    """
    for batch in batches(digests, _BATCH_DIGESTS):
        yield from query(statement.format(",".join("?" * len(batch))), (*batch, *values))


def digest_ranges(query: Query, *, backwards: bool) -> Iterator[DigestRange]:
    """Ranges that hold all digests, in ascending order or backwards."""

    def ascending() -> Iterator[DigestRange]:
        after = b""
        while (last := query(schema.NEXT_BATCH_END, (after, _BATCH_DIGESTS))[0][0]) is not None:
            yield after, last
            after = last

    return reversed(list(ascending())) if backwards else ascending()


def load_vote(query: Query, vote: Vote) -> Vote:
    """The whole of a vote that may have been read without features and scores."""
    if vote.packed:
        return vote
    return Vote(*query(schema.VOTE_OF_VERSION, (vote.digest, vote.user, *vote.version))[0])


# ---- by user


@dataclass
class UserQueries:
    """The votes of a ledger by user."""

    _query: Query

    def count_lessons(self) -> dict[str, dict[str, int]]:
        """The number of messages by user and by the class of the user's vote in force."""
        counts = self._count_in_force(schema.LABELS_BY_USER, schema.SUPERSEDED_BY_USER)
        lessons: dict[str, dict[str, int]] = {}
        for (user, label), number in sorted(counts.items()):
            if number > 0:
                lessons.setdefault(user, {})[label] = number
        return lessons

    def count_by_day(self) -> dict[int, int]:
        """The number of votes in force that were cast on each day, counted from 1970."""
        days: Counter[int] = Counter()
        counts = self._count_in_force(schema.VOTES_BY_DAY, schema.SUPERSEDED_BY_DAY)
        for (day, _), number in counts.items():
            days[day] += number
        return dict(sorted(days.items()))

    def _count_in_force(self, cast: str, superseded: str) -> Counter[tuple[Any, str]]:
        """Votes in force by a key and class, from statements that count votes of both kinds."""
        counts: Counter[tuple[Any, str]] = Counter()
        for sign, statement in ((1, cast), (-1, superseded)):
            for key, label, number in self._query(statement, ()):
                if is_class_label(label):
                    counts[key, label] += sign * number
        return counts

    def count_votes(self, user: str, origin: str, since: int, until: int, max_votes: int) -> int:
        """Count a user's votes from an origin (`origin_patterns`) in a period, up to `max_votes`.

        Replaced votes count too.
        """
        values = (user, since, until, *origin_patterns(origin), max_votes)
        return int(self._query(schema.COUNT_VOTES_OF_USER, values)[0][0])

    def apply_quota(
        self,
        max_votes: int,
        user: str,
        origins: Sequence[str],
        now: int,
        lessons: Sequence[Item],
        vote: Callable[[Item], tuple[bytes, str]],
    ) -> tuple[list[Item], list[Item]]:
        """Split a user's lessons into those that may be taught today, and the others.

        A lesson that stands already costs nothing. For lessons that say the opposite of the user's
        own vote there is as much room again: a user who moved too much by a slip can take all of it
        back. Votes that were cast while the clock was far ahead do not count until the clock comes
        there.

        max_votes: so many votes may be cast from these origins within 24 hours. now: seconds since
        1970. vote: digest and class of a lesson.
        """
        start, end = now - _DAY_SECONDS, now + _DAY_SECONDS
        done = sum(self.count_votes(user, origin, start, end, 2 * max_votes) for origin in origins)
        if max_votes - done >= len(lessons):
            return list(lessons), []
        unchanged: list[Item] = []
        opposite: list[Item] = []
        new: list[Item] = []
        for lesson in lessons:
            digest, label = vote(lesson)
            rows = self._query(schema.STANDING_LABEL, (digest, user))
            current, extractor = rows[0] if rows else (None, 0)
            if current not in (None, label):
                opposite.append(lesson)
            elif current == label and extractor >= EXTRACTOR:
                unchanged.append(lesson)
            else:
                new.append(lesson)
        n_opposite = max(0, 2 * max_votes - done)
        n_new = max(0, max_votes - done - len(opposite[:n_opposite]))
        return (
            [*unchanged, *opposite[:n_opposite], *new[:n_new]],
            [*opposite[n_opposite:], *new[n_new:]],
        )

    def find_standings(self, digests: Sequence[bytes], user: str) -> dict[bytes, MessageStanding]:
        """The standing of each message on which anybody ever voted. user: of `user_label`."""
        standings: dict[bytes, MessageStanding] = {}
        rows = query_digests(self._query, schema.VOTES_OF_DIGESTS, digests)
        for digest, group in groupby((Vote(*row) for row in rows), lambda vote: vote.digest):
            votes = list(group)
            lesson = resolve_lesson(votes)
            vote = winning_votes(votes).get((digest, user))
            standings[digest] = MessageStanding(
                lesson.label if lesson else None, vote.label if vote else None
            )
        return standings

    def changed_labels(self, after: int, upto: int) -> dict[bytes, str | None]:
        """The class of the lesson now, of messages on which events after one up to another are."""
        rows = [
            row
            for row in self._query(schema.LABELS_OF_DIGESTS_BETWEEN, (after, upto))
            if is_class_label(row[1])
        ]
        labels = {digest: label for digest, label, events in rows if events == 1}
        several = self.find_standings([digest for digest, _, events in rows if events > 1], "")
        return labels | {digest: standing.label for digest, standing in several.items()}

    def count_by_hour(self, user: str | None, since: int, until: int) -> dict[int, int]:
        """The number of votes cast in each hour from `since` on, replaced votes included.

        user: whose; None: everybody's.
        """
        counts: Counter[int] = Counter()
        for hour, label, number in self._query(schema.VOTES_BY_HOUR, (user, since, until)):
            counts[hour] += number if is_class_label(label) else 0
        return dict(counts)

    def last_vote_times(self) -> dict[str, int]:
        """When each user last cast a vote, or took one back."""
        times = self._query(schema.LAST_TIME_BY_USER, ())
        return {user: time for user, time in times if time is not None}

    def last_vote(self, user: str, origin: str) -> LastVote | None:
        """The newest vote of a user from an origin (`origin_patterns`)."""
        rows = self._query(schema.LAST_VOTE_OF_USER, (user, *origin_patterns(origin)))
        return LastVote(*rows[0]) if rows else None

    def last_vote_time(self, origins: Sequence[str]) -> int | None:
        """When anybody last cast a vote from one of these origins, in seconds since 1970."""
        times = (
            self._query(schema.LAST_TIME_OF_ORIGIN, origin_patterns(origin))[0][0]
            for origin in origins
        )
        return max(filter(None, times), default=None)

    def votes_by_origin(self, after: int, upto: int) -> list[tuple[str, str, int, int]]:
        """Class, origin, number and newest time of the votes after one event up to another."""
        rows = self._query(schema.VOTES_BY_ORIGIN, (after, upto))
        return [row for row in rows if is_class_label(row[0])]

    def voted_digests(self, user: str, since: int) -> list[bytes]:
        """Messages on which a user has cast a vote since then, or has taken one back."""
        return [digest for (digest,) in self._query(schema.DIGESTS_OF_USER, (user, since))]

    def keys_of_node(self, node: str, since: int) -> list[tuple[str, bytes]]:
        """Users and messages for whom a node has cast a vote since then; all are looked at."""
        return self._query(schema.KEYS_OF_NODE, (node, since))

    def outdated_digests(self, extractor: int, after: int, upto: int) -> list[bytes]:
        """Messages with a vote in force, after one event up to another, of an older extractor."""
        return [
            digest for (digest,) in self._query(schema.OUTDATED_DIGESTS, (after, upto, extractor))
        ]

    def latest_seqs(self, user: str, upto_seq: int, extractor: int, limit: int) -> list[int]:
        """Events that are a user's votes in force at event `upto_seq`, the latest `limit` of them,
        in any order.
        """
        rows = self._query(schema.LATEST_SEQS_OF_USER, (user, upto_seq, extractor, limit))
        return [seq for (seq,) in rows]

    def read_receipts(self, seqs: Sequence[int]) -> list[Receipt]:
        """The votes of these events that are still there, in any order."""
        statement = schema.RECEIPTS_BY_SEQ.format(",".join("?" * len(seqs)))
        return [Receipt(*row) for row in self._query(statement, tuple(seqs))]

    def users_between(self, after: int, upto: int) -> list[str]:
        """Users with an event after one number up to another."""
        return [user for (user,) in self._query(schema.USERS_BETWEEN, (after, upto))]

    def all_votes(self, user: str, digest: bytes) -> list[Vote]:
        """All votes of a user on a message that are still there, the one in force first."""
        return [Vote(*row) for row in self._query(schema.VOTES_OF_KEY, (digest, user))]

    def votes_on_message(self, digest: bytes) -> Iterator[Vote]:
        """The vote in force of each user on a message, without those taken back."""
        for (user,) in self._query(schema.USERS_OF_DIGEST, (digest,)):
            votes = self.all_votes(user, digest)
            if votes and votes[0].label is not None:  # there is none if it was compacted meanwhile
                yield votes[0]


def origin_patterns(origin: str) -> tuple[str, str]:
    """What a vote's origin is, or begins with: "folder" stands for "folder Junk" too.

    >>> origin_patterns("folder")
    ('folder', 'folder ')
    """
    return origin, f"{origin} "


# ---- by age


@dataclass
class AgeQueries:
    """The votes of a ledger by their age."""

    _query: Query

    def oldest_votes(
        self, upto_seq: int, *, number: int = -1, before: int | None = None, personal: int = 0
    ) -> list[int]:
        """Events that are votes in force about messages, the oldest `number` of them (-1: all).

        before: only those cast before then, in seconds since 1970. personal: so many of each user's
        latest votes come last; the site (user "") has none.
        """
        values = (upto_seq, before, personal, number)
        return [seq for (seq,) in self._query(schema.OLDEST_VOTES, values)]

    def keys_of(self, seqs: Sequence[int]) -> list[tuple[bytes, str, int]]:
        """Digest, user and extractor version of the votes of these events that are still there."""
        return self._query(schema.KEYS_OF_SEQS.format(",".join("?" * len(seqs))), tuple(seqs))

    def count_aged(self) -> tuple[int, int]:
        """The number of votes that have aged and are not dropped yet, and when the last one did."""
        ((number, last),) = self._query(schema.AGED_BY_TIME, ())
        return number, last or 0


# ---- along the log


def read_changes(
    query: Query, seq: int, events: Sequence[tuple[int, Vote]], extractor: int | None
) -> list[Change]:
    """What some events in a row change; call it in a transaction. seq: of the event before them.

    A mail that reaches hundreds of people has hundreds of votes: features are read of those that
    decide.
    """
    digests = list({vote.digest: None for _, vote in events})
    rows = query_digests(query, schema.EARLIER_VOTES_OF_DIGESTS, digests, seq)
    winning = votes_in_force(map(Vote._make, rows))
    return list(lesson_changes(winning, events, extractor, partial(load_vote, query)))


# ---- first scores


@dataclass
class ScoreQueries:
    """The scores that experts gave messages before anybody taught these."""

    _query: Query

    def first_scores(self, digests: Sequence[bytes], extractor: int) -> dict[bytes, bytes]:
        """The scores, by this extractor, of the oldest vote in force on each of these messages."""
        voted = query_digests(self._query, schema.KNOWN_DIGESTS, digests)  # hardly ever any
        return {
            digest: bytes(scores)
            for (digest,) in voted
            for (scores,) in self._query(schema.FIRST_SCORES, (digest, extractor))
        }
