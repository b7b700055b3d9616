"""The SMTP and the LMTP door: aiosmtpd's commands, on streams that a mail filter can trust.

A `SmtpSession` reads lines, has the commands of `aiosmtpd.smtp.SMTP` (`smtp_…`) obey them, and
sends the replies. Their hooks are in `smtp_handler`, where commands get a meaning for mail. It
adds messages that go to a spool piece by piece, XFORWARD and XCLIENT, and an end in which the last
reply arrives. Lines are read here because aiosmtpd obeys lines that end in LF alone, and gives a
delivery up when its timer rings or the client closes its side.

Must never answer a fault of ours with a permanent reply or with its text, wait without a deadline,
obey a line that does not end in CRLF or bytes from before the TLS handshake, let one client keep
others waiting, or let the client's behaviour touch a message that is being delivered.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import copy
from typing import Any

from aiosmtpd.lmtp import LMTP
from aiosmtpd.smtp import SMTP, Envelope, syntax

from spamguard.config.options import OddBytes
from spamguard.delivery.next_hop import DeadlineTimer
from spamguard.servers import listener, smtp_handler
from spamguard.servers.listener import (
    ClientTimeout,
    ConnectionClosed,
    ConversationEnded,
    Refusal,
    close_stream,
    drain_input,
)
from spamguard.servers.smtp_handler import (
    REPLY_BY_REFUSAL,
    ClientSession,
    DataReceiver,
    DoorContext,
    ProxyHandler,
)
from spamguard.smtp.commands import XCLIENT_FEATURE, XFORWARD_FEATURE, DataReader
from spamguard.smtp.envelope import RefusedError, Replies, Reply, with_enhanced_code

_log = logging.getLogger("spamguard.doors")
logging.getLogger("mail.log").setLevel(logging.ERROR)  # aiosmtpd's: each line of each client

BUFFER_BYTES = 64 << 10  # of input that is kept for one client, beyond what one read adds
_MAX_COMMAND_BYTES = 12 << 10  # XCLIENT with eight values that are long and encoded
_MAX_UNSENT_BYTES = 16 << 10  # of replies, beyond which they are sent before the next command
_MAIL_VERBS = ("MAIL", "RCPT", "DATA", "STARTTLS", "QUIT")  # all others lead nowhere
_READY_FOR_TLS = Reply.from_text(220, "Ready to start TLS")
_ODD_BYTE = re.compile(rb"[\r\n\0]")


class ClientReader(DeadlineTimer, asyncio.StreamReader):
    """The bytes of one client. before_wait: returns the deadline of a wait, by the loop's clock.

    Beside asyncio's public methods it uses `_wait_for_data`, which they all call before they wait,
    and `_buffer`, to put bytes back. `asyncio.timeout` costs ten times as much as `DeadlineTimer`.
    """

    _buffer: bytearray

    def __init__(
        self, loop: asyncio.AbstractEventLoop, before_wait: Callable[[], Awaitable[float]]
    ) -> None:
        super().__init__(limit=BUFFER_BYTES, loop=loop)
        self._before_wait = before_wait
        self.waiting_since: float | None = None  # for the client; None: we work for it

    @property
    def is_empty(self) -> bool:
        return not self._buffer

    def put_back(self, rest: bytes) -> None:
        self._buffer[:0] = rest

    def clear(self) -> None:
        self._buffer.clear()

    def hurry(self, deadline: float) -> None:
        """End the wait under way at this time of the loop's clock."""
        if self._deadline is not None:
            self.set_deadline(deadline)

    def deadline_passed(self) -> None:
        self.set_exception(ClientTimeout())

    async def read_line(self) -> bytes:
        """The next line, of which the end is taken off: CRLF alone (RFC 5321, section 2.3.8).

        Raises
        ------
        RefusedError, ClientTimeout, ConnectionClosed
        """
        is_too_long = False
        while True:
            try:
                line = await self.readuntil(b"\r\n")
            except asyncio.LimitOverrunError as error:
                await self.readexactly(error.consumed)
                is_too_long = True
                continue
            except (asyncio.IncompleteReadError, OSError):
                raise ConnectionClosed from None
            if is_too_long or len(line) > _MAX_COMMAND_BYTES + 2:
                raise RefusedError(Replies.LINE_TOO_LONG)
            return line[:-2]

    async def read_data(self) -> bytes:
        """The next piece of a message. ClientTimeout, ConnectionClosed."""
        try:
            if piece := await self.read(4 * BUFFER_BYTES):
                return piece
        except OSError:
            pass
        raise ConnectionClosed

    async def _wait_for_data(self, func_name: str) -> None:
        self.waiting_since = asyncio.get_running_loop().time()
        deadline = await self._before_wait()
        if self._buffer.endswith(b"\n"):
            # The next bytes may be the rest of this line, or a command. Obeyed, they could be a
            # command that another server took for a part of this line (SMTP smuggling); answered,
            # the client would count one reply too many.
            raise RefusedError(Replies.BARE_LF, ends_session=True)
        self.set_deadline(deadline)
        try:
            await super()._wait_for_data(func_name)  # type: ignore[misc]  # not in typeshed
        except ClientTimeout:
            self._exception = None  # the last reply is still to be sent
            raise
        finally:
            self.waiting_since = None
            self.clear_deadline()


