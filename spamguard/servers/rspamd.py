"""The rspamd door: HTTP/1.1 by h11, and the protocol before HTTP, which Exim still speaks.

`rspamd_protocol` has the values: what a client says of a message, and the answers. A request of the
old protocol differs in its first line and in the form of the answer.

Must never answer anything but an error to a request that did not come in whole, inflate more than a
message may have, or tell a client more about a fault than that there was one.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, closing, suppress
from http import HTTPStatus
from typing import Any, NamedTuple

import h11
import zstandard

from spamguard.aio import run_in_thread
from spamguard.config.options import FORGED_FIELDS
from spamguard.learning.lessons import TrainingOutcome
from spamguard.mail.message import matching_field_names, read_header_section
from spamguard.servers import rspamd_protocol
from spamguard.servers.listener import (
    ClientTimeout,
    ConnectionClosed,
    IncomingMessage,
    LimitExceeded,
    Rejection,
)
from spamguard.servers.rspamd_protocol import HeaderFields
from spamguard.servers.scanner import Conversation, ScannerContext
from spamguard.storage import Spool

_log = logging.getLogger("spamguard.doors")

_MAX_HEAD_BYTES = 64 << 10  # of the header section of a request
_MAX_WINDOW_BYTES = 8 << 20  # that decompression may look back (RFC 8878, section 3.1.1.1.2)
_DECOMPRESS_BYTES = 256  # that are decompressed at once: they hold 8 MiB at most
_RSPAMC_LINE = re.compile(rb"(?:CHECK|SYMBOLS|REPORT) RSPAMC/1\.[0-9]\r?\n")
_MAX_RSPAMC_LINE_BYTES = len(b"SYMBOLS RSPAMC/1.3\r\n")
# A web page may have made a browser on this machine send the request.
_BROWSER_FIELDS = frozenset((b"origin", b"sec-fetch-site"))
_COMPRESSION_FIELDS = (b"compression", b"content-encoding")
_ERROR_BY_REJECTION = {
    Rejection.TOO_LARGE: (413, "too large"),
    Rejection.TRY_LATER: (503, "try again later"),
}
_ANSWER_BY_OUTCOME: Mapping[TrainingOutcome, tuple[int, Mapping[str, Any]]] = {
    TrainingOutcome.ACCEPTED: (200, {"success": True}),
    TrainingOutcome.UNCHANGED: (208, {"success": True}),
    TrainingOutcome.FORBIDDEN: (
        403,
        {"error": "this client may not teach: a password is needed, or to be listed"},
    ),
    TrainingOutcome.IMPOSSIBLE: (400, {"error": "this can never be learnt"}),
    TrainingOutcome.TRY_LATER: (503, {"error": "try again later"}),
}


class _RspamdError(Exception):
    """A request is answered with an error. status: of HTTP; the text is in fixed words."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status


class _RspamdRequest(NamedTuple):
    """A request without its body. path: without the query."""

    path: str
    fields: HeaderFields

    @property
    def compressions(self) -> set[str]:
        names = {rspamd_protocol.field_text(self.fields, name) for name in _COMPRESSION_FIELDS}
        return {name.lower() for name in names} - {"", "identity"}


_RspamdAnswer = tuple[int, Mapping[str, Any] | bytes]
"""Status, and a JSON object, or bytes as they are."""


