"""Where disks have been mounted, which no event of a directory tells: the kernel's own list of them
(proc(5)), and its word that it is another one now.

The kernel's own file events (inotify(7)), by one descriptor for any number of directories and no
thread.

Events are hints: the caller looks itself. Must never block, and never be needed: directories that
cannot be watched are polled.

Which directories may have changed: by inotify and the list of mounts where that works, else by
looking at their times now and then.

Must never take a thread or a descriptor for each directory, and never forget one: what cannot be
watched is polled.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import re
import select
import struct
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from spamguard.log import WarnOnce

_log = logging.getLogger("spamguard.folders")

_MOUNT_LIST = "/proc/self/mountinfo"
_MOUNT_READ_BYTES = 1 << 16  # bytes
_OCTAL_ESCAPE = re.compile(rb"\\([0-7]{3})")  # blanks and the like


class MountMonitor:
    """One descriptor. OSError: this system has no such list."""

    def __init__(self) -> None:
        self._descriptor = os.open(_MOUNT_LIST, os.O_RDONLY | os.O_CLOEXEC)
        self._known = self._read_all()

    def fileno(self) -> int:
        """To wait on, for POLLPRI, which tells of each change once."""
        return self._descriptor

    def take_new(self) -> set[str]:
        """Where something was mounted since this was last asked for; paths without any link."""
        before, self._known = self._known, self._read_all()
        return {place for _, place in self._known - before}

    def close(self) -> None:
        """Wait for nothing any more."""
        os.close(self._descriptor)

    def _read_all(self) -> set[tuple[bytes, str]]:
        """Number and place of each: the same place may be mounted over again."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        text = b"".join(iter(lambda: os.read(self._descriptor, _MOUNT_READ_BYTES), b""))
        # of all that ends a line elsewhere the kernel escapes only this: whoever mounts, as users
        # may by FUSE, chooses the rest
        fields = (line.split(b" ", 5) for line in text.split(b"\n") if line)
        return {
            (number, os.fsdecode(_OCTAL_ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), place)))
            for number, _, _, _, place, _ in fields
        }


IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x40, 0x80, 0x100, 0x200
IN_Q_OVERFLOW, IN_IGNORED, IN_ISDIR = 0x4000, 0x8000, 0x40000000
_IN_ONLYDIR = 0x01000000
_WATCH_MASK = (
    IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | _IN_ONLYDIR
)  # names come and go; what is in a file never changes
_EVENT_HEADER = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_EVENT_READ_BYTES = 1 << 16  # bytes
_MAX_READS = 64  # at a time; what is left is told next time


class InotifyEvent(NamedTuple):
    """watch: as `Inotify.add` gave it. mask: what has happened."""

    watch: int
    mask: int


