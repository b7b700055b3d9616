"""Raw bytes to header fields and MIME leaves (RFC 5322, RFC 2045, RFC 2046), within limits.

`parse_message` normalises line ends, reads the header block (`headers`), and walks the tree of
parts depth first with a stack of its own. Damage does not stop it: it reads on as mail programs do,
and the name of each defect becomes evidence. S/MIME signatures that wrap the message are opened,
because mail programs show what is inside; no signature is checked and nothing is decrypted.

The standard library's parser takes three times as long and has no limits; the tests compare with
it. Must never raise, recurse, or look beyond `ParseLimits`. Undoes no transfer encoding except that
of messages within messages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush, nlargest
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from spamguard.mail.decode import decode_base64, decode_text, decode_transfer_encoding
from spamguard.mail.headers import (
    BYTE_ORDER_MARK,
    COMMENT,
    FieldList,
    FieldMap,
    is_headerless_text,
    parse_lenient_header,
)

MESSAGE_TYPES = frozenset((b"message/rfc822", b"message/global", b"message/news"))
_SMIME_TYPES = frozenset((b"application/pkcs7-mime", b"application/x-pkcs7-mime"))
_PAGE_TYPES = frozenset((b"text/html", b"multipart/related"))  # other multiparts may hold one
_PARTLY_SHOWN_TYPES = frozenset((b"multipart/alternative", b"multipart/related"))

_MAX_DEPTH = 100  # of small parts within parts: mail servers pass these on
_MAX_FLOOD_PARTS = 200_000  # of one multipart, among which the largest are sought
_FLOOD_OPEN_FACTOR = 5  # times `ParseLimits.parts`: parts taken out of multiparts meanwhile
_MAX_CUT_LINE = 1000  # where a line is longer, it is cut itself
_MAX_ALIKE = 2000  # lines that begin like a delimiter and are none; what follows is one part


class ParseLimits(NamedTuple):
    """How much of a message is looked at; what lies beyond leaves a defect and is not scanned.

    Parameters
    ----------
    message_bytes, tail_bytes
        Of the raw message; these of its end.
    header_bytes, header_fields
        Of each header block.
    parts, depth
        MIME leaves and nesting; small parts may nest deeper.
    text_bytes
        Characters of all text leaves together, beginning and end, without what is long and never
        seen; later leaves still get a little each.
    token_characters
        Text that becomes tokens, of the body, of hidden text and of markup each: three quarters
        from its start, one from its end (corpora/RESULTS.md, "How much text").
    """

    message_bytes: int = 4 << 20
    header_bytes: int = 256 << 10
    header_fields: int = 500
    parts: int = 100
    depth: int = 12
    text_bytes: int = 128 << 10
    token_characters: int = 8 << 10
    tail_bytes: int = 0


DEFAULT_LIMITS = ParseLimits(tail_bytes=1 << 20)


class Leaf(NamedTuple):
    """A MIME part without children, its body undecoded, line ends as LF."""

    fields: FieldList
    first_values: FieldMap
    media: bytes  # the media type in lower case
    parameters: dict[bytes, bytes]  # of the media type, by name in lower case
    encoding: bytes  # the content transfer encoding in lower case; empty without one
    body: bytes
    may_be_unseen: bool = False  # mail programs may show another part instead

    @property
    def file_name(self) -> bytes:
        """As it stands in the header; empty without one."""
        disposition = self.first_values[b"content-disposition"][:MAX_VALUE_BYTES]
        name = parse_parameters(disposition).get(b"filename")
        return name or self.parameters.get(b"name", b"")


@dataclass
class MimeMessage:
    """A message taken apart."""

    root: Leaf  # the header, and all behind it
    defects: list[bytes]
    leaves: list[Leaf] = field(default_factory=list)
    structure: list[bytes] = field(default_factory=list)  # multiparts, outermost first


def parse_message(raw: bytes, limits: ParseLimits, *, into_messages: bool = True) -> MimeMessage:
    """Take a message apart. An mbox `From ` line on top is skipped; a text may lack a header.

    With `into_messages`, attached messages are taken apart too; else each is a leaf.
    """
    read = cut_middle(raw, limits.message_bytes, limits.tail_bytes)
    message = MimeMessage(*_read_root(read, limits))
    if len(raw) > limits.message_bytes:
        message.defects.append(b"message-size")
    _TreeReader(message, limits, into_messages=into_messages).read()
    return message


def cut_middle(data: bytes, size: int, tail: int) -> bytes:
    """At most `size` bytes, of which `tail` are from the end, cut between lines where there are
    any: most lines of base64 are of one length.
    """
    if len(data) <= size or not tail:
        return data[:size]
    end, start = size - tail, len(data) - tail
    end = data.rfind(b"\n", end - _MAX_CUT_LINE, end) + 1 or end
    start = data.find(b"\n", start, start + _MAX_CUT_LINE) + 1 or start
    return data[:end] + data[start:]


def has_header(raw: bytes) -> bool:
    """Whether there is a single header field in front of the body, as `parse_message` reads it."""
    return bool(_read_root(raw[: DEFAULT_LIMITS.header_bytes], DEFAULT_LIMITS)[0].fields)


def _read_root(raw: bytes, limits: ParseLimits) -> tuple[Leaf, list[bytes]]:
    text, defects = normalise_line_ends(raw)
    text = _strip_from_line(text)
    root, header_defects = _read_leaf(text, limits)
    if root.fields and is_headerless_text(root.fields, text, len(text) - len(root.body)):
        root, _ = _read_leaf(b"\n" + text, limits)  # below an empty line all is body
        header_defects = sorted({*header_defects, b"header-line"})
    return root, defects + header_defects


def _read_leaf(
    text: bytes, limits: ParseLimits, default_type: bytes = b""
) -> tuple[Leaf, list[bytes]]:
    fields, start, defects = parse_lenient_header(text, limits.header_bytes, limits.header_fields)
    first_values = FieldMap(reversed(fields))
    body = text[start:]
    types = [value for name, value in fields if name == b"content-type"] or [default_type]
    kind = types[0]
    if len(types) > 1:  # programs differ; what the body says is right
        fitting = (kind for kind in types[:_MAX_BOUNDARIES] if _find_boundary([kind], body))
        kind = next(fitting, kind)
    media, parameters = parse_content_type(kind[:MAX_VALUE_BYTES])
    match = _TRANSFER_ENCODING.match(first_values[b"content-transfer-encoding"])
    encoding = match[1].lower()  # type: ignore[index]  # it matches b""
    return Leaf(fields, first_values, media, parameters, encoding, body), defects


def normalise_line_ends(raw: bytes) -> tuple[bytes, list[bytes]]:
    """CRLF to LF. A bare CR ends a line too and is a defect (RFC 5322 section 2.2), except in front
    of CRLF, where programs double it.
    """
    if raw.find(b"\r") < 0:
        return raw, []
    text = raw.replace(b"\r", b"")
    if (
        text.replace(b"\n", b"\r\n") == raw
    ):  # nearly always; four times faster than to look for pairs
        return text, []
    text = raw.replace(b"\r\n", b"\n")
    if b"\r" not in text:
        return text, []
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), [b"bare-cr"]


_MBOX_FROM_LINE = re.compile(rb"(?:%b)?+>?From [^\n]*+\n?" % BYTE_ORDER_MARK)


def _strip_from_line(text: bytes) -> bytes:
    envelope = _MBOX_FROM_LINE.match(text)
    return text[envelope.end() :] if envelope else text


# ---- media types and parameters (RFC 2045 section 5.1, RFC 2183, RFC 2231)

MAX_VALUE_BYTES = 4000
"""Of a structured field: what caches keep must be bounded, and no sender needs more."""
_MEDIA_TYPE = re.compile(
    rb"(?:\s++|%b|)*+\"?([\w!#$&^.+-]++)\s*+/\s*+([\w!#$&^.+-]++)" % COMMENT, re.S
)
# A comment, or a parameter. Mail programs find one without a semicolon in front of it, too.
_PARAMETER = re.compile(
    rb"%b|(?<![\w*-])([\w*-]{1,40}+)\s*+=\s*+(?:\"((?:[^\"\\]|\\.)*+)\"?|([^\s;]{0,1000}+))"
    % COMMENT,
    re.S,
)
# What is tried where the boundary of a multipart does not occur in it.
_MAX_BOUNDARIES, _MAX_TYPE_BYTES, _MAX_PREAMBLE_BYTES = 5, 64 << 10, 64 << 10
_BLANKS_OR_QUOTES = re.compile(rb"^'|'$|\"|\s+")
_QUOTED_PAIR = re.compile(rb"\\(.)", re.S)
_CONTINUATION = re.compile(rb"([\w-]++)\*([0-9]{1,3}+)?(\*)?")
_EXTENDED_VALUE = re.compile(rb"([\w.:+-]*+)'[\w-]*+'(.*)", re.S)  # charset, language, text
# Programs that take it for a field with comments and parameters write these around it, and mail
# programs skip them.
_TRANSFER_ENCODING = re.compile(rb"(?:\s++|%b|)*+\"?([^\s;,()\"]*+)" % COMMENT, re.S)


@lru_cache(maxsize=512)
def parse_content_type(value: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """The media type and its parameters in a Content-Type of at most MAX_VALUE_BYTES; anything
    unusable is text/plain.
    """
    match = _MEDIA_TYPE.match(value)
    media = b"/".join(match.groups())[:100].lower() if match else b"text/plain"
    return media, parse_parameters(value)


def parse_parameters(value: bytes) -> dict[bytes, bytes]:
    """Parameters by name in lower case, quoting undone; the first of a name counts."""
    if b"=" not in value:
        return {}
    parameters = dict(reversed(_list_parameters(value)))
    return _join_continuations(parameters) if b"*" in value else parameters


def _list_parameters(value: bytes) -> list[tuple[bytes, bytes]]:
    """Names in lower case, and texts without quoting and folding."""
    return [
        (name.lower(), (_QUOTED_PAIR.sub(rb"\1", quoted) if b"\\" in quoted else quoted) or bare)
        for name, quoted, bare in _PARAMETER.findall(value.replace(b"\n", b""))
        if name
    ]


def _find_boundary(types: list[bytes], body: bytes) -> bytes:
    """The first boundary in these types that delimits parts of a body; empty if none does.

    Blanks in it may come from folding, and quotes from programs that know of one kind of them only.
    """
    named = [
        boundary
        for kind in types[:_MAX_BOUNDARIES]
        for name, boundary in _list_parameters(kind[:_MAX_TYPE_BYTES])
        if name == b"boundary"
    ]
    start = b"\n" + body[:_MAX_PREAMBLE_BYTES]
    for boundary in named[:_MAX_BOUNDARIES]:
        plain = _BLANKS_OR_QUOTES.sub(b" ", boundary).strip()
        for variant in (boundary.rstrip(), plain, plain.replace(b" ", b"")):
            if variant and start.find(b"\n--" + variant) >= 0:
                return variant
    return b""


def _join_continuations(parameters: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Join parameters in pieces (name*0, name*1*) and undo percent signs (name*). Those with a
    charset become UTF-8 (RFC 2231 sections 3 and 4).
    """
    joined = {name: text for name, text in parameters.items() if b"*" not in name}
    pieces: dict[bytes, list[tuple[int, bytes]]] = {}
    charsets: dict[bytes, bytes] = {}
    for name, text in parameters.items():
        if (match := _CONTINUATION.fullmatch(name)) is None:
            continue
        base, digits, star = match.groups()
        number, piece = int(digits or 0), text
        if star or digits is None:
            if number == 0 and (extended := _EXTENDED_VALUE.fullmatch(text)):
                charsets[base], piece = extended.groups()
            piece = unquote_to_bytes(piece)
        pieces.setdefault(base, []).append((number, piece))
    for base, numbered in pieces.items():
        text = b"".join([piece for _, piece in sorted(numbered)])
        if charset := charsets.get(base):
            text = decode_text(text, charset)[0].encode("utf-8", "replace")
        joined[base] = text
    return joined


