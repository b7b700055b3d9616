"""What the parts of a configuration must not say together. Values in, sentences with the path they are about out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from ipaddress import ip_address

from spamguard.config.schema import ListenerPart, RulePart, ScannerPart, WebPart
from spamguard.config.tree import Path
from spamguard.config.values import ROLES
from spamguard.hostname import hostname
from spamguard.settings import Action, Endpoint, Position, Protocol, Settings

LEAST_SURE = 0.9  # probability from which on a rule may refuse a message for ever
_WORDS = ("spam", "ham", "unsure", *ROLES)
_REFUSALS = (Action.REJECT, Action.DEFER)
_WORDLESS = {
    Protocol.SPAMD: ("reject_from", "quarantine_from", "greylist_from", "password_file"),
    Protocol.RSPAMD: ("quarantine_from",),
}

Problem = tuple[Path, str]


def nothing_listens(value: object) -> Iterator[Problem]:
    """A file without any door."""
    if isinstance(value, dict) and not value.get("scanners"):
        if "listeners" not in value:
            yield (), "expected the key 'listeners', or 'scanners'"
        elif value["listeners"] == []:
            yield ("listeners",), "listeners: expected at least one, found none"


def problems(listeners: Mapping[int, ListenerPart], scanners: Mapping[int, ScannerPart]) -> Iterator[Problem]:
    """Everything that contradicts, by the number of the listener or scanner in the file."""
    seen: dict[tuple[str, int], int] = {}
    for number, listener in listeners.items():
        here: Path = ("listeners", number)
        yield from (((*here, *path), text) for path, text in _of_one(listener))
        address = (listener.endpoint.host, listener.endpoint.port)
        if address in seen:
            yield (*here, "listen"), f"listener {seen[address] + 1} listens there already"
        seen.setdefault(address, number)
        if any(reaches(listener.next_hop.endpoint, other.endpoint) for other in listeners.values()):
            yield (*here, "next_hop"), f"mail would come back: {listener.next_hop.endpoint} is where this daemon listens"
    yield from _of_scanners(scanners, {address: f"listener {number + 1}" for address, number in seen.items()})


def _of_scanners(scanners: Mapping[int, ScannerPart], taken: Mapping[tuple[str, int], str]) -> Iterator[Problem]:
    seen = {**taken}
    for number, scanner in scanners.items():
        address = (str(scanner.endpoint.path or scanner.endpoint.host), scanner.endpoint.port)
        if address in seen:
            yield ("scanners", number, "listen"), f"{seen[address]} listens there already"
        seen.setdefault(address, f"scanner {number + 1}")
        yield from ((("scanners", number, key), text) for key, text in _of_scanner(scanner))


def _of_scanner(scanner: ScannerPart) -> Iterator[tuple[str, str]]:
    where, protocol = scanner.endpoint, scanner.endpoint.protocol
    if "clients" not in scanner.model_fields_set and not is_loopback(where):
        yield "listen", f"{where} can be reached from other machines: list the networks that may ask, as in clients: [192.0.2.0/24]"
    if scanner.reject_from is not None and scanner.reject_from < LEAST_SURE:
        yield "reject_from", f"expected {LEAST_SURE} or more, or null"
    if scanner.greylist_from == 0:
        yield "greylist_from", "expected more than 0, or null"
    for key in _WORDLESS.get(protocol, ()):
        if getattr(scanner, key) is not None:
            yield key, f"{protocol} has no words for that: leave it out"
    if protocol is Protocol.MILTER and (scanner.teachers or scanner.password_file):
        yield ("teachers" if scanner.teachers else "password_file"), f"nobody can teach by {protocol}: leave it out"


def of_web(web: WebPart) -> Iterator[Problem]:
    """What page and API must not be: open to others without a secret way, or deaf to the names they are asked by."""
    address = ip_address(web.place.host)
    here: Path = ("web", "listen")
    if web.tls is None and web.proxy is None and not address.is_loopback:
        yield here, f"{web.place} can be reached from other machines: give it a certificate with tls, or name the reverse proxy with proxy"
    if not web.hosts and (address.is_unspecified or web.proxy is not None):
        yield here, "say by which names it is asked for, as in hosts: [spam.example.org]: others are refused"
    if web.proxy is not None and web.proxy.operators and not web.proxy.user_header:
        yield ("web", "proxy", "operators"), "nobody is named without user_header"


def aliases_given_twice(aliases: Iterable[str]) -> Iterator[Problem]:
    """Addresses that differ in case only: which of them counts would be chance."""
    seen: dict[str, str] = {}
    for alias in aliases:
        if alias.lower() in seen:
            yield ("aliases", alias), f"{seen[alias.lower()]} stands there already, which is the same address"
        seen.setdefault(alias.lower(), alias)


def _of_one(listener: ListenerPart) -> Iterator[Problem]:
    yield from _in_the_open(listener)
    hop = listener.next_hop.endpoint.protocol
    if listener.speed_adjust and listener.endpoint.protocol is Protocol.SMTP and hop is not Protocol.SMTP:
        yield (
            ("speed_adjust",),
            f"with speed_adjust Postfix sends all recipients in one transaction, and the answers of {hop} for each cannot become one: "
            "switch it off there, or hand on by SMTP",
        )
    if listener.next_hop.endpoint.port == 0 and listener.next_hop.endpoint.path is None:
        yield ("next_hop",), "expected a port from 1 to 65535"
    for number, rule in enumerate(listener.rules or ()):
        yield from ((("rules", number, key), text) for key, text in _of_rule(rule, listener.position))


def _in_the_open(listener: ListenerPart) -> Iterator[Problem]:
    """Whoever listens where others can reach it says whom it takes mail from."""
    if "clients" not in listener.model_fields_set and not is_loopback(listener.endpoint):
        told = f"{listener.endpoint} can be reached from other machines: list the networks that may send, as in clients: [192.0.2.0/24]"
        yield ("listen",), told


def _of_rule(rule: RulePart, position: Position) -> Iterator[tuple[str, str]]:
    if rule.action in _REFUSALS:
        if position is Position.AFTER_QUEUE:
            yield "action", f"{rule.action} is for before-queue and standalone: after the queue Postfix would bounce to forged senders"
        if rule.action is Action.REJECT and (rule.from_probability or 0) < LEAST_SURE:
            yield _where(rule), f"reject needs a from_probability of {LEAST_SURE} or more"
        if rule.action is Action.DEFER and not rule.from_probability:
            yield _where(rule), "defer needs a from_probability above 0"
        if rule.subject_prefix:
            yield "subject_prefix", f"{rule.action} leaves no message whose subject could be changed"
    if rule.action is Action.REDIRECT and not rule.to:
        yield "action", "redirect needs the address to redirect to, as in to: held@example.org"
    if rule.to and rule.action is not Action.REDIRECT:
        yield "to", f"only redirect has an address, {rule.action} has none"


def _where(rule: RulePart) -> str:
    return "action" if rule.from_probability is None else "from_probability"


def is_loopback(endpoint: Endpoint) -> bool:
    """Whether only this machine can connect."""
    return endpoint.path is not None or ip_address(endpoint.host).is_loopback


def reaches(target: Endpoint, listening: Endpoint) -> bool:
    """Whether what is sent there arrives at a listener of ours, as far as the texts, and this machine's name, tell."""
    if target.path is not None or target.port != listening.port or not target.port:
        return False
    host = "127.0.0.1" if target.host.lower() == "localhost" else target.host
    if host == listening.host:
        return True
    everywhere = ip_address(listening.host).is_unspecified
    try:
        return everywhere and (host.lower() == hostname().lower() or ip_address(host).is_loopback)
    except ValueError:  # another host's name
        return False


