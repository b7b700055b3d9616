"""What a configuration file may say, and `Settings` in the layout of the file again.

Pydantic's models are made from the dataclasses of `options`: they check a file option by option,
and `build` fills the dataclasses, which keep their own defaults. Then come the options that must
not be said together: a contradiction has its path in the file and keeps the daemon from starting. A
warning, of what is allowed and hardly meant, is only shown. `schema_for_editors` is the layout as a
JSON Schema (https://json-schema.org, draft 2020-12), with which editors complete and check while
one types. It says less than `spamguard check`: it looks for no file, and compares no option with
another.

Imported by the master process and the commands only, as it imports pydantic. It must never read a
file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from ipaddress import ip_address
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import pydantic
import yaml
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from spamguard.config.options import LOOPBACK_NETWORKS, Listener, Rule, Scanner, Settings, Web
from spamguard.config.types import AT_LEAST_ONE, INLINE, NON_TEACHING_ROLES, Option, Shorthand
from spamguard.config.values import Action, Position, Protocol, reaches

MIN_REFUSAL_PROBABILITY = 0.9  # from which on a rule may refuse a message for ever

KeyPath = tuple[str | int, ...]


ConfigProblem = tuple[KeyPath, str]
"""A path, and what is wrong there."""


# ---- the models, option by option


class Part(BaseModel):
    """A group of options in the file, as far as it was said; `fills` is its dataclass."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    fills: ClassVar[type[Any]]

    def build(self) -> Any:
        """The dataclass, with its own defaults for what was not said."""
        said = {name: _to_setting(getattr(self, name)) for name in self.model_fields_set}
        if self.fills is Settings:
            said.setdefault("listeners", ())
        for name, kind, is_inline in _options(self.fills):
            if is_inline:
                keys = {field.name for field in fields(kind)} & said.keys()
                said[name] = kind(**{key: said.pop(key) for key in keys})
        return self.fills(**said)

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


def _options(kind: type[Any]) -> Iterator[tuple[str, Any, bool]]:
    """Name and type of each option, and whether it is a group whose keys stand inline."""
    for name, annotation in get_type_hints(kind, include_extras=True).items():
        if get_origin(annotation) is Annotated:
            is_inline = INLINE in annotation.__metadata__
            yield name, annotation.__origin__ if is_inline else annotation, is_inline


def _keys(kind: type[Any]) -> Iterator[tuple[str, Any, Field[Any]]]:
    """Key in the file, type and dataclass field of each option of a group."""
    declared = {field.name: field for field in fields(kind)}
    for name, annotation, is_inline in _options(kind):
        if is_inline:
            yield from _keys(annotation)
        else:
            yield name, annotation, declared[name]


@cache
def part_model(kind: type[Any]) -> type[Part]:
    """The model of a dataclass. None is the default of all that need not be said."""
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
    return model


def _model_type(annotation: Any) -> Any:
    """The type of a field for pydantic: dataclasses as models, tuples as lists, tuples of pairs as
    mappings.
    """
    if is_dataclass(annotation) and isinstance(annotation, type):
        return part_model(annotation)
    inner = get_args(annotation)
    for note in getattr(annotation, "__metadata__", ()):
        if isinstance(note, Option):
            check, schema = pydantic.PlainValidator(note.check), note.editor_schema
            return Annotated[inner[0], check, pydantic.WithJsonSchema(schema)]
        if isinstance(note, Shorthand):
            model = part_model(inner[0])
            word = _model_type(get_type_hints(inner[0], include_extras=True)[note.key])
            expand = pydantic.BeforeValidator(note.expand, json_schema_input_type=word | model)
            return Annotated[model, expand]
    origin = get_origin(annotation)
    kind: Any = annotation
    if origin is Annotated:
        kind = _model_type(inner[0])
    elif origin in (Union, UnionType):
        kind = Union[tuple(map(_model_type, inner))]  # noqa: UP007  `|` takes no tuple
    elif origin is tuple and get_origin(inner[0]) is tuple:
        kind = dict.__class_getitem__(tuple(map(_model_type, get_args(inner[0]))))
    elif origin is tuple:
        kind = list.__class_getitem__(_model_type(inner[0]))
    return kind


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


