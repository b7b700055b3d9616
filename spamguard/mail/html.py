"""Which elements of a page hide what they hold: by their own attributes, or by what style sheets
say of their classes.

Works like `html` on lower-case markup by regular expressions, in time linear in its length. A page
has many ways to hide text, and more to undo it; these are those that mail uses. It must never raise
and never fetch anything.

HTML to what a reader sees, what a reader does not see, and how it is built.

Works on lower-case markup with regular expressions that are linear in its length, not on a tree:
hostile markup is cut short, never followed. It must never raise and never fetch anything.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from html.entities import html5
from itertools import accumulate, islice
from typing import NamedTuple

from spamguard import native
from spamguard.mail import markup, styles
from spamguard.mail.markup import Markup, strip_leading_zeros
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
from spamguard.mail.text import fold

_BLOCK_NAMES = (
    "p div td th tr table tbody li ol ul h1 h2 h3 h4 h5 h6 hr center blockquote pre dl dt dd form option select button html head title body"
    " address article aside caption details dir fieldset figcaption figure footer header legend main menu nav section summary"
)
BLOCK_ELEMENTS = frozenset(_BLOCK_NAMES.split())
"""Elements that begin and end lines or cells."""
TAG = re.compile(r"<([/!?a-z][^<> \t\n\r\f/]*+)([^<>]*+)>?")
# An attribute that is one by itself, and one of colour: white hides on white.
_HIDDEN_ATTRIBUTE = re.compile(r"hidden(?<=[\s/\"']hidden)(?=[\s>=/]|\Z)")
_LIGHT_GROUND = r"white|#fff|#f[a-f0-9]f|transparent|none|inherit|" + styles.BRIGHT
_WHITE_TEXT = re.compile(
    rf"color(?<![\w-]color)\s*+[:=]\s*+[\"']?\s*+(?:white|#?f(?:ff|[a-f0-9]f[a-f0-9]f[a-f0-9])|{styles.BRIGHT})"
)
# Names of characters are undone in attributes: with these every other sign may be written.
_ATTRIBUTE_SIGNS = (
    ("hidden", _HIDDEN_ATTRIBUTE),
    ("&", re.compile("&(?:#(?!39;|34;)|colon|tab|newline)")),
)
_CHARACTER_REFERENCE = re.compile(
    r"&(?:#[0-9]{1,9}|#x[0-9a-f]{1,9}|[a-z]{2,9});?"
)  # bounded: numbers of thousands of digits are errors
_CAPITALISED_REFERENCES = {
    f"&{name.lower()}": sign for name, sign in html5.items() if name.lower() not in html5
}  # "&Tab;"
_SELECTOR_MARKS = (".", "#")
_NOT_HIDDEN: frozenset[str] = frozenset()
_NO_RESTORED_STYLES = RestoredStyles({}, {})
_WHITE_VALUES = re.compile(r"white|#?fff|#?f[a-f0-9]f[a-f0-9]f[a-f0-9]")
_DARK_GROUND = re.compile(
    rf"b(?:gcolor|ackground(?:-color|-image)?)\s*+[:=]\s*+[\"']?\s*+(?!{_LIGHT_GROUND})[#\w]"
)
# What gives to text again what it had lost. Bounded, since a tag may name many.
_RESTORING_TAGS = {
    UNTIL_SIZED: re.compile(
        r"<(?:font\b[^<>]*\bsize|[a-z][^<>]*font(?:-size)?\s*+:[^<>;\"']{0,60}?"
        r"(?:(?<![\d.])(?:[2-9]|[1-9]\d{1,3})(?:\.\d{0,4})?p[xt]|[\d.]{1,6}rem|small|medium|large))"
    ),
    UNTIL_COLOURED: re.compile(
        rf"<[a-z][^<>]*(?<![\w-])color\s*+[:=]\s*+[\"']?\s*+(?!{_LIGHT_GROUND})[#\w]"
    ),
    UNTIL_VISIBLE: re.compile(r"<[a-z][^<>]*visibility\s*+:\s*+visible"),
}
_RESTORING_TAGS[ON_WHITE] = _RESTORING_TAGS[UNTIL_COLOURED]
# As browsers read tags: quotes begin values only; a value that is not closed ends with its tag.
_ATTRIBUTE = re.compile(
    r"([^\s<>/][^\s<>/=]*+)(?:\s*+=\s*+(?:\"([^\"<>]*+)\"?|'([^'<>]*+)'?|([^\s\"'<>][^\s<>]*+)))?"
)
_HIDING_ATTRIBUTE_NAMES = frozenset(("style", "color", "hidden", "class", "id"))
_NAMED_TAG = re.compile(r"<(/?)([a-z][\w:-]{0,20})")
# Elements that a start tag closes (HTML Standard, section 13.1.2.4), unless a list or table begins
# in between.
_HEADING_ELEMENTS = ("h1", "h2", "h3", "h4", "h5", "h6")
_LIST_ELEMENTS, _TABLE_ELEMENT, _CELL_ELEMENTS, _ROW_GROUPS = (
    ("ul", "ol"),
    ("table",),
    ("td", "th"),
    ("tbody", "thead", "tfoot"),
)
_CLOSED_BY_START_TAG: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "li": (_LIST_ELEMENTS, ("li",)),
    "dt": (("dl",), ("dt", "dd")),
    "dd": (("dl",), ("dt", "dd")),
    "td": (_TABLE_ELEMENT, _CELL_ELEMENTS),
    "th": (_TABLE_ELEMENT, _CELL_ELEMENTS),
    "tr": (_TABLE_ELEMENT, (*_CELL_ELEMENTS, "tr")),
    **dict.fromkeys(_ROW_GROUPS, (_TABLE_ELEMENT, (*_CELL_ELEMENTS, "tr", *_ROW_GROUPS))),
    "a": ((), ("a",)),
    **dict.fromkeys(_HEADING_ELEMENTS, ((), _HEADING_ELEMENTS)),
}
_TABLE_PARTS = frozenset(("tr", *_ROW_GROUPS))
_TABLE_CONTENT = _TABLE_PARTS | frozenset(_CELL_ELEMENTS)
_CELL_TAG = re.compile(r"<(?:t[dh]|caption)\b")
_NOT_CLOSING_P = "td th tr tbody caption option select button legend html head title body"
_CLOSING_P = BLOCK_ELEMENTS - frozenset(_NOT_CLOSING_P.split())
# These go on behind the end of what is around them.
_FORMATTING_ELEMENTS = frozenset(
    (
        "a",
        "b",
        "big",
        "code",
        "em",
        "font",
        "i",
        "nobr",
        "s",
        "small",
        "strike",
        "strong",
        "tt",
        "u",
    )
)
_VOID_ELEMENTS = frozenset(
    ("area", "base", "br", "col", "hr", "img", "input", "link", "meta", "param", "source", "wbr")
)
_ANY_TAG = re.compile("<[a-z]")
_MAX_SEARCHED_NAMES = 50  # to look for more of them at once costs more than it tells
_MAX_SEARCHES = 10  # searches cost less than a look at all tags
_MAX_NAME_CHARACTERS = 70  # characters of the names of elements that are looked for
_BOX_ELEMENTS = BLOCK_ELEMENTS - _TABLE_PARTS - {"td", "th", "table", "html", "head", "body"}


def remove_hidden(source: str, attributes: Collection[str], style: str) -> tuple[str, list[str]]:
    """Markup without the elements whose own tag hides them, and those elements in one, if any tag
    does.

    source: with no sign of a tag in quoted values. attributes: of all tags, each once. style: text
    of the style sheets.
    """
    rules = styles.hiding_rules(style) if style else {}
    hiding = _find_hiding_attributes(list(attributes), styles.rules_of_any_element(rules), style)
    elements = {name for name in rules if name[0] not in _SELECTOR_MARKS and "<" + name in source}
    if not hiding and not elements:
        return source, []
    again = styles.restored_styles(style, rules) if style else _NO_RESTORED_STYLES

    @lru_cache(maxsize=64)
    def look(name: str, own: str) -> frozenset[str]:
        known = hiding.get(own, _NOT_HIDDEN)
        if name in elements:
            return _hiding_ways(own, rules, name, again)
        return (
            known & _hiding_ways(own, rules, name, again)
            if known and (rules or any(again))
            else known
        )

    left, covered = _cut_hidden(source, _candidate_starts(source, hiding, elements), look, again)
    return left, [covered]


def _candidate_starts(source: str, hiding: Collection[str], elements: Collection[str]) -> list[int]:
    """Where tags with these attributes, or of these elements, may stand, in order."""
    if elements or len(hiding) > _MAX_SEARCHES:
        return [
            found.start()
            for found in TAG.finditer(source)
            if found[2] in hiding or found[1] in elements
        ]
    return sorted(start for own in hiding for start in _attribute_starts(source, own))


def _attribute_starts(source: str, attributes: str) -> Iterator[int]:
    """Where tags with these attributes may stand."""
    place = source.find(attributes)
    while place >= 0:
        yield source.rfind("<", max(place - _MAX_NAME_CHARACTERS, 0), place)
        place = source.find(attributes, place + len(attributes))


def _find_hiding_attributes(
    attributes: Sequence[str], rules: Mapping[str, Declarations], style: str
) -> dict[str, frozenset[str]]:
    """Attributes that hide, whatever element they belong to, and how. White text hides unless the
    page sets a dark ground.
    """
    joined = "\n".join(attributes)
    signs = styles.find_hiding_signs(joined)
    signs += [pattern for word, pattern in _ATTRIBUTE_SIGNS if word in joined]
    white = (
        "color" in joined
        and _WHITE_TEXT.search(joined)
        and not _DARK_GROUND.search(joined + "\n" + style)
    )
    if white:
        signs.append(_WHITE_TEXT)
    if names := "|".join(
        [re.escape(name[1:]) for name in rules if name[0] in _SELECTOR_MARKS and name[1:] in joined]
    ):
        signs.append(re.compile(names))
    if not signs:
        return {}
    starts = list(accumulate([len(one) + 1 for one in attributes], initial=0))
    looked = {
        bisect_right(starts, found.start()) - 1 for sign in signs for found in sign.finditer(joined)
    }
    found = {attributes[place]: _hiding_ways(attributes[place], rules) for place in looked}
    return {
        one: hides for one, ways in found.items() if (hides := ways if white else ways - {ON_WHITE})
    }


def _hiding_ways(
    attributes: str,
    rules: Mapping[str, Declarations],
    element: str = "",
    again: RestoredStyles = _NO_RESTORED_STYLES,
) -> frozenset[str]:
    """How these attributes hide an element. Titles and other texts may say anything; of two
    attributes of a name the first counts.

    again: what style sheets let be seen after all.
    """
    given: dict[str, str] = {}
    for found in _ATTRIBUTE.finditer(attributes):
        if found[1] in _HIDING_ATTRIBUTE_NAMES:
            given.setdefault(found[1], attribute_value(found[found.lastindex or 1]))
    declared: Declarations = {}
    names = [
        *["." + one for one in given.get("class", "").split()],
        "#" + given.get("id", "").strip(),
    ]
    for sheet, concerned in (  # by their weight
        (rules, (element,)),
        (again.weak, (styles.ANY_ELEMENT, element)),
        (rules, (*names, *[element + name for name in names])),
        (again.strong, (styles.ANY_ELEMENT, element, *names)),
    ):
        for name in concerned if sheet else ():
            if name in sheet:
                styles.merge_declarations(declared, sheet[name])
    styles.merge_declarations(declared, styles.parse_declarations(given.get("style", "")))
    hides = styles.hiding_ways(declared)
    if "hidden" in given and "display" not in declared:
        hides |= {ALWAYS}
    return (
        hides | {ON_WHITE}
        if "color" not in declared and _WHITE_VALUES.fullmatch(given.get("color", "").strip())
        else hides
    )


def attribute_value(written: str) -> str:
    """An attribute's, with its references to characters undone."""
    return (
        _CHARACTER_REFERENCE.sub(_resolve_match, strip_leading_zeros(written))
        if "&" in written
        else written
    )