def warnings(settings: Settings) -> Sequence[str]:
    """What is allowed and most likely not meant."""
    looked = (_slips, _idle_rules, _idle_watches, _users_like_patterns, _same_ports, _changed_subjects, _open_metrics, _idle_aliases)
    return [told for look in looked for told in look(settings)]


def _slips(settings: Settings) -> Iterator[str]:
    """Names of classes that look like slips of the pen: spam that is moved to a folder of `spamm` would be learnt as good mail."""
    for where, label in _named_classes(settings):
        near = ["spam"] if label == "junk" else get_close_matches(label, _WORDS, 1, 0.7)
        if near and label not in _WORDS:
            yield (
                f"{where}: {label} is a class of its own, of good mail unless it was made with `learn --unwanted`: did you mean {near[0]}?"
            )


def _named_classes(settings: Settings) -> Iterator[tuple[str, str]]:
    """Each with the place where it is named."""
    for listener in settings.listeners:
        yield from ((f"{listener.endpoint}: rule for {rule.label}", rule.label) for rule in listener.policy.rules)
        taught = listener.teach.addresses if listener.teach is not None else ()
        yield from ((f"{listener.endpoint}: teach: {address}", label) for address, label in taught)
    for watch in settings.watch:
        yield from ((f"{watch.maildir}: folders: {pattern}", label) for pattern, label in watch.folders)