def to_plain(value: Any, annotation: Any = Settings) -> Any:
    """Settings, or a value of this type, as mappings, lists, texts and numbers."""
    if is_dataclass(annotation):
        plain: dict[str, Any] = {}
        for name, kind, is_inline in _options(type(value)):
            entry = to_plain(getattr(value, name), kind)
            plain |= entry if is_inline else {name: entry}
        return plain
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        notes = annotation.__metadata__
        option = next((note for note in notes if isinstance(note, Option)), None)
        return option.write(value) if option else to_plain(value, inner[0])
    if value is None or not inner:
        return value
    if get_origin(annotation) is not tuple:  # a union
        return to_plain(value, next(kind for kind in inner if kind is not NoneType))
    if get_origin(inner[0]) is tuple:
        key_type, value_type = get_args(inner[0])
        return {to_plain(key, key_type): to_plain(item, value_type) for key, item in value}
    return [to_plain(item, inner[0]) for item in value]


# ---- the JSON Schema


def schema_for_editors() -> dict[str, Any]:
    """The layout of the file, with one line about each option and its default."""
    schema = FILE_PART.model_json_schema(schema_generator=_SchemaGenerator)
    for part in all_parts():
        place = schema if part is FILE_PART else schema["$defs"][part.__name__]
        for key, annotation, field in _keys(part.fills):
            if field.default is not MISSING:
                place["properties"][key]["default"] = to_plain(field.default, annotation)
    return schema | {
        "$schema": _SchemaGenerator.schema_dialect,
        "title": "spamguard",
        "description": "The configuration of spamguard",
    }


