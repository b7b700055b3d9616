"""Who sent a message and to whom. The protocol has no words for it: Exim, Haraka and spamass-milter put header fields on top. Pure.

Must never believe fields further down: those above them were there before, so these came with the message.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LONGEST = 64 << 10  # bytes of a message that are looked at
_MOST_RECIPIENTS = 1000  # that are remembered
_LONGEST = 512  # letters of an address
_ENVELOPE_LINE = re.compile(rb"From [^\n]*+\n")  # Exim sends a mailbox of one message
_FIELD = re.compile(rb"X-Envelope-(From|To):((?:[^\n]*+\n(?=[ \t])|)*+[^\n]*+)\n", re.IGNORECASE)


class Told(NamedTuple):
    """Addresses without brackets, "" and () where nothing is said."""

    sender: str = ""
    recipients: tuple[str, ...] = ()


def told(head: bytes) -> Told:
    """What the beginning of a message says of its envelope."""
    line = _ENVELOPE_LINE.match(head)
    position, values = line.end() if line else 0, dict[bytes, list[bytes]]()
    while field := _FIELD.match(head, position):
        values.setdefault(field[1].lower(), []).append(field[2])
        position = field.end()
    recipients = (_address(one) for value in values.get(b"to", ()) for one in value.split(b","))
    return Told(_address(values.get(b"from", [b""])[0]), tuple(filter(None, recipients))[:_MOST_RECIPIENTS])


def _address(value: bytes) -> str:
    return value.decode("utf-8", "replace").strip().removeprefix("<").removesuffix(">")[:_LONGEST]
