"""How connections come in at a door: accepting, limits, TLS, and an orderly end.

A `Door` takes connections from the listening sockets of one listener or scanner and starts a
session for each, within limits in all and for each client. When there is no room, the client that
has been idle for longest is evicted; commands that lead nowhere do not end idleness. An
`IncomingMessage` keeps a message within the limits of its door, and `CertificateReloader` the
operator's certificate, which may change while we run. Nothing here knows a protocol.

It is written by hand because the servers of asyncio accept connections without bound, and
semaphores make a new client wait, and cannot evict an idle one.

Must never close or reconfigure a listening socket (it belongs to the master, and other workers
accept from it too), evict a client for which we work, or let the fault of one session end a door.
Whoever takes bytes of `ByteQuota` gives them back in a `finally`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from spamguard.config.options import Certificate, Listener, Scanner, ScannerLimits
from spamguard.errors import StartError
from spamguard.smtp.envelope import (
    Networks,
    client_prefix,
    normalise_address,
)
from spamguard.storage import Spool

_log = logging.getLogger("spamguard.doors")
_tls_log = logging.getLogger("spamguard.tls")

CHUNK_BYTES = 128 << 10  # that are read at once
SILENT_SECONDS = 10.0
"""In a transaction a client may be silent for so long, even when there is no room for others."""
DRAIN_GRACE_SECONDS = 1.0
"""In which a draining door still accepts a first message or request, or QUIT after a message."""
_ACCEPT_RETRY_SECONDS = 1.0  # after accept has failed: no descriptors, no memory
_CANCEL_TIMEOUT = 1.0  # for cancelled sessions to end
_DRAIN_INPUT_TIMEOUT = 1.0  # for a client to stop sending
_CLOSE_TIMEOUT = 10.0  # for a client to take the last answer


class ServerSession(ABC):
    """One connection. It may be cancelled while it is idle, and told to end before `serve`.

    Attributes
    ----------
    reader
        Of the client's bytes; made before the connection.
    writer
        Once it `is_open`.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_open = False

    @property
    @abstractmethod
    def evictable_from(self) -> float | None:
        """When it may be cancelled to make room, by the event loop's clock: from the end of the
        last transaction, and in one once the client has been silent for `SILENT_SECONDS`.

        None: not now, because its data is being delivered, or before and after `converse`.
        """

    @abstractmethod
    async def converse(self, refused: Refusal | None) -> None:
        """Serve the client to its last answer. One that is `refused` is only told so."""

    @abstractmethod
    def drain(self) -> None:
        """End as soon as nothing is under way."""

    def cancel(self, task: asyncio.Task[None]) -> None:
        """Cancel the task that serves; before that, the client may be told."""
        task.cancel()

    def abort(self) -> None:
        """Drop the client and all bytes not sent."""
        if self.is_open:
            self.writer.transport.abort()

    async def serve(self, connected: socket.socket, refused: Refusal | None) -> None:
        """Serve the client from first byte to last, and close the socket."""

        def on_connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.writer, self.is_open = writer, True

        protocol = asyncio.StreamReaderProtocol(self.reader, on_connected)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connected)
            await self.converse(refused)
        except ConversationEnded:
            pass
        except Exception:  # noqa: BLE001  a fault of ours must not end the door
            _log.exception("a fault in a session")
        finally:
            if self.is_open:
                await close_stream(self.writer)

    async def wait_until_sent(self, seconds: float) -> None:
        """Raises ConnectionClosed if the client does not take the bytes."""
        try:
            async with asyncio.timeout(seconds):
                await self.writer.drain()
        except OSError:  # TimeoutError is one
            self.abort()
            raise ConnectionClosed from None


