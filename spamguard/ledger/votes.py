"""What the votes on a message teach: one lesson per digest, a pure function of its winning votes.

Must never read a clock, a file or the order in which votes arrive: whoever holds the same set of
votes holds the same lessons, so processes and nodes may see events in any order, and twice.

Two votes of the same key with the same version are the same vote: a node never gives one version
twice, and where one has all the same, a ledger tells them apart (`arriving`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeVar

from spamguard.errors import LedgerError
from spamguard.ledger import codec
from spamguard.records import Vote


class NewVote(NamedTuple):
    """A vote that has no version yet: the ledger gives it clock and node. Fields as in
    `records.Vote`.
    """

    digest: bytes
    user: str
    label: str | None
    packed: bytes
    scores: bytes
    origin: str
    time: int
    extractor: int


def add_version(vote: NewVote, clock: int, node: str) -> Vote:
    """The vote with its version; one that is taken back keeps no features."""
    packed, scores = (vote.packed, vote.scores) if vote.label is not None else (b"", b"")
    return Vote(
        vote.digest,
        vote.user,
        clock,
        node,
        vote.label,
        packed,
        scores,
        vote.origin,
        vote.time,
        vote.extractor,
    )


class Lesson(NamedTuple):
    """What one message teaches everybody.

    label: name of the class. packed: the counted features (`codec.unpack_tokens`). scores: the
    experts' log-odds before the message was taught (`codec.unpack_scores`), may be empty.
    """

    digest: bytes
    label: str
    packed: bytes
    scores: bytes


def refuse_damaged_lessons(lessons: Iterable[Lesson]) -> None:
    """LedgerError at the first whose features cannot be read, with the message's name, as the
    daemon's log has it.
    """
    for one in lessons:
        try:
            codec.check_receipt(one.packed)
        except LedgerError as error:
            raise LedgerError(f"message {one.digest.hex()[:12]}: {error}") from error


Key = TypeVar("Key")

Change = tuple[int, Lesson | None, Lesson | None]
"""(seq of an event, lesson of its digest before it, lesson after it): subtract the one, add the
other.
"""

VotesInForce = dict[bytes, dict[str, Vote]]
"""The vote in force of each user on each message."""

LoadVote = Callable[[Vote], Vote]
"""A vote that was read without features and scores, with them; any other as it is. Few of many
votes are asked for theirs.
"""


def winning_votes(votes: Iterable[Vote]) -> dict[tuple[bytes, str], Vote]:
    """The vote in force for each key (digest, user): the one with the highest version."""
    winning: dict[tuple[bytes, str], Vote] = {}
    for vote in votes:
        _keep_newer(winning, (vote.digest, vote.user), vote)
    return winning


def votes_in_force(votes: Iterable[Vote]) -> VotesInForce:
    """The same by message."""
    winning: VotesInForce = {}
    for vote in votes:
        _keep_newer(winning.setdefault(vote.digest, {}), vote.user, vote)
    return winning


def _keep_newer(winning: dict[Key, Vote], key: Key, vote: Vote) -> None:
    standing = winning.get(key)
    if standing is None or standing.version < vote.version:
        winning[key] = vote


def resolve_lesson(votes: Iterable[Vote], extractor: int | None = None) -> Lesson | None:
    """What the votes on one digest teach, or None.

    The label is the one that most users' winning votes give; a tie for most, or no vote, teaches
    nothing. Features and scores are those of the lowest-version winning vote for that label, so of
    the first who said so. extractor: hand out features of this version only. Every vote counts
    whatever its version, but a lesson that has no vote of this version is None. Without it,
    features of any version are handed out.
    """
    return _make_lesson(_find_deciding_vote(votes, extractor))


def resolve_lessons(
    votes: Iterable[Vote], extractor: int | None = None, load_vote: LoadVote = lambda vote: vote
) -> Iterator[Lesson]:
    """What votes on any digests teach: those on the same digest must come one after the other."""
    for _, cast in groupby(votes, attrgetter("digest")):
        if (taught := _make_lesson(_find_deciding_vote(cast, extractor), load_vote)) is not None:
            yield taught


def _find_deciding_vote(votes: Iterable[Vote], extractor: int | None) -> Vote | None:
    cast = list(votes)
    return _deciding_vote(
        cast if len(cast) == 1 else winning_votes(cast).values(), extractor
    )  # nearly every message has one vote


def _make_lesson(speaker: Vote | None, load_vote: LoadVote = lambda vote: vote) -> Lesson | None:
    if speaker is None or speaker.label is None:
        return None
    full = load_vote(speaker)
    return Lesson(speaker.digest, speaker.label, full.packed, full.scores)


def _deciding_vote(winning: Collection[Vote], extractor: int | None) -> Vote | None:
    """The vote that is the lesson."""
    label = _majority_label(winning)
    if label is None:
        return None
    able = [vote for vote in winning if vote.label == label and extractor in (None, vote.extractor)]
    return able[0] if len(able) == 1 else min(able, key=_seniority, default=None)


def _seniority(vote: Vote) -> tuple[int, str, str]:
    """Version, then user: nothing forbids another installation's votes from sharing a version
    across users.
    """
    return (vote.clock, vote.node, vote.user)


def _majority_label(winning: Collection[Vote]) -> str | None:
    labels = [vote.label for vote in winning if vote.label is not None]
    if len(labels) < 2:  # nearly every digest: no counter needed
        return labels[0] if labels else None
    ranked = Counter(labels).most_common(2)
    tied = len(ranked) > 1 and ranked[0][1] == ranked[1][1]
    return None if tied else ranked[0][0]


def lesson_changes(
    winning: VotesInForce,
    events: Iterable[tuple[int, Vote]],
    extractor: int | None = None,
    load_vote: LoadVote = lambda vote: vote,
) -> Iterator[Change]:
    """What each event changes, for whoever folds the log one event at a time.

    winning: the votes in force before the first event on the digests of `events`, kept up with
    these (votes on other digests do no harm). events: (seq, vote) in the order of the log. One
    change per event, of nothing to nothing when the same vote is the lesson as before, so that the
    reader always knows how far it has come.
    """
    speakers: dict[bytes, Vote | None] = {}
    for seq, vote in events:
        of_digest = winning.setdefault(vote.digest, {})
        before = (
            speakers[vote.digest]
            if vote.digest in speakers
            else _deciding_vote(of_digest.values(), extractor)
        )
        _keep_newer(of_digest, vote.user, vote)
        after = speakers[vote.digest] = _deciding_vote(of_digest.values(), extractor)
        yield (
            (seq, None, None)
            if after is before
            else (seq, _make_lesson(before, load_vote), _make_lesson(after, load_vote))
        )
