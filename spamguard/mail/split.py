"""Splits raw bytes into header fields and MIME leaves (RFC 5322, RFC 2045, RFC 2046), bounded and without exceptions.

A splitter of our own because the standard library's costs three times as much and is not bounded; the standard one is
its test oracle. It decodes nothing but messages within, to take them apart, and must never raise, recurse or look beyond its limits:
damage becomes a defect name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heappop, heappush, nlargest
from itertools import islice
from typing import NamedTuple

from spamguard import kernel
from spamguard.mail import opaque
from spamguard.mail.decode import decode_base64
from spamguard.mail.limits import Limits
from spamguard.mail.parameters import VALUE_BYTES, ContentType, parameters, parse_type

FieldList = list[tuple[bytes, bytes]]  # name in lower case, value with its folding
Named = dict[bytes, bytes]  # first value of each field

# A whole header block; possessive, so that hostile input cannot make it backtrack (RFC 5322 section 2.2 and 2.2.3).
_BLOCK = re.compile(rb"(?:[!-9;-~]++[ \t]*+:[^\n]*+(?:\n[ \t][^\n]*+)*+(?:\n|\Z)|)*+")
_FIELD = re.compile(rb"^([!-9;-~]++)[ \t]*+:[ \t]*+([^\n]*+(?:\n[ \t][^\n]*+)*+)", re.M)
_NAME = re.compile(rb"[!-9;-~]*+[ \t]*+")  # of a field, or its beginning
_ENVELOPE = re.compile(rb">?From [^\n]*\n?")
# With what programs write around it that take it for a field with comments and parameters; readers pass over them.
_ENCODING = re.compile(rb"\s*+(?:\([^()]*+\)\s*+|)*+\"?([^\s;,()\"]*+)")
# Mail readers pass over lines in a header that are no fields, where fields that say how to read it follow.
_JUNK_LINES = re.compile(rb"(?:(?!--)[^\n]{1,1000}+\n){1,5}?(?=content-(?:type|transfer-encoding)[ \t]*+:)", re.I)
# One of these, or of those that programs add ("X-..."), has every header; "Attention: ..." without any is the first line of a text.
_USUAL = frozenset(
    (b"from", b"to", b"subject", b"date", b"message-id", b"received", b"return-path", b"delivered-to", b"mime-version", b"content-type")
)
_HEEDED = sorted(_USUAL | {b"content-transfer-encoding", b"content-disposition"})
_HEEDED_FIELD = re.compile(  # by the first letter first, which tells nearly all others apart
    rb"\n(?=[%b])(%b)[ \t]*+:[ \t]*+([^\n]*+(?:\n[ \t][^\n]*+)*+)" % (bytes({name[0] for name in _HEEDED}), b"|".join(_HEEDED)), re.I
)
_LOOKS = 2000  # lines that begin like a delimiter: in a flood of them, which few are, the others are searched for otherwise
_DEEPEST = 100  # parts within parts, as mail servers let pass, as long as there are few bytes in them
_PAGES = frozenset((b"text/html", b"multipart/related"))  # other multiparts may hold one
_SHOWN_IN_PART = frozenset((b"multipart/alternative", b"multipart/related"))
_FLOOD = 200_000  # parts of one multipart of which the largest are sought,
_OPENED = 5  # and how often as many parts are taken out of multiparts then as a message may have


class Leaf(NamedTuple):
    """One MIME part without children: its fields, its media type and its undecoded body (line ends as LF). beside: what readers show in
    its place may stand beside it."""

    fields: FieldList
    named: Named
    type: ContentType
    body: bytes
    beside: bool = False

    @property
    def encoding(self) -> bytes:
        """Its content transfer encoding, in lower case; empty: it names none."""
        return _encoding(self.named.get(b"content-transfer-encoding", b"")[:VALUE_BYTES])


@dataclass(slots=True)
class Split:
    """A message taken apart. body: all behind the header block (line ends as LF). structure: media types of the
    multiparts, outermost first."""

    fields: FieldList
    named: Named
    type: ContentType
    body: bytes
    leaves: list[Leaf] = field(default_factory=list)
    structure: list[bytes] = field(default_factory=list)
    defects: list[bytes] = field(default_factory=list)
    deep: int = 0  # bytes of parts that were looked at beyond the usual depth, in each of them again


NESTED = frozenset((b"message/rfc822", b"message/global", b"message/news"))


@lru_cache(maxsize=64)
def _encoding(value: bytes) -> bytes:
    named = _ENCODING.match(value)
    return named[1].lower() if named else b""


def by_name(fields: FieldList) -> Named:
    """The first value of each field."""
    return dict(reversed(fields))


def normalise_line_ends(raw: bytes) -> tuple[bytes, list[bytes]]:
    """CRLF to LF; a bare CR is a defect (RFC 5322 section 2.2) and ends a line too, but in front of CRLF, where programs double it."""
    if raw.find(b"\r") < 0:
        return raw, []
    text = raw.replace(b"\r", b"")
    if text.replace(b"\n", b"\r\n") == raw:  # as nearly all mail: four times faster than looking for pairs
        return text, []
    text = raw.replace(b"\r\n", b"\n")
    if b"\r" not in text:
        return text, []
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), [b"bare-cr"]


def take_fields(text: bytes, limits: Limits) -> tuple[FieldList, int, list[bytes]]:
    """The header block at the start of `text`: its fields, where the body starts, and the defects."""
    compiled = kernel.functions()
    if compiled is None:
        found, stop = _fields(text[: limits.header_bytes], limits.header_fields)
    else:
        found, stop = compiled.fields(text, limits.header_bytes, limits.header_fields + 1)
    defects: list[bytes] = []
    if len(text) > limits.header_bytes and _NAME.fullmatch(text, stop, limits.header_bytes):  # cut within a name, or behind a field
        defects.append(b"header-size")
    elif stop < len(text) and not text.startswith(b"\n", stop):
        defects.append(b"header-line")  # as the standard library does: what is no field starts the body
    if len(found) > limits.header_fields:
        taken = found[: limits.header_fields]
        found, defects = taken + _heeded_fields(text[:stop], by_name(taken)), [*defects, b"header-count"]
    start = stop + 1 if text.startswith(b"\n", stop) else stop
    return found, start, defects


def _head(text: bytes, limits: Limits) -> tuple[FieldList, int, list[bytes]]:
    """The same as mail readers see it, who pass over some lines that are no fields."""
    fields, start, defects = take_fields(text, limits)
    if b"header-line" in defects and (junk := _JUNK_LINES.match(text, start)):
        more, behind, _ = take_fields(text[junk.end() :], limits)
        fields, start = fields + more, junk.end() + behind
    return fields, start, defects


def _heeded_fields(block: bytes, known: Named) -> FieldList:
    """The fields that readers act upon, the first of each name that is not known, where there are too many fields to take them all."""
    first: Named = {}
    for match in _HEEDED_FIELD.finditer(b"\n" + block):
        first.setdefault(match[1].lower(), match[2])
    return [(name, value) for name, value in first.items() if name not in known]


def _fields(window: bytes, most: int) -> tuple[FieldList, int]:
    """The fields, one more than `most` if there are more, and where the first line stands that is part of none."""
    end = window.find(b"\n\n")
    block = window[: end + 1] if end >= 0 else window
    stop = len(block)
    lines = block.count(b"\n") if end >= 0 else -1
    found = _FIELD.findall(block) if 0 <= lines <= 4 * most else []
    if len(found) > most or _lines(found) != lines:  # no end, too many, or not fields all: the careful way
        stop = _BLOCK.match(block).end()  # type: ignore[union-attr]  # it matches the empty string
        found = [match.groups() for match in islice(_FIELD.finditer(block, 0, stop), most + 1)]
    return [(name.lower(), value) for name, value in found], stop


def _lines(found: FieldList) -> int:
    return len(found) + b"".join([value for _, value in found]).count(b"\n")


def split(raw: bytes, limits: Limits, *, into_messages: bool = True) -> Split:
    """Take a message apart: never raises, reads at most `limits` of it. An mbox `From ` line on top is passed over; a text need not have a
    header.

    into_messages: also the messages attached to it; else each of them is a leaf.
    """
    cut = len(raw) > limits.message_bytes
    text, defects = normalise_line_ends(raw[: limits.message_bytes])
    text = _without_envelope(text)
    fields, start, header_defects = _head(text, limits)
    if fields and _is_text(fields, text, start):
        fields, start, header_defects = [], 0, sorted({*header_defects, b"header-line"})
    named = by_name(fields)
    message = Split(fields, named, parse_type(named.get(b"content-type", b"")), text[start:], defects=defects + header_defects)
    if cut:
        message.defects.append(b"message-size")
    _walk(message, limits, into_messages)
    return message


def _without_envelope(text: bytes) -> bytes:
    """A message without the mbox `From ` line on top of it."""
    envelope = _ENVELOPE.match(text)
    return text[envelope.end() :] if envelope else text


def _is_text(fields: FieldList, text: bytes, start: int) -> bool:
    """Whether what looks like a header is the beginning of a text that has none: no blank line below it, and no usual field."""
    parted = start < len(text) and text[start - 2 : start] == b"\n\n"
    return not parted and not any(name in _USUAL or name.startswith(b"x-") for name, _ in fields)


def _walk(message: Split, limits: Limits, into_messages: bool) -> None:
    """Depth first over the MIME tree with a stack of our own: order of appearance, bounded depth and count."""
    defects = list(message.defects)
    stack = [(_whole(message), 0)]
    while stack:
        part, depth = stack.pop()
        children = _children(message, part, depth, limits, into_messages)
        if children is None:
            message.leaves.append(part)
            if len(message.leaves) >= limits.parts and stack:
                message.structure, message.defects, message.deep = [], [*defects, b"part-count"], 0
                message.leaves = _largest(message, limits, into_messages)
                return
        else:
            stack.extend([(child, depth + 1) for child in reversed(children)])


def _whole(message: Split) -> Leaf:
    return Leaf(message.fields, message.named, message.type, message.body)


def _largest(message: Split, limits: Limits, into_messages: bool) -> list[Leaf]:
    """The leaves that say most, in order, where there are too many: else a hundred empty ones would hide what stands behind them."""
    wide = replace(limits, parts=_FLOOD)
    found: list[tuple[tuple[int, ...], Leaf]] = []
    queue: list[tuple[int, tuple[int, ...], Leaf]] = [(0, (), _whole(message))]  # by size; where it stands in the tree
    opened = 0
    while queue and len(found) < limits.parts:
        _, path, part = heappop(queue)
        children = _children(message, part, len(path), wide, into_messages, limits.parts) if opened < _OPENED * limits.parts else None
        opened += len(children or ())
        for number, child in enumerate(children or ()):
            heappush(queue, (-len(child.body), (*path, number), child))
        if children is None:
            found.append((path, part))
    return [leaf for _, leaf in sorted(found, key=lambda one: one[0])]


def _children(message: Split, part: Leaf, depth: int, limits: Limits, into_messages: bool, most: int | None = None) -> list[Leaf] | None:
    """The parts inside this one, the largest if not so many are wanted, or None when it is a leaf."""
    multipart, nested, sealed = part.type.main == b"multipart", part.type.media in NESTED, part.type.media in opaque.MEDIA
    if not (multipart or sealed or (nested and into_messages)):
        return None
    if depth >= limits.depth:
        message.deep += len(part.body)
        if depth >= _DEEPEST or message.deep > limits.message_bytes:
            message.defects.append(b"part-depth")
            return None
    chunks = _multipart(message, part, limits, most) if multipart else [_within(message, part)] if nested else _signed(part)
    if not chunks:
        return None
    message.structure.append(part.type.media)
    default = b"message/rfc822" if part.type.media == b"multipart/digest" else b""
    children = [_child(message, chunk, default, limits) for chunk in chunks]
    if part.beside or part.type.media in _SHOWN_IN_PART:
        return [child._replace(beside=beside) for child, beside in zip(children, _beside(part, children), strict=True)]
    return children


def _beside(part: Leaf, children: list[Leaf]) -> list[bool]:
    """Of alternatives readers show the last page, and what belongs to a page is shown within it (RFC 2046 section 5.1.4, RFC 2387)."""
    pages = [child.type.media in _PAGES or child.type.main == b"multipart" for child in children]
    if part.beside or not any(pages):
        return [part.beside] * len(children)
    if part.type.media == b"multipart/related":
        return [not page for page in pages]
    last = max([number for number, child in enumerate(children) if child.type.media in _PAGES], default=-1)
    return [number < last or not page for number, page in enumerate(pages)]


def _within(message: Split, part: Leaf) -> bytes:
    """The message in a part: as a rule it stands there as it is, but programs encode it too (RFC 6532 section 3.7)."""
    if part.encoding != b"base64" or b":" in part.body:  # a header has one, base64 has none
        return _without_envelope(part.body)
    text, defects = decode_base64(part.body)
    text, wrong = normalise_line_ends(text)
    message.defects += defects + wrong
    return _without_envelope(text)


def _signed(part: Leaf) -> list[bytes]:
    """The message that an opaque signature holds, if it holds one that can be read."""
    data = decode_base64(part.body)[0] if part.encoding == b"base64" else part.body
    text = opaque.signed(data)
    return [normalise_line_ends(text)[0]] if text else []


def _child(message: Split, chunk: bytes, default: bytes, limits: Limits) -> Leaf:
    fields, start, defects = _head(chunk, limits)
    message.defects.extend(defects)
    named = by_name(fields)
    return Leaf(fields, named, parse_type(named.get(b"content-type", default)), chunk[start:])


def _multipart(message: Split, part: Leaf, limits: Limits, most: int | None) -> list[bytes] | None:
    found = part.type.parameters
    if b"boundary" not in found and len(value := part.named.get(b"content-type", b"")) > VALUE_BYTES:
        found = parameters(value)
    boundary = found.get(b"boundary", b"").rstrip()
    if not boundary:
        message.defects.append(b"no-boundary")
        return None
    between = _between_boundaries(message, part.body, b"\n--" + boundary, limits)
    chunks = list(between) if most is None else _longest(between, most)
    if not chunks:
        message.defects.append(b"boundary-missing")
        return None
    return chunks


def _longest(chunks: Iterable[bytes], most: int) -> list[bytes]:
    """So many, in order."""
    return [chunk for _, chunk in sorted(nlargest(most, enumerate(chunks), key=lambda one: len(one[1])))]


def _between_boundaries(message: Split, content: bytes, delimiter: bytes, limits: Limits) -> Iterator[bytes]:
    """What stands between delimiter lines (RFC 2046 section 5.1.1), without the line end before the delimiter."""
    text = b"\n" + content
    start = -1
    for end, resume, closing in _delimiters(message, text, delimiter, limits):
        if start >= 0:
            yield text[start:end]
        start = resume
        if closing:
            return
    if start >= 0:
        message.defects.append(b"boundary-open")
        yield text[start:]


def _delimiters(message: Split, text: bytes, delimiter: bytes, limits: Limits) -> Iterator[tuple[int, int, bool]]:
    """Each delimiter line: where its line end starts, where the next line starts, and whether it closes."""
    position = text.find(delimiter)
    found = 0
    for _ in range(_LOOKS):
        if position < 0 or found > limits.parts:
            return
        after = position + len(delimiter)
        closing = text.startswith(b"--", after)
        line_end = text.find(b"\n", after)
        line_end = len(text) if line_end < 0 else line_end
        if not text[after + 2 * closing : line_end].strip():  # else a longer boundary that begins like this one
            found += 1
            yield position, min(line_end + 1, len(text)), closing
        # the line end may be shared: the next delimiter may begin with it
        position = text.find(delimiter, line_end)
    if position >= 0:
        message.defects.append(b"boundary-flood")
        line = re.compile(re.escape(delimiter) + rb"(--)?[ \t\r\v\f]*+(?=\n|\Z)")  # costs more than a usual message has lines of them
        for match in islice(line.finditer(text, position), limits.parts - found + 1):
            yield match.start(), min(match.end() + 1, len(text)), match[1] is not None
