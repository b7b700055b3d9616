"""What a session of aiosmtpd reads from, and what the proxy does at its commands.

`ClientReader` takes the place of the `asyncio.StreamReader` that aiosmtpd makes: strict lines, a
deadline for every wait. `ProxyHandler` replies to commands, with what
`servers.smtp` keeps of the client (`ClientSession`) and of the message (`MailEnvelope`). A message
becomes a `MailTransaction` of the proxy; its data stands in a `DataReceiver`.

Must never take anything but CRLF for the end of a command, wait without a deadline, keep much more
than `BUFFER_BYTES`, answer 250 to the data of a
message before the proxy has, hold more of a message than the limits allow, or believe from a
stranger what only a trusted peer may say.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from aiosmtpd import smtp as aiosmtpd

from spamguard.aio import DeadlineTimer
from spamguard.config.options import DoorLimits, OddBytes, Position
from spamguard.proxy.transaction import MailTransaction, Proxy
from spamguard.servers.listener import (
    ByteQuota,
    CertificateReloader,
    ClientTimeout,
    IncomingMessage,
    LimitExceeded,
    Rejection,
)
from spamguard.smtp.commands import (
    XCLIENT_FEATURE,
    XFORWARD_FEATURE,
    apply_attributes,
)
from spamguard.smtp.envelope import (
    Client,
    Networks,
    Recipient,
    RefusedError,
    Replies,
    Reply,
    Sender,
    client_prefix,
    repeat_reply,
)

_log = logging.getLogger("spamguard.doors")

BUFFER_BYTES = 64 << 10  # of input that is kept for one client, beyond what one read adds
# In which a draining door still accepts a first message, or QUIT after the last one.
DRAIN_GRACE_SECONDS = 1.0
REPLY_BY_LIMIT = {
    LimitExceeded.TOO_MANY: Reply.from_text(421, "4.7.0 Too many connections, try again later"),
    LimitExceeded.NOT_LISTED: Replies.CLIENT_REFUSED,
}
"""The reply to a client that is not served."""

_REPLY_BY_REJECTION = {
    Rejection.TOO_LARGE: Replies.SIZE_LIMIT,
    Rejection.TRY_LATER: Replies.NO_SPACE,
}
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


class ClientSession(aiosmtpd.Session):
    """What is known of a client; begins again after STARTTLS.

    client: as it introduced itself. forwarded: as XFORWARD describes the next message's client.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, client: Client) -> None:
        super().__init__(loop)
        self.client = client
        self.forwarded: Client | None = None


