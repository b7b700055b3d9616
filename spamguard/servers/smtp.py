"""The SMTP and the LMTP door: aiosmtpd's commands, on streams that a mail filter can trust.

A `SmtpSession` reads lines, has the commands of `aiosmtpd.smtp.SMTP` (`smtp_…`) obey them, and
sends the replies. aiosmtpd calls the hooks of a `ProxyHandler`, which give a command its meaning
for mail, with what is known of the client (`ClientSession`). A message becomes a `MailTransaction`
of the proxy, and its data goes to a spool piece by piece (`DataReceiver`). Lines are read here
(`ClientReader`) because aiosmtpd obeys lines that end in LF alone, and gives a delivery up when its
timer rings or the client closes its side.

Must never answer 250 to the data of a message before the proxy has, answer a fault of ours with a
permanent reply or with its text, wait without a deadline, obey a line that does not end in CRLF or
bytes from before the TLS handshake, hold more of a message than the limits allow, believe from a
stranger what only a trusted peer may say, let one client keep others waiting, or let the client's
behaviour touch a message that is being delivered.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiosmtpd.lmtp import LMTP
from aiosmtpd.smtp import SMTP, Envelope, Session, syntax

from spamguard.aio import DeadlineTimer
from spamguard.config.options import Listener, OddBytes, Position, Protocol
from spamguard.servers import listener
from spamguard.servers.listener import (
    ByteQuota,
    CertificateReloader,
    ClientTimeout,
    ConnectionClosed,
    ConversationEnded,
    IncomingMessage,
    Refusal,
    ServerSession,
    drain_input,
)
from spamguard.smtp.commands import (
    XCLIENT_FEATURE,
    XFORWARD_FEATURE,
    DataReader,
    apply_attributes,
    parse_mail,
    parse_rcpt,
)
from spamguard.smtp.envelope import (
    Client,
    Networks,
    RefusedError,
    Replies,
    Reply,
    Sender,
    client_prefix,
    repeat_reply,
    with_enhanced_code,
)

if TYPE_CHECKING:
    from spamguard.servers.teach import MailTransaction, Proxy

_log = logging.getLogger("spamguard.doors")
logging.getLogger("mail.log").setLevel(logging.ERROR)  # aiosmtpd's: each line of each client

BUFFER_BYTES = 64 << 10  # of input that is kept for one client, beyond what one read adds
_MAX_COMMAND_BYTES = 12 << 10  # XCLIENT with eight values that are long and encoded
_MAX_UNSENT_BYTES = 16 << 10  # of replies, beyond which they are sent before the next command
_REFUSED_COST = 5  # a wrong command counts for as many idle ones
_MAIL_VERBS = ("MAIL", "RCPT", "DATA", "STARTTLS", "QUIT")  # all others lead nowhere
# Any web page can make a browser send mail below its own request.
_BROWSER_VERBS = ("GET", "POST")
_ODD_BYTE = re.compile(rb"[\r\n\0]")
_HELLO_NAME = re.compile(r"[!-~]{1,255}")  # strange names are accepted, as evidence
_READY_FOR_TLS = Reply.from_text(220, "Ready to start TLS")
_REPLY_BY_REFUSAL = {
    Refusal.NOT_LISTED: Replies.CLIENT_REFUSED,
    Refusal.TOO_MANY: Replies.TOO_MANY_CONNECTIONS,
    Refusal.TOO_LARGE: Replies.SIZE_LIMIT,
    Refusal.NO_ROOM: Replies.NO_SPACE,
    Refusal.ODD_BYTES: Replies.ODD_BYTES,
}
_ONE_RECIPIENT_WARNING = (
    "%s: a message for several recipients, of whom this next hop takes one at a time: the others "
    "wait, for long (Postfix: spamguard_destination_recipient_limit = 1 in main.cf)"
)


class DoorContext:
    """What all sessions of a door share.

    `on_data_received` is called with the seconds that the data of each message took. StartError:
    the certificate cannot be used.
    """

    def __init__(
        self,
        listener: Listener,
        proxy: Proxy,
        hostname: str,
        spool_directory: Path,
        on_data_received: Callable[[float], None],
    ) -> None:
        self.listener, self.proxy, self.hostname = listener, proxy, hostname
        self.spool_directory = spool_directory
        self.on_data_received = on_data_received
        self.limits = listener.limits
        self.byte_quota = ByteQuota(listener.limits)
        self.trusted = Networks(listener.trusted)
        self.tls = CertificateReloader(listener.tls) if listener.tls else None
        self.lmtp = listener.listen.protocol is Protocol.LMTP
        # Another server has decided already which addresses it accepts.
        self.is_behind_server = listener.position is not Position.STANDALONE
        self.is_behind_queue = listener.position is Position.AFTER_QUEUE
        default = OddBytes.NORMALISE if self.is_behind_queue else OddBytes.REFUSE
        is_auto = listener.odd_bytes is OddBytes.AUTO
        self.odd_bytes = default if is_auto else listener.odd_bytes

    def check_space(self, size: int, quota_key: str) -> None:
        if not self.byte_quota.has_room(size, quota_key):
            raise RefusedError(Replies.NO_SPACE)


class ClientSession(Session):
    """What is known of a client, and how far it has come."""

    def __init__(
        self, context: DoorContext, loop: asyncio.AbstractEventLoop, address: str, port: str
    ) -> None:
        super().__init__(loop)
        self.peer = address
        self.connected = Client(address=address, port=port, peer=address)  # as the connection shows
        self.is_trusted = address in context.trusted
        self.quota_key = "" if self.is_trusted else client_prefix(address)
        self.transaction: MailTransaction | None = None
        self.sender = Sender("")
        self.rcpt_count = self.accepted = 0  # of RCPT commands, refused ones too, and recipients
        # A time of the loop's clock; None in a transaction, which ends when its last reply is sent
        # and the next hop is done with it, and before and after `SmtpSession.serve`.
        self.idle_since: float | None = None
        self.last_message_end: float | None = None
        # So many commands that lead nowhere the client may send before its next message.
        self.budget = context.limits.idle_commands
        self.forget(is_encrypted=False)

    def forget(self, *, is_encrypted: bool) -> None:
        """Begin again: what came before TLS may be another's (RFC 3207, section 4.2)."""
        self.is_encrypted = is_encrypted
        self.client = self.connected  # as it introduces itself
        self.forwarded: Client | None = None  # of the next message, as XFORWARD describes it
        self.host_name = None

    def refuse(self, reply: Reply) -> Reply:
        self.budget -= _REFUSED_COST
        return reply

    def pass_refusal(self, reply: Reply) -> Reply:
        """Count a refusal of the next hop, unless a trusted peer speaks for many clients."""
        return reply if self.is_trusted else self.refuse(reply)

    def describe(self, before: Client, arg: str | None, feature: str) -> Client:
        if self.transaction is not None:
            raise RefusedError(Replies.BAD_SEQUENCE)
        if not self.is_trusted:
            raise RefusedError(Replies.NOT_ALLOWED)
        return apply_attributes(before, _encode(arg or ""), feature)

    async def end_transaction(self) -> None:
        """Go back to where a message may begin."""
        await self.close_transaction()
        self.forwarded = None  # as in Postfix, it holds for one message

    async def close_transaction(self) -> None:
        """End the transaction; then the client has a moment for QUIT. Never raises."""
        transaction, self.transaction = self.transaction, None
        if transaction is None:
            return
        self.last_message_end = self.loop.time()
        try:
            await transaction.end()
        except Exception:  # noqa: BLE001  it does not concern the client
            _log.exception("%s: a fault in ending a message", self.peer)
        finally:
            self.idle_since = self.loop.time() + listener.DRAIN_GRACE_SECONDS


