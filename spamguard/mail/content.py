"""A message as sections of folded text: the step between its MIME tree and its hashes.

`read_content` decodes the text leaves, takes HTML apart, and makes the body the first section.
Sections of evidence follow: header fields, hidden text, markup, links, structure, attachments and
the names of defects. It also gathers what traits and numbers need.

How little text a reader sees, and what stands there instead, is evidence too. A picture with text
drawn into it leaves no words to know spam by, and few honest messages are a picture that leads to a
link and nothing else. A handful of words may be words that come only once; then their looks are all
there is. Such clues say how much and of what kind, in a few steps, so what is learnt holds for
pictures and words never seen.

Must never raise, and never look at more text than the limits allow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from spamguard.mail import decode, headers, html, mime
from spamguard.mail.headers import FieldList, Section
from spamguard.mail.text import deobfuscate, fold, separate_spaceless

_URL = re.compile(r"http(?:s?://[^\s\"'<>]{3,400})")
_BARE_URL = re.compile(r"www\.(?<![/\w.]www\.)[^\s\"'<>/]{3,100}")
# What stands before the last @ is a user (URL Standard).
_URL_HOST = re.compile(r"(?:https?://|(?!https?://))(?:[^/\\?#@]*+@|)*+([^/\\?#:@]++)")
_MAX_URLS = 300


@dataclass(slots=True)
class MessageContent:
    """What a message says.

    Parameters
    ----------
    evidence
        Header fields that may be looked at.
    sections
        The first is the text of the body, with what stands in for words where there are next to
        none.
    spaceless
        Section name and runs of scripts without blanks between words.
    charset
        Of the first text that has one.
    text_type, text_encoding
        Of the first text.
    attachments
        Media type, and file name in lower case.
    text, hidden, tags
        Texts that readers see, texts that they do not see, and tags with their attributes.
    markup_length, linked_image
        Characters of HTML tags; whether a page of little text has an image within a link.
    samples
        The start of each text part, decoded from the transfer encoding only.
    hops, text_length
        Servers that the message passed; bytes of the body's text.
    """

    message: mime.MimeMessage
    evidence: FieldList = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    spaceless: list[tuple[bytes, str]] = field(default_factory=list)
    defects: list[bytes] = field(default_factory=list)
    charset: bytes = b""
    text_type: mime.ContentType | None = None
    text_encoding: bytes = b""
    attachments: list[tuple[bytes, bytes]] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    markup_length: int = 0
    images: int = 0
    linked_image: bool = False
    samples: list[bytes] = field(default_factory=list)
    hops: int = 0
    text_length: int = 0
    makeup_clues: list[bytes] = field(default_factory=list)


def read_content(
    raw: bytes,
    limits: mime.ParseLimits,
    *,
    message: mime.MimeMessage | None = None,
    body_only: bool = False,
) -> MessageContent:
    """Everything a message says, or only the text of its body.

    message: `raw` taken apart with these limits, if it was.
    """
    content = MessageContent(mime.parse_message(raw, limits) if message is None else message)
    _read_leaves(content, limits)
    body, footer = _split_footer(_cut_text("\n".join(content.text), limits, content))
    _add_body(content, deobfuscate(_separate_text(content, b"", body)))
    if not body_only:
        if footer:
            content.sections.append((b"footer", _separate_text(content, b"footer", footer)))
        _add_evidence(content, limits)
        # How a sender always closes says something of its own (RESULTS.md, "Last words").
        words = content.sections[0][1][-_END_BYTES:].split()
        if len(words) > _END_WORDS:
            content.sections.append((b"end", b" ".join(words[-_END_WORDS:])))
    return content


def _add_body(content: MessageContent, text: bytes) -> None:
    """Add the section of the body. text: what a reader sees."""
    content.text_length = len(text)
    content.makeup_clues, substitute_words = describe_makeup(
        text,
        sum(len(runs) for _, runs in content.spaceless),
        [leaf.content_type.media for leaf in content.message.leaves],
        pictures=content.images > 0
        or any(media.startswith(b"image/") for media, _ in content.attachments),
        linked=content.linked_image,
    )
    if substitute_words:
        text += b"\n" + substitute_words
    content.sections.append((b"", text))


# ---- text parts

_TEXT_TYPES = frozenset(
    b"message/delivery-status message/disposition-notification application/xhtml+xml"
    b" application/pgp".split()
)
_HTML_TYPES = frozenset((b"text/html", b"application/xhtml+xml", b"text/x-amp-html"))
# Files that open as a page, whatever their type is.
_PAGE_EXTENSIONS = (b".htm", b".html", b".shtml", b".xhtml", b".svg")
_LOOKS_LIKE_HTML = re.compile(r"<(?:!doctype html|html|body|table|a href|font|br|p|div)\b")
# Between two lines, or within a word, where the text says so (RFC 3676 section 4.2).
_SOFT_BREAK = re.compile(r"(?<!\n--) \r?\n")
_CALENDAR_FOLD = re.compile(r"\r?\n[ \t]")  # within any word (RFC 5545 section 3.1)
_NO_CHARSET_NAMES = frozenset((b"", b"us-ascii", b"ascii"))  # of programs that know of none
_MIN_PART_SHARE = 32  # this part of `text_bytes` is read of every leaf, whatever stands before it
_SAMPLE_BYTES = 4096  # of each text part, whose characters are counted


def _read_leaves(content: MessageContent, limits: mime.ParseLimits) -> None:
    budget = limits.text_bytes
    unseen: list[int] = []
    for leaf in content.message.leaves:
        media, name = leaf.content_type.media, _file_name(leaf)
        # mail programs show a multipart that cannot be taken apart as text
        is_text = media.startswith((b"text/", b"multipart/")) or media in _TEXT_TYPES
        if name or not is_text:
            content.attachments.append((media, name))
        is_page = media in _HTML_TYPES or (
            name.endswith(_PAGE_EXTENSIONS) and not media.startswith(b"text/")
        )
        if is_page or is_text:
            if leaf.may_be_unseen:
                unseen.append(len(content.text))
            leaf_budget = max(budget, limits.text_bytes // _MIN_PART_SHARE)
            budget -= _read_text(content, leaf, leaf_budget, is_page=is_page)
    if unseen:
        _hide_unseen_texts(content, unseen)


def _file_name(leaf: mime.Leaf) -> bytes:
    disposition = leaf.first_values.get(b"content-disposition")
    parameters = mime.parse_disposition(disposition).parameters if disposition else {}
    name = parameters.get(b"filename") or leaf.content_type.parameters.get(b"name")
    if name:
        return _fold_file_name(name)
    is_attachment = disposition and disposition.lstrip().lower().startswith(b"attachment")
    return b"unnamed" if is_attachment else b""


def _fold_file_name(name: bytes) -> bytes:
    # the end says what kind of file it is
    return fold(decode.decode_unstructured(name[-300:])[0]).encode("utf-8", "replace")


def _read_text(content: MessageContent, leaf: mime.Leaf, budget: int, *, is_page: bool) -> int:
    """Read one text part; returns how many decoded bytes it takes from the budget."""
    media, parameters = leaf.content_type
    window = leaf.body[: 4 * budget]  # no encoding is longer, unless it is padded with rubbish
    encoding = leaf.encoding
    data, defects = decode.decode_transfer_encoding(window, encoding)
    if len(data) > budget or len(window) < len(leaf.body):
        data, defects = data[:budget], [*defects, b"text-size"]
    if media == b"text/plain":
        data, files = decode.strip_uuencoded_files(data)
        content.attachments += [
            (b"application/octet-stream", _fold_file_name(name)) for name in files
        ]
    content.samples.append(data[:_SAMPLE_BYTES])
    charset = parameters.get(b"charset", b"")
    if charset[:8].lower() in _NO_CHARSET_NAMES:
        charset = decode.sniff_charset(data) or charset
    text, charset_defects = decode.decode_text(data, charset)
    if parameters.get(b"delsp", b"").lower() == b"yes":
        text = _SOFT_BREAK.sub("", text)
    if media == b"text/calendar":
        text = _CALENDAR_FOLD.sub("", text)
        text = text.replace("\\n", "\n").replace("\\N", "\n")  # line ends (RFC 5545, 3.3.11)
    content.charset = content.charset or charset
    content.defects += defects + charset_defects
    if content.text_type is None:
        content.text_type, content.text_encoding = leaf.content_type, encoding
    _read_lower_text(content, text.lower(), is_page=is_page)
    return len(data)


def _read_lower_text(content: MessageContent, text: str, *, is_page: bool) -> None:
    """Take HTML apart, then fold: no look-alike of "<" may become a tag."""
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


# ---- texts that may stand for a page

_COMPARED_LETTERS = 8  # of each word
_MAX_SOUGHT_WORDS = 48  # of the words that are not found at once, spread over them
_SHORT_WORD_LETTERS = 3  # shorter words are in any text
_MAX_COMPARED_CHARACTERS, _MAX_COMPARED_TEXTS = 50_000, 5
_MIN_COMPARED_WORDS = 8
_WORD_MARKS = ".,:;!?\"'()"


def _hide_unseen_texts(content: MessageContent, unseen: list[int]) -> None:
    """Of texts that may stand for a page, hide those that say something else than the page, which
    is what people see.

    With 150 words of good mail in such a text, of 200 spam (SpamAssassin corpus) 71 were called
    spam instead of 178; like this, 155. If all words of the spam are in it too, 153 are while half
    of the words have to be missing, and 170 with a quarter.
    """
    seen = [text for number, text in enumerate(content.text) if number not in unseen]
    page = "\n".join(seen)[:_MAX_COMPARED_CHARACTERS]
    if len(page.split(None, _MIN_COMPARED_WORDS)) > _MIN_COMPARED_WORDS:
        for count, number in enumerate(unseen):
            if count >= _MAX_COMPARED_TEXTS or _differs_from_page(content.text[number], page):
                content.hidden.append(content.text[number])
                content.text[number] = ""


def _differs_from_page(text: str, page: str) -> bool:
    """Whether more than a quarter of the words of a text are not on the page."""
    text_words, page_words = set(text.split()), set(page.split())
    missing = _comparable_words(text_words - page_words)
    if len(missing) >= _MAX_SOUGHT_WORDS:
        # not all can be looked for: leave out those that differ in their end, or in signs
        missing -= _comparable_words(page_words)
    sought = sorted(missing)[:: len(missing) // _MAX_SOUGHT_WORDS + 1]
    # a search finds them also where no blanks part the words of the page, or signs do
    absent = 4 * sum([word not in page for word in sought]) * len(missing)
    if absent <= _MIN_COMPARED_WORDS * len(sought):
        return False  # nearly all are there: the number of words makes no difference
    words = len(_comparable_words(text_words))
    return words >= _MIN_COMPARED_WORDS and absent > words * len(sought)


def _comparable_words(words: set[str]) -> set[str]:
    return {
        start
        for word in words
        if len(word) > _SHORT_WORD_LETTERS
        and len(start := word.strip(_WORD_MARKS)[:_COMPARED_LETTERS]) > _SHORT_WORD_LETTERS
        and start.isalpha()
    }


# ---- what of a text becomes tokens

_BLANKS = b" \n\t\r\f"
# Above a signature, or what a mailing list appends: RFC 3676 section 4.3; Mailman's; many others'.
_FOOTER_LINE = re.compile(r"\n(?:-- ?|_{20,}+|-{20,}+)\n")
_FOOTER_STARTS = ("\n--", "\n____")
_MAX_FOOTER_CHARACTERS = 1500
_MIN_TEXT_CHARACTERS = 20  # above a footer
_END_WORDS, _END_BYTES = 5, 400  # the last words are looked for in so many bytes


def _cut_text(text: str, limits: mime.ParseLimits, content: MessageContent) -> str:
    """The start of a long text, where readers look, and its end, where footers stand."""
    limit = limits.token_characters
    if len(text) > limit and 2 * _count_blanks(text[:limit]) > limit:
        # so many blanks only take the room of something else: readers see hardly any of them
        lines = [" ".join(line.split()) for line in text.split("\n")]
        text = "\n".join(filter(None, lines))
    if len(text) <= limit:
        return text
    content.defects.append(b"text-cut")
    return text[: limit - limit // 4] + "\n" + text[-(limit // 4) :]


def _count_blanks(text: str) -> int:
    utf8 = text.encode("utf-8", "replace")
    return len(utf8) - len(utf8.translate(None, _BLANKS))  # faster than a count of each kind


def _split_footer(text: str) -> tuple[str, str]:
    """A text, and the signature or the mailing list's footer below it."""
    start = max(len(text) - _MAX_FOOTER_CHARACTERS, _MIN_TEXT_CHARACTERS)
    marks = [mark for begin in _FOOTER_STARTS if (mark := text.find(begin, start)) >= 0]
    line = _FOOTER_LINE.search(text, min(marks)) if marks else None
    return (text[: line.start()], text[line.start() :]) if line else (text, "")


