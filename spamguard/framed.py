"""One stream of frames, checksummed as a whole: the form of the files that `export` and `backup` write.

Must never hold more of a file than one frame, and never say that a file is whole before its last byte was looked at.

    magic       which kind of file it is
    frame       kind (1 byte), length of what follows (4 bytes, little-endian), payload; the first is a header
    "E"         the last frame: BLAKE2b-256 of every byte before it
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Collection, Iterator
from dataclasses import fields
from typing import Any, BinaryIO, ClassVar, NoReturn, TypeVar, get_origin, get_type_hints

from spamguard.errors import SourceError

PIECE = 1 << 20
"""Bytes of a large thing in one frame, at most, before they are compressed."""
HEADER, END = b"H", b"E"
_FRAME = struct.Struct("<cI")
_HEADER_BYTES = 1 << 20

Header = TypeVar("Header")
_LONGEST = 64 << 20  # of a frame: more is damage, not a reason to take memory


class FrameWriter:
    """Writes frames to a stream; `end` makes the file complete. bytes: written so far."""

    def __init__(self, stream: BinaryIO, magic: bytes, header: bytes) -> None:
        self._stream = stream
        self._checksum = hashlib.blake2b(digest_size=32)
        self.bytes = 0
        self._put(magic)
        self.frame(HEADER, header)

    def frame(self, kind: bytes, payload: bytes) -> None:
        """One frame."""
        self._put(_FRAME.pack(kind, len(payload)) + payload)

    def piece(self, kind: bytes, piece: bytes) -> None:
        """A frame of at most `PIECE` bytes of something large, compressed."""
        self.frame(kind, zlib.compress(piece, 1))

    def end(self) -> None:
        """The checksum; nothing may follow."""
        self.frame(END, self._checksum.digest())
        self._stream.flush()

    def _put(self, data: bytes) -> None:
        self._checksum.update(data)
        self._stream.write(data)
        self.bytes += len(data)


class FrameReader:
    """Reads a file of frames from a stream that can be read twice. SourceError, with its name: whatever is wrong with it.

    A subclass says of its files: their magic; kinds, of frames behind the header; foreign, what is said of a file with another magic;
    and undone, what has not been done with a file that is refused.
    """

    magic: ClassVar[bytes]
    kinds: ClassVar[Collection[bytes]]
    foreign: ClassVar[str]
    undone: ClassVar[str]

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self._name = name
        self._stream = stream

    def frames(self) -> Iterator[tuple[bytes, bytes]]:
        """Every frame but the last, the header first, from the start of the stream."""
        self._stream.seek(0)
        checksum = hashlib.blake2b(digest_size=32)
        if self._stream.read(len(self.magic)) != self.magic:
            self.refuse(self.foreign)
        checksum.update(self.magic)
        expected: Collection[bytes] = (HEADER,)
        while True:
            head = self._exactly(_FRAME.size)
            kind, length = _FRAME.unpack(head)
            if kind not in expected or length > _LONGEST:
                self.refuse("it is damaged")
            payload = self._exactly(length)
            if kind == END:
                break
            yield kind, payload
            checksum.update(head + payload)
            expected = (*self.kinds, END)
        if payload != checksum.digest() or self._stream.read(1):
            self.refuse("it is damaged: its checksum is wrong")

    def _exactly(self, length: int) -> bytes:
        data = self._stream.read(length)
        if len(data) < length:
            self.refuse("it is cut off")
        return data

    def unpressed(self, piece: bytes) -> bytes:
        """What `FrameWriter.piece` was given."""
        try:
            return zlib.decompressobj().decompress(piece, PIECE)
        except zlib.error as error:
            self.refuse(f"a piece of it is damaged ({error})")

    def header(self, payload: bytes, form: int, kind: type[Header]) -> Header:
        """A header, JSON, as a dataclass of this kind. form: the highest number of its field `format` that is known."""
        try:
            values = _object(payload)
            if values["format"] > form:
                self.refuse(f"it has format {values['format']}, this program reads {form}: update spamguard")
            hints = get_type_hints(kind)
            known = {one.name: values[one.name] for one in fields(kind)}  # type: ignore[arg-type]  # a dataclass
            wrong = [name for name, value in known.items() if type(value) is not (get_origin(hints[name]) or hints[name])]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self.refuse(f"its header is damaged ({error})")
        if wrong:
            self.refuse(f"its header is damaged ({wrong[0]})")
        return kind(**known)

    def refuse(self, why: str) -> NoReturn:
        """SourceError."""
        raise SourceError(f"{self._name}: {why}; {self.undone}")


def _object(payload: bytes) -> dict[str, Any]:
    if len(payload) > _HEADER_BYTES:
        raise ValueError("it is too long")
    found = json.loads(payload)
    if not isinstance(found, dict):
        raise TypeError("it is no object")
    return found
