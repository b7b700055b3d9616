"""A message as sections of folded text: the step between its MIME tree and its hashes.

Also gathers what the traits and numbers need. Must never raise, and never looks at more text than the limits allow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import unquote

from spamguard.mail import decode, fields, html, makeup, relations, scripts
from spamguard.mail.fields import Section
from spamguard.mail.limits import Limits
from spamguard.mail.parameters import ContentType, parse_disposition
from spamguard.mail.split import FieldList, Leaf, Split, split

_URL = re.compile(r"http(?:s?://[^\s\"'<>]{3,400})")
_BARE_URL = re.compile(r"www\.(?<![/\w.]www\.)[^\s\"'<>/]{3,100}")
_HOST = re.compile(r"(?:https?://|(?!https?://))(?:[^/\\?#@]*+@|)*+([^/\\?#:@]++)")  # up to the last @ is the user (URL Standard)
_LOOKS_LIKE_HTML = re.compile(r"<(?:!doctype html|html|body|table|a href|font|br|p|div)\b")
_TEXT_TYPES = frozenset((b"message/delivery-status", b"message/disposition-notification", b"application/xhtml+xml", b"application/pgp"))
_HTML_TYPES = frozenset((b"text/html", b"application/xhtml+xml", b"text/x-amp-html"))
_PAGES = (b".htm", b".html", b".shtml", b".xhtml", b".svg")  # ends of names of files that open as a page, whatever they are called
_SOFT_BREAK = re.compile(r"(?<!\n--) \r?\n")  # of text that says so: between two lines, or within a word (RFC 3676 section 4.2)
_CALENDAR = b"text/calendar"
_FOLDED = re.compile(r"\r?\n[ \t]")  # of calendars: within any word (RFC 5545 section 3.1)
_BLANKS = b" \n\t\r\f"
_FOOTER_LINE = re.compile(r"\n(?:-- ?|_{20,}+|-{20,}+)\n")  # RFC 3676 section 4.3; Mailman's; many others'
_FOOTER_MARKS = ("\n--", "\n____")  # what it begins with
_FOOTER_CHARACTERS = 1500  # at the end of a text
_END_WORDS, _END_BYTES = 5, 400  # of a text (corpora/RESULTS.md, "Last words"); so many are looked for in so many bytes
_LEAST_SHARE = 32  # of the bytes of text that are read: so much of every part is, whatever stands before it
_LEAST_TEXT = 20  # characters above it
_NO_CHARSET = frozenset((b"", b"us-ascii", b"ascii"))  # what programs write that know of none
_LETTERS = 8  # of each word of a text that may stand for a page
_LOOKED_FOR = 48  # of the words that are not found at once, spread over them
_LONG = 3  # letters: shorter words are in any text
_SHOWN, _BESIDE = 50_000, 5  # characters and texts that are compared
_MARKS = ".,:;!?\"'()"
_FEWEST = 8  # and so many words must be long enough to be compared
_SAMPLE = 4096  # bytes of each text part whose characters are counted
_MAX_URLS = 300


@dataclass(slots=True)
class Content:
    """What a message says. evidence: its header fields that may be looked at. The first section is the text of its body, and what
    stands in for it where there is next to none.

    length: bytes of that text. makeup: how it is built. linked: a picture within a link, in a page of little text.
    spaceless: section name and runs of scripts without blanks between words. markup: characters of HTML tags. samples: the first bytes
    of each text part, decoded from the transfer encoding only. charset: of the first text that has one. hops: servers that it passed.
    """

    message: Split
    evidence: FieldList = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    spaceless: list[tuple[bytes, str]] = field(default_factory=list)
    defects: list[bytes] = field(default_factory=list)
    charset: bytes = b""
    text_types: list[ContentType] = field(default_factory=list)
    text_encodings: list[bytes] = field(default_factory=list)
    attachments: list[tuple[bytes, bytes]] = field(default_factory=list)  # media type, file name in lower case
    urls: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    markup: int = 0
    images: int = 0
    linked: bool = False
    samples: list[bytes] = field(default_factory=list)
    hops: int = 0
    length: int = 0
    makeup: list[bytes] = field(default_factory=list)


def read(raw: bytes, limits: Limits, *, body_only: bool = False) -> Content:
    """Everything a message says, or only the text of its body."""
    message = split(raw, limits)
    content = Content(message)
    _read_leaves(content, limits)
    body, footer = _without_footer(_cut("\n".join(content.text), limits, content))
    _add_body(content, scripts.undisguised(_parted(content, b"", body)))
    if not body_only:
        if footer:
            content.sections.append((b"footer", _parted(content, b"footer", footer)))
        _add_clues(content, limits)
        content.sections += _end(content.sections[0][1])
    return content


def _add_body(content: Content, text: bytes) -> None:
    content.length = len(text)
    content.makeup, standing_in = makeup.of(
        text,
        sum(len(runs) for _, runs in content.spaceless),
        [leaf.type.media for leaf in content.message.leaves],
        pictures=content.images > 0 or any(media.startswith(b"image/") for media, _ in content.attachments),
        linked=content.linked,
    )
    content.sections.append((b"", text + b"\n" + standing_in if standing_in else text))


def _end(text: bytes) -> list[Section]:
    """The last words of a text that has more: how a sender always closes says something of its own."""
    words = text[-_END_BYTES:].split()
    return [(b"end", b" ".join(words[-_END_WORDS:]))] if len(words) > _END_WORDS else []


def _read_leaves(content: Content, limits: Limits) -> None:
    budget = limits.text_bytes
    beside: list[int] = []
    for leaf in content.message.leaves:
        name, is_text = _file_name(leaf), _is_text(leaf)
        if name or not is_text:
            content.attachments.append((leaf.type.media, name))
        page = leaf.type.media in _HTML_TYPES or (leaf.type.main != b"text" and name.endswith(_PAGES))
        if page or is_text:
            if leaf.beside:
                beside.append(len(content.text))
            budget -= _read_text(content, leaf, max(budget, limits.text_bytes // _LEAST_SHARE), page=page)
    if beside:
        _hide_unseen(content, beside)


def _hide_unseen(content: Content, beside: list[int]) -> None:
    """Of texts that may stand for a page, those that say something else than the page, which is what people see.

    With 150 words of good mail in such a text, of 200 spam (SpamAssassin corpus) 71 were called spam instead of 178; 155 so. With these
    and all words of the spam 153 were while half of the words had to be missing, 170 with a quarter; with 40 of them 147 and 174.
    """
    shown = "\n".join([text for number, text in enumerate(content.text) if number not in beside])[:_SHOWN]
    if len(shown.split(None, _FEWEST)) > _FEWEST:
        for count, number in enumerate(beside):
            if count >= _BESIDE or _is_strange(content.text[number], shown):
                content.hidden.append(content.text[number])
                content.text[number] = ""


def _is_strange(text: str, shown: str) -> bool:
    """Whether more than a quarter of its words are not in what is shown."""
    written, there = set(text.split()), set(shown.split())
    missing = _compared(written - there)
    if len(missing) >= _LOOKED_FOR:  # not all can be looked for: none of them should be there but for its end, or signs beside it
        missing -= _compared(there)
    some = sorted(missing)[:: len(missing) // _LOOKED_FOR + 1]  # where no blanks part words, or signs do, they are found as well
    absent = 4 * sum([word not in shown for word in some]) * len(missing)
    if absent <= _FEWEST * len(some):  # nearly all are there: how many words there are makes no difference
        return False
    words = len(_compared(written))
    return words >= _FEWEST and absent > words * len(some)


def _compared(written: set[str]) -> set[str]:
    return {word for one in written if len(one) > _LONG and len(word := one.strip(_MARKS)[:_LETTERS]) > _LONG and word.isalpha()}


def _is_text(leaf: Leaf) -> bool:
    """Text, or a multipart that could not be taken apart: mail readers show that as text."""
    return leaf.type.main in (b"text", b"multipart") or leaf.type.media in _TEXT_TYPES


def _file_name(leaf: Leaf) -> bytes:
    disposition = leaf.named.get(b"content-disposition")
    parameters = parse_disposition(disposition).parameters if disposition else {}
    name = parameters.get(b"filename") or leaf.type.parameters.get(b"name") or b""
    if not name:
        return b"unnamed" if disposition and disposition.lstrip().lower().startswith(b"attachment") else b""
    return _folded(name)


def _folded(name: bytes) -> bytes:
    return decode.fold(decode.unstructured(name[-300:])[0]).encode("utf-8", "replace")  # its end says what it is


def _read_text(content: Content, leaf: Leaf, budget: int, *, page: bool) -> int:
    """Read one text part; returns how many decoded bytes it took of the budget."""
    encoding = leaf.encoding
    window = leaf.body[: 4 * budget]  # no transfer encoding is longer, unless it is padded with rubbish
    data, wrong = decode.transfer_decode(window, encoding)
    if len(data) > budget or len(window) < len(leaf.body):
        data, wrong = data[:budget], [*wrong, b"text-size"]
    content.defects += wrong
    if leaf.type.media == b"text/plain":
        data, files = decode.without_files(data)
        content.attachments += [(b"application/octet-stream", _folded(name)) for name in files]
    content.samples.append(data[:_SAMPLE])
    charset = leaf.type.parameters.get(b"charset", b"")
    if charset[:8].lower() in _NO_CHARSET:
        charset = decode.charset_inside(data) or charset
    text, wrong = decode.to_text(data, charset)
    if leaf.type.parameters.get(b"delsp", b"").lower() == b"yes":
        text = _SOFT_BREAK.sub("", text)
    if leaf.type.media == _CALENDAR:
        text = _FOLDED.sub("", text).replace("\\n", "\n").replace("\\N", "\n")  # line ends are written so (section 3.3.11)
    content.charset = content.charset or charset
    content.defects += wrong
    content.text_types.append(leaf.type)
    content.text_encodings.append(encoding)
    _read_lower(content, text.lower(), page=page)
    return len(data)


def _read_lower(content: Content, text: str, *, page: bool) -> None:
    """Text in lower case, of a page or not; folded only after HTML is taken apart, so that no look-alike of "<" becomes a tag."""
    if "http" in text:
        content.urls += _URL.findall(text)
    if page or ("<" in text and _LOOKS_LIKE_HTML.search(text[:2000])):
        found = html.read(text) if page else html.read_plain(text)
        text = found.visible
        content.urls += found.links
        content.hidden.append(found.hidden)
        content.tags.append(found.tags)
        content.markup += found.markup
        content.images += found.images
        content.linked = content.linked or found.linked
    if "\0" in text:
        text = text.replace("\0", "")  # nobody sees it
    content.text.append(decode.fold(text, lower=True))
    if "www." in text:
        content.urls += _BARE_URL.findall(text)


def _cut(text: str, limits: Limits, content: Content) -> str:
    """What of a text becomes tokens: readers look at its start, and what is appended stands at its end."""
    most = limits.token_characters
    if len(text) > most and 2 * _blanks(text[:most]) > most:
        text = _lines(text)  # so many blanks are there to take the room of something else: readers see hardly any of them
    if len(text) <= most:
        return text
    content.defects.append(b"text-cut")
    return text[: most - most // 4] + "\n" + text[-(most // 4) :]


def _blanks(text: str) -> int:
    """How many there are: to leave them out of UTF-8, where each is a byte, is faster than to count each kind."""
    utf8 = text.encode("utf-8", "replace")
    return len(utf8) - len(utf8.translate(None, _BLANKS))


def _lines(text: str) -> str:
    """Its lines with no more blanks than it takes to part words, and none of them empty."""
    return "\n".join(filter(None, [" ".join(line.split()) for line in text.split("\n")]))


def _without_footer(text: str) -> tuple[str, str]:
    """A text, and what stands below the line that parts off a signature or what a mailing list appends to everybody's mail."""
    start = max(len(text) - _FOOTER_CHARACTERS, _LEAST_TEXT)
    marks = [place for mark in _FOOTER_MARKS if (place := text.find(mark, start)) >= 0]
    line = _FOOTER_LINE.search(text, min(marks)) if marks else None
    return (text[: line.start()], text[line.start() :]) if line else (text, "")


