"""How requests are admitted, what is believed of them, and what is told when one fails.

Every request passes `AccessMiddleware` first: host name, size, rate, visitor, number of requests at
once, and whether the request comes from a page of ours. `RequestReader` reads its head, and
believes no more of it than it can check. Every answer gets security fields and one line in the log.
No request from another site may change anything: browsers say by `Sec-Fetch-Site` or `Origin` which
site has made them send it, so forms need no secret of their own.

`app` turns every error into a problem (RFC 9457), which is an HTTPException on its way. A problem
must never tell anything about the inside of the program: file names, SQL, tracebacks.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from starlette.datastructures import MutableHeaders, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request, cookie_parser
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spamguard import errors
from spamguard.config.options import Web, WebProxy
from spamguard.errors import SpamguardError
from spamguard.smtp.envelope import Networks, client_prefix, normalise_address
from spamguard.web.auth import Person, SessionManager, UnauthenticatedError, Visitor

if TYPE_CHECKING:
    from spamguard.web.nodes import PeerDoor

_log = logging.getLogger("spamguard.web")

# ---- problems

PROBLEM_JSON = "application/problem+json"
_RETRY = {"Retry-After": "2"}
MAX_MESSAGE_BYTES = 64 << 20


def problem_from_error(error: BaseException) -> HTTPException:
    """Make the problem that tells of an error; with its text only if that is for the visitor."""
    if isinstance(error, HTTPException):
        if error.detail == HTTPStatus(error.status_code).phrase:  # of the framework
            error.detail = _STATUS_DETAILS.get(error.status_code, "")
        return error
    for error_type, status, headers in _ERROR_STATUSES:
        if isinstance(error, error_type):
            return HTTPException(status, str(error), headers)
    if isinstance(error, SpamguardError | OSError):
        return HTTPException(503, INTERNAL_DETAIL, _RETRY)
    return HTTPException(500, "an error in the program: see its log")


INTERNAL_DETAIL = "the filter has a problem of its own: see its log"
"""Of errors of which the operator must hear, such as a full disk or a damaged file."""
_STATUS_DETAILS = {
    400: "the request is malformed",
    404: "there is nothing at this address",
    405: "this address does not take this method: see Allow",
    413: "a field of a form has at most 1 MB: choose a longer message as a file",
}
_ERROR_STATUSES: tuple[tuple[type[SpamguardError], int, dict[str, str]], ...] = (
    (UnauthenticatedError, 401, {"WWW-Authenticate": "Bearer"}),
    (errors.NotAllowedError, 403, {}),
    (errors.NotThereError, 404, {}),
    (errors.UsageError, 422, {}),
    (errors.BusyError, 503, _RETRY),
)


def problem_response(problem: HTTPException) -> JSONResponse:
    members = {
        "type": "about:blank",
        "title": HTTPStatus(problem.status_code).phrase,
        "status": problem.status_code,
        "detail": problem.detail,
    }
    return JSONResponse(members, problem.status_code, problem.headers, PROBLEM_JSON)


# ---- rates

_MAX_KEYS = 10_000


class RateLimiter:
    """Counts what each key takes in a period; all begin anew with the next, or beyond 10,000 keys.

    It is written by hand because slowapi's limits grow with the number of clients.
    """

    def __init__(self, per_period: int, period_seconds: float = 60.0) -> None:
        self._limit, self._seconds = per_period, period_seconds
        self._taken = Counter[Hashable]()
        self._ends_at = 0.0

    def take(self, key: Hashable, now: float) -> float:
        """Return 0, or the seconds until the key may take more.

        now: seconds of a monotonic clock.
        """
        if now >= self._ends_at or len(self._taken) > _MAX_KEYS:
            self._taken.clear()
            self._ends_at = now + self._seconds
        self._taken[key] += 1
        return 0.0 if self._taken[key] <= self._limit else self._ends_at - now


def check_rate(wait_seconds: float, source: str) -> None:
    if wait_seconds > 0:
        text = f"too many requests {source}: wait a little"
        raise HTTPException(429, text, {"Retry-After": str(int(wait_seconds) + 1)})


# ---- a request that was admitted

PEER_ROOT = "/peer/"
"""Below it other nodes ask (`nodes`), and nobody else does."""


def current_visitor(request: Request) -> Visitor | None:
    return cast("Visitor | None", request.scope["state"].get("visitor"))


def current_person(request: Request) -> Person:
    """Return the visitor's person. UnauthenticatedError: the request is anonymous."""
    visitor = current_visitor(request)
    if visitor is None:
        raise UnauthenticatedError("you need a one-time link or a token here")
    return visitor.person


