"""What declarations of styles hide, as browsers read them: comments and escapes are undone, of a
property the last valid value counts, important ones before others. Neither who hides text nor who
shows it should pass for the other by a trick that costs nothing.

Works on lower-case text, in time linear in its length. It must never raise and never fetch
anything. Sources: CSS Syntax Module Level 3, CSS Cascading and Inheritance Level 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

Declarations = dict[str, tuple[bool, str]]
"""By property, whether what is declared is important, and how it hides; "": not at all."""
ALWAYS, UNTIL_SIZED, UNTIL_COLOURED, ON_WHITE, UNTIL_VISIBLE, IN_BOX = (
    "ever",
    "sized",
    "coloured",
    "white",
    "shown",
    "boxed",
)
"""Ways to hide. Whatever is within; until it has a size, or a colour, of its own, WHITE: on white
grounds alone; until it is said to be visible; whatever is within a box, but no cell, and no words
within a line.
"""
_HIDING_WAYS = frozenset((ALWAYS, UNTIL_SIZED, UNTIL_COLOURED, ON_WHITE, UNTIL_VISIBLE, IN_BOX))
_INHERITED = (
    "of parent"  # hides nothing by itself, and gives nothing back to what is hidden around it
)
_PROPERTY_OF_WAY = {
    UNTIL_SIZED: "font-size",
    UNTIL_COLOURED: "color",
    ON_WHITE: "color",
    UNTIL_VISIBLE: "visibility",
}
_OFF_SCREEN, _PLACED, _MOVED, _CLIPPED, _FLAT, _OVERFLOW_CUT = (
    "off",
    "placed",
    "moved",
    "clipped",
    "flat",
    "cut",
)  # halves of ways

_ZERO_VALUE = r"[+-]?(?:0+(?:\.0*)?|\.0+)(?:[a-z]{1,4}|%)?"
_TINY_VALUE = rf"{_ZERO_VALUE}|(?:[01](?:\.\d*)?|\.\d+)p[xt]"
_COMMON_VALUES = "inherit|initial|unset|revert"
_NUMBER_VALUES = (
    r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[a-z]{1,4}|%)?|(?:calc|min|max|clamp|var)\(.*|auto|none|(?:xx?-)?(?:small|large)(?:er)?|medium|"
    + _COMMON_VALUES
)
_KEYWORD_VALUES = (
    r"(?:(?:block|inline)\s+)?(?:(?:inline-)?(?:block|flex|grid|table)|inline|list-item|flow(?:-root)?)|contents|table-[a-z]+(?:-group)?|"
    r"visible|static|sticky|auto|scroll|" + _COMMON_VALUES
)
_ANY_VALUE = r"[#\w].*"
BRIGHT = r"rgba?\(\s*+25\d(?:\s*+,|\s)\s*+25\d(?:\s*+,|\s)\s*+25\d\s*+(?:[,/]\s*+1[\d.%]*+\s*+)?\)"
_WHITE_VALUES = rf"white|#fff|#f[a-f0-9]f[a-f0-9]f[a-f0-9]|{BRIGHT}"
_TRANSPARENT_VALUES = r"transparent|#[a-f0-9]{3}0|#[a-f0-9]{6}00|(?:rgb|hsl)a?\((?:[^(),/]*/|(?:[^(),/]*,){3})\s*(?:0+(?:\.0*)?|\.0+)%?\s*\)"
_FONT = r"(?:[a-z]+\s+)*(?:%s)(?:\s*/\s*[\w.%%]+)?\s+\S.*"
_Patterns = tuple[tuple[str, re.Pattern[str]], ...]


def _value_patterns(*ways: tuple[str, str], visible: str) -> _Patterns:
    return tuple((way, re.compile(values, re.S)) for way, values in (*ways, ("", visible)))


_FAR = _value_patterns((_OFF_SCREEN, r"-\d{3}[\w.]*"), visible=_NUMBER_VALUES)
_LOW = _value_patterns((_FLAT, _TINY_VALUE), visible=_NUMBER_VALUES)
# By property: which one it sets, and values by how they hide; what matches none is not valid.
_PROPERTY_VALUES: Mapping[str, tuple[str, _Patterns]] = {
    "display": ("display", _value_patterns((ALWAYS, "none"), visible=_KEYWORD_VALUES)),
    "visibility": (
        "visibility",
        _value_patterns(
            (UNTIL_VISIBLE, "hidden|collapse"),
            (_INHERITED, "inherit|unset"),
            visible=_KEYWORD_VALUES,
        ),
    ),
    "opacity": (
        "opacity",
        _value_patterns((ALWAYS, rf"{_ZERO_VALUE}|0?\.0\d*"), visible=_NUMBER_VALUES),
    ),
    "font-size": (
        "font-size",
        _value_patterns(
            (UNTIL_SIZED, _TINY_VALUE),
            (_INHERITED, r"[\d.]+(?:em|%)|inherit|unset|larger|smaller"),
            visible=_NUMBER_VALUES,
        ),
    ),
    "font": (
        "font-size",
        _value_patterns((UNTIL_SIZED, _FONT % _TINY_VALUE), visible=_FONT % _NUMBER_VALUES),
    ),
    "color": (
        "color",
        _value_patterns(
            (UNTIL_COLOURED, _TRANSPARENT_VALUES),
            (ON_WHITE, _WHITE_VALUES),
            (_INHERITED, "inherit|unset|currentcolor"),
            visible=_ANY_VALUE,
        ),
    ),
    "text-indent": (
        "text-indent",
        _value_patterns((IN_BOX, r"-\d{3}[\w.]*"), visible=_NUMBER_VALUES),
    ),
    "transform": (
        "transform",
        _value_patterns(
            (IN_BOX, r"(?:.*\s)?scale(?:3d|[xyz])?\(\s*(?:0+(?:\.0*)?|\.0+)\s*[,)].*"),
            visible=_ANY_VALUE,
        ),
    ),
    "position": (
        "position",
        _value_patterns((_PLACED, "absolute|fixed"), (_MOVED, "relative"), visible=_KEYWORD_VALUES),
    ),
    "clip": (
        "clip",
        _value_patterns(
            (_CLIPPED, r"rect\(\s*[01](?:px)?(?:[\s,]+[01](?:px)?){3}\s*\)"), visible=_ANY_VALUE
        ),
    ),
    "overflow": (
        "overflow",
        _value_patterns((_OVERFLOW_CUT, "hidden|clip"), visible=_KEYWORD_VALUES),
    ),
    "left": ("left", _FAR),
    "top": ("top", _FAR),
    **{name: (name, _LOW) for name in ("height", "max-height", "width", "max-width")},
}
_COMMENT = re.compile(r"/\*(?:[^*]++|\*(?!/)|)*+(?:\*/)?")
_DECLARATION = re.compile(
    r"""(?:[^;"'(]++|"[^"]*+"?|'[^']*+'?|\([^)]*+\)?)(?:[^;"'(]++|"[^"]*+"?|'[^']*+'?|\([^)]*+\)?|)*+"""
)
_ESCAPE = re.compile(r"\\(?:([0-9a-f]{1,6})\s?|(.))", re.S)
_MAX_DECLARATION_CHARACTERS = 200  # characters of one declaration
_MAX_CACHED_CHARACTERS = 300  # of a style

