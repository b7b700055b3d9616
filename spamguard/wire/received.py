"""The Received field of a server (RFC 5321, section 4.4), and how many of them a message has.

What a client says of itself is hostile: nothing of it may end a line, open a comment or look like another part of the field.
"""

from __future__ import annotations

import ipaddress
import re
from email.utils import formatdate
from functools import lru_cache

from spamguard.wire.values import Client

_DOMAIN = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?\.?")
_PATH = re.compile(r"[!-;=?-~]+@[!-;=?-~]+")  # printable ASCII without blank and angle brackets
_ATOM = re.compile(r"[A-Za-z0-9_.-]+")
_RECEIVED = re.compile(rb"^received[ \t]*:", re.IGNORECASE | re.MULTILINE)


def received_field(client: Client, hostname: str, name: str, recipient: str, now: float) -> bytes:
    """The field, folded, without its last line end.

    client: whose helo, name, address and protocol (RFC 3848) are told. name: of the message, for `id`. recipient: for `for`,
    "" when there are several. now: seconds since 1970.
    """
    parts = [f"Received: from {_host(client.helo)}{_who(client)}", f"by {_host(hostname)} with {_atom(client.protocol)} id {_atom(name)}"]
    if _PATH.fullmatch(recipient):
        parts.append(f"for <{recipient}>")
    return ("\r\n\t".join(parts) + f"; {_date(int(now))}").encode("ascii")


def hops(head: bytes) -> int:
    """How many Received fields are in this header section."""
    return len(_RECEIVED.findall(head))


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    """As it is for all messages of a second; "-0000" would say that we do not know our zone."""
    return formatdate(second).replace("-0000", "+0000")


def _host(text: str) -> str:
    """A domain or an address literal; "unknown" for anything else."""
    inside = text[1:-1] if text.startswith("[") and text.endswith("]") else ""
    return text if _DOMAIN.fullmatch(text) else _literal(inside.removeprefix("IPv6:")) or "unknown"


def _who(client: Client) -> str:
    literal = _literal(client.address)
    name = client.name if _DOMAIN.fullmatch(client.name) else ""
    told = " ".join(part for part in (name, literal) if part)
    return f" ({told})" if literal else ""


@lru_cache(maxsize=1024)
def _literal(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    return f"[IPv6:{parsed}]" if parsed.version == 6 else f"[{parsed}]"


def _atom(text: str) -> str:
    return text if _ATOM.fullmatch(text) else "unknown"
