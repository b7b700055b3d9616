"""Who has said what: the ledger asked by users instead of by messages. Only reads, by an index of its own, never by walking the log.

Must never decide which vote counts; that is the business of `lessons`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

from spamguard.ledger import statements
from spamguard.ledger.asking import Ask, of_digests
from spamguard.ledger.lessons import lesson, winners
from spamguard.ledger.wordlists import LABEL
from spamguard.records import EXTRACTOR, Vote

_DAY = 86_400  # seconds

Item = TypeVar("Item")


class Heard(NamedTuple):
    """The newest vote of a user from some place. time: seconds since 1970."""

    time: int
    origin: str


class Receipt(NamedTuple):
    """What a vote says, and the features of its message."""

    seq: int
    label: str
    packed: bytes


class Standing(NamedTuple):
    """How a message stands. label: the class of its lesson, None: it has none. own: the class by one user's vote, None: there is none."""

    label: str | None
    own: str | None


UNHEARD = Standing(None, None)
"""Of a message that nobody has ever said anything about."""


class Cast(NamedTuple):
    """A vote that was cast. time: seconds since 1970."""

    digest: bytes
    user: str
    label: str
    time: int


class Users:
    """The users of a ledger. ask: runs a statement. Every method raises LedgerError."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def lessons(self) -> dict[str, dict[str, int]]:
        """By user and class, how many messages each user's votes in force name; without those who have none."""
        counts = Counter({(user, label): number for user, label, number in self._ask(statements.LABELS_BY_USER, ())})
        counts.subtract({(user, label): number for user, label, number in self._ask(statements.SUPERSEDED_BY_USER, ())})
        found: dict[str, dict[str, int]] = {}
        for (user, label), number in sorted(counts.items()):
            if number > 0 and label != LABEL:
                found.setdefault(user, {})[label] = number
        return found

    def cast(self, user: str, origin: str, since: int, until: int, most: int) -> int:
        """How many votes a user has cast from a place (`origins`) in this time, those replaced included; counts to `most` only."""
        return int(self._ask(statements.CAST_BY_USER, (user, since, until, *origins(origin), most))[0][0])

    def within(
        self, most: int, user: str, places: Sequence[str], now: int, lessons: Sequence[Item], vote: Callable[[Item], tuple[bytes, str]]
    ) -> tuple[list[Item], list[Item]]:
        """Those of a user's lessons that may be taught if at most so many votes may be cast from these places in a day, and the others.

        vote: digest and class of a lesson. One that stands already changes nothing, and so costs nothing. For those that say the
        opposite of what this user has said there is as much room again: whoever moved too much by a slip can take all of it back.
        now: seconds since 1970; what was cast while the clock was far ahead does not count until the clock comes there.
        """
        done = sum(self.cast(user, place, now - _DAY, now + _DAY, 2 * most) for place in places)
        if most - done >= len(lessons):
            return list(lessons), []
        known: list[Item] = []
        opposite: list[Item] = []
        new: list[Item] = []
        for one in lessons:
            digest, label = vote(one)
            said, extractor, _ = next(iter(self._ask(statements.STANDING_LABEL, (digest, user))), (None, 0, 0))
            of_this_kind = opposite if said not in (None, label) else known if said == label and extractor >= EXTRACTOR else new
            of_this_kind.append(one)
        back = max(0, 2 * most - done)
        room = max(0, most - done - len(opposite[:back]))
        return [*known, *opposite[:back], *new[:room]], [*opposite[back:], *new[room:]]

    def standing(self, digests: Sequence[bytes], user: str) -> dict[bytes, Standing]:
        """How these messages stand, those that anybody ever said anything about."""
        found: dict[bytes, Standing] = {}
        rows = of_digests(self._ask, statements.VOTES_OF_DIGESTS, digests)
        for digest, group in groupby((Vote(*row) for row in rows), lambda vote: vote.digest):
            cast = list(group)
            taught, own = lesson(cast), winners(vote for vote in cast if vote.user == user).get((digest, user))
            found[digest] = Standing(taught.label if taught else None, own.label if own else None)
        return found

    def changed(self, after: int, upto: int) -> dict[bytes, str | None]:
        """How the messages stand now that events after one number up to another are about: the class of the lesson."""
        rows = self._ask(statements.LABELS_OF_DIGESTS_BETWEEN, (after, upto))
        found = {digest: label for digest, label, events in rows if events == 1 and label != LABEL}
        several = self.standing([digest for digest, label, events in rows if events > 1 and label != LABEL], "")
        return found | {digest: standing.label for digest, standing in several.items()}

    def cast_by_hour(self, user: str | None, since: int, until: int) -> dict[int, int]:
        """How many votes were cast in each hour from `since` on, those replaced included. user: whose; None: everybody's."""
        counts: Counter[int] = Counter()
        for hour, label, number in self._ask(statements.CAST_BY_HOUR, (user, since, until)):
            counts[hour] += number if label != LABEL else 0
        return dict(counts)

    def cast_lately(self, user: str | None, since: int, until: int, most: int) -> list[Cast]:
        """These votes, the latest of them, newest first."""
        found = self._ask(statements.CAST_LATELY, (user, since, until, most))
        return [Cast(*row) for row in found if row[2] != LABEL]

    def by_day(self) -> dict[int, int]:
        """How many votes in force were cast on each day, counted from 1970."""
        counts = Counter({(day, label): number for day, label, number in self._ask(statements.CAST_BY_DAY, ())})
        counts.subtract({(day, label): number for day, label, number in self._ask(statements.SUPERSEDED_BY_DAY, ())})
        days: Counter[int] = Counter()
        for (day, label), number in counts.items():
            days[day] += number if label != LABEL else 0
        return {day: days[day] for day in sorted(days)}

    def last_times(self) -> dict[str, int]:
        """When each user last said anything, or took it back."""
        return dict(self._ask(statements.LAST_BY_USER, ()))

    def scored_after(self, seq: int, extractor: int) -> dict[bytes, tuple[str, bytes]]:
        """Of the messages that votes after an event are about: the class by the last of these votes that has not been replaced or taken
        back, and its first-time scores, those by this extractor."""
        last: dict[tuple[bytes, str], tuple[str, bytes, int]] = {}
        for digest, user, *vote in self._ask(statements.SCORES_AFTER, (seq,)):
            last.pop((digest, user), None)  # what comes again comes last
            last[digest, user] = (vote[0], vote[1], vote[2])
        return {digest: (label, scores) for (digest, _), (label, scores, read_by) in last.items() if scores and read_by == extractor}

    def last_heard(self, user: str, origin: str) -> Heard | None:
        """The newest vote of a user from a place (`origins`)."""
        rows = self._ask(statements.LAST_OF_USER, (user, *origins(origin)))
        return Heard(*rows[0]) if rows else None

    def last_taught(self, places: Sequence[str]) -> int | None:
        """When anybody last cast a vote from one of these places (`origins`), seconds since 1970."""
        found = [row[0] for place in places for row in self._ask(statements.LAST_OF_PLACES, origins(place)) if row[0] is not None]
        return max(found, default=None)

    def taught(self, after: int, upto: int) -> list[tuple[str, str, int, int]]:
        """Of the events after one and up to another: class, origin, how many votes, and the time of the newest of them."""
        found = self._ask(statements.TAUGHT_BETWEEN, (after, upto))
        return [(label, origin, number, newest) for label, origin, number, newest in found if label != LABEL]

    def messages(self, user: str, since: int) -> list[bytes]:
        """Digests of the messages on which a user has cast, or taken back, a vote since then."""
        return [digest for (digest,) in self._ask(statements.DIGESTS_OF_USER, (user, since))]

    def read_before(self, extractor: int, after: int, upto: int) -> list[bytes]:
        """Of the events after one number up to another: messages on which a vote is in force that an older extractor has read."""
        return [digest for (digest,) in self._ask(statements.STANDING_READ_BEFORE, (after, upto, extractor))]

    def latest(self, user: str, upto_seq: int, extractor: int, most: int) -> list[int]:
        """Numbers of the events that are a user's votes in force at event `upto_seq`, the latest `most` by their time, in any order."""
        return [seq for (seq,) in self._ask(statements.LATEST_OF_USER, (user, upto_seq, extractor, most))]

    def receipts(self, seqs: Sequence[int]) -> list[Receipt]:
        """Votes by the numbers of their events, in any order, without those that are no more."""
        marks = ",".join("?" * len(seqs))
        return [Receipt(*row) for row in self._ask(statements.RECEIPTS.format(marks), tuple(seqs))] if seqs else []

    def heard_between(self, after: int, upto: int) -> list[str]:
        """Who has cast a vote, or taken one back, in the events after one number up to another."""
        return [user for (user,) in self._ask(statements.USERS_BETWEEN, (after, upto))]

    def votes(self, user: str, digest: bytes) -> list[Vote]:
        """All votes of a user on a message that are still known, the one in force first."""
        return [Vote(*row) for row in self._ask(statements.VOTES_OF_KEY, (digest, user))]

    def of_message(self, digest: bytes) -> Iterator[Vote]:
        """The vote in force of each user on a message, those taken back left out."""
        for (user,) in self._ask(statements.USERS_OF_DIGEST, (digest,)):
            vote = self.votes(user, digest)[0]
            if vote.label is not None:
                yield vote


def origins(place: str) -> tuple[str, str]:
    """What the origin of a vote from a place is, or begins with: "folder" stands for "folder Junk" and all others, not for "folders"."""
    return place, f"{place} "
