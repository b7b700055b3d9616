"""What declarations of styles hide, as browsers read them.

Comments and escapes are undone; of a property the last valid value counts, important values before
others. `parse_declarations` reads a style, `hiding_rules` and `restored_styles` read style sheets:
what they hide, and what they may show after all. Neither hiding nor showing text should be faked by
a trick that costs nothing, and in doubt text is seen rather than lost.

Works on lower-case text, in time linear in its length. Must never raise and never fetch anything.
Sources: CSS Syntax Module Level 3, CSS Cascading and Inheritance Level 4.

It is written by hand because libraries for CSS only take declarations apart: none says what these
hide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

Declarations = dict[str, tuple[bool, str]]
"""By property: whether the value is important, and the way it hides, "" if it does not."""

# ---- ways to hide

ALWAYS = "always"
UNTIL_SIZED = "until sized"  # until something within has a size of its own
UNTIL_COLOURED = "until coloured"
ON_WHITE = "on white"  # until coloured, on a white ground only
UNTIL_VISIBLE = "until visible"
IN_BOX = "in box"  # all within a box, but not table cells or words within a line
_HIDING_WAYS = frozenset((ALWAYS, UNTIL_SIZED, UNTIL_COLOURED, ON_WHITE, UNTIL_VISIBLE, IN_BOX))
# Hides nothing by itself, and shows nothing that an outer element hides.
_INHERITED = "inherited"
# Halves of ways: two together hide.
_OFF_SCREEN, _PLACED, _MOVED, _CLIPPED = "off screen", "placed", "moved", "clipped"
_FLAT, _OVERFLOW_CUT = "flat", "overflow cut"
_PROPERTY_OF_WAY = {
    UNTIL_SIZED: "font-size",
    UNTIL_COLOURED: "color",
    ON_WHITE: "color",
    UNTIL_VISIBLE: "visibility",
}

# ---- values by the way they hide

_ZERO = r"[+-]?(?:0+(?:\.0*)?|\.0+)(?:[a-z]{1,4}|%)?"
_TINY = rf"{_ZERO}|(?:[01](?:\.\d*)?|\.\d+)p[xt]"
_COMMON = "inherit|initial|unset|revert"
_NUMBER = (
    r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[a-z]{1,4}|%)?|(?:calc|min|max|clamp|var)\(.*|auto|none"
    rf"|(?:xx?-)?(?:small|large)(?:er)?|medium|{_COMMON}"
)
_KEYWORD = (
    r"(?:(?:block|inline)\s+)?(?:(?:inline-)?(?:block|flex|grid|table)|inline|list-item"
    r"|flow(?:-root)?)|contents|table-[a-z]+(?:-group)?|visible|static|sticky|auto|scroll"
    rf"|{_COMMON}"
)
_ANY = r"[#\w].*"
BRIGHT = r"rgba?\(\s*+25\d(?:\s*+,|\s)\s*+25\d(?:\s*+,|\s)\s*+25\d\s*+(?:[,/]\s*+1[\d.%]*+\s*+)?\)"
_WHITE = rf"white|#fff|#f[a-f0-9]f[a-f0-9]f[a-f0-9]|{BRIGHT}"
_TRANSPARENT = (
    r"transparent|#[a-f0-9]{3}0|#[a-f0-9]{6}00"
    r"|(?:rgb|hsl)a?\((?:[^(),/]*/|(?:[^(),/]*,){3})\s*(?:0+(?:\.0*)?|\.0+)%?\s*\)"
)
_FAR = r"-\d{3}[\w.]*"
_NO_SCALE = r"(?:.*\s)?scale(?:3d|[xyz])?\(\s*(?:0+(?:\.0*)?|\.0+)\s*[,)].*"
_NO_CLIP = r"rect\(\s*[01](?:px)?(?:[\s,]+[01](?:px)?){3}\s*\)"
_FONT = r"(?:[a-z]+\s+)*(?:%s)(?:\s*/\s*[\w.%%]+)?\s+\S.*"
_SIZES = ("height", "max-height", "width", "max-width")
# Values by the way they hide; "": not at all. A value that matches nothing is not valid.
_VALUES: Mapping[str, Mapping[str, str]] = {
    "display": {ALWAYS: "none", "": _KEYWORD},
    "visibility": {UNTIL_VISIBLE: "hidden|collapse", _INHERITED: "inherit|unset", "": _KEYWORD},
    "opacity": {ALWAYS: rf"{_ZERO}|0?\.0\d*", "": _NUMBER},
    "font-size": {
        UNTIL_SIZED: _TINY,
        _INHERITED: r"[\d.]+(?:em|%)|inherit|unset|larger|smaller",
        "": _NUMBER,
    },
    "font": {UNTIL_SIZED: _FONT % _TINY, "": _FONT % _NUMBER},
    "color": {
        UNTIL_COLOURED: _TRANSPARENT,
        ON_WHITE: _WHITE,
        _INHERITED: "inherit|unset|currentcolor",
        "": _ANY,
    },
    "text-indent": {IN_BOX: _FAR, "": _NUMBER},
    "transform": {IN_BOX: _NO_SCALE, "": _ANY},
    "position": {_PLACED: "absolute|fixed", _MOVED: "relative", "": _KEYWORD},
    "clip": {_CLIPPED: _NO_CLIP, "": _ANY},
    "overflow": {_OVERFLOW_CUT: "hidden|clip", "": _KEYWORD},
    **{name: {_OFF_SCREEN: _FAR, "": _NUMBER} for name in ("left", "top")},
    **{name: {_FLAT: _TINY, "": _NUMBER} for name in _SIZES},
}
_VALUE_PATTERNS = {
    name: [(way, re.compile(pattern, re.S)) for way, pattern in values.items()]
    for name, values in _VALUES.items()
}

# ---- declarations

_COMMENT = re.compile(r"/\*(?:[^*]++|\*(?!/)|)*+(?:\*/)?")
_DECLARATION_PIECE = r"""[^;"'(]++|"[^"]*+"?|'[^']*+'?|\([^)]*+\)?"""
_DECLARATION = re.compile(rf"(?:{_DECLARATION_PIECE})(?:{_DECLARATION_PIECE}|)*+")
_ESCAPE = re.compile(r"\\(?:([0-9a-f]{1,6})\s?|(.))", re.S)
_MAX_DECLARATION_CHARACTERS = 200
_MAX_CACHED_CHARACTERS = 300

# A style that hides has one of these: a word, which is found fast, and a pattern. Possessive,
# because long runs of blanks must cost nothing.
_HIDING_SIGNS = tuple(
    (word, re.compile(pattern))
    for word, pattern in (
        ("none", r"display\s*+:\s*+none"),
        ("visibility", r"visibility\s*+:\s*+(?:hidden|collapse)"),
        ("font", r"font(?:-size)?\s*+:[a-z\s]*+(?:0(?:\.0*+)?(?![\d.])|\.0|[01]?(?:\.\d++)?p[xt])"),
        ("opacity", r"opacity\s*+:\s*+(?:0?\.0|0(?!\.))"),
        (
            "color",
            r"color(?<![\w-]color)\s*+:\s*+(?:transparent|#(?:[a-f0-9]{3}0|[a-f0-9]{6}00)"
            r"(?![a-f0-9])|(?:rgb|hsl)a?\([^()]{0,40}[,/]\s*+0?\.?0*+%?\s*+\))",
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


def find_hiding_signs(text: str) -> list[re.Pattern[str]]:
    """Patterns that match in a text; without a match nothing in it hides anything."""
    signs = [
        (word, pattern) for word, pattern in _HIDING_SIGNS if word in text and pattern.search(text)
    ]
    return [pattern for word, pattern in signs if word != "overflow" or _FLAT_SIGN.search(text)]


def parse_declarations(style: str) -> Mapping[str, tuple[bool, str]]:
    """The declarations of a style that bear on hiding. Short ones are cached: one newsletter is
    written like the next.
    """
    if len(style) > _MAX_CACHED_CHARACTERS:
        return _parse_declarations.__wrapped__(style)
    return _parse_declarations(style)


@lru_cache(maxsize=1024)
def _parse_declarations(style: str) -> Declarations:
    declared: Declarations = {}
    plain = _COMMENT.sub(" ", style) if "/*" in style else style
    is_quoted = any(sign in plain for sign in "\"'(")
    for declaration in _DECLARATION.findall(plain) if is_quoted else plain.split(";"):
        text = declaration[:_MAX_DECLARATION_CHARACTERS]
        name, _, value = (_ESCAPE.sub(_unescape, text) if "\\" in text else text).partition(":")
        patterns = _VALUE_PATTERNS.get(name := name.strip(), ())
        value, mark, importance = value.partition("!")
        value = value.strip()
        way = next((way for way, pattern in patterns if pattern.fullmatch(value)), None)
        if way is not None and importance.strip() == ("important" if mark else ""):
            name = "font-size" if name == "font" else name
            merge_declarations(declared, {name: (bool(mark), way)})
    return declared


def _unescape(escape: re.Match[str]) -> str:
    if escape[2]:
        return escape[2]
    number = int(escape[1], 16)
    return chr(number).lower() if number < 0x110000 else "\ufffd"


def merge_declarations(declared: Declarations, more: Mapping[str, tuple[bool, str]]) -> None:
    """Declare more; an important declaration gives way to important ones only."""
    for name, (important, way) in more.items():
        if important or not declared.get(name, (False, ""))[0]:
            declared[name] = important, way


def hiding_ways(declared: Declarations) -> frozenset[str]:
    """The ways in which all declarations together hide an element."""
    ways = {way for _, way in declared.values()}
    is_off_screen = _OFF_SCREEN in ways and (_PLACED in ways or _MOVED in ways)
    if is_off_screen or {_CLIPPED, _PLACED} <= ways:
        ways.add(ALWAYS)
    if {_OVERFLOW_CUT, _FLAT} <= ways:
        ways.add(IN_BOX)
    return _HIDING_WAYS & ways


# ---- rules of style sheets that hide

# Selectors that are understood: an element, a class or id, or both. Others rarely hide.
_SELECTOR = re.compile(r"(?:[a-z][\w-]{0,60})?[.#][\w-]{1,60}|[a-z][\w-]{0,60}")
_PLAIN_ESCAPE = re.compile(r"\\[:/.%!\[\]]")  # in names of classes, as frameworks write them
_NAME = re.compile(rf"[.#](?:[\w-]|{_PLAIN_ESCAPE.pattern})++")
_MAX_HIDING_NAMES = 50
ANY_ELEMENT = "*"


def hiding_rules(text: str) -> dict[str, Declarations]:
    """What style sheets hide on every screen, by selector: an element, ".class", "#id", or a class
    or id behind an element. Their number is bounded.
    """
    rules: dict[str, Declarations] = {}
    flat = _OPEN_ADDRESS.split(_flatten(text), 1)[0]
    # all declarations at once: few style sheets hide anything
    signs = find_hiding_signs(flat.replace("{", ";"))
    for selectors, body, is_unconditional in _iter_rules(flat) if signs else ():
        if is_unconditional and (
            any(name in selectors for name in rules) or any(sign.search(body) for sign in signs)
        ):
            declared = parse_declarations(body)
            for selector in selectors.split(","):
                match = _SELECTOR.fullmatch(selector.strip())
                name = match[0] if match else ""
                if name in rules or (name and len(rules) < _MAX_HIDING_NAMES):
                    merge_declarations(rules.setdefault(name, {}), declared)
    return {
        name: declared
        for name, declared in rules.items()
        if hiding_ways(declared) or _NAME.search(name, 1)
    }


def rules_of_any_element(rules: Mapping[str, Declarations]) -> dict[str, Declarations]:
    """Rules by class or id alone, as if each held for all elements: more than is really hidden."""
    merged: dict[str, Declarations] = {}
    for name, declared in rules.items():
        if mark := _NAME.search(name):
            hiding = {what: value for what, value in declared.items() if value[1]}
            merge_declarations(merged.setdefault(mark[0], {}), hiding)
    return merged


# ---- rules that show

# What undoes hiding without conditions.
_RESTORING_PROPERTY = re.compile(
    r"\\|(?:display|visibility|opacity|font(?:-size)?|color|height|width|overflow|position|left|top"
    r"|text-indent|transform|clip)\s*+:"
)
_PSEUDO_ELEMENT = re.compile(r"::|:(?:before|after|first-l)")
_COMBINATOR = re.compile(r"[\s>+~]+")
# The last part of a selector: an element, and classes and ids; pseudo-classes only narrow it.
_PART = re.compile(rf"\*?+([a-z][\w-]*+)?((?:{_NAME.pattern}|)*+)(?=:|\Z)")
# Another way to write a class or id, of the same weight.
_NAMED = re.compile(r"\[(class|id)~?=([\"']?)([\w-]++)\2\]")
_UNCLEAR_SIGNS = "\\\"'([&@"  # no expression can tell where the parts of such a selector begin
_WEIGHTY_SIGNS = ".#[:&@"  # a selector without any of these weighs less than a class
# Telephones turn addresses and dates into links; rules for these name all elements, and set these.
_LINK_RULE_PROPERTIES = frozenset(("font-size", "color"))
_MAX_RESTORED_NAMES = 1000


class RestoredStyles(NamedTuple):
    """What may be seen after all, by ".class", "#id", element or ANY_ELEMENT.

    weak: with more weight than an element's name. strong: with more than a class or, if important,
    than an element's own style.
    """

    weak: dict[str, Declarations]
    strong: dict[str, Declarations]


def restored_styles(text: str, rules: Mapping[str, Declarations]) -> RestoredStyles:
    """What style sheets let be seen, beside `rules` as `hiding_rules` gives them."""
    restored = RestoredStyles({}, {})
    for selectors, body, is_unconditional in _iter_rules(_flatten(text)):
        if not _RESTORING_PROPERTY.search(body):
            continue
        declared = {
            name: value
            for name, value in parse_declarations(body).items()
            if value[1] in ("", _INHERITED)
        }
        important = {name: value for name, value in declared.items() if value[0]}
        for selector in map(str.strip, selectors.split(",")) if declared else ():
            is_hiding_rule = is_unconditional and selector in rules
            weighty = not is_hiding_rule and any(sign in selector for sign in _WEIGHTY_SIGNS)
            for name in _selector_names(selector, rules):
                _add_restored(restored.strong, name, declared if weighty else important)
                if not is_hiding_rule and not weighty:
                    _add_restored(restored.weak, name, declared)
    return restored


def _add_restored(names: dict[str, Declarations], name: str, declared: Declarations) -> None:
    if name not in names and len(names) >= _MAX_RESTORED_NAMES:
        name = ANY_ELEMENT
    if name == ANY_ELEMENT:
        declared = {
            what: value for what, value in declared.items() if what not in _LINK_RULE_PROPERTIES
        }
    if declared:
        merge_declarations(names.setdefault(name, {}), declared)


def restored_names(restored: RestoredStyles, way: str) -> set[str]:
    """Names of elements that undo hiding in that way, for themselves and all within."""
    sets = _PROPERTY_OF_WAY.get(way, "")
    return {
        name
        for names in restored
        for name, declared in names.items()
        if sets in declared and not declared[sets][1]
    }


def _selector_names(selector: str, rules: Mapping[str, Declarations]) -> list[str]:
    """The name that a selector's last part is about. Of several classes and ids that an element
    must have, one that hides nothing is enough.
    """
    plain = selector
    if "[" in selector:
        plain = _NAMED.sub(lambda match: ("." if match[1] == "class" else "#") + match[3], selector)
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


# ---- the rules of a style sheet

# An address that is not closed goes on to the next ")": nobody can tell what it takes with it.
_OPEN_ADDRESS = re.compile(r"url\([^(){}]*+[{}]")
_BRACES = re.compile(r"([{}])")
# What may stand in front of a selector and is no part of it. Addresses of fonts have semicolons.
_STRING = r"\"[^\"{}\\]*+\"|'[^'{}\\]*+'"
_IMPORT = (
    rf"@import\s*+(?:url\(\s*+(?:{_STRING}|[^\s\"'(){{}}\\]++)\s*+\)|{_STRING})[^;{{}}\"'\\]*+;"
)
_NO_SELECTOR = re.compile(rf"(?:\s*+(?:<!--|-->|{_IMPORT})|)*+")
# Without @layer: any other rule outweighs those in a layer.
_UNCONDITIONAL = re.compile(r"@media\s+(?:only\s+)?(?:screen|all)")
# Paper, or screens that do not exist: phones have 300 pixels and more.
_NO_SCREEN = re.compile(
    r"max-(?:device-)?width\s*+:\s*+(?:[12]?\d{1,2}(?:\.\d*+)?px|(?:1[0-8]|\d)(?:\.\d*+)?r?em)"
    r"|^\s*+(?:@media\s+)?(?:only\s+)?print\b"
)
_NEGATED = re.compile(r"\b(?:not|or)\b")
_NO_RULES = re.compile(r"\s*+@(?:-[a-z]{1,9}-)?keyframes\b")


def _flatten(text: str) -> str:
    return (_COMMENT.sub(" ", text) if "/*" in text else text).replace("\n", " ")


def _iter_rules(style: str) -> Iterator[tuple[str, str, bool]]:
    """Selectors, declarations, and whether the rule holds on every screen; none for no screen.

    `outer` counts the at-rules around a rule, `conditions` and `nowhere` those of them from the
    first one that makes a condition, or matches no screen.
    """
    pieces = _BRACES.split(style + "}")  # text, brace, text …
    outer = conditions = nowhere = 0
    # a brace that closes nothing belongs to the next selector, and spoils it
    is_spoilt = pieces[1] == "}"
    for before, brace, inside, end in zip(
        pieces[::2], pieces[1::2], pieces[2::2], pieces[3::2], strict=False
    ):
        head = before[none.end() :] if before and (none := _NO_SELECTOR.match(before)) else before
        statements, _, selectors = head.rpartition(";")
        if brace == end == "{":
            outer += 1
            is_plain = _UNCONDITIONAL.fullmatch(selectors.strip()) and _has_only_at_rules(
                head, statements
            )
            conditions += conditions > 0 or not is_plain
            nowhere += nowhere > 0 or _matches_no_screen(selectors)
        elif brace == "{":
            has_at = "@" in selectors  # a condition in a rule, or one that has lost its brace
            if not nowhere and not (has_at and _matches_no_screen(selectors)):
                is_certain = not (has_at or conditions or is_spoilt)
                yield selectors, inside, is_certain and _has_only_at_rules(head, statements)
            is_spoilt = False
        elif end == "}" and outer:
            outer -= 1
            conditions -= conditions > 0
            nowhere -= nowhere > 0
        elif end == "}":
            is_spoilt = True


def _matches_no_screen(condition: str) -> bool:
    if "@media" not in condition:
        return _NO_RULES.match(condition) is not None
    return not _NEGATED.search(condition) and all(map(_NO_SCREEN.search, condition.split(",")))


def _has_only_at_rules(before: str, statements: str) -> bool:
    """Whether only at-rules stand in front of a selector; anything else belongs to it."""
    return ";" not in before or all(
        statement.lstrip().startswith("@") for statement in statements.split(";")
    )
