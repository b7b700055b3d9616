"""HTML to what a reader sees, what a reader does not see, and how the page is built.

`parse_page` takes out what is never seen (comments, scripts, styles, titles), then what hides
itself: `_PageStyle` says what attributes and style sheets do to an element, `_part_hidden` follows
the elements. Text that counts as hidden stays evidence, in a section of its own, so little is
gained by showing it after all in a way that is not known here.

Works on lower-case markup, in time linear in its length, not on a tree: hostile markup is cut
short, never followed. Must never raise and never fetch anything.

It is written by hand because `html.parser` takes 25 times as long for the tags of a message, and
the fastest parser that builds a tree twice as long; neither says what is hidden.
"""

from __future__ import annotations

import html
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from html.entities import html5
from itertools import islice
from typing import NamedTuple

from spamguard.mail.text import fold

_BLOCK_NAMES = (
    "p div td th tr table tbody li ol ul h1 h2 h3 h4 h5 h6 hr center blockquote pre dl dt dd form"
    " option select button html head title body address article aside caption details dir fieldset"
    " figcaption figure footer header legend main menu nav section summary"
)
# At these a reader sees a gap; other tags leave none: "v<b></b>iagra" is read as one word.
_BLOCKS = frozenset(_BLOCK_NAMES.split())
_BREAKING_TAGS = frozenset(("br", "img", "input", *_BLOCKS, *["/" + name for name in _BLOCKS]))
_VOID_ELEMENTS = frozenset(
    ("area", "base", "br", "col", "hr", "img", "input", "link", "meta", "param", "source", "wbr")
)
_NAME = r"[/!?a-z][^<> \t\n\r\f/]*+"
_TAG = re.compile(rf"<({_NAME})([^<>]*+)>?")
# Possessive, and without "<": a value that is not closed must not take the page with it. An empty
# choice in a possessive group keeps Python before 3.11.5 from misreading it.
_INSIDE = r"(?:[^<>=]++|=(?:\s*+(?:\"[^\"<]*+\"|'[^'<]*+')|)|)*+"
_TAG_WITH_VALUES = re.compile(rf"<({_NAME})({_INSIDE})>?")
_OPEN_VALUE = re.compile(r"=\s*+(?:\"[^\"<]*+<|'[^'<]*+<)")
DATA = re.compile(r"data:[^\s\"'<>()]{100,}+")
"""A picture, or the like, within an address."""
# "<!-->" is a whole comment (HTML Standard, section 13.2.5.43). What is not closed takes the rest.
_UNSEEN = re.compile(
    r"<(?:!--(?:-?>|((?:[^-]++|-(?!-!?>)|)*+)(?:--!?>)?)"
    r"|(script|style|template|title|iframe|noembed|noframes)(?=[\s/>])([^<>]*+)>?"
    r"((?:[^<]++|<(?!/\2[\s/>])|)*+)(?:</\2[^<>]*+>?)?)"
)
_UNSEEN_TEXTS = frozenset(("title", "iframe", "noembed", "noframes"))
# Sheets for paper; what hides a page until a script has run (AMP for Email).
_NOT_IN_FORCE = re.compile(
    r"boilerplate|media\s*+=\s*+[\"']?\s*+(?!(?:only\s++)?(?:screen|all)\s*+(?:[\"',]|\Z))"
)
_MAX_LITTLE_TEXT = 2000  # characters, most of them blanks where tags stood
_MAX_HIDDEN = 64 << 10  # characters of hidden text
_SPACED_LETTERS = re.compile(r"  [a-z](?:  [a-z](?=  |\Z)){3,}")  # one in each table cell


class HtmlPage(NamedTuple):
    """A page taken apart.

    visible, hidden: text that a reader sees, or not. tags: names of the tags, and their distinct
    attributes. markup_length: characters of all tags. linked_image: whether an image stands within
    a link; looked at only where there is little text. links: a bounded number of those that are not
    written as addresses are.
    """

    visible: str
    hidden: str
    tags: str
    markup_length: int
    images: int
    linked_image: bool
    links: Sequence[str]


