"""The SMTP and the LMTP door: sessions of aiosmtpd, with what a mail filter needs beside it.

`open_door` builds a door for one listener. `SmtpSession` is an `aiosmtpd.smtp.SMTP`: its commands
are the methods `smtp_…`, and what they mean for mail is in `smtp_handler`. It adds: messages that
go to a spool piece by piece; XFORWARD and XCLIENT; strict lines and addresses; a deadline for every
wait, and turns among clients (`ClientReader`); and an end in which the last reply arrives. What
replaces a method of aiosmtpd says why in its docstring.

Must never answer a fault of ours with a permanent reply or with its text, wait without a deadline,
obey a line that does not end in CRLF or bytes from before the TLS handshake, let one client keep
others waiting, or let the client's behaviour touch a message that is being delivered.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from aiosmtpd.lmtp import LMTP
from aiosmtpd.smtp import SMTP, TLSSetupException, syntax

from spamguard.aio import DeadlineTimer
from spamguard.config.options import Listener, OddBytes, Position, Protocol
from spamguard.limits import ByteQuota, LimitExceeded, Networks
from spamguard.proxy.base import Proxy
from spamguard.servers import smtp_handler
from spamguard.servers.listener import (
    ClientTimeout,
    Door,
    close_stream,
    drain_input,
)
from spamguard.servers.smtp_handler import (
    BAD_ARGUMENT,
    LOCAL_ERROR,
    OK,
    ClientSession,
    DataReceiver,
    DoorContext,
    MailEnvelope,
    ProxyHandler,
)
from spamguard.servers.tls import CertificateReloader
from spamguard.smtp.commands import (
    XCLIENT_FEATURE,
    XFORWARD_FEATURE,
    apply_attributes,
    parse_attributes,
    parse_mail,
    parse_rcpt,
)
from spamguard.smtp.data import DataReader
from spamguard.smtp.envelope import Client, Reply

_log = logging.getLogger("spamguard.doors")
logging.getLogger("mail.log").setLevel(logging.ERROR)  # aiosmtpd's: each line of each client

BUFFER_BYTES = 64 << 10
"""Of input and of replies that are kept for one client, beyond what one read or write adds."""
_MAX_LINE_BYTES = 12 << 10  # XCLIENT with eight values that are long and encoded
_MAX_UNSENT_BYTES = 16 << 10  # of replies, beyond which they are sent before the next command
# Before other sessions get their turn: a round of 50 that flood took 4 ms; with 20 it took 32.
_COMMANDS_PER_TURN = 5

_IDLE_VERBS = frozenset(
    ("NOOP", "HELP", "VRFY", "RSET", "HELO", "EHLO", "LHLO", "XFORWARD", "XCLIENT")
)
_UNSUPPORTED_VERBS = frozenset(("AUTH", "BDAT", "EXPN", "TURN", "ETRN", "STARTTLS"))
_ODD_BYTE = re.compile(rb"[\r\n\0]")
_HAS_ENHANCED_CODE = re.compile(r"\d\d\d[ -]\d\.\d+\.\d+ |220 |3")

_HELP = Reply.from_text(214, "2.0.0 See RFC 5321, and RFC 2033 for LMTP")
_GO_AHEAD = Reply.from_text(354, "End data with <CR><LF>.<CR><LF>")
_BAD_LINE = Reply.from_text(500, "5.5.2 Line has bare CR, bare LF or NUL in it")
_BARE_LF = Reply.from_text(500, "5.5.2 A line ends in CR LF, not in LF alone, closing connection")
_UNKNOWN_COMMAND = Reply.from_text(500, "5.5.2 Command not recognised")
_NOT_IMPLEMENTED = Reply.from_text(502, "5.5.1 Command not implemented")
_NOT_NOW = Reply.from_text(503, "5.5.1 Not allowed during a mail transaction")
_NEED_MAIL = Reply.from_text(503, "5.5.1 Send MAIL first")
_NOT_ALLOWED = Reply.from_text(550, "5.7.0 Command not allowed for this client")
_NO_RECIPIENTS = Reply.from_text(554, "5.5.1 No valid recipients")
_NO_RECIPIENTS_LMTP = Reply.from_text(503, "5.5.1 No valid recipients")  # RFC 2033, section 4.2
_CLIENT_REFUSED = Reply.from_text(554, "5.7.1 This server accepts no mail from you")
_LOCAL_ERROR_IN_DATA = Reply.from_text(
    421, "4.3.0 Local trouble, closing connection, try again later"
)
_TIMED_OUT = Reply.from_text(421, "4.4.2 Timeout, closing connection")
_SHUTTING_DOWN = Reply.from_text(421, "4.3.2 Shutting down, try again later")
_EVICTED = Reply.from_text(421, "4.3.2 Idle while others wait to be served, closing connection")
_TOO_MANY_COMMANDS = Reply.from_text(
    421, "4.7.0 Too many commands without a message, closing connection"
)
_NO_WEB_SERVER = Reply.from_text(421, "4.7.0 This is no web server, closing connection")
_AFTER_STARTTLS = Reply.from_text(
    421, "4.7.0 Nothing may follow STARTTLS before the handshake, closing connection"
)
_REPLY_BY_LIMIT: Mapping[LimitExceeded, Reply] = {
    LimitExceeded.TOTAL: Reply.from_text(421, "4.7.0 Too many connections, try again later"),
    LimitExceeded.PER_CLIENT: Reply.from_text(
        421, "4.7.0 Too many connections from your address, try again later"
    ),
    LimitExceeded.NOT_LISTED: _CLIENT_REFUSED,
}


class CommandRefusedError(Exception):
    """Carries the reply to a line that is no command."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self.reply = reply