# ---- tree of parts


class _TreeReader:
    """Collects the leaves, the structure and the defects of one message."""

    def __init__(self, message: MimeMessage, limits: ParseLimits, *, into_messages: bool) -> None:
        self._message = message
        self._limits = limits
        self._into_messages = into_messages
        self._deep_bytes = 0  # in parts beyond the usual depth, counted at each level
        self._is_flood = False

    def read(self) -> None:
        """Depth first, in order of appearance."""
        message, defects = self._message, list(self._message.defects)
        stack = [(message.root, 0)]
        while stack:
            part, depth = stack.pop()
            if children := self._split(part, depth):
                stack.extend([(child, depth + 1) for child in reversed(children)])
                continue
            message.leaves.append(part)
            if len(message.leaves) >= self._limits.parts and stack:
                message.structure, message.defects = [], [*defects, b"part-count"]
                message.leaves = self._largest_leaves()
                return

    def _largest_leaves(self) -> list[Leaf]:
        """The largest leaves in order of appearance, where there are too many. Otherwise a hundred
        empty ones would hide what stands behind them.
        """
        self._deep_bytes, self._is_flood = 0, True
        leaves: list[tuple[tuple[int, ...], Leaf]] = []
        queue: list[tuple[int, tuple[int, ...], Leaf]] = [(0, (), self._message.root)]
        opened = 0
        while queue and len(leaves) < self._limits.parts:
            _, path, part = heappop(queue)  # the largest
            may_open = opened < _FLOOD_OPEN_FACTOR * self._limits.parts
            children = self._split(part, len(path)) if may_open else []
            if not children:
                leaves.append((path, part))
            opened += len(children)
            for number, child in enumerate(children):
                heappush(queue, (-len(child.body), (*path, number), child))
        return [leaf for _, leaf in sorted(leaves, key=lambda item: item[0])]

    def _split(self, part: Leaf, depth: int) -> list[Leaf]:
        message, media = self._message, part.media
        is_multipart, is_message = media.startswith(b"multipart/"), media in MESSAGE_TYPES
        is_opened = is_multipart or (is_message and self._into_messages)
        if not (is_opened or (media.startswith(b"application/") and _is_smime(part))):
            return []
        if depth >= self._limits.depth:
            self._deep_bytes += len(part.body)
            if depth >= _MAX_DEPTH or self._deep_bytes > self._limits.message_bytes:
                message.defects.append(b"part-depth")
                return []
        if is_multipart:
            chunks = self._split_multipart(part)
        elif is_message:
            text, defects = nested_message(part)
            message.defects += defects
            chunks = [text]
        else:
            data = decode_base64(part.body)[0] if part.encoding == b"base64" else part.body
            signed = extract_signed_content(data)
            chunks = [normalise_line_ends(signed)[0]] if signed else []
        if not chunks:
            return []
        message.structure.append(media)
        default_type = b"message/rfc822" if media == b"multipart/digest" else b""
        children = []
        for chunk in chunks:
            child, defects = _read_leaf(chunk, self._limits, default_type)
            children.append(child)
            message.defects += defects
        if part.may_be_unseen or media in _PARTLY_SHOWN_TYPES:
            unseen = _find_unseen_parts(part, children)
            return [
                child._replace(may_be_unseen=flag)
                for child, flag in zip(children, unseen, strict=True)
            ]
        return children

    def _split_multipart(self, part: Leaf) -> list[bytes]:
        """What stands between the delimiter lines (RFC 2046 section 5.1.1); nothing, with a defect,
        where there are none. The line end in front of a delimiter belongs to the delimiter.
        """
        defects, parameters = self._message.defects, part.parameters
        boundary, text = parameters.get(b"boundary", b"").rstrip(), b"\n" + part.body
        if not boundary or text.find(b"\n--" + boundary) < 0:
            types = [value for name, value in part.fields if name == b"content-type"]
            boundary = _find_boundary(types, part.body) or boundary
        if not boundary:
            defects.append(b"no-boundary")
            return []
        delimiter = b"\n--" + boundary
        most = _MAX_FLOOD_PARTS if self._is_flood else self._limits.parts
        chunks: list[bytes] = []
        start, alike = -1, 0
        position = text.find(delimiter)
        while position >= 0 and len(chunks) < most:
            after = position + len(delimiter)
            closes = text.startswith(b"--", after)
            line_end = text.find(b"\n", after)
            line_end = len(text) if line_end < 0 else line_end
            # anything else behind it: a longer boundary that begins like this one
            if text[after + 2 * closes : line_end].strip():
                alike += 1
                if alike > _MAX_ALIKE:
                    defects.append(b"boundary-flood")
                    break
            else:
                if start >= 0:
                    chunks.append(text[start:position])
                if closes:
                    start = -1
                    break
                start = min(line_end + 1, len(text))
            # the next delimiter may begin with this line end
            position = text.find(delimiter, line_end)
        if start >= 0:
            defects.append(b"boundary-open")
            chunks.append(text[start:])
        if self._is_flood:  # the largest, in order of appearance
            largest = nlargest(self._limits.parts, enumerate(chunks), key=lambda item: len(item[1]))
            chunks = [chunk for _, chunk in sorted(largest)]
        if not chunks:
            defects.append(b"boundary-missing")
        return chunks


