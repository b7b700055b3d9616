"""A lesson as it is said on the socket and as it lies in a directory: one line, then the message.

    TEACH CLASS LENGTH [USER]LF
    FORGET LENGTH [USER]LF

The second takes back what that user has said about the message. CLASS: lower-case letters, digits,
- and _; LENGTH: bytes of the message that follows; USER: whose lesson it is, UTF-8, the rest of the
line: there are names with blanks in them. On the socket one line comes back: `OK`, `NO reason` (for
ever), `LATER reason` (the directory will do), or `HOLD reason` (there is no such class: in the
directory it would be lost). Imports nothing: a client starts in no time.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_LESSON_BYTES = 64 << 20  # of a message
MAX_LESSON_HEADER = 400  # bytes of the first line
MAX_LESSON_ANSWER = 400
PIPE_ORIGIN = "teach-pipe"  # origin of what came by the command, over the socket or a directory
MAIL_ORIGIN = "mail"  # of what was forwarded to an address that teaches
SCANNER_ORIGINS = ("rspamd", "spamd")  # of what came by a scanner, which names the protocol
WEB_ORIGIN = "web"  # of what was handed over, or forgotten, on a page or by the API
HISTORY_ORIGIN = "history"  # of what was said there about a message that had passed
SUBMITTED_ORIGINS = (
    PIPE_ORIGIN,
    MAIL_ORIGIN,
    *SCANNER_ORIGINS,
    WEB_ORIGIN,
    HISTORY_ORIGIN,
)  # all that people have brought
RESERVED_CLASSES = (
    "unsure",
    "not-scanned",
    "any",
)  # where a class may stand, in headers and in what the API is asked, they mean something else

_CLASS_FIRST_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")
_CLASS_LETTERS = _CLASS_FIRST_LETTERS | frozenset("0123456789_-")


class LessonHeader(NamedTuple):
    """What stands in the first line. label: "" where all is taken back. user: "" where none is
    named.
    """

    label: str
    length: int
    user: str = ""

    def encode(self) -> bytes:
        """As it is written."""
        words = ("TEACH", self.label) if self.label else ("FORGET",)
        return " ".join((*words, str(self.length), self.user)).rstrip(" ").encode("utf-8") + b"\n"


class QueuedLesson(NamedTuple):
    """A whole one. label: as in `Header`. origin: the way it came."""

    label: str
    user: str
    origin: str
    raw: bytes


def parse_lesson_header(line: bytes) -> LessonHeader:
    """The first line, its end included. ValueError, in words."""
    if not line.endswith(b"\n"):
        raise ValueError("no line")
    try:
        verb, _, rest = line[:-1].decode("utf-8").partition(" ")
    except UnicodeDecodeError:
        raise ValueError("no UTF-8") from None
    label, _, rest = rest.partition(" ") if verb == "TEACH" else ("", "", rest)
    if verb not in ("TEACH", "FORGET") or not rest:
        raise ValueError("expected TEACH CLASS LENGTH [USER]")
    if verb == "TEACH" and not is_class_name(label):
        raise ValueError("no name of a class")
    length, named, user = rest.partition(" ")
    if not (
        length.isascii()
        and length.isdecimal()
        and len(length) < 12
        and 0 < int(length) <= MAX_LESSON_BYTES
    ):
        raise ValueError(f"a message has 1 to {MAX_LESSON_BYTES} bytes")
    if named and not is_user_name(user):
        raise ValueError("no name of a user")
    return LessonHeader(label, int(length), user)


def is_class_name(text: str) -> bool:
    """Whether a class may have this name."""
    return (
        text[:1] in _CLASS_FIRST_LETTERS
        and text != ""
        and len(text) <= 32
        and _CLASS_LETTERS.issuperset(text)
        and text not in RESERVED_CLASSES
    )


def is_user_name(text: str) -> bool:
    """Whether a user of mail may have this name."""
    return (
        text.isprintable()
        and text == text.strip()
        and 0 < len(text.encode("utf-8", "replace")) <= 255
    )
