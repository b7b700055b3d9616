"""Files that nobody else may read, messages on their way through, and whose rights to act with.

A file gets its name when it is whole: it is written under a draft name (`.NAME.….new`) and then
linked. So no process ever reads half a file, and of several that make the same file at once one
succeeds. What a killed process leaves is a draft, which `remove_stale_drafts` removes later.

A message on its way through is a `Spool`: in memory while it is small, else in a file without a
name. It is written once and then read any number of times (`tempfile.SpooledTemporaryFile` has one
position for all its readers). It never gives out a message that is not whole: once writing has
failed, or after `close`, every use is an OSError.

What root makes belongs to the owner of the directory. Where root opens files in another user's
directory, it does so with that user's rights (`as_directory_owner`), because the owner of a
directory may put anything into it. The mailbox broker loads this module, so it must stay small.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

KEY_FILE, LEDGER_FILE, SPOOL_DIRECTORY = "key", "ledger.sqlite", "spool"
"""Names in the state directory that several rooms use. Other names stand where the file is made."""

_DRAFT_NAME = re.compile(r"\..+\.new(?:-journal|-wal|-shm)?")
_DRAFT_MAX_AGE_SECONDS = 3600.0  # since its last change; then its writer is gone


# ---- files


def create_private(path: Path) -> BinaryIO:
    """Open a new file, mode 0600, of its directory's owner, for writing. Raises FileExistsError."""
    file = open(path, "xb", opener=partial(os.open, mode=0o600))  # noqa: SIM115  the caller's
    give_to_owner(file.fileno(), path.parent)
    return file


def give_to_owner(made: int | Path, directory: Path) -> None:
    """Give what root has made, a path or a descriptor, to its directory's owner."""
    if os.geteuid() == 0:
        with suppress(OSError):
            owner = directory.stat()
            os.chown(made, owner.st_uid, owner.st_gid)


@contextmanager
def name_path_in_errors(path: Path) -> Iterator[None]:
    """Put this path into errors that only writing raises, in which the system names none."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if is_full and error.filename is None:
            error.filename = str(path)
        raise


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def draft_file(path: Path) -> Iterator[Path]:
    """Yield a draft name beside this one, for a file that gets this name once it is whole; else it
    is removed at the end.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        yield draft
    finally:
        with suppress(OSError):  # `remove_stale_drafts` removes it later
            draft.unlink(missing_ok=True)


def write_private(path: Path, chunks: Iterable[bytes], *, durable: bool = True) -> None:
    with create_private(path) as file:
        file.writelines(chunks)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def replace_private(path: Path, chunks: Iterable[bytes], *, durable: bool = True) -> None:
    """Give this name to a file with this content. Readers find the old file or the new one."""
    with draft_file(path) as draft:
        write_private(draft, chunks, durable=durable)
        draft.replace(path)
    if durable:
        sync_directory(path.parent)


