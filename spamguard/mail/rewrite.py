"""Put header fields on top of a message and take forged ones out; no other byte changes.

Works on raw bytes, before any parsing. Forged fields are removed wherever some program would see
them: anywhere above the first empty line, and also on lines that only programs see which take a
bare CR for a line end. Must take linear time whatever the bytes are.

It is written by hand because `email` would write the message anew, and other bytes would change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

_MBOX_FROM_LINE = re.compile(rb">?From [^\n]*+\n")
_BODY_START = re.compile(rb"[ \t]|\r?\n")
_BEFORE_EMPTY_LINE = re.compile(rb"\n(?=\r?\n)")
_SUBJECT = re.compile(rb"\nsubject[ \t]*+:[ \t]*+(?:\r?+\n[ \t]++|)*+", re.I)

# A field from behind its name to before its line end. By CR: a line may end in a bare CR; a
# continuation line after LF counts too, and one that begins with a colon, because with the field
# removed, the text in front of it would become a name.
_FIELD_VALUE = rb"[ \t]*+:[^\n]*+(?:\n[ \t][^\n]*+)*+"
_FIELD_VALUE_BY_CR = (
    rb"[ \t\r]*+:[^\r\n]*+(?:(?=\r*+\n[ \t]|\r[ \t]|\r++[ \t]*+:)[\r\n]++[^\r\n]*+|)*+"
)
_LINE_END = re.compile(rb"\r*+\n|\r|")


class FieldNameSet:
    """Names of header fields in any case; `x-spam-*` stands for all names that begin like it."""

    def __init__(self, names: Iterable[str]) -> None:
        lower = [name.lower().encode("ascii", "ignore") for name in names]
        self._names = frozenset(name for name in lower if not name.endswith(b"*"))
        self._prefixes = tuple(name[:-1] for name in lower if name.endswith(b"*"))

    def __contains__(self, name: bytes) -> bool:
        lower = name.lower()
        return lower in self._names or lower.startswith(self._prefixes)


def add_fields(raw: bytes, fields: Sequence[bytes], forged: Iterable[bytes]) -> bytes:
    """Put `fields` (without line ends) on top, below an mbox `From ` line, and remove every field
    whose name is in `forged`; a name that ends in `*` is a prefix.

    Line ends are those of the message. If its first line begins with a blank, an empty line goes in
    between: otherwise that line would continue the last field, and mail servers read it as body.
    """
    first = raw.find(b"\n")
    line_end = b"\r\n" if first > 0 and raw[first - 1] == 0x0D else b"\n"
    start = header_start(raw)
    end = _header_end(raw, start)
    lines = _remove_fields(raw[start:end], forged)
    if not fields and len(lines) == end - start:
        return raw
    return raw[:start] + _join_fields(fields, raw[start : start + 1], line_end) + lines + raw[end:]


def rewrite_header(
    head: bytes, fields: Sequence[bytes], forged: Iterable[bytes], subject_prefix: bytes = b""
) -> tuple[bytes, int]:
    """`add_fields` for the start of a message with CRLF line ends: the new bytes, and how many old
    bytes they replace.

    Parameters
    ----------
    head
        At least the whole header section, or the whole message.
    subject_prefix
        Goes in front of the first Subject, with a blank, unless it is there already. A message
        without Subject gets one. The field `PREFIX_FIELD` records it for `remove_subject_prefix`.
    """
    start = header_start(head)
    end = _header_end(head, start)
    lines = _remove_fields(head[start:end], forged)
    if prefix := subject_prefix.strip():
        fields, lines = _add_prefix(fields, lines, prefix)
    return head[:start] + _join_fields(fields, head[start : start + 1], b"\r\n") + lines, end


PREFIX_FIELD = b"X-Spamguard-Prefix"
"""Records what was put in front of the subject."""
PREFIX_SEARCH_BYTES = 16 << 10
"""How much of a message is searched for that field."""
_PREFIX_LINE = re.compile(rb"\n" + PREFIX_FIELD + rb":[ \t]*+([^\r\n]++)", re.I)


def remove_subject_prefix(raw: bytes) -> bytes:
    """The message with the subject that its sender wrote; the same object without a prefix."""
    line = _PREFIX_LINE.search(b"\n" + raw[:PREFIX_SEARCH_BYTES])
    prefix = line[1].strip() if line else b""
    subject = _SUBJECT.search(b"\n" + raw[:PREFIX_SEARCH_BYTES]) if prefix else None
    if subject is None or not raw.startswith(prefix, start := subject.end() - 1):
        return raw
    end = start + len(prefix)
    return raw[:start] + raw[end + raw.startswith(b" ", end) :]


def header_start(raw: bytes) -> int:
    """Where the header section begins."""
    envelope = _MBOX_FROM_LINE.match(raw)
    return envelope.end() if envelope else 0


def _header_end(raw: bytes, start: int) -> int:
    """Where the header section ends, behind its last line end. A message that begins with a blank
    is all body; one without an empty line is all header section.
    """
    if _BODY_START.match(raw, start):
        return start
    before = _BEFORE_EMPTY_LINE.search(raw, start)
    return before.end() if before else len(raw)


def _join_fields(fields: Sequence[bytes], below: bytes, line_end: bytes) -> bytes:
    """The fields as lines. below: the byte that comes next."""
    gap = line_end if fields and below in (b" ", b"\t") else b""
    return b"".join([field + line_end for field in fields]) + gap


def _add_prefix(
    fields: Sequence[bytes], lines: bytes, prefix: bytes
) -> tuple[Sequence[bytes], bytes]:
    with_record = [*fields, PREFIX_FIELD + b": " + prefix]
    subject = _SUBJECT.search(b"\n" + lines)
    if subject is None:
        return [*with_record, b"Subject: " + prefix], lines
    start = subject.end() - 1
    if lines.startswith(prefix, start):
        return fields, lines
    return with_record, lines[:start] + prefix + b" " + lines[start:]


def _remove_fields(lines: bytes, forged: Iterable[bytes]) -> bytes:
    """The header section without the fields of these names; the same object if there are none.

    An empty line that ends in a bare CR does not end the section: most programs read on.
    """
    text = b"\n" + lines  # the first line stands behind a line end as well
    by_cr = lines.count(b"\r") > lines.count(b"\r\n")
    cut = _remove_matches(_field_pattern(tuple(sorted(forged)), by_cr=by_cr), text)
    return lines if cut is text else cut[1:]


@lru_cache(maxsize=64)
def _field_pattern(names: tuple[bytes, ...], *, by_cr: bool) -> re.Pattern[bytes]:
    """Matches the last byte of a line end and the field behind it, without its own line end."""
    choices = [
        re.escape(name[:-1]) + rb"[^\s:]*+" if name.endswith(b"*") else re.escape(name)
        for name in names
    ]
    begin, value = (rb"[\r\n]", _FIELD_VALUE_BY_CR) if by_cr else (rb"\n", _FIELD_VALUE)
    return re.compile(begin + rb"(?:%b)" % (b"|".join(choices) or rb"(?!)") + value, re.I)


def _remove_matches(pattern: re.Pattern[bytes], text: bytes) -> bytes:
    """The text without the matches; the same object if there are none.

    At the start of a line a field goes with its own line end. Behind a bare CR it goes with that
    CR: otherwise the next line would join the one before. No empty line may stay behind, because
    the header section would end there.
    """
    kept = bytearray()
    position = 0
    begins_line = True
    for match in pattern.finditer(text):
        kept += (piece := text[position : match.start() + 1])
        without_cr = piece.rstrip(b"\r")
        begins_line = without_cr.endswith(b"\n") if without_cr else begins_line
        position = match.end()
        if not begins_line:
            kept.pop()
            continue
        position = _LINE_END.match(text, position).end()  # type: ignore[union-attr]  # matches b""
        if text[position - 1] == 0x0A:
            while kept.endswith(b"\r"):
                kept.pop()
    return bytes(kept + text[position:]) if position else text
