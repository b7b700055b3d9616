"""Pydantic's models of the configuration file, made from the dataclasses of `options`.

`build` checks what a file says and fills the dataclasses, which keep their own defaults; `dump`
writes settings in the layout of the file again; `schema_for_editors` is the layout as a JSON Schema
(https://json-schema.org, draft 2020-12), with which editors complete and check while one types. It
says less than `spamguard check`: it looks for no file, and compares no option with another.

Imported by the master process and the commands only, as it imports pydantic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints

import pydantic
import yaml
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from spamguard.config.options import Settings
from spamguard.config.types import AT_LEAST_ONE, Inline, Option, Shorthand


class Part(BaseModel):
    """A group of options in the file, as far as it was said; `fills` is its dataclass."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    fills: ClassVar[type[Any]]

    def build(self) -> Any:
        """The dataclass, with its own defaults for what was not said."""
        values_in_file = {name: _to_setting(getattr(self, name)) for name in self.model_fields_set}
        values: dict[str, Any] = {"listeners": ()} if self.fills is Settings else {}
        for name, kind, inline in _options(self.fills):
            if inline is None:
                values |= {name: values_in_file[name]} if name in values_in_file else {}
            else:
                values[name] = kind(
                    **{key: values_in_file[key] for key in inline & values_in_file.keys()}
                )
        return self.fills(**values)

    @pydantic.model_validator(mode="after")
    def _check_whole(self) -> Self:
        if hasattr(self.fills, "check"):
            self.build().check()
        return self


def _to_setting(value: Any) -> Any:
    """Parts as their dataclasses, lists as tuples, mappings as tuples of pairs."""
    if isinstance(value, Part):
        return value.build()
    if isinstance(value, list):
        return tuple(map(_to_setting, value))
    return tuple(value.items()) if isinstance(value, dict) else value


def _options(kind: type[Any]) -> Iterator[tuple[str, Any, frozenset[str] | None]]:
    """Name and type of each field; for a group whose keys stand inline, these keys too."""
    for name, annotation in get_type_hints(kind, include_extras=True).items():
        for note in getattr(annotation, "__metadata__", ()):
            if isinstance(note, Inline):
                group = annotation.__origin__
                keys = {field.name for field in fields(group)} - set(note.without)
                yield name, group, frozenset(keys)
                break
        else:
            yield name, annotation, None


def _keys(kind: type[Any]) -> Iterator[tuple[str, Any, Field[Any]]]:
    """Key in the file, type and dataclass field of each option of a group."""
    declared = {field.name: field for field in fields(kind)}
    for name, annotation, inline in _options(kind):
        if inline is None:
            yield name, annotation, declared[name]
        else:
            yield from (entry for entry in _keys(annotation) if entry[0] in inline)


_MODELS: dict[type[Any], type[Part]] = {}


def part_model(kind: type[Any]) -> type[Part]:
    """The model of a dataclass. None is the default of all that need not be said."""
    if kind in _MODELS:
        return _MODELS[kind]
    options: dict[str, Any] = {}
    for key, annotation, field in _keys(kind):
        notes = getattr(annotation, "__metadata__", ())
        is_required = (
            field.default is MISSING and field.default_factory is MISSING and kind is not Settings
        )
        options[key] = (
            _model_type(annotation),
            pydantic.Field(
                default=... if is_required else None,
                description=next((note for note in notes if isinstance(note, str)), None),
                min_length=1 if AT_LEAST_ONE in notes else None,
            ),
        )
    model: type[Part] = pydantic.create_model(kind.__name__, __base__=Part, **options)
    model.fills = kind
    _MODELS[kind] = model
    return model


