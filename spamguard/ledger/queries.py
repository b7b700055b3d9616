"""Reading the ledger: by user, by message and by age.

All run their statements by a `Query`, and raise LedgerError. Which vote counts, `votes` decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from spamguard.ledger import schema
from spamguard.ledger.schema import Query
from spamguard.ledger.votes import (
    Change,
    LastVote,
    MessageStanding,
    Receipt,
    deciding_vote,
    lesson_changes,
    votes_in_force,
)
from spamguard.records import EXTRACTOR, Vote
from spamguard.storage import batches

_DAY_SECONDS = 86_400
_BATCH_DIGESTS = 128  # of one statement

Item = TypeVar("Item")


@dataclass
class UserQueries:
    """The votes of a ledger by user, message and age.

    An origin stands for those that begin with it and a blank too: "folder" for "folder Junk".
    """

    _query: Query

    def _column(self, statement: str, *values: object) -> list[Any]:
        return [value for (value,) in self._query(statement, values)]

    def query_digests(
        self, statement: str, digests: Sequence[bytes], *values: object
    ) -> Iterator[tuple[Any, ...]]:
        """Rows of a statement with `IN ({})`, asked for some digests at a time.

        All rows of one digest come from the same statement. values: those behind the digests.
        """
        for batch in batches(digests, _BATCH_DIGESTS):
            yield from self._query(statement.format(",".join("?" * len(batch))), (*batch, *values))

    # ---- by user

    def count_lessons(self) -> dict[str, dict[str, int]]:
        """The number of messages by user and by the class of the user's vote in force."""
        lessons: dict[str, dict[str, int]] = {}
        for user, label, number in self._query(schema.LESSONS_BY_USER, ()):
            lessons.setdefault(user, {})[label] = number
        return lessons

    def count_votes(self, user: str, origin: str, since: int, until: int, max_votes: int) -> int:
        """Count a user's votes from an origin in a period, up to `max_votes`.

        Replaced votes count too.
        """
        values = (user, since, until, origin, max_votes)
        return int(self._column(schema.COUNT_VOTES_OF_USER, *values)[0])

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
        allowed, refused = list[Item](), list[Item]()
        for lesson in lessons:
            digest, label = vote(lesson)
            rows = self._query(schema.STANDING_LABEL, (digest, user))
            current, extractor = rows[0] if rows else (None, 0)
            is_new = current != label or extractor < EXTRACTOR
            room = max_votes if current in (None, label) else 2 * max_votes
            if is_new and done >= room:
                refused.append(lesson)
            else:
                allowed.append(lesson)
                done += is_new
        return allowed, refused

    def count_by_hour(self, user: str | None, since: int, until: int) -> dict[int, int]:
        """The number of votes cast in each hour from `since` on, replaced votes included.

        user: whose; None: everybody's.
        """
        return dict(self._query(schema.VOTES_BY_HOUR, (user, since, until)))

    def last_vote_times(self) -> dict[str, int]:
        """When each user last cast a vote, or took one back."""
        return dict(self._query(schema.LAST_TIME_BY_USER, ()))

    def last_vote(self, user: str, origin: str) -> LastVote | None:
        """The newest vote of a user from an origin."""
        rows = self._query(schema.LAST_VOTE_OF_USER, (user, origin))
        return LastVote(*rows[0]) if rows else None

    def last_vote_time(self, origins: Sequence[str]) -> int | None:
        """When anybody last cast a vote from one of these origins, in seconds since 1970."""
        times: list[int | None] = self._column(schema.LAST_TIME_OF_ORIGINS, json.dumps(origins))
        return times[0]

    def votes_by_origin(self, after: int, upto: int) -> list[tuple[str, str, int, int]]:
        """Class, origin, number and newest time of the votes after one event up to another."""
        return self._query(schema.VOTES_BY_ORIGIN, (after, upto))

    def voted_digests(self, user: str, since: int) -> list[bytes]:
        """Messages on which a user has cast a vote since then, or has taken one back."""
        return self._column(schema.DIGESTS_OF_USER, user, since)

    def keys_of_node(self, node: str, since: int) -> list[tuple[str, bytes]]:
        """Users and messages for whom a node has cast a vote since then; all are looked at."""
        return self._query(schema.KEYS_OF_NODE, (node, since))

    def latest_seqs(self, user: str, upto_seq: int, extractor: int, limit: int) -> list[int]:
        """Events that are a user's votes in force at event `upto_seq`, the latest `limit` of them,
        in any order.
        """
        return self._column(schema.LATEST_SEQS_OF_USER, user, upto_seq, extractor, limit)

    def read_receipts(self, seqs: Sequence[int]) -> list[Receipt]:
        """The votes of these events that are still there, in any order."""
        rows = self._query(schema.RECEIPTS_BY_SEQ, (json.dumps(seqs),))
        return [Receipt(*row) for row in rows]

    def users_between(self, after: int, upto: int) -> list[str]:
        """Users with an event after one number up to another."""
        return self._column(schema.USERS_BETWEEN, after, upto)

    # ---- by message

    def find_standings(self, digests: Sequence[bytes], user: str) -> dict[bytes, MessageStanding]:
        """The standing of each message on which anybody ever voted. user: of `user_label`."""
        standings: dict[bytes, MessageStanding] = {}
        rows = self.query_digests(schema.VOTES_OF_DIGESTS, digests)
        for digest, winning in votes_in_force(map(Vote._make, rows)).items():
            deciding, own = deciding_vote(winning.values()), winning.get(user)
            standings[digest] = MessageStanding(deciding and deciding.label, own and own.label)
        return standings

    def changed_labels(self, after: int, upto: int) -> dict[bytes, str | None]:
        """The class of the lesson now, of messages on which events after one up to another are."""
        digests = self._column(schema.DIGESTS_BETWEEN, after, upto)
        standings = self.find_standings(digests, "").items()
        return {digest: standing.label for digest, standing in standings}

    def outdated_digests(self, extractor: int, after: int, upto: int) -> list[bytes]:
        """Messages with a vote in force, after one event up to another, of an older extractor."""
        return self._column(schema.OUTDATED_DIGESTS, after, upto, extractor)

    def all_votes(self, user: str, digest: bytes) -> list[Vote]:
        """All votes of a user on a message that are still there, the one in force first."""
        return [Vote(*row) for row in self._query(schema.VOTES_OF_KEY, (digest, user))]

    def votes_on_message(self, digest: bytes) -> list[Vote]:
        """The vote in force of each user on a message, without those taken back."""
        return [Vote(*row) for row in self._query(schema.VOTES_ON_MESSAGE, (digest,))]

    def load_vote(self, vote: Vote) -> Vote:
        """The whole of a vote that may have been read without features and scores."""
        if vote.packed:
            return vote
        rows = self._query(schema.VOTE_OF_VERSION, (vote.digest, vote.user, *vote.version))
        return Vote(*rows[0])

    def first_scores(self, digests: Sequence[bytes], extractor: int) -> dict[bytes, bytes]:
        """The scores that experts gave to these messages before anybody taught them: by this
        extractor, of the oldest vote in force.
        """
        return {
            digest: scores
            for digest in digests
            for scores in self._column(schema.FIRST_SCORES, digest, extractor)
        }

    def read_changes(
        self, seq: int, events: Sequence[tuple[int, Vote]], extractor: int | None
    ) -> list[Change]:
        """What some events in a row change; call it in a transaction. seq: of the event before.

        A mail that reaches hundreds of people has hundreds of votes: features are read of those
        that decide.
        """
        digests = list({vote.digest: None for _, vote in events})
        rows = self.query_digests(schema.EARLIER_VOTES_OF_DIGESTS, digests, seq)
        winning = votes_in_force(map(Vote._make, rows))
        return list(lesson_changes(winning, events, extractor, self.load_vote))

    # ---- by age

    def oldest_votes(
        self, upto_seq: int, *, number: int = -1, before: int | None = None, personal: int = 0
    ) -> list[tuple[bytes, str, int]]:
        """Digest, user and extractor of votes in force about messages, the oldest `number` of them
        (-1: all), the oldest first.

        before: only those cast before then, in seconds since 1970. personal: so many of each user's
        latest votes come last; the site (user "") has none.
        """
        return self._query(schema.OLDEST_VOTES, (upto_seq, before, personal, number))

    def find_kept(self) -> tuple[int | None, int]:
        """When the oldest vote in force was cast, and how many have aged and are not dropped."""
        ((oldest, aged),) = self._query(schema.KEPT, ())
        return oldest, aged
