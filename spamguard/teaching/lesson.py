"""A lesson as it is said on the socket and as it lies in a directory: one line, then the message.

    TEACH CLASS LENGTH [USER]LF

CLASS: lower-case letters, digits, - and _; LENGTH: bytes of the message that follows; USER: whose lesson it is, UTF-8 without blanks.
On the socket one line comes back: `OK`, `NO reason` (for ever) or `LATER reason`. Imports nothing: a client starts in no time.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_BYTES = 64 << 20  # of a message
LONGEST_LINE = 400  # bytes of the first line
LONGEST_ANSWER = 400
PIPED = "teach-pipe"  # origin of what came by the command, over the socket or a directory
MAILED = "mail"  # of what was forwarded to an address that teaches

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")
_CLASS = _LETTERS | frozenset("0123456789_-")


class Header(NamedTuple):
    """What stands in the first line. user: "" where none is named."""

    label: str
    length: int
    user: str = ""

    def line(self) -> bytes:
        """As it is written."""
        return " ".join(("TEACH", self.label, str(self.length), self.user)).rstrip(" ").encode("utf-8") + b"\n"


class Lesson(NamedTuple):
    """A whole one. origin: the way it came."""

    label: str
    user: str
    origin: str
    raw: bytes


def parse(line: bytes) -> Header:
    """The first line, its end included. ValueError, in words."""
    if not line.endswith(b"\n"):
        raise ValueError("no line")
    try:
        words = line[:-1].decode("utf-8").split(" ")
    except UnicodeDecodeError:
        raise ValueError("no UTF-8") from None
    if words[0] != "TEACH" or len(words) not in (3, 4):
        raise ValueError("expected TEACH CLASS LENGTH [USER]")
    label, length, user = words[1], words[2], words[3] if len(words) == 4 else ""
    if not is_class(label):
        raise ValueError("no name of a class")
    if not (length.isascii() and length.isdecimal() and len(length) < 12 and 0 < int(length) <= MOST_BYTES):
        raise ValueError(f"a message has 1 to {MOST_BYTES} bytes")
    if len(words) == 4 and not is_user(user):
        raise ValueError("no name of a user")
    return Header(label, int(length), user)


def is_class(text: str) -> bool:
    """Whether a class may have this name."""
    return text[:1] in _LETTERS and text != "" and len(text) <= 32 and _CLASS.issuperset(text) and text != "unsure"


def is_user(text: str) -> bool:
    """Whether a user of mail may have this name."""
    return text.isprintable() and " " not in text and 0 < len(text.encode("utf-8", "replace")) <= 255
