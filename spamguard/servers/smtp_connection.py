"""STARTTLS at the door: the operator's certificate, and the handshake on a connection that has
begun in the clear.

Must never carry a byte over from before the handshake to after it (RFC 3207, section 4.2).

One connection: bytes in and out, its timer and its end.

Replies go out together before the next waiting. What the client does while we work, be it that it
hangs up, is seen when it is waited for again.

Must never hold more than a few buffers for a client, never wait without a deadline, and never run a
timer while we work.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from pathlib import Path
from ssl import SSLContext
from typing import cast

from spamguard.aio import DeadlineTimer
from spamguard.config.options import Certificate
from spamguard.errors import StartError
from spamguard.servers.listener import ClientTimeout, ConnectionClosed
from spamguard.servers.smtp_state import LineBuffer
from spamguard.smtp.envelope import Reply

_log = logging.getLogger("spamguard.tls")


_HANDSHAKE_TIMEOUT = 60.0


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """StartError when the files cannot be read or do not fit each other. Clients are not asked for
    certificates.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, certificate)
    return context


def load_certificate(context: ssl.SSLContext, certificate: Certificate) -> None:
    """What is shown from now on. StartError: nothing of it can be used."""
    try:
        context.load_cert_chain(
            certificate.certificate, certificate.key, password=""
        )  # nobody is asked for one
    except OSError as error:  # ssl.SSLError is one
        files = f"{certificate.certificate}, {certificate.key}"
        remedy = "name a certificate and its key, in PEM files that the daemon's user can read"
        raise StartError(
            f"{files}: cannot be used for TLS ({error.strerror or error}): {remedy}"
        ) from error


class CertificateReloader:
    """The operator's, read anew when they are others. StartError: files that cannot be read, or
    that do not fit each other.
    """

    def __init__(self, files: Certificate) -> None:
        self._files = files
        self.context = server_context(files)
        self._loaded_times = self._change_times()

    def reload(self) -> None:
        """Handshakes from now on use what is in the files now; what cannot be used leaves the old
        ones in force.
        """
        try:
            seen = self._change_times()
            if seen != self._loaded_times:
                self._loaded_times = seen
                server_context(
                    self._files
                    # on trial: a certificate without its key takes the old one's place, and then fails
                )
                load_certificate(self.context, self._files)
                _log.info("handshakes use the new certificate in %s", self._files.certificate)
        except StartError as error:
            _log.error("the new certificate cannot be used: the old one is (%s)", error)

    def _change_times(self) -> tuple[int, ...]:
        return _change_time(self._files.certificate), _change_time(self._files.key)


def _change_time(path: Path) -> int:
    """When its contents or rights were; 0: it cannot be seen, which is told once."""
    try:
        return path.stat().st_ctime_ns
    except OSError:
        return 0


async def upgrade_to_tls(
    transport: asyncio.Transport, protocol: asyncio.BaseProtocol, context: ssl.SSLContext
) -> asyncio.Transport:
    """The transport to go on with. OSError (ssl.SSLError, ConnectionError) when the handshake
    fails; the connection is then closed.
    """
    loop = asyncio.get_running_loop()
    upgraded = await loop.start_tls(
        transport, protocol, context, server_side=True, ssl_handshake_timeout=_HANDSHAKE_TIMEOUT
    )
    if upgraded is None:
        raise ConnectionError("the client went away during the handshake")
    return upgraded


READ_BYTES = 128 << 10  # at a time
_MAX_UNREAD_BYTES = (
    16 << 10
)  # more than a line; when so much waits to be looked at, nothing more is read
_MAX_UNSENT_BYTES = 16 << 10  # of replies; when so much waits, it is sent before the next command
_CLOSE_TIMEOUT = 10.0  # for the last replies to be taken, once closed
_DRAIN_INPUT_TIMEOUT = 1.0  # for a client to stop sending