class SessionEndError(Exception):
    """Carries the last reply of a session."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self.reply = reply


class ClientReader(DeadlineTimer, asyncio.StreamReader):
    """The bytes of one client. Its session prepares every wait and checks every command line.

    Beside asyncio's public methods it uses `_wait_for_data`, which they all call before they wait,
    and `_buffer`, to put bytes back. `asyncio.timeout` costs ten times as much as `DeadlineTimer`.
    """

    _buffer: bytearray

    def __init__(self, session: SmtpSession) -> None:
        super().__init__(limit=BUFFER_BYTES, loop=session.loop)
        self._session = session
        self._commands_in_turn = 0

    @property
    def is_empty(self) -> bool:
        """Whether no byte has come that was not read."""
        return not self._buffer

    def put_back(self, rest: bytes) -> None:
        """Put bytes back in front."""
        self._buffer[:0] = rest

    def clear(self) -> None:
        """Drop all bytes that were not read."""
        self._buffer.clear()

    def hurry(self, deadline: float) -> None:
        """End the wait under way at this time of the loop's clock."""
        if self._deadline is not None:
            self.set_deadline(deadline)

    def deadline_passed(self) -> None:
        """Wake the session."""
        self.set_exception(ClientTimeout())

    async def readuntil(self, separator: Any = b"\n") -> bytes:  # noqa: ARG002
        """The next command. Only CRLF ends a line (RFC 5321, section 2.3.8); aiosmtpd asks for LF.

        Raises
        ------
        CommandRefusedError, SessionEndError, ClientTimeout
            aiosmtpd passes them to `handle_exception`.
        ConnectionResetError
            The client has gone; aiosmtpd ends the session.
        """
        self._commands_in_turn += 1
        if self._commands_in_turn >= _COMMANDS_PER_TURN:
            self._commands_in_turn = 0
            await asyncio.sleep(0)
        self._session.check_budget()
        try:
            line = await super().readuntil(b"\r\n")
        except asyncio.IncompleteReadError:
            raise ConnectionResetError from None
        return self._session.check_command(line)

    async def _wait_for_data(self, func_name: str) -> None:
        self._commands_in_turn = 0
        deadline = await self._session.before_wait()
        if self._buffer.endswith(b"\n"):
            # The next bytes may be the rest of this line, or a command. Obeyed, they could be a
            # command that another server took for a part of this line (SMTP smuggling); answered,
            # the client would count one reply too many.
            raise SessionEndError(_BARE_LF)
        self.set_deadline(deadline)
        try:
            await super()._wait_for_data(func_name)  # type: ignore[misc]  # not in typeshed
        except ClientTimeout:
            self._exception = None  # the last reply is still to be sent
            raise
        finally:
            self.clear_deadline()