class DataReceiver(IncomingMessage):
    """The data of one message, with its header section within the limit of the door."""

    def __init__(self, context: DoorContext, quota_key: str) -> None:
        super().__init__(context.spool_directory, context.limits, context.byte_quota, quota_key)
        self._header_room = context.limits.header_size
        # The last bytes of the header section so far; None: it has ended, or may have any size, as
        # a refusal behind a queue would bounce.
        self._header_tail: bytes | None = None if context.is_behind_queue else b"\r\n"

    def write(self, data: bytes) -> None:
        super().write(data)
        if self._header_tail is not None:
            text = self._header_tail + data  # an empty line at the start leaves the section empty
            end = text.find(b"\r\n\r\n")
            self._header_room -= len(data) if end < 0 else end - len(self._header_tail) + 2
            self._header_tail = text[-3:] if end < 0 else None
            if self._header_room < 0:
                self.refuse(Refusal.TOO_LARGE)


class ProxyHandler:
    """The hooks of one door; their names and arguments are aiosmtpd's."""

    def __init__(self, context: DoorContext) -> None:
        self._context = context

    async def handle_HELO(
        self, _server: Any, session: ClientSession, _: Envelope, hostname: str
    ) -> Reply:
        return await self._greet(session, hostname, "SMTP", ())

    async def handle_EHLO(
        self, _server: Any, session: ClientSession, _: Envelope, hostname: str, _replies: Any
    ) -> Sequence[Reply]:
        """Begin again, and announce the extensions (RFC 5321, section 4.1.1.1), with those that
        the next hop offers at this moment.
        """
        context = self._context
        features = ["PIPELINING", f"SIZE {context.limits.message_size}", "ENHANCEDSTATUSCODES"]
        if context.tls is not None and not session.is_encrypted:
            features.append("STARTTLS")
        offered = context.proxy.extensions.items()
        features += [f"{keyword} {value}".strip() for keyword, value in offered]
        if session.is_trusted:
            features += [XFORWARD_FEATURE, XCLIENT_FEATURE]
        protocol = "LMTP" if context.lmtp else "ESMTP"
        protocol += "S" if session.is_encrypted else ""  # RFC 3848
        return [await self._greet(session, hostname, protocol, features)]

    async def _greet(
        self, session: ClientSession, hostname: str, protocol: str, features: Sequence[str]
    ) -> Reply:
        await session.end_transaction()  # whatever the name: aiosmtpd has dropped the envelope
        if not _HELLO_NAME.fullmatch(hostname):
            raise RefusedError(Replies.BAD_ARGUMENT)
        session.host_name = hostname
        session.client = replace(session.client, helo=hostname, protocol=protocol)
        lines = (self._context.hostname, *features)
        return Reply(250, tuple(line.encode("ascii") for line in lines))

    async def handle_NOOP(self, *_: Any) -> Reply:
        return Replies.OK

    async def handle_RSET(self, _server: Any, session: ClientSession, _: Envelope) -> Reply:
        await session.end_transaction()
        return Replies.OK

    async def handle_QUIT(self, server: Any, *_: Any) -> Reply:
        await server.push(Replies.BYE)
        raise ConversationEnded

    async def handle_MAIL(
        self, _server: Any, session: ClientSession, envelope: Envelope, path: str, _options: Any
    ) -> Reply:
        context = self._context
        sender = parse_mail(b"FROM:" + _encode(path), smtputf8=context.is_behind_server)
        size = int(dict(sender.parameters).get("SIZE") or 0)
        if size > context.limits.message_size:  # RFC 1870, section 6.1
            raise RefusedError(Replies.SIZE_LIMIT)
        context.check_space(max(size, 1), session.quota_key)
        session.transaction = context.proxy.message(session.forwarded or session.client)
        session.idle_since = None
        reply = await session.transaction.mail(sender)
        if not reply.is_positive:
            await session.close_transaction()
            return session.pass_refusal(reply)
        session.sender, session.rcpt_count, session.accepted = sender, 0, 0
        envelope.mail_from = path  # aiosmtpd asks whether there is one
        return reply

    async def handle_RCPT(
        self, _server: Any, session: ClientSession, _: Envelope, path: str, _options: Any
    ) -> Reply:
        context = self._context
        session.rcpt_count += 1
        may_be_wide = context.is_behind_server or session.sender.needs_smtputf8
        recipient = parse_rcpt(b"TO:" + _encode(path), smtputf8=may_be_wide)
        limit = None
        if session.accepted and not context.lmtp and context.proxy.answers_each:
            # Their replies could differ, and SMTP has only one.
            if context.is_behind_queue and session.rcpt_count == 2:
                _log.warning(_ONE_RECIPIENT_WARNING, session.peer)
            limit = Replies.ONE_RECIPIENT
        elif session.accepted >= context.limits.recipients:
            limit = Replies.TOO_MANY_RECIPIENTS
        if limit is not None:
            if session.rcpt_count > 2 * context.limits.recipients:
                session.refuse(limit)  # only far beyond the limit it is a mistake
            return limit
        if session.transaction is None:  # aiosmtpd has made sure
            raise RefusedError(Replies.BAD_SEQUENCE)
        reply = await session.transaction.recipient(recipient)
        if not reply.is_positive:
            return session.pass_refusal(reply)
        session.accepted += 1
        return reply


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class SmtpSession(ServerSession, SMTP):
    """One client.

    aiosmtpd looks its commands and hooks up for 60 µs, and finds the same for each client. So a
    door makes one object, and `for_client` copies it. Five of aiosmtpd's methods are replaced, with
    a reason each; `_getaddr` is the only private one that is known here.
    """

    session: ClientSession
    envelope: Envelope
    event_handler: ProxyHandler
    reader: ClientReader
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

    async def converse(self, refused: Refusal | None) -> None:
        self.session.idle_since = self.loop.time()
        try:
            if refused is not None:
                await self._end_with(_REPLY_BY_REFUSAL[refused])
            await self.push(self._greeting)
            while True:
                await self._handle_command()
        finally:
            await self.session.close_transaction()
            self.session.idle_since = None
            self.reader.cancel_deadline()

    def cancel(self, task: asyncio.Task[None]) -> None:
        """Cancel the task that serves, after a last reply."""
        if not self._is_over:
            self._is_over = True
            reply = Replies.SHUTTING_DOWN if self._is_draining else Replies.EVICTED
            self._unsent += reply.encode()
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
            self._line_deadline = self.loop.time() + self._line_timeout()
            self.reader.hurry(self._line_deadline)

    @property
    def _is_leaving(self) -> bool:
        return self._is_draining and self.session.transaction is None

    def _line_timeout(self) -> float:
        seconds = self._context.limits.command_timeout
        if not self._is_leaving:
            return seconds
        ended = self.session.last_message_end
        since_served = 0.0 if ended is None else self.loop.time() - ended
        return min(seconds, max(listener.DRAIN_GRACE_SECONDS - since_served, 0.0))

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
        self._unsent += status.encode()
        if self.reader.is_empty:
            self._flush()
        elif len(self._unsent) >= _MAX_UNSENT_BYTES:
            await self._send()

    def _flush(self) -> None:
        if self._unsent and self.is_open and not self.writer.is_closing():
            self.writer.write(bytes(self._unsent))
        self._unsent.clear()

    async def _send(self) -> None:
        """Raises ConnectionClosed if the client has gone, or does not take the replies."""
        self._flush()
        if self.writer.is_closing():
            raise ConnectionClosed
        if self.writer.transport.get_write_buffer_size():
            await self.wait_until_sent(self._context.limits.command_timeout)

    async def _end_with(self, reply: Reply) -> None:
        """Send a last reply; always raises ConversationEnded."""
        self._unsent += reply.encode()
        self._flush()
        self._is_over = True
        self._line_deadline = self._data_deadline = None
        self.reader.clear()
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
        if verb in _BROWSER_VERBS:
            raise RefusedError(Replies.NOT_SMTP, ends_session=True)
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
        """Replaced: aiosmtpd keeps a message in memory, and has no hook before 354."""
        if await self.check_helo_needed():
            return
        context, session = self._context, self.session
        transaction = session.transaction
        if transaction is None or (context.lmtp and not session.accepted):
            raise RefusedError(Replies.BAD_SEQUENCE)  # RFC 2033, section 4.2
        if not session.accepted:
            raise RefusedError(Replies.NO_RECIPIENTS)
        if arg:
            raise RefusedError(Replies.BAD_ARGUMENT)
        context.check_space(1, session.quota_key)
        await self.push(Replies.GO_AHEAD)
        incoming = DataReceiver(context, session.quota_key)
        try:
            refuse_odd = context.odd_bytes is OddBytes.REFUSE
            data = DataReader(normalise=not refuse_odd)
            started = self.loop.time()
            self._data_deadline = started + context.limits.message_timeout
            while not data.is_finished:  # also of a message that is refused
                incoming.write(data.feed(await self.reader.read_data()))
                if refuse_odd and data.oddities:
                    incoming.refuse(Refusal.ODD_BYTES)
            self._data_deadline = None
            self.reader.put_back(data.rest)
            context.on_data_received(self.loop.time() - started)
            replies: Sequence[Reply] = [Replies.LOCAL_ERROR]
            if incoming.refusal is None:
                try:
                    replies = await transaction.data(incoming.spool, frozenset(data.oddities))
                except Exception:  # noqa: BLE001  a fault of ours must not cost the mail
                    _log.exception("%s: a fault in handing on a message", session.peer)
            else:
                replies = [_REPLY_BY_REFUSAL[incoming.refusal]]
                _log.info(  # with the envelope, which nobody behind the door sees
                    "%s: message refused: client=%s from=<%s> recipients=%d: %s",
                    session.peer,
                    (session.forwarded or session.client).address,
                    session.sender.address,
                    session.accepted,
                    replies[0].lines[0].decode("ascii"),
                )
            for reply in repeat_reply(replies, session.accepted if context.lmtp else 1):
                self._unsent += reply.encode()
        finally:
            incoming.close()
        self._flush()  # first of all: a client without a reply may send the message again
        await session.end_transaction()
        self.envelope = Envelope()
        session.budget = context.limits.idle_commands

    @syntax("STARTTLS", when="tls_context")
    async def smtp_STARTTLS(self, arg: str | None) -> None:
        """Replaced: aiosmtpd takes the connection over. The certificate is as it is now."""
        certificate, session = self._context.tls, self.session
        if certificate is None or session.is_encrypted or session.transaction is not None:
            raise RefusedError(Replies.BAD_SEQUENCE)
        if arg:
            raise RefusedError(Replies.BAD_ARGUMENT)
        if not self.reader.is_empty:
            raise RefusedError(Replies.NOT_SMTP, ends_session=True)
        certificate.reload()
        await self.push(_READY_FOR_TLS)
        self._is_over = True  # nothing in the clear
        await self._send()
        if not self.reader.is_empty:  # it came while the replies went out
            raise ConnectionClosed
        try:
            await self.writer.start_tls(certificate.context)
        except OSError as error:
            _log.info("%s: no TLS: %s", session.peer, error)
            raise ConnectionClosed from None
        self._is_over = False
        session.forget(is_encrypted=True)

    @syntax("XFORWARD attribute=value")
    async def smtp_XFORWARD(self, arg: str | None) -> None:
        """See Postfix's XFORWARD_README."""
        if await self.check_helo_needed():
            return
        before = self.session.forwarded or self.session.connected
        self.session.forwarded = self.session.describe(before, arg, XFORWARD_FEATURE)
        await self.push(Replies.OK)

    @syntax("XCLIENT attribute=value")
    async def smtp_XCLIENT(self, arg: str | None) -> None:
        """See Postfix's XCLIENT_README."""
        self.session.client = self.session.describe(self.session.client, arg, XCLIENT_FEATURE)
        self.session.forwarded = self.session.host_name = None
        await self.push(self._greeting)

    smtp_AUTH: Any = None  # replaced: nobody logs in here


