"""From what a file says to settings, or to a list of all mistakes in it: where, what was expected, what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from spamguard.config import checks, values
from spamguard.config.schema import (
    CertificatePart,
    FilePart,
    HamEvidencePart,
    HistoryPart,
    HopPart,
    LimitsPart,
    ListenerPart,
    Part,
    RulePart,
    ScannerLimitsPart,
    ScannerPart,
    ScoringPart,
    TeachByMailPart,
    TeachPart,
    WatchPart,
    WebLimitsPart,
    WebPart,
    WebProxyPart,
)
from spamguard.config.tree import Path, Place, Tree
from spamguard.config.units import shown
from spamguard.errors import ConfigError
from spamguard.settings import Settings

Sound = TypeVar("Sound", bound=Part)

_INSIDE: dict[type[Part], dict[str, type[Part]]] = {
    FilePart: {
        "listeners": ListenerPart,
        "scanners": ScannerPart,
        "scoring": ScoringPart,
        "history": HistoryPart,
        "watch": WatchPart,
        "teach": TeachPart,
        "web": WebPart,
    },
    ScannerPart: {"limits": ScannerLimitsPart},
    ListenerPart: {"next_hop": HopPart, "rules": RulePart, "limits": LimitsPart, "tls": CertificatePart, "teach": TeachByMailPart},
    WebPart: {"tls": CertificatePart, "proxy": WebProxyPart, "limits": WebLimitsPart},
    WatchPart: {"ham_evidence": HamEvidencePart},
}


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
            told.append((place, f"{where}: {text}"))
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
        yield from _of_types(error)
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
        yield from checks.of_web(WebPart.model_validate(values.web(given)))
    except ValidationError:  # told by what has looked at types
        return


def _of_types(error: ValidationError) -> Iterator[tuple[Path, str]]:
    for one in error.errors(include_url=False):
        path = tuple(part for part in one["loc"] if part != "[key]")  # pydantic's word for a key that is wrong itself
        if one["type"] == "missing":
            yield path[:-1], f"expected the key {path[-1]!r}{_as_in(path)}"
        else:
            yield path, _sentence(one, path)


def _sentence(error: ErrorDetails, path: Path) -> str:
    if error["type"] == "extra_forbidden":
        known = [str(field.alias) for field in _fields(path[:-1]).values()]
        return f"unknown key {shown(path[-1])}" + (values.near(path[-1], known) or f": expected one of {', '.join(known)}")
    if error["type"] == "value_error":
        return f"{_key(path)}: {error['ctx']['error']}"
    expected = {"list_type": "a list", "too_short": "at least one"}.get(error["type"], "a mapping of keys to values")
    found = shown(error["input"]) if error["input"] != [] else "none"
    return f"{_key(path)}: expected {expected}, found {found}"


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


def _fields(path: Sequence[str | int]) -> dict[str, FieldInfo]:
    """The keys there are at a path of mappings."""
    model: type[Part] = FilePart
    for part in path:
        if isinstance(part, str):
            model = _INSIDE[model][part]
    return model.model_fields
