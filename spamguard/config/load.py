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
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from spamguard.config import schema
from spamguard.config.options import Position, Settings
from spamguard.config.schema import (
    SETTINGS,
    ConfigProblem,
    KeyPath,
    all_groups,
    group_in,
    options,
)
from spamguard.config.types import IS_CONSTANT
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
        tree = _read_document(file)
    else:
        maildir = f"{(state or usual_state).absolute() / 'Maildir'}"
        listener = {
            "listen": DEFAULT_LISTEN,
            "position": str(Position.STANDALONE),
            "next_hop": f"maildir:{maildir}",
        }
        watched = [maildir] if next_hop is None else []
        usual = {"listeners": [listener], "web": _DEFAULT_PAGE, "watch": watched}
        tree = YamlTree(usual)
    given: Sequence[tuple[KeyPath, object, str]] = (
        (("state",), state and str(state.absolute()), "--state"),
        (("listeners", 0, "listen"), listen, "--listen"),
        (("listeners", 0, "next_hop"), next_hop, "--next-hop"),
        (("watch",), list(watch) or None, "--watch"),
    )
    for path, value, option in given:
        if value is None:
            continue
        around = tree.value
        listeners = around.get("listeners", []) if isinstance(around, dict) else None
        if path[0] == "listeners" and isinstance(listeners, list) and len(listeners) != 1:
            text = f"{option}: {tree.name} has {len(listeners)} listeners: the option is for one"
            raise ConfigError(text)
        with suppress(LookupError, TypeError):  # reported as a mistake of the file
            for part in path[:-1]:
                around = around[part]
            if isinstance(around, dict):
                around[path[-1]] = value
                tree.overrides[path] = option
    if isinstance(tree.value, dict):
        tree.value.setdefault("state", str(usual_state.absolute()))
    return _build_settings(tree, find_classes)


def read_state(path: Path) -> Path | None:
    """The state directory that a file names, whatever else is wrong with it. ConfigError: it cannot
    be read.
    """
    value = _read_document(path).value
    state = value.get("state") if isinstance(value, dict) else None
    return Path(state) if isinstance(state, str) else None


def _read_document(path: Path) -> YamlTree:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        text = f"{path}: cannot be read ({error.strerror}): check the path and its permissions"
        raise ConfigError(text) from error
    return parse_yaml(data, str(path))


def _build_settings(tree: YamlTree, find_classes: ClassFinder | None = None) -> Settings:
    problems = [
        (place, f"{tree.name}:{place[0]}:{place[1]}: {text}") for place, text in tree.problems
    ]
    unreadable = {place for place, _ in tree.problems}  # what has no value has no wrong one either
    found, settings = ([], None) if tree.broken else _examine(tree.value, find_classes)
    for path, text in found:
        if tree.value_positions.get(path) not in unreadable:
            place, where = tree.locate(path)
            about = text.removeprefix(f"{path[-1]}: ") if path in tree.overrides else text
            problems.append((place, f"{where}: {about}"))
    if problems or settings is None:
        raise ConfigError(*dict.fromkeys(text for _, text in sorted(problems)), settings=settings)
    return settings


