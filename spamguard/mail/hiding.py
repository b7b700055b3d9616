"""Which elements of a page hide what they hold: by their own attributes, or by what style sheets say of their classes.

Works like `html` on lower-case markup by regular expressions, in time linear in its length. A page has many ways to hide text, and
more to undo it; these are those that mail uses. It must never raise and never fetch anything.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from html.entities import html5
from itertools import accumulate

from spamguard.mail import styles
from spamguard.mail.markup import without_zeros
from spamguard.mail.styles import BOXED, COLOURED, EVER, SHOWN, SIZED, WHITE, Declared, GivenBack

_BLOCKS = (
    "p div td th tr table tbody li ol ul h1 h2 h3 h4 h5 h6 hr center blockquote pre dl dt dd form option select button html head title body"
    " address article aside caption details dir fieldset figcaption figure footer header legend main menu nav section summary"
)
BLOCKS = frozenset(_BLOCKS.split())
"""Elements that begin and end lines or cells."""
TAG = re.compile(r"<([/!?a-z][^<> \t\n\r\f/]*+)([^<>]*+)>?")
# An attribute that is one by itself, and one of colour: white hides on white.
_HIDDEN = re.compile(r"hidden(?<=[\s/\"']hidden)(?=[\s>=/]|\Z)")
_NO_GROUND = r"white|#fff|#f[a-f0-9]f|transparent|none|inherit|" + styles.BRIGHT
_WHITE = re.compile(rf"color(?<![\w-]color)\s*+[:=]\s*+[\"']?\s*+(?:white|#?f(?:ff|[a-f0-9]f[a-f0-9]f[a-f0-9])|{styles.BRIGHT})")
# Names of characters are undone in attributes: with these every other sign may be written.
_MORE_SIGNS = (("hidden", _HIDDEN), ("&", re.compile("&(?:#(?!39;|34;)|colon|tab|newline)")))
_REFERENCE = re.compile(r"&(?:#[0-9]{1,9}|#x[0-9a-f]{1,9}|[a-z]{2,9});?")  # bounded: numbers of thousands of digits are errors
_CAPITALISED = {f"&{name.lower()}": sign for name, sign in html5.items() if name.lower() not in html5}  # "&Tab;"
_MARKS = (".", "#")
_IN_NO_WAY: frozenset[str] = frozenset()
_NOTHING = GivenBack({}, {})
_WHITES = re.compile(r"white|#?fff|#?f[a-f0-9]f[a-f0-9]f[a-f0-9]")
_DARK_GROUND = re.compile(rf"b(?:gcolor|ackground(?:-color|-image)?)\s*+[:=]\s*+[\"']?\s*+(?!{_NO_GROUND})[#\w]")
# What gives to text again what it had lost. Bounded, since a tag may name many.
_AGAIN = {
    SIZED: re.compile(
        r"<(?:font\b[^<>]*\bsize|[a-z][^<>]*font(?:-size)?\s*+:[^<>;\"']{0,60}?"
        r"(?:(?<![\d.])(?:[2-9]|[1-9]\d{1,3})(?:\.\d{0,4})?p[xt]|[\d.]{1,6}rem|small|medium|large))"
    ),
    COLOURED: re.compile(rf"<[a-z][^<>]*(?<![\w-])color\s*+[:=]\s*+[\"']?\s*+(?!{_NO_GROUND})[#\w]"),
    SHOWN: re.compile(r"<[a-z][^<>]*visibility\s*+:\s*+visible"),
}
_AGAIN[WHITE] = _AGAIN[COLOURED]
# As browsers read tags: quotes begin values only; a value that is not closed ends with its tag.
_ATTRIBUTE = re.compile(r"([^\s<>/][^\s<>/=]*+)(?:\s*+=\s*+(?:\"([^\"<>]*+)\"?|'([^'<>]*+)'?|([^\s\"'<>][^\s<>]*+)))?")
_TELLING = frozenset(("style", "color", "hidden", "class", "id"))
_NAMED_TAG = re.compile(r"<(/?)([a-z][\w:-]{0,20})")
# Elements that a start tag closes (HTML Standard, section 13.1.2.4), unless a list or table begins in between.
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
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
    **dict.fromkeys(_HEADINGS, ((), _HEADINGS)),
}
_OF_TABLES = frozenset(("tr", *_PARTS))
_IN_TABLES = _OF_TABLES | frozenset(_CELLS)
_CELL = re.compile(r"<(?:t[dh]|caption)\b")
_NOT_ENDING_P = "td th tr tbody caption option select button legend html head title body"
_ENDING_P = BLOCKS - frozenset(_NOT_ENDING_P.split())
# These go on behind the end of what is around them.
_FORMATS = frozenset(("a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"))
_VOID = frozenset(("area", "base", "br", "col", "hr", "img", "input", "link", "meta", "param", "source", "wbr"))
_ANY_TAG = re.compile("<[a-z]")
_FEW_NAMES = 50  # to look for more of them at once costs more than it tells
_FEW = 10  # searches cost less than a look at all tags
_NAME = 70  # characters of the names of elements that are looked for
_BOXES = BLOCKS - _OF_TABLES - {"td", "th", "table", "html", "head", "body"}


def taken(source: str, attributes: Collection[str], style: str) -> tuple[str, list[str]]:
    """Markup without the elements whose own tag hides them, and those elements in one, if any tag does.

    source: with no sign of a tag in quoted values. attributes: of all tags, each once. style: text of the style sheets.
    """
    rules = styles.sheet(style) if style else {}
    hiding = _hiding(list(attributes), styles.of_any_element(rules), style)
    elements = {name for name in rules if name[0] not in _MARKS and "<" + name in source}
    if not hiding and not elements:
        return source, []
    again = styles.given_back(style, rules) if style else _NOTHING

    @lru_cache(maxsize=64)
    def look(name: str, own: str) -> frozenset[str]:
        known = hiding.get(own, _IN_NO_WAY)
        if name in elements:
            return _ways(own, rules, name, again)
        return known & _ways(own, rules, name, again) if known and (rules or any(again)) else known

    left, covered = _take(source, _starts(source, hiding, elements), look, again)
    return left, [covered]


def _starts(source: str, hiding: Collection[str], elements: Collection[str]) -> list[int]:
    """Where tags with these attributes, or of these elements, may stand, in order."""
    if elements or len(hiding) > _FEW:
        return [found.start() for found in TAG.finditer(source) if found[2] in hiding or found[1] in elements]
    return sorted(start for own in hiding for start in _places(source, own))


def _places(source: str, attributes: str) -> Iterator[int]:
    """Where tags with these attributes may stand."""
    place = source.find(attributes)
    while place >= 0:
        yield source.rfind("<", max(place - _NAME, 0), place)
        place = source.find(attributes, place + len(attributes))


def _hiding(attributes: Sequence[str], rules: Mapping[str, Declared], style: str) -> dict[str, frozenset[str]]:
    """Attributes that hide, whatever element they belong to, and how. White text hides unless the page sets a dark ground."""
    joined = "\n".join(attributes)
    signs = styles.signs(joined)
    signs += [pattern for word, pattern in _MORE_SIGNS if word in joined]
    white = "color" in joined and _WHITE.search(joined) and not _DARK_GROUND.search(joined + "\n" + style)
    if white:
        signs.append(_WHITE)
    if names := "|".join([re.escape(name[1:]) for name in rules if name[0] in _MARKS and name[1:] in joined]):
        signs.append(re.compile(names))
    if not signs:
        return {}
    starts = list(accumulate([len(one) + 1 for one in attributes], initial=0))
    looked = {bisect_right(starts, found.start()) - 1 for sign in signs for found in sign.finditer(joined)}
    found = {attributes[place]: _ways(attributes[place], rules) for place in looked}
    return {one: hides for one, ways in found.items() if (hides := ways if white else ways - {WHITE})}


def _ways(attributes: str, rules: Mapping[str, Declared], element: str = "", again: GivenBack = _NOTHING) -> frozenset[str]:
    """How these attributes hide an element. Titles and other texts may say anything; of two attributes of a name the first counts.

    again: what style sheets let be seen after all.
    """
    given: dict[str, str] = {}
    for found in _ATTRIBUTE.finditer(attributes):
        if found[1] in _TELLING:
            given.setdefault(found[1], value(found[found.lastindex or 1]))
    declared: Declared = {}
    names = [*["." + one for one in given.get("class", "").split()], "#" + given.get("id", "").strip()]
    for sheet, concerned in (  # by their weight
        (rules, (element,)),
        (again.weakly, (styles.ALL, element)),
        (rules, (*names, *[element + name for name in names])),
        (again.strongly, (styles.ALL, element, *names)),
    ):
        for name in concerned if sheet else ():
            if name in sheet:
                styles.add(declared, sheet[name])
    styles.add(declared, styles.declarations(given.get("style", "")))
    hides = styles.ways(declared)
    if "hidden" in given and "display" not in declared:
        hides |= {EVER}
    return hides | {WHITE} if "color" not in declared and _WHITES.fullmatch(given.get("color", "").strip()) else hides


def value(written: str) -> str:
    """An attribute's, with its references to characters undone."""
    return _REFERENCE.sub(_character, without_zeros(written)) if "&" in written else written


