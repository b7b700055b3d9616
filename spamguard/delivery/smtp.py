"""Delivery by SMTP (RFC 5321), with one reply for all recipients, or by LMTP (RFC 2033), with one
for each.

`SmtpNextHop` opens a `NextHopSession`: connection, greeting, EHLO or LHLO, STARTTLS (RFC 3207).
Each wait of it ends with the awaited event, a `DeliveryError` or a cancellation. `SessionPool`
keeps idle sessions for the next message. `SmtpTransaction` is one message. Until the hop has said
354, a transaction that lost its session begins again on a new one, once, and goes on only if it
gets the same replies.

It is written by hand because aiosmtplib has no LMTP and no XFORWARD, holds whole messages in
memory, and rewrites a bare CR or LF.

Must never send anything while the two sides are out of step, never end a message that is not whole,
never send the data twice, never open a session without TLS where it is required, never believe
what was said before TLS, and never reuse a session whose last transaction had an error.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import cast

from spamguard.aio import DeadlineTimer
from spamguard.config.options import Endpoint, Hop, Protocol, Tls
from spamguard.delivery.maildir import MaildirNextHop
from spamguard.delivery.next_hop import (
    NO_SMTPUTF8,
    ClosingError,
    DeliveryError,
    DisconnectedError,
    ErrorCallback,
    NextHop,
    NextHopTimeoutError,
    TlsHandshakeError,
    UnreachableError,
    UnsafeError,
    describe_error,
    drop_unsupported,
    ignore_error,
)
from spamguard.smtp.commands import dot_stuff, write_command, xforward_commands
from spamguard.smtp.envelope import (
    MAX_REPLY_BYTES,
    Client,
    Recipient,
    Replies,
    Reply,
    ReplyError,
    ReplyReader,
    Sender,
    normalise_address,
    parse_extensions,
)
from spamguard.storage import SpoolView

_log = logging.getLogger("spamguard.relay")

# For the rest of a reply that began in the middle of the data, and for replies behind a 421.
_LATE_REPLY_TIMEOUT = 1.0


class NextHopSession(DeadlineTimer, asyncio.Protocol):
    """One connection to a next hop; each reply to a command is due within `seconds`."""

    _transport: asyncio.Transport

    def __init__(self, seconds: float) -> None:
        self.extensions: Mapping[str, str] = {}  # EHLO keywords (upper case), parameters
        self.is_reused = False  # whether it has served a message before
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._replies = ReplyReader()
        self._waiter: asyncio.Future[None] | None = None
        self._close_reason = ""
        self._writing_paused = False
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

    async def read_reply(self, deadline: float | None = None, positive: int = 2) -> Reply:
        """The reply to the oldest command without one; its code is 4yz, 5yz or as `positive` says.

        Raises DisconnectedError, NextHopTimeoutError or ClosingError.
        """
        deadline = deadline or self.deadline_after(self._seconds)
        try:
            while (reply := self._replies.next_reply()) is None:
                if self._close_reason:
                    raise DisconnectedError(self._close_reason)
                self._transport.resume_reading()
                await self._wait_for_change(deadline)
        except ReplyError as error:
            raise NextHopTimeoutError(f"not understood: {error}") from error
        if reply.code == 421:
            raise ClosingError(reply)
        if reply.code // 100 not in (positive, 4, 5):
            raise NextHopTimeoutError(f"out of place: {reply}")
        self._replies_due -= 1
        self._had_refusal |= not reply.is_positive
        return reply

    async def request(
        self, command: bytes, positive: int = 2, deadline: float | None = None
    ) -> Reply:
        """The reply to a command, which has its line end, as `read_reply`.

        Raises DisconnectedError also if the hop spoke unasked.
        """
        self._is_clean = False
        if self._replies_due or not self.is_quiet:
            raise DisconnectedError("gone, or spoke without being asked")
        self._replies_due = 1
        self._transport.write(command)
        return await self.read_reply(deadline, positive)

    async def send_data(self, pieces: Iterable[bytes], replies: int) -> bool:
        """Send a message, whose last piece is the end of data; so many replies are due then.

        False if the hop spoke or hung up before that. Errors of the pieces pass through. Unless the
        message was sent whole and all replies came, the session can only be cut off.
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

    def mark_ready(self) -> None:
        """The session was opened, or a transaction has ended.

        The next message can have it if nothing was ever refused.
        """
        self._is_clean = not (self._replies_due or self._had_refusal)

    async def quit(self) -> None:
        """End it politely, without waiting long; never raises."""
        try:
            with suppress(DeliveryError):
                await self.request(b"QUIT\r\n", deadline=self.deadline_after(1.0))
        finally:
            self.abort()

    async def start_tls(self, context: ssl.SSLContext, name: str, seconds: float) -> None:
        """Raises TlsHandshakeError. The name is for the check of the certificate."""
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
        self._transport = transport

    def abort(self) -> None:
        self._set_closed("ended by us")  # connection_lost may not come in the middle of STARTTLS
        self._transport.abort()

    def _set_closed(self, reason: str) -> None:
        self._close_reason = self._close_reason or reason
        self.cancel_deadline()
        self._wake()

    async def _wait_for_change(self, deadline: float) -> None:
        self._waiter = self._loop.create_future()
        self.set_deadline(deadline)
        try:
            await self._waiter
        finally:
            self.clear_deadline()
            self._waiter = None

    def deadline_passed(self) -> None:
        self._wake(NextHopTimeoutError("no answer in time"))

    def _wake(self, error: Exception | None = None) -> None:
        if self._waiter is None or self._waiter.done():
            return
        if error is None:
            self._waiter.set_result(None)
        else:
            self._waiter.set_exception(error)

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._replies.feed(data)
        if self._replies.pending_bytes > MAX_REPLY_BYTES:  # a whole reply must fit in
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._set_closed("closed by the next hop")

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_closed(describe_error(exc) if exc else "closed")

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._wake()


