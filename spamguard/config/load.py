"""From a configuration file to `Settings`.

A file is parsed to plain values, and the place of each is kept: `yaml.safe_load` forgets places and
knows no bounds, so this reads PyYAML's nodes. Pydantic checks the values by the dataclasses of
`options`; `schema` then finds those that contradict each other. All mistakes of a step are reported
at once, each with its line and column, what was expected, what was found, and often what to write
instead.

Must never raise anything but `ConfigError`, whatever the file holds, and never build anything but
lists, mappings, texts, numbers and truth values: size and depth are bounded, and there are no tags
and no aliases. Plain words mean what they mean in YAML 1.2: `off` and `no` are texts, `10:30` is no
number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from spamguard.config import schema
from spamguard.config.options import Position, Settings
from spamguard.config.schema import SETTINGS, KeyPath, group_in, options
from spamguard.config.values import describe_value
from spamguard.errors import ConfigError

DEFAULT_LISTEN = "smtp://127.0.0.1:10025"
_DEFAULT_PAGE = "127.0.0.1:10088"  # not 10080: browsers refuse that port


def load_settings(
    file: Path | None, *, state: Path | None = None, usual_state: Path | None = None
) -> Settings:
    """Read the settings of a file, or without one the usual ones.

    Without a file, mail is kept in a Maildir in the state directory, where moving it teaches: good
    for a first try, harmless everywhere. ConfigError: all that is wrong, and where.

    Parameters
    ----------
    state
        In place of what the file says.
    usual_state
        Where neither says one.
    """
    if file is not None:
        document = _read(file)
    else:
        place = state or usual_state or Path()
        maildir = str(place.absolute() / "Maildir")
        listener = {
            "listen": DEFAULT_LISTEN,
            "position": str(Position.STANDALONE),
            "next_hop": f"maildir:{maildir}",
        }
        usual = {"listeners": [listener], "web": _DEFAULT_PAGE, "watch": [maildir]}
        document = Document("without a configuration file", usual, {})
    if isinstance(document.value, dict):
        if state is not None:
            document.value["state"] = str(state.absolute())
        elif usual_state is not None:
            document.value.setdefault("state", str(usual_state.absolute()))
    try:
        settings = SETTINGS.validate_python(document.value)
    except ValidationError as error:
        details = error.errors(include_url=False)
        document.refuse((each["loc"], _describe(each, document)) for each in details)
        raise
    document.refuse(schema.find_contradictions(settings))
    return settings


def read_state(path: Path) -> Path | None:
    """The state directory that a file names, whatever else is wrong with it. ConfigError: it cannot
    be read.
    """
    value = _read(path).value
    state = value.get("state") if isinstance(value, dict) else None
    return Path(state) if isinstance(state, str) else None


def _read(path: Path) -> Document:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        text = f"{path}: cannot be read ({error.strerror}): check the path and its permissions"
        raise ConfigError(text) from error
    return parse_yaml(data, str(path))


# ---- pydantic's errors in words


def _describe(error: ErrorDetails, document: Document) -> str:
    if error["type"] in ("missing", "missing_argument"):
        return f"expected the key {error['loc'][-1]!r}"
    path = document.find(error["loc"])
    key = next((part for part in reversed(path) if isinstance(part, str)), "the file")
    match error["type"]:
        case "unexpected_keyword_argument":
            return f"unknown key {describe_value(key)}{_find_key(key, path[:-1])}"
        case "value_error":
            return f"{key}: {error['ctx']['error']}"
        case "tuple_type":
            expected = "a list as in [a, b]"
        case "enum":
            expected = f"one of {error['ctx']['expected'].replace(chr(39), '')}"
        case _:
            group = _group_at(path)
            first = next(iter(options(group))) if group else "key"
            expected = f"a mapping as in {{{first}: …}}"
    return f"{key}: expected {expected}, found {describe_value(error['input'])}"


def _find_key(key: str, path: KeyPath) -> str:
    """What somebody who wrote this key there may have wanted."""
    known = options(_group_at(path))
    if near := get_close_matches(key.lower(), known, 1, 0.6):
        return f": did you mean {near[0]!r}?"
    return f": leave it out, or write one of {', '.join(known)}"


def _group_at(path: KeyPath) -> Any | None:
    """The group at a path; None: a mapping whose keys are anybody's choice."""
    group: Any = Settings
    for key in path:
        if isinstance(key, str) and group is not None:
            group = group_in(options(group).get(key))
    return group