def _parted(content: Content, section: bytes, text: str) -> bytes:
    """The text as UTF-8 in which blanks part words; runs of scripts without them are kept apart."""
    words, runs = scripts.parted(text)
    if runs:
        content.spaceless.append((section, runs))
    return words


def _add_clues(content: Content, limits: Limits) -> None:
    """Sections beside the body: header fields, hidden text, markup, links, attachments, structure, defects."""
    content.evidence = fields.evidence(content.message.fields)
    found, wrong = fields.sections(content.evidence, content.charset)
    content.defects += wrong + content.message.defects
    content.sections += [
        _as_read(content, *section) if section[0] == b"subject" or not section[1].isascii() else section for section in found
    ]
    hidden = _cut(decode.fold(" ".join(content.hidden), lower=True), limits, content)
    if hidden and not hidden.isspace():
        content.sections.append((b"hidden", _parted(content, b"hidden", hidden)))
    if content.tags:
        content.sections.append(
            (b"tags", _cut(decode.fold(" ".join(content.tags), lower=True), limits, content).encode("utf-8", "replace"))
        )
    hosts = _add_links(content)
    received = [text for name, text in found if name == b"received"]
    content.hops = len(received)
    content.makeup += _of_handful(content)
    _add_structure(content, relations.clues(content.message.named, received, hosts))


