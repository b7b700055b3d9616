"""One client of rspamd's protocol: HTTP/1.1 by h11, and the words of the protocol before it, which Exim still speaks.

Must never answer anything but an error to what did not come in whole, never inflate more than a message may have, and never tell a
client more of a fault than that there was one.
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
from spamguard.doors.rspamd import answers, questions
from spamguard.doors.rspamd.answers import Statistics
from spamguard.doors.rspamd.chunks import Chunks
from spamguard.doors.rspamd.questions import Fields
from spamguard.proxy import heads
from spamguard.proxy.asking import Asking, Judged
from spamguard.proxy.lessons import Taught
from spamguard.reception.arriving import Arriving, NoRoom
from spamguard.reception.clients import Crowd, sharer
from spamguard.reception.conversation import Conversation, Gone, House, Late
from spamguard.relay.threads import finished
from spamguard.spool import Spool

_LONGEST_HEAD = 64 << 10  # bytes of the header section of a request
_WINDOW = 8 << 20  # bytes that unpacking may look back (RFC 8878, section 3.1.1.1.2)
_FROM_BROWSERS = frozenset((b"origin", b"sec-fetch-site"))
_LITTLE = 256  # bytes unpacked at a time: they hold 8 MiB at most
_ELSEWHERE = frozenset((b"shm", b"file", b"path"))  # fields that say where the message is instead of sending it
_PACKINGS = (b"compression", b"content-encoding")
_TURN = 50  # pieces of a request in a row before others get theirs: they may be of one byte each
_HEAD_END = re.compile(rb"\n\r?\n")  # as h11 sees it
_BEFORE_HTTP = re.compile(rb"(?:CHECK|SYMBOLS|REPORT) RSPAMC/1\.[0-9]\r?\n")
_LONGEST_BEFORE_HTTP = len(b"SYMBOLS RSPAMC/1.3\r\n")
_FORBIDDEN = "this client may not teach: a password is needed, or to be listed"
_NO_ROOM = {NoRoom.TOO_LARGE: (413, "too large"), NoRoom.NOT_NOW: (503, "try again later")}
_TAUGHT: Mapping[Taught, tuple[int, Mapping[str, Any]]] = {
    Taught.LEARNT: (200, {"success": True}),
    Taught.KNOWN: (208, {"success": True}),
    Taught.FORBIDDEN: (403, {"error": _FORBIDDEN}),
    Taught.IMPOSSIBLE: (400, {"error": "this can never be learnt"}),
    Taught.LATER: (503, {"error": "try again later"}),
}

_log = logging.getLogger("spamguard.doors")


class _Refused(Exception):  # noqa: N818  # an answer
    """A request that gets an error. status: of HTTP; args: the error in fixed words."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status


class _Request(NamedTuple):
    """path: without what follows a question mark. old: of the protocol before HTTP."""

    path: str
    fields: Fields
    old: bool