def _model_type(annotation: Any) -> Any:
    """The type of a field for pydantic: dataclasses as models, tuples as lists, tuples of pairs as
    mappings.
    """
    inner = get_args(annotation)
    if is_dataclass(annotation) and isinstance(annotation, type):
        kind: Any = part_model(annotation)
    elif get_origin(annotation) is Annotated:
        kind = _annotated_type(inner[0], annotation.__metadata__)
    elif get_origin(annotation) in (Union, UnionType):
        kind = Union[tuple(map(_model_type, inner))]  # noqa: UP007  `|` takes no tuple
    elif get_origin(annotation) is not tuple:
        kind = annotation
    elif get_origin(inner[0]) is tuple:
        kind = dict.__class_getitem__(tuple(map(_model_type, get_args(inner[0]))))
    else:
        kind = list.__class_getitem__(_model_type(inner[0]))
    return kind


def _annotated_type(kind: Any, notes: tuple[object, ...]) -> Any:
    for note in notes:
        if isinstance(note, Option):
            check, schema = pydantic.PlainValidator(note.check), note.editor_schema
            return Annotated[kind, check, pydantic.WithJsonSchema(schema)]
        if isinstance(note, Shorthand):
            model = part_model(kind)
            word = _model_type(get_type_hints(kind, include_extras=True)[note.key])
            expand = pydantic.BeforeValidator(note.expand, json_schema_input_type=word | model)
            return Annotated[model, expand]
    return _model_type(kind)


def part_in(annotation: Any) -> type[Part] | None:
    """The model that a field holds, alone or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    return next(filter(None, map(part_in, get_args(annotation))), None)


def all_parts(model: type[Part] | None = None) -> dict[type[Part], str]:
    """All models, each with the key under which it first stands."""
    models: dict[type[Part], str] = {FILE_PART: ""} if model is None else {}
    for key, field in (model or FILE_PART).model_fields.items():
        if part := part_in(field.annotation):
            models |= {part: key} | all_parts(part)
    return models


FILE_PART = part_model(Settings)


# ---- back to the layout of the file


def dump_settings(settings: Settings) -> str:
    """The whole configuration as YAML. It holds names of key files, never their contents."""
    return yaml.safe_dump(to_plain(settings), sort_keys=False, allow_unicode=True, width=120)


def to_plain(settings: Settings) -> dict[str, Any]:
    """The whole configuration as mappings, lists, texts and numbers."""
    plain: dict[str, Any] = _to_plain(settings, Settings)
    return plain


def _to_plain(value: Any, annotation: Any) -> Any:
    if is_dataclass(annotation):
        plain: dict[str, Any] = {}
        for name, kind, inline in _options(type(value)):
            entry = _to_plain(getattr(value, name), kind)
            if inline is None:
                plain[name] = entry
            else:
                plain |= {key: entry[key] for key in entry if key in inline}
        return plain
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        notes = annotation.__metadata__
        option = next((note for note in notes if isinstance(note, Option)), None)
        return option.write(value) if option else _to_plain(value, inner[0])
    if value is None or not inner:
        return value
    if get_origin(annotation) is not tuple:  # a union
        return _to_plain(value, next(kind for kind in inner if kind is not NoneType))
    if get_origin(inner[0]) is tuple:
        key_type, value_type = get_args(inner[0])
        return {_to_plain(key, key_type): _to_plain(held, value_type) for key, held in value}
    return [_to_plain(held, inner[0]) for held in value]


# ---- the JSON Schema


def schema_for_editors() -> dict[str, Any]:
    """The layout of the file, with one line about each option and its default."""
    schema = FILE_PART.model_json_schema(schema_generator=_SchemaGenerator)
    for part in all_parts():
        place = schema if part is FILE_PART else schema["$defs"][part.__name__]
        for key, annotation, field in _keys(part.fills):
            if field.default is not MISSING:
                place["properties"][key]["default"] = _to_plain(field.default, annotation)
    return schema | {
        "$schema": _SchemaGenerator.schema_dialect,
        "title": "spamguard",
        "description": "The configuration of spamguard",
    }


class _SchemaGenerator(GenerateJsonSchema):
    """Leaves out the defaults of the models, and titles, which repeat the keys; checks the keys of
    mappings.
    """

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        built = super().dict_schema(schema)
        return built | {"additionalProperties": False} if "patternProperties" in built else built

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002  pydantic calls it
        return False