def _resolve_match(reference: re.Match[str]) -> str:
    return resolve_reference(reference[0])


def resolve_reference(reference: str) -> str:
    """What a reference to a character stands for, in lower case as all markup here."""
    return _CAPITALISED_REFERENCES.get(reference) or html.unescape(reference)


def _cut_hidden(
    source: str,
    starts: Iterable[int],
    look: Callable[[str, str], frozenset[str]],
    given: RestoredStyles,
) -> tuple[str, str]:
    """Markup without the elements that are hidden, and those elements. starts: of tags that may
    hide, in order; look: how they do, by name and attributes; given: what style sheets let be seen.
    """
    shown: list[str] = []
    covered: list[str] = []
    position = 0
    tree = _OpenElements(source, given)
    for start in starts:
        tag = TAG.match(source, start) if start >= position else None
        if tag is None or _is_inside_tag(source, start):
            continue
        name, attributes = tag.groups()
        ways = look(name, attributes)
        if name not in _BOX_ELEMENTS:
            ways -= {IN_BOX}
        if ways and name[0] not in "/!?" and name not in _VOID_ELEMENTS:
            if name in _TABLE_CONTENT and not tree.is_open(
                "table", start
            ):  # ignored there, as if it were not
                continue
            end = tree.element_end(
                name, start, tag.end(), max(tree.next_restored(way, tag.end()) for way in ways)
            )
            begin = (
                _first_cell(source, tag.end(), end)
                if name == "table" or name in _TABLE_PARTS
                else tag.end()
            )
            shown += [source[position:start], source[tag.end() : begin]]
            covered.append(source[begin:end])
            position = end
    return "".join((*shown, source[position:])), " ".join(covered)


