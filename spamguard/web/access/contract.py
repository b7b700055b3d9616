"""What a view may ask of access: who is here, what their forms must carry, how they come in and go.

Everything about a request that could be forged has been looked at before a view runs: Host, size of the header, rate, who asks, and,
unless a token names them, that a request that changes something comes from a page of ours. What is left to the view: it takes forms
by `posted` and `posted_with_file` only, which check that they are ours, and it changes nothing by GET.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, cast

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from spamguard.errors import NotAllowedError, SpamguardError
from spamguard.spool import Spool
from spamguard.web.service.values import Person

FORGERY = "csrf"
"""Name of the hidden field that every form with method=post carries, its value is `form_token`; scripts may send it as a field of the
request's header, `X-CSRF-Token`, instead."""

_FIELDS = 10  # of one form
_FIELD_BYTES = 1 << 20  # of one that is no file, such as a message that was pasted


class Way(StrEnum):
    """How somebody has shown who they are."""

    TOKEN = "token"  # noqa: S105  # a program, by `Authorization: Bearer`
    SESSION = "session"  # a person, by the cookie that a one-time link gave
    PROXY = "proxy"  # a person, by the word of a reverse proxy


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who stands behind a request. form_token: what their forms must carry, "" for programs, which have none. credential: which
    token or session, not a secret; "" for the word of a proxy."""

    person: Person
    way: Way
    form_token: str = ""
    credential: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong, for whoever asked: nothing of it tells about our inside (RFC 9457). more: fields for the answer's header."""

    status: int
    title: str
    detail: str = ""
    more: dict[str, str] = field(default_factory=dict)


class NobodyError(SpamguardError):
    """Nobody has been shown to ask: no token or session, or one that is wrong, too old or revoked; text for them."""


class Gate(Protocol):
    """The way in and out for people. Every call is quick, and may raise `SpamguardError`."""

    async def enter(self, request: Request, link: str, answer: Response) -> Person:
        """Burn a one-time link, and put the cookie of a new session on the answer. link: as in /login?link=…; call it for POST only,
        since programs that look at mail fetch what it links to. NobodyError: it is wrong, too old or was used before."""

    async def leave(self, request: Request, answer: Response) -> None:
        """End the session, if there is one, and take the cookie back."""


def visitor(request: Request) -> Visitor | None:
    """Who asks, None: nobody has said so."""
    return cast("Visitor | None", request.scope["state"].get("visitor"))


def person(request: Request) -> Person:
    """Who asks. NobodyError: pages let it go, to be answered by 401."""
    found = visitor(request)
    if found is None:
        raise NobodyError("a one-time link or a token is needed here")
    return found.person


def root(request: Request) -> str:
    """What stands before every path of ours in an address, as in "/spam", where a reverse proxy takes it off; else ""."""
    return cast("str", request.scope["state"].get("root", ""))


def form_token(request: Request) -> str:
    """What the forms in the answer must carry; "" for nobody, as on the page where a link is burnt: that a form of it comes from there
    has been seen by the browser's word."""
    found = visitor(request)
    return found.form_token if found else ""


async def posted(request: Request) -> Mapping[str, str]:
    """The texts of a form, by the names of their fields. As `posted_with_file`."""
    async with posted_with_file(request) as (texts, _):
        return texts


@asynccontextmanager
async def posted_with_file(request: Request) -> AsyncIterator[tuple[Mapping[str, str], UploadFile | None]]:
    """The texts of a form and its file, closed at the end; bounded in number and size of the fields, the file by the limit for messages.

    NotAllowedError: it is not one of ours. starlette's HTTPException: it is no form (400), or a field is too long (413).
    """
    kind = request.headers.get("content-type", "").lower()
    if "multipart" in kind and "charset" in kind:  # no browser names one, and some of Python's raise, or take minutes for a field
        raise HTTPException(400)
    form = await _form(request)
    try:
        given = form.get(FORGERY) or request.headers.get("x-csrf-token", "")
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), form_token(request).encode()):
            raise NotAllowedError("this form is too old or not one of ours: load the page again, then send it again")
        texts = {name: value for name, value in form.items() if isinstance(value, str)}
        yield texts, next((value for value in form.values() if isinstance(value, UploadFile)), None)
    finally:
        await form.close()


async def _form(request: Request) -> FormData:
    try:
        return await request.form(max_files=1, max_fields=_FIELDS, max_part_size=_FIELD_BYTES)
    except HTTPException as error:  # starlette has one kind for all, and words for each
        raise HTTPException(413 if "exceeded maximum size" in error.detail else error.status_code) from error


def new_spool(request: Request) -> Spool:
    """Where to put a message of this request; to be closed by who asked for it."""
    return Spool(request.scope["state"]["spool"])
