"""Who makes a request: visitors and their forms, the head of a request, sessions.

`RequestReader` reads the head of each request and believes no more of it than it can check.
`SessionManager` finds the visitor by token, by cookie or by the word of a reverse proxy, and logs
people in with one-time links. `middleware` calls both before any view or operation runs. So all
that a view must do is to read forms with `read_form` or `read_form_with_file`, which check that the
form is ours, and to change nothing on GET.
"""

from __future__ import annotations

import hmac
import logging
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast
from urllib.parse import urlencode

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from spamguard import errors
from spamguard.config.options import Web, WebProxy
from spamguard.limits import Networks, normalise_address
from spamguard.storage import Spool
from spamguard.web.credentials import SESSION_SECONDS, Credential, CredentialKind, CredentialStore
from spamguard.web.models import Person
from spamguard.web.problems import UnauthenticatedError, refusal

_log = logging.getLogger("spamguard.web")


def login_url(page: str, link: str) -> str:
    """Return the address that logs somebody in.

    The secret is in the query, not in the path: queries are not logged and not sent to other sites.
    """
    return f"{page.rstrip('/')}/login?{urlencode({'link': link})}"


# ---- visitors and their forms

CSRF_FIELD = "csrf"
"""The hidden field of each form with method=post; its value is `csrf_token`.

Scripts may send the header field `X-CSRF-Token` instead.
"""
_MAX_FORM_FIELDS = 10
_MAX_FIELD_BYTES = 1 << 20  # of a field that is not a file, such as a pasted message


class AuthMethod(StrEnum):
    """How a visitor is known."""

    TOKEN = "token"  # noqa: S105  no password: a program, by `Authorization: Bearer`
    SESSION = "session"  # a person, by the cookie of a session
    PROXY = "proxy"  # a person, by the word of a reverse proxy


@dataclass(frozen=True, slots=True)
class Visitor:
    """The person or program behind a request.

    csrf_token: programs have none. credential: the id of the token or session, not its secret.
    """

    person: Person
    auth_method: AuthMethod
    csrf_token: str = ""
    credential: str = ""


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


def csrf_token(request: Request) -> str:
    """Return what forms in the answer must carry; "" on the login page, before there is a visitor.

    There, the browser's own word that the form comes from us is enough.
    """
    visitor = current_visitor(request)
    return visitor.csrf_token if visitor else ""


async def read_form(request: Request) -> Mapping[str, str]:
    """Return the texts of a form by field name. Errors as of `read_form_with_file`."""
    async with read_form_with_file(request) as (texts, _):
        return texts