class SmtpSession(SMTP):
    """One client, as a `ServerSession` of the door.

    aiosmtpd looks its commands and hooks up for 60 µs, and finds the same for each client. So a
    door makes one object, and `for_client` copies it. Five of aiosmtpd's methods are replaced, with
    a reason each; `_getaddr` is the only private one that is known here.
    """

    session: ClientSession
    envelope: Envelope
    event_handler: ProxyHandler
    reader: ClientReader
    writer: asyncio.StreamWriter | None = None
    _unsent: bytearray
    _is_draining = False
    _is_over = False  # nothing more is said
    _line_deadline: float | None = None  # None: the next wait sets it
    _data_deadline: float | None = None  # None: not in the data of a message

    def __init__(self, context: DoorContext) -> None:
        super().__init__(
            ProxyHandler(context),
            hostname=context.hostname,
            tls_context=None if context.tls is None else context.tls.context,
            loop=asyncio.get_running_loop(),
        )
        self._context = context
        protocol = "LMTP" if context.lmtp else "ESMTP"
        self._greeting = Reply.from_text(220, f"{context.hostname} {protocol}")

    def for_client(self, address: str, port: str) -> SmtpSession:
        """A session for a client that has connected."""
        new = copy(self)
        new.session = ClientSession(self._context, self.loop, address, port)
        new.envelope = Envelope()
        new.reader = ClientReader(self.loop, new._before_wait)
        new._unsent = bytearray()
        return new

    # ---- for the door

    @property
    def evictable_from(self) -> float | None:
        """After a message the client has a moment for QUIT, as in `drain`."""
        waiting, idle = self.reader.waiting_since, self.session.idle_since
        if idle is None and waiting is not None:  # in a transaction, and it is the client's turn
            return waiting + listener.SILENT_SECONDS
        return idle

    async def serve(self, connected: socket.socket, refused: Refusal | None) -> None:
        def on_connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.writer = writer

        protocol = asyncio.StreamReaderProtocol(self.reader, on_connected, self.loop)
        try:
            await self.loop.connect_accepted_socket(lambda: protocol, connected)
        except OSError as error:
            _log.info("connection lost at once: %s", error)
            return
        try:
            with suppress(asyncio.CancelledError, ConversationEnded):
                if refused is not None:
                    await self._end_with(REPLY_BY_REFUSAL[refused])
                await self.push(self._greeting)
                while True:
                    await self._handle_command()
        finally:
            await self.session.close_transaction()
            self.session.idle_since = None
            if self.writer is not None:
                await close_stream(self.writer)
            self.reader.cancel_deadline()

    def cancel(self, task: asyncio.Task[None]) -> None:
        """Cancel the task that serves, after a last reply."""
        if not self._is_over:
            self._is_over = True
            self._write(Replies.SHUTTING_DOWN if self._is_draining else Replies.EVICTED)
            self._flush()
        task.cancel()

    def drain(self) -> None:
        """End as soon as nothing is under way.

        A client that is just beginning its first message is served: no other worker knows of it.
        A client that has just been served may say QUIT: programs that hear 421 there take the
        message for refused, and send it again.
        """
        self._is_draining = True
        if self._is_leaving:
            self.reader.hurry(self.loop.time() + self._line_timeout())

    def abort(self) -> None:
        if self.writer is not None:
            self.writer.transport.abort()

    @property
    def _is_leaving(self) -> bool:
        """Whether the door closes, and nothing is under way here."""
        return self._is_draining and self.session.transaction is None

    def _line_timeout(self) -> float:
        seconds = self._context.limits.command_timeout
        if not self._is_leaving:
            return seconds
        ended = self.session.last_message_end
        since_served = 0.0 if ended is None else self.loop.time() - ended
        return min(seconds, max(smtp_handler.DRAIN_GRACE_SECONDS - since_served, 0.0))

    # ---- replies

    async def push(self, status: Any) -> None:
        """Send a line of aiosmtpd, or a `Reply` of ours.

        Replaced: aiosmtpd sends each reply alone. They go out together as soon as no command of the
        client is left (RFC 2920, section 3.2).
        """
        if isinstance(status, str):
            status = with_enhanced_code(status)
            if not status.is_positive:
                self.session.refuse(status)
        self._write(status)
        if self.reader.is_empty:
            self._flush()
        elif len(self._unsent) >= _MAX_UNSENT_BYTES:
            await self._send()

    def _write(self, reply: Reply) -> None:
        self._unsent += reply.encode()

    def _flush(self) -> None:
        if self._unsent and self.writer is not None and not self.writer.is_closing():
            self.writer.write(bytes(self._unsent))
        self._unsent.clear()

    async def _send(self) -> None:
        """Send the replies. ConnectionClosed: the client has gone, or does not take them."""
        self._flush()
        if self.writer is None or self.writer.is_closing():
            raise ConnectionClosed
        if self.writer.transport.get_write_buffer_size():
            try:
                async with asyncio.timeout(self._context.limits.command_timeout):
                    await self.writer.drain()
            except OSError:  # TimeoutError is one
                self.abort()
                raise ConnectionClosed from None

    async def _end_with(self, reply: Reply) -> None:
        """Send a last reply. ConversationEnded: always."""
        self._write(reply)
        self._flush()
        self._is_over = True
        self._line_deadline = None
        self.reader.clear()
        if self.writer is not None:
            await drain_input(self.reader, self.writer)
        raise ConversationEnded

    # ---- commands

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

    async def _handle_command(self) -> None:
        """Read one command and obey it. ConversationEnded."""
        self._line_deadline = None
        try:
            await self._obey(await self.reader.read_line())
        except RefusedError as error:
            if error.ends_session:
                await self._end_with(error.reply)
            await self.push(self.session.refuse(error.reply))
        except ClientTimeout:
            await self._end_with(Replies.SHUTTING_DOWN if self._is_leaving else Replies.TIMED_OUT)
        except ConversationEnded:
            raise
        except Exception:  # noqa: BLE001  a fault of ours must not cost the mail
            _log.exception("%s: a fault in this session", self.session.peer)
            await self.session.end_transaction()
            self.envelope = Envelope()
            if self._data_deadline is not None:  # the rest of the data would be taken for commands
                await self._end_with(Replies.LOCAL_ERROR_IN_DATA)
            await self.push(Replies.LOCAL_ERROR)

    async def _obey(self, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        verb, argument = word.upper().decode("latin-1"), rest.strip()
        if self.session.budget < 0:
            raise RefusedError(Replies.TOO_MANY_COMMANDS, ends_session=True)
        if _ODD_BYTE.search(line):
            raise RefusedError(Replies.BAD_LINE)
        if self._is_leaving and self.session.last_message_end is not None and verb != "QUIT":
            raise RefusedError(Replies.SHUTTING_DOWN, ends_session=True)
        method = getattr(self, f"smtp_{verb}", None)
        if method is None:
            raise RefusedError(Replies.UNKNOWN_COMMAND)
        if verb not in _MAIL_VERBS:
            self.session.budget -= 1
        elif verb == "QUIT" and not argument:
            self.reader.clear()  # nothing may follow it, and `push` sends the reply at once
        await method(argument.decode("utf-8", "surrogateescape") or None)

    def _getaddr(self, arg: str) -> tuple[str, str]:
        """Replaced: aiosmtpd's parser is slow and lenient, and knows no DSN. Hooks parse it all."""
        return arg, ""

    @syntax("DATA")
    async def smtp_DATA(self, arg: str | None) -> None:
        """Replaced: aiosmtpd keeps a message in memory, line by line."""
        if await self.check_helo_needed():
            return
        handler, session = self.event_handler, self.session
        transaction = handler.begin_data(session, arg)
        await self.push(Replies.GO_AHEAD)
        incoming = DataReceiver(self._context, session.quota_key)
        try:
            oddities = await self._receive_data(incoming)
            for reply in await handler.data(session, transaction, incoming, oddities):
                self._write(reply)
        finally:
            incoming.close()
        self._flush()  # first of all: a client without a reply may send the message again
        await session.end_transaction()
        self.envelope = Envelope()
        session.reset_budget()

    async def _receive_data(self, incoming: DataReceiver) -> frozenset[str]:
        """Read to the end of the data, even if the message is refused. Its oddities."""
        context = self._context
        refuse_odd = context.odd_bytes is OddBytes.REFUSE
        data = DataReader(normalise=not refuse_odd)
        started = self.loop.time()
        self._data_deadline = started + context.limits.message_timeout
        while not data.is_finished:
            incoming.write(data.feed(await self.reader.read_data()))
            if refuse_odd and data.oddities:
                incoming.refuse(Refusal.ODD_BYTES)
        self._data_deadline = None
        self.reader.put_back(data.rest)
        context.on_data_received(self.loop.time() - started)
        return frozenset(data.oddities)

    @syntax("STARTTLS", when="tls_context")
    async def smtp_STARTTLS(self, arg: str | None) -> None:
        """Replaced: aiosmtpd takes the connection over. The certificate is as it is now."""
        await self._send()  # from here to the handshake nothing waits, so nothing comes in
        if self.session.is_encrypted or self.session.transaction is not None:
            raise RefusedError(Replies.BAD_SEQUENCE)
        if arg:
            raise RefusedError(Replies.BAD_ARGUMENT)
        if not self.reader.is_empty:
            raise RefusedError(Replies.NOT_SMTP, ends_session=True)
        if self._context.tls is None or self.writer is None:
            await self.push("454 TLS not available")
            return
        self._context.tls.reload()
        await self.push(_READY_FOR_TLS)
        self._is_over = True  # nothing in the clear
        try:
            await self.writer.start_tls(self._context.tls.context)
        except OSError as error:
            _log.info("%s: no TLS: %s", self.session.peer, error)
            raise ConnectionClosed from None
        self._is_over = False
        self.session.forget(is_encrypted=True)

    @syntax("XFORWARD attribute=value")
    async def smtp_XFORWARD(self, arg: str | None) -> None:
        """Describe the client of the next message (Postfix's XFORWARD_README)."""
        if await self.check_helo_needed():
            return
        before = self.session.forwarded or self.session.connected
        self.session.forwarded = self.session.describe(before, arg, XFORWARD_FEATURE)
        await self.push(Replies.OK)

    @syntax("XCLIENT attribute=value")
    async def smtp_XCLIENT(self, arg: str | None) -> None:
        """Begin again, as another client (Postfix's XCLIENT_README)."""
        self.session.client = self.session.describe(self.session.client, arg, XCLIENT_FEATURE)
        self.session.forwarded = self.session.host_name = None
        await self.push(self._greeting)

    async def _refuse_browser(self, _arg: str | None) -> None:
        """End the session: any web page can make a browser send mail below its own request."""
        raise RefusedError(Replies.NOT_SMTP, ends_session=True)

    smtp_GET = smtp_POST = _refuse_browser  # the others come after one of these, or not at all
    smtp_AUTH: Any = None  # replaced: nobody logs in here


class LmtpSession(SmtpSession, LMTP):
    """An `SmtpSession` by RFC 2033."""
