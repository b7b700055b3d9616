"""Mail that Dovecot's zlib plugin has packed, as its files lie in a Maildir.

Must never unpack more than it is told to, or let what is packed decide how much memory is held. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any

from spamguard.errors import SpamguardError

_STREAMS = 16  # one after another in a file; each costs a copy of what is left
_WINDOW = 8 << 20  # bytes that unpacking zstd may hold

Unpack = Callable[[bytes, int], bytes]


class UnreadableError(SpamguardError):
    """The file will not become a message that can be read; the text says why."""


class DamagedError(UnreadableError):
    """It is not what it should be, or not all of it."""


def is_packed(data: bytes) -> bool:
    """Whether a file that begins so is packed, or encrypted."""
    return data.startswith(tuple(_FORMATS))


def unpacked(data: bytes, most: int) -> bytes:
    """What is packed, at most so many bytes of it; anything else as it is. UnreadableError: damaged, encrypted, or of no format known
    here."""
    for magic, unpack in _FORMATS.items():
        if data.startswith(magic):
            return unpack(data, most)
    return data


def _with(make: Callable[[], Any]) -> Unpack:
    """Unpacking by a decompressor of the standard library; files may be made of several streams."""

    def unpack(data: bytes, most: int) -> bytes:
        found: bytes = b""
        left = data
        try:
            for _ in range(_STREAMS):
                one = make()
                found += one.decompress(left, most - len(found))
                left = one.unused_data
                if not one.eof or not left or len(found) >= most:
                    break
            else:
                raise DamagedError(f"is compressed in more than {_STREAMS} pieces")
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise DamagedError(f"is damaged where it is compressed ({error})") from error
        if not one.eof and len(found) < most:
            raise DamagedError("is compressed, and its end is missing")
        return found

    return unpack


def _from_zstd(data: bytes, most: int) -> bytes:
    """An end that is missing is not noticed here, but by the size in the name."""
    import zstandard  # noqa: PLC0415  few have use for it, and all commands would wait 10 ms

    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(data, read_across_frames=True)
    try:
        return reader.read(most)
    except zstandard.ZstdError as error:
        raise DamagedError(f"is damaged where it is compressed ({error})") from error


def _refusal(why: str) -> Unpack:
    def refuse(_: bytes, most: int) -> bytes:  # noqa: ARG001
        raise UnreadableError(why)

    return refuse


_FORMATS: dict[bytes, Unpack] = {
    b"\x1f\x8b": _with(lambda: zlib.decompressobj(wbits=31)),
    b"BZh": _with(bz2.BZ2Decompressor),
    b"\xfd7zXZ\x00": _with(lambda: lzma.LZMADecompressor(memlimit=64 << 20)),
    b"(\xb5/\xfd": _from_zstd,
    b"Dovecot-LZ4\r*\x9b\xc5": _refusal("is compressed with lz4, which cannot be read here: use gz or zstd"),
    b"CRYPTED\x03\x07": _refusal("is encrypted"),
}
