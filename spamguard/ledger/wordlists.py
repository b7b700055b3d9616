"""Word lists of other filters in the ledger: what they knew about single words, as a standing start
for ours.

A list is one event of the log: a vote of the site on no message, whose key is the list's name. So
it has a version, is merged and exported like every vote, and is taken back by one that says
nothing; what is left is as if it had never come. Its extractor version is none that a reader of
lessons asks for. Must never know where lists come from or what tables make of them.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from spamguard.errors import LedgerError
from spamguard.ledger import codec, schema
from spamguard.ledger.schema import Query
from spamguard.ledger.votes import NewVote, winning_votes
from spamguard.records import Features, Vote

WORD_LIST_LABEL = "(word list)"
"""Of such a vote: no class may be called so."""
MAX_WORDS = (
    30_000  # words of a list, 110 kB; with 10,000 it is as good (corpora/RESULTS.md, "Moving in")
)
LIST_NAME = re.compile(r"[\w.@-]{1,64}")  # of a list
_VERSION_OFFSET = 128  # plus the extractor's
_KEY_PREFIX = b"word list:"
_FORMAT = 1
_HEADER = struct.Struct(
    "<IBHII"
)  # checksum of the rest; format; lengths of description, tokens and log-odds
_CHECKSUM_BYTES = 4
_EMPTY: NDArray[np.uint8] = np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True)
class WordListInfo:
    """Where a list comes from. source: which program's; digest: of the words and counts as they
    were read, in hexadecimal.

    ham, spam: how much mail of each had been taught there (of POPFile, words). words: in the
    source; used: of them, in the list.
    """

    source: str
    digest: str
    ham: int
    spam: int
    words: int
    used: int

    def is_valid(self) -> bool:
        """Whether texts are texts and numbers are numbers."""
        texts, numbers = (self.source, self.digest), (self.ham, self.spam, self.words, self.used)
        return all(type(one) is str for one in texts) and all(type(one) is int for one in numbers)


@dataclass(frozen=True, slots=True)
class WordList:
    """A list in force. time: of its import, seconds since 1970. seq: of its event. extractor:
    version of its tokens.
    """

    name: str
    about: WordListInfo
    time: int
    seq: int
    extractor: int
    tokens: NDArray[np.uint32]
    log_odds: NDArray[np.int8]


def make_vote(
    name: str,
    about: WordListInfo,
    tokens: NDArray[np.uint32],
    log_odds: NDArray[np.int8],
    time: int,
    extractor: int,
) -> NewVote:
    """The event that brings a list. tokens: at most MOST, sorted and unique."""
    return NewVote(
        _list_key(name),
        "",
        WORD_LIST_LABEL,
        _pack(about, tokens, log_odds),
        b"",
        f"import {about.source}",
        time,
        _VERSION_OFFSET + extractor,
    )


def make_tombstone(standing: WordList, origin: str, time: int) -> NewVote:
    """The event that takes a list back."""
    return NewVote(
        _list_key(standing.name),
        "",
        None,
        b"",
        b"",
        origin,
        time,
        _VERSION_OFFSET + standing.extractor,
    )


def is_word_list(extractor: int) -> bool:
    """Whether a vote of this version is a list, and no message."""
    return extractor >= _VERSION_OFFSET


def check_list_vote(vote: Vote) -> None:
    """LedgerError unless a vote of such a version brings a list of the site that can be read, or
    takes one back.
    """
    name = vote.digest.removeprefix(_KEY_PREFIX).decode("utf-8", "replace")
    if (
        not vote.digest.startswith(_KEY_PREFIX)
        or not LIST_NAME.fullmatch(name)
        or vote.user
        or vote.label not in (WORD_LIST_LABEL, None)
    ):
        raise LedgerError("a vote to be merged is no word list, though it says so: export it anew")
    if vote.label is not None:
        _unpack(vote.packed)


def lists_in_force(ask: Query, upto_seq: int) -> list[WordList]:
    """The lists in force after the events up to `upto_seq`, in the order of their names. ask: runs
    a statement. LedgerError.
    """
    rows = ask(
        schema.EVENTS_OF_KEYS,
        (_KEY_PREFIX, _KEY_PREFIX[:-1] + bytes((_KEY_PREFIX[-1] + 1,)), upto_seq),
    )
    numbers = {
        (found.digest, found.version): seq for seq, *columns in rows if (found := Vote(*columns))
    }
    votes = winning_votes(Vote(*columns) for _, *columns in rows).values()
    return [
        _make_list(found, numbers[found.digest, found.version])
        for found in sorted(votes, key=lambda one: one.digest)
        if found.label == WORD_LIST_LABEL and is_word_list(found.extractor)
    ]


def _make_list(found: Vote, seq: int) -> WordList:
    name = found.digest.removeprefix(_KEY_PREFIX).decode("utf-8", "replace")
    about, tokens, log_odds = _unpack(found.packed)
    return WordList(
        name, about, found.time, seq, found.extractor - _VERSION_OFFSET, tokens, log_odds
    )


def _list_key(name: str) -> bytes:
    return _KEY_PREFIX + name.encode()


def _pack(about: WordListInfo, tokens: NDArray[np.uint32], log_odds: NDArray[np.int8]) -> bytes:
    described = json.dumps(asdict(about)).encode()
    packed = codec.pack(Features(tokens, _EMPTY, _EMPTY.astype(np.int16)))
    odds = zlib.compress(log_odds.tobytes(), 9)
    body = (
        _HEADER.pack(0, _FORMAT, len(described), len(packed), len(odds))[_CHECKSUM_BYTES:]
        + described
        + packed
        + odds
    )
    return struct.pack("<I", zlib.crc32(body)) + body


def _unpack(packed: bytes) -> tuple[WordListInfo, NDArray[np.uint32], NDArray[np.int8]]:
    if len(packed) < _HEADER.size:
        raise _damage_error()
    checksum, form, *lengths = _HEADER.unpack_from(packed)
    if form != _FORMAT:
        raise LedgerError(
            f"a word list in the ledger has format {form}, this program reads {_FORMAT}: update spamguard"
        )
    if zlib.crc32(memoryview(packed)[_CHECKSUM_BYTES:]) != checksum or len(
        packed
    ) != _HEADER.size + sum(lengths):
        raise _damage_error()
    described, ends = _HEADER.size, _HEADER.size + lengths[0]
    tokens = codec.unpack(packed[ends : ends + lengths[1]]).tokens
    try:
        odds = np.frombuffer(
            zlib.decompressobj().decompress(packed[ends + lengths[1] :], MAX_WORDS), np.int8
        )
        about = WordListInfo(**json.loads(packed[described:ends]))
    except (ValueError, TypeError, RecursionError, zlib.error) as error:
        raise _damage_error() from error
    if len(odds) != len(tokens) or not about.is_valid():
        raise _damage_error()
    return about, tokens, odds


def _damage_error() -> LedgerError:
    return LedgerError("a word list in the ledger is damaged: restore the ledger from a backup")
