"""A door: takes connections from listening sockets, has each served by a session of its own, and ends them in good order.

Must never close or re-configure a listening socket: it belongs to the master, and other workers take from it too.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from spamguard.reception.clients import plain_address

_BREATH_SECONDS = 1.0  # until the next try, when no connection can be taken (no descriptors, no memory)
_CUT_SECONDS = 1.0  # for sessions to end once they are cut

_log = logging.getLogger("spamguard.doors")


class Session(Protocol):
    """One connection. It is cancelled when its time is over, and may still say so then."""

    async def serve(self, connected: socket.socket) -> None:
        """From its first byte to its last. connected: its own, to be closed in the end."""

    def drain(self) -> None:
        """End as soon as nothing is under way."""

    def abort(self) -> None:
        """Drop the client with all that was not sent."""


class Door:
    """One listener in one process. begin: makes the session for a client, given its address, "" on a Unix socket, and port.

    All methods belong to the event loop it was started in. sockets: bound and listening; they stay the caller's.
    """

    def __init__(self, begin: Callable[[str, str], Session], sockets: Sequence[socket.socket]) -> None:
        self._session = begin
        self._sockets = sockets
        self._sessions: dict[asyncio.Task[None], Session] = {}
        self._open = False

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._sessions)

    async def start(self) -> None:
        """Take connections."""
        self._open = True
        for listening in self._sockets:
            listening.setblocking(False)
            self._listen(listening)

    async def drain(self, deadline: float) -> None:
        """Take no more connections, before anything else, finish what is under way, and return when all is over; what is not over at
        `deadline`, a time of the event loop's clock, is cut off. May be called again meanwhile, with an earlier deadline."""
        self._open = False
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
        for session in self._sessions.values():
            session.drain()
        await self._wait_for_end(deadline - loop.time())
        for task in self._sessions:
            task.cancel()
        await self._wait_for_end(_CUT_SECONDS)
        for task, session in self._sessions.items():
            session.abort()
            task.cancel()
        await self._wait_for_end(_CUT_SECONDS)

    async def _wait_for_end(self, seconds: float) -> None:
        if self._sessions:
            await asyncio.wait(self._sessions, timeout=max(seconds, 0))

    def _listen(self, listening: socket.socket) -> None:
        if self._open:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        """One at a time: other workers wait for connections too, and other clients for this one."""
        try:
            connected, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.error("no connection can be taken: %s", error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening)
            loop.call_later(_BREATH_SECONDS, self._listen, listening)
            return
        connected.setblocking(False)
        self._begin(connected, address)

    def _begin(self, connected: socket.socket, address: object) -> None:
        host, port = (plain_address(address[0]), str(address[1])) if isinstance(address, tuple) else ("", "")
        session = self._session(host, port)
        task = asyncio.get_running_loop().create_task(session.serve(connected))
        self._sessions[task] = session
        task.add_done_callback(self._sessions.pop)
