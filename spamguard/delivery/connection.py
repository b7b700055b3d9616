"""One SMTP or LMTP session with a next hop: replies out of bytes, a deadline for each wait, bounded
memory.

`NextHopSession` is the protocol of a connection, made by `dial` and ended by `abort`; one task at a
time waits on it. It sends commands and messages one after the other and counts the replies that are
due. A wait ends with the awaited event, a `DeliveryError` or a cancellation, and nothing else. It
must never send anything while the two sides are out of step, and never end a message that is not
whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import cast

from spamguard.config.options import Endpoint
from spamguard.delivery.next_hop import (
    ClosingError,
    DeadlineTimer,
    DeliveryError,
    DisconnectedError,
    NextHopTimeoutError,
    TlsHandshakeError,
    UnreachableError,
    describe_error,
)
from spamguard.smtp.envelope import MAX_REPLY_BYTES, Reply, ReplyError, ReplyReader

# Beyond so many unread bytes reading pauses. A whole reply must fit in.
_MAX_UNREAD_BYTES = MAX_REPLY_BYTES


class NextHopSession(DeadlineTimer, asyncio.Protocol):
    """seconds: for each reply to a command.

    extensions: EHLO keywords (upper case) and their parameters. is_reused: it has served a message
    before.
    """

    _transport: asyncio.Transport

    def __init__(self, seconds: float) -> None:
        self.extensions: Mapping[str, str] = {}
        self.is_reused = False
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._replies = ReplyReader()
        self._waiter: asyncio.Future[None] | None = None
        self._close_reason = ""
        self._writing_paused = self._is_encrypted = False
        self._is_clean = False  # no transaction is open, and nothing was refused
        self._replies_due = 1  # the greeting
        self._had_refusal = False

    @property
    def is_quiet(self) -> bool:
        """Whether it is open and everything that came has been read."""
        return not self._close_reason and not self._replies.pending_bytes

    @property
    def is_usable(self) -> bool:
        """Whether the next message can have it."""
        return self._is_clean and self.is_quiet

    @property
    def peer(self) -> str:
        """Address of the other end, "" for a Unix socket."""
        name = self._transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) else ""

    def deadline_after(self, seconds: float) -> float:
        """A time of the event loop's clock, as `read_reply` expects it."""
        return self._loop.time() + seconds

    def send_commands(self, *commands: bytes) -> None:
        """Send commands, each with its line end, in one go; a reply is due for each.
        DisconnectedError: the hop has gone, or spoke unasked.
        """
        self._is_clean = False
        if self._replies_due or not self.is_quiet:
            raise DisconnectedError("gone, or spoke without being asked")
        self._replies_due = len(commands)
        self._transport.write(b"".join(commands))

    async def read_reply(self, deadline: float | None = None, positive: int = 2) -> Reply:
        """The reply to the oldest command without one: a refusal, or a code that begins with
        `positive`. DisconnectedError, NextHopTimeoutError, ClosingError.
        """
        reply = await self._next_reply(deadline or self.deadline_after(self._seconds))
        if reply.code == 421:
            raise ClosingError(reply)
        if reply.code // 100 not in (positive, 4, 5):
            raise NextHopTimeoutError(f"out of place: {reply}")
        self._replies_due -= 1
        self._had_refusal |= not reply.is_positive
        return reply

    async def _next_reply(self, deadline: float) -> Reply:
        while True:
            try:
                reply = self._replies.next_reply()
            except ReplyError as error:
                raise NextHopTimeoutError(f"not understood: {error}") from error
            if reply is not None:
                return reply
            if self._close_reason:
                raise DisconnectedError(self._close_reason)
            self._transport.resume_reading()
            await self._wait_for_change(deadline)

    async def request(self, command: bytes, positive: int = 2) -> Reply:
        self.send_commands(command)
        return await self.read_reply(positive=positive)

    async def send_data(self, pieces: Iterable[bytes], replies: int) -> bool:
        """Send a message, whose last piece is the end of data; False when the hop spoke or hung up
        before that.

        So many replies are due then. Errors of the pieces pass through. Unless the message was sent
        whole and all replies came, the session can only be cut off. NextHopTimeoutError.
        """
        self._is_clean = False
        self._replies_due = replies + 1  # the end of data is due too, from us
        for piece in _batch_pieces(pieces):
            # Yield even where there is room: what came must be seen, and other tasks want to work.
            await asyncio.sleep(0)
            deadline = self.deadline_after(self._seconds)
            while self._writing_paused and self.is_quiet:
                await self._wait_for_change(deadline)
            if not self.is_quiet:
                return False
            self._transport.write(piece)
        self._replies_due -= 1
        return True

    def mark_ready(self, extensions: Mapping[str, str] | None = None) -> None:
        """The session was opened, with these extensions, or a transaction has ended.

        The next message can have it if nothing was refused meanwhile.
        """
        if extensions is not None:
            self.extensions, self._had_refusal = extensions, False
        self._is_clean = not (self._replies_due or self._had_refusal)

    async def quit(self) -> None:
        """End it politely, without waiting long; never raises."""
        try:
            with contextlib.suppress(DeliveryError):
                self.send_commands(b"QUIT\r\n")
                await self.read_reply(self.deadline_after(1.0))
        finally:
            self.abort()

    async def start_tls(self, context: ssl.SSLContext, name: str, seconds: float) -> None:
        """Start TLS. name: for the check of the certificate. TlsHandshakeError."""
        try:
            # asyncio never ends the handshake of a connection that was lost meanwhile.
            async with asyncio.timeout(seconds):
                transport = await self._loop.start_tls(
                    self._transport,
                    self,
                    context,
                    server_hostname=name,
                    ssl_shutdown_timeout=1.0,
                )
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise TlsHandshakeError(f"TLS: {describe_error(error)}") from error
        if transport is None:
            raise TlsHandshakeError("TLS: closed during the handshake")
        self._transport, self._is_encrypted = transport, True

    def abort(self) -> None:
        self._close_reason = self._close_reason or "ended by us"
        self.cancel_deadline()  # connection_lost never comes for what was not encrypted yet
        self._transport.abort()

    async def _wait_for_change(self, deadline: float) -> None:
        self._waiter = self._loop.create_future()
        self.set_deadline(deadline)
        try:
            await self._waiter
        finally:
            self.clear_deadline()
            self._waiter = None

    def deadline_passed(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(NextHopTimeoutError("no answer in time"))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._replies.feed(data)
        if self._replies.pending_bytes > _MAX_UNREAD_BYTES:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._close_reason = self._close_reason or "closed by the next hop"
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self._is_encrypted:
            # asyncio stops reading where writing fails: the refusal of a hop that hangs up in the
            # middle of our data may still lie in the socket.
            with contextlib.suppress(OSError):
                socket = self._transport.get_extra_info("socket").fileno()
                self._replies.feed(os.read(socket, _MAX_UNREAD_BYTES))
        self._close_reason = self._close_reason or describe_error(exc)
        self.cancel_deadline()
        self._wake()

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._wake()


async def dial(endpoint: Endpoint, connect_seconds: float, seconds: float) -> NextHopSession:
    """Connect within so many seconds. seconds: as of `NextHopSession`. UnreachableError."""
    loop, make = asyncio.get_running_loop(), partial(NextHopSession, seconds)
    try:
        async with asyncio.timeout(connect_seconds):
            if endpoint.path is not None:
                return (await loop.create_unix_connection(make, str(endpoint.path)))[1]
            # The delay is until a host's next address is tried too (RFC 8305, section 5).
            return (
                await loop.create_connection(
                    make, endpoint.host, endpoint.port, happy_eyeballs_delay=0.25
                )
            )[1]
    except (OSError, ValueError) as error:  # ValueError: a name that no host can have
        raise UnreachableError(f"connect: {describe_error(error)}") from error


def _batch_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    batch: list[bytes] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece)
        if size >= 64 << 10:  # fewer calls for small messages
            yield b"".join(batch)
            batch, size = [], 0
    yield b"".join(batch)
