"""Delivery by SMTP (RFC 5321), with one reply for all recipients, or by LMTP (RFC 2033), with one
for each.

`SmtpNextHop` opens a session: connection, greeting, EHLO or LHLO, STARTTLS (RFC 3207).
`SessionPool` keeps idle sessions for the next message. `SmtpTransaction` is one message. Until the
hop has said 354, a transaction that lost its session begins again on a new one, once, and goes on
only if it gets the same replies.

It is written by hand because aiosmtplib has no LMTP and no XFORWARD, holds whole messages in
memory, and rewrites a bare CR or LF.

Must never send the data twice, never open a session without TLS where it is required, never believe
what was said before TLS, and never reuse a session whose last transaction had an error.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from spamguard.config.options import Endpoint, Hop, Protocol, Tls
from spamguard.delivery.connection import NextHopSession, dial
from spamguard.delivery.next_hop import (
    NO_SMTPUTF8,
    ClosingError,
    DeliveryError,
    DisconnectedError,
    ErrorCallback,
    MaildirNextHop,
    NextHop,
    NextHopTimeoutError,
    TlsHandshakeError,
    UnreachableError,
    UnsafeError,
    drop_unsupported,
    ignore_error,
    needs_smtputf8,
)
from spamguard.smtp.commands import dot_stuff, mail_command, rcpt_command, xforward_commands
from spamguard.smtp.envelope import (
    Client,
    Recipient,
    Replies,
    Reply,
    Sender,
    normalise_address,
    parse_extensions,
)
from spamguard.storage import SpoolView

_log = logging.getLogger("spamguard.relay")

# For the rest of a reply that began in the middle of the data, and for replies behind a 421.
_LATE_REPLY_TIMEOUT = 1.0


def make_tls_context(tls: Tls) -> ssl.SSLContext:
    """A context that checks the certificate only where TLS is required."""
    context = ssl.create_default_context()
    if tls is not Tls.REQUIRED:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def wants_tls(tls: Tls, offered: bool, peer: str) -> bool:
    """Whether to start TLS. UnsafeError: it is required, and not offered."""
    if tls is Tls.REQUIRED and not offered:
        raise UnsafeError("TLS is required, and not offered")
    return tls is Tls.REQUIRED or (tls is Tls.OPPORTUNISTIC and offered and not is_local(peer))


def is_local(peer: str) -> bool:
    """Whether the other end is on this machine. peer: an address, "" for a Unix socket.

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
            self._idle[session] = loop.call_later(self._hop.idle, self._expire, session)
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

    def _expire(self, session: NextHopSession) -> None:
        del self._idle[session]
        self._quit(session)

    def _quit(self, session: NextHopSession) -> None:
        task = asyncio.get_running_loop().create_task(session.quit())
        self._quitting.add(task)
        task.add_done_callback(self._quitting.discard)


class SmtpNextHop:
    """A next hop on a connection. hostname: ours, for EHLO."""

    def __init__(self, hop: Hop, hostname: str, on_error: ErrorCallback = ignore_error) -> None:
        self.settings = hop
        self.on_error = on_error
        self.pool = SessionPool(hop)
        self.extensions: Mapping[str, str] | None = None
        self._hostname = hostname
        self._verbs = ("LHLO",) if self.answers_each else ("EHLO", "HELO")
        self._tls_context: ssl.SSLContext | None = None

    @property
    def answers_each(self) -> bool:
        return self.settings.to.protocol is Protocol.LMTP

    async def probe(self) -> None:
        """Open a session for the next message; never raises."""
        try:
            self.pool.put(await self.open())
        except DeliveryError as error:
            _log.warning("next hop %s: %s", self.settings.to, error)
            self.on_error(error)

    def transaction(self, client: Client) -> SmtpTransaction:
        return SmtpTransaction(self, client)

    async def close(self) -> None:
        await self.pool.close()

    async def open(self) -> NextHopSession:
        """A new session. UnreachableError, UnsafeError."""
        try:
            return await self._open(self.settings.tls)
        except TlsHandshakeError as error:
            if self.settings.tls is Tls.REQUIRED:
                raise
            # Opportunistic: unencrypted mail is better than none (RFC 7435).
            _log.warning("next hop %s: %s; going on without", self.settings.to, error)
            return await self._open(Tls.OFF)

    async def _open(self, tls: Tls) -> NextHopSession:
        session = await dial(self.settings.to, self.settings.connect, self.settings.command)
        try:
            greeting = await session.read_reply()
            if not greeting.is_positive:
                raise UnreachableError(f"not welcome: {greeting}")
            extensions = await self._say_hello(session)
            if wants_tls(tls, "STARTTLS" in extensions, session.peer):
                await self._start_tls(session)
                extensions = await self._say_hello(session)
            session.mark_ready(extensions)
            self.extensions = extensions
        except (DisconnectedError, NextHopTimeoutError) as error:
            session.abort()
            raise UnreachableError(f"at the start: {error}") from error
        except BaseException:
            session.abort()
            raise
        return session

    async def _say_hello(self, session: NextHopSession) -> Mapping[str, str]:
        """The extensions that the hop announces."""
        for verb in self._verbs:
            reply = await session.request(f"{verb} {self._hostname}\r\n".encode("ascii"))
            if reply.is_positive:
                return {} if verb == "HELO" else parse_extensions(reply)
            if reply.code < 500:
                break
        raise UnreachableError(f"not welcome: {reply}")

    async def _start_tls(self, session: NextHopSession) -> None:
        reply = await session.request(b"STARTTLS\r\n")
        if not reply.is_positive:
            raise TlsHandshakeError(f"STARTTLS refused: {reply}")
        if not session.is_quiet:  # RFC 3207, section 6
            raise UnsafeError("more than the answer to STARTTLS came before the handshake")
        if self._tls_context is None:
            self._tls_context = make_tls_context(self.settings.tls)
        await session.start_tls(self._tls_context, self.settings.to.host, self.settings.connect)


