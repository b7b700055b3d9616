"""An assembly for the tests of master and worker: doors that echo lines, and do what some words ask
for.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from spamguard.config.options import Settings
from spamguard.counters import Counters
from spamguard.daemon import worker


class Ready:
    """It has no scorers to wait for."""

    has_ready_scorer, is_replaced = True, False


class Door:
    """Greets with its process id, then answers each line: `slow SECONDS`, `settle`, `stop`
    (SIGSTOP), or an echo.

    While it drains, it closes connections that had an answer; a new connection still gets one.
    """

    def __init__(self, listening: socket.socket, settle: Callable[[], None]) -> None:
        self._listening = listening
        self._settle = settle
        self._draining = False
        self._sessions: set[asyncio.Task[None]] = set()
        self._idle: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def close(self) -> None:
        self._draining = True
        asyncio.get_running_loop().remove_reader(self._listening)
        for task in self._idle:
            task.cancel()

    async def wait_for_sessions(self) -> None:
        if self._sessions:
            await asyncio.wait(self._sessions)

    async def cut_off(self) -> None:
        for task in self._sessions:
            task.cancel()

    def _accept(self) -> None:
        try:
            connected, _ = self._listening.accept()
        except BlockingIOError:
            return
        connected.setblocking(False)
        task = asyncio.create_task(self._serve(connected))
        self._sessions.add(task)
        task.add_done_callback(self._sessions.discard)

    async def _serve(self, connected: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connected)
        try:
            writer.write(b"220 %d\n" % os.getpid())
            await self._talk(reader, writer)
        except asyncio.CancelledError:
            writer.write(b"421\n")
        finally:
            with suppress(ConnectionError):
                await writer.drain()
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        while line:
            word, _, rest = line.decode().strip().partition(" ")
            if word == "slow":
                await asyncio.sleep(float(rest))
            elif word == "settle":
                self._settle()
            elif word == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            writer.write(line)
            if self._draining:
                writer.write(b"421\n")
                return
            line = await self._next(reader)

    async def _next(self, reader: asyncio.StreamReader) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        self._idle.add(task)
        try:
            return await reader.readline()
        finally:
            self._idle.discard(task)


@asynccontextmanager
async def assemble(
    settings: Settings,
    sockets: Sequence[socket.socket],
    settle: Callable[[], None],
    counters: Counters,
) -> AsyncIterator[tuple[Sequence[Door], Ready]]:
    """One door for each listening socket. A listener with the hostname "broken" ends the process at
    once; "slow-SECONDS" delays its start so long.
    """
    for listener in settings.listeners:
        if listener.hostname == "broken":
            os._exit(7)
        if listener.hostname.startswith("slow-"):
            time.sleep(float(listener.hostname.removeprefix("slow-")))
    yield [Door(sock, settle) for sock in sockets], Ready()


main = partial(worker.main, assemble=assemble)
