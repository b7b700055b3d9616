"""What is said between the process that opens people's mailboxes and the one that reads them: packets on a Unix socket. Pure.

The kernel keeps the borders of packets (SOCK_SEQPACKET, unix(7)). Every value is a text with a NUL behind it, which no name of a file
can hold. Whoever listens speaks first: what it serves, by `fingerprint`, or why it will not. A question is one packet, a verb and its
values; an answer one or more, each a mark and a piece of the values, since a folder may have more names than a packet has room for. To
`open` the answer has the descriptor with it (SCM_RIGHTS).

Must never build anything from what it reads but numbers and texts, and never take more than there are bounds for.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from spamguard.batches import batches
from spamguard.folders.contract import Changes, File, Mailbox, Place

LONGEST_QUESTION = 32 << 10  # bytes: a path, a directory and a name, and then some
LONGEST_ANSWER = 64 << 10  # of one packet
MOST = 512 << 20  # bytes of a whole answer: some millions of names
MORE, LAST, ERROR = b"+", b".", b"!"
_VERSION = "2"
_OF_MAILBOX, _OF_PLACE = 3, 4  # values


class PacketError(ValueError):
    """What was received is not what this module writes."""


def fingerprint(patterns: Iterable[tuple[str, str]]) -> str:
    """Of patterns of Maildirs and whose they are, in their order, and of this way to talk: both sides must mean the same."""
    return hashlib.blake2b(pack([_VERSION, *(text for pattern in patterns for text in pattern)]), digest_size=16).hexdigest()


def pack(values: Sequence[str]) -> bytes:
    """Values as they are sent."""
    return ("\0".join(values) + "\0").encode("utf-8", "surrogateescape") if values else b""


def unpack(data: bytes) -> list[str]:
    """What `pack` has packed. PacketError."""
    values = data.decode("utf-8", "surrogateescape").split("\0")
    if values.pop():
        raise PacketError("the end is missing")
    return values


def answer(values: Sequence[str]) -> Iterator[bytes]:
    """The packets of an answer."""
    data = pack(values)
    size = LONGEST_ANSWER - 1
    for start in range(0, max(1, len(data)), size):
        yield (LAST if start + size >= len(data) else MORE) + data[start : start + size]


def refusal(error: OSError) -> bytes:
    """The packet that says no."""
    named = error.filename if isinstance(error.filename, str) else ""
    return ERROR + pack([str(error.errno or errno.EIO), error.strerror or "cannot be done", named])


def refused(values: Sequence[str]) -> OSError:
    """The error of a `refusal`. PacketError."""
    code, text, named = _exactly(3, values)
    return OSError(number(code), text, named or None)


# ---- what is talked about, as values


def of_mailboxes(mailboxes: Iterable[Mailbox]) -> list[str]:
    """Three values each."""
    return [text for one in mailboxes for text in (str(one.watch), one.user, one.path)]


def mailboxes(values: Sequence[str]) -> list[Mailbox]:
    """PacketError."""
    return [mailbox(some) for some in batches(values, _OF_MAILBOX)]


def mailbox(values: Sequence[str]) -> Mailbox:
    """PacketError."""
    watch, user, path = _exactly(_OF_MAILBOX, values)
    return Mailbox(user, path, number(watch))


def of_place(place: Place) -> list[str]:
    """Four values."""
    return [*of_mailboxes([place.mailbox]), place.directory]


def place(values: Sequence[str]) -> Place:
    """PacketError."""
    *of_mailbox, directory = _exactly(_OF_PLACE, values)
    return Place(mailbox(of_mailbox), directory)


def of_message(place: Place, file: File) -> list[str]:
    """Six values."""
    return [*of_place(place), file.part, file.name]


def message(values: Sequence[str]) -> tuple[Place, File]:
    """PacketError."""
    *of_folder, part, name = _exactly(_OF_PLACE + 2, values)
    return place(of_folder), File(part, name)


def of_names(names: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Each part with the number of its names, and these."""
    return [text for part, some in names for text in (part, str(len(some)), *some)]


def names(values: Sequence[str]) -> dict[str, list[str]]:
    """PacketError."""
    found: dict[str, list[str]] = {}
    left = iter(values)
    for part in left:
        count = number(next(left, ""))
        found[part] = _exactly(count, list(islice(left, count)))
    return found


def of_pairs(pairs: Mapping[str, str]) -> list[str]:
    """Letters of keywords and their names in turns, or the like."""
    return [text for pair in pairs.items() for text in pair]


def pairs(values: Sequence[str]) -> dict[str, str]:
    """PacketError."""
    return dict(zip(values[::2], _exactly(len(values) - len(values) // 2, values[1::2]), strict=True))


def of_changes(changes: Changes) -> list[str]:
    """Two flags, the number of mailboxes, these, and the folders."""
    flags = [str(int(changes.everything)), str(int(changes.users)), str(len(changes.mailboxes))]
    return [*flags, *of_mailboxes(changes.mailboxes), *(text for one in changes.folders for text in of_place(one))]


def changes(values: Sequence[str]) -> Changes:
    """PacketError."""
    everything, users, count = map(number, _exactly(3, values[:3]))
    end = 3 + count * _OF_MAILBOX
    folders = (place(some) for some in batches(values[end:], _OF_PLACE))
    return Changes(frozenset(folders), frozenset(mailboxes(values[3:end])), users=bool(users), everything=bool(everything))


def _exactly(count: int, values: Sequence[str]) -> list[str]:
    if len(values) != count:
        raise PacketError(f"{len(values)} values where {count} are expected")
    return list(values)


def number(text: str) -> int:
    """PacketError."""
    if len(text) > 9 or not (text.isascii() and text.isdecimal()):
        raise PacketError("no number where one is expected")
    return int(text)
