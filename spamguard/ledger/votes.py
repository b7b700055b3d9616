"""Votes, and what the votes on a message teach: at most one lesson, a pure function of them.

Each user has one vote in force on a message, the one with the highest version. The class that most
of these name is the class of the lesson, and the oldest vote for it gives the features.

Where many machines share a log, a class is defined by a vote of the site too: its digest holds
the name of the class, its label says whether mail of the class is wanted, and it has no features.

Must never read a clock, a file or the order in which votes arrive: whoever holds the same votes
holds the same lessons, so processes and machines may see events in any order, and twice. Two votes
of one key and version are the same vote; the ledger sees to that (`arriving.with_unique_node`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from spamguard.errors import LedgerError
from spamguard.ledger import codec
from spamguard.records import Vote


class NewVote(NamedTuple):
    """A vote without a version, which the ledger gives it. Fields as in `records.Vote`."""

    digest: bytes
    user: str
    label: str | None
    packed: bytes
    scores: bytes
    origin: str
    time: int
    extractor: int


def add_version(vote: NewVote, clock: int, node: str) -> Vote:
    """The vote with its version; a tombstone keeps no features."""
    if vote.label is None:
        vote = vote._replace(packed=b"", scores=b"")
    return Vote._make((*vote[:2], clock, node, *vote[2:]))


class Lesson(NamedTuple):
    """What one message teaches everybody.

    label: name of the class. packed: the counted features (`codec.unpack_tokens`). scores: the
    experts' log-odds before anybody taught the message (`codec.unpack_scores`); may be empty.
    """

    digest: bytes
    label: str
    packed: bytes
    scores: bytes


class LastVote(NamedTuple):
    """The newest vote of a user from some origin. time: seconds since 1970."""

    time: int
    origin: str


class Receipt(NamedTuple):
    """The class of a vote, and the features of its message."""

    seq: int
    label: str
    packed: bytes


class MessageStanding(NamedTuple):
    """The standing of a message. label: of its lesson. user_label: of one user's vote."""

    label: str | None
    user_label: str | None


NO_STANDING = MessageStanding(None, None)
"""Of a message on which nobody has voted."""


def refuse_damaged_lessons(lessons: Iterable[Lesson]) -> None:
    """Raise LedgerError at the first lesson whose features cannot be read; it names the message."""
    for lesson in lessons:
        try:
            codec.check_receipt(lesson.packed)
        except LedgerError as error:
            raise LedgerError(f"message {lesson.digest.hex()[:12]}: {error}") from error


Change = tuple[int, Lesson | None, Lesson | None]
"""Number of an event, and the lesson of its message before it and after it: subtract the first
lesson, add the second.
"""

VotesInForce = dict[bytes, dict[str, Vote]]
"""The vote in force of each user on each message."""

LoadVote = Callable[[Vote], Vote]
"""Returns the whole of a vote that may have been read without features and scores."""


def votes_in_force(votes: Iterable[Vote]) -> VotesInForce:
    """The vote in force of each user, by message."""
    winning: VotesInForce = {}
    for vote in votes:
        _keep_newer(winning.setdefault(vote.digest, {}), vote)
    return winning


def _keep_newer(winning: dict[str, Vote], vote: Vote) -> None:
    standing = winning.get(vote.user)
    if standing is None or standing.version < vote.version:
        winning[vote.user] = vote


def resolve_lessons(votes: Iterable[Vote], extractor: int | None = None) -> Iterator[Lesson]:
    """What votes on any messages teach; votes on the same message must stand together.

    A message teaches nothing on a tie. Features and scores are those of the lowest version among
    the winning votes for the class.

    extractor: features of this version only: a message without a vote of this version among these
    teaches nothing, although votes of any version count. None: any version.
    """
    for _, group in groupby(votes, attrgetter("digest")):
        cast = list(group)
        # Nearly every message has one vote.
        winning = cast if len(cast) == 1 else votes_in_force(cast)[cast[0].digest].values()
        lesson = _make_lesson(deciding_vote(winning, extractor))
        if lesson is not None:
            yield lesson


