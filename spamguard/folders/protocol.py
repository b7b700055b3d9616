"""What is said between the process that opens people's mailboxes and the one that reads them: lines of JSON on a Unix socket. Pure.

Whoever listens speaks first: what it serves, by `fingerprint`, or why it will not. A question is a list of a verb and what it is about,
an answer one of "answer" and what was found, or of "error" and the number, text and file of an OSError. To `open` the answer has the
descriptor with it (SCM_RIGHTS). Tuples, such as a `Place`, go as lists.

Must never build anything from what it reads but numbers, and texts that can be names of files; and never take more than there are
bounds for.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable
from typing import Any

from spamguard.folders.contract import Changes, File, Mailbox, Place
from spamguard.settings import Watch

LONGEST_QUESTION = 32 << 10  # bytes: a path, a directory and a name, and then some
MOST = 512 << 20  # bytes of an answer: some millions of names
_VERSION = "3"


class ProtocolError(ValueError):
    """What was received is not what this module writes."""


def fingerprint(watches: Iterable[Watch]) -> str:
    """Of where Maildirs are and whose they are, in their order, and of this way to talk: both sides must mean the same."""
    said = pack(_VERSION, *((watch.maildir, watch.user) for watch in watches))
    return hashlib.blake2b(said, digest_size=16).hexdigest()


def pack(*values: object) -> bytes:
    """A line."""
    return json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"


def unpack(line: bytes) -> list[Any]:
    """What `pack` has packed. ProtocolError."""
    try:
        return _list(json.loads(line.decode("utf-8", "surrogateescape")))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(str(error)) from error


def answer(found: object) -> bytes:
    """The line that tells it."""
    return pack("answer", found)


def refusal(error: OSError) -> bytes:
    """The line that says no."""
    named = error.filename if isinstance(error.filename, str) else ""
    return pack("error", error.errno or errno.EIO, error.strerror or "cannot be done", named)


def found(line: bytes) -> object:
    """What an `answer` tells. OSError: that of a `refusal`. ProtocolError."""
    match unpack(line):
        case ["answer", value]:
            return value
        case ["error", int(code), str(text), str(named)]:
            raise OSError(code, text, named or None)
    raise ProtocolError("neither an answer nor an error")


# ---- what is talked about; all of these raise ProtocolError


def mailbox(value: object) -> Mailbox:
    """One Maildir."""
    user, path, watch = _list(value, 3)
    if not isinstance(watch, int):
        raise ProtocolError("no number where one is expected")
    return Mailbox(text(user), text(path), watch)


def place(value: object) -> Place:
    """A folder."""
    of, directory = _list(value, 2)
    return Place(mailbox(of), text(directory))


def file(value: object) -> File:
    """A message of a folder."""
    part, name = _list(value, 2)
    return File(text(part), text(name))


def texts(value: object) -> list[str]:
    """Such as names of files."""
    return [text(one) for one in _list(value)]


def mailboxes(value: object) -> list[Mailbox]:
    """All there are."""
    return [mailbox(one) for one in _list(value)]


def names(value: object) -> dict[str, list[str]]:
    """Of each part of a folder."""
    return {text(part): texts(some) for part, some in _pairs(value)}


def words(value: object) -> dict[str, str]:
    """One by another, such as keywords by their letters."""
    return {text(one): text(other) for one, other in _pairs(value)}


def of_changes(changes: Changes) -> tuple[object, ...]:
    """As `changes` reads it."""
    return tuple(changes.folders), tuple(changes.mailboxes), changes.users, changes.everything


def changes(value: object) -> Changes:
    """What may be another now."""
    folders, boxes, users, everything = _list(value, 4)
    return Changes(frozenset(map(place, _list(folders))), frozenset(mailboxes(boxes)), bool(users), bool(everything))


def text(value: object) -> str:
    """One that can be the name of a file."""
    if not isinstance(value, str) or "\0" in value:
        raise ProtocolError("no text where one is expected")
    try:
        os.fsencode(value)
    except UnicodeEncodeError as error:
        raise ProtocolError("a text that no file is called") from error
    return value


def _list(value: object, count: int | None = None) -> list[Any]:
    if not isinstance(value, list) or count not in (None, len(value)):
        raise ProtocolError("no list where one is expected, or one of another length")
    return value


def _pairs(value: object) -> Iterable[tuple[object, object]]:
    if not isinstance(value, dict):
        raise ProtocolError("no pairs where they are expected")
    return value.items()