@asynccontextmanager
async def read_form_with_file(
    request: Request,
) -> AsyncIterator[tuple[Mapping[str, str], UploadFile | None]]:
    """Yield the texts of a form and its file, and close the file at the end.

    Number and size of the fields are limited, the file by the limit for messages.

    Raises
    ------
    NotAllowedError
        The form is not ours.
    HTTPException
        The body is not a form (400), or a field is too long (413).
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
        token = form.get(CSRF_FIELD) or request.headers.get("x-csrf-token", "")
        expected = csrf_token(request)
        if not isinstance(token, str) or not hmac.compare_digest(token.encode(), expected.encode()):
            raise errors.NotAllowedError(
                "this form is too old or not one of ours: load the page again, then send it again"
            )
        texts = {name: value for name, value in form.items() if isinstance(value, str)}
        yield texts, next((value for value in form.values() if isinstance(value, UploadFile)), None)
    finally:
        await form.close()


def new_spool(request: Request) -> Spool:
    """Open a spool for a message of this request; the caller closes it."""
    return Spool(request.scope["state"]["spool"])


# ---- the head of a request

AsgiScope = Mapping[str, Any]

MAX_HEADER_BYTES = 16 << 10
MAX_HEADER_FIELDS = 100
MAX_TARGET_BYTES = 8 << 10  # path and query
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_LOOPBACK_NETWORKS = Networks(("127.0.0.0/8", "::1/128"))
_MAX_FORWARDED = 20  # addresses of X-Forwarded-For
_SINGLE_FIELDS = (
    b"host",
    b"authorization",
    b"content-type",
    b"content-length",
    b"origin",
    b"x-csrf-token",
    b"sec-fetch-site",
)
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9.-]{1,253})(?::[0-9]{1,5})?")
_ORIGIN = re.compile(rb"(https?)://([^/]+)")


@dataclass(frozen=True, slots=True)
class RequestContext:
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


class RequestReader:
    """Reads the heads of requests as the settings say."""

    def __init__(self, web: Web) -> None:
        self._hosts = frozenset(web.hosts or (*LOOPBACK_HOSTS, web.listen.host))
        self._proxies = Networks(web.proxy.networks if web.proxy else ())
        self._proxy = web.proxy or WebProxy(())
        self._is_open = web.tls is not None or web.listen.host in _LOOPBACK_NETWORKS

    def read(self, scope: AsgiScope) -> RequestContext:
        """Read the head of a request.

        Raises
        ------
        RefusalError
            For another host (421), too long (414, 431), contradictory (400), or past the reverse
            proxy (403).
        """
        raw_fields = scope["headers"]
        self._check_host([value for name, value in raw_fields if name == b"host"])
        _check_size(scope, raw_fields)
        _check_single(raw_fields)
        fields = _join_fields(raw_fields)
        peer = _plain_address((scope.get("client") or ("",))[0])
        proxied = bool(peer) and peer in self._proxies
        if not (proxied or self._is_open or (peer and peer in _LOOPBACK_NETWORKS)):
            raise refusal(403, "use the address of the reverse proxy")
        secure, user, client = scope["scheme"] == "https", "", peer
        if proxied:
            secure = secure or fields.get(b"x-forwarded-proto", b"").lower() == b"https"
            user = self._proxy_user(fields)
            client = self._client_address(peer, fields.get(b"x-forwarded-for", b""))
        same_origin = _is_same_origin(fields, secure=secure)
        root = self._proxy.path if proxied else ""
        return RequestContext(client, user, secure, same_origin, root, fields)

    def _check_host(self, values: Sequence[bytes]) -> None:
        """Refuse a browser that somebody made use another name for us (DNS rebinding)."""
        match = _HOST.fullmatch(values[0].decode("latin-1").lower()) if len(values) == 1 else None
        if match is None or match[1].strip("[]").rstrip(".") not in self._hosts:
            raise refusal(
                421,
                "this server has other names: `web: {hosts: […]}` in the configuration lists them",
            )

    def _proxy_user(self, fields: Mapping[bytes, bytes]) -> str:
        if not self._proxy.user_header:
            return ""
        try:
            name = fields.get(self._proxy.user_header.lower().encode(), b"").decode("utf-8")
        except UnicodeDecodeError:
            name = "\0"
        if not name.isprintable() or len(name) > 255 or "," in name:
            raise refusal(400, "the reverse proxy sent an impossible user name")
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


def _check_size(scope: AsgiScope, fields: Sequence[tuple[bytes, bytes]]) -> None:
    if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
        raise refusal(414, f"an address has at most {MAX_TARGET_BYTES >> 10} KiB")
    size = sum(len(name) + len(value) + 4 for name, value in fields)
    if len(fields) > MAX_HEADER_FIELDS or size > MAX_HEADER_BYTES:
        raise refusal(
            431,
            f"the header has more than {MAX_HEADER_FIELDS} fields or {MAX_HEADER_BYTES >> 10} KiB",
        )


def _check_single(fields: Sequence[tuple[bytes, bytes]]) -> None:
    """Refuse fields that a server in front of us may read differently than we do.

    That server may also see another end of the request, so nothing that follows on the connection
    is read (RFC 9112, 6.1).
    """
    names = [name for name, _ in fields]
    for name in _SINGLE_FIELDS:
        if names.count(name) > 1:
            raise refusal(400, f"the field {name.decode()} is there twice", Connection="close")
    if b"transfer-encoding" in names and b"content-length" in names:
        raise refusal(400, "a length and chunks contradict each other", Connection="close")


def _join_fields(fields: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    joined: dict[bytes, bytes] = {}
    for name, value in fields:
        separator = b"; " if name == b"cookie" else b", "
        joined[name] = joined[name] + separator + value if name in joined else value
    return joined


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


# ---- sessions

COOKIE = "spamguard"
# Browsers hide this cookie from other hosts and from connections without HTTPS (RFC 6265bis).
SECURE_COOKIE = "__Host-spamguard"
# The same on a host with other sites, all of which would get the cookie above.
SUBPATH_COOKIE = "__Secure-spamguard"
_BEARER = "bearer "


class SessionManager:
    """Finds the visitor of a request, and logs people in and out.

    Parameters
    ----------
    operators
        Users of the reverse proxy who are operators.
    """

    def __init__(self, store: CredentialStore, operators: frozenset[str]) -> None:
        self._store = store
        self._operators = operators

    async def enter(self, request: Request, link: str, answer: Response) -> Person:
        """Use up a one-time link, and set the cookie of a new session on the answer.

        Call it for POST only, because programs that check mail fetch the links in it.

        Raises
        ------
        UnauthenticatedError
            The link is wrong, too old or used up.
        """
        now = int(time.time())
        credential = self._store.redeem(link, now)
        if credential is None:
            raise UnauthenticatedError(
                "this link is wrong, was used before or is older than ten minutes: "
                "get a new one with `spamguard login-link`"
            )
        self._end_session(request)
        expires = now + SESSION_SECONDS
        kind, person = CredentialKind.SESSION, credential.person
        _set_cookie(
            request, answer, self._store.create(kind, person, now, expires=expires), SESSION_SECONDS
        )
        return person

    async def leave(self, request: Request, answer: Response) -> None:
        """End the session, if there is one, and delete the cookie."""
        self._end_session(request)
        _set_cookie(request, answer, "", 0)

    def _end_session(self, request: Request) -> None:
        visitor = current_visitor(request)
        if visitor is not None and visitor.auth_method is AuthMethod.SESSION:
            self._store.delete(visitor.credential)

    def identify(self, context: RequestContext, now: int) -> Visitor | None:
        """Return the visitor, or None for an anonymous request.

        Raises
        ------
        UnauthenticatedError
            The token is not valid, or no longer.
        """
        authorization = context.header(b"authorization")
        if authorization[: len(_BEARER)].lower() == _BEARER:  # other schemes are for the proxy
            secret = authorization[len(_BEARER) :].strip()
            credential = self._find(CredentialKind.TOKEN, secret, now)
            if credential is None:
                raise UnauthenticatedError("this token is wrong, too old or was revoked")
            return Visitor(credential.person, AuthMethod.TOKEN, credential=credential.id)
        if context.user:
            person, method = Person(context.user, context.user in self._operators), AuthMethod.PROXY
            return Visitor(person, method, self._csrf_token(method, context.user))
        name = _cookie_name(context.root_path, secure=context.secure)
        secret = _cookie_value(context.header(b"cookie"), name)
        credential = self._find(CredentialKind.SESSION, secret, now) if secret else None
        if credential is None:  # a session that has ended is no failed attempt
            return None
        token = self._csrf_token(AuthMethod.SESSION, credential.id)
        return Visitor(credential.person, AuthMethod.SESSION, token, credential.id)

    def _find(self, kind: CredentialKind, secret: str, now: int) -> Credential | None:
        credential = self._store.find(kind, secret, now)
        if credential is not None:
            try:
                self._store.note_use(credential, now)
            except errors.AccessError as error:  # a full disk must not keep anybody out
                _log.warning("%s", error)
        return credential

    def _csrf_token(self, method: AuthMethod, identity: str) -> str:
        """The same for the whole session, also after a restart."""
        return hmac.digest(self._store.key, f"form {method} {identity}".encode(), "sha256").hex()


def _cookie_value(header: str, name: str) -> str:
    """Return the value of a cookie, or "".

    With `http.cookies`, the cookies of other servers on this host could hide ours or cost time.
    """
    for cookie in header.split(";"):
        cookie_name, _, value = cookie.partition("=")
        if cookie_name.strip() == name:
            return value.strip()
    return ""


def _set_cookie(request: Request, answer: Response, value: str, seconds: int) -> None:
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