def _separate_text(content: MessageContent, section: bytes, text: str) -> bytes:
    """The text as UTF-8 in which blanks part words; runs of scripts without them are kept apart."""
    words, runs = separate_spaceless(text)
    if runs:
        content.spaceless.append((section, runs))
    return words


# ---- how little text there is

_WORD_COUNT_STEPS = ((0, b"no"), (3, b"scarce"), (10, b"few"), (30, b"some"))  # at most
_MAX_COUNTED_WORDS = _WORD_COUNT_STEPS[-1][0]
_MAX_NO_TEXT_WORDS = 3
_MAX_KINDS = 6
_HANDFUL_WORDS = 10  # (corpora/RESULTS.md, "What a handful of words looks like")
_MAX_LOOK_BYTES = 16  # longer words all look alike
_LETTERS_AND_DIGITS = re.compile(rb"[A-Za-z0-9\x80-\xff]*")


class MessageMakeup(NamedTuple):
    """How a message is built.

    substitute_words: what counts as its words where there are next to none. They are in capitals,
    which folded text does not have.
    """

    clues: list[bytes]
    substitute_words: bytes


def describe_makeup(
    text: bytes, letters: int, leaves: Iterable[bytes], *, pictures: bool, linked: bool
) -> MessageMakeup:
    """Describe how a message is built.

    Parameters
    ----------
    text
        What a reader sees.
    letters
        Characters of scripts without blanks, beside it.
    leaves
        Media types.
    pictures
        Whether any are shown or attached.
    linked
        Whether one stands within a link.
    """
    kinds = []  # of text its subtype, of all else its main type
    for media in leaves:
        main, _, subtype = media.partition(b"/")
        kinds.append(subtype if main == b"text" else main)
    clues = [b"leaves_" + b"_".join(list(dict.fromkeys(kinds))[:_MAX_KINDS])]
    words = len(text.split(None, _MAX_COUNTED_WORDS)) + letters if pictures else 0
    if not pictures or words > _MAX_COUNTED_WORDS:
        return MessageMakeup(clues, b"")
    size = next(name for limit, name in _WORD_COUNT_STEPS if words <= limit)
    clues += [
        size + b"_words_picture",
        b"little_text_picture",
        b"little_text_picture_" + (b"link" if linked else b"alone"),
    ]
    is_substituted = linked and words <= _MAX_NO_TEXT_WORDS
    return MessageMakeup(clues, b" ".join(clues).upper() if is_substituted else b"")


