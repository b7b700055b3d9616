"""Media types and dispositions with their parameters (RFC 2045 section 5.1, RFC 2183, RFC 2231). Never raises; bounded."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from spamguard.mail.decode import to_text

VALUE_BYTES = 4000
"""Of a structured field: what is kept in caches must be bounded, and no sender needs more."""
_MEDIA_TYPE = re.compile(rb"\s*([\w!#$&^.+-]+)/([\w!#$&^.+-]+)")
_PARAMETER = re.compile(rb";\s*+([\w*-]{1,40}+)\s*+=\s*+(?:\"((?:[^\"\\]|\\.){0,1000}+)\"?|([^\s;]{0,1000}+))", re.S)
_QUOTED_PAIR = re.compile(rb"\\(.)", re.S)
_CONTINUATION = re.compile(rb"([\w-]++)\*([0-9]{1,3}+)?(\*)?")
_EXTENDED = re.compile(rb"([\w.:+-]*+)'[\w-]*+'(.*)", re.S)  # charset, language, text


@dataclass(frozen=True, slots=True)
class ContentType:
    """Media type and parameters of a Content-Type (or Content-Disposition) field, names in lower case."""

    media: bytes
    parameters: dict[bytes, bytes]
    main: bytes = field(init=False)  # in front of the slash

    def __post_init__(self) -> None:
        object.__setattr__(self, "main", self.media.partition(b"/")[0])


def parse_type(value: bytes) -> ContentType:
    """Media type and parameters of a field value (RFC 2045 section 5.1); anything unusable is text/plain."""
    return _parse_type(value[:VALUE_BYTES])


@lru_cache(maxsize=512)
def _parse_type(value: bytes) -> ContentType:
    match = _MEDIA_TYPE.match(value)
    media = b"/".join(match.groups())[:100].lower() if match else b"text/plain"
    return ContentType(media, parameters(value))


def parse_disposition(value: bytes) -> ContentType:
    """Content-Disposition in the same shape (RFC 2183); the media field holds the disposition."""
    return ContentType(value.partition(b";")[0].strip().lower()[:40], parameters(value[:VALUE_BYTES]))


def parameters(value: bytes) -> dict[bytes, bytes]:
    """Parameters by lower-case name, quoting undone; the first of a name counts."""
    if b"=" not in value:
        return {}
    found: dict[bytes, bytes] = {}
    for name, quoted, bare in _PARAMETER.findall(value):
        text = _QUOTED_PAIR.sub(rb"\1", quoted) if b"\\" in quoted else quoted
        found.setdefault(name.lower(), text or bare)
    return _join_continuations(found) if b"*" in value else found


def _join_continuations(found: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Parameters in pieces (name*0, name*1*) and with percent signs (name*) as plain ones, those of a charset in UTF-8 (RFC 2231 sections 3
    and 4)."""
    plain = {name: text for name, text in found.items() if b"*" not in name}
    pieces: dict[bytes, list[tuple[int, bytes]]] = {}
    charsets: dict[bytes, bytes] = {}
    for name, value in found.items():
        match = _CONTINUATION.fullmatch(name)
        if match:
            base, number, extended = match.groups()
            place, encoded = int(number or 0), extended or number is None
            said = _EXTENDED.fullmatch(value) if encoded and place == 0 else None
            charsets[base], text = said.groups() if said else (charsets.get(base, b""), value)
            pieces.setdefault(base, []).append((place, unquote_to_bytes(text) if encoded else text))
    joined = {name: b"".join([piece for _, piece in sorted(parts)]) for name, parts in pieces.items()}
    return plain | {name: _in_utf8(text, charsets[name]) for name, text in joined.items()}


def _in_utf8(text: bytes, charset: bytes) -> bytes:
    return to_text(text, charset)[0].encode("utf-8", "replace") if charset else text
