"""The table of all pages: method, path, view. Whatever changes something takes POST."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from spamguard.web import auth
from spamguard.web.health import HealthReporter
from spamguard.web.pages import learning, mail
from spamguard.web.pages.context import PageContext
from spamguard.web.pages.rendering import assets, preload, render_page
from spamguard.web.problems import Problem
from spamguard.web.service import Service

View = Callable[[PageContext, Request], Awaitable[Response]]

VIEWS: tuple[tuple[str, str, View], ...] = (
    ("GET", "/", learning.today_page),
    ("GET", "/history", mail.history_page),
    ("GET", "/history/{name}", mail.message_page),
    ("POST", "/history/{name}/teach", mail.teach_passed),
    ("POST", "/history/{name}/forget", mail.forget_passed),
    ("GET", "/teach", learning.teach_page),
    ("POST", "/teach", learning.upload_message),
    ("POST", "/teach/forget", learning.forget_digest),
    ("GET", "/teach/{draft}", learning.preview_page),
    ("POST", "/teach/{draft}/preview", learning.change_draft),
    ("POST", "/teach/{draft}/learn", learning.learn_draft),
    ("GET", "/quarantine", mail.quarantine_page),
    ("GET", "/quarantine/{name}", mail.held_page),
    ("POST", "/quarantine/{name}/release", mail.release_held),
    ("GET", "/quarantine/{name}/delete", mail.confirm_delete_page),
    ("POST", "/quarantine/{name}/delete", mail.delete_held),
    ("GET", "/model", learning.model_page),
    ("GET", "/model/undo", learning.undo_page),
    ("POST", "/model/undo", learning.undo_lessons),
    ("GET", "/words", learning.words_page),
    ("GET", "/login", mail.login_page),
    ("POST", "/login", mail.log_in),
    ("POST", "/logout", mail.log_out),
)

# Headings for people. Other statuses have the names that HTTP gives them.
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


def page_routes(
    service: Service, monitor: HealthReporter, sessions: auth.SessionManager
) -> Sequence[BaseRoute]:
    """Make the routes of all pages, below the root of the host."""
    preload()
    pages = PageContext(service, monitor, sessions)
    views = [
        Route(path, partial(_respond, pages, view), methods=[method])
        for method, path, view in VIEWS
    ]
    return [*views, Route("/static/{file}", _serve_asset, methods=["GET"])]


async def _respond(pages: PageContext, view: View, request: Request) -> Response:
    """Add the requested notice to the page, and the path of the reverse proxy to a redirect."""
    request.state.notice = pages.requested_notice(request)
    answer = await view(pages, request)
    if "location" in answer.headers:
        answer.headers["location"] = auth.root_path(request) + answer.headers["location"]
    return answer


def problem_page(request: Request, problem: Problem) -> Response:
    """Make a page that tells what went wrong, and what to do."""
    heading = _TITLES.get(problem.status, problem.title)
    if problem.status == 401 and auth.current_visitor(request):  # a link was used twice
        heading = _TITLES[422]
    answer = render_page(request, "failed.html", problem.status, problem=problem, heading=heading)
    answer.headers.update(problem.headers)
    return answer


async def _serve_asset(request: Request) -> Response:
    asset = assets().get(request.path_params["file"])
    if asset is None:
        raise HTTPException(404)
    return asset