def _character(reference: re.Match[str]) -> str:
    return character(reference[0])


def character(reference: str) -> str:
    """What a reference to a character stands for, in lower case as all markup here."""
    return _CAPITALISED.get(reference) or html.unescape(reference)


def _take(source: str, starts: Iterable[int], look: Callable[[str, str], frozenset[str]], given: GivenBack) -> tuple[str, str]:
    """Markup without the elements that are hidden, and those elements. starts: of tags that may hide, in order; look: how they do, by
    name and attributes; given: what style sheets let be seen."""
    shown: list[str] = []
    covered: list[str] = []
    position = 0
    tree = _Tree(source, given)
    for start in starts:
        tag = TAG.match(source, start) if start >= position else None
        if tag is None or _stands_within(source, start):
            continue
        name, attributes = tag.groups()
        ways = look(name, attributes)
        if name not in _BOXES:
            ways -= {BOXED}
        if ways and name[0] not in "/!?" and name not in _VOID:
            if name in _IN_TABLES and not tree.is_open("table", start):  # ignored there, as if it were not
                continue
            end = tree.end(name, start, tag.end(), max(tree.again(way, tag.end()) for way in ways))
            begin = _first_cell(source, tag.end(), end) if name == "table" or name in _OF_TABLES else tag.end()
            shown += [source[position:start], source[tag.end() : begin]]
            covered.append(source[begin:end])
            position = end
    return "".join((*shown, source[position:])), " ".join(covered)