# Without one of these nothing hides anything: a word that it needs, which is found fast, and the
# pattern; possessive, so that long runs of blanks cost nothing.
_HIDING_SIGNS = tuple(
    (word, re.compile(pattern))
    for word, pattern in (
        ("none", r"display\s*+:\s*+none"),
        ("visibility", r"visibility\s*+:\s*+(?:hidden|collapse)"),
        ("font", r"font(?:-size)?\s*+:[a-z\s]*+(?:0(?:\.0*+)?(?![\d.])|\.0|[01]?(?:\.\d++)?p[xt])"),
        ("opacity", r"opacity\s*+:\s*+(?:0?\.0|0(?!\.))"),
        (
            "color",
            r"color(?<![\w-]color)\s*+:\s*+(?:transparent|#(?:[a-f0-9]{3}0|[a-f0-9]{6}00)(?![a-f0-9])"
            r"|(?:rgb|hsl)a?\([^()]{0,40}[,/]\s*+0?\.?0*+%?\s*+\))",
        ),
        ("left", r"left(?<![\w-]left)\s*+:\s*+-\d{3}"),  # off the screen
        ("top", r"top(?<![\w-]top)\s*+:\s*+-\d{3}"),
        ("text-indent", r"text-indent\s*+:\s*+-\d{3}"),
        ("scale", r"scale(?:3d|[xyz])?\(\s*+0?\.?0*+[,)\s]"),
        ("clip", r"clip\s*+:\s*+rect"),
        ("overflow", r"overflow\s*+:\s*+(?:hidden|clip)"),
        ("\\", r"\\"),
        ("/*", r"/\*"),
    )
)
_FLAT_SIGN = re.compile(r"(?:height|width)\s*+:\s*+(?:0(?![.\d])|[01]?(?:\.\d++)?p[xt])")
# What stands in front of a rule's braces: classes and ids with or without an element, and elements.
# Others hide but now and then.
_SELECTOR = re.compile(r"(?:[a-z][\w-]{0,60})?[.#][\w-]{1,60}|[a-z][\w-]{0,60}")
# What may stand in front of a selector and is no part of it. Addresses of fonts have semicolons.
_STRING = r"\"[^\"{}\\]*+\"|'[^'{}\\]*+'"
_IMPORT = (
    rf"@import\s*+(?:url\(\s*+(?:{_STRING}|[^\s\"'(){{}}\\]++)\s*+\)|{_STRING})[^;{{}}\"'\\]*+;"
)
_NO_SELECTOR = re.compile(rf"(?:\s*+(?:<!--|-->|{_IMPORT})|)*+")
# What gives back what hides without conditions, and whom it concerns: what stands last in a
# selector.
_RESTORING_PROPERTY = re.compile(
    r"\\|(?:display|visibility|opacity|font(?:-size)?|color|height|width|overflow|position|left|top|text-indent|transform|clip)\s*+:"
)
_PSEUDO_ELEMENT = re.compile(r"::|:(?:before|after|first-l)")
_COMBINATOR = re.compile(r"[\s>+~]+")
_PLAIN_ESCAPE = re.compile(r"\\[:/.%!\[\]]")  # those that names of classes are made of in our days
_NAME = re.compile(rf"[.#](?:[\w-]|{_PLAIN_ESCAPE.pattern})++")
_PART = re.compile(
    rf"\*?+([a-z][\w-]*+)?((?:{_NAME.pattern}|)*+)(?=:|\Z)"
)  # of a selector; pseudo-classes concern no others
_NAMED = re.compile(
    r"\[(class|id)~?=([\"']?)([\w-]++)\2\]"
)  # other words for a class or id, and as weighty as one
_MARKS = {"class": ".", "id": "#"}
_UNCLEAR_SIGNS = (
    "\\\"'([&@"  # with one of these no expression can tell where the parts of a selector begin
)
_WEIGHTY_SIGNS = ".#[:&@"  # what a class outweighs has none of these
_LINK_RULE_PROPERTIES = frozenset(
    ("font-size", "color")
)  # rules about links that telephones make concern all elements, and give these
ANY_ELEMENT = "*"
_OPEN_ADDRESS = re.compile(
    r"url\([^(){}]*+[{}]"
)  # goes on to the next ")": who can tell what it takes with it?
_BRACES = re.compile(r"([{}])")
_UNCONDITIONAL = re.compile(
    r"@media\s+(?:only\s+)?(?:screen|all)"
)  # not @layer, which any other rule outweighs
# No screens at all, or smaller ones than there are: phones have 300 pixels and more. Unless that is
# but one of several, or turned about.
_NO_SCREEN = re.compile(
    r"max-(?:device-)?width\s*+:\s*+(?:[12]?\d{1,2}(?:\.\d*+)?px|(?:1[0-8]|\d)(?:\.\d*+)?r?em)|^\s*+(?:@media\s+)?(?:only\s+)?print\b"
)
_SOMEWHERE = re.compile(r"\b(?:not|or)\b")
_NO_RULES = re.compile(r"\s*+@(?:-[a-z]{1,9}-)?keyframes\b")
_MAX_HIDING_NAMES = 50
_MAX_RESTORED_NAMES = 1000


