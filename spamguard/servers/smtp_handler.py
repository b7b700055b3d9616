"""What the proxy does at the commands of an SMTP or LMTP client: a handler for aiosmtpd.

aiosmtpd calls `handle_EHLO`, `handle_MAIL` … with the session of `servers.smtp`, what it keeps of
the client (`ClientSession`) and of the message (`MailEnvelope`); each returns a reply. A message
becomes a `MailTransaction` of the proxy; its data stands in a `DataReceiver`.

Must never answer 250 to the data of a message before the proxy has, hold more of a message than the
limits allow, or believe from a stranger what only a trusted peer may say.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from aiosmtpd import smtp as aiosmtpd

from spamguard.config.options import DoorLimits, OddBytes, Position
from spamguard.proxy.transaction import MailTransaction, Proxy
from spamguard.servers.listener import (
    ByteQuota,
    CertificateReloader,
    IncomingMessage,
    LimitExceeded,
    Rejection,
    quota_key,
)
from spamguard.smtp.commands import (
    XCLIENT_FEATURE,
    XFORWARD_FEATURE,
    apply_attributes,
    parse_attributes,
)
from spamguard.smtp.envelope import (
    Client,
    EsmtpParameter,
    Networks,
    Recipient,
    Reply,
    Sender,
    repeat_reply,
)

_log = logging.getLogger("spamguard.doors")

DRAIN_GRACE_SECONDS = 1.0
"""In which a draining door still accepts a first message, or QUIT after the last one."""

HEADER_SIZE_ODDITY = "header-size"
"""The oddity of a header section beyond its limit, behind a queue, where it may not be refused."""


class Replies:
    """The fixed replies of the door (RFC 5321, section 4.2; RFC 3463).

    A 421 ends the session. None may tell more of a fault than that there is one.
    """

    HELP = Reply.from_text(214, "2.0.0 See RFC 5321, and RFC 2033 for LMTP")
    BYE = Reply.from_text(221, "2.0.0 Bye")
    OK = Reply.from_text(250, "2.0.0 Ok")
    CANNOT_VERIFY = Reply.from_text(252, "2.0.0 Cannot verify, but will accept a message and try")
    GO_AHEAD = Reply.from_text(354, "End data with <CR><LF>.<CR><LF>")
    LOCAL_ERROR_IN_DATA = Reply.from_text(
        421, "4.3.0 Local trouble, closing connection, try again later"
    )
    TIMED_OUT = Reply.from_text(421, "4.4.2 Timeout, closing connection")
    SHUTTING_DOWN = Reply.from_text(421, "4.3.2 Shutting down, try again later")
    EVICTED = Reply.from_text(421, "4.3.2 Idle while others wait to be served, closing connection")
    TOO_MANY_COMMANDS = Reply.from_text(
        421, "4.7.0 Too many commands without a message, closing connection"
    )
    NO_WEB_SERVER = Reply.from_text(421, "4.7.0 This is no web server, closing connection")
    AFTER_STARTTLS = Reply.from_text(
        421, "4.7.0 Nothing may follow STARTTLS before the handshake, closing connection"
    )
    LOCAL_ERROR = Reply.from_text(451, "4.3.0 Local trouble, try again later")
    NO_SPACE = Reply.from_text(452, "4.3.1 No space left for this message now, try again later")
    ONE_RECIPIENT = Reply.from_text(
        452, "4.5.3 One recipient for each message here, send it again for the others"
    )
    TOO_MANY_RECIPIENTS = Reply.from_text(
        452, "4.5.3 Too many recipients, send it again for the others"
    )
    BAD_LINE = Reply.from_text(500, "5.5.2 Line has bare CR, bare LF or NUL in it")
    BARE_LF = Reply.from_text(
        500, "5.5.2 A line ends in CR LF, not in LF alone, closing connection"
    )
    UNKNOWN_COMMAND = Reply.from_text(500, "5.5.2 Command not recognised")
    BAD_ARGUMENT = Reply.from_text(501, "5.5.4 Syntax error in the argument")
    NOT_IMPLEMENTED = Reply.from_text(502, "5.5.1 Command not implemented")
    NOT_NOW = Reply.from_text(503, "5.5.1 Not allowed during a mail transaction")
    NEED_MAIL = Reply.from_text(503, "5.5.1 Send MAIL first")
    NO_RECIPIENTS_LMTP = Reply.from_text(503, "5.5.1 No valid recipients")  # RFC 2033, section 4.2
    NOT_ALLOWED = Reply.from_text(550, "5.7.0 Command not allowed for this client")
    SIZE_LIMIT = Reply.from_text(552, "5.3.4 Message is too big")
    HEADER_LIMIT = Reply.from_text(552, "5.3.4 Header section is too big")
    NO_RECIPIENTS = Reply.from_text(554, "5.5.1 No valid recipients")
    CLIENT_REFUSED = Reply.from_text(554, "5.7.1 This server accepts no mail from you")
    ODD_BYTES = Reply.from_text(554, "5.6.0 Message has bare CR, bare LF or NUL in it")

    BY_LIMIT: ClassVar[Mapping[LimitExceeded, Reply]] = {
        LimitExceeded.TOTAL: Reply.from_text(421, "4.7.0 Too many connections, try again later"),
        LimitExceeded.PER_CLIENT: Reply.from_text(
            421, "4.7.0 Too many connections from your address, try again later"
        ),
        LimitExceeded.NOT_LISTED: CLIENT_REFUSED,
    }
    """The reply to a client that is not served."""


_HAS_ENHANCED_CODE = re.compile(r"\d\d\d[ -]\d\.\d+\.\d+ |220 |3")


def with_enhanced_code(line: str) -> str:
    """A reply line of aiosmtpd with an enhanced code (RFC 2034, section 4; RFC 3463, section 3.6).

    >>> with_enhanced_code("503 Error: send HELO first")
    '503 5.5.0 Error: send HELO first'
    """
    if _HAS_ENHANCED_CODE.match(line):
        return line
    detail = "0.0" if line.startswith("2") else "5.0"
    return f"{line[:4]}{line[0]}.{detail} {line[4:]}"


_REPLY_BY_REJECTION = {
    Rejection.TOO_LARGE: Replies.SIZE_LIMIT,
    Rejection.TRY_LATER: Replies.NO_SPACE,
}
_ONE_RECIPIENT_WARNING = (
    "%s: a message for several recipients, of whom this next hop takes one at a time: "
    "the others wait, for long "
    "(Postfix: spamguard_destination_recipient_limit = 1 in main.cf)"
)
_BLANK_LINE = b"\r\n\r\n"
_HELLO_NAME = re.compile(r"[!-~]{1,255}")  # strange names are accepted, as evidence


@dataclass(frozen=True, slots=True, eq=False)
class DoorContext:
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
    rcpt_tos: the accepted recipients. incoming: its data, after DATA.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sender: Sender | None = None
        self.rcpt_count = 0
        self.incoming: DataReceiver | None = None


class DataReceiver(IncomingMessage):
    """The data of one message. quota_key: of the client, as of `quota_key`. refusal: the
    reply if it is not accepted, else None.
    """

    def __init__(self, context: DoorContext, quota_key: str) -> None:
        super().__init__(context.spool_directory, context.limits, context.byte_quota, quota_key)
        self.refusal: Reply | None = None
        self.oddities: set[str] = set()
        self._max_header_bytes = context.limits.header_size
        self._refuse_header = context.position is not Position.AFTER_QUEUE
        self._header_bytes = 0
        # The last bytes of the header section so far; None: it has ended, or is too long.
        self._header_tail: bytes | None = b"\r\n"

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

    def refuse_odd_bytes(self) -> None:
        """Refuse a message with bare CR, bare LF or NUL."""
        self.refuse(Replies.ODD_BYTES)

    def _track_header(self, tail: bytes, data: bytes) -> None:
        """Count the bytes of the header section. A message that begins with an empty line has
        none.
        """
        end = (tail + data).find(_BLANK_LINE)
        self._header_bytes += len(data) if end < 0 else end - len(tail) + 2
        self._header_tail = (tail + data)[-3:] if end < 0 else None
        if self._header_bytes > self._max_header_bytes:
            self._header_tail = None
            if self._refuse_header:
                self.refuse(Replies.HEADER_LIMIT)
            else:
                self.oddities.add(HEADER_SIZE_ODDITY)


class CommandBudget:
    """Counts idle and wrong commands, of which a client may send some before its next message."""

    def __init__(self, limits: DoorLimits) -> None:
        self._limits = limits
        self.reset()

    def reset(self) -> None:
        """Start again, after a message."""
        self._idle_left = self._limits.idle_commands
        self._wrong_left = self._limits.wrong_commands

    def count_idle(self) -> None:
        """Count a command that does nothing for a message."""
        self._idle_left -= 1

    def count_wrong(self) -> None:
        """Count a command that was refused or not understood."""
        self._wrong_left -= 1

    @property
    def is_exhausted(self) -> bool:
        """Whether the client has sent too many."""
        return self._idle_left < 0 or self._wrong_left < 0


class ProxyHandler:
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
        self.budget = CommandBudget(context.limits)
        self.transaction: MailTransaction | None = None
        self.idle_since: float | None = loop.time()
        self.last_message_end: float | None = None
        self._loop = loop
        self._quota_key = quota_key(address, trusted=self.is_trusted)

    # ---- hooks; their names and arguments are aiosmtpd's

    async def handle_HELO(
        self, _server: Any, session: ClientSession, _envelope: MailEnvelope, hostname: str
    ) -> Reply:
        """Begin again, with a client that knows no extensions."""
        return await self._greet(session, hostname, "SMTP", ())

    async def handle_EHLO(
        self,
        _server: Any,
        session: ClientSession,
        _envelope: MailEnvelope,
        hostname: str,
        _responses: Sequence[str],
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

    async def handle_MAIL(
        self,
        _server: Any,
        session: ClientSession,
        envelope: MailEnvelope,
        address: str,
        parameters: tuple[EsmtpParameter, ...],
    ) -> Reply:
        """Begin a transaction of the proxy."""
        sender = Sender(address, parameters)
        refusal = self._size_refusal(sender)
        if refusal is not None:
            return self.refuse(refusal)
        self.transaction = self.context.proxy.message(session.forwarded or session.client)
        self.idle_since = None
        reply = await self.transaction.mail(sender)
        if not reply.is_positive:
            await self.close_transaction()
            return self._pass_refusal(reply)
        envelope.sender = sender
        return reply

    async def handle_RCPT(
        self,
        _server: Any,
        _session: ClientSession,
        envelope: MailEnvelope,
        address: str,
        parameters: tuple[EsmtpParameter, ...],
    ) -> Reply:
        """Ask the proxy for one more recipient."""
        limit = self._recipient_limit(envelope)
        if limit is not None:
            if envelope.rcpt_count > 2 * self.context.limits.recipients:
                self.budget.count_wrong()  # only far beyond the limit it is a mistake
            return limit
        reply = await self.open_transaction().recipient(Recipient(address, parameters))
        if not reply.is_positive:
            return self._pass_refusal(reply)
        envelope.rcpt_tos.append(address)
        return reply

    async def handle_DATA(
        self, _server: Any, session: ClientSession, envelope: MailEnvelope
    ) -> Sequence[Reply]:
        """Pass the message to the proxy; one reply, or for LMTP one for each accepted recipient
        (RFC 2033, section 4.2).
        """
        count = len(envelope.rcpt_tos) if self.context.lmtp else 1
        answers = await self._submit(session, envelope)
        if len(answers) not in (1, count):
            _log.error("%s: %d replies for %d recipients", self.peer.address, len(answers), count)
            return [Replies.LOCAL_ERROR] * count
        return repeat_reply(answers, count)

    async def handle_RSET(
        self, _server: Any, session: ClientSession, _envelope: MailEnvelope
    ) -> Reply:
        """Give the message up."""
        await self.end_transaction(session)
        return Replies.OK

    async def handle_NOOP(
        self, _server: Any, _session: ClientSession, _envelope: MailEnvelope, _text: str
    ) -> Reply:
        """Do nothing."""
        return Replies.OK

    async def handle_VRFY(
        self, _server: Any, _session: ClientSession, _envelope: MailEnvelope, _address: str
    ) -> Reply:
        """Say that only the next hop knows."""
        return Replies.CANNOT_VERIFY

    async def handle_QUIT(
        self, _server: Any, _session: ClientSession, _envelope: MailEnvelope
    ) -> Reply:
        """Say goodbye."""
        return Replies.BYE

    # ---- for the session

    def open_transaction(self) -> MailTransaction:
        """The transaction under way."""  # no property: aiosmtpd reads all attributes at first
        if self.transaction is None:
            raise RuntimeError("no message is under way")  # the session's checks prevent it
        return self.transaction

    def refuse(self, reply: Reply) -> Reply:
        """Count a mistake of the client."""
        self.budget.count_wrong()
        return reply

    def receive(self) -> DataReceiver:
        """Keep the data of a message from now on."""
        return DataReceiver(self.context, self._quota_key)

    def data_refusal(self, envelope: MailEnvelope, arg: str | None) -> Reply | None:
        """The refusal of DATA, None if it may come. arg: of the command, which has none."""
        if envelope.sender is None:
            return Replies.NEED_MAIL
        if not envelope.rcpt_tos:
            return Replies.NO_RECIPIENTS_LMTP if self.context.lmtp else Replies.NO_RECIPIENTS
        return Replies.BAD_ARGUMENT if arg else self._space_refusal(1)

    def described_client(
        self, envelope: MailEnvelope, before: Client, arg: bytes, feature: str
    ) -> Client | Reply:
        """The client as XFORWARD or XCLIENT describes it, or the refusal of the command."""
        if envelope.sender is not None:
            return Replies.NOT_NOW
        if not self.is_trusted:
            return Replies.NOT_ALLOWED
        attributes = parse_attributes(arg)
        if isinstance(attributes, Reply):
            return attributes
        return apply_attributes(before, attributes, feature) or Replies.BAD_ARGUMENT

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

    # ---- parts of the hooks

    async def _greet(
        self, session: ClientSession, hostname: str, protocol: str, features: Sequence[str]
    ) -> Reply:
        if not _HELLO_NAME.fullmatch(hostname):
            return self.refuse(Replies.BAD_ARGUMENT)
        await self.end_transaction(session)
        session.host_name = hostname
        session.client = replace(session.client, helo=hostname, protocol=protocol)
        return Reply(
            250, tuple(line.encode("ascii") for line in (self.context.hostname, *features))
        )

    def _size_refusal(self, sender: Sender) -> Reply | None:
        """The refusal of a message that is announced as too big (RFC 1870, section 6.1)."""
        size = next(
            (int(value or 0) for keyword, value in sender.parameters if keyword == "SIZE"), 0
        )
        if size > self.context.limits.message_size:
            return Replies.SIZE_LIMIT
        return self._space_refusal(max(size, 1))

    def _space_refusal(self, size: int) -> Reply | None:
        has_room = self.context.byte_quota.has_room(size, self._quota_key)
        return None if has_room else Replies.NO_SPACE

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
        """Pass on a refusal of the next hop. It is no mistake of a trusted peer, which speaks for
        many clients.
        """
        return reply if self.is_trusted else self.refuse(reply)

    async def _submit(self, session: ClientSession, envelope: MailEnvelope) -> Sequence[Reply]:
        incoming = envelope.incoming
        if incoming is None:
            raise RuntimeError("no data")  # smtp_DATA has just put it there
        if incoming.refusal is not None:
            _log.info(  # with the envelope, which nobody behind the door sees
                "%s: message refused: client=%s from=<%s> recipients=%d: %s",
                self.peer.address,
                (session.forwarded or session.client).address,
                envelope.sender.address if envelope.sender else "",
                len(envelope.rcpt_tos),
                incoming.refusal.lines[0].decode("ascii"),
            )
            return [incoming.refusal]
        if incoming.oddities:
            oddities = ", ".join(sorted(incoming.oddities))
            _log.info("%s: message with %s taken", self.peer.address, oddities)
        try:
            return await self.open_transaction().data(incoming.spool, frozenset(incoming.oddities))
        except Exception:  # noqa: BLE001  a fault of ours must not cost the mail
            _log.exception("%s: a fault in handing on a message", self.peer.address)
            return [Replies.LOCAL_ERROR]
