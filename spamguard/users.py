"""Lessons as programs send them, names of classes and users, and whose mail an address is.

A lesson is one line, then the message; it looks the same in the spool and in the queue:

    TEACH CLASS LENGTH [USER]LF
    FORGET LENGTH [USER]LF

FORGET takes back what that user has said about the message. CLASS is lower-case letters, digits, -
and _; LENGTH is the number of bytes of the message that follows; USER is UTF-8 up to the end of the
line, because there are names with blanks.

`UserResolver` names the users to whom an address may belong.

Imports next to nothing: a client that teaches must start in no time.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

MAX_LESSON_BYTES = 64 << 20  # of the message
MAX_LESSON_HEADER = 400  # bytes of the first line
LESSON_SPOOL = "/var/spool/spamguard/teach"


class Origin(StrEnum):
    """How a vote came, as the ledger, metrics and `status` name it. More may follow behind a blank:
    the folder, and what was shown there.
    """

    COMMAND = "cli"
    LIBRARY = "api"
    PIPE = "teach-pipe"
    MAIL = "mail"  # that was forwarded to an address that teaches
    RSPAMD = "rspamd"
    SPAMD = "spamd"
    WEB = "web"  # handed over on the page or through the API
    HISTORY = "history"  # about a message in the history
    RELEASE = "quarantine"  # held mail was released
    FOLDER = "folder"  # moved
    EVIDENCE = "evidence"  # shown without a move
    FILED = "folders, before they were watched"
    DOCTOR = "doctor"
    UNDO = "undo"  # takes back; nobody's opinion, and never undone
    AGEING = "ageing"  # the tombstone of a vote that has grown too old


SUBMITTED_ORIGINS = (
    Origin.PIPE,
    Origin.MAIL,
    Origin.RSPAMD,
    Origin.SPAMD,
    Origin.WEB,
    Origin.HISTORY,
)
"""Of all lessons that people bring, also through the doors of two protocols."""

SENDER_NATS = {"ham": -6, "spam": 6}
"""How far a word about a sender, by its class, moves the log-odds of being unwanted, in nats.
Between the thresholds of ham and spam lie 5.1.
"""

RESERVED_CLASSES = ("unsure", "not-scanned", "any")
"""Words that mean something else where headers and the API name a class."""

_LESSON_HEADER = re.compile(r"(?:TEACH (\S+)|FORGET) ([0-9]{1,9})(?: (.+))?\n")
_CLASS_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_MAX_USER_BYTES = 255


class LessonHeader(NamedTuple):
    """The first line of a lesson."""

    label: str  # "" takes the vote back
    length: int
    user: str = ""  # "" if none is named

    def encode(self) -> bytes:
        words = ("TEACH", self.label) if self.label else ("FORGET",)
        return " ".join((*words, str(self.length), self.user)).rstrip(" ").encode("utf-8") + b"\n"

    def is_valid(self) -> bool:
        return (
            0 < self.length <= MAX_LESSON_BYTES
            and (not self.label or is_class_name(self.label))
            and (not self.user or is_user_name(self.user))
        )


class QueuedLesson(NamedTuple):
    label: str  # "" takes the vote back
    user: str
    origin: str
    raw: bytes


def parse_lesson_header(line: bytes) -> LessonHeader:
    match = _LESSON_HEADER.fullmatch(line.decode())
    header = match and LessonHeader(match[1] or "", int(match[2]), match[3] or "")
    if not header or not header.is_valid():
        raise ValueError(
            f"expected TEACH CLASS LENGTH [USER], with a length from 1 to {MAX_LESSON_BYTES}"
        )
    return header


def is_class_name(text: str) -> bool:
    return _CLASS_NAME.fullmatch(text) is not None and text not in RESERVED_CLASSES


def is_user_name(text: str) -> bool:
    length = len(text.encode("utf-8", "replace"))
    return text.isprintable() and text == text.strip() and 0 < length <= _MAX_USER_BYTES


# ---- whose mail it is

# The first recipients of a message are judged for themselves: as many as Postfix names in one
# transaction. Each takes a fraction of a millisecond, but some 20 ms when that user's lessons are
# not at hand, and a message has seconds.
MAX_RECIPIENTS = 50


class UserResolver:
    """Resolves addresses to users.

    An alias is an address, `*@DOMAIN` or a part before the @, and a user, or "" for nobody.

    >>> resolver = UserResolver([("sales@example.org", "anna")])
    >>> list(resolver.candidates("sales@example.org"))
    ['anna']
    >>> list(resolver.candidates("Ben+news@example.org"))
    ['ben+news@example.org', 'ben@example.org', 'ben']
    """

    def __init__(self, aliases: Iterable[tuple[str, str]]) -> None:
        self._aliases = {address.lower(): user for address, user in aliases}

    def candidates(self, address: str) -> Sequence[str]:
        """Users whose mail this may be; the first that exists counts. An alias leaves no choice."""
        full = address.lower()
        local_part, at, domain = full.rpartition("@") if "@" in full else (full, "", "")
        plain = local_part.partition("+")[0] or local_part
        for name in (full, plain + at + domain, f"*@{domain}", local_part, plain):
            if name in self._aliases:
                return [user for user in (self._aliases[name],) if user]
        names = dict.fromkeys((full, plain + at + domain, plain))
        return [name for name in names if is_user_name(name)]

    def all_candidates(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Users whose mail a message to the first `MAX_RECIPIENTS` addresses may be, at most three
        for each.
        """
        counted = addresses[:MAX_RECIPIENTS]
        return tuple(
            dict.fromkeys(user for address in counted for user in self.candidates(address))
        )

    def resolve(self, addresses: Sequence[str], existing: Container[str]) -> list[str]:
        """For each address the user whose mail it is, among the `existing`; "" if there is none."""
        users = [
            next((user for user in self.candidates(address) if user in existing), "")
            for address in addresses[:MAX_RECIPIENTS]
        ]
        return users + [""] * (len(addresses) - len(users))

    def could_belong_to(self, address: str, user: str, existing: Container[str]) -> bool:
        """Whether mail to this address is that user's, or would be if the user existed."""
        for candidate in self.candidates(address):
            if candidate == user or candidate in existing:
                return candidate == user
        return False