def current_context(request: Request) -> RequestContext:
    return cast("RequestContext", request.scope["state"]["context"])


def root_path(request: Request) -> str:
    """Return the part of the path that a reverse proxy takes off, such as "/spam"; or ""."""
    return current_context(request).root_path


# ---- forms

_MAX_FORM_FIELDS = 60  # a list has 50 boxes
_MAX_FIELD_BYTES = 1 << 20  # of a field that is not a file, such as a pasted message


@asynccontextmanager
async def read_form_with_file(
    request: Request,
) -> AsyncIterator[tuple[Mapping[str, str], UploadFile | None]]:
    """Yield the texts of a form and its file, and close the file at the end.

    Number and size of the fields are limited, the file by the limit for messages. HTTPException:
    the body is not a form (400), or a field is too long (413).
    """
    content_type = request.headers.get("content-type", "").lower()
    # No browser names a charset, and some of Python's raise or take minutes for a field.
    if "multipart" in content_type and "charset" in content_type:
        raise HTTPException(400)
    try:
        form = await request.form(
            max_files=1, max_fields=_MAX_FORM_FIELDS, max_part_size=_MAX_FIELD_BYTES
        )
    except HTTPException as error:  # Starlette tells these apart by their texts only
        too_long = "exceeded maximum size" in error.detail
        raise HTTPException(413 if too_long else error.status_code) from error
    try:
        texts = {name: value for name, value in form.items() if isinstance(value, str)}
        yield texts, next((value for value in form.values() if isinstance(value, UploadFile)), None)
    finally:
        await form.close()


# ---- the cookie of a session

COOKIE = "spamguard"
# Browsers hide this cookie from other hosts and from connections without HTTPS (RFC 6265bis).
SECURE_COOKIE = "__Host-spamguard"
# The same on a host with other sites, all of which would get the cookie above.
SUBPATH_COOKIE = "__Secure-spamguard"


def set_session_cookie(request: Request, answer: Response, value: str, seconds: int) -> None:
    """SameSite is Lax so that links in mail lead to the logged-in page; forms need more anyway."""
    secure, root = current_context(request).secure, root_path(request)
    answer.set_cookie(
        _cookie_name(root, secure=secure),
        value,
        max_age=seconds,
        path=f"{root}/",
        secure=secure,
        httponly=True,
        samesite="lax",
    )


def _cookie_name(root: str, *, secure: bool) -> str:
    if not secure:
        return COOKIE
    return SUBPATH_COOKIE if root else SECURE_COOKIE


# ---- the head of a request

MAX_HEADER_BYTES = 16 << 10
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
_LOOPBACK_NETWORKS = Networks(("127.0.0.0/8", "::1/128"))
_MAX_FORWARDED = 20  # addresses of X-Forwarded-For
_SINGLE_FIELDS = (
    b"host",
    b"authorization",
    b"content-type",
    b"content-length",
    b"origin",
    b"sec-fetch-site",
)
_CLOSE = {"Connection": "close"}
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9.-]{1,253})(?::[0-9]{1,5})?")
_ORIGIN = re.compile(rb"(https?)://([^/]+)")


class RequestContext(NamedTuple):
    """What is believed of the head of a request.

    client: address, "" if unknown. user: as the reverse proxy names them. secure: over HTTPS.
    same_origin: whether a page of ours sent it; None if the browser does not say.
    """

    client: str
    user: str
    secure: bool
    same_origin: bool | None
    root_path: str
    fields: Mapping[bytes, bytes]

    def header(self, name: bytes) -> str:
        return self.fields.get(name, b"").decode("latin-1")

    @property
    def session_secret(self) -> str:
        name = _cookie_name(self.root_path, secure=self.secure)
        return cookie_parser(self.header(b"cookie")).get(name, "")


