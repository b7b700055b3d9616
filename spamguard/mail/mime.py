"""Bounds on what one message may cost. Checked before and during parsing; what is cut becomes
evidence.

Media types and dispositions with their parameters (RFC 2045 section 5.1, RFC 2183, RFC 2231). Never
raises; bounded.

The message within an opaque signature: mail programs show it like any other, though it stands in
the bytes of a signature.

S/MIME (RFC 8551 section 3.5.2) wraps it in CMS (RFC 5652), BER or DER. Checks no signature,
decrypts nothing, and never raises.

Splits raw bytes into header fields and MIME leaves (RFC 5322, RFC 2045, RFC 2046), bounded and
without exceptions.

A splitter of our own because the standard library's costs three times as much and is not bounded;
the standard one is its test oracle. It decodes nothing but messages within, to take them apart, and
must never raise, recurse or look beyond its limits: damage becomes a defect name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heappop, heappush, nlargest
from itertools import islice
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from spamguard import native
from spamguard.mail.decode import decode_base64, decode_text


@dataclass(frozen=True, slots=True)
class ParseLimits:
    """How much of a message is looked at. Bytes are octets; everything beyond is not scanned and
    leaves a defect token.

    message_bytes: of the raw message. header_bytes, header_fields: of each header block. parts,
    depth: MIME leaves and nesting, small ones may nest deeper. text_bytes: decoded text of all
    leaves together, and a little of each later one. token_characters: text that becomes tokens, of
    the body, of hidden text and of markup each: three quarters from its start, one from its end
    (corpora/RESULTS.md, "How much text").
    """

    message_bytes: int = 4 << 20
    header_bytes: int = 256 << 10
    header_fields: int = 500
    parts: int = 100
    depth: int = 12
    text_bytes: int = 256 << 10
    token_characters: int = 8 << 10


DEFAULT_LIMITS = ParseLimits()


MAX_VALUE_BYTES = 4000
"""Of a structured field: what is kept in caches must be bounded, and no sender needs more."""
_MEDIA_TYPE = re.compile(rb"\s*([\w!#$&^.+-]+)/([\w!#$&^.+-]+)")
_PARAMETER = re.compile(
    rb";\s*+([\w*-]{1,40}+)\s*+=\s*+(?:\"((?:[^\"\\]|\\.){0,1000}+)\"?|([^\s;]{0,1000}+))", re.S
)
_QUOTED_PAIR = re.compile(rb"\\(.)", re.S)
_CONTINUATION = re.compile(rb"([\w-]++)\*([0-9]{1,3}+)?(\*)?")
_EXTENDED_VALUE = re.compile(rb"([\w.:+-]*+)'[\w-]*+'(.*)", re.S)  # charset, language, text


@dataclass(frozen=True, slots=True)
class ContentType:
    """Media type and parameters of a Content-Type (or Content-Disposition) field, names in lower
    case.
    """

    media: bytes
    parameters: dict[bytes, bytes]
    main: bytes = field(init=False)  # in front of the slash

    def __post_init__(self) -> None:
        object.__setattr__(self, "main", self.media.partition(b"/")[0])


def parse_content_type(value: bytes) -> ContentType:
    """Media type and parameters of a field value (RFC 2045 section 5.1); anything unusable is
    text/plain.
    """
    return _parse_content_type(value[:MAX_VALUE_BYTES])


@lru_cache(maxsize=512)
def _parse_content_type(value: bytes) -> ContentType:
    match = _MEDIA_TYPE.match(value)
    media = b"/".join(match.groups())[:100].lower() if match else b"text/plain"
    return ContentType(media, parse_parameters(value))


def parse_disposition(value: bytes) -> ContentType:
    """Content-Disposition in the same shape (RFC 2183); the media field holds the disposition."""
    return ContentType(
        value.partition(b";")[0].strip().lower()[:40], parse_parameters(value[:MAX_VALUE_BYTES])
    )


def parse_parameters(value: bytes) -> dict[bytes, bytes]:
    """Parameters by lower-case name, quoting undone; the first of a name counts."""
    if b"=" not in value:
        return {}
    found: dict[bytes, bytes] = {}
    for name, quoted, bare in _PARAMETER.findall(value):
        text = _QUOTED_PAIR.sub(rb"\1", quoted) if b"\\" in quoted else quoted
        found.setdefault(name.lower(), text or bare)
    return _join_continuations(found) if b"*" in value else found


def _join_continuations(found: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Parameters in pieces (name*0, name*1*) and with percent signs (name*) as plain ones, those of
    a charset in UTF-8 (RFC 2231 sections 3 and 4).
    """
    plain = {name: text for name, text in found.items() if b"*" not in name}
    pieces: dict[bytes, list[tuple[int, bytes]]] = {}
    charsets: dict[bytes, bytes] = {}
    for name, value in found.items():
        match = _CONTINUATION.fullmatch(name)
        if match:
            base, number, extended = match.groups()
            place, encoded = int(number or 0), extended or number is None
            said = _EXTENDED_VALUE.fullmatch(value) if encoded and place == 0 else None
            charsets[base], text = said.groups() if said else (charsets.get(base, b""), value)
            pieces.setdefault(base, []).append((place, unquote_to_bytes(text) if encoded else text))
    joined = {
        name: b"".join([piece for _, piece in sorted(parts)]) for name, parts in pieces.items()
    }
    return plain | {name: _to_utf8(text, charsets[name]) for name, text in joined.items()}


