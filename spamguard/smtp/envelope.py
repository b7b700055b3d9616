"""The values that travel between doors, proxy and next hop: replies, envelopes, trace fields.

The Received field (RFC 5321, section 4.4) tells what a client said of itself, and clients are
hostile: no part of it may end a line, open a comment or look like another part of the field.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Reply:
    """An SMTP reply.

    lines: the text of each line without code and line end; an enhanced code (RFC 2034) is part of
    the text.

    >>> str(Reply.from_text(250, "2.0.0 Ok"))
    '250 2.0.0 Ok'
    """

    code: int
    lines: tuple[bytes, ...]

    @classmethod
    def from_text(cls, code: int, text: str) -> Reply:
        """A reply of one line of our own."""
        return cls(code, (text.encode("ascii"),))

    def __str__(self) -> str:
        return f"{self.code} {b' '.join(self.lines).decode('utf-8', 'replace')}"[:200]

    @property
    def is_positive(self) -> bool:
        """2xx, or 354."""
        return self.code < 400

    @property
    def is_permanent(self) -> bool:
        """5xx: a refusal for good."""
        return self.code >= 500

    def encode(self) -> bytes:
        """The bytes that go over the wire."""
        *first, last = self.lines or (b"",)
        head = b"".join([b"%d-%s\r\n" % (self.code, line) for line in first])
        return head + b"%d %s\r\n" % (self.code, last)


def repeat_reply(replies: Sequence[Reply], count: int) -> Sequence[Reply]:
    """One reply for each of `count` recipients, from as many or from one for all of them."""
    return replies if len(replies) == count else [replies[0]] * count


class EsmtpParameter(NamedTuple):
    """A parameter of MAIL or RCPT: keyword in upper case; value as sent, None without a `=`."""

    keyword: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Sender:
    """The argument of MAIL. address: without angle brackets, case and quoting as sent; "" is the
    null sender.
    """

    address: str
    parameters: tuple[EsmtpParameter, ...] = ()


@dataclass(frozen=True, slots=True)
class Recipient:
    """The argument of RCPT. address: without angle brackets."""

    address: str
    parameters: tuple[EsmtpParameter, ...] = ()


@dataclass(frozen=True, slots=True)
class Client:
    """The host that a message comes from, as far as known; "" means unknown.

    A trusted peer overrides the fields by XFORWARD or XCLIENT, and `forwarded` is then true.
    address: IPv4 or IPv6 in plain text. protocol: SMTP, ESMTP, LMTP. source: LOCAL or REMOTE
    (XFORWARD). peer: address of the connection itself.
    """

    address: str = ""
    name: str = ""
    port: str = ""
    helo: str = ""
    protocol: str = ""
    ident: str = ""
    source: str = ""
    login: str = ""
    peer: str = ""
    forwarded: bool = False


@dataclass(frozen=True, slots=True)
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

    Parameters
    ----------
    client : its helo, name, address and protocol (RFC 3848) are written.
    hostname : of this server.
    name : of the message, for `id`.
    recipient : for `for`; "" when there are several.
    now : seconds since 1970.
    """
    literal = _address_literal(client.address)
    comment = ""
    if literal:
        comment = (
            f" ({client.name} {literal})" if _DOMAIN.fullmatch(client.name) else f" ({literal})"
        )
    parts = [
        f"Received: from {_host_name(client.helo)}{comment}",
        f"by {_host_name(hostname)} with {_safe_atom(client.protocol)} id {_safe_atom(name)}",
    ]
    if _PATH.fullmatch(recipient):
        parts.append(f"for <{recipient}>")
    return ("\r\n\t".join(parts) + f"; {_format_date(int(now))}").encode("ascii")


def count_hops(header: bytes) -> int:
    """How many Received fields a header section has."""
    return len(_RECEIVED.findall(header))


@lru_cache(maxsize=1)
def _format_date(second: int) -> str:
    """A date of RFC 5322; its "-0000" would say that we do not know our zone."""
    return formatdate(second).replace("-0000", "+0000")


def _host_name(text: str) -> str:
    """A domain or an address literal; "unknown" for anything else."""
    inside = text[1:-1] if text.startswith("[") and text.endswith("]") else ""
    if _DOMAIN.fullmatch(text):
        return text
    return _address_literal(inside.removeprefix("IPv6:")) or "unknown"


@lru_cache(maxsize=1024)
def _address_literal(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    return f"[IPv6:{parsed}]" if parsed.version == 6 else f"[{parsed}]"


def _safe_atom(text: str) -> str:
    return text if _ATOM.fullmatch(text) else "unknown"