def _is_inside_tag(source: str, place: int) -> bool:
    """Whether what looks like a tag stands within another that has no end yet: there it is none."""
    before = TAG.match(source, max(source.rfind("<", 0, place), 0))
    return before is not None and before.end() == place and source[place - 1] != ">"


def _first_cell(source: str, start: int, end: int) -> int:
    """Where the first cell of a table begins: what stands before it is shown in front of the table
    (HTML Standard, section 13.2.6.4.9).
    """
    cell = _CELL_TAG.search(source, start, end)
    return cell.start() if cell else end


def _restoring_pattern(way: str, names: Collection[str]) -> re.Pattern[str] | None:
    """Finds tags that give to text again what it had lost in that way: by themselves, or by these
    names.
    """
    if way not in _RESTORING_TAGS or not names:
        return _RESTORING_TAGS.get(way)
    if styles.ANY_ELEMENT in names or len(names) > _MAX_SEARCHED_NAMES:
        return _ANY_TAG
    elements = "|".join([re.escape(name) for name in names if name[0] not in _SELECTOR_MARKS])
    marks = "|".join([re.escape(name[1:]) for name in names if name[0] in _SELECTOR_MARKS])
    found = [
        _RESTORING_TAGS[way].pattern,
        rf"<(?:{elements})(?![\w:-])" if elements else "",
        rf"<[a-z][^<>]*(?:{marks})" if marks else "",
    ]
    return re.compile("|".join(filter(None, found)))


