"""The rspamd door: HTTP/1.1 by h11, and the protocol before HTTP, which Exim still speaks.

A client describes a message in header fields of its request, and is answered in JSON
(docs.rspamd.com, "Protocol"). A request of the old protocol differs in its first line and in the
form of the answer. No library speaks the server's side of these.

It is a `Conversation` and no app on uvicorn, because uvicorn has no limit for a header section or
a silent client, no way to evict one, and no word of its own in the status line, which is all that
rspamc shows of an error. With these added, as tried, it was longer than this is.

Must never answer anything but an error to a request that did not come in whole, inflate more than a
message may have, or tell a client more about a fault than that there was one.
"""

from __future__ import annotations

import json
import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any

import h11
import zstandard

from spamguard.config.options import FORGED_FIELDS, Action
from spamguard.engine.policy import REQUIRED_SCORE
from spamguard.learning.lessons import TrainingOutcome
from spamguard.mail.message import matching_field_names, read_header_section
from spamguard.servers.listener import ConnectionClosed, Refusal
from spamguard.servers.scanner import (
    Conversation,
    ScanRequest,
    ScanResult,
    ScanService,
    parse_recipients,
)
from spamguard.smtp.envelope import MAX_ADDRESS_LENGTH, Client, RefusedError, bare_address
from spamguard.storage import Spool

_log = logging.getLogger("spamguard.doors")

_MAX_HEAD_BYTES = 64 << 10  # of the header section of a request
_MAX_WINDOW_BYTES = 8 << 20  # that decompression may look back (RFC 8878, section 3.1.1.1.2)
_DECOMPRESS_BYTES = 256  # that are decompressed at once: they hold 8 MiB at most
_RSPAMC_LINE = re.compile(rb"(?:CHECK|SYMBOLS|REPORT) RSPAMC/1\.[0-9]\r?\n")
_MAX_RSPAMC_LINE_BYTES = len(b"SYMBOLS RSPAMC/1.3\r\n")
# A web page may have made a browser on this machine send the request.
_BROWSER_FIELDS = frozenset((b"origin", b"sec-fetch-site"))
_PATHS = ("/ping", "/checkv2", "/learnspam", "/learnham")
_COMPRESSION_FIELDS = (b"compression", b"content-encoding")
_BAD_COMPRESSION = (400, "not compressed as announced")
# To most clients rspamd's "greylist" is a remark that changes nothing (its own milter, Haraka);
# a "soft reject" makes them defer the message.
_REFUSAL_ACTIONS = {Action.REJECT: "reject", Action.DEFER: "soft reject"}
_ANSWER_BY_OUTCOME: Mapping[TrainingOutcome, tuple[int, Mapping[str, Any]]] = {
    TrainingOutcome.ACCEPTED: (200, {"success": True}),
    TrainingOutcome.FORBIDDEN: (
        403,
        {"error": "this client may not teach: a password is needed, or to be listed"},
    ),
    TrainingOutcome.IMPOSSIBLE: (400, {"error": "this can never be learnt"}),
    TrainingOutcome.TRY_LATER: (503, {"error": "try again later"}),
}


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
    usual = "add header" if result.is_unwanted else "no action"
    return _REFUSAL_ACTIONS.get(result.action, usual)


def format_check(result: ScanResult, forged: Sequence[str]) -> dict[str, Any]:
    """The answer of /checkv2; the header fields of `forged` are to go."""
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
        "messages": {"smtp_message": refusal.text} if (refusal := result.refusal) else {},
        "urls": [],
        "emails": [],
        "milter": {
            "add_headers": {name: value.strip() for name, _, value in fields},
            "remove_headers": dict.fromkeys(forged, 0),
        },
    }


def format_rspamc(result: ScanResult) -> bytes:
    """The answer of protocol RSPAMC/1.3, as Exim's `variant=rspamd` reads it."""
    scores = f"{result.score:.2f} / {REQUIRED_SCORE:.2f} / {REQUIRED_SCORE:.2f}"
    lines = (
        "RSPAMD/1.3 0 EX_OK",
        f"Metric: default; {result.is_unwanted}; {scores}",
        f"Action: {action_name(result)}",
        f"Symbol: {result.symbol}({result.score:.2f})",
        "",
        "",
    )
    return "\r\n".join(lines).encode("ascii")


# ---- the session


