"""The session of a scanner door whose client asks and is answered over a stream (rspamd, spamd).

Every wait of a `Conversation` has a deadline, and the connection is closed so that the last answer
arrives. Must never wait without a deadline.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spamguard.config.options import ScannerLimits
from spamguard.proxy.scan import ScanService
from spamguard.servers.listener import (
    CHUNK_BYTES,
    ByteQuota,
    ClientTimeout,
    ConnectionClosed,
    ConversationEnded,
    IncomingMessage,
    LimitExceeded,
    close_stream,
    drain_input,
    quota_key,
)

_log = logging.getLogger("spamguard.doors")

_DRAIN_GRACE_SECONDS = 1.0  # in which a draining door still accepts a request


@dataclass(frozen=True, slots=True)
class ScannerContext:
    """What all sessions of one scanner door share."""

    service: ScanService
    byte_quota: ByteQuota
    spool_directory: Path

    @property
    def limits(self) -> ScannerLimits:
        return self.service.scanner.limits

    def incoming_message(self, address: str) -> IncomingMessage:
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
