"""Which directories may have changed: by inotify(7) and the kernel's list of mounts where these
work, else by polling modification times.

`DirectoryMonitor` joins both. Events are hints: the caller looks itself. A mount hides what lies
below it, and no event of a directory tells that; so the list of mounts is watched, too.

Must never take a thread or a descriptor for each directory, never block longer than asked, and
never forget a directory: what cannot be watched is polled.
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
_MOUNT_READ_BYTES = 1 << 16
_OCTAL_ESCAPE = re.compile(rb"\\([0-7]{3})")  # blanks and the like


class MountMonitor:
    """The kernel's list of mounts (proc(5)). OSError: this system has no such list."""

    def __init__(self) -> None:
        self._descriptor = os.open(_MOUNT_LIST, os.O_RDONLY | os.O_CLOEXEC)
        self._known = self._read_all()

    def fileno(self) -> int:
        """The descriptor to wait on for POLLPRI, which comes once for each change."""
        return self._descriptor

    def take_new(self) -> set[str]:
        """Where something was mounted since the last call; paths without any link."""
        before, self._known = self._known, self._read_all()
        return {path for _, path in self._known - before}

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)

    def _read_all(self) -> set[tuple[bytes, str]]:
        """Number and path of each mount: something may be mounted over a mount."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        text = b"".join(iter(lambda: os.read(self._descriptor, _MOUNT_READ_BYTES), b""))
        # Users may mount, by FUSE, and choose the names. The kernel escapes line feeds, but no
        # other character that ends a line for Python.
        fields = (line.split(b" ", 5) for line in text.split(b"\n") if line)
        return {
            (number, os.fsdecode(_OCTAL_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), path)))
            for number, _, _, _, path, _ in fields
        }


IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x40, 0x80, 0x100, 0x200
IN_Q_OVERFLOW, IN_IGNORED, IN_ISDIR = 0x4000, 0x8000, 0x40000000
_IN_ONLYDIR = 0x01000000
# Names come and go; the content of a message never changes.
_WATCH_MASK = IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | _IN_ONLYDIR
_EVENT_HEADER = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_EVENT_READ_BYTES = 1 << 16
_MAX_READS = 64  # of one call; the next call reads on


class InotifyEvent(NamedTuple):
    """watch: number from `Inotify.add`. mask: what has happened."""

    watch: int
    mask: int


class Inotify:
    """One inotify descriptor. OSError: this system has none, or has run out of them."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        try:
            self._descriptor = self._check(
                self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            )
        except AttributeError as error:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from error

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._descriptor

    def add(self, directory: int) -> int:
        """Watch the names in an open directory; the number of the watch, the same for the same
        directory. OSError: ENOSPC is the limit `max_user_watches`.

        The path by way of /proc leads to the directory that was opened, wherever its name leads to
        by now.
        """
        return self._check(
            self._library.inotify_add_watch(
                self._descriptor, b"/proc/self/fd/%d" % directory, ctypes.c_uint32(_WATCH_MASK)
            )
        )

    def read(self) -> Iterator[InotifyEvent]:
        """The events that have come."""
        for _ in range(_MAX_READS):
            try:
                data = os.read(self._descriptor, _EVENT_READ_BYTES)
            except BlockingIOError:
                return
            yield from _parse_events(data)

    def close(self) -> None:
        """Close the descriptor."""
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
_COARSE_SECONDS = 2.0  # a directory that changed since may change again without a new time

_EVENT_ERRORS = {
    errno.ENOSPC: "the limit of watched directories is reached; "
    "raise it with sysctl fs.inotify.max_user_watches",
    errno.EMFILE: "the limit of inotify descriptors is reached; "
    "raise it with sysctl fs.inotify.max_user_instances",
}


@dataclass(slots=True)
class _PolledDirectory:
    """A directory without a watch.

    time: of its last change, in nanoseconds; -1: it is gone. is_recent: this was so recent that the
    time may hide another change.
    """

    time: int
    is_recent: bool
    targets: set[Hashable]


@dataclass(frozen=True, slots=True)
class _AwaitedDirectory:
    """A directory that is waited for.

    identity: device and inode of what was there when waiting began. target: reported when another
    one is there.
    """

    identity: tuple[int, int] | None
    links: bool
    target: Hashable


@dataclass(slots=True)
class _WatchedDirectory:
    """A directory with a watch.

    targets: reported when any name in it comes or goes, by owner. directory_targets: reported only
    for names of directories.
    """

    targets: dict[Hashable, Hashable] = field(default_factory=dict)
    directory_targets: set[Hashable] = field(default_factory=set)