def parse_page(source: str) -> HtmlPage:
    """Take a page in lower case apart."""
    markup = DATA.sub("data:", source) if "data:" in source else source
    pieces = _UNSEEN.split(markup)  # markup, comment, name, attributes, text of an element, markup
    unseen: list[str] = []
    style = ""
    if len(pieces) > 1:
        markup = "".join(pieces[::5])
        unseen += filter(None, pieces[1::5])
        for name, attributes, text in zip(pieces[2::5], pieces[3::5], pieces[4::5], strict=True):
            if name in _UNSEEN_TEXTS:
                unseen.append(text)
            elif name == "style" and not _NOT_IN_FORCE.search(attributes):
                style += text
    scan = _scan_tags(markup)
    attributes = " ".join(scan.attributes)
    looks = _hiding_looks(scan, attributes, style)
    visible, covered = _part_hidden(scan, looks) if looks else ("".join(_pieces_of(scan)), "")
    hidden = _TAG.sub(" ", " ".join((*unseen, covered))[:_MAX_HIDDEN])
    return _make_page(markup, scan, attributes, visible, hidden, _odd_links(attributes))


def parse_plain_text(source: str) -> HtmlPage:
    """Take text apart that looks like HTML but is declared as plain: readers see all of it, tags
    and attributes too.
    """
    scan = _scan_tags(source)
    attributes = " ".join(scan.attributes)
    return _make_page(source, scan, attributes, "".join(_pieces_of(scan)) + "\n" + attributes)


def _make_page(
    source: str,
    scan: _Scan,
    attributes: str,
    visible: str,
    hidden: str = "",
    links: Sequence[str] = (),
) -> HtmlPage:
    return HtmlPage(
        _SPACED_LETTERS.sub(
            lambda word: " " + word[0].replace(" ", ""), _replace_entities(visible)
        ),
        _replace_entities(hidden),
        " ".join(dict.fromkeys(scan.names)) + attributes,
        len(source) - sum(map(len, scan.texts)),
        scan.names.count("img"),
        len(visible) <= _MAX_LITTLE_TEXT and _has_linked_image(scan.names),
        links,
    )


class _Scan(NamedTuple):
    """The texts before, between and behind tags; of each tag its name and what stands behind it;
    and that once.
    """

    texts: list[str]
    names: list[str]
    insides: list[str]
    attributes: Collection[str]


def _scan_tags(source: str) -> _Scan:
    pieces = _TAG.split(source)
    insides = pieces[2::3]
    attributes = dict.fromkeys(insides)
    if _OPEN_VALUE.search("<".join(attributes) + "<"):
        pieces = _TAG_WITH_VALUES.split(source)  # a sign in a quoted value ends no tag
        insides = pieces[2::3]
        attributes = dict.fromkeys(insides)
    return _Scan(pieces[::3], pieces[1::3], insides, attributes)


def _pieces_of(scan: _Scan) -> list[str]:
    """The texts, and between any two what a reader sees of the tag."""
    pieces = [""] * (2 * len(scan.names) + 1)
    pieces[::2] = scan.texts
    pieces[1::2] = [" " if name in _BREAKING_TAGS else "" for name in scan.names]
    return pieces


def _has_linked_image(names: list[str]) -> bool:
    in_link = False
    for name in names if "img" in names else ():
        if name == "img" and in_link:
            return True
        in_link = name == "a" or (in_link and name != "/a")
    return False


# ---- references to characters

_ENTITY = re.compile(r"&(?:#[0-9]{1,30}+|#x[0-9a-f]{1,30}+|[a-z][a-z0-9]{1,31}+);?")
_LEADING_ZEROS = re.compile(r"(?<=&#)0++(?=[0-9])|(?<=&#x)0++(?=[0-9a-f])")
_CAPITALISED_REFERENCES = {  # such as "&Tab;"
    f"&{name.lower()}": sign for name, sign in html5.items() if name.lower() not in html5
}