class _SchemaGenerator(GenerateJsonSchema):
    """Leaves out the defaults of the models, and titles, which repeat the keys."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002  pydantic calls it
        return False


# ---- contradictions


def find_contradictions(settings: Settings) -> Iterator[ConfigProblem]:
    """Everything that contradicts."""
    addresses: set[tuple[object, ...]] = set()
    for path, door in _doors(settings):
        listen = door.listen
        address = listen[1:]  # whatever is spoken there
        if address in addresses:
            yield (*path, "listen"), "another door listens there already"
        addresses.add(address)
        is_exposed = listen.path is None and not ip_address(listen.host).is_loopback
        if is_exposed and door.clients == LOOPBACK_NETWORKS:
            yield (
                (*path, "listen"),
                f"{listen} can be reached from other machines: list the networks that may connect, "
                "as in clients: [192.0.2.0/24]",
            )
        for number, rule in enumerate(door.policy.rules):
            for text in _rule_problems(rule, door):
                yield (*path, "rules", number, "action"), text
        if isinstance(door, Scanner):
            for key, text in _scanner_problems(door):
                yield (*path, key), text
            continue
        target = door.next_hop.to
        if target.port == 0 and target.path is None:
            yield (*path, "next_hop"), "expected a port from 1 to 65535"
        if any(reaches(target, other.listen) for other in settings.listeners):
            yield (
                (*path, "next_hop"),
                f"mail would come back: {target} is where this daemon listens",
            )
    if settings.web is not None:
        yield from _web_problems(settings.web, has_next_hop=bool(settings.listeners))


def _doors(settings: Settings) -> Iterator[tuple[KeyPath, Listener | Scanner]]:
    for key in ("listeners", "scanners"):
        for number, door in enumerate(getattr(settings, key)):
            yield (key, number), door


_SCANNER_ACTIONS = {
    Protocol.SPAMD: (Action.TAG,),
    Protocol.RSPAMD: (Action.TAG, Action.REJECT, Action.DEFER),
    Protocol.MILTER: (Action.TAG, Action.REJECT, Action.DEFER, Action.QUARANTINE),
}


def _rule_problems(rule: Rule, door: Listener | Scanner) -> Iterator[str]:
    action, probability = rule.action, rule.from_probability
    if isinstance(door, Scanner):
        protocol = door.listen.protocol
        if action not in _SCANNER_ACTIONS[protocol] or rule.subject_prefix:
            yield f"{protocol} has no words for that: leave the rule out"
    elif door.position is Position.AFTER_QUEUE and action in (Action.REJECT, Action.DEFER):
        reason = "after the queue Postfix would bounce to forged senders"
        yield f"{action} is for before-queue and standalone: {reason}"
    if action is Action.REJECT and probability < MIN_REFUSAL_PROBABILITY:
        yield f"reject needs a from_probability of {MIN_REFUSAL_PROBABILITY} or more"
    if action is Action.DEFER and not probability:
        yield "defer needs a from_probability above 0"
    if (action is Action.REDIRECT) != bool(rule.to):
        yield "redirect, and it alone, needs an address, as in to: held@example.org"


def _scanner_problems(scanner: Scanner) -> Iterator[tuple[str, str]]:
    protocol = scanner.listen.protocol
    if protocol is Protocol.SPAMD and scanner.password_file is not None:
        yield "password_file", f"{protocol} has no words for that: leave it out"
    if protocol is Protocol.MILTER and scanner.allows_teaching:
        key = "teachers" if scanner.teachers else "password_file"
        yield key, f"nobody can teach by {protocol}: leave it out"


def _web_problems(web: Web, *, has_next_hop: bool) -> Iterator[ConfigProblem]:
    """A page that is open without a secret way, or does not know its names; mail without a hop."""
    address, here = ip_address(web.listen.host), ("web", "listen")
    if web.tls is None and web.proxy is None and not address.is_loopback:
        yield (
            here,
            f"{web.listen} can be reached from other machines: give it a certificate with tls, "
            "or name the reverse proxy with proxy",
        )
    if not web.hosts and (address.is_unspecified or web.proxy is not None):
        yield (
            here,
            "say by which names it is asked for, as in hosts: [spam.example.org]: others are "
            "refused",
        )
    if web.proxy is not None and web.proxy.operators and not web.proxy.user_header:
        yield ("web", "proxy", "operators"), "nobody is named without user_header"
    if web.mail_from and not has_next_hop:
        yield ("web", "mail_from"), "mail needs the next hop of a listener, and there is none"
    if web.digest and not web.mail_from:
        yield ("web", "digest"), "say who sends it, as in mail_from: spamguard@example.org"


_USUAL_CLASSES = ("spam", "ham", "unsure")


def unknown_classes(settings: Settings, known: Collection[str] | None) -> Iterator[ConfigProblem]:
    """Rules for a class that nothing teaches.

    known: the filter's classes; None: they are not known, and only slips are found.
    """
    taught = {label for _, label in _taught_classes(settings)}
    for path, door in _doors(settings):
        for number, rule in enumerate(door.policy.rules):
            label = rule.when
            if label in (*_USUAL_CLASSES, *taught, *(known or ())):
                continue
            if known is not None or get_close_matches(label, _USUAL_CLASSES, 1, 0.7):
                text = f"there is no class {label}: make it with `spamguard learn --as CLASS`"
                yield (*path, "rules", number, "when"), text


# ---- warnings


def find_warnings(settings: Settings) -> Sequence[str]:
    """What is allowed and most likely not meant."""
    warnings = [*_misspelt_classes(settings), *_shadowed_rules(settings)]
    if settings.metrics is not None and not ip_address(settings.metrics.host).is_loopback:
        warnings.append(
            f"metrics: {settings.metrics} can be reached from other machines, and asks for no "
            "password: let a firewall choose who may"
        )
    return warnings


def _misspelt_classes(settings: Settings) -> Iterator[str]:
    """Spam that is moved to a folder of class `spamm` would be learnt as good mail."""
    usual_names = (*_USUAL_CLASSES, *NON_TEACHING_ROLES)
    for where, label in _taught_classes(settings):
        near = ["spam"] if label == "junk" else get_close_matches(label, usual_names, 1, 0.7)
        if near and label not in usual_names:
            yield (
                f"{where}: {label} is a class of its own, of good mail unless it was made with "
                f"`learn --unwanted`: did you mean {near[0]}?"
            )


def _taught_classes(settings: Settings) -> Iterator[tuple[str, str]]:
    """Where something is taught, or not, and as which class or role."""
    for listener in settings.listeners:
        for address, label in listener.teach.addresses if listener.teach is not None else ():
            yield f"{listener.listen}: teach: {address}", label
    for watch in settings.watch:
        for pattern, label in watch.folders:
            yield f"{watch.maildir}: folders: {pattern}", label


def _shadowed_rules(settings: Settings) -> Iterator[str]:
    """Rules before which another one fits all messages that they fit."""
    for door in settings.doors:
        rules = door.policy.rules
        for number, rule in enumerate(rules, 1):
            for earlier, wide in enumerate(rules[: number - 1], 1):
                if wide.when == rule.when and wide.from_probability <= rule.from_probability:
                    yield (
                        f"{door.listen}: rule {number} for {rule.when} never fits, as rule "
                        f"{earlier} does before it: put the one with the higher from_probability "
                        "first"
                    )
                    break