class _OpenElements:
    """What is open at a place of a page, near enough: elements that others close count as open no
    longer (HTML Standard, section 13.2.6.4).

    Goes forward only, so that however often it is asked, every tag is looked at once.
    """

    def __init__(self, source: str, given: RestoredStyles) -> None:
        self._source = source
        self._restored_styles = given
        self._patterns: dict[str, re.Pattern[str] | None] = {}
        self._open_counts: defaultdict[str, int] = defaultdict(int)
        self._position = 0
        self._restored_at: dict[str, int] = {}

    def is_open(self, name: str, place: int) -> bool:
        """Whether an element of that name is open at a place, which is behind all asked for before."""
        count = self._open_counts
        for closing, tag in _NAMED_TAG.findall(self._source, self._position, place):
            if tag in _CLOSING_P:
                count["p"] = 0
            if not closing:
                count[tag] += 1
            elif count[tag]:
                count[tag] -= 1
        self._position = place
        return self._open_counts[name] > 0

    def next_restored(self, way: str, place: int) -> int:
        """Where text that is hidden in that way begins to be seen again, from a place on behind all
        asked for before; the end of the page: nowhere.
        """
        if self._restored_at.get(way, -1) < place:
            if way not in self._patterns:
                self._patterns[way] = _restoring_pattern(
                    way, styles.restored_names(self._restored_styles, way)
                )
            pattern = self._patterns[way]
            found = pattern.search(self._source, place) if pattern else None
            self._restored_at[way] = found.start() if found else len(self._source)
        return self._restored_at[way]

    def element_end(self, name: str, start: int, position: int, most: int) -> int:
        """Where the element whose start tag stands from `start` to `position` ends: at its end tag,
        or at a tag that closes it as well; at `most` if there is none before.
        """
        inside = defaultdict(int, {name: 1})
        for match in _NAMED_TAG.finditer(self._source, position, most):
            closing, tag = match.groups()
            if (
                self._end_tag_closes(name, tag, start, inside)
                if closing
                else self._start_tag_closes(name, tag, start, inside)
            ):
                return match.start()
            inside[tag] += -1 if closing and inside[tag] else not closing
        return most

    def _end_tag_closes(
        self, name: str, tag: str, start: int, inside: defaultdict[str, int]
    ) -> bool:
        """Whether an end tag closes the element: its own, or of what is around it."""
        return (
            inside[tag] == 1
            if tag == name
            else tag in BLOCK_ELEMENTS and not inside[tag] and self._is_closed_by(name, tag, start)
        )

    def _start_tag_closes(
        self, name: str, tag: str, start: int, inside: defaultdict[str, int]
    ) -> bool:
        """Whether a start tag closes the element: it begins the next of its kind, or of what is
        around it.
        """
        if name == tag == "table":
            return not any(inside[cell] for cell in (*_CELL_ELEMENTS, "caption"))
        lists, kinds = _CLOSED_BY_START_TAG.get(tag, ((), ()))
        next_of_its_kind = name in kinds or (
            name not in _TABLE_PARTS
            and any(self._is_closed_by(name, outer, start) for outer in lists)
        )
        if next_of_its_kind and not any(inside[outer] for outer in lists):
            return True
        return tag in _CLOSING_P and (
            name == "p" or (name not in BLOCK_ELEMENTS and self._is_closed_by(name, "p", start))
        )

    def _is_closed_by(self, name: str, outer: str, start: int) -> bool:
        """Whether the end of something closes an element: if it is around it, and unless the format
        of text goes on behind.
        """
        return name not in _FORMATTING_ELEMENTS and self.is_open(outer, start)


