"""What has a deadline: one that is set for each wait and nearly always met, so it costs next to
nothing. The event loop's own timer is only moved when it would ring too late.

What a slow look has found lately, so that who asks often costs no more than who asks now and then.

Blocking work, such as writing to the disk, beside the event loop.

Unix sockets of ours: made at a path without a moment in which there is none, and who is at the
other end of one.

The name of this machine, for servers and header fields. It may be called anything; what is told is
a name that SMTP can say.
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


class DeadlineTimer(ABC):
    """Has one deadline at a time; all of it belongs to one event loop."""

    _deadline: float | None = None  # a time of the loop's clock
    _timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def deadline_passed(self) -> None:
        """What happens then. There is no deadline any more."""

    def set_deadline(self, when: float) -> None:
        """In place of the one before."""
        self._deadline = when
        if self._timer is None or self._timer.when() > when:
            self._start_timer(when)

    def clear_deadline(self) -> None:
        """There is none. The loop holds on to this object until the last one has passed."""
        self._deadline = None

    def cancel_deadline(self) -> None:
        """There is none, and the loop lets this object go."""
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        """For this deadline, or for one before it."""
        self._timer = None
        when, self._deadline = self._deadline, None
        if when is None:
            return
        if asyncio.get_running_loop().time() < when:
            self.set_deadline(when)
        else:
            self.deadline_passed()


Value = TypeVar("Value")

ERROR_TTL_SECONDS = (
    2.0  # that an error is kept, at most: who asks is told to come again in a moment
)


class AsyncTtlCache(Generic[Value]):
    """look: what is looked at, never twice at once. seconds: how long that is good for, an error
    less. patience: seconds to wait for it.
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
        """What was found, or is found now. TimeoutError: it takes too long; what the look raises."""
        loop = asyncio.get_running_loop()
        if self._task is None or (self._task.done() and loop.time() >= self._expires_at):
            self._task = loop.create_task(self._reload())
            self._task.add_done_callback(_consume_error)
        return await asyncio.wait_for(asyncio.shield(self._task), self._timeout)

    async def _reload(self) -> Value:
        seconds = min(self._ttl_seconds, ERROR_TTL_SECONDS)
        try:
            found = await self._load()
            seconds = self._ttl_seconds
        finally:
            self._expires_at = asyncio.get_running_loop().time() + seconds
        return found


def _consume_error(looked: asyncio.Task[Value]) -> None:
    """An error that comes when nobody waits any more is nobody's; asyncio would log it as a fault."""
    if not looked.cancelled():
        looked.exception()


_MAX_THREADS = 16  # pieces of work at once
_executors: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor] = WeakKeyDictionary()
"""Not the event loop's own few: it looks up names there, and where nobody answers for names each
takes one for many seconds.
"""

Result = TypeVar("Result")


async def run_in_thread(work: Callable[[], Result]) -> Result:
    """Blocking work, in a thread. Who is cancelled waits all the same until it is done: it reads a
    spool that is closed next.
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


_BACKLOG = 512
_UCRED = struct.Struct("3i")  # pid, uid, gid: unix(7)


def listen_at(path: Path, mode: int) -> socket.socket:
    """A socket that listens at a path, there from one moment to the next in the place of an older
    one. OSError.
    """
    if path.exists() and not path.is_socket():
        raise _not_a_socket_error(path)
    with suppress(OSError):
        path.parent.mkdir(mode=0o755)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX)
    try:
        found.bind(str(new))
        _chmod_socket(new, mode)
        found.listen(_BACKLOG)
        new.rename(path)
    except BaseException:
        found.close()
        new.unlink(missing_ok=True)
        raise
    return found


def is_listening(path: Path) -> bool:
    """Whether somebody listens there; what a process that was killed has left behind only looks so."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(str(path))
        except BlockingIOError:  # with no room in the queue just now
            return True
        except OSError:
            return False
    return True


def _chmod_socket(path: Path, mode: int) -> None:
    """Whoever owns the directory may have put something else there meanwhile, and root may be who
    listens.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise _not_a_socket_error(path)
        Path(f"/proc/self/fd/{descriptor}").chmod(mode)
    finally:
        os.close(descriptor)


def _not_a_socket_error(path: Path) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "something else is there, and is no socket", str(path))


def peer_pid(connected: socket.socket) -> int:
    """The number of the process at the other end, as it was when it connected or began to listen."""
    return _peer_credentials(connected)[0]


def peer_uid(connected: socket.socket) -> int:
    """Whose process is at the other end, as the kernel says: the number of the user it was when it
    connected.
    """
    return _peer_credentials(connected)[1]


def _peer_credentials(connected: socket.socket) -> tuple[int, int, int]:
    pid, user, group = _UCRED.unpack(
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    return pid, user, group


_SMTP_HOSTNAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?")


def hostname() -> str:
    """In ASCII letters, digits, dots, - and _ (RFC 5321, section 2.3.5, and what machines have
    besides), where need be as RFC 3490 writes it; "localhost" for a name that cannot be written so.
    """
    name = socket.gethostname()
    try:
        found = name if name.isascii() else name.encode("idna").decode("ascii")
    except UnicodeError:
        found = ""
    return found if _SMTP_HOSTNAME.fullmatch(found) else "localhost"
