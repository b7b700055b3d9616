"""Helpers for asyncio, Unix sockets, and the name of this machine.

`DeadlineTimer` is for connections that set a deadline for each wait and nearly always meet it: it
costs next to nothing, because the loop's own timer moves only when it would ring too late.
`AsyncTtlCache` keeps the result of a slow call, and `run_in_thread` runs blocking work. A Unix
socket gets its path in one step, so there is no moment without one.

It is written by hand because `asyncio.timeout` makes a timer for each wait, and cachetools does not
cache results of coroutines.

Must never leave a thread at work on a file that the caller closes next.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import stat
import struct
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

# ---- deadlines


class DeadlineTimer(ABC):
    """Has at most one deadline, a time of the event loop's clock. Belongs to one loop."""

    _deadline: float | None = None
    _timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def deadline_passed(self) -> None:
        """Called once when the deadline passes; there is none any more."""

    def set_deadline(self, when: float) -> None:
        """Replace the deadline."""
        self._deadline = when
        if self._timer is None or self._timer.when() > when:
            self._start_timer(when)

    def clear_deadline(self) -> None:
        """Remove the deadline. The loop holds this object until the timer rings."""
        self._deadline = None

    def cancel_deadline(self) -> None:
        """Remove the deadline, and have the loop let this object go."""
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        """Called for the deadline or for an earlier one that was replaced."""
        self._timer = None
        when, self._deadline = self._deadline, None
        if when is None:
            return
        if asyncio.get_running_loop().time() < when:
            self.set_deadline(when)
        else:
            self.deadline_passed()


# ---- a cache

Value = TypeVar("Value")

ERROR_TTL_SECONDS = 2.0
"""The time for which an error is kept, at most."""


class AsyncTtlCache(Generic[Value]):
    """Keeps the result of a slow async call.

    Parameters
    ----------
    load
        The call; never runs twice at once.
    ttl_seconds
        How long a result is good; an error is good for less.
    timeout
        How many seconds `get` waits.
    """

    def __init__(
        self, load: Callable[[], Awaitable[Value]], ttl_seconds: float, timeout: float
    ) -> None:
        self._load = load
        self._ttl_seconds = ttl_seconds
        self._timeout = timeout
        self._task: asyncio.Task[Value] | None = None
        self._expires_at = 0.0

    async def get(self) -> Value:
        """The result, or the error of the call; TimeoutError: it takes too long."""
        loop = asyncio.get_running_loop()
        if self._task is None or (self._task.done() and loop.time() >= self._expires_at):
            self._task = loop.create_task(self._reload())
            self._task.add_done_callback(_consume_error)
        return await asyncio.wait_for(asyncio.shield(self._task), self._timeout)

    async def _reload(self) -> Value:
        seconds = min(self._ttl_seconds, ERROR_TTL_SECONDS)
        try:
            value = await self._load()
            seconds = self._ttl_seconds
        finally:
            self._expires_at = asyncio.get_running_loop().time() + seconds
        return value


def _consume_error(task: asyncio.Task[Value]) -> None:
    """asyncio would log an error that comes when nobody waits any more."""
    if not task.cancelled():
        task.exception()


# ---- threads

_MAX_THREADS = 16
# Not the loop's own few threads: it looks up names there, and where no name server answers, each
# look-up takes one for many seconds.
_executors: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor] = WeakKeyDictionary()

Result = TypeVar("Result")


async def run_in_thread(work: Callable[[], Result]) -> Result:
    """Run blocking work in a thread.

    A cancelled caller waits until the work is done: it may read a spool that is closed next.
    """
    loop = asyncio.get_running_loop()
    if loop not in _executors:
        _executors[loop] = ThreadPoolExecutor(_MAX_THREADS, "work")
    running = loop.run_in_executor(_executors[loop], work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise


# ---- Unix sockets

_BACKLOG = 512
_UCRED = struct.Struct("3i")  # pid, uid, gid: unix(7)


def listen_at(path: Path, mode: int) -> socket.socket:
    """A socket that listens at a path, in the place of an older socket. OSError: it cannot."""
    if path.exists() and not path.is_socket():
        raise _not_a_socket_error(path)
    with suppress(OSError):
        path.parent.mkdir(mode=0o755)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(str(draft))
        _chmod_socket(draft, mode)
        listening.listen(_BACKLOG)
        draft.rename(path)
    except BaseException:
        listening.close()
        draft.unlink(missing_ok=True)
        raise
    return listening


def is_listening(path: Path) -> bool:
    """Whether a process listens there; a killed process leaves a socket on which nobody does."""
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except BlockingIOError:  # its queue is full just now
            return True
        except OSError:
            return False
    return True


def _chmod_socket(path: Path, mode: int) -> None:
    """The owner of the directory may have put something else there, and we may be root."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise _not_a_socket_error(path)
        Path(f"/proc/self/fd/{descriptor}").chmod(mode)
    finally:
        os.close(descriptor)


def _not_a_socket_error(path: Path) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "something else is there, and is no socket", str(path))


def peer_pid(connection: socket.socket) -> int:
    """The id of the process at the other end, when it connected or began to listen."""
    return _peer_credentials(connection)[0]


def peer_uid(connection: socket.socket) -> int:
    """The user of the process at the other end, as the kernel says, when it connected."""
    return _peer_credentials(connection)[1]


def _peer_credentials(connection: socket.socket) -> tuple[int, int, int]:
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, user, group = _UCRED.unpack(data)
    return pid, user, group


# ---- the name of this machine

_SMTP_HOSTNAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?")


def hostname() -> str:
    """The name of this machine as SMTP can write it (RFC 5321, section 2.3.5, and underscores).

    Names in other scripts are written as in RFC 3490; "localhost" stands for what cannot be
    written.
    """
    name = socket.gethostname()
    with suppress(UnicodeError):
        name = name if name.isascii() else name.encode("idna").decode("ascii")
        if _SMTP_HOSTNAME.fullmatch(name):
            return name
    return "localhost"
