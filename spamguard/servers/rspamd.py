"""Many small chunks of a request made one large one before they are parsed (RFC 9112, section 7.1).
Pure.

Haraka sends every line of a message as a chunk of its own: 20 MB of short lines are a million of
them, at 18 µs each in h11, and by then Haraka has given up. Must never decide what is a well-formed
body: whatever is not the plainest of chunks goes on as it came.

One client of rspamd's protocol: HTTP/1.1 by h11, and the words of the protocol before it, which
Exim still speaks.

Must never answer anything but an error to what did not come in whole, never inflate more than a
message may have, and never tell a client more of a fault than that there was one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import h11
import zstandard

from spamguard import __version__
from spamguard.aio import run_in_thread
from spamguard.learning.lessons import TrainingOutcome
from spamguard.limits import LimitExceeded, quota_key
from spamguard.proxy import outgoing
from spamguard.proxy.scan import ScanResult, ScanService
from spamguard.servers import rspamd_protocol
from spamguard.servers.listener import (
    ClientTimeout,
    ConnectionClosed,
    Conversation,
    IncomingMessage,
    Rejection,
    ServerContext,
)
from spamguard.servers.rspamd_protocol import HeaderFields, RspamdStatistics
from spamguard.spool import Spool

_log = logging.getLogger("spamguard.doors")


_CHUNK_HEAD = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_MAX_CHUNK_HEAD_BYTES = len(b"ffffffff\r\n")
_LAST_CHUNK = re.compile(rb"0+\r\n")
_CHUNK_END = b"\r\n"


class ChunkMerger:
    """The body of one request, from its first byte on. Keeps a few bytes only."""

    def __init__(self) -> None:
        self._partial = b""  # of a chunk's head or end that has not come in whole
        self._remaining_bytes = 0  # bytes of the present chunk, its end included
        self._is_passthrough = False  # from here on

    def merge(self, data: bytes) -> bytes:
        """The same in fewer chunks; b"" while there is nothing to say. h11.RemoteProtocolError: a
        chunk does not end where it said.
        """
        if self._is_passthrough:
            return data
        data, self._partial = self._partial + data, b""
        pieces: list[bytes] = []
        position = 0
        while position < len(data) and not self._is_passthrough and not self._partial:
            position = (
                self._read_content(data, position, pieces)
                if self._remaining_bytes
                else self._begin_chunk(data, _take_whole_chunks(data, position, pieces))
            )
        content = b"".join(pieces)
        return (b"%x\r\n%b\r\n" % (len(content), content) if content else b"") + data[position:]

    def _begin_chunk(self, data: bytes, position: int) -> int:
        """Where the content of the chunk begins that begins here."""
        found = _CHUNK_HEAD.match(data, position)
        if found and not _LAST_CHUNK.match(data, position):
            self._remaining_bytes = int(found[1], 16) + len(_CHUNK_END)
            return found.end()
        if (
            found is None
            and len(data) - position < _MAX_CHUNK_HEAD_BYTES
            and b"\n" not in data[position:]
        ):
            self._partial = data[position:]
            return len(data)
        self._is_passthrough = True
        return position

    def _read_content(self, data: bytes, position: int, pieces: list[bytes]) -> int:
        """Where it ends, or what there is of it."""
        end = position + self._remaining_bytes
        if len(data) >= end:
            if data[end - len(_CHUNK_END) : end] != _CHUNK_END:
                raise h11.RemoteProtocolError("a chunk that does not end where it said")
            pieces.append(data[position : end - len(_CHUNK_END)])
            self._remaining_bytes = 0
            return end
        there = max(min(len(data), end - len(_CHUNK_END)), position)
        pieces.append(data[position:there])
        self._remaining_bytes -= there - position
        self._partial = data[there:]
        return len(data)


def _take_whole_chunks(data: bytes, position: int, pieces: list[bytes]) -> int:
    """Where chunks end that are there in whole. A tight loop: this is where the time goes."""
    while (found := _CHUNK_HEAD.match(data, position)) and (size := int(found[1], 16)):
        start = found.end()
        end = start + size
        if data[end : end + 2] != _CHUNK_END:
            break
        pieces.append(data[start:end])
        position = end + 2
    return position


_MAX_HEAD_BYTES = 64 << 10  # bytes of the header section of a request
_MAX_WINDOW_BYTES = 8 << 20  # bytes that unpacking may look back (RFC 8878, section 3.1.1.1.2)
_BROWSER_FIELDS = frozenset((b"origin", b"sec-fetch-site"))
_UNPACK_BYTES = 256  # bytes unpacked at a time: they hold 8 MiB at most
_LOCATION_FIELDS = frozenset(
    (b"shm", b"file", b"path")
)  # fields that say where the message is instead of sending it
_COMPRESSION_FIELDS = (b"compression", b"content-encoding")
_CHUNKS_PER_TURN = (
    50  # pieces of a request in a row before others get theirs: they may be of one byte each
)
_HEAD_END = re.compile(rb"\n\r?\n")  # as h11 sees it
_RSPAMC_LINE = re.compile(rb"(?:CHECK|SYMBOLS|REPORT) RSPAMC/1\.[0-9]\r?\n")
_MAX_RSPAMC_LINE_BYTES = len(b"SYMBOLS RSPAMC/1.3\r\n")
_FORBIDDEN = "this client may not teach: a password is needed, or to be listed"
_ERROR_BY_REJECTION = {
    Rejection.TOO_LARGE: (413, "too large"),
    Rejection.TRY_LATER: (503, "try again later"),
}
_ANSWER_BY_OUTCOME: Mapping[TrainingOutcome, tuple[int, Mapping[str, Any]]] = {
    TrainingOutcome.ACCEPTED: (200, {"success": True}),
    TrainingOutcome.UNCHANGED: (208, {"success": True}),
    TrainingOutcome.FORBIDDEN: (403, {"error": _FORBIDDEN}),
    TrainingOutcome.IMPOSSIBLE: (400, {"error": "this can never be learnt"}),
    TrainingOutcome.TRY_LATER: (503, {"error": "try again later"}),
}


class _RspamdError(Exception):  # noqa: N818, RUF100
    """A request that gets an error. status: of HTTP; args: the error in fixed words."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status


