"""The running daemon: the part of `status` about it. Asks the daemon itself, and its next hops whether they answer; waits for neither
for more than some seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spamguard.cli import rim
from spamguard.daemon import desk
from spamguard.errors import UsageError
from spamguard.hostname import hostname
from spamguard.times import moment

_INDENT = " " * 11


def values(state: Path) -> dict[str, Any] | None:
    """What it says, and what keeps it from working, its next hops too; None: none runs on this state directory."""
    told = asked(state)
    if told is None or trouble(told):
        return told
    wrong = [*not_working(told), *_unreachable(told["listeners"])]
    return {**told, "ready": not wrong, "not_ready": wrong}


def asked(state: Path) -> dict[str, Any] | None:
    """What it says. None: none runs on this state directory.

    answers: whether it said anything but its pid. Of a daemon of another version than this program only that much is told.
    """
    from spamguard import __version__

    told = desk.ask(state)
    if told is None or told.get("version") == __version__:
        return told and {**told, "answers": True}
    return {"pid": told["pid"], "version": told.get("version"), "answers": "version" in told, "ready": False}


def refuse_another_version(state: Path) -> None:
    """UsageError if a daemon of one runs there: it goes on with a ledger that is brought up to date, but no scorer that it starts later
    could open that, and mail would go on unjudged."""
    from spamguard import __version__

    told = asked(state)
    if told is not None and told["version"] != __version__:
        raise UsageError(f"{state}: the daemon {trouble(told)} first, it brings the ledger up to date; nothing has been done")


def trouble(told: dict[str, Any] | None) -> str:
    """Why there is no more to tell of it, in words; empty: there is."""
    from spamguard import __version__

    if told is None:
        return "none runs on this state directory"
    if not told["answers"]:
        return f"pid {told['pid']} runs and does not answer: see its log, or restart it"
    if told["version"] != __version__:
        return f"pid {told['pid']} runs version {told['version']}, this program is {__version__}: restart it"
    return ""


def not_working(told: dict[str, Any]) -> Iterator[str]:
    """What of its own keeps it from working. That ledger and tables can be used has been seen."""
    if told["stopping"]:
        yield "it is stopping"
    if not any(worker["ready"] for worker in told["workers"]):
        yield "workers: none accepts mail"
    elif not told["scoring"]:
        yield "scorers: none is ready"
    yield from told["not_served"]


def _unreachable(listeners: list[dict[str, Any]]) -> list[str]:
    import asyncio

    from spamguard.metrics import readiness
    from spamguard.settings import Hop, Tls, parse_endpoint

    hops = [Hop(parse_endpoint(one["next_hop"]), Tls(one["tls"])) for one in listeners]
    return asyncio.run(readiness.unreachable(hops, hostname()))


def lines(told: dict[str, Any] | None) -> list[str]:
    """The same for people."""
    if told is None or trouble(told):
        return [f"daemon     {trouble(told)}"]
    return [_head(told), *(_INDENT + rim.printable(line) for line in _details(told))]


def _head(told: dict[str, Any]) -> str:
    return f"daemon     {'ready' if told['ready'] else 'NOT READY'}, pid {told['pid']}, for {_duration(time.time() - told['began'])}"


def _details(told: dict[str, Any]) -> Iterator[str]:
    yield from (f"not ready: {line}" for line in told["not_ready"])
    for one in told["listeners"]:
        yield f"listens on {one['listen']} ({one['position']}), hands on to {one['next_hop']}"
    if told["scanners"]:
        yield f"judges for who asks on {', '.join(told['scanners'])}"
    yield f"{rim.counted(len(told['workers']), 'worker')}: {', '.join(map(_worker, told['workers']))}"
    if told["metrics"]:
        yield f"monitors may ask http://{told['metrics']}/metrics"
    if told["web"]:
        yield f"page and API on {told['web']['listen']}, for people {told['web']['page']}"
    yield _messages(told)
    if number := sum(one["number"] for one in told["next_hop_errors"]):
        yield f"{rim.counted(number, 'error')} of next hops, the last ones:"
        yield from (f"  {moment(one['time'])} {one['text']}" for one in told["last_errors"])


def _worker(one: dict[str, Any]) -> str:
    state = "drains" if one["draining"] else "" if one["ready"] else "starts"
    return f"{one['pid']} ({state})" if state else str(one["pid"])


def _messages(told: dict[str, Any]) -> str:
    by_verdict: Counter[str] = Counter()
    for one in told["messages"]:
        by_verdict[one["verdict"]] += one["number"]
    whole = rim.counted(by_verdict.total())
    return f"{whole}: {', '.join(f'{number:,} {verdict}' for verdict, number in by_verdict.most_common())}" if by_verdict else whole


def _duration(seconds: float) -> str:
    """`40 s`, `3 min`, `5 h 10 min`, `12 d 3 h`."""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if minutes < 1:
        return f"{max(0, int(seconds))} s"
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