def find_hiding_signs(text: str) -> list[re.Pattern[str]]:
    """Those patterns of which a style that hides has one, which a text has."""
    found = [
        (word, pattern) for word, pattern in _HIDING_SIGNS if word in text and pattern.search(text)
    ]
    return [pattern for word, pattern in found if word != "overflow" or _FLAT_SIGN.search(text)]


def parse_declarations(style: str) -> Mapping[str, tuple[bool, str]]:
    """What a style declares that may hide something. Remembered, if it is short: one newsletter is
    written like the next.
    """
    return (
        _cached_declarations(style)
        if len(style) <= _MAX_CACHED_CHARACTERS
        else _parse_declarations(style)
    )


def _parse_declarations(style: str) -> Declarations:
    found: Declarations = {}
    plain = _COMMENT.sub(" ", style) if "/*" in style else style
    for one in (
        _DECLARATION.findall(plain) if any(sign in plain for sign in "\"'(") else plain.split(";")
    ):
        name, _, value = (
            _ESCAPE.sub(_unescape, one[:_MAX_DECLARATION_CHARACTERS])
            if "\\" in one
            else one[:_MAX_DECLARATION_CHARACTERS]
        ).partition(":")
        known = _PROPERTY_VALUES.get(name.strip())
        if known is not None:
            merge_declarations(found, _parse_declaration(*known, value))
    return found


