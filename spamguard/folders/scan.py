"""Looking at the folders of one mailbox: which files are new, which have gone, and what the new
ones are. Writes nothing anywhere.

Reads only files that were never seen. Whatever a file or a folder is like ends in one line of the
log, and the others are looked at.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard import keys
from spamguard.engine.prepare import ExampleReader
from spamguard.errors import SpamguardError
from spamguard.folders.mailboxes import (
    Folder,
    Issue,
    Mailbox,
    Mailboxes,
    MessageFile,
    describe_folder,
    file_key,
    iter_files,
)
from spamguard.folders.reconcile import Arrival, FileKey, short_hash
from spamguard.keys import SignedVerdict
from spamguard.log import WarnOnce
from spamguard.sources import DamagedFileError, UnreadableFileError, decompress

_log = logging.getLogger("spamguard.folders")

_NAMES_PER_STEP = 50_000  # taken apart at a step: some tenths of a second
_MAX_HEADER_BYTES = 64 << 10
_DAY_SECONDS = 86_400
_PERMANENT_ERRORS = (
    errno.ENOENT,
    errno.ELOOP,
    errno.EINVAL,
)  # what is not there, a link, no regular file: no reason to come back for it
_MAX_FIELDS = 4  # ours is the first, whoever wrote the others
_VERDICT_FIELD, _RECEIVED_FIELD = (
    re.compile(rb"^%b:((?:[^\r\n]|\r?\n[ \t])*)" % name, re.MULTILINE | re.IGNORECASE)
    for name in (b"X-Spamguard", b"Received")
)
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


class FoundFile(NamedTuple):
    """A file that was not there before. name: `names.key` of its base name."""

    folder: Folder
    file: MessageFile
    name: int

    @property
    def key(self) -> FileKey:
        """The same without the mailbox."""
        return self.folder.directory, self.name


class StoredMessage(NamedTuple):
    """What a file holds. signed: what we once said about it, if a valid signature tells. received:
    as of `Arrival`.
    """

    raw: bytes
    digest: bytes
    signed: SignedVerdict | None
    received: int

    def repeats_our_verdict(self, label: str, unwanted: Collection[str]) -> bool:
        """Whether who calls it so may only have taken our word for it."""
        return self.signed is not None and self.signed.label in unwanted and label in unwanted


@dataclass(slots=True)
class FolderScan:
    """What one look found. new: files that were not there before. gone: those no longer there.
    again: a file was still being written, or has moved on: look again soon. closed: a folder or
    file could not be read, which may pass.

    renamed: of folders whose flags and keywords count (`weighing`): the files whose names have
    changed since the last look, new ones too.
    """

    new: dict[FileKey, FoundFile] = field(default_factory=dict)
    gone: set[FileKey] = field(default_factory=set)
    retry_soon: bool = False
    unreadable: bool = False
    renamed: dict[Folder, list[FoundFile]] = field(default_factory=dict)


class _Listing(NamedTuple):
    """Names of a folder: hashes of this process, sorted, an end mark behind them; and keys of their
    base names, 0 for what has none.
    """

    hashes: NDArray[np.int64]
    keys: NDArray[np.int64]


_END_MARK = np.int64(np.iinfo(np.int64).max)
_EMPTY_LISTING = _Listing(np.array([_END_MARK]), np.zeros(1, np.int64))


def compare_listing(
    known: NDArray[np.int64], keys: NDArray[np.int64]
) -> tuple[list[int], list[int]]:
    """What is new and what has gone in a folder: indices into `keys`, and keys of base names.

    known: keys of the base names that were there, sorted. keys: `names.key_of` of the files that
    are.
    """
    messages = np.flatnonzero(keys)
    present, first = np.unique(keys[messages], return_index=True)
    new = np.sort(messages[first[~is_known(present, known)]])
    return new.tolist(), known[~is_known(known, present)].tolist()


def is_known(values: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the values are known. known: sorted, which makes this three times as fast as
    `np.isin`.
    """
    if not len(known):
        return np.zeros(len(values), np.bool_)
    return np.equal(known[np.minimum(np.searchsorted(known, values), len(known) - 1)], values)


