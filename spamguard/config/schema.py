"""The layout of a configuration file, and what may not be said together in it.

Pydantic checks a file by the dataclasses of `options` (`SETTINGS`). Then come the options that
contradict, or do nothing where they stand: each has its path in the file and keeps the daemon from
starting. A warning, of what is allowed and hardly meant, is only shown. `dump_settings` writes
settings as a file again. `schema_for_editors` is the layout as a JSON Schema
(https://json-schema.org, draft 2020-12), with which editors complete and check while one types. It
says less than `spamguard check`: it looks for no file, and compares no option with another.

Imported by the master process and the commands only, as it imports pydantic. It must never read a
file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from ipaddress import ip_address
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pydantic
import yaml

from spamguard.config.options import (
    LOOPBACK_NETWORKS,
    Endpoint,
    Listener,
    Scanner,
    Settings,
    Web,
)
from spamguard.config.types import CONSTANT, MAPPING, NON_TEACHING_ROLES, Doors, Option
from spamguard.config.values import Action, Position, reaches

MIN_REFUSAL_PROBABILITY = 0.9  # from which on a rule may refuse a message for ever

KeyPath = tuple[str | int, ...]


ConfigProblem = tuple[KeyPath, str]
"""A path, and what is wrong there."""

SETTINGS: pydantic.TypeAdapter[Settings] = pydantic.TypeAdapter(Settings)


# ---- the options, by group


@cache
def options(group: Any) -> dict[str, Any]:
    """The type of each option of a group, with its metadata; constants are none."""
    hints = get_type_hints(group, include_extras=True)
    names = [field.name for field in fields(group) if not field.kw_only]
    names += [field.name for field in fields(group) if field.kw_only]  # what a policy says
    return {name: hints[name] for name in names if CONSTANT not in hints[name].__metadata__}


def group_in(kind: Any) -> Any | None:
    """The group that an option holds, alone or in a list."""
    if is_dataclass(kind) and isinstance(kind, type):
        return kind
    return next(filter(None, map(group_in, get_args(kind))), None)


@cache
def all_groups(group: Any = Settings, key: str = "") -> dict[Any, str]:
    """All groups, each with the key under which it first stands."""
    found = {group: key}
    for name, kind in options(group).items():
        if inner := group_in(kind):
            found = all_groups(inner, name) | found
    return found


def dump_settings(settings: Settings) -> str:
    """The whole configuration as YAML. It holds names of key files, never their contents."""
    return yaml.safe_dump(to_plain(settings), sort_keys=False, allow_unicode=True, width=120)


def to_plain(value: Any, kind: Any = Settings) -> Any:
    """Settings, or a value of this type, as mappings, lists, texts and numbers."""
    notes = getattr(kind, "__metadata__", ())
    if option := next((note for note in notes if isinstance(note, Option)), None):
        return option.write(value)
    if is_dataclass(value):
        group: Any = type(value)
        return {key: to_plain(getattr(value, key), each) for key, each in options(group).items()}
    if value is None or MAPPING in notes:
        return value if value is None else dict(value)
    inner = next((each for each in get_args(kind) if each is not NoneType), None)
    if get_origin(kind) is tuple:
        return [to_plain(each, inner) for each in value]
    return value if inner is None else to_plain(value, inner)


def schema_for_editors() -> dict[str, Any]:
    """The layout of the file, with one line about each option and its default."""
    schema = SETTINGS.json_schema()
    for group in all_groups():
        place = schema if group is Settings else schema["$defs"][group.__name__]
        place["description"] = str(group.__doc__)
        for field in fields(group):
            if kind := options(group).get(field.name):
                option = place["properties"][field.name]
                option["description"] = next(
                    note for note in kind.__metadata__ if isinstance(note, str)
                )
                if field.default is not MISSING:
                    option["default"] = to_plain(field.default, kind)
    del schema["required"]  # the command line may say the state, and either doors will do
    return schema | {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "spamguard",
        "description": "The configuration of spamguard",
    }


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
        yield from _idle_options(door, path)
        for number, rule in enumerate(door.rules):
            here, action = (*path, "rules", number, "action"), rule.action
            is_late = getattr(door, "position", None) is Position.AFTER_QUEUE
            if is_late and action in (Action.REJECT, Action.DEFER):
                reason = "after the queue Postfix would bounce to forged senders"
                yield here, f"{action} is for before-queue and standalone: {reason}"
            if action is Action.REJECT and rule.from_probability < MIN_REFUSAL_PROBABILITY:
                least = MIN_REFUSAL_PROBABILITY
                yield here, f"reject needs a from_probability of {least} or more"
            if action is Action.DEFER and not rule.from_probability:
                yield here, "defer needs a from_probability above 0"
            if (action is Action.REDIRECT) != bool(rule.to):
                yield here, "redirect, and it alone, needs an address, as in to: held@example.org"
        if isinstance(door, Scanner):
            continue
        target = door.next_hop.to
        if target.port == 0 and target.path is None:
            yield (*path, "next_hop"), "expected a port from 1 to 65535"
        if any(reaches(target, other.listen) for other in settings.listeners):
            yield (
                (*path, "next_hop"),
                f"mail would come back: {target} is where this daemon listens",
            )
    yield from _same_names(settings)
    if settings.web is not None:
        yield from _web_problems(settings.web, has_next_hop=bool(settings.listeners))


def _same_names(settings: Settings) -> Iterator[ConfigProblem]:
    names = [account.name for account in settings.accounts]
    for number, name in enumerate(names):
        if name in names[:number]:
            yield ("accounts", number, "name"), f"there are two accounts {name}"


def _doors(settings: Settings) -> Iterator[tuple[KeyPath, Listener | Scanner]]:
    for key in ("listeners", "scanners"):
        for number, door in enumerate(getattr(settings, key)):
            yield (key, number), door


def _idle_options(group: Any, path: KeyPath, protocol: str = "") -> Iterator[ConfigProblem]:
    """What does nothing at a door, or on the way to a next hop, of this protocol."""
    endpoint = getattr(group, "listen", None) or getattr(group, "to", None)
    protocol = endpoint.protocol if isinstance(endpoint, Endpoint) else protocol
    kind_of_group: Any = type(group)
    kinds = options(kind_of_group)
    for field in (field for field in fields(group) if field.name in kinds):
        kind, value, place = kinds[field.name], getattr(group, field.name), (*path, field.name)
        for doors in (note for note in kind.__metadata__ if isinstance(note, Doors)):
            useful = doors.useful_at(value)
            if value != field.default and protocol not in useful:
                what = f"{field.name} {value}" if isinstance(value, str) else field.name
                text = f"{what} does nothing at {protocol}: leave it out, it is for "
                yield place, text + ", ".join(useful)
        if is_dataclass(value):
            yield from _idle_options(value, place, protocol)
        elif group_in(kind):
            for number, inner in enumerate(value or ()):
                yield from _idle_options(inner, (*place, number), protocol)


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
    if (web.digest or web.digest_to) and not web.mail_from:
        name = "digest" if web.digest else "digest_to"
        yield ("web", name), "say who sends it, as in mail_from: spamguard@example.org"


_USUAL_CLASSES = ("spam", "ham", "unsure")


def unknown_classes(settings: Settings, known: Collection[str] | None) -> Iterator[ConfigProblem]:
    """Rules for a class that nothing teaches.

    known: the filter's classes; None: they are not known, and only slips are found.
    """
    taught = {label for _, label in _taught_classes(settings)}
    for path, door in _doors(settings):
        for number, rule in enumerate(door.rules):
            label = rule.when
            if label in (*_USUAL_CLASSES, *taught, *(known or ())):
                continue
            if known is not None or get_close_matches(label, _USUAL_CLASSES, 1, 0.7):
                text = f"there is no class {label}: make it with `spamguard learn --as CLASS`"
                yield (*path, "rules", number, "when"), text


# ---- warnings


def find_warnings(settings: Settings) -> Sequence[str]:
    """What is allowed and most likely not meant."""
    warnings = []
    usual_names = (*_USUAL_CLASSES, *NON_TEACHING_ROLES)
    for where, label in _taught_classes(settings):
        # Spam that is moved to a folder of class `spamm` would be learnt as good mail.
        near = ["spam"] if label == "junk" else get_close_matches(label, usual_names, 1, 0.7)
        if near and label not in usual_names:
            warnings.append(
                f"{where}: {label} is a class of its own, of good mail unless it was made with "
                f"`learn --unwanted`: did you mean {near[0]}?"
            )
    for door in settings.doors:
        for number, rule in enumerate(door.rules):
            for earlier, wide in enumerate(door.rules[:number], 1):
                if wide.when == rule.when and wide.from_probability <= rule.from_probability:
                    warnings.append(
                        f"{door.listen}: rule {number + 1} for {rule.when} never fits, as rule "
                        f"{earlier} does before it: put the one with the higher from_probability "
                        "first"
                    )
                    break
    if settings.metrics is not None and not ip_address(settings.metrics.host).is_loopback:
        warnings.append(
            f"metrics: {settings.metrics} can be reached from other machines, and asks for no "
            "password: let a firewall choose who may"
        )
    return warnings


def _taught_classes(settings: Settings) -> Iterator[tuple[str, str]]:
    """Where something is taught, or not, and as which class or role."""
    for listener in settings.listeners:
        for address, label in listener.teach.addresses if listener.teach is not None else ():
            yield f"{listener.listen}: teach: {address}", label
    for watch in settings.watch:
        for pattern, label in watch.folders:
            yield f"{watch.maildir}: folders: {pattern}", label
    for account in settings.accounts:
        for pattern, label in account.folders:
            yield f"{account.name}: folders: {pattern}", label