def _replace_entities(text: str) -> str:
    if "&" not in text:
        return text
    # most of them are this one
    text = _strip_leading_zeros(text.replace("&nbsp;", " "))
    return _ENTITY.sub(lambda entity: _folded_entity(entity[0]), text)


def _attribute_value(written: str) -> str:
    if "&" not in written:
        return written
    return _ENTITY.sub(
        lambda entity: _resolve_reference(entity[0][:12]), _strip_leading_zeros(written)
    )


@lru_cache(maxsize=1024)
def _folded_entity(entity: str) -> str:
    """Folded at once: a page whose only foreign character is a no-break space stays ASCII, which is
    cheap. Their length is bounded, because `html.unescape` raises at thousands of digits.
    """
    return fold(_resolve_reference(entity))


def _resolve_reference(reference: str) -> str:
    """References are in lower case like all markup."""
    return _CAPITALISED_REFERENCES.get(reference) or html.unescape(reference)


def _strip_leading_zeros(source: str) -> str:
    return _LEADING_ZEROS.sub("", source) if "&#0" in source or "&#x0" in source else source


# ---- links as browsers read them (URL Standard, section 4.4)

_ODD_CHARACTERS = ("&#", "&colon", "&sol", "&tab", "&newline")
_BEFORE_SCHEMELESS_LINK = frozenset("\"'= \t\n")  # in front of two slashes
_ODD_SCHEME = re.compile(r"https?:(?!//[^/])")
# Of href, src, action, background, and rarely of others.
_BROKEN_LINK = re.compile(r"=(?<=[fcnd\s]=)\s*+(?:\"[^\"\t\n\r]*+|'[^'\t\n\r]*+)[\t\n\r]")
_LINK_ATTRIBUTE = re.compile(
    r"(?:href|src|action|background)\s*+=\s*+"
    r"(?:\"\s*+([^\"]*+)|'\s*+([^']*+)|([^\s\"'][^\s]*+))"
)
_LINK_ADDRESS = re.compile(
    r"(?:(https?):[/\\]*+|[/\\]{2,}+)([^\s\"'<>/\\]{3,100}+[^\s\"'<>]{0,300}+).*", re.S
)
_DROPPED_IN_LINKS = dict.fromkeys(map(ord, "\t\n\r"))
_MAX_LINKS = 300


def _odd_links(attributes: str) -> list[str]:
    """Links that a search for addresses misses: with character references, backslashes, tabs or
    line ends, or without a scheme or its slashes.
    """
    if not _has_odd_links(attributes):
        return []
    links = []
    for match in islice(_LINK_ATTRIBUTE.finditer(attributes), _MAX_LINKS):
        written = match[match.lastindex or 0]
        address = _attribute_value(written).translate(_DROPPED_IN_LINKS).strip().lower()
        if link := _LINK_ADDRESS.fullmatch(address):
            scheme, rest = link.groups()
            is_plain = written.replace("&amp;", "&").strip() == address and written.startswith(
                f"{scheme}://{rest[:1]}"
            )
            if not is_plain:
                links.append(f"{scheme or 'https'}://{rest}")
    return links


def _has_odd_links(attributes: str) -> bool:
    if "\\" in attributes or _ODD_SCHEME.search(attributes):
        return True
    if "&" in attributes and any(sign in attributes for sign in _ODD_CHARACTERS):
        return True
    if attributes.count("//") != attributes.count("://"):
        before_slashes = [before[-1:] for before in attributes.split("//")[:-1]]
        if not _BEFORE_SCHEMELESS_LINK.isdisjoint(before_slashes):
            return True
    is_broken = any(map(attributes.__contains__, "\t\n\r"))
    return is_broken and _BROKEN_LINK.search(attributes) is not None


# ---- colours

