"""Categorical and numeric traits of a message, beside its tokens.

Each trait has a fixed list of values, the last of which is "other": an unknown category costs
nothing, and a receipt holds one byte for each trait. Numbers are scaled by their logarithm, rounded
and bounded, so one huge message cannot dominate a sum.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import log2

import numpy as np
from numpy.typing import NDArray

from spamguard.mail.content import MessageContent
from spamguard.mail.decode import codec_name
from spamguard.mail.headers import FieldMap, registered_domain

_MEDIA = (
    "absent",
    "text/plain",
    "text/html",
    *("multipart/alternative", "multipart/mixed", "multipart/related"),
    *("multipart/signed", "multipart/report"),
)
_ENCODINGS = ("absent", "7bit", "8bit", "quoted-printable", "base64")
_CHARSETS = (
    *("absent", "us-ascii", "utf-8", "western", "central", "cyrillic"),
    *("japanese", "chinese", "korean"),
)
_ATTACHMENTS = ("none", "image", "document", "archive", "program", "html", "calendar", "message")

TRAITS: dict[str, tuple[str, ...]] = {
    "media type": (*_MEDIA, "other"),
    "transfer encoding": (*_ENCODINGS, "other"),
    "charset": (*_CHARSETS, "other"),
    "attachment": (*_ATTACHMENTS, "other"),
    "recipients": ("none", "one", "several", "undisclosed", "other"),
    "reply-to": ("absent", "same domain", "other"),
    "message-id": ("absent", "sender's domain", "other"),
    "subject": ("absent", "reply", "forward", "capitals", "other"),
    "list": ("none", "list", "bulk", "other"),
    "date": ("absent", "zone", "other"),
}
"""Name of each trait and its values; a value's code is its position. At most 16 values."""

NUMBERS: tuple[str, ...] = (
    "body size",
    "text length",
    "links",
    "share of capitals",
    "share of digits",
    "share of 8-bit",
    "recipients",
    "subject length",
    "header fields",
    "hops",
    "markup share",
    "hidden text",
    "images",
    "attachments",
    "exclamation marks",
)
"""Names of the numeric traits. Counts and lengths are 8·log2(1+x), shares 255·x, both rounded, at
most 255.
"""

_CHARSET_GROUPS = {  # by name of the codec
    "ascii": "us-ascii",
    "utf-8": "utf-8",
    "cp1252": "western",
    "iso8859_15": "western",
    "iso8859_2": "central",
    "cp1250": "central",
    "koi8_r": "cyrillic",
    "cp1251": "cyrillic",
    "iso8859_5": "cyrillic",
    "iso2022_jp_ext": "japanese",
    "cp932": "japanese",
    "euc_jp": "japanese",
    "gb18030": "chinese",
    "big5hkscs": "chinese",
    "cp949": "korean",
    "iso2022_kr": "korean",
}
_EXTENSIONS = {
    "image": b"jpg jpeg png gif bmp webp svg tif tiff heic",
    "document": b"pdf doc docx xls xlsx ppt pptx odt ods rtf csv xlsm docm",
    "archive": b"zip rar 7z gz tgz bz2 xz tar iso img cab ace arj z",
    "program": b"exe scr com bat cmd pif vbs js jse wsf hta jar msi lnk ps1 cpl dll",
    "html": b"htm html shtml mht xhtml",
    "calendar": b"ics vcs",
    "message": b"eml msg",
}
_EXTENSION_KINDS = {
    extension: kind for kind, extensions in _EXTENSIONS.items() for extension in extensions.split()
}
_ZONE = re.compile(rb"\d\d:\d\d(?::\d\d)?\s+(?:[+-]\d{4}|[a-zA-Z]{1,5})\b")
_REPLY = re.compile(rb"\s*(?:re|aw|sv|antw|odp|ref|vs)(?:\[\d+\])?:", re.I)
_FORWARD = re.compile(rb"\s*(?:fwd?|wg|tr|rv|i)(?:\[\d+\])?:", re.I)
_LIST_FIELDS = (b"list-id", b"list-post", b"mailing-list")
_CAPITALS, _DIGITS, _BEYOND_ASCII = bytes(range(65, 91)), b"0123456789", bytes(range(128, 256))
_TRAIT_CODES = [
    ({value: code for code, value in enumerate(values)}, len(values) - 1)
    for values in TRAITS.values()
]


