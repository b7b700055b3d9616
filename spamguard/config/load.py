"""From a configuration file, and options of the command line, to `Settings`.

A file is parsed to plain values, and the place of each is kept: `yaml.safe_load` forgets places and
knows no bounds, so this reads PyYAML's nodes. The values are checked by `schema`. All mistakes are
reported at once, each with its line and column, what was expected, what was found, and often what
to write instead.

Must never raise anything but `ConfigError`, whatever the file holds, and never build anything but
lists, mappings, texts, numbers and truth values, or more of them than the text is long: size, depth
and aliases are bounded. Plain words mean what they mean in YAML 1.2: `off` and `no` are texts,
`10:30` is no number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from spamguard.config import schema
from spamguard.config.options import Position, Settings
from spamguard.config.schema import FILE_PART, ConfigProblem, KeyPath, Part, all_parts, part_in
from spamguard.config.values import describe_value
from spamguard.errors import ConfigError

DEFAULT_LISTEN = "smtp://127.0.0.1:10025"
_DEFAULT_PAGE = "127.0.0.1:10088"  # not 10080: browsers refuse that port

ClassFinder = Callable[[Path], Collection[str] | None]
"""Tells which classes the filter in a directory knows; None: there is none that can be asked."""


def load_settings(path: Path) -> Settings:
    """The settings of a file. ConfigError: all that is wrong with it, and where."""
    return _build_settings(_read_document(path))


def settings_from_command_line(
    file: Path | None,
    *,
    usual_state: Path,
    state: Path | None = None,
    listen: str | None = None,
    next_hop: str | None = None,
    watch: Sequence[str] = (),
    find_classes: ClassFinder | None = None,
) -> Settings:
    """The settings of a file, or the usual ones, with options of the command line in the place of
    what the file says. ConfigError.

    Without a file, mail is kept in a Maildir in the state directory, where moving it teaches: good
    for a first try, harmless everywhere. usual_state: used where neither says a state directory.
    find_classes: if a class that nothing teaches is a mistake.
    """
    if file is not None:
        document = _read_document(file)
    else:
        maildir = f"{(state or usual_state).absolute() / 'Maildir'}"
        listener = {
            "listen": DEFAULT_LISTEN,
            "position": str(Position.STANDALONE),
            "next_hop": f"maildir:{maildir}",
        }
        watched = [maildir] if next_hop is None else []
        usual = {"listeners": [listener], "web": _DEFAULT_PAGE, "watch": watched}
        document = _Document("", YamlTree(usual))
    if state is not None:
        document.override(("state",), str(state.absolute()), "--state")
    if isinstance(document.tree.value, dict):
        document.tree.value.setdefault("state", str(usual_state.absolute()))
    if listen is not None:
        document.override_in_listener("listen", listen, "--listen")
    if next_hop is not None:
        document.override_in_listener("next_hop", next_hop, "--next-hop")
    if watch:
        document.override(("watch",), list(watch), "--watch")
    return _build_settings(document, find_classes)


def read_state(path: Path) -> Path | None:
    """The state directory that a file names, whatever else is wrong with it. ConfigError: it cannot
    be read.
    """
    value = _read_document(path).tree.value
    state = value.get("state") if isinstance(value, dict) else None
    return Path(state) if isinstance(state, str) else None


def _read_document(path: Path) -> _Document:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        text = f"{path}: cannot be read ({error.strerror}): check the path and its permissions"
        raise ConfigError(text) from error
    return _Document(str(path), parse_yaml(data))


@dataclass
class _Document:
    """A file's values, and those that the command line has replaced. name: "" without a file."""

    name: str
    tree: YamlTree
    overrides: dict[KeyPath, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tree.value is None:
            self.tree.value = {}

    def override(self, path: KeyPath, value: object, option: str) -> None:
        """Put the value of an option in the place of the file's, if the file has such a place."""
        around = self.tree.value
        for part in path[:-1]:
            around = around[part]
        if isinstance(around, dict):
            around[path[-1]] = value
            self.overrides[path] = option

    def override_in_listener(self, key: str, value: str, option: str) -> None:
        """Override an option of the only listener. ConfigError: there is not exactly one."""
        value_of_file = self.tree.value
        listeners = value_of_file.get("listeners", []) if isinstance(value_of_file, dict) else None
        if not isinstance(listeners, list):
            return  # reported as a mistake of the file
        if len(listeners) != 1:
            text = f"{option}: {self.name} has {len(listeners)} listeners: the option is for one"
            raise ConfigError(text)
        self.override(("listeners", 0, key), value, option)

    def locate(self, path: KeyPath) -> tuple[TextPosition, str]:
        """Where a path stands: to sort by, and in words."""
        for length in range(len(path), 0, -1):
            if option := self.overrides.get(path[:length]):
                return (0, 0), option
        place = self.tree.position(path)
        if not self.name:
            return place, "without a configuration file"
        return place, f"{self.name}:{place[0]}:{place[1]}"


def _build_settings(document: _Document, find_classes: ClassFinder | None = None) -> Settings:
    tree = document.tree
    problems = [
        (place, f"{document.name}:{place[0]}:{place[1]}: {text}") for place, text in tree.problems
    ]
    unreadable = {place for place, _ in tree.problems}  # what has no value has no wrong one either
    found, settings = ([], None) if tree.broken else _examine(tree.value, find_classes)
    for path, text in found:
        if tree.value_positions.get(path) not in unreadable:
            place, where = document.locate(path)
            about = text.removeprefix(f"{path[-1]}: ") if path in document.overrides else text
            problems.append((place, f"{where}: {about}"))
    if problems or settings is None:
        raise ConfigError(*dict.fromkeys(text for _, text in sorted(problems)), settings=settings)
    return settings


def _examine(
    value: Any, find_classes: ClassFinder | None
) -> tuple[list[ConfigProblem], Settings | None]:
    """All that is wrong, and the settings that the rest makes, if it makes any.

    What is wrong is left out and the rest looked at again, so that no mistake hides another.
    """
    problems: list[ConfigProblem] = []
    wrong: set[KeyPath] = set()
    rest = deepcopy(value)
    origins = dict(_containers(rest, ()))
    while True:
        try:
            part = FILE_PART.model_validate(rest)
            break
        except ValidationError as error:
            places: set[KeyPath] = set()
            for details in error.errors(include_url=False):
                # "[key]" is pydantic's word for a key that is wrong itself
                found = tuple(part for part in details["loc"] if part != "[key]")
                is_missing = details["type"] == "missing"
                place = _written_path(found[:-1] if is_missing else found, rest)
                path = _path_in_file(place, rest, origins)
                places.add(place)
                if not is_missing:
                    problems.append((path, _describe_problem(details, place)))
                elif (*path, found[-1]) not in wrong:
                    problems.append((path, f"expected the key {found[-1]!r}"))
            if () in places:
                return problems, None
            for place in sorted(places, reverse=True):  # of a list the last entries first
                if not any(place[:length] in places for length in range(len(place))):
                    _remove(place, rest, origins, wrong)
    has_state = "state" in rest
    if not has_state:
        part = FILE_PART.model_validate(rest | {"state": "/"})
    settings: Settings = part.build()
    if "state" not in value:
        problems.append(((), "expected the key 'state', the directory of the filter"))
    if not value.get("listeners") and not value.get("scanners"):
        problems.append(((), "expected the key 'listeners', or 'scanners'"))
    contradictions = list(schema.find_contradictions(settings))
    if find_classes and has_state:
        contradictions += schema.unknown_classes(settings, find_classes(settings.state))
    problems += [(_path_in_file(path, rest, origins), text) for path, text in contradictions]
    return problems, settings if has_state else None


def _containers(value: Any, path: KeyPath) -> Iterator[tuple[int, KeyPath]]:
    """The identity of each mapping and list, and its path."""
    if isinstance(value, dict | list):
        yield id(value), path
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _containers(entry, (*path, key))


def _path_in_file(path: KeyPath, rest: Any, origins: Mapping[int, KeyPath]) -> KeyPath:
    """The path in the file of what stands at this path in the rest."""
    found: KeyPath = ()
    for part in path:
        found = *found, part
        try:
            rest = rest[part]
        except (KeyError, IndexError, TypeError):  # an option that is not said has no place
            rest = None
        found = origins.get(id(rest), found)
    return found


def _remove(path: KeyPath, rest: Any, origins: Mapping[int, KeyPath], wrong: set[KeyPath]) -> None:
    """Remove what stands there, and what is empty without it; add it to what is wrong."""
    wrong.add(_path_in_file(path, rest, origins))
    around = rest
    for part in path[:-1]:
        around = around[part]
    del around[path[-1]]
    if not around and path[:-1]:
        _remove(path[:-1], rest, origins, wrong)


# ---- pydantic's errors in words


_SOCKET_IS_GONE = "leave it out, programs leave lessons in the directory `spool`"
_WRITE_PRIVATE = "write private: true to keep neither subjects nor addresses"
_IS_CONSTANT = "leave it out, it cannot be changed"
GONE = {
    "teach.mode": _SOCKET_IS_GONE,
    "teach.socket": _SOCKET_IS_GONE,
    "watch.ham_evidence": "write answered_is_ham: true and flagged_is_ham: true; reading teaches "
    "nothing any more",
    "watch.debounce": "leave it out, a change is scanned after a second",
    "watch.rescan": "leave it out, everything is scanned every ten minutes",
    "watch.spam_evidence": "keywords teach nothing any more; moving mail to Junk does",
    "listeners.speed_adjust": _IS_CONSTANT,
    "listeners.forged": _IS_CONSTANT,
    "scanners.forged": _IS_CONSTANT,
    "scanners.reject_from": "write rules: [{when: spam, from_probability: 0.99, action: reject}]",
    "scanners.quarantine_from": "write rules: [{when: spam, from_probability: 0.99, action: "
    "quarantine}]",
    "scanners.greylist_from": "write rules: [{when: spam, from_probability: 0.5, action: defer}, "
    "{when: unsure, from_probability: 0.5, action: defer}]",
    "scanners.hostname": "leave it out, this machine's name stands in header fields",
    "scoring.scorers": "raise workers",
    "web.limits": _IS_CONSTANT,
    "history.subjects": _WRITE_PRIVATE,
    "history.addresses": _WRITE_PRIVATE,
}
"""Options of former versions, by their path without numbers, and what to do instead."""


def _written_path(path: KeyPath, value: Any) -> KeyPath:
    """The part of a path that the file has: what is said in one word has no keys inside."""
    for length, part in enumerate(path):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int):
            value = value[part]
        else:
            return path[:length]
    return path


