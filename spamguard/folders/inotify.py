"""The kernel's own file events (inotify(7)), by one descriptor for any number of directories and no thread.

Events are hints: the caller looks itself. Must never block, and never be needed: directories that cannot be watched are polled.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
OVERFLOW, IGNORED, IS_DIRECTORY = 0x4000, 0x8000, 0x40000000
_ONLY_DIRECTORIES = 0x01000000
_MASK = MOVED_FROM | MOVED_TO | CREATE | DELETE | _ONLY_DIRECTORIES  # names come and go; what is in a file never changes
_HEADER = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_AT_ONCE = 1 << 16  # bytes
_MOST_READS = 64  # at a time; what is left is told next time


class Event(NamedTuple):
    """watch: as `Inotify.add` gave it. mask: what has happened."""

    watch: int
    mask: int


class Inotify:
    """One descriptor. OSError: this system has none, or has run out of them."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        try:
            self._descriptor = self._checked(self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        except AttributeError as error:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from error

    def fileno(self) -> int:
        """To wait on."""
        return self._descriptor

    def add(self, directory: int) -> int:
        """Watch the names in an open directory; the number of the watch, the same for the same directory.

        By way of /proc: what was opened is what is watched, whatever its path leads to by now. OSError: ENOSPC is the limit
        `max_user_watches`.
        """
        return self._checked(self._library.inotify_add_watch(self._descriptor, b"/proc/self/fd/%d" % directory, ctypes.c_uint32(_MASK)))

    def read(self) -> Iterator[Event]:
        """All events there are by now."""
        for _ in range(_MOST_READS):
            try:
                data = os.read(self._descriptor, _AT_ONCE)
            except BlockingIOError:
                return
            yield from _events(data)

    def close(self) -> None:
        """Watch nothing any more."""
        os.close(self._descriptor)

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


def _events(data: bytes) -> Iterator[Event]:
    at = 0
    while at < len(data):
        watch, mask, _, length = _HEADER.unpack_from(data, at)
        yield Event(watch, mask)
        at += _HEADER.size + length
