"""What every request passes on its way in and every answer on its way out (ASGI): the first to see a request, the last to see an answer.

In: its name for us, its size, its rate, who asks, whether it comes from a page of ours. Out: fields for security, one line in the log.
Must never let an error of ours out in any other form than `show` gives it, nor a request change something that a stranger's page sent.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spamguard.reception.clients import neighbourhood
from spamguard.settings import Web
from spamguard.web.access import fields, problems
from spamguard.web.access.asking import SAFE_METHODS, Asking, Reader
from spamguard.web.access.body import Body
from spamguard.web.access.contract import NobodyError, Problem, Visitor, Way
from spamguard.web.access.door import Door
from spamguard.web.access.problems import refusal
from spamguard.web.access.rates import Rates
from spamguard.web.service.values import Person

AT_ONCE = 64  # requests being answered,
AT_ONCE_OF_ONE = 16  # those of one person who is no operator,
NOBODIES = 16  # and those of who has not shown who it is,
NOBODIES_OF_ONE = 8  # of one address
FAILURES_PER_MINUTE = 20  # of one address, whose further ones are not looked at
FORM_BYTES = 256 << 10  # beside the message in a form
_LOGIN_BYTES = 16 << 10  # of what nobody sends: a link to be burnt
_LOGIN_SECONDS = 10.0
_GONE = 499  # in the log only: who asked did not wait
_NOTHING_NEW = 204
_METHOD, _PATH = 20, 200  # letters of them in the log

_log = logging.getLogger("spamguard.web")


class Guard:
    """inside: what answers. show: how a problem is told to who asked. spool: directory for messages."""

    def __init__(self, inside: ASGIApp, web: Web, door: Door, spool: Path, show: Callable[[Request, Problem], Response]) -> None:
        self._inside = inside
        self._reader = Reader(web)
        self._door = door
        self._spool = spool
        self._show = show
        self._most = web.limits.message_bytes + FORM_BYTES
        self._by_person = Rates(web.limits.requests_per_minute)
        self._by_address = Rates(web.limits.requests_per_minute_of_address)
        self._failures = Rates(FAILURES_PER_MINUTE)
        self._asking = Counter[Person | str]()  # who has requests being answered; an address: who has not shown who they are

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        scope["app"] = self._inside  # routes then raise what they cannot answer, instead of answering it themselves
        scope["state"] = {"spool": self._spool, "visitor": None, "secure": False, "root": ""}
        body = Body(scope, receive, self._most)
        answer = _Answer(scope, body, send)
        try:
            await self._answer(scope, body, answer)
        finally:
            answer.log()

    async def _answer(self, scope: Scope, body: Body, answer: _Answer) -> None:
        try:
            self._admit(scope, answer)
            with self._counted(scope["state"]["visitor"], answer.client, body):
                await self._inside(scope, body.receive, answer.send)
        except ClientDisconnect:
            answer.status = _GONE
        except Exception as error:  # whatever it is, it must not get out as it is  # noqa: BLE001
            told = problems.of(error)
            if told.status == 500:
                _log.exception("a fault in answering %s %s", scope["method"][:_METHOD], scope["path"][:_PATH])
            elif problems.is_ours(error):
                _log.error("%s", error)
            if answer.status == 0:
                await self._show(Request(scope), told)(scope, body.receive, answer.send)

    def _admit(self, scope: Scope, answer: _Answer) -> None:
        """Look at everything that can be told from the head of a request. RefusalError, NobodyError, AccessError."""
        asking = self._reader.read(scope)
        answer.client = asking.client
        scope["state"] |= {"secure": asking.secure, "root": asking.root}
        if scope["http_version"] not in ("1.0", "1.1"):
            raise refusal(505, "this is HTTP/1.1")
        now = time.monotonic()
        _refuse_rate(self._by_address.take(neighbourhood(asking.client), now), "of this address")
        found = self._visitor(asking, now)
        if found is not None:
            scope["state"]["visitor"], answer.who = found, found.person.name
            _refuse_rate(self._by_person.take((found.person.name, found.person.operator), now), "of this person")
        if scope["method"] not in SAFE_METHODS:
            _refuse_forged(scope, asking, found)
        elif found is not None and found.way is not Way.TOKEN:
            _refuse_parts(asking)
        length = asking.text(b"content-length")
        if found is not None and length.isdecimal() and int(length[:20]) > self._most:
            raise refusal(413, f"more than {self._most:,} bytes")

    @contextmanager
    def _counted(self, found: Visitor | None, client: str, body: Body) -> Iterator[None]:
        """Nobody takes the place of those who have shown who they are, nor one of these all places, however slowly they send.
        RefusalError: too many at once."""
        who = found.person if found is not None else neighbourhood(client)
        if self._too_many(who):
            raise refusal(503, "too many requests at once", Retry_After="1")
        if isinstance(who, str):
            body.keep_short(_LOGIN_BYTES, _LOGIN_SECONDS)
        self._asking[who] += 1
        try:
            yield
        finally:
            self._asking[who] -= 1
            if not self._asking[who]:
                del self._asking[who]

    def _too_many(self, who: Person | str) -> bool:
        nobodies = sum(count for one, count in self._asking.items() if isinstance(one, str))
        if isinstance(who, str):
            return nobodies >= NOBODIES or self._asking[who] >= NOBODIES_OF_ONE
        return self._asking.total() - nobodies >= AT_ONCE or (not who.operator and self._asking[who] >= AT_ONCE_OF_ONE)

    def _visitor(self, asking: Asking, now: float) -> Visitor | None:
        """A right token is taken whatever others have tried from there: nobody is to lock anybody out, and nobody guesses 256 bits."""
        try:
            return self._door.visitor(asking, int(time.time()))
        except NobodyError:
            _refuse_rate(self._failures.take(neighbourhood(asking.client), now), "with wrong tokens")
            raise


def _refuse_rate(seconds: float, whose: str) -> None:
    if seconds > 0:
        raise refusal(429, f"too many requests {whose}: wait a little", Retry_After=str(int(seconds) + 1))


def _refuse_forged(scope: Scope, asking: Asking, found: Visitor | None) -> None:
    """What a stranger's page makes a browser send carries our cookies, and the proxy's password: it must not change anything."""
    if found is not None and found.way is Way.TOKEN:
        return
    if asking.own is False or (asking.own is None and found is not None):
        raise refusal(403, "this was not sent by a page of this server")
    if found is not None and scope["path"].startswith("/api/"):  # pages look for it in their forms (`contract.posted`)
        given = asking.text(b"x-csrf-token")
        if not hmac.compare_digest(given.encode("latin-1"), found.form_token.encode()):
            raise refusal(403, "without a token, the field X-CSRF-Token is needed")


def _refuse_parts(asking: Asking) -> None:
    """What a stranger's page loads without showing it: it cannot read that, but how long a search takes tells whether anything is found.
    Links to us are followed (Fetch, Sec-Fetch-Mode)."""
    if asking.own is False and asking.fields.get(b"sec-fetch-mode", b"navigate") != b"navigate":
        raise refusal(403, "pages of others cannot load this")


class _Answer:
    """One answer as it goes out. body: of its request. status: 0 until it has begun. who: "" for nobody."""

    def __init__(self, scope: Scope, body: Body, send: Send) -> None:
        self._scope = scope
        self._body = body
        self._send = send
        self._began = time.monotonic()
        self.status = 0
        self.who = self.client = ""

    async def send(self, message: Message) -> None:
        """What ASGI calls send. What was not read of the request is thrown away, within bounds; beyond them, the connection ends."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            more = fields.completed(message.get("headers", ()), time.time(), secure=self._scope["scheme"] == "https")
            if not await self._body.finish():
                more = [*more, (b"connection", b"close")]
            message = {**message, "headers": more}
        await self._send(message)

    def log(self) -> None:
        """One line, without what was asked for in particular; what found nothing new is asked every three seconds by each open page."""
        milliseconds = (time.monotonic() - self._began) * 1000
        what = f"{self._scope['method'][:_METHOD]} {self._scope['path'][:_PATH]}"
        level = logging.DEBUG if self.status == _NOTHING_NEW else logging.INFO
        _log.log(level, "%s %s %s %d %.0f ms", self.client or "-", self.who or "-", what, self.status, milliseconds)