class SmtpConnection(DeadlineTimer, asyncio.BufferedProtocol):
    """Reads into `lines`, sends what was said."""

    transport: asyncio.Transport

    def __init__(
        self, loop: asyncio.AbstractEventLoop, scratch: memoryview, send_seconds: float
    ) -> None:
        """scratch: what all connections of this loop read into, as reading and copying are one
        step. send_seconds: for the client to take its replies.
        """
        self.loop = loop
        self.lines = LineBuffer()
        self.is_encrypted = False
        self._scratch = scratch
        self._send_seconds = send_seconds
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._has_new_bytes = self._at_eof = self._is_lost = self._has_timed_out = (
            self._reading_paused
        ) = self._writing_paused = self._closing = False

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The session is run by the one that has taken the connection."""
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  asyncio gives it
        """Where to read to."""
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        self.lines.data += self._scratch[:nbytes]
        self._has_new_bytes = True
        if len(self.lines.data) >= _MAX_UNREAD_BYTES and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """The client sends no more; what it has sent is worked off and answered (TLS knows no
        half-closed connection).
        """
        self._at_eof = True
        self._wake()
        return not self.is_encrypted

    def deadline_passed(self) -> None:
        """The client is late with what is waited for, or with taking its last replies."""
        if self._closing:
            self.transport.abort()
        else:
            self._has_timed_out = True
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  asyncio gives it
        """The client is gone. What is being handed over is finished all the same."""
        self._is_lost = True
        self._writing_paused = False
        if self._closing:
            self.cancel_deadline()
        self._wake()

    def pause_writing(self) -> None:
        """The client does not take its replies."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        """It does again."""
        self._writing_paused = False
        self._wake()

    # For the session.

    def write_reply(self, reply: Reply) -> None:
        """Answer, together with what else there is to say before the next waiting (RFC 2920,
        section 3.2).
        """
        line = reply.encode()
        self._unsent.append(line)
        self._unsent_bytes += len(line)

    def flush(self) -> None:
        """Hand everything said to the transport."""
        if self._unsent and not self._is_lost:
            self.transport.write(b"".join(self._unsent))
        self._unsent.clear()
        self._unsent_bytes = 0

    async def flush_if_full(self) -> None:
        """Send when much was said, and wait until the client has taken it. Gone when it does not."""
        if self._unsent_bytes >= _MAX_UNSENT_BYTES or self._writing_paused:
            await self._flush_and_wait()
        if self._is_lost:
            raise ConnectionClosed

    async def read_more(self, seconds: float | None) -> None:
        """Wait until there are more bytes, with everything said sent before. Gone when no more can
        come.

        seconds: until `Late`; None: the deadline set before holds.
        """
        await self._flush_and_wait()
        self._resume_reading()
        if seconds is not None:
            self.set_deadline(self.loop.time() + seconds)
        while not self._has_new_bytes:
            self._raise_if_over()
            await self._wait()
        self._has_new_bytes = False

    async def start_tls(self, context: SSLContext) -> None:
        """Go on with TLS; Gone when the handshake fails. Nothing may be left in `lines`."""
        self.flush()
        self.is_encrypted = True
        self._reading_paused = False
        try:
            self.transport = await upgrade_to_tls(self.transport, self, context)
        except BaseException as error:
            self._is_lost = True  # the loop does not tell of the end of what never was connected
            if isinstance(error, OSError):
                raise ConnectionClosed from error
            raise

    @property
    def is_waiting(self) -> bool:
        """Whether it is the client's turn, and time runs."""
        return self._deadline is not None

    async def close(self, *, drain_input: bool = False) -> None:
        """Send what was said and close; a client that does not take it is cut off soon.

        hear_out: it may be sending. Closing upon that would be a reset, which takes the last reply
        away from it.
        """
        self.flush()
        self._closing = True
        self.cancel_deadline()
        if drain_input:
            with suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_INPUT_TIMEOUT):
                    await self._drain_input()
        if self._is_lost:
            return
        self.transport.close()
        self.set_deadline(self.loop.time() + _CLOSE_TIMEOUT)
        while not self._is_lost:
            await self._wait()

    def abort(self) -> None:
        """Drop the client with all that was not sent."""
        self._unsent.clear()
        self.transport.abort()

    # Waiting.

    async def _drain_input(self) -> None:
        if not self._is_lost and self.transport.can_write_eof():
            with suppress(OSError):  # it has gone, and nobody has read that yet
                self.transport.write_eof()
        while not (self._is_lost or self._at_eof):
            self.lines.clear()
            self._resume_reading()
            await self._wait()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._is_lost:
            self._reading_paused = False
            self.transport.resume_reading()

    async def _flush_and_wait(self) -> None:
        self.flush()
        if self._writing_paused:
            self.set_deadline(self.loop.time() + self._send_seconds)
            try:
                while self._writing_paused:
                    await self._wait()
            except ClientTimeout:
                self.abort()
                raise ConnectionClosed from None
        if self._is_lost:
            raise ConnectionClosed

    def _raise_if_over(self) -> None:
        if self._has_timed_out:
            raise ClientTimeout
        if self._is_lost or self._at_eof:
            raise ConnectionClosed

    async def _wait(self) -> None:
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._has_timed_out and not self._closing:
            raise ClientTimeout

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
