"""Whether Postfix, where there is one, knows of the doors that it is to hand mail to: asks `postconf`, and nothing else.

`unnamed` is pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from spamguard.doctor.asking import said
from spamguard.doctor.step import Step, failed, ok, skipped
from spamguard.settings import Endpoint, Position, Protocol, Settings

_TABLES = re.compile(r"\w*transport_maps(?= = \S)|header_checks(?= = \S)|check_\w+_access")  # that may send mail on another way


def steps(settings: Settings) -> Iterator[Step]:
    """Nothing, where Postfix would not need to know."""
    doors = _asked_by_postfix(settings)
    if not doors:
        return
    told = read()
    if not told:
        yield skipped("Postfix", "there is none here, or it does not say how it is configured")
    elif lacking := unnamed(told, doors):
        text = f"no parameter of it (postconf -n, -P) names {', '.join(map(str, lacking))}"
        if table := _TABLES.search(told):
            yield skipped("Postfix", f"{text}; whether a table does ({table[0]}) is not looked at")
        else:
            yield failed("Postfix", f"{text}, nor are there tables that might", "see config/postfix, then `postfix reload`")
    else:
        yield ok("Postfix", f"names {', '.join(map(str, doors))}")


def _asked_by_postfix(settings: Settings) -> list[Endpoint]:
    """Doors that Postfix connects to: the world connects to others."""
    listeners = [one.endpoint for one in settings.listeners if one.position is not Position.STANDALONE]
    return [*listeners, *(one.endpoint for one in settings.scanners if one.endpoint.protocol is Protocol.MILTER)]


def read(configuration: str = "") -> str:
    """What `postconf` says of main.cf and master.cf, of the given directory or the usual one: lines of `parameter = value`."""
    where = ("-c", configuration) if configuration else ()
    return "".join(said("postconf", *where, option) for option in ("-n", "-P"))


def unnamed(told: str, doors: Sequence[Endpoint]) -> list[Endpoint]:
    """Those that no value names: a port by its number, a socket by its name, as where Postfix sees it depends on its chroot."""
    values = "\n".join(line.partition(" = ")[2] for line in told.splitlines())
    return [one for one in doors if not re.search(rf":{one.port}\b" if one.path is None else rf"/{re.escape(one.path.name)}\b", values)]