_AFTER_EQUALS = re.compile(rb"=([^\n]{0,2})")
_OCTET = re.compile(rb"(?:[0-9A-F]{2})?")


def nested_message(part: Leaf) -> tuple[bytes, list[bytes]]:
    """The message in a part, and defects. Usually it is not encoded, whatever is declared, but it
    may be (RFC 6532, section 3.7).
    """
    text = part.body
    if part.encoding == b"base64":
        is_encoded = b":" not in text  # as a header has
    else:  # a header has signs of equality, which quoted-printable has not
        head = text[: DEFAULT_LIMITS.header_bytes].partition(b"\n\n")[0]
        signs = {sign.strip().upper() for sign in _AFTER_EQUALS.findall(head)}
        is_encoded = part.encoding == b"quoted-printable" and (
            not signs or (not signs.isdisjoint((b"", b"3D")) and all(map(_OCTET.fullmatch, signs)))
        )
    defects: list[bytes] = []
    if is_encoded:
        text, defects = decode_transfer_encoding(text, part.encoding)
        text, line_defects = normalise_line_ends(text)
        defects = defects + line_defects
    return _strip_from_line(text), defects


def _find_unseen_parts(part: Leaf, children: list[Leaf]) -> list[bool]:
    """For each child, whether it may stay unseen. Of alternatives mail programs show the last page,
    and what belongs to a page is shown within it (RFC 2046 section 5.1.4, RFC 2387).
    """
    media = [child.media for child in children]
    pages = [name in _PAGE_TYPES or name.startswith(b"multipart/") for name in media]
    if part.may_be_unseen or not any(pages):
        return [part.may_be_unseen] * len(children)
    if part.media == b"multipart/related":
        return [not page for page in pages]
    last = max([number for number, name in enumerate(media) if name in _PAGE_TYPES], default=-1)
    return [number < last or not page for number, page in enumerate(pages)]


