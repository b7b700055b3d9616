"""How a session with a next hop begins: connection, greeting, EHLO or LHLO, STARTTLS (RFC 5321, 2033, 3207).

Must never hand over a session without TLS where the settings require it, nor believe what was said before TLS.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Mapping

from spamguard.relay.connection import dial
from spamguard.relay.session import Session
from spamguard.relay.trouble import Lost, NoHandshake, Stalled, Unreachable, Unsafe
from spamguard.settings import Hop, Protocol, Tls
from spamguard.wire.replies import extensions

_TRUST_AGAIN = 10.0  # seconds between two readings of whom to trust, which take some 30 ms, while handshakes fail

_log = logging.getLogger("spamguard.relay")


class Opener:
    """Opens sessions with one next hop. hostname: ours."""

    def __init__(self, hop: Hop, hostname: str) -> None:
        self._hop = hop
        verbs = ("LHLO",) if hop.endpoint.protocol is Protocol.LMTP else ("EHLO", "HELO")
        self._hellos = [(verb, f"{verb} {hostname}\r\n".encode("ascii")) for verb in verbs]
        self._made: ssl.SSLContext | None = None
        self._kept_until = 0.0  # whatever comes; a time of the event loop's clock

    async def open(self) -> Session:
        """A new session. Unreachable, Unsafe."""
        try:
            return await self._open(self._hop.tls)
        except NoHandshake as failure:
            if self._hop.tls is Tls.REQUIRED:
                raise
            _log.warning("next hop %s: %s; going on without", self._hop.endpoint, failure)
            return await self._open(Tls.OFF)  # opportunistic: unencrypted mail is better than none (RFC 7435)

    async def _open(self, tls: Tls) -> Session:
        session = Session(await dial(self._hop.endpoint, self._hop.connect_seconds), self._hop.command_seconds)
        try:
            await self._begin(session, tls)
        except (Lost, Stalled) as trouble:
            session.abort()
            raise Unreachable(f"at the start: {trouble}") from trouble
        except BaseException:
            session.abort()
            raise
        return session

    async def _begin(self, session: Session, tls: Tls) -> None:
        greeting = await session.reply()
        if not greeting.positive:
            raise Unreachable(f"not welcome: {greeting}")
        offered = await self._introduce(session)
        if _wanted(tls, "STARTTLS" in offered, session.connection.peer):
            await self._encrypt(session)
            offered = await self._introduce(session)
        session.ready(offered)

    async def _introduce(self, session: Session) -> Mapping[str, str]:
        """Say EHLO, or what is left to say; the extensions."""
        for verb, hello in self._hellos:
            reply = await session.ask(hello)
            if reply.positive:
                return {} if verb == "HELO" else extensions(reply)
            if not reply.permanent:
                break
        raise Unreachable(f"not welcome: {reply}")

    async def _encrypt(self, session: Session) -> None:
        reply = await session.ask(b"STARTTLS\r\n")
        if not reply.positive:
            raise NoHandshake(f"STARTTLS refused: {reply}")
        if not session.connection.quiet:
            raise Unsafe("more than the answer to STARTTLS came before the handshake")  # RFC 3207, section 6
        try:
            await session.connection.secure(self._context, self._hop.endpoint.host, self._hop.connect_seconds)
        except NoHandshake:
            self._doubt()
            raise

    @property
    def _context(self) -> ssl.SSLContext:
        self._made = self._made or _context_for(self._hop.tls)
        return self._made

    def _doubt(self) -> None:
        """The authorities may have been unreadable when they were read (no descriptors left: nothing says so), or are others by now."""
        now = asyncio.get_running_loop().time()
        if self._hop.tls is Tls.REQUIRED and now >= self._kept_until:
            self._made, self._kept_until = None, now + _TRUST_AGAIN


def _context_for(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if tls is not Tls.REQUIRED:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _wanted(tls: Tls, offered: bool, peer: str) -> bool:
    if tls is Tls.REQUIRED and not offered:
        raise Unsafe("TLS is required, and not offered")
    return tls is Tls.REQUIRED or (tls is Tls.OPPORTUNISTIC and offered and not _local(peer))


def _local(peer: str) -> bool:
    """Whether the other end is on this machine. peer: address, "" at a socket."""
    if not peer:
        return True
    address = ipaddress.ip_address(peer.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
