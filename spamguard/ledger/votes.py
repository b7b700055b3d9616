"""Votes, and what the votes on a message teach: at most one lesson, a pure function of them.

Each user has one vote in force on a message, the one with the highest version. The class that most
of these name is the class of the lesson, and the oldest vote for it gives the features.

A word list is what another filter knew about words, as a start for ours. It is one event of the
log: a vote of the site whose digest is no message's but the name of the list. So it has a version,
is merged and exported like every vote, and a tombstone takes it back without a trace. Its extractor
version is one that no reader of lessons asks for.

Where many machines share a log, a class is defined by such a vote of the site too: its digest holds
the name of the class, its label says whether mail of the class is wanted, and it has no features.

Must never read a clock, a file or the order in which votes arrive: whoever holds the same votes
holds the same lessons, so processes and machines may see events in any order, and twice. Two votes
of one key and version are the same vote; the ledger sees to that (`arriving.with_unique_node`).
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from spamguard.errors import LedgerError
from spamguard.ledger import codec
from spamguard.records import Features, Vote


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
    digest, user, label, packed, scores, origin, time, extractor = vote
    if label is None:
        packed = scores = b""
    return Vote(digest, user, clock, node, label, packed, scores, origin, time, extractor)


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


class CastVote(NamedTuple):
    """A vote that was cast. time: seconds since 1970."""

    digest: bytes
    user: str
    label: str
    time: int


def refuse_damaged_lessons(lessons: Iterable[Lesson]) -> None:
    """Raise LedgerError at the first lesson whose features cannot be read; it names the message."""
    for lesson in lessons:
        try:
            codec.check_receipt(lesson.packed)
        except LedgerError as error:
            raise LedgerError(f"message {lesson.digest.hex()[:12]}: {error}") from error


Key = TypeVar("Key")

Change = tuple[int, Lesson | None, Lesson | None]
"""Number of an event, and the lesson of its message before it and after it: subtract the first
lesson, add the second.
"""

VotesInForce = dict[bytes, dict[str, Vote]]
"""The vote in force of each user on each message."""

LoadVote = Callable[[Vote], Vote]
"""Returns the whole of a vote that may have been read without features and scores."""


def winning_votes(votes: Iterable[Vote]) -> dict[tuple[bytes, str], Vote]:
    """The vote in force of each key (digest, user)."""
    winning: dict[tuple[bytes, str], Vote] = {}
    for vote in votes:
        _keep_newer(winning, (vote.digest, vote.user), vote)
    return winning


def votes_in_force(votes: Iterable[Vote]) -> VotesInForce:
    """The vote in force of each user, by message."""
    winning: VotesInForce = {}
    for vote in votes:
        _keep_newer(winning.setdefault(vote.digest, {}), vote.user, vote)
    return winning


def _keep_newer(winning: dict[Key, Vote], key: Key, vote: Vote) -> None:
    standing = winning.get(key)
    if standing is None or standing.version < vote.version:
        winning[key] = vote


def resolve_lesson(votes: Iterable[Vote], extractor: int | None = None) -> Lesson | None:
    """What the votes on one message teach; None: nothing, as on a tie.

    Features and scores are those of the lowest version among the winning votes for the class.

    extractor: features of this version only: a lesson without a vote of this version is None,
    although votes of any version count. None: any version.
    """
    return next(resolve_lessons(votes, extractor), None)


def resolve_lessons(
    votes: Iterable[Vote], extractor: int | None = None, load_vote: LoadVote = lambda vote: vote
) -> Iterator[Lesson]:
    """What votes on any messages teach; votes on the same message must stand together."""
    for _, group in groupby(votes, attrgetter("digest")):
        cast = list(group)
        # Nearly every message has one vote.
        winning = cast if len(cast) == 1 else winning_votes(cast).values()
        lesson = _make_lesson(_deciding_vote(winning, extractor), load_vote)
        if lesson is not None:
            yield lesson


def _make_lesson(deciding: Vote | None, load_vote: LoadVote) -> Lesson | None:
    if deciding is None or deciding.label is None:
        return None
    vote = load_vote(deciding)
    return Lesson(vote.digest, deciding.label, vote.packed, vote.scores)


def _deciding_vote(winning: Collection[Vote], extractor: int | None) -> Vote | None:
    """The vote that is the lesson: of the oldest version, then of the first user, because votes of
    another installation may share a version.
    """
    cast = [vote for vote in winning if vote.label is not None]
    if len(cast) > 1:
        (label, count), *runner_up = Counter(vote.label for vote in cast).most_common(2)
        if runner_up and runner_up[0][1] == count:  # a tie
            return None
        cast = [vote for vote in cast if vote.label == label]
    votes = [vote for vote in cast if extractor in (None, vote.extractor)]
    if len(votes) < 2:  # of nearly every message
        return votes[0] if votes else None
    return min(votes, key=attrgetter("clock", "node", "user"))


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
    date. events: numbers and votes, in the order of the log. extractor: as in `resolve_lesson`.
    """
    deciding: dict[bytes, Vote | None] = {}
    for seq, vote in events:
        votes = winning.setdefault(vote.digest, {})
        if vote.digest not in deciding:
            deciding[vote.digest] = _deciding_vote(votes.values(), extractor)
        before = deciding[vote.digest]
        _keep_newer(votes, vote.user, vote)
        after = deciding[vote.digest] = _deciding_vote(votes.values(), extractor)
        if after is before:
            yield seq, None, None
        else:
            yield seq, _make_lesson(before, load_vote), _make_lesson(after, load_vote)