class _RspamdRequest(NamedTuple):
    """path: without what follows a question mark. old: of the protocol before HTTP."""

    path: str
    fields: HeaderFields
    is_rspamc: bool


class _RspamdAnswer(NamedTuple):
    """content: JSON, or bytes as they are."""

    status: int
    content: Mapping[str, Any] | bytes

    @property
    def reason(self) -> bytes:
        """The status in words, without which rspamc ends by a signal; what it shows is the error."""
        error = "" if isinstance(self.content, bytes) else self.content.get("error", "")
        return (error or HTTPStatus(self.status).phrase).encode("ascii")


class RspamdSession(Conversation):
    """One client. statistics: asked in a thread."""

    def __init__(
        self,
        statistics: Callable[[], RspamdStatistics],
        house: ServerContext,
        asking: ScanService,
        spool_directory: Path,
        address: str,
    ) -> None:
        super().__init__(house, address)
        self._scan_service = asking
        self._quota_key = quota_key(address, trusted=asking.trusts(address))
        self._spool_directory = spool_directory
        self._statistics = statistics
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._bytes_after_head = b""  # bytes of a request that are not to be parsed before its head
        self._chunk_merger: ChunkMerger | None = None
        self._is_rspamc = False
        self._head_only = False

    def rejection(self, refused: LimitExceeded) -> bytes:
        """One status for too many, another for who is not welcome."""
        too_many, not_listed = (
            ("503 Service Unavailable", "too many connections"),
            ("403 Forbidden", "not a client"),
        )
        status, about = not_listed if refused is LimitExceeded.NOT_LISTED else too_many
        body = json.dumps({"error": about})
        return f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode(
            "ascii"
        )

    async def handle_requests(self) -> None:
        """Request after request, for as long as the client keeps the connection."""
        while piece := await self.next_request():
            await self._handle_request(piece)
            while (
                self._http.our_state is h11.DONE
                and self._http.their_state is h11.DONE
                and not self.is_draining
            ):
                self._http.start_next_cycle()
                if not self._http.trailing_data[0]:
                    break
                await asyncio.sleep(0)  # others have their turn
                await self._handle_request()  # it was sent together with the one before
            if self._http.our_state is not h11.IDLE:
                return

    async def _translate_first_line(self, piece: bytes) -> bytes:
        """What begins a request; one of the protocol before HTTP has but another first line. piece:
        of it, as it came. Late.
        """
        while (
            len(piece) < _MAX_RSPAMC_LINE_BYTES
            and b"\n" not in piece
            and (more := await self.read_more())
        ):
            piece += more
        found = _RSPAMC_LINE.match(piece)
        self._is_rspamc = found is not None
        return b"POST /check HTTP/1.0\r\n" + piece[found.end() :] if found else piece

    async def _handle_request(self, begun: bytes = b"") -> None:
        """One request and its answer, which is an error whenever it cannot be another one. begun:
        of it, if it was not seen yet.
        """
        self._chunk_merger, self._head_only = None, False
        try:
            if begun:
                first = await self._translate_first_line(begun)
                end = found.end() if (found := _HEAD_END.search(first)) else len(first)
                self._bytes_after_head = first[end:]
                self._http.receive_data(first[:end])
            await self._send(await self._answer())
        except _RspamdError as refused:
            await self._fail(refused.status, str(refused))
        except h11.RemoteProtocolError as error:
            _log.info("%s: not understood: %s", self.address, error)
            await self._fail(error.error_status_hint, "not understood")
        except ClientTimeout:
            await self._fail(408, "too slow")
        except ConnectionClosed:
            raise
        except Exception:  # a fault of ours: the client is told, and keeps its message  # noqa: BLE001
            _log.exception("%s: a fault in this request", self.address)
            await self._fail(500, "a fault, see the log")

    async def _fail(self, status: int, error: str) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise ConnectionClosed  # in the middle of an answer
        self.close_after_reply()
        await self._send(_RspamdAnswer(status, {"error": error}))

    async def _answer(self) -> _RspamdAnswer:
        event = await self._next_event()
        if not isinstance(event, h11.Request):
            raise ConnectionClosed
        path = event.target.partition(b"?")[0].decode("ascii", "replace")
        request = _RspamdRequest(
            path, rspamd_protocol.collect_fields(event.headers), self._is_rspamc
        )
        self._head_only = event.method == b"HEAD"  # before anything can go wrong with what follows
        self._begin_body(request)
        await self._admit(request, event.method)
        with ExitStack() as stack:
            message = stack.enter_context(self._new_message())
            await self._receive(message)
            if _compressions(request):
                packed, message = message, stack.enter_context(self._new_message())
                await run_in_thread(partial(_decompress, packed.spool, message))
                _check_rejection(message)
            return await _ROUTES[path](self, request, message.spool)

    async def _admit(self, request: _RspamdRequest, method: bytes) -> None:
        """_Refused: nothing more of this request is wanted."""
        if request.path not in _ROUTES:
            raise _RspamdError(404, "no such thing here")
        if method not in (b"GET", b"HEAD", b"POST"):
            raise _RspamdError(405, "GET or POST")
        if not _BROWSER_FIELDS.isdisjoint(
            request.fields
        ):  # some page may have sent somebody's browser, which is on this machine
            raise _RspamdError(403, "this is for programs")
        if not _LOCATION_FIELDS.isdisjoint(request.fields):
            raise _RspamdError(400, "files and shared memory are not read: send the message")
        if _compressions(request) - {"zstd"}:
            raise _RspamdError(415, "unknown compression")
        if request.path in _LESSON_PATHS and not await self._may_teach(request):
            _log.warning("%s: wants to teach and may not", self.address)
            raise _RspamdError(403, _FORBIDDEN)

    def _new_message(self) -> closing[IncomingMessage]:
        return closing(
            IncomingMessage(
                self._spool_directory,
                self._context.limits,
                self._context.byte_quota,
                self._quota_key,
            )
        )

    async def _receive(self, message: IncomingMessage) -> None:
        pieces = 0
        while isinstance(event := await self._next_event(), h11.Data):
            message.write(bytes(event.data))
            _check_rejection(message)
            pieces += 1
            if pieces % _CHUNKS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _begin_body(self, request: _RspamdRequest) -> None:
        """h11.RemoteProtocolError."""
        behind, self._bytes_after_head = self._bytes_after_head, b""
        if request.fields.get(b"transfer-encoding") and not self._http.trailing_data[0]:
            self._chunk_merger = ChunkMerger()
        self._feed(behind)

    def _feed(self, data: bytes) -> None:
        """h11 takes nothing for the end of the connection. h11.RemoteProtocolError."""
        if data := self._chunk_merger.merge(data) if self._chunk_merger else data:
            self._http.receive_data(data)

    async def _next_event(self) -> Any:
        """What comes next of a request. h11.RemoteProtocolError."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                await self._write(h11.InformationalResponse(status_code=100, headers=[]))
            if data := await self.read_more():
                self._feed(data)
            else:
                self._http.receive_data(b"")
        return event

    async def _send(self, answer: _RspamdAnswer) -> None:
        content = (
            answer.content
            if isinstance(answer.content, bytes)
            else json.dumps(answer.content).encode("ascii")
        )
        if self._is_rspamc:
            await self.send(content)
            self._http.send_failed()
            return
        kind = b"text/plain" if isinstance(answer.content, bytes) else b"application/json"
        headers = [
            (b"Content-Type", kind),
            (b"Content-Length", b"%d" % len(content)),
            (b"Server", b"spamguard/" + __version__.encode()),
        ]
        if self.is_draining or self._client_may_send:
            headers.append((b"Connection", b"close"))
        head = h11.Response(status_code=answer.status, headers=headers, reason=answer.reason)
        body = [] if self._head_only else [h11.Data(data=content)]
        await self._write(head, *body, h11.EndOfMessage())

    async def _write(self, *events: Any) -> None:
        await self.send(b"".join(self._http.send(event) or b"" for event in events))

    # ---- what there is

    async def ping(self, _request: _RspamdRequest, _message: Spool) -> _RspamdAnswer:
        """Whether anybody is there."""
        return _RspamdAnswer(200, b"pong\r\n")

    async def check(self, request: _RspamdRequest, message: Spool) -> _RspamdAnswer:
        """A verdict."""
        begun = time.perf_counter()
        judged, header = await self._scan(request, message)
        if request.is_rspamc:
            return _RspamdAnswer(200, rspamd_protocol.format_rspamc(judged, header))
        policy = self._scan_service.scanner.policy
        if request.path != "/checkv2":
            return _RspamdAnswer(
                200,
                rspamd_protocol.format_check_v1(
                    judged, header, with_weights=policy.tell_probability
                ),
            )
        forged, seconds = (
            outgoing.matching_field_names(header, policy.forged),
            time.perf_counter() - begun,
        )
        return _RspamdAnswer(
            200,
            rspamd_protocol.format_check(
                judged, header, forged, seconds, with_weights=policy.tell_probability
            ),
        )

    async def _scan(self, request: _RspamdRequest, message: Spool) -> tuple[ScanResult, bytes]:
        if not message.size:
            raise _RspamdError(400, "there is no message")
        return await self._scan_service.scan(
            rspamd_protocol.build_scan_request(request.fields, message, self.address)
        ), outgoing.read_header_section(message)

    async def learn_spam(self, request: _RspamdRequest, message: Spool) -> _RspamdAnswer:
        """A lesson."""
        return await self._learn(request, message, "spam")

    async def learn_ham(self, request: _RspamdRequest, message: Spool) -> _RspamdAnswer:
        """Another."""
        return await self._learn(request, message, "ham")

    async def _learn(self, request: _RspamdRequest, message: Spool, label: str) -> _RspamdAnswer:
        asked = replace(
            rspamd_protocol.build_scan_request(request.fields, message, self.address),
            user=rspamd_protocol.lesson_user(request.fields),
        )
        return _RspamdAnswer(
            *_ANSWER_BY_OUTCOME[
                await self._scan_service.teach(
                    asked, label, rspamd_protocol.field_text(request.fields, b"password")
                )
            ]
        )

    async def stat(self, _request: _RspamdRequest, _message: Spool) -> _RspamdAnswer:
        """What was done."""
        return _RspamdAnswer(
            200, rspamd_protocol.format_statistics(await run_in_thread(self._statistics))
        )

    async def _may_teach(self, request: _RspamdRequest) -> bool:
        return await self._scan_service.may_teach(
            self.address, rspamd_protocol.field_text(request.fields, b"password")
        )

    async def auth(self, request: _RspamdRequest, _message: Spool) -> _RspamdAnswer:
        """Whether this client may teach, and since when we run: `rspamc uptime`."""
        may = await self._may_teach(request)
        found = await run_in_thread(self._statistics)
        return _RspamdAnswer(
            200, {"auth": "ok" if may else "failed", "version": __version__, "uptime": found.uptime}
        )


_ROUTES: Mapping[
    str, Callable[[RspamdSession, _RspamdRequest, Spool], Awaitable[_RspamdAnswer]]
] = {
    "/ping": RspamdSession.ping,
    "/checkv2": RspamdSession.check,
    "/check": RspamdSession.check,
    "/symbols": RspamdSession.check,
    "/learnspam": RspamdSession.learn_spam,
    "/learnham": RspamdSession.learn_ham,
    "/stat": RspamdSession.stat,
    "/auth": RspamdSession.auth,
}
_LESSON_PATHS = ("/learnspam", "/learnham")


def _compressions(request: _RspamdRequest) -> set[str]:
    """How the message is packed."""
    return {
        rspamd_protocol.field_text(request.fields, name).lower() for name in _COMPRESSION_FIELDS
    } - {"", "identity"}


def _check_rejection(message: IncomingMessage) -> None:
    if message.rejection is not None:
        raise _RspamdError(*_ERROR_BY_REJECTION[message.rejection])


def _decompress(packed: Spool, message: IncomingMessage) -> None:
    """A zstd frame (RFC 8878), some bytes at a time. _Refused: it is none."""
    try:
        unpacking = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj()
        for piece in packed.chunks():
            for start in range(0, len(piece), _UNPACK_BYTES):
                message.write(unpacking.decompress(piece[start : start + _UNPACK_BYTES]))
                if message.rejection is not None:
                    return
    except zstandard.ZstdError:
        raise _RspamdError(400, "not compressed as was said") from None
    if not unpacking.eof:
        raise _RspamdError(400, "not compressed as was said")