Colour = tuple[int, int, int]
_WHITE = (255, 255, 255)
_UNKNOWN, _CLEAR = (-999, -999, -999), (-99, -99, -99)  # like no other
_NAMED_COLOURS = {
    name: (int(code[:2], 16), int(code[2:4], 16), int(code[4:], 16))
    for name, code in re.findall(
        r"(\w+) (\w+)",
        "white ffffff black 000000 red ff0000 lime 00ff00 blue 0000ff yellow ffff00 aqua 00ffff"
        " cyan 00ffff fuchsia ff00ff magenta ff00ff silver c0c0c0 gray 808080 grey 808080"
        " maroon 800000 green 008000 navy 000080 olive 808000 purple 800080 teal 008080"
        " snow fffafa ivory fffff0 azure f0ffff whitesmoke f5f5f5 ghostwhite f8f8ff orange ffa500",
    )
}
_COLOUR = re.compile(
    r"(?:#|(?<![\w(])(?=[0-9a-f]{3}(?:[0-9a-f]{3})?(?!\w)))([0-9a-f]{3,8})(?!\w)"
    r"|rgba?\(\s*+(\d{1,3})[\s,]++(\d{1,3})[\s,]++(\d{1,3})(?:\s*+[,/]\s*+([\d.]{1,9}))?|([a-z]+)"
)
_NEAR = 16  # of 256, in each of red, green and blue


