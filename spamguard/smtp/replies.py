"""Replies of a next hop, read as they come (RFC 5321, section 4.2), and what its EHLO offers.

The reader is tolerant of line ends. It must never let a reply grow without bound, nor let a byte
through that could split the reply when it is passed on.
"""

from __future__ import annotations

import re

from spamguard.smtp.envelope import Reply

MAX_LINES = 1000
MAX_REPLY_BYTES = 64 << 10  # of one reply, line ends included

_LINE = re.compile(rb"([2-5][0-9][0-9])(?:([ -])(.*))?", re.DOTALL)
_EXTENSION_KEYWORD = re.compile(r"[A-Z0-9][A-Z0-9-]*")
_NOT_PRINTABLE = re.compile(rb"[^ -~]")
_HARMLESS = bytes.maketrans(b"\r\0", b"??")


class ReplyError(ValueError):
    """The next hop sent something that is no reply; the session cannot go on."""


class ReplyReader:
    """Takes bytes cut anywhere and gives one reply after the other.

    >>> reader = ReplyReader()
    >>> reader.feed(b"250-mx.example.org\\r\\n250 8BITMIME\\r\\n")
    >>> str(reader.next_reply())
    '250 mx.example.org 8BITMIME'
    """

    def __init__(self) -> None:
        self._unread = bytearray()
        self._lines: list[bytes] = []
        self._code = 0
        self._size = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes that came and belong to no reply taken yet."""
        return self._size + len(self._unread)

    def feed(self, data: bytes) -> None:
        """Take what the next hop has sent."""
        self._unread += data

    def next_reply(self) -> Reply | None:
        """The next reply, None while it is not complete.

        Raises
        ------
        ReplyError
            The bytes are no reply, or one that is too long. The reader is of no more use.
        """
        while (end := self._unread.find(b"\n")) >= 0:
            line = bytes(self._unread[:end])
            del self._unread[: end + 1]
            self._size += len(line) + 1
            if len(self._lines) == MAX_LINES or self._size > MAX_REPLY_BYTES:
                raise ReplyError("a reply is too long")
            match = _LINE.fullmatch(line.removesuffix(b"\r"))
            if match is None:
                raise ReplyError("a line is no reply")
            if self._lines and int(match[1]) != self._code:
                raise ReplyError("a reply has more than one code")
            self._code = int(match[1])
            self._lines.append((match[3] or b"").translate(_HARMLESS))
            if match[2] != b"-":
                reply = Reply(self._code, tuple(self._lines))
                self._lines, self._size = [], 0
                return reply
        if self.pending_bytes > MAX_REPLY_BYTES:
            raise ReplyError("a reply is too long")
        return None


def parse_extensions(reply: Reply) -> dict[str, str]:
    """The extensions in a positive reply to EHLO or LHLO: upper-case keyword to parameters.

    Lines that begin with no keyword are skipped, and the first line of a keyword counts (RFC 5321,
    section 4.1.1.1). Our own clients see the parameters: a byte beyond printable ASCII becomes "?".

    >>> parse_extensions(Reply(250, (b"mx.example.org", b"SIZE 1000", b"8BITMIME")))
    {'SIZE': '1000', '8BITMIME': ''}
    """
    offered: dict[str, str] = {}
    for line in reply.lines[1:]:
        text = _NOT_PRINTABLE.sub(b"?", line.strip()).decode("ascii")
        keyword, _, parameters = text.partition(" ")
        if _EXTENSION_KEYWORD.fullmatch(keyword.upper()):
            offered.setdefault(keyword.upper(), parameters.strip())
    return offered