def _describe_problem(error: ErrorDetails, path: KeyPath) -> str:
    key = next((part for part in reversed(path) if isinstance(part, str)), "the file")
    value = error["input"]
    match error["type"]:
        case "extra_forbidden":
            part = _part_at(path[:-1])
            instead = GONE.get(".".join(part for part in path if isinstance(part, str)))
            option = part.fills.__dataclass_fields__.get(key) if part else None
            if not instead and option and option.type in ("int", "float"):
                instead = _IS_CONSTANT
            if instead:
                return f"{key} is gone: {instead}"
            return f"unknown key {describe_value(key)}{_key_hint(key, part)}"
        case "value_error":
            return f"{key}: {error['ctx']['error']}"
        case "too_short":
            return f"{key}: expected at least one, found none"
        case "list_type":
            return f"{key}: expected a list as in [a, b], found {describe_value(value)}"
    part = _part_at(path)
    options = part.model_fields.items() if part else ()
    required = [f"{name}: …" for name, option in options if option.is_required()] or ["key: …"]
    example = ", ".join(required)
    return f"{key}: expected a mapping as in {{{example}}}, found {describe_value(value)}"


def _key_hint(key: str, part: type[Part] | None) -> str:
    """What somebody who wrote this unknown key may have wanted."""
    places = {
        f"in {place}" if place else "at the top level": None
        for other, place in all_parts().items()
        if key in other.model_fields
    }
    if places:
        return f" here: it stands {' or '.join(places)}"
    known_keys = list(part.model_fields) if part else []
    if near := get_close_matches(key.lower(), known_keys, 1, 0.6):
        return f": did you mean {near[0]!r}?"
    return f": expected one of {', '.join(known_keys)}"