class Inotify:
    """One descriptor. OSError: this system has none, or has run out of them."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        try:
            self._descriptor = self._check(
                self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            )
        except AttributeError as error:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from error

    def fileno(self) -> int:
        """To wait on."""
        return self._descriptor

    def add(self, directory: int) -> int:
        """Watch the names in an open directory; the number of the watch, the same for the same
        directory.

        By way of /proc: what was opened is what is watched, whatever its path leads to by now.
        OSError: ENOSPC is the limit `max_user_watches`.
        """
        return self._check(
            self._library.inotify_add_watch(
                self._descriptor, b"/proc/self/fd/%d" % directory, ctypes.c_uint32(_WATCH_MASK)
            )
        )

    def read(self) -> Iterator[InotifyEvent]:
        """All events there are by now."""
        for _ in range(_MAX_READS):
            try:
                data = os.read(self._descriptor, _EVENT_READ_BYTES)
            except BlockingIOError:
                return
            yield from _parse_events(data)

    def close(self) -> None:
        """Watch nothing any more."""
        os.close(self._descriptor)

    def _check(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


def _parse_events(data: bytes) -> Iterator[InotifyEvent]:
    at = 0
    while at < len(data):
        watch, mask, _, length = _EVENT_HEADER.unpack_from(data, at)
        yield InotifyEvent(watch, mask)
        at += _EVENT_HEADER.size + length


POLL_SECONDS = 2.0
_MISSING = -1
_COARSE_SECONDS = (
    2.0  # seconds; a directory that changed just before may change again without its time telling
)

_EVENT_ERRORS = {
    errno.ENOSPC: "the limit of watched directories is reached; raise it with sysctl fs.inotify.max_user_watches",
    errno.EMFILE: "the limit of inotify descriptors is reached; raise it with sysctl fs.inotify.max_user_instances",
}


@dataclass(slots=True)
class _PolledDirectory:
    """A directory without a watch. time: when it last changed, in nanoseconds; -1: it is not there
    any more.
    """

    time: int
    is_recent: bool
    targets: set[Hashable]


@dataclass(frozen=True, slots=True)
class _AwaitedDirectory:
    """A directory that is waited for. before: device and inode of what stood there when waiting
    began. target: told when that changes.
    """

    identity: tuple[int, int] | None
    links: bool
    target: Hashable


@dataclass(slots=True)
class _WatchedDirectory:
    """targets: told when any name in it comes or goes, by owner (`whose` of `Watches.add`). above:
    told of names of directories alone.
    """

    targets: dict[Hashable, Hashable] = field(default_factory=dict)
    directory_targets: set[Hashable] = field(default_factory=set)


class DirectoryMonitor:
    """Directories, each with what the caller knows it by. notify: use inotify, if there is any.

    at: who is to be told when something is mounted at a place, which hides what is watched there,
    and below it.
    """

    def __init__(
        self, *, notify: bool = True, on_mount: Callable[[str], Iterable[Hashable]] = lambda _: ()
    ) -> None:
        self._warnings = WarnOnce(_log)
        self._on_mount = on_mount
        self._inotify: Inotify | None = None
        self._mounts: MountMonitor | None = None
        self._watched: dict[int, _WatchedDirectory] = {}
        self._polled: dict[str, _PolledDirectory] = {}
        self._awaited: dict[str, _AwaitedDirectory] = {}  # by path
        self._next_poll = 0.0
        if notify:
            try:
                self._inotify = Inotify()
            except OSError as error:
                self._warn_no_events(error)
            with suppress(OSError):
                self._mounts = MountMonitor()

    def add(
        self,
        directory: int,
        path: str,
        target: Hashable,
        *,
        directories_only: bool = False,
        owner: Hashable = None,
    ) -> None:
        """Tell of an open directory from now on. above: only of directories that come and go in it.

        whose: the target's owner, as the mailbox of a folder. If the same directory was added under
        another target of that owner, it has been renamed since: only the new target is told.
        """
        self._awaited.pop(path, None)
        try:
            if self._inotify is not None:
                watched = self._watched.setdefault(
                    self._inotify.add(directory), _WatchedDirectory()
                )
                if directories_only:
                    watched.directory_targets.add(target)
                else:
                    watched.targets[owner or target] = target
                self._polled.pop(path, None)
                return
        except OSError as error:
            self._warn_no_events(error)
        self._add_polled(path, target)

    def wait_for(self, path: str, target: Hashable, *, links: bool = False) -> None:
        """Tell once when another directory stands at a path: the first one, or one mounted over it,
        which no event tells. It is polled.

        links: whether to follow a symbolic link there; not below what the operator has named, where
        people could put one.
        """
        self._awaited[path] = _AwaitedDirectory(_identity(path, links=links), links, target)

    def _add_polled(self, path: str, target: Hashable) -> None:
        found = self._polled.get(path)
        if found is None:
            found = self._polled[path] = _PolledDirectory(*_change_time(path), set())
        found.targets.add(target)

    def __len__(self) -> int:
        """How many directories it tells of."""
        return len(self._watched) + len(self._polled)

    def wait(self, timeout: float) -> tuple[set[Hashable], bool]:
        """What may have changed, and whether events were lost; waits for so many seconds at most
        while nothing has.
        """
        until, left = time.monotonic() + timeout, 0.0
        while True:
            mounted = self._sleep(
                min(left, self._next_poll - time.monotonic())
                if self._polled or self._awaited
                else left
            )
            told, lost = self._read_events()
            told |= self._poll()
            told.update(target for place in mounted for target in self._on_mount(place))
            left = until - time.monotonic()
            if told or lost or left <= 0:
                return told, lost

    def close(self) -> None:
        """Forget all."""
        if self._inotify is not None:
            self._inotify.close()
        if self._mounts is not None:
            self._mounts.close()
        self._inotify = self._mounts = None

    def _warn_no_events(self, error: OSError) -> None:
        why = _EVENT_ERRORS.get(error.errno or 0, error.strerror)
        self._warnings.warn(
            error.errno,
            "no file events (%s): directories are polled every %.0f s instead",
            why,
            POLL_SECONDS,
        )

    def _sleep(self, seconds: float) -> set[str]:
        """Until something happens, for so long at most; where something was mounted."""
        poller = select.poll()
        if self._inotify is not None:
            poller.register(self._inotify, select.POLLIN)
        if self._mounts is not None:
            poller.register(self._mounts, select.POLLPRI)
        told = {
            descriptor for descriptor, _ in poller.poll(seconds * 1000 + 1 if seconds > 0 else 0)
        }
        return (
            self._mounts.take_new()
            if self._mounts is not None and self._mounts.fileno() in told
            else set()
        )

    def _read_events(self) -> tuple[set[Hashable], bool]:
        told: set[Hashable] = set()
        lost = False
        for event in self._inotify.read() if self._inotify is not None else ():
            lost = lost or bool(event.mask & IN_Q_OVERFLOW)
            watched = self._watched.get(event.watch)
            if watched is not None:
                told.update(watched.targets.values())
                if event.mask & (IN_ISDIR | IN_IGNORED):
                    told |= watched.directory_targets
            if event.mask & IN_IGNORED:  # the directory has gone, and its watch with it
                self._watched.pop(event.watch, None)
        return told, lost

    def _poll(self) -> set[Hashable]:
        now = time.monotonic()
        if not (self._polled or self._awaited) or now < self._next_poll:
            return set()
        came = [
            path
            for path, one in self._awaited.items()
            if _identity(path, links=one.links) != one.identity
        ]
        told = {self._awaited.pop(path).target for path in came}
        for path, polled in list(self._polled.items()):
            changed, fresh = _change_time(path)
            if changed != polled.time or polled.is_recent:
                told |= polled.targets
            polled.time, polled.is_recent = changed, fresh
            if changed == _MISSING:
                del self._polled[path]
        self._next_poll = time.monotonic() + POLL_SECONDS
        return told


def _identity(path: str, *, links: bool) -> tuple[int, int] | None:
    """Of what is there; None: nothing is. links: follow one."""
    with suppress(OSError):
        found = os.stat(path, follow_symlinks=links)
        return found.st_dev, found.st_ino
    return None


def _change_time(path: str) -> tuple[int, bool]:
    """When a directory last changed, and whether that was so lately that the time may hide another
    change.
    """
    with suppress(OSError):
        changed = os.stat(path, follow_symlinks=False).st_mtime_ns
        return changed, abs(time.time_ns() - changed) < _COARSE_SECONDS * 1e9
    return _MISSING, False
