"""The header section of a message with any line ends, and the message with other fields on top. Needs no more memory than that section.

Must never change a byte of the body, nor one of a field that is not named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from spamguard.mail.rewrite import FieldNames, with_fields
from spamguard.spool import Content, Spool

_USUAL = 64 << 10  # bytes that hold the header section of all but very odd mail
_MOST = 1 << 20
_END = re.compile(rb"\n(?=\r?\n)")
_NAME = re.compile(rb"^([!-9;-~]{1,100})[ \t]*:", re.MULTILINE)
_EMPTY_LINE = re.compile(rb"\r?\n")
_FIELD_END = re.compile(rb"\n(?=[^ \t])")


def header(message: Spool, most: int = _MOST) -> bytes:
    """The header section, its last line end included, without the empty line below it; its complete fields within the first `most`
    bytes when it does not end there."""
    head = message.head(_USUAL)
    if (end := _end(head)) is None and message.size > len(head):
        head = message.head(most)
        end = _end(head)
    if end is None and message.size > len(head):
        end = max((field.end() for field in _FIELD_END.finditer(head, max(0, len(head) - _USUAL))), default=0)
    return head if end is None else head[:end]


def _end(head: bytes) -> int | None:
    if head.startswith((b"\n", b"\r\n")):
        return 0
    found = _END.search(head)
    return found.end() if found else None


def named(head: bytes, names: Sequence[str]) -> list[str]:
    """Which of these fields a header section has, by their names as they stand there; a `*` at the end stands for anything."""
    wanted = FieldNames(names)
    return [name.decode("ascii") for name in dict.fromkeys(match[1] for match in _NAME.finditer(head)) if name in wanted]


def tagged(message: Spool, fields: Sequence[bytes], forged: Iterable[str]) -> Content:
    """The message with these fields on top and those named in `forged` out of it, in its own line ends."""
    head = header(message)
    below = _EMPTY_LINE.match(message.head(len(head) + 2), len(head))
    head += below[0] if below else b""  # so that the section is seen to end
    kept = with_fields(head, fields, [name.encode("ascii", "ignore") for name in forged])
    return Content(kept, message, len(head))
