"""What several layers need of the file system: files that nobody else may read, and names that are on the disk."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

KEY, LEDGER, SPOOL = "key", "ledger.sqlite", "spool"
"""Names in the state directory that many know: what signs and hashes, what was taught, and the directory of messages that are being
handed over. Of what else lies there the name stands where it is made."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What only writing raises: the disk is full, or somebody's share of it, or the file may not be larger."""

_DRAFT = re.compile(r"\..+\.new(?:-journal|-wal|-shm)?")
_ABANDONED = 3600.0  # seconds since anybody has written to one, after which nobody will
_DESCRIPTORS = Path("/proc/self/fd")  # by which a file without a name gets one; not there in a bare chroot
_NO_UNNAMED_FILES = (errno.EISDIR, errno.EOPNOTSUPP)  # kernel or file system without O_TMPFILE: open(2)


def create_private(path: Path) -> BinaryIO:
    """A new file, mode 0600, to be written. FileExistsError when there is one; OSError when it cannot be made.

    What root makes belongs to the owner of the directory, if the system lets it: an administrator who teaches the filter of a
    service must not take it away from the service.
    """
    return open(path, "xb", opener=_private)


def _private(name: str, flags: int) -> int:
    return _given(os.open(name, flags, 0o600), Path(name).parent)


def _given(descriptor: int, directory: Path) -> int:
    if os.geteuid() == 0:
        with suppress(OSError):
            owner = directory.stat()
            os.chown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """What only writing raises names this path, where the system, asked to write, names none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in NO_ROOM:
            error.filename = str(path)
        raise


def open_unnamed(directory: Path) -> int | None:
    """A new file without a name, as `create_private`, to be read and written; None where there are none. OSError when it cannot be made."""
    try:
        return _given(os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), directory)
    except OSError as error:
        if error.errno not in _NO_UNNAMED_FILES:
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
def draft_of(path: Path) -> Iterator[Path]:
    """A name beside this one, for what gets this one once it is whole. What still has it in the end is removed, or left to
    `sweep_drafts` where that is refused."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        yield draft
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def make_once(path: Path, fill: Callable[[Path], object]) -> None:
    """A private file, whole before it has its name: `fill` is given a draft. Of several processes that make it at once the first counts,
    and the others lose quietly. OSError: it cannot be made."""
    with draft_of(path) as draft, suppress(FileExistsError):
        create_private(draft).close()
        fill(draft)
        path.hardlink_to(draft)


@contextmanager
def nameless(path: Path) -> Iterator[tuple[BinaryIO, Callable[[], None]]]:
    """A private file, to be written, and what gives it this name, which nothing has: call it once the file is flushed. Without that nothing
    is left, even of one whose writer is killed; a draft where there are no files without names. OSError: it cannot be made, or the name
    is taken."""
    descriptor = open_unnamed(path.parent) if _DESCRIPTORS.is_dir() else None
    if descriptor is None:
        with draft_of(path) as draft, create_private(draft) as file:
            yield file, partial(path.hardlink_to, draft)
        return
    with os.fdopen(descriptor, "wb") as file:
        link = _DESCRIPTORS / str(descriptor)
        yield file, partial(os.link, link, path, src_dir_fd=descriptor)  # which makes Python follow that link


@contextmanager
def named_once_whole(path: Path) -> Iterator[BinaryIO]:
    """The same with the name when the block ends well."""
    with nameless(path) as (file, name):
        yield file
        file.flush()
        name()


def sweep_drafts(directory: Path) -> None:
    """Remove files that were to get another name when they were whole (.NAME.new) and that nobody lived to finish. OSError: it cannot be
    looked at."""
    with os.scandir(directory) as entries:
        drafts = [entry for entry in entries if _DRAFT.fullmatch(entry.name)]
    for draft in drafts:
        with suppress(OSError):  # it was finished meanwhile, or stays: it harms nobody
            found = draft.stat(follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) and time.time() - found.st_mtime > _ABANDONED:
                Path(draft.path).unlink()
