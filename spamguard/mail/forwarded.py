"""The messages within a message: attached, reported, or forwarded as text.

`extract_attached` finds messages forwarded as attachments, and the message that a report in ARF
(RFC 5965) is about. `extract_inline` puts a message that was forwarded as text together again, as
far as the text tells: sender, subject, date, recipient and body. Other header fields, markup and
attachments are lost: forwarding as an attachment teaches more.

Must never raise. Must never take text for a message that no mail program has marked as one: without
both a sender and a subject above a text there is no message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from email.header import Header
from email.utils import parsedate_tz
from itertools import islice

from spamguard.mail.decode import decode_text, decode_transfer_encoding
from spamguard.mail.html import parse_page
from spamguard.mail.mime import MESSAGE_TYPES, Leaf, ParseLimits, parse_message

_LIMITS = ParseLimits(message_bytes=64 << 20)
_ARF_TYPE = b"message/feedback-report"
_HEADERS_TYPE = b"text/rfc822-headers"  # of a report that leaves the body out (RFC 6522 section 4)


def extract_attached(raw: bytes) -> list[bytes]:
    """Every attached message, line ends as LF. From an ARF report without a message: its header
    fields, as a message.
    """
    leaves = parse_message(raw, _LIMITS, into_messages=False).leaves
    decoded = [_decode_leaf(leaf) for leaf in leaves if leaf.content_type.media in MESSAGE_TYPES]
    messages = [message for message in decoded if message.strip()]
    if messages or not any(leaf.content_type.media == _ARF_TYPE for leaf in leaves):
        return messages
    headers = [
        _decode_leaf(leaf).strip() for leaf in leaves if leaf.content_type.media == _HEADERS_TYPE
    ]
    return [fields + b"\n\n" for fields in headers if fields]


def _decode_leaf(leaf: Leaf) -> bytes:
    return decode_transfer_encoding(leaf.body, leaf.encoding)[0]


# ---- forwarded as text

_MAX_CHARACTERS = 1 << 20  # that are looked at, of all parts
_MAX_LINE_CHARACTERS = 2000  # of a line that may be a field
_MAX_BLOCK_LINES = 20  # of a header block
# Lines that may begin a block: what is forwarded stands near the top, and each costs a block.
_MAX_BLOCK_STARTS = 1000
_PLAIN_TYPE, _HTML_TYPE = b"text/plain", b"text/html"

_LOCALISED_NAMES = {
    "From": "from von de da van od från fra lähettäjä от від gönderen kimden feladó εμπρός από"
    " nadawca odesílatel expeditor מאת من จาก 差出人 送信者 发件人 寄件者 보낸사람",
    "Subject": "subject betreff objet asunto oggetto assunto onderwerp ämne emne aihe temat předmět"
    " predmet subiect konu tárgy θέμα тема נושא الموضوع เรื่อง 件名 主题 主旨 主題 제목",
    "Date": "date datum fecha data sent gesendet envoyé enviado inviato verzonden skickat sendt"
    " lähetetty wysłano odesláno trimis tarih dátum elküldve ημερομηνία дата отправлено תאריך"
    " التاريخ วันที่ 日付 送信日時 日期 发送时间 寄件日期 날짜 보낸날짜",
    "To": "to an à para a aan till til vastaanottaja do komu către kime címzett προς кому אל إلى"
    " ถึง 宛先 收件人 收件者 받는사람",
}
"""How mail programs name the fields above what they forward, without blanks, in lower case."""
_FIELD_OF_NAME = {
    name: field for field, names in _LOCALISED_NAMES.items() for name in names.split()
}
# Possessive: a line of blanks must not be shared out in all possible ways.
_FIELD_LINE = re.compile(r"[>\s]*+\*?+([^:：*<>]{1,30}+)\*?+\s*+[:：]\*?(.*)", re.DOTALL)
_QUOTE_MARK = re.compile(r"\s?>\s?")
_LINE_TAGS = re.compile(r"<(?:br|/p|/div|/tr|/li|/h[1-6])\b[^>]{0,200}>")


def extract_inline(raw: bytes) -> bytes | None:
    """The message within one that was forwarded as text, line ends as LF; None: there is none."""
    for text in _part_texts(raw):
        if (forwarded := _find_forwarded(text.splitlines())) is not None:
            return _build_message(*forwarded)
    return None


def _part_texts(raw: bytes) -> Iterator[str]:
    """What a reader sees of each part. Plain text comes first, as the mail program wrote it."""
    leaves = parse_message(raw, _LIMITS, into_messages=False).leaves
    budget = _MAX_CHARACTERS
    for media in (_PLAIN_TYPE, _HTML_TYPE):
        for leaf in leaves:
            if leaf.content_type.media == media:
                charset = leaf.content_type.parameters.get(b"charset", b"")
                text = decode_text(_decode_leaf(leaf), charset)[0][:budget] if budget else ""
                budget -= len(text)
                if media == _HTML_TYPE:
                    text = parse_page(_LINE_TAGS.sub("\n", text.lower())).visible
                yield text


def _find_forwarded(lines: Sequence[str]) -> tuple[Mapping[str, str], str] | None:
    """The first header block, by field, and the text below it."""
    starts = (number for number, line in enumerate(lines) if _parse_field(line)[0])
    for start in islice(starts, _MAX_BLOCK_STARTS):
        fields, length = _parse_block(lines[start : start + _MAX_BLOCK_LINES])
        if fields.keys() >= {"From", "Subject"}:
            below: Sequence[str] = lines[start + length :]
            if lines[start].lstrip().startswith(">"):
                below = [_unquote(line) for line in below]
            return fields, "\n".join(below).strip("\n")
    return None


def _parse_block(lines: Sequence[str]) -> tuple[Mapping[str, str], int]:
    """The fields above the first empty line, the first of each name, and the number of lines."""
    fields: dict[str, str] = {}
    current = ""
    for number, line in enumerate(lines):
        if not line.strip(" \t>"):
            return fields, number
        name, value = _parse_field(line)
        if name is None:  # a continuation line
            fields[current] = f"{fields.get(current, '')} {line.strip()}"
        else:
            current = name if name not in fields else ""
            fields[current] = value
    return fields, len(lines)


def _parse_field(line: str) -> tuple[str | None, str]:
    """A line as a field: its name and value. "": a field that is not ours; None: no field."""
    match = _FIELD_LINE.match(line[:_MAX_LINE_CHARACTERS])
    if match is None:
        return None, ""
    name = "".join(match[1].split()).lower()
    return _FIELD_OF_NAME.get(name, ""), " ".join(match[2].split())


def _unquote(line: str) -> str:
    return _QUOTE_MARK.sub("", line, count=1) if line.lstrip().startswith(">") else line


def _build_message(fields: Mapping[str, str], text: str) -> bytes:
    # a date in the words of another language would look like damage
    has_date = parsedate_tz(fields.get("Date", "")) is not None
    lines = [
        f"{name}: {_encode_value(fields[name])}"
        for name in _LOCALISED_NAMES
        if name in fields and (name != "Date" or has_date)
    ]
    lines += ["MIME-Version: 1.0", "Content-Type: text/plain; charset=utf-8"]
    lines += ["Content-Transfer-Encoding: 8bit", "", text, ""]
    return "\n".join(lines).encode("utf-8", "replace")


def _encode_value(value: str) -> str:
    printable = "".join(letter for letter in value if letter.isprintable())
    return printable if printable.isascii() else Header(printable, "utf-8").encode(maxlinelen=0)