def _examine(
    value: Any, find_classes: ClassFinder | None
) -> tuple[list[ConfigProblem], Settings | None]:
    """All that is wrong, and the settings that the rest makes, if it makes any.

    What is wrong is taken out and the rest looked at again, so that no mistake hides another.
    """
    problems: list[ConfigProblem] = []
    origins = dict(_containers(value, ()))

    def path_in_file(path: KeyPath) -> KeyPath:
        found: KeyPath = ()
        inner = value
        for part in path:
            found = *found, part
            try:
                inner = inner[part]
            except (LookupError, TypeError):  # an option that is not said has no place
                inner = None
            found = origins.get(id(inner), found)
        return found

    if isinstance(value, dict):
        if "state" not in value:
            problems.append(((), "expected the key 'state', the directory of the filter"))
        has_doors = any(map(value.get, ("listeners", "scanners", "accounts")))
        has_state = "state" in value
    wrong: set[KeyPath] = set()
    while True:
        if isinstance(value, dict):
            value.setdefault("listeners", [])
            has_state &= "state" in value
            value.setdefault("state", "/")
        try:
            settings = SETTINGS.validate_python(value)
            break
        except ValidationError as error:
            places: set[KeyPath] = set()
            for details in error.errors(include_url=False):
                # "[key]" is pydantic's word for a key that is wrong itself
                loc = tuple(part for part in details["loc"] if part != "[key]")
                missing = loc[-1] if details["type"] in ("missing", "missing_argument") else None
                if details["type"] == "too_short" and details["input"]:
                    continue  # one in it is wrong
                place = _written_path(loc[:-1] if missing else loc, value)
                places.add(place)
                path = path_in_file(place)
                if missing is None:
                    problems.append((path, _describe_problem(details, place)))
                elif (*path, missing) not in wrong:
                    problems.append((path, f"expected the key {missing!r}"))
            if () in places or not places:
                return problems, None
            wrong |= set(map(path_in_file, _take_out(places, value)))
    if not has_doors:
        problems.append(((), "expected the key 'listeners', 'scanners' or 'accounts'"))
    contradictions = list(schema.find_contradictions(settings))
    if find_classes and has_state:
        contradictions += schema.unknown_classes(settings, find_classes(settings.state))
    problems += [(path_in_file(path), text) for path, text in contradictions]
    return problems, settings if has_state else None


def _take_out(places: Collection[KeyPath], value: Any) -> Iterator[KeyPath]:
    """Take out what stands there, and what is empty without it; yield each place before."""
    for place in sorted(places, reverse=True):  # of a list the last entries first
        while place and not any(place[:length] in places for length in range(len(place))):
            yield place
            around = value
            for part in place[:-1]:
                around = around[part]
            del around[place[-1]]
            place = () if around else place[:-1]  # noqa: PLW2901  it goes on around it


def _containers(value: Any, path: KeyPath) -> Iterator[tuple[int, KeyPath]]:
    """The identity of each mapping and list, and its path."""
    if isinstance(value, dict | list):
        yield id(value), path
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _containers(entry, (*path, key))


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


# ---- pydantic's errors in words


_SOCKET_IS_GONE = "leave it out, programs leave lessons in the directory `spool`"
_WRITE_PRIVATE = "write private: true to keep neither subjects nor addresses"
GONE = {
    "teach.mode": _SOCKET_IS_GONE,
    "teach.socket": _SOCKET_IS_GONE,
    "watch.ham_evidence": "write answered_is_ham: true and flagged_is_ham: true; reading teaches "
    "nothing any more",
    "watch.debounce": "leave it out, a change is scanned after a second",
    "watch.rescan": "leave it out, everything is scanned every ten minutes",
    "watch.spam_evidence": "keywords teach nothing any more; moving mail to Junk does",
    "listeners.speed_adjust": IS_CONSTANT,
    "listeners.forged": IS_CONSTANT,
    "scanners.forged": IS_CONSTANT,
    "scanners.reject_from": "write rules: [{when: spam, from_probability: 0.99, action: reject}]",
    "scanners.quarantine_from": "write rules: [{when: spam, from_probability: 0.99, action: "
    "quarantine}]",
    "scanners.greylist_from": "write rules: [{when: spam, from_probability: 0.5, action: defer}, "
    "{when: unsure, from_probability: 0.5, action: defer}]",
    "scanners.hostname": "leave it out, this machine's name stands in header fields",
    "scoring.scorers": "raise workers",
    "web.limits": IS_CONSTANT,
    "history.subjects": _WRITE_PRIVATE,
    "history.addresses": _WRITE_PRIVATE,
}
"""Options of former versions, by their path without numbers, and what to do instead."""


