"""HTML to what a reader sees, what a reader does not see, and how the page is built.

`parse_page` removes what is never seen (comments, scripts, styles, titles), then what hides itself
(`visibility`), and takes the tags out of the rest. Nearly all pages have a form in which every "<"
begins a tag and the next ">" ends it; one regular expression finds their comments, scripts and
styles. A page that an expression would misread is read tag by tag, as browsers do (HTML Standard,
section 13.2.5).

Works on lower-case markup, in time linear in its length, not on a tree: hostile markup is cut
short, never followed. Must never raise and never fetch anything.

It is written by hand because `html.parser` takes 25 times as long for the tags of a message, and
the fastest parser that builds a tree twice as long; neither says what is hidden.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from spamguard import native
from spamguard.mail.text import fold
from spamguard.mail.visibility import (
    BLOCK_ELEMENTS,
    TAG,
    attribute_value,
    remove_hidden,
    resolve_reference,
    strip_leading_zeros,
)

_ENTITY = re.compile(r"&(?:#[0-9]{1,30}+|#x[0-9a-f]{1,30}+|[a-z][a-z0-9]{1,31}+);?")
# At these a reader sees a gap; other tags leave none: "v<b></b>iagra" is read as one word.
_BREAKING_TAGS = BLOCK_ELEMENTS | {f"/{name}" for name in BLOCK_ELEMENTS} | {"br", "img", "input"}
_MAX_LITTLE_TEXT = 2000  # characters, most of them blanks where tags stood


class HtmlPage(NamedTuple):
    """A page taken apart.

    visible, hidden: text that a reader sees, or not. tags: names of the tags, and their distinct
    attributes. markup_length: characters of all tags. linked_image: whether an image stands within
    a link; looked at only where there is little text. links: a bounded number of those that are not
    written as addresses are.
    """

    visible: str
    hidden: str
    tags: str
    markup_length: int
    images: int
    linked_image: bool
    links: Sequence[str] = ()


def parse_page(source: str) -> HtmlPage:
    """Take a page in lower case apart."""
    markup, scanned = _scan_visible(source)
    attributes = "\n".join(scanned.attributes)
    visible, covered = remove_hidden(markup.source, scanned.attributes, markup.style)
    if visible != markup.source:
        scanned = scan_tags(visible)
    hidden = TAG.sub(" ", " ".join(markup.unseen + covered))
    page = _make_page(visible, scanned, attributes, scanned.text, hidden)
    return page._replace(links=_odd_links(attributes))


def parse_plain_text(source: str) -> HtmlPage:
    """Take text apart that looks like HTML but is declared as plain: readers see all of it, tags
    and attributes too.
    """
    scanned = scan_tags(source)
    visible = "\n".join((scanned.text, *scanned.attributes))
    return _make_page(source, scanned, "\n".join(scanned.attributes), visible)


def _make_page(
    source: str, scanned: ScannedMarkup, attributes: str, visible: str, hidden: str = ""
) -> HtmlPage:
    return HtmlPage(
        _replace_entities(visible),
        _replace_entities(hidden),
        " ".join(scanned.names) + attributes,
        len(source) - len(scanned.text),
        scanned.images,
        scanned.linked_image and len(visible) <= _MAX_LITTLE_TEXT,
    )


class ScannedMarkup(NamedTuple):
    """The text between tags, names and attributes of the tags, each once in order, the number of
    images, and whether one stands within a link.
    """

    text: str
    names: Collection[str]
    attributes: Collection[str]
    images: int
    linked_image: bool


def scan_tags(source: str) -> ScannedMarkup:
    """Split markup in which every "<" begins a tag."""
    compiled = native.functions
    if compiled is not None:
        with suppress(UnicodeEncodeError):  # half of a surrogate pair
            return ScannedMarkup(*compiled.markup(source, _BREAKING_TAGS))
    pieces = TAG.split(source)  # text, name of the tag, its attributes, text …
    names, attributes = pieces[1::3], pieces[2::3]
    pieces[1::3] = [" " if name in _BREAKING_TAGS else "" for name in names]
    pieces[2::3] = [""] * len(names)
    return ScannedMarkup(
        "".join(pieces),
        dict.fromkeys(names),
        dict.fromkeys(attributes),
        names.count("img"),
        _has_linked_image(names),
    )


def _has_linked_image(names: list[str]) -> bool:
    in_link = False
    for name in names:
        if name == "img" and in_link:
            return True
        in_link = name == "a" or (in_link and name != "/a")
    return False


def _replace_entities(text: str) -> str:
    if "&" not in text:
        return text
    # most of them are this one
    text = strip_leading_zeros(text.replace("&nbsp;", " "))
    return _ENTITY.sub(lambda entity: _folded_entity(entity[0]), text)


@lru_cache(maxsize=1024)
def _folded_entity(entity: str) -> str:
    """Folded at once: a page whose only foreign character is a no-break space stays ASCII, which is
    cheap. Their length is bounded, because `html.unescape` raises at thousands of digits.
    """
    return fold(resolve_reference(entity))


# ---- links as browsers read them (URL Standard, section 4.4)

_ODD_CHARACTERS = ("&#", "&colon", "&sol", "&tab", "&newline")
_BEFORE_SCHEMELESS_LINK = frozenset("\"'= \t\n")  # in front of two slashes
_ODD_SCHEME = re.compile(r"https?:(?!//[^/])")
# Of href, src, action, and rarely of others.
_BROKEN_LINK = re.compile(r"=(?<=[fcn\s]=)\s*+(?:\"[^\"\t\n\r]*+|'[^'\t\n\r]*+)[\t\n\r]")
_LINK_ATTRIBUTE = re.compile(
    r"(?:href|src|action)\s*+=\s*+(?:\"\s*+([^\"]*+)|'\s*+([^']*+)|([^\s\"'][^\s]*+))"
)
_LINK_ADDRESS = re.compile(
    r"(?:(https?):[/\\]*+|[/\\]{2,}+)([^\s\"'<>/\\]{3,100}+[^\s\"'<>]{0,300}+).*", re.S
)
_DROPPED_IN_LINKS = dict.fromkeys(map(ord, "\t\n\r"))
_MAX_LINKS = 300


def _odd_links(attributes: str) -> list[str]:
    """Links that a search for addresses misses: with character references, backslashes, tabs or
    line ends, or without a scheme or its slashes.
    """
    if not _has_odd_links(attributes):
        return []
    links = []
    for match in islice(_LINK_ATTRIBUTE.finditer(attributes), _MAX_LINKS):
        written = match[match.lastindex or 0]
        address = attribute_value(written).translate(_DROPPED_IN_LINKS).strip().lower()
        if link := _LINK_ADDRESS.fullmatch(address):
            scheme, rest = link.groups()
            is_plain = written.replace("&amp;", "&").strip() == address and written.startswith(
                f"{scheme}://{rest[:1]}"
            )
            if not is_plain:
                links.append(f"{scheme or 'https'}://{rest}")
    return links


def _has_odd_links(attributes: str) -> bool:
    if _ODD_SCHEME.search(attributes) or _BROKEN_LINK.search(attributes):
        return True
    has_reference = "&" in attributes and any(sign in attributes for sign in _ODD_CHARACTERS)
    if "\\" in attributes or has_reference:
        return True
    before_slashes = [before[-1:] for before in attributes.split("//")[:-1]]
    return not _BEFORE_SCHEMELESS_LINK.isdisjoint(before_slashes)


# ---- comments, scripts, styles and titles

_BLANK = r"[ \t\n\r\f]"
# Possessive, and [^<>] in tags: a search that finds no end must not run to the end of the page
# again and again. "<!-->" is a whole comment (section 13.2.5.43).
_COMMENT = r"!--(?:-?>|((?:[^-]++|-(?!-!?>)|)*+)(?:--!?>)?)"
# Only tags that everybody reads alike; others stay, and are known by their names.
_PLAIN_ATTRIBUTES = (
    rf"(?:[ \t\n\r\f/]++[a-z][\w:-]*+(?:{_BLANK}*+={_BLANK}*+"
    r"(?:\"[^\"<>]*+\"|'[^'<>]*+'|[\w.#:;%/+-]++)|)|)*+[ \t\n\r\f/]*+"
)
_UNSEEN_ELEMENT = re.compile(
    rf"<(?:{_COMMENT}|(script|style|template|title)(?=[ \t\n\r\f/>])({_PLAIN_ATTRIBUTES})>"
    rf"((?:[^<]++|<(?!/\2[ \t\n\r\f/>])|)*+)(?:</\2{_BLANK}*+>)?)"
)
# Signs of tags may stand in quoted values, where they begin and end none.
_SIGN_IN_QUOTES = re.compile(r"=\s*+(?:\"[^\"<>]*+[<>]|'[^'<>]*+[<>])")
# A sign that begins no tag ends none either.
_SIGN_IN_TAG = re.compile(r"<[/!?a-z][^<>]*+<(?![/!?a-z])")
_SIGNS_TO_BLANKS = str.maketrans("<>", "  ")
_ATTRIBUTE_VALUE = (
    rf"{_BLANK}*+={_BLANK}*+(?:\"[^\"]*+\"?|'[^']*+'?|[^ \t\n\r\f>\"'][^ \t\n\r\f>]*+|)"
)
_MARKUP_TOKEN = re.compile(
    rf"<(?:{_COMMENT}|([!?][^>]*+|/(?![a-z])[^>]*+)>?"
    r"|(/?[a-z][^ \t\n\r\f/>]*+)"
    rf"((?:[ \t\n\r\f/]++|[^ \t\n\r\f/>][^ \t\n\r\f/>=]*+(?:{_ATTRIBUTE_VALUE}|)|)*+)>?)"
)
_DROPPED_ELEMENTS = frozenset(("script", "style", "template", "title"))
# Elements whose text is no markup, and what becomes of the text.
_TEXT_ELEMENTS = {
    **dict.fromkeys(("plaintext", "textarea", "xmp"), "visible"),
    **dict.fromkeys(("iframe", "noembed", "noframes", "title"), "unseen"),
    **dict.fromkeys(("script", "template"), "dropped"),
    "style": "style",
}
_END_TAGS = {
    name: re.compile(rf"</{name}(?=[ \t\n\r\f/>])")
    for name in _TEXT_ELEMENTS
    if name != "plaintext"
}
# Behind the start of one of these only a whole parser can tell which elements hold markup, and so
# what is a comment and what a quoted value: text is rather seen than lost.
_FOREIGN_ELEMENTS = frozenset(("math", "svg"))
_CONTEXT_ELEMENTS = _FOREIGN_ELEMENTS | {"select"}
_ODD_ELEMENTS = (
    _CONTEXT_ELEMENTS | _TEXT_ELEMENTS.keys() | {f"/{name}" for name in _DROPPED_ELEMENTS}
)
_ORDINARY_MARKUP = re.compile(  # text, and tags that everybody reads alike
    rf"(?:[^<]++|</?+(?!(?:{'|'.join(sorted(_CONTEXT_ELEMENTS | _TEXT_ELEMENTS.keys()))})"
    rf"[ \t\n\r\f/>])[a-z][\w:-]*+{_PLAIN_ATTRIBUTES}>|)*+"
)


class Markup(NamedTuple):
    """Markup in which every "<" begins a tag, without what is never seen; the texts of titles,
    comments and what stands in for frames; and the style sheets.
    """

    source: str
    unseen: list[str]
    style: str


def _scan_visible(source: str) -> tuple[Markup, ScannedMarkup]:
    markup = _parse_simple_markup(source)
    if markup is not None:
        scanned = scan_tags(markup.source)
        if not _is_ambiguous(markup.source, scanned):
            return markup, scanned
    markup = _parse_markup(source)
    return markup, scan_tags(markup.source)


def _parse_simple_markup(source: str) -> Markup | None:
    """The usual way. None: an unseen element begins where only a whole look can tell what it is."""
    # markup, comment, name of the element, its attributes, its text, markup …
    pieces = _UNSEEN_ELEMENT.split(source)
    if len(pieces) == 1:
        return Markup(source, [], "")
    if any(map(_ends_in_tag_or_value, pieces[:-1:5])):
        return None
    unseen: list[str] = []
    style: list[str] = []
    for name, attributes, text in zip(pieces[2::5], pieces[3::5], pieces[4::5], strict=True):
        if name == "title":
            unseen.append(text)
        elif name == "style":
            style.append(_restrict_style_sheet(attributes, text))
    unseen += [comment for comment in pieces[1::5] if comment]
    return Markup("".join(pieces[::5]), unseen, "\n".join(style))


def _ends_in_tag_or_value(markup: str) -> bool:
    """Whether markup ends within a tag or a quoted value: nothing begins there."""
    return (
        markup.rfind("<") > markup.rfind(">")
        or _ends_in_value(markup, '"')
        or _ends_in_value(markup, "'")
    )


def _ends_in_value(markup: str, quote: str) -> bool:
    """Whether the last quote of a kind begins a value. All in front of it is copied only where
    blanks stand between.
    """
    position = markup.rfind(quote)
    before = markup[position - 1 : position] if position > 0 else ""
    return before == "=" or (before.isspace() and markup[:position].rstrip().endswith("="))


def _is_ambiguous(source: str, scanned: ScannedMarkup) -> bool:
    """Whether browsers read it otherwise; `scanned` takes quotes for ordinary signs."""
    if not _ODD_ELEMENTS.isdisjoint(scanned.names):
        return True
    if _SIGN_IN_QUOTES.search("<".join((*scanned.attributes, ""))):
        return True
    return "<" in scanned.text and _SIGN_IN_TAG.search(source) is not None


def _parse_markup(source: str) -> Markup:
    """Read a page tag by tag, as browsers do."""
    texts: dict[str, list[str]] = {"visible": [], "unseen": [], "style": [], "dropped": []}
    visible = texts["visible"]
    position = 0
    # an element that leaves it unknown which others hold markup; the end of svg is not looked for
    foreign = ""
    while True:
        start = _ORDINARY_MARKUP.match(source, position).end()  # type: ignore[union-attr]  # it matches ""
        token = _MARKUP_TOKEN.search(source, start)
        between = source[start : token.start() if token else None]
        if between.endswith("<"):  # it begins no tag here, and must not come before a letter
            between = between[:-1] + " "
        visible += source[position:start], between
        if token is None:
            return Markup("".join(visible), texts["unseen"], "\n".join(texts["style"]))
        position = token.end()
        comment, declaration, name, attributes = token.groups()
        if comment is not None:
            plain = comment.translate(_SIGNS_TO_BLANKS) if foreign else comment
            texts["visible" if foreign else "unseen"].append(plain)
        if not (declaration or name):
            continue
        if name in _FOREIGN_ELEMENTS or (name == "select" and not foreign):
            foreign = name
        elif name == "/select" and foreign == "select":
            foreign = ""
        if foreign or name not in _DROPPED_ELEMENTS:  # the tag stays, without signs of others in it
            inside = declaration or name + attributes
            plain = inside.translate(_SIGNS_TO_BLANKS)
            visible += f"<{plain}>", plain if foreign and plain != inside else ""
        kind = _TEXT_ELEMENTS.get(name)
        if kind is None or (kind != "visible" and foreign):
            continue
        end = _END_TAGS[name].search(source, position) if name in _END_TAGS else None
        text = source[position : end.start() if end else len(source)]
        position += len(text)
        if kind == "visible":
            text = text.translate(_SIGNS_TO_BLANKS)
        elif kind == "style":
            text = _restrict_style_sheet(attributes, text)
        texts[kind].append(text)
        if name in _DROPPED_ELEMENTS and (closing := _MARKUP_TOKEN.match(source, position)):
            position = closing.end()


# ---- conditions of style sheets

_STYLE_RESTRICTION = re.compile(
    rf"(?<![\w-])(media|type|title){_BLANK}*+={_BLANK}*+(\"[^\"]*+|'[^']*+|[^ \t\n\r\f>]*+)"
)
# Of sheets with titles browsers choose one (section 4.2.6).
_UNRESTRICTED_VALUES = {
    "media": re.compile(r"(?:only\s+)?(?:screen|all)(?:,[^()]*+)?|"),
    "type": re.compile("(?:text/css)?"),
    "title": re.compile(""),
}
_PLAIN_CONDITION = re.compile(r"[\w\s(),.:-]*+")
_SOME_SCREENS = "(min-width:1px)"
_BRACES = re.compile(r"([{}])")
_AMP_BOILERPLATE = "body{visibility:hidden}"  # until a script has run


def _restrict_style_sheet(attributes: str, text: str) -> str:
    """The text of a style sheet, within the condition that its attributes make."""
    if "amp4email-boilerplate" in attributes and text.strip() == _AMP_BOILERPLATE:
        return ""
    values = {
        name: value.strip("\"' \t\n\r\f")
        for name, value in reversed(_STYLE_RESTRICTION.findall(attributes))  # the first counts
    }
    conditions = {
        name for name, value in values.items() if not _UNRESTRICTED_VALUES[name].fullmatch(value)
    }
    if not conditions:
        return text
    if "type" in conditions:
        return ""
    is_plain = conditions == {"media"} and _PLAIN_CONDITION.fullmatch(values["media"])
    condition = values["media"] if is_plain else _SOME_SCREENS
    return f"@media {condition}{{{_balance_braces(text)}}}"


def _balance_braces(text: str) -> str:
    """A style sheet without closing braces that close nothing, and with those that are missing."""
    parts: list[str] = []
    depth = 0
    for piece in _BRACES.split(text):
        if piece != "}" or depth:
            parts.append(piece)
            depth += (piece == "{") - (piece == "}")
    return "".join(parts) + "}" * depth