_ENTITY = re.compile(r"&(?:#[0-9]{1,30}+|#x[0-9a-f]{1,30}+|[a-z][a-z0-9]{1,31}+);?")
# At these a reader sees a gap; all other tags leave none: "v<b></b>iagra" is read as one word.
_BREAKING_TAGS = BLOCK_ELEMENTS | {f"/{name}" for name in BLOCK_ELEMENTS} | {"br", "img", "input"}
_ODD_CHARACTERS = ("&#", "&colon", "&sol", "&tab", "&newline")
_BEFORE_SCHEMELESS_LINK = frozenset("\"'= \t\n")  # in front of two slashes
_ODD_SCHEME = re.compile(r"https?:(?!//[^/])")
_BROKEN_LINK = re.compile(
    r"=(?<=[fcn\s]=)\s*+(?:\"[^\"\t\n\r]*+|'[^'\t\n\r]*+)[\t\n\r]"
)  # of href, src, action, and seldom of others
_DROPPED_IN_LINKS = dict.fromkeys(map(ord, "\t\n\r"))
_LINK_ATTRIBUTE = re.compile(
    r"(?:href|src|action)\s*+=\s*+(?:\"\s*+([^\"]*+)|'\s*+([^']*+)|([^\s\"'][^\s]*+))"
)
_LINK_ADDRESS = re.compile(
    r"(?:(https?):[/\\]*+|[/\\]{2,}+)([^\s\"'<>/\\]{3,100}+[^\s\"'<>]{0,300}+).*", re.S
)
_MAX_LINKS = 300
_MAX_LITTLE_TEXT = 2000  # characters, most of them blanks where tags stood


class HtmlPage(NamedTuple):
    """visible, hidden: text a reader does or does not see. tags: names of the tags and their
    distinct attributes. links: those that are not written as addresses are, so many at most.

    markup: characters of all tags. images: how many there are; linked: one of them stands within a
    link, looked at only where there is little text.
    """

    visible: str
    hidden: str
    tags: str
    markup_length: int
    images: int
    linked_image: bool
    links: Sequence[str] = ()


def parse_page(source: str) -> HtmlPage:
    """Take a page in lower case apart; time and memory linear in its length."""
    found, shown = _scan_visible(source)
    source, unseen, style = found
    attributes = "\n".join(shown.attributes)
    left, covered = remove_hidden(source, shown.attributes, style)
    unseen += covered
    if left != source:
        source, shown = left, _scan_tags(left)
    hidden = TAG.sub(" ", " ".join(unseen)) if unseen else ""
    return _make_page(source, shown, attributes, shown.text, hidden)._replace(
        links=_odd_links(attributes)
    )


