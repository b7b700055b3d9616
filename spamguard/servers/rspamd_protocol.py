"""What a client of rspamd says of a message, and what it is answered. Pure.

A client describes a message in header fields of its request, and is answered in JSON
(docs.rspamd.com, "Protocol"), or in the lines of the protocol before HTTP.

It is written by hand because no library speaks the server's side of this protocol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from spamguard.config.options import Action
from spamguard.engine.policy import REQUIRED_SCORE
from spamguard.servers.scanner import ScanRequest, ScanResult, parse_recipients
from spamguard.smtp.envelope import MAX_ADDRESS_LENGTH, Client, bare_address
from spamguard.storage import Spool

_MESSAGE_ID = re.compile(
    rb"^Message-ID[ \t]*:(?:(?:\r?\n)?[ \t])*<?([!-;=?-~]{1,250})", re.IGNORECASE | re.MULTILINE
)
# To most clients rspamd's "greylist" is a remark that changes nothing (its own milter, Haraka);
# a "soft reject" makes them defer the message.
_REFUSAL_ACTIONS = {Action.REJECT: "reject", Action.DEFER: "soft reject"}


# ---- requests

HeaderFields = Mapping[bytes, list[bytes]]
"""Values of header fields by name in lower case."""


def field_text(fields: HeaderFields, name: bytes) -> str:
    """The first value of a field, "" if there is none."""
    return fields.get(name, [b""])[0].decode("utf-8", "replace").strip()[:MAX_ADDRESS_LENGTH]


def build_scan_request(fields: HeaderFields, message: Spool, peer: str) -> ScanRequest:
    """The request to judge a message.

    Its user is the one it is delivered to. Without that field it is judged for its recipients, and
    without these for the user who is logged in.
    """
    recipients = parse_recipients(fields.get(b"rcpt", ()))
    login = field_text(fields, b"user")
    try:
        address = str(ip_address(field_text(fields, b"ip")))
    except ValueError:
        address = ""
    client = Client(
        address,
        field_text(fields, b"hostname"),
        helo=field_text(fields, b"helo"),
        protocol="ESMTP" + ("S" if b"tls-version" in fields else "") + ("A" if login else ""),
        login=login,
        peer=peer,
    )
    return ScanRequest(
        message=message,
        peer=peer,
        sender=bare_address(field_text(fields, b"from")),
        recipients=recipients,
        client=client,
        user=bare_address(field_text(fields, b"deliver-to")) or ("" if recipients else login),
        received_by=field_text(fields, b"mta-name"),
        queue_id=field_text(fields, b"queue-id"),
    )


# ---- answers


def action_name(result: ScanResult) -> str:
    """What the client is asked to do."""
    usual = "add header" if result.is_unwanted else "no action"
    return _REFUSAL_ACTIONS.get(result.action, usual)


def format_check(
    result: ScanResult, header: bytes, forged: Sequence[str], seconds: float
) -> dict[str, Any]:
    """The answer of /checkv2. header: of the message. forged: names in it that are to go."""
    fields = [line.decode("ascii", "replace").partition(":") for line in result.fields]
    score = round(result.score, 1)
    symbol = {
        "name": result.symbol,
        "score": score,
        "metric_score": score,
        "options": [result.id, *result.words],
    }
    return {
        "is_skipped": bool(result.reason),
        "score": score,
        "required_score": REQUIRED_SCORE,
        "action": action_name(result),
        "thresholds": {"add header": REQUIRED_SCORE},
        "symbols": {result.symbol: symbol},
        "messages": {},
        "message-id": _message_id(header),
        "urls": [],
        "emails": [],
        "time_real": round(seconds, 6),
        "milter": {
            "add_headers": {name: value.strip() for name, _, value in fields},
            "remove_headers": dict.fromkeys(forged, 0),
        },
    }


def format_rspamc(result: ScanResult, header: bytes) -> bytes:
    """The answer of protocol RSPAMC/1.3, as Exim's `variant=rspamd` reads it."""
    scores = f"{result.score:.2f} / {REQUIRED_SCORE:.2f} / {REQUIRED_SCORE:.2f}"
    lines = (
        "RSPAMD/1.3 0 EX_OK",
        f"Metric: default; {result.is_unwanted}; {scores}",
        f"Action: {action_name(result)}",
        f"Symbol: {result.symbol}({result.score:.2f})",
        f"Message-ID: {_message_id(header)}",
        "",
        "",
    )
    return "\r\n".join(lines).encode("ascii")


def _message_id(header: bytes) -> str:
    match = _MESSAGE_ID.search(header)
    return match[1].decode("ascii") if match else "undef"
