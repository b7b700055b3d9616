"""What all pages share: their table, notices, searches of the history, and rendering.

The server renders whole pages, which work without the script. Templates escape each value, and
`formatting.make_visible` makes each text harmless first. A page must never contain a script, a
style or an address of another host; the security policy of every answer (`app`) forbids browsers to
follow any.

Between two requests, `PageContext` keeps what a click has done. It is memory of this process:
bounded, and shown to the person who put it there only.
"""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from spamguard.errors import NotThereError, UsageError
from spamguard.keys import is_id
from spamguard.mail import headers
from spamguard.times import parse_time
from spamguard.web import formatting
from spamguard.web.auth import AuthMethod, Person, SessionManager
from spamguard.web.formatting import count_noun, label_text
from spamguard.web.mailer import Mailer
from spamguard.web.models import LessonReceipt, ReleaseResult, Waiting
from spamguard.web.monitor import HealthReporter
from spamguard.web.queries import Search
from spamguard.web.requests import Problem, current_visitor, root_path
from spamguard.web.service import Service

# ---- state between two requests

_MAX_NOTICES = 2000


class PageContext:
    """What views work with; one for each process.

    It keeps the latest notices, each for one person under a name that nobody can guess.
    """

    def __init__(
        self,
        service: Service,
        monitor: HealthReporter,
        sessions: SessionManager,
        mailer: Mailer | None = None,
    ) -> None:
        self.service, self.monitor, self.sessions = service, monitor, sessions
        self.mailer = mailer
        self._notices: OrderedDict[str, tuple[Person, Notice]] = OrderedDict()
        templates()  # now, so that an upgrade does not mix two versions in this process

    async def render(self, request: Request, name: str, /, **values: Any) -> HTMLResponse:
        """Make an answer with a template, and what waits for the person in its navigation.

        error_text: what is wrong with the request (422).
        """
        visitor = current_visitor(request)
        if visitor is not None:
            values["waiting"] = await self.service.waiting(visitor.person)
        return render_page(request, name, 422 if values.get("error_text") else 200, **values)

    def redirect(self, person: Person, path: str, notice: Notice, anchor: str = "") -> Response:
        """Lead to a page and show a notice there. anchor: an id on the page."""
        name = secrets.token_urlsafe(16)
        self._notices[name] = person, notice
        if len(self._notices) > _MAX_NOTICES:
            self._notices.popitem(last=False)
        return redirect(f"{path}{'&' if '?' in path else '?'}told={name}{anchor and f'#{anchor}'}")

    def requested_notice(self, request: Request) -> Notice | None:
        """Return the notice that the address of a page names."""
        visitor, name = current_visitor(request), request.query_params.get("told", "")
        person, notice = self._notices.get(name, (None, None))
        return notice if visitor and visitor.person == person else None


def redirect(path: str) -> Response:
    """Answer a form by leading to a page (303; RFC 9110, 15.4.4)."""
    return RedirectResponse(path, 303)


# ---- views

View = Callable[[PageContext, Request], Awaitable[Response]]

VIEWS: list[tuple[str, str, View]] = []
"""Method, path and view of each page."""


def page(method: str, path: str) -> Callable[[View], View]:
    """Register a view."""

    def register(view: View) -> View:
        VIEWS.append((method, path, view))
        return view

    return register


def page_routes(pages: PageContext) -> Sequence[BaseRoute]:
    """Make the routes of all pages, below the root of the host."""
    routes = [
        Route(path, partial(_respond, pages, view), methods=[method])
        for method, path, view in VIEWS
    ]
    return [*routes, Route("/static/{file}", serve_asset, methods=["GET"])]


async def _respond(pages: PageContext, view: View, request: Request) -> Response:
    """Add the requested notice to the page, and the path of the reverse proxy to a redirect."""
    request.state.notice = pages.requested_notice(request)
    answer = await view(pages, request)
    if "location" in answer.headers:
        answer.headers["location"] = root_path(request) + answer.headers["location"]
    return answer


# ---- notices


class Notice(NamedTuple):
    """What a click has done, in a sentence.

    undo: address of the form that takes it back, or "". undo_ids: verdict ids of messages, if that
    form names some. held: verdict id of a held message that was just taught as a wanted class, or
    "".
    """

    text: str
    receipt: LessonReceipt | None = None
    released: ReleaseResult | None = None
    undo: str = ""
    held: str = ""
    undo_ids: tuple[str, ...] = ()


