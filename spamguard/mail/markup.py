"""Markup without what readers never see, brought into a form in which every "<" begins a tag and the next ">" ends it.

Nearly all pages have that form but for comments, scripts and styles, which one expression finds. What is written so that an expression
takes it for something else is read as browsers read it, tag by tag (HTML Standard, section 13.2.5). Works on lower-case markup, in time
linear in its length; must never raise.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

_BLANK = r"[ \t\n\r\f]"
# Possessive, and [^<>] in tags: a search that finds no end must not run to the end of the page again and again.
_COMMENT = r"!--(?:-?>|((?:[^-]++|-(?!-!?>)|)*+)(?:--!?>)?)"  # "<!-->" is a whole one (section 13.2.5.43)
# Only start and end tags that are read alike by everybody; others stay, and are known by their names.
_PLAIN = rf"(?:[ \t\n\r\f/]++[a-z][\w:-]*+(?:{_BLANK}*+={_BLANK}*+(?:\"[^\"<>]*+\"|'[^'<>]*+'|[\w.#:;%/+-]++)|)|)*+[ \t\n\r\f/]*+"
_UNSEEN = re.compile(
    rf"<(?:{_COMMENT}|(script|style|template|title)(?=[ \t\n\r\f/>])({_PLAIN})>"
    rf"((?:[^<]++|<(?!/\2[ \t\n\r\f/>])|)*+)(?:</\2{_BLANK}*+>)?)"
)
# Signs of tags may stand in quoted values, where they begin and end none. What is not closed ends with the page.
_QUOTED = re.compile(r"=\s*+(?:\"[^\"<>]*+[<>]|'[^'<>]*+[<>])")
_IN_TAG = re.compile(r"<[/!?a-z][^<>]*+<(?![/!?a-z])")  # a sign that begins no tag ends none either
_SIGNS = str.maketrans("<>", "  ")

_VALUE = rf"{_BLANK}*+={_BLANK}*+(?:\"[^\"]*+\"?|'[^']*+'?|[^ \t\n\r\f>\"'][^ \t\n\r\f>]*+|)"
_TOKEN = re.compile(
    rf"<(?:{_COMMENT}|([!?][^>]*+|/(?![a-z])[^>]*+)>?"
    rf"|(/?[a-z][^ \t\n\r\f/>]*+)((?:[ \t\n\r\f/]++|[^ \t\n\r\f/>][^ \t\n\r\f/>=]*+(?:{_VALUE}|)|)*+)>?)"
)
_DROPPED = frozenset(("script", "style", "template", "title"))
# Elements whose text is no markup, and whether readers see it.
_HOLDING = {
    **dict.fromkeys(("plaintext", "textarea", "xmp"), "seen"),
    **dict.fromkeys(("iframe", "noembed", "noframes", "title"), "unseen"),
    **dict.fromkeys(("script", "template"), "nothing"),
    "style": "style",
}
_ENDS = {name: re.compile(rf"</{name}(?=[ \t\n\r\f/>])") for name in _HOLDING if name != "plaintext"}
# Behind the beginning of one of these, whether an element holds markup only a whole parser can tell, and so what is a comment and what
# a quoted value: rather seen than lost.
_FOREIGN = frozenset(("math", "svg"))
_OTHERWISE = _FOREIGN | {"select"}
_ORDINARY = re.compile(  # text, and tags that are read alike by everybody
    rf"(?:[^<]++|</?+(?!(?:{'|'.join(sorted(_OTHERWISE | _HOLDING.keys()))})[ \t\n\r\f/>])[a-z][\w:-]*+{_PLAIN}>|)*+"
)
_ODD = _OTHERWISE | _HOLDING.keys() | {f"/{name}" for name in _DROPPED}
_RESTRICTED = re.compile(rf"(?<![\w-])(media|type|title){_BLANK}*+={_BLANK}*+(\"[^\"]*+|'[^']*+|[^ \t\n\r\f>]*+)")
# Of sheets with titles browsers choose one (HTML Standard, section 4.2.6).
_IN_FORCE = {
    "media": re.compile(r"(?:only\s+)?(?:screen|all)(?:,[^()]*+)?|"),
    "type": re.compile("(?:text/css)?"),
    "title": re.compile(""),
}
_CONDITION = re.compile(r"[\w\s(),.:-]*+")
_SOME_SCREENS = "(min-width:1px)"
_BRACES = re.compile(r"([{}])")
_UNTIL_A_SCRIPT = "body{visibility:hidden}"
# In front of the number of a character there may be as many as one likes.
_ZEROS = re.compile(r"(?<=&#)0++(?=[0-9])|(?<=&#x)0++(?=[0-9a-f])")


class Markup(NamedTuple):
    """source: markup without what is unseen. unseen: texts of titles, comments and what stands in for frames. style: of style sheets."""

    source: str
    unseen: list[str]
    style: str


def plainly(source: str) -> Markup | None:
    """The usual way; None: something in it begins where only a whole look can tell what it is."""
    pieces = _UNSEEN.split(source)  # markup, comment, name of the element, its attributes, its text, markup …
    if len(pieces) == 1:
        return Markup(source, [], "")
    if any(map(_ends_within, pieces[:-1:5])):
        return None
    elements = list(zip(pieces[2::5], pieces[3::5], pieces[4::5], strict=True))
    titles = [text for name, _, text in elements if name == "title"]
    style = "\n".join([_sheet(attributes, text) for name, attributes, text in elements if name == "style"])
    return Markup("".join(pieces[::5]), titles + [comment for comment in pieces[1::5] if comment], style)


def _sheet(attributes: str, text: str) -> str:
    """What a style sheet says, with the condition that its attributes make. That of AMP hides all until a script has run."""
    if "amp4email-boilerplate" in attributes and text.strip() == _UNTIL_A_SCRIPT:
        return ""
    given = {name: value.strip("\"' \t\n\r\f") for name, value in reversed(_RESTRICTED.findall(attributes))}  # the first counts
    conditions = {name for name, value in given.items() if not _IN_FORCE[name].fullmatch(value)}
    if not conditions or "type" in conditions:
        return "" if conditions else text
    plain = conditions == {"media"} and _CONDITION.fullmatch(given["media"])
    return f"@media {given['media'] if plain else _SOME_SCREENS}{{{_nested(text)}}}"


def _nested(text: str) -> str:
    """A style sheet that can stand in braces: without those of its own that close nothing, and with those that are missing."""
    parts: list[str] = []
    depth = 0
    for piece in _BRACES.split(text):
        if piece != "}" or depth:
            parts.append(piece)
            depth += (piece == "{") - (piece == "}")
    return "".join(parts) + "}" * depth


def _ends_within(markup: str) -> bool:
    """Whether markup ends within a tag, or a quoted value: what is found there begins nothing."""
    return markup.rfind("<") > markup.rfind(">") or _ends_in_value(markup, '"') or _ends_in_value(markup, "'")


def _ends_in_value(markup: str, quote: str) -> bool:
    """Whether the last quote of a kind begins a value. A copy of all in front of it is made only where blanks stand between."""
    place = markup.rfind(quote)
    before = markup[place - 1 : place] if place > 0 else ""
    return before == "=" or (before.isspace() and markup[:place].rstrip().endswith("="))


def is_odd(source: str, text: str, names: Collection[str], attributes: Collection[str]) -> bool:
    """Whether browsers take it for something else. text: what is in no tag. names, attributes: of its tags, as if quotes had no meaning."""
    if not _ODD.isdisjoint(names) or _QUOTED.search("<".join((*attributes, ""))):
        return True
    return "<" in text and _IN_TAG.search(source) is not None


def exactly(source: str) -> Markup:
    """Tag by tag."""
    reader = _Reader(source)
    while reader.take():
        pass
    return Markup("".join(reader.seen), reader.unseen, "\n".join(reader.style))


class _Reader:
    """Where it stands in a page, and what it has found in front of that."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._position = 0
        self._within = ""  # whatever leaves it unknown which elements hold no markup; who can tell where pictures of vectors end?
        self.seen: list[str] = []
        self.unseen: list[str] = []
        self.style: list[str] = []

    def take(self) -> bool:
        """The next tag or comment that not everybody reads alike, and what stands in front of it; False: there is none."""
        start = _ORDINARY.match(self._source, self._position).end()  # type: ignore[union-attr]  # it matches ""
        token = _TOKEN.search(self._source, start)
        self.seen += self._source[self._position : start], _text(self._source[start : token.start() if token else None])
        if token is None:
            return False
        self._position = token.end()
        comment, mark, name, attributes = token.groups()
        if comment is not None:
            self._take_comment(comment)
        elif mark:
            self._keep(mark)
        elif name:
            self._take_tag(name, attributes)
        return True

    def _take_comment(self, comment: str) -> None:
        if self._within:
            self.seen.append(comment.translate(_SIGNS))
        else:
            self.unseen.append(comment)

    def _keep(self, inside: str) -> None:
        """A tag, whatever it is, as one in which no sign of another stands."""
        plain = inside.translate(_SIGNS)
        self.seen.append(f"<{plain}>")
        if self._within and plain != inside:
            self.seen.append(plain)

    def _take_tag(self, name: str, attributes: str) -> None:
        if name in _FOREIGN or (name == "select" and not self._within):
            self._within = name
        elif name == "/select" and self._within == "select":
            self._within = ""
        if self._within or name not in _DROPPED:
            self._keep(name + attributes)
        if _HOLDING.get(name) == "seen":
            self.seen.append(self._take_text(name).translate(_SIGNS))
        elif name in _HOLDING and not self._within:
            self._take_unseen(name, attributes)

    def _take_unseen(self, name: str, attributes: str) -> None:
        text = self._take_text(name)
        if _HOLDING[name] == "unseen":
            self.unseen.append(text)
        elif _HOLDING[name] == "style":
            self.style.append(_sheet(attributes, text))
        if name in _DROPPED and (end := _TOKEN.match(self._source, self._position)):
            self._position = end.end()

    def _take_text(self, name: str) -> str:
        """Up to the end tag of that name."""
        start = self._position
        end = _ENDS[name].search(self._source, start) if name in _ENDS else None
        self._position = end.start() if end else len(self._source)
        return self._source[start : self._position]


def _text(source: str) -> str:
    """What stands between tags and comments: a sign that begins none there must not come to stand in front of a letter."""
    return source[:-1] + " " if source.endswith("<") else source


def without_zeros(source: str) -> str:
    """Markup with the numbers of characters as short as they can be."""
    return _ZEROS.sub("", source) if "&#0" in source or "&#x0" in source else source
