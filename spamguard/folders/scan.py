"""What is new in a folder, what has gone, and what the new files are.

A scan compares the names in a folder with the names that were there last time. Only new files are
opened. Each is read and taken apart once: a `StoredMessage` has the digest, by which the message is
known again wherever it goes, and can give its `Example` as long as it is at hand. Examples of
messages that may be lessons stay in the `FolderScan`, up to MAX_EXAMPLE_BYTES, until they are cast
as votes. `find_filed` and `initial_lessons` read what users filed before anybody watched
(`teach-folders`).

A trouble with a file or a folder ends in one line of the log, and the scan goes on. This module
writes nothing. It must never read more than MAX_FILE_BYTES of a message, packed or unpacked, nor
take for a message what is still being written.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard import keys
from spamguard.engine.prepare import Example, ExampleReader, SplitMessage
from spamguard.errors import SpamguardError
from spamguard.folders.broker import Mailboxes
from spamguard.folders.mailboxes import (
    Folder,
    Mailbox,
    MessageFile,
    file_key,
    iter_files,
    parse_file_name,
)
from spamguard.folders.reconcile import Arrival, FileKey, short_hash
from spamguard.folders.roles import (
    INBOX_NAME,
    FolderKind,
    RoleLookup,
    describe_folder,
    folder_parts,
)
from spamguard.keys import SignedVerdict
from spamguard.log import WarnOnce
from spamguard.sources import DamagedFileError, UnreadableFileError, decompress, is_deleted

_log = logging.getLogger("spamguard.folders")

MAX_EXAMPLE_BYTES = 8 << 20  # of features in one scan: about 3,000 messages
MAX_FILE_BYTES = 64 << 20  # two messages that differ only beyond this are taken for one
QUIET_SECONDS = 1.0  # a file without its size in its name is whole if unchanged for so long
_ABANDONED_SECONDS = 60.0  # after which nobody will complete an incomplete file
_DAY_SECONDS = 86_400
_SIZE_FIELD = re.compile(r",S=([0-9]{1,15})(?=[,:]|$)")  # Dovecot's size of the unpacked message
_MAX_HEADER_BYTES = 64 << 10
_MAX_VERDICT_FIELDS = 4  # ours is on top, but anybody may have written more
_VERDICT_FIELD, _RECEIVED_FIELD = (
    re.compile(rb"^%b:((?:[^\r\n]|\r?\n[ \t])*)" % name, re.MULTILINE | re.IGNORECASE)
    for name in (b"X-Spamguard", b"Received")
)
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


class Issue(NamedTuple):
    """A trouble with a mailbox or a folder, as a key of `WarnOnce`.

    kind: which trouble; empty: it cannot be read. transient: nothing will tell when it is over, as
    with a single file, so it stands for a day.
    """

    subject: Mailbox | Folder
    kind: Hashable = ""
    transient: bool = False

    @property
    def mailbox(self) -> Mailbox:
        return self.subject.mailbox if isinstance(self.subject, Folder) else self.subject


def clear_issues(warnings: WarnOnce, is_over: Callable[[Issue], bool]) -> None:
    """These issues are over, or concern nobody any more."""
    if issues := [key for key in warnings.standing() if isinstance(key, Issue) and is_over(key)]:
        warnings.clear(*issues)


class UnfinishedFileError(SpamguardError):
    """The file is still being written: read it later."""


class FoundFile(NamedTuple):
    """A file of a folder. name: `file_key` of its name."""

    folder: Folder
    file: MessageFile
    name: int

    @property
    def key(self) -> FileKey:
        return self.folder.directory, self.name


class StoredMessage(NamedTuple):
    """A message out of a file, taken apart once.

    signed: our verdict, if the header has one with a valid signature. received: as in `Arrival`.
    is_probe: whether `doctor` has sent it.
    """

    message: SplitMessage
    signed: SignedVerdict | None
    received: int
    is_probe: bool = False

    @property
    def digest(self) -> bytes:
        return self.message.digest


@dataclass
class FolderScan:
    """What one scan of some folders of a mailbox has found.

    new, gone: files that were not there before, and those that are not there any more. retry_soon:
    a file was still being written, or has moved on. renamed: by folder whose evidence counts, the
    files with new names, new files among them. examples: of new files that may be lessons, until
    they are taught.
    """

    new: dict[FileKey, FoundFile] = field(default_factory=dict)
    gone: set[FileKey] = field(default_factory=set)
    retry_soon: bool = False
    renamed: dict[Folder, list[FoundFile]] = field(default_factory=dict)
    examples: dict[FileKey, Example] = field(default_factory=dict)
    example_bytes: int = 0


_Listing = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Names of a folder: their hashes, sorted and with an end mark, and the key of each."""
_END_MARK = np.int64(np.iinfo(np.int64).max)
_EMPTY_LISTING = np.array([_END_MARK]), np.zeros(1, np.int64)