def _part_at(path: KeyPath) -> type[Part] | None:
    """The model at a path; None: a mapping whose keys are anybody's choice."""
    part: type[Part] | None = FILE_PART
    for key in path:
        if isinstance(key, str) and part is not None:
            option = part.model_fields.get(key)
            part = part_in(option.annotation) if option else None
    return part


# ---- YAML as plain values, and where each of them stands

MAX_BYTES = 1_000_000  # bytes of a file
_MAX_DEPTH = 20
_MAX_ALIASES = 16
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(?:[0-9]{1,18}\.?[0-9]{0,18}|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,3})?")
_CONSTANTS = {"": None, "~": None, "null": None, "true": True, "false": False}
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))


TextPosition = tuple[int, int]
"""Line and column, from 1 on."""


@dataclass
class YamlTree:
    """A document: its value, where the key and the value at each path stand, and what is wrong with
    the text. A broken document has no value.
    """

    value: Any = None
    key_positions: dict[KeyPath, TextPosition] = field(default_factory=dict)
    value_positions: dict[KeyPath, TextPosition] = field(default_factory=dict)
    problems: list[tuple[TextPosition, str]] = field(default_factory=list)
    broken: bool = False
    _open: set[int] = field(default_factory=set)

    def position(self, path: KeyPath) -> TextPosition:
        """Where a path stands, or the nearest thing around it: the key, if there is one."""
        while path not in self.value_positions and path:
            path = path[:-1]
        return self.key_positions.get(path) or self.value_positions.get(path) or (1, 1)

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        """The value of a node, its place and those below it noted. An alias that stands inside what
        it names is refused.
        """
        self.value_positions[path] = _position(node.start_mark)
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
            elif key.value in values:
                self._refuse(key, f"the key {key.value!r} is there twice")
            else:
                self.key_positions[(*path, key.value)] = _position(key.start_mark)
                values[key.value] = self.build(child, (*path, key.value))
        return values

    def _refuse(self, node: yaml.Node, text: str) -> None:
        self.problems.append((_position(node.start_mark), text))


