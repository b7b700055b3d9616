"""Looking at the folders of one mailbox: which files are new, which have gone, and what the new ones are. Writes nothing anywhere.

Reads only files that were never seen. Whatever a file or a folder is like ends in one line of the log, and the others are looked at.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard import secret, signature
from spamguard.folders import names
from spamguard.folders.contract import File, Mailbox, Mailboxes, Place, files
from spamguard.folders.once import Matter, Once
from spamguard.folders.reading import UnfinishedError, read
from spamguard.folders.reconcile import among, compare, short_hash
from spamguard.folders.values import Arrival, Key
from spamguard.packed import UnreadableError
from spamguard.prepare import Preparer
from spamguard.signature import Signed

_NAMES = 50_000  # taken apart at a step: some tenths of a second
_HEAD_BYTES = 64 << 10
_DAY = 86_400
_STAYS = (errno.ENOENT, errno.ELOOP, errno.EINVAL)  # what is not there, a link, no regular file: no reason to come back for it
_MOST_FIELDS = 4  # ours is the first, whoever wrote the others
_OURS, _RECEIVED = (
    re.compile(rb"^%b:((?:[^\r\n]|\r?\n[ \t])*)" % name, re.MULTILINE | re.IGNORECASE) for name in (b"X-Spamguard", b"Received")
)
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


class Found(NamedTuple):
    """A file that was not there before. name: `names.key` of its base name."""

    place: Place
    file: File
    name: int

    @property
    def key(self) -> Key:
        """The same without the mailbox."""
        return self.place.directory, self.name


class Message(NamedTuple):
    """What a file holds. signed: what we once said about it, if a valid signature tells. received: as of `Arrival`."""

    raw: bytes
    digest: bytes
    signed: Signed | None
    received: int

    def is_our_own(self, label: str, unwanted: Collection[str]) -> bool:
        """Whether who calls it so may only have taken our word for it."""
        return self.signed is not None and self.signed.label in unwanted and label in unwanted


@dataclass(slots=True)
class Looked:
    """What one look found. new: files that were not there before. gone: those no longer there. again: a file was still being written, or
    has moved on: look again soon. closed: a folder or file could not be read, which may pass.

    renamed: of folders whose flags and keywords count (`weighing`): the files whose names have changed since the last look, new ones too.
    """

    new: dict[Key, Found] = field(default_factory=dict)
    gone: set[Key] = field(default_factory=set)
    again: bool = False
    closed: bool = False
    renamed: dict[Place, list[Found]] = field(default_factory=dict)


class _Listing(NamedTuple):
    """Names of a folder: hashes of this process, sorted, an end mark behind them; and keys of their base names, 0 for what has none."""

    hashes: NDArray[np.int64]
    keys: NDArray[np.int64]


_LAST = np.int64(np.iinfo(np.int64).max)
_NOTHING = _Listing(np.array([_LAST]), np.zeros(1, np.int64))


class Scanner:
    """Reads mailboxes. key: the installation's."""

    def __init__(self, mailboxes: Mailboxes, key: bytes, once: Once) -> None:
        self.preparer = Preparer(key)
        self._mailboxes = mailboxes
        self._verdict_key = secret.derived(key, b"verdict")
        self._once = once
        self._listings: dict[Mailbox, dict[str, _Listing]] = {}  # by directory

    def look(self, place: Place, known: NDArray[np.int64], looked: Looked, *, weighed: bool = False) -> Iterator[None]:
        """Compare a folder with what is known of it, keys of base names, in steps; `looked` gets what has changed."""
        try:
            listed = self._mailboxes.names(place)
        except FileNotFoundError:
            listed = {}
        except OSError as error:
            self._once.warn(Matter(place), "%s: cannot be looked at (%s): moves into it teach nothing", told(place), error.strerror)
            looked.closed = True
            return
        self._once.over(Matter(place))
        parts = list(chain.from_iterable(repeat(part, len(some)) for part, some in listed.items()))
        found = list(chain.from_iterable(listed.values()))
        fresh, keys = yield from self._keys(place, found)
        new, gone = compare(known, keys)
        renamed = np.flatnonzero((keys != 0) & (fresh | ~among(keys, known))).tolist() if weighed else []
        of_new, of_renamed = ([Found(place, File(parts[one], found[one]), int(keys[one])) for one in some] for some in (new, renamed))
        looked.new.update((one.key, one) for one in of_new)
        looked.gone.update((place.directory, name) for name in gone)
        if weighed:
            looked.renamed[place] = of_renamed

    def _keys(self, place: Place, found: Sequence[str]) -> Generator[None, None, tuple[NDArray[np.bool_], NDArray[np.int64]]]:
        """Which names were not there at the last look, and the key of each.

        Those that were are not taken apart again, which in a folder of 100,000 takes most of the time.
        """
        hashes = np.fromiter(map(hash, found), np.int64, len(found))
        before = self._listings.get(place.mailbox, {}).get(place.directory, _NOTHING)
        at = np.searchsorted(before.hashes, hashes)
        fresh, keys = before.hashes[at] != hashes, before.keys[at]
        others = np.flatnonzero(fresh)
        for start in range(0, len(others), _NAMES):
            some = others[start : start + _NAMES]
            keys[some] = np.fromiter((names.key_of(found[one]) for one in some), np.int64, len(some))
            if start + _NAMES < len(others):
                yield
        order = np.argsort(hashes)
        self.look_anew(place)
        if found:  # of others nothing is kept: people rename and remove as many as they like
            listing = _Listing(np.append(hashes[order], _LAST), np.append(keys[order], 0))
            self._listings.setdefault(place.mailbox, {})[place.directory] = listing
        return fresh, keys

    def look_anew(self, place: Place) -> None:
        """Take all names of a folder, at the next look, for such as have changed."""
        self._listings.get(place.mailbox, {}).pop(place.directory, None)

    def forget(self, mailbox: Mailbox) -> None:
        """The same for all folders that a mailbox has or had."""
        self._listings.pop(mailbox, None)

    def arrivals(self, found: Sequence[Found], looked: Looked) -> Iterator[Arrival | None]:
        """What was found, each read when it is asked for; None: it has moved on, or cannot be read now, or is not whole yet.

        `looked` gets where to look again.
        """
        return (self._arrival(one, looked) for one in found)

    def _arrival(self, found: Found, looked: Looked) -> Arrival | None:
        folder = found.place.directory
        try:
            message = self._read(found.place, found.file)
        except UnfinishedError:
            looked.again = True
            return None
        except (UnreadableError, OSError) as error:
            self._tell(found.place, found.file, error)
            looked.closed = looked.closed or (isinstance(error, OSError) and error.errno not in _STAYS)
            return Arrival(folder, found.name, b"") if isinstance(error, UnreadableError) else None
        return Arrival(folder, found.name, message.digest, message.signed, message.received)

    def _tell(self, place: Place, file: File, error: UnreadableError | OSError) -> None:
        """What has moved on is nothing to speak of; of what cannot be read for one reason, one of a mailbox is."""
        where = f"{told(place)}: {file.name}"
        if isinstance(error, UnreadableError):
            self._once.warn((place.mailbox.path, str(error)), "%s: %s; it teaches nothing, nor do others like it", where, error)
        elif not isinstance(error, FileNotFoundError):
            why = "is a symbolic link, which is not followed" if error.errno == errno.ELOOP else error.strerror
            files = Matter(place, (error.errno, int(time.time()) // _DAY), passing=True)  # told once a day, however many there are
            self._once.warn(files, "%s: cannot be read (%s); others like it there are not told", where, why)

    def read_signed(self, place: Place, file: File) -> Message | None:
        """A message; None: it cannot be read, or not yet."""
        try:
            return self._read(place, file)
        except UnfinishedError:
            return None
        except (UnreadableError, OSError) as error:
            self._tell(place, file, error)
            return None

    def message(self, place: Place, file: File, digest: bytes) -> bytes | None:
        """The message of this digest; None: it is not there any more."""
        try:
            message = self._read(place, file)
        except (OSError, UnreadableError, UnfinishedError):
            return None
        return message.raw if message.digest == digest else None

    def files(self, place: Place, wanted: Collection[int]) -> dict[int, File]:
        """Files of a folder by the keys of their base names; none of one that cannot be looked at, which is told where folders are."""
        try:
            return {key: file for file in files(self._mailboxes.names(place)) if (key := names.key_of(file.name)) in wanted}
        except OSError:
            return {}

    def _read(self, place: Place, file: File) -> Message:
        """UnfinishedError, UnreadableError, OSError."""
        descriptor = self._mailboxes.open(place, file)
        try:
            raw = read(descriptor, file.name)
        finally:
            os.close(descriptor)
        digest, head = self.preparer.digest(raw), _head(raw)
        return Message(raw, digest, self._signed(head, digest), _received(head))

    def _signed(self, head: bytes, digest: bytes) -> Signed | None:
        """What we once said about a message, if its header bears that."""
        for one in islice(_OURS.finditer(head), _MOST_FIELDS):
            if found := signature.verify(self._verdict_key, one[1], digest):
                return found
        return None


def _head(raw: bytes) -> bytes:
    """The header section, as far as it matters here."""
    head = raw[:_HEAD_BYTES]
    end = _BLANK_LINE.search(head)
    return head[: end.start()] if end else head


def _received(head: bytes) -> int:
    """As `Arrival.received`: no two deliveries have it in common, and mail programs leave it alone."""
    found = _RECEIVED.search(head)
    return short_hash(b" ".join(found[1].split())) if found else 0


def told(place: Place) -> str:
    """A folder, for people."""
    return f"{place.mailbox.path} {names.display(place.directory)}"
