"""What travels between doors, proxy and relay: replies, senders, recipients, clients, envelopes. Data only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Reply:
    """An SMTP reply. lines: the text of each, without code and line end, the enhanced code (RFC 2034) in it as it came."""

    code: int
    lines: tuple[bytes, ...]

    @classmethod
    def of(cls, code: int, text: str) -> Reply:
        """A reply of one line of our own."""
        return cls(code, (text.encode("ascii"),))

    def __str__(self) -> str:
        """As the log tells it."""
        return f"{self.code} {b' '.join(self.lines).decode('utf-8', 'replace')}"[:200]

    @property
    def positive(self) -> bool:
        """Whether it is a yes: 2xx, or 354."""
        return self.code < 400

    @property
    def permanent(self) -> bool:
        """Whether it is a no for ever: 5xx."""
        return self.code >= 500

    def encode(self) -> bytes:
        """As it goes over the wire."""
        *first, last = self.lines or (b"",)
        return b"".join([b"%d-%s\r\n" % (self.code, line) for line in first]) + b"%d %s\r\n" % (self.code, last)


def for_each(replies: Sequence[Reply], count: int) -> Sequence[Reply]:
    """A reply for each of so many recipients, where there may be one for all of them."""
    return replies if len(replies) == count else [replies[0]] * count


class Parameter(NamedTuple):
    """One parameter of MAIL or RCPT: keyword in upper case, value as it came, None when there is no `=`."""

    keyword: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Sender:
    """The argument of MAIL. address: without the angle brackets, "" is the null sender; case and quoting as they came."""

    address: str
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True)
class Recipient:
    """The argument of RCPT. address: without the angle brackets."""

    address: str
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True)
class Client:
    """Whom a message comes from, as far as known; "" is unknown. Overridden by XFORWARD or XCLIENT of a trusted peer.

    address: IPv4 or IPv6 in plain text. protocol: SMTP, ESMTP, LMTP. source: LOCAL or REMOTE (XFORWARD).
    peer: address of the connection itself. forwarded: a trusted peer told it by XFORWARD or XCLIENT.
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
    """Whom a message is from, the recipients that were accepted, in order, and the client that handed it in."""

    sender: Sender
    recipients: tuple[Recipient, ...]
    client: Client
