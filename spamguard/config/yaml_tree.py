"""YAML text as plain values, and where each of them stands.

It reads PyYAML's nodes because `yaml.safe_load` forgets places and knows no bounds.

Must never build anything but lists, mappings, texts, numbers and truth values, and never more of
them than the text is long: size, depth and aliases are bounded. Plain words mean what they mean in
YAML 1.2: `off` and `no` are texts, `10:30` is no number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

MAX_BYTES = 1_000_000  # bytes of a file
_MAX_DEPTH = 20
_MAX_ALIASES = 16
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(?:[0-9]{1,18}\.?[0-9]{0,18}|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,3})?")
_CONSTANTS = {"": None, "~": None, "null": None, "true": True, "false": False}
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))
_ODD_BLANKS = (
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u200b"
    "\u202f\u205f\u3000\ufeff"
)
# Words of an error of PyYAML, and what to do about it; {line} is where the construct began.
_HINTS = (
    (r"found character '\t'", "write blanks instead of a tab"),
    ("found character", "put what begins with it into quotes"),
    ("while scanning an alias", "put what begins with * into quotes"),
    ("undefined alias", "put what begins with * into quotes"),
    ("while scanning an anchor", "put what begins with & into quotes"),
    ("while scanning a quoted scalar found unexpected end", "the quotes of line {line} do not end"),
    ("unknown escape character", "use single quotes"),
    ("while parsing a flow", "the bracket of line {line} has no end before this"),
    ("could not find expected ':'", "write a colon and a blank after the key"),
    (
        "mapping values are not allowed",
        "indent it as what it belongs to, or put a text with a colon in it into quotes",
    ),
    ("expected <block end>", "indent it as what it belongs to"),
    ("but found another document", "leave out the ---"),
)

KeyPath = tuple[str | int, ...]


class TextPosition(NamedTuple):
    """Line and column, from 1 on."""

    line: int
    column: int


@dataclass(slots=True)
class YamlTree:
    """A document: its value, where the key and the value at each path stand, and what is wrong with
    the text. A broken document has no value.
    """

    value: Any = None
    key_positions: dict[KeyPath, TextPosition] = field(default_factory=dict)
    value_positions: dict[KeyPath, TextPosition] = field(default_factory=dict)
    problems: list[tuple[TextPosition, str]] = field(default_factory=list)
    broken: bool = False

    def position(self, path: KeyPath) -> TextPosition:
        """Where a path stands, or the nearest thing around it: the key, if there is one."""
        while path not in self.value_positions and path:
            path = path[:-1]
        return self.key_positions.get(path) or self.value_positions.get(path) or TextPosition(1, 1)


class _RefusedYamlError(yaml.MarkedYAMLError):
    """What we do not take although it is YAML."""


class _BoundedLoader(yaml.SafeLoader):
    """Composes nodes within bounds, and leaves plain words to `_plain`."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  the base class has it

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # of PyYAML
        self._depth += 1
        self._aliases += isinstance(event, yaml.AliasEvent)
        if self._depth > _MAX_DEPTH:
            raise _RefusedYamlError(
                problem=f"nested deeper than {_MAX_DEPTH} levels", problem_mark=event.start_mark
            )
        if self._aliases > _MAX_ALIASES:
            raise _RefusedYamlError(
                problem=f"more than {_MAX_ALIASES} aliases", problem_mark=event.start_mark
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def parse_yaml(data: bytes) -> YamlTree:
    """The one document of a file; problems instead of exceptions, for any bytes."""
    if len(data) > MAX_BYTES:
        return _broken_tree(TextPosition(1, 1), f"the file is larger than {MAX_BYTES:,} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return _broken_tree(TextPosition(line, 1), "expected text in UTF-8: save it so")
    try:
        node = _compose(text)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = TextPosition(before.count("\n") + 1, error.position - before.rfind("\n"))
        code = ord(error.character) if isinstance(error.character, str) else int(error.character)
        return _broken_tree(place, f"character U+{code:04X} is not allowed: take it out")
    except yaml.MarkedYAMLError as error:
        is_late = "could not find expected ':'" in (error.problem or "")  # seen in the next line
        mark = error.context_mark if is_late else error.problem_mark or error.context_mark
        place = TextPosition(1, 1) if mark is None else _position(mark)
        return _broken_tree(place, _describe_error(error) + _blank_hint(text, place.line))
    tree = YamlTree()
    tree.value = None if node is None else _ValueBuilder(tree).build(node, ())
    return tree


def _broken_tree(place: TextPosition, text: str) -> YamlTree:
    return YamlTree(problems=[(place, text)], broken=True)


def _compose(text: str) -> yaml.Node | None:
    loader = _BoundedLoader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def _position(mark: yaml.Mark) -> TextPosition:
    return TextPosition(mark.line + 1, mark.column + 1)


def _describe_error(error: yaml.MarkedYAMLError) -> str:
    """A parser's complaint in one line, with what to do about it."""
    text = error.problem or error.context or "is not YAML"
    if isinstance(error, _RefusedYamlError):
        return text
    complaint, began = f"{error.context} {error.problem}", error.context_mark
    hint = next((f": {hint}" for words, hint in _HINTS if words in complaint), "")
    return f"is not YAML here: {text}{hint.format(line=1 if began is None else began.line + 1)}"


def _blank_hint(text: str, line: int) -> str:
    """Copied text may have other characters in the place of blanks, which nobody can see."""
    lines = [*text.splitlines(), ""]  # as a parser counts them: U+2028 and a bare CR end one, too
    blank = next((char for char in lines[line - 1] if char in _ODD_BLANKS), "")
    return f"; there is no ordinary blank (U+{ord(blank):04X}): write one" if blank else ""


class _ValueBuilder:
    """Plain values of nodes. An alias that stands inside what it names is refused."""

    def __init__(self, tree: YamlTree) -> None:
        self._tree = tree
        self._open: set[int] = set()

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        """The value of a node, its place and those below it noted."""
        self._tree.value_positions[path] = _position(node.start_mark)
        if node.tag not in _PLAIN_TAGS:
            return self._refuse(node, f"the tag {node.tag!r} has no meaning here: leave it out")
        if isinstance(node, yaml.ScalarNode):
            return _plain_value(node.value) if node.style is None else node.value
        if id(node) in self._open:
            return self._refuse(node, "an alias stands inside what it names")
        self._open.add(id(node))
        value = (
            self._mapping(node, path)
            if isinstance(node, yaml.MappingNode)
            else [self.build(child, (*path, n)) for n, child in enumerate(node.value)]
        )
        self._open.discard(id(node))
        return value

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._refuse(key, "expected a word as key")
            elif key.style is None and key.value != key.value.strip(_ODD_BLANKS):
                self._refuse(
                    key, f"the key {key.value!r} has a blank that is no ordinary one: write one"
                )
            elif key.value in values:
                first = self._tree.key_positions[(*path, key.value)].line
                self._refuse(key, f"the key {key.value!r} is there twice, first in line {first}")
            else:
                self._tree.key_positions[(*path, key.value)] = _position(key.start_mark)
                values[key.value] = self.build(child, (*path, key.value))
        return values

    def _refuse(self, node: yaml.Node, text: str) -> None:
        self._tree.problems.append((_position(node.start_mark), text))


def _plain_value(text: str) -> str | int | float | bool | None:
    """What a word without quotes means."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