class FolderScanner:
    """Reads mailboxes. key: the installation's."""

    def __init__(self, mailboxes: Mailboxes, key: bytes, warnings: WarnOnce | None = None) -> None:
        self.extractor = ExampleReader(key)
        self._mailboxes = mailboxes
        self._verdict_key = keys.derive_key(key, b"verdict")
        self._warnings = warnings or WarnOnce(_log)
        self._listings: dict[Mailbox, dict[str, _Listing]] = {}  # by directory

    def scan(
        self,
        place: Folder,
        known: NDArray[np.int64],
        looked: FolderScan,
        *,
        with_renamed: bool = False,
    ) -> Iterator[None]:
        """Compare a folder with what is known of it, keys of base names, in steps; `looked` gets
        what has changed.
        """
        try:
            listed = self._mailboxes.list_files(place)
        except FileNotFoundError:
            listed = {}
        except OSError as error:
            self._warnings.warn(
                Issue(place),
                "%s: cannot be looked at (%s): moves into it teach nothing",
                describe_folder(place),
                error.strerror,
            )
            looked.unreadable = True
            return
        self._warnings.clear(Issue(place))
        parts = list(chain.from_iterable(repeat(part, len(some)) for part, some in listed.items()))
        found = list(chain.from_iterable(listed.values()))
        fresh, keys = yield from self._name_keys(place, found)
        new, gone = compare_listing(known, keys)
        renamed = (
            np.flatnonzero((keys != 0) & (fresh | ~is_known(keys, known))).tolist()
            if with_renamed
            else []
        )
        of_new, of_renamed = (
            [FoundFile(place, MessageFile(parts[one], found[one]), int(keys[one])) for one in some]
            for some in (new, renamed)
        )
        looked.new.update((one.key, one) for one in of_new)
        looked.gone.update((place.directory, name) for name in gone)
        if with_renamed:
            looked.renamed[place] = of_renamed

    def _name_keys(
        self, place: Folder, found: Sequence[str]
    ) -> Generator[None, None, tuple[NDArray[np.bool_], NDArray[np.int64]]]:
        """Which names were not there at the last look, and the key of each.

        Those that were are not taken apart again, which in a folder of 100,000 takes most of the
        time.
        """
        hashes = np.fromiter(map(hash, found), np.int64, len(found))
        before = self._listings.get(place.mailbox, {}).get(place.directory, _EMPTY_LISTING)
        at = np.searchsorted(before.hashes, hashes)
        fresh, keys = before.hashes[at] != hashes, before.keys[at]
        others = np.flatnonzero(fresh)
        for start in range(0, len(others), _NAMES_PER_STEP):
            some = others[start : start + _NAMES_PER_STEP]
            keys[some] = np.fromiter((file_key(found[one]) for one in some), np.int64, len(some))
            if start + _NAMES_PER_STEP < len(others):
                yield
        order = np.argsort(hashes)
        self.forget_folder(place)
        if found:  # of others nothing is kept: people rename and remove as many as they like
            listing = _Listing(np.append(hashes[order], _END_MARK), np.append(keys[order], 0))
            self._listings.setdefault(place.mailbox, {})[place.directory] = listing
        return fresh, keys

    def forget_folder(self, place: Folder) -> None:
        """Take all names of a folder, at the next look, for such as have changed."""
        self._listings.get(place.mailbox, {}).pop(place.directory, None)

    def forget_mailbox(self, mailbox: Mailbox) -> None:
        """The same for all folders that a mailbox has or had."""
        self._listings.pop(mailbox, None)

    def read_arrivals(
        self, found: Sequence[FoundFile], looked: FolderScan
    ) -> Iterator[Arrival | None]:
        """What was found, each read when it is asked for; None: it has moved on, or cannot be read
        now, or is not whole yet.

        `looked` gets where to look again.
        """
        return (self._read_arrival(one, looked) for one in found)

    def _read_arrival(self, found: FoundFile, looked: FolderScan) -> Arrival | None:
        folder = found.folder.directory
        try:
            message = self._read(found.folder, found.file)
        except UnfinishedFileError:
            looked.retry_soon = True
            return None
        except (UnreadableFileError, OSError) as error:
            self._warn_unreadable(found.folder, found.file, error)
            looked.unreadable = looked.unreadable or (
                isinstance(error, OSError) and error.errno not in _PERMANENT_ERRORS
            )
            return (
                Arrival(folder, found.name, b"") if isinstance(error, UnreadableFileError) else None
            )
        return Arrival(folder, found.name, message.digest, message.signed, message.received)

    def _warn_unreadable(
        self, place: Folder, file: MessageFile, error: UnreadableFileError | OSError
    ) -> None:
        """What has moved on is nothing to speak of; of what cannot be read for one reason, one of a
        mailbox is.
        """
        where = f"{describe_folder(place)}: {file.name}"
        if isinstance(error, UnreadableFileError):
            self._warnings.warn(
                (place.mailbox.path, str(error)),
                "%s: %s; it teaches nothing, nor do others like it",
                where,
                error,
            )
        elif not isinstance(error, FileNotFoundError):
            why = (
                "is a symbolic link, which is not followed"
                if error.errno == errno.ELOOP
                else error.strerror
            )
            files = Issue(
                place, (error.errno, int(time.time()) // _DAY_SECONDS), transient=True
            )  # told once a day, however many there are
            self._warnings.warn(
                files, "%s: cannot be read (%s); others like it there are not told", where, why
            )

    def read_signed(self, place: Folder, file: MessageFile) -> StoredMessage | None:
        """A message; None: it cannot be read, or not yet."""
        try:
            return self._read(place, file)
        except UnfinishedFileError:
            return None
        except (UnreadableFileError, OSError) as error:
            self._warn_unreadable(place, file, error)
            return None

    def read_message(self, place: Folder, file: MessageFile, digest: bytes) -> bytes | None:
        """The message of this digest; None: it is not there any more."""
        try:
            message = self._read(place, file)
        except (OSError, UnreadableFileError, UnfinishedFileError):
            return None
        return message.raw if message.digest == digest else None

    def find_files(self, place: Folder, wanted: Collection[int]) -> dict[int, MessageFile]:
        """Files of a folder by the keys of their base names; none of one that cannot be looked at,
        which is told where folders are.
        """
        try:
            return {
                key: file
                for file in iter_files(self._mailboxes.list_files(place))
                if (key := file_key(file.name)) in wanted
            }
        except OSError:
            return {}

    def _read(self, place: Folder, file: MessageFile) -> StoredMessage:
        """UnfinishedError, UnreadableError, OSError."""
        descriptor = self._mailboxes.open_file(place, file)
        try:
            raw = read_message(descriptor, file.name)
        finally:
            os.close(descriptor)
        digest, head = self.extractor.digest(raw), _header_section(raw)
        return StoredMessage(raw, digest, self._find_verdict(head, digest), _received_hash(head))

    def _find_verdict(self, head: bytes, digest: bytes) -> SignedVerdict | None:
        """What we once said about a message, if its header bears that."""
        for one in islice(_VERDICT_FIELD.finditer(head), _MAX_FIELDS):
            if found := keys.verify_verdict(self._verdict_key, one[1], digest):
                return found
        return None


def _header_section(raw: bytes) -> bytes:
    """The header section, as far as it matters here."""
    head = raw[:_MAX_HEADER_BYTES]
    end = _BLANK_LINE.search(head)
    return head[: end.start()] if end else head


def _received_hash(head: bytes) -> int:
    """As `Arrival.received`: no two deliveries have it in common, and mail programs leave it alone."""
    found = _RECEIVED_FIELD.search(head)
    return short_hash(b" ".join(found[1].split())) if found else 0


# ---- one message out of an open file

MAX_FILE_BYTES = (
    64 << 20
)  # bytes; what lies beyond is not read: two messages that differ only there are taken for one
QUIET_SECONDS = (
    1.0  # without a change, after which a file is whole although its name does not tell its size
)
_ABANDONED_SECONDS = 60.0  # seconds, after which an incomplete file will not be completed
_SIZE_FIELD = re.compile(
    r",S=([0-9]{1,15})(?=[,:]|$)"
)  # Dovecot's note of how long the message is, unpacked


class UnfinishedFileError(SpamguardError):
    """The file is still being written: look again."""


def read_message(descriptor: int, name: str) -> bytes:
    """The message in a file, at most `MOST` bytes of it. name: of the file. UnfinishedError,
    UnreadableError, OSError.
    """
    before = os.fstat(descriptor)
    packed = _read_contents(descriptor)
    after = os.fstat(descriptor)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise UnfinishedFileError(f"{name}: is being written")
    age = abs(
        time.time() - after.st_mtime
    )  # a clock that was set back makes nothing young for ever
    try:
        raw = decompress(packed, MAX_FILE_BYTES)
    except DamagedFileError:
        if age < _ABANDONED_SECONDS:
            raise UnfinishedFileError(f"{name}: is being written") from None
        raise
    _check_complete(raw, name, age)
    return raw


def _check_complete(raw: bytes, name: str, age: float) -> None:
    told = _SIZE_FIELD.search(name)
    missing = told is not None and len(raw) < min(int(told[1]), MAX_FILE_BYTES)
    if (missing or not raw) and age < _ABANDONED_SECONDS:
        raise UnfinishedFileError(f"{name}: is being written")
    if told is None and age < QUIET_SECONDS:
        raise UnfinishedFileError(f"{name}: may still be written")
    if not raw:
        raise UnreadableFileError("is empty")


def _read_contents(descriptor: int) -> bytes:
    found = bytearray()
    while len(found) < MAX_FILE_BYTES and (
        piece := os.read(descriptor, min(1 << 20, MAX_FILE_BYTES - len(found)))
    ):
        found += piece
    return bytes(found)