def _to_utf8(text: bytes, charset: bytes) -> bytes:
    return decode_text(text, charset)[0].encode("utf-8", "replace") if charset else text


SMIME_MEDIA_TYPES = frozenset((b"application/pkcs7-mime", b"application/x-pkcs7-mime"))
_OID_SIGNED_DATA = bytes.fromhex(
    "06092a864886f70d010702"
)  # OBJECT IDENTIFIER, as it stands in front of what it names
_OID_DATA = bytes.fromhex("06092a864886f70d010701")
_MAX_OID_OFFSETS = (
    100,
    1000,
)  # bytes in which they must stand: lists of algorithms between the two are short
_MAX_OCTET_STRINGS = 50_000  # programs write a thousand bytes or more in each
_TAG_EXPLICIT, _TAG_CONSTRUCTED_OCTETS, _TAG_OCTET_STRING = (
    0xA0,
    0x24,
    0x04,
)  # [0], OCTET STRING in pieces, OCTET STRING


def extract_signed_content(data: bytes) -> bytes:
    """What was signed; empty where nothing that can be read was."""
    outer = data.find(_OID_SIGNED_DATA, 0, _MAX_OID_OFFSETS[0])
    inner = data.find(_OID_DATA, outer, _MAX_OID_OFFSETS[1])
    if outer < 0 or inner < 0:
        return b""
    tag, at, _ = _read_ber_header(data, inner + len(_OID_DATA))
    if tag != _TAG_EXPLICIT:
        return b""
    tag, at, size = _read_ber_header(data, at)
    if tag == _TAG_OCTET_STRING:
        return data[at : at + size]
    pieces: list[bytes] = []
    tag, at, size = _read_ber_header(data, at if tag == _TAG_CONSTRUCTED_OCTETS else len(data))
    while tag == _TAG_OCTET_STRING and len(pieces) < _MAX_OCTET_STRINGS:
        pieces.append(data[at : at + size])
        tag, at, size = _read_ber_header(data, at + size)
    return b"".join(pieces)


def _read_ber_header(data: bytes, at: int) -> tuple[int, int, int]:
    """Tag, beginning and size of an element; size 0: an end mark tells. Tag -1: there is none."""
    if at + 2 > len(data):
        return -1, at, 0
    more = data[at + 1] & 0x7F if data[at + 1] & 0x80 else 0
    begin = at + 2 + more
    return (
        data[at],
        begin,
        int.from_bytes(data[at + 2 : begin], "big") if more else data[at + 1] & 0x7F,
    )


FieldList = list[tuple[bytes, bytes]]  # name in lower case, value with its folding
FieldMap = dict[bytes, bytes]  # first value of each field

