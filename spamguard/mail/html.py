"""HTML to what a reader sees, what a reader does not see, and how it is built.

Works on folded (lower-case) markup with regular expressions that are linear in its length, not on a tree: hostile markup is
cut short, never followed. It must never raise and never fetch anything.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from functools import lru_cache

_UNSEEN = re.compile(r"<(?:!--(.*?)(?:--!?>|\Z)|(script|style|template|title)\b[^>]*+>(.*?)(?:</\2\s*>|\Z))", re.S)
_UNSEEN_MARKS = ("<!--", "<script", "<style", "<template", "<title")
_TAG = re.compile(r"<[/!?a-z][^<>]*+>?")
# between these a reader sees a gap; all other tags leave none: "v<b></b>iagra" is read as one word
_BREAK = re.compile(
    r"<(?:/?(?:p|div|t[dhr]|table|tbody|li|[ou]l|h[1-6r]|center|blockquote|pre|d[dlt]|form|option|select|body|head|html|title)\b|br|img|input|/?button)"
    r"[^<>]*+>?"
)
# each begins with a literal, which makes the search fast
_HIDERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"display\s*:\s*none",
        r"visibility\s*:\s*hidden",
        r"mso-hide\s*:\s*all",
        r"font-size\s*:\s*[01](?![\d.]*[1-9])",
        r"opacity\s*:\s*0(?![.\d]*[1-9])",
        r"max-height\s*:\s*0(?!\d)",
        r" hidden(?=[\s>=])",
    )
)
_WHITE = re.compile(r"color\s*[:=]\s*[\"']?\s*(?:white|#fff\b|#f[a-f0-9]f[a-f0-9]f[a-f0-9])")
_DARK_GROUND = re.compile(r"(?:bgcolor|background(?:-color)?)\s*[:=]\s*[\"']?\s*(?!white|#fff|#f[a-f0-9]f|transparent|none|inherit)[#\w]")
_START_TAG = re.compile(r"<([a-z][\w:-]{0,20})[^<>]*+>?")
_VOID = frozenset(("area", "base", "br", "col", "hr", "img", "input", "link", "meta", "param", "source", "wbr"))
_MAX_HIDING = 500  # elements; a page with more has its first ones looked at


@dataclass(frozen=True, slots=True)
class Page:
    """visible, hidden: text a reader does or does not see; tags: the markup itself."""

    visible: str
    hidden: str
    tags: str


def read(markup: str) -> Page:
    """Take a folded page apart; time and memory linear in its length."""
    unseen: list[str] = []
    if any(mark in markup for mark in _UNSEEN_MARKS):
        unseen = [comment or (text if name == "title" else "") for comment, name, text in _UNSEEN.findall(markup)]
        markup = _UNSEEN.sub("", markup)
    tags = "".join(_TAG.findall(markup))
    hiding = _hiding_places(markup)
    if hiding:
        markup, covered = _take_hidden(markup, hiding)
        unseen.append(covered)
    visible = _TAG.sub("", _BREAK.sub(" ", markup))
    return Page(_unescape(visible), _unescape(_TAG.sub(" ", " ".join(unseen))), tags)


def _unescape(text: str) -> str:
    return html.unescape(text) if "&" in text else text


def _hiding_places(markup: str) -> list[int]:
    """Where something stands that may hide its element, in order. White text hides unless the page sets a dark ground."""
    places = [match.start() for pattern in _HIDERS for match in pattern.finditer(markup)]
    white = [match.start() for match in _WHITE.finditer(markup)]
    if white and not _DARK_GROUND.search(markup):
        places += white
    return sorted(places)[:_MAX_HIDING]


def _take_hidden(markup: str, places: list[int]) -> tuple[str, str]:
    """Markup without the elements whose own tag hides them, and those elements."""
    shown: list[str] = []
    covered: list[str] = []
    position = 0
    for place in places:
        start = markup.rfind("<", position, place)
        tag = _START_TAG.match(markup, start) if start >= 0 else None
        if tag is None or tag.end() <= place or tag.group(1) in _VOID:
            continue
        end = _element_end(markup, tag.group(1), tag.end())
        shown.append(markup[position:start])
        covered.append(markup[tag.end() : end])
        position = end
    return "".join((*shown, markup[position:])), " ".join(covered)


def _element_end(markup: str, name: str, position: int) -> int:
    """Where the element whose start tag ends at `position` is closed; the end of the page if it is not."""
    depth = 1
    for match in _tags_of(name).finditer(markup, position):
        depth += -1 if match.group().startswith("</") else 1
        if depth == 0:
            return match.start()
    return len(markup)


@lru_cache(maxsize=64)
def _tags_of(name: str) -> re.Pattern[str]:
    return re.compile(f"</?{re.escape(name)}(?![\\w:-])")