class Door:
    """One listener in one process. All methods belong to the event loop that started it.

    `make_session` is called with the address ("" on a Unix socket) and the port of a client. The
    socket is bound and listening; it stays the caller's.
    """

    def __init__(
        self,
        make_session: Callable[[str, str], ServerSession],
        listening: socket.socket,
        settings: Listener | Scanner,
    ) -> None:
        self._make_session = make_session
        self._listening = listening
        self._networks = Networks(settings.clients)
        self._limits = settings.limits
        self._tasks: dict[ServerSession, asyncio.Task[None]] = {}
        self._clients: dict[ServerSession, str] = {}  # of those that are served and not evicted
        self._is_open = False

    @property
    def connections(self) -> int:
        return len(self._tasks)

    def open(self) -> None:
        self._is_open = True
        self._listening.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept no more connections, and have sessions end when nothing is under way."""
        self._is_open = False
        asyncio.get_running_loop().remove_reader(self._listening)
        for session in self._tasks:
            self._end(session.drain)

    async def wait_for_sessions(self, seconds: float | None = None) -> None:
        """Wait until all sessions are over, or for so long."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=seconds)

    async def cut_off(self) -> None:
        """End all sessions, whatever is under way."""
        for session, task in self._tasks.items():
            self._end(session.cancel, task)
        await self.wait_for_sessions(_CANCEL_TIMEOUT)
        for session, task in self._tasks.items():
            self._end(session.abort)
            task.cancel()
        await self.wait_for_sessions(_CANCEL_TIMEOUT)

    @staticmethod
    def _end(end: Callable[..., object], *arguments: object) -> None:
        """Tell a session to end. Its fault must not keep the door from the other sessions."""
        try:
            end(*arguments)
        except Exception:  # noqa: BLE001  a fault of ours
            _log.exception("a fault in ending a session")

    def _listen(self) -> None:
        if self._is_open:
            asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """One only: other workers wait for connections too, and other clients for this worker."""
        loop = asyncio.get_running_loop()
        try:
            connected, address = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.error("no connection can be taken: %s", error)
            loop.remove_reader(self._listening)
            loop.call_later(_ACCEPT_RETRY_SECONDS, self._listen)
            return
        host = port = ""
        if isinstance(address, tuple):
            host, port = normalise_address(address[0]), str(address[1])
        session = self._make_session(host, port)
        task = loop.create_task(session.serve(connected, self._admit(session, host)))
        self._tasks[session] = task

        def forget(_: object) -> None:
            del self._tasks[session]
            self._clients.pop(session, None)

        task.add_done_callback(forget)

    def _admit(self, session: ServerSession, host: str) -> Refusal | None:
        """Count a connection, or say why it is refused.

        When there is no room, it takes the place of the longest idle one: among its own client's if
        that client has too many, else among all.
        """
        if host not in self._networks:
            return Refusal.NOT_LISTED
        client = client_prefix(host)
        rivals = [other for other, owner in self._clients.items() if owner == client]
        if len(rivals) < self._limits.connections_per_client:
            rivals = list(self._clients) if len(self._clients) >= self._limits.connections else []
        if rivals:
            idle_from = {other: other.evictable_from for other in rivals}
            now = time.monotonic()  # the clock of the event loop
            times = {other: at for other, at in idle_from.items() if at is not None and at <= now}
            longest = min(times, key=times.__getitem__, default=None)
            if longest is None:
                return Refusal.TOO_MANY
            del self._clients[longest]  # closing it may take a moment
            self._end(longest.cancel, self._tasks[longest])
        self._clients[session] = client
        return None


# ---- the end of a conversation


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
    if writer.can_write_eof() and not writer.transport.get_write_buffer_size():
        return  # no TLS, and all bytes are sent: a deadline costs a hundredth of a message
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT):
            await writer.wait_closed()
    except OSError:  # TimeoutError is one
        writer.transport.abort()


# ---- limits


class Refusal(StrEnum):
    """Why a connection, a message or a request is refused; a message's reason is recorded."""

    NOT_LISTED = "not-listed"  # this address may not connect
    TOO_MANY = "too-many"  # connections, in all or of this client
    TOO_LARGE = "too-large"  # for ever
    NO_ROOM = "no-room"  # too much is under way, or the disk is full
    ODD_BYTES = "odd-bytes"  # where the door takes none
    TOO_SLOW = "too-slow"
    FAULT = "fault"  # of ours


