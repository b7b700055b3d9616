"""HTML to what a reader sees, what a reader does not see, and how it is built.

Works on lower-case markup with regular expressions that are linear in its length, not on a tree: hostile markup is cut
short, never followed. It must never raise and never fetch anything.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from spamguard import kernel
from spamguard.mail import hiding
from spamguard.mail.decode import fold

# Possessive, and [^<>] in tags: a search that finds no end must not run to the end of the page again and again.
_UNSEEN = re.compile(
    r"<(?:!--(?:-?>|((?:[^-]++|-(?!-!?>)|)*+)(?:--!?>)?)"  # "<!-->" is a whole one (HTML Standard, section 13.2.5.43)
    r"|(script|style|template|title)\b[^<>]*+>((?:[^<]++|<(?!/\2)|)*+)(?:</\2[^<>]*+>?)?)"
)
# What looks like one in a quoted value is none; few pages have any.
_BEGINS_UNSEEN = r"<(?:!--|script|style|template|title)"
_NOT_UNSEEN = re.compile(_BEGINS_UNSEEN)
_UNSEEN_OR_TAG = re.compile(f"{_UNSEEN.pattern}|{hiding.WHOLE_TAG.pattern}")
_ENTITY = re.compile(r"&(?:#[0-9]{1,30}+|#x[0-9a-f]{1,30}+|[a-z][a-z0-9]{1,31}+);?")
# At these a reader sees a gap; all other tags leave none: "v<b></b>iagra" is read as one word.
_BREAKS = hiding.BLOCKS | {f"/{name}" for name in hiding.BLOCKS} | {"br", "img", "input"}
_LITTLE_TEXT = 2000  # characters, most of them blanks where tags stood


class Page(NamedTuple):
    """visible, hidden: text a reader does or does not see. tags: names of the tags and their distinct attributes.

    markup: characters of all tags. images: how many there are; linked: one of them stands within a link, looked at only where there
    is little text.
    """

    visible: str
    hidden: str
    tags: str
    markup: int
    images: int
    linked: bool


def read(source: str) -> Page:
    """Take a page in lower case apart; time and memory linear in its length."""
    source, unseen, style = _without_unseen(source)
    shown = _shown(source)
    plain = hiding.unquoted(source, shown.attributes)
    if plain is not source:
        source, shown = plain, _shown(plain)
    attributes = "\n".join(shown.attributes)
    left, covered = hiding.taken(source, shown.attributes, style)
    unseen += covered
    if left != source:
        source, shown = left, _shown(left)
    visible = shown.text
    hidden = hiding.TAG.sub(" ", " ".join(unseen)) if unseen else ""
    tags = " ".join(shown.names) + attributes
    linked = shown.linked and len(visible) <= _LITTLE_TEXT
    return Page(_characters(visible), _characters(hidden), tags, len(source) - len(visible), shown.images, linked)


def read_plain(source: str) -> Page:
    """The same of text that is called plain: readers show all of it, tags too. Nothing is hidden, and attributes are text."""
    shown = _shown(source)
    tags = " ".join(shown.names) + "\n".join(shown.attributes)
    visible = "\n".join((shown.text, *shown.attributes))
    linked = shown.linked and len(visible) <= _LITTLE_TEXT
    return Page(_characters(visible), "", tags, len(source) - len(shown.text), shown.images, linked)


class _Shown(NamedTuple):
    """Text between tags. names, attributes: of the tags, each once, in order. images: how many; linked: one stands within a link."""

    text: str
    names: Collection[str]
    attributes: Collection[str]
    images: int
    linked: bool


def _shown(source: str) -> _Shown:
    compiled = kernel.functions()
    if compiled is not None:
        with suppress(UnicodeEncodeError):
            return _Shown(*compiled.markup(source, _BREAKS))
    pieces = hiding.TAG.split(source)  # text, name of the tag, its attributes, text …
    names, attributes = pieces[1::3], pieces[2::3]
    pieces[1::3] = [" " if name in _BREAKS else "" for name in names]
    pieces[2::3] = [""] * len(names)
    return _Shown("".join(pieces), dict.fromkeys(names), dict.fromkeys(attributes), names.count("img"), _linked(names))


def _linked(names: list[str]) -> bool:
    """Whether a picture stands within a link."""
    within = False
    for name in names:
        if name == "img" and within:
            return True
        within = name == "a" or (within and name != "/a")
    return False


def _without_unseen(source: str) -> tuple[str, list[str], str]:
    """Markup without comments, scripts, styles, templates and titles; the text of titles and comments; that of styles."""
    pieces = _UNSEEN.split(source)  # markup, comment, name of the element, its text, markup …
    if any(map(_ends_quoted, pieces[:-1:4])):
        source = _UNSEEN_OR_TAG.sub(_seen, source)
        pieces = _UNSEEN.split(source)
    if len(pieces) == 1:
        return source, [], ""
    elements = list(zip(pieces[2::4], pieces[3::4], strict=True))
    titles = [text for name, text in elements if name == "title"]
    style = "\n".join([text for name, text in elements if name == "style"])
    return "".join(pieces[::4]), titles + [comment for comment in pieces[1::4] if comment], style


def _ends_quoted(markup: str) -> bool:
    """Whether markup ends within a quoted value: what is found there begins nothing."""
    return any(markup.rpartition(quote)[0].rstrip().endswith("=") for quote in "\"'")


def _seen(found: re.Match[str]) -> str:
    """A tag without the beginnings of what is unseen in its quoted values; what is unseen stays as it is."""
    return found[4] + _NOT_UNSEEN.sub(" ", found[5]) if found[4] else found[0]


def _characters(text: str) -> str:
    """Entities replaced. Their length is bounded, since `html.unescape` raises at numbers of thousands of digits."""
    if "&" not in text:
        return text
    return _ENTITY.sub(_character, text.replace("&nbsp;", " "))  # most of them are this one


def _character(match: re.Match[str]) -> str:
    return _folded_entity(match.group())


@lru_cache(maxsize=1024)
def _folded_entity(entity: str) -> str:
    """Folded at once, so that a page whose only foreign character is a no-break space stays ASCII and cheap."""
    return fold(html.unescape(entity))
