"""Categorical and numeric traits of a message, beside its tokens.

Every trait has a fixed list of values (the last one is "other"), so that a category never seen
costs nothing and a receipt holds one byte for each. Numbers are log-scaled, quantised and bounded:
one huge message cannot dominate a sum.
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
    "multipart/alternative",
    "multipart/mixed",
    "multipart/related",
    "multipart/signed",
    "multipart/report",
)
_ENCODINGS = ("absent", "7bit", "8bit", "quoted-printable", "base64")
_CHARSETS = (
    "absent",
    "us-ascii",
    "utf-8",
    "western",
    "central",
    "cyrillic",
    "japanese",
    "chinese",
    "korean",
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
_UPPER_CASE = bytes(range(65, 91))
_DIGITS = b"0123456789"
_ASCII = bytes(range(128))
_TRAIT_CODES = [
    ({value: code for code, value in enumerate(values)}, len(values) - 1)
    for values in TRAITS.values()
]


def compute_traits(content: MessageContent) -> NDArray[np.uint8]:
    """Codes of all traits, uint8, shape (len(TRAITS),)."""
    named = content.message.first_values
    sender = registered_domain(named.get(b"from", b""))
    text = content.first_text
    charset = text.content_type.parameters.get(b"charset") if text else None
    encoding = text.encoding if text else b""
    values = (
        content.message.content_type.media.decode("ascii", "replace")
        if b"content-type" in named
        else "absent",
        encoding.decode("ascii", "replace") if encoding else "absent",
        _CHARSET_GROUPS.get(codec_name(charset) or "", "other") if charset else "absent",
        _attachment(content),
        _recipients(named),
        _relation(named.get(b"reply-to"), sender, "same domain"),
        _relation(named.get(b"message-id"), sender, "sender's domain"),
        _subject(named.get(b"subject")),
        _list(named),
        ("zone" if _ZONE.search(named[b"date"]) else "other") if b"date" in named else "absent",
    )
    return np.array(
        [
            table.get(value, other)
            for (table, other), value in zip(_TRAIT_CODES, values, strict=True)
        ],
        np.uint8,
    )


def _relation(value: bytes | None, sender: bytes, same: str) -> str:
    if value is None:
        return "absent"
    return same if sender and registered_domain(value) == sender else "other"


def _attachment(content: MessageContent) -> str:
    if not content.attachments:
        return "none"
    media, name = content.attachments[0]
    kind = _EXTENSION_KINDS.get(name.rpartition(b".")[2])
    return kind or ("image" if media.startswith(b"image/") else "other")


def _recipients(named: FieldMap) -> str:
    to = named.get(b"to", b"") + b"," + named.get(b"cc", b"")
    count = to.count(b"@")
    if count:
        return "one" if count == 1 else "several"
    if b"undisclosed" in to.lower():
        return "undisclosed"
    return "other" if b"to" in named else "none"


def _subject(value: bytes | None) -> str:
    if value is None:
        return "absent"
    if value.find(b":") >= 0:  # few have one
        if _REPLY.match(value):
            return "reply"
        if _FORWARD.match(value):
            return "forward"
    return "capitals" if value.isupper() and b"=?" not in value else "other"


def _list(named: FieldMap) -> str:
    if b"list-id" in named or b"list-post" in named or b"mailing-list" in named:
        return "list"
    bulk = b"list-unsubscribe" in named or named.get(b"precedence", b"").strip().lower() in (
        b"bulk",
        b"list",
        b"junk",
    )
    return "bulk" if bulk else "none"


def compute_numbers(content: MessageContent, size: int) -> NDArray[np.int16]:
    """All numeric traits, int16, shape (len(NUMBERS),), values 0 to 255. size: bytes of the whole
    body.
    """
    body = content.sections[0][1]
    named = content.message.first_values
    sample = b"".join(content.samples)
    capitals, digits, beyond = _count_kinds(sample)
    values = (
        _scale_log(size),
        _scale_log(content.text_length),
        _scale_log(len(content.urls)),
        _scale_share(capitals, len(sample)),
        _scale_share(digits, len(sample)),
        _scale_share(beyond, len(sample)),
        _scale_log((named.get(b"to", b"") + named.get(b"cc", b"")).count(b"@")),
        _scale_log(len(named.get(b"subject", b""))),
        _scale_log(len(content.evidence)),
        _scale_log(content.hops),
        _scale_share(content.markup_length, content.markup_length + content.text_length),
        _scale_log(sum(map(len, content.hidden))),
        _scale_log(content.images),
        _scale_log(len(content.attachments)),
        _scale_log(body.count(b"!")),
    )
    return np.array(values, np.int16)


def _count_kinds(sample: bytes) -> tuple[int, int, int]:
    """How many of its bytes are capitals, digits, and beyond ASCII."""
    beyond = 0 if sample.isascii() else len(sample.translate(None, _ASCII))
    return _count_bytes(sample, _UPPER_CASE), _count_bytes(sample, _DIGITS), beyond


def _count_bytes(sample: bytes, characters: bytes) -> int:
    return len(sample) - len(sample.translate(None, characters))


@lru_cache(maxsize=4096)
def _scale_log(count: int) -> int:
    return min(round(8 * log2(1 + count)), 255)


def _scale_share(part: int, whole: int) -> int:
    return round(255 * part / max(whole, 1))
