"""Word lists of other filters in the ledger: what these knew about words, as a start for ours.

A list is one event of the log: a vote of the site whose digest is no message's but the name of the
list. So it has a version, is merged and exported like every vote, and a tombstone takes it back
without a trace. Its extractor version is one that no reader of lessons asks for.

Must never know where lists come from, or what the tables make of them.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from dataclasses import asdict, dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from spamguard.errors import LedgerError
from spamguard.ledger import codec, schema
from spamguard.ledger.schema import Query
from spamguard.ledger.votes import NewVote, winning_votes
from spamguard.records import Features, Vote

WORD_LIST_LABEL = "(word list)"
"""Label of such a vote; no class may have this name."""
MAX_WORDS = 30_000
"""Words of a list, 110 kB; with 10,000 it is as good (corpora/RESULTS.md, "Moving in")."""
LIST_NAME = re.compile(r"[\w.@-]{1,64}")
_VERSION_OFFSET = 128  # of such votes, added to the extractor's version
_KEY_PREFIX = b"word list:"
_FORMAT = 1
# Checksum of the rest; format; lengths of description, tokens and log-odds.
_HEADER = struct.Struct("<IBHII")
_CHECKSUM_BYTES = 4
_EMPTY: NDArray[np.uint8] = np.zeros(0, np.uint8)


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


def make_vote(
    name: str,
    about: WordListInfo,
    tokens: NDArray[np.uint32],
    log_odds: NDArray[np.int8],
    time: int,
    extractor: int,
) -> NewVote:
    """The vote that brings a list. tokens: at most `MAX_WORDS`, sorted and unique."""
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
    """The vote that takes a list back."""
    key, version = _list_key(standing.name), _VERSION_OFFSET + standing.extractor
    return NewVote(key, "", None, b"", b"", origin, time, version)


def is_word_list(extractor: int) -> bool:
    """Whether a vote of this extractor version is about a list, not a message."""
    return extractor >= _VERSION_OFFSET


def check_list_vote(vote: Vote) -> None:
    """Raise LedgerError unless such a vote brings a list that can be read, or takes one back."""
    name = vote.digest.removeprefix(_KEY_PREFIX).decode("utf-8", "replace")
    if (
        not vote.digest.startswith(_KEY_PREFIX)
        or not LIST_NAME.fullmatch(name)
        or vote.user
        or vote.label not in (WORD_LIST_LABEL, None)
    ):
        raise LedgerError("a vote to be merged is no word list, though it says so: export it again")
    if vote.label is not None:
        _unpack(vote.packed)


def lists_in_force(query: Query, upto_seq: int) -> list[WordList]:
    """The lists in force after the events up to `upto_seq`, by name. LedgerError."""
    end = _KEY_PREFIX[:-1] + bytes([_KEY_PREFIX[-1] + 1])
    rows = query(schema.EVENTS_OF_KEYS, (_KEY_PREFIX, end, upto_seq))
    events = [(seq, Vote(*columns)) for seq, *columns in rows]
    seqs = {(vote.digest, vote.version): seq for seq, vote in events}
    votes = winning_votes(vote for _, vote in events).values()
    return [
        _make_list(vote, seqs[vote.digest, vote.version])
        for vote in sorted(votes, key=attrgetter("digest"))
        if vote.label == WORD_LIST_LABEL and is_word_list(vote.extractor)
    ]


def _make_list(vote: Vote, seq: int) -> WordList:
    name = vote.digest.removeprefix(_KEY_PREFIX).decode("utf-8", "replace")
    about, tokens, log_odds = _unpack(vote.packed)
    version = vote.extractor - _VERSION_OFFSET
    return WordList(name, about, vote.time, seq, version, tokens, log_odds)


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
            f"a word list in the ledger has format {form}, this program reads {_FORMAT}: update "
            "spamguard"
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