def _make_lesson(deciding: Vote | None) -> Lesson | None:
    if deciding is None or deciding.label is None:
        return None
    return Lesson(deciding.digest, deciding.label, deciding.packed, deciding.scores)


def deciding_vote(winning: Collection[Vote], extractor: int | None = None) -> Vote | None:
    """The vote that is the lesson, of those in force on a message: of the oldest version, then of
    the first user, because votes of another installation may share a version.
    """
    cast = [vote for vote in winning if vote.label is not None]
    if len(cast) > 1:
        (label, count), *runner_up = Counter(vote.label for vote in cast).most_common(2)
        if runner_up and runner_up[0][1] == count:  # a tie
            return None
        cast = [vote for vote in cast if vote.label == label]
    votes = [vote for vote in cast if extractor in (None, vote.extractor)]
    return min(votes, key=attrgetter("clock", "node", "user"), default=None)


def lesson_changes(
    winning: VotesInForce,
    events: Iterable[tuple[int, Vote]],
    extractor: int | None = None,
    load_vote: LoadVote = lambda vote: vote,
) -> Iterator[Change]:
    """What each event changes, for readers that fold the log one event at a time.

    There is one change for each event, of nothing to nothing where the same vote decides as before,
    so that the reader always knows how far it has come.

    winning: the votes in force, before the first event, on the messages of the events; kept up to
    date. events: numbers and votes, in the order of the log. extractor: as in `resolve_lessons`.
    """
    for seq, vote in events:
        votes = winning.setdefault(vote.digest, {})
        before = deciding_vote(votes.values(), extractor)
        _keep_newer(votes, vote)
        after = deciding_vote(votes.values(), extractor)
        if after is before:
            yield seq, None, None
        else:
            taught, teaches = (_make_lesson(each and load_vote(each)) for each in (before, after))
            yield seq, taught, teaches


# ---- senders

SENDER_VERSION = 256
"""Extractor version of votes about a sender instead of a message (`ledger.senders`)."""
SENDER_LABEL = re.compile(r"\(sender ([+-][0-9]{1,2})\)")
"""Label of such a vote; no class may have such a name."""


def is_class_label(label: str | None) -> bool:
    """Whether a vote with this label may be about a message; None: a vote that is taken back."""
    return label is None or not label.startswith("(")


# ---- classes of a shared log

CLASS_VERSION = 257
"""Extractor version of votes that define a class instead of saying what a message is."""
CLASS_LABELS = {"(class wanted)": False, "(class unwanted)": True}
"""Labels of such votes, and whether the class is unwanted; no class may have such a name."""
CLASS_PREFIX = b"class:"
CLASS_KEY_RANGE = (CLASS_PREFIX, b"class;")
"""Digests of such votes are from the first of these on, and before the second."""


def make_class_vote(name: str, unwanted: bool, time: int) -> NewVote:
    """The vote that defines a class."""
    label, digest = f"(class {'unwanted' if unwanted else 'wanted'})", CLASS_PREFIX + name.encode()
    return NewVote(digest, "", label, b"", b"", "class", time, CLASS_VERSION)


def classes_in_force(votes: Iterable[Vote]) -> dict[str, bool]:
    """The classes that these votes define, and whether each is unwanted, in order of their names.

    votes: those whose digest is in `CLASS_KEY_RANGE`.
    """
    winning = votes_in_force(vote for vote in votes if vote.extractor == CLASS_VERSION)
    return {
        digest.removeprefix(CLASS_PREFIX).decode(): CLASS_LABELS[vote.label]
        for digest, by_user in sorted(winning.items())
        for vote in by_user.values()
        if vote.label is not None
    }


# ---- requests to settle a shared log

SETTLING_VERSION = 258
"""Extractor version of votes that ask all machines to settle."""
SETTLING_DIGEST, SETTLING_LABEL = b"settle:", "(settle)"
"""Of such votes; no class may have such a name."""


def make_settling_vote(time: int) -> NewVote:
    """The vote that asks for settling at its position."""
    values = ("", SETTLING_LABEL, b"", b"", "settle", time, SETTLING_VERSION)
    return NewVote(SETTLING_DIGEST, *values)