def handful_clues(text: bytes, letters: int, subjects: Iterable[bytes]) -> list[bytes]:
    """How many words a reader sees and what each looks like, in the subject too, if the text is a
    handful of words at most; `text` and `letters` as in `describe_makeup`.
    """
    words = text.split(None, _HANDFUL_WORDS)
    if len(words) + letters > _HANDFUL_WORDS:
        return []
    clues = _word_looks(b"text", words, letters)
    for subject in subjects:
        clues += _word_looks(b"subject", subject.split(None, _HANDFUL_WORDS), 0)
    return clues


def _word_looks(where: bytes, words: list[bytes], letters: int) -> list[bytes]:
    if len(words) > _HANDFUL_WORDS:
        return []
    looks = [(_word_kind(word), min(len(word), _MAX_LOOK_BYTES)) for word in words]
    return [
        b"few_%b_%d" % (where, len(words) + letters),
        *[b"few_%b_%b_%d" % (where, kind, size) for kind, size in looks],
    ]


def _word_kind(word: bytes) -> bytes:
    if not _LETTERS_AND_DIGITS.fullmatch(word):
        return b"signs"
    letters = len(word.translate(None, b"0123456789"))
    if letters == len(word):
        return b"letters"
    return b"mixed" if letters else b"digits"


# ---- evidence beside the body


