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
_NO_TAG = re.compile(r"<(?![/!?a-z])")  # within a tag it ends none either
_IN_TAG = re.compile(rf"<[/!?a-z][^<>]*+{_NO_TAG.pattern}")
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
_RESTRICTED = re.compile(rf"(?<![\w-])(?:media|type){_BLANK}*+={_BLANK}*+(\"[^\"]*+|'[^']*+|[^ \t\n\r\f>]*+)")
_IN_FORCE = re.compile(r"(?:only\s+)?(?:screen|all)(?:,[^()]*+)?|text/css|")
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
    style = "\n".join([text for name, attributes, text in elements if name == "style" and _is_in_force(attributes)])
    return Markup("".join(pieces[::5]), titles + [comment for comment in pieces[1::5] if comment], style)


def _is_in_force(attributes: str) -> bool:
    """Whether a style sheet is one, and for screens of any kind."""
    return all(_IN_FORCE.fullmatch(value.strip("\"' \t\n\r\f")) for value in _RESTRICTED.findall(attributes))


def _ends_within(markup: str) -> bool:
    """Whether markup ends within a tag, or a quoted value: what is found there begins nothing."""
    return markup.rfind("<") > markup.rfind(">") or any(markup.rpartition(quote)[0].rstrip().endswith("=") for quote in "\"'")


def is_odd(source: str, names: Collection[str], attributes: Collection[str]) -> bool:
    """Whether browsers take it for something else. names, attributes: of its tags, as if quotes had no meaning."""
    if not _ODD.isdisjoint(names) or _QUOTED.search("<".join((*attributes, ""))):
        return True
    return _NO_TAG.search(source) is not None and _IN_TAG.search(source) is not None


def exactly(source: str) -> Markup:
    """Tag by tag."""
    found: dict[str, list[str]] = {"seen": [], "unseen": [], "style": [], "nothing": []}
    seen, position = found["seen"], 0
    within = ""  # whatever leaves it unknown which elements hold no markup; who can tell where pictures of vectors end?
    while token := _TOKEN.search(source, ordinary := _ORDINARY.match(source, position).end()):  # type: ignore[union-attr]  # it matches ""
        seen += source[position:ordinary], _text(source[ordinary : token.start()])
        position = token.end()
        comment, mark, name, attributes = token.groups()
        if name in _FOREIGN or (name == "select" and not within):
            within = name
        elif name == "/select" and within == "select":
            within = ""
        known = not within
        if comment is not None and known:
            found["unseen"].append(comment)
        elif comment is not None:
            seen.append(comment.translate(_SIGNS))
        elif mark or (name and not (known and name in _DROPPED)):
            inside = mark or name + attributes
            seen.append(f"<{inside.translate(_SIGNS)}>")
            if not known and not {"<", ">"}.isdisjoint(inside):
                seen.append(inside.translate(_SIGNS))
        if name in _HOLDING and (known or _HOLDING[name] == "seen"):
            end = _ENDS[name].search(source, position) if name in _ENDS else None
            text = source[position : end.start() if end else len(source)]
            kept = _HOLDING[name] if name != "style" or _is_in_force(attributes) else "nothing"
            found[kept].append(text.translate(_SIGNS) if kept == "seen" else text)
            position += len(text)
            if end and name in _DROPPED:
                position = _TOKEN.match(source, position).end()  # type: ignore[union-attr]  # it is one
    seen.append(_text(source[position:]))
    return Markup("".join(seen), found["unseen"], "\n".join(found["style"]))


def _text(source: str) -> str:
    """What stands between tags and comments: a sign that begins none there must not come to stand in front of a letter."""
    return source[:-1] + " " if source.endswith("<") else source


def without_zeros(source: str) -> str:
    """Markup with the numbers of characters as short as they can be."""
    return _ZEROS.sub("", source) if "&#0" in source or "&#x0" in source else source
