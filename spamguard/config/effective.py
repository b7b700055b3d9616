"""Settings as YAML: everything that is in force, in the layout of the file, so that it can be read as a file again."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_origin

import yaml

from spamguard.config.schema import POLICY, Part
from spamguard.settings import Settings

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
    return value if kind is None else kind.model_construct(**_given(value, kind))


def _given(value: Any, kind: type[Part]) -> dict[str, Any]:
    """What a part holds, by the names that the settings use. Pairs are mappings in the file."""
    given = {one.name: getattr(value, one.name) for one in fields(value)}
    if policy := given.pop("policy", None):
        given |= {name: getattr(policy, name) for name in POLICY if name in kind.model_fields}
    mappings = [name for name, one in kind.model_fields.items() if get_origin(one.annotation) is dict]
    return {name: dict(one) if name in mappings else _part(one) for name, one in given.items()}
