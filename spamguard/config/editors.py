"""The layout of the file as a JSON Schema (https://json-schema.org, draft 2020-12): editors complete and check with it while one types.

It says less than `check`: no file is looked for, and nothing is held against anything else. What it refuses, `check` refuses too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from spamguard.config.effective import plain
from spamguard.config.schema import FilePart, Part
from spamguard.settings import (
    Action,
    Certificate,
    Endpoint,
    Hop,
    Listener,
    Place,
    Policy,
    Position,
    Protocol,
    Rule,
    Scanner,
    Settings,
    Teach,
    TeachByMail,
    Watch,
    Web,
    WebProxy,
)

_SOMEWHERE = Endpoint(Protocol.SMTP, "127.0.0.1", 10026)
_LISTENER = Listener(_SOMEWHERE, Position.STANDALONE, Hop(_SOMEWHERE), Policy((Rule("spam", Action.TAG),)), teach=TeachByMail((), ()))
_SCANNER = Scanner(Endpoint(Protocol.RSPAMD, "127.0.0.1", 11333))
_WEB = Web(Place("127.0.0.1", 8080), tls=Certificate(Path("/"), Path("/")), proxy=WebProxy(()))
_ONE_OF_ALL = Settings(Path("/"), (_LISTENER,), watch=(Watch("/"),), teach=Teach(), scanners=(_SCANNER,), web=_WEB)


def schema_for_editors() -> dict[str, Any]:
    """The JSON Schema, with what each option is and its default."""
    schema = FilePart.model_json_schema(schema_generator=_Generator)
    _fill(schema, FilePart, schema["$defs"], plain(_ONE_OF_ALL))
    for part in schema["$defs"].values():
        part.pop("description", None)  # for those who read the program
    return schema | {"$schema": _Generator.schema_dialect, "title": "spamguard", "description": "The configuration of spamguard"}


class _Generator(GenerateJsonSchema):
    """Leaves out the defaults of the parts, which only say that nothing was said, and titles, which repeat the keys; keys are checked."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        found = super().dict_schema(schema)
        return found | {"additionalProperties": False} if "patternProperties" in found else found

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002
        return False


def _fill(part: dict[str, Any], model: type[Part], parts: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Put the defaults into a part and those inside it. What must be said, and lists and parts, have none."""
    inside = model.parts()
    for name, option in part["properties"].items():
        value = defaults[name]
        if name in inside and value:
            _fill(parts[inside[name].__name__], inside[name], parts, value[0] if isinstance(value, list) else value)
        elif name not in part.get("required", ()) and name != "state":
            option["default"] = value
