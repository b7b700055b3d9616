"""One message out of an open file of a Maildir: whole, unpacked, and within bounds; or why not.

Must never read more than `MOST` bytes, unpack more than that, or take for a message what is still being written.
"""

from __future__ import annotations

import bz2
import lzma
import os
import re
import time
import zlib
from collections.abc import Callable
from typing import Any

import zstandard

from spamguard.errors import SpamguardError

MOST = 64 << 20  # bytes; what lies beyond is not read: two messages that differ only there are taken for one
_SETTLED = 1.0  # seconds without a change, after which a file is whole although its name does not tell its size
_ABANDONED = 60.0  # seconds, after which an incomplete file will not be completed
_SIZE = re.compile(r",S=([0-9]{1,15})(?=[,:]|$)")  # Dovecot's note of how long the message is, unpacked
_STREAMS = 16  # one after another in a file; each costs a copy of what is left
_WINDOW = 8 << 20  # bytes that unpacking zstd may hold


class UnfinishedError(SpamguardError):
    """The file is still being written: look again."""


class UnreadableError(SpamguardError):
    """The file will not become a message that can be read; the text says why."""


class _DamagedError(UnreadableError):
    """It is not what it should be, or not all of it."""


def read(descriptor: int, name: str) -> bytes:
    """The message in a file, at most `MOST` bytes of it. name: of the file. UnfinishedError, UnreadableError, OSError."""
    before = os.fstat(descriptor)
    packed = _contents(descriptor)
    after = os.fstat(descriptor)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise UnfinishedError(f"{name}: is being written")
    age = abs(time.time() - after.st_mtime)  # a clock that was set back makes nothing young for ever
    try:
        raw = unpacked(packed)
    except _DamagedError:
        if age < _ABANDONED:
            raise UnfinishedError(f"{name}: is being written") from None
        raise
    _check_whole(raw, name, age)
    return raw


def _check_whole(raw: bytes, name: str, age: float) -> None:
    told = _SIZE.search(name)
    missing = told is not None and len(raw) < min(int(told[1]), MOST)
    if (missing or not raw) and age < _ABANDONED:
        raise UnfinishedError(f"{name}: is being written")
    if told is None and age < _SETTLED:
        raise UnfinishedError(f"{name}: may still be written")
    if not raw:
        raise UnreadableError("is empty")


def _contents(descriptor: int) -> bytes:
    found = bytearray()
    while len(found) < MOST and (piece := os.read(descriptor, min(1 << 20, MOST - len(found)))):
        found += piece
    return bytes(found)


def unpacked(data: bytes) -> bytes:
    """What Dovecot's zlib plugin has packed; anything else as it is. UnreadableError: damaged, encrypted, or of no format known here."""
    for magic, unpack in _FORMATS.items():
        if data.startswith(magic):
            return unpack(data)
    return data


def _with(make: Callable[[], Any]) -> Callable[[bytes], bytes]:
    """Unpacking by a decompressor of the standard library; files may be made of several streams."""

    def unpack(data: bytes) -> bytes:
        found, left = b"", data
        try:
            for _ in range(_STREAMS):
                one = make()
                found += one.decompress(left, MOST - len(found))
                left = one.unused_data
                if not one.eof or not left or len(found) >= MOST:
                    break
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise _DamagedError(f"is damaged where it is compressed ({error})") from error
        if not one.eof and len(found) < MOST:
            raise _DamagedError("is compressed, and its end is missing")
        return found

    return unpack


def _from_zstd(data: bytes) -> bytes:
    """An end that is missing is not noticed here, but by the size in the name."""
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(data, read_across_frames=True)
    try:
        return reader.read(MOST)
    except zstandard.ZstdError as error:
        raise _DamagedError(f"is damaged where it is compressed ({error})") from error


def _refusal(why: str) -> Callable[[bytes], bytes]:
    def refuse(_: bytes) -> bytes:
        raise UnreadableError(why)

    return refuse


_FORMATS: dict[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": _with(lambda: zlib.decompressobj(wbits=31)),
    b"BZh": _with(bz2.BZ2Decompressor),
    b"\xfd7zXZ\x00": _with(lambda: lzma.LZMADecompressor(memlimit=64 << 20)),
    b"(\xb5/\xfd": _from_zstd,
    b"Dovecot-LZ4\r*\x9b\xc5": _refusal("is compressed with lz4, which cannot be read here: use gz or zstd"),
    b"CRYPTED\x03\x07": _refusal("is encrypted"),
}
