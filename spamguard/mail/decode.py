"""Transfer encodings, charsets and encoded words to text, and text to its folded form (RFC 2045, 2047, 2231).

Wrong, lying and unknown declarations are the usual case in spam: they never raise, they give the best text there is and
the name of the defect.
"""

from __future__ import annotations

import binascii
import codecs
import re
import unicodedata
from functools import lru_cache

_ENCODED_WORD = re.compile(rb"=\?([\w.:+-]{1,40})(?:\*[\w-]*)?\?([bBqQ])\?([^?]*+)\?=")
_BETWEEN_WORDS = re.compile(rb"(\?=)\s++(?==\?)")
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]+")
_PUNCTUATION = re.compile("[\u0080-\u00a9\u00ab-\u00b1\u00b4\u00b6-\u00b8\u00bb\u00bf\u2000-\u209f\u2190-\u2bff\u3000-\u3004\u3008-\u3020\u3030\uff61-\uff64]+")
_ZERO_WIDTH = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u206a-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]+"
)
# text codecs of the standard library that take quadratic time or do not decode mail
_UNFIT = frozenset(("idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape", "unicode-escape", "raw-unicode-escape"))
_SLICE = 512  # characters normalised at once: reordering a run of combining marks takes quadratic time


@lru_cache(maxsize=256)
def codec_name(charset: bytes) -> str | None:
    """Python's name for a declared charset, or None when there is none fit for mail."""
    name = charset.decode("ascii", "replace").strip().strip("'\"").lower()
    try:
        info = codecs.lookup(name)
    except (LookupError, ValueError):
        return None
    is_text = getattr(info, "_is_text_encoding", True)
    return info.name if is_text and info.name not in _UNFIT and name not in _UNFIT else None


def to_text(data: bytes, charset: bytes) -> tuple[str, list[bytes]]:
    """Bytes in a declared charset to text; strict first, then UTF-8, then whatever can be read.

    Unlabelled and mislabelled 8-bit text is UTF-8 if it is valid UTF-8 (practically never by chance), else Windows-1252.
    """
    declared = codec_name(charset) if charset else None
    defects = [b"charset-unknown"] if charset and declared is None else []
    candidates = (declared, "utf-8") if declared not in (None, "ascii") else ("utf-8",)
    for codec in candidates:
        try:
            return data.decode(codec or "utf-8"), defects if codec == declared else [*defects, b"charset-wrong"]
        except (UnicodeError, ValueError):
            continue
    fallback = declared if declared not in (None, "ascii", "utf-8") else "cp1252"
    return data.decode(fallback or "cp1252", "replace"), [*defects, b"charset-wrong"]


def transfer_decode(data: bytes, encoding: bytes) -> tuple[bytes, list[bytes]]:
    """Undo the content transfer encoding (RFC 2045 section 6); damage is decoded as far as it goes."""
    if encoding == b"base64":
        return decode_base64(data)
    if encoding == b"quoted-printable":
        return binascii.a2b_qp(data), []
    if encoding in (b"x-uuencode", b"uuencode", b"x-uue"):
        return _decode_uu(data)
    known = encoding in (b"", b"7bit", b"8bit", b"binary")
    return data, [] if known else [b"encoding-unknown"]


def decode_base64(data: bytes) -> tuple[bytes, list[bytes]]:
    """Base64 with the padding repaired and foreign characters passed over."""
    try:
        return binascii.a2b_base64(data), []
    except binascii.Error:
        clean = _NOT_BASE64.sub(b"", data)
        clean = clean[: len(clean) - (len(clean) % 4 == 1)]
        return binascii.a2b_base64(clean + b"=" * (-len(clean) % 4)), [b"base64"]


def _decode_uu(data: bytes) -> tuple[bytes, list[bytes]]:
    lines: list[bytes] = []
    for line in data.split(b"\n"):
        if line.startswith((b"begin ", b"end")) or not line:
            continue
        try:
            lines.append(binascii.a2b_uu(line))
        except binascii.Error:
            return b"".join(lines), [b"uuencode"]
    return b"".join(lines), []


def unstructured(value: bytes) -> tuple[str, list[bytes]]:
    """A header field's value as text: encoded words decoded (RFC 2047 section 6.2), 8-bit guessed, folding undone."""
    if b"=?" not in value:
        if value.isascii():
            return value.decode("ascii"), []
        return to_text(value, b"")[0], [b"header-8bit"]
    value = _BETWEEN_WORDS.sub(rb"\1", value)
    pieces: list[str] = []
    defects: list[bytes] = []
    position = 0
    for match in _ENCODED_WORD.finditer(value):
        pieces.append(to_text(value[position : match.start()], b"")[0])
        text, wrong = _encoded_word(*match.groups())
        pieces.append(text)
        defects += wrong
        position = match.end()
    pieces.append(to_text(value[position:], b"")[0])
    return "".join(pieces), defects


def _encoded_word(charset: bytes, kind: bytes, data: bytes) -> tuple[str, list[bytes]]:
    if kind in b"bB":
        decoded, defects = decode_base64(data)
    else:
        decoded, defects = binascii.a2b_qp(data, header=True), []
    text, wrong = to_text(decoded, charset)
    return text, defects + wrong


def fold(text: str) -> str:
    """NFKC and lower case, invisible characters removed (UAX #15, UTS #39); linear time for any input."""
    if text.isascii():
        return text.lower()
    visible = _PUNCTUATION.sub(" ", _ZERO_WIDTH.sub("", text))
    return "".join([unicodedata.normalize("NFKC", visible[at : at + _SLICE]) for at in range(0, len(visible), _SLICE)]).lower()
