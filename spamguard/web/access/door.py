"""The way in and out for people (`contract.Gate`), and who stands behind a request: by token, by cookie or by a reverse proxy's word."""

from __future__ import annotations

import hmac
import logging
import time

from starlette.requests import Request
from starlette.responses import Response

from spamguard.errors import AccessError
from spamguard.web.access.asking import Asking
from spamguard.web.access.contract import NobodyError, Visitor, Way, root, visitor
from spamguard.web.access.store import SESSION_SECONDS, Credential, Kind, Store
from spamguard.web.service.values import Person

COOKIE = "spamguard"
SECURE_COOKIE = "__Host-spamguard"  # a browser keeps it from other hosts and from connections that are not HTTPS (RFC 6265bis)
BELOW_COOKIE = "__Secure-spamguard"  # the same on a host with others, for all of whom the one above would be meant
_BEARER = "bearer "

_log = logging.getLogger("spamguard.web")


class Door:
    """operators: of those whom the reverse proxy names."""

    def __init__(self, store: Store, operators: frozenset[str]) -> None:
        self._store = store
        self._operators = operators

    async def enter(self, request: Request, link: str, answer: Response) -> Person:
        """Burn a link, begin a session in place of the one there was."""
        now = int(time.time())
        found = self._store.burn(link, now)
        if found is None:
            raise NobodyError("this link is wrong, was used before or is older than ten minutes: get a new one with `spamguard login-link`")
        self._end_session(request)
        text = self._store.make(Kind.SESSION, found.person, now, expires=now + SESSION_SECONDS)
        _set_cookie(request, answer, text, SESSION_SECONDS)
        return found.person

    async def leave(self, request: Request, answer: Response) -> None:
        """End the session."""
        self._end_session(request)
        _set_cookie(request, answer, "", 0)

    def _end_session(self, request: Request) -> None:
        found = visitor(request)
        if found is not None and found.way is Way.SESSION:
            self._store.end(found.credential)

    def visitor(self, asking: Asking, now: int) -> Visitor | None:
        """Who asks; None: nobody says so. NobodyError: what was shown is not valid, or not any more."""
        given = asking.text(b"authorization")
        if given[: len(_BEARER)].lower() == _BEARER:  # others are meant for the proxy
            return self._by_token(given[len(_BEARER) :].strip(), now)
        if asking.user:
            person = Person(asking.user, asking.user in self._operators)
            return Visitor(person, Way.PROXY, self._form_token(Way.PROXY, asking.user))
        return self._by_cookie(asking, now)

    def _by_token(self, text: str, now: int) -> Visitor:
        found = self._store.find(Kind.TOKEN, text, now)
        if found is None:
            raise NobodyError("this token is wrong, too old or was revoked")
        self._used(found, now)
        return Visitor(found.person, Way.TOKEN, credential=found.id)

    def _by_cookie(self, asking: Asking, now: int) -> Visitor | None:
        text = _cookie(asking.text(b"cookie"), _name(asking.root, secure=asking.secure))
        found = self._store.find(Kind.SESSION, text, now) if text else None
        if found is None:  # a session that has ended is nothing to be suspicious of
            return None
        self._used(found, now)
        return Visitor(found.person, Way.SESSION, self._form_token(Way.SESSION, found.id), found.id)

    def _used(self, found: Credential, now: int) -> None:
        """A full disk, or a command that was stopped while it wrote, keeps nobody out."""
        try:
            self._store.used(found, now)
        except AccessError as error:
            _log.warning("%s", error)

    def _form_token(self, way: Way, of: str) -> str:
        """The same for as long as the session lasts, over restarts too."""
        return hmac.digest(self._store.key, f"form {way} {of}".encode(), "sha256").hex()


def _cookie(header: str, name: str) -> str:
    """The value of one cookie, "" where there is none. What others have set, for any port of this host, must neither hide it nor cost
    time, as both would with `http.cookies`."""
    for one in header.split(";"):
        found, _, value = one.partition("=")
        if found.strip() == name:
            return value.strip()
    return ""


def _set_cookie(request: Request, answer: Response, value: str, seconds: int) -> None:
    """Lax: a link in a mail or a bookmark opens the page one is logged in to; what changes something needs more than the cookie."""
    secure = bool(request.scope["state"].get("secure"))
    below = root(request)
    answer.set_cookie(_name(below, secure=secure), value, max_age=seconds, path=f"{below}/", secure=secure, httponly=True, samesite="lax")


def _name(below: str, *, secure: bool) -> str:
    if not secure:
        return COOKIE
    return BELOW_COOKIE if below else SECURE_COOKIE
