"""The SMTP and the LMTP door: sessions of aiosmtpd, with what a mail filter needs beside it.

`SmtpSession` is an `aiosmtpd.smtp.SMTP`: its commands are the methods `smtp_…`, and what they mean
for mail is in `smtp_handler`, with the reader of their lines. It adds: messages that go to a spool
piece by piece; XFORWARD and XCLIENT; strict addresses; and an end in which the last reply arrives.
What replaces a method of aiosmtpd says why in its docstring.

Must never answer a fault of ours with a permanent reply or with its text, wait without a deadline,
obey a line that does not end in CRLF or bytes from before the TLS handshake, let one client keep
others waiting, or let the client's behaviour touch a message that is being delivered.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections import defaultdict
from contextlib import suppress
from typing import Any

from aiosmtpd.lmtp import LMTP
from aiosmtpd.smtp import SMTP, TLSSetupException, syntax

from spamguard.config.options import OddBytes
from spamguard.servers import listener, smtp_handler
from spamguard.servers.listener import ClientTimeout, LimitExceeded, close_stream, drain_input
from spamguard.servers.smtp_handler import (
    BUFFER_BYTES,
    REPLY_BY_LIMIT,
    ClientReader,
    ClientSession,
    DataReceiver,
    DoorContext,
    HookNames,
    MailEnvelope,
    ProxyHandler,
)
from spamguard.smtp.commands import (
    XCLIENT_FEATURE,
    XFORWARD_FEATURE,
    DataReader,
    parse_mail,
    parse_rcpt,
)
from spamguard.smtp.envelope import RefusedError, Replies, Reply, with_enhanced_code

_log = logging.getLogger("spamguard.doors")
logging.getLogger("mail.log").setLevel(logging.ERROR)  # aiosmtpd's: each line of each client

_MAX_COMMAND_BYTES = 12 << 10  # XCLIENT with eight values that are long and encoded
_MAX_UNSENT_BYTES = 16 << 10  # of replies, beyond which they are sent before the next command

_IDLE_VERBS = frozenset(
    ("NOOP", "HELP", "VRFY", "RSET", "HELO", "EHLO", "LHLO", "XFORWARD", "XCLIENT")
)
_ODD_BYTE = re.compile(rb"[\r\n\0]")


class SmtpSession(HookNames, SMTP):
    """One client, as a `ServerSession` of the door."""

    command_size_limit = _MAX_COMMAND_BYTES
    session: ClientSession
    envelope: MailEnvelope
    transport: asyncio.Transport | None
    _handler_coroutine: asyncio.Task[None] | None
    _reader: ClientReader
    _writer: asyncio.StreamWriter

    def __init__(
        self, context: DoorContext, loop: asyncio.AbstractEventLoop, address: str, port: str
    ) -> None:
        self._context = context
        self._handler = ProxyHandler(context, loop, address, port)
        super().__init__(
            self._handler,
            data_size_limit=context.limits.message_size,
            enable_SMTPUTF8=True,  # arguments are UTF-8; whether they may be, the parser says
            hostname=context.hostname,
            ident="LMTP" if context.lmtp else "ESMTP",
            tls_context=None if context.tls is None else context.tls.context,
            loop=loop,
        )
        del self._smtp_methods["AUTH"]
        reader = ClientReader(loop, self._before_wait, self._check_command)
        asyncio.StreamReaderProtocol.__init__(self, reader, self._cb_client_connected, loop)
        self._reader = reader  # aiosmtpd sets it when the session begins: the door may drain before
        # aiosmtpd has 512 bytes after EHLO, and counts what extensions add in one dict for all.
        self.command_size_limits = defaultdict(lambda: _MAX_COMMAND_BYTES)
        self.is_draining = False
        self._refusal: Reply | None = None
        self._is_over = False
        self._unsent = bytearray()
        self._line_deadline: float | None = None  # None: the next wait sets it
        self._data_deadline: float | None = None  # None: not in the data of a message

    # ---- for the door

    @property
    def evictable_from(self) -> float | None:
        """After a message the client has a moment for QUIT, as in `drain`."""
        waiting, idle = self._reader.waiting_since, self._handler.idle_since
        if idle is None and waiting is not None:  # in a transaction, and it is the client's turn
            return waiting + listener.SILENT_SECONDS
        return idle

    async def serve(self, connected: socket.socket, refused: LimitExceeded | None) -> None:
        self._refusal = None if refused is None else REPLY_BY_LIMIT[refused]
        self._handler_coroutine = asyncio.current_task()  # aiosmtpd cancels it after QUIT
        try:
            await self.loop.connect_accepted_socket(lambda: self, connected)
        except OSError as error:
            _log.info("connection lost at once: %s", error)
            return
        try:
            with suppress(asyncio.CancelledError, ConnectionResetError):  # how aiosmtpd ends
                await self._handle_client()
        finally:
            await self._handler.close_transaction()
            self._handler.idle_since = None
            if self._tls_protocol is not None and self.session.ssl is None:
                self.connection_lost(None)  # asyncio does not call it during the handshake
            await close_stream(self._writer)
            self._reader.cancel_deadline()

    def cancel(self, task: asyncio.Task[None]) -> None:
        """Cancel the task that serves, after a last reply."""
        if not self._is_over:
            self._is_over = True
            self._write(Replies.SHUTTING_DOWN if self.is_draining else Replies.EVICTED)
            self._flush()
        task.cancel()

    def drain(self) -> None:
        """End as soon as nothing is under way.

        A client that is just beginning its first message is served: no other worker knows of it.
        A client that has just been served may say QUIT: programs that hear 421 there take the
        message for refused, and send it again.
        """
        self.is_draining = True
        if self._is_leaving:
            self._reader.hurry(self.loop.time() + self._line_timeout())

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    @property
    def _is_leaving(self) -> bool:
        """Whether the door closes, and nothing is under way here."""
        return self.is_draining and self._handler.transaction is None

    def _line_timeout(self) -> float:
        seconds = self._context.limits.command_timeout
        if not self._is_leaving:
            return seconds
        ended = self._handler.last_message_end
        since_served = 0.0 if ended is None else self.loop.time() - ended
        return min(seconds, max(smtp_handler.DRAIN_GRACE_SECONDS - since_served, 0.0))

    # ---- aiosmtpd's framework

    def _create_session(self) -> ClientSession:
        return ClientSession(self.loop, self._handler.peer)

    def _set_post_data_state(self) -> None:
        self.envelope = MailEnvelope()

    def _reset_timeout(self, duration: float | None = None) -> None:
        """Replaced: aiosmtpd's timer also runs while a message is being delivered."""

    def eof_received(self) -> bool:
        """Replaced: aiosmtpd would cancel the commands that the client sent before."""
        asyncio.StreamReaderProtocol.eof_received(self)
        return self.session.ssl is None  # TLS has no half-closed connections

    def connection_lost(self, error: Exception | None) -> None:
        """Replaced: aiosmtpd would cancel a delivery, and the message could be sent twice."""
        asyncio.StreamReaderProtocol.connection_lost(self, error)
        if self._original_transport is not None:
            self._original_transport.close()
        self.transport = None

    def connection_made(self, transport: Any) -> None:
        """Replaced before TLS: aiosmtpd would start another task for the session."""
        if self._original_transport is not None:
            super().connection_made(transport)
            return
        self._set_post_data_state()
        self.session = self._create_session()
        asyncio.StreamReaderProtocol.connection_made(self, transport)
        self.transport = transport

    async def _handle_client(self) -> None:
        if self._refusal is not None:
            await self._end_with(self._refusal)
        await super()._handle_client()

    async def handle_exception(self, error: Exception) -> Any:
        """The reply after an error in a command, or the end of the session."""
        if isinstance(error, RefusedError):
            if error.ends_session:
                await self._end_with(error.reply)
            return self._handler.refuse(error.reply)
        if isinstance(error, ClientTimeout):
            await self._end_with(Replies.SHUTTING_DOWN if self._is_leaving else Replies.TIMED_OUT)
        if isinstance(error, TLSSetupException):  # aiosmtpd closes the connection
            return ""
        _log.exception("%s: a fault in this session", self._handler.peer.address)
        await self._handler.end_transaction(self.session)
        self._set_post_data_state()
        if self._data_deadline is not None:  # the rest of the data would be taken for commands
            await self._end_with(Replies.LOCAL_ERROR_IN_DATA)
        return Replies.LOCAL_ERROR

    async def push(self, status: Any) -> None:
        """Send a line of aiosmtpd, or one `Reply` or several of ours.

        Replaced: aiosmtpd sends each reply alone. They go out together as soon as no command of the
        client is left (RFC 2920, section 3.2).
        """
        if status is None or self._is_over:  # aiosmtpd pushes None when it is cancelled
            return
        if isinstance(status, str):
            if status.startswith(("4", "5")):
                self._handler.wrong_left -= 1
            line = with_enhanced_code(status)
            self._write(line.encode("ascii", "replace") + b"\r\n")
        else:
            for reply in (status,) if isinstance(status, Reply) else status:
                self._write(reply)
        if self._reader.is_empty:
            self._flush()
        elif len(self._unsent) >= _MAX_UNSENT_BYTES:
            await self._send()

    def _write(self, reply: Reply | bytes) -> None:
        self._unsent += reply.encode() if isinstance(reply, Reply) else reply

    def _flush(self) -> None:
        if self._unsent and self.transport is not None:
            self.transport.write(bytes(self._unsent))
        self._unsent.clear()

    async def _send(self) -> None:
        """Send the replies. ConnectionResetError: the client has gone, or does not take them."""
        self._flush()
        if self.transport is None:
            raise ConnectionResetError
        if self.transport.get_write_buffer_size():
            try:
                async with asyncio.timeout(self._context.limits.command_timeout):
                    await self._writer.drain()
            except TimeoutError:
                self.abort()
                raise ConnectionResetError from None

    async def _end_with(self, reply: Reply) -> None:
        """Send a last reply, and end the session as aiosmtpd does."""
        self._write(reply)
        self._flush()
        self._is_over = True
        self._line_deadline = None
        self._reader.clear()
        await drain_input(self._reader, self._writer)
        raise asyncio.CancelledError

    # ---- for `ClientReader`

    async def _before_wait(self) -> float:
        """Send the replies. The deadline of the wait, by the loop's clock.

        A line has one deadline, however slowly it comes in, and so has a message beside that of
        each piece.
        """
        await self._send()
        now = self.loop.time()
        if self._data_deadline is not None:
            return min(now + self._context.limits.data_timeout, self._data_deadline)
        if self._line_deadline is None:
            self._line_deadline = now + self._line_timeout()
        return self._line_deadline

    def _check_command(self, line: bytes) -> bytes:
        """The line, if it is a command. RefusedError."""
        self._line_deadline = None
        if min(self._handler.idle_left, self._handler.wrong_left) < 0:
            raise RefusedError(Replies.TOO_MANY_COMMANDS, ends_session=True)
        verb = line[:-2].partition(b" ")[0].upper().decode("latin-1")
        if _ODD_BYTE.search(line, 0, len(line) - 2):
            raise RefusedError(Replies.BAD_LINE)
        if self._is_leaving and self._handler.last_message_end is not None and verb != "QUIT":
            raise RefusedError(Replies.SHUTTING_DOWN, ends_session=True)
        if verb not in self._smtp_methods:
            raise RefusedError(Replies.UNKNOWN_COMMAND)
        if verb in _IDLE_VERBS:
            self._handler.idle_left -= 1
        elif line[:-2].upper() == b"QUIT":
            self._reader.clear()  # nothing may follow it, and `push` sends the reply at once
        return line

    # ---- commands

    @syntax("MAIL FROM:<address>", extended=" [SP <parameters>]")
    async def smtp_MAIL(self, arg: str | None) -> None:
        """Replaced: aiosmtpd refuses DSN, and changes the case of values."""
        if await self.check_helo_needed():
            return
        if self.envelope.sender is not None:
            raise RefusedError(Replies.BAD_SEQUENCE)
        sender = parse_mail(_encode(arg), smtputf8=self._context.is_behind_server)
        await self.push(await self._handler.mail(self.session, self.envelope, sender))

    @syntax("RCPT TO:<address>", extended=" [SP <parameters>]")
    async def smtp_RCPT(self, arg: str | None) -> None:
        """Replaced: as `smtp_MAIL`."""
        if await self.check_helo_needed():
            return
        sender = self.envelope.sender
        if sender is None:
            raise RefusedError(Replies.BAD_SEQUENCE)
        self.envelope.rcpt_count += 1
        may_be_wide = self._context.is_behind_server or "SMTPUTF8" in dict(sender.parameters)
        recipient = parse_rcpt(_encode(arg), smtputf8=may_be_wide)
        await self.push(await self._handler.recipient(self.envelope, recipient))

    @syntax("DATA")
    async def smtp_DATA(self, arg: str | None) -> None:
        """Replaced: aiosmtpd keeps a message in memory, line by line."""
        if await self.check_helo_needed():
            return
        self._handler.check_data(self.envelope, arg)
        await self.push(Replies.GO_AHEAD)
        incoming = DataReceiver(self._context, self._handler.quota_key)
        try:
            await self._receive_data(incoming)
            final_replies = await self._handler.data(self.session, self.envelope, incoming)
        finally:
            incoming.close()
        await self.push(final_replies)
        self._flush()  # first of all: a client without a reply may send the message again
        await self._handler.end_transaction(self.session)
        self._set_post_data_state()
        self._handler.reset_budget()

    async def _receive_data(self, incoming: DataReceiver) -> None:
        """Read to the end of the data, even if the message is refused."""
        context = self._context
        refuse_odd = context.odd_bytes is OddBytes.REFUSE
        data = DataReader(normalise=not refuse_odd)
        started = self.loop.time()
        self._data_deadline = started + context.limits.message_timeout
        while not data.is_finished:
            chunk = await self._reader.read(4 * BUFFER_BYTES)
            if not chunk:
                raise ConnectionResetError
            incoming.write(data.feed(chunk))
            if refuse_odd and data.oddities:
                incoming.refuse(Replies.ODD_BYTES)
        self._data_deadline = None
        self._reader.put_back(data.rest)
        incoming.oddities |= data.oddities
        context.on_data_received(self.loop.time() - started)

    @syntax("STARTTLS", when="tls_context")
    async def smtp_STARTTLS(self, arg: str | None) -> None:
        """Upgrade, with the certificate as it is now."""
        if self.session.ssl is not None or self.envelope.sender is not None:
            raise RefusedError(Replies.BAD_SEQUENCE)
        if not (arg or self._reader.is_empty):
            raise RefusedError(Replies.NOT_SMTP, ends_session=True)
        if self._context.tls is not None:
            self._context.tls.reload()
        await super().smtp_STARTTLS(arg)

    @syntax("XFORWARD attribute=value")
    async def smtp_XFORWARD(self, arg: str | None) -> None:
        """Describe the client of the next message (Postfix's XFORWARD_README)."""
        if await self.check_helo_needed():
            return
        before = self.session.forwarded or self._handler.peer
        self.session.forwarded = self._handler.described_client(
            self.envelope, before, _encode(arg), XFORWARD_FEATURE
        )
        await self.push(Replies.OK)

    @syntax("XCLIENT attribute=value")
    async def smtp_XCLIENT(self, arg: str | None) -> None:
        """Begin again, as another client (Postfix's XCLIENT_README)."""
        self.session.client = self._handler.described_client(
            self.envelope, self.session.client, _encode(arg), XCLIENT_FEATURE
        )
        self.session.forwarded = self.session.host_name = None
        await self.push(f"220 {self.hostname} {self.__ident__}")

    async def _refuse_browser(self, _arg: str | None) -> None:
        """End the session: any web page can make a browser send mail below its own request."""
        raise RefusedError(Replies.NOT_SMTP, ends_session=True)

    smtp_GET = smtp_POST = _refuse_browser  # the others come after one of these, or not at all

    @syntax("VRFY <address>")
    async def smtp_VRFY(self, _arg: str | None) -> None:
        """Replaced: aiosmtpd's parser of addresses is slow. Only the next hop knows."""
        await self.push(Replies.CANNOT_VERIFY)


class LmtpSession(SmtpSession, LMTP):
    """An `SmtpSession` by RFC 2033."""


def _encode(arg: str | None) -> bytes:
    """The bytes of an argument, which aiosmtpd has decoded."""
    return (arg or "").encode("utf-8", "surrogateescape")