def _add_evidence(content: MessageContent, limits: mime.ParseLimits) -> None:
    """Add the sections beside the body."""
    message = content.message
    content.evidence = headers.evidence_fields(message.fields)
    fields, defects = headers.field_sections(content.evidence, content.charset)
    content.defects += defects + message.defects
    content.sections += [
        _separate_field(content, name, text)
        if name == b"subject" or not text.isascii()
        else (name, text)
        for name, text in fields
    ]
    hidden = _cut_text(fold(" ".join(content.hidden), lower=True), limits, content)
    if hidden and not hidden.isspace():
        content.sections.append((b"hidden", _separate_text(content, b"hidden", hidden)))
    if content.tags:
        tags = _cut_text(fold(" ".join(content.tags), lower=True), limits, content)
        content.sections.append((b"tags", tags.encode("utf-8", "replace")))
    hosts = _add_links(content)
    received = [text for name, text in fields if name == b"received"]
    content.hops = len(received)
    content.makeup_clues += handful_clues(
        content.sections[0][1][: content.text_length],
        sum(len(runs) for section, runs in content.spaceless if not section),
        (text for name, text in content.sections if name == b"subject"),
    )
    _add_structure(content, headers.relation_clues(message.first_values, received, hosts))


def _separate_field(content: MessageContent, name: bytes, text: bytes) -> Section:
    if not text.isascii():
        text = _separate_text(content, name, text.decode("utf-8", "replace"))
    return name, deobfuscate(text) if name == b"subject" else text