class LmtpSession(SmtpSession, LMTP):
    """An `SmtpSession` by RFC 2033."""


class ClientReader(DeadlineTimer, asyncio.StreamReader):
    """The bytes of one client; `before_wait` returns the deadline of a wait, by the loop's clock.

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
        """The next line without its end: CRLF alone (RFC 5321, section 2.3.8).

        Raises RefusedError, ClientTimeout and ConnectionClosed.
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
        """The next piece of a message. Raises ClientTimeout and ConnectionClosed."""
        try:
            if piece := await self.read(4 * BUFFER_BYTES):
                return piece
        except OSError:
            pass
        raise ConnectionClosed

    async def _wait_for_data(self, func_name: str) -> None:
        self.waiting_since = asyncio.get_running_loop().time()
        try:
            deadline = await self._before_wait()
            if self._buffer.endswith(b"\n"):
                # The next bytes may be the rest of this line, or a command. Obeyed, they could be a
                # command that another server took for a part of this line (SMTP smuggling);
                # answered, the client would count one reply too many.
                raise RefusedError(Replies.BARE_LF, ends_session=True)
            self.set_deadline(deadline)
            await super()._wait_for_data(func_name)  # type: ignore[misc]  # not in typeshed
        except ClientTimeout:
            self._exception = None  # the last reply is still to be sent
            raise
        finally:
            self.waiting_since = None
            self.clear_deadline()