def _describe_problem(error: ErrorDetails, path: KeyPath) -> str:
    key = next((part for part in reversed(path) if isinstance(part, str)), "the file")
    found = describe_value(error["input"])
    gone = GONE.get(".".join(part for part in path if isinstance(part, str)))
    match error["type"]:
        case "unexpected_keyword_argument" if gone:
            return f"{key} is gone: {gone}"
        case "unexpected_keyword_argument":  # with what somebody who wrote it may have wanted
            text, group = f"unknown key {describe_value(key)}", _group_at(path[:-1])
            places = {
                f"in {place}" if place else "at the top level": None
                for other, place in all_groups().items()
                if key in options(other)
            }
            known = list(options(group)) if group else []
            if places:
                text += f" here: it stands {' or '.join(places)}"
            elif near := get_close_matches(key.lower(), known, 1, 0.6):
                text += f": did you mean {near[0]!r}?"
            else:
                text += f": expected one of {', '.join(known)}"
            return text
        case "value_error":
            text = str(error["ctx"]["error"])
            is_constant = text == IS_CONSTANT
            return f"{key} is gone: {gone or text}" if is_constant else f"{key}: {text}"
        case "too_short":
            return f"{key}: expected at least one, found none"
        case "tuple_type":
            return f"{key}: expected a list as in [a, b], found {found}"
    group = _group_at(path)
    required = [
        f"{option.name}: …"
        for option in (fields(group) if group else ())
        if option.default is MISSING and option.default_factory is MISSING
    ]
    example = ", ".join(required or ["key: …"])
    return f"{key}: expected a mapping as in {{{example}}}, found {found}"


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
_MAX_ALIASES = 16
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(?:[0-9]{1,18}\.?[0-9]{0,18}|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,3})?")
_CONSTANTS = {"": None, "~": None, "null": None, "true": True, "false": False}
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))


TextPosition = tuple[int, int]
"""Line and column, from 1 on."""


@dataclass
class YamlTree:
    """A document: its value, where the key and the value at each path stand, what is wrong with the
    text, and the options of the command line that have replaced values. A broken document has no
    value. name: "" without a file.
    """

    value: Any
    name: str = ""
    key_positions: dict[KeyPath, TextPosition] = field(default_factory=dict)
    value_positions: dict[KeyPath, TextPosition] = field(default_factory=dict)
    problems: list[tuple[TextPosition, str]] = field(default_factory=list)
    overrides: dict[KeyPath, str] = field(default_factory=dict)
    broken: bool = False
    _open: set[int] = field(default_factory=set)

    def locate(self, path: KeyPath) -> tuple[TextPosition, str]:
        """Where a path stands, or the nearest thing around it: to sort by, and in words."""
        for length in range(len(path), 0, -1):
            if option := self.overrides.get(path[:length]):
                return (0, 0), option
        while path not in self.value_positions and path:
            path = path[:-1]
        place = self.key_positions.get(path) or self.value_positions.get(path) or (1, 1)
        where = f"{self.name}:{place[0]}:{place[1]}"
        return place, where if self.name else "without a configuration file"

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
        if isinstance(node, yaml.SequenceNode):
            items = [self.build(child, (*path, at)) for at, child in enumerate(node.value)]
            self._open.discard(id(node))
            return items
        values: dict[str, Any] = {}
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._refuse(key, "expected a word as key")
            elif key.value in values:
                self._refuse(key, f"the key {key.value!r} is there twice")
            else:
                self.key_positions[(*path, key.value)] = _position(key.start_mark)
                values[key.value] = self.build(child, (*path, key.value))
        self._open.discard(id(node))
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


def parse_yaml(data: bytes, name: str = "") -> YamlTree:
    """The one document of a file; problems instead of exceptions, for any bytes."""

    def broken(place: TextPosition, text: str) -> YamlTree:
        return YamlTree({}, name, problems=[(place, text)], broken=True)

    if len(data) > MAX_BYTES:
        return broken((1, 1), f"the file is larger than {MAX_BYTES:,} bytes")
    text = data.decode("utf-8-sig", "replace").replace("\ufffd", "\0")
    try:
        node = yaml.compose(text, Loader=_BoundedLoader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return broken((line, 1), "expected printable text in UTF-8: save it so")
    except yaml.MarkedYAMLError as error:
        is_late = "could not find expected ':'" in (error.problem or "")  # seen in the next line
        mark = error.context_mark if is_late else error.problem_mark or error.context_mark
        place = (1, 1) if mark is None else _position(mark)
        text = f"is not YAML here: {error.problem or error.context}: check indentation and quotes"
        return broken(place, text)
    tree = YamlTree({}, name)
    if node is not None:
        value = tree.build(node, ())
        tree.value = {} if value is None else value
    return tree


def _position(mark: yaml.Mark) -> TextPosition:
    return mark.line + 1, mark.column + 1


def _plain_value(text: str) -> str | int | float | bool | None:
    """What a word without quotes means."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