class RequestReader:
    """Reads the heads of requests as the settings say."""

    def __init__(self, web: Web) -> None:
        self._hosts = frozenset(web.hosts or (*_LOOPBACK_HOSTS, web.listen.host))
        self._proxy = web.proxy or WebProxy(())
        self._proxies = Networks(self._proxy.networks)
        self._is_open = web.tls is not None or web.listen.host in _LOOPBACK_NETWORKS

    def read(self, scope: Scope) -> RequestContext:
        """Read the head of a request.

        HTTPException: for another host (421), too long (431), contradictory (400), or past the
        reverse proxy (403).
        """
        raw_fields = scope["headers"]
        # Refuse a browser that somebody made use another name for us (DNS rebinding).
        hosts = [value for name, value in raw_fields if name == b"host"]
        match = _HOST.fullmatch(hosts[0].decode("latin-1").lower()) if len(hosts) == 1 else None
        if match is None or match[1].strip("[]").rstrip(".") not in self._hosts:
            raise HTTPException(
                421,
                "this server has other names: `web: {hosts: […]}` in the configuration lists them",
            )
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in raw_fields)
        if size > MAX_HEADER_BYTES:
            raise HTTPException(
                431, f"address and header have more than {MAX_HEADER_BYTES:,} bytes"
            )
        # A server in front of us may read these differently than we do, and may also see another
        # end of the request: nothing that follows on the connection is read (RFC 9112, 6.1).
        names = [name for name, _ in raw_fields]
        for name in _SINGLE_FIELDS:
            if names.count(name) > 1:
                raise HTTPException(400, f"the field {name.decode()} is there twice", _CLOSE)
        if b"transfer-encoding" in names and b"content-length" in names:
            raise HTTPException(400, "a length and chunks contradict each other", _CLOSE)
        fields: dict[bytes, bytes] = {}
        for name, value in raw_fields:
            separator = b"; " if name == b"cookie" else b", "
            fields[name] = fields[name] + separator + value if name in fields else value
        peer = _plain_address((scope.get("client") or ("",))[0])
        proxied = bool(peer) and peer in self._proxies
        if not (proxied or self._is_open or (peer and peer in _LOOPBACK_NETWORKS)):
            raise HTTPException(403, "use the address of the reverse proxy")
        secure, user, client = scope["scheme"] == "https", "", peer
        if proxied:
            secure = secure or fields.get(b"x-forwarded-proto", b"").lower() == b"https"
            user = self._proxy_user(fields)
            client = self._client_address(peer, fields.get(b"x-forwarded-for", b""))
        same_origin: bool | None = None
        if b"sec-fetch-site" in fields:
            # none: the person did it, as by restoring a tab. No page can make a browser say so.
            same_origin = fields[b"sec-fetch-site"] in (b"same-origin", b"none")
        elif b"origin" in fields:
            page = _ORIGIN.fullmatch(fields[b"origin"].lower())
            same_origin = (
                page is not None
                and page[2] == fields[b"host"].lower()
                # Where our page came over HTTPS, one that did not is not ours, whatever its name.
                and (page[1] == b"https" or not secure)
            )
        root = self._proxy.path if proxied else ""
        return RequestContext(client, user, secure, same_origin, root, fields)

    def _proxy_user(self, fields: Mapping[bytes, bytes]) -> str:
        if not self._proxy.user_header:
            return ""
        field = fields.get(self._proxy.user_header.lower().encode(), b"")
        name = field.decode("utf-8", "surrogateescape")  # which is not printable
        if not name.isprintable() or len(name) > 255 or "," in name:
            raise HTTPException(400, "the reverse proxy sent an impossible user name")
        return name

    def _client_address(self, peer: str, forwarded: bytes) -> str:
        """Find the last address that a trusted proxy wrote and that is not a trusted proxy."""
        for text in reversed(forwarded.decode("latin-1").split(",")[-_MAX_FORWARDED:]):
            address = _plain_address(text.strip())
            if not address:
                break
            if address not in self._proxies:
                return address
        return peer


