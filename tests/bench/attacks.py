"""What spammers do to a message so that filters do not know it, and to what filters are taught: for
`bench_evasion.py`.

Every attack is a pure function, message to message: the same bytes give the same bytes. What comes
out must be valid mail that a reader sees as the spam it was. Only text that is shown changes;
header fields, links and attachments stay as they were where the trick allows it. Never use this for
anything but measuring filters.
"""

from __future__ import annotations

import base64
import re
import struct
import zlib
from binascii import b2a_qp
from collections.abc import Callable, Collection, Iterator, Sequence
from email import message_from_bytes
from email.errors import MessageError
from email.header import Header, decode_header
from email.message import Message
from email.mime.image import MIMEImage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.policy import compat32
from html import escape, unescape
from random import Random

from spamguard.mail.decode import decode_text

Change = Callable[[str], str]

_POLICY = compat32.clone(max_line_length=None)  # fields stay folded as they were
_LOOKS_LIKE_HTML = re.compile(r"\s*<(?:!doctype|html|head|body)\b", re.I)
_PIECES = re.compile(
    r"<!--.*?-->|<(script|style|title)\b.*?</\1\s*>|<[^>]*>|&#?\w{1,31};?|(?P<text>[^<&]+|[<&])",
    re.I | re.S,
)
_WITHIN_WORDS = re.compile(r"<(?:!--|/?(?:a|b|i|u|em|strong|font|span)\b)", re.I)
_UNBROKEN = re.compile(r"(?:https?://|www\.)\S+|\S+@\S+|(?P<word>[^\W\d_]{4,})")
_WORD = re.compile(r"[^\W\d_]{3,24}")
_LINK = re.compile(r"https?://[!#-&(-;=?-~]{3,300}")
_BODY_END = re.compile(r"</body\s*>", re.I)
_CONTENT_FIELDS = frozenset(
    (
        "mime-version",
        *(
            f"content-{name}"
            for name in ("type", "transfer-encoding", "disposition", "id", "length")
        ),
    )
)
_WRAPPED = 12  # words on a line
_LOOKALIKES = str.maketrans(
    "aceiopxysjABCEHIKMOPTXSJ", "асеіорхуѕјАВСЕНІКМОРТХЅЈ"
)  # Latin to Cyrillic
_DIGITS = str.maketrans("oieasbOIEASB", "013458013458")

HIDING_PLACES = {
    "display none": '<div style="display:none">{}</div>',
    "white": '<font color="#ffffff">{}</font>',
    "size zero": '<span style="font-size:0px">{}</span>',
    "comment": "<!-- {} -->",
    "style sheet": '<style>.k7 {{ display: none }}</style><div class="k7">{}</div>',
    "off screen": '<div style="position:absolute; left:-9999px">{}</div>',
}
"""How HTML keeps text from being seen."""


class UnreadableError(ValueError):
    """The message is too damaged to be taken apart and put together again."""


# ---- more words


def appended(raw: bytes, words: Sequence[str], count: int) -> bytes:
    """So many of the words below the text; each message gets others, or another order."""
    some = _lines(_random(raw).sample(words, count))
    return _rewritten(
        raw, lambda text: f"{text}\n\n{some}\n", lambda page: _before_end(page, f"<p>{some}</p>")
    )


def gibberish(raw: bytes, count: int) -> bytes:
    """So many words of random letters below the text; each message gets others."""
    rng = _random(raw)
    made = [
        "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(4, 10)))
        for _ in range(count)
    ]
    return appended(raw, made, count)


def hidden(raw: bytes, words: Sequence[str], count: int, place: str) -> bytes:
    """So many of the words where HTML hides them, in one of HIDING_PLACES. A message without HTML
    becomes a page that looks the same.
    """
    covered = HIDING_PLACES[place].format(_lines(_random(raw).sample(words, count)))
    return _as_pages(raw, lambda page: _before_end(page, covered))


# ---- disguised words


def spaced(raw: bytes, telltale: Collection[str]) -> bytes:
    """Telltale words as "v i a g r a", in text and subject."""
    return _disguised(raw, telltale, " ".join)