@lru_cache(maxsize=1024)
def _parse_colour(value: str) -> Colour | None:
    """The first colour of a value; None if what lies behind shines through."""
    if "url(" in value or "gradient" in value:
        return _UNKNOWN
    match = _COLOUR.search(value)
    if match is None or match[6] in ("transparent", "none", "inherit", "initial", "unset"):
        return None
    code, red, green, blue, opacity, name = match.groups()
    if name:
        return _NAMED_COLOURS.get(name, _UNKNOWN)
    if red:
        is_clear = opacity is not None and not opacity.strip("0.")
        return None if is_clear else (int(red), int(green), int(blue))
    if len(code) in (4, 8) and not code[len(code) * 3 // 4 :].strip("0"):
        return None
    if len(code) < 6:
        code = "".join([digit * 2 for digit in code[:3]])
    return int(code[:2], 16), int(code[2:4], 16), int(code[4:6], 16)


def _are_near(first: Colour, second: Colour) -> bool:
    return (
        abs(first[0] - second[0]) < _NEAR
        and abs(first[1] - second[1]) < _NEAR
        and abs(first[2] - second[2]) < _NEAR
    )


# ---- what a tag says of the look of its element

_ZERO = r"[+-]?(?:0(?:\.0*)?|\.0+)(?:[a-z]{1,4}|%)?"
_TINY = rf"(?:{_ZERO}|(?:[01](?:\.\d*)?|\.\d+)p[xt])"
_NO_AREA = (
    r"(?:rect\(\s*[01](?:px)?(?:[\s,]+[01](?:px)?){3}|inset\(\s*(?:[5-9]\d|100)[\d.]*%"
    r"|(?:circle|ellipse)\(\s*0|polygon\((?:\s*0(?:px|%)?[\s,]*)+\)).*"
)
# Of a property: the property that must be there too, and the values that hide.
_HIDING = {
    name: (beside or name, re.compile(pattern, re.S))
    for names, beside, pattern in (
        ("display", "", "none"),
        ("visibility", "", "hidden|collapse"),
        ("opacity", "", rf"{_ZERO}|0?\.0\d*"),
        ("text-indent", "", r"-\d{3}.*"),
        ("margin-left", "", r"-\d{4}.*"),
        ("transform", "", r"(?:.*\s)?(?:scale\w*\(\s*0?\.?0*\s*[,)]|translate\w*\(\s*-\d{3}).*"),
        ("clip-path", "", _NO_AREA),
        ("clip", "position", _NO_AREA),
        ("left top right bottom", "position", r"-\d{3}.*"),
        ("height max-height width max-width", "overflow", _TINY),
    )
    for name in names.split()
}
_TINY_SIZE = re.compile(_TINY)
_TINY_FONT = re.compile(rf"(?:[a-z]++\s++|)*+{_TINY}(?:\s*/\s*[\w.%]+)?\s.*", re.S)
_RELATIVE_SIZE = re.compile(r"(?!0)[\d.]+(?:em|%)|larger|smaller|inherit|unset")
_CSS_COMMENT = re.compile(r"/\*(?:[^*]++|\*(?!/)|)*+(?:\*/)?")
_CSS_ESCAPE = re.compile(r"\\(?:([0-9a-f]{1,5})\s?|(.))", re.S)
_MAX_DECLARATIONS, _MAX_CACHED = 200, 300
# As browsers read tags: quotes begin values only. Of two attributes of one name the first counts.
_ATTRIBUTE = re.compile(
    r"([^\s<>/=][^\s<>/=]*+)"
    r"(?:\s*+=\s*+(?:\"([^\"]*+)\"?|'([^']*+)'?|([^\s\"'][^\s]*+)))?"
)
_PRESENTING = {"color": "color", "text": "color", "bgcolor": "background-color"}
_STYLING = re.compile("style|color|hidden|text|background|size|&")


class _Look(NamedTuple):
    """What an element has of its own. None: as around it."""

    hides: bool = False
    tiny: bool | None = None
    colour: Colour | None = None
    ground: Colour | None = None
    bits: int = 0  # the selectors that it fits as an ancestor
    within: tuple[tuple[int, _Look], ...] = ()  # looks where ancestors fit these bits

    def overlaid(self, more: _Look) -> _Look:
        """With what is said of the element with more weight."""
        return self._replace(
            hides=self.hides or more.hides,
            tiny=self.tiny if more.tiny is None else more.tiny,
            colour=more.colour or self.colour,
            ground=more.ground or self.ground,
        )


_PLAIN = _Look()


def _attributes(inside: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for match in islice(_ATTRIBUTE.finditer(inside), _MAX_DECLARATIONS):
        values.setdefault(match[1], _attribute_value(match[match.lastindex or 1]))
    return values


@lru_cache(maxsize=4096)
def _cached_look(inside: str) -> _Look:
    return _look_with(_attributes(inside), {})


def _own_look(inside: str) -> _Look:
    """The look by the attributes of a tag."""
    return _cached_look(inside) if len(inside) <= _MAX_CACHED else _cached_look.__wrapped__(inside)


def _look_with(values: Mapping[str, str], declared: Mapping[str, str]) -> _Look:
    """The look by the attributes of a tag, and what rules declare for it."""
    said = {what: values[name] for name, what in _PRESENTING.items() if name in values}
    if "background" in values:
        said["background-color"] = "url()"  # an address of a picture
    said.update(declared)
    if "hidden" in values:
        said.setdefault("display", "none")
    if "style" in values:
        said.update(_declarations(values["style"]))
    look = _look(said) if said else _PLAIN
    return look._replace(tiny=False) if "size" in values and look.tiny is None else look


def _declarations(style: str) -> dict[str, str]:
    """Of each property the last value counts."""
    if "/*" in style:
        style = _CSS_COMMENT.sub(" ", style)
    if "\\" in style:
        style = _CSS_ESCAPE.sub(lambda sign: sign[2] or chr(int(sign[1], 16)).lower(), style)
    declared = {}
    for declaration in style.split(";", _MAX_DECLARATIONS)[:_MAX_DECLARATIONS]:
        name, _, value = declaration[:200].partition(":")
        if value := value.partition("!")[0].strip():
            declared[name.strip()] = value
    return declared


def _look(declared: Mapping[str, str]) -> _Look:
    hides = False
    for name in declared.keys() & _HIDING.keys():
        beside, pattern = _HIDING[name]
        hides = hides or (beside in declared and pattern.fullmatch(declared[name]) is not None)
    size, font, colour = map(declared.get, ("font-size", "font", "color"))
    tiny = None
    if size and not _RELATIVE_SIZE.fullmatch(size):
        tiny = _TINY_SIZE.fullmatch(size) is not None
    elif font:
        tiny = _TINY_FONT.fullmatch(font) is not None
    grounds = map(declared.get, ("background-image", "background", "background-color"))
    ground = " ".join(filter(None, grounds))
    inherits = colour in (None, "inherit", "unset", "currentcolor")
    return _Look(
        hides,
        tiny,
        None if colour is None or inherits else _parse_colour(colour) or _CLEAR,
        _parse_colour(ground) if ground else None,
    )


# ---- what style sheets say of it

_AT_RULE = re.compile(r"@[^{};]*+(?:;|\{((?:[^{}]*+\{[^{}]*+\}|)*+[^{}]*+)\}?|(?=\})|\Z)")
_EVERY_SCREEN = re.compile(r"@media\s++(?:only\s++)?(?:screen|all)\s*+\{")
_BRACE = re.compile("[{}]")
_SELECTOR = re.compile(
    r"(?:([a-z][\w-]*+)|\*|)((?:[.#][\w-]++|\[[\w-]++(?:[~^$*|]?=[^\]]*+)?\]|)*+)"
)
_CONDITION = re.compile(r"([.#])([\w-]++)|\[([\w-]++)(?:[~^$*|]?=[\"']?([^\]\"']*+)[\"']?)?\]")
_COMBINATOR = re.compile(r"[>\s]++")
_MARKED = {".": "class", "#": "id"}
_MARKED_TAG = re.compile(r"class|id\s*+=")
_MAX_RULES, _MAX_ANCESTORS, _MAX_FITTINGS = 500, 50, 100_000


class _Selector(NamedTuple):
    """One part of a selector: an element, and what its attributes must say."""

    element: str
    words: tuple[tuple[str, str], ...]  # an attribute, and a word that it has
    parts: tuple[tuple[str, str], ...]  # an attribute, and what is in its value

    def fits(self, name: str, values: Mapping[str, str]) -> bool:
        """Whether it is about an element of this name with these attributes."""
        return (
            self.element in ("", name)
            and all(word in values.get(attribute, "").split() for attribute, word in self.words)
            and all(
                attribute in values and part in values[attribute] for attribute, part in self.parts
            )
        )


class _Rule(NamedTuple):
    ancestors: int  # bits of the selectors that must fit elements around it
    selector: _Selector
    declared: Mapping[str, str]


def _parse_selector(text: str) -> _Selector | None:
    match = _SELECTOR.fullmatch(text)
    if not text or match is None:
        return None
    conditions = _CONDITION.findall(match[2])
    words = [(_MARKED[mark], word) for mark, word, _, _ in conditions if mark]
    parts = [(attribute, part) for mark, _, attribute, part in conditions if not mark]
    return _Selector(match[1] or "", tuple(words), tuple(parts))


def _lasting_rules(sheet: str) -> str:
    """The rules that hold on every screen."""
    plain = _CSS_COMMENT.sub(" ", sheet) if "/*" in sheet else sheet
    plain = plain.replace("<!--", " ").replace("-->", " ")
    if "@" not in plain:
        return plain
    return _AT_RULE.sub(lambda rule: rule[1] or "" if _EVERY_SCREEN.match(rule[0]) else "", plain)


class _Sheet:
    """The rules of a page that change how an element looks."""

    def __init__(self, rules: str) -> None:
        self._rules: defaultdict[str, list[_Rule]] = defaultdict(list)  # by element, class or id
        self._ancestors: list[_Selector] = []
        pieces = _BRACE.split(rules, 2 * _MAX_RULES)  # selectors, declarations, selectors …
        for selectors, body in zip(pieces[::2], pieces[1::2], strict=False):
            declared = _declarations(body)
            if _look(declared) != _PLAIN:
                for selector in selectors.split(",", _MAX_RULES)[:_MAX_RULES]:
                    self._add(selector.strip(), declared)

    def _add(self, text: str, declared: Mapping[str, str]) -> None:
        *outer, last = map(_parse_selector, _COMBINATOR.split(text))
        if last and None not in outer:
            bits = sum({self._bit(part) for part in outer if part})
            key = last.words[0][1] if last.words else last.element
            self._rules[key].append(_Rule(bits, last, declared))

    def _bit(self, selector: _Selector) -> int:
        if selector not in self._ancestors and len(self._ancestors) < _MAX_ANCESTORS:
            self._ancestors.append(selector)
        known = selector in self._ancestors
        return 1 << (self._ancestors.index(selector) if known else _MAX_ANCESTORS)

    def looks(self, tags: Collection[tuple[str, str]]) -> dict[tuple[str, str], _Look]:
        """The looks of tags, by their names and insides."""
        most = _MAX_FITTINGS // (1 + sum(map(len, self._rules.values())) + len(self._ancestors))
        looks = {tag: self._look_of(*tag) for tag in islice(tags, most)}
        return {tag: look for tag, look in looks.items() if look != _PLAIN}

    def _look_of(self, name: str, inside: str) -> _Look:
        if not ({"", name} & self._rules.keys() or self._ancestors or _MARKED_TAG.search(inside)):
            return _own_look(inside)
        values = _attributes(inside)
        declared: dict[str, str] = {}
        within = []
        keys = ("", name, *values.get("class", "").split(), values.get("id", ""))
        for rule in [rule for key in dict.fromkeys(keys) for rule in self._rules.get(key, ())]:
            if rule.selector.fits(name, values):
                if rule.ancestors:
                    within.append((rule.ancestors, _look(rule.declared)))
                else:
                    declared.update(rule.declared)
        fitting = [selector.fits(name, values) for selector in self._ancestors]
        bits = sum([1 << number for number, fits in enumerate(fitting) if fits])
        look = _look_with(values, declared)
        return look._replace(bits=bits, within=tuple(within)) if bits or within else look


# ---- what is hidden

# Nothing is hidden without one of these: a word, which is found fast, and a pattern.
_HIDING_SIGNS = tuple(
    (word, re.compile(word + pattern))
    for word, pattern in (
        ("display", r"\s*+:\s*+none"),
        ("visibility", r"\s*+:\s*+[hc]"),
        ("opacity", r"\s*+:\s*+[0.]"),
        (":", r"\s*+-\d{3}"),
        ("clip", r"(?:-path)?\s*+:"),
        ("scale", ""),
        ("translate", ""),
        ("overflow", r"\s*+:\s*+[hc]"),
        ("font", r"(?:-size)?\s*+:[a-z\s]*+(?:0(?!\.?[1-9])|\.0|[01]?(?:\.\d++)?p[xt])"),
        ("hidden", r"(?<=[\s/\"']hidden)(?=[\s>=/]|\Z)"),
        ("&", "(?:#(?!39;|34;)|colon|tab|newline)"),
    )
)
_COLOUR_VALUE = r"\s*+[:=]\s*+[\"']?\s*+([#\w]++(?:\([^)]*+)?)"
_TEXT_COLOURS = (
    re.compile(r"color(?<![\w-]color)" + _COLOUR_VALUE),
    re.compile(r"text(?<![\w-]text)" + _COLOUR_VALUE),
)
_GROUND_COLOURS = (
    re.compile("bgcolor" + _COLOUR_VALUE),
    re.compile("background(?:-color)?" + _COLOUR_VALUE),
)
_COLOURING = re.compile("color|background|text")
_CELLS, _LINES = frozenset(("td", "th", "tr")), frozenset(("p", "div", "table", "ul", "ol", "hr"))
# Elements that end where one of these begins.
_ENDED_BY = {
    "p": _LINES | {"h1", "h2", "h3", "blockquote"},
    "li": frozenset(("li",)),
    **dict.fromkeys(("td", "th"), _CELLS),
    "tr": frozenset(("tr",)),
}
_ENDING = frozenset().union(*_ENDED_BY.values())
_MAX_COLOURS = 50


class _State(NamedTuple):
    """What holds within an element."""

    bits: int = 0
    tiny: bool = False
    colour: Colour = (0, 0, 0)
    ground: Colour = _WHITE
    is_seen: bool = True
    is_removed: bool = False  # whatever else is said within

    def within(self, look: _Look) -> _State:
        """What holds within an element inside."""
        for needed, other in look.within:
            if self.bits & needed == needed:
                look = look.overlaid(other)
        tiny = self.tiny if look.tiny is None else look.tiny
        colour, ground = look.colour or self.colour, look.ground or self.ground
        is_removed = self.is_removed or look.hides
        is_seen = not (is_removed or tiny or colour == _CLEAR or _are_near(colour, ground))
        return _State(self.bits | look.bits, tiny, colour, ground, is_seen, is_removed)


def _has_sign(text: str) -> bool:
    return (
        any(word in text and pattern.search(text) for word, pattern in _HIDING_SIGNS)
        or "\\" in text
        or "/*" in text
    )


def _has_hidden_colour(text: str) -> bool:
    colours, grounds = (
        {_parse_colour(value) for pattern in patterns for value in pattern.findall(text)}
        for patterns in (_TEXT_COLOURS, _GROUND_COLOURS)
    )
    return None in colours or any(
        colour and ground and _are_near(colour, ground)
        for colour in islice(colours, _MAX_COLOURS)
        for ground in islice({*grounds, _WHITE}, _MAX_COLOURS)
    )


def _hiding_looks(scan: _Scan, attributes: str, style: str) -> list[_Look | None]:
    """The looks of all tags; nothing where nothing on the page can be hidden."""
    rules = _lasting_rules(style) if style else ""
    text = attributes + "\n" + rules.replace("{", ";")
    has_sign = _has_sign(text)
    if not has_sign and not _has_hidden_colour(text):
        return []
    if rules:
        tags = list(zip(scan.names, scan.insides, strict=True))
        return list(map(_Sheet(rules).looks(dict.fromkeys(tags)).get, tags))
    useful = filter((_STYLING if has_sign else _COLOURING).search, scan.attributes)
    looks = {inside: look for inside in useful if (look := _own_look(inside)) != _PLAIN}
    return list(map(looks.get, scan.insides))


def _part_hidden(scan: _Scan, looks: Sequence[_Look | None]) -> tuple[str, str]:
    """The text that a reader sees, and the text that its elements hide."""
    pieces = _pieces_of(scan)
    parts: tuple[list[str], list[str]] = ([], [])  # hidden, seen
    state = _State()
    opened, states = [""], [state]
    counts = defaultdict[str, int](int)
    position = 0
    kinds = {name: _tag_kind(name) for name in set(scan.names)}
    for number, (name, look) in enumerate(zip(scan.names, looks, strict=True)):
        ended = kinds[name]
        changed = state
        if ended is None:
            while name in _ENDING and name in _ENDED_BY.get(opened[-1], ()):
                counts[opened.pop()] -= 1
                states.pop()
                changed = states[-1]
            if look is not None:
                changed = changed.within(look)
            opened.append(name)
            states.append(changed)
            counts[name] += 1
        elif ended and counts[ended]:
            while (last := opened.pop()) != ended:
                counts[last] -= 1
                states.pop()
            counts[ended] -= 1
            states.pop()
            changed = states[-1]
        if changed.is_seen != state.is_seen:
            at = 2 * number + 1
            parts[state.is_seen].extend(pieces[position:at])
            position = at
        state = changed
    parts[state.is_seen].extend(pieces[position:])
    return "".join(parts[1]), "".join(parts[0])


def _tag_kind(name: str) -> str | None:
    """The element that a tag ends; None if it begins one; nothing if it does neither."""
    if name[0] == "/":
        return name[1:]
    return "" if name in _VOID_ELEMENTS or name[0] in "!?" else None
