"""A TCP proxy that fails as networks do: it refuses, falls silent, delays and cuts.

It runs in a thread of its own, so tests without an event loop and other processes may use it too.
Start it before a process that is forked: a descriptor that a child inherits keeps connections open.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_PASS, _REFUSE, _SWALLOW = "pass", "refuse", "swallow"


class Partition:
    """The proxy in front of a port of loopback.

    Each method changes how it treats all connections from now on, those that are open included.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._mode = _PASS
        self._delay = 0.0
        self._allowed: int | None = None  # bytes from the server until all is cut
        self._lost: tuple[bytes, int] | None = None
        self._matches = 0
        self.losses = 0  # answers that were lost
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def connections(self) -> int:
        """How many connections are open, those of both sides."""
        return len(self._open)

    def pass_on(self) -> None:
        """Pass everything on. Connections that lost bytes are cut first."""

        def change() -> None:
            if self._mode == _SWALLOW:
                self._reset_all()
            self._mode, self._delay, self._allowed, self._lost = _PASS, 0.0, None, None

        self._do(change)

    def refuse(self) -> None:
        """Cut all connections, and reset new ones."""
        self._set(_REFUSE, reset=True)

    def swallow(self) -> None:
        """Accept connections and bytes, and never answer nor close."""
        self._set(_SWALLOW)

    def cut(self) -> None:
        """Cut the connections that are open; new ones pass."""
        self._do(self._reset_all)

    def cut_after(self, count: int) -> None:
        """Cut all connections when the server has sent so many bytes more; then pass again."""
        self._do(lambda: setattr(self, "_allowed", count))

    def delay(self, seconds: float) -> None:
        """Let everything arrive so much later."""
        self._do(lambda: setattr(self, "_delay", seconds))

    def lose_answers(self, pattern: bytes, every: int) -> None:
        """Cut the connection in the place of each so-manieth answer to what holds the pattern."""
        self._do(lambda: setattr(self, "_lost", (pattern, every)))

    def _set(self, mode: str, *, reset: bool = False) -> None:
        def change() -> None:
            self._mode = mode
            if reset:
                self._reset_all()

        self._do(change)

    def _do(self, change: Callable[[], object]) -> None:
        done = threading.Event()

        def call() -> None:
            change()
            done.set()

        self._loop.call_soon_threadsafe(call)
        done.wait()

    def _reset_all(self) -> None:
        for writer in self._open:
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == _REFUSE:
            _reset(writer)
            return
        self._open.add(writer)
        upstream = None
        try:
            # A silent network does not reach the server either.
            while self._mode == _SWALLOW and not reader.at_eof():
                await asyncio.sleep(0.02)
            there, upstream = await asyncio.open_connection("127.0.0.1", self.target)
            self._open.add(upstream)
            state = _Flow()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, upstream, state, is_request=True))
                group.create_task(self._pump(there, writer, state, is_request=False))
        except* (OSError, EOFError):
            pass
        finally:
            for end in filter(None, (writer, upstream)):
                self._open.discard(end)
                _reset(end)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        flow: _Flow,
        *,
        is_request: bool,
    ) -> None:
        while data := await reader.read(1 << 16):
            while self._mode == _SWALLOW:
                if reader.at_eof():
                    raise EOFError
                await asyncio.sleep(0.02)
            if self._delay:
                await asyncio.sleep(self._delay)
            if is_request:
                flow.is_doomed = flow.is_doomed or self._is_lost(data)
            else:
                if flow.is_doomed:
                    self.losses += 1
                    raise EOFError
                if self._allowed is not None:
                    data, rest = data[: self._allowed], data[self._allowed :]
                    self._allowed -= len(data)
                    if rest:
                        self._allowed = None
                        writer.write(data)
                        await writer.drain()
                        self._reset_all()
                        raise EOFError
            writer.write(data)
            await writer.drain()
        raise EOFError

    def _is_lost(self, data: bytes) -> bool:
        if self._lost is None or self._lost[0] not in data:
            return False
        self._matches += 1
        return self._matches % self._lost[1] == 0


class _Flow:
    """What the two directions of a connection know of each other."""

    is_doomed = False  # its next answer is lost


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, AttributeError):
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
    writer.transport.abort()


@contextmanager
def partition(target: int) -> Iterator[Partition]:
    """A proxy in front of this port, which passes everything on to begin with."""
    proxy = Partition(target)
    started = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
        proxy.port = server.sockets[0].getsockname()[1]
        started.set()
        await stop.wait()
        server.close()
        proxy._reset_all()

    def run() -> None:
        asyncio.set_event_loop(proxy._loop)
        proxy._loop.run_until_complete(serve())
        for task in asyncio.all_tasks(proxy._loop):
            task.cancel()
        proxy._loop.run_until_complete(asyncio.sleep(0))
        proxy._loop.close()

    thread = threading.Thread(target=run, name="partition", daemon=True)
    thread.start()
    started.wait()
    try:
        yield proxy
    finally:
        proxy._loop.call_soon_threadsafe(stop.set)
        thread.join()
