"""The running daemon in words and numbers, as JSON can tell it to `spamguard status`."""

from __future__ import annotations

import time
from collections.abc import Mapping

from spamguard import __version__
from spamguard.hostname import hostname
from spamguard.metrics.counters import MASTER, Board, Name
from spamguard.metrics.liveness import absent, cannot_judge
from spamguard.metrics.totals import total
from spamguard.settings import Listener, Settings
from spamguard.web.access import link

_TROUBLES = 8


def of(settings: Settings, board: Board) -> dict[str, object]:
    """settings: those in force, or about to be."""
    totals, master = total(board.used()), board.slot(MASTER)
    return {
        "pid": master.pid,
        "host": hostname(),
        "version": __version__,
        "began": master.began,
        "listeners": [_listener(one) for one in settings.listeners],
        "scanners": [str(one.endpoint) for one in settings.scanners],
        "metrics": settings.metrics and str(settings.metrics),
        "web": settings.web and {"listen": str(settings.web), "page": link.address(settings.web)},
        "not_served": absent(board, time.monotonic_ns()),
        "scoring": not cannot_judge(board),
        "messages": _rows(totals.messages, "verdict", "action"),
        "bytes": totals.bytes,
        "next_hop_errors": _rows(totals.next_hop_errors, "next_hop", "kind"),
        "last_errors": [{"time": moment, "text": text} for moment, text in totals.troubles[:_TROUBLES]],
    }


def _listener(listener: Listener) -> dict[str, str]:
    hop = listener.next_hop
    return {"listen": str(listener.endpoint), "position": str(listener.position), "next_hop": str(hop.endpoint), "tls": str(hop.tls)}


def _rows(counted: Mapping[Name, int], first: str, second: str) -> list[dict[str, object]]:
    return [{first: one, second: other, "number": number} for (one, other), number in counted.items()]
