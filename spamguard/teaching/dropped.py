"""Lessons that others left in a directory while the daemon was away (mode 1733 or 3733: anybody puts files in, nobody lists them).

Whoever owns a file says what is in it, and nobody else. Must never follow a link, open what is no regular file, take a file that has
another name elsewhere, read without bound, or let one bad file keep the others from being learnt.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from spamguard.teaching.client import SPOOL
from spamguard.teaching.lesson import LONGEST_LINE, MOST_BYTES, PIPED, Lesson
from spamguard.teaching.queue import first_line

_AT_ONCE = 10_000  # names told
_UNFINISHED = 600.0  # seconds that writing may take
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NAME = re.compile(r"[0-9]{20}-[0-9a-f]{12}")


class DropBox:
    """A directory in which lessons are left. user: name of whom a lesson is, from the file's owner and what its first line says."""

    def __init__(self, directory: Path, user: Callable[[int, str], str]) -> None:
        self._directory = directory
        self._user = user
        self._left: set[str] = set()  # what we may not read or remove

    def names(self) -> list[str]:
        """What lies there and may be ours, oldest first. OSError."""
        with os.scandir(self._directory) as entries:
            left, others = set[str](), list[str]()
            for entry in entries:
                if entry.name in self._left:
                    left.add(entry.name)
                elif len(others) < _AT_ONCE:
                    others.append(entry.name)
        self._left = left
        return sorted(others)

    def take(self, name: str) -> Lesson | None:
        """One of them; None while it is being written, or is gone. ValueError: it is none; OSError: it cannot be read."""
        place = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return self._read(place, name)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise ValueError("it is no regular file") from None
            if error.errno in (errno.EACCES, errno.EPERM):  # nothing else is for ever
                self._left.add(name)
            raise
        finally:
            os.close(place)

    def remove(self, name: str) -> None:
        """It was learnt, or never can be. OSError: it stays, and is not looked at again."""
        try:
            with suppress(FileNotFoundError):
                (self._directory / name).unlink()
        except OSError:
            self._left.add(name)
            raise

    def _read(self, place: int, name: str) -> Lesson | None:
        if not _NAME.fullmatch(name):
            raise ValueError("it has not the name of a lesson")
        with closing(_Opened(place, name)) as file:
            data, young = file.read(), file.age < _UNFINISHED
            try:
                line, header = first_line(data)
            except ValueError:
                if young:  # somebody may be writing it
                    return None
                raise
            return Lesson(header.label, self._user(file.owner, header.user), PIPED, data[len(line) :])


def learnt_by_nobody(spool: Path | None) -> str:
    """In words, if what `teach-pipe` leaves in the usual place is not taken from there; empty: it is, or there is no such place.

    spool: from where lessons are taken.
    """
    if spool is not None or not Path(SPOOL).is_dir():
        return ""
    return f"{SPOOL}: lessons that are left there while the daemon is down are learnt by nobody: name it under `teach` as `spool`"


class _Opened:
    """A regular file with one name. ValueError: it is something else; OSError."""

    def __init__(self, place: int, name: str) -> None:
        self._file = os.open(name, _OPEN, dir_fd=place)
        found = os.fstat(self._file)
        self.owner = found.st_uid
        self.age = time.time() - found.st_ctime  # not that of the last writing, which its owner sets as they like
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_size > MOST_BYTES + LONGEST_LINE:
            self.close()
            raise ValueError("it is no regular file with one name, or too large")

    def read(self) -> bytes:
        """All of it, though it may grow meanwhile."""
        with os.fdopen(self._file, "rb", closefd=False) as file:
            return file.read(MOST_BYTES + LONGEST_LINE)

    def close(self) -> None:
        """Give it back."""
        os.close(self._file)