def compute_traits(content: MessageContent) -> NDArray[np.uint8]:
    """The codes of all traits, uint8, (len(TRAITS),)."""
    message = content.message
    first_values = message.first_values
    sender = registered_domain(first_values.get(b"from", b""))
    charset = content.text_type.parameters.get(b"charset") if content.text_type else None
    encoding, media = content.text_encoding, message.content_type.media
    date = first_values.get(b"date")
    values = (
        media.decode("ascii", "replace") if b"content-type" in first_values else "absent",
        encoding.decode("ascii", "replace") if encoding else "absent",
        _CHARSET_GROUPS.get(codec_name(charset) or "", "other") if charset else "absent",
        _attachment_kind(content),
        _recipients(first_values),
        _relation(first_values.get(b"reply-to"), sender, "same domain"),
        _relation(first_values.get(b"message-id"), sender, "sender's domain"),
        _subject_kind(first_values.get(b"subject")),
        _list_kind(first_values),
        "absent" if date is None else "zone" if _ZONE.search(date) else "other",
    )
    codes = zip(_TRAIT_CODES, values, strict=True)
    return np.array([table.get(value, other) for (table, other), value in codes], np.uint8)


def _attachment_kind(content: MessageContent) -> str:
    if not content.attachments:
        return "none"
    media, name = content.attachments[0]
    kind = _EXTENSION_KINDS.get(name.rpartition(b".")[2])
    return kind or ("image" if media.startswith(b"image/") else "other")


def _recipients(first_values: FieldMap) -> str:
    to = first_values.get(b"to", b"") + b"," + first_values.get(b"cc", b"")
    count = to.count(b"@")
    if count:
        return "one" if count == 1 else "several"
    if b"undisclosed" in to.lower():
        return "undisclosed"
    return "other" if b"to" in first_values else "none"


def _relation(value: bytes | None, sender: bytes, same: str) -> str:
    if value is None:
        return "absent"
    return same if sender and registered_domain(value) == sender else "other"


def _subject_kind(value: bytes | None) -> str:
    if value is None:
        return "absent"
    if value.find(b":") >= 0:  # few have one
        if _REPLY.match(value):
            return "reply"
        if _FORWARD.match(value):
            return "forward"
    return "capitals" if value.isupper() and b"=?" not in value else "other"


def _list_kind(first_values: FieldMap) -> str:
    if not first_values.keys().isdisjoint(_LIST_FIELDS):
        return "list"
    precedence = first_values.get(b"precedence", b"").strip().lower()
    is_bulk = b"list-unsubscribe" in first_values or precedence in (b"bulk", b"list", b"junk")
    return "bulk" if is_bulk else "none"


def compute_numbers(content: MessageContent, size: int) -> NDArray[np.int16]:
    """All numeric traits, int16, (len(NUMBERS),), 0 to 255. size: bytes of the whole body."""
    first_values = content.message.first_values
    sample = b"".join(content.samples)
    beyond_ascii = 0 if sample.isascii() else _count_bytes(sample, _BEYOND_ASCII)
    values = (
        _scale_log(size),
        _scale_log(content.text_length),
        _scale_log(len(content.urls)),
        _scale_share(_count_bytes(sample, _CAPITALS), len(sample)),
        _scale_share(_count_bytes(sample, _DIGITS), len(sample)),
        _scale_share(beyond_ascii, len(sample)),
        _scale_log((first_values.get(b"to", b"") + first_values.get(b"cc", b"")).count(b"@")),
        _scale_log(len(first_values.get(b"subject", b""))),
        _scale_log(len(content.evidence)),
        _scale_log(content.hops),
        _scale_share(content.markup_length, content.markup_length + content.text_length),
        _scale_log(sum(map(len, content.hidden))),
        _scale_log(content.images),
        _scale_log(len(content.attachments)),
        _scale_log(content.sections[0][1].count(b"!")),
    )
    return np.array(values, np.int16)


def _count_bytes(sample: bytes, kind: bytes) -> int:
    return len(sample) - len(sample.translate(None, kind))


@lru_cache(maxsize=4096)
def _scale_log(count: int) -> int:
    return min(round(8 * log2(1 + count)), 255)


def _scale_share(part: int, whole: int) -> int:
    return round(255 * part / max(whole, 1))
