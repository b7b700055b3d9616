"""One connection: bytes in and out, its timer and its end.

Replies go out together before the next waiting. What the client does while we work, be it that it hangs up, is seen when it is waited
for again.

Must never hold more than a few buffers for a client, never wait without a deadline, and never run a timer while we work.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from ssl import SSLContext
from typing import cast

from spamguard.doors.smtp import tls
from spamguard.doors.smtp.lines import Lines
from spamguard.reception.conversation import Gone, Late
from spamguard.timed import Timed
from spamguard.wire.values import Reply

READ_BYTES = 128 << 10  # at a time
_UNREAD_BYTES = 16 << 10  # more than a line; when so much waits to be looked at, nothing more is read
_UNSENT_BYTES = 16 << 10  # of replies; when so much waits, it is sent before the next command
_LINGER_SECONDS = 10.0  # for the last replies to be taken, once closed
_HEAR_OUT_SECONDS = 1.0  # for a client to stop sending


class Connection(Timed, asyncio.BufferedProtocol):
    """Reads into `lines`, sends what was said."""

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop, scratch: memoryview, send_seconds: float) -> None:
        """scratch: what all connections of this loop read into, as reading and copying are one step. send_seconds: for
        the client to take its replies."""
        self.loop = loop
        self.lines = Lines()
        self.secure = False
        self._scratch = scratch
        self._send_seconds = send_seconds
        self._said: list[bytes] = []
        self._said_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._fresh = self._ended = self._lost = self._late = self._stopped = self._blocked = self._closing = False

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The session is run by the one that has taken the connection."""
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # as the loop calls it
        """Where to read to."""
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        self.lines.bytes += self._scratch[:nbytes]
        self._fresh = True
        if len(self.lines.bytes) >= _UNREAD_BYTES and not self._stopped:
            self._stopped = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """The client sends no more; what it has sent is worked off and answered (TLS knows no half-closed connection)."""
        self._ended = True
        self._wake()
        return not self.secure

    def deadline_passed(self) -> None:
        """The client is late with what is waited for, or with taking its last replies."""
        if self._closing:
            self.transport.abort()
        else:
            self._late = True
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """The client is gone. What is being handed over is finished all the same."""
        self._lost = True
        self._blocked = False
        if self._closing:
            self.forget_deadline()
        self._wake()

    def pause_writing(self) -> None:
        """The client does not take its replies."""
        self._blocked = True

    def resume_writing(self) -> None:
        """It does again."""
        self._blocked = False
        self._wake()

    # For the session.

    def say(self, reply: Reply) -> None:
        """Answer, together with what else there is to say before the next waiting (RFC 2920, section 3.2)."""
        line = reply.encode()
        self._said.append(line)
        self._said_bytes += len(line)

    def send(self) -> None:
        """Hand everything said to the transport."""
        if self._said and not self._lost:
            self.transport.write(b"".join(self._said))
        self._said.clear()
        self._said_bytes = 0

    async def make_room(self) -> None:
        """Send when much was said, and wait until the client has taken it. Gone when it does not."""
        if self._said_bytes >= _UNSENT_BYTES or self._blocked:
            await self._flush()
        if self._lost:
            raise Gone

    async def more(self, seconds: float | None) -> None:
        """Wait until there are more bytes, with everything said sent before. Gone when no more can come.

        seconds: until `Late`; None: the deadline set before holds.
        """
        await self._flush()
        self._read_on()
        if seconds is not None:
            self.set_deadline(self.loop.time() + seconds)
        while not self._fresh:
            self._check()
            await self._wait()
        self._fresh = False

    async def encrypt(self, context: SSLContext) -> None:
        """Go on with TLS; Gone when the handshake fails. Nothing may be left in `lines`."""
        self.send()
        self.secure = True
        self._stopped = False
        try:
            self.transport = await tls.upgrade(self.transport, self, context)
        except BaseException as error:
            self._lost = True  # the loop does not tell of the end of what never was connected
            if isinstance(error, OSError):
                raise Gone from error
            raise

    @property
    def waiting(self) -> bool:
        """Whether it is the client's turn, and time runs."""
        return self._deadline is not None

    async def close(self, *, hear_out: bool = False) -> None:
        """Send what was said and close; a client that does not take it is cut off soon.

        hear_out: it may be sending. Closing upon that would be a reset, which takes the last reply away from it.
        """
        self.send()
        self._closing = True
        self.forget_deadline()
        if hear_out:
            with suppress(TimeoutError):
                async with asyncio.timeout(_HEAR_OUT_SECONDS):
                    await self._hear_out()
        if self._lost:
            return
        self.transport.close()
        self.set_deadline(self.loop.time() + _LINGER_SECONDS)
        while not self._lost:
            await self._wait()

    def abort(self) -> None:
        """Drop the client with all that was not sent."""
        self._said.clear()
        self.transport.abort()

    # Waiting.

    async def _hear_out(self) -> None:
        if not self._lost and self.transport.can_write_eof():
            with suppress(OSError):  # it has gone, and nobody has read that yet
                self.transport.write_eof()
        while not (self._lost or self._ended):
            self.lines.clear()
            self._read_on()
            await self._wait()

    def _read_on(self) -> None:
        if self._stopped and not self._lost:
            self._stopped = False
            self.transport.resume_reading()

    async def _flush(self) -> None:
        self.send()
        if self._blocked:
            self.set_deadline(self.loop.time() + self._send_seconds)
            try:
                while self._blocked:
                    await self._wait()
            except Late:
                self.abort()
                raise Gone from None
        if self._lost:
            raise Gone

    def _check(self) -> None:
        if self._late:
            raise Late
        if self._lost or self._ended:
            raise Gone

    async def _wait(self) -> None:
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._late and not self._closing:
            raise Late

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