@contextmanager
def create_atomically(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a private file to write; it gets this name when the block ends well, or
    FileExistsError.
    """
    with draft_file(path) as draft, create_private(draft) as file:
        yield file
        file.flush()
        if durable:
            os.fsync(file.fileno())
        path.hardlink_to(draft)


def remove_stale_drafts(directory: Path) -> None:
    oldest = time.time() - _DRAFT_MAX_AGE_SECONDS
    for path in directory.iterdir():
        if _DRAFT_NAME.fullmatch(path.name):
            with suppress(OSError):  # it has its name by now, or stays: it does no harm
                if path.lstat().st_mtime < oldest:
                    path.unlink()


# ---- messages on their way through

MAX_MEMORY_BYTES = 512 << 10
"""A larger message goes to a file."""
_CHUNK_BYTES = 256 << 10


@dataclass(eq=False)
class Spool:
    """The bytes of one message; a large one is in a file without a name in `directory`."""

    _directory: Path
    _memory: bytearray = field(default_factory=bytearray)
    descriptor: int | None = None
    _failure: OSError | None = None
    size: int = 0

    @classmethod
    def open_file(cls, path: Path) -> Spool:
        """The message in a file, only to be read; a symbolic link is refused."""
        spool = cls(path.parent)
        spool.descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        spool.size = os.fstat(spool.descriptor).st_size
        return spool

    def write(self, data: bytes) -> None:
        """Append all of it, or fail for good, as on a full disk."""
        self._raise_failure()
        if self.descriptor is None and self.size + len(data) <= MAX_MEMORY_BYTES:
            self._memory += data
        else:
            try:
                if self.descriptor is None:
                    with tempfile.TemporaryFile(buffering=0, dir=self._directory) as unnamed:
                        self.descriptor = os.dup(unnamed.fileno())
                    _write_all(self.descriptor, self._memory)
                    self._memory = bytearray()
                _write_all(self.descriptor, data)
            except OSError as error:
                self._release(error)
                raise
        self.size += len(data)

    def read_start(self, length: int) -> bytes:
        return self._read_at(0, length)

    def read(self) -> bytes:
        return b"".join(self.chunks())

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """The bytes from `start` on, a chunk at a time."""
        self._raise_failure()
        while start < self.size:
            chunk = self._read_at(start, min(_CHUNK_BYTES, self.size - start))
            if not chunk:
                raise OSError(errno.EIO, "the message has become shorter")
            yield chunk
            start += len(chunk)

    def _read_at(self, start: int, length: int) -> bytes:
        self._raise_failure()
        if self.descriptor is None:
            return bytes(self._memory[start : start + length])
        return os.pread(self.descriptor, length, start)

    def close(self) -> None:
        self._release(OSError(errno.EBADF, "the message is no longer kept"))

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise OSError(self._failure.errno, self._failure.strerror)

    def _release(self, failure: OSError) -> None:
        self._failure = self._failure or failure
        self._memory = bytearray()
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


@dataclass(frozen=True)
class SpoolView:
    """A message as it goes out: `head` in the place of the first `skip` bytes of the spool.

    Line ends are CRLF; lines are not dot-stuffed.
    """

    head: bytes
    spool: Spool
    skip: int

    @property
    def size(self) -> int:
        return len(self.head) + self.spool.size - self.skip

    def chunks(self) -> Iterator[bytes]:
        yield self.head
        yield from self.spool.chunks(self.skip)


def _write_all(file: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


# ---- rights


class Owner(NamedTuple):
    """A user, with all the user's groups, whose rights root can act with."""

    user: int
    group: int

    @contextmanager
    def impersonate(self) -> Iterator[None]:
        """Act with these rights; this changes the whole process. Nothing unless we are root."""
        if os.geteuid() != 0 or self.user == 0:
            yield
            return
        try:
            groups = os.getgrouplist(pwd.getpwuid(self.user).pw_name, self.group)
        except KeyError:  # the user has no name here
            groups = [self.group]
        our_groups, our_group = os.getgroups(), os.getegid()
        os.setgroups(groups)
        os.setegid(self.group)
        os.seteuid(self.user)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(our_group)
            os.setgroups(our_groups)


def directory_owner(path: Path) -> Owner:
    status = path.stat()
    return Owner(status.st_uid, status.st_gid)


def account_owner(account: pwd.struct_passwd) -> Owner:
    return Owner(account.pw_uid, account.pw_gid)


@contextmanager
def as_directory_owner(directory: Path) -> Iterator[None]:
    """Act with the rights of the directory's owner; raises OSError if there is no such directory.

    Where the owner cannot even reach the directory, only root can put anything into it, and we keep
    our own rights.
    """
    owner = directory_owner(directory)
    with owner.impersonate():
        is_reachable = os.access(directory, os.X_OK, effective_ids=True)
    with owner.impersonate() if is_reachable else nullcontext():
        yield


# ---- room

_MIN_FREE_BYTES = 64 << 20  # one message may take as much, before anything is learnt


def describe_disk(directory: Path, table_bytes: int) -> tuple[str, str]:
    """How much room there is, and what to do if it is too little, or "". Settling makes new tables
    beside the old ones, so their size must be free.
    """
    disk = os.statvfs(directory)
    free, needed = disk.f_bavail * disk.f_frsize, max(table_bytes, _MIN_FREE_BYTES)
    detail = f"{free / 1e6:,.0f} MB are free"
    if disk.f_files and not disk.f_favail:
        return f"{detail}, but no file can be made (inodes)", "remove files from that disk"
    if free < needed:
        detail += f", {needed / 1e6:,.0f} MB are needed to build the tables again"
        return detail, "make room on that disk"
    return detail, ""


# ---- batches

BATCH_SIZE = 64
"""Messages of one transaction (36,000 receipts/s; one by one 3,800/s)."""

Item = TypeVar("Item")


def batches(items: Iterable[Item], size: int = BATCH_SIZE) -> Iterator[list[Item]]:
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch
