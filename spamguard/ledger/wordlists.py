"""Word lists of other filters in the ledger: what they knew about single words, as a standing start for ours.

A list is one event of the log: a vote of the site on no message, whose key is the list's name. So it has a version, is merged and
exported like every vote, and is taken back by one that says nothing; what is left is as if it had never come. Its extractor version
is none that a reader of lessons asks for. Must never know where lists come from or what tables make of them.
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
from spamguard.ledger import codec, statements
from spamguard.ledger.asking import Ask
from spamguard.ledger.lessons import NewVote, winners
from spamguard.records import Features, Vote

LABEL = "(word list)"
"""Of such a vote: no class may be called so."""
MOST = 30_000  # words of a list, 110 kB; with 10,000 it is as good (corpora/RESULTS.md, "Moving in")
NAME = re.compile(r"[\w.@-]{1,64}")  # of a list
_VERSION = 128  # plus the extractor's
_KEYS = b"word list:"
_FORMAT = 1
_HEAD = struct.Struct("<IBHII")  # checksum of the rest; format; lengths of description, tokens and log-odds
_CHECKSUM_BYTES = 4
_NONE: NDArray[np.uint8] = np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True)
class About:
    """Where a list comes from. source: which program's; digest: of the words and counts as they were read, in hexadecimal.

    ham, spam: how much mail of each had been taught there (of POPFile, words). words: in the source; used: of them, in the list.
    """

    source: str
    digest: str
    ham: int
    spam: int
    words: int
    used: int

    def whole(self) -> bool:
        """Whether texts are texts and numbers are numbers."""
        texts, numbers = (self.source, self.digest), (self.ham, self.spam, self.words, self.used)
        return all(type(one) is str for one in texts) and all(type(one) is int for one in numbers)


@dataclass(frozen=True, slots=True)
class WordList:
    """A list in force. time: of its import, seconds since 1970. seq: of its event. extractor: version of its tokens."""

    name: str
    about: About
    time: int
    seq: int
    extractor: int
    tokens: NDArray[np.uint32]
    log_odds: NDArray[np.int8]


def vote(name: str, about: About, tokens: NDArray[np.uint32], log_odds: NDArray[np.int8], time: int, extractor: int) -> NewVote:
    """The event that brings a list. tokens: at most MOST, sorted and unique."""
    return NewVote(_digest(name), "", LABEL, _pack(about, tokens, log_odds), b"", f"import {about.source}", time, _VERSION + extractor)


def tombstone(standing: WordList, origin: str, time: int) -> NewVote:
    """The event that takes a list back."""
    return NewVote(_digest(standing.name), "", None, b"", b"", origin, time, _VERSION + standing.extractor)


def is_list(extractor: int) -> bool:
    """Whether a vote of this version is a list, and no message."""
    return extractor >= _VERSION


def check(vote: Vote) -> None:
    """LedgerError unless a vote of such a version brings a list of the site that can be read, or takes one back."""
    name = vote.digest.removeprefix(_KEYS).decode("utf-8", "replace")
    if not vote.digest.startswith(_KEYS) or not NAME.fullmatch(name) or vote.user or vote.label not in (LABEL, None):
        raise LedgerError("a vote to be merged is no word list, though it says so: export it anew")
    if vote.label is not None:
        _unpack(vote.packed)


def standing(ask: Ask, upto_seq: int) -> list[WordList]:
    """The lists in force after the events up to `upto_seq`, in the order of their names. ask: runs a statement. LedgerError."""
    rows = ask(statements.EVENTS_OF_KEYS, (_KEYS, _KEYS[:-1] + bytes((_KEYS[-1] + 1,)), upto_seq))
    numbers = {(found.digest, found.version): seq for seq, *columns in rows if (found := Vote(*columns))}
    votes = winners(Vote(*columns) for _, *columns in rows).values()
    return [
        _list(found, numbers[found.digest, found.version])
        for found in sorted(votes, key=lambda one: one.digest)
        if found.label == LABEL and is_list(found.extractor)
    ]


def _list(found: Vote, seq: int) -> WordList:
    name = found.digest.removeprefix(_KEYS).decode("utf-8", "replace")
    about, tokens, log_odds = _unpack(found.packed)
    return WordList(name, about, found.time, seq, found.extractor - _VERSION, tokens, log_odds)


def _digest(name: str) -> bytes:
    return _KEYS + name.encode()


def _pack(about: About, tokens: NDArray[np.uint32], log_odds: NDArray[np.int8]) -> bytes:
    described = json.dumps(asdict(about)).encode()
    packed = codec.pack(Features(tokens, _NONE, _NONE.astype(np.int16)))
    odds = zlib.compress(log_odds.tobytes(), 9)
    body = _HEAD.pack(0, _FORMAT, len(described), len(packed), len(odds))[_CHECKSUM_BYTES:] + described + packed + odds
    return struct.pack("<I", zlib.crc32(body)) + body


def _unpack(packed: bytes) -> tuple[About, NDArray[np.uint32], NDArray[np.int8]]:
    if len(packed) < _HEAD.size:
        raise _damaged()
    checksum, form, *lengths = _HEAD.unpack_from(packed)
    if form != _FORMAT:
        raise LedgerError(f"a word list in the ledger has format {form}, this program reads {_FORMAT}: update spamguard")
    if zlib.crc32(memoryview(packed)[_CHECKSUM_BYTES:]) != checksum or len(packed) != _HEAD.size + sum(lengths):
        raise _damaged()
    described, ends = _HEAD.size, _HEAD.size + lengths[0]
    tokens = codec.unpack(packed[ends : ends + lengths[1]]).tokens
    try:
        odds = np.frombuffer(zlib.decompressobj().decompress(packed[ends + lengths[1] :], MOST), np.int8)
        about = About(**json.loads(packed[described:ends]))
    except (ValueError, TypeError, RecursionError, zlib.error) as error:
        raise _damaged() from error
    if len(odds) != len(tokens) or not about.whole():
        raise _damaged()
    return about, tokens, odds


def _damaged() -> LedgerError:
    return LedgerError("a word list in the ledger is damaged: restore the ledger from a backup")