# ---- word lists

WORD_LIST_LABEL = "(word list)"
"""Label of such a vote; no class may have this name."""
MAX_WORDS = 30_000
"""Words of a list, 110 kB; with 10,000 it is as good (corpora/RESULTS.md, "Moving in")."""
LIST_NAME = re.compile(r"[\w.@-]{1,64}")
_KEY_PREFIX = b"word list:"
LIST_KEY_RANGE = (_KEY_PREFIX, b"word list;")
"""Digests of lists are from the first of these on, and before the second."""
_VERSION_OFFSET = 128  # of such votes, added to the extractor's version
SENDER_VERSION = 256
"""Extractor version of votes about a sender instead of a message (`ledger.senders`)."""
SENDER_LABEL = re.compile(r"\(sender ([+-][0-9]{1,2})\)")
"""Label of such a vote; no class may have such a name."""
_LIST_FORMAT = 1
# Checksum of the rest; format; lengths of description, tokens and log-odds.
_HEADER = struct.Struct("<IBHII")
_CHECKSUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class WordListInfo:
    """Where a list comes from.

    source: the program. digest: of the words and counts as they were read, in hexadecimal. ham,
    spam: how much mail of each was taught there (of POPFile, words). words: in the source. used:
    how many of them are in the list.
    """

    source: str
    digest: str
    ham: int
    spam: int
    words: int
    used: int

    def is_valid(self) -> bool:
        """Whether all values have their types."""
        texts, numbers = (self.source, self.digest), (self.ham, self.spam, self.words, self.used)
        return {*map(type, texts)} == {str} and {*map(type, numbers)} == {int}


@dataclass(frozen=True, slots=True)
class WordList:
    """A list in force.

    time: of its import, seconds since 1970. seq: number of its event. extractor: version of its
    tokens.
    """

    name: str
    about: WordListInfo
    time: int
    seq: int
    extractor: int
    tokens: NDArray[np.uint32]
    log_odds: NDArray[np.int8]


def make_list_vote(
    name: str,
    about: WordListInfo,
    tokens: NDArray[np.uint32],
    log_odds: NDArray[np.int8],
    time: int,
    extractor: int,
) -> NewVote:
    """The vote that brings a list. tokens: at most `MAX_WORDS`, sorted and unique."""
    described = json.dumps(asdict(about)).encode()
    packed = codec.pack(Features(tokens, np.zeros(0, np.uint8), np.zeros(0, np.int16)))
    odds = zlib.compress(log_odds.tobytes(), 9)
    header = _HEADER.pack(0, _LIST_FORMAT, len(described), len(packed), len(odds))
    body = header[_CHECKSUM_BYTES:] + described + packed + odds
    content = struct.pack("<I", zlib.crc32(body)) + body
    origin, version = f"import {about.source}", _VERSION_OFFSET + extractor
    return NewVote(_list_key(name), "", WORD_LIST_LABEL, content, b"", origin, time, version)