class RspamdSession(Conversation):
    """One client and its requests."""

    def __init__(self, context: ScannerContext, address: str) -> None:
        super().__init__(context, address)
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._is_rspamc = False

    async def reject(self, refused: LimitExceeded) -> None:
        if refused is LimitExceeded.NOT_LISTED:
            await self._fail(403, "not a client")
        else:
            await self._fail(503, "too many connections")

    async def handle_requests(self) -> None:
        """Answer requests for as long as the client keeps the connection."""
        while piece := await self.next_request():
            await self._handle_request(piece)
            states = {self._http.our_state, self._http.their_state}
            # What came together with the request is not answered.
            if states != {h11.DONE} or self.is_draining or self._http.trailing_data[0]:
                return
            self._http.start_next_cycle()

    async def _handle_request(self, first_piece: bytes) -> None:
        """Read one request and answer it; whatever happens, there is an answer."""
        try:
            self._http.receive_data(await self._translate_first_line(first_piece))
            await self._send_answer(*await self._answer())
        except _RspamdError as error:
            await self._fail(error.status, str(error))
        except h11.RemoteProtocolError as error:
            _log.info("%s: not understood: %s", self.address, error)
            await self._fail(error.error_status_hint, "not understood")
        except ClientTimeout:
            await self._fail(408, "too slow")
        except ConnectionClosed:
            raise
        except Exception:  # noqa: BLE001  a fault of ours: the client must keep its message
            _log.exception("%s: a fault in this request", self.address)
            await self._fail(500, "a fault, see the log")

    async def _translate_first_line(self, piece: bytes) -> bytes:
        """The beginning of a request, in HTTP: the old protocol has another first line only."""
        while len(piece) < _MAX_RSPAMC_LINE_BYTES and b"\n" not in piece:
            if not (more := await self.read_more()):
                break
            piece += more
        match = _RSPAMC_LINE.match(piece)
        self._is_rspamc = match is not None
        return b"POST /checkv2 HTTP/1.0\r\n" + piece[match.end() :] if match else piece

    async def _fail(self, status: int, error: str) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise ConnectionClosed  # in the middle of an answer
        self.client_may_send = True
        await self._send_answer(status, {"error": error})

    async def _answer(self) -> _RspamdAnswer:
        event = await self._next_event()
        if not isinstance(event, h11.Request):
            raise ConnectionClosed
        path = event.target.partition(b"?")[0].decode("ascii", "replace")
        request = _RspamdRequest(path, defaultdict(list))
        for name, value in event.headers:
            request.fields[name].append(value)
        _check_request(request, event.method)
        with ExitStack() as stack:
            message = stack.enter_context(closing(self._context.incoming_message(self.address)))
            await self._receive(message)
            if request.compressions:
                compressed = message.spool
                message = stack.enter_context(closing(self._context.incoming_message(self.address)))
                await run_in_thread(_decompress, compressed, message)
                _check_rejection(message)
            return await _ROUTES[path](self, request, message.spool)

    # ---- bytes and events

    async def _next_event(self) -> Any:
        """The next event of a request. h11.RemoteProtocolError."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                await self._write(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self.read_more())  # b"": the end of the connection
        return event

    async def _receive(self, message: IncomingMessage) -> None:
        while isinstance(event := await self._next_event(), h11.Data):
            message.write(bytes(event.data))
            _check_rejection(message)

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

    # ---- routes

    async def ping(self, _request: _RspamdRequest, _message: Spool) -> _RspamdAnswer:
        return 200, b"pong\r\n"

    async def check(self, request: _RspamdRequest, message: Spool) -> _RspamdAnswer:
        started = time.perf_counter()
        if not message.size:
            raise _RspamdError(400, "there is no message")
        result = await self._service.scan(
            rspamd_protocol.build_scan_request(request.fields, message, self.address)
        )
        header = read_header_section(message)
        if self._is_rspamc:
            return 200, rspamd_protocol.format_rspamc(result, header)
        forged = matching_field_names(header, FORGED_FIELDS)
        seconds = time.perf_counter() - started
        return 200, rspamd_protocol.format_check(result, header, forged, seconds)

    async def learn(self, request: _RspamdRequest, message: Spool) -> _RspamdAnswer:
        lesson = rspamd_protocol.build_scan_request(request.fields, message, self.address)
        lesson = lesson._replace(user=lesson.client.login or lesson.user)
        label = "spam" if request.path == "/learnspam" else "ham"
        password = rspamd_protocol.field_text(request.fields, b"password")
        outcome = await self._service.teach(lesson, label, password)
        return _ANSWER_BY_OUTCOME[outcome]


_ROUTES: Mapping[
    str, Callable[[RspamdSession, _RspamdRequest, Spool], Awaitable[_RspamdAnswer]]
] = {
    "/ping": RspamdSession.ping,
    "/checkv2": RspamdSession.check,
    "/learnspam": RspamdSession.learn,
    "/learnham": RspamdSession.learn,
}


def _check_request(request: _RspamdRequest, method: bytes) -> None:
    """_RspamdError for a request that is refused whatever its body is."""
    if request.path not in _ROUTES:
        raise _RspamdError(404, "no such thing here")
    if method not in (b"GET", b"POST"):
        raise _RspamdError(405, "GET or POST")
    if not _BROWSER_FIELDS.isdisjoint(request.fields):
        raise _RspamdError(403, "this is for programs")
    if request.compressions - {"zstd"}:
        raise _RspamdError(415, "unknown compression")


def _check_rejection(message: IncomingMessage) -> None:
    if message.rejection is not None:
        raise _RspamdError(*_ERROR_BY_REJECTION[message.rejection])


def _decompress(compressed: Spool, message: IncomingMessage) -> None:
    """Decompress a zstd frame (RFC 8878) in bounded pieces. _RspamdError: it is none."""
    with suppress(zstandard.ZstdError):
        frame = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj()
        for piece in compressed.chunks():
            for start in range(0, len(piece), _DECOMPRESS_BYTES):
                message.write(frame.decompress(piece[start : start + _DECOMPRESS_BYTES]))
                if message.rejection is not None:
                    return
        if frame.eof:
            return
    raise _RspamdError(400, "not compressed as announced")
