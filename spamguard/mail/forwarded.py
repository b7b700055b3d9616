"""The messages that a report is about: what somebody forwards as an attachment, or a mail service
sends in ARF (RFC 5965).

Never raises, whatever the report is like. What was forwarded as text is another matter: `inline`.

A message that was forwarded inline, as text, put together again as far as the text tells: sender,
subject, date, recipient, body.

Never raises. Must never take text for a message that no mail program has marked as one: without
both a sender and a subject above a text there is nothing. Other header fields, markup and
attachments are lost: forwarding as an attachment teaches more.
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

_REPORT_LIMITS = ParseLimits(message_bytes=64 << 20)
_ARF_TYPE = b"message/feedback-report"
_HEADERS_TYPE = b"text/rfc822-headers"  # of a report that leaves the body out (RFC 6522, section 4)


def extract_attached(raw: bytes) -> list[bytes]:
    """Every attached message, line ends as LF; of an ARF report without one, its header fields as a
    message. Else nothing.
    """
    leaves = parse_message(raw, _REPORT_LIMITS, into_messages=False).leaves
    found = [
        content
        for leaf in leaves
        if leaf.content_type.media in MESSAGE_TYPES and (content := _decode_leaf(leaf)).strip()
    ]
    if found or not any(leaf.content_type.media == _ARF_TYPE for leaf in leaves):
        return found
    headers = [
        _decode_leaf(leaf).strip() for leaf in leaves if leaf.content_type.media == _HEADERS_TYPE
    ]
    return [fields + b"\n\n" for fields in headers if fields]


def _decode_leaf(leaf: Leaf) -> bytes:
    return decode_transfer_encoding(leaf.body, leaf.encoding)[0]


_INLINE_LIMITS = ParseLimits(message_bytes=64 << 20)
_MAX_CHARACTERS = 1 << 20  # characters that are looked at, of all parts
_MAX_LINE_CHARACTERS = 2000  # characters of a line that may be a field
_MAX_BLOCK_LINES = 20  # lines that a header block may have
# lines that may begin one: what is forwarded stands near the top, and each of them costs a block
_MAX_BLOCK_STARTS = 1000
_PLAIN_TYPE, _HTML_TYPE = b"text/plain", b"text/html"

_LOCALISED_NAMES = {
    "From": "from von de da van od från fra lähettäjä от від gönderen kimden feladó εμπρός από nadawca odesílatel expeditor מאת من จาก"
    " 差出人 送信者 发件人 寄件者 보낸사람",
    "Subject": "subject betreff objet asunto oggetto assunto onderwerp ämne emne aihe temat předmět predmet subiect konu tárgy θέμα тема"
    " נושא الموضوع เรื่อง 件名 主题 主旨 主題 제목",
    "Date": "date datum fecha data sent gesendet envoyé enviado inviato verzonden skickat sendt lähetetty wysłano odesláno trimis tarih"
    " dátum elküldve ημερομηνία дата отправлено תאריך التاريخ วันที่ 日付 送信日時 日期 发送时间 寄件日期 날짜 보낸날짜",
    "To": "to an à para a aan till til vastaanottaja do komu către kime címzett προς кому אל إلى ถึง 宛先 收件人 收件者 받는사람",
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
    """The message within one that was forwarded inline, line ends as LF; None: there is none."""
    for text in _part_texts(raw):
        if (found := _find_forwarded(text.splitlines())) is not None:
            return _build_message(*found)
    return None


def _part_texts(raw: bytes) -> Iterator[str]:
    """What a reader sees of each part, plain text first: it is as the mail program wrote it."""
    leaves = parse_message(raw, _INLINE_LIMITS, into_messages=False).leaves
    left = _MAX_CHARACTERS
    for leaf in [
        leaf
        for media in (_PLAIN_TYPE, _HTML_TYPE)
        for leaf in leaves
        if leaf.content_type.media == media
    ]:
        text = _decode_leaf_text(leaf)[:left] if left else ""
        left -= len(text)
        yield (
            text
            if leaf.content_type.media == _PLAIN_TYPE
            else parse_page(_LINE_TAGS.sub("\n", text.lower())).visible
        )


def _decode_leaf_text(leaf: Leaf) -> str:
    return decode_text(
        decode_transfer_encoding(leaf.body, leaf.encoding)[0],
        leaf.content_type.parameters.get(b"charset", b""),
    )[0]


def _find_forwarded(lines: Sequence[str]) -> tuple[Mapping[str, str], str] | None:
    """The first header block, by field, and the text below it."""
    for start, line in islice(
        ((number, line) for number, line in enumerate(lines) if _parse_field(line)[0]),
        _MAX_BLOCK_STARTS,
    ):
        found, end = _parse_block(lines[start : start + _MAX_BLOCK_LINES])
        if found.keys() >= {"From", "Subject"}:
            below = lines[start + end :]
            return found, "\n".join(
                map(_unquote, below) if line.lstrip().startswith(">") else below
            ).strip("\n")
    return None


def _parse_block(lines: Sequence[str]) -> tuple[Mapping[str, str], int]:
    """The fields up to the first empty line, the first of each name, and how many lines that were."""
    found: dict[str, str] = {}
    last = ""
    for number, line in enumerate(lines):
        if not line.strip(" \t>"):
            return found, number
        name, value = _parse_field(line)
        if name is None:  # a field that goes on
            found[last] = f"{found.get(last, '')} {line.strip()}"
        else:
            last = name if name not in found else ""
            found[last] = value
    return found, len(lines)


def _parse_field(line: str) -> tuple[str | None, str]:
    """A line as a field: which one of ours, "" for any other, None where it is none; its value."""
    at = _FIELD_LINE.match(line[:_MAX_LINE_CHARACTERS])
    if at is None:
        return None, ""
    return _FIELD_OF_NAME.get("".join(at[1].split()).lower(), ""), " ".join(at[2].split())


def _unquote(line: str) -> str:
    return _QUOTE_MARK.sub("", line, count=1) if line.lstrip().startswith(">") else line


def _build_message(found: Mapping[str, str], text: str) -> bytes:
    dated = (
        parsedate_tz(found.get("Date", "")) is not None
    )  # in words of another language it would look like damage
    told = [
        f"{name}: {_encode_value(found[name])}"
        for name in _LOCALISED_NAMES
        if name in found and (name != "Date" or dated)
    ]
    told += [
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=utf-8",
        "Content-Transfer-Encoding: 8bit",
    ]
    return "\n".join([*told, "", text, ""]).encode("utf-8", "replace")


def _encode_value(value: str) -> str:
    shown = "".join(letter for letter in value if letter.isprintable())
    return shown if shown.isascii() else Header(shown, "utf-8").encode(maxlinelen=0)
