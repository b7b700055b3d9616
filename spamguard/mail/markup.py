"""Markup without what readers never see, brought into a form in which every "<" begins a tag and
the next ">" ends it.

Nearly all pages have that form but for comments, scripts and styles, which one expression finds.
What is written so that an expression takes it for something else is read as browsers read it, tag
by tag (HTML Standard, section 13.2.5). Works on lower-case markup, in time linear in its length;
must never raise.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

_BLANK = r"[ \t\n\r\f]"
# Possessive, and [^<>] in tags: a search that finds no end must not run to the end of the page
# again and again.
_COMMENT = (
    r"!--(?:-?>|((?:[^-]++|-(?!-!?>)|)*+)(?:--!?>)?)"  # "<!-->" is a whole one (section 13.2.5.43)
)
# Only start and end tags that are read alike by everybody; others stay, and are known by their
# names.
_PLAIN_ATTRIBUTES = rf"(?:[ \t\n\r\f/]++[a-z][\w:-]*+(?:{_BLANK}*+={_BLANK}*+(?:\"[^\"<>]*+\"|'[^'<>]*+'|[\w.#:;%/+-]++)|)|)*+[ \t\n\r\f/]*+"
_UNSEEN_ELEMENT = re.compile(
    rf"<(?:{_COMMENT}|(script|style|template|title)(?=[ \t\n\r\f/>])({_PLAIN_ATTRIBUTES})>"
    rf"((?:[^<]++|<(?!/\2[ \t\n\r\f/>])|)*+)(?:</\2{_BLANK}*+>)?)"
)
# Signs of tags may stand in quoted values, where they begin and end none. What is not closed ends
# with the page.
_SIGN_IN_QUOTES = re.compile(r"=\s*+(?:\"[^\"<>]*+[<>]|'[^'<>]*+[<>])")
_SIGN_IN_TAG = re.compile(
    r"<[/!?a-z][^<>]*+<(?![/!?a-z])"
)  # a sign that begins no tag ends none either
_SIGNS_TO_BLANKS = str.maketrans("<>", "  ")

_ATTRIBUTE_VALUE = (
    rf"{_BLANK}*+={_BLANK}*+(?:\"[^\"]*+\"?|'[^']*+'?|[^ \t\n\r\f>\"'][^ \t\n\r\f>]*+|)"
)
_MARKUP_TOKEN = re.compile(
    rf"<(?:{_COMMENT}|([!?][^>]*+|/(?![a-z])[^>]*+)>?"
    rf"|(/?[a-z][^ \t\n\r\f/>]*+)((?:[ \t\n\r\f/]++|[^ \t\n\r\f/>][^ \t\n\r\f/>=]*+(?:{_ATTRIBUTE_VALUE}|)|)*+)>?)"
)
_DROPPED_ELEMENTS = frozenset(("script", "style", "template", "title"))
# Elements whose text is no markup, and whether readers see it.
_TEXT_ELEMENTS = {
    **dict.fromkeys(("plaintext", "textarea", "xmp"), "seen"),
    **dict.fromkeys(("iframe", "noembed", "noframes", "title"), "unseen"),
    **dict.fromkeys(("script", "template"), "nothing"),
    "style": "style",
}
_END_TAGS = {
    name: re.compile(rf"</{name}(?=[ \t\n\r\f/>])")
    for name in _TEXT_ELEMENTS
    if name != "plaintext"
}
# Behind the beginning of one of these, whether an element holds markup only a whole parser can
# tell, and so what is a comment and what a quoted value: rather seen than lost.
_FOREIGN_ELEMENTS = frozenset(("math", "svg"))
_CONTEXT_ELEMENTS = _FOREIGN_ELEMENTS | {"select"}
_ORDINARY_MARKUP = re.compile(  # text, and tags that are read alike by everybody
    rf"(?:[^<]++|</?+(?!(?:{'|'.join(sorted(_CONTEXT_ELEMENTS | _TEXT_ELEMENTS.keys()))})[ \t\n\r\f/>])[a-z][\w:-]*+{_PLAIN_ATTRIBUTES}>|)*+"
)
_ODD_ELEMENTS = (
    _CONTEXT_ELEMENTS | _TEXT_ELEMENTS.keys() | {f"/{name}" for name in _DROPPED_ELEMENTS}
)
_STYLE_RESTRICTION = re.compile(
    rf"(?<![\w-])(media|type|title){_BLANK}*+={_BLANK}*+(\"[^\"]*+|'[^']*+|[^ \t\n\r\f>]*+)"
)
# Of sheets with titles browsers choose one (HTML Standard, section 4.2.6).
_UNRESTRICTED_VALUES = {
    "media": re.compile(r"(?:only\s+)?(?:screen|all)(?:,[^()]*+)?|"),
    "type": re.compile("(?:text/css)?"),
    "title": re.compile(""),
}
_PLAIN_CONDITION = re.compile(r"[\w\s(),.:-]*+")
_SOME_SCREENS_QUERY = "(min-width:1px)"
_BRACES = re.compile(r"([{}])")
_AMP_BOILERPLATE = "body{visibility:hidden}"
# In front of the number of a character there may be as many as one likes.
_LEADING_ZEROS = re.compile(r"(?<=&#)0++(?=[0-9])|(?<=&#x)0++(?=[0-9a-f])")


class Markup(NamedTuple):
    """source: markup without what is unseen. unseen: texts of titles, comments and what stands in
    for frames. style: of style sheets.
    """

    source: str
    unseen: list[str]
    style: str


def parse_simple_markup(source: str) -> Markup | None:
    """The usual way; None: something in it begins where only a whole look can tell what it is."""
    pieces = _UNSEEN_ELEMENT.split(
        source
    )  # markup, comment, name of the element, its attributes, its text, markup …
    if len(pieces) == 1:
        return Markup(source, [], "")
    if any(map(_ends_in_tag_or_value, pieces[:-1:5])):
        return None
    elements = list(zip(pieces[2::5], pieces[3::5], pieces[4::5], strict=True))
    titles = [text for name, _, text in elements if name == "title"]
    style = "\n".join(
        [
            _restrict_style_sheet(attributes, text)
            for name, attributes, text in elements
            if name == "style"
        ]
    )
    return Markup(
        "".join(pieces[::5]), titles + [comment for comment in pieces[1::5] if comment], style
    )


def _restrict_style_sheet(attributes: str, text: str) -> str:
    """What a style sheet says, with the condition that its attributes make. That of AMP hides all
    until a script has run.
    """
    if "amp4email-boilerplate" in attributes and text.strip() == _AMP_BOILERPLATE:
        return ""
    given = {
        name: value.strip("\"' \t\n\r\f")
        for name, value in reversed(_STYLE_RESTRICTION.findall(attributes))
    }  # the first counts
    conditions = {
        name for name, value in given.items() if not _UNRESTRICTED_VALUES[name].fullmatch(value)
    }
    if not conditions or "type" in conditions:
        return "" if conditions else text
    plain = conditions == {"media"} and _PLAIN_CONDITION.fullmatch(given["media"])
    return f"@media {given['media'] if plain else _SOME_SCREENS_QUERY}{{{_balance_braces(text)}}}"


def _balance_braces(text: str) -> str:
    """A style sheet that can stand in braces: without those of its own that close nothing, and with
    those that are missing.
    """
    parts: list[str] = []
    depth = 0
    for piece in _BRACES.split(text):
        if piece != "}" or depth:
            parts.append(piece)
            depth += (piece == "{") - (piece == "}")
    return "".join(parts) + "}" * depth


def _ends_in_tag_or_value(markup: str) -> bool:
    """Whether markup ends within a tag, or a quoted value: what is found there begins nothing."""
    return (
        markup.rfind("<") > markup.rfind(">")
        or _ends_in_value(markup, '"')
        or _ends_in_value(markup, "'")
    )


def _ends_in_value(markup: str, quote: str) -> bool:
    """Whether the last quote of a kind begins a value. A copy of all in front of it is made only
    where blanks stand between.
    """
    place = markup.rfind(quote)
    before = markup[place - 1 : place] if place > 0 else ""
    return before == "=" or (before.isspace() and markup[:place].rstrip().endswith("="))


def is_ambiguous(
    source: str, text: str, names: Collection[str], attributes: Collection[str]
) -> bool:
    """Whether browsers take it for something else. text: what is in no tag. names, attributes: of
    its tags, as if quotes had no meaning.
    """
    if not _ODD_ELEMENTS.isdisjoint(names) or _SIGN_IN_QUOTES.search("<".join((*attributes, ""))):
        return True
    return "<" in text and _SIGN_IN_TAG.search(source) is not None


def parse_markup(source: str) -> Markup:
    """Tag by tag."""
    reader = _MarkupReader(source)
    while reader.take_next():
        pass
    return Markup("".join(reader.visible), reader.unseen, "\n".join(reader.style))


class _MarkupReader:
    """Where it stands in a page, and what it has found in front of that."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._position = 0
        # whatever leaves it unknown which elements hold no markup; who can tell where pictures of
        # vectors end?
        self._foreign_element = ""
        self.visible: list[str] = []
        self.unseen: list[str] = []
        self.style: list[str] = []

    def take_next(self) -> bool:
        """The next tag or comment that not everybody reads alike, and what stands in front of it;
        False: there is none.
        """
        start = _ORDINARY_MARKUP.match(self._source, self._position).end()  # type: ignore[union-attr]  # it matches ""
        token = _MARKUP_TOKEN.search(self._source, start)
        self.visible += (
            self._source[self._position : start],
            _blank_last_sign(self._source[start : token.start() if token else None]),
        )
        if token is None:
            return False
        self._position = token.end()
        comment, mark, name, attributes = token.groups()
        if comment is not None:
            self._take_comment(comment)
        elif mark:
            self._keep_tag(mark)
        elif name:
            self._take_tag(name, attributes)
        return True

    def _take_comment(self, comment: str) -> None:
        if self._foreign_element:
            self.visible.append(comment.translate(_SIGNS_TO_BLANKS))
        else:
            self.unseen.append(comment)

    def _keep_tag(self, inside: str) -> None:
        """A tag, whatever it is, as one in which no sign of another stands."""
        plain = inside.translate(_SIGNS_TO_BLANKS)
        self.visible.append(f"<{plain}>")
        if self._foreign_element and plain != inside:
            self.visible.append(plain)

    def _take_tag(self, name: str, attributes: str) -> None:
        if name in _FOREIGN_ELEMENTS or (name == "select" and not self._foreign_element):
            self._foreign_element = name
        elif name == "/select" and self._foreign_element == "select":
            self._foreign_element = ""
        if self._foreign_element or name not in _DROPPED_ELEMENTS:
            self._keep_tag(name + attributes)
        if _TEXT_ELEMENTS.get(name) == "seen":
            self.visible.append(self._take_text(name).translate(_SIGNS_TO_BLANKS))
        elif name in _TEXT_ELEMENTS and not self._foreign_element:
            self._take_unseen(name, attributes)

    def _take_unseen(self, name: str, attributes: str) -> None:
        text = self._take_text(name)
        if _TEXT_ELEMENTS[name] == "unseen":
            self.unseen.append(text)
        elif _TEXT_ELEMENTS[name] == "style":
            self.style.append(_restrict_style_sheet(attributes, text))
        if name in _DROPPED_ELEMENTS and (end := _MARKUP_TOKEN.match(self._source, self._position)):
            self._position = end.end()

    def _take_text(self, name: str) -> str:
        """Up to the end tag of that name."""
        start = self._position
        end = _END_TAGS[name].search(self._source, start) if name in _END_TAGS else None
        self._position = end.start() if end else len(self._source)
        return self._source[start : self._position]


def _blank_last_sign(source: str) -> str:
    """What stands between tags and comments: a sign that begins none there must not come to stand
    in front of a letter.
    """
    return source[:-1] + " " if source.endswith("<") else source


def strip_leading_zeros(source: str) -> str:
    """Markup with the numbers of characters as short as they can be."""
    return _LEADING_ZEROS.sub("", source) if "&#0" in source or "&#x0" in source else source