class _Answer(NamedTuple):
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

    def __init__(self, statistics: Callable[[], Statistics], house: House, asking: Asking, spool_directory: Path, address: str) -> None:
        super().__init__(house, address)
        self._asking = asking
        self._sharer = sharer(address, trusted=asking.trusts(address))
        self._spool_directory = spool_directory
        self._statistics = statistics
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_LONGEST_HEAD)
        self._behind_head = b""  # bytes of a request that are not to be parsed before its head
        self._chunks: Chunks | None = None
        self._old = False
        self._head_only = False

    def turned_away(self, refused: Crowd) -> bytes:
        """One status for too many, another for who is not welcome."""
        too_many, not_listed = ("503 Service Unavailable", "too many connections"), ("403 Forbidden", "not a client")
        status, about = not_listed if refused is Crowd.NOT_LISTED else too_many
        body = json.dumps({"error": about})
        return f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode("ascii")

    async def converse(self) -> None:
        """Request after request, for as long as the client keeps the connection."""
        while piece := await self.next():
            await self._exchange(piece)
            while self._http.our_state is h11.DONE and self._http.their_state is h11.DONE and not self.draining:
                self._http.start_next_cycle()
                if not self._http.trailing_data[0]:
                    break
                await asyncio.sleep(0)  # others have their turn
                await self._exchange()  # it was sent together with the one before
            if self._http.our_state is not h11.IDLE:
                return

    async def _first(self, piece: bytes) -> bytes:
        """What begins a request; one of the protocol before HTTP has but another first line. piece: of it, as it came. Late."""
        while len(piece) < _LONGEST_BEFORE_HTTP and b"\n" not in piece and (more := await self.more()):
            piece += more
        found = _BEFORE_HTTP.match(piece)
        self._old = found is not None
        return b"POST /check HTTP/1.0\r\n" + piece[found.end() :] if found else piece

    async def _exchange(self, begun: bytes = b"") -> None:
        """One request and its answer, which is an error whenever it cannot be another one. begun: of it, if it was not seen yet."""
        self._chunks, self._head_only = None, False
        try:
            if begun:
                first = await self._first(begun)
                end = found.end() if (found := _HEAD_END.search(first)) else len(first)
                self._behind_head = first[end:]
                self._http.receive_data(first[:end])
            await self._send(await self._answered())
        except _Refused as refused:
            await self._fail(refused.status, str(refused))
        except h11.RemoteProtocolError as error:
            _log.info("%s: not understood: %s", self.address, error)
            await self._fail(error.error_status_hint, "not understood")
        except Late:
            await self._fail(408, "too slow")
        except Gone:
            raise
        except Exception:  # a fault of ours: the client is told, and keeps its message  # noqa: BLE001
            _log.exception("%s: a fault in this request", self.address)
            await self._fail(500, "a fault, see the log")

    async def _fail(self, status: int, error: str) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise Gone  # in the middle of an answer
        self.leave_while_sending()
        await self._send(_Answer(status, {"error": error}))

    async def _answered(self) -> _Answer:
        event = await self._event()
        if not isinstance(event, h11.Request):
            raise Gone
        path = event.target.partition(b"?")[0].decode("ascii", "replace")
        request = _Request(path, questions.fields(event.headers), self._old)
        self._head_only = event.method == b"HEAD"  # before anything can go wrong with what follows
        self._body_begins(request)
        await self._admit(request, event.method)
        with ExitStack() as stack:
            message = stack.enter_context(self._arriving())
            await self._receive(message)
            if _packing(request):
                packed, message = message, stack.enter_context(self._arriving())
                await finished(partial(_unpack, packed.spool, message))
                _check(message)
            return await _PAGES[path](self, request, message.spool)

    async def _admit(self, request: _Request, method: bytes) -> None:
        """_Refused: nothing more of this request is wanted."""
        if request.path not in _PAGES:
            raise _Refused(404, "no such thing here")
        if method not in (b"GET", b"HEAD", b"POST"):
            raise _Refused(405, "GET or POST")
        if not _FROM_BROWSERS.isdisjoint(request.fields):  # some page may have sent somebody's browser, which is on this machine
            raise _Refused(403, "this is for programs")
        if not _ELSEWHERE.isdisjoint(request.fields):
            raise _Refused(400, "files and shared memory are not read: send the message")
        if _packing(request) - {"zstd"}:
            raise _Refused(415, "unknown compression")
        if request.path in _LESSONS and not await self._may_teach(request):
            _log.warning("%s: wants to teach and may not", self.address)
            raise _Refused(403, _FORBIDDEN)

    def _arriving(self) -> closing[Arriving]:
        return closing(Arriving(self._spool_directory, self._house.limits, self._house.load, self._sharer))

    async def _receive(self, message: Arriving) -> None:
        pieces = 0
        while isinstance(event := await self._event(), h11.Data):
            message.write(bytes(event.data))
            _check(message)
            pieces += 1
            if pieces % _TURN == 0:
                await asyncio.sleep(0)

    def _body_begins(self, request: _Request) -> None:
        """h11.RemoteProtocolError."""
        behind, self._behind_head = self._behind_head, b""
        if request.fields.get(b"transfer-encoding") and not self._http.trailing_data[0]:
            self._chunks = Chunks()
        self._feed(behind)

    def _feed(self, data: bytes) -> None:
        """h11 takes nothing for the end of the connection. h11.RemoteProtocolError."""
        if data := self._chunks.merged(data) if self._chunks else data:
            self._http.receive_data(data)

    async def _event(self) -> Any:
        """What comes next of a request. h11.RemoteProtocolError."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                await self._write(h11.InformationalResponse(status_code=100, headers=[]))
            if data := await self.more():
                self._feed(data)
            else:
                self._http.receive_data(b"")
        return event

    async def _send(self, answer: _Answer) -> None:
        content = answer.content if isinstance(answer.content, bytes) else json.dumps(answer.content).encode("ascii")
        if self._old:
            await self.say(content)
            self._http.send_failed()
            return
        kind = b"text/plain" if isinstance(answer.content, bytes) else b"application/json"
        headers = [(b"Content-Type", kind), (b"Content-Length", b"%d" % len(content)), (b"Server", b"spamguard/" + __version__.encode())]
        if self.draining or self._sending:
            headers.append((b"Connection", b"close"))
        head = h11.Response(status_code=answer.status, headers=headers, reason=answer.reason)
        body = [] if self._head_only else [h11.Data(data=content)]
        await self._write(head, *body, h11.EndOfMessage())

    async def _write(self, *events: Any) -> None:
        await self.say(b"".join(self._http.send(event) or b"" for event in events))

    # ---- what there is

    async def ping(self, _request: _Request, _message: Spool) -> _Answer:
        """Whether anybody is there."""
        return _Answer(200, b"pong\r\n")

    async def check(self, request: _Request, message: Spool) -> _Answer:
        """A verdict."""
        begun = time.perf_counter()
        judged, header = await self._judged(request, message)
        if request.old:
            return _Answer(200, answers.before_http(judged, header))
        policy = self._asking.scanner.policy
        if request.path != "/checkv2":
            return _Answer(200, answers.check_v1(judged, header, tell_parts=policy.tell_probability))
        forged, seconds = heads.named(header, policy.forged), time.perf_counter() - begun
        return _Answer(200, answers.check(judged, header, forged, seconds, tell_parts=policy.tell_probability))

    async def _judged(self, request: _Request, message: Spool) -> tuple[Judged, bytes]:
        if not message.size:
            raise _Refused(400, "there is no message")
        return await self._asking.judge(questions.question(request.fields, message, self.address)), heads.header(message)

    async def learn_spam(self, request: _Request, message: Spool) -> _Answer:
        """A lesson."""
        return await self._learn(request, message, "spam")

    async def learn_ham(self, request: _Request, message: Spool) -> _Answer:
        """Another."""
        return await self._learn(request, message, "ham")

    async def _learn(self, request: _Request, message: Spool, label: str) -> _Answer:
        asked = replace(questions.question(request.fields, message, self.address), user=questions.learner(request.fields))
        return _Answer(*_TAUGHT[await self._asking.teach(asked, label, questions.text(request.fields, b"password"))])

    async def stat(self, _request: _Request, _message: Spool) -> _Answer:
        """What was done."""
        return _Answer(200, answers.statistics(await finished(self._statistics)))

    async def _may_teach(self, request: _Request) -> bool:
        return await self._asking.may_teach(self.address, questions.text(request.fields, b"password"))

    async def auth(self, request: _Request, _message: Spool) -> _Answer:
        """Whether this client may teach, and since when we run: `rspamc uptime`."""
        may = await self._may_teach(request)
        found = await finished(self._statistics)
        return _Answer(200, {"auth": "ok" if may else "failed", "version": __version__, "uptime": found.uptime})


_PAGES: Mapping[str, Callable[[RspamdSession, _Request, Spool], Awaitable[_Answer]]] = {
    "/ping": RspamdSession.ping,
    "/checkv2": RspamdSession.check,
    "/check": RspamdSession.check,
    "/symbols": RspamdSession.check,
    "/learnspam": RspamdSession.learn_spam,
    "/learnham": RspamdSession.learn_ham,
    "/stat": RspamdSession.stat,
    "/auth": RspamdSession.auth,
}
_LESSONS = ("/learnspam", "/learnham")


def _packing(request: _Request) -> set[str]:
    """How the message is packed."""
    return {questions.text(request.fields, name).lower() for name in _PACKINGS} - {"", "identity"}


def _check(message: Arriving) -> None:
    if message.refused is not None:
        raise _Refused(*_NO_ROOM[message.refused])


def _unpack(packed: Spool, message: Arriving) -> None:
    """A zstd frame (RFC 8878), some bytes at a time. _Refused: it is none."""
    try:
        unpacking = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
        for piece in packed.chunks():
            for start in range(0, len(piece), _LITTLE):
                message.write(unpacking.decompress(piece[start : start + _LITTLE]))
                if message.refused is not None:
                    return
    except zstandard.ZstdError:
        raise _Refused(400, "not compressed as was said") from None
    if not unpacking.eof:
        raise _Refused(400, "not compressed as was said")
