"""The file that `export` writes and `import` reads: frames (`framed`), their magic b"spamguard export\\n".

Must never hand out anything of a file that was not checked to its end, and never hold more of it than one frame.

    "H"         header, JSON (`Header`)
    "V"         some votes, each as lengths and fields (`_VOTE`)
    "T"         a piece of a table file

Receipts are not compressed: their code is within some percent of the entropy (`ledger.codec`). Readers refuse a higher format
number than their own; what is new without being in the way of older readers goes into the header.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import BinaryIO

from spamguard import secret
from spamguard.framed import HEADER, FrameReader, FrameWriter
from spamguard.records import Vote

FORMAT = 1
VOTES = 128  # in a frame
MAGIC = b"spamguard export\n"
_VOTE = struct.Struct("<QqIHHHHHHB")
SOME_VOTES, TABLE = b"V", b"T"


@dataclass(frozen=True, slots=True)
class Header:
    """What the file holds. fingerprint: of the key; key: itself, in hexadecimal, or "". classes: name to unwanted. bits: the
    tables' least size. receipts: whether it holds receipts; else it holds tables."""

    format: int
    program: str
    extractor: int
    fingerprint: str
    key: str
    bits: int
    classes: dict[str, bool]
    receipts: bool


# ---- writing


class Writer(FrameWriter):
    """Writes what the header says to a stream; `end` makes the file complete."""

    def __init__(self, stream: BinaryIO, header: Header) -> None:
        super().__init__(stream, MAGIC, json.dumps(asdict(header)).encode())

    def votes(self, votes: Sequence[Vote]) -> None:
        """Some votes, at most `VOTES`."""
        self.frame(SOME_VOTES, b"".join(map(_pack, votes)))

    def table(self, piece: bytes) -> None:
        """A piece of a table file, at most `framed.PIECE` bytes."""
        self.piece(TABLE, piece)


def _pack(vote: Vote) -> bytes:
    """One vote: numbers and lengths, then the fields of variable length. A label of length 0 is none."""
    texts = [text.encode() for text in (vote.user, vote.node, vote.label or "", vote.origin)]
    lengths = [len(vote.digest), *map(len, texts), len(vote.scores)]
    head = _VOTE.pack(vote.clock, vote.time, len(vote.packed), *lengths, vote.extractor)
    return b"".join((head, vote.digest, *texts, vote.scores, vote.packed))


# ---- reading


class Reader(FrameReader):
    """Reads a file that can be read twice: `check` first, then what is in it. Everything raises SourceError for what is damaged."""

    magic, kinds = MAGIC, (SOME_VOTES, TABLE)
    foreign = "it is not a file that `spamguard export` wrote"
    undone = "nothing was imported"

    def check(self) -> tuple[Header, set[str], int]:
        """Look at every byte: the header, the labels of all votes and how many votes there are."""
        labels: set[str] = set()
        number = 0
        for kind, payload in self.frames():
            if kind == SOME_VOTES:
                votes = self._unpacked(payload)
                number += len(votes)
                labels.update(vote.label for vote in votes if vote.label is not None)
            elif kind == TABLE:
                self.unpressed(payload)
            elif kind == HEADER:
                header = self._header(payload)
        return header, labels, number

    def votes(self) -> Iterator[Vote]:
        """All votes."""
        for kind, payload in self.frames():
            if kind == SOME_VOTES:
                yield from self._unpacked(payload)

    def table(self) -> Iterator[bytes]:
        """The table file, piece by piece."""
        return (self.unpressed(payload) for kind, payload in self.frames() if kind == TABLE)

    def _header(self, payload: bytes) -> Header:
        found = self.header(payload, FORMAT, Header)
        if found.key and not _fits(found):
            self.refuse("its key is not the one it was taught with")
        return found

    def _unpacked(self, payload: bytes) -> list[Vote]:
        try:
            return list(_unpack(payload))
        except (struct.error, UnicodeDecodeError) as error:
            self.refuse(f"a vote in it is damaged ({error})")


def _fits(header: Header) -> bool:
    try:
        return secret.fingerprint(bytes.fromhex(header.key)) == header.fingerprint
    except ValueError:
        return False


def _unpack(payload: bytes) -> Iterator[Vote]:
    at = 0
    while at < len(payload):
        clock, time, packed, digest, user, node, label, origin, scores, extractor = _VOTE.unpack_from(payload, at)
        at += _VOTE.size
        parts = []
        for length in (digest, user, node, label, origin, scores, packed):
            parts.append(payload[at : at + length])
            at += length
        if at > len(payload):
            raise struct.error("it is cut off")
        words = [part.decode() for part in parts[1:5]]
        yield Vote(parts[0], words[0], clock, words[1], words[2] or None, parts[6], parts[5], words[3], time, extractor)