# ---- bytes in flight


class ByteQuota:
    """Bytes in flight of all connections of one door, in this process."""

    def __init__(self, limits: ScannerLimits) -> None:
        self._limits = limits
        self._client_bytes: Counter[str] = Counter()  # without the client ""
        self.bytes_in_flight = 0

    def has_room(self, size: int, client: str = "") -> bool:
        """Whether there is room; a client may have half of all, or one message.

        Clients go by their prefix; one that speaks for many is "", and may take all of it.
        """
        share = max(self._limits.size_in_flight // 2, self._limits.message_size)
        has_share = not client or self._client_bytes[client] + size <= share
        return has_share and self.bytes_in_flight + size <= self._limits.size_in_flight

    def take(self, size: int, client: str = "") -> bool:
        has_room = self.has_room(size, client)
        if has_room:
            self.release(-size, client)
        return has_room

    def release(self, size: int, client: str = "") -> None:
        self.bytes_in_flight -= size
        if client:
            self._client_bytes[client] -= size
            if not self._client_bytes[client]:
                del self._client_bytes[client]


# ---- messages


class IncomingMessage:
    """A message as it comes in; nothing of a refused one is kept."""

    def __init__(
        self,
        directory: Path,
        limits: ScannerLimits,
        byte_quota: ByteQuota,
        quota_key: str = "",
    ) -> None:
        self.spool = Spool(directory)
        self.refusal: Refusal | None = None
        self._max_bytes = limits.message_size
        self._byte_quota = byte_quota
        self._quota_key = quota_key
        self._counted_bytes = 0

    def write(self, data: bytes) -> None:
        """Append some bytes, or refuse the message; never raises."""
        if self.refusal is not None or not data:
            return
        if self.spool.size + len(data) > self._max_bytes:
            self.refuse(Refusal.TOO_LARGE)
        elif not self._byte_quota.take(len(data), self._quota_key):
            self.refuse(Refusal.NO_ROOM)
        else:
            self._counted_bytes += len(data)
            try:
                self.spool.write(data)
            except OSError as error:
                _log.error("a message cannot be kept: %s", error)
                self.refuse(Refusal.NO_ROOM)

    def refuse(self, refusal: Refusal) -> None:
        self.refusal = self.refusal or refusal
        self.close()

    def close(self) -> None:
        """Give file, memory and quota back; idempotent."""
        self.spool.close()
        self._byte_quota.release(self._counted_bytes, self._quota_key)
        self._counted_bytes = 0


# ---- TLS


def _server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # With a password, nobody is asked for one.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:  # ssl.SSLError is one
        raise StartError(
            f"{certificate}, {key}: cannot be used for TLS "
            f"({error.strerror or error}): name a certificate and its key, in PEM files that the "
            "daemon's user can read"
        ) from error
    return context


class CertificateReloader:
    """A TLS context whose certificate follows its files; StartError if they cannot be used."""

    def __init__(self, files: Certificate) -> None:
        self._files = files.certificate, files.key
        self.context = _server_context(*self._files)
        self._loaded_times = self._change_times()

    def reload(self) -> None:
        """Load the files again if they have changed; bad files leave the old certificate in use."""
        try:
            change_times = self._change_times()
            if change_times != self._loaded_times:
                self._loaded_times = change_times
                # On trial: with a wrong key the old certificate would be lost before the error.
                _server_context(*self._files)
                self.context.load_cert_chain(*self._files, password="")
                _tls_log.info("handshakes use the new certificate in %s", self._files[0])
        except (StartError, OSError) as error:
            _tls_log.error("the new certificate cannot be used: the old one is (%s)", error)

    def _change_times(self) -> list[int]:
        """When contents or rights changed, in nanoseconds; none: a file cannot be seen."""
        with suppress(OSError):
            return [path.stat().st_ctime_ns for path in self._files]
        return []