def _add_links(content: MessageContent) -> list[str]:
    """Add the sections of links and hosts; returns the hosts."""
    urls = list(dict.fromkeys(content.urls))[:_MAX_URLS]
    if not urls:
        return []
    written = dict.fromkeys([match[1] for url in urls if (match := _URL_HOST.match(url))])
    hosts = list(dict.fromkeys([_decode_host(host) if "%" in host else host for host in written]))
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
    """A host and its parent domains, each as one token."""
    labels = host.strip(".").split(".")[-5:]
    return " ".join(["_".join(labels[start:]) for start in range(max(1, len(labels) - 1))])


def _add_structure(content: MessageContent, relations: list[bytes]) -> None:
    message = content.message
    for leaf in message.leaves:
        if leaf.fields is not message.fields:
            content.sections += headers.part_sections(leaf.fields)
    kinds = [*message.structure, *[leaf.content_type.media for leaf in message.leaves]]
    clues = [b"defect_" + name.replace(b"-", b"_") for name in content.defects]
    clues += [b"kind_" + kind.replace(b"/", b"_") for kind in kinds]
    clues = list(dict.fromkeys(clues + content.makeup_clues + relations))
    content.sections.append((b"clue", b" ".join(clues)))
    if content.attachments:
        names = [name + b" " + headers.host_token(name) for _, name in content.attachments]
        content.sections.append((b"attachment", b" ".join(names)))