def _idle_rules(settings: Settings) -> Iterator[str]:
    """Rules before which another one fits whatever they fit."""
    for listener in settings.listeners:
        rules = listener.policy.rules
        for number, rule in enumerate(rules):
            wider = (one for one in rules[:number] if one.label == rule.label and one.from_probability <= rule.from_probability)
            if first := next(wider, None):
                yield (
                    f"{listener.endpoint}: rule {number + 1} for {rule.label} never fits, as rule {rules.index(first) + 1} does before it: "
                    "put the one with the higher from_probability first"
                )


def _idle_watches(settings: Settings) -> Iterator[str]:
    """Entries of Maildirs that an earlier one names too, with what it says of them."""
    for number, watch in enumerate(settings.watch):
        wider = (one for one in settings.watch[:number] if _names_all_of(one.maildir, watch.maildir))
        if first := next(wider, None):
            yield f"watch: {watch.maildir} never counts, as {first.maildir} stands before it and fits the same: put it first"


def _users_like_patterns(settings: Settings) -> Iterator[str]:
    """Entries that mean whom the wildcards stand for, and name one user of that name."""
    for watch in settings.watch:
        if any(sign in watch.user for sign in "*?%$"):
            yield f"watch: all of {watch.maildir} is one user's, {watch.user}: leave `user` out, and the wildcards say whose each is"


def _names_all_of(wide: str, narrow: str) -> bool:
    """Whether a pattern of Maildirs fits whatever another one does, as far as the texts tell."""
    around, inside = wide.split("/"), narrow.split("/")
    return len(around) == len(inside) and all(map(_is_all_of, around, inside))


def _is_all_of(wide: str, narrow: str) -> bool:
    """The same of one part: only * and ? stand for anything, neither for a dot at the beginning, and ? for less than * does."""
    if ("?" in wide and "*" in narrow) or (narrow[:1] == "." and wide[:1] != "."):
        return wide == narrow
    return fnmatchcase(narrow, wide.replace("[", "[[]"))


def _same_ports(settings: Settings) -> Iterator[str]:
    """Page or monitors where something else listens: what comes later cannot."""
    taken = {(one.endpoint.host, one.endpoint.port): str(one.endpoint) for one in settings.doors if one.endpoint.path is None}
    for name, place in (("metrics", settings.metrics), ("web", settings.web.place if settings.web is not None else None)):
        if place is not None:
            if (place.host, place.port) in taken:
                yield f"{name}: {place} is where {taken[place.host, place.port]} listens already: choose another port"
            taken.setdefault((place.host, place.port), name)


def _idle_aliases(settings: Settings) -> Sequence[str]:
    if not settings.aliases or settings.personal or settings.web is not None:  # the page shows people their own mail
        return []
    return ["aliases: say whose mail it is, which nobody asks without personal: true or web"]


def _changed_subjects(settings: Settings) -> Sequence[str]:
    told = "changes the subject, which breaks the DKIM signature of nearly all mail; mark with header fields instead"
    return [
        f"{listener.endpoint}: rule {number} for {rule.label}: subject_prefix {told}"
        for listener in settings.listeners
        for number, rule in enumerate(listener.policy.rules, start=1)
        if rule.subject_prefix
    ]


def _open_metrics(settings: Settings) -> Sequence[str]:
    if settings.metrics is None or ip_address(settings.metrics.host).is_loopback:
        return []
    return [f"metrics: {settings.metrics} can be reached from other machines, and asks for no password: let a firewall choose who may"]