def learnt_notice(receipt: LessonReceipt, undo: str, held: str = "") -> Notice:
    """Tell of a lesson. It can be undone if it changed anything."""
    label = label_text(receipt.label)
    if not receipt.changed:
        text = f"You had already said {label}. Nothing has changed."
        return Notice(text, receipt, held=held)
    before = f" You had said {label_text(receipt.was)} before." if receipt.was else ""
    return Notice(f"Learnt as {label}.{before}", receipt, undo=undo, held=held)


def taken_back_notice(receipt: LessonReceipt) -> Notice:
    """Tell of a vote that was taken back."""
    if not receipt.changed:
        text = "You had said nothing about this message, so there is nothing to take back."
    else:
        label = label_text(receipt.was)
        text = f"Taken back: you had said {label}. It counts as if it had never been taught."
    return Notice(text, receipt)


def released_notice(released: ReleaseResult) -> Notice:
    """Tell of a held message that was released, or should have been."""
    if not released.recipients:
        return Notice("This message had been released before.", released=released)
    if released.released:
        text = f"Released to {count_noun(len(released.recipients), 'recipient')}."
    else:
        text = (
            "Not all recipients have got the message: "
            "the replies of the next hop are below. Try again later."
        )
    if released.taught:
        text += " Learnt as ham."
    return Notice(text, released=released)


# ---- addresses

_MAX_FIELD = 200  # characters
HISTORY_ROWS = 50
_MAX_WORDS = 20
SEARCH_TERMS = {
    "from": "sender",
    "to": "recipient",
    "subject": "subject",
    "verdict": "label",
    "said": "taught",
    "since": "since",
    "until": "until",
}
"""What may stand before a colon in the search box, and the field of `SearchQuery` that it sets."""
_SEARCH_TERM = re.compile(r'(?:([A-Za-z]+):)?(?:"([^"]*)"|(\S+))')
_VERDICT_ID = re.compile(r"(?:.*; id=)?([0-9a-v]{16})(?:;.*)?")


def page_number(request: Request) -> int:
    """Return the page in a list that the address names (page=), 1 if it names none."""
    text = request.query_params.get("page", "")
    return int(text) if re.fullmatch("[0-9]{1,6}", text) else 1


def path_id(request: Request) -> str:
    """Return the verdict id in the path of a request. NotThereError: it is not one."""
    verdict_id = str(request.path_params["name"])
    if not is_id(verdict_id):
        raise NotThereError("there is no message with that verdict id")
    return verdict_id


@dataclass(frozen=True)
class SearchQuery:
    """A search of the history as an address or a form has it, as texts.

    Addresses are built from these fields alone, never from what a client sent. q: the words of the
    search box; terms of `SEARCH_TERMS` in it become the fields that they name. since, until: days
    such as 2026-11-20 in UTC, both included.
    """

    q: str = ""
    subject: str = ""
    sender: str = ""
    recipient: str = ""
    label: str = ""
    taught: str = ""
    since: str = ""
    until: str = ""
    before: str = ""

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> SearchQuery:
        """Read an address or a form; unknown parameters are ignored."""
        names = [field.name for field in fields(cls)]
        values = {name: parameters.get(name, "")[:_MAX_FIELD].strip() for name in names}
        words = []
        for term in _SEARCH_TERM.finditer(values["q"]):
            if name := SEARCH_TERMS.get((term[1] or "").lower()):
                values[name] = (term[2] or term[3] or "").strip()
            else:
                words.append(term[0])
        return cls(**values | {"q": " ".join(words)[:_MAX_FIELD].strip()})

    def to_search(self) -> Search:
        """Make the search for the service. UsageError: a day is not a day, or too many words."""
        terms = _SEARCH_TERM.finditer(self.q)
        words = [term[0] if term[1] else (term[2] or term[3] or "").strip() for term in terms]
        if len(words) > _MAX_WORDS:
            raise UsageError(f"these are more than {_MAX_WORDS} words: leave some out")
        return Search(
            self.sender,
            self.recipient,
            self.subject,
            self.label,
            self.taught,
            _parse_day(self.since) if self.since else 0.0,
            _parse_day(self.until, is_end=True) if self.until else 0.0,
            self.before if is_id(self.before) else "",
            HISTORY_ROWS,
            tuple(filter(None, words)),
        )

    @property
    def text(self) -> str:
        """The whole search as the search box takes it.

        >>> SearchQuery("solar", sender="Ann Lee", label="spam").text
        'solar from:"Ann Lee" verdict:spam'
        """
        terms = [
            (term, str(getattr(self, name)).replace('"', "")) for term, name in SEARCH_TERMS.items()
        ]
        texts = [
            f'{term}:"{text}"' if text.split() != [text] else f"{term}:{text}"
            for term, text in terms
            if text
        ]
        return " ".join(filter(None, [self.q, *texts]))

    @property
    def verdict_id(self) -> str:
        """The verdict id that somebody searches for, alone or in a field X-Spamguard; or ""."""
        match = _VERDICT_ID.fullmatch(self.q)
        return match[1] if match else ""

    def ending(self, **changes: str) -> str:
        """Return the query part of an address with its question mark, or "".

        >>> SearchQuery(label="spam").ending(sender="ann")
        '?sender=ann&label=spam'
        """
        values = asdict(replace(self, **changes))
        encoded = urlencode({name: value for name, value in values.items() if value})
        return f"?{encoded}" if encoded else ""


