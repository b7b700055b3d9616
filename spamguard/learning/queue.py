"""Where lessons wait until they are learnt: a file for each, in a directory.

`LessonSpool` is a directory of mode 1733 or 3733, in which programs leave lessons: anybody puts
files in, nobody lists them. The owner of a file says what is in it, and nobody else. One bad file
never keeps the others from being learnt.

`LessonQueue` is the daemon's own, a private directory. Names there also say how a lesson came.
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
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar

from spamguard.storage import remove_stale_drafts, replace_private
from spamguard.users import (
    MAX_LESSON_BYTES,
    MAX_LESSON_HEADER,
    LessonHeader,
    Origin,
    QueuedLesson,
    parse_lesson_header,
)

QUEUE_DIRECTORY = "teach"  # in the state directory
MAX_LESSONS = 20_000
"""In the queue, and looked at in a spool at once."""
_MAX_QUEUE_BYTES = 2 << 30
_UNFINISHED_SECONDS = 600.0  # that a program may take to write a lesson
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass
class LessonSpool:
    """A directory in which lessons are left."""

    _directory: Path
    # The user of a lesson, from the uid of the file's owner and the name in its first line.
    _resolve_user: Callable[[int, str], str]
    # Names that are not looked at again, because we may not read or remove the files.
    skipped: set[str] = field(default_factory=set)
    _name_form: ClassVar = re.compile(r"[0-9]{20}-[0-9a-f]{12}")

    def names(self) -> list[str]:
        """The names of files that may be lessons, oldest first."""
        skipped, names = set[str](), list[str]()
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name in self.skipped:
                    skipped.add(entry.name)
                elif len(names) < MAX_LESSONS:
                    names.append(entry.name)
        self.skipped = skipped
        return sorted(names)

    def take(self, name: str) -> QueuedLesson | None:
        if not self._name_form.fullmatch(name):
            raise ValueError("it has not the name of a lesson")
        try:
            data, owner, age = _read_file(self._directory / name)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise ValueError("it is no regular file") from None
            if error.errno in (errno.EACCES, errno.EPERM):  # no other error is for ever
                self.skipped.add(name)
            raise
        try:
            start = data.find(b"\n", 0, MAX_LESSON_HEADER) + 1
            header, raw = parse_lesson_header(data[:start]), data[start:]
            if header.length != len(raw):
                raise ValueError("the message is not as long as its first line says")
        except ValueError:
            if age < _UNFINISHED_SECONDS:
                return None
            raise
        origin = name.partition(".")[2] or Origin.PIPE
        return QueuedLesson(header.label, self._resolve_user(owner, header.user), origin, raw)

    def remove(self, name: str) -> None:
        """Remove a lesson that was learnt, or never can be. What cannot be removed is skipped."""
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError:
            self.skipped.add(name)
            raise


@dataclass
class LessonQueue(LessonSpool):
    """Any process may put lessons in; one takes them out."""

    _resolve_user: Callable[[int, str], str] = lambda _, named: named  # the door was told who it is
    _name_form = re.compile(r"[0-9]{20}-[0-9a-z]{12}\.[a-z-]{1,20}")  # time, chance, origin

    def put(self, header: LessonHeader, origin: str, message: Iterable[bytes]) -> None:
        """Return once the lesson is on the disk. Raises OSError if it is not."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        count, size = 0, header.length
        for entry in islice(os.scandir(self._directory), MAX_LESSONS + 1):
            count += 1
            with suppress(FileNotFoundError):  # learnt just now
                size += entry.stat(follow_symlinks=False).st_size
        if count >= MAX_LESSONS or size > _MAX_QUEUE_BYTES:
            raise OSError(errno.EDQUOT, "too many lessons wait to be learnt")
        name = f"{time.time_ns():020d}-{os.urandom(6).hex()}.{origin}"
        replace_private(self._directory / name, chain([header.encode()], message))

    def names(self) -> list[str]:
        """The names of the lessons, oldest first. Removes what crashed writers left unfinished."""
        try:
            remove_stale_drafts(self._directory)
            return [name for name in super().names() if self._name_form.fullmatch(name)]
        except FileNotFoundError:  # nothing was ever put in
            return []


def _read_file(path: Path) -> tuple[bytes, int, float]:
    """The bytes of a file, the uid of its owner, and its age, which no owner can set."""
    with open(path, "rb", opener=lambda name, _: os.open(name, _OPEN_FLAGS)) as file:
        status = os.fstat(file.fileno())
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_nlink != 1
            or status.st_size > MAX_LESSON_BYTES + MAX_LESSON_HEADER
        ):
            raise ValueError("it is no regular file with one name, or too large")
        data = file.read(MAX_LESSON_BYTES + MAX_LESSON_HEADER)  # it may grow meanwhile
    return data, status.st_uid, time.time() - status.st_ctime