# A whole header block; possessive, so that hostile input cannot make it backtrack (RFC 5322 section
# 2.2 and 2.2.3).
_HEADER_BLOCK = re.compile(rb"(?:[!-9;-~]++[ \t]*+:[^\n]*+(?:\n[ \t][^\n]*+)*+(?:\n|\Z)|)*+")
_HEADER_FIELD = re.compile(rb"^([!-9;-~]++)[ \t]*+:[ \t]*+([^\n]*+(?:\n[ \t][^\n]*+)*+)", re.M)
_FIELD_NAME_START = re.compile(rb"[!-9;-~]*+[ \t]*+")  # of a field, or its beginning
_MBOX_FROM_LINE = re.compile(rb">?From [^\n]*\n?")
# With what programs write around it that take it for a field with comments and parameters; readers
# pass over them.
_TRANSFER_ENCODING = re.compile(rb"\s*+(?:\([^()]*+\)\s*+|)*+\"?([^\s;,()\"]*+)")
# Mail readers pass over lines in a header that are no fields, where fields that say how to read it
# follow.
_JUNK_LINES = re.compile(
    rb"(?:(?!--)[^\n]{1,1000}+\n){1,5}?(?=content-(?:type|transfer-encoding)[ \t]*+:)", re.I
)
# One of these, or of those that programs add ("X-..."), has every header; "Attention: ..." without
# any is the first line of a text.
_USUAL_NAMES = frozenset(
    (
        b"from",
        b"to",
        b"subject",
        b"date",
        b"message-id",
        b"received",
        b"return-path",
        b"delivered-to",
        b"mime-version",
        b"content-type",
    )
)
_ESSENTIAL_NAMES = sorted(_USUAL_NAMES | {b"content-transfer-encoding", b"content-disposition"})
_ESSENTIAL_FIELD = re.compile(  # by the first letter first, which tells nearly all others apart
    rb"\n(?=[%b])(%b)[ \t]*+:[ \t]*+([^\n]*+(?:\n[ \t][^\n]*+)*+)"
    % (bytes({name[0] for name in _ESSENTIAL_NAMES}), b"|".join(_ESSENTIAL_NAMES)),
    re.I,
)
# lines that begin like a delimiter: in a flood of them, which few are, the others are searched for
# otherwise
_MAX_DELIMITER_SEARCHES = 2000
_MAX_DEPTH = (
    100  # parts within parts, as mail servers let pass, as long as there are few bytes in them
)
_PAGE_TYPES = frozenset((b"text/html", b"multipart/related"))  # other multiparts may hold one
_PARTLY_SHOWN_TYPES = frozenset((b"multipart/alternative", b"multipart/related"))
_MAX_FLOOD_PARTS = 200_000  # parts of one multipart of which the largest are sought,
_FLOOD_OPEN_FACTOR = (
    5  # and how often as many parts are taken out of multiparts then as a message may have
)


class Leaf(NamedTuple):
    """One MIME part without children: its fields, its media type and its undecoded body (line ends
    as LF). beside: what readers show in its place may stand beside it.
    """

    fields: FieldList
    first_values: FieldMap
    content_type: ContentType
    body: bytes
    may_be_unseen: bool = False

    @property
    def encoding(self) -> bytes:
        """Its content transfer encoding, in lower case; empty: it names none."""
        return _parse_encoding(
            self.first_values.get(b"content-transfer-encoding", b"")[:MAX_VALUE_BYTES]
        )


@dataclass(slots=True)
class MimeMessage:
    """A message taken apart. body: all behind the header block (line ends as LF). structure: media
    types of the multiparts, outermost first.
    """

    fields: FieldList
    first_values: FieldMap
    content_type: ContentType
    body: bytes
    leaves: list[Leaf] = field(default_factory=list)
    structure: list[bytes] = field(default_factory=list)
    defects: list[bytes] = field(default_factory=list)
    deep_bytes: int = (
        0  # bytes of parts that were looked at beyond the usual depth, in each of them again
    )


MESSAGE_TYPES = frozenset((b"message/rfc822", b"message/global", b"message/news"))


@lru_cache(maxsize=64)
def _parse_encoding(value: bytes) -> bytes:
    named = _TRANSFER_ENCODING.match(value)
    return named[1].lower() if named else b""


def index_fields(fields: FieldList) -> FieldMap:
    """The first value of each field."""
    return dict(reversed(fields))


def normalise_line_ends(raw: bytes) -> tuple[bytes, list[bytes]]:
    """CRLF to LF; a bare CR is a defect (RFC 5322 section 2.2) and ends a line too, but in front of
    CRLF, where programs double it.
    """
    if raw.find(b"\r") < 0:
        return raw, []
    text = raw.replace(b"\r", b"")
    if (
        text.replace(b"\n", b"\r\n") == raw
    ):  # as nearly all mail: four times faster than looking for pairs
        return text, []
    text = raw.replace(b"\r\n", b"\n")
    if b"\r" not in text:
        return text, []
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), [b"bare-cr"]


