"""The SMTP and the LMTP door: the commands that carry mail, and the data of a message.

`open_door` builds a door for one listener. `SmtpMailSession` adds MAIL, RCPT and DATA to the
session of `smtp_session`, and passes them on to a proxy. `DataReceiver` takes the data: into a
spool, or, once the message is refused, nowhere. `smtp_state` has states and replies,
`smtp_connection` bytes and deadlines.

Must never answer 250 to the data of a message before the proxy has, hold more of a message than the
limits allow, or let the client's behaviour touch a message that is being delivered.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from spamguard.config.options import DoorLimits, Listener, OddBytes, Position, Protocol
from spamguard.limits import ByteQuota, Networks
from spamguard.proxy.base import MailTransaction, Proxy
from spamguard.servers import smtp_connection, smtp_state
from spamguard.servers.listener import Door, IncomingMessage, Rejection
from spamguard.servers.smtp_connection import READ_BYTES
from spamguard.servers.smtp_session import SessionContext, SmtpSession
from spamguard.smtp.commands import parse_mail, parse_rcpt
from spamguard.smtp.data import DataReader
from spamguard.smtp.envelope import Recipient, Reply, Sender, repeat_reply
from spamguard.spool import Spool

_log = logging.getLogger("spamguard.doors")

HEADER_SIZE_ODDITY = "header-size"
"""The oddity of a header section beyond its limit, behind a queue, where it may not be refused."""
_BLANK_LINE = b"\r\n\r\n"
_REPLY_BY_REJECTION = {
    Rejection.TOO_LARGE: smtp_state.SIZE_LIMIT,
    Rejection.TRY_LATER: smtp_state.NO_SPACE,
}


class DataReceiver:
    """The data of one message. quota_key: of the client, as of `limits.quota_key`. refusal: the
    reply if it is not accepted, else None.
    """

    def __init__(
        self,
        directory: Path,
        limits: DoorLimits,
        byte_quota: ByteQuota,
        quota_key: str,
        *,
        refuse_header: bool,
    ) -> None:
        self.refusal: Reply | None = None
        self.oddities: set[str] = set()
        self._message = IncomingMessage(directory, limits, byte_quota, quota_key)
        self._max_header_bytes = limits.header_size
        self._refuse_header = refuse_header
        self._header_bytes = 0
        # The last bytes of the header section so far; None: it has ended, or is too long.
        self._header_tail: bytes | None = b"\r\n"

    @property
    def spool(self) -> Spool:
        """The message so far."""
        return self._message.spool

    def write(self, data: bytes) -> None:
        """Append some bytes, or refuse the message; never raises."""
        if self.refusal is not None or not data:
            return
        self._message.write(data)
        if self._message.rejection is not None:
            self.refusal = _REPLY_BY_REJECTION[self._message.rejection]
        elif self._header_tail is not None:
            self._track_header(self._header_tail, data)

    def refuse(self, reply: Reply) -> None:
        """Refuse the message, and keep nothing of it."""
        self.refusal = self.refusal or reply
        self.close()

    def close(self) -> None:
        """Give file, memory and quota back; idempotent."""
        self._message.close()

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
                self.refuse(smtp_state.HEADER_LIMIT)
            else:
                self.oddities.add(HEADER_SIZE_ODDITY)


_ONE_RECIPIENT_WARNING = (
    "%s: a message for several recipients, of whom this next hop takes one at a time: "
    "the others wait, for long "
    "(Postfix: spamguard_destination_recipient_limit = 1 in main.cf)"
)


class SmtpMailSession(SmtpSession):
    """A session with the commands that carry mail."""

    _sender = Sender("")
    _rcpt_count = 0  # recipients of this message
    _accepted_count = 0

    async def _mail(self, arg: str) -> None:
        sender = parse_mail(arg.encode("latin-1"), smtputf8=self._is_behind_server)
        refusal = sender if isinstance(sender, Reply) else self._size_refusal(sender)
        if refusal is None and isinstance(sender, Sender):
            await self._begin_transaction(sender)
        elif refusal is not None:
            self._reply(refusal)

    @property
    def _is_behind_server(self) -> bool:
        """Whether another server has decided already which addresses it accepts; behind its queue
        a refusal would bounce.
        """
        return self._context.position is not Position.STANDALONE

    async def _begin_transaction(self, sender: Sender) -> None:
        self._transaction = self._context.proxy.message(self._forwarded_client or self._client)
        self._idle_since = None
        reply = await self._transaction.mail(sender)
        if reply.is_positive:
            self._sender, self._rcpt_count, self._accepted_count = sender, 0, 0
            self._succeed("MAIL", reply)
        else:
            await self._close_transaction()
            self._pass_refusal(reply)

    @property
    def _open_transaction(self) -> MailTransaction:
        if self._transaction is None:
            raise RuntimeError("no message is under way")  # the table of states prevents it
        return self._transaction

    def _size_refusal(self, sender: Sender) -> Reply | None:
        """The refusal of a message that is announced as too big (RFC 1870, section 6.1)."""
        size = next(
            (int(value or 0) for keyword, value in sender.parameters if keyword == "SIZE"), 0
        )
        if size > self._context.limits.message_size:
            return smtp_state.SIZE_LIMIT
        return (
            None
            if self._context.byte_quota.has_room(max(size, 1), self._quota_key)
            else smtp_state.NO_SPACE
        )

    async def _rcpt(self, arg: str) -> None:
        smtputf8 = self._is_behind_server or any(
            keyword == "SMTPUTF8" for keyword, _ in self._sender.parameters
        )
        recipient = parse_rcpt(arg.encode("latin-1"), smtputf8=smtputf8)
        self._rcpt_count += 1
        if isinstance(recipient, Reply):
            self._reply(recipient)
        elif self._recipient_limit is not None:
            self._refuse_recipient(self._recipient_limit)
        else:
            await self._add_recipient(recipient)

    async def _add_recipient(self, recipient: Recipient) -> None:
        reply = await self._open_transaction.recipient(recipient)
        if reply.is_positive:
            self._accepted_count += 1
            self._succeed("RCPT", reply)
        else:
            self._pass_refusal(reply)

    @property
    def _recipient_limit(self) -> Reply | None:
        """The refusal of one more recipient, None while there is room."""
        if self._accepted_count and not self._context.lmtp and self._context.proxy.answers_each:
            # Their replies could differ, and SMTP has only one.
            return smtp_state.ONE_RECIPIENT
        return (
            smtp_state.TOO_MANY_RECIPIENTS
            if self._accepted_count >= self._context.limits.recipients
            else None
        )

    def _refuse_recipient(self, reply: Reply) -> None:
        """Refuse a recipient beyond the limit. Only far beyond it this counts as a mistake."""
        if (
            reply is smtp_state.ONE_RECIPIENT
            and self._context.position is Position.AFTER_QUEUE
            and self._rcpt_count == 2
        ):
            _log.warning(_ONE_RECIPIENT_WARNING, self._peer.address)
        if self._rcpt_count > 2 * self._context.limits.recipients:
            self._reply(reply)
        else:
            self.write_reply(reply)

    def _pass_refusal(self, reply: Reply) -> None:
        """Pass on a refusal of the next hop. It is no mistake of a trusted peer, which speaks for
        many clients.
        """
        if self._trusted:
            self.write_reply(reply)
        else:
            self._reply(reply)

    async def _data(self, arg: str) -> None:
        if arg:
            self._reply(smtp_state.BAD_ARGUMENT)
        elif not self._context.byte_quota.has_room(1, self._quota_key):
            self._reply(smtp_state.NO_SPACE)
        else:
            self.write_reply(smtp_state.GO_AHEAD)
            for reply in await self._receive_message():
                self.write_reply(reply)
            self.flush()  # first of all: a client without a reply may send the message again
            await self._end_transaction()
            self._budget.reset()

    commands: ClassVar[Mapping[str, Callable[..., Awaitable[None]]]] = {
        **SmtpSession.commands,
        "MAIL": _mail,
        "RCPT": _rcpt,
        "DATA": _data,
    }

    async def _receive_message(self) -> Sequence[Reply]:
        context = self._context
        incoming = DataReceiver(
            context.spool_directory,
            context.limits,
            context.byte_quota,
            self._quota_key,
            refuse_header=context.position is not Position.AFTER_QUEUE,
        )
        try:
            await self._receive_data(incoming)
            replies = await self._submit(incoming)
        finally:
            incoming.close()
        # RFC 2033, section 4.2: one for each accepted recipient, in order.
        count = self._accepted_count if context.lmtp else 1
        if len(replies) not in (1, count):
            _log.error("%s: %d replies for %d recipients", self._peer.address, len(replies), count)
            return [smtp_state.LOCAL_ERROR] * count
        return repeat_reply(replies, count)

    async def _receive_data(self, incoming: DataReceiver) -> None:
        """Read to the end of the data, even if the message is refused."""
        limits, refuse = self._context.limits, self._context.odd_bytes is OddBytes.REFUSE
        reader = DataReader(normalise=not refuse)
        started = self.loop.time()
        deadline = started + limits.message_timeout
        while not reader.is_finished:
            if not self.lines.data:
                await self.read_more(min(limits.data_timeout, deadline - self.loop.time()))
            incoming.write(reader.feed(self.lines.take_all()))
            if refuse and reader.oddities:
                incoming.refuse(smtp_state.ODD_BYTES)
        self.clear_deadline()
        self.lines.put_back(reader.rest)
        incoming.oddities |= reader.oddities
        self._context.on_data_received(self.loop.time() - started)

    async def _submit(self, incoming: DataReceiver) -> Sequence[Reply]:
        """Pass the message to the proxy. Meanwhile no timer runs, and the client is not heard."""
        if incoming.refusal is not None:
            self._log_refusal(incoming.refusal)
            return [incoming.refusal]
        if incoming.oddities:
            oddities = ", ".join(sorted(incoming.oddities))
            _log.info("%s: message with %s taken", self._peer.address, oddities)
        try:
            return await self._open_transaction.data(incoming.spool, frozenset(incoming.oddities))
        except Exception:  # noqa: BLE001  a fault of ours must not cost the mail
            _log.exception("%s: a fault in handing on a message", self._peer.address)
            return [smtp_state.LOCAL_ERROR]

    def _log_refusal(self, refusal: Reply) -> None:
        """Log a refusal with its envelope, which nobody behind the door sees."""
        _log.info(
            "%s: message refused: client=%s from=<%s> recipients=%d: %s",
            self._peer.address,
            (self._forwarded_client or self._client).address,
            self._sender.address,
            self._accepted_count,
            refusal.lines[0].decode("ascii"),
        )


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
    context = SessionContext(
        proxy=proxy,
        lmtp=listener.listen.protocol is Protocol.LMTP,
        hostname=hostname,
        limits=listener.limits,
        byte_quota=ByteQuota(listener.limits),
        odd_bytes=listener.odd_bytes or default,
        position=listener.position,
        trusted=Networks(listener.trusted),
        tls=None if listener.tls is None else smtp_connection.CertificateReloader(listener.tls),
        spool_directory=spool_directory,
        on_data_received=on_data_received,
    )
    scratch = memoryview(bytearray(READ_BYTES))

    def make_session(address: str, port: str) -> SmtpMailSession:
        return SmtpMailSession(context, asyncio.get_running_loop(), scratch, address, port)

    return Door(make_session, sockets, Networks(listener.clients), listener.limits)
