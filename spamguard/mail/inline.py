"""A message that was forwarded inline, as text, put together again as far as the text tells: sender, subject, date, recipient, body.

Never raises. Must never take text for a message that no mail program has marked as one: without both a sender and a subject above a
text there is nothing. Other header fields, markup and attachments are lost: forwarding as an attachment teaches more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from email.header import Header
from email.utils import parsedate_tz
from itertools import islice

from spamguard.mail.decode import to_text, transfer_decode
from spamguard.mail.html import read
from spamguard.mail.limits import Limits
from spamguard.mail.split import Leaf, split

_LIMITS = Limits(message_bytes=64 << 20)
_MOST = 1 << 20  # characters that are looked at, of all parts
_LINE = 2000  # characters of a line that may be a field
_BLOCK = 20  # lines that a header block may have
_STARTS = 1000  # lines that may begin one: what is forwarded stands near the top, and each of them costs a block
_PLAIN, _HTML = b"text/plain", b"text/html"

_NAMES = {
    "From": "from von de da van od från fra lähettäjä от від gönderen kimden feladó εμπρός από nadawca odesílatel expeditor מאת من จาก"
    " 差出人 送信者 发件人 寄件者 보낸사람",
    "Subject": "subject betreff objet asunto oggetto assunto onderwerp ämne emne aihe temat předmět predmet subiect konu tárgy θέμα тема"
    " נושא الموضوع เรื่อง 件名 主题 主旨 主題 제목",
    "Date": "date datum fecha data sent gesendet envoyé enviado inviato verzonden skickat sendt lähetetty wysłano odesláno trimis tarih"
    " dátum elküldve ημερομηνία дата отправлено תאריך التاريخ วันที่ 日付 送信日時 日期 发送时间 寄件日期 날짜 보낸날짜",
    "To": "to an à para a aan till til vastaanottaja do komu către kime címzett προς кому אל إلى ถึง 宛先 收件人 收件者 받는사람",
}
"""How mail programs name the fields above what they forward, without blanks, in lower case."""
_FIELDS = {name: field for field, names in _NAMES.items() for name in names.split()}
# Possessive: a line of blanks must not be shared out in all possible ways.
_FIELD = re.compile(r"[>\s]*+\*?+([^:：*<>]{1,30}+)\*?+\s*+[:：]\*?(.*)", re.DOTALL)
_QUOTED = re.compile(r"\s?>\s?")
_LINE_TAGS = re.compile(r"<(?:br|/p|/div|/tr|/li|/h[1-6])\b[^>]{0,200}>")


def inline(raw: bytes) -> bytes | None:
    """The message within one that was forwarded inline, line ends as LF; None: there is none."""
    for text in _texts(raw):
        if (found := _forwarded(text.splitlines())) is not None:
            return _message(*found)
    return None


def _texts(raw: bytes) -> Iterator[str]:
    """What a reader sees of each part, plain text first: it is as the mail program wrote it."""
    leaves = split(raw, _LIMITS, into_messages=False).leaves
    left = _MOST
    for leaf in [leaf for media in (_PLAIN, _HTML) for leaf in leaves if leaf.type.media == media]:
        text = _text(leaf)[:left] if left else ""
        left -= len(text)
        yield text if leaf.type.media == _PLAIN else read(_LINE_TAGS.sub("\n", text.lower())).visible


def _text(leaf: Leaf) -> str:
    return to_text(transfer_decode(leaf.body, leaf.encoding)[0], leaf.type.parameters.get(b"charset", b""))[0]


def _forwarded(lines: Sequence[str]) -> tuple[Mapping[str, str], str] | None:
    """The first header block, by field, and the text below it."""
    for start, line in islice(((number, line) for number, line in enumerate(lines) if _field(line)[0]), _STARTS):
        found, end = _block(lines[start : start + _BLOCK])
        if found.keys() >= {"From", "Subject"}:
            below = lines[start + end :]
            return found, "\n".join(map(_unquoted, below) if line.lstrip().startswith(">") else below).strip("\n")
    return None


def _block(lines: Sequence[str]) -> tuple[Mapping[str, str], int]:
    """The fields up to the first empty line, the first of each name, and how many lines that were."""
    found: dict[str, str] = {}
    last = ""
    for number, line in enumerate(lines):
        if not line.strip(" \t>"):
            return found, number
        name, value = _field(line)
        if name is None:  # a field that goes on
            found[last] = f"{found.get(last, '')} {line.strip()}"
        else:
            last = name if name not in found else ""
            found[last] = value
    return found, len(lines)


def _field(line: str) -> tuple[str | None, str]:
    """A line as a field: which one of ours, "" for any other, None where it is none; its value."""
    at = _FIELD.match(line[:_LINE])
    if at is None:
        return None, ""
    return _FIELDS.get("".join(at[1].split()).lower(), ""), " ".join(at[2].split())


def _unquoted(line: str) -> str:
    return _QUOTED.sub("", line, count=1) if line.lstrip().startswith(">") else line


def _message(found: Mapping[str, str], text: str) -> bytes:
    dated = parsedate_tz(found.get("Date", "")) is not None  # in words of another language it would look like damage
    told = [f"{name}: {_encoded(found[name])}" for name in _NAMES if name in found and (name != "Date" or dated)]
    told += ["MIME-Version: 1.0", "Content-Type: text/plain; charset=utf-8", "Content-Transfer-Encoding: 8bit"]
    return "\n".join([*told, "", text, ""]).encode("utf-8", "replace")


def _encoded(value: str) -> str:
    shown = "".join(letter for letter in value if letter.isprintable())
    return shown if shown.isascii() else Header(shown, "utf-8").encode(maxlinelen=0)