_cached_declarations = lru_cache(maxsize=1024)(_parse_declarations)


def _parse_declaration(name: str, patterns: _Patterns, value: str) -> Declarations:
    """One declaration; nothing if it is not valid."""
    plain, mark, important = value.partition("!")
    plain = plain.strip()
    for way, pattern in patterns if important.strip() == "important" * bool(mark) else ():
        if pattern.fullmatch(plain):
            return {name: (bool(mark), way)}
    return {}


def _unescape(found: re.Match[str]) -> str:
    if found[2]:
        return found[2]
    number = int(found[1], 16)
    return chr(number).lower() if number < 0x110000 else "\ufffd"


def merge_declarations(declared: Declarations, more: Mapping[str, tuple[bool, str]]) -> None:
    """Declare more, which counts unless what is declared already is important."""
    for name, (important, way) in more.items():
        if important or not declared.get(name, (False, ""))[0]:
            declared[name] = important, way


def hiding_ways(declared: Declarations) -> frozenset[str]:
    """How all of it hides an element."""
    found = {way for _, way in declared.values()}
    if (_OFF_SCREEN in found and (_PLACED in found or _MOVED in found)) or {
        _CLIPPED,
        _PLACED,
    } <= found:
        found.add(ALWAYS)
    if {_OVERFLOW_CUT, _FLAT} <= found:
        found.add(IN_BOX)
    return _HIDING_WAYS & found


def hiding_rules(text: str) -> dict[str, Declarations]:
    """What style sheets hide on every screen, by ".class" or "#id", with the name of an element in
    front or without, or by that alone, so many at most.
    """
    found: dict[str, Declarations] = {}
    flat = _OPEN_ADDRESS.split(_flatten(text), 1)[0]
    hiders = find_hiding_signs(
        flat.replace("{", ";")
    )  # all declarations at once: few style sheets hide anything
    for selectors, body, certain in _iter_rules(flat) if hiders else ():
        if certain and (
            any(name in selectors for name in found) or any(hider.search(body) for hider in hiders)
        ):
            declared = parse_declarations(body)
            for selector in selectors.split(","):
                named = _SELECTOR.fullmatch(selector.strip())
                name = named[0] if named else ""
                if name in found or (name and len(found) < _MAX_HIDING_NAMES):
                    merge_declarations(found.setdefault(name, {}), declared)
    return {
        name: declared
        for name, declared in found.items()
        if hiding_ways(declared) or _NAME.search(name, 1)
    }


def rules_of_any_element(rules: Mapping[str, Declarations]) -> dict[str, Declarations]:
    """What is hidden by class or id, of whatever element: more than is."""
    found: dict[str, Declarations] = {}
    for name, declared in rules.items():
        if mark := _NAME.search(name):
            merge_declarations(
                found.setdefault(mark[0], {}),
                {what: one for what, one in declared.items() if one[1]},
            )
    return found


class RestoredStyles(NamedTuple):
    """What may be seen after all, by ".class", "#id" or name of an element, or ALL, where only a
    tree would tell which elements they are.

    weakly: with more weight than the name of an element. strongly: than a class alone or, if it is
    important, an element's own style.
    """

    weak: dict[str, Declarations]
    strong: dict[str, Declarations]