class _BoundedLoader(yaml.SafeLoader):
    """Composes nodes within bounds, and leaves plain words to `_plain`."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  the base class has it
    _depth = _aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # of PyYAML
        self._depth += 1
        self._aliases += isinstance(event, yaml.AliasEvent)
        if self._depth > _MAX_DEPTH or self._aliases > _MAX_ALIASES:
            raise yaml.MarkedYAMLError(
                problem=f"more than {_MAX_DEPTH} levels or {_MAX_ALIASES} aliases",
                problem_mark=event.start_mark,
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def parse_yaml(data: bytes) -> YamlTree:
    """The one document of a file; problems instead of exceptions, for any bytes."""
    if len(data) > MAX_BYTES:
        return _broken_tree((1, 1), f"the file is larger than {MAX_BYTES:,} bytes")
    text = data.decode("utf-8-sig", "replace").replace("\ufffd", "\0")
    try:
        node = yaml.compose(text, Loader=_BoundedLoader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return _broken_tree((line, 1), "expected printable text in UTF-8: save it so")
    except yaml.MarkedYAMLError as error:
        is_late = "could not find expected ':'" in (error.problem or "")  # seen in the next line
        mark = error.context_mark if is_late else error.problem_mark or error.context_mark
        place = (1, 1) if mark is None else _position(mark)
        text = f"is not YAML here: {error.problem or error.context}: check indentation and quotes"
        return _broken_tree(place, text)
    tree = YamlTree()
    tree.value = None if node is None else tree.build(node, ())
    return tree


def _broken_tree(place: TextPosition, text: str) -> YamlTree:
    return YamlTree(problems=[(place, text)], broken=True)


def _position(mark: yaml.Mark) -> TextPosition:
    return mark.line + 1, mark.column + 1


def _plain_value(text: str) -> str | int | float | bool | None:
    """What a word without quotes means."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