def _odd_links(attributes: str) -> list[str]:
    """Links with references to characters, with backslashes, tabs or line ends within, or without a
    scheme or its slashes, as browsers read them (URL Standard, section 4.4).
    """
    if not _has_odd_links(attributes):
        return []
    written = [
        found[found.lastindex or 0]
        for found in islice(_LINK_ATTRIBUTE.finditer(attributes), _MAX_LINKS)
    ]
    links = [
        link
        for one in written
        if (link := _LINK_ADDRESS.fullmatch(_normalise_link(one))) and not _is_plain_link(one, link)
    ]
    return [f"{link[1] or 'https'}://{link[2]}" for link in links]


def _normalise_link(written: str) -> str:
    return attribute_value(written).translate(_DROPPED_IN_LINKS).strip().lower()


def _has_odd_links(attributes: str) -> bool:
    if _ODD_SCHEME.search(attributes) or _BROKEN_LINK.search(attributes):
        return True
    if "\\" in attributes or (
        "&" in attributes and any(map(attributes.__contains__, _ODD_CHARACTERS))
    ):
        return True
    return not _BEFORE_SCHEMELESS_LINK.isdisjoint(
        [before[-1:] for before in attributes.split("//")[:-1]]
    )


def _is_plain_link(written: str, link: re.Match[str]) -> bool:
    """Whether it is found wherever it stands."""
    return written.replace("&amp;", "&").strip() == link[0] and written.startswith(
        f"{link[1]}://{link[2][:1]}"
    )


def parse_plain_text(source: str) -> HtmlPage:
    """The same of text that is called plain: readers show all of it, tags too. Nothing is hidden,
    and attributes are text.
    """
    shown = _scan_tags(source)
    return _make_page(
        source, shown, "\n".join(shown.attributes), "\n".join((shown.text, *shown.attributes))
    )


def _make_page(
    source: str, shown: _ScannedMarkup, attributes: str, visible: str, hidden: str = ""
) -> HtmlPage:
    linked = shown.linked_image and len(visible) <= _MAX_LITTLE_TEXT
    tags = " ".join(shown.names) + attributes
    return HtmlPage(
        _replace_entities(visible),
        _replace_entities(hidden),
        tags,
        len(source) - len(shown.text),
        shown.images,
        linked,
    )


class _ScannedMarkup(NamedTuple):
    """Text between tags. names, attributes: of the tags, each once, in order. images: how many;
    linked: one stands within a link.
    """

    text: str
    names: Collection[str]
    attributes: Collection[str]
    images: int
    linked_image: bool


def _scan_visible(source: str) -> tuple[Markup, _ScannedMarkup]:
    """Markup without what is unseen, and what is in it."""
    found = markup.parse_simple_markup(source)
    if found is not None:
        shown = _scan_tags(found.source)
        if not markup.is_ambiguous(found.source, shown.text, shown.names, shown.attributes):
            return found, shown
    found = markup.parse_markup(source)
    return found, _scan_tags(found.source)


def _scan_tags(source: str) -> _ScannedMarkup:
    compiled = native.functions()
    if compiled is not None:
        with suppress(UnicodeEncodeError):
            return _ScannedMarkup(*compiled.markup(source, _BREAKING_TAGS))
    pieces = TAG.split(source)  # text, name of the tag, its attributes, text …
    names, attributes = pieces[1::3], pieces[2::3]
    pieces[1::3] = [" " if name in _BREAKING_TAGS else "" for name in names]
    pieces[2::3] = [""] * len(names)
    return _ScannedMarkup(
        "".join(pieces),
        dict.fromkeys(names),
        dict.fromkeys(attributes),
        names.count("img"),
        _has_linked_image(names),
    )


def _has_linked_image(names: list[str]) -> bool:
    """Whether a picture stands within a link."""
    within = False
    for name in names:
        if name == "img" and within:
            return True
        within = name == "a" or (within and name != "/a")
    return False


def _replace_entities(text: str) -> str:
    """Entities replaced. Their length is bounded, since `html.unescape` raises at numbers of
    thousands of digits.
    """
    if "&" not in text:
        return text
    return _ENTITY.sub(
        _fold_match, markup.strip_leading_zeros(text.replace("&nbsp;", " "))
    )  # most of them are this one


def _fold_match(match: re.Match[str]) -> str:
    return _folded_entity(match.group())


@lru_cache(maxsize=1024)
def _folded_entity(entity: str) -> str:
    """Folded at once, so that a page whose only foreign character is a no-break space stays ASCII
    and cheap.
    """
    return fold(resolve_reference(entity))