class SmtpSession(SMTP):
    """One client, as a `ServerSession` of the door."""

    command_size_limit = _MAX_LINE_BYTES
    session: ClientSession
    envelope: MailEnvelope
    transport: asyncio.Transport | None
    _handler_coroutine: asyncio.Task[None]
    _reader: ClientReader
    _writer: asyncio.StreamWriter

    def __init__(
        self, context: DoorContext, loop: asyncio.AbstractEventLoop, address: str, port: str
    ) -> None:
        self._context = context
        self._handler = handler = ProxyHandler(context, loop, address, port)
        vars(self).update(_door_attributes(context, loop))
        asyncio.StreamReaderProtocol.__init__(
            self, ClientReader(self), self._cb_client_connected, loop
        )
        self._smtp_methods = {name[5:]: getattr(self, name) for name in _command_names(context)}
        self._handle_hooks = {name[7:]: getattr(handler, name) for name in _HOOK_NAMES}
        self.is_draining = False
        self._refusal: Reply | None = None
        self._is_over = False
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._line_deadline: float | None = None  # None: the next wait sets it
        self._data_deadline: float | None = None  # None: not in the data of a message

    # ---- for the door

    @property
    def idle_since(self) -> float | None:
        """After a message the client has a moment for QUIT, as in `drain`."""
        since = self._handler.idle_since
        return since if since is not None and since <= self.loop.time() else None

    async def serve(self, connected: socket.socket, refused: LimitExceeded | None) -> None:
        """Serve the client from first byte to last, and close the socket."""
        self._refusal = None if refused is None else _REPLY_BY_LIMIT[refused]
        try:
            await self.loop.connect_accepted_socket(lambda: self, connected)
        except OSError as error:
            _log.info("connection lost at once: %s", error)
            return
        commands = self._handler_coroutine
        try:
            await asyncio.wait((commands,))
        except asyncio.CancelledError:
            self._write(_SHUTTING_DOWN if self.is_draining else _EVICTED)
            self._flush()
            commands.cancel()
            await asyncio.wait((commands,))
        finally:
            await self._handler.close_transaction()
            self._handler.idle_since = None
            if self._tls_protocol is not None and self.session.ssl is None:
                self.connection_lost(None)  # asyncio does not call it during the handshake
            await close_stream(self._writer)
            self._reader.cancel_deadline()

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
        """Drop the client and all bytes not sent."""
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
        """For its annotation."""
        self.envelope = self._create_envelope()

    def _create_envelope(self) -> MailEnvelope:
        return MailEnvelope()

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

    async def _handle_client(self) -> None:
        if self._refusal is not None:
            await self._end_with(self._refusal)
        with suppress(ConnectionResetError):  # the client has gone; aiosmtpd raises it again
            await super()._handle_client()

    async def handle_exception(self, error: Exception) -> Any:
        """The reply after an error in a command, or the end of the session."""
        if isinstance(error, CommandRefusedError):
            return self._handler.refuse(error.reply)
        if isinstance(error, SessionEndError):
            await self._end_with(error.reply)
        if isinstance(error, ClientTimeout):
            await self._end_with(_SHUTTING_DOWN if self._is_leaving else _TIMED_OUT)
        if isinstance(error, TLSSetupException):  # aiosmtpd closes the connection
            return ""
        _log.exception("%s: a fault in this session", self._handler.peer.address)
        await self._handler.end_transaction(self.session)
        self._set_post_data_state()
        if self._data_deadline is not None:  # the rest of the data would be taken for commands
            await self._end_with(_LOCAL_ERROR_IN_DATA)
        return LOCAL_ERROR

    async def push(self, status: Any) -> None:
        """Send a line of aiosmtpd, or one `Reply` or several of ours.

        Replaced: aiosmtpd sends each reply alone. They go out together as soon as no command of the
        client is left (RFC 2920, section 3.2).
        """
        if status is None or self._is_over:  # aiosmtpd pushes None when it is cancelled
            return
        if isinstance(status, str):
            if status.startswith(("4", "5")):
                self._handler.budget.count_wrong()
            if not _HAS_ENHANCED_CODE.match(status):  # RFC 2034, section 4; RFC 3463, section 3.6
                detail = "0.0" if status.startswith("2") else "5.0"
                status = f"{status[:4]}{status[0]}.{detail} {status[4:]}"
            self._write(status.encode("ascii", "replace") + b"\r\n")
        else:
            for reply in (status,) if isinstance(status, Reply) else status:
                self._write(reply)
        if self._reader.is_empty:
            self._flush()
        elif self._unsent_bytes >= _MAX_UNSENT_BYTES:
            await self._send()

    def _write(self, reply: Reply | bytes) -> None:
        data = reply.encode() if isinstance(reply, Reply) else reply
        self._unsent.append(data)
        self._unsent_bytes += len(data)

    def _flush(self) -> None:
        if self._unsent and self.transport is not None:
            self.transport.write(b"".join(self._unsent))
        self._unsent.clear()
        self._unsent_bytes = 0

    async def _send(self) -> None:
        """Send the replies. ConnectionResetError: the client has gone, or does not take them."""
        self._flush()
        if self.transport is None:
            raise ConnectionResetError
        if self.transport.get_write_buffer_size():
            await self._drain(self.transport)

    async def _drain(self, transport: asyncio.Transport) -> None:
        """Wait while the client does not take its replies. ConnectionResetError."""
        try:
            async with asyncio.timeout(self._context.limits.command_timeout):
                await self._writer.drain()
        except TimeoutError:
            transport.abort()
            raise ConnectionResetError from None

    async def _refuse(self, reply: Reply) -> None:
        await self.push(self._handler.refuse(reply))

    async def _end_with(self, reply: Reply) -> None:
        """Send a last reply, and end the session as aiosmtpd does."""
        self._write(reply)
        self._flush()
        self._is_over = True
        self._line_deadline = None
        self._reader.clear()
        await drain_input(self._reader, self._writer)
        self._handler_coroutine.cancel()
        await asyncio.sleep(0)

    # ---- for the reader

    def check_budget(self) -> None:
        """SessionEndError: the client has sent too many commands without a message."""
        if self._handler.budget.is_exhausted:
            raise SessionEndError(_TOO_MANY_COMMANDS)

    async def before_wait(self) -> float:
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

    def check_command(self, line: bytes) -> bytes:
        """The line, if it is a command. CommandRefusedError, SessionEndError."""
        self._line_deadline = None
        verb = line[:-2].partition(b" ")[0].upper().decode("latin-1")
        if _ODD_BYTE.search(line, 0, len(line) - 2):
            raise CommandRefusedError(_BAD_LINE)
        if self._is_leaving and self._handler.last_message_end is not None and verb != "QUIT":
            raise SessionEndError(_SHUTTING_DOWN)
        if verb not in self._smtp_methods:
            raise CommandRefusedError(
                _NOT_IMPLEMENTED if verb in _UNSUPPORTED_VERBS else _UNKNOWN_COMMAND
            )
        if verb in _IDLE_VERBS:
            self._handler.budget.count_idle()
        elif line[:-2].upper() == b"QUIT":
            self._reader.clear()  # nothing may follow it, and `push` sends the reply at once
        return line

    # ---- commands

    @syntax("HELP")
    async def smtp_HELP(self, _arg: str | None) -> None:
        """Replaced: aiosmtpd replies 250 (RFC 5321, section 4.2.2)."""
        await self.push(_HELP)

    @syntax("MAIL FROM:<address>", extended=" [SP <parameters>]")
    async def smtp_MAIL(self, arg: str | None) -> None:
        """Replaced: aiosmtpd refuses DSN, and changes the case of values."""
        if await self.check_helo_needed():
            return
        if self.envelope.sender is not None:
            await self._refuse(_NOT_NOW)
            return
        sender = parse_mail(_encode(arg), smtputf8=self._context.is_behind_server)
        if isinstance(sender, Reply):
            await self._refuse(sender)
        else:
            await self.push(
                await self._call_handler_hook("MAIL", sender.address, sender.parameters)
            )

    @syntax("RCPT TO:<address>", extended=" [SP <parameters>]")
    async def smtp_RCPT(self, arg: str | None) -> None:
        """Replaced: as `smtp_MAIL`."""
        if await self.check_helo_needed():
            return
        sender = self.envelope.sender
        if sender is None:
            await self._refuse(_NEED_MAIL)
            return
        self.envelope.rcpt_count += 1
        may_be_wide = self._context.is_behind_server or any(
            parameter.keyword == "SMTPUTF8" for parameter in sender.parameters
        )
        recipient = parse_rcpt(_encode(arg), smtputf8=may_be_wide)
        if isinstance(recipient, Reply):
            await self._refuse(recipient)
        else:
            await self.push(
                await self._call_handler_hook("RCPT", recipient.address, recipient.parameters)
            )

    @syntax("DATA")
    async def smtp_DATA(self, arg: str | None) -> None:
        """Replaced: aiosmtpd keeps a message in memory, line by line."""
        if await self.check_helo_needed():
            return
        refusal = self._data_refusal(arg)
        if refusal is not None:
            await self._refuse(refusal)
            return
        await self.push(_GO_AHEAD)
        self.envelope.incoming = incoming = self._handler.receive()
        try:
            await self._receive_data(incoming)
            replies = await self._call_handler_hook("DATA")
        finally:
            incoming.close()
        await self.push(replies)
        self._flush()  # first of all: a client without a reply may send the message again
        await self._handler.end_transaction(self.session)
        self._set_post_data_state()
        self._handler.budget.reset()

    def _data_refusal(self, arg: str | None) -> Reply | None:
        if self.envelope.sender is None:
            return _NEED_MAIL
        if not self.envelope.rcpt_tos:
            return _NO_RECIPIENTS_LMTP if self._context.lmtp else _NO_RECIPIENTS
        return BAD_ARGUMENT if arg else self._handler.space_refusal

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
                incoming.refuse_odd_bytes()
        self._data_deadline = None
        self._reader.put_back(data.rest)
        incoming.oddities |= data.oddities
        context.on_data_received(self.loop.time() - started)

    @syntax("STARTTLS", when="tls_context")
    async def smtp_STARTTLS(self, arg: str | None) -> None:
        """Upgrade, with the certificate as it is now."""
        if self.session.ssl is not None:
            await self._refuse(_NOT_IMPLEMENTED)
        elif self.envelope.sender is not None:
            await self._refuse(_NOT_NOW)
        elif not (arg or self._reader.is_empty):
            await self._end_with(_AFTER_STARTTLS)
        else:
            if self._context.tls is not None:
                self._context.tls.reload()
            await super().smtp_STARTTLS(arg)

    @syntax("XFORWARD attribute=value")
    async def smtp_XFORWARD(self, arg: str | None) -> None:
        """Describe the client of the next message (Postfix's XFORWARD_README)."""
        if await self.check_helo_needed():
            return
        before = self.session.forwarded or self._handler.peer
        client = self._described_client(before, arg, XFORWARD_FEATURE)
        if isinstance(client, Reply):
            await self._refuse(client)
        else:
            self.session.forwarded = client
            await self.push(OK)

    @syntax("XCLIENT attribute=value")
    async def smtp_XCLIENT(self, arg: str | None) -> None:
        """Begin again, as another client (Postfix's XCLIENT_README)."""
        client = self._described_client(self.session.client, arg, XCLIENT_FEATURE)
        if isinstance(client, Reply):
            await self._refuse(client)
        else:
            self.session.client, self.session.forwarded = client, None
            self.session.host_name = None
            await self.push(f"220 {self.hostname} {self.__ident__}")

    def _described_client(self, before: Client, arg: str | None, feature: str) -> Client | Reply:
        if self.envelope.sender is not None:
            return _NOT_NOW
        if not self._handler.is_trusted:
            return _NOT_ALLOWED
        attributes = parse_attributes(_encode(arg))
        if isinstance(attributes, Reply):
            return attributes
        return apply_attributes(before, attributes, feature) or BAD_ARGUMENT

    async def _refuse_browser(self, _arg: str | None) -> None:
        """End the session: any web page can make a browser send mail below its own request."""
        await self._end_with(_NO_WEB_SERVER)

    smtp_GET = smtp_HEAD = smtp_POST = smtp_PUT = smtp_OPTIONS = smtp_CONNECT = _refuse_browser

    def _getaddr(self, arg: str) -> tuple[str | None, str | None]:
        """Replaced: aiosmtpd's parser is lenient and slow. For VRFY."""
        recipient = parse_rcpt(b"TO:" + _encode(arg), smtputf8=True)
        return (None, None) if isinstance(recipient, Reply) else (recipient.address, "")


