"""JSON Schema (draft 2020-12) of a layout: text, numbers, lists, mappings from text, and dictionaries with known keys."""

from __future__ import annotations

import types
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

_PLAIN: dict[object, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    Any: {},
}
WHERE = "#/components/schemas/"


def schema(kind: Any, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of one layout. known: schemas of those with a name, by that name; they are added to it and referred to."""
    if is_typeddict(kind):
        return _named(kind, known)
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    inside = get_args(kind)
    if isinstance(kind, types.UnionType):
        return {"anyOf": [schema(one, known) for one in inside]}
    if get_origin(kind) is list:
        return {"type": "array", "items": schema(inside[0], known)}
    if get_origin(kind) is dict and inside[0] is str:
        return {"type": "object", "additionalProperties": schema(inside[1], known)}
    raise TypeError(f"{kind} has no place in an answer")


def _named(kind: Any, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    name = kind.__name__.removesuffix("Shape")
    if name not in known:
        known[name] = {}  # if it held itself, it would be referred to
        hints = get_type_hints(kind)
        known[name] |= {
            "type": "object",
            "description": " ".join((kind.__doc__ or "").split()),
            "properties": {key: schema(value, known) for key, value in hints.items()},
            "required": sorted(kind.__required_keys__),
            "additionalProperties": False,
        }
    return {"$ref": f"{WHERE}{name}"}