def make_list_tombstone(standing: WordList, origin: str, time: int) -> NewVote:
    """The vote that takes a list back."""
    key, version = _list_key(standing.name), _VERSION_OFFSET + standing.extractor
    return NewVote(key, "", None, b"", b"", origin, time, version)


def _list_key(name: str) -> bytes:
    return _KEY_PREFIX + name.encode()


def is_word_list(extractor: int) -> bool:
    """Whether a vote of this extractor version is about a list, not a message."""
    return _VERSION_OFFSET <= extractor < SENDER_VERSION


def is_class_label(label: str | None) -> bool:
    """Whether a vote with this label may be about a message; None: a vote that is taken back."""
    return label is None or not (
        label == WORD_LIST_LABEL or label in CLASS_LABELS or SENDER_LABEL.fullmatch(label)
    )


def check_list_vote(vote: Vote) -> None:
    """Raise LedgerError unless such a vote brings a list that can be read, or takes one back."""
    if (
        not vote.digest.startswith(_KEY_PREFIX)
        or not LIST_NAME.fullmatch(_list_name(vote))
        or vote.user
        or vote.label not in (WORD_LIST_LABEL, None)
    ):
        raise LedgerError("a vote to be merged is no word list, though it says so: export it again")
    if vote.label is not None:
        _unpack_list(vote.packed)


def _list_name(vote: Vote) -> str:
    return vote.digest.removeprefix(_KEY_PREFIX).decode("utf-8", "replace")


def lists_in_force(events: Iterable[tuple[int, Vote]]) -> list[WordList]:
    """The lists in force after these events, by name. LedgerError: one is damaged.

    events: number and vote of each event whose digest is in `LIST_KEY_RANGE`.
    """
    seqs = {(vote.digest, vote.version): (seq, vote) for seq, vote in events}
    votes = winning_votes(vote for _, vote in seqs.values()).values()
    lists = []
    for vote in sorted(votes, key=attrgetter("digest")):
        if vote.label == WORD_LIST_LABEL and is_word_list(vote.extractor):
            about, tokens, log_odds = _unpack_list(vote.packed)
            seq, _ = seqs[vote.digest, vote.version]
            version = vote.extractor - _VERSION_OFFSET
            lists.append(
                WordList(_list_name(vote), about, vote.time, seq, version, tokens, log_odds)
            )
    return lists


def _unpack_list(packed: bytes) -> tuple[WordListInfo, NDArray[np.uint32], NDArray[np.int8]]:
    if len(packed) < _HEADER.size:
        raise _list_damage_error()
    checksum, form, *lengths = _HEADER.unpack_from(packed)
    if form != _LIST_FORMAT:
        raise LedgerError(
            f"a word list in the ledger has format {form}, this program reads {_LIST_FORMAT}: "
            "update spamguard"
        )
    if zlib.crc32(memoryview(packed)[_CHECKSUM_BYTES:]) != checksum or len(
        packed
    ) != _HEADER.size + sum(lengths):
        raise _list_damage_error()
    described, ends = _HEADER.size, _HEADER.size + lengths[0]
    tokens = codec.unpack(packed[ends : ends + lengths[1]]).tokens
    try:
        odds = np.frombuffer(
            zlib.decompressobj().decompress(packed[ends + lengths[1] :], MAX_WORDS), np.int8
        )
        about = WordListInfo(**json.loads(packed[described:ends]))
    except (ValueError, TypeError, RecursionError, zlib.error) as error:
        raise _list_damage_error() from error
    if len(odds) != len(tokens) or not about.is_valid():
        raise _list_damage_error()
    return about, tokens, odds


def _list_damage_error() -> LedgerError:
    return LedgerError("a word list in the ledger is damaged: restore the ledger from a backup")


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
    winning = winning_votes(vote for vote in votes if vote.extractor == CLASS_VERSION).values()
    return {
        vote.digest.removeprefix(CLASS_PREFIX).decode(): CLASS_LABELS[vote.label]
        for vote in sorted(winning, key=attrgetter("digest"))
        if vote.label is not None
    }


def is_site_note(extractor: int) -> bool:
    """Whether a vote of this extractor version is a word list or a class, which nobody "taught"."""
    return is_word_list(extractor) or extractor == CLASS_VERSION