def _plain_address(text: str) -> str:
    try:
        return normalise_address(text.strip("[]"))
    except ValueError:
        return ""


# ---- access

# At once; of them one person, or one address, may have a quarter.
MAX_REQUESTS = 64  # of visitors
MAX_ANONYMOUS = 32  # of clients that are not logged in
MAX_FAILURES_PER_MINUTE = 20  # wrong tokens from one address; then none is tried
FORM_OVERHEAD_BYTES = 256 << 10  # of a form, beside the message in it
_MAX_LOGIN_BYTES = 16 << 10  # of an anonymous request, which can only be a login
_LOGIN_SECONDS = 10.0
_CLIENT_CLOSED = 499  # in the log only: the client did not wait for the answer
_SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))


class AccessMiddleware:
    """Admits requests to the application.

    show_error: makes the answer that tells of an error. spool: directory for messages. peers: of
    nodes.
    """

    def __init__(
        self,
        app: ASGIApp,
        web: Web,
        sessions: SessionManager,
        show_error: Callable[[Request, Exception], Awaitable[Response]],
        spool: Path,
        peers: PeerDoor | None,
    ) -> None:
        self._app = app
        self._show_error = show_error
        self._peers = peers
        self._reader = RequestReader(web)
        self._sessions = sessions
        self._state: dict[str, Any] = {
            "spool": spool,
            "visitor": None,
            "context": RequestContext("", "", False, None, "", {}),
            "offers_links": bool(web.mail_from),
        }
        self._failure_rates = RateLimiter(MAX_FAILURES_PER_MINUTE)
        # Requests being answered, by person, and by address of anonymous clients.
        self._visitors, self._anonymous = Counter[str](), Counter[str]()
        self._discards = asyncio.Semaphore(MAX_ANONYMOUS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = state = self._state.copy()
        exchange = Exchange(scope, receive, send, self._discards)
        try:
            self._admit(scope)
            with self._count_request(state["visitor"], state["context"].client):
                # FastAPI's routes know no HEAD. uvicorn takes the body off the answer.
                method = "GET" if scope["method"] == "HEAD" else scope["method"]
                await self._app({**scope, "method": method}, exchange.receive, exchange.send)
        except ClientDisconnect:
            exchange.status = _CLIENT_CLOSED
        except Exception as error:  # noqa: BLE001  no error may leave as it is
            response = await self._show_error(Request(scope), error)
            if exchange.status == 0:
                await response(scope, exchange.receive, exchange.send)
        finally:
            exchange.log()

    def _admit(self, scope: Scope) -> None:
        context = self._reader.read(scope)
        state = scope["state"]
        state["context"] = context
        now, prefix = time.monotonic(), client_prefix(context.client)
        try:
            if self._peers is not None and scope["path"].startswith(PEER_ROOT):
                # Nodes act for many people, whose rates the other node limits.
                state["visitor"] = self._peers.identify(scope, context)
                return
            state["visitor"] = visitor = self._sessions.identify(context, int(time.time()))
        except UnauthenticatedError:
            # Only wrong tokens count: nobody can lock out others, and 256 bits cannot be guessed.
            check_rate(self._failure_rates.take(prefix, now), "with wrong tokens")
            raise
        # A request that another site makes a browser send, with our cookie or proxy password, must
        # not change anything. It must not load anything either, except by following a link: the
        # time that a search takes would tell whether it finds something.
        if scope["method"] in _SAFE_METHODS:
            navigates = context.fields.get(b"sec-fetch-mode", b"navigate") == b"navigate"
            refused = visitor is not None and context.same_origin is False and not navigates
        else:
            refused = not context.same_origin if visitor else context.same_origin is False
        if refused and not (visitor and visitor.by_token):
            raise HTTPException(403, "this was not sent by a page of this server")

    @contextmanager
    def _count_request(self, visitor: Visitor | None, client: str) -> Iterator[None]:
        """Keep room for visitors beside anonymous clients, and for each beside others.

        HTTPException: there are too many requests at once.
        """
        if visitor:
            key, running, most = visitor.person.name, self._visitors, MAX_REQUESTS
        else:
            key, running, most = client_prefix(client), self._anonymous, MAX_ANONYMOUS
        if running.total() >= most or running[key] >= most / 4:
            raise HTTPException(503, "too many requests at once", _RETRY)
        running[key] += 1
        try:
            yield
        finally:
            running -= Counter((key,))  # and no key with a count of zero remains


BODY_SECONDS = 300.0  # for a whole body
# Unread bytes are read and dropped, because the peer's kernel would lose the answer otherwise.
_DISCARD_SECONDS = 2.0


class Exchange:
    """One request and its answer.

    The body is limited in size and time; more tightly before somebody logs in. The answer gets
    security fields and a line in the log. status: of the answer, 0 before it begins. discards:
    taken while unread bytes are dropped.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, discards: asyncio.Semaphore
    ) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._state, self._discards = scope["state"], discards
        self._size, self._began = 0, time.monotonic()
        self.status = 0
        fields = dict(scope["headers"])
        self._awaits_continue = fields.get(b"expect", b"").lower() == b"100-continue"
        self._declared = int(fields.get(b"content-length", b"0")[:20])
        self._more_expected = b"transfer-encoding" in fields or self._declared > 0

    async def receive(self) -> Message:
        """Receive a message (ASGI). HTTPException: the body is too large (413) or slow (408)."""
        anonymous = self._state["visitor"] is None
        limit = _MAX_LOGIN_BYTES if anonymous else MAX_MESSAGE_BYTES + FORM_OVERHEAD_BYTES
        if self._declared > limit:  # however slowly they would come
            raise HTTPException(413, f"more than {limit:,} bytes")
        self._awaits_continue = False
        if not self._more_expected:  # only the end of the connection can follow, at any time
            return await self._receive()
        deadline = self._began + (_LOGIN_SECONDS if anonymous else BODY_SECONDS)
        try:
            wait = max(deadline - time.monotonic(), 0.0)
            message = await asyncio.wait_for(self._receive(), wait)
        except TimeoutError:
            raise HTTPException(408, "the request did not arrive in time") from None
        self._size += self._count_bytes(message)
        if self._size > limit:
            raise HTTPException(413, f"more than {limit:,} bytes")
        return message

    async def send(self, message: Message) -> None:
        """Send a message (ASGI). If too much of the request is unread, the connection ends."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            fields = MutableHeaders(scope=message)
            for name, value in _SECURITY_FIELDS.items():
                fields.setdefault(name, value)
            if self._scope["scheme"] == "https":
                fields.setdefault("strict-transport-security", "max-age=31536000")
            # Where many do this, the connection ends at once, so that there is room for others.
            if not self._awaits_continue and not self._discards.locked():
                await self._drop_unread()
            if self._more_expected:
                fields["connection"] = "close"
        await self._send(message)

    async def _drop_unread(self) -> None:
        with suppress(TimeoutError, ClientDisconnect):
            async with self._discards, asyncio.timeout(_DISCARD_SECONDS):
                while self._more_expected:
                    self._count_bytes(await self._receive())

    def _count_bytes(self, message: Message) -> int:
        self._more_expected = message["type"] == "http.request" and message.get("more_body", False)
        return len(message.get("body", b""))

    def log(self) -> None:
        """Log one line without the query; 204 for debugging only, as open pages poll."""
        level = logging.DEBUG if self.status == 204 else logging.INFO
        duration = (time.monotonic() - self._began) * 1000
        client, visitor = self._state["context"].client or "-", self._state["visitor"]
        user = (visitor.person.name if visitor else "") or "-"
        target = log_target(self._scope)
        _log.log(level, "%s %s %s %d %.0f ms", client, user, target, self.status, duration)


def log_target(scope: Scope) -> str:
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
