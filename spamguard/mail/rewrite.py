"""Header fields on top of a message, forged ones out of it, and not one other byte changed. Works on raw bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_ENVELOPE = re.compile(rb">?From [^\n]*+\n")
_FIELD_LINES = re.compile(rb"([^\s:]++)[ \t]*+:[^\n]*+(?:\n[ \t][^\n]*+)*+(?:\n|\Z)")


def with_fields(raw: bytes, fields: Sequence[bytes], forged: Iterable[bytes]) -> bytes:
    """The message with `fields` (no line ends) on top, under an mbox `From ` line, and every field named in `forged` removed.

    Line ends follow the message's own. A message whose first line begins with a blank would become the tail of the last
    field: it gets an empty line in between, so that it is all body, as mail servers read it.
    """
    first = raw.find(b"\n")
    line_end = b"\r\n" if first > 0 and raw[first - 1] == 0x0D else b"\n"
    match = _ENVELOPE.match(raw)
    start = match.end() if match else 0
    rest = _without(raw, start, frozenset(name.lower() for name in forged))
    gap = line_end if rest[:1] in (b" ", b"\t") else b""
    return raw[:start] + b"".join([field + line_end for field in fields]) + gap + rest


def _without(raw: bytes, start: int, forged: frozenset[bytes]) -> bytes:
    """What follows `start`, without the fields of these lower-case names; the same object where there are none."""
    kept: list[bytes] = []
    position = keep_from = start
    while match := _FIELD_LINES.match(raw, position):
        if match.group(1).lower() in forged:
            kept.append(raw[keep_from:position])
            keep_from = match.end()
        position = match.end()
    return b"".join((*kept, raw[keep_from:])) if kept or keep_from else raw