class RspamdSession(Conversation):
    """One client and its requests."""

    _is_rspamc = False

    answers: Mapping[Refusal, tuple[int, str]] = {
        Refusal.NOT_LISTED: (403, "not a client"),
        Refusal.TOO_MANY: (503, "too many connections"),
        Refusal.TOO_LARGE: (413, "too large"),
        Refusal.NO_ROOM: (503, "try again later"),
        Refusal.TOO_SLOW: (408, "too slow"),
        Refusal.FAULT: (500, "a fault, see the log"),
    }

    def __init__(self, service: ScanService, address: str) -> None:
        super().__init__(service, address)
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)

    async def handle_requests(self) -> None:
        while piece := await self.next_request():
            await self.handle(self._answer_request(piece))
            states = {self._http.our_state, self._http.their_state}
            # What came together with the request is not answered.
            if states != {h11.DONE} or self.is_draining or self._http.trailing_data[0]:
                return
            self._http.start_next_cycle()

    async def refuse(self, answer: tuple[int, str]) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise ConnectionClosed  # in the middle of an answer
        self.client_may_send = True
        status, error = answer
        await self._send_answer(status, {"error": error})

    async def _answer_request(self, piece: bytes) -> None:
        # The old protocol has another first line only.
        while len(piece) < _MAX_RSPAMC_LINE_BYTES and b"\n" not in piece:
            if not (more := await self.read_more()):
                break
            piece += more
        if match := _RSPAMC_LINE.match(piece):
            self._is_rspamc = True
            piece = b"POST /checkv2 HTTP/1.0\r\n" + piece[match.end() :]
        self._http.receive_data(piece)
        event = await self._next_event()
        if not isinstance(event, h11.Request):
            raise ConnectionClosed
        path = event.target.partition(b"?")[0].decode("ascii", "replace")
        fields: dict[bytes, list[bytes]] = defaultdict(list)
        for name, value in event.headers:
            fields[name].append(value)
        is_compressed = _check_request(path, event.method, fields)
        frame = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj()
        with closing(self._service.incoming_message(self.address)) as message:
            while isinstance(event := await self._next_event(), h11.Data):
                data = bytes(event.data)
                for content in _decompress(frame, data) if is_compressed else (data,):
                    message.write(content)
                    self.check_message(message)
            if is_compressed and not frame.eof:
                raise RefusedError(_BAD_COMPRESSION)
            await self._send_answer(*await self._answer(path, fields, message.spool))

    async def _answer(
        self, path: str, fields: HeaderFields, message: Spool
    ) -> tuple[int, Mapping[str, Any] | bytes]:
        """Status, and a JSON object, or bytes as they are."""
        if path == "/ping":
            return 200, b"pong\r\n"
        request = build_scan_request(fields, message, self.address)
        if path != "/checkv2":
            request = request._replace(user=request.client.login or request.user)
            label, password = path.removeprefix("/learn"), field_text(fields, b"password")
            return _ANSWER_BY_OUTCOME[await self._service.teach(request, label, password)]
        if not message.size:
            raise RefusedError((400, "there is no message"))
        result = await self._service.scan(request)
        if self._is_rspamc:
            return 200, format_rspamc(result)
        forged = matching_field_names(read_header_section(message), FORGED_FIELDS)
        return 200, format_check(result, forged)

    # ---- bytes and events

    async def _next_event(self) -> Any:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    await self._write(h11.InformationalResponse(status_code=100, headers=[]))
                self._http.receive_data(await self.read_more())  # b"": the end of the connection
        except h11.RemoteProtocolError as error:
            _log.info("%s: not understood: %s", self.peer, error)
            raise RefusedError((error.error_status_hint, "not understood")) from None
        return event

    async def _send_answer(self, status: int, answer: Mapping[str, Any] | bytes) -> None:
        # rspamc ends by a signal without a reason, and shows it to its user.
        reason, kind, content = HTTPStatus(status).phrase, b"text/plain", answer
        if not isinstance(content, bytes):
            reason, kind = content.get("error", reason), b"application/json"
            content = json.dumps(content).encode("ascii")
        if self._is_rspamc:
            await self.send(content)
            self._http.send_failed()
            return
        headers = [(b"Content-Type", kind), (b"Content-Length", b"%d" % len(content))]
        if self.is_draining or self.client_may_send:
            headers.append((b"Connection", b"close"))
        await self._write(
            h11.Response(status_code=status, headers=headers, reason=reason.encode("ascii")),
            h11.Data(data=content),
            h11.EndOfMessage(),
        )

    async def _write(self, *events: Any) -> None:
        await self.send(b"".join(self._http.send(event) or b"" for event in events))


def _check_request(path: str, method: bytes, fields: HeaderFields) -> bool:
    """Whether its body is compressed; RefusedError if it is refused whatever its body is."""
    if path not in _PATHS:
        raise RefusedError((404, "no such thing here"))
    if method not in (b"GET", b"POST"):
        raise RefusedError((405, "GET or POST"))
    if not _BROWSER_FIELDS.isdisjoint(fields):
        raise RefusedError((403, "this is for programs"))
    named = {field_text(fields, name).lower() for name in _COMPRESSION_FIELDS}
    compressions = named - {"", "identity"}
    if compressions - {"zstd"}:
        raise RefusedError((415, "unknown compression"))
    return bool(compressions)


def _decompress(frame: Any, data: bytes) -> Iterator[bytes]:
    """The content of a zstd frame (RFC 8878), in bounded pieces; RefusedError if it is none."""
    for start in range(0, len(data), _DECOMPRESS_BYTES):
        try:
            yield frame.decompress(data[start : start + _DECOMPRESS_BYTES])
        except zstandard.ZstdError:
            raise RefusedError(_BAD_COMPRESSION) from None
