"""Elements of a page that hide what they hold, by their attributes or by style sheets.

`remove_hidden` looks for attributes that may hide, and only where there are some at the elements
that have them: what their styles say together (`styles`), where the element ends, and where
something within is seen again. A page has many ways to hide text, and more to undo it; these are
the ways that mail uses.

Works on lower-case markup by regular expressions, not on a tree, in time linear in its length. Must
never raise and never fetch anything.

It is written by hand because no library says what a page hides without drawing it.
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
from spamguard.mail.styles import (
    ALWAYS,
    IN_BOX,
    ON_WHITE,
    UNTIL_COLOURED,
    UNTIL_SIZED,
    UNTIL_VISIBLE,
    Declarations,
    RestoredStyles,
)

# ---- tags, attributes and elements

TAG = re.compile(r"<([/!?a-z][^<> \t\n\r\f/]*+)([^<>]*+)>?")
_NAMED_TAG = re.compile(r"<(/?)([a-z][\w:-]{0,20})")
_ANY_TAG = re.compile("<[a-z]")
# As browsers read tags: quotes begin values only; a value that is not closed ends with its tag.
_ATTRIBUTE = re.compile(
    r"([^\s<>/][^\s<>/=]*+)"
    r"(?:\s*+=\s*+(?:\"([^\"<>]*+)\"?|'([^'<>]*+)'?|([^\s\"'<>][^\s<>]*+)))?"
)
_BLOCK_NAMES = (
    "p div td th tr table tbody li ol ul h1 h2 h3 h4 h5 h6 hr center blockquote pre dl dt dd form"
    " option select button html head title body address article aside caption details dir fieldset"
    " figcaption figure footer header legend main menu nav section summary"
)
BLOCK_ELEMENTS = frozenset(_BLOCK_NAMES.split())
"""Elements that begin and end lines or cells."""
_VOID_ELEMENTS = frozenset(
    ("area", "base", "br", "col", "hr", "img", "input", "link", "meta", "param", "source", "wbr")
)
_CELLS, _ROW_GROUPS = ("td", "th"), ("tbody", "thead", "tfoot")
_TABLE_PARTS = frozenset(("tr", *_ROW_GROUPS))
_TABLE_CONTENT = _TABLE_PARTS | frozenset(_CELLS)
_BOX_ELEMENTS = BLOCK_ELEMENTS - _TABLE_CONTENT - {"table", "html", "head", "body"}
_CELL_TAG = re.compile(r"<(?:t[dh]|caption)\b")
# Elements that a start tag closes, unless one of the others begins in between: a list or a table
# (HTML Standard, section 13.1.2.4).
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_CLOSED_BY_START_TAG: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "li": (("li",), ("ul", "ol")),
    **dict.fromkeys(("dt", "dd"), (("dt", "dd"), ("dl",))),
    **dict.fromkeys(_CELLS, (_CELLS, ("table",))),
    "tr": ((*_CELLS, "tr"), ("table",)),
    **dict.fromkeys(_ROW_GROUPS, ((*_CELLS, "tr", *_ROW_GROUPS), ("table",))),
    "a": (("a",), ()),
    **dict.fromkeys(_HEADINGS, (_HEADINGS, ())),
}
_NOT_CLOSING_P = "td th tr tbody caption option select button legend html head title body"
_CLOSING_P = BLOCK_ELEMENTS - frozenset(_NOT_CLOSING_P.split())
# These go on behind the end of what is around them.
_FORMATTING_NAMES = "a b big code em font i nobr s small strike strong tt u"
_FORMATTING_ELEMENTS = frozenset(_FORMATTING_NAMES.split())

# Bounded, because numbers of thousands of digits are errors.
_CHARACTER_REFERENCE = re.compile(r"&(?:#[0-9]{1,9}|#x[0-9a-f]{1,9}|[a-z]{2,9});?")
_CAPITALISED_REFERENCES = {  # such as "&Tab;"
    f"&{name.lower()}": sign for name, sign in html5.items() if name.lower() not in html5
}
_LEADING_ZEROS = re.compile(r"(?<=&#)0++(?=[0-9])|(?<=&#x)0++(?=[0-9a-f])")


def attribute_value(written: str) -> str:
    """The value of an attribute, its character references undone.

    >>> attribute_value("java&#x0073;cript&colon;")
    'javascript:'
    """
    if "&" not in written:
        return written
    return _CHARACTER_REFERENCE.sub(
        lambda reference: resolve_reference(reference[0]), strip_leading_zeros(written)
    )


def resolve_reference(reference: str) -> str:
    """The character that a reference stands for; references are in lower case like all markup."""
    return _CAPITALISED_REFERENCES.get(reference) or html.unescape(reference)


def strip_leading_zeros(source: str) -> str:
    """Markup with numeric character references as short as they can be."""
    return _LEADING_ZEROS.sub("", source) if "&#0" in source or "&#x0" in source else source


# ---- attributes that hide

_HIDDEN_ATTRIBUTE = re.compile(r"hidden(?<=[\s/\"']hidden)(?=[\s>=/]|\Z)")
# With references to characters every other sign may be written.
_ATTRIBUTE_SIGNS = (
    ("hidden", _HIDDEN_ATTRIBUTE),
    ("&", re.compile("&(?:#(?!39;|34;)|colon|tab|newline)")),
)
_WHITE_TEXT = re.compile(
    r"color(?<![\w-]color)\s*+[:=]\s*+[\"']?\s*+"
    rf"(?:white|#?f(?:ff|[a-f0-9]f[a-f0-9]f[a-f0-9])|{styles.BRIGHT})"
)
_WHITE_VALUES = re.compile(r"white|#?fff|#?f[a-f0-9]f[a-f0-9]f[a-f0-9]")
_LIGHT_GROUND = r"white|#fff|#f[a-f0-9]f|transparent|none|inherit|" + styles.BRIGHT
_DARK_GROUND = re.compile(
    r"b(?:gcolor|ackground(?:-color|-image)?)\s*+[:=]\s*+[\"']?\s*+"
    rf"(?!{_LIGHT_GROUND})[#\w]"
)
# What shows again what is hidden in a way. Bounded, because one tag may name many.
_RESTORING_TAGS = {
    UNTIL_SIZED: re.compile(
        r"<(?:font\b[^<>]*\bsize|[a-z][^<>]*font(?:-size)?\s*+:[^<>;\"']{0,60}?"
        r"(?:(?<![\d.])(?:[2-9]|[1-9]\d{1,3})(?:\.\d{0,4})?p[xt]|[\d.]{1,6}rem"
        r"|small|medium|large))"
    ),
    UNTIL_COLOURED: re.compile(
        rf"<[a-z][^<>]*(?<![\w-])color\s*+[:=]\s*+[\"']?\s*+(?!{_LIGHT_GROUND})[#\w]"
    ),
    UNTIL_VISIBLE: re.compile(r"<[a-z][^<>]*visibility\s*+:\s*+visible"),
}
_RESTORING_TAGS[ON_WHITE] = _RESTORING_TAGS[UNTIL_COLOURED]
_SELECTOR_MARKS = (".", "#")
_NOTHING_RESTORED = RestoredStyles({}, {})
_MAX_SEARCHED_NAMES = 50  # at once; with more of them every tag counts
_MAX_SEARCHES = 10  # with more, one look at all tags costs less
_MAX_NAME_CHARACTERS = 70  # between "<" and the attributes


def remove_hidden(source: str, attributes: Collection[str], style: str) -> tuple[str, list[str]]:
    """Markup without the elements that their own tags hide, and the text of these elements.

    Parameters
    ----------
    source
        Without signs of tags in quoted values.
    attributes
        Those of each tag, each once.
    style
        The text of the style sheets.
    """
    rules = styles.hiding_rules(style) if style else {}
    hiding = _find_hiding_attributes(list(attributes), styles.rules_of_any_element(rules), style)
    elements = {name for name in rules if name[0] not in _SELECTOR_MARKS and "<" + name in source}
    if not hiding and not elements:
        return source, []
    restored = styles.restored_styles(style, rules) if style else _NOTHING_RESTORED

    @lru_cache(maxsize=64)
    def ways_of(name: str, text: str) -> frozenset[str]:
        if name in elements:
            return _hiding_ways(text, rules, name, restored)
        ways = hiding.get(text, frozenset())
        if ways and (rules or any(restored)):
            ways &= _hiding_ways(text, rules, name, restored)
        return ways

    if elements or len(hiding) > _MAX_SEARCHES:
        tags = TAG.finditer(source)
        starts = [tag.start() for tag in tags if tag[2] in hiding or tag[1] in elements]
    else:
        starts = sorted(start for text in hiding for start in _attribute_starts(source, text))
    visible, covered = _cut_hidden(source, starts, ways_of, restored)
    return visible, [covered]


def _attribute_starts(source: str, attributes: str) -> Iterator[int]:
    """Where tags with these attributes may start."""
    position = source.find(attributes)
    while position >= 0:
        yield source.rfind("<", max(position - _MAX_NAME_CHARACTERS, 0), position)
        position = source.find(attributes, position + len(attributes))


def _find_hiding_attributes(
    attributes: Sequence[str], rules: Mapping[str, Declarations], style: str
) -> dict[str, frozenset[str]]:
    """Attributes that hide whatever element they belong to, and how. White text hides unless the
    page has a dark ground somewhere.
    """
    joined = "\n".join(attributes)
    signs = styles.find_hiding_signs(joined)
    signs += [pattern for word, pattern in _ATTRIBUTE_SIGNS if word in joined]
    has_white = (
        "color" in joined
        and _WHITE_TEXT.search(joined)
        and not _DARK_GROUND.search(joined + "\n" + style)
    )
    if has_white:
        signs.append(_WHITE_TEXT)
    names = [name[1:] for name in rules if name[0] in _SELECTOR_MARKS and name[1:] in joined]
    if names:
        signs.append(re.compile("|".join(map(re.escape, names))))
    if not signs:
        return {}
    starts = list(accumulate([len(text) + 1 for text in attributes], initial=0))
    suspects = {
        bisect_right(starts, match.start()) - 1 for sign in signs for match in sign.finditer(joined)
    }
    hiding = {}
    for text in [attributes[number] for number in suspects]:
        ways = _hiding_ways(text, rules)
        if ways := ways if has_white else ways - {ON_WHITE}:
            hiding[text] = ways
    return hiding


def _hiding_ways(
    attributes: str,
    rules: Mapping[str, Declarations],
    element: str = "",
    restored: RestoredStyles = _NOTHING_RESTORED,
) -> frozenset[str]:
    """How these attributes hide an element. Titles and other texts may say anything; of two
    attributes of one name the first counts.
    """
    values: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(attributes):
        if match[1] in {"style", "color", "hidden", "class", "id"}:
            values.setdefault(match[1], attribute_value(match[match.lastindex or 1]))
    names = ["." + name for name in values.get("class", "").split()]
    names.append("#" + values.get("id", "").strip())
    declared: Declarations = {}
    for sheet, selectors in (  # by their weight
        (rules, (element,)),
        (restored.weak, (styles.ANY_ELEMENT, element)),
        (rules, (*names, *[element + name for name in names])),
        (restored.strong, (styles.ANY_ELEMENT, element, *names)),
    ):
        for selector in selectors if sheet else ():
            if selector in sheet:
                styles.merge_declarations(declared, sheet[selector])
    styles.merge_declarations(declared, styles.parse_declarations(values.get("style", "")))
    ways = styles.hiding_ways(declared)
    if "hidden" in values and "display" not in declared:
        ways |= {ALWAYS}
    if "color" not in declared and _WHITE_VALUES.fullmatch(values.get("color", "").strip()):
        ways |= {ON_WHITE}
    return ways


# ---- where hidden elements begin and end


def _cut_hidden(
    source: str,
    starts: Iterable[int],
    ways_of: Callable[[str, str], frozenset[str]],
    restored: RestoredStyles,
) -> tuple[str, str]:
    """Markup without its hidden elements, and the text of these.

    Parameters
    ----------
    starts
        Of tags that may hide, in order.
    ways_of
        How a tag hides, by name and attributes.
    restored
        What style sheets show after all.
    """
    visible: list[str] = []
    covered: list[str] = []
    position = 0
    tree = _OpenElements(source, restored)
    for start in starts:
        tag = TAG.match(source, start) if start >= position else None
        if tag is None or _is_inside_tag(source, start):
            continue
        name, attributes = tag.groups()
        ways = ways_of(name, attributes)
        if name not in _BOX_ELEMENTS:
            ways -= {IN_BOX}
        if not ways or name[0] in "/!?" or name in _VOID_ELEMENTS:
            continue
        if name in _TABLE_CONTENT and not tree.is_open("table", start):
            continue  # browsers ignore it there
        limit = max(tree.next_restored(way, tag.end()) for way in ways)
        end = tree.element_end(name, start, tag.end(), limit)
        begin = tag.end()
        if name == "table" or name in _TABLE_PARTS:
            # what stands before the first cell is shown above the table (HTML Standard,
            # section 13.2.6.4.9)
            cell = _CELL_TAG.search(source, begin, end)
            begin = cell.start() if cell else end
        visible += [source[position:start], source[tag.end() : begin]]
        covered.append(source[begin:end])
        position = end
    return "".join((*visible, source[position:])), " ".join(covered)


def _is_inside_tag(source: str, position: int) -> bool:
    """Whether a tag that has not ended yet reaches to a place: then none begins there."""
    before = TAG.match(source, max(source.rfind("<", 0, position), 0))
    return before is not None and before.end() == position and source[position - 1] != ">"


def _restoring_pattern(way: str, names: Collection[str]) -> re.Pattern[str] | None:
    """Finds tags that show again what is hidden in a way: by themselves, or by these names."""
    if way not in _RESTORING_TAGS or not names:
        return _RESTORING_TAGS.get(way)
    if styles.ANY_ELEMENT in names or len(names) > _MAX_SEARCHED_NAMES:
        return _ANY_TAG
    elements = "|".join([re.escape(name) for name in names if name[0] not in _SELECTOR_MARKS])
    marks = "|".join([re.escape(name[1:]) for name in names if name[0] in _SELECTOR_MARKS])
    choices = [_RESTORING_TAGS[way].pattern]
    if elements:
        choices.append(rf"<(?:{elements})(?![\w:-])")
    if marks:
        choices.append(rf"<[a-z][^<>]*(?:{marks})")
    return re.compile("|".join(choices))


class _OpenElements:
    """Which elements are open at a place, near enough: some count as closed by what follows them
    (HTML Standard, section 13.2.6.4).

    Goes forward only, so every tag is looked at once, however many questions there are.
    """

    def __init__(self, source: str, restored: RestoredStyles) -> None:
        self._source = source
        self._restored = restored
        self._patterns: dict[str, re.Pattern[str] | None] = {}
        self._open_counts: defaultdict[str, int] = defaultdict(int)
        self._position = 0
        self._restored_at: dict[str, int] = {}

    def is_open(self, name: str, position: int) -> bool:
        """Whether an element of that name is open at a place behind all earlier ones."""
        counts = self._open_counts
        for closing, tag in _NAMED_TAG.findall(self._source, self._position, position):
            if tag in _CLOSING_P:
                counts["p"] = 0
            if not closing:
                counts[tag] += 1
            elif counts[tag]:
                counts[tag] -= 1
        self._position = position
        return counts[name] > 0

    def next_restored(self, way: str, position: int) -> int:
        """Where text that is hidden in that way is seen again, from a place behind all earlier
        ones; the end of the page: nowhere.
        """
        if self._restored_at.get(way, -1) < position:
            if way not in self._patterns:
                names = styles.restored_names(self._restored, way)
                self._patterns[way] = _restoring_pattern(way, names)
            pattern = self._patterns[way]
            tag = pattern.search(self._source, position) if pattern else None
            self._restored_at[way] = tag.start() if tag else len(self._source)
        return self._restored_at[way]

    def element_end(self, name: str, start: int, position: int, limit: int) -> int:
        """Where the element ends whose start tag stands from `start` to `position`: at its end tag,
        at a tag that closes it as well, or at `limit`.
        """
        inside = defaultdict(int, {name: 1})
        for match in _NAMED_TAG.finditer(self._source, position, limit):
            closing, tag = match.groups()
            closes = self._end_tag_closes if closing else self._start_tag_closes
            if closes(name, tag, start, inside):
                return match.start()
            inside[tag] += -1 if closing and inside[tag] else not closing
        return limit

    def _end_tag_closes(
        self, name: str, tag: str, start: int, inside: defaultdict[str, int]
    ) -> bool:
        """Whether an end tag closes the element: its own, or that of an element around it."""
        if tag == name:
            return inside[tag] == 1
        return tag in BLOCK_ELEMENTS and not inside[tag] and self._ends_with(name, tag, start)

    def _start_tag_closes(
        self, name: str, tag: str, start: int, inside: defaultdict[str, int]
    ) -> bool:
        """Whether a start tag closes the element: it begins the next of its kind, or of an element
        around it.
        """
        if name == tag == "table":
            return not any(inside[cell] for cell in (*_CELLS, "caption"))
        kinds, outer_elements = _CLOSED_BY_START_TAG.get(tag, ((), ()))
        begins_next = name in kinds or (
            name not in _TABLE_PARTS
            and any(self._ends_with(name, outer, start) for outer in outer_elements)
        )
        if begins_next and not any(inside[outer] for outer in outer_elements):
            return True
        return tag in _CLOSING_P and (
            name == "p" or (name not in BLOCK_ELEMENTS and self._ends_with(name, "p", start))
        )

    def _ends_with(self, name: str, outer: str, start: int) -> bool:
        """Whether the end of another element ends this one: if the other is around it, and this is
        no formatting that goes on behind.
        """
        return name not in _FORMATTING_ELEMENTS and self.is_open(outer, start)