class LmtpSession(SmtpSession, LMTP):
    """The same by RFC 2033."""

    async def check_helo_needed(self, helo: str = "LHLO") -> bool:
        """Name the command that LMTP has."""
        return await super().check_helo_needed(helo)


_HOOK_NAMES = tuple(name for name in dir(ProxyHandler) if name.startswith("handle_"))


@cache
def _command_names(context: DoorContext) -> tuple[str, ...]:
    """The methods for the commands of a door."""
    session_type = LmtpSession if context.lmtp else SmtpSession
    absent = {"smtp_AUTH", "smtp_EXPN", "" if context.tls else "smtp_STARTTLS"}
    return tuple(sorted({name for name in dir(session_type) if name[:5] == "smtp_"} - absent))


@cache
def _door_attributes(context: DoorContext, loop: asyncio.AbstractEventLoop) -> Mapping[str, Any]:
    """What `SMTP.__init__` sets for every session of a door.

    It looks through all attributes of a session and its handler, for 0.2 ms; many clients connect
    for one message.
    """
    session = SMTP(
        ProxyHandler(context, loop, "", ""),
        data_size_limit=context.limits.message_size,
        enable_SMTPUTF8=True,  # arguments are UTF-8; whether they may be, the parser says
        hostname=context.hostname,
        ident="LMTP" if context.lmtp else "ESMTP",
        tls_context=None if context.tls is None else context.tls.context,
        auth_exclude_mechanism=("LOGIN", "PLAIN"),
        loop=loop,
    )
    return vars(session)


