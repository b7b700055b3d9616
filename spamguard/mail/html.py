"""HTML to what a reader sees, what a reader does not see, and how it is built.

Works on lower-case markup with regular expressions that are linear in its length, not on a tree: hostile markup is cut
short, never followed. It must never raise and never fetch anything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from spamguard import kernel
from spamguard.mail import hiding, markup
from spamguard.mail.decode import fold
from spamguard.mail.markup import Markup

_ENTITY = re.compile(r"&(?:#[0-9]{1,30}+|#x[0-9a-f]{1,30}+|[a-z][a-z0-9]{1,31}+);?")
# At these a reader sees a gap; all other tags leave none: "v<b></b>iagra" is read as one word.
_BREAKS = hiding.BLOCKS | {f"/{name}" for name in hiding.BLOCKS} | {"br", "img", "input"}
_ODD_CHARACTERS = ("&#", "&colon", "&sol", "&tab", "&newline")
_BEFORE_NO_SCHEME = frozenset("\"'= \t\n")  # in front of two slashes
_ODD_SCHEME = re.compile(r"https?:(?!//[^/])")
_BROKEN_LINK = re.compile(r"=(?<=[fcn\s]=)\s*+(?:\"[^\"\t\n\r]*+|'[^'\t\n\r]*+)[\t\n\r]")  # of href, src, action, and seldom of others
_NOT_IN_LINKS = dict.fromkeys(map(ord, "\t\n\r"))
_LINK = re.compile(r"(?:href|src|action)\s*+=\s*+(?:\"\s*+([^\"]*+)|'\s*+([^']*+)|([^\s\"'][^\s]*+))")
_ADDRESS = re.compile(r"(?:(https?):[/\\]*+|[/\\]{2,}+)([^\s\"'<>/\\]{3,100}+[^\s\"'<>]{0,300}+).*", re.S)
_MOST_LINKS = 300
_LITTLE_TEXT = 2000  # characters, most of them blanks where tags stood


class Page(NamedTuple):
    """visible, hidden: text a reader does or does not see. tags: names of the tags and their distinct attributes. links: those that are
    not written as addresses are, so many at most.

    markup: characters of all tags. images: how many there are; linked: one of them stands within a link, looked at only where there
    is little text.
    """

    visible: str
    hidden: str
    tags: str
    markup: int
    images: int
    linked: bool
    links: Sequence[str] = ()


def read(source: str) -> Page:
    """Take a page in lower case apart; time and memory linear in its length."""
    found, shown = _parts(source)
    source, unseen, style = found
    attributes = "\n".join(shown.attributes)
    left, covered = hiding.taken(source, shown.attributes, style)
    unseen += covered
    if left != source:
        source, shown = left, _shown(left)
    hidden = hiding.TAG.sub(" ", " ".join(unseen)) if unseen else ""
    return _page(source, shown, attributes, shown.text, hidden)._replace(links=_odd_links(attributes))


def _odd_links(attributes: str) -> list[str]:
    """Links with references to characters, with backslashes, tabs or line ends within, or without a scheme or its slashes, as browsers
    read them (URL Standard, section 4.4)."""
    if not _has_odd_signs(attributes):
        return []
    written = [found[found.lastindex or 0] for found in islice(_LINK.finditer(attributes), _MOST_LINKS)]
    links = [link for one in written if (link := _ADDRESS.fullmatch(_link(one))) and not _is_plain(one, link)]
    return [f"{link[1] or 'https'}://{link[2]}" for link in links]


def _link(written: str) -> str:
    return hiding.value(written).translate(_NOT_IN_LINKS).strip().lower()


def _has_odd_signs(attributes: str) -> bool:
    if _ODD_SCHEME.search(attributes) or _BROKEN_LINK.search(attributes):
        return True
    if "\\" in attributes or ("&" in attributes and any(map(attributes.__contains__, _ODD_CHARACTERS))):
        return True
    return not _BEFORE_NO_SCHEME.isdisjoint([before[-1:] for before in attributes.split("//")[:-1]])


def _is_plain(written: str, link: re.Match[str]) -> bool:
    """Whether it is found wherever it stands."""
    return written.replace("&amp;", "&").strip() == link[0] and written.startswith(f"{link[1]}://{link[2][:1]}")


def read_plain(source: str) -> Page:
    """The same of text that is called plain: readers show all of it, tags too. Nothing is hidden, and attributes are text."""
    shown = _shown(source)
    return _page(source, shown, "\n".join(shown.attributes), "\n".join((shown.text, *shown.attributes)))


def _page(source: str, shown: _Shown, attributes: str, visible: str, hidden: str = "") -> Page:
    linked = shown.linked and len(visible) <= _LITTLE_TEXT
    tags = " ".join(shown.names) + attributes
    return Page(_characters(visible), _characters(hidden), tags, len(source) - len(shown.text), shown.images, linked)


class _Shown(NamedTuple):
    """Text between tags. names, attributes: of the tags, each once, in order. images: how many; linked: one stands within a link."""

    text: str
    names: Collection[str]
    attributes: Collection[str]
    images: int
    linked: bool


def _parts(source: str) -> tuple[Markup, _Shown]:
    """Markup without what is unseen, and what is in it."""
    found = markup.plainly(source)
    if found is not None:
        shown = _shown(found.source)
        if not markup.is_odd(found.source, shown.text, shown.names, shown.attributes):
            return found, shown
    found = markup.exactly(source)
    return found, _shown(found.source)


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


def _characters(text: str) -> str:
    """Entities replaced. Their length is bounded, since `html.unescape` raises at numbers of thousands of digits."""
    if "&" not in text:
        return text
    return _ENTITY.sub(_character, markup.without_zeros(text.replace("&nbsp;", " ")))  # most of them are this one


def _character(match: re.Match[str]) -> str:
    return _folded_entity(match.group())


@lru_cache(maxsize=1024)
def _folded_entity(entity: str) -> str:
    """Folded at once, so that a page whose only foreign character is a no-break space stays ASCII and cheap."""
    return fold(hiding.character(entity))
