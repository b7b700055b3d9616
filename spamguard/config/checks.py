"""What options must not say together, and what they may say but hardly mean.

Pure, apart from this machine's name: settings in, sentences out. A contradiction comes with its
path in the file and keeps the daemon from starting; a warning is only shown. Listeners and scanners
come with their entries of the file as well, for some checks ask whether an option was said at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import Any

from spamguard.config.options import (
    Action,
    Endpoint,
    Listener,
    Position,
    Protocol,
    Rule,
    Scanner,
    Settings,
    Web,
)
from spamguard.config.types import NON_TEACHING_ROLES
from spamguard.config.yaml_tree import KeyPath
from spamguard.log import hostname

MIN_REFUSAL_PROBABILITY = 0.9  # from which on a rule may refuse a message for ever

ConfigProblem = tuple[KeyPath, str]
Entry = Mapping[str, Any]


# ---- contradictions


def missing_listener_problems(value: Entry) -> Iterator[ConfigProblem]:
    """A file without any door."""
    if not value.get("scanners"):
        if "listeners" not in value:
            yield (), "expected the key 'listeners', or 'scanners'"
        elif value["listeners"] == []:
            yield ("listeners",), "listeners: expected at least one, found none"


def find_contradictions(
    listeners: Mapping[int, tuple[Listener, Entry]], scanners: Mapping[int, tuple[Scanner, Entry]]
) -> Iterator[ConfigProblem]:
    """Everything that contradicts, by the number of the listener or scanner in the file."""
    listener_names: dict[tuple[str, int], str] = {}
    for number, (listener, entry) in listeners.items():
        here: KeyPath = ("listeners", number)
        yield from (((*here, *path), text) for path, text in _listener_problems(listener, entry))
        address = (listener.listen.host, listener.listen.port)
        if address in listener_names:
            yield (*here, "listen"), f"{listener_names[address]} listens there already"
        listener_names.setdefault(address, f"listener {number + 1}")
        target = listener.next_hop.to
        if any(reaches(target, other.listen) for other, _ in listeners.values()):
            text = f"mail would come back: {target} is where this daemon listens"
            yield (*here, "next_hop"), text
    for number, (scanner, entry) in scanners.items():
        address = (str(scanner.listen.path or scanner.listen.host), scanner.listen.port)
        if address in listener_names:
            yield ("scanners", number, "listen"), f"{listener_names[address]} listens there already"
        listener_names.setdefault(address, f"scanner {number + 1}")
        problems = _scanner_problems(scanner, entry)
        yield from ((("scanners", number, key), text) for key, text in problems)


def _listener_problems(listener: Listener, entry: Entry) -> Iterator[ConfigProblem]:
    if "clients" not in entry and not is_loopback(listener.listen):
        yield ("listen",), _exposure(listener.listen, "send")
    target = listener.next_hop.to
    if (
        listener.speed_adjust
        and listener.listen.protocol is Protocol.SMTP
        and target.protocol is not Protocol.SMTP
    ):
        yield (
            ("speed_adjust",),
            "with speed_adjust Postfix sends all recipients in one transaction, and the answers "
            f"of {target.protocol} for each cannot become one: switch it off there, or hand on by "
            "SMTP",
        )
    if target.port == 0 and target.path is None:
        yield ("next_hop",), "expected a port from 1 to 65535"
    for number, rule in enumerate(listener.policy.rules):
        has_probability = "from_probability" in entry["rules"][number]
        problems = _rule_problems(rule, listener.position, has_probability=has_probability)
        yield from ((("rules", number, key), text) for key, text in problems)


def _exposure(listen: Endpoint, verb: str) -> str:
    """Whoever can be reached by others must say whom it takes mail from."""
    remedy = f"list the networks that may {verb}, as in clients: [192.0.2.0/24]"
    return f"{listen} can be reached from other machines: {remedy}"


def _rule_problems(
    rule: Rule, position: Position, *, has_probability: bool
) -> Iterator[tuple[str, str]]:
    action, probability = rule.action, rule.from_probability
    where = "from_probability" if has_probability else "action"
    if action in (Action.REJECT, Action.DEFER):
        if position is Position.AFTER_QUEUE:
            reason = "after the queue Postfix would bounce to forged senders"
            yield "action", f"{action} is for before-queue and standalone: {reason}"
        if action is Action.REJECT and probability < MIN_REFUSAL_PROBABILITY:
            yield where, f"reject needs a from_probability of {MIN_REFUSAL_PROBABILITY} or more"
        if action is Action.DEFER and not probability:
            yield where, "defer needs a from_probability above 0"
        if rule.subject_prefix:
            text = f"{action} leaves no message whose subject could be changed"
            yield "subject_prefix", text
    if action is Action.REDIRECT and not rule.to:
        yield "action", "redirect needs the address to redirect to, as in to: held@example.org"
    if rule.to and action is not Action.REDIRECT:
        yield "to", f"only redirect has an address, {action} has none"


_UNSUPPORTED_KEYS = {
    Protocol.SPAMD: ("reject_from", "quarantine_from", "greylist_from", "password_file"),
    Protocol.RSPAMD: ("quarantine_from",),
}


def _scanner_problems(scanner: Scanner, entry: Entry) -> Iterator[tuple[str, str]]:
    protocol = scanner.listen.protocol
    if "clients" not in entry and not is_loopback(scanner.listen):
        yield "listen", _exposure(scanner.listen, "ask")
    if scanner.reject_from is not None and scanner.reject_from < MIN_REFUSAL_PROBABILITY:
        yield "reject_from", f"expected {MIN_REFUSAL_PROBABILITY} or more, or null"
    if scanner.greylist_from == 0:
        yield "greylist_from", "expected more than 0, or null"
    for key in _UNSUPPORTED_KEYS.get(protocol, ()):
        if getattr(scanner, key) is not None:
            yield key, f"{protocol} has no words for that: leave it out"
    if protocol is Protocol.MILTER and scanner.allows_teaching:
        key = "teachers" if scanner.teachers else "password_file"
        yield key, f"nobody can teach by {protocol}: leave it out"


def web_problems(web: Web) -> Iterator[ConfigProblem]:
    """A page that is open to others without a secret way, or that does not know its names."""
    address = ip_address(web.listen.host)
    here: KeyPath = ("web", "listen")
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


def duplicate_alias_problems(aliases: Iterable[object]) -> Iterator[ConfigProblem]:
    """Addresses that differ in case only: which of them counts would be chance."""
    first: dict[str, str] = {}
    for alias in aliases:
        if isinstance(alias, str) and first.setdefault(alias.lower(), alias) != alias:
            text = f"{first[alias.lower()]} stands there already, which is the same address"
            yield ("aliases", alias), text


def is_loopback(endpoint: Endpoint) -> bool:
    """Whether only this machine can connect."""
    return endpoint.path is not None or ip_address(endpoint.host).is_loopback


def reaches(target: Endpoint, listening: Endpoint) -> bool:
    """Whether mail that is sent to the target arrives at a listener of ours, as far as texts and
    this machine's name tell.
    """
    if target.path is not None or target.port != listening.port or not target.port:
        return False
    host = "127.0.0.1" if target.host.lower() == "localhost" else target.host
    if host == listening.host:
        return True
    if not ip_address(listening.host).is_unspecified:
        return False
    try:
        return host.lower() == hostname().lower() or ip_address(host).is_loopback
    except ValueError:  # another host's name
        return False


# ---- warnings


def find_warnings(settings: Settings) -> Sequence[str]:
    """What is allowed and most likely not meant."""
    return [
        *_misspelt_classes(settings),
        *_shadowed_rules(settings),
        *_watch_warnings(settings),
        *_port_conflicts(settings),
        *_subject_warnings(settings),
        *_reach_warnings(settings),
    ]


def _misspelt_classes(settings: Settings) -> Iterator[str]:
    """Spam that is moved to a folder of class `spamm` would be learnt as good mail."""
    usual_names = ("spam", "ham", "unsure", *NON_TEACHING_ROLES)
    for where, label in _named_classes(settings):
        near = ["spam"] if label == "junk" else get_close_matches(label, usual_names, 1, 0.7)
        if near and label not in usual_names:
            yield (
                f"{where}: {label} is a class of its own, of good mail unless it was made with "
                f"`learn --unwanted`: did you mean {near[0]}?"
            )


def _named_classes(settings: Settings) -> Iterator[tuple[str, str]]:
    """Each class with the place where it is named."""
    for listener in settings.listeners:
        for rule in listener.policy.rules:
            yield f"{listener.listen}: rule for {rule.when}", rule.when
        for address, label in listener.teach.addresses if listener.teach is not None else ():
            yield f"{listener.listen}: teach: {address}", label
    for watch in settings.watch:
        for pattern, label in watch.folders:
            yield f"{watch.maildir}: folders: {pattern}", label


def _shadowed_rules(settings: Settings) -> Iterator[str]:
    """Rules before which another one fits all messages that they fit."""
    for listener in settings.listeners:
        rules = listener.policy.rules
        for number, rule in enumerate(rules, 1):
            for earlier, wide in enumerate(rules[: number - 1], 1):
                if wide.when == rule.when and wide.from_probability <= rule.from_probability:
                    yield (
                        f"{listener.listen}: rule {number} for {rule.when} never fits, as rule "
                        f"{earlier} does before it: put the one with the higher from_probability "
                        "first"
                    )
                    break


def _watch_warnings(settings: Settings) -> Iterator[str]:
    """Entries of Maildirs that an earlier one covers, and users that look like patterns."""
    for number, watch in enumerate(settings.watch):
        for wide in settings.watch[:number]:
            if _pattern_covers(wide.maildir, watch.maildir):
                yield (
                    f"watch: {watch.maildir} never counts, as {wide.maildir} stands before it and "
                    "fits the same: put it first"
                )
                break
    for watch in settings.watch:
        if any(sign in watch.user for sign in "*?%$"):
            yield (
                f"watch: all of {watch.maildir} is one user's, {watch.user}: leave `user` out, "
                "and the wildcards say whose each is"
            )


def _pattern_covers(wide: str, narrow: str) -> bool:
    """Whether a pattern of Maildirs fits all that another one fits, as far as the texts tell."""

    def covers(wide: str, narrow: str) -> bool:
        """One part: * and ? stand for no dot at the beginning, and ? for less than *."""
        if ("?" in wide and "*" in narrow) or (narrow[:1] == "." and wide[:1] != "."):
            return wide == narrow
        return fnmatchcase(narrow, wide.replace("[", "[[]"))

    wide_parts, narrow_parts = wide.split("/"), narrow.split("/")
    return len(wide_parts) == len(narrow_parts) and all(map(covers, wide_parts, narrow_parts))


def _port_conflicts(settings: Settings) -> Iterator[str]:
    """Page or monitors where something else listens: the later one cannot."""
    door_names = {
        (door.listen.host, door.listen.port): str(door.listen)
        for door in settings.doors
        if door.listen.path is None
    }
    page = settings.web.listen if settings.web is not None else None
    for name, place in (("metrics", settings.metrics), ("web", page)):
        if place is not None:
            address = (place.host, place.port)
            if address in door_names:
                text = f"{place} is where {door_names[address]} listens already"
                yield f"{name}: {text}: choose another port"
            door_names.setdefault(address, name)


def _subject_warnings(settings: Settings) -> Iterator[str]:
    for listener in settings.listeners:
        for number, rule in enumerate(listener.policy.rules, 1):
            if rule.subject_prefix:
                yield (
                    f"{listener.listen}: rule {number} for {rule.when}: subject_prefix changes the "
                    "subject, which breaks the DKIM signature of nearly all mail; mark with header "
                    "fields instead"
                )


def _reach_warnings(settings: Settings) -> Iterator[str]:
    """Monitors that anybody can ask, and aliases that nobody asks for."""
    if settings.metrics is not None and not ip_address(settings.metrics.host).is_loopback:
        yield (
            f"metrics: {settings.metrics} can be reached from other machines, and asks for no "
            "password: let a firewall choose who may"
        )
    if settings.aliases and not settings.personal and settings.web is None:
        yield "aliases: say whose mail it is, which nobody asks without personal: true or web"
