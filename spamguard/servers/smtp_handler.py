"""What the commands of the SMTP and the LMTP door mean for mail.

aiosmtpd calls the hooks of a `ProxyHandler`, which reply with what is known of the client
(`ClientSession`). A message becomes a `MailTransaction` of the proxy; its data stands in a
`DataReceiver`.

Must never answer 250 to the data of a message before the proxy has, hold more of a message than the
limits allow, or believe from a stranger what only a trusted peer may say.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from aiosmtpd.smtp import Envelope, Session

from spamguard.aio import DeadlineTimer
from spamguard.config.options import DoorLimits, OddBytes, Position
from spamguard.proxy.transaction import MailTransaction, Proxy
from spamguard.servers.listener import (
    ByteQuota,
    CertificateReloader,
    ConversationEnded,
    IncomingMessage,
    Refusal,
)
from spamguard.smtp.commands import (
    XCLIENT_FEATURE,
    XFORWARD_FEATURE,
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
)

_log = logging.getLogger("spamguard.doors")

# In which a draining door still accepts a first message, or QUIT after the last one.
DRAIN_GRACE_SECONDS = 1.0
REPLY_BY_REFUSAL = {
    Refusal.NOT_LISTED: Replies.CLIENT_REFUSED,
    Refusal.TOO_MANY: Replies.TOO_MANY_CONNECTIONS,
    Refusal.TOO_LARGE: Replies.SIZE_LIMIT,
    Refusal.NO_ROOM: Replies.NO_SPACE,
    Refusal.ODD_BYTES: Replies.ODD_BYTES,
}
_REFUSED_COST = 5  # a wrong command counts for as many idle ones
_ONE_RECIPIENT_WARNING = (
    "%s: a message for several recipients, of whom this next hop takes one at a time: the others "
    "wait, for long (Postfix: spamguard_destination_recipient_limit = 1 in main.cf)"
)
_HELLO_NAME = re.compile(r"[!-~]{1,255}")  # strange names are accepted, as evidence


class DoorContext(NamedTuple):
    """What all sessions of a door share.

    lmtp: the protocol is LMTP, not SMTP. position: of the listener. on_data_received: called with
    the seconds that the data of each message took, accepted or not.
    """

    proxy: Proxy
    lmtp: bool
    hostname: str
    limits: DoorLimits
    byte_quota: ByteQuota
    odd_bytes: OddBytes
    position: Position
    trusted: Networks
    tls: CertificateReloader | None
    spool_directory: Path
    on_data_received: Callable[[float], None]

    @property
    def is_behind_server(self) -> bool:
        """Whether another server has decided already which addresses it accepts; behind its queue
        a refusal would bounce.
        """
        return self.position is not Position.STANDALONE


class ClientSession(Session):
    """What is known of a client, and how far it has come.

    connected: the client as the connection shows it. client: as it introduced itself. forwarded: as
    XFORWARD describes the next message's client. transaction: of the proxy, None before MAIL.
    rcpt_count: of RCPT commands, refused ones too. idle_since: a time of the loop's clock; None
    during a transaction, which ends when its last reply is sent and the next hop is done with it.
    """

    def __init__(
        self, context: DoorContext, loop: asyncio.AbstractEventLoop, address: str, port: str
    ) -> None:
        super().__init__(loop)
        self.peer = address
        self.connected = Client(address=address, port=port, peer=address)
        self.is_trusted = address in context.trusted
        self.quota_key = "" if self.is_trusted else client_prefix(address)
        self.transaction: MailTransaction | None = None
        self.sender = Sender("")
        self.rcpt_count = self.accepted = 0
        self.idle_since: float | None = loop.time()
        self.last_message_end: float | None = None
        self._idle_commands = context.limits.idle_commands
        self.reset_budget()
        self.forget(is_encrypted=False)

    def forget(self, *, is_encrypted: bool) -> None:
        """Begin again: what came before TLS may be another's (RFC 3207, section 4.2)."""
        self.is_encrypted = is_encrypted
        self.client = self.connected
        self.forwarded: Client | None = None
        self.host_name = None

    def reset_budget(self) -> None:
        """So many commands that lead nowhere a client may send before its next message."""
        self.budget = self._idle_commands

    def refuse(self, reply: Reply) -> Reply:
        """Count a mistake of the client."""
        self.budget -= _REFUSED_COST
        return reply

    def pass_refusal(self, reply: Reply) -> Reply:
        """Count a refusal of the next hop, unless a trusted peer speaks for many clients."""
        return reply if self.is_trusted else self.refuse(reply)

    def describe(self, before: Client, arg: str | None, feature: str) -> Client:
        """The client as XFORWARD or XCLIENT describes it. RefusedError."""
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
            self.idle_since = self.loop.time() + DRAIN_GRACE_SECONDS