async def dial(endpoint: Endpoint, connect_seconds: float, seconds: float) -> NextHopSession:
    """Connect, or raise UnreachableError; `seconds` is that of `NextHopSession`."""
    loop = asyncio.get_running_loop()
    make = partial(NextHopSession, seconds)
    try:
        async with asyncio.timeout(connect_seconds):
            if endpoint.path is not None:
                connecting = loop.create_unix_connection(make, str(endpoint.path))
            else:
                # The delay is until a host's next address is tried too (RFC 8305, section 5).
                connecting = loop.create_connection(
                    make, endpoint.host, endpoint.port, happy_eyeballs_delay=0.25
                )
            return (await connecting)[1]
    except (OSError, ValueError) as error:  # ValueError: a name that no host can have
        raise UnreachableError(f"connect: {describe_error(error)}") from error


def _batch_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    batch = bytearray()
    for piece in pieces:
        batch += piece
        if len(batch) >= 64 << 10:  # fewer calls for small messages
            yield bytes(batch)
            batch.clear()
    yield bytes(batch)


def is_local(peer: str) -> bool:
    """Whether the other end, an address or "" for a Unix socket, is on this machine.

    >>> is_local("::ffff:127.0.0.1"), is_local("192.0.2.1")
    (True, False)
    """
    return not peer or ipaddress.ip_address(normalise_address(peer)).is_loopback


class SessionPool:
    """Idle sessions. The one used last is taken first, so that those not needed grow old."""

    def __init__(self, hop: Hop) -> None:
        self._hop = hop
        self._idle: dict[NextHopSession, asyncio.TimerHandle] = {}  # oldest first
        self._quitting: set[asyncio.Task[None]] = set()
        self._closed = False

    def take(self) -> NextHopSession | None:
        """A session in which nothing has happened since it was put here."""
        while self._idle:
            session, timer = self._idle.popitem()
            timer.cancel()
            if session.is_usable:
                session.is_reused = True
                return session
            session.abort()
        return None

    def put(self, session: NextHopSession) -> None:
        """Take a session back after its transaction, however that ended."""
        if session.is_usable and not self._closed and len(self._idle) < self._hop.sessions:
            loop = asyncio.get_running_loop()
            self._idle[session] = loop.call_later(self._hop.idle, self._quit, session)
        else:
            self._quit(session)

    async def close(self) -> None:
        """End the idle sessions; those that come back later are ended too."""
        self._closed = True
        while self._idle:
            session, timer = self._idle.popitem()
            timer.cancel()
            self._quit(session)
        await asyncio.gather(*self._quitting)

    def _quit(self, session: NextHopSession) -> None:
        self._idle.pop(session, None)
        task = asyncio.create_task(session.quit())
        self._quitting.add(task)
        task.add_done_callback(self._quitting.discard)


