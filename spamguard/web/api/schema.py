"""JSON of values (`service.values`), and its schema (draft 2020-12), both by the types of their fields: what is told is what is described.

Text, numbers, moments, lists, mappings from text, and dataclasses, whose fields are keys.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from spamguard.times import rfc3339
from spamguard.web.service.values import NAME, Day, Moment

_PLAIN: dict[object, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    Moment: {"type": "string"},
    Day: {"type": "string"},
    type(None): {"type": "null"},
    Any: {},
}
WHERE = "#/components/schemas/"
Write = Callable[[Any], Any]


def told(kind: Any, value: Any) -> Any:
    """A value as JSON has what is of this type; of a dataclass the fields of that one alone, whatever else the value has."""
    return _writer(kind)(value)


@cache
def _writer(kind: Any) -> Write:
    if kind in (Moment, Day):
        return rfc3339 if kind == Moment else lambda seconds: rfc3339(seconds)[:10]
    if is_dataclass(kind):
        parts = [(key, name, _writer(hint)) for key, name, hint in _keys(kind)]
        return lambda value: {key: write(getattr(value, name)) for key, name, write in parts}
    inside = [_writer(one) for one in get_args(kind)]
    if _is_union(kind):
        return lambda value: None if value is None else inside[0](value)
    if _is_mapping(kind):
        return lambda value: {key: inside[1](one) for key, one in value.items()}
    return (lambda value: [inside[0](one) for one in value]) if inside else lambda value: value


def schema(kind: Any, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of one type. known: schemas of those with a name, by that name; they are added to it and referred to."""
    if is_dataclass(kind):
        return _named(kind, known)
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    inside = get_args(kind)
    if _is_union(kind):
        return {"anyOf": [schema(one, known) for one in inside]}
    if _is_mapping(kind):
        return {"type": "object", "additionalProperties": schema(inside[1], known)}
    if inside:
        return {"type": "array", "items": schema(inside[0], known)}
    raise TypeError(f"{kind} has no place in an answer")


def _named(kind: Any, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    name = kind.__name__
    if name not in known:
        known[name] = {}  # if it held itself, it would be referred to
        keys = {key: schema(hint, known) for key, _, hint in _keys(kind)}
        known[name] |= {
            "type": "object",
            "description": " ".join((kind.__doc__ or "").split()),
            "properties": keys,
            "required": sorted(keys),
            "additionalProperties": False,
        }
    return {"$ref": f"{WHERE}{name}"}


def _keys(kind: Any) -> Iterator[tuple[str, str, Any]]:
    """Of each field, what JSON calls it, its name, and its type."""
    hints = get_type_hints(kind, include_extras=True)
    return ((one.metadata.get(NAME, one.name), one.name, hints[one.name]) for one in fields(kind))


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) in (dict, Mapping)
