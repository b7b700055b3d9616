"""Which view answers for which path. One table; what changes something is there by POST alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from spamguard.web.access import contract as access
from spamguard.web.pages import history, login, message, model, quarantine, teach, today, words
from spamguard.web.pages.drawing import assets, page, prepare
from spamguard.web.pages.house import House
from spamguard.web.service.contract import Monitor, Service

View = Callable[[House, Request], Awaitable[Response]]

VIEWS: tuple[tuple[str, str, View], ...] = (
    ("GET", "/", today.shown),
    ("GET", "/history", history.listed),
    ("GET", "/history/{name}", message.shown),
    ("POST", "/history/{name}/teach", history.taught),
    ("POST", "/history/{name}/forget", history.forgotten),
    ("GET", "/teach", teach.form),
    ("POST", "/teach", teach.handed_over),
    ("POST", "/teach/forget", teach.forgotten),
    ("GET", "/teach/{draft}", teach.previewed),
    ("POST", "/teach/{draft}/preview", teach.changed),
    ("POST", "/teach/{draft}/learn", teach.learnt),
    ("GET", "/quarantine", quarantine.listed),
    ("GET", "/quarantine/{name}", quarantine.shown),
    ("POST", "/quarantine/{name}/release", quarantine.released),
    ("GET", "/quarantine/{name}/delete", quarantine.asked),
    ("POST", "/quarantine/{name}/delete", quarantine.deleted),
    ("GET", "/model", model.shown),
    ("GET", "/model/undo", model.asked),
    ("POST", "/model/undo", model.undone),
    ("GET", "/words", words.shown),
    ("GET", "/login", login.landed),
    ("POST", "/login", login.entered),
    ("POST", "/logout", login.left),
)


_TITLES = {
    400: "That did not arrive whole",
    401: "You are not logged in",
    403: "That is not allowed",
    404: "Not found",
    413: "That is too large",
    422: "That does not work",
    429: "Too many requests",
    503: "Not now",
}
"""For people; of all others what HTTP calls them."""


def routes(service: Service, monitor: Monitor, gate: access.Gate) -> Sequence[BaseRoute]:
    """All pages, from the root of the host on."""
    prepare()
    house = House(service, monitor, gate)
    views = [Route(path, partial(_viewed, house, view), methods=[method]) for method, path, view in VIEWS]
    return [*views, Route("/static/{file}", _asset, methods=["GET"])]


async def _viewed(house: House, view: View, request: Request) -> Response:
    """Whatever page the answer is, one that tells of a failure too: what was done before is told on it. And wherever it leads: that is
    below where a reverse proxy has put us."""
    request.state.notice = house.notice(request)
    answer = await view(house, request)
    if "location" in answer.headers:
        answer.headers["location"] = access.root(request) + answer.headers["location"]
    return answer


def failed(request: Request, problem: access.Problem) -> Response:
    """A page that tells what went wrong, and what to do."""
    heading = _TITLES.get(problem.status, problem.title)
    if problem.status == 401 and access.visitor(request):  # who is logged in has used a link twice
        heading = _TITLES[422]
    answer = page(request, "failed.html", problem.status, problem=problem, heading=heading)
    answer.headers.update(problem.more)
    return answer


async def _asset(request: Request) -> Response:
    found = assets().get(request.path_params["file"])
    if found is None:
        raise HTTPException(404)
    return found