# ---- YAML as plain values, and where each of them stands

MAX_BYTES = 1_000_000  # bytes of a file
_MAX_DEPTH = 20
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(?:[0-9]{1,18}\.?[0-9]{0,18}|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,3})?")
_CONSTANTS = {"": None, "~": None, "null": None, "true": True, "false": False}


class Document(NamedTuple):
    """A file: its name, its value, and the mark of each key and each entry of a list."""

    name: str
    value: Any
    marks: dict[KeyPath, yaml.Mark]

    def find(self, path: KeyPath) -> KeyPath:
        """The path, or the nearest thing around it that the file has."""
        while path and path not in self.marks:
            path = path[:-1]
        return path

    def refuse(self, problems: Iterable[tuple[KeyPath, str]]) -> None:
        """Raise ConfigError if there are any, in the order of their places."""
        found = [(_position(self.marks.get(self.find(path))), text) for path, text in problems]
        if found:
            lines = (f"{self.name}:{place}: {text}" for (*_, place), text in sorted(found))
            raise ConfigError(*dict.fromkeys(lines))


class _Loader(yaml.SafeLoader):
    """Composes nodes within bounds, and leaves plain words to `_plain_value`."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  the base class has it
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # of PyYAML
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None):
            raise _mistake("an alias or a tag has no meaning here: write it out", event.start_mark)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _mistake(f"there are more than {_MAX_DEPTH} levels", event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def parse_yaml(data: bytes, name: str = "") -> Document:
    """Read the one document of a file. ConfigError: it is none, or says what has no meaning."""
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{name}:1:1: the file is larger than {MAX_BYTES:,} bytes")
    text = data.decode("utf-8-sig", "replace").replace("\ufffd", "\0")
    marks: dict[KeyPath, yaml.Mark] = {}
    try:
        node = yaml.compose(text, Loader=_Loader)
        value = None if node is None else _build(node, (), marks)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"{line}:1: expected printable text in UTF-8: save it so"
    except yaml.MarkedYAMLError as error:
        is_late = "could not find expected ':'" in (error.problem or "")  # seen in the next line
        mark = error.context_mark if is_late else error.problem_mark or error.context_mark
        what = f"is not YAML here: {error.problem or error.context}: check indentation and quotes"
        problem = f"{_position(mark)[-1]}: {error.note or what}"
    else:
        return Document(name, {} if value is None else value, marks)
    raise ConfigError(f"{name}:{problem}")


def _build(node: yaml.Node, path: KeyPath, marks: dict[KeyPath, yaml.Mark]) -> Any:
    """The value of a node. Marks of keys are there already."""
    marks.setdefault(path, node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        return [_build(child, (*path, at), marks) for at, child in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        return _plain_value(node.value) if node.style is None else node.value
    values: dict[str, Any] = {}
    for key, child in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _mistake("expected a word as key", key.start_mark)
        if key.value in values:
            raise _mistake(f"the key {key.value!r} is there twice", key.start_mark)
        inner = (*path, key.value)
        marks[inner] = key.start_mark
        values[key.value] = _build(child, inner, marks)
    return values


def _mistake(text: str, mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(note=text, problem_mark=mark)


def _position(mark: yaml.Mark | None) -> tuple[int, int, str]:
    """Line and column, from 1 on, to sort by, and as people read them."""
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    return line, column, f"{line}:{column}"


def _plain_value(text: str) -> str | int | float | bool | None:
    """What a word without quotes means."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
