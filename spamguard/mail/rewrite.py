"""Header fields on top of a message, forged ones out of it, and not one other byte changed. Works
on raw bytes.

Forged fields are taken out wherever some reader would see them: up to the first empty line,
whatever stands before it, and also where only those see a line who take a bare CR for a line end.
Must take linear time whatever the bytes are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

_MBOX_FROM_LINE = re.compile(rb">?From [^\n]*+\n")
_BODY_START = re.compile(rb"[ \t]|\r?\n")
_BEFORE_EMPTY_LINE = re.compile(rb"\n(?=\r?\n)")
_SUBJECT = re.compile(rb"\nsubject[ \t]*+:[ \t]*+(?:\r?+\n[ \t]++|)*+", re.I)

# A field from behind its name to before its line end. By CR: a line may end in a bare CR, but LF
# readers' continuation lines count too, and one that begins with a colon: what stands before the
# field would become a name with it, once the field is gone.
_FIELD_VALUE = rb"[ \t]*+:[^\n]*+(?:\n[ \t][^\n]*+)*+"
_FIELD_VALUE_BY_CR = (
    rb"[ \t\r]*+:[^\r\n]*+(?:(?=\r*+\n[ \t]|\r[ \t]|\r++[ \t]*+:)[\r\n]++[^\r\n]*+|)*+"
)
_LINE_END = re.compile(rb"\r*+\n|\r|")


class FieldNameSet:
    """Names of header fields, whatever their case; one that ends in `*` stands for all that begin
    like it, as in `settings.FORGED`.
    """

    def __init__(self, names: Iterable[str]) -> None:
        lower = [name.lower().encode("ascii", "ignore") for name in names]
        self._names = frozenset(name for name in lower if not name.endswith(b"*"))
        self._prefixes = tuple(name[:-1] for name in lower if name.endswith(b"*"))

    def __contains__(self, name: bytes) -> bool:
        lower = name.lower()
        return lower in self._names or lower.startswith(self._prefixes)


def add_fields(raw: bytes, fields: Sequence[bytes], forged: Iterable[bytes]) -> bytes:
    """The message with `fields` (no line ends) on top, under an mbox `From ` line, and every field
    named in `forged` removed.

    A name that ends in `*` stands for all that begin like it. Line ends follow the message's own. A
    message whose first line begins with a blank would become the tail of the last field: it gets an
    empty line in between, so that it is all body, as mail servers read it.
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
    """The same for the beginning of a message with CRLF line ends: new bytes, and how many of the
    old ones they replace.

    head: ends no sooner than the header section, or than the message. subject_prefix: goes before
    the text of the first Subject, a blank behind it, unless that begins with it already; a message
    without Subject gets one. A field of its own tells that it was put there (`without_prefix`).
    """
    start = header_start(head)
    end = _header_end(head, start)
    lines = _remove_fields(head[start:end], forged)
    if prefix := subject_prefix.strip():
        fields, lines = _add_prefix(fields, lines, prefix)
    return head[:start] + _join_fields(fields, head[start : start + 1], b"\r\n") + lines, end


PREFIX_FIELD = b"X-Spamguard-Prefix"
"""Says what was put before the subject, so that it can be taken away again."""
PREFIX_SEARCH_BYTES = 16 << 10  # bytes in which we look for that field
_PREFIX_LINE = re.compile(rb"\n" + PREFIX_FIELD + rb":[ \t]*+([^\r\n]++)", re.I)


def remove_subject_prefix(raw: bytes) -> bytes:
    """The message with the subject that its sender wrote; the same object when nobody has put
    anything before it.
    """
    told = _PREFIX_LINE.search(b"\n" + raw[:PREFIX_SEARCH_BYTES])
    prefix = told[1].strip() if told else b""
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
    """Where it ends, its last line end included. What begins with a blank is all body, what has no
    empty line all header section.
    """
    if _BODY_START.match(raw, start):
        return start
    before = _BEFORE_EMPTY_LINE.search(raw, start)
    return before.end() if before else len(raw)


def _join_fields(fields: Sequence[bytes], below: bytes, line_end: bytes) -> bytes:
    """below: the byte that comes next."""
    gap = line_end if fields and below in (b" ", b"\t") else b""
    return b"".join([field + line_end for field in fields]) + gap


def _add_prefix(
    fields: Sequence[bytes], lines: bytes, prefix: bytes
) -> tuple[Sequence[bytes], bytes]:
    told = [*fields, PREFIX_FIELD + b": " + prefix]
    subject = _SUBJECT.search(b"\n" + lines)
    if subject is None:
        return [*told, b"Subject: " + prefix], lines
    text = subject.end() - 1
    return (
        (fields, lines)
        if lines.startswith(prefix, text)
        else (told, lines[:text] + prefix + b" " + lines[text:])
    )


def _remove_fields(lines: bytes, forged: Iterable[bytes]) -> bytes:
    """The header section without the fields of these names; the same object where there are none.

    Empty lines that only they see who take a bare CR for a line end are no end of it: others read
    on.
    """
    text = b"\n" + lines  # so that the first line stands behind a line end as well
    by_cr = lines.count(b"\r") > lines.count(b"\r\n")
    cut = _remove_matches(_field_pattern(tuple(sorted(forged)), by_cr=by_cr), text)
    return lines if cut is text else cut[1:]


@lru_cache(maxsize=64)
def _field_pattern(names: tuple[bytes, ...], *, by_cr: bool) -> re.Pattern[bytes]:
    """Finds the last byte of a line end and the field behind it, without its own line end."""
    choice = b"|".join(
        [
            re.escape(name[:-1]) + rb"[^\s:]*+" if name.endswith(b"*") else re.escape(name)
            for name in names
        ]
    )
    begin, value = (rb"[\r\n]", _FIELD_VALUE_BY_CR) if by_cr else (rb"\n", _FIELD_VALUE)
    return re.compile(begin + rb"(?:" + (choice or rb"(?!)") + rb")" + value, re.I)


def _remove_matches(pattern: re.Pattern[bytes], text: bytes) -> bytes:
    """The text without what is found; the same object where nothing is.

    At the beginning of a line a field goes with its line end. Behind a bare CR it goes with that,
    since the next line would become part of the one before otherwise. Never leaves an empty line
    behind: the header section would end there.
    """
    kept = bytearray()
    position = 0
    begins_line = True
    for match in pattern.finditer(text):
        kept += (piece := text[position : match.start() + 1])
        solid = piece.rstrip(b"\r")
        begins_line = solid.endswith(b"\n") if solid else begins_line
        position = _LINE_END.match(text, match.end()).end() if begins_line else match.end()  # type: ignore[union-attr]  # matches ""
        if not begins_line:
            kept.pop()
        elif text[position - 1] == 0x0A:
            _drop_carriage_returns(kept)
    return bytes(kept + text[position:]) if position else text


def _drop_carriage_returns(kept: bytearray) -> None:
    while kept.endswith(b"\r"):
        kept.pop()
