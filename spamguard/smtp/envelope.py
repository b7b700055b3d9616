"""The values that travel between doors, proxy and next hop: replies, envelopes, trace fields.

`ReplyReader` reads the replies of a next hop (RFC 5321, section 4.2). It is tolerant of line ends;
it must never let a reply grow without bound, nor let a byte through that could split it when it is
passed on. The Received field says what a client said of itself, and clients are hostile: no part of
it may end a line, open a comment or look like another part.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Reply:
    """An SMTP reply; its lines have no code and no line end, but an enhanced code (RFC 2034)."""

    code: int
    lines: tuple[bytes, ...]

    @classmethod
    def from_text(cls, code: int, text: str) -> Reply:
        return cls(code, (text.encode("ascii"),))

    def __str__(self) -> str:
        return f"{self.code} {self.text}"[:200]

    @property
    def text(self) -> str:
        """All lines as one."""
        return b" ".join(self.lines).decode("utf-8", "replace")

    @property
    def is_positive(self) -> bool:
        """2xx, or 354."""
        return self.code < 400

    def encode(self) -> bytes:
        *first, last = self.lines
        head = b"".join([b"%d-%s\r\n" % (self.code, line) for line in first])
        return head + b"%d %s\r\n" % (self.code, last)


class RefusedError(Exception):
    """Carries the answer to what a client may not say, in words of its protocol (SMTP: `Reply`)."""

    def __init__(self, reply: Any, *, ends_session: bool = False) -> None:
        super().__init__(reply)
        self.reply = reply
        self.ends_session = ends_session


def repeat_reply(replies: Sequence[Reply], count: int) -> Sequence[Reply]:
    """One reply for each of `count` recipients, from as many or from one for all of them."""
    return replies if len(replies) == count else [replies[0]] * count


_reply = Reply.from_text


class Replies:
    """Our own fixed replies (RFC 5321, section 4.2; RFC 3463). A 421 ends the session."""

    OK = _reply(250, "2.0.0 Ok")
    BYE = _reply(221, "2.0.0 Bye")
    GO_AHEAD = _reply(354, "End data with <CR><LF>.<CR><LF>")
    LOCAL_ERROR_IN_DATA = _reply(421, "4.3.0 Local trouble, closing connection, try again later")
    TIMED_OUT = _reply(421, "4.4.2 Timeout, closing connection")
    SHUTTING_DOWN = _reply(421, "4.3.2 Shutting down, try again later")
    EVICTED = _reply(421, "4.3.2 Idle while others wait to be served, closing connection")
    TOO_MANY_COMMANDS = _reply(421, "4.7.0 Too many commands without a message, closing connection")
    TOO_MANY_CONNECTIONS = _reply(421, "4.7.0 Too many connections, try again later")
    NOT_SMTP = _reply(421, "4.7.0 This is no SMTP, closing connection")
    LOCAL_ERROR = _reply(451, "4.3.0 Local trouble, try again later")
    NO_SPACE = _reply(452, "4.3.1 No space left for this message now, try again later")
    ONE_RECIPIENT = _reply(
        452, "4.5.3 One recipient for each message here, send it again for the others"
    )
    TOO_MANY_RECIPIENTS = _reply(452, "4.5.3 Too many recipients, send it again for the others")
    LINE_TOO_LONG = _reply(500, "5.5.0 Command line too long")
    BAD_LINE = _reply(500, "5.5.2 Line has bare CR, bare LF or NUL in it")
    BARE_LF = _reply(500, "5.5.2 A line ends in CR LF, not in LF alone, closing connection")
    UNKNOWN_COMMAND = _reply(500, "5.5.2 Command not recognised")
    BAD_ARGUMENT = _reply(501, "5.5.4 Syntax error in the argument")
    BAD_SEQUENCE = _reply(503, "5.5.1 Bad sequence of commands")
    NOT_ALLOWED = _reply(550, "5.7.0 Command not allowed for this client")
    SIZE_LIMIT = _reply(552, "5.3.4 Message is too big")
    NO_RECIPIENTS = _reply(554, "5.5.1 No valid recipients")
    CLIENT_REFUSED = _reply(554, "5.7.1 This server accepts no mail from you")
    ODD_BYTES = _reply(554, "5.6.0 Message has bare CR, bare LF or NUL in it")


def with_enhanced_code(line: str) -> Reply:
    """The reply in a line of aiosmtpd, with an enhanced code (RFC 2034; RFC 3463, section 3.6).

    >>> str(with_enhanced_code("503 Error: send HELO first"))
    '503 5.5.0 Error: send HELO first'
    """
    detail = "0.0" if line.startswith("2") else "5.0"
    return Reply.from_text(int(line[:3]), f"{line[0]}.{detail} {line[4:]}")


class EsmtpParameter(NamedTuple):
    """A parameter of MAIL or RCPT: keyword in upper case; value as sent, None without a `=`."""

    keyword: str
    value: str | None


@dataclass(frozen=True)
class Sender:
    """The argument of MAIL; the address has no angle brackets, "" is the null sender."""

    address: str
    parameters: tuple[EsmtpParameter, ...] = ()

    @property
    def needs_smtputf8(self) -> bool:
        """Whether only a hop with SMTPUTF8 can have it.

        An address beyond ASCII without that parameter is for the hop to judge.
        """
        return ("SMTPUTF8", None) in self.parameters


@dataclass(frozen=True)
class Recipient:
    """The argument of RCPT; the address has no angle brackets."""

    address: str
    parameters: tuple[EsmtpParameter, ...] = ()


@dataclass(frozen=True)
class Client:
    """The host that a message comes from, as far as known; "" means unknown."""

    address: str = ""  # IPv4 or IPv6 in plain text
    name: str = ""
    port: str = ""
    helo: str = ""
    protocol: str = ""  # SMTP, ESMTP, LMTP and the like (RFC 3848)
    ident: str = ""
    source: str = ""  # LOCAL or REMOTE (XFORWARD)
    login: str = ""
    peer: str = ""  # address of the connection itself
    forwarded: bool = False  # a trusted peer has overridden the fields (XFORWARD, XCLIENT)


@dataclass(frozen=True)
class Envelope:
    """Sender, accepted recipients in order, and the client that handed the message in."""

    sender: Sender
    recipients: tuple[Recipient, ...]
    client: Client


MAX_ADDRESS_LENGTH = 512
"""Characters of an address or a name that a program tells us about a message."""


def bare_address(text: str) -> str:
    """An address without angle brackets, cut at `MAX_ADDRESS_LENGTH`.

    >>> bare_address(" <anna@example.org>")
    'anna@example.org'
    """
    return text.strip().removeprefix("<").removesuffix(">")[:MAX_ADDRESS_LENGTH]


# ---- trace fields

_DOMAIN = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?\.?")
_PATH = re.compile(r"[!-;=?-~]+@[!-;=?-~]+")  # printable ASCII without blank and angle brackets
_ATOM = re.compile(r"[A-Za-z0-9_.-]+")
_RECEIVED = re.compile(rb"^received[ \t]*:", re.IGNORECASE | re.MULTILINE)


def received_field(client: Client, hostname: str, name: str, recipient: str, now: float) -> bytes:
    """A Received field, folded, without its last line end.

    The name is that of the message, and the recipient "" when there are several.
    """
    comment = ""
    if literal := _address_literal(client.address):
        name_of_client = f"{client.name} " if _DOMAIN.fullmatch(client.name) else ""
        comment = f" ({name_of_client}{literal})"
    protocol, name = (
        text if _ATOM.fullmatch(text) else "unknown" for text in (client.protocol, name)
    )
    parts = [
        f"Received: from {_host_name(client.helo)}{comment}",
        f"by {_host_name(hostname)} with {protocol} id {name}",
    ]
    if _PATH.fullmatch(recipient):
        parts.append(f"for <{recipient}>")
    # A date of RFC 5322; its "-0000" would say that we do not know our zone.
    date = formatdate(int(now)).replace("-0000", "+0000")
    return ("\r\n\t".join(parts) + f"; {date}").encode("ascii")


def count_hops(header: bytes) -> int:
    """How many Received fields a header section has."""
    return len(_RECEIVED.findall(header))


def _host_name(text: str) -> str:
    """A domain or an address literal; "unknown" for anything else."""
    if _DOMAIN.fullmatch(text):
        return text
    return _address_literal(text.strip("[]").removeprefix("IPv6:")) or "unknown"


def _address_literal(address: str) -> str:
    try:
        parsed = _parse_address(address.partition("%")[0])
    except ValueError:
        return ""
    return f"[IPv6:{parsed}]" if parsed.version == 6 else f"[{parsed}]"


# ---- replies of a next hop

MAX_REPLY_BYTES = 64 << 10  # of one reply, line ends included

_REPLY_LINE = re.compile(rb"([2-5][0-9][0-9])(?:([ -])(.*))?", re.DOTALL)
_NOT_PRINTABLE = re.compile(rb"[^ -~]")
_HARMLESS = bytes.maketrans(b"\r\0", b"??")


class ReplyError(ValueError):
    """The next hop sent something that is no reply; the session cannot go on."""


class ReplyReader:
    """Takes bytes cut anywhere and gives one reply after the other."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._lines: list[bytes] = []
        self._code = 0
        self._size = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes that came and belong to no reply taken yet."""
        return self._size + len(self._unread)

    def feed(self, data: bytes) -> None:
        self._unread += data

    def next_reply(self) -> Reply | None:
        """The next reply, None while it is not complete.

        Raises ReplyError if the bytes are no reply, or one that is too long.
        """
        while (end := self._unread.find(b"\n")) >= 0:
            line = bytes(self._unread[:end])
            del self._unread[: end + 1]
            self._size += len(line) + 1
            match = _REPLY_LINE.fullmatch(line.removesuffix(b"\r"))
            if match is None:
                raise ReplyError("a line is no reply")
            if self._lines and int(match[1]) != self._code:
                raise ReplyError("a reply has more than one code")
            self._code = int(match[1])
            self._lines.append((match[3] or b"").translate(_HARMLESS))
            if match[2] != b"-":
                reply = Reply(self._code, tuple(self._lines))
                self._lines, self._size = [], 0
                return reply
        if self.pending_bytes > MAX_REPLY_BYTES:
            raise ReplyError("a reply is too long")
        return None


def parse_extensions(reply: Reply) -> dict[str, str]:
    """The extensions in a positive reply to EHLO or LHLO: upper-case keyword to parameters.

    The first line of a keyword counts (RFC 5321, section 4.1.1.1). Our own clients see the
    parameters: a byte beyond printable ASCII becomes "?".
    """
    offered: dict[str, str] = {}
    for line in reply.lines[1:]:
        text = _NOT_PRINTABLE.sub(b"?", line.strip()).decode("ascii")
        keyword, _, parameters = text.partition(" ")
        offered.setdefault(keyword.upper(), parameters.strip())
    return offered


# ---- addresses

_parse_address = lru_cache(1024)(ipaddress.ip_address)  # the same clients come again


class Networks:
    """Addresses, given as networks in CIDR notation. "", of a Unix socket, is always in."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def __contains__(self, address: str) -> bool:
        if not address:
            return True
        parsed = _parse_address(address)
        return any(parsed in network for network in self._networks)


def normalise_address(address: str) -> str:
    """An address without its zone, and IPv4 where it came through an IPv6 socket.

    >>> normalise_address("::ffff:192.0.2.1")
    '192.0.2.1'
    """
    parsed = _parse_address(address.partition("%")[0])
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def client_prefix(address: str) -> str:
    """The network from which one client can choose its address: a /64 of IPv6, else the address.

    >>> client_prefix("2001:db8::7"), client_prefix("192.0.2.1")
    ('2001:db8::/64', '192.0.2.1')
    """
    return str(ipaddress.IPv6Network((address, 64), strict=False)) if ":" in address else address
