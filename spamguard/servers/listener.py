"""How connections come in at a door: accepting, limits, deadlines, and an orderly end.

A `Door` takes connections from the listening sockets of one listener or scanner and starts a
session for each. A `Conversation` is the session of a scanner door whose client asks and is
answered over a stream (rspamd, spamd): every wait has a deadline, and the connection is closed so
that the last answer arrives. An `IncomingMessage` keeps a message within the limits of its door.
Nothing here knows a protocol.

It is written by hand because the servers of asyncio accept connections without bound.

Must never close or reconfigure a listening socket (it belongs to the master, and other workers
accept from it too), wait without a deadline, hold more than a few pieces for a client, or let the
fault of one session end a door.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Protocol

from spamguard.config.options import DoorLimits, ScannerLimits
from spamguard.limits import (
    ByteQuota,
    ConnectionLimits,
    LimitExceeded,
    Networks,
    normalise_address,
    quota_key,
)
from spamguard.proxy.scan import ScanService
from spamguard.storage import Spool

_log = logging.getLogger("spamguard.doors")

CHUNK_BYTES = 64 << 10  # that are read at once
_ACCEPT_RETRY_SECONDS = 1.0  # after accept has failed: no descriptors, no memory
_CANCEL_TIMEOUT = 1.0  # for cancelled sessions to end
_DRAIN_GRACE_SECONDS = 1.0  # in which a draining door still accepts a request
_DRAIN_INPUT_TIMEOUT = 1.0  # for a client to stop sending
_CLOSE_TIMEOUT = 10.0  # for a client to take the last answer


class ServerSession(Protocol):
    """One connection. It may be cancelled while it is idle."""

    @property
    def idle_since(self) -> float | None:
        """As of `limits.Evictable`. None also before and after `serve`: it must not be cancelled
        then.
        """

    async def serve(self, connected: socket.socket, refused: LimitExceeded | None) -> None:
        """Serve the client from first byte to last, and close the socket.

        refused: why the client is not served, but only told so.
        """

    def drain(self) -> None:
        """End as soon as nothing is under way."""

    def cancel(self, task: asyncio.Task[None]) -> None:
        """Cancel the task that serves; before that, the client may be told."""

    def abort(self) -> None:
        """Drop the client and all bytes not sent."""


class Door:
    """One listener in one process. All methods belong to the event loop that started it.

    make_session: called with the address ("" on a Unix socket) and the port of a client. sockets:
    bound and listening; they stay the caller's. clients: networks that may connect.
    """

    def __init__(
        self,
        make_session: Callable[[str, str], ServerSession],
        sockets: Sequence[socket.socket],
        clients: Networks,
        limits: DoorLimits | ScannerLimits,
    ) -> None:
        self._make_session = make_session
        self._sockets = sockets
        self._clients = clients
        self._limits = ConnectionLimits[ServerSession](
            limits.connections,
            limits.connections_per_client,
            evict=lambda session: session.cancel(self._tasks[session]),
        )
        self._tasks: dict[ServerSession, asyncio.Task[None]] = {}
        self._is_open = False

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._tasks)

    async def start(self) -> None:
        """Accept connections from now on."""
        self._is_open = True
        for listening in self._sockets:
            listening.setblocking(False)
            self._listen(listening)

    async def drain(self, deadline: float) -> None:
        """Accept no more connections, and return when all sessions are over.

        Sessions finish what is under way until `deadline`, a time of the event loop's clock; the
        rest is cut off. May be called again meanwhile, with an earlier deadline.
        """
        self._is_open = False
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
        for session in self._tasks:
            session.drain()
        await self._wait_for_end(deadline - loop.time())
        for session, task in self._tasks.items():
            session.cancel(task)
        await self._wait_for_end(_CANCEL_TIMEOUT)
        for session, task in self._tasks.items():
            session.abort()
            task.cancel()
        await self._wait_for_end(_CANCEL_TIMEOUT)

    async def _wait_for_end(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=max(seconds, 0))

    def _listen(self, listening: socket.socket) -> None:
        if self._is_open:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        """Accept one connection: other workers wait for connections too, and other clients for
        this worker.
        """
        loop = asyncio.get_running_loop()
        try:
            connected, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.error("no connection can be taken: %s", error)
            loop.remove_reader(listening)
            loop.call_later(_ACCEPT_RETRY_SECONDS, self._listen, listening)
            return
        connected.setblocking(False)
        host = port = ""
        if isinstance(address, tuple):
            host, port = normalise_address(address[0]), str(address[1])
        session = self._make_session(host, port)
        refused: LimitExceeded | None = LimitExceeded.NOT_LISTED
        if host in self._clients:
            refused = self._limits.enter(session, host)
        task = loop.create_task(session.serve(connected, refused))
        self._tasks[session] = task
        task.add_done_callback(partial(self._end_session, session))

    def _end_session(self, session: ServerSession, _task: asyncio.Task[None]) -> None:
        del self._tasks[session]
        self._limits.leave(session)


# ---- messages


class Rejection(Enum):
    """Why a message is not accepted."""

    TOO_LARGE = auto()  # for ever
    TRY_LATER = auto()  # too much is under way, or the disk is full


class IncomingMessage:
    """A message as it comes in.

    quota_key: of its client, as of `limits.quota_key`. rejection: why it is not accepted, None
    while it is; once rejected, nothing of it is kept.
    """

    def __init__(
        self,
        directory: Path,
        limits: DoorLimits | ScannerLimits,
        byte_quota: ByteQuota,
        quota_key: str = "",
    ) -> None:
        self.spool = Spool(directory)
        self.rejection: Rejection | None = None
        self._max_bytes = limits.message_size
        self._byte_quota = byte_quota
        self._quota_key = quota_key
        self._counted_bytes = 0

    def write(self, data: bytes) -> None:
        """Append some bytes, or reject the message; never raises."""
        if self.rejection is not None or not data:
            return
        if self.spool.size + len(data) > self._max_bytes:
            self._reject(Rejection.TOO_LARGE)
        elif not self._byte_quota.take(len(data), self._quota_key):
            self._reject(Rejection.TRY_LATER)
        else:
            self._counted_bytes += len(data)
            try:
                self.spool.write(data)
            except OSError as error:
                _log.error("a message cannot be kept: %s", error)
                self._reject(Rejection.TRY_LATER)

    def _reject(self, rejection: Rejection) -> None:
        self.rejection = rejection
        self.close()

    def close(self) -> None:
        """Give file, memory and quota back; idempotent."""
        self.spool.close()
        self._byte_quota.release(self._counted_bytes, self._quota_key)
        self._counted_bytes = 0


# ---- conversations


class ConversationEnded(Exception):  # noqa: N818  no error: every conversation ends
    """The conversation is over."""


class ConnectionClosed(ConversationEnded):
    """The client has gone."""


class ClientTimeout(ConversationEnded):
    """The client has missed a deadline."""


async def drain_input(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait a moment for the client to stop sending.

    Closing with unread input resets the connection, and the client would lose our last answer.
    """
    with suppress(OSError, ClientTimeout):  # TimeoutError is an OSError
        async with asyncio.timeout(_DRAIN_INPUT_TIMEOUT):
            if writer.can_write_eof():  # not by TLS
                writer.write_eof()
            while await reader.read(CHUNK_BYTES):
                pass


async def close_stream(writer: asyncio.StreamWriter) -> None:
    """Close, and wait until the client has taken the last bytes, for some time."""
    writer.close()
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT):
            await writer.wait_closed()
    except OSError:  # TimeoutError is one
        writer.transport.abort()


@dataclass(frozen=True, slots=True)
class ScannerContext:
    """What all sessions of one scanner door share."""

    service: ScanService
    byte_quota: ByteQuota
    spool_directory: Path

    @property
    def limits(self) -> ScannerLimits:
        """The limits of the door."""
        return self.service.scanner.limits

    def incoming_message(self, address: str) -> IncomingMessage:
        """A new message of the client at this address."""
        key = quota_key(address, trusted=self.service.trusts(address))
        return IncomingMessage(self.spool_directory, self.limits, self.byte_quota, key)


class Conversation(ABC):
    """A `ServerSession` in which a client asks and is answered. address: "" on a Unix socket."""

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter

    def __init__(self, context: ScannerContext, address: str) -> None:
        self._context = context
        self._service = context.service
        self.address = address
        self.is_draining = False
        # None from the first byte of a request to its answer: that is a transaction.
        self.idle_since: float | None = None
        self._is_open = False
        self._request_timeout: asyncio.Timeout | None = None  # for the next request
        self._request_deadline = 0.0  # for all of the present request
        self._client_may_send = False  # more, when we close

    @abstractmethod
    async def handle_requests(self) -> None:
        """Answer requests until there are no more of them."""

    @abstractmethod
    def rejection(self, refused: LimitExceeded) -> bytes:
        """The answer to a client that is not served."""

    async def serve(self, connected: socket.socket, refused: LimitExceeded | None) -> None:
        """Serve the client from first byte to last, and close the socket."""
        loop = asyncio.get_running_loop()
        self.idle_since = loop.time()
        self._reader = asyncio.StreamReader(limit=CHUNK_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(self._reader, loop=loop)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connected)
        except OSError as error:
            _log.info("connection lost at once: %s", error)
            connected.close()
            return
        self._writer = asyncio.StreamWriter(transport, protocol, self._reader, loop)
        self._is_open = True
        try:
            if refused is None:
                await self.handle_requests()
            else:
                self.close_after_reply()
                await self.send(self.rejection(refused))
        except ConversationEnded:
            pass
        except Exception:  # noqa: BLE001  a fault of ours must not end the door
            _log.exception("%s: a fault in this conversation", self.address)
        finally:
            await self._close()

    def drain(self) -> None:
        """End as soon as nothing is under way.

        A request that the client is sending at this moment would get no answer, so the client has
        `_DRAIN_GRACE_SECONDS`.
        """
        self.is_draining = True
        if self._request_timeout is not None and not self._request_timeout.expired():
            now = asyncio.get_running_loop().time()
            self._request_timeout.reschedule(now + _DRAIN_GRACE_SECONDS)

    def cancel(self, task: asyncio.Task[None]) -> None:
        """Cancel the task that serves. The client awaits no answer."""
        task.cancel()

    def abort(self) -> None:
        """Drop the client and all bytes not sent."""
        if self._is_open:
            self._writer.transport.abort()

    def close_after_reply(self) -> None:
        """Note that the client may still be sending when we close (`drain_input`)."""
        self._client_may_send = True

    async def _close(self) -> None:
        self.idle_since = None
        if self._client_may_send:
            await drain_input(self._reader, self._writer)
        await close_stream(self._writer)

    # For the protocols.

    async def next_request(self) -> bytes:
        """The first piece of the next request.

        b"" when there is none: the client has gone or is silent, or the door is closing.
        """
        loop = asyncio.get_running_loop()
        if self.idle_since is None:
            self.idle_since = loop.time()
        seconds = self._context.limits.command_timeout
        if self.is_draining:
            seconds = min(seconds, _DRAIN_GRACE_SECONDS)
        try:
            async with asyncio.timeout(seconds) as self._request_timeout:
                piece = await self._reader.read(CHUNK_BYTES)
        except OSError:  # TimeoutError is one
            return b""
        finally:
            self._request_timeout = None
        self.idle_since = None
        self._request_deadline = loop.time() + self._context.limits.message_timeout
        return piece

    async def read_more(self) -> bytes:
        """The next piece of a request; b"" when the client sends no more.

        Raises
        ------
        ConnectionClosed, ClientTimeout
        """
        remaining = self._request_deadline - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(min(self._context.limits.data_timeout, remaining), 0)):
                return await self._reader.read(CHUNK_BYTES)
        except TimeoutError:
            raise ClientTimeout from None
        except OSError:
            raise ConnectionClosed from None

    async def send(self, data: bytes) -> None:
        """Send bytes. ConnectionClosed: the client does not take them."""
        self._writer.write(data)
        try:
            async with asyncio.timeout(self._context.limits.data_timeout):
                await self._writer.drain()
        except OSError:
            self.abort()
            raise ConnectionClosed from None

    async def send_all(self, pieces: Iterable[bytes]) -> None:
        """Send a long answer. ConnectionClosed: the client does not take it.

        The client has as much time for it as for a message, however steadily it reads.
        """
        try:
            async with asyncio.timeout(self._context.limits.message_timeout):
                for piece in pieces:
                    await self.send(piece)
        except TimeoutError:
            self.abort()
            raise ConnectionClosed from None
