"""A message as it comes in, kept within the limits of its door. Gives everything back in `close`.

One client that asks and is answered over a stream: bytes in and out, deadlines, and a good end.

Must never hold more than some pieces for a client, never wait without a deadline, and never let one
client's fault end a door.

A door: takes connections from listening sockets, has each served by a session of its own, and ends
them in good order.

A session that is evicted to make room for another is cancelled, as it is when the door closes.

Must never close or re-configure a listening socket: it belongs to the master, and other workers
take from it too.
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
from spamguard.limits import ByteQuota, ConnectionLimits, LimitExceeded, Networks, normalise_address
from spamguard.spool import Spool

_log = logging.getLogger("spamguard.doors")


class Rejection(Enum):
    """Why a message is not taken."""

    TOO_LARGE = auto()  # for ever
    TRY_LATER = auto()  # too much is under way, or the disk is full


class IncomingMessage:
    """One message. client: as in `Load.room_for`. refused: why it is not taken, None while it is;
    what came of it is gone then.
    """

    def __init__(
        self, directory: Path, limits: DoorLimits | ScannerLimits, load: ByteQuota, client: str = ""
    ) -> None:
        self.spool = Spool(directory)
        self.rejection: Rejection | None = None
        self._max_bytes = limits.message_size
        self._byte_quota = load
        self._quota_key = client
        self._counted_bytes = 0

    def write(self, data: bytes) -> None:
        """Some more bytes; never raises."""
        if self.rejection is not None or not data:
            return
        if self.spool.size + len(data) > self._max_bytes:
            self._reject(Rejection.TOO_LARGE)
        elif not self._byte_quota.take(len(data), self._quota_key):
            self._reject(Rejection.TRY_LATER)
        else:
            self._counted_bytes += len(data)
            self._store(data)

    def _store(self, data: bytes) -> None:
        try:
            self.spool.write(data)
        except OSError as error:
            _log.error("a message cannot be kept: %s", error)
            self._reject(Rejection.TRY_LATER)

    def _reject(self, why: Rejection) -> None:
        self.rejection = why
        self.close()

    def close(self) -> None:
        """Give everything back; idempotent."""
        self.spool.close()
        self._byte_quota.release(self._counted_bytes, self._quota_key)
        self._counted_bytes = 0


CHUNK_BYTES = 64 << 10  # bytes read at a time
_DRAIN_GRACE_SECONDS = 1.0  # a door that closes still hears who is about to ask something
_DRAIN_INPUT_TIMEOUT = 1.0  # for a client to stop sending
_CLOSE_TIMEOUT = 10.0  # for the last answer to be taken


class ConversationEnded(Exception):  # noqa: N818  # no errors: conversations end
    """The conversation is over."""


class ConnectionClosed(ConversationEnded):
    """There is nobody left to talk to."""


class ClientTimeout(ConversationEnded):
    """The client has let a deadline pass."""


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What is the same for all conversations of a door."""

    limits: ScannerLimits
    byte_quota: ByteQuota


class Conversation(ABC):
    """One client (`reception.door.Session`). address: of the connection, "" of a Unix socket."""

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter

    def __init__(self, house: ServerContext, address: str) -> None:
        self._context = house
        self.address = address
        self.is_draining = False
        self.idle_since: float | None = (
            None  # from a request's first byte to its answer there is a transaction
        )
        self._is_open = False
        self._request_timeout: asyncio.Timeout | None = None  # for the next request
        self._request_deadline = 0.0  # when the present request must be here
        self._client_may_send = False  # whether the client may be about to send more when we end

    # What a protocol does.

    @abstractmethod
    async def handle_requests(self) -> None:
        """Answer requests until there are no more of them."""

    @abstractmethod
    def rejection(self, refused: LimitExceeded) -> bytes:
        """What a client is told that is not served."""

    # The conversation as a whole.

    async def serve(self, connected: socket.socket, refused: LimitExceeded | None) -> None:
        """From its first byte to its last."""
        self.idle_since = asyncio.get_running_loop().time()
        if await self._open(connected):
            await self._run(refused)

    async def _open(self, connected: socket.socket) -> bool:
        loop = asyncio.get_running_loop()
        self._reader = asyncio.StreamReader(limit=CHUNK_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(self._reader, loop=loop)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connected)
        except OSError as error:
            _log.info("connection lost at once: %s", error)
            connected.close()
            return False
        self._writer = asyncio.StreamWriter(transport, protocol, self._reader, loop)
        self._is_open = True
        return True

    async def _run(self, refused: LimitExceeded | None) -> None:
        try:
            if refused is not None:
                self.close_after_reply()
                await self.send(self.rejection(refused))
            else:
                await self.handle_requests()
        except ConversationEnded:
            pass
        except Exception:  # a fault of ours must not end the door  # noqa: BLE001
            _log.exception("%s: a fault in this conversation", self.address)
        finally:
            await self._close()

    def drain(self) -> None:
        """End as soon as nothing is under way. What a client has sent that does not know yet would
        get no answer: it has a moment.
        """
        self.is_draining = True
        if self._request_timeout is not None and not self._request_timeout.expired():
            self._request_timeout.reschedule(
                asyncio.get_running_loop().time() + _DRAIN_GRACE_SECONDS
            )

    def abort(self) -> None:
        """Drop the client with all that was not sent."""
        if self._is_open:
            self._writer.transport.abort()

    def close_after_reply(self) -> None:
        """The client may send more. Closing upon that would be a reset, which takes the last answer
        away from it.
        """
        self._client_may_send = True

    async def _close(self) -> None:
        self.idle_since = None
        if self._client_may_send:
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(_DRAIN_INPUT_TIMEOUT):
                    self._writer.write_eof()
                    while await self._reader.read(CHUNK_BYTES):
                        pass
        self._writer.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._writer.wait_closed()
        except OSError:  # TimeoutError is one
            self.abort()

    # For the protocol.

    async def next_request(self) -> bytes:
        """The first piece of the next request; b"" when there is none: the client has gone or keeps
        silent, or the door closes.
        """
        loop = asyncio.get_running_loop()
        if self.idle_since is None:
            self.idle_since = loop.time()
        seconds = self._context.limits.command_timeout
        seconds = min(seconds, _DRAIN_GRACE_SECONDS) if self.is_draining else seconds
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
        """The next piece of a request; b"" when no more comes. Gone, Late."""
        seconds = min(
            self._context.limits.data_timeout,
            self._request_deadline - asyncio.get_running_loop().time(),
        )
        try:
            async with asyncio.timeout(max(seconds, 0)):
                return await self._reader.read(CHUNK_BYTES)
        except TimeoutError:
            raise ClientTimeout from None
        except OSError:
            raise ConnectionClosed from None

    async def send(self, data: bytes) -> None:
        """Answer. Gone when the client does not take it."""
        self._writer.write(data)
        try:
            async with asyncio.timeout(self._context.limits.data_timeout):
                await self._writer.drain()
        except OSError:
            self.abort()
            raise ConnectionClosed from None

    async def send_all(self, pieces: Iterable[bytes]) -> None:
        """A long answer, for which the client has as much time as for a message, however steadily
        it takes some. Gone.
        """
        try:
            async with asyncio.timeout(self._context.limits.message_timeout):
                for piece in pieces:
                    await self.send(piece)
        except TimeoutError:
            self.abort()
            raise ConnectionClosed from None