class SmtpNextHop:
    """A next hop on a connection. The hostname is ours, for EHLO."""

    def __init__(self, hop: Hop, hostname: str, on_error: ErrorCallback = ignore_error) -> None:
        self.settings = hop
        self.on_error = on_error
        self.pool = SessionPool(hop)
        self.extensions: Mapping[str, str] | None = None
        self._hostname = hostname

    @property
    def answers_each(self) -> bool:
        return self.settings.to.protocol is Protocol.LMTP

    async def probe(self) -> str:
        """Open a session for the next message, or say why there is none; never raises."""
        try:
            self.pool.put(await self.open())
        except DeliveryError as error:
            self.on_error(error)
            return str(error)
        return ""

    def transaction(self, client: Client) -> SmtpTransaction:
        return SmtpTransaction(self, client)

    async def close(self) -> None:
        await self.pool.close()

    async def open(self) -> NextHopSession:
        """A new session. Raises UnreachableError or UnsafeError."""
        try:
            return await self._open(self.settings.tls)
        except TlsHandshakeError as error:
            if self.settings.tls is Tls.REQUIRED:
                raise
            # Opportunistic: unencrypted mail is better than none (RFC 7435).
            _log.warning("next hop %s: %s; going on without", self.settings.to, error)
            return await self._open(Tls.OFF)

    async def _open(self, tls: Tls) -> NextHopSession:
        hop = self.settings
        session = await dial(hop.to, hop.connect, hop.command)
        try:
            greeting = await session.read_reply()
            if not greeting.is_positive:
                raise UnreachableError(f"not welcome: {greeting}")
            extensions = await self._say_hello(session)
            is_offered = "STARTTLS" in extensions
            if tls is Tls.REQUIRED and not is_offered:
                raise UnsafeError("TLS is required, and not offered")
            is_wanted = tls is Tls.OPPORTUNISTIC and is_offered and not is_local(session.peer)
            if tls is Tls.REQUIRED or is_wanted:
                reply = await session.request(b"STARTTLS\r\n")
                if not reply.is_positive:
                    raise TlsHandshakeError(f"STARTTLS refused: {reply}")
                if not session.is_quiet:  # RFC 3207, section 6
                    raise UnsafeError("more than the answer to STARTTLS came before the handshake")
                await session.start_tls(self._tls_context, hop.to.host, hop.connect)
                extensions = await self._say_hello(session)
            session.extensions = self.extensions = extensions
            session.mark_ready()
        except (DisconnectedError, NextHopTimeoutError) as error:
            session.abort()
            raise UnreachableError(f"at the start: {error}") from error
        except BaseException:
            session.abort()
            raise
        return session

    async def _say_hello(self, session: NextHopSession) -> Mapping[str, str]:
        for verb in ("LHLO",) if self.answers_each else ("EHLO", "HELO"):
            reply = await session.request(f"{verb} {self._hostname}\r\n".encode("ascii"))
            if reply.is_positive:
                return {} if verb == "HELO" else parse_extensions(reply)
            if reply.code < 500:
                break
        raise UnreachableError(f"not welcome: {reply}")

    @cached_property
    def _tls_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self.settings.tls is not Tls.REQUIRED:  # nobody checks the certificate
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass
class SmtpTransaction:
    """One message on its way out. After an error every further reply is the same 451."""

    _hop: SmtpNextHop
    _client: Client
    _session: NextHopSession | None = None
    _completed_steps: list[tuple[Sender | Recipient | None, int]] = field(default_factory=list)
    _accepted: int = 0
    _has_restarted: bool = False
    _error_reply: Reply | None = None

    async def mail(self, sender: Sender) -> Reply:
        return await self._run_step(sender)

    async def recipient(self, recipient: Recipient) -> Reply:
        reply = await self._run_step(recipient)
        self._accepted += reply.is_positive
        return reply

    async def send(self, content: SpoolView) -> Sequence[Reply]:
        count = self._accepted if self._hop.answers_each else 1
        reply = await self._run_step(None)
        if not reply.is_positive:
            return [reply] * count
        # After the 354: whatever happens from here on, the message is not sent again.
        session = await self._borrow_session()
        replies: list[Reply] = []
        try:
            is_whole = await session.send_data(dot_stuff(content.chunks()), count)
            deadline = session.deadline_after(
                self._hop.settings.data if is_whole else _LATE_REPLY_TIMEOUT
            )
            while len(replies) < count:
                try:
                    reply = await session.read_reply(deadline, positive=2 if is_whole else 4)
                except ClosingError as error:
                    # It answers one recipient. Others may have the message, and would get it twice.
                    self._report_error(error)
                    reply = error.reply
                    deadline = min(deadline, session.deadline_after(_LATE_REPLY_TIMEOUT))
                replies.append(reply)
            session.mark_ready()
        except (DeliveryError, OSError, ValueError) as error:
            self._report_error(error)
            session.abort()
            # Not the hop's: the content is unreadable, or must not be sent.
            reply = error.reply if isinstance(error, DeliveryError) else Replies.LOCAL_ERROR
            replies += [reply] * (count - len(replies))
        return replies

    async def end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._hop.pool.put(session)

    async def _run_step(self, step: Sender | Recipient | None) -> Reply:
        """One step before the data; None is DATA."""
        if self._error_reply is not None:
            return self._error_reply
        try:
            try:
                reply = await self._send_step(await self._borrow_session(), step)
            except DisconnectedError as error:
                reply = await self._send_step(await self._restart_session(error), step)
        except DeliveryError as error:
            self._report_error(error)
            self._error_reply = error.reply
            return error.reply
        self._completed_steps.append((step, reply.code))
        return reply

    async def _borrow_session(self) -> NextHopSession:
        if self._session is None:
            self._session = self._hop.pool.take() or await self._hop.open()
        return self._session

    async def _restart_session(self, error: DisconnectedError) -> NextHopSession:
        """A new session that is where the lost one was.

        A 421 on a new session is an answer, not a loss.
        """
        if (
            self._has_restarted
            or self._session is None
            or (isinstance(error, ClosingError) and not self._session.is_reused)
        ):
            raise error
        self._has_restarted = True
        _log.info("next hop %s: session lost (%s), beginning again", self._hop.settings.to, error)
        self._session.abort()
        self._session = None
        self._session = session = await self._hop.open()
        for step, code in self._completed_steps:
            reply = await self._send_step(session, step)
            if reply.code != code:
                raise DisconnectedError(f"on a new session {code} became {reply}")
        return session

    async def _send_step(self, session: NextHopSession, step: Sender | Recipient | None) -> Reply:
        if step is None:
            return await session.request(b"DATA\r\n", positive=3)
        extensions = session.extensions
        if isinstance(step, Sender):
            if step.needs_smtputf8 and "SMTPUTF8" not in extensions:
                return NO_SMTPUTF8
            for forward in xforward_commands(self._client, extensions.get("XFORWARD", "")):
                await session.request(forward)  # whose refusal does not matter
        return await session.request(write_command(drop_unsupported(step, extensions)))

    def _report_error(self, error: Exception) -> None:
        _log.warning("next hop %s: %s: %s", self._hop.settings.to, type(error).__name__, error)
        self._hop.on_error(error)


