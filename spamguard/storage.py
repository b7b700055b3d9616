"""Files that nobody else may read, names that are on the disk, and whose rights to act with.

A file gets its name when it is whole: it is written under a draft name (`.NAME.….new`), or without
any name where the kernel has O_TMPFILE, and then linked. So no process ever reads half a file, and
of several that make the same file at once one succeeds.

What root makes belongs to the owner of the directory: an administrator who teaches the filter of a
service must not take it away from the service. Where root opens files in another user's directory,
it does so with that user's rights (`as_directory_owner`), because the owner of a directory may put
anything into it.

It is written by hand because atomicwrites is no longer maintained.

Must never replace a file, never make one that others can read, and never follow a name with more
rights than its directory's owner has. The mailbox broker loads this module, so it must stay small:
databases are in `spamguard.database`.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

KEY_FILE, LEDGER_FILE, SPOOL_DIRECTORY = "key", "ledger.sqlite", "spool"
"""Names in the state directory that several rooms use. Other names stand where the file is made."""

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors that only writing raises: disk or quota are full, or the file may not be larger."""

_DRAFT_NAME = re.compile(r"\..+\.new(?:-journal|-wal|-shm)?")
_DRAFT_MAX_AGE_SECONDS = 3600.0  # since its last change; then its writer is gone
_FD_DIRECTORY = Path("/proc/self/fd")  # absent in a bare chroot
# Of a kernel or a file system without O_TMPFILE (open(2)).
_NO_TMPFILE_ERRNOS = (errno.EISDIR, errno.EOPNOTSUPP)


# ---- files


def create_private(path: Path) -> BinaryIO:
    """Open a new file, mode 0600, for writing.

    Raises
    ------
    FileExistsError
        There is a file of that name.
    OSError
        The file cannot be made.
    """

    def open_private(name: str, flags: int) -> int:
        return _chown_to_directory(os.open(name, flags, 0o600), path.parent)

    return open(path, "xb", opener=open_private)


def _chown_to_directory(descriptor: int, directory: Path) -> int:
    if os.geteuid() == 0:
        with suppress(OSError):
            owner = directory.stat()
            os.chown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


@contextmanager
def name_path_in_errors(path: Path) -> Iterator[None]:
    """Put this path into errors of writing, in which the system names none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in DISK_FULL_ERRNOS:
            error.filename = str(path)
        raise


def open_unnamed(directory: Path) -> int | None:
    """Open a new private file without a name, for reading and writing.

    None where the system has no such files. OSError: the file cannot be made.
    """
    try:
        return _chown_to_directory(
            os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), directory
        )
    except OSError as error:
        if error.errno not in _NO_TMPFILE_ERRNOS:
            raise
    return None


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def draft_file(path: Path) -> Iterator[Path]:
    """Yield a draft name beside this one, for a file that gets this name once it is whole.

    A file that still has the draft name at the end is removed.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        yield draft
    finally:
        with suppress(OSError):  # `remove_stale_drafts` removes it later
            draft.unlink(missing_ok=True)


def create_once(path: Path, fill: Callable[[Path], object]) -> None:
    """Make a private file, unless there is one. fill: writes the empty draft that it is given.

    Of several processes at once the first succeeds, and the others change nothing.
    """
    with draft_file(path) as draft, suppress(FileExistsError):
        create_private(draft).close()
        fill(draft)
        path.hardlink_to(draft)


@contextmanager
def unnamed_file(path: Path) -> Iterator[tuple[BinaryIO, Callable[[], None]]]:
    """Yield a private file to write, and a function that gives it this name.

    Flush the file before the call. Without the call nothing stays, even if the process is killed;
    where the system has no files without names, a draft stays.

    Raises
    ------
    OSError
        The file cannot be made, or the name is taken.
    """
    descriptor = open_unnamed(path.parent) if _FD_DIRECTORY.is_dir() else None
    if descriptor is None:
        with draft_file(path) as draft, create_private(draft) as file:
            yield file, partial(path.hardlink_to, draft)
        return
    with os.fdopen(descriptor, "wb") as file:
        link = _FD_DIRECTORY / str(descriptor)
        yield file, partial(os.link, link, path, src_dir_fd=descriptor)  # then link(2) follows it


@contextmanager
def create_atomically(path: Path) -> Iterator[BinaryIO]:
    """Yield a private file to write; it gets this name when the block ends well."""
    with unnamed_file(path) as (file, link):
        yield file
        file.flush()
        link()


def remove_stale_drafts(directory: Path) -> None:
    """Remove the drafts that killed processes left. OSError: the directory cannot be read."""
    with os.scandir(directory) as entries:
        drafts = [entry for entry in entries if _DRAFT_NAME.fullmatch(entry.name)]
    oldest = time.time() - _DRAFT_MAX_AGE_SECONDS
    for draft in drafts:
        with suppress(OSError):  # it has its name by now, or stays: it does no harm
            status = draft.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_mtime < oldest:
                Path(draft.path).unlink()


# ---- rights


@dataclass(frozen=True, slots=True)
class Owner:
    """A user and groups whose rights root can act with. groups: further ones."""

    user: int
    group: int
    groups: tuple[int, ...] = ()

    @contextmanager
    def impersonate(self) -> Iterator[None]:
        """Act with these rights; this changes the whole process. Nothing unless we are root."""
        if os.geteuid() != 0 or self.user == 0:
            yield
            return
        groups = os.getgroups()
        group = os.getegid()
        os.setgroups([self.group, *self.groups])
        os.setegid(self.group)
        os.seteuid(self.user)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(group)
            os.setgroups(groups)


def directory_owner(path: Path) -> Owner:
    """The owner of a directory. OSError: there is no such directory."""
    status = path.stat()
    return Owner(status.st_uid, status.st_gid, _group_ids(status.st_uid, status.st_gid))


def account_owner(account: pwd.struct_passwd) -> Owner:
    """An account, with all its groups."""
    return Owner(account.pw_uid, account.pw_gid, _group_ids(account.pw_uid, account.pw_gid))


def _group_ids(user: int, group: int) -> tuple[int, ...]:
    if os.geteuid() != 0:  # nobody else needs them, and the answer may come over the network
        return ()
    try:
        return tuple(os.getgrouplist(pwd.getpwuid(user).pw_name, group))
    except KeyError:  # the user has no name here
        return ()


@contextmanager
def as_directory_owner(directory: Path) -> Iterator[None]:
    """Act with the rights of the directory's owner. OSError: there is no such directory.

    Where the owner cannot even reach the directory, only root can put anything into it, and we keep
    our own rights.
    """
    owner = directory_owner(directory)
    with owner.impersonate():
        is_reachable = os.access(directory, os.X_OK, effective_ids=True)
    with owner.impersonate() if is_reachable else nullcontext():
        yield


# ---- batches

BATCH_SIZE = 64
"""Messages of one transaction (bench_ledger.py: 36,000 receipts/s, one by one 3,800/s)."""

Item = TypeVar("Item")


def batches(items: Iterable[Item], size: int = BATCH_SIZE) -> Iterator[list[Item]]:
    """The items in lists of `size`, the last one shorter.

    >>> list(batches("abc", 2))
    [['a', 'b'], ['c']]
    """
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch
