"""What a client of rspamd says of a message in header fields of its request (docs.rspamd.com, "Protocol"). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from spamguard.proxy.asking import Question
from spamguard.spool import Spool
from spamguard.wire.values import Client

_MOST_RECIPIENTS = 1000  # that are remembered
_LONGEST = 512  # letters of an address or a name

Fields = Mapping[bytes, list[bytes]]
"""Values of header fields by their name in lower case."""


def fields(headers: Iterable[tuple[bytes, bytes]]) -> Fields:
    """Header fields as h11 gives them."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(value)
    return found


def text(told: Fields, name: bytes) -> str:
    """The value of a field, the first; "" where there is none."""
    return told.get(name, [b""])[0].decode("utf-8", "replace").strip()[:_LONGEST]


def question(told: Fields, message: Spool, peer: str) -> Question:
    """All that was said. Whose mail it is: who it is delivered to, else the recipients, else the user who is logged in."""
    recipients = [address for one in told.get(b"rcpt", ()) for part in one.split(b",") if (address := _address(part))][:_MOST_RECIPIENTS]
    user, deliver_to = text(told, b"user"), _address(told.get(b"deliver-to", [b""])[0])
    return Question(
        message=message,
        peer=peer,
        sender=_address(told.get(b"from", [b""])[0]),
        recipients=recipients,
        client=_client(told, peer, user),
        user=deliver_to or ("" if recipients else user),
        received_by=text(told, b"mta-name"),
        queue=text(told, b"queue-id"),
    )


def learner(told: Fields) -> str:
    """Whose lesson it is."""
    return text(told, b"user") or _address(told.get(b"deliver-to", [b""])[0])


def _client(told: Fields, peer: str, user: str) -> Client:
    try:
        address = str(ip_address(text(told, b"ip")))
    except ValueError:
        address = ""
    protocol = "ESMTP" + ("S" if b"tls-version" in told else "") + ("A" if user else "")
    return Client(address, text(told, b"hostname"), helo=text(told, b"helo"), protocol=protocol, login=user, peer=peer)


def _address(value: bytes) -> str:
    return value.decode("utf-8", "replace").strip().removeprefix("<").removesuffix(">")[:_LONGEST]
