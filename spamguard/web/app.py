"""The web application, page and API together, and the server that runs it.

The application is FastAPI's, without its own pages, which load scripts of other hosts. Every
request passes `AccessMiddleware` first: host name, size, rate, visitor, number of requests at once,
and whether the request comes from a page of ours. Every answer gets security fields and one line in
the log. Whatever goes wrong, one handler answers: `show_error`. No error may leave in any other
form. No request from another site may change anything.

The server is uvicorn with limits. It must never wait for a header without limit, hold more than
`MAX_CONNECTIONS` requests, or keep an idle connection for long.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spamguard.config.options import Web
from spamguard.smtp.envelope import client_prefix
from spamguard.web import api, pages, requests, review  # noqa: F401  they register their views
from spamguard.web.auth import (
    AuthMethod,
    CredentialStore,
    Person,
    SessionManager,
    UnauthenticatedError,
    Visitor,
)
from spamguard.web.context import PageContext, page_routes, problem_page
from spamguard.web.mailer import Mailer
from spamguard.web.monitor import FewConnections, HealthReporter, plain_config
from spamguard.web.requests import (
    INTERNAL_DETAIL,
    PEER_ROOT,
    RateLimiter,
    RefusalError,
    RequestContext,
    RequestReader,
    check_rate,
    problem_from_error,
    problem_response,
)
from spamguard.web.service import Service

if TYPE_CHECKING:
    from spamguard.web.nodes import PeerDoor

_log = logging.getLogger("spamguard.web")

# These get no page, because the client may not be a browser that we want to serve.
_JSON_ONLY_STATUSES = (414, 421, 431)


def create_app(
    web: Web,
    spool: Path,
    service: Service,
    store: CredentialStore,
    monitor: HealthReporter,
    mailer: Mailer | None = None,
    peers: PeerDoor | None = None,
) -> FastAPI:
    """Put page and API together. spool: directory for uploaded messages. peers: other nodes."""
    operators = frozenset(web.proxy.operators if web.proxy else ())
    sessions = SessionManager(store, operators, peers.burn if peers else None)
    routes = page_routes(PageContext(service, monitor, sessions, mailer))
    app = FastAPI(
        routes=[*api.router.routes, *(peers.routes() if peers else ()), *routes],
        middleware=[Middleware(AccessMiddleware, web, sessions, spool, peers)],
        exception_handlers={HTTPException: show_error, RequestValidationError: show_error},
        redirect_slashes=False,
        openapi_url=None,  # and with it no page of FastAPI's own
    )
    app.state.service, app.state.monitor = service, monitor
    return app


async def show_error(request: Request, error: Exception) -> Response:
    """Tell of an error, to a program as JSON and to a person as a page."""
    if isinstance(error, RequestValidationError):
        error = api.value_refusal(request, error)
    problem = problem_from_error(error)
    if problem.status == 500:
        _log.error("a fault in answering %s", log_target(request.scope), exc_info=error)
    elif problem.detail == INTERNAL_DETAIL:
        _log.error("%s", error)
    path = request.url.path
    if path.startswith(("/api", PEER_ROOT)) or problem.status in _JSON_ONLY_STATUSES:
        return problem_response(problem)
    return problem_page(request, problem)


# ---- access

MAX_ADDRESS_REQUESTS_PER_MINUTE = 6000
MAX_REQUESTS = 64  # at once, of visitors
MAX_REQUESTS_PER_PERSON = 16  # at once, of a person who is not an operator
MAX_ANONYMOUS = 16  # at once, of clients that are not logged in
MAX_ANONYMOUS_PER_ADDRESS = 8
MAX_FAILURES_PER_MINUTE = 20  # wrong tokens from one address; then none is tried
FORM_OVERHEAD_BYTES = 256 << 10  # of a form, beside the message in it
_MAX_LOGIN_BYTES = 16 << 10  # of an anonymous request, which can only be a login
_LOGIN_SECONDS = 10.0
_CLIENT_CLOSED = 499  # in the log only: the client did not wait for the answer
_SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))


class AccessMiddleware:
    """Admits requests to the application. spool: directory for messages. peers: of nodes."""

    def __init__(
        self,
        app: ASGIApp,
        web: Web,
        sessions: SessionManager,
        spool: Path,
        peers: PeerDoor | None,
    ) -> None:
        self._app = app
        self._peers = peers
        self._reader = RequestReader(web)
        self._sessions = sessions
        self._state: dict[str, Any] = {
            "spool": spool,
            "visitor": None,
            "client": "",
            "secure": False,
            "root": "",
            "offers_links": bool(web.mail_from),
        }
        self._max_bytes = requests.MAX_MESSAGE_BYTES + FORM_OVERHEAD_BYTES
        self._address_rates = RateLimiter(MAX_ADDRESS_REQUESTS_PER_MINUTE)
        self._failure_rates = RateLimiter(MAX_FAILURES_PER_MINUTE)
        # Requests being answered, by person, or by address for anonymous clients.
        self._running = Counter[Person | str]()
        self._discards = asyncio.Semaphore(MAX_ANONYMOUS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope["state"] = state = self._state.copy()
        body = RequestBody(scope, receive, self._max_bytes, self._discards)
        answer = _LoggedResponse(scope, body, send)
        try:
            self._admit(scope)
            with self._count_request(state["visitor"], state["client"]):
                # FastAPI's routes know no HEAD. uvicorn takes the body off the answer.
                method = "GET" if scope["method"] == "HEAD" else scope["method"]
                await self._app({**scope, "method": method}, body.receive, answer.send)
        except ClientDisconnect:
            answer.status = _CLIENT_CLOSED
        except Exception as error:  # noqa: BLE001  no error may leave as it is
            response = await show_error(Request(scope), error)
            if answer.status == 0:
                await response(scope, body.receive, answer.send)
        finally:
            answer.log()

    def _admit(self, scope: Scope) -> None:
        """Check the head of a request. RefusalError, UnauthenticatedError, AccessError."""
        context = self._reader.read(scope)
        state = scope["state"]
        state["client"] = context.client
        state["secure"], state["root"] = context.secure, context.root_path
        now, prefix = time.monotonic(), client_prefix(context.client)
        try:
            if self._peers is not None and scope["path"].startswith(PEER_ROOT):
                # Nodes act for many people, whose rates the other node limits.
                state["visitor"] = self._peers.identify(scope, context)
                return
            check_rate(self._address_rates.take(prefix, now), "from this address")
            state["visitor"] = visitor = self._sessions.identify(context, int(time.time()))
        except UnauthenticatedError:
            # Only wrong tokens count: nobody can lock out others, and 256 bits cannot be guessed.
            check_rate(self._failure_rates.take(prefix, now), "with wrong tokens")
            raise
        if visitor is None or visitor.auth_method is not AuthMethod.TOKEN:
            _check_origin(scope, context, visitor)

    @contextmanager
    def _count_request(self, visitor: Visitor | None, client: str) -> Iterator[None]:
        """Keep room for visitors beside anonymous clients, and for each visitor beside others.

        RefusalError: there are too many requests at once.
        """
        key = visitor.person if visitor is not None else client_prefix(client)
        anonymous = sum(n for other, n in self._running.items() if isinstance(other, str))
        if isinstance(key, str):
            per_address = self._running[key] >= MAX_ANONYMOUS_PER_ADDRESS
            full = anonymous >= MAX_ANONYMOUS or per_address
        else:
            per_person = not key.operator and self._running[key] >= MAX_REQUESTS_PER_PERSON
            full = self._running.total() - anonymous >= MAX_REQUESTS or per_person
        if full:
            raise RefusalError(503, "too many requests at once", Retry_After="1")
        self._running[key] += 1
        try:
            yield
        finally:
            self._running -= Counter((key,))  # and no key with a count of zero remains


def _check_origin(scope: Scope, context: RequestContext, visitor: Visitor | None) -> None:
    """Refuse requests that another site makes a browser send, with our cookie or proxy password.

    Such a request must not change anything. It must not load anything either, except by following
    a link: the time that a search takes would tell whether it finds something.
    """
    if scope["method"] in _SAFE_METHODS:
        navigates = context.fields.get(b"sec-fetch-mode", b"navigate") == b"navigate"
        refused = visitor is not None and context.same_origin is False and not navigates
    else:
        refused = not context.same_origin if visitor else context.same_origin is False
    if refused:
        raise RefusalError(403, "this was not sent by a page of this server")


CHUNK_SECONDS = 20.0  # between two chunks of a body
BODY_SECONDS = 300.0  # for a whole body
# Unread bytes are read and dropped, because the peer's kernel would lose the answer otherwise.
_MAX_DISCARD_BYTES = 8 << 20
_DISCARD_SECONDS = 2.0


class RequestBody:
    """The body of a request, limited in size and time; more tightly before somebody logs in.

    discards: taken while unread bytes of an anonymous client are dropped. Without a free one its
    connection ends at once, so that those who are refused leave room for others.
    """

    def __init__(
        self, scope: Scope, receive: Receive, max_bytes: int, discards: asyncio.Semaphore
    ) -> None:
        self._state, self._discards = scope["state"], discards
        self._receive = receive
        self._max_bytes = max_bytes
        self._size = 0
        self._began = time.monotonic()
        fields = dict(scope["headers"])
        self._awaits_continue = fields.get(b"expect", b"").lower() == b"100-continue"
        self._declared = int(fields.get(b"content-length", b"0")[:20])
        self._more_expected = b"transfer-encoding" in fields or self._declared > 0

    async def receive(self) -> Message:
        """Receive a message (ASGI). RefusalError: the body is too large (413) or slow (408)."""
        anonymous = self._state["visitor"] is None
        limit = _MAX_LOGIN_BYTES if anonymous else self._max_bytes
        if self._declared > limit:  # however slowly they would come
            raise RefusalError(413, f"more than {limit:,} bytes")
        self._awaits_continue = False
        if not self._more_expected:  # only the end of the connection can follow, at any time
            return await self._receive()
        deadline = self._began + (_LOGIN_SECONDS if anonymous else BODY_SECONDS)
        wait = min(CHUNK_SECONDS, deadline - time.monotonic())
        try:
            message = await asyncio.wait_for(self._receive(), max(wait, 0.0))
        except TimeoutError:
            raise RefusalError(408, "the request did not arrive in time") from None
        self._size += self._count_bytes(message)
        if self._size > limit:
            raise RefusalError(413, f"more than {limit:,} bytes")
        return message

    async def drain(self) -> bool:
        """Drop unread bytes, within limits. Returns whether the whole body has been read."""
        if not self._more_expected or self._awaits_continue:
            return not self._more_expected
        if self._state["visitor"] is not None:
            return await self._discard()
        if self._discards.locked():
            return False
        async with self._discards:
            return await self._discard()

    async def _discard(self) -> bool:
        dropped = 0
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                while self._more_expected and dropped <= _MAX_DISCARD_BYTES:
                    dropped += self._count_bytes(await self._receive())
        except (TimeoutError, ClientDisconnect):
            return False
        return not self._more_expected

    def _count_bytes(self, message: Message) -> int:
        self._more_expected = message["type"] == "http.request" and message.get("more_body", False)
        return len(message.get("body", b""))


class _LoggedResponse:
    """One answer on its way out. status: 0 before it begins."""

    def __init__(self, scope: Scope, body: RequestBody, send: Send) -> None:
        self._scope, self._body, self._send = scope, body, send
        self._start_time = time.monotonic()
        self.status = 0

    async def send(self, message: Message) -> None:
        """Send a message (ASGI). If too much of the request is unread, the connection ends."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            fields = MutableHeaders(scope=message)
            for name, value in _SECURITY_FIELDS.items():
                fields.setdefault(name, value)
            if self._scope["scheme"] == "https":
                fields.setdefault("strict-transport-security", "max-age=31536000")
            if not await self._body.drain():
                fields["connection"] = "close"
        await self._send(message)

    def log(self) -> None:
        """Log one line without the query; 204 for debugging only, as open pages poll."""
        level = logging.DEBUG if self.status == 204 else logging.INFO
        duration = (time.monotonic() - self._start_time) * 1000
        state, target = self._scope["state"], log_target(self._scope)
        client, visitor = state["client"] or "-", state["visitor"]
        user = (visitor.person.name if visitor else "") or "-"
        _log.log(level, "%s %s %s %d %.0f ms", client, user, target, self.status, duration)


