"""From what a file says to settings, or to a list of all mistakes in it: where, what was expected, what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from spamguard.config import checks, values
from spamguard.config.schema import FilePart, ListenerPart, Part, ScannerPart, WebPart
from spamguard.config.tree import Path, Place, Tree
from spamguard.config.units import shown
from spamguard.errors import ConfigError
from spamguard.settings import Settings

Sound = TypeVar("Sound", bound=Part)


@dataclass(slots=True)
class Document:
    """What a file says, and which of it the command line has replaced. name: of the file; empty: there is none."""

    name: str
    tree: Tree
    replaced: dict[Path, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tree.value is None:
            self.tree.value = {}

    def supply(self, key: str, value: object) -> None:
        """A value for a key that the file does not have."""
        if isinstance(self.tree.value, dict):
            self.tree.value.setdefault(key, value)

    def replace(self, path: Path, value: object, option: str) -> None:
        """Put the value of an option in place of what the file says, if the file has such a place."""
        around = self.tree.value
        for part in path[:-1]:
            around = around[part]
        if isinstance(around, dict):
            around[path[-1]] = value
            self.replaced[path] = option

    def replace_in_listener(self, key: str, value: str, option: str) -> None:
        """The same for the only listener. ConfigError: there is not exactly one."""
        listeners = self.tree.value.get("listeners", []) if isinstance(self.tree.value, dict) else None
        if not isinstance(listeners, list):
            return  # told as a mistake of the file
        if len(listeners) != 1:
            raise ConfigError(f"{option}: {self.name} has {len(listeners)} listeners: the option is for one")
        self.replace(("listeners", 0, key), value, option)

    def where(self, path: Path) -> tuple[Place, str]:
        """What to sort by, and how to say it."""
        for length in range(len(path), 0, -1):
            if option := self.replaced.get(path[:length]):
                return Place(0, 0), option
        place = self.tree.place(path)
        return place, f"{self.name}:{place.line}:{place.column}" if self.name else "without a configuration file"


def settings(document: Document) -> Settings:
    """What the document says. ConfigError: all that is wrong with it."""
    tree = document.tree
    told = [(place, f"{document.name}:{place.line}:{place.column}: {text}") for place, text in tree.problems]
    known = {place for place, _ in tree.problems}
    for path, text in [] if tree.broken else _problems(document):
        if tree.values.get(path) not in known:  # what has no value is not told again for having the wrong one
            place, where = document.where(path)
            told.append((place, f"{where}: {text.removeprefix(f'{path[-1]}: ') if path in document.replaced else text}"))
    if told:
        raise ConfigError(*dict.fromkeys(text for _, text in sorted(told)))
    built: Settings = FilePart.model_validate(tree.value).build()
    return built


def _problems(document: Document) -> Iterator[tuple[Path, str]]:
    value = document.tree.value
    if isinstance(value, dict) and "state" not in value:
        yield (), "expected the key 'state', the directory of the filter"
    try:
        FilePart.model_validate(value)
    except ValidationError as error:
        yield from _of_types(error, value)
    yield from checks.nothing_listens(value)
    yield from checks.problems(_sound(value, "listeners", ListenerPart), _sound(value, "scanners", ScannerPart))
    yield from _of_web(value.get("web") if isinstance(value, dict) else None)
    aliases = value.get("aliases") if isinstance(value, dict) else None
    yield from checks.aliases_given_twice([one for one in aliases if isinstance(one, str)] if isinstance(aliases, dict) else [])


def _sound(value: Any, key: str, kind: type[Sound]) -> dict[int, Sound]:
    """Those that are right as far as types go: the others must not hide what these contradict."""
    listed = value.get(key) if isinstance(value, dict) else None
    sound = {}
    for number, one in enumerate(listed if isinstance(listed, list) else []):
        try:
            sound[number] = kind.model_validate(one)
        except ValidationError:
            continue
    return sound


def _of_web(given: Any) -> Iterator[tuple[Path, str]]:
    try:
        yield from checks.of_web(WebPart.model_validate(values.in_one_word("listen")(given)))
    except ValidationError:  # told by what has looked at types
        return


def _of_types(error: ValidationError, value: object) -> Iterator[tuple[Path, str]]:
    for one in error.errors(include_url=False):
        path = tuple(part for part in one["loc"] if part != "[key]")  # pydantic's word for a key that is wrong itself
        if one["type"] == "missing":
            yield path[:-1], f"expected the key {path[-1]!r}{_as_in(path)}"
        else:
            path = _as_written(path, value)
            yield path, _sentence(one, path)


def _as_written(path: Path, value: Any) -> Path:
    """As far as the file goes: what is told in one word has no keys inside."""
    for length, part in enumerate(path):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int):
            value = value[part]
        else:
            return path[:length]
    return path


def _sentence(error: ErrorDetails, path: Path) -> str:
    if error["type"] == "extra_forbidden":
        return f"unknown key {shown(path[-1])}" + _meant(str(path[-1]), _keys(_model(path[:-1])))
    if error["type"] == "value_error":
        return f"{_key(path)}: {error['ctx']['error']}"
    given = error["input"]
    if error["type"] == "too_short":
        return f"{_key(path)}: expected at least one, found none"
    if error["type"] == "list_type":
        expected, remedy = "a list", _as_list(given)
    else:
        expected, remedy = "a mapping of keys to values", _as_mapping(given, path)
    return f"{_key(path)}: expected {expected}, found {shown(given)}{remedy}"


def _meant(key: str, known: list[str]) -> str:
    """What somebody who wrote this unknown key may have wanted."""
    if key == "<<":
        return ": write out what it stands for"
    inside = [name for model in Part.__subclasses__() for name, part in model.parts().items() if key in _keys(part)]
    if places := [*(["at the top level"] if key in _keys(FilePart) else []), *(f"in {name}" for name in dict.fromkeys(inside))]:
        return f" here: it stands {' or '.join(places)}"
    return values.near(key, known) or f": expected one of {', '.join(known)}"


def _as_list(given: object) -> str:
    if given is None:
        return ": begin each with a dash, or write [] for none"
    return ": begin it with a dash" if isinstance(given, dict) else ": put it into brackets, as in [a, b]"


def _as_mapping(given: object, path: Path) -> str:
    """With the keys that are needed at a path, or one that there is."""
    model = _model(path)
    if model is None:
        return ""
    needed = [str(one.alias) for one in model.model_fields.values() if one.is_required()] or _keys(model)[:1]
    return f": {'leave it out, or ' if given is None else ''}write as in {{{', '.join(f'{key}: …' for key in needed)}}}"


def _key(path: Path) -> str:
    """The key that a path belongs to, for the reader."""
    return next((part for part in reversed(path) if isinstance(part, str)), "the file")


_EXAMPLES = {
    "listen": "smtp://127.0.0.1:10025",
    "position": "before-queue, after-queue or standalone",
    "next_hop": "smtp://127.0.0.1:10026",
    "to": "smtp://127.0.0.1:10026",
    "when": "spam",
    "action": "quarantine",
    "maildir": "/home/*/Maildir",
}


def _as_in(path: Path) -> str:
    example = _EXAMPLES.get(str(path[-1]))
    return f", as in {path[-1]}: {example}" if example else ""


def _model(path: Sequence[str | int]) -> type[Part] | None:
    """What there is at a path of mappings; None: one whose keys are anybody's choice."""
    model: type[Part] | None = FilePart
    for part in path:
        if isinstance(part, str) and model is not None:
            model = model.parts().get(part)
    return model


def _keys(model: type[Part] | None) -> list[str]:
    return [] if model is None else [str(field.alias) for field in model.model_fields.values()]