def _of_handful(content: Content) -> list[bytes]:
    letters = sum(len(runs) for section, runs in content.spaceless if not section)
    subjects = (text for name, text in content.sections if name == b"subject")  # hardly ever asked for
    return makeup.of_handful(content.sections[0][1][: content.length], letters, subjects)


def _as_read(content: Content, name: bytes, text: bytes) -> Section:
    words = text if text.isascii() else _parted(content, name, text.decode("utf-8", "replace"))
    return name, scripts.undisguised(words) if name == b"subject" else words


def _add_links(content: Content) -> list[str]:
    """Returns the hosts of all links."""
    urls = list(dict.fromkeys(content.urls))[:_MAX_URLS]
    if not urls:
        return []
    content.sections.append((b"url", decode.fold(" ".join(urls), lower=True).encode("utf-8", "replace")))
    written = dict.fromkeys([match.group(1) for url in urls if (match := _HOST.match(url))])
    hosts = list(dict.fromkeys([_decoded(host) if "%" in host else host for host in written]))
    content.sections.append((b"host", decode.fold(" ".join(map(_domains, hosts)), lower=True).encode("utf-8", "replace")))
    return hosts


def _decoded(host: str) -> str:
    """A percent-encoded one as browsers decode it (URL Standard, section 3.5), without what is then said before "@"."""
    found = _HOST.match(unquote(host).lower())
    return found.group(1) if found else host


@lru_cache(maxsize=4096)
def _domains(host: str) -> str:
    """A host and its parent domains, each one token."""
    labels = host.strip(".").split(".")[-5:]
    return " ".join(["_".join(labels[start:]) for start in range(max(1, len(labels) - 1))])


def _add_structure(content: Content, related: list[bytes]) -> None:
    message = content.message
    for leaf in message.leaves:
        if leaf.fields is not message.fields:
            content.sections += fields.of_part(leaf.fields)
    kinds = [*message.structure, *[leaf.type.media for leaf in message.leaves]]
    clues = [b"defect_" + name.replace(b"-", b"_") for name in content.defects] + [b"kind_" + kind.replace(b"/", b"_") for kind in kinds]
    content.sections.append((b"clue", b" ".join(dict.fromkeys(clues + content.makeup + related))))
    if content.attachments:
        content.sections.append((b"attachment", b" ".join([name + b" " + fields.joined(name) for _, name in content.attachments])))
