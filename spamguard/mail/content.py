"""What a message is made of: how little text a reader sees, and what stands there in its place. A
picture with the text drawn into it leaves no words to know spam by, and few honest messages are a
picture that leads to a link and nothing else. A handful of words may be such as come only once, and
then only how they look says anything.

Says only how much and of what kind, in a few steps, never what: so what is learnt holds for
pictures never seen. Pure; never raises.

A message as sections of folded text: the step between its MIME tree and its hashes.

Also gathers what the traits and numbers need. Must never raise, and never looks at more text than
the limits allow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from spamguard.mail import decode, headers, html, text
from spamguard.mail import text as mail_text
from spamguard.mail.headers import FieldList, Section
from spamguard.mail.mime import (
    ContentType,
    Leaf,
    MimeMessage,
    ParseLimits,
    parse_disposition,
    parse_message,
)

_WORD_COUNT_STEPS = (
    (0, b"no"),
    (3, b"scarce"),
    (10, b"few"),
    (30, b"some"),
)  # at most so many words
_MAX_COUNTED_WORDS = _WORD_COUNT_STEPS[-1][0]
_MAX_NO_TEXT_WORDS = 3  # words, or fewer
_MAX_KINDS = 6
_HANDFUL_WORDS = 10  # words (corpora/RESULTS.md, "What a handful of words looks like")
_MAX_LOOK_BYTES = 16  # bytes; longer ones are all alike
_LETTERS_AND_DIGITS = re.compile(rb"[A-Za-z0-9\x80-\xff]*")


class MessageMakeup(NamedTuple):
    """clues: tokens of how a message is built. standing_in: what counts as its words where next to
    none are, in capitals, which no text has any more.
    """

    clues: list[bytes]
    substitute_words: bytes


def describe_makeup(
    text: bytes, letters: int, leaves: Iterable[bytes], *, pictures: bool, linked: bool
) -> MessageMakeup:
    """text: what a reader sees. letters: of scripts without blanks, beside it. leaves: media types.
    pictures: any are shown or attached; linked: within a link.
    """
    clues = [b"leaves_" + b"_".join(list(dict.fromkeys(map(_leaf_kind, leaves)))[:_MAX_KINDS])]
    words = (
        len(text.split(None, _MAX_COUNTED_WORDS)) + letters if pictures else _MAX_COUNTED_WORDS + 1
    )
    if words > _MAX_COUNTED_WORDS:
        return MessageMakeup(clues, b"")
    size = next(name for most, name in _WORD_COUNT_STEPS if words <= most)
    clues += [
        size + b"_words_picture",
        b"little_text_picture",
        b"little_text_picture_" + (b"link" if linked else b"alone"),
    ]
    return MessageMakeup(
        clues, b" ".join(clues).upper() if linked and words <= _MAX_NO_TEXT_WORDS else b""
    )


def handful_clues(text: bytes, letters: int, subjects: Iterable[bytes]) -> list[bytes]:
    """Where a reader sees a handful of words at most: how many, and how each of them looks, in the
    subject too.

    text, letters: as in `of`.
    """
    words = text.split(None, _HANDFUL_WORDS)
    if len(words) + letters > _HANDFUL_WORDS:
        return []
    clues = _word_looks(b"text", words, letters)
    for subject in subjects:
        clues += _word_looks(b"subject", subject.split(None, _HANDFUL_WORDS), 0)
    return clues


def _word_looks(place: bytes, words: list[bytes], letters: int) -> list[bytes]:
    if len(words) > _HANDFUL_WORDS:
        return []
    looks = [
        b"few_%b_%b_%d" % (place, _word_kind(word), min(len(word), _MAX_LOOK_BYTES))
        for word in words
    ]
    return [b"few_%b_%d" % (place, len(words) + letters), *looks]


def _word_kind(word: bytes) -> bytes:
    if not _LETTERS_AND_DIGITS.fullmatch(word):
        return b"signs"
    without = len(word.translate(None, b"0123456789"))
    if without == len(word):
        return b"letters"
    return b"mixed" if without else b"digits"


def _leaf_kind(media: bytes) -> bytes:
    """Of text which one, of anything else its main type."""
    main, _, kind = media.partition(b"/")
    return kind if main == b"text" else main


_URL = re.compile(r"http(?:s?://[^\s\"'<>]{3,400})")
_BARE_URL = re.compile(r"www\.(?<![/\w.]www\.)[^\s\"'<>/]{3,100}")
_URL_HOST = re.compile(
    r"(?:https?://|(?!https?://))(?:[^/\\?#@]*+@|)*+([^/\\?#:@]++)"
)  # up to the last @ is the user (URL Standard)
_LOOKS_LIKE_HTML = re.compile(r"<(?:!doctype html|html|body|table|a href|font|br|p|div)\b")
_TEXT_TYPES = frozenset(
    (
        b"message/delivery-status",
        b"message/disposition-notification",
        b"application/xhtml+xml",
        b"application/pgp",
    )
)
_HTML_TYPES = frozenset((b"text/html", b"application/xhtml+xml", b"text/x-amp-html"))
_PAGE_EXTENSIONS = (
    b".htm",
    b".html",
    b".shtml",
    b".xhtml",
    b".svg",
)  # ends of names of files that open as a page, whatever they are called
_SOFT_BREAK = re.compile(
    r"(?<!\n--) \r?\n"
)  # of text that says so: between two lines, or within a word (RFC 3676 section 4.2)
_CALENDAR_TYPE = b"text/calendar"
_CALENDAR_FOLD = re.compile(r"\r?\n[ \t]")  # of calendars: within any word (RFC 5545 section 3.1)
_BLANKS = b" \n\t\r\f"
_FOOTER_LINE = re.compile(
    r"\n(?:-- ?|_{20,}+|-{20,}+)\n"
)  # RFC 3676 section 4.3; Mailman's; many others'
_FOOTER_MARKS = ("\n--", "\n____")  # what it begins with
_MAX_FOOTER_CHARACTERS = 1500  # at the end of a text
_END_WORDS, _END_BYTES = (
    5,
    400,
)  # of a text (corpora/RESULTS.md, "Last words"); so many are looked for in so many bytes
_MIN_PART_SHARE = (
    32  # of the bytes of text that are read: so much of every part is, whatever stands before it
)
_MIN_TEXT_CHARACTERS = 20  # characters above it
_NO_CHARSET_NAMES = frozenset((b"", b"us-ascii", b"ascii"))  # what programs write that know of none
_COMPARED_LETTERS = 8  # of each word of a text that may stand for a page
_MAX_SOUGHT_WORDS = 48  # of the words that are not found at once, spread over them
_SHORT_WORD_LETTERS = 3  # letters: shorter words are in any text
_MAX_COMPARED_CHARACTERS, _MAX_COMPARED_TEXTS = 50_000, 5  # characters and texts that are compared
_WORD_MARKS = ".,:;!?\"'()"
_MIN_COMPARED_WORDS = 8  # and so many words must be long enough to be compared
_SAMPLE_BYTES = 4096  # bytes of each text part whose characters are counted
_MAX_URLS = 300


@dataclass(slots=True)
class MessageContent:
    """What a message says. evidence: its header fields that may be looked at. The first section is
    the text of its body, and what stands in for it where there is next to none.

    length: bytes of that text. makeup: how it is built. linked: a picture within a link, in a page
    of little text. spaceless: section name and runs of scripts without blanks between words.
    markup: characters of HTML tags. samples: the first bytes of each text part, decoded from the
    transfer encoding only. charset: of the first text that has one. hops: servers that it passed.
    """

    message: MimeMessage
    evidence: FieldList = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    spaceless: list[tuple[bytes, str]] = field(default_factory=list)
    defects: list[bytes] = field(default_factory=list)
    charset: bytes = b""
    text_types: list[ContentType] = field(default_factory=list)
    text_encodings: list[bytes] = field(default_factory=list)
    attachments: list[tuple[bytes, bytes]] = field(
        default_factory=list
    )  # media type, file name in lower case
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
    limits: ParseLimits,
    *,
    message: MimeMessage | None = None,
    body_only: bool = False,
) -> MessageContent:
    """Everything a message says, or only the text of its body.

    message: `raw` taken apart with these limits, if it was.
    """
    content = MessageContent(parse_message(raw, limits) if message is None else message)
    _read_leaves(content, limits)
    body, footer = _split_footer(_cut_text("\n".join(content.text), limits, content))
    _add_body(content, text.deobfuscate(_separate_text(content, b"", body)))
    if not body_only:
        if footer:
            content.sections.append((b"footer", _separate_text(content, b"footer", footer)))
        _add_clues(content, limits)
        content.sections += _closing_words(content.sections[0][1])
    return content


def _add_body(content: MessageContent, text: bytes) -> None:
    content.text_length = len(text)
    content.makeup_clues, standing_in = describe_makeup(
        text,
        sum(len(runs) for _, runs in content.spaceless),
        [leaf.content_type.media for leaf in content.message.leaves],
        pictures=content.images > 0
        or any(media.startswith(b"image/") for media, _ in content.attachments),
        linked=content.linked_image,
    )
    content.sections.append((b"", text + b"\n" + standing_in if standing_in else text))


def _closing_words(text: bytes) -> list[Section]:
    """The last words of a text that has more: how a sender always closes says something of its own."""
    words = text[-_END_BYTES:].split()
    return [(b"end", b" ".join(words[-_END_WORDS:]))] if len(words) > _END_WORDS else []


def _read_leaves(content: MessageContent, limits: ParseLimits) -> None:
    budget = limits.text_bytes
    beside: list[int] = []
    for leaf in content.message.leaves:
        name, is_text = _file_name(leaf), _is_text_leaf(leaf)
        if name or not is_text:
            content.attachments.append((leaf.content_type.media, name))
        page = leaf.content_type.media in _HTML_TYPES or (
            leaf.content_type.main != b"text" and name.endswith(_PAGE_EXTENSIONS)
        )
        if page or is_text:
            if leaf.may_be_unseen:
                beside.append(len(content.text))
            budget -= _read_text(
                content, leaf, max(budget, limits.text_bytes // _MIN_PART_SHARE), page=page
            )
    if beside:
        _hide_unseen(content, beside)


def _hide_unseen(content: MessageContent, beside: list[int]) -> None:
    """Of texts that may stand for a page, those that say something else than the page, which is
    what people see.

    With 150 words of good mail in such a text, of 200 spam (SpamAssassin corpus) 71 were called
    spam instead of 178; 155 so. With these and all words of the spam 153 were while half of the
    words had to be missing, 170 with a quarter; with 40 of them 147 and 174.
    """
    shown = "\n".join([text for number, text in enumerate(content.text) if number not in beside])[
        :_MAX_COMPARED_CHARACTERS
    ]
    if len(shown.split(None, _MIN_COMPARED_WORDS)) > _MIN_COMPARED_WORDS:
        for count, number in enumerate(beside):
            if count >= _MAX_COMPARED_TEXTS or _differs_from_page(content.text[number], shown):
                content.hidden.append(content.text[number])
                content.text[number] = ""


def _differs_from_page(text: str, shown: str) -> bool:
    """Whether more than a quarter of its words are not in what is shown."""
    written, there = set(text.split()), set(shown.split())
    missing = _comparable_words(written - there)
    if (
        len(missing) >= _MAX_SOUGHT_WORDS
        # not all can be looked for: none of them should be there but for its end, or signs beside it
    ):
        missing -= _comparable_words(there)
    some = sorted(missing)[
        :: len(missing) // _MAX_SOUGHT_WORDS + 1
    ]  # where no blanks part words, or signs do, they are found as well
    absent = 4 * sum([word not in shown for word in some]) * len(missing)
    if absent <= _MIN_COMPARED_WORDS * len(
        some
    ):  # nearly all are there: how many words there are makes no difference
        return False
    words = len(_comparable_words(written))
    return words >= _MIN_COMPARED_WORDS and absent > words * len(some)


def _comparable_words(written: set[str]) -> set[str]:
    return {
        word
        for one in written
        if len(one) > _SHORT_WORD_LETTERS
        and len(word := one.strip(_WORD_MARKS)[:_COMPARED_LETTERS]) > _SHORT_WORD_LETTERS
        and word.isalpha()
    }


def _is_text_leaf(leaf: Leaf) -> bool:
    """Text, or a multipart that could not be taken apart: mail readers show that as text."""
    return (
        leaf.content_type.main in (b"text", b"multipart") or leaf.content_type.media in _TEXT_TYPES
    )


def _file_name(leaf: Leaf) -> bytes:
    disposition = leaf.first_values.get(b"content-disposition")
    parameters = parse_disposition(disposition).parameters if disposition else {}
    name = parameters.get(b"filename") or leaf.content_type.parameters.get(b"name") or b""
    if not name:
        return (
            b"unnamed"
            if disposition and disposition.lstrip().lower().startswith(b"attachment")
            else b""
        )
    return _fold_file_name(name)


def _fold_file_name(name: bytes) -> bytes:
    return mail_text.fold(decode.decode_unstructured(name[-300:])[0]).encode(
        "utf-8", "replace"
    )  # its end says what it is


def _read_text(content: MessageContent, leaf: Leaf, budget: int, *, page: bool) -> int:
    """Read one text part; returns how many decoded bytes it took of the budget."""
    encoding = leaf.encoding
    window = leaf.body[
        : 4 * budget
    ]  # no transfer encoding is longer, unless it is padded with rubbish
    data, wrong = decode.decode_transfer_encoding(window, encoding)
    if len(data) > budget or len(window) < len(leaf.body):
        data, wrong = data[:budget], [*wrong, b"text-size"]
    content.defects += wrong
    if leaf.content_type.media == b"text/plain":
        data, files = decode.strip_uuencoded_files(data)
        content.attachments += [
            (b"application/octet-stream", _fold_file_name(name)) for name in files
        ]
    content.samples.append(data[:_SAMPLE_BYTES])
    charset = leaf.content_type.parameters.get(b"charset", b"")
    if charset[:8].lower() in _NO_CHARSET_NAMES:
        charset = decode.sniff_charset(data) or charset
    text, wrong = decode.decode_text(data, charset)
    if leaf.content_type.parameters.get(b"delsp", b"").lower() == b"yes":
        text = _SOFT_BREAK.sub("", text)
    if leaf.content_type.media == _CALENDAR_TYPE:
        text = (
            _CALENDAR_FOLD.sub("", text).replace("\\n", "\n").replace("\\N", "\n")
        )  # line ends are written so (section 3.3.11)
    content.charset = content.charset or charset
    content.defects += wrong
    content.text_types.append(leaf.content_type)
    content.text_encodings.append(encoding)
    _read_lower_text(content, text.lower(), page=page)
    return len(data)


def _read_lower_text(content: MessageContent, text: str, *, page: bool) -> None:
    """Text in lower case, of a page or not; folded only after HTML is taken apart, so that no
    look-alike of "<" becomes a tag.
    """
    if "http" in text:
        content.urls += _URL.findall(text)
    if page or ("<" in text and _LOOKS_LIKE_HTML.search(text[:2000])):
        found = html.parse_page(text) if page else html.parse_plain_text(text)
        text = found.visible
        content.urls += found.links
        content.hidden.append(found.hidden)
        content.tags.append(found.tags)
        content.markup_length += found.markup_length
        content.images += found.images
        content.linked_image = content.linked_image or found.linked_image
    if "\0" in text:
        text = text.replace("\0", "")  # nobody sees it
    content.text.append(mail_text.fold(text, lower=True))
    if "www." in text:
        content.urls += _BARE_URL.findall(text)


def _cut_text(text: str, limits: ParseLimits, content: MessageContent) -> str:
    """What of a text becomes tokens: readers look at its start, and what is appended stands at its
    end.
    """
    most = limits.token_characters
    if len(text) > most and 2 * _blanks(text[:most]) > most:
        text = _lines(
            text
            # so many blanks are there to take the room of something else: readers see hardly any of
            # them
        )
    if len(text) <= most:
        return text
    content.defects.append(b"text-cut")
    return text[: most - most // 4] + "\n" + text[-(most // 4) :]


def _blanks(text: str) -> int:
    """How many there are: to leave them out of UTF-8, where each is a byte, is faster than to count
    each kind.
    """
    utf8 = text.encode("utf-8", "replace")
    return len(utf8) - len(utf8.translate(None, _BLANKS))


def _lines(text: str) -> str:
    """Its lines with no more blanks than it takes to part words, and none of them empty."""
    return "\n".join(filter(None, [" ".join(line.split()) for line in text.split("\n")]))


def _split_footer(text: str) -> tuple[str, str]:
    """A text, and what stands below the line that parts off a signature or what a mailing list
    appends to everybody's mail.
    """
    start = max(len(text) - _MAX_FOOTER_CHARACTERS, _MIN_TEXT_CHARACTERS)
    marks = [place for mark in _FOOTER_MARKS if (place := text.find(mark, start)) >= 0]
    line = _FOOTER_LINE.search(text, min(marks)) if marks else None
    return (text[: line.start()], text[line.start() :]) if line else (text, "")


def _separate_text(content: MessageContent, section: bytes, text: str) -> bytes:
    """The text as UTF-8 in which blanks part words; runs of scripts without them are kept apart."""
    words, runs = mail_text.separate_spaceless(text)
    if runs:
        content.spaceless.append((section, runs))
    return words


def _add_clues(content: MessageContent, limits: ParseLimits) -> None:
    """Sections beside the body: header fields, hidden text, markup, links, attachments, structure,
    defects.
    """
    content.evidence = headers.evidence_fields(content.message.fields)
    found, wrong = headers.field_sections(content.evidence, content.charset)
    content.defects += wrong + content.message.defects
    content.sections += [
        _read_section(content, *section)
        if section[0] == b"subject" or not section[1].isascii()
        else section
        for section in found
    ]
    hidden = _cut_text(mail_text.fold(" ".join(content.hidden), lower=True), limits, content)
    if hidden and not hidden.isspace():
        content.sections.append((b"hidden", _separate_text(content, b"hidden", hidden)))
    if content.tags:
        content.sections.append(
            (
                b"tags",
                _cut_text(
                    mail_text.fold(" ".join(content.tags), lower=True), limits, content
                ).encode("utf-8", "replace"),
            )
        )
    hosts = _add_links(content)
    received = [text for name, text in found if name == b"received"]
    content.hops = len(received)
    content.makeup_clues += _handful_clues(content)
    _add_structure(content, headers.relation_clues(content.message.first_values, received, hosts))


def _handful_clues(content: MessageContent) -> list[bytes]:
    letters = sum(len(runs) for section, runs in content.spaceless if not section)
    subjects = (
        text for name, text in content.sections if name == b"subject"
    )  # hardly ever asked for
    return handful_clues(content.sections[0][1][: content.text_length], letters, subjects)


def _read_section(content: MessageContent, name: bytes, text: bytes) -> Section:
    words = (
        text if text.isascii() else _separate_text(content, name, text.decode("utf-8", "replace"))
    )
    return name, mail_text.deobfuscate(words) if name == b"subject" else words


def _add_links(content: MessageContent) -> list[str]:
    """Returns the hosts of all links."""
    urls = list(dict.fromkeys(content.urls))[:_MAX_URLS]
    if not urls:
        return []
    content.sections.append(
        (b"url", mail_text.fold(" ".join(urls), lower=True).encode("utf-8", "replace"))
    )
    written = dict.fromkeys([match.group(1) for url in urls if (match := _URL_HOST.match(url))])
    hosts = list(dict.fromkeys([_decode_host(host) if "%" in host else host for host in written]))
    content.sections.append(
        (
            b"host",
            mail_text.fold(" ".join(map(_domain_tokens, hosts)), lower=True).encode(
                "utf-8", "replace"
            ),
        )
    )
    return hosts


def _decode_host(host: str) -> str:
    """A percent-encoded one as browsers decode it (URL Standard, section 3.5), without what is then
    said before "@".
    """
    found = _URL_HOST.match(unquote(host).lower())
    return found.group(1) if found else host


@lru_cache(maxsize=4096)
def _domain_tokens(host: str) -> str:
    """A host and its parent domains, each one token."""
    labels = host.strip(".").split(".")[-5:]
    return " ".join(["_".join(labels[start:]) for start in range(max(1, len(labels) - 1))])


def _add_structure(content: MessageContent, related: list[bytes]) -> None:
    message = content.message
    for leaf in message.leaves:
        if leaf.fields is not message.fields:
            content.sections += headers.part_sections(leaf.fields)
    kinds = [*message.structure, *[leaf.content_type.media for leaf in message.leaves]]
    clues = [b"defect_" + name.replace(b"-", b"_") for name in content.defects] + [
        b"kind_" + kind.replace(b"/", b"_") for kind in kinds
    ]
    content.sections.append(
        (b"clue", b" ".join(dict.fromkeys(clues + content.makeup_clues + related)))
    )
    if content.attachments:
        content.sections.append(
            (
                b"attachment",
                b" ".join(
                    [name + b" " + headers.host_token(name) for _, name in content.attachments]
                ),
            )
        )
