"""Many small chunks of a request made one large one before they are parsed (RFC 9112, section 7.1). Pure.

Haraka sends every line of a message as a chunk of its own: 20 MB of short lines are a million of them, at 18 µs each in h11, and by then
Haraka has given up. Must never decide what is a well-formed body: whatever is not the plainest of chunks goes on as it came.
"""

from __future__ import annotations

import re

import h11

_HEAD = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_LONGEST_HEAD = len(b"ffffffff\r\n")
_LAST = re.compile(rb"0+\r\n")
_END = b"\r\n"


class Chunks:
    """The body of one request, from its first byte on. Keeps a few bytes only."""

    def __init__(self) -> None:
        self._cut = b""  # of a chunk's head or end that has not come in whole
        self._left = 0  # bytes of the present chunk, its end included
        self._as_it_comes = False  # from here on

    def merged(self, data: bytes) -> bytes:
        """The same in fewer chunks; b"" while there is nothing to say. h11.RemoteProtocolError: a chunk does not end where it said."""
        if self._as_it_comes:
            return data
        data, self._cut = self._cut + data, b""
        pieces: list[bytes] = []
        position = 0
        while position < len(data) and not self._as_it_comes and not self._cut:
            position = self._content(data, position, pieces) if self._left else self._next(data, _whole(data, position, pieces))
        content = b"".join(pieces)
        return (b"%x\r\n%b\r\n" % (len(content), content) if content else b"") + data[position:]

    def _next(self, data: bytes, position: int) -> int:
        """Where the content of the chunk begins that begins here."""
        found = _HEAD.match(data, position)
        if found and not _LAST.match(data, position):
            self._left = int(found[1], 16) + len(_END)
            return found.end()
        if found is None and len(data) - position < _LONGEST_HEAD and b"\n" not in data[position:]:
            self._cut = data[position:]
            return len(data)
        self._as_it_comes = True
        return position

    def _content(self, data: bytes, position: int, pieces: list[bytes]) -> int:
        """Where it ends, or what there is of it."""
        end = position + self._left
        if len(data) >= end:
            if data[end - len(_END) : end] != _END:
                raise h11.RemoteProtocolError("a chunk that does not end where it said")
            pieces.append(data[position : end - len(_END)])
            self._left = 0
            return end
        there = max(min(len(data), end - len(_END)), position)
        pieces.append(data[position:there])
        self._left -= there - position
        self._cut = data[there:]
        return len(data)


def _whole(data: bytes, position: int, pieces: list[bytes]) -> int:
    """Where chunks end that are there in whole. A tight loop: this is where the time goes."""
    while (found := _HEAD.match(data, position)) and (size := int(found[1], 16)):
        start = found.end()
        end = start + size
        if data[end : end + 2] != _END:
            break
        pieces.append(data[start:end])
        position = end + 2
    return position