def lookalikes(raw: bytes, telltale: Collection[str]) -> bytes:
    """Telltale words with Cyrillic letters that look the same, in text and subject."""
    return _disguised(raw, telltale, lambda word: word.translate(_LOOKALIKES))


def one_lookalike(raw: bytes, telltale: Collection[str]) -> bytes:
    """The same with one letter of each word only, which leaves most of its letters Latin."""
    return _disguised(raw, telltale, lambda word: _first_changed(word, _LOOKALIKES))


def with_digit(raw: bytes, telltale: Collection[str]) -> bytes:
    """Telltale words with a digit for one letter, "v1agra", in text and subject."""
    return _disguised(raw, telltale, lambda word: _first_changed(word[:-1], _DIGITS) + word[-1])


def zero_width(raw: bytes, telltale: Collection[str]) -> bytes:
    """Telltale words with spaces of no width between their letters, in text and subject."""
    return _disguised(raw, telltale, "\u200b".join)


def cut_by_markup(raw: bytes, telltale: Collection[str]) -> bytes:
    """Telltale words with an empty element in their midst, as "via<b></b>gra"."""
    cut = _words_changed(
        telltale, lambda word: f"{word[: len(word) // 2]}<b></b>{word[len(word) // 2 :]}"
    )
    return _as_pages(raw, lambda page: _shown_changed(page, cut))


def _disguised(raw: bytes, telltale: Collection[str], disguise: Change) -> bytes:
    change = _words_changed(telltale, disguise)
    return _rewritten(raw, change, lambda page: _shown_changed(page, change), change)


def _words_changed(telltale: Collection[str], disguise: Change) -> Change:
    """Changes those words only; links and addresses stay as they are, because they must work."""

    def one(match: re.Match[str]) -> str:
        word = match["word"]
        return disguise(word) if word and word.lower() in telltale else match.group()

    return lambda text: _UNBROKEN.sub(one, text)


def _first_changed(word: str, table: dict[int, int]) -> str:
    changed = word.translate(table)
    place = next(
        (
            place
            for place, (old, new) in enumerate(zip(word, changed, strict=True))
            if place and old != new
        ),
        0,
    )
    return word[:place] + changed[place] + word[place + 1 :]


# ---- other clothes


def image_only(raw: bytes) -> bytes:
    """One picture that leads to the message's first link, and no text.

    The picture is a valid one of plausible size, in place of one with the text drawn: filters that
    know only words see no difference.
    """
    message = _parsed(raw)
    link = _LINK.search(" ".join(text for _, text in _texts(message)))
    picture = '<img src="cid:p1" alt="">'
    page = (
        f'<html><body><a href="{link.group()}">{picture}</a></body></html>'
        if link
        else f"<html><body>{picture}</body></html>"
    )
    whole = MIMEMultipart("related", boundary=f"=_{zlib.crc32(raw):08x}", policy=_POLICY)
    whole.attach(MIMEText(page, "html", "us-ascii"))
    image = MIMEImage(_picture(_random(raw)), "png")
    image["Content-ID"] = "<p1>"
    whole.attach(image)
    return _below_header_of(message, whole)


def in_base64(raw: bytes) -> bytes:
    """All text in base64."""
    return _encoded(
        raw, lambda text, charset: (base64.encodebytes(text.encode(charset)), charset, "base64")
    )


def in_damaged_base64(raw: bytes) -> bytes:
    """Base64 with characters that do not belong there; readers skip them (RFC 2045,
    section 6.8).
    """
    return _encoded(raw, lambda text, charset: (_littered(text.encode(charset)), charset, "base64"))


def in_utf16(raw: bytes) -> bytes:
    """All text in UTF-16, in base64."""
    return _encoded(
        raw,
        lambda text, _: (base64.encodebytes(text.encode("utf-16", "replace")), "utf-16", "base64"),
    )


def in_utf7(raw: bytes) -> bytes:
    """All text in UTF-7 (RFC 2152), every letter in its modified base64."""
    return _encoded(raw, lambda text, _: (_utf7(text), "utf-7", "7bit"))


def in_entities(raw: bytes) -> bytes:
    """Every letter as a numeric character reference of HTML."""
    return _as_pages(raw, lambda page: _shown_changed(page, _references))


