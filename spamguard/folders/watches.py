"""Which directories may have changed: by inotify and the list of mounts where that works, else by looking at their times now and then.

Must never take a thread or a descriptor for each directory, and never forget one: what cannot be watched is polled.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from spamguard.folders.inotify import IGNORED, IS_DIRECTORY, OVERFLOW, Inotify
from spamguard.folders.mounts import Mounts
from spamguard.folders.once import Once

POLL_SECONDS = 2.0
_GONE = -1
_COARSE = 2.0  # seconds; a directory that changed just before may change again without its time telling

_REASONS = {
    errno.ENOSPC: "the limit of watched directories is reached; raise it with sysctl fs.inotify.max_user_watches",
    errno.EMFILE: "the limit of inotify descriptors is reached; raise it with sysctl fs.inotify.max_user_instances",
}


@dataclass(slots=True)
class _Polled:
    """A directory without a watch. time: when it last changed, in nanoseconds; -1: it is not there any more."""

    time: int
    fresh: bool
    targets: set[Hashable]


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A directory that is waited for. before: device and inode of what stood there when waiting began. target: told when that changes."""

    before: tuple[int, int] | None
    links: bool
    target: Hashable


@dataclass(slots=True)
class _Watched:
    """targets: told when any name in it comes or goes, by owner (`whose` of `Watches.add`). above: told of names of directories alone."""

    targets: dict[Hashable, Hashable] = field(default_factory=dict)
    above: set[Hashable] = field(default_factory=set)


class Watches:
    """Directories, each with what the caller knows it by. notify: use inotify, if there is any.

    at: who is to be told when something is mounted at a place, which hides what is watched there, and below it.
    """

    def __init__(self, *, notify: bool = True, at: Callable[[str], Iterable[Hashable]] = lambda _: ()) -> None:
        self._once = Once()
        self._at = at
        self._inotify: Inotify | None = None
        self._mounts: Mounts | None = None
        self._watched: dict[int, _Watched] = {}
        self._polled: dict[str, _Polled] = {}
        self._awaited: dict[str, _Awaited] = {}  # by path
        self._next_poll = 0.0
        if notify:
            try:
                self._inotify = Inotify()
            except OSError as error:
                self._cannot(error)
            with suppress(OSError):
                self._mounts = Mounts()

    def add(self, directory: int, path: str, target: Hashable, *, above: bool = False, whose: Hashable = None) -> None:
        """Tell of an open directory from now on. above: only of directories that come and go in it.

        whose: the target's owner, as the mailbox of a folder. If the same directory was added under another target of that owner, it
        has been renamed since: only the new target is told.
        """
        self._awaited.pop(path, None)
        try:
            if self._inotify is not None:
                watched = self._watched.setdefault(self._inotify.add(directory), _Watched())
                if above:
                    watched.above.add(target)
                else:
                    watched.targets[whose or target] = target
                self._polled.pop(path, None)
                return
        except OSError as error:
            self._cannot(error)
        self._look_at(path, target)

    def wait_for(self, path: str, target: Hashable, *, links: bool = False) -> None:
        """Tell once when another directory stands at a path: the first one, or one mounted over it, which no event tells. It is polled.

        links: whether to follow a symbolic link there; not below what the operator has named, where people could put one.
        """
        self._awaited[path] = _Awaited(_identity(path, links=links), links, target)

    def _look_at(self, path: str, target: Hashable) -> None:
        found = self._polled.get(path)
        if found is None:
            found = self._polled[path] = _Polled(*_looked_at(path), set())
        found.targets.add(target)

    def __len__(self) -> int:
        """How many directories it tells of."""
        return len(self._watched) + len(self._polled)

    def wait(self, timeout: float) -> tuple[set[Hashable], bool]:
        """What may have changed, and whether events were lost; waits for so many seconds at most while nothing has."""
        until, left = time.monotonic() + timeout, 0.0
        while True:
            mounted = self._sleep(min(left, self._next_poll - time.monotonic()) if self._polled or self._awaited else left)
            told, lost = self._read()
            told |= self._poll()
            told.update(target for place in mounted for target in self._at(place))
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

    def _cannot(self, error: OSError) -> None:
        why = _REASONS.get(error.errno or 0, error.strerror)
        self._once.warn(error.errno, "no file events (%s): directories are polled every %.0f s instead", why, POLL_SECONDS)

    def _sleep(self, seconds: float) -> set[str]:
        """Until something happens, for so long at most; where something was mounted."""
        poller = select.poll()
        if self._inotify is not None:
            poller.register(self._inotify, select.POLLIN)
        if self._mounts is not None:
            poller.register(self._mounts, select.POLLPRI)
        told = {descriptor for descriptor, _ in poller.poll(seconds * 1000 + 1 if seconds > 0 else 0)}
        return self._mounts.new() if self._mounts is not None and self._mounts.fileno() in told else set()

    def _read(self) -> tuple[set[Hashable], bool]:
        told: set[Hashable] = set()
        lost = False
        for event in self._inotify.read() if self._inotify is not None else ():
            lost = lost or bool(event.mask & OVERFLOW)
            watched = self._watched.get(event.watch)
            if watched is not None:
                told.update(watched.targets.values())
                if event.mask & (IS_DIRECTORY | IGNORED):
                    told |= watched.above
            if event.mask & IGNORED:  # the directory has gone, and its watch with it
                self._watched.pop(event.watch, None)
        return told, lost

    def _poll(self) -> set[Hashable]:
        now = time.monotonic()
        if not (self._polled or self._awaited) or now < self._next_poll:
            return set()
        came = [path for path, one in self._awaited.items() if _identity(path, links=one.links) != one.before]
        told = {self._awaited.pop(path).target for path in came}
        for path, polled in list(self._polled.items()):
            changed, fresh = _looked_at(path)
            if changed != polled.time or polled.fresh:
                told |= polled.targets
            polled.time, polled.fresh = changed, fresh
            if changed == _GONE:
                del self._polled[path]
        self._next_poll = time.monotonic() + POLL_SECONDS
        return told


def _identity(path: str, *, links: bool) -> tuple[int, int] | None:
    """Of what is there; None: nothing is. links: follow one."""
    with suppress(OSError):
        found = os.stat(path, follow_symlinks=links)
        return found.st_dev, found.st_ino
    return None


def _looked_at(path: str) -> tuple[int, bool]:
    """When a directory last changed, and whether that was so lately that the time may hide another change."""
    with suppress(OSError):
        changed = os.stat(path, follow_symlinks=False).st_mtime_ns
        return changed, abs(time.time_ns() - changed) < _COARSE * 1e9
    return _GONE, False