class MailEnvelope(aiosmtpd.Envelope):
    """One message. sender: None before MAIL. rcpt_count: of RCPT commands, refused ones too.
    rcpt_tos: the accepted recipients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sender: Sender | None = None
        self.rcpt_count = 0


class DataReceiver(IncomingMessage):
    """The data of one message. refusal: the reply if it is not accepted, else None."""

    def __init__(self, context: DoorContext, quota_key: str) -> None:
        super().__init__(context.spool_directory, context.limits, context.byte_quota, quota_key)
        self.refusal: Reply | None = None
        self.oddities: set[str] = set()
        self._header_room = context.limits.header_size
        # The last bytes of the header section so far; None: it has ended, or may have any size, as
        # a refusal behind a queue would bounce.
        is_behind_queue = context.position is Position.AFTER_QUEUE
        self._header_tail: bytes | None = None if is_behind_queue else b"\r\n"

    def write(self, data: bytes) -> None:
        """Append some bytes, or refuse the message; never raises."""
        if self.refusal is not None or not data:
            return
        super().write(data)
        if self.rejection is not None:
            self.refusal = _REPLY_BY_REJECTION[self.rejection]
        elif self._header_tail is not None:
            self._track_header(self._header_tail, data)

    def refuse(self, reply: Reply) -> None:
        """Refuse the message, and keep nothing of it."""
        self.refusal = self.refusal or reply
        self.close()

    def _track_header(self, tail: bytes, data: bytes) -> None:
        """Count the bytes of the header section, which an empty line at the start leaves empty."""
        end = (tail + data).find(b"\r\n\r\n")
        self._header_room -= len(data) if end < 0 else end - len(tail) + 2
        self._header_tail = (tail + data)[-3:] if end < 0 else None
        if self._header_room < 0:
            self.refuse(Replies.SIZE_LIMIT)


class ClientReader(DeadlineTimer, asyncio.StreamReader):
    """The bytes of one client. before_wait: returns the deadline of a wait, by the loop's clock.
    check_command: returns a line, if it is a command.

    Beside asyncio's public methods it uses `_wait_for_data`, which they all call before they wait,
    and `_buffer`, to put bytes back. `asyncio.timeout` costs ten times as much as `DeadlineTimer`.
    """

    _buffer: bytearray

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        before_wait: Callable[[], Awaitable[float]],
        check_command: Callable[[bytes], bytes],
    ) -> None:
        super().__init__(limit=BUFFER_BYTES, loop=loop)
        self._before_wait = before_wait
        self._check_command = check_command
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

    async def readuntil(self, separator: Any = b"\n") -> bytes:  # noqa: ARG002
        """The next command. Only CRLF ends a line (RFC 5321, section 2.3.8); aiosmtpd asks for LF.

        Raises
        ------
        RefusedError, ClientTimeout
            aiosmtpd passes them to `handle_exception`.
        ConnectionResetError
            The client has gone; aiosmtpd ends the session.
        """
        try:
            line = await super().readuntil(b"\r\n")
        except asyncio.IncompleteReadError:
            raise ConnectionResetError from None
        return self._check_command(line)

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


class HookNames:
    """An object that lists only what aiosmtpd looks for: in all names it takes 0.2 ms for each
    connection.
    """

    _names: list[str]

    def __init_subclass__(cls) -> None:
        cls._names = [name for name in dir(cls) if name.startswith(("smtp_", "handle_"))]

    def __dir__(self) -> list[str]:
        return self._names


class ProxyHandler(HookNames):
    """The handler of one connection. peer: the client as the connection shows it.

    idle_since: a time of the loop's clock; None during a transaction, which begins with MAIL and
    ends when its last reply is sent and the next hop is done with it.
    """

    def __init__(
        self, context: DoorContext, loop: asyncio.AbstractEventLoop, address: str, port: str
    ) -> None:
        self.context = context
        self.peer = Client(address=address, port=port, peer=address)
        self.is_trusted = address in context.trusted
        self.reset_budget()
        self.transaction: MailTransaction | None = None
        self.idle_since: float | None = loop.time()
        self.last_message_end: float | None = None
        self._loop = loop
        self.quota_key = "" if self.is_trusted else client_prefix(address)

    def reset_budget(self) -> None:
        """So many idle and wrong commands a client may send before its next message."""
        self.idle_left = self.context.limits.idle_commands
        self.wrong_left = self.context.limits.wrong_commands

    # ---- hooks; their names and arguments are aiosmtpd's

    async def handle_HELO(
        self, _server: Any, session: ClientSession, _: MailEnvelope, hostname: str
    ) -> Reply:
        """Begin again, with a client that knows no extensions."""
        return await self._greet(session, hostname, "SMTP", ())

    async def handle_EHLO(
        self, _server: Any, session: ClientSession, _: MailEnvelope, hostname: str, *_replies: Any
    ) -> Sequence[Reply]:
        """Begin again, and announce the extensions (RFC 5321, section 4.1.1.1), with those that
        the next hop offers at this moment.
        """
        limits, is_encrypted = self.context.limits, session.ssl is not None
        features = ["PIPELINING", f"SIZE {limits.message_size}", "ENHANCEDSTATUSCODES"]
        if self.context.tls is not None and not is_encrypted:
            features.append("STARTTLS")
        offered = self.context.proxy.extensions.items()
        features += [f"{keyword} {value}".strip() for keyword, value in offered]
        if self.is_trusted:
            features += [XFORWARD_FEATURE, XCLIENT_FEATURE]
        protocol = "LMTP" if self.context.lmtp else "ESMTP"
        protocol += "S" if is_encrypted else ""  # RFC 3848
        return [await self._greet(session, hostname, protocol, features)]

    async def _greet(
        self, session: ClientSession, hostname: str, protocol: str, features: Sequence[str]
    ) -> Reply:
        if not _HELLO_NAME.fullmatch(hostname):
            raise RefusedError(Replies.BAD_ARGUMENT)
        await self.end_transaction(session)
        session.host_name = hostname
        session.client = replace(session.client, helo=hostname, protocol=protocol)
        lines = (self.context.hostname, *features)
        return Reply(250, tuple(line.encode("ascii") for line in lines))

    async def handle_NOOP(self, *_: Any) -> Reply:
        return Replies.OK

    async def handle_RSET(self, _server: Any, session: ClientSession, *_: Any) -> Reply:
        """Give the message up."""
        await self.end_transaction(session)
        return Replies.OK

    # ---- for the session

    async def mail(self, session: ClientSession, envelope: MailEnvelope, sender: Sender) -> Reply:
        """Begin a transaction of the proxy."""
        parameters = dict(sender.parameters)
        size = int(parameters.get("SIZE") or 0)
        if size > self.context.limits.message_size:  # RFC 1870, section 6.1
            raise RefusedError(Replies.SIZE_LIMIT)
        self._check_space(max(size, 1))
        self.transaction = self.context.proxy.message(session.forwarded or session.client)
        self.idle_since = None
        reply = await self.transaction.mail(sender)
        if not reply.is_positive:
            await self.close_transaction()
            return self._pass_refusal(reply)
        envelope.sender = sender
        return reply

    async def recipient(self, envelope: MailEnvelope, recipient: Recipient) -> Reply:
        """Ask the proxy for one more recipient."""
        limit = self._recipient_limit(envelope)
        if limit is not None:
            if envelope.rcpt_count > 2 * self.context.limits.recipients:
                self.wrong_left -= 1  # only far beyond the limit it is a mistake
            return limit
        reply = await self._open_transaction().recipient(recipient)
        if not reply.is_positive:
            return self._pass_refusal(reply)
        envelope.rcpt_tos.append(recipient.address)
        return reply

    async def data(
        self, session: ClientSession, envelope: MailEnvelope, incoming: DataReceiver
    ) -> Sequence[Reply]:
        """Pass the message to the proxy; one reply, or for LMTP one for each accepted recipient
        (RFC 2033, section 4.2).
        """
        if incoming.refusal is not None:
            _log.info(  # with the envelope, which nobody behind the door sees
                "%s: message refused: client=%s from=<%s> recipients=%d: %s",
                self.peer.address,
                (session.forwarded or session.client).address,
                envelope.sender.address if envelope.sender else "",
                len(envelope.rcpt_tos),
                incoming.refusal.lines[0].decode("ascii"),
            )
            replies: Sequence[Reply] = [incoming.refusal]
        else:
            oddities = frozenset(incoming.oddities)
            try:
                replies = await self._open_transaction().data(incoming.spool, oddities)
            except Exception:  # noqa: BLE001  a fault of ours must not cost the mail
                _log.exception("%s: a fault in handing on a message", self.peer.address)
                replies = [Replies.LOCAL_ERROR]
        return repeat_reply(replies, len(envelope.rcpt_tos) if self.context.lmtp else 1)

    def _open_transaction(self) -> MailTransaction:
        if self.transaction is None:
            raise RuntimeError("no message is under way")  # the session's checks prevent it
        return self.transaction

    def refuse(self, reply: Reply) -> Reply:
        """Count a mistake of the client."""
        self.wrong_left -= 1
        return reply

    def check_data(self, envelope: MailEnvelope, arg: str | None) -> None:
        """Whether DATA may come. arg: of the command, which has none. RefusedError."""
        if not envelope.rcpt_tos:  # RFC 2033, section 4.2, wants 503
            is_rejected = envelope.sender is not None and not self.context.lmtp
            raise RefusedError(Replies.NO_RECIPIENTS if is_rejected else Replies.BAD_SEQUENCE)
        if arg:
            raise RefusedError(Replies.BAD_ARGUMENT)
        self._check_space(1)

    def described_client(
        self, envelope: MailEnvelope, before: Client, arg: bytes, feature: str
    ) -> Client:
        """The client as XFORWARD or XCLIENT describes it. RefusedError."""
        if envelope.sender is not None:
            raise RefusedError(Replies.BAD_SEQUENCE)
        if not self.is_trusted:
            raise RefusedError(Replies.NOT_ALLOWED)
        return apply_attributes(before, arg, feature)

    async def end_transaction(self, session: ClientSession) -> None:
        """Go back to where a message may begin."""
        await self.close_transaction()
        session.forwarded = None  # as in Postfix, it holds for one message

    async def close_transaction(self) -> None:
        """End the transaction; then the client has a moment for QUIT. Never raises."""
        transaction, self.transaction = self.transaction, None
        if transaction is None:
            return
        self.last_message_end = self._loop.time()
        try:
            await transaction.end()
        except Exception:  # noqa: BLE001  it does not concern the client
            _log.exception("%s: a fault in ending a message", self.peer.address)
        finally:
            self.idle_since = self._loop.time() + DRAIN_GRACE_SECONDS

    def _check_space(self, size: int) -> None:
        if not self.context.byte_quota.has_room(size, self.quota_key):
            raise RefusedError(Replies.NO_SPACE)

    def _recipient_limit(self, envelope: MailEnvelope) -> Reply | None:
        """The refusal of one more recipient, None while there is room."""
        accepted = len(envelope.rcpt_tos)
        if accepted and not self.context.lmtp and self.context.proxy.answers_each:
            # Their replies could differ, and SMTP has only one.
            if self.context.position is Position.AFTER_QUEUE and envelope.rcpt_count == 2:
                _log.warning(_ONE_RECIPIENT_WARNING, self.peer.address)
            return Replies.ONE_RECIPIENT
        return Replies.TOO_MANY_RECIPIENTS if accepted >= self.context.limits.recipients else None

    def _pass_refusal(self, reply: Reply) -> Reply:
        # It is no mistake of a trusted peer, which speaks for many clients.
        return reply if self.is_trusted else self.refuse(reply)
