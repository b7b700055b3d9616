"""What the server believes of a request, and what it tells when one fails.

`RequestReader` reads the head of each request and believes no more of it than it can check. Views
read forms with `read_form` or `read_form_with_file`, which check that the form is ours.

Raise an error of `spamguard.errors`, or a `RefusalError` with a status of your own: `app` turns
every error into a `Problem` (RFC 9457), and shows it as JSON or as a page. A problem must never
tell anything about the inside of the program: file names, SQL, tracebacks.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple, cast

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from spamguard import errors
from spamguard.config.options import Web, WebProxy
from spamguard.errors import SpamguardError
from spamguard.smtp.envelope import Networks, normalise_address
from spamguard.web.auth import Person, UnauthenticatedError, Visitor

# ---- problems

PROBLEM_JSON = "application/problem+json"
_RETRY = {"Retry-After": "2"}
MAX_MESSAGE_BYTES = 64 << 20


@dataclass(frozen=True)
class Problem:
    """What went wrong, for the visitor (RFC 9457). headers: for the answer."""

    status: int
    detail: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name of the status."""
        return HTTPStatus(self.status).phrase


class RefusalError(Exception):
    """Ends the handling of a request with a problem. headers: with _ in place of -."""

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        self.problem = Problem(status, detail, fields)


def problem_from_error(error: BaseException) -> Problem:
    """Make the problem that tells of an error; with its text only if that is for the visitor."""
    if isinstance(error, RefusalError):
        return error.problem
    if isinstance(error, HTTPException):
        detail = _STATUS_DETAILS.get(error.status_code, "")
        return Problem(error.status_code, detail, dict(error.headers or {}))
    for error_type, status, headers in _ERROR_STATUSES:
        if isinstance(error, error_type):
            return Problem(status, str(error), dict(headers))
    if isinstance(error, SpamguardError | OSError):
        return Problem(503, INTERNAL_DETAIL, dict(_RETRY))
    return Problem(500, "an error in the program: see its log")


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
    (errors.UnknownClassError, 422, {}),
    (errors.BusyError, 503, _RETRY),
)


def problem_response(problem: Problem) -> JSONResponse:
    """Write a problem for programs."""
    members = {
        "type": "about:blank",
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
    }
    return JSONResponse(members, problem.status, problem.headers, PROBLEM_JSON)


# ---- rates

_MAX_BUCKETS = 10_000