def parse_header(text: bytes, limits: ParseLimits) -> tuple[FieldList, int, list[bytes]]:
    """The header block at the start of `text`: its fields, where the body starts, and the defects."""
    compiled = native.functions()
    if compiled is None:
        found, stop = _match_fields(text[: limits.header_bytes], limits.header_fields)
    else:
        found, stop = compiled.fields(text, limits.header_bytes, limits.header_fields + 1)
    defects: list[bytes] = []
    if len(text) > limits.header_bytes and _FIELD_NAME_START.fullmatch(
        text, stop, limits.header_bytes
    ):  # cut within a name, or behind a field
        defects.append(b"header-size")
    elif stop < len(text) and not text.startswith(b"\n", stop):
        defects.append(
            b"header-line"
        )  # as the standard library does: what is no field starts the body
    if len(found) > limits.header_fields:
        taken = found[: limits.header_fields]
        found, defects = (
            taken + _find_essential_fields(text[:stop], index_fields(taken)),
            [*defects, b"header-count"],
        )
    start = stop + 1 if text.startswith(b"\n", stop) else stop
    return found, start, defects


def _parse_lenient_header(text: bytes, limits: ParseLimits) -> tuple[FieldList, int, list[bytes]]:
    """The same as mail readers see it, who pass over some lines that are no fields."""
    fields, start, defects = parse_header(text, limits)
    if b"header-line" in defects and (junk := _JUNK_LINES.match(text, start)):
        more, behind, _ = parse_header(text[junk.end() :], limits)
        fields, start = fields + more, junk.end() + behind
    return fields, start, defects


def _find_essential_fields(block: bytes, known: FieldMap) -> FieldList:
    """The fields that readers act upon, the first of each name that is not known, where there are
    too many fields to take them all.
    """
    first: FieldMap = {}
    for match in _ESSENTIAL_FIELD.finditer(b"\n" + block):
        first.setdefault(match[1].lower(), match[2])
    return [(name, value) for name, value in first.items() if name not in known]


def _match_fields(window: bytes, most: int) -> tuple[FieldList, int]:
    """The fields, one more than `most` if there are more, and where the first line stands that is
    part of none.
    """
    end = window.find(b"\n\n")
    block = window[: end + 1] if end >= 0 else window
    stop = len(block)
    lines = block.count(b"\n") if end >= 0 else -1
    found = _HEADER_FIELD.findall(block) if 0 <= lines <= 4 * most else []
    if (
        len(found) > most or _count_lines(found) != lines
    ):  # no end, too many, or not fields all: the careful way
        # it matches the empty string
        stop = _HEADER_BLOCK.match(block).end()  # type: ignore[union-attr]  # matches ""
        found = [
            match.groups() for match in islice(_HEADER_FIELD.finditer(block, 0, stop), most + 1)
        ]
    return [(name.lower(), value) for name, value in found], stop


def _count_lines(found: FieldList) -> int:
    return len(found) + b"".join([value for _, value in found]).count(b"\n")


def parse_message(raw: bytes, limits: ParseLimits, *, into_messages: bool = True) -> MimeMessage:
    """Take a message apart: never raises, reads at most `limits` of it. An mbox `From ` line on top
    is passed over; a text need not have a header.

    into_messages: also the messages attached to it; else each of them is a leaf.
    """
    cut = len(raw) > limits.message_bytes
    text, defects = normalise_line_ends(raw[: limits.message_bytes])
    text = _strip_from_line(text)
    fields, start, header_defects = _parse_lenient_header(text, limits)
    if fields and _is_headerless_text(fields, text, start):
        fields, start, header_defects = [], 0, sorted({*header_defects, b"header-line"})
    named = index_fields(fields)
    message = MimeMessage(
        fields,
        named,
        parse_content_type(named.get(b"content-type", b"")),
        text[start:],
        defects=defects + header_defects,
    )
    if cut:
        message.defects.append(b"message-size")
    _collect_leaves(message, limits, into_messages)
    return message


