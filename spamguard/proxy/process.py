"""One scorer process as its worker sees it: started, told what to judge, listened to, killed.

Must never wait: all of this runs in the worker's event loop. Starting goes by exec, never by a bare fork.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spamguard import __file__ as package
from spamguard import installed
from spamguard.proxy import frames
from spamguard.proxy.contract import NotScanned
from spamguard.records import Scan
from spamguard.spool import Spool

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_READ = 256 << 10
_POLL = 0.01  # seconds between looks at whether a killed process is gone


@dataclass(eq=False, slots=True)
class Work:
    """A message that somebody waits for."""

    message: Spool
    on_top: bytes
    users: Sequence[str]
    done: asyncio.Future[Scan | NotScanned]

    def finish(self, found: Scan | NotScanned) -> None:
        """Tell who waits, if anybody still does."""
        if not self.done.done():
            self.done.set_result(found)


class Process:
    """A scorer. works: what it was given and has not answered, the one it is at first.

    on_change: called with this object whenever it has become ready, answered, or ended.
    """

    def __init__(self, command: Sequence[str], arguments: Sequence[str], on_change: Callable[[Process], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_change = on_change
        self._answers = frames.Answers()
        self._unsent = memoryview(b"")
        self._waits_to_write = False
        self.works: deque[Work] = deque()
        self.ready = False
        self.ended = False
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _started([*command, str(theirs.fileno()), str(os.getpid()), *arguments], theirs.fileno())
            except OSError:
                self._socket.close()
                raise
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._readable)

    @property
    def number(self) -> int:
        """Of the process."""
        return self._process.pid

    def give(self, works: Sequence[Work]) -> None:
        """Have these judged, in order. One whose message lies in a file goes alone. OSError: one of them cannot be read."""
        frame, descriptors = _requests(works)
        self.works.extend(works)
        try:
            if descriptors:
                sent = socket.send_fds(self._socket, [frame], descriptors)
                frame = frame[sent:]
        except OSError:
            self.kill()
            return
        self._unsent = memoryview(frame)
        self._write()

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._unsent) if self._unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self.kill()
            return
        self._unsent = self._unsent[sent:]
        if bool(self._unsent) != self._waits_to_write:
            self._waits_to_write = bool(self._unsent)
            if self._waits_to_write:
                self._loop.add_writer(self._socket, self._write)
            else:
                self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_READ)
            if not data:
                raise ConnectionError
            for found in self._answers.feed(data):
                self._take(found)
        except BlockingIOError:
            return
        except (OSError, ValueError):  # gone, or not in its right mind
            self.kill()
            return
        self._on_change(self)

    def _take(self, found: frames.Answer) -> None:
        """ValueError: an answer to nothing, or none at all."""
        if found.kind == frames.READY and not self.ready:
            self.ready = True
        elif self.works and self.ready:
            scanned, work = found.kind == frames.SCANNED, self.works[0]
            result = frames.scan_of(found, work.users) if scanned else NotScanned(frames.reason_of(found))
            self.works.popleft().finish(result)
        else:
            raise ValueError("nothing was asked")

    def kill(self) -> None:
        """End it at once; idempotent."""
        if self.ended:
            return
        self.ended = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._process.kill()
        self._on_change(self)

    async def gone(self) -> None:
        """Until nothing is left of it."""
        while self._process.poll() is None:
            await asyncio.sleep(_POLL)

    @property
    def lost_its_tables(self) -> bool:
        """Whether it has ended because the file of the tables, which it maps, could not be read: its disk is full or broken."""
        return self._process.returncode == -signal.SIGBUS


def _started(command: Sequence[str], descriptor: int) -> subprocess.Popen[bytes]:
    installed.check()
    path = os.pathsep.join(filter(None, (str(Path(package).parents[1]), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(  # noqa: S603  our own command
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(descriptor,),
        env={**os.environ, **_ONE_THREAD, "PYTHONPATH": path},
    )


def _requests(works: Sequence[Work]) -> tuple[bytes, list[int]]:
    """Frames of some messages, and the files they lie in."""
    parts: list[bytes] = []
    descriptors = [work.message.descriptor for work in works if work.message.descriptor is not None]
    for work in works:
        on_top, in_file = work.on_top[: frames.MOST_ON_TOP], work.message.descriptor is not None
        users = frames.users(work.users)
        parts += (frames.REQUEST.pack(in_file, len(on_top), len(users), work.message.size), on_top, users)
        parts += () if in_file else (work.message.read(),)
    return b"".join(parts), descriptors
