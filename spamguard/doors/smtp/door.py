"""The SMTP and the LMTP door: takes connections from listening sockets and ends them in good order.

Must never close or re-configure a listening socket: it belongs to the master, and other workers take from it too.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from spamguard.doors.smtp import tls
from spamguard.doors.smtp.connection import READ_BYTES
from spamguard.doors.smtp.limits import Load, Networks, plain_address
from spamguard.doors.smtp.session import Terms
from spamguard.doors.smtp.transactions import MailSession
from spamguard.proxy.contract import Proxy
from spamguard.settings import Listener, OddBytes, Position, Protocol

_BREATH_SECONDS = 1.0  # until the next try, when no connection can be taken (no descriptors, no memory)
_CUT_SECONDS = 1.0  # for sessions to end once they are cut

_log = logging.getLogger("spamguard.doors")


class Door:
    """One listener in one process. All methods belong to the event loop it was started in."""

    def __init__(self, terms: Terms, sockets: Sequence[socket.socket]) -> None:
        self._terms = terms
        self._sockets = sockets
        self._scratch = memoryview(bytearray(READ_BYTES))
        self._sessions: dict[asyncio.Task[None], MailSession] = {}
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
        """Take no more connections, finish what is under way, and return when all is over; what is not over at `deadline`, a time
        of the event loop's clock, is cut off. May be called again meanwhile, with an earlier deadline."""
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
        loop = asyncio.get_running_loop()
        session = MailSession(self._terms, loop, self._scratch, host, port)
        task = loop.create_task(_run(session, connected))
        self._sessions[task] = session
        task.add_done_callback(self._sessions.pop)


async def _run(session: MailSession, connected: socket.socket) -> None:
    """One connection, from its first byte to its last."""
    try:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: session, connected)
    except OSError as error:
        _log.info("connection lost at once: %s", error)
        return
    await session.run()


def untimed(seconds: float) -> None:
    """Nobody wants to know."""


def open_door(
    listener: Listener,
    proxy: Proxy,
    sockets: Sequence[socket.socket],
    spool_directory: Path,
    hostname: str = "",
    received: Callable[[float], None] = untimed,
) -> Door:
    """A door that is not open yet. sockets: bound and listening; they stay the caller's. hostname: where the listener names none.
    received: is told how many seconds the data of each message took.

    ValueError, OSError or ssl.SSLError for networks or a certificate that are none.
    """
    odd_bytes = listener.odd_bytes or (OddBytes.NORMALISE if listener.position is Position.AFTER_QUEUE else OddBytes.REFUSE)
    terms = Terms(
        proxy=proxy,
        lmtp=listener.endpoint.protocol is Protocol.LMTP,
        hostname=listener.hostname or hostname or socket.gethostname(),
        limits=listener.limits,
        load=Load(listener.limits),
        odd_bytes=odd_bytes,
        position=listener.position,
        clients=Networks(listener.clients),
        trusted=Networks(listener.trusted),
        tls=None if listener.tls is None else tls.server_context(listener.tls),
        spool_directory=spool_directory,
        received=received,
    )
    return Door(terms, sockets)
