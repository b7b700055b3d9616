"""A message as sections of folded text: the step between its MIME tree and its hashes.

Also gathers what the traits and numbers need. Must never raise, and never looks at more text than the limits allow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from spamguard.mail import decode, fields, html
from spamguard.mail.fields import Section
from spamguard.mail.limits import Limits
from spamguard.mail.split import ContentType, FieldList, Leaf, Split, parse_disposition, split

_URL = re.compile(r"http(?:s?://[^\s\"'<>]{3,400})")
_BARE_URL = re.compile(r"www\.(?<![/\w.]www\.)[^\s\"'<>/]{3,100}")
_HOST = re.compile(r"(?:https?://)?(?:[^/?#@]*+@)?([^/?#:]++)")
_LOOKS_LIKE_HTML = re.compile(r"<(?:!doctype html|html|body|table|a href|font|br|p|div)\b")
# Thai, Lao, Myanmar, Khmer, kana, CJK ideographs and their extensions: no spaces between words. Hangul has them, but joins
# particles to words, so bigrams serve it as well.
_SPACELESS = re.compile(
    "[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]+"
)
# first bytes of their characters in UTF-8: to look for these is a hundred times faster than the expression
_SPACELESS_LEADS = tuple(bytes((lead,)) for lead in (0xE0, 0xE1, *range(0xE3, 0xEE), 0xEF, *range(0xF0, 0xF4)))
_TEXT_TYPES = frozenset((b"message/delivery-status", b"message/disposition-notification", b"application/xhtml+xml"))
_HTML_TYPES = frozenset((b"text/html", b"application/xhtml+xml"))
_SAMPLE = 4096  # bytes of each text part whose characters are counted
_MAX_URLS = 300


@dataclass(slots=True)
class Content:
    """What a message says. evidence: its header fields that may be looked at. The first section is the text of its body.

    spaceless: section name and runs of scripts without spaces. markup: characters of HTML tags. samples: the first bytes of
    each text part, decoded from the transfer encoding only.
    """

    message: Split
    evidence: FieldList = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    spaceless: list[tuple[bytes, str]] = field(default_factory=list)
    defects: list[bytes] = field(default_factory=list)
    text_types: list[ContentType] = field(default_factory=list)
    text_encodings: list[bytes] = field(default_factory=list)
    attachments: list[tuple[bytes, bytes]] = field(default_factory=list)  # media type, file name in lower case
    urls: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    markup: int = 0
    images: int = 0
    samples: list[bytes] = field(default_factory=list)


def read(raw: bytes, limits: Limits, *, body_only: bool = False) -> Content:
    """Everything a message says, or only the text of its body."""
    message = split(raw, limits)
    content = Content(message)
    _read_leaves(content, limits)
    body = _cut("\n".join(content.text), limits, content)
    content.sections.append((b"", _take_spaceless(content, b"", body)))
    if not body_only:
        _add_clues(content, limits)
    return content


def has_spaceless(text: str) -> bool:
    """Whether there is anything in it of a script without spaces."""
    return not text.isascii() and _SPACELESS.search(text) is not None


def _read_leaves(content: Content, limits: Limits) -> None:
    budget = limits.text_bytes
    for leaf in content.message.leaves:
        name = _file_name(leaf)
        if name or not _is_text(leaf):
            content.attachments.append((leaf.type.media, name))
        if _is_text(leaf):
            budget -= _read_text(content, leaf, leaf.encoding, budget)


def _is_text(leaf: Leaf) -> bool:
    """Text, or a multipart that could not be taken apart: mail readers show that as text."""
    return leaf.type.main in (b"text", b"multipart") or leaf.type.media in _TEXT_TYPES


def _file_name(leaf: Leaf) -> bytes:
    disposition = leaf.named.get(b"content-disposition")
    parameters = parse_disposition(disposition).parameters if disposition else {}
    name = parameters.get(b"filename") or leaf.type.parameters.get(b"name") or b""
    if not name:
        return b"unnamed" if disposition and disposition.lstrip().lower().startswith(b"attachment") else b""
    return decode.fold(decode.unstructured(name[-300:])[0]).encode("utf-8", "replace")  # its end says what it is


def _read_text(content: Content, leaf: Leaf, encoding: bytes, budget: int) -> int:
    """Read one text part; returns how many decoded bytes it took of the budget."""
    window = leaf.body[: 4 * budget]  # no transfer encoding is longer, unless it is padded with rubbish
    data, wrong = decode.transfer_decode(window, encoding)
    if len(data) > budget or len(window) < len(leaf.body):
        data, wrong = data[:budget], [*wrong, b"text-size"]
    content.defects += wrong
    content.samples.append(data[:_SAMPLE])
    text, wrong = decode.to_text(data, leaf.type.parameters.get(b"charset", b""))
    content.defects += wrong
    content.text_types.append(leaf.type)
    content.text_encodings.append(encoding)
    _read_lower(content, leaf, text.lower())
    return len(data)


def _read_lower(content: Content, leaf: Leaf, text: str) -> None:
    """Text in lower case; folded only after HTML is taken apart, so that no look-alike of "<" becomes a tag."""
    if "http" in text:
        content.urls += _URL.findall(text)
    if leaf.type.media in _HTML_TYPES or ("<" in text and _LOOKS_LIKE_HTML.search(text[:2000])):
        page = html.read(text)
        text = page.visible
        content.hidden.append(page.hidden)
        content.tags.append(page.tags)
        content.markup += page.markup
        content.images += page.images
    content.text.append(text if text.isascii() else decode.fold(text))
    if "www." in text:
        content.urls += _BARE_URL.findall(text)


def _cut(text: str, limits: Limits, content: Content) -> str:
    """What of a text becomes tokens: readers look at its start, and what is appended stands at its end."""
    most = limits.token_characters
    if len(text) <= most:
        return text
    content.defects.append(b"text-cut")
    return text[: most - most // 4] + "\n" + text[-(most // 4) :]


def _take_spaceless(content: Content, section: bytes, text: str) -> bytes:
    """The text as UTF-8, its runs of scripts without spaces taken out and kept apart."""
    utf8 = text.encode("utf-8", "replace")
    if text.isascii() or not any(lead in utf8 for lead in _SPACELESS_LEADS):
        return utf8
    runs = _SPACELESS.findall(text)
    if runs:
        content.spaceless.append((section, "\0".join(runs)))
    return _SPACELESS.sub(" ", text).encode("utf-8", "replace")


def _add_clues(content: Content, limits: Limits) -> None:
    """Sections beside the body: header fields, hidden text, markup, links, attachments, structure, defects."""
    content.evidence = fields.evidence(content.message.fields)
    found, wrong = fields.sections(content.evidence)
    content.defects += wrong + content.message.defects
    for name, text in found:
        content.sections.append((name, text if text.isascii() else _take_spaceless(content, name, text.decode("utf-8", "replace"))))
    hidden = _cut(decode.fold(" ".join(content.hidden)), limits, content)
    if hidden and not hidden.isspace():
        content.sections.append((b"hidden", _take_spaceless(content, b"hidden", hidden)))
    if content.tags:
        content.sections.append((b"tags", _cut(decode.fold(" ".join(content.tags)), limits, content).encode("utf-8", "replace")))
    _add_links(content)
    _add_structure(content)


def _add_links(content: Content) -> None:
    urls = list(dict.fromkeys(content.urls))[:_MAX_URLS]
    if not urls:
        return
    content.sections.append((b"url", decode.fold(" ".join(urls)).encode("utf-8", "replace")))
    hosts = dict.fromkeys([match.group(1) for url in urls if (match := _HOST.match(url))])
    content.sections.append((b"host", decode.fold(" ".join([_domains(host) for host in hosts])).encode("utf-8", "replace")))


def _domains(host: str) -> str:
    """A host and its parent domains, each one token."""
    labels = host.strip(".").split(".")[-5:]
    return " ".join(["_".join(labels[start:]) for start in range(max(1, len(labels) - 1))])


def _add_structure(content: Content) -> None:
    message = content.message
    for leaf in message.leaves:
        if leaf.fields is not message.fields:
            content.sections += fields.of_part(leaf.fields)
    kinds = [*message.structure, *[leaf.type.media for leaf in message.leaves]]
    clues = [b"defect_" + name.replace(b"-", b"_") for name in content.defects] + [b"kind_" + kind.replace(b"/", b"_") for kind in kinds]
    content.sections.append((b"clue", b" ".join(dict.fromkeys(clues))))
    if content.attachments:
        content.sections.append((b"attachment", b" ".join([name + b" " + fields.joined(name) for _, name in content.attachments])))
