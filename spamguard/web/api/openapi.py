"""The description of the API (OpenAPI 3.1), made from the table of operations: what is not there cannot be described, nor the other way."""

from __future__ import annotations

from functools import cache
from typing import Any

from spamguard import __version__
from spamguard.web.api import ROOT
from spamguard.web.api.given import ID, Parameter
from spamguard.web.api.operations import OPERATIONS, Operation, Text
from spamguard.web.api.schema import WHERE, schema

MESSAGE = "message/rfc822"
_PROBLEM = {
    "type": "object",
    "description": "What went wrong (RFC 9457)",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
    "required": ["detail", "status", "title", "type"],
    "additionalProperties": False,
}
_ALWAYS = {"400": "Malformed", "401": "A token is needed", "421": "Another Host", "429": "Too many requests"} | {
    "403": "Not yours, or too many lessons for a day",
    "414": "Too long an address",
    "431": "Too large a header",
    "503": "Busy, or trouble of the filter's own",
}
_WITH_MESSAGE = {"408": "Too slow", "413": "Too large", "415": f"Not {MESSAGE}"}


@cache
def description() -> dict[str, Any]:
    """All of it but where it is served."""
    known: dict[str, dict[str, Any]] = {"Problem": _PROBLEM}
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(ROOT + one.path, {})[one.method.lower()] = _operation(one, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "spamguard", "version": __version__, "summary": "Ask the filter, teach it, see what passed"},
        "security": [{"token": []}],
        "paths": paths,
        "components": {"schemas": dict(sorted(known.items())), "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(one: Operation, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    parameters = [_parameter(parameter) for parameter in one.parameters]
    if "{id}" in one.path:
        parameters.insert(0, {"name": "id", "in": "path", "required": True, "description": "As X-Spamguard has it", "schema": ID.schema})
    found: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.about + (" (operators)" if one.operators else ""),
        "parameters": parameters,
        "responses": {"200": _answer(one, known), **_problems(one)},
    }
    if one.takes_message:
        content = {MESSAGE: {"schema": {"description": "One message (RFC 5322), as it is"}}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _parameter(one: Parameter) -> dict[str, Any]:
    value = dict(one.type.schema)
    if one.default == "" and "pattern" in value:  # empty is as if it were not there
        value["pattern"] = f"^({value['pattern'][1:-1]})?$"
    if isinstance(one.default, int):  # false, too; of others the default is that nothing is asked for
        value["default"] = one.default
    return {"name": one.name, "in": "query", "required": one.default is None, "description": one.about, "schema": value}


def _answer(one: Operation, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if one.answer is Text:
        return {"description": one.about, "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {"description": one.about, "content": {"application/json": {"schema": schema(one.answer, known)}}}


def _problems(one: Operation) -> dict[str, Any]:
    told = dict(_ALWAYS)
    if "{id}" in one.path:
        told["404"] = "Not there, or not yours"
    if one.parameters or one.takes_message or "{id}" in one.path:
        told["422"] = "Cannot be done with this"
    if one.takes_message:
        told |= _WITH_MESSAGE
    content = {"application/problem+json": {"schema": {"$ref": f"{WHERE}Problem"}}}
    return {status: {"description": about, "content": content} for status, about in sorted(told.items())}
