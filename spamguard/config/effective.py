"""Settings as YAML: everything that is in force, in the layout of the file, so that it can be read as a file again."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, get_origin

import yaml

from spamguard.config.schema import POLICY, Part
from spamguard.settings import Policy, Settings

_PARTS: dict[type[Any], type[Part]] = {part.fills: part for part in Part.__subclasses__()}


def effective(settings: Settings) -> str:
    """The whole configuration. It holds names of key files, never their contents."""
    return yaml.safe_dump(plain(settings), sort_keys=False, allow_unicode=True, width=120)


def plain(settings: Settings) -> dict[str, Any]:
    """The same as mappings, lists, texts and numbers."""
    found: dict[str, Any] = _part(settings).model_dump(by_alias=True)
    return found


def _part(value: Any) -> Any:
    """A value of the settings as a part of the file."""
    if isinstance(value, tuple):
        return [_part(one) for one in value]
    kind = _PARTS.get(type(value))
    return value if kind is None else _built(kind, {one.name: getattr(value, one.name) for one in fields(value)})


def _built(kind: type[Part], held: dict[str, Any]) -> Part:
    """A part of what the settings hold, by their names. Pairs are mappings in the file."""
    if policy := held.pop("policy", None):
        held |= {name: getattr(policy, name) for name in POLICY if name in kind.model_fields}
    mappings = [name for name, one in kind.model_fields.items() if get_origin(one.annotation) is dict]
    values: dict[str, Any] = {name: dict(one) if name in mappings else _part(one) for name, one in held.items()}
    return kind.model_construct(None, **values)


def defaults(kind: type[Part]) -> dict[str, Any]:
    """What holds where a part does not say it, by the keys of the file. Parts inside have defaults of their own."""
    held = {one.name: one.default for one in fields(kind.fills) if one.default is not MISSING}
    if "policy" in kind.fills.__dataclass_fields__:
        held["policy"] = Policy()
    found: dict[str, Any] = _built(kind, held).model_dump(by_alias=True, exclude_unset=True)
    return found