def _references(text: str) -> str:
    return "".join([f"&#{ord(one)};" if one.isalpha() else one for one in text])


def _littered(data: bytes) -> bytes:
    return b"".join(
        [
            line[:30] + b"*" + line[30:-1] + b"!\n"
            for line in base64.encodebytes(data).splitlines(keepends=True)
        ]
    )


def _picture(rng: Random, width: int = 480, height: int = 240) -> bytes:
    """A grey PNG of some 15 kB (ISO/IEC 15948)."""
    rows = b"".join([b"\0" + bytes(rng.choices((0, 255), (1, 12), k=width)) for _ in range(height)])
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    written = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


# ---- poison


def dictionary_mail(raw: bytes, words: Sequence[str]) -> bytes:
    """The header of a message above a dictionary, sent to be taught as spam, so that the words
    count as spam (Nelson et al. 2008).
    """
    text = _lines(words)
    message = MIMEText(text, "plain", "us-ascii" if text.isascii() else "utf-8", policy=_POLICY)
    return _below_header_of(_parsed(raw), message)


# ---- what a reader sees


def shown(raw: bytes) -> str:
    """The text of a message as a reader sees it, nearly: HTML without markup, comments, scripts,
    styles and titles.
    """
    return "\n".join([_of_page(text) if page else text for page, text in _texts(_parsed(raw))])


def words_of(raw: bytes) -> set[str]:
    """The distinct shown words, in lower case."""
    return set(_WORD.findall(shown(raw).lower()))


def _of_page(page: str) -> str:
    return unescape(_PIECES.sub(_read, page))


def _read(match: re.Match[str]) -> str:
    piece = match.group()
    if match["text"] or piece[0] == "&":
        return piece
    return "" if _WITHIN_WORDS.match(piece) else " "


# ---- messages taken apart and put together


def rebuilt(raw: bytes) -> bytes:
    """The message taken apart and put together unchanged. UnreadableError: that is impossible."""
    return _rewritten(raw, str, str)


def _rewritten(raw: bytes, plain: Change, page: Change, subject: Change | None = None) -> bytes:
    """Plain text, pages and subject, each changed by its function."""
    message = _parsed(raw)
    for leaf in _text_leaves(message):
        is_page, text = _text(leaf)
        _put(leaf, text, page(text) if is_page else plain(text))
    if subject and "subject" in message:
        _put_subject(message, subject(_subject(message)))
    return _bytes(message)


def _as_pages(raw: bytes, change: Change) -> bytes:
    """All pages changed; without a page the first text becomes one."""
    message = _parsed(raw)
    leaves = [(leaf, *_text(leaf)) for leaf in _text_leaves(message)]
    if not any(is_page for _, is_page, _ in leaves):
        leaves = leaves[:1]
    for leaf, is_page, text in leaves:
        if is_page:
            _put(leaf, text, change(text))
        elif len(leaves) == 1:
            leaf.set_type("text/html")
            _put(
                leaf,
                text,
                change(f"<html><body><pre>{escape(text, quote=False)}</pre></body></html>\n"),
            )
    return _bytes(message)


def _encoded(raw: bytes, how: Callable[[str, str], tuple[bytes, str, str]]) -> bytes:
    """All text as the bytes, charset and transfer encoding that `how` makes of it and of a fitting
    charset.
    """
    message = _parsed(raw)
    for leaf in _text_leaves(message):
        text = _text(leaf)[1]
        _set_body(leaf, *how(text, _fitting(text, leaf)))
    return _bytes(message)


def _utf7(text: str) -> bytes:
    return re.sub(r"[^ \t\r\n]+", _shifted, text).encode("ascii")


def _shifted(match: re.Match[str]) -> str:
    return (
        "+"
        + base64.b64encode(match.group().encode("utf-16-be", "replace")).decode().rstrip("=")
        + "-"
    )


def _parsed(raw: bytes) -> Message:
    return message_from_bytes(raw.replace(b"\r\n", b"\n"), policy=_POLICY)