def log_target(scope: Scope) -> str:
    """Return method and path of a request, without its query, for the log."""
    return f"{scope['method'][:20]} {scope['path'][:200]}"


CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Pages load our own files and nothing else, and contain no script or style."""

_SECURITY_FIELDS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: with that, browsers say `Origin: null` of our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


# ---- the server

MAX_CONNECTIONS = 256
MAX_EVENT_BYTES = 64 << 10  # of a header; beyond `auth`'s own limit, whose answer is a problem
HEADER_SECONDS = 10.0  # for a whole header; twice that at most
IDLE_SECONDS = 8  # between two requests
WRITE_STALL_SECONDS = 30.0  # for a client that does not read its answer
DRAIN_SECONDS = 1  # to finish answers at the end


def server_config(
    app: FastAPI, listening: socket.socket, tls: ssl.SSLContext | None = None
) -> uvicorn.Config:
    """Say how uvicorn serves the application on a listening socket."""
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it writes about clients only
    # Connections inherit both options. asyncio forgets the first, and a body must not wait for
    # ACKs; uvicorn waits without limit for clients that do not read.
    stall = int(WRITE_STALL_SECONDS * 1000)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall)
    config = plain_config(
        app,
        http=_PageConnection,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        h11_max_incomplete_event_size=MAX_EVENT_BYTES,
    )
    config.load()
    config.ssl = tls  # uvicorn would read files; this one changes when there is a new certificate
    return config


class _PageConnection(FewConnections):
    """One connection, which ends when a header takes too long."""

    def watch(self, last_awaited: object) -> None:
        """Hang up if the same header was awaited last time. Each request has its own cycle."""
        awaited = (self.cycle,) if self.is_silent else None
        if awaited is not None and awaited == last_awaited:
            self.transport.abort()
        else:
            self.timer = self.loop.call_later(HEADER_SECONDS, self.watch, awaited)
