"""Where lessons wait until they are learnt: the queue of the daemon, and the directory in which
programs leave them.

`LessonQueue` is a private directory with a file for each lesson. Once `put` has returned, the
lesson is on the disk and will be learnt, so its client may be answered. Must never hand out half a
lesson, and never grow without bound.

`LessonSpool` is a directory of mode 1733 or 3733: anybody puts files in, nobody lists them. The
owner of a file says what is in it, and nobody else. Must never follow a link, open anything but a
regular file, take a file that has a second name, read without bound, or let one bad file keep the
others from being learnt.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from spamguard.storage import create_private, sync_directory
from spamguard.users import (
    MAX_LESSON_BYTES,
    MAX_LESSON_HEADER,
    PIPE_ORIGIN,
    LessonHeader,
    QueuedLesson,
    parse_lesson_header,
)

QUEUE_DIRECTORY = "teach"  # in the state directory
_STALE_SECONDS = 3600.0  # after which the unfinished file of a crashed writer is removed
_QUEUED_NAME = re.compile(r"[0-9]{20}-[0-9a-fx][0-9a-f]{11}\.[a-z-]{1,20}")  # time, mark, origin
_TIME_PART, _MARK_PART = slice(20), slice(21, 33)
_UNMARKED_PREFIX = "x"  # of a mark, where the lesson has none

_MAX_NAMES = 10_000  # of a spool, at once
_UNFINISHED_SECONDS = 600.0  # that a program may take to write a lesson
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_SPOOLED_NAME = re.compile(r"[0-9]{20}-[0-9a-f]{12}")


@dataclass
class LessonQueue:
    """Any process may put lessons in; one takes them out."""

    _directory: Path
    max_lessons: int = 20_000
    max_bytes: int = 2 << 30

    def put(
        self, header: LessonHeader, origin: str, message: Iterable[bytes], mark: str = ""
    ) -> None:
        """Return once the lesson is on the disk. OSError: it is not, or the queue is full.

        origin: the way it came, in lower-case letters and dashes. message: `header.length` bytes
        together. mark: 12 hexadecimal digits by which `find_marked` finds it; "": none are known.
        """
        self._directory.mkdir(mode=0o700, exist_ok=True)
        newest = self._check_room(header.length)
        when = max(time.time_ns(), newest + 1)  # behind all others, also if the clock was set back
        name = f"{when:020d}-{mark or _UNMARKED_PREFIX + os.urandom(6).hex()[1:]}.{origin}"
        unfinished = self._directory / f".{name}"
        try:
            with create_private(unfinished) as file:
                file.write(header.encode())
                file.writelines(message)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(self._directory / name)
            sync_directory(self._directory)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def find_marked(self, mark: str) -> LessonHeader | None:
        """The header of the newest lesson with this mark; None: there is none, or it was learnt
        just now. LookupError: a lesson without a mark waits, which may be about the same message.
        OSError: the queue cannot be read.
        """
        marks = {name[_MARK_PART]: name for name in self.names()}
        if mark in marks:
            path = self._directory / marks[mark]
            with suppress(FileNotFoundError, ValueError), path.open("rb") as file:
                return parse_lesson_header(file.readline(MAX_LESSON_HEADER))
        elif any(other.startswith(_UNMARKED_PREFIX) for other in marks):
            raise LookupError("not all that waits is marked")
        return None

    def names(self) -> list[str]:
        """The names of the lessons, oldest first. Removes what crashed writers left unfinished."""
        try:
            names = [entry.name for entry in os.scandir(self._directory)]
        except FileNotFoundError:
            return []
        for unfinished in (self._directory / name for name in names if name.startswith(".")):
            with suppress(FileNotFoundError):
                if unfinished.stat().st_mtime < time.time() - _STALE_SECONDS:
                    unfinished.unlink()
        return sorted(name for name in names if _QUEUED_NAME.fullmatch(name))

    def take(self, name: str) -> QueuedLesson | None:
        """Read a lesson, or None when it is gone. ValueError: it is damaged; OSError."""
        try:
            data = (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None
        header, raw = split_lesson(data)
        return QueuedLesson(header.label, header.user, name.partition(".")[2], raw)

    def remove(self, name: str) -> None:
        """The lesson was learnt, or never can be."""
        (self._directory / name).unlink(missing_ok=True)

    def _check_room(self, more: int) -> int:
        """When the newest lesson was put in, in nanoseconds. OSError: the queue is full."""
        count, size, newest = 0, more, 0
        for entry in islice(os.scandir(self._directory), self.max_lessons + 1):
            count += 1
            if _QUEUED_NAME.fullmatch(entry.name):
                newest = max(newest, int(entry.name[_TIME_PART]))
            with suppress(FileNotFoundError):  # learnt just now
                size += entry.stat(follow_symlinks=False).st_size
        if count >= self.max_lessons or size > self.max_bytes:
            raise OSError(errno.EDQUOT, "too many lessons wait to be learnt")
        return newest


@dataclass
class LessonSpool:
    """A directory in which lessons are left.

    resolve_user: names the user of a lesson, from the uid of the file's owner and the name in its
    first line.
    """

    _directory: Path
    _resolve_user: Callable[[int, str], str]
    _unreadable: set[str] = field(default_factory=set)  # what we may not read or remove

    def names(self) -> list[str]:
        """The names of files that may be lessons, oldest first. OSError."""
        with os.scandir(self._directory) as entries:
            unreadable, names = set[str](), list[str]()
            for entry in entries:
                if entry.name in self._unreadable:
                    unreadable.add(entry.name)
                elif len(names) < _MAX_NAMES:
                    names.append(entry.name)
        self._unreadable = unreadable
        return sorted(names)

    def take(self, name: str) -> QueuedLesson | None:
        """Read a lesson, or None when unfinished or gone. ValueError: it is none; OSError."""
        if not _SPOOLED_NAME.fullmatch(name):
            raise ValueError("it has not the name of a lesson")
        try:
            data, owner, age = _read_spooled(self._directory / name)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise ValueError("it is no regular file") from None
            if error.errno in (errno.EACCES, errno.EPERM):  # no other error is for ever
                self._unreadable.add(name)
            raise
        try:
            header, raw = split_lesson(data)
        except ValueError:
            if age < _UNFINISHED_SECONDS:
                return None
            raise
        return QueuedLesson(header.label, self._resolve_user(owner, header.user), PIPE_ORIGIN, raw)

    def remove(self, name: str) -> None:
        """The lesson was learnt, or never can be. OSError: it stays, and is not looked at again."""
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError:
            self._unreadable.add(name)
            raise


def _read_spooled(path: Path) -> tuple[bytes, int, float]:
    """The bytes of a file, the uid of its owner, and its age in seconds: since its last change of
    status, as its owner sets the time of the last write at will.
    """
    descriptor = os.open(path, _OPEN_FLAGS)
    try:
        status = os.fstat(descriptor)
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_nlink != 1
            or status.st_size > MAX_LESSON_BYTES + MAX_LESSON_HEADER
        ):
            raise ValueError("it is no regular file with one name, or too large")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_LESSON_BYTES + MAX_LESSON_HEADER)  # it may grow meanwhile
    finally:
        os.close(descriptor)
    return data, status.st_uid, time.time() - status.st_ctime


def split_lesson(data: bytes) -> tuple[LessonHeader, bytes]:
    """Header and message of a file. ValueError: it is no lesson, or cut off.

    >>> split_lesson(b"TEACH spam 5 anna\\nhello")
    (LessonHeader(label='spam', length=5, user='anna'), b'hello')
    """
    start = data.find(b"\n", 0, MAX_LESSON_HEADER) + 1
    header = parse_lesson_header(data[:start])
    if header.length != len(data) - start:
        raise ValueError("the message is not as long as its first line says")
    return header, data[start:]
