"""What a message says: sections of folded text, and traits; the step between MIME tree and hashes.

`read_content` decodes the text leaves, takes HTML apart, and makes the body the first section.
Sections of evidence follow: header fields, hidden text, markup, links, structure, attachments and
the names of defects.

`compute_traits` and `compute_numbers` say what stands beside the tokens. Each trait has a fixed
list of values, the last of which is "other": an unknown category costs nothing, and a receipt holds
one byte for each trait. Numbers are scaled by their logarithm, rounded and bounded, so one huge
message cannot dominate a sum.

Must never raise, and never look at more text than the limits allow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from math import log2
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from spamguard.mail import decode, headers, html, mime
from spamguard.mail.headers import FieldList, FieldMap, Section
from spamguard.mail.text import (
    deobfuscate,
    describe_makeup,
    find_unlike_page,
    fold,
    handful_clues,
    separate_spaceless,
    split_footer,
)
from spamguard.records import MAX_LINE

_URL = re.compile(r"http(?:s?://[^\s\"'<>]{3,400})")
_BARE_URL = re.compile(r"www\.(?<![/\w.]www\.)[^\s\"'<>/]{3,100}")
# What stands before the last @ is a user (URL Standard).
_URL_HOST = re.compile(r"(?:https?://|(?!https?://))(?:[^/\\?#@]*+@|)*+([^/\\?#:@]++)")


@dataclass
class MessageContent:
    """What a message says. The first section is the text of the body, with what stands in for words
    where there are next to none.
    """

    message: mime.MimeMessage
    evidence: FieldList = field(default_factory=list)  # header fields that may be looked at
    sections: list[Section] = field(default_factory=list)
    # name of a section, and its runs of scripts without blanks between words
    spaceless: list[tuple[bytes, str]] = field(default_factory=list)
    defects: list[bytes] = field(default_factory=list)
    charset: bytes = b""  # of the first text that has one
    first_text: mime.Leaf | None = None
    attachments: list[tuple[bytes, bytes]] = field(default_factory=list)  # media type, file name
    urls: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)  # of each part, as readers see it
    hidden: list[str] = field(default_factory=list)  # texts that they do not see
    tags: list[str] = field(default_factory=list)  # with their attributes
    markup_length: int = 0  # characters of HTML tags
    images: int = 0
    linked_image: bool = False  # whether a page of little text has an image within a link
    samples: list[bytes] = field(default_factory=list)  # the start of each text part
    hops: int = 0  # servers that the message passed
    text_length: int = 0  # bytes of the body's text


def read_content(
    raw: bytes, limits: mime.ParseLimits, *, message: mime.MimeMessage | None = None
) -> MessageContent:
    """Everything a message says; `message` is `raw` taken apart with these limits, if it was."""
    content = MessageContent(mime.parse_message(raw, limits) if message is None else message)
    message, sections = content.message, content.sections
    _read_leaves(content, limits)
    body, footer = split_footer("\n".join(_cut_texts(content, limits.token_characters)))
    text = deobfuscate(_separate_text(content, b"", body))
    content.text_length, letters = len(text), sum([len(runs) for _, runs in content.spaceless])
    clues, substitute_words = describe_makeup(
        text,
        letters,
        [leaf.media for leaf in message.leaves],
        pictures=content.images > 0
        or any(media.startswith(b"image/") for media, _ in content.attachments),
        linked=content.linked_image,
    )
    words = text + b"\n" + substitute_words if substitute_words else text
    sections.append((b"", words))
    if footer:
        sections.append((b"footer", _separate_text(content, b"footer", footer)))
    content.evidence = headers.evidence_fields(message.root.fields)
    fields, defects = headers.field_sections(content.evidence, content.charset)
    content.defects += defects + message.defects
    subjects = []
    for name, value in fields:
        shown = value
        if not value.isascii():
            shown = _separate_text(content, name, value.decode("utf-8", "replace"))
        if name == b"subject":
            shown = deobfuscate(shown)
            subjects.append(shown)
        sections.append((name, shown))
    hidden = _cut_text(fold(" ".join(content.hidden), lower=True), limits.token_characters, content)
    if hidden and not hidden.isspace():
        sections.append((b"hidden", _separate_text(content, b"hidden", hidden)))
    if content.tags:
        tags = _cut_text(fold(" ".join(content.tags), lower=True), limits.token_characters, content)
        sections.append((b"tags", tags.encode("utf-8", "replace")))
    hosts = _add_links(content)
    received = [value for name, value in fields if name == b"received"]
    content.hops = len(received)
    clues += handful_clues(text, letters, subjects)
    clues += headers.relation_clues(message.root.first_values, received, hosts)
    _add_structure(content, clues)
    # How a sender always closes says something of its own (RESULTS.md, "Last words").
    last = words[-_END_BYTES:].split()
    if len(last) > _END_WORDS:
        sections.append((b"end", b" ".join(last[-_END_WORDS:])))
    return content


def first_line(content: MessageContent) -> str:
    """The beginning of the text as readers see it, in lower case, on one line."""
    text = next((text for text in content.text if text and not text.isspace()), "")
    return " ".join(text.split(maxsplit=MAX_LINE)[:MAX_LINE])[:MAX_LINE]


# ---- text parts

_TEXT_TYPES = frozenset(
    b"message/delivery-status message/disposition-notification message/global-delivery-status"
    b" message/global-disposition-notification message/global-headers application/xhtml+xml"
    b" application/pgp".split()
)
# Files that open as a page, whatever their type is.
_PAGE_EXTENSIONS = (b".htm", b".html", b".shtml", b".xhtml", b".svg")
_LOOKS_LIKE_HTML = re.compile(r"<(?:!doctype html|html|body|table|a href|font|br|p|div)\b")
# Between two lines, or within a word, where the text says so (RFC 3676 section 4.2).
_SOFT_BREAK = re.compile(r"(?<!\n--) \r?\n")
_CALENDAR_FOLD = re.compile(r"\r?\n[ \t]")  # within any word (RFC 5545 section 3.1)
_MIN_PART_SHARE = 16  # this part of `text_bytes` is read of every leaf, whatever stands before it
_MAX_BUDGETS = 8  # times so many bytes are decoded, because most of a page may be markup
_SAMPLE_BYTES = 4096  # of each text part, whose characters are counted
_PAGE_TYPES = frozenset((b"text/html", b"application/xhtml+xml", b"text/x-amp-html"))


def _read_leaves(content: MessageContent, limits: mime.ParseLimits) -> None:
    """Read the letter, and pages and texts that are attached to it: pages always, because mail
    programs show them; other files only where there is no letter.
    """
    letter: list[tuple[mime.Leaf, bool]] = []  # each part, and whether it is a page
    files: list[tuple[mime.Leaf, bool]] = []
    for leaf in content.message.leaves:
        media, name = leaf.media, leaf.file_name
        disposition = leaf.first_values[b"content-disposition"].lstrip().lower()
        if name:
            name = _fold_file_name(name)
        elif disposition.startswith(b"attachment"):
            name = b"unnamed"
        # mail programs show a multipart that cannot be taken apart as text
        is_text = media.startswith((b"text/", b"multipart/")) or media in _TEXT_TYPES
        if name or not is_text:
            content.attachments.append((media, name))
        is_page = media in _PAGE_TYPES or (
            name.endswith(_PAGE_EXTENSIONS) and not media.startswith(b"text/")
        )
        if is_page or is_text:
            is_file = name and not is_page and leaf is not content.message.root
            (files if is_file else letter).append((leaf, is_page))
    budget = limits.text_bytes
    unseen: list[int] = []
    for parts in (letter, files):
        if any(text and not text.isspace() for text in content.text):
            break
        for leaf, is_page in parts:
            if leaf.may_be_unseen:
                unseen.append(len(content.text))
            leaf_budget = max(budget, limits.text_bytes // _MIN_PART_SHARE)
            budget -= _read_text(content, leaf, leaf_budget, is_page=is_page)
    for number in find_unlike_page(content.text, unseen) if unseen else ():
        content.hidden.append(content.text[number])
        content.text[number] = ""


def _fold_file_name(name: bytes) -> bytes:
    # the end says what kind of file it is, also where it is shown backwards
    text = decode.decode_unstructured(name[-300:])[0].replace("\u202e", "")
    return fold(text).encode("utf-8", "replace")


def _read_text(content: MessageContent, leaf: mime.Leaf, budget: int, *, is_page: bool) -> int:
    """Read one text part; returns how many characters it takes from the budget."""
    body = mime.cut_middle(leaf.body, _MAX_BUDGETS * budget, budget)
    data, defects = decode.decode_transfer_encoding(body, leaf.encoding)
    if leaf.media == b"text/plain":
        data, files = decode.strip_uuencoded_files(data)
        content.attachments += [
            (b"application/octet-stream", _fold_file_name(name)) for name in files
        ]
    content.samples.append(data[:_SAMPLE_BYTES])
    charset = leaf.parameters.get(b"charset", b"")
    if charset[:8].lower() in {b"", b"us-ascii", b"ascii"}:  # of programs that know of none
        charset = decode.sniff_charset(data) or charset
    text, charset_defects = decode.decode_text(data, charset)
    if leaf.parameters.get(b"delsp", b"").lower() == b"yes":
        text = _SOFT_BREAK.sub("", text)
    if leaf.media == b"text/calendar":
        text = _CALENDAR_FOLD.sub("", text)
        text = text.replace("\\n", "\n").replace("\\N", "\n")  # line ends (RFC 5545, 3.3.11)
    content.charset = content.charset or charset
    content.defects += defects + charset_defects
    content.first_text = content.first_text or leaf
    # HTML is taken apart before folding: no look-alike of "<" may become a tag
    text, length = text.lower(), len(text)
    if length > budget:
        text = _shorten(text, budget)
    read = len(text)
    if length > read or len(leaf.body) > len(body):
        content.defects.append(b"text-size")
    if "http" in text:
        content.urls += _URL.findall(text)
    if is_page or ("<" in text and _LOOKS_LIKE_HTML.search(text[:2000])):
        page = html.parse_page(text) if is_page else html.parse_plain_text(text)
        text = page.visible
        content.urls += page.links
        content.hidden.append(page.hidden)
        content.tags.append(page.tags)
        content.markup_length += page.markup_length
        content.images += page.images
        content.linked_image = content.linked_image or page.linked_image
    if "\0" in text:
        text = text.replace("\0", "")  # invisible
    content.text.append(fold(text, lower=True))
    if "www." in text:
        content.urls += _BARE_URL.findall(text)
    return read


# What is long and never seen, and where it ends; so much of it is kept. A page has a few of them.
_LONG_UNSEEN = re.compile(r"<(?:!--|style\b|script\b)")
_LONG_ENDS = {"<!--": "-->", "<style": "</style", "<script": "</script"}
_LONG_BLANKS = re.compile(r"\s{32,}+")
# The first "<" stands by itself: a search for it is a hundred times faster.
_REPEATED_TAGS = re.compile(r"<([^<>]{1,100}+>\s*+(?:<[^<>]{1,100}+>\s*+){0,1}?)(?:<\1){8,}")
_KEPT_CHARACTERS, _MAX_LONG_UNSEEN, _MAX_CUT_TAG = 16 << 10, 1000, 1000


def _shorten(text: str, limit: int) -> str:
    """The beginning and the end of a text in lower case, first without what is long and unseen."""
    text = html.DATA.sub("data:", text)
    kept = min(_KEPT_CHARACTERS, limit // 4)
    pieces, position = [], 0
    for _ in range(_MAX_LONG_UNSEEN):
        if len(text) - position <= limit or not (start := _LONG_UNSEEN.search(text, position)):
            break
        end = text.find(_LONG_ENDS[start[0]], start.end())
        end = len(text) if end < 0 else end
        pieces.append(text[position : min(end, start.end() + kept)])
        position = end
    text = "".join((*pieces, text[position:]))
    if len(text) > limit and 4 * sum(map(text.count, " \t\r\n\xa0\u3000")) > len(text):
        text = _LONG_BLANKS.sub("\n", text)
    if len(text) > limit:
        text = _REPEATED_TAGS.sub(r"<\1", text)
    if len(text) <= limit:
        return text
    # Both ends are cut in front of the same tag, so that as many elements are closed as opened.
    cut, tail = limit - limit // 4, len(text) - limit // 4
    cut = max(text.rfind("<", cut - _MAX_CUT_TAG, cut), cut - _MAX_CUT_TAG)
    same = text.find(text[cut : cut + 8], tail)
    return text[:cut] + text[same if same >= 0 else tail :]


# ---- sections

_BLANKS = b" \n\t\r\f"
_END_WORDS, _END_BYTES = 5, 400  # the last words are looked for in so many bytes


def _cut_texts(content: MessageContent, limit: int) -> list[str]:
    """The texts of all parts. Short ones stay whole, long ones share the room that is left."""
    texts = content.text
    if sum(map(len, texts)) <= limit:
        return texts
    cut = list(texts)
    by_length = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    for shared, number in zip(range(len(texts), 0, -1), by_length, strict=True):
        cut[number] = _cut_text(texts[number], limit // shared, content)
        limit -= min(len(cut[number]), limit // shared)
    return cut


def _cut_text(text: str, limit: int, content: MessageContent) -> str:
    """The start of a long text, where readers look, and its end, where footers stand."""
    if len(text) <= limit:
        return text
    utf8 = text[:limit].encode("utf-8", "replace")
    # counted like this because it is faster than a count of each kind
    if 2 * (len(utf8) - len(utf8.translate(None, _BLANKS))) > limit:
        # so many blanks only take the room of something else: readers see hardly any of them
        lines = [" ".join(line.split()) for line in text.split("\n")]
        text = "\n".join(filter(None, lines))
        if len(text) <= limit:
            return text
    content.defects.append(b"text-cut")
    return text[: limit - limit // 4] + "\n" + text[-(limit // 4) :]


def _separate_text(content: MessageContent, section: bytes, text: str) -> bytes:
    """The text as UTF-8 in which blanks part words; runs of scripts without them are kept apart."""
    words, runs = separate_spaceless(text)
    if runs:
        content.spaceless.append((section, runs))
    return words


def _add_links(content: MessageContent) -> list[str]:
    """Add the sections of links and hosts; returns the hosts."""
    urls = list(dict.fromkeys(content.urls))[:300]
    if not urls:
        return []
    written = dict.fromkeys([match[1] for url in urls if (match := _URL_HOST.match(url))])
    hosts = list(
        dict.fromkeys(
            [headers.ascii_host(_decode_host(host) if "%" in host else host) for host in written]
        )
    )
    for name, words in ((b"url", urls), (b"host", map(_domain_tokens, hosts))):
        text = fold(" ".join(words), lower=True).encode("utf-8", "replace")
        content.sections.append((name, text))
    return hosts


def _decode_host(host: str) -> str:
    """A percent-encoded host as browsers read it (URL Standard, section 3.5), without a user that
    the decoded form may hold.
    """
    match = _URL_HOST.match(unquote(host).lower())
    return match[1] if match else host


@lru_cache(maxsize=4096)
def _domain_tokens(host: str) -> str:
    labels = host.strip(".").split(".")[-5:]
    return " ".join(["_".join(labels[start:]) for start in range(max(1, len(labels) - 1))])


def _add_structure(content: MessageContent, more_clues: list[bytes]) -> None:
    message = content.message
    for leaf in message.leaves:
        if leaf is not message.root:
            content.sections += headers.part_sections(leaf.fields)
    kinds = [*message.structure, *[leaf.media for leaf in message.leaves]]
    clues = [b"defect_" + name.replace(b"-", b"_") for name in content.defects]
    clues += [b"kind_" + kind.replace(b"/", b"_") for kind in kinds]
    clues = list(dict.fromkeys(clues + more_clues))
    content.sections.append((b"clue", b" ".join(clues)))
    if content.attachments:
        names = [name + b" " + headers.host_token(name) for _, name in content.attachments]
        content.sections.append((b"attachment", b" ".join(names)))


# ---- traits: categories and numbers beside the tokens

_TRAIT_VALUES = {
    "media type": "absent, text/plain, text/html, multipart/alternative, multipart/mixed, "
    "multipart/related, multipart/signed, multipart/report, other",
    "transfer encoding": "absent, 7bit, 8bit, quoted-printable, base64, other",
    "charset": "absent, us-ascii, utf-8, western, central, cyrillic, japanese, chinese, korean, "
    "other",
    "attachment": "none, image, document, archive, program, html, calendar, message, other",
    "recipients": "none, one, several, undisclosed, other",
    "reply-to": "absent, same domain, other",
    "message-id": "absent, sender's domain, other",
    "subject": "absent, reply, forward, capitals, other",
    "list": "none, list, bulk, other",
    "date": "absent, zone, other",
}
TRAITS = {
    name: {value: code for code, value in enumerate(values.split(", "))}
    for name, values in _TRAIT_VALUES.items()
}
"""Name of each trait, and the code of each of its values. At most 16 values."""

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

_CODECS = {
    "us-ascii": "ascii",
    "utf-8": "utf-8",
    "western": "cp1252 iso8859_15",
    "central": "iso8859_2 cp1250",
    "cyrillic": "koi8_r cp1251 iso8859_5",
    "japanese": "iso2022_jp_ext cp932 euc_jp",
    "chinese": "gb18030 big5hkscs",
    "korean": "cp949 iso2022_kr",
}
_CODEC_KINDS = {codec: kind for kind, codecs in _CODECS.items() for codec in codecs.split()}
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
_CAPITALS, _DIGITS, _ASCII = bytes(range(65, 91)), b"0123456789", bytes(range(128))
_NO_CAPITALS_OR_DIGITS = bytes(byte for byte in range(256) if byte not in _CAPITALS + _DIGITS)


def compute_traits(content: MessageContent) -> NDArray[np.uint8]:
    """The codes of all traits, uint8, (len(TRAITS),)."""
    first_values = content.message.root.first_values
    sender = headers.registered_domain(first_values[b"from"])
    text, media = content.first_text, content.message.root.media
    charset = text.parameters.get(b"charset") if text else None
    attachment = "none"
    if content.attachments:
        first_media, name = content.attachments[0]
        kind = "image" if first_media.startswith(b"image/") else "other"
        attachment = _EXTENSION_KINDS.get(name.rpartition(b".")[2], kind)
    date = first_values.get(b"date")
    values = (
        media.decode("ascii", "replace") if b"content-type" in first_values else "absent",
        text.encoding.decode("ascii", "replace") if text and text.encoding else "absent",
        _CODEC_KINDS.get(decode.codec_name(charset) or "", "other") if charset else "absent",
        attachment,
        _recipients(first_values),
        _relation(first_values.get(b"reply-to"), sender, "same domain"),
        _relation(first_values.get(b"message-id"), sender, "sender's domain"),
        _subject_kind(first_values.get(b"subject")),
        _list_kind(first_values),
        "absent" if date is None else "zone" if _ZONE.search(date) else "other",
    )
    pairs = zip(TRAITS.values(), values, strict=True)
    codes = bytes([codes.get(value, len(codes) - 1) for codes, value in pairs])
    return np.frombuffer(codes, np.uint8)  # faster than an array of numbers


def _recipients(first_values: FieldMap) -> str:
    to = first_values[b"to"] + b"," + first_values[b"cc"]
    count = to.count(b"@")
    if count:
        return "one" if count == 1 else "several"
    if b"undisclosed" in to.lower():
        return "undisclosed"
    return "other" if b"to" in first_values else "none"


def _relation(value: bytes | None, sender: bytes, same: str) -> str:
    if value is None:
        return "absent"
    return same if sender and headers.registered_domain(value) == sender else "other"


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
    precedence = first_values[b"precedence"].strip().lower()
    is_bulk = b"list-unsubscribe" in first_values or precedence in (b"bulk", b"list", b"junk")
    return "bulk" if is_bulk else "none"


def compute_numbers(content: MessageContent, size: int) -> NDArray[np.int16]:
    """All numeric traits of a body of so many bytes: int16, (len(NUMBERS),), 0 to 255."""
    first_values = content.message.root.first_values
    sample = b"".join(content.samples)
    capitals_and_digits = sample.translate(None, _NO_CAPITALS_OR_DIGITS)  # one pass for both
    digits = len(capitals_and_digits.translate(None, _CAPITALS))
    recipients = (first_values[b"to"] + first_values[b"cc"]).count(b"@")
    subject = first_values[b"subject"]
    markup = content.markup_length
    values = (
        *map(_scale_log, (size, content.text_length, len(content.urls))),
        _scale_share(len(capitals_and_digits) - digits, len(sample)),
        _scale_share(digits, len(sample)),
        0 if sample.isascii() else _scale_share(len(sample.translate(None, _ASCII)), len(sample)),
        *map(_scale_log, (recipients, len(subject), len(content.evidence), content.hops)),
        _scale_share(markup, markup + content.text_length),
        _scale_log(sum(map(len, content.hidden))),
        _scale_log(content.images),
        _scale_log(len(content.attachments)),
        _scale_log(content.sections[0][1].count(b"!")),
    )
    return np.array(values, np.int16)


@lru_cache(maxsize=4096)
def _scale_log(count: int) -> int:
    return min(round(8 * log2(1 + count)), 255)


def _scale_share(part: int, total: int) -> int:
    return round(255 * part / max(total, 1))