class DataReceiver(IncomingMessage):
    """The data of one message, with its header section within the limit of the door."""

    def __init__(self, context: DoorContext, quota_key: str) -> None:
        super().__init__(context.spool_directory, context.limits, context.byte_quota, quota_key)
        self._header_room = context.limits.header_size
        # The last bytes of the header section so far; None: it has ended, or may have any size, as
        # a refusal behind a queue would bounce.
        is_behind_queue = context.position is Position.AFTER_QUEUE
        self._header_tail: bytes | None = None if is_behind_queue else b"\r\n"

    def write(self, data: bytes) -> None:
        """Append some bytes, or refuse the message; never raises."""
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
        """Begin again, with a client that knows no extensions."""
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
        """Give the message up."""
        await session.end_transaction()
        return Replies.OK

    async def handle_VRFY(self, *_: Any) -> Reply:
        return Replies.CANNOT_VERIFY  # only the next hop knows

    async def handle_QUIT(self, server: Any, *_: Any) -> Reply:
        await server.push(Replies.BYE)
        raise ConversationEnded

    async def handle_MAIL(
        self, _server: Any, session: ClientSession, envelope: Envelope, path: str, _options: Any
    ) -> Reply:
        """Begin a transaction of the proxy. path: with the parameters."""
        context = self._context
        sender = parse_mail(b"FROM:" + _encode(path), smtputf8=context.is_behind_server)
        size = int(dict(sender.parameters).get("SIZE") or 0)
        if size > context.limits.message_size:  # RFC 1870, section 6.1
            raise RefusedError(Replies.SIZE_LIMIT)
        self._check_space(session, max(size, 1))
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
        """Ask the proxy for one more recipient. path: with the parameters."""
        session.rcpt_count += 1
        keywords = dict(session.sender.parameters)
        may_be_wide = self._context.is_behind_server or "SMTPUTF8" in keywords
        recipient = parse_rcpt(b"TO:" + _encode(path), smtputf8=may_be_wide)
        limit = self._recipient_limit(session)
        if limit is not None:
            if session.rcpt_count > 2 * self._context.limits.recipients:
                session.refuse(limit)  # only far beyond the limit it is a mistake
            return limit
        if session.transaction is None:  # aiosmtpd has made sure
            raise RefusedError(Replies.BAD_SEQUENCE)
        reply = await session.transaction.recipient(recipient)
        if not reply.is_positive:
            return session.pass_refusal(reply)
        session.accepted += 1
        return reply

    def _recipient_limit(self, session: ClientSession) -> Reply | None:
        """The refusal of one more recipient, None while there is room."""
        context = self._context
        if session.accepted and not context.lmtp and context.proxy.answers_each:
            # Their replies could differ, and SMTP has only one.
            if context.position is Position.AFTER_QUEUE and session.rcpt_count == 2:
                _log.warning(_ONE_RECIPIENT_WARNING, session.peer)
            return Replies.ONE_RECIPIENT
        is_full = session.accepted >= context.limits.recipients
        return Replies.TOO_MANY_RECIPIENTS if is_full else None

    # ---- the data, before which aiosmtpd has no hook

    def begin_data(self, session: ClientSession, arg: str | None) -> MailTransaction:
        """The transaction whose data comes now. arg: of DATA, which has none. RefusedError."""
        transaction = session.transaction
        if transaction is None or (not session.accepted and self._context.lmtp):
            raise RefusedError(Replies.BAD_SEQUENCE)  # RFC 2033, section 4.2
        if not session.accepted:
            raise RefusedError(Replies.NO_RECIPIENTS)
        if arg:
            raise RefusedError(Replies.BAD_ARGUMENT)
        self._check_space(session, 1)
        return transaction

    async def data(
        self,
        session: ClientSession,
        transaction: MailTransaction,
        incoming: DataReceiver,
        oddities: frozenset[str],
    ) -> Sequence[Reply]:
        """Pass the message to the proxy; one reply, or for LMTP one for each accepted recipient
        (RFC 2033, section 4.2).
        """
        if incoming.refusal is not None:
            reply = REPLY_BY_REFUSAL[incoming.refusal]
            _log.info(  # with the envelope, which nobody behind the door sees
                "%s: message refused: client=%s from=<%s> recipients=%d: %s",
                session.peer,
                (session.forwarded or session.client).address,
                session.sender.address,
                session.accepted,
                reply.lines[0].decode("ascii"),
            )
            replies: Sequence[Reply] = [reply]
        else:
            try:
                replies = await transaction.data(incoming.spool, oddities)
            except Exception:  # noqa: BLE001  a fault of ours must not cost the mail
                _log.exception("%s: a fault in handing on a message", session.peer)
                replies = [Replies.LOCAL_ERROR]
        return repeat_reply(replies, session.accepted if self._context.lmtp else 1)

    def _check_space(self, session: ClientSession, size: int) -> None:
        if not self._context.byte_quota.has_room(size, session.quota_key):
            raise RefusedError(Replies.NO_SPACE)


def _encode(text: str) -> bytes:
    """The bytes of an argument, as they came."""
    return text.encode("utf-8", "surrogateescape")
