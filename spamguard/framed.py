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
from collections.abc import Callable, Collection, Iterator
from dataclasses import fields
from typing import Any, BinaryIO, NoReturn, TypeVar, get_origin, get_type_hints

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


def frames(
    stream: BinaryIO, magic: bytes, kinds: Collection[bytes], wrong: str, refuse: Callable[[str], NoReturn]
) -> Iterator[tuple[bytes, bytes]]:
    """Every frame but the last, the header first. stream: can be read twice, and is read from its start.

    kinds: of frames behind the header. refuse: is told what is wrong, and raises; wrong: what it is told of a file with another magic.
    """
    stream.seek(0)
    checksum = hashlib.blake2b(digest_size=32)
    if stream.read(len(magic)) != magic:
        refuse(wrong)
    checksum.update(magic)
    expected: Collection[bytes] = (HEADER,)
    while True:
        head = _exactly(stream, _FRAME.size, refuse)
        kind, length = _FRAME.unpack(head)
        if kind not in expected or length > _LONGEST:
            refuse("it is damaged")
        payload = _exactly(stream, length, refuse)
        if kind == END:
            break
        yield kind, payload
        checksum.update(head + payload)
        expected = (*kinds, END)
    if payload != checksum.digest() or stream.read(1):
        refuse("it is damaged: its checksum is wrong")


def _exactly(stream: BinaryIO, length: int, refuse: Callable[[str], NoReturn]) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        refuse("it is cut off")
    return data


def unpressed(piece: bytes, refuse: Callable[[str], NoReturn]) -> bytes:
    """What `FrameWriter.piece` was given."""
    try:
        return zlib.decompressobj().decompress(piece, PIECE)
    except zlib.error as error:
        refuse(f"a piece of it is damaged ({error})")


def header_of(payload: bytes, form: int, kind: type[Header], refuse: Callable[[str], NoReturn]) -> Header:
    """A header, JSON, as a dataclass of this kind. form: the highest number of its field `format` that is known."""
    try:
        values = _object(payload)
        if values["format"] > form:
            refuse(f"it has format {values['format']}, this program reads {form}: update spamguard")
        hints = get_type_hints(kind)
        known = {one.name: values[one.name] for one in fields(kind)}  # type: ignore[arg-type]  # a dataclass
        wrong = [name for name, value in known.items() if type(value) is not (get_origin(hints[name]) or hints[name])]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        refuse(f"its header is damaged ({error})")
    if wrong:
        refuse(f"its header is damaged ({wrong[0]})")
    return kind(**known)


def _object(payload: bytes) -> dict[str, Any]:
    if len(payload) > _HEADER_BYTES:
        raise ValueError("it is too long")
    found = json.loads(payload)
    if not isinstance(found, dict):
        raise TypeError("it is no object")
    return found
