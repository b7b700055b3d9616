"""YAML text as plain values, and where each of them stands.

Must never build anything but lists, mappings, texts, numbers and truth values, and never more of them than the text is long:
size, depth and aliases are bounded. Plain words mean what they mean in YAML 1.2: `off` and `no` are texts, `10:30` is no number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

LONGEST = 1_000_000  # bytes of a file
_DEEPEST = 20
_ALIASES = 16
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(?:[0-9]{1,18}\.?[0-9]{0,18}|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,3})?")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))
_ODD_BLANKS = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u200b\u202f\u205f\u3000\ufeff"
_HINTS = (  # words of what a parser was doing and says, and what to do about it; {line}: where it began to do that
    (r"found character '\t'", "write blanks instead of a tab"),
    ("found character", "put what begins with it into quotes"),
    ("while scanning an alias", "put what begins with * into quotes"),
    ("undefined alias", "put what begins with * into quotes"),
    ("while scanning an anchor", "put what begins with & into quotes"),
    ("while scanning a quoted scalar found unexpected end", "the quotes of line {line} do not end"),
    ("unknown escape character", "use single quotes"),
    ("while parsing a flow", "the bracket of line {line} has no end before this"),
    ("could not find expected ':'", "write a colon and a blank after the key"),
    ("mapping values are not allowed", "indent it as what it belongs to, or put a text with a colon in it into quotes"),
    ("expected <block end>", "indent it as what it belongs to"),
    ("but found another document", "leave out the ---"),
)

Path = tuple[str | int, ...]


class Place(NamedTuple):
    """Line and column, from 1 on."""

    line: int
    column: int


@dataclass(slots=True)
class Tree:
    """A document. keys, values: where the key or the value at a path stands. problems: what is wrong with the text, and where;
    broken: so wrong that there is no value."""

    value: Any = None
    keys: dict[Path, Place] = field(default_factory=dict)
    values: dict[Path, Place] = field(default_factory=dict)
    problems: list[tuple[Place, str]] = field(default_factory=list)
    broken: bool = False

    def place(self, path: Path) -> Place:
        """Where a path stands, or the nearest thing around it: the key, if there is one."""
        while path not in self.values and path:
            path = path[:-1]
        return self.keys.get(path) or self.values.get(path) or Place(1, 1)


class _Refused(yaml.MarkedYAMLError):
    """What we do not take although it is YAML."""


class _Loader(yaml.SafeLoader):
    """Composes nodes within bounds, and leaves plain words to `_plain`."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  # as the base class declares it

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._depth += 1
        self._aliases += isinstance(event, yaml.AliasEvent)
        if self._depth > _DEEPEST:
            raise _Refused(problem=f"nested deeper than {_DEEPEST} levels", problem_mark=event.start_mark)
        if self._aliases > _ALIASES:
            raise _Refused(problem=f"more than {_ALIASES} aliases", problem_mark=event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def parse(data: bytes) -> Tree:
    """The one document of a file; problems instead of exceptions, whatever the bytes are."""
    if len(data) > LONGEST:
        return _broken(Place(1, 1), f"the file is larger than {LONGEST:,} bytes")
    try:
        node = _composed(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return _broken(Place(data.count(b"\n", 0, error.start) + 1, 1), "expected text in UTF-8: save it so")
    except yaml.reader.ReaderError as error:
        return _broken(_of_character(data, error.position), f"character U+{_code(error):04X} is not allowed: take it out")
    except yaml.MarkedYAMLError as error:
        place = _of_error(error)
        return _broken(place, _told(error) + _odd_blanks(data.decode("utf-8-sig"), place.line))
    tree = Tree()
    tree.value = None if node is None else _Builder(tree).build(node, ())
    return tree


def _broken(place: Place, text: str) -> Tree:
    return Tree(problems=[(place, text)], broken=True)


def _composed(text: str) -> yaml.Node | None:
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def _of_character(data: bytes, position: int) -> Place:
    before = data.decode("utf-8-sig")[:position]
    return Place(before.count("\n") + 1, position - before.rfind("\n"))


def _code(error: yaml.reader.ReaderError) -> int:
    return ord(error.character) if isinstance(error.character, str) else int(error.character)


def _of_error(error: yaml.MarkedYAMLError) -> Place:
    seen_late = "could not find expected ':'" in (error.problem or "")  # in the next line
    mark = error.context_mark if seen_late else error.problem_mark or error.context_mark
    return Place(1, 1) if mark is None else _of(mark)


def _told(error: yaml.MarkedYAMLError) -> str:
    """A parser's complaint in one line, with what to do about it."""
    text = error.problem or error.context or "is not YAML"
    if isinstance(error, _Refused):
        return text
    said, began = f"{error.context} {error.problem}", error.context_mark
    hint = next((f": {hint}" for words, hint in _HINTS if words in said), "")
    return f"is not YAML here: {text}{hint.format(line=1 if began is None else began.line + 1)}"


def _odd_blanks(text: str, line: int) -> str:
    """What copied text has in place of blanks cannot be seen by whoever looks for the mistake in that line."""
    lines = [*text.splitlines(), ""]  # as a parser counts them: U+2028 and a bare CR end one, too
    found = next((char for char in lines[line - 1] if char in _ODD_BLANKS), "")
    return f"; there is no ordinary blank (U+{ord(found):04X}): write one" if found else ""


def _of(mark: yaml.Mark | yaml.Node) -> Place:
    at = mark.start_mark if isinstance(mark, yaml.Node) else mark
    return Place(at.line + 1, at.column + 1)


class _Builder:
    """Plain values of nodes. An alias that stands inside what it names is refused."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._open: set[int] = set()

    def build(self, node: yaml.Node, path: Path) -> Any:
        """The value of a node, its place and those below it noted."""
        self._tree.values[path] = _of(node)
        if node.tag not in _PLAIN_TAGS:
            return self._refuse(node, f"the tag {node.tag!r} has no meaning here: leave it out")
        if isinstance(node, yaml.ScalarNode):
            return _plain(node.value) if node.style is None else node.value
        if id(node) in self._open:
            return self._refuse(node, "an alias stands inside what it names")
        self._open.add(id(node))
        value = self._mapping(node, path) if isinstance(node, yaml.MappingNode) else self._list(node, path)
        self._open.discard(id(node))
        return value

    def _list(self, node: yaml.Node, path: Path) -> list[Any]:
        return [self.build(child, (*path, number)) for number, child in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._refuse(key, "expected a word as key")
            elif key.style is None and key.value != key.value.strip(_ODD_BLANKS):
                self._refuse(key, f"the key {key.value!r} has a blank that is no ordinary one: write one")
            elif key.value in found:
                self._refuse(key, f"the key {key.value!r} is there twice, first in line {self._tree.keys[(*path, key.value)].line}")
            else:
                self._tree.keys[(*path, key.value)] = _of(key)
                found[key.value] = self.build(child, (*path, key.value))
        return found

    def _refuse(self, node: yaml.Node, text: str) -> None:
        self._tree.problems.append((_of(node), text))


def _plain(text: str) -> str | int | float | bool | None:
    """What a word without quotes means."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
