"""Lessons that were accepted and are not learnt yet: a private directory of the daemon's, a file for each.

Whoever puts one in may say yes to whoever brought it: it is on the disk, and is learnt even if nobody lives to do it now. Must never
give out half a lesson, and never grow without bound.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from spamguard.files import create_private, sync_directory
from spamguard.teaching.lesson import LONGEST_LINE, Header, Lesson, parse

DIRECTORY = "teach"  # in the state directory
MOST_LESSONS = 20_000
MOST_BYTES = 2 << 30
_STALE = 3600.0  # seconds after which a file that was never finished is taken away
_NAME = re.compile(r"[0-9]{20}-[0-9a-fx][0-9a-f]{11}\.[a-z-]{1,20}")
_WHEN, _MARK = slice(20), slice(21, 33)  # of a name
_UNMARKED = "x"  # instead of its first digit


class Queue:
    """Any process may put lessons in; one takes them out."""

    def __init__(self, directory: Path, most_lessons: int = MOST_LESSONS, most_bytes: int = MOST_BYTES) -> None:
        self._directory = directory
        self._most = most_lessons, most_bytes

    def put(self, header: Header, origin: str, message: Iterable[bytes], mark: str = "") -> None:
        """Return once it is on the disk. OSError: it is not there, or no more are taken before some were learnt.

        origin: the way it came, lower-case letters and dashes. message: its bytes, `header.length` together. mark: 12 hexadecimal
        digits of what it is about, by which `said` finds it; "": that is not known.
        """
        self._directory.mkdir(mode=0o700, exist_ok=True)
        newest = self._check_room(header.length)
        when = max(time.time_ns(), newest + 1)  # behind all that wait, though the clock was set back
        name = f"{when:020d}-{mark or _UNMARKED + os.urandom(6).hex()[1:]}.{origin}"
        unfinished = self._directory / f".{name}"
        try:
            with create_private(unfinished) as file:
                file.write(header.line())
                file.writelines(message)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(self._directory / name)
            sync_directory(self._directory)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def said(self, mark: str) -> Header | None:
        """What the newest of those says that wait and have this mark; None: there is none. LookupError: one may be about the same,
        and does not tell. OSError."""
        marks = {name[_MARK]: name for name in self.names()}
        if mark in marks:
            with suppress(FileNotFoundError, ValueError), (self._directory / marks[mark]).open("rb") as file:
                return parse(file.readline(LONGEST_LINE))
        elif any(found.startswith(_UNMARKED) for found in marks):
            raise LookupError("not all that waits is marked")
        return None  # or it was learnt just now, or is damaged

    def names(self) -> list[str]:
        """What waits, oldest first."""
        try:
            found = [entry.name for entry in os.scandir(self._directory)]
        except FileNotFoundError:
            return []
        self._tidy(name for name in found if name.startswith("."))
        return sorted(name for name in found if _NAME.fullmatch(name))

    def take(self, name: str) -> Lesson | None:
        """One of them, None when it is gone. It stays there until `remove`. ValueError: it is none; OSError."""
        try:
            data = (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None
        line, header = first_line(data)
        return Lesson(header.label, header.user, name.partition(".")[2], data[len(line) :])

    def remove(self, name: str) -> None:
        """It was learnt, or never can be."""
        (self._directory / name).unlink(missing_ok=True)

    def _check_room(self, more: int) -> int:
        """When the newest of those that wait was put in, in nanoseconds."""
        count, size, newest = 0, more, 0
        for entry in islice(os.scandir(self._directory), self._most[0] + 1):
            count += 1
            if _NAME.fullmatch(entry.name):
                newest = max(newest, int(entry.name[_WHEN]))
            with suppress(FileNotFoundError):  # learnt just now
                size += entry.stat(follow_symlinks=False).st_size
        if count >= self._most[0] or size > self._most[1]:
            raise OSError(errno.EDQUOT, "too many lessons wait to be learnt")
        return newest

    def _tidy(self, unfinished: Iterable[str]) -> None:
        """Whoever wrote these did not live to finish them, and has said yes to nobody."""
        for name in unfinished:
            path = self._directory / name
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < time.time() - _STALE:
                    path.unlink()


def first_line(data: bytes) -> tuple[bytes, Header]:
    """The first line of a file, and what it says. ValueError: it is none, or the message is not as long as it says."""
    line = data[: data.find(b"\n", 0, LONGEST_LINE) + 1]
    header = parse(line)
    if header.length != len(data) - len(line):
        raise ValueError("the message is not as long as its first line says")
    return line, header