def _bytes(message: Message) -> bytes:
    try:
        return message.as_bytes()
    except (
        MessageError,
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
    ) as error:  # what the library raises at damaged mail
        raise UnreadableError(str(error)) from error


def _below_header_of(message: Message, body: Message) -> bytes:
    """The body below those header fields of a message that do not describe its own body."""
    own = list(body.raw_items())
    for name, _ in own:
        del body[name]
    for name, value in message.raw_items():
        if name.lower() not in _CONTENT_FIELDS:
            body.set_raw(name, value)
    for name, value in own:
        body.set_raw(name, value)
    return _bytes(body)


def _text_leaves(message: Message) -> Iterator[Message]:
    for part in message.walk():
        if (
            part.get_content_maintype() == "text"
            and not part.is_multipart()
            and part.get_content_disposition() != "attachment"
        ):
            yield part


def _texts(message: Message) -> list[tuple[bool, str]]:
    return [_text(leaf) for leaf in _text_leaves(message)]


def _text(leaf: Message) -> tuple[bool, str]:
    """Whether it is a page, and its text."""
    data = leaf.get_payload(decode=True)
    charset = leaf.get_content_charset("") or ""
    text = decode_text(
        data if isinstance(data, bytes) else b"", charset.encode("ascii", "replace")
    )[0]
    return leaf.get_content_subtype() == "html" or bool(_LOOKS_LIKE_HTML.match(text)), text


def _put(leaf: Message, before: str, text: str) -> None:
    """The new text in the old charset and transfer encoding, as far as they fit."""
    if text == before:
        return
    charset = _fitting(text, leaf)
    data = text.encode(charset)
    old = str(leaf.get("content-transfer-encoding", "")).strip().lower()
    if old == "base64":
        _set_body(leaf, base64.encodebytes(data), charset, old)
    elif old == "quoted-printable":
        _set_body(leaf, b2a_qp(data), charset, old)
    else:
        _set_body(leaf, data, charset, "7bit" if data.isascii() else "8bit")


def _fitting(text: str, leaf: Message) -> str:
    """The charset that a part declares, or UTF-8 where the text does not fit into that."""
    charset = leaf.get_content_charset("") or "us-ascii"
    try:
        text.encode(charset)
    except (UnicodeError, LookupError):
        return "utf-8"
    return charset


def _set_body(leaf: Message, data: bytes, charset: str, encoding: str) -> None:
    if charset != (leaf.get_content_charset("") or "us-ascii"):
        if "content-type" not in leaf:
            leaf["Content-Type"] = "text/plain"
        leaf.set_param("charset", charset)
    if encoding != str(leaf.get("content-transfer-encoding", "7bit")).strip().lower():
        del leaf["content-transfer-encoding"]
        leaf["Content-Transfer-Encoding"] = encoding
    leaf.set_payload(data.decode("ascii", "surrogateescape"))


def _subject(message: Message) -> str:
    pieces = [
        decode_text(data, (charset or "").encode()) if isinstance(data, bytes) else (data, [])
        for data, charset in _decoded(message)
    ]
    return "".join([text for text, _ in pieces])


def _decoded(message: Message) -> list[tuple[bytes | str, str | None]]:
    value = message["subject"]
    try:
        return decode_header(value)
    except MessageError:
        return [(str(value), None)]


def _put_subject(message: Message, text: str) -> None:
    text = " ".join(text.split())
    if text != " ".join(_subject(message).split()):
        message.replace_header(
            "Subject", text if text.isascii() else Header(text, "utf-8").encode()
        )


def _shown_changed(page: str, change: Change) -> str:
    """A page with its shown text changed, markup and character references left alone."""
    return _PIECES.sub(
        lambda match: change(match["text"]) if match["text"] else match.group(), page
    )


def _before_end(page: str, more: str) -> str:
    ends = list(_BODY_END.finditer(page))
    place = ends[-1].start() if ends else len(page)
    return page[:place] + more + "\n" + page[place:]


def _random(raw: bytes) -> Random:
    return Random(zlib.crc32(raw))


def _lines(words: Sequence[str]) -> str:
    return "\n".join(
        [" ".join(words[start : start + _WRAPPED]) for start in range(0, len(words), _WRAPPED)]
    )
