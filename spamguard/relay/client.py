"""Handing on by SMTP (RFC 5321), which has one reply for all recipients, or by LMTP (RFC 2033), which has one for each.

Until the hop has said 354, a transaction that lost its session begins again on a new one, once, and goes on only if it hears
the same answers. The data is sent once, whatever happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

from spamguard.relay.contract import Notice, unnoticed
from spamguard.relay.envelope import fitted, loses_dsn, needs_smtputf8
from spamguard.relay.opening import Opener
from spamguard.relay.pool import Pool
from spamguard.relay.session import Session
from spamguard.relay.trouble import CONTENT_TROUBLE, NO_SMTPUTF8, UNFIT, Closing, Lost, Trouble
from spamguard.settings import Hop, Protocol
from spamguard.spool import Content
from spamguard.wire.attributes import attributes
from spamguard.wire.commands import mail_command, rcpt_command
from spamguard.wire.data import stuffed
from spamguard.wire.values import Client, Recipient, Reply, Sender

_KNOWN_FOR = 60.0  # seconds until a probe looks again
_LAST_LOOK = 1.0  # seconds for a probe that is under way when we close
_LAST_WORDS = 1.0  # seconds for the rest of a reply that began in the middle of the data, and for replies behind a 421

_log = logging.getLogger("spamguard.relay")


class StreamHop:
    """A next hop that is spoken to over a connection. hostname: ours, for EHLO."""

    def __init__(self, hop: Hop, hostname: str, notice: Notice = unnoticed) -> None:
        self.settings = hop
        self.notice = notice
        self.pool = Pool(hop)
        self._opener = Opener(hop, hostname)
        self._extensions: Mapping[str, str] | None = None
        self._looked = -_KNOWN_FOR
        self._probing: asyncio.Task[None] | None = None

    @property
    def answers_each(self) -> bool:
        """Whether every recipient gets a reply of its own after the data."""
        return self.settings.endpoint.protocol is Protocol.LMTP

    @property
    def extensions(self) -> Mapping[str, str] | None:
        """EHLO keywords (upper case) and their parameters, as the last session saw them; None before the first."""
        return self._extensions

    async def probe(self) -> None:
        """Open a session, unless that was tried a short time ago; never raises. It is kept for the next message."""
        if self._probing is None:
            if asyncio.get_running_loop().time() - self._looked < _KNOWN_FOR:
                return
            self._probing = asyncio.create_task(self._look())
        await asyncio.shield(self._probing)

    def transaction(self, client: Client) -> StreamTransaction:
        """A new transaction; nothing is sent before its `mail`. client: told by XFORWARD where the hop takes it."""
        return StreamTransaction(self, client)

    async def close(self) -> None:
        """Close idle sessions; running transactions finish."""
        if self._probing is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._probing, _LAST_LOOK)
        await self.pool.close()

    async def open(self) -> Session:
        """A new session. Unreachable, Unsafe."""
        session = await self._opener.open()
        self._extensions = session.extensions
        self._looked = asyncio.get_running_loop().time()
        return session

    async def _look(self) -> None:
        try:
            self.pool.put(await self.open())
        except Trouble as trouble:
            _log.warning("next hop %s: %s", self.settings.endpoint, trouble)
            self.notice(trouble)
        finally:
            self._looked = asyncio.get_running_loop().time()
            self._probing = None


class StreamTransaction:
    """One message on its way out. After any trouble every further answer is the same 451."""

    def __init__(self, hop: StreamHop, client: Client) -> None:
        self._hop = hop
        self._client = client
        self._session: Session | None = None
        self._told: list[tuple[Sender | Recipient, int]] = []
        self._accepted = 0
        self._began_again = False
        self._dsn_lost = False
        self._trouble: Reply | None = None

    async def mail(self, sender: Sender) -> Reply:
        """Open or borrow a session and pass MAIL on; the next hop's reply, as it is."""
        return await self._pass_on(sender)

    async def recipient(self, recipient: Recipient) -> Reply:
        """Pass one RCPT on; the next hop's reply, as it is."""
        reply = await self._pass_on(recipient)
        self._accepted += reply.positive
        return reply

    async def send(self, content: Content) -> Sequence[Reply]:
        """DATA, the message, the final dot: one attempt. One reply for each accepted recipient where the hop answers each, else one."""
        count = self._accepted if self._hop.answers_each else 1
        reply = await self._pass_on(None)
        return await self._hand_over(content, count) if reply.positive else [reply] * count

    async def end(self) -> None:
        """Give the session back, or close it; idempotent."""
        session, self._session = self._session, None
        if session is not None:
            self._hop.pool.put(session)

    async def _pass_on(self, step: Sender | Recipient | None) -> Reply:
        """One step before the data; None is DATA."""
        if self._trouble is None:
            try:
                return await self._exchange(step)
            except Trouble as trouble:
                self._log(trouble)
                self._trouble = trouble.reply
        return self._trouble

    async def _exchange(self, step: Sender | Recipient | None) -> Reply:
        try:
            reply = await self._ask(await self._borrowed(), step)
        except Lost as lost:
            reply = await self._ask(await self._again(lost), step)
        if step is not None:
            self._told.append((step, reply.code))
        return reply

    async def _borrowed(self) -> Session:
        if self._session is None:
            self._session = self._hop.pool.take() or await self._hop.open()
        return self._session

    async def _again(self, lost: Lost) -> Session:
        """A new session that is where the lost one was. A 421 on a session of our own making is an answer, not a loss."""
        if self._began_again or self._session is None or (isinstance(lost, Closing) and not self._session.reused):
            raise lost
        self._began_again = True
        _log.info("next hop %s: session lost (%s), beginning again", self._hop.settings.endpoint, lost)
        self._session.abort()
        self._session = None
        self._session = session = await self._hop.open()
        for step, told in self._told:
            reply = await self._ask(session, step)
            if reply.code != told:
                raise Lost(f"on a new session {told} became {reply}")
        return session

    async def _ask(self, session: Session, step: Sender | Recipient | None) -> Reply:
        if step is None:
            return await session.ask(b"DATA\r\n", positive=3)
        if "SMTPUTF8" not in session.extensions and needs_smtputf8(step):
            return NO_SMTPUTF8
        if not self._dsn_lost and loses_dsn(step, session.extensions):
            self._dsn_lost = True
            _log.info("next hop %s: takes no DSN, parameters dropped", self._hop.settings.endpoint)
        try:
            command = _command(step, session.extensions)
        except ValueError:  # nothing that came in through a door, which has read it strictly
            return UNFIT
        return await (session.ask(command) if isinstance(step, Recipient) else self._begin(session, command))

    async def _begin(self, session: Session, mail: bytes) -> Reply:
        """XFORWARD, whose refusal matters to nobody, and MAIL; together where the hop takes it."""
        announced = session.extensions.get("XFORWARD")
        commands = [mail] if announced is None else [*attributes(self._client, announced), mail]
        if "PIPELINING" not in session.extensions:
            for command in commands[:-1]:
                await session.ask(command)
            return await session.ask(mail)
        session.say(*commands)
        for _ in commands[:-1]:
            await session.reply()
        return await session.reply()

    async def _hand_over(self, content: Content, count: int) -> list[Reply]:
        """After the 354: whatever happens from here on, the message is not sent again."""
        session = await self._borrowed()
        replies: list[Reply] = []
        try:
            await self._send_whole(session, content, count, replies)
            session.ready()
        except Trouble as trouble:
            self._log(trouble)
            session.abort()
            replies += [trouble.reply] * (count - len(replies))
        except (OSError, ValueError) as trouble:  # of the content: it cannot be read, or must not be sent
            self._log(trouble)
            session.abort()
            replies = [CONTENT_TROUBLE] * count
        return replies

    async def _send_whole(self, session: Session, content: Content, count: int, replies: list[Reply]) -> None:
        whole = await session.pour(stuffed(content.chunks()), count)
        deadline = session.connection.deadline(self._hop.settings.data_seconds if whole else _LAST_WORDS)
        for _ in range(count):
            try:
                replies.append(await session.reply(deadline, positive=2 if whole else 4))
            except Closing as closing:  # said of one recipient; others may have the message, and would get it again
                self._log(closing)
                replies.append(closing.reply)
                deadline = min(deadline, session.connection.deadline(_LAST_WORDS))

    def _log(self, trouble: Exception) -> None:
        _log.warning("next hop %s: %s: %s", self._hop.settings.endpoint, type(trouble).__name__, trouble)
        self._hop.notice(trouble)


def _command(step: Sender | Recipient, extensions: Mapping[str, str]) -> bytes:
    if isinstance(step, Recipient):
        return rcpt_command(fitted(step, extensions))
    return mail_command(fitted(step, extensions))
