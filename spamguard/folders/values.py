"""What the parts of this package hand to each other about folders and the messages in them. Data only.

A folder is named by its directory below the mailbox, as in `contract.Place`: "" (the INBOX), ".Junk", "Lists/Python".
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # it brings numpy along, for which `check` need not wait
    from spamguard.signature import Signed

ORIGIN = "folder"
"""With a folder's name behind it, the origin of what a person said by moving a message."""
EVIDENCE_ORIGIN = "evidence"
"""With the kind of it and a folder's name behind it, the origin of what was taken from what a person did without moving a message."""

Key = tuple[str, int]
"""Folder, and `names.key` of the base name: a file of a mailbox."""


class Kind(StrEnum):
    """What a folder is for."""

    CLASS = "class"  # people put messages of one class there
    NEUTRAL = "neutral"  # watched, says nothing about a message
    TRASH = "trash"  # watched, says nothing about a message
    IGNORED = "ignored"  # not looked at


class Role(NamedTuple):
    """label: name of the class when kind is CLASS, else empty. doubtful: nobody says so, and people may mean the folder for spam."""

    kind: Kind
    label: str = ""
    doubtful: bool = False


class Name(NamedTuple):
    """A file name of a Maildir. base: what stays the same when flags or sizes change. flags: letters after ":2,"."""

    base: str
    flags: str = ""


class Arrival(NamedTuple):
    """A file that was not there before. name: `names.key` of its base name. digest: of the message, empty when it cannot be read.

    signed: what we once said about it, if a valid signature tells. received: short hash of the topmost Received field, 0 without one.
    """

    folder: str
    name: int
    digest: bytes
    signed: Signed | None = None
    received: int = 0

    @property
    def key(self) -> Key:
        """The file."""
        return self.folder, self.name


class Copy(NamedTuple):
    """What is remembered of one file of one mailbox: a sighting.

    delivery: short hash of the id of our judgement, else of the topmost Received field, 0 without either: copies of one delivered
    message have it in common.
    origin: a folder without a class: the folder of a class the message was in before; None when there was none.
    waiting: came together with another into folders of two classes; nothing was decided yet.
    followed: it was copied to another folder while it stayed. seen: when it was found, gone: when it was missed, 0 while it is
    there; both in seconds since 1970, except that what was seen later always has the greater number, even if the clock went back.
    """

    folder: str
    name: int
    digest: bytes
    delivery: int = 0
    origin: str | None = None
    waiting: bool = False
    followed: bool = False
    seen: int = 0
    gone: int = 0

    @property
    def key(self) -> Key:
        """The file."""
        return self.folder, self.name


class Lesson(NamedTuple):
    """What a person said by putting a message into a folder. name: as of `Copy`. why: in words, for people. evidence: its kind, if it was
    not moved."""

    digest: bytes
    label: str
    folder: str
    name: int
    why: str
    evidence: str = ""

    @property
    def key(self) -> Key:
        """The file."""
        return self.folder, self.name