def create_next_hop(hop: Hop, hostname: str, on_error: ErrorCallback = ignore_error) -> NextHop:
    """The next hop of the configuration; it connects when it is first used.

    The hostname is ours, for EHLO and the names of files.
    """
    if hop.to.path is not None and hop.to.protocol is Protocol.MAILDIR:
        return MaildirNextHop(hop.to.path, hostname, on_error=on_error)
    return SmtpNextHop(hop, hostname, on_error)


# ---- is a next hop there?

HOP_TIMEOUT = 3.0  # seconds, for the greeting of a next hop


async def find_unreachable(hops: Iterable[Hop], hostname: str) -> list[str]:
    """Describe next hops that do not greet, or Maildirs that cannot be written."""
    faults = (await probe_next_hops(hops, hostname)).items()
    return [f"next hop {endpoint}: {fault}" for endpoint, fault in faults if fault]


async def probe_next_hops(hops: Iterable[Hop], hostname: str) -> dict[Endpoint, str]:
    """The fault of each next hop, or "". Only a greeting is sent to it."""

    async def probe(hop: Hop) -> str:
        next_hop = create_next_hop(hop, hostname)
        try:
            async with asyncio.timeout(HOP_TIMEOUT):
                return await next_hop.probe()
        except TimeoutError:
            return f"no answer within {HOP_TIMEOUT:.0f} s"
        finally:
            await next_hop.close()  # waits for a second at most

    different = {hop.to: hop for hop in hops}
    return dict(zip(different, await asyncio.gather(*map(probe, different.values())), strict=True))