class DirectoryMonitor:
    """Directories, each with a target: what the caller knows it by.

    notify: use inotify, if there is any. on_mount: the targets to report when something is mounted
    at a path.
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
        """Watch an open directory.

        Parameters
        ----------
        path
            Of the directory, to poll it if it cannot be watched.
        directories_only
            Report only directories that come and go in it.
        owner
            Of the target, as the mailbox of a folder. If the same directory was added with another
            target of this owner, it was renamed since, and only the new target is reported.
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
        """Report once when another directory is at a path: the first one, or one mounted over it.

        The path is polled. links: follow a symbolic link there; not below what the operator has
        named, where users could make one.
        """
        self._awaited[path] = _AwaitedDirectory(_identity(path, links=links), links, target)

    def _add_polled(self, path: str, target: Hashable) -> None:
        polled = self._polled.get(path)
        if polled is None:
            polled = self._polled[path] = _PolledDirectory(*_change_time(path), set())
        polled.targets.add(target)

    def __len__(self) -> int:
        """How many directories are watched or polled."""
        return len(self._watched) + len(self._polled)

    def wait(self, timeout: float) -> tuple[set[Hashable], bool]:
        """Wait at most `timeout` seconds; the targets that may have changed, and whether events
        were lost.
        """
        until, remaining = time.monotonic() + timeout, 0.0
        while True:
            mounted = self._sleep(
                min(remaining, self._next_poll - time.monotonic())
                if self._polled or self._awaited
                else remaining
            )
            targets, lost = self._read_events()
            targets |= self._poll()
            targets.update(target for path in mounted for target in self._on_mount(path))
            remaining = until - time.monotonic()
            if targets or lost or remaining <= 0:
                return targets, lost

    def close(self) -> None:
        """Close both descriptors."""
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
        """Wait until something happens, at most for some seconds; where something was mounted."""
        poller = select.poll()
        if self._inotify is not None:
            poller.register(self._inotify, select.POLLIN)
        if self._mounts is not None:
            poller.register(self._mounts, select.POLLPRI)
        ready = {
            descriptor for descriptor, _ in poller.poll(seconds * 1000 + 1 if seconds > 0 else 0)
        }
        return (
            self._mounts.take_new()
            if self._mounts is not None and self._mounts.fileno() in ready
            else set()
        )

    def _read_events(self) -> tuple[set[Hashable], bool]:
        targets: set[Hashable] = set()
        lost = False
        for event in self._inotify.read() if self._inotify is not None else ():
            lost = lost or bool(event.mask & IN_Q_OVERFLOW)
            watched = self._watched.get(event.watch)
            if watched is not None:
                targets.update(watched.targets.values())
                if event.mask & (IN_ISDIR | IN_IGNORED):
                    targets |= watched.directory_targets
            if event.mask & IN_IGNORED:  # the directory is gone, and its watch with it
                self._watched.pop(event.watch, None)
        return targets, lost

    def _poll(self) -> set[Hashable]:
        now = time.monotonic()
        if not (self._polled or self._awaited) or now < self._next_poll:
            return set()
        arrived = [
            path
            for path, awaited in self._awaited.items()
            if _identity(path, links=awaited.links) != awaited.identity
        ]
        targets = {self._awaited.pop(path).target for path in arrived}
        for path, polled in list(self._polled.items()):
            changed, is_recent = _change_time(path)
            if changed != polled.time or polled.is_recent:
                targets |= polled.targets
            polled.time, polled.is_recent = changed, is_recent
            if changed == _MISSING:
                del self._polled[path]
        self._next_poll = time.monotonic() + POLL_SECONDS
        return targets


def _identity(path: str, *, links: bool) -> tuple[int, int] | None:
    """Device and inode of what is at a path; None: nothing. links: follow a symbolic link."""
    with suppress(OSError):
        status = os.stat(path, follow_symlinks=links)
        return status.st_dev, status.st_ino
    return None


def _change_time(path: str) -> tuple[int, bool]:
    """The time of a directory's last change, and whether it is recent (`_PolledDirectory`)."""
    with suppress(OSError):
        changed = os.stat(path, follow_symlinks=False).st_mtime_ns
        return changed, abs(time.time_ns() - changed) < _COARSE_SECONDS * 1e9
    return _MISSING, False
