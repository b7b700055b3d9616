"""Which directories may have changed: inotify(7) tells, by watchdog. Directories that it does not
watch are polled: modification times tell. That is our own, because watchdog's takes a thread for
each, looks at each message, and follows links.

Events are hints: the caller looks itself, now and then also without one, because a mount hides what
lies below it, and network file systems tell nothing.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import time
from collections.abc import Callable, Collection, Container, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, cast

from spamguard.log import WarnOnce

if TYPE_CHECKING:
    from watchdog.observers.inotify_c import CallbackId, InotifyEvent, Mask, WatchDescriptor

_log = logging.getLogger("spamguard.folders")


def is_below(path: str, directories: Collection[str]) -> bool:
    """Whether an absolute path is in a set or mapping of directories, or below one of them."""
    while path not in directories:
        if path == "/":
            return False
        path = path.rpartition("/")[0] or "/"
    return True


_MAX_READS = 64  # of one call; the next call reads on

DirectoryEvent = tuple[int, bool, bool]
"""The watch in which a name came or went, whether it was a directory's, whether all is gone."""
LOST_EVENTS: DirectoryEvent = (-1, False, False)


class InotifyEvents:
    """Events of inotify(7), by watchdog. OSError: it has run out of descriptors."""

    def __init__(self, watched: Container[int]) -> None:
        from watchdog.observers.inotify_c import InotifyConstants, InotifyFD  # noqa: PLC0415  lazy

        # Its thread is never started: it would tell of a change some time after a call of `read`
        # that came after the change. The caller reads, and no more than it has time for.
        self._inotify = InotifyFD()
        os.set_inheritable(self.fileno(), False)
        names = InotifyConstants.IN_MOVE | InotifyConstants.IN_CREATE | InotifyConstants.IN_DELETE
        # Names come and go; the content of a message never changes.
        self._mask = cast("Mask", names | InotifyConstants.IN_ONLYDIR)
        self._watched = watched
        self._events: set[DirectoryEvent] = set()

    def fileno(self) -> int:
        return self._inotify._inotify_fd

    def add(self, directory: int, path: str) -> int:
        """Watch the names in an open directory, wherever its path leads to by now; the number of
        the watch, the same for the same directory. OSError.
        """
        number = cast("CallbackId", object())
        watch = self._inotify.add_callback(_descriptor_path(directory), self._mask, self, number)
        if watch < 0 or watch in self._watched:
            self._inotify.remove_callbacks([(watch, number)])
        if watch < 0:  # the one error that watchdog does not raise
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return watch

    def read(self) -> set[DirectoryEvent]:
        """What has happened since the last call; `LOST_EVENTS` is among it if that is not all."""
        poller = select.poll()
        poller.register(self, select.POLLIN)
        for _ in range(_MAX_READS):
            if not poller.poll(0):
                break
            for event in self._inotify.read_events():
                self._inotify.handle_event(event)
        events, self._events = self._events, set()
        return events

    def close(self) -> None:
        """Close the descriptors, and with them all watches; its `close` would end one by one."""
        self._inotify._close_resources()

    # ---- called by watchdog

    def on_event(self, event: InotifyEvent) -> None:
        self._events.add((event.wd, event.is_directory, False))

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        self._events.add((wd, True, True))

    def on_queue_overflow(self) -> None:
        self._events.add(LOST_EVENTS)


@cache
def _descriptor_path(descriptor: int) -> bytes:  # watchdog keeps it: one for each would take memory
    return b"/proc/self/fd/%d" % descriptor


POLL_SECONDS = 0.5
_POLL_PAUSE = 20  # times the processor time that a poll took
_COARSE_SECONDS = 2.0  # a directory that changed since may change again without a new time

_EVENT_ERRORS = {
    errno.ENOSPC: "too many directories: raise sysctl fs.inotify.max_user_watches",
    errno.EMFILE: "too many inotify descriptors: raise sysctl fs.inotify.max_user_instances",
}


@dataclass
class _PolledPath:
    look: Callable[[str], object]
    state: object
    targets: set[Hashable]