def _strip_from_line(text: bytes) -> bytes:
    """A message without the mbox `From ` line on top of it."""
    envelope = _MBOX_FROM_LINE.match(text)
    return text[envelope.end() :] if envelope else text


def _is_headerless_text(fields: FieldList, text: bytes, start: int) -> bool:
    """Whether what looks like a header is the beginning of a text that has none: no blank line
    below it, and no usual field.
    """
    parted = start < len(text) and text[start - 2 : start] == b"\n\n"
    return not parted and not any(
        name in _USUAL_NAMES or name.startswith(b"x-") for name, _ in fields
    )


def _collect_leaves(message: MimeMessage, limits: ParseLimits, into_messages: bool) -> None:
    """Depth first over the MIME tree with a stack of our own: order of appearance, bounded depth
    and count.
    """
    defects = list(message.defects)
    stack = [(_root_part(message), 0)]
    while stack:
        part, depth = stack.pop()
        children = _split_part(message, part, depth, limits, into_messages)
        if children is None:
            message.leaves.append(part)
            if len(message.leaves) >= limits.parts and stack:
                message.structure, message.defects, message.deep_bytes = (
                    [],
                    [*defects, b"part-count"],
                    0,
                )
                message.leaves = _largest_leaves(message, limits, into_messages)
                return
        else:
            stack.extend([(child, depth + 1) for child in reversed(children)])


def _root_part(message: MimeMessage) -> Leaf:
    return Leaf(message.fields, message.first_values, message.content_type, message.body)


def _largest_leaves(message: MimeMessage, limits: ParseLimits, into_messages: bool) -> list[Leaf]:
    """The leaves that say most, in order, where there are too many: else a hundred empty ones would
    hide what stands behind them.
    """
    wide = replace(limits, parts=_MAX_FLOOD_PARTS)
    found: list[tuple[tuple[int, ...], Leaf]] = []
    queue: list[tuple[int, tuple[int, ...], Leaf]] = [
        (0, (), _root_part(message))
    ]  # by size; where it stands in the tree
    opened = 0
    while queue and len(found) < limits.parts:
        _, path, part = heappop(queue)
        children = (
            _split_part(message, part, len(path), wide, into_messages, limits.parts)
            if opened < _FLOOD_OPEN_FACTOR * limits.parts
            else None
        )
        opened += len(children or ())
        for number, child in enumerate(children or ()):
            heappush(queue, (-len(child.body), (*path, number), child))
        if children is None:
            found.append((path, part))
    return [leaf for _, leaf in sorted(found, key=lambda one: one[0])]


def _split_part(
    message: MimeMessage,
    part: Leaf,
    depth: int,
    limits: ParseLimits,
    into_messages: bool,
    most: int | None = None,
) -> list[Leaf] | None:
    """The parts inside this one, the largest if not so many are wanted, or None when it is a leaf."""
    multipart, nested, sealed = (
        part.content_type.main == b"multipart",
        part.content_type.media in MESSAGE_TYPES,
        part.content_type.media in SMIME_MEDIA_TYPES,
    )
    if not (multipart or sealed or (nested and into_messages)):
        return None
    if depth >= limits.depth:
        message.deep_bytes += len(part.body)
        if depth >= _MAX_DEPTH or message.deep_bytes > limits.message_bytes:
            message.defects.append(b"part-depth")
            return None
    chunks = (
        _split_multipart(message, part, limits, most)
        if multipart
        else [_nested_message(message, part)]
        if nested
        else _signed_message(part)
    )
    if not chunks:
        return None
    message.structure.append(part.content_type.media)
    default = b"message/rfc822" if part.content_type.media == b"multipart/digest" else b""
    children = [_parse_child(message, chunk, default, limits) for chunk in chunks]
    if part.may_be_unseen or part.content_type.media in _PARTLY_SHOWN_TYPES:
        return [
            child._replace(may_be_unseen=beside)
            for child, beside in zip(children, _find_unseen_parts(part, children), strict=True)
        ]
    return children


def _find_unseen_parts(part: Leaf, children: list[Leaf]) -> list[bool]:
    """Of alternatives readers show the last page, and what belongs to a page is shown within it
    (RFC 2046 section 5.1.4, RFC 2387).
    """
    pages = [
        child.content_type.media in _PAGE_TYPES or child.content_type.main == b"multipart"
        for child in children
    ]
    if part.may_be_unseen or not any(pages):
        return [part.may_be_unseen] * len(children)
    if part.content_type.media == b"multipart/related":
        return [not page for page in pages]
    last = max(
        [
            number
            for number, child in enumerate(children)
            if child.content_type.media in _PAGE_TYPES
        ],
        default=-1,
    )
    return [number < last or not page for number, page in enumerate(pages)]