def restored_styles(text: str, rules: Mapping[str, Declarations]) -> RestoredStyles:
    """What style sheets let be seen, beside their rules that `sheet` knows. Rather seen than lost."""
    found = RestoredStyles({}, {})
    for selectors, body, certain in _iter_rules(_flatten(text)):
        shown = (
            {
                name: one
                for name, one in parse_declarations(body).items()
                if one[1] in ("", _INHERITED)
            }
            if _RESTORING_PROPERTY.search(body)
            else {}
        )
        important = {name: one for name, one in shown.items() if one[0]}
        for selector in map(str.strip, selectors.split(",")) if shown else ():
            known = certain and selector in rules
            weighty = not known and any(sign in selector for sign in _WEIGHTY_SIGNS)
            for name in _selector_names(selector, rules):
                _add_restored(found.strong, name, shown if weighty else important)
                _add_restored(found.weak, name, {} if known or weighty else shown)
    return found


def _add_restored(found: dict[str, Declarations], name: str, shown: Declarations) -> None:
    if name not in found and len(found) >= _MAX_RESTORED_NAMES:
        name = ANY_ELEMENT
    if own := {
        what: way
        for what, way in shown.items()
        if name != ANY_ELEMENT or what not in _LINK_RULE_PROPERTIES
    }:
        merge_declarations(found.setdefault(name, {}), own)


def restored_names(given: RestoredStyles, way: str) -> set[str]:
    """Names of what is given back what hides in that way, and with it all that stands within."""
    declares = _PROPERTY_OF_WAY.get(way, "")
    return {
        name
        for names in given
        for name, shown in names.items()
        if declares in shown and not shown[declares][1]
    }


def _selector_names(selector: str, rules: Mapping[str, Declarations]) -> list[str]:
    """Names of what a selector is about, which stand in its last part. Of several that an element
    must have, one that hides nothing is enough.
    """
    plain = _NAMED.sub(_mark_attribute, selector) if "[" in selector else selector
    bare = _PLAIN_ESCAPE.sub("", plain) if "\\" in plain else plain
    if any(sign in bare for sign in _UNCLEAR_SIGNS):
        return [ANY_ELEMENT]
    last = _COMBINATOR.split(plain)[-1]
    if _PSEUDO_ELEMENT.search(last):
        return []
    part = _PART.match(last)
    if part is None:
        return [ANY_ELEMENT]
    names = [name.replace("\\", "") for name in _NAME.findall(part[2])]
    return sorted(names, key=rules.__contains__)[:1] or [part[1] or ANY_ELEMENT]


def _mark_attribute(attribute: re.Match[str]) -> str:
    return _MARKS[attribute[1]] + attribute[3]


def _flatten(text: str) -> str:
    return (_COMMENT.sub(" ", text) if "/*" in text else text).replace("\n", " ")


def _iter_rules(style: str) -> Iterator[tuple[str, str, bool]]:
    """Selectors, declarations, and whether these are in force on every screen; none that are on no
    screen.
    """
    pieces = _BRACES.split(style + "}")  # text, brace, text …
    outer = conditions = nowhere = 0
    spoilt = (
        pieces[1] == "}"
    )  # by a brace that closes nothing: it belongs to the next selector, which then is none
    for before, brace, inside, end in zip(
        pieces[::2], pieces[1::2], pieces[2::2], pieces[3::2], strict=False
    ):
        own = before[none.end() :] if before and (none := _NO_SELECTOR.match(before)) else before
        statements, _, selectors = own.rpartition(";")
        if brace == end == "{":
            outer += 1
            everywhere = _UNCONDITIONAL.fullmatch(
                selectors.strip()
            ) is not None and _has_only_at_rules(own, statements)
            conditions += conditions > 0 or not everywhere
            nowhere += nowhere > 0 or _matches_no_screen(selectors)
        elif brace == "{":
            bare = "@" in selectors  # a condition that stands in a rule, or has lost its brace
            if not nowhere and not (bare and _matches_no_screen(selectors)):
                yield (
                    selectors,
                    inside,
                    not (bare or conditions or spoilt) and _has_only_at_rules(own, statements),
                )
            spoilt = False
        elif end == "}" and outer:
            outer -= 1
            conditions -= conditions > 0
            nowhere -= nowhere > 0
        elif end == "}":
            spoilt = True


def _matches_no_screen(condition: str) -> bool:
    if "@media" in condition:
        return _SOMEWHERE.search(condition) is None and all(
            _NO_SCREEN.search(one) for one in condition.split(",")
        )
    return _NO_RULES.match(condition) is not None


def _has_only_at_rules(before: str, statements: str) -> bool:
    """Whether nothing stands in front of a selector but statements with "@"; anything else belongs
    to it.
    """
    return ";" not in before or all(one.lstrip().startswith("@") for one in statements.split(";"))
