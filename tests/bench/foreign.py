"""Mail in the form of corpora that are not at hand, made from those that are: one line without a
header, a text split into words, a language without blanks in charsets that are named rightly,
wrongly or not at all.

Each form treats all messages alike, whatever their class, and each message the same every time.
Marks of mailing lists are cut from the subject. No person has sent such mail: it shows misreadings
of a filter, not its accuracy.
"""

from __future__ import annotations

import base64
import email
import re
from bisect import bisect
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate

from tests.bench.bare import MARK
from tests.bench.rivals import decoded

_LINE = 160  # characters
_TAG = re.compile(r"<[a-zA-Z/!][^>]*>")
_UNSEEN = re.compile(r"<(script|style|title)\b.*?</\1\s*>|<!--.*?-->", re.S | re.I)
_TOKEN = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")
_PIECE = re.compile(r"https?://\S+|[\w.+-]+@[\w.-]+|([A-Za-z']+)|( +)")
_COMMON = 3500
_IDEOGRAPHS = [
    bytes((row, cell)).decode("gb2312") for row in range(0xB0, 0xD7) for cell in range(0xA1, 0xFF)
]
_IDEOGRAPHS = sorted(_IDEOGRAPHS, key=lambda one: blake2b(one.encode()).digest())[:_COMMON]
_FREQUENCIES = list(
    accumulate(1 / rank for rank in range(20, 20 + _COMMON))
)  # Zipf's law, flattened at the head
# codec, as what it is declared, transfer encoding; of so many in a hundred messages
_CHARSETS = (
    (35, "gb2312", "gb2312", "8bit"),
    (15, "gb2312", "", "8bit"),
    (10, "gb2312", "iso-8859-1", "8bit"),
    (8, "gb2312", "us-ascii", "8bit"),
    (14, "gb2312", "gb2312", "base64"),
    (10, "utf-8", "utf-8", "base64"),
    (8, "utf-8", "utf-8", "8bit"),
)


def line(raw: bytes) -> bytes:
    """The first characters of the text, and nothing else."""
    subject, text = _read(raw)
    return (" ".join(text.split()) or subject)[:_LINE].encode("utf-8", "replace") + b"\n"


def tokenised(raw: bytes) -> bytes:
    """Subject and text in lower case, blanks around every sign, and no line between them."""
    subject, text = _read(raw)
    lines = [subject, *filter(str.strip, text.lower().splitlines())]
    return (
        "Subject: " + "\n".join(" ".join(_TOKEN.findall(line.lower())) for line in lines) + "\n"
    ).encode("utf-8", "replace")


def chinese(raw: bytes) -> bytes:
    """Every word as one to three ideographs without blanks; text between words stays."""
    subject, text = map(_in_ideographs, _read(raw))
    codec, declared, encoding = _charset(_number(text) % 100)
    title, body = subject.encode(codec, "replace"), text.encode(codec, "replace")
    if declared in ("gb2312", codec):
        title = b"=?%b?B?%b?=" % (declared.encode(), base64.b64encode(title))
    if encoding == "base64":
        body = base64.encodebytes(body)
    named = f"; charset={declared}" if declared else ""
    return b"Subject: %b\nContent-Type: text/plain%b\nContent-Transfer-Encoding: %b\n\n%b" % (
        title,
        named.encode(),
        encoding.encode(),
        body,
    )


WAYS: dict[str, Callable[[bytes], bytes]] = {
    "line": line,
    "tokenised": tokenised,
    "chinese": chinese,
}
"""By name."""


def _read(raw: bytes) -> tuple[str, str]:
    """Subject and text, without markup; of alternatives the plain one."""
    message = email.message_from_bytes(raw)
    subject = MARK.sub(b"", str(message.get("subject", "")).encode("utf-8", "replace")).decode(
        "utf-8", "replace"
    )
    pieces: list[str] = []
    for part in message.walk():
        content = part.get_payload(decode=True)
        if part.get_content_maintype() == "text" and isinstance(content, bytes):
            text = decoded(content, part.get_content_charset() or "utf-8")
            if part.get_content_subtype() != "html":
                pieces.append(text)
            elif not pieces:
                pieces.append(_TAG.sub(" ", _UNSEEN.sub(" ", text)))
    return " ".join(subject.split()), "\n".join(pieces)


def _number(text: str) -> int:
    return int.from_bytes(
        blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little"
    )


def _charset(hundredth: int) -> tuple[str, str, str]:
    limits = list(accumulate(share for share, *_ in _CHARSETS))
    return _CHARSETS[bisect(limits, hundredth)][1:]


def _in_ideographs(text: str) -> str:
    plain = text.encode("ascii", "ignore").decode()
    return _PIECE.sub(
        lambda found: _word(found[1].lower()) if found[1] else "" if found[2] else found[0], plain
    )


@lru_cache(maxsize=1 << 16)
def _word(word: str) -> str:
    size = 1 if len(word) < 4 else 1 + _number(word) % (2 if len(word) < 7 else 3)
    places = [_number(f"{at} {word}") / 2**64 * _FREQUENCIES[-1] for at in range(size)]
    return "".join(_IDEOGRAPHS[bisect(_FREQUENCIES, place)] for place in places)
