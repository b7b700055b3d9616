"""A door: takes connections from listening sockets, has each served by a session of its own, and ends them in good order.

A session that is evicted to make room for another is cancelled, as it is when the door closes.

Must never close or re-configure a listening socket: it belongs to the master, and other workers take from it too.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from spamguard.reception.clients import ConnectionLimits, Crowd, Networks, plain_address
from spamguard.settings import DoorLimits, ScannerLimits

_BREATH_SECONDS = 1.0  # until the next try, when no connection can be taken (no descriptors, no memory)
_CUT_SECONDS = 1.0  # for sessions to end once they are cut

_log = logging.getLogger("spamguard.doors")


class Session(Protocol):
    """One connection. It is cancelled when its time is over, and may still say so then."""

    @property
    def idle_since(self) -> float | None:
        """As of `clients.Idling`; None also before it is served and once it ends: it must not be cancelled then."""

    async def serve(self, connected: socket.socket, refused: Crowd | None) -> None:
        """From its first byte to its last. connected: its own, to be closed in the end. refused: why it is only told to go."""

    def drain(self) -> None:
        """End as soon as nothing is under way."""

    def abort(self) -> None:
        """Drop the client with all that was not sent."""


class Door:
    """One listener in one process. begin: makes the session for a client, given its address, "" on a Unix socket, and port. clients: may
    connect at all; limits: of connections.

    All methods belong to the event loop it was started in. sockets: bound and listening; they stay the caller's.
    """

    def __init__(
        self,
        begin: Callable[[str, str], Session],
        sockets: Sequence[socket.socket],
        clients: Networks,
        limits: DoorLimits | ScannerLimits,
    ) -> None:
        self._session = begin
        self._sockets = sockets
        self._clients = clients
        self._limits = ConnectionLimits[Session](limits.connections, limits.connections_per_client, self._evict)
        self._tasks: dict[Session, asyncio.Task[None]] = {}
        self._open = False

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._tasks)

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
        for session in self._tasks:
            session.drain()
        await self._wait_for_end(deadline - loop.time())
        for task in self._tasks.values():
            task.cancel()
        await self._wait_for_end(_CUT_SECONDS)
        for session, task in self._tasks.items():
            session.abort()
            task.cancel()
        await self._wait_for_end(_CUT_SECONDS)

    async def _wait_for_end(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=max(seconds, 0))

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
        refused = self._limits.enter(session, host) if host in self._clients else Crowd.NOT_LISTED
        task = asyncio.get_running_loop().create_task(session.serve(connected, refused))
        self._tasks[session] = task
        task.add_done_callback(partial(self._end, session))

    def _end(self, session: Session, _task: asyncio.Task[None]) -> None:
        del self._tasks[session]
        self._limits.leave(session)

    def _evict(self, session: Session) -> None:
        self._tasks[session].cancel()
