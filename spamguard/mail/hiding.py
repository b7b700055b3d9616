"""Which elements of a page hide what they hold: by their own attributes, or by a class that a style sheet hides.

Works like `html` on lower-case markup by regular expressions, in time linear in its length. A page has many ways to hide text, and
more to undo it; these are those that mail uses. It must never raise and never fetch anything.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

_BLOCKS = (
    "p div td th tr table tbody li ol ul h1 h2 h3 h4 h5 h6 hr center blockquote pre dl dt dd form option select button html head title body"
)
BLOCKS = frozenset(_BLOCKS.split())
"""Elements that begin and end lines or cells."""
_SIZED = "font-size"
# a word without which the pattern cannot match, and the pattern; possessive, so that long runs of blanks cost nothing
_HIDERS = tuple(
    (word, re.compile(pattern))
    for word, pattern in (
        ("none", r"display\s*+:\s*+none"),
        ("hidden", r"visibility\s*+:\s*+hidden"),
        ("mso-hide", r"mso-hide\s*+:\s*+all"),
        (_SIZED, r"font-size\s*+:\s*+(?:0(?:\.0*+)?(?![\d.])|[01](?:\.\d*+)?p[xt])"),
        ("opacity", r"opacity\s*+:\s*+0(?:\.0*+)?(?![\d.])"),
        ("max-height", r"max-height\s*+:\s*+0(?!\d)"),
        ("hidden", r"hidden(?<=\shidden)(?=[\s>=/]|\Z)"),
        ("transparent", r"color(?<![\w-]color)\s*+:\s*+transparent"),
        ("left", r"left(?<![\w-]left)\s*+:\s*+-\d{3}"),  # off the screen
        ("top", r"top(?<![\w-]top)\s*+:\s*+-\d{3}"),
        ("text-indent", r"text-indent\s*+:\s*+-\d{3}"),
    )
)
# What text of no size holds may have one again. Bounded, since a tag may name many.
_SIZE = re.compile(
    r"<(?:font\b[^<>]*\bsize|[a-z][^<>]*font(?:-size)?\s*+:[^<>;\"']{0,60}?"
    r"(?:(?:[2-9]|[1-9]\d{1,3})(?:\.\d{0,4})?p[xt]|[\d.]{1,6}rem|small|medium|large))"
)
_BRIGHT = r"rgba?\(\s*+25\d\s*+,\s*+25\d\s*+,\s*+25\d\s*+[,)]"
_WHITE = re.compile(r"color(?<![\w-]color)\s*+[:=]\s*+[\"']?\s*+(?:white|#fff\b|#f[a-f0-9]f[a-f0-9]f[a-f0-9]|" + _BRIGHT + ")")
_NO_GROUND = r"white|#fff|#f[a-f0-9]f|transparent|none|inherit|" + _BRIGHT
_DARK_GROUND = re.compile(rf"b(?:gcolor|ackground(?:-color|-image)?)\s*+[:=]\s*+[\"']?\s*+(?!{_NO_GROUND})[#\w]")
# Signs of tags may stand in quoted values, where they begin and end none; few pages have any.
_QUOTED = re.compile(r"=\s*+(?:\"[^\"<>]*+[<>]|'[^'<>]*+[<>])")
WHOLE_TAG = re.compile(r"(<[/!?a-z])((?:[^<>\"'=]++|=\s*+(?:\"[^\"]*+\"|'[^']*+')?|[\"']|)*+)")
_SIGNS = str.maketrans("<>", "  ")
_START_TAG = re.compile(r"<([a-z][\w:-]{0,20})[^<>]*+>?")
# By quotes, as browsers read tags; a value that is not closed ends with its tag.
_ATTRIBUTE = re.compile(r"([^\s\"'<>/=]++)(?:\s*+=\s*+(?:\"[^\"<>]*+\"?|'[^'<>]*+'?|[^\s\"'<>]++))?")
_TELLING = frozenset(("style", "color", "hidden", "class", "id"))
_BRACES = re.compile(r"([{}])")
_LAST_NAME = re.compile(r"[.#]([\w-]{1,60})\Z")  # of a selector; behind a pseudo-class there is none: it hides but now and then
_CLASS = re.compile(  # by its first letters first: a word border in front takes twice as long
    r"(?:class(?<!\wclass)|id(?<!\wid))\s*+=\s*+(?:\"([^\"<>]{0,300}+)|'([^'<>]{0,300}+)|([^\s\"'<>]{1,300}+))"
)
_MAX_NAMES = 50
_NAMED_TAG = re.compile(r"<(/?)([a-z][\w:-]{0,20})")
# Elements that a start tag closes (HTML Standard, section 13.1.2.4), unless a list or table begins in between.
_LISTS, _TABLE, _CELLS, _PARTS = ("ul", "ol"), ("table",), ("td", "th"), ("tbody", "thead", "tfoot")
_NEXT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "li": (_LISTS, ("li",)),
    "dt": (("dl",), ("dt", "dd")),
    "dd": (("dl",), ("dt", "dd")),
    "td": (_TABLE, _CELLS),
    "th": (_TABLE, _CELLS),
    "tr": (_TABLE, (*_CELLS, "tr")),
    **dict.fromkeys(_PARTS, (_TABLE, (*_CELLS, "tr", *_PARTS))),
    "a": ((), ("a",)),
}
_OF_TABLES = frozenset(("tr", *_PARTS))
_ENDING_P = BLOCKS - {"td", "th", "tr", "tbody", "option", "select", "button", "html", "head", "title", "body"}
# These go on behind the end of what is around them.
_FORMATS = frozenset(("a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"))
_VOID = frozenset(("area", "base", "br", "col", "hr", "img", "input", "link", "meta", "param", "source", "wbr"))
_MAX_HIDING = 500  # elements; a page with more has its first ones looked at


def taken(source: str, attributes: Collection[str], style: str) -> tuple[str, list[str]]:
    """Markup without the elements whose own tag hides them, and those elements in one, if any tag looks as if it did.

    attributes: of all tags, each once. style: text of the style sheets.
    """
    quoted = _QUOTED.search("<".join((*attributes, ""))) is not None
    places = _places(source, source if quoted else "\n".join(attributes), style)
    if not places:
        return source, []
    left, covered = _take(source, WHOLE_TAG.sub(_unquoted, source) if quoted else source, places)
    return left, [covered]


def _places(source: str, attributes: str, style: str) -> list[tuple[int, bool]]:
    """Where something stands that may hide its element, in order, and whether nothing within can be seen again. White text hides unless
    the page sets a dark ground."""
    patterns = [(pattern, word != _SIZED) for word, pattern in _HIDERS if word in attributes and pattern.search(attributes)]
    if "color" in attributes and _WHITE.search(attributes) and not _DARK_GROUND.search(attributes + "\n" + style):
        patterns.append((_WHITE, True))
    places = [(match.start(), lasts) for pattern, lasts in patterns for match in pattern.finditer(source)]
    names = _names(style) if style else frozenset()
    if any(name in attributes for name in names):
        found = (match for match in _CLASS.finditer(source) if not names.isdisjoint((match[match.lastindex or 1] or "").split()))
        places += [(match.start(), True) for match in found]
    return sorted(places)[:_MAX_HIDING]


def _names(style: str) -> frozenset[str]:
    """Classes and ids that a style sheet hides on every screen, so many at most."""
    flat = style.replace("{", "\n").replace("}", "\n")  # all declarations at once: few style sheets hide anything
    hiders = [hider for word, hider in _HIDERS if word in flat and hider.search(flat)]
    if not hiders:
        return frozenset()
    hiding = [selectors for selectors, body in _rules(style) if any(hider.search(body) for hider in hiders)]
    ends = [selector[-100:].rstrip() for selector in ",".join(hiding).split(",")]
    return frozenset([match[1] for end in ends if (match := _LAST_NAME.search(end))][:_MAX_NAMES])


def _rules(style: str) -> Iterator[tuple[str, str]]:
    """Selectors and declarations, but for those in a block with a condition: what small screens hide, large ones show."""
    pieces = _BRACES.split(style + "}")  # text, brace, text …
    outer = conditions = 0
    for before, brace, inside, end in zip(pieces[::2], pieces[1::2], pieces[2::2], pieces[3::2], strict=False):
        if brace == end == "{":
            outer += 1
            conditions += conditions > 0 or "(" in before
        elif brace == "{":
            if not conditions and "@" not in before.rpartition(";")[2]:  # a condition that has lost its brace
                yield before, inside
        elif end == "}" and outer:
            outer -= 1
            conditions -= conditions > 0


def _take(source: str, tags: str, places: list[tuple[int, bool]]) -> tuple[str, str]:
    """Markup without the elements whose own tag hides them, and those elements. tags: the same with nothing like a tag that is none."""
    shown: list[str] = []
    covered: list[str] = []
    position = 0
    looked = -1
    tree = _Tree(tags)
    for number, (place, _) in enumerate(places):
        start = tags.rfind("<", position, place)
        if start == looked:  # at this tag, which hides nothing: a long one may name many reasons to
            continue
        looked = start
        tag = _START_TAG.match(tags, start) if start >= 0 else None
        if tag is None or tag.end() <= place or tag.group(1) in _VOID:
            continue
        reasons = _reasons(tag, islice(places, number, None))
        if not reasons:
            continue
        end = tree.end(tag.group(1), start, tag.end(), len(source) if any(reasons) else tree.next_size(tag.end()))
        shown.append(source[position:start])
        covered.append(source[tag.end() : end])
        position = end
    return "".join((*shown, source[position:])), " ".join(covered)


def _unquoted(tag: re.Match[str]) -> str:
    return tag[1] + tag[2].translate(_SIGNS)


def _reasons(tag: re.Match[str], places: Iterable[tuple[int, bool]]) -> list[bool]:
    """Of each place within a tag that belongs to an attribute that can hide, whether it lasts. Titles and other texts may say anything;
    of two attributes of a name the first counts."""
    telling: dict[str, tuple[int, int]] = {}
    for found in _ATTRIBUTE.finditer(tag.string, tag.end(1), tag.end()):
        name = found[1]
        if name in _TELLING and name not in telling:
            telling[name] = found.span()
    reasons = []
    for place, lasts in places:
        if place >= tag.end():
            break
        reasons += [lasts for start, end in telling.values() if start <= place < end]
    return reasons


class _Tree:
    """What is open at a place of a page, near enough: elements that others close count as open no longer (HTML Standard, section 13.2.6.4).

    Goes forward only, so that however often it is asked, every tag is looked at once.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._open: defaultdict[str, int] = defaultdict(int)
        self._place = 0
        self._size = -1

    def is_open(self, name: str, place: int) -> bool:
        """Whether an element of that name is open at a place, which is behind all asked for before."""
        for match in _NAMED_TAG.finditer(self._source, self._place, place):
            closing, tag = match.groups()
            if tag in BLOCKS:
                self._open["p"] = 0
            self._open[tag] = max(self._open[tag] - 1, 0) if closing else self._open[tag] + 1
        self._place = place
        return self._open[name] > 0

    def next_size(self, place: int) -> int:
        """Where the next tag that gives text a size stands, from a place on behind all asked for before; the end of the page: nowhere."""
        if self._size < place:
            found = _SIZE.search(self._source, place)
            self._size = found.start() if found else len(self._source)
        return self._size

    def end(self, name: str, start: int, position: int, most: int) -> int:
        """Where the element whose start tag stands from `start` to `position` ends: at its end tag, or at a tag that closes it as well; at
        `most` if there is none before."""
        inside = defaultdict(int, {name: 1})
        for match in _NAMED_TAG.finditer(self._source, position, most):
            closing, tag = match.groups()
            if self._ends(name, tag, start, inside) if closing else self._begins_next(name, tag, start, inside):
                return match.start()
            inside[tag] += -1 if closing and inside[tag] else not closing
        return most

    def _ends(self, name: str, tag: str, start: int, inside: defaultdict[str, int]) -> bool:
        """Whether an end tag closes the element: its own, or of what is around it."""
        return inside[tag] == 1 if tag == name else tag in BLOCKS and not inside[tag] and self._closes(name, tag, start)

    def _begins_next(self, name: str, tag: str, start: int, inside: defaultdict[str, int]) -> bool:
        """Whether a start tag closes the element: it begins the next of its kind, or of what is around it."""
        lists, kinds = _NEXT.get(tag, ((), ()))
        if kinds and not any(inside[outer] for outer in lists):
            return name in kinds or (name not in _OF_TABLES and any(self._closes(name, outer, start) for outer in lists))
        return tag in _ENDING_P and (name == "p" or (name not in BLOCKS and self._closes(name, "p", start)))

    def _closes(self, name: str, outer: str, start: int) -> bool:
        """Whether the end of something closes an element: if it is around it, and unless the format of text goes on behind."""
        return name not in _FORMATS and self.is_open(outer, start)
