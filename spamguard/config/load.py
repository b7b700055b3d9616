"""From a configuration file, and options of the command line, to `Settings`.

A file is parsed to plain values (`yaml_tree`), checked option by option (`schema`), then as a whole
(`checks`). All mistakes are reported at once, each with its line and column, what was expected,
what was found, and often what to write instead.

Must never raise anything but `ConfigError`, whatever the file holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from spamguard.config import checks, types, yaml_tree
from spamguard.config.options import Listener, Position, Scanner, Settings, Web
from spamguard.config.schema import FILE_PART, Part, all_parts, part_in, part_model
from spamguard.config.values import describe_value
from spamguard.config.yaml_tree import KeyPath, TextPosition, YamlTree
from spamguard.errors import ConfigError

DEFAULT_LISTEN = "smtp://127.0.0.1:10025"
_DEFAULT_PAGE = "127.0.0.1:10088"  # not 10080: browsers refuse that port

T = TypeVar("T", Listener, Scanner, Web)


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
) -> Settings:
    """The settings of a file, or the usual ones, with options of the command line in the place of
    what the file says. ConfigError.

    Without a file, mail is kept in a Maildir in the state directory, where moving it teaches: good
    for a first try, harmless everywhere. usual_state: used where neither says a state directory.
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
        usual = {
            "listeners": [listener],
            "web": _DEFAULT_PAGE,
            "watch": [maildir] if next_hop is None else [],
        }
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
    return _build_settings(document)


def _read_document(path: Path) -> _Document:
    try:
        with types.open_without_waiting(path) as file:
            data = file.read(yaml_tree.MAX_BYTES + 1)
    except OSError as error:
        text = f"{path}: cannot be read ({error.strerror}): check the path and its permissions"
        raise ConfigError(text) from error
    return _Document(str(path), yaml_tree.parse_yaml(data))


@dataclass(slots=True)
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
        """The same for the only listener. ConfigError: there is not exactly one."""
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
                return TextPosition(0, 0), option
        place = self.tree.position(path)
        if not self.name:
            return place, "without a configuration file"
        return place, f"{self.name}:{place.line}:{place.column}"


def _build_settings(document: _Document) -> Settings:
    tree = document.tree
    problems = [
        (place, f"{document.name}:{place.line}:{place.column}: {text}")
        for place, text in tree.problems
    ]
    unreadable = {place for place, _ in tree.problems}  # what has no value has no wrong one either
    for path, text in [] if tree.broken else _find_problems(document.tree.value):
        if tree.value_positions.get(path) not in unreadable:
            place, where = document.locate(path)
            about = text.removeprefix(f"{path[-1]}: ") if path in document.overrides else text
            problems.append((place, f"{where}: {about}"))
    if problems:
        raise ConfigError(*dict.fromkeys(text for _, text in sorted(problems)))
    settings: Settings = FILE_PART.model_validate(tree.value).build()
    return settings


def _find_problems(value: Any) -> Iterator[checks.ConfigProblem]:
    try:
        FILE_PART.model_validate(value)
    except ValidationError as error:
        yield from _type_problems(error, value)
    if not isinstance(value, dict):
        return
    if "state" not in value:
        yield (), "expected the key 'state', the directory of the filter"
    yield from checks.missing_listener_problems(value)
    yield from checks.find_contradictions(
        _valid_entries(value.get("listeners"), Listener),
        _valid_entries(value.get("scanners"), Scanner),
    )
    web_entry = types.Shorthand("listen").expand(value.get("web"))
    for web, _ in _valid_entries([web_entry], Web).values():
        yield from checks.web_problems(web)
    if isinstance(aliases := value.get("aliases"), dict):
        yield from checks.duplicate_alias_problems(aliases)


def _valid_entries(entries: Any, kind: type[T]) -> dict[int, tuple[T, dict[str, Any]]]:
    """Settings and plain values of those that are valid alone: a wrong entry must not hide what the
    others contradict.
    """
    valid = {}
    for number, entry in enumerate(entries if isinstance(entries, list) else []):
        try:
            valid[number] = (part_model(kind).model_validate(entry).build(), entry)
        except ValidationError:
            continue
    return valid


# ---- pydantic's errors in words


def _type_problems(error: ValidationError, value: object) -> Iterator[checks.ConfigProblem]:
    for details in error.errors(include_url=False):
        # "[key]" is pydantic's word for a key that is wrong itself
        path = tuple(part for part in details["loc"] if part != "[key]")
        if details["type"] == "missing":
            example = _EXAMPLES.get(str(path[-1]))
            hint = f", as in {path[-1]}: {example}" if example else ""
            yield path[:-1], f"expected the key {path[-1]!r}{hint}"
        else:
            path = _written_path(path, value)
            yield path, _describe_problem(details, path)


_EXAMPLES = {
    "listen": "smtp://127.0.0.1:10025",
    "position": "before-queue, after-queue or standalone",
    "next_hop": "smtp://127.0.0.1:10026",
    "to": "smtp://127.0.0.1:10026",
    "when": "spam",
    "action": "quarantine",
    "maildir": "/home/*/Maildir",
}


def _written_path(path: KeyPath, value: Any) -> KeyPath:
    """As much of a path as the file has: what is said in one word has no keys inside."""
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
            keys = _keys(_part_at(path[:-1]))
            return f"unknown key {describe_value(path[-1])}{_key_hint(str(path[-1]), keys)}"
        case "value_error":
            return f"{key}: {error['ctx']['error']}"
        case "too_short":
            return f"{key}: expected at least one, found none"
        case "list_type":
            if value is None:
                hint = "begin each with a dash, or write [] for none"
            else:
                is_entry = isinstance(value, dict)
                hint = "begin it with a dash" if is_entry else "put it into brackets, as in [a, b]"
            return f"{key}: expected a list, found {describe_value(value)}: {hint}"
    expected = f"{key}: expected a mapping of keys to values, found {describe_value(value)}"
    return expected + _mapping_hint(value, path)


def _key_hint(key: str, known_keys: list[str]) -> str:
    """What somebody who wrote this unknown key may have wanted."""
    if key == "<<":
        return ": write out what it stands for"
    places = [
        f"in {place}" if place else "at the top level"
        for part, place in all_parts().items()
        if key in part.model_fields
    ]
    if places:
        return f" here: it stands {' or '.join(dict.fromkeys(places))}"
    return types.did_you_mean(key, known_keys) or f": expected one of {', '.join(known_keys)}"


def _mapping_hint(value: object, path: KeyPath) -> str:
    """The keys that are needed at a path, or one of those that it may have."""
    part = _part_at(path)
    if part is None:
        return ""
    required = [key for key, option in part.model_fields.items() if option.is_required()]
    keys = ", ".join(f"{key}: …" for key in required or _keys(part)[:1])
    return f": {'leave it out, or ' if value is None else ''}write as in {{{keys}}}"


def _part_at(path: KeyPath) -> type[Part] | None:
    """The model at a path; None: a mapping whose keys are anybody's choice."""
    part: type[Part] | None = FILE_PART
    for key in path:
        if isinstance(key, str) and part is not None:
            option = part.model_fields.get(key)
            part = part_in(option.annotation) if option else None
    return part


def _keys(part: type[Part] | None) -> list[str]:
    return [] if part is None else list(part.model_fields)
