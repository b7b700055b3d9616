"""Replies of a next hop, read as they come (RFC 5321, section 4.2), and what its EHLO offers.

Tolerant of line ends, but never lets a reply grow without bound, nor through with a byte that could split it when it is passed on.
"""

from __future__ import annotations

import re

from spamguard.wire.values import Reply

MOST_LINES = 1000
MOST_BYTES = 64 << 10  # of one reply, line ends included

_LINE = re.compile(rb"([2-5][0-9][0-9])(?:([ -])(.*))?", re.DOTALL)
_KEYWORD = re.compile(r"[A-Z0-9][A-Z0-9-]*")
_NOT_PRINTABLE = re.compile(rb"[^ -~]")
_HARMLESS = bytes.maketrans(b"\r\0", b"??")


class ReplyError(ValueError):
    """What came is no reply: the session cannot go on."""


class Replies:
    """Takes bytes as they come, cut anywhere, and gives one reply after the other."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._code = 0
        self._lines: list[bytes] = []
        self._size = 0

    @property
    def pending(self) -> int:
        """Bytes that came and are in no reply taken yet; 0: nobody is speaking."""
        return self._size + len(self._unread)

    def feed(self, data: bytes) -> None:
        """What has come."""
        self._unread += data

    def take(self) -> Reply | None:
        """The next reply, None while it is not complete. ReplyError for what is no reply, or is too long; there is no going on then."""
        while (end := self._unread.find(b"\n")) >= 0:
            line = bytes(self._unread[:end])
            del self._unread[: end + 1]
            if self._add(line):
                return self._complete()
        if self.pending > MOST_BYTES:
            raise ReplyError("a reply is too long")
        return None

    def _add(self, line: bytes) -> bool:
        """Whether that was the last line."""
        self._size += len(line) + 1
        if len(self._lines) == MOST_LINES or self._size > MOST_BYTES:
            raise ReplyError("a reply is too long")
        match = _LINE.fullmatch(line.removesuffix(b"\r"))
        if match is None:
            raise ReplyError("a line is no reply")
        if self._lines and int(match[1]) != self._code:
            raise ReplyError("a reply has more than one code")
        self._code = int(match[1])
        self._lines.append((match[3] or b"").translate(_HARMLESS))
        return match[2] != b"-"

    def _complete(self) -> Reply:
        reply = Reply(self._code, tuple(self._lines))
        self._lines, self._size = [], 0
        return reply


def extensions(reply: Reply) -> dict[str, str]:
    """What a positive reply to EHLO or LHLO offers: keyword in upper case, and its parameters (RFC 5321, section 4.1.1.1).

    Lines that begin with no keyword are passed over, and of a keyword the first line counts. Parameters are printable ASCII: they are
    passed on to our own clients, and what is none comes as "?".
    """
    offered: dict[str, str] = {}
    for line in reply.lines[1:]:
        keyword, _, parameters = _NOT_PRINTABLE.sub(b"?", line.strip()).decode("ascii").partition(" ")
        if _KEYWORD.fullmatch(keyword.upper()):
            offered.setdefault(keyword.upper(), parameters.strip())
    return offered