class FolderScanner:
    """Reads mailboxes with the installation's key."""

    def __init__(self, mailboxes: Mailboxes, key: bytes, warnings: WarnOnce | None = None) -> None:
        self._mailboxes = mailboxes
        self._reader = ExampleReader(key)
        self._verdict_key = keys.derive_key(key, b"verdict")
        self._warnings = warnings or WarnOnce(_log)
        self._listings: dict[Mailbox, dict[str, _Listing]] = {}  # by directory

    # ---- names

    def scan(
        self,
        folder: Folder,
        before: NDArray[np.int64],
        result: FolderScan,
        *,
        with_renamed: bool = False,
    ) -> None:
        """Add what has changed in a folder to `result`.

        before: the keys of the names that were there last time, sorted.
        """
        try:
            listed = self._mailboxes.list_files(folder)
        except FileNotFoundError:
            listed = {}
        except OSError as error:
            self._warnings.warn(
                Issue(folder),
                "%s: cannot be looked at (%s): moves into it teach nothing",
                describe_folder(folder),
                error.strerror,
            )
            return
        self._warnings.clear(Issue(folder))
        messages = list(iter_files(listed))
        fresh, keys = self._name_keys(folder, [message.name for message in messages])

        def files(indices: list[int]) -> list[FoundFile]:
            return [FoundFile(folder, messages[index], int(keys[index])) for index in indices]

        new, missing = compare_listing(before, keys)
        result.new.update((file.key, file) for file in files(new))
        result.gone.update((folder.directory, name) for name in missing)
        if with_renamed:
            renamed = np.flatnonzero((keys != 0) & (fresh | ~np.isin(keys, before)))
            result.renamed[folder] = files(renamed.tolist())

    def _name_keys(
        self, folder: Folder, names: Sequence[str]
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Which names were not there in the last scan, and the key of each name.

        The keys of the others are remembered: hashing 100,000 names takes longer than all the rest.
        """
        hashes = np.fromiter(map(hash, names), np.int64, len(names))
        listings = self._listings.setdefault(folder.mailbox, {})
        known, known_keys = listings.pop(folder.directory, _EMPTY_LISTING)
        places = np.searchsorted(known, hashes)
        fresh, keys = known[places] != hashes, known_keys[places]
        keys[fresh] = [file_key(names[index]) for index in np.flatnonzero(fresh).tolist()]
        order = np.argsort(hashes)
        if names:  # nothing is kept of empty folders: users make as many as they like
            sorted_keys = np.append(keys[order], 0)
            listings[folder.directory] = np.append(hashes[order], _END_MARK), sorted_keys
        return fresh, keys

    def forget_mailbox(self, mailbox: Mailbox) -> None:
        """The next scan takes all names in this mailbox for renamed ones."""
        self._listings.pop(mailbox, None)

    def find_files(self, folder: Folder, names: Collection[int]) -> dict[int, MessageFile]:
        """The files of a folder with these keys; none if the folder cannot be read."""
        try:
            return {
                key: file
                for file in iter_files(self._mailboxes.list_files(folder))
                if (key := file_key(file.name)) in names
            }
        except OSError:
            return {}

    # ---- messages

    def read_arrival(
        self, new: FoundFile, result: FolderScan, may_teach: Callable[[Arrival], bool]
    ) -> Arrival | None:
        """Read a new file, and keep its example in `result` if it may teach.

        None: the message has moved on, is not whole yet or cannot be read now, as then noted in
        `result`. A file that will never be a message has no digest.
        """
        folder = new.folder.directory
        try:
            stored = self._read(new.folder, new.file)
        except UnfinishedFileError:
            result.retry_soon = True
            return None
        except (UnreadableFileError, OSError) as error:
            self._warn_unreadable(new.folder, new.file, error)
            is_lasting = isinstance(error, UnreadableFileError)
            return Arrival(folder, new.name, b"") if is_lasting else None
        if stored.is_probe:  # teaches nothing, wherever it is put
            return Arrival(folder, new.name, b"")
        arrival = Arrival(folder, new.name, stored.digest, stored.signed, stored.received)
        # Where there are too many, the file is read again.
        if may_teach(arrival) and result.example_bytes < MAX_EXAMPLE_BYTES:
            example = result.examples[new.key] = stored.message.example()
            result.example_bytes += example.features.tokens.nbytes
        return arrival

    def read_signed(self, folder: Folder, file: MessageFile) -> StoredMessage | None:
        """A message; None if it cannot be read, which is logged, or not yet."""
        try:
            return self._read(folder, file)
        except UnfinishedFileError:
            return None
        except (UnreadableFileError, OSError) as error:
            self._warn_unreadable(folder, file, error)
            return None

    def read_example(self, folder: Folder, file: MessageFile, digest: bytes) -> Example | None:
        """The example of a message; None if the file does not hold it any more."""
        try:
            stored = self._read(folder, file)
        except (OSError, UnreadableFileError, UnfinishedFileError):
            return None
        return stored.message.example() if stored.digest == digest else None

    def _read(self, folder: Folder, file: MessageFile) -> StoredMessage:
        """Raises UnfinishedFileError, UnreadableFileError, OSError."""
        descriptor = self._mailboxes.open_file(folder, file)
        try:
            raw = read_message(descriptor, file.name)
        finally:
            os.close(descriptor)
        message = self._reader.split(raw)
        header = raw[:_MAX_HEADER_BYTES]
        if end := _BLANK_LINE.search(header):
            header = header[: end.start()]
        # No two deliveries have the same topmost Received field, and mail programs leave it alone.
        received = _RECEIVED_FIELD.search(header)
        received_hash = short_hash(b" ".join(received[1].split())) if received else 0
        is_probe = keys.is_probe(self._verdict_key, header, time.time())
        for value in islice(_VERDICT_FIELD.finditer(header), _MAX_VERDICT_FIELDS):
            if signed := keys.verify_verdict(self._verdict_key, value[1], message.digest):
                return StoredMessage(message, signed, received_hash, is_probe)
        return StoredMessage(message, None, received_hash, is_probe)

    def _warn_unreadable(
        self, folder: Folder, file: MessageFile, error: UnreadableFileError | OSError
    ) -> None:
        """Log the first file of a mailbox that cannot be read for this reason, of a folder the
        first of the day; nothing about a file that has moved on.
        """
        where = f"{describe_folder(folder)}: {file.name}"
        if isinstance(error, UnreadableFileError):
            text = "%s: %s; it teaches nothing, nor do others like it"
            self._warnings.warn((folder.mailbox.path, str(error)), text, where, error)
        elif not isinstance(error, FileNotFoundError):
            is_link = error.errno == errno.ELOOP
            self._warnings.warn(
                Issue(folder, (error.errno, int(time.time()) // _DAY_SECONDS), transient=True),
                "%s: cannot be read (%s); other files like it there are not logged",
                where,
                "is a symbolic link, which is not followed" if is_link else error.strerror,
            )


def compare_listing(
    before: NDArray[np.int64], keys: NDArray[np.int64]
) -> tuple[list[int], list[int]]:
    """The new files of a folder, as indices into `keys`, and the keys of those that have gone.

    before: keys of the files that were there, sorted. keys: `file_key` of the files that are there,
    0 for what is no message.

    >>> compare_listing(np.array([3, 5]), np.array([5, 0, 8]))
    ([2], [3])
    """
    messages = np.flatnonzero(keys)
    present, first = np.unique(keys[messages], return_index=True)
    new = np.sort(messages[first[~np.isin(present, before)]])
    return new.tolist(), before[~np.isin(before, present)].tolist()


# ---- one message out of an open file


def read_message(descriptor: int, name: str) -> bytes:
    """The message in a file, unpacked; at most MAX_FILE_BYTES of it. name: of the file; it may tell
    the size of the message. UnfinishedFileError, UnreadableFileError, OSError.
    """
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        packed = file.read(MAX_FILE_BYTES)
    # The absolute value: a clock that was set back must not make a file young for ever.
    age = abs(time.time() - os.fstat(descriptor).st_mtime)
    try:
        raw = decompress(packed, MAX_FILE_BYTES)
    except DamagedFileError:
        if age >= _ABANDONED_SECONDS:
            raise
        raw = b""
    size = _SIZE_FIELD.search(name)
    is_cut = size is not None and len(raw) < min(int(size[1]), MAX_FILE_BYTES)
    is_unfinished = (is_cut or not raw) and age < _ABANDONED_SECONDS
    if is_unfinished or (size is None and age < QUIET_SECONDS):
        raise UnfinishedFileError(name)
    if not raw:
        raise UnreadableFileError("is empty")
    return raw


# ---- what was filed before anybody watched


class FiledMessage(NamedTuple):
    """A message where its user has put it. label: the class of that folder."""

    folder: Folder
    file: MessageFile
    label: str


def find_filed(mailboxes: Mailboxes, mailbox: Mailbox, role: RoleLookup) -> list[FiledMessage]:
    """All messages of a mailbox that may teach, those of ham folders last.

    In INBOX only what was read may teach, and nowhere what is marked as deleted. A folder that
    cannot be read is logged; one that is deleted meanwhile is not.
    """
    filed: list[FiledMessage] = []
    with suppress(FileNotFoundError):
        for folder in mailboxes.list_folders(mailbox):
            kind, label = role(folder.directory)
            if kind is not FolderKind.CLASS:
                continue
            try:
                files = iter_files(mailboxes.list_files(folder))
                filed += [
                    FiledMessage(folder, file, label) for file in files if _may_teach(folder, file)
                ]
            except FileNotFoundError:
                continue
            except OSError as error:
                _log.warning(
                    "%s: cannot be looked at (%s): it teaches nothing",
                    describe_folder(folder),
                    error.strerror,
                )
    return sorted(
        filed,
        key=lambda message: (message.label == "ham", message.folder.directory, message.file.name),
    )


def _may_teach(folder: Folder, file: MessageFile) -> bool:
    name = None if is_deleted(file.name) else parse_file_name(file.name)
    is_inbox = folder_parts(folder.directory) == INBOX_NAME
    return name is not None and (not is_inbox or "S" in name.flags)


def initial_lessons(
    scanner: FolderScanner, filed: Collection[FiledMessage], unwanted: Collection[str]
) -> Iterator[tuple[FiledMessage, StoredMessage | None]]:
    """Each filed message with its content, in order; None: it teaches nothing, or cannot be read.

    A message in folders of several classes is of the first class. What we filed ourselves, as our
    signature tells, teaches nothing.
    """
    labels: dict[bytes, str] = {}
    for file in filed:
        stored = scanner.read_signed(file.folder, file.file)
        if stored is not None and (
            labels.setdefault(stored.digest, file.label) != file.label
            or (stored.signed and {stored.signed.label, file.label} <= set(unwanted))
        ):
            stored = None
        yield file, stored
