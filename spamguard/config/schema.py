"""What a configuration file may say, and what may not be said together in it.

Pydantic checks a file by the dataclasses of `options` (`SETTINGS`). Then come the options that
contradict, or do nothing where they stand: each has its path in the file and keeps the daemon from
starting. A warning, of what is allowed and hardly meant, is only shown. `dump_settings` writes
settings as a file again.

Imported by the master process and the commands only, as it imports pydantic. It must never read a
file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from ipaddress import ip_address
from typing import Any, get_args, get_type_hints

import pydantic
import yaml

from spamguard.config.options import LOOPBACK_NETWORKS, Listener, Protocol, Scanner, Settings, Web
from spamguard.config.types import CONSTANT, MAPPING, NON_TEACHING_ROLES, Option
from spamguard.config.values import Action, DigestPeriod, Position, reaches

KeyPath = tuple[str | int, ...]
ConfigProblem = tuple[KeyPath, str]
"""A path, and what is wrong there."""

MIN_REFUSAL_PROBABILITY = 0.9  # from which on a rule may refuse a message for ever
SETTINGS: pydantic.TypeAdapter[Settings] = pydantic.TypeAdapter(Settings)


# ---- the options, by group


@cache
def options(group: Any) -> dict[str, Any]:
    """The type of each option of a group, with its metadata; constants are none."""
    hints = get_type_hints(group, include_extras=True)
    names = [each.name for each in sorted(fields(group), key=lambda each: bool(each.kw_only))]
    return {name: hints[name] for name in names if CONSTANT not in get_args(hints[name])}


def group_in(kind: Any) -> Any | None:
    """The group that an option holds, alone or in a list."""
    if is_dataclass(kind) and isinstance(kind, type):
        return kind
    return next(filter(None, map(group_in, get_args(kind))), None)


def dump_settings(settings: Any, key: str = "") -> str:
    """The settings, or one group under its key, as YAML; names of key files, not their contents."""
    values = to_plain(settings, type(settings))
    whole = {key: values} if key else values
    return str(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=120))


def to_plain(value: Any, kind: Any = Settings) -> Any:
    """Settings, or a value of this type, as mappings, lists, texts and numbers."""
    notes = getattr(kind, "__metadata__", ())
    if option := next((note for note in notes if isinstance(note, Option)), None):
        return option.write(value)
    if value is None or MAPPING in notes:
        return value if value is None else dict(value)
    if is_dataclass(value):
        group: Any = type(value)
        return {key: to_plain(getattr(value, key), each) for key, each in options(group).items()}
    if isinstance(value, StrEnum):
        return str(value)
    inner = get_args(kind)[0]  # of a list, or of what may be left out
    return (
        [to_plain(each, inner) for each in value]
        if type(value) is tuple
        else to_plain(value, inner)
    )


# ---- contradictions

_ACTIONS = {
    Protocol.RSPAMD: (Action.TAG, Action.DEFER, Action.REJECT),
    Protocol.SPAMD: (Action.TAG,),
    Protocol.MILTER: (Action.TAG, Action.QUARANTINE, Action.DEFER, Action.REJECT),
}
"""What a rule can do where another program hands the mail on."""


def find_contradictions(settings: Settings) -> Iterator[ConfigProblem]:
    """Everything that contradicts."""
    if not settings.doors:
        yield (), "expected the key 'listeners', 'scanners' or 'accounts'"
    addresses: set[tuple[object, ...]] = set()
    for path, door in _doors(settings):
        listen, here = door.listen, (*path, "listen")
        address = listen[1:]  # whatever is spoken there
        if address in addresses:
            yield here, "another door listens there already"
        addresses.add(address)
        is_exposed = listen.path is None and not ip_address(listen.host).is_loopback
        if is_exposed and door.clients == LOOPBACK_NETWORKS:
            yield (
                here,
                f"{listen} can be reached from other machines: list the networks that may connect, "
                "as in clients: [192.0.2.0/24]",
            )
        yield from _rule_problems(path, door)
        if isinstance(door, Scanner):
            continue
        target, here = door.next_hop.to, (*path, "next_hop")
        if target.port == 0 and target.path is None:
            yield here, "expected a port from 1 to 65535"
        if any(reaches(target, other.listen) for other in settings.listeners):
            yield here, f"mail would come back: {target} is where this daemon listens"
    names = [account.name for account in settings.accounts]
    for number, name in enumerate(names):
        if name in names[:number]:
            yield ("accounts", number, "name"), f"there are two accounts {name}"
    if settings.web is not None:
        yield from _web_problems(settings.web, has_next_hop=bool(settings.listeners))


def _rule_problems(path: KeyPath, door: Listener | Scanner) -> Iterator[ConfigProblem]:
    protocol = door.listen.protocol
    possible = _ACTIONS.get(protocol, tuple(Action))
    is_late = isinstance(door, Listener) and door.position is Position.AFTER_QUEUE
    for number, rule in enumerate(door.rules):
        here, action = (*path, "rules", number, "action"), rule.action
        if action not in possible:
            yield here, f"{action} does nothing at {protocol}: say {', '.join(possible)}"
        if rule.subject_prefix and isinstance(door, Scanner):
            yield (
                (*here[:-1], "subject_prefix"),
                "subject_prefix is for listeners: leave it out",
            )
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


def _doors(settings: Settings) -> Iterator[tuple[KeyPath, Listener | Scanner]]:
    for key in ("listeners", "scanners"):
        for number, door in enumerate(getattr(settings, key)):
            yield (key, number), door


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
    is_told = web.digest is not DigestPeriod.NONE
    if (is_told or web.digest_to) and not web.mail_from:
        name = "digest" if is_told else "digest_to"
        yield ("web", name), "say who sends it, as in mail_from: spamguard@example.org"


# ---- warnings


def find_warnings(settings: Settings) -> list[str]:
    """What is allowed and most likely not meant."""
    warnings = []
    usual_names = ("spam", "ham", "unsure", *NON_TEACHING_ROLES)
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
            where = f"{door.listen}: rule {number + 1} for {rule.when}"
            for earlier, wide in enumerate(door.rules[:number], 1):
                if wide.when == rule.when and wide.from_probability <= rule.from_probability:
                    warnings.append(
                        f"{where} never fits, as rule {earlier} does before it: put the one with "
                        "the higher from_probability first"
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