# ---- opaque S/MIME signatures: CMS (RFC 5652) in BER or DER (RFC 8551 section 3.5.2)

# OBJECT IDENTIFIERs, as they stand in front of what they name
_OID_SIGNED_DATA = bytes.fromhex("06092a864886f70d010702")
_OID_DATA = bytes.fromhex("06092a864886f70d010701")
# Bytes in which they must stand: the lists of algorithms between the two are short.
_MAX_SIGNED_DATA_OFFSET, _MAX_DATA_OFFSET = 100, 1000
_TAG_EXPLICIT, _TAG_CONSTRUCTED_OCTETS, _TAG_OCTET_STRING = 0xA0, 0x24, 0x04
_MAX_OCTET_STRINGS = 50_000  # programs write a thousand bytes or more in each


def _is_smime(part: Leaf) -> bool:
    """By its type, or by the name of its file (RFC 8551 section 3.9)."""
    return part.media in _SMIME_TYPES or part.file_name.strip().lower().endswith(b".p7m")


def extract_signed_content(data: bytes) -> bytes:
    """The content of CMS SignedData; empty if it cannot be read."""
    outer = data.find(_OID_SIGNED_DATA, 0, _MAX_SIGNED_DATA_OFFSET)
    inner = data.find(_OID_DATA, outer, _MAX_DATA_OFFSET)
    if outer < 0 or inner < 0:
        return b""
    tag, start, _ = _read_ber_header(data, inner + len(_OID_DATA))
    if tag != _TAG_EXPLICIT:
        return b""
    tag, start, size = _read_ber_header(data, start)
    most = 1
    if tag == _TAG_CONSTRUCTED_OCTETS:
        most = _MAX_OCTET_STRINGS
        tag, start, size = _read_ber_header(data, start)
    pieces: list[bytes] = []
    while tag == _TAG_OCTET_STRING and len(pieces) < most:
        pieces.append(data[start : start + size])
        tag, start, size = _read_ber_header(data, start + size)
    return b"".join(pieces)


def _read_ber_header(data: bytes, position: int) -> tuple[int, int, int]:
    """Tag of an element, where its content begins, and its size; 0: an end mark ends it. Tag -1:
    there is no element.
    """
    if position + 2 > len(data):
        return -1, position, 0
    first = data[position + 1]
    length_bytes = first & 0x7F if first & 0x80 else 0
    start = position + 2 + length_bytes
    size = int.from_bytes(data[position + 2 : start], "big") if length_bytes else first & 0x7F
    return data[position], start, size