@dataclass
class SmtpTransaction:
    """One message on its way out. After an error every further reply is the same 451.

    client: goes out by XFORWARD where the hop accepts it.
    """

    _hop: SmtpNextHop
    _client: Client
    _session: NextHopSession | None = None
    _completed_steps: list[tuple[Sender | Recipient, int]] = field(default_factory=list)
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
        return await self._send_message(content, count) if reply.is_positive else [reply] * count

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
        if step is not None:
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
        if "SMTPUTF8" not in extensions and needs_smtputf8(step):
            return NO_SMTPUTF8
        if isinstance(step, Recipient):
            return await session.request(rcpt_command(drop_unsupported(step, extensions)))
        command = mail_command(drop_unsupported(step, extensions))
        # XFORWARD, whose refusal does not matter, and MAIL; together where the hop accepts that.
        announced = extensions.get("XFORWARD")
        forwards = [] if announced is None else xforward_commands(self._client, announced)
        if "PIPELINING" not in extensions:
            for forward in forwards:
                await session.request(forward)
            return await session.request(command)
        session.send_commands(*forwards, command)
        for _ in forwards:
            await session.read_reply()
        return await session.read_reply()

    async def _send_message(self, content: SpoolView, count: int) -> list[Reply]:
        """After the 354: whatever happens from here on, the message is not sent again."""
        session = await self._borrow_session()
        replies: list[Reply] = []
        try:
            await self._send_content(session, content, count, replies)
            session.mark_ready()
        except DeliveryError as error:
            self._report_error(error)
            session.abort()
            replies += [error.reply] * (count - len(replies))
        except (OSError, ValueError) as error:  # the content is unreadable, or must not be sent
            self._report_error(error)
            session.abort()
            replies = [Replies.LOCAL_ERROR] * count
        return replies

    async def _send_content(
        self, session: NextHopSession, content: SpoolView, count: int, replies: list[Reply]
    ) -> None:
        is_whole = await session.send_data(dot_stuff(content.chunks()), count)
        deadline = session.deadline_after(
            self._hop.settings.data if is_whole else _LATE_REPLY_TIMEOUT
        )
        for _ in range(count):
            try:
                replies.append(await session.read_reply(deadline, positive=2 if is_whole else 4))
            except ClosingError as error:
                # It answers one recipient. Others may have the message, and would get it twice.
                self._report_error(error)
                replies.append(error.reply)
                deadline = min(deadline, session.deadline_after(_LATE_REPLY_TIMEOUT))

    def _report_error(self, error: Exception) -> None:
        _log.warning("next hop %s: %s: %s", self._hop.settings.to, type(error).__name__, error)
        self._hop.on_error(error)


def create_next_hop(hop: Hop, hostname: str, on_error: ErrorCallback = ignore_error) -> NextHop:
    """The next hop of the configuration; it connects when it is first used.

    hostname: ours, for EHLO and the names of files.
    """
    if hop.to.path is not None and hop.to.protocol is Protocol.MAILDIR:
        return MaildirNextHop(hop.to.path, hostname, on_error=on_error)
    return SmtpNextHop(hop, hostname, on_error)


# ---- is a next hop there?

HOP_TIMEOUT = 3.0  # seconds, for the greeting of a next hop


async def find_unreachable(hops: Iterable[Hop], hostname: str) -> list[str]:
    """Describe next hops that do not greet, or Maildirs that cannot be written."""
    return [
        f"next hop {endpoint}: {trouble}"
        for endpoint, trouble in (await probe_next_hops(hops, hostname)).items()
        if trouble
    ]


async def probe_next_hops(hops: Iterable[Hop], hostname: str) -> dict[Endpoint, str]:
    """Return the fault of each next hop, or "". Only a greeting is sent to it.

    hostname: ours.
    """
    different = {hop.to: hop for hop in hops}
    answers = await asyncio.gather(*(_probe_next_hop(hop, hostname) for hop in different.values()))
    return dict(zip(different, answers, strict=True))


async def _probe_next_hop(hop: Hop, hostname: str) -> str:
    try:
        if hop.to.protocol is Protocol.MAILDIR:
            unwritable = asyncio.to_thread(_find_unwritable, hop.to.path or Path("/"))
            return await asyncio.wait_for(unwritable, HOP_TIMEOUT)
        quick = replace(hop, connect=HOP_TIMEOUT, command=HOP_TIMEOUT)
        session = await asyncio.wait_for(SmtpNextHop(quick, hostname).open(), HOP_TIMEOUT)
        await session.quit()  # waits for a second at most
    except TimeoutError:
        return f"no answer within {HOP_TIMEOUT:.0f} s"
    except DeliveryError as trouble:
        return str(trouble)
    return ""


def _find_unwritable(maildir: Path) -> str:
    """Accept a missing Maildir if it can be created, as the first message does."""
    path = next(path for path in (maildir / "new", maildir, *maildir.parents) if path.exists())
    return "" if os.access(path, os.W_OK | os.X_OK) else f"{path} may not be written"