class RateLimiter:
    """A token bucket for each key, refilled steadily.

    Keys may use all tokens of a period at once. Beyond 10,000 buckets, the one that was unused for
    longest is dropped; it is full when its key comes back. It is written by hand because slowapi's
    limits grow with the number of clients.
    """

    def __init__(self, per_period: int, period_seconds: float = 60.0) -> None:
        self._capacity, self._period = float(per_period), period_seconds
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, key: Hashable, now: float) -> float:
        """Take a token and return 0, or return the seconds until there is one.

        now: seconds of a monotonic clock.
        """
        tokens, then = self._buckets.get(key, (self._capacity, now))
        refill = (now - then) * self._capacity / self._period
        tokens = min(self._capacity, tokens + refill)
        self._buckets[key] = (max(tokens - 1, 0.0) if tokens >= 1 else tokens, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return 0.0 if tokens >= 1 else (1 - tokens) * self._period / self._capacity


def check_rate(wait_seconds: float, source: str) -> None:
    """Raise RefusalError if there was no token. source: of the requests, for the visitor."""
    if wait_seconds > 0:
        text = f"too many requests {source}: wait a little"
        raise RefusalError(429, text, Retry_After=str(int(wait_seconds) + 1))


# ---- a request that was admitted

PEER_ROOT = "/peer/"
"""Below it other nodes ask (`nodes`), and nobody else does."""


def current_visitor(request: Request) -> Visitor | None:
    """Return the visitor, or None for an anonymous request."""
    return cast("Visitor | None", request.scope["state"].get("visitor"))


def current_person(request: Request) -> Person:
    """Return the visitor's person. UnauthenticatedError: the request is anonymous."""
    visitor = current_visitor(request)
    if visitor is None:
        raise UnauthenticatedError("you need a one-time link or a token here")
    return visitor.person


def root_path(request: Request) -> str:
    """Return the part of the path that a reverse proxy takes off, such as "/spam"; or ""."""
    return cast("str", request.scope["state"].get("root", ""))


# ---- forms

_MAX_FORM_FIELDS = 60  # a list has 50 boxes
_MAX_FIELD_BYTES = 1 << 20  # of a field that is not a file, such as a pasted message


async def read_form(request: Request) -> Mapping[str, str]:
    """Return the texts of a form by field name. Errors as of `read_form_with_file`."""
    async with read_form_with_file(request) as (texts, _):
        return texts


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
    secure, root = bool(request.scope["state"].get("secure")), root_path(request)
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
MAX_HEADER_FIELDS = 100
MAX_TARGET_BYTES = 8 << 10  # path and query
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
        """Return a header field, "" if there is none."""
        return self.fields.get(name, b"").decode("latin-1")

    @property
    def session_secret(self) -> str:
        """The value of our cookie, or ""."""
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

        RefusalError: for another host (421), too long (414, 431), contradictory (400), or past the
        reverse proxy (403).
        """
        raw_fields = scope["headers"]
        # Refuse a browser that somebody made use another name for us (DNS rebinding).
        hosts = [value for name, value in raw_fields if name == b"host"]
        match = _HOST.fullmatch(hosts[0].decode("latin-1").lower()) if len(hosts) == 1 else None
        if match is None or match[1].strip("[]").rstrip(".") not in self._hosts:
            raise RefusalError(
                421,
                "this server has other names: `web: {hosts: […]}` in the configuration lists them",
            )
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
            raise RefusalError(414, f"an address has at most {MAX_TARGET_BYTES >> 10} KiB")
        size = sum(len(name) + len(value) + 4 for name, value in raw_fields)
        if len(raw_fields) > MAX_HEADER_FIELDS or size > MAX_HEADER_BYTES:
            text = f"{MAX_HEADER_FIELDS} fields or {MAX_HEADER_BYTES >> 10} KiB"
            raise RefusalError(431, f"the header has more than {text}")
        # A server in front of us may read these differently than we do, and may also see another
        # end of the request: nothing that follows on the connection is read (RFC 9112, 6.1).
        names = [name for name, _ in raw_fields]
        for name in _SINGLE_FIELDS:
            if names.count(name) > 1:
                text = f"the field {name.decode()} is there twice"
                raise RefusalError(400, text, Connection="close")
        if b"transfer-encoding" in names and b"content-length" in names:
            raise RefusalError(400, "a length and chunks contradict each other", Connection="close")
        fields: dict[bytes, bytes] = {}
        for name, value in raw_fields:
            separator = b"; " if name == b"cookie" else b", "
            fields[name] = fields[name] + separator + value if name in fields else value
        peer = _plain_address((scope.get("client") or ("",))[0])
        proxied = bool(peer) and peer in self._proxies
        if not (proxied or self._is_open or (peer and peer in _LOOPBACK_NETWORKS)):
            raise RefusalError(403, "use the address of the reverse proxy")
        secure, user, client = scope["scheme"] == "https", "", peer
        if proxied:
            secure = secure or fields.get(b"x-forwarded-proto", b"").lower() == b"https"
            user = self._proxy_user(fields)
            client = self._client_address(peer, fields.get(b"x-forwarded-for", b""))
        same_origin = _is_same_origin(fields, secure=secure)
        root = self._proxy.path if proxied else ""
        return RequestContext(client, user, secure, same_origin, root, fields)

    def _proxy_user(self, fields: Mapping[bytes, bytes]) -> str:
        if not self._proxy.user_header:
            return ""
        field = fields.get(self._proxy.user_header.lower().encode(), b"")
        name = field.decode("utf-8", "surrogateescape")  # which is not printable
        if not name.isprintable() or len(name) > 255 or "," in name:
            raise RefusalError(400, "the reverse proxy sent an impossible user name")
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


def _is_same_origin(fields: Mapping[bytes, bytes], *, secure: bool) -> bool | None:
    """Whether a page of ours sent the request, as browsers say (Sec-Fetch-Site, Origin).

    secure: our page came over HTTPS, so a page that did not is not ours, whatever its name.
    """
    if b"sec-fetch-site" in fields:
        return fields[b"sec-fetch-site"] == b"same-origin"
    if b"origin" not in fields:
        return None
    match = _ORIGIN.fullmatch(fields[b"origin"].lower())
    if match is None or match[2] != fields[b"host"].lower():
        return False
    return not secure or match[1] == b"https"


def _plain_address(text: str) -> str:
    """Normalise an address; "" if it is none."""
    try:
        return normalise_address(text.strip("[]"))
    except ValueError:
        return ""
