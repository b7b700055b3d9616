"""What a client of rspamd is told, as JSON (docs.rspamd.com, "Protocol") and as in the protocol before HTTP. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

from spamguard import __version__
from spamguard.policy import REQUIRED, UNSURE
from spamguard.proxy import reports
from spamguard.proxy.asking import Judged
from spamguard.proxy.journal import NOT_SCANNED
from spamguard.settings import Action

_MESSAGE_ID = re.compile(rb"^Message-ID[ \t]*:(?:(?:\r?\n)?[ \t])*<?([!-;=?-~]{1,250})", re.IGNORECASE | re.MULTILINE)
# To most clients rspamd's "greylist" is a remark that changes nothing (its own milter, Haraka): what they put off is a "soft reject".
_REFUSALS = {Action.REJECT: "reject", Action.DEFER: "soft reject"}


class Statistics(NamedTuple):
    """What the daemon has done. uptime: seconds. messages: by label; learnt: lessons by class. unwanted: classes."""

    uptime: int
    messages: Mapping[str, int]
    learnt: Mapping[str, int]
    unwanted: Set[str]


def action(judged: Judged) -> str:
    """What the client is asked to do."""
    return _REFUSALS.get(judged.action) or ("add header" if judged.is_unwanted else "no action")


def check(judged: Judged, header: bytes, forged: Sequence[str], seconds: float, *, tell_parts: bool) -> dict[str, Any]:
    """The answer of /checkv2. header: of the message; forged: names in it to be removed."""
    return {
        **_metric(judged),
        "thresholds": {"add header": REQUIRED},
        "symbols": _symbols(judged, tell_parts=tell_parts),
        "messages": {},
        "message-id": _message_id(header),
        "urls": [],
        "emails": [],
        "time_real": round(seconds, 6),
        "milter": {"add_headers": dict(map(_field, judged.fields)), "remove_headers": dict.fromkeys(forged, 0)},
    }


def check_v1(judged: Judged, header: bytes, *, tell_parts: bool) -> dict[str, Any]:
    """The answer of /check and /symbols, of clients from before /checkv2."""
    metric = _metric(judged) | {"is_spam": judged.is_unwanted} | _symbols(judged, tell_parts=tell_parts)
    return {"default": metric, "message-id": _message_id(header), "urls": [], "emails": []}


def before_http(judged: Judged, header: bytes) -> bytes:
    """The answer of protocol RSPAMC/1.3, as Exim's `variant=rspamd` reads it."""
    lines = (
        "RSPAMD/1.3 0 EX_OK",
        f"Metric: default; {judged.is_unwanted}; {judged.score:.2f} / {REQUIRED:.2f} / {REQUIRED:.2f}",
        f"Action: {action(judged)}",
        f"Symbol: {judged.symbol}({judged.score:.2f})",
        f"Message-ID: {_message_id(header)}",
        "",
        "",
    )
    return "\r\n".join(lines).encode("ascii")


def statistics(found: Statistics) -> dict[str, Any]:
    """The answer of /stat: what of it means something here, and the rest as its readers need it."""
    spam = sum(number for label, number in found.messages.items() if label in found.unwanted)
    ham = sum(number for label, number in found.messages.items() if label not in (*found.unwanted, UNSURE, NOT_SCANNED))
    learnt = sum(found.learnt.values())
    return {
        "version": __version__,
        "uptime": found.uptime,
        "scanned": sum(found.messages.values()),
        "learned": learnt,
        "total_learns": learnt,
        "spam_count": spam,
        "ham_count": ham,
        "actions": {"add header": spam, "no action": sum(found.messages.values()) - spam},
        "connections": 0,
        "control_connections": 0,
        "statfiles": [_statfile(label, number) for label, number in sorted(found.learnt.items())],
    }


def _statfile(label: str, number: int) -> dict[str, Any]:
    return {"symbol": f"SPAMGUARD_{label.upper()}", "label": label, "type": "spamguard", "revision": number, "used": 0, "total": 0} | {
        "size": 0,
        "languages": 0,
        "users": 0,
    }


def _metric(judged: Judged) -> dict[str, Any]:
    return {"is_skipped": judged.scan is None, "score": round(judged.score, 1), "required_score": REQUIRED, "action": action(judged)}


def _symbols(judged: Judged, *, tell_parts: bool) -> dict[str, Any]:
    score = round(judged.score, 1)
    options = [judged.id, *reports.words(judged, tell_parts=tell_parts)]
    return {judged.symbol: {"name": judged.symbol, "score": score, "metric_score": score, "options": options}}


def _field(line: bytes) -> tuple[str, str]:
    name, _, value = line.decode("ascii", "replace").partition(":")
    return name, value.strip()


def _message_id(header: bytes) -> str:
    found = _MESSAGE_ID.search(header)
    return found[1].decode("ascii") if found else "undef"
