"""One SMTP connection: bytes in and out, its deadline, STARTTLS, and its end.

Replies are sent together before the next wait. What the client does while we work, even hanging up,
is noticed at the next wait. `CertificateReloader` keeps the operator's certificate, for this door
and for the web server.

Must never hold more than a few buffers for a client, wait without a deadline, run a timer while we
work, or carry a byte over from before the TLS handshake (RFC 3207, section 4.2).
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

READ_BYTES = 128 << 10
_MAX_UNREAD_BYTES = 16 << 10  # beyond which reading pauses; more than a line
_MAX_UNSENT_BYTES = 16 << 10  # of replies, beyond which they are sent before the next command
_HANDSHAKE_TIMEOUT = 60.0
_CLOSE_TIMEOUT = 10.0  # for the client to take the last replies
_DRAIN_INPUT_TIMEOUT = 1.0  # for a client to stop sending


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """A context with this certificate, which asks no client for one. StartError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, certificate)
    return context


def load_certificate(context: ssl.SSLContext, certificate: Certificate) -> None:
    """Use a certificate from now on. StartError: the files are unreadable or do not match."""
    try:
        # With a password, nobody is asked for one.
        context.load_cert_chain(certificate.certificate, certificate.key, password="")
    except OSError as error:  # ssl.SSLError is one
        files = f"{certificate.certificate}, {certificate.key}"
        remedy = "name a certificate and its key, in PEM files that the daemon's user can read"
        raise StartError(
            f"{files}: cannot be used for TLS ({error.strerror or error}): {remedy}"
        ) from error


class CertificateReloader:
    """A TLS context whose certificate follows its files. StartError: they cannot be used."""

    def __init__(self, files: Certificate) -> None:
        self._files = files
        self.context = server_context(files)
        self._loaded_times = self._change_times()

    def reload(self) -> None:
        """Load the files again if they have changed; bad files leave the old certificate in use."""
        try:
            change_times = self._change_times()
            if change_times != self._loaded_times:
                self._loaded_times = change_times
                # On trial: with a wrong key the old certificate would be lost before the error.
                server_context(self._files)
                load_certificate(self.context, self._files)
                _log.info("handshakes use the new certificate in %s", self._files.certificate)
        except StartError as error:
            _log.error("the new certificate cannot be used: the old one is (%s)", error)

    def _change_times(self) -> tuple[int, ...]:
        return _change_time(self._files.certificate), _change_time(self._files.key)


def _change_time(path: Path) -> int:
    """When its contents or rights changed, in nanoseconds; 0: the file cannot be seen."""
    try:
        return path.stat().st_ctime_ns
    except OSError:
        return 0


async def upgrade_to_tls(
    transport: asyncio.Transport, protocol: asyncio.BaseProtocol, context: ssl.SSLContext
) -> asyncio.Transport:
    """The transport after the handshake. OSError: it has failed, and the connection is closed."""
    loop = asyncio.get_running_loop()
    upgraded = await loop.start_tls(
        transport, protocol, context, server_side=True, ssl_handshake_timeout=_HANDSHAKE_TIMEOUT
    )
    if upgraded is None:
        raise ConnectionError("the client went away during the handshake")
    return upgraded


class SmtpConnection(DeadlineTimer, asyncio.BufferedProtocol):
    """Reads into `lines`, and sends replies."""

    transport: asyncio.Transport

    def __init__(
        self, loop: asyncio.AbstractEventLoop, scratch: memoryview, send_seconds: float
    ) -> None:
        """scratch: a buffer that all connections of this loop share, since reading and copying
        are one step. send_seconds: for the client to take its replies.
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

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; the caller of `serve` runs the session."""
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  asyncio gives it
        """The buffer to read into."""
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Append the bytes that have come."""
        self.lines.data += self._scratch[:nbytes]
        self._has_new_bytes = True
        if len(self.lines.data) >= _MAX_UNREAD_BYTES and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """Note that the client sends no more. Its commands are still answered, but with TLS, which
        has no half-closed connections.
        """
        self._at_eof = True
        self._wake()
        return not self.is_encrypted

    def deadline_passed(self) -> None:
        """Note a timeout; drop a client that does not take its last replies."""
        if self._closing:
            self.transport.abort()
        else:
            self._has_timed_out = True
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  asyncio gives it
        """Note that the client has gone. A message that is being delivered is not disturbed."""
        self._is_lost = True
        self._writing_paused = False
        if self._closing:
            self.cancel_deadline()
        self._wake()

    def pause_writing(self) -> None:
        """Note that the client does not take its replies."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        """Note that the client takes its replies again."""
        self._writing_paused = False
        self._wake()

    # For the session.

    def write_reply(self, reply: Reply) -> None:
        """Send a reply before the next wait, together with others (RFC 2920, section 3.2)."""
        line = reply.encode()
        self._unsent.append(line)
        self._unsent_bytes += len(line)

    def flush(self) -> None:
        """Send the replies written so far."""
        if self._unsent and not self._is_lost:
            self.transport.write(b"".join(self._unsent))
        self._unsent.clear()
        self._unsent_bytes = 0

    async def flush_if_full(self) -> None:
        """Send many replies, and wait until the client has taken them. ConnectionClosed."""
        if self._unsent_bytes >= _MAX_UNSENT_BYTES or self._writing_paused:
            await self._flush_and_wait()
        if self._is_lost:
            raise ConnectionClosed

    async def read_more(self, seconds: float | None) -> None:
        """Send the replies, and wait for more bytes.

        Parameters
        ----------
        seconds : until the deadline; None: the deadline set before holds.

        Raises
        ------
        ConnectionClosed, ClientTimeout
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
        """Go on with TLS; `lines` must be empty. ConnectionClosed: the handshake has failed."""
        self.flush()
        self.is_encrypted = True
        self._reading_paused = False
        try:
            self.transport = await upgrade_to_tls(self.transport, self, context)
        except BaseException as error:
            self._is_lost = True  # connection_lost is not called after a failed handshake
            if isinstance(error, OSError):
                raise ConnectionClosed from error
            raise

    @property
    def is_waiting(self) -> bool:
        """Whether it is the client's turn, and a deadline runs."""
        return self._deadline is not None

    async def close(self, *, drain_input: bool = False) -> None:
        """Send the replies and close; a client that does not take them is cut off soon.

        drain_input: the client may be sending. Closing with unread input resets the connection, and
        the client would lose our last reply.
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
        """Drop the client and all bytes not sent."""
        self._unsent.clear()
        self.transport.abort()

    # Waits.

    async def _drain_input(self) -> None:
        if not self._is_lost and self.transport.can_write_eof():
            with suppress(OSError):  # the client has gone
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