_ACCEPT_RETRY_SECONDS = (
    1.0  # until the next try, when no connection can be taken (no descriptors, no memory)
)
_CANCEL_TIMEOUT = 1.0  # for sessions to end once they are cut


class ServerSession(Protocol):
    """One connection. It is cancelled when its time is over, and may still say so then."""

    @property
    def idle_since(self) -> float | None:
        """As of `clients.Idling`; None also before it is served and once it ends: it must not be
        cancelled then.
        """

    async def serve(self, connected: socket.socket, refused: LimitExceeded | None) -> None:
        """From its first byte to its last. connected: its own, to be closed in the end. refused:
        why it is only told to go.
        """

    def drain(self) -> None:
        """End as soon as nothing is under way."""

    def abort(self) -> None:
        """Drop the client with all that was not sent."""


class Door:
    """One listener in one process. begin: makes the session for a client, given its address, "" on
    a Unix socket, and port. clients: may connect at all; limits: of connections.

    All methods belong to the event loop it was started in. sockets: bound and listening; they stay
    the caller's.
    """

    def __init__(
        self,
        begin: Callable[[str, str], ServerSession],
        sockets: Sequence[socket.socket],
        clients: Networks,
        limits: DoorLimits | ScannerLimits,
    ) -> None:
        self._make_session = begin
        self._sockets = sockets
        self._clients = clients
        self._limits = ConnectionLimits[ServerSession](
            limits.connections, limits.connections_per_client, self._evict
        )
        self._tasks: dict[ServerSession, asyncio.Task[None]] = {}
        self._is_open = False

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._tasks)

    async def start(self) -> None:
        """Take connections."""
        self._is_open = True
        for listening in self._sockets:
            listening.setblocking(False)
            self._listen(listening)

    async def drain(self, deadline: float) -> None:
        """Take no more connections, before anything else, finish what is under way, and return when
        all is over; what is not over at `deadline`, a time of the event loop's clock, is cut off.
        May be called again meanwhile, with an earlier deadline.
        """
        self._is_open = False
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
        for session in self._tasks:
            session.drain()
        await self._wait_for_end(deadline - loop.time())
        for task in self._tasks.values():
            task.cancel()
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
        """One at a time: other workers wait for connections too, and other clients for this one."""
        try:
            connected, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.error("no connection can be taken: %s", error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening)
            loop.call_later(_ACCEPT_RETRY_SECONDS, self._listen, listening)
            return
        connected.setblocking(False)
        self._begin_session(connected, address)

    def _begin_session(self, connected: socket.socket, address: object) -> None:
        host, port = (
            (normalise_address(address[0]), str(address[1]))
            if isinstance(address, tuple)
            else ("", "")
        )
        session = self._make_session(host, port)
        refused = (
            self._limits.enter(session, host) if host in self._clients else LimitExceeded.NOT_LISTED
        )
        task = asyncio.get_running_loop().create_task(session.serve(connected, refused))
        self._tasks[session] = task
        task.add_done_callback(partial(self._end_session, session))

    def _end_session(self, session: ServerSession, _task: asyncio.Task[None]) -> None:
        del self._tasks[session]
        self._limits.leave(session)

    def _evict(self, session: ServerSession) -> None:
        self._tasks[session].cancel()
