"""What a client of rspamd is told, as JSON (docs.rspamd.com, "Protocol") and as in the protocol
before HTTP. Pure.

What a client of rspamd says of a message in header fields of its request (docs.rspamd.com,
"Protocol"). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from ipaddress import ip_address
from typing import Any, NamedTuple

from spamguard import __version__
from spamguard.config.options import Action
from spamguard.engine.policy import REQUIRED_SCORE, UNSURE
from spamguard.proxy.delivery_log import NOT_SCANNED
from spamguard.proxy.scan import ScanRequest, ScanResult, format_words
from spamguard.smtp.envelope import Client
from spamguard.spool import Spool

_MESSAGE_ID = re.compile(
    rb"^Message-ID[ \t]*:(?:(?:\r?\n)?[ \t])*<?([!-;=?-~]{1,250})", re.IGNORECASE | re.MULTILINE
)
# To most clients rspamd's "greylist" is a remark that changes nothing (its own milter, Haraka):
# what they put off is a "soft reject".
_REFUSAL_ACTIONS = {Action.REJECT: "reject", Action.DEFER: "soft reject"}


class RspamdStatistics(NamedTuple):
    """What the daemon has done. uptime: seconds. messages: by label; learnt: lessons by class.
    unwanted: classes.
    """

    uptime: int
    messages: Mapping[str, int]
    learnt: Mapping[str, int]
    unwanted: Set[str]


def action_name(judged: ScanResult) -> str:
    """What the client is asked to do."""
    return _REFUSAL_ACTIONS.get(judged.action) or (
        "add header" if judged.is_unwanted else "no action"
    )


def format_check(
    judged: ScanResult, header: bytes, forged: Sequence[str], seconds: float, *, with_weights: bool
) -> dict[str, Any]:
    """The answer of /checkv2. header: of the message; forged: names in it to be removed."""
    return {
        **_metric(judged),
        "thresholds": {"add header": REQUIRED_SCORE},
        "symbols": _symbols(judged, with_weights=with_weights),
        "messages": {},
        "message-id": _message_id(header),
        "urls": [],
        "emails": [],
        "time_real": round(seconds, 6),
        "milter": {
            "add_headers": dict(map(_split_field, judged.fields)),
            "remove_headers": dict.fromkeys(forged, 0),
        },
    }


def format_check_v1(judged: ScanResult, header: bytes, *, with_weights: bool) -> dict[str, Any]:
    """The answer of /check and /symbols, of clients from before /checkv2."""
    metric = (
        _metric(judged)
        | {"is_spam": judged.is_unwanted}
        | _symbols(judged, with_weights=with_weights)
    )
    return {"default": metric, "message-id": _message_id(header), "urls": [], "emails": []}


def format_rspamc(judged: ScanResult, header: bytes) -> bytes:
    """The answer of protocol RSPAMC/1.3, as Exim's `variant=rspamd` reads it."""
    lines = (
        "RSPAMD/1.3 0 EX_OK",
        f"Metric: default; {judged.is_unwanted}; {judged.score:.2f} / {REQUIRED_SCORE:.2f} / {REQUIRED_SCORE:.2f}",
        f"Action: {action_name(judged)}",
        f"Symbol: {judged.symbol}({judged.score:.2f})",
        f"Message-ID: {_message_id(header)}",
        "",
        "",
    )
    return "\r\n".join(lines).encode("ascii")


def format_statistics(found: RspamdStatistics) -> dict[str, Any]:
    """The answer of /stat: what of it means something here, and the rest as its readers need it."""
    spam = sum(number for label, number in found.messages.items() if label in found.unwanted)
    ham = sum(
        number
        for label, number in found.messages.items()
        if label not in (*found.unwanted, UNSURE, NOT_SCANNED)
    )
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
    return {
        "symbol": f"SPAMGUARD_{label.upper()}",
        "label": label,
        "type": "spamguard",
        "revision": number,
        "used": 0,
        "total": 0,
    } | {
        "size": 0,
        "languages": 0,
        "users": 0,
    }


def _metric(judged: ScanResult) -> dict[str, Any]:
    return {
        "is_skipped": judged.scan is None,
        "score": round(judged.score, 1),
        "required_score": REQUIRED_SCORE,
        "action": action_name(judged),
    }


def _symbols(judged: ScanResult, *, with_weights: bool) -> dict[str, Any]:
    score = round(judged.score, 1)
    options = [judged.id, *format_words(judged, with_weights=with_weights)]
    return {
        judged.symbol: {
            "name": judged.symbol,
            "score": score,
            "metric_score": score,
            "options": options,
        }
    }


def _split_field(line: bytes) -> tuple[str, str]:
    name, _, value = line.decode("ascii", "replace").partition(":")
    return name, value.strip()


def _message_id(header: bytes) -> str:
    found = _MESSAGE_ID.search(header)
    return found[1].decode("ascii") if found else "undef"


_MAX_RECIPIENTS = 1000  # that are remembered
_MAX_ADDRESS_LENGTH = 512  # letters of an address or a name

HeaderFields = Mapping[bytes, list[bytes]]
"""Values of header fields by their name in lower case."""


def collect_fields(headers: Iterable[tuple[bytes, bytes]]) -> HeaderFields:
    """Header fields as h11 gives them."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(value)
    return found


def field_text(told: HeaderFields, name: bytes) -> str:
    """The value of a field, the first; "" where there is none."""
    return told.get(name, [b""])[0].decode("utf-8", "replace").strip()[:_MAX_ADDRESS_LENGTH]


def build_scan_request(told: HeaderFields, message: Spool, peer: str) -> ScanRequest:
    """All that was said. Whose mail it is: who it is delivered to, else the recipients, else the
    user who is logged in.
    """
    recipients = [
        address
        for one in told.get(b"rcpt", ())
        for part in one.split(b",")
        if (address := _parse_address(part))
    ][:_MAX_RECIPIENTS]
    user, deliver_to = field_text(told, b"user"), _parse_address(told.get(b"deliver-to", [b""])[0])
    return ScanRequest(
        message=message,
        peer=peer,
        sender=_parse_address(told.get(b"from", [b""])[0]),
        recipients=recipients,
        client=_client(told, peer, user),
        user=deliver_to or ("" if recipients else user),
        received_by=field_text(told, b"mta-name"),
        queue_id=field_text(told, b"queue-id"),
    )


def lesson_user(told: HeaderFields) -> str:
    """Whose lesson it is."""
    return field_text(told, b"user") or _parse_address(told.get(b"deliver-to", [b""])[0])


def _client(told: HeaderFields, peer: str, user: str) -> Client:
    try:
        address = str(ip_address(field_text(told, b"ip")))
    except ValueError:
        address = ""
    protocol = "ESMTP" + ("S" if b"tls-version" in told else "") + ("A" if user else "")
    return Client(
        address,
        field_text(told, b"hostname"),
        helo=field_text(told, b"helo"),
        protocol=protocol,
        login=user,
        peer=peer,
    )


def _parse_address(value: bytes) -> str:
    return (
        value.decode("utf-8", "replace")
        .strip()
        .removeprefix("<")
        .removesuffix(">")[:_MAX_ADDRESS_LENGTH]
    )
