"""Who has said what: the ledger asked by users instead of by messages. Only reads, by an index of its own, never by walking the log.

Must never decide which vote counts; that is the business of `lessons`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from spamguard.ledger import statements
from spamguard.ledger.wordlists import LABEL
from spamguard.records import Vote

_DAY = 86_400  # seconds

Item = TypeVar("Item")
_Ask = Callable[[str, tuple[object, ...]], list[tuple[Any, ...]]]


class Heard(NamedTuple):
    """The newest vote of a user from some place. time: seconds since 1970."""

    time: int
    origin: str


class Receipt(NamedTuple):
    """What a vote says, and the features of its message."""

    seq: int
    label: str
    packed: bytes


class Users:
    """The users of a ledger. ask: runs a statement. Every method raises LedgerError."""

    def __init__(self, ask: _Ask) -> None:
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

        vote: digest and class of a lesson. One that stands already changes nothing, and so costs nothing. now: seconds since 1970;
        what was cast while the clock was far ahead does not count until the clock comes there.
        """
        room = max(0, most - sum(self.cast(user, place, now - _DAY, now + _DAY, most) for place in places))
        if room >= len(lessons):
            return list(lessons), []
        known: list[Item] = []
        new: list[Item] = []
        for lesson in lessons:
            (known if self._stands(user, *vote(lesson)) else new).append(lesson)
        return [*known, *new[:room]], new[room:]

    def _stands(self, user: str, digest: bytes, label: str) -> bool:
        votes = self.votes(user, digest)
        return bool(votes) and votes[0].label == label

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