def _parse_day(day: str, *, is_end: bool = False) -> float:
    try:
        return parse_time(day, datetime.now(UTC), is_end=is_end)
    except ValueError:
        raise UsageError(f"{day} is not a day: write it as in 2026-11-20") from None


# ---- rendering

NAVIGATION = (
    ("/", "Today"),
    ("/queue", "Unsure"),
    ("/history", "History"),
    ("/teach", "Teach"),
    ("/quarantine", "Quarantine"),
    ("/help", "Help"),
)
"""The links at the top of each page."""
# Browsers are strict about these, so they do not come from this machine's configuration.
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Headings for people. Other statuses have the names that HTTP gives them.
_TITLES = {
    400: "That did not arrive whole",
    401: "You are not logged in",
    403: "That is not allowed",
    404: "Not found",
    410: "Not now",
    413: "That is too large",
    422: "That does not work",
    429: "Too many requests",
    503: "Not now",
}


def render_page(request: Request, name: str, /, status: int, **values: Any) -> HTMLResponse:
    """Make an answer with a template. Views use `PageContext.render`."""
    visitor = current_visitor(request)
    common = {
        "person": visitor.person if visitor else None,
        "can_log_out": visitor is not None and visitor.auth_method is AuthMethod.SESSION,
        "root": root_path(request),
        "here": request.url.path,
        "offers_links": request.scope["state"].get("offers_links", False),
        "notice": request.scope["state"].get("notice"),
        "waiting": Waiting(),
    }
    return HTMLResponse(templates().get_template(name).render(common | values), status)


def problem_page(request: Request, problem: Problem) -> Response:
    """Make a page that tells what went wrong, and what to do."""
    # Who is logged in already has used a link twice.
    status = 422 if problem.status == 401 and current_visitor(request) else problem.status
    heading = _TITLES.get(status, problem.title)
    answer = render_page(request, "failed.html", problem.status, problem=problem, heading=heading)
    answer.headers.update(problem.headers)
    return answer


async def serve_asset(request: Request) -> Response:
    """Serve style, script or icon. Browsers may keep them: another version has another address."""
    file = request.path_params["file"]
    if file not in _assets():
        raise HTTPException(404)
    fields = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(_assets()[file], headers=fields, media_type=_MEDIA_TYPES[Path(file).suffix])


@lru_cache(1)
def _assets() -> dict[str, bytes]:
    directory = files(__package__).joinpath("static")
    return {file.name: file.read_bytes() for file in directory.iterdir()}


@lru_cache(1)
def templates() -> Environment:
    """Return all templates, read once, with the functions that they call."""
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=formatting.make_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals |= vars(formatting) | {
        "parts": headers.split_author,
        "is_sender": headers.is_sender,
        "pages": NAVIGATION,
        "version": blake2b(b"".join(sorted(_assets().values())), digest_size=6).hexdigest(),
    }
    for name in environment.list_templates():
        environment.get_template(name)
    return environment
