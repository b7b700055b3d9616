"""Bytes to and from a next hop: replies out of what it says, a deadline for every wait, bounded memory in both directions.

Knows no commands. Must never let a wait end in anything but what was waited for, a `Trouble`, or a cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from typing import cast

from spamguard.relay.trouble import Lost, NoHandshake, Stalled, Unreachable, in_words
from spamguard.settings import Endpoint
from spamguard.timed import Timed
from spamguard.wire.replies import MOST_BYTES, Replies, ReplyError
from spamguard.wire.values import Reply

_UNREAD = MOST_BYTES  # that may wait to be taken; beyond, the next hop has to wait. A whole reply must fit in
_NEXT_ADDRESS = 0.25  # seconds until the next address of a host is tried beside the first (RFC 8305, section 5)
_TLS_GOODBYE = 1.0  # seconds


class Connection(Timed, asyncio.Protocol):
    """One connection; one task at a time waits on it. Made by `dial`, ended by `abort`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._replies = Replies()
        self._waiting: asyncio.Future[None] | None = None
        self._gone = ""
        self._full = False
        self._held_back = False
        self._encrypted = False

    @property
    def quiet(self) -> bool:
        """Whether it is open and everything that came has been taken."""
        return not self._gone and not self._replies.pending

    @property
    def peer(self) -> str:
        """Address of the other end, "" at a socket of this machine."""
        name = self._transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) else ""

    def deadline(self, seconds: float) -> float:
        """So many seconds from now, as `reply` wants it."""
        return self._loop.time() + seconds

    async def reply(self, deadline: float) -> Reply:
        """The next reply, all of it before the deadline. Lost, Stalled."""
        while (reply := self._next_reply()) is None:
            if self._gone:
                raise Lost(self._gone)
            await self._something_new(deadline)
        return reply

    def write(self, data: bytes) -> None:
        """Send now or soon. What is lost on the way shows in the next reply."""
        self._transport.write(data)

    async def room(self, seconds: float) -> bool:
        """Wait until more can be sent; False when the other end has spoken or gone before that. Stalled."""
        await asyncio.sleep(0)  # even where there is room: what came must be seen, and others want to work too
        deadline = self.deadline(seconds)
        while self._full and self.quiet:
            await self._something_new(deadline)
        return self.quiet

    async def secure(self, context: ssl.SSLContext, name: str, seconds: float) -> None:
        """Start TLS. name: what the certificate has to say, where the context wants one. NoHandshake when it cannot be."""
        try:
            async with asyncio.timeout(seconds):  # a connection that was lost meanwhile would never end the handshake
                transport = await self._loop.start_tls(
                    self._transport, self, context, server_hostname=name, ssl_shutdown_timeout=_TLS_GOODBYE
                )
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise NoHandshake(f"TLS: {in_words(error)}") from error
        if transport is None:
            raise NoHandshake("TLS: closed during the handshake")
        self._transport, self._encrypted = transport, True

    def abort(self) -> None:
        """End it at once; what has not been sent yet never will be."""
        self._gone = self._gone or "ended by us"
        self.forget_deadline()  # the loop does not tell of the end of what never was encrypted
        self._transport.abort()

    def _next_reply(self) -> Reply | None:
        try:
            reply = self._replies.take()
        except ReplyError as error:
            raise Stalled(f"not understood: {error}") from error
        if self._held_back and self._replies.pending <= _UNREAD:
            self._held_back = False
            self._transport.resume_reading()
        return reply

    async def _something_new(self, deadline: float) -> None:
        self._waiting = self._loop.create_future()
        self.set_deadline(deadline)
        try:
            await self._waiting
        finally:
            self.lift_deadline()
            self._waiting = None

    def deadline_passed(self) -> None:
        """What is waited for has not come in time."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(Stalled("no answer in time"))

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """The other end has spoken."""
        self._replies.feed(data)
        if self._replies.pending > _UNREAD and not self._held_back:
            self._held_back = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """The other end will not speak any more."""
        self._gone = self._gone or "closed by the next hop"
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection has ended."""
        if error is not None and not self._encrypted:
            self._last_words()
        self._gone = self._gone or in_words(error)
        self.forget_deadline()
        self._wake()

    def _last_words(self) -> None:
        """The refusal of a hop that hangs up in the middle of our data: the event loop stops reading where writing fails."""
        with contextlib.suppress(OSError):
            self._replies.feed(os.read(self._transport.get_extra_info("socket").fileno(), _UNREAD))

    def pause_writing(self) -> None:
        """More is waiting to be sent than should."""
        self._full = True

    def resume_writing(self) -> None:
        """There is room again."""
        self._full = False
        self._wake()


async def dial(endpoint: Endpoint, seconds: float) -> Connection:
    """Connect within so many seconds. Unreachable."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            if endpoint.path is not None:
                return (await loop.create_unix_connection(Connection, str(endpoint.path)))[1]
            return (await loop.create_connection(Connection, endpoint.host, endpoint.port, happy_eyeballs_delay=_NEXT_ADDRESS))[1]
    except (OSError, ValueError) as error:  # TimeoutError is an OSError; ValueError: a name that cannot be one of a host
        raise Unreachable(f"connect: {in_words(error)}") from error
