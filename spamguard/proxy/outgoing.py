"""The header section of a spooled message, and the message as it leaves: with fields on top.

Needs no more memory than the header section. Must never change a byte of the body, nor one of a
field that is not named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from email.header import Header

from spamguard.config.options import Listener
from spamguard.mail.rewrite import FieldNameSet, add_fields, rewrite_header
from spamguard.spool import Spool, SpoolView

_HEAD_BYTES = 64 << 10  # that hold the header section of all but very odd mail
_MAX_HEADER_BYTES = 1 << 20
_HEADER_END = re.compile(rb"\n(?=\r?\n)")
_FIELD_NAME = re.compile(rb"^([!-9;-~]{1,100})[ \t]*:", re.MULTILINE)
_EMPTY_LINE = re.compile(rb"\r?\n")
_FIELD_END = re.compile(rb"\n(?=[^ \t])")


def read_header_section(message: Spool, max_bytes: int = _MAX_HEADER_BYTES) -> bytes:
    """The header section with its last line end, without the empty line below it.

    If it does not end within `max_bytes`, the complete fields in them. Any line ends.
    """
    head = message.read_start(_HEAD_BYTES)
    if (end := _find_header_end(head)) is None and message.size > len(head):
        head = message.read_start(max_bytes)
        end = _find_header_end(head)
    if end is None and message.size > len(head):
        field_ends = _FIELD_END.finditer(head, max(0, len(head) - _HEAD_BYTES))
        end = max((match.end() for match in field_ends), default=0)
    return head if end is None else head[:end]


def _find_header_end(head: bytes) -> int | None:
    if head.startswith((b"\n", b"\r\n")):
        return 0
    match = _HEADER_END.search(head)
    return match.end() if match else None


def matching_field_names(header: bytes, names: Sequence[str]) -> list[str]:
    """Which of these fields a header section has, spelt as there. A `*` at the end of a name
    stands for anything.

    >>> matching_field_names(b"x-spam-flag: YES\\r\\nTo: b\\r\\n", ["X-Spam-*"])
    ['x-spam-flag']
    """
    wanted = FieldNameSet(names)
    present = dict.fromkeys(match[1] for match in _FIELD_NAME.finditer(header))
    return [name.decode("ascii") for name in present if name in wanted]


def tag_message(message: Spool, fields: Sequence[bytes], forged: Iterable[str]) -> SpoolView:
    """The message with `fields` on top and `forged` ones removed, in its own line ends."""
    header = read_header_section(message)
    empty_line = _EMPTY_LINE.match(message.read_start(len(header) + 2), len(header))
    header += empty_line[0] if empty_line else b""  # `add_fields` looks for the end
    kept = add_fields(header, fields, [name.encode("ascii", "ignore") for name in forged])
    return SpoolView(kept, message, len(header))


class OutgoingMessage:
    """A message on its way through a listener.

    spool: as it came, with CRLF line ends. received: our own Received field, or b"". header: its
    header section, or the complete fields within the listener's limit.
    """

    def __init__(self, spool: Spool, listener: Listener, received: bytes) -> None:
        self.spool = spool
        self._policy = listener.policy
        self._received_field = received
        self.header = read_header_section(spool, listener.limits.header_size)

    def fields_on_top(self, evidence: bytes) -> bytes:
        """The fields that the judge reads as if they stood on top of the message.

        evidence: a Received field about the client, or b"". A server before us may have written
        one already, and then there is none.
        """
        is_recorded = not self._received_field and has_received_on_top(self.header)
        return evidence + b"\r\n" if evidence and not is_recorded else b""

    def tag(self, fields: Sequence[bytes], subject_prefix: str = "") -> SpoolView:
        """The message as it leaves: `fields` on top, above our own Received, and forged ones
        removed.
        """
        on_top = [*fields, *([self._received_field] if self._received_field else [])]
        forged = [name.encode("ascii", "ignore") for name in self._policy.forged]
        prefix = subject_prefix.encode()
        if not subject_prefix.isascii():  # RFC 2047
            prefix = Header(subject_prefix, "utf-8").encode(maxlinelen=0).encode("ascii")
        head, replaced = rewrite_header(self.header, on_top, forged, prefix)
        return SpoolView(head, self.spool, replaced)


def has_received_on_top(header: bytes) -> bool:
    """Whether the first field is a Received field: a server has recorded the client."""
    return header[:9].lower().startswith(b"received:")