def _encode(arg: str | None) -> bytes:
    """The bytes of an argument, which aiosmtpd has decoded."""
    return (arg or "").encode("utf-8", "surrogateescape")


def open_door(
    listener: Listener,
    proxy: Proxy,
    sockets: Sequence[socket.socket],
    spool_directory: Path,
    hostname: str,
    on_data_received: Callable[[float], None],
) -> Door:
    """A door that is not open yet.

    Parameters
    ----------
    sockets : bound and listening; they stay the caller's.
    hostname : ours.
    on_data_received : called with the seconds that the data of each message took.

    Raises
    ------
    ValueError
        A network is none.
    StartError
        The certificate cannot be used.
    """
    is_behind_queue = listener.position is Position.AFTER_QUEUE
    default = OddBytes.NORMALISE if is_behind_queue else OddBytes.REFUSE
    context = DoorContext(
        proxy=proxy,
        lmtp=listener.listen.protocol is Protocol.LMTP,
        hostname=hostname,
        limits=listener.limits,
        byte_quota=ByteQuota(listener.limits),
        odd_bytes=listener.odd_bytes or default,
        position=listener.position,
        trusted=Networks(listener.trusted),
        tls=None if listener.tls is None else CertificateReloader(listener.tls),
        spool_directory=spool_directory,
        on_data_received=on_data_received,
    )
    session_type = LmtpSession if context.lmtp else SmtpSession

    def make_session(address: str, port: str) -> SmtpSession:
        return session_type(context, asyncio.get_running_loop(), address, port)

    return Door(make_session, sockets, Networks(listener.clients), listener.limits)