def _nested_message(message: MimeMessage, part: Leaf) -> bytes:
    """The message in a part: as a rule it stands there as it is, but programs encode it too (RFC
    6532 section 3.7).
    """
    if part.encoding != b"base64" or b":" in part.body:  # a header has one, base64 has none
        return _strip_from_line(part.body)
    text, defects = decode_base64(part.body)
    text, wrong = normalise_line_ends(text)
    message.defects += defects + wrong
    return _strip_from_line(text)


def _signed_message(part: Leaf) -> list[bytes]:
    """The message that an opaque signature holds, if it holds one that can be read."""
    data = decode_base64(part.body)[0] if part.encoding == b"base64" else part.body
    text = extract_signed_content(data)
    return [normalise_line_ends(text)[0]] if text else []


def _parse_child(message: MimeMessage, chunk: bytes, default: bytes, limits: ParseLimits) -> Leaf:
    fields, start, defects = _parse_lenient_header(chunk, limits)
    message.defects.extend(defects)
    named = index_fields(fields)
    return Leaf(
        fields, named, parse_content_type(named.get(b"content-type", default)), chunk[start:]
    )


def _split_multipart(
    message: MimeMessage, part: Leaf, limits: ParseLimits, most: int | None
) -> list[bytes] | None:
    found = part.content_type.parameters
    if (
        b"boundary" not in found
        and len(value := part.first_values.get(b"content-type", b"")) > MAX_VALUE_BYTES
    ):
        found = parse_parameters(value)
    boundary = found.get(b"boundary", b"").rstrip()
    if not boundary:
        message.defects.append(b"no-boundary")
        return None
    between = _iter_chunks(message, part.body, b"\n--" + boundary, limits)
    chunks = list(between) if most is None else _longest_chunks(between, most)
    if not chunks:
        message.defects.append(b"boundary-missing")
        return None
    return chunks


def _longest_chunks(chunks: Iterable[bytes], most: int) -> list[bytes]:
    """So many, in order."""
    return [
        chunk for _, chunk in sorted(nlargest(most, enumerate(chunks), key=lambda one: len(one[1])))
    ]


def _iter_chunks(
    message: MimeMessage, content: bytes, delimiter: bytes, limits: ParseLimits
) -> Iterator[bytes]:
    """What stands between delimiter lines (RFC 2046 section 5.1.1), without the line end before the
    delimiter.
    """
    text = b"\n" + content
    start = -1
    for end, resume, closing in _iter_delimiters(message, text, delimiter, limits):
        if start >= 0:
            yield text[start:end]
        start = resume
        if closing:
            return
    if start >= 0:
        message.defects.append(b"boundary-open")
        yield text[start:]


def _iter_delimiters(
    message: MimeMessage, text: bytes, delimiter: bytes, limits: ParseLimits
) -> Iterator[tuple[int, int, bool]]:
    """Each delimiter line: where its line end starts, where the next line starts, and whether it
    closes.
    """
    position = text.find(delimiter)
    found = 0
    for _ in range(_MAX_DELIMITER_SEARCHES):
        if position < 0 or found > limits.parts:
            return
        after = position + len(delimiter)
        closing = text.startswith(b"--", after)
        line_end = text.find(b"\n", after)
        line_end = len(text) if line_end < 0 else line_end
        if not text[
            after + 2 * closing : line_end
        ].strip():  # else a longer boundary that begins like this one
            found += 1
            yield position, min(line_end + 1, len(text)), closing
        # the line end may be shared: the next delimiter may begin with it
        position = text.find(delimiter, line_end)
    if position >= 0:
        message.defects.append(b"boundary-flood")
        line = re.compile(
            re.escape(delimiter) + rb"(--)?[ \t\r\v\f]*+(?=\n|\Z)"
        )  # costs more than a usual message has lines of them
        for match in islice(line.finditer(text, position), limits.parts - found + 1):
            yield match.start(), min(match.end() + 1, len(text)), match[1] is not None