def _stands_within(source: str, place: int) -> bool:
    """Whether what looks like a tag stands within another that has no end yet: there it is none."""
    before = TAG.match(source, max(source.rfind("<", 0, place), 0))
    return before is not None and before.end() == place and source[place - 1] != ">"


def _first_cell(source: str, start: int, end: int) -> int:
    """Where the first cell of a table begins: what stands before it is shown in front of the table (HTML Standard, section 13.2.6.4.9)."""
    cell = _CELL.search(source, start, end)
    return cell.start() if cell else end


def _again(way: str, names: Collection[str]) -> re.Pattern[str] | None:
    """Finds tags that give to text again what it had lost in that way: by themselves, or by these names."""
    if way not in _AGAIN or not names:
        return _AGAIN.get(way)
    if styles.ALL in names or len(names) > _FEW_NAMES:
        return _ANY_TAG
    elements = "|".join([re.escape(name) for name in names if name[0] not in _MARKS])
    marks = "|".join([re.escape(name[1:]) for name in names if name[0] in _MARKS])
    found = [_AGAIN[way].pattern, rf"<(?:{elements})(?![\w:-])" if elements else "", rf"<[a-z][^<>]*(?:{marks})" if marks else ""]
    return re.compile("|".join(filter(None, found)))


class _Tree:
    """What is open at a place of a page, near enough: elements that others close count as open no longer (HTML Standard, section 13.2.6.4).

    Goes forward only, so that however often it is asked, every tag is looked at once.
    """

    def __init__(self, source: str, given: GivenBack) -> None:
        self._source = source
        self._given = given
        self._patterns: dict[str, re.Pattern[str] | None] = {}
        self._open: defaultdict[str, int] = defaultdict(int)
        self._place = 0
        self._again: dict[str, int] = {}

    def is_open(self, name: str, place: int) -> bool:
        """Whether an element of that name is open at a place, which is behind all asked for before."""
        count = self._open
        for closing, tag in _NAMED_TAG.findall(self._source, self._place, place):
            if tag in _ENDING_P:
                count["p"] = 0
            if not closing:
                count[tag] += 1
            elif count[tag]:
                count[tag] -= 1
        self._place = place
        return self._open[name] > 0

    def again(self, way: str, place: int) -> int:
        """Where text that is hidden in that way begins to be seen again, from a place on behind all asked for before; the end of the
        page: nowhere."""
        if self._again.get(way, -1) < place:
            if way not in self._patterns:
                self._patterns[way] = _again(way, styles.concerned(self._given, way))
            pattern = self._patterns[way]
            found = pattern.search(self._source, place) if pattern else None
            self._again[way] = found.start() if found else len(self._source)
        return self._again[way]

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
        if name == tag == "table":
            return not any(inside[cell] for cell in (*_CELLS, "caption"))
        lists, kinds = _NEXT.get(tag, ((), ()))
        next_of_its_kind = name in kinds or (name not in _OF_TABLES and any(self._closes(name, outer, start) for outer in lists))
        if next_of_its_kind and not any(inside[outer] for outer in lists):
            return True
        return tag in _ENDING_P and (name == "p" or (name not in BLOCKS and self._closes(name, "p", start)))

    def _closes(self, name: str, outer: str, start: int) -> bool:
        """Whether the end of something closes an element: if it is around it, and unless the format of text goes on behind."""
        return name not in _FORMATS and self.is_open(outer, start)
