"""The layout of the file as a JSON Schema (https://json-schema.org, draft 2020-12): editors complete and check with it while one types.

It says less than `check`: no file is looked for, and nothing is held against anything else. What it refuses, `check` refuses too.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from spamguard.config.effective import defaults
from spamguard.config.schema import FilePart, Part


def schema_for_editors() -> dict[str, Any]:
    """The JSON Schema, with what each option is and its default."""
    schema = FilePart.model_json_schema(schema_generator=_Generator)
    for part in Part.__subclasses__():
        told = schema if part is FilePart else schema["$defs"][part.__name__]
        told.pop("description", None)  # for those who read the program
        for key, value in defaults(part).items():
            told["properties"][key]["default"] = value
    return schema | {"$schema": _Generator.schema_dialect, "title": "spamguard", "description": "The configuration of spamguard"}


class _Generator(GenerateJsonSchema):
    """Leaves out defaults that only say that nothing was said, and titles, which repeat the keys; keys are checked."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"]) if schema.get("default") is None else super().default_schema(schema)

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        found = super().dict_schema(schema)
        return found | {"additionalProperties": False} if "patternProperties" in found else found

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002
        return False