class DirectoryMonitor:
    """Directories, each with a target: what the caller knows it by."""

    def __init__(self, *, notify: bool = True) -> None:
        self._warnings = WarnOnce(_log)
        self._events: InotifyEvents | None = None
        # Of each watch: targets by owner, and whether only directories matter.
        self._watched: dict[int, dict[tuple[Hashable, bool], Hashable]] = {}
        self._polled: dict[str, _PolledPath] = {}
        self._awaited: dict[str, _PolledPath] = {}  # until its state changes
        self._next_poll = 0.0
        if notify:
            try:
                self._events = InotifyEvents(self._watched)
            except OSError as error:
                self._warn_no_events(error)

    def add(
        self,
        directory: int,
        path: str,
        target: Hashable,
        *,
        directories_only: bool = False,
        owner: Hashable = None,
    ) -> None:
        """Watch an open directory, or only which directories come and go in it.

        If the same directory was added with another target of this owner (as the mailbox of a
        folder), it was renamed since, and only the new target is reported.
        """
        self._awaited.pop(path, None)
        watch = None
        try:
            if self._events is not None:
                watch = self._events.add(directory, path)
        except OSError as error:
            self._warn_no_events(error)
        if watch is None:
            if path not in self._polled:
                self._polled[path] = _PolledPath(_change_time, _change_time(path), set())
            self._polled[path].targets.add(target)
            return
        self._polled.pop(path, None)
        self._watched.setdefault(watch, {})[owner or target, directories_only] = target

    def wait_for(self, path: str, target: Hashable) -> None:
        """Report once when another directory is at a path: the first one, or one mounted there."""
        self._awaited[path] = _PolledPath(_identity, _identity(path), {target})

    def wait(self, timeout: float) -> tuple[set[Hashable], bool]:
        """Wait at most so long for targets that may have changed; whether events were lost."""
        until, remaining = time.monotonic() + timeout, 0.0
        while True:
            if self._polled or self._awaited:
                remaining = min(remaining, self._next_poll - time.monotonic())
            poller = select.poll()
            if self._events is not None:
                poller.register(self._events, select.POLLIN)
            poller.poll(remaining * 1000 + 1 if remaining > 0 else 0)
            events = self._events.read() if self._events is not None else set()
            targets = self._poll()
            for watch, of_directory, is_gone in events:
                watched = self._watched.pop(watch, {}) if is_gone else self._watched.get(watch, {})
                for (_, directories_only), target in watched.items():
                    if of_directory or not directories_only:
                        targets.add(target)
            lost, remaining = LOST_EVENTS in events, until - time.monotonic()
            if targets or lost or remaining <= 0:
                return targets, lost

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
        self._events = None

    def _warn_no_events(self, error: OSError) -> None:
        why = _EVENT_ERRORS.get(error.errno or 0, error.strerror)
        self._warnings.warn(error.errno, "no file events (%s): directories are polled instead", why)

    def _poll(self) -> set[Hashable]:
        start = time.thread_time()
        if not (self._polled or self._awaited) or time.monotonic() < self._next_poll:
            return set()
        targets: set[Hashable] = set()
        for paths in (self._awaited, self._polled):
            for path, polled in list(paths.items()):
                before, polled.state = polled.state, polled.look(path)
                if polled.state != before:
                    targets |= polled.targets
                if polled.state is None if paths is self._polled else polled.state != before:
                    del paths[path]
        end = time.monotonic()
        self._next_poll = end + max(POLL_SECONDS, _POLL_PAUSE * (time.thread_time() - start))
        return targets


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of what is at a path; None: nothing."""
    with suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None


def _change_time(path: str) -> tuple[int, int] | None:
    """When a directory changed last, in nanoseconds; None: it is gone. As long as that may hide
    another change, the second number is another one each time.
    """
    with suppress(OSError):
        changed, now = os.lstat(path).st_mtime_ns, time.time_ns()
        return changed, now if abs(now - changed) < _COARSE_SECONDS * 1e9 else 0
    return None
