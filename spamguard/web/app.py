"""The web application: page and API together.

It is FastAPI's, without its own pages, which load scripts of other hosts. Every request passes
`requests.AccessMiddleware` first. Whatever goes wrong, one handler answers: `show_error`. No error
may leave in any other form.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from spamguard.config.options import Web
from spamguard.web import api, views
from spamguard.web.auth import CredentialStore, SessionManager
from spamguard.web.mail import Mailer
from spamguard.web.monitor import HealthReporter
from spamguard.web.pages import PageContext, problem_page
from spamguard.web.requests import (
    INTERNAL_DETAIL,
    PEER_ROOT,
    AccessMiddleware,
    log_target,
    problem_from_error,
    problem_response,
)
from spamguard.web.service import Service

if TYPE_CHECKING:
    from spamguard.web.nodes import PeerDoor

_log = logging.getLogger("spamguard.web")


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
    routes = views.page_routes(PageContext(service, monitor, sessions, mailer))
    app = FastAPI(
        routes=[*api.router.routes, *(peers.routes() if peers else ()), *routes],
        middleware=[Middleware(AccessMiddleware, web, sessions, show_error, spool, peers)],
        exception_handlers={HTTPException: show_error, RequestValidationError: show_error},
        redirect_slashes=False,
        openapi_url=None,  # and with it no page of FastAPI's own
    )
    app.state.service = service
    return app


async def show_error(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        error = api.value_refusal(request, error)
    problem = problem_from_error(error)
    if problem.status_code == 500:
        _log.error("a fault in answering %s", log_target(request.scope), exc_info=error)
    elif problem.detail == INTERNAL_DETAIL:
        _log.error("%s", error)
    path = request.url.path
    # Of other names we serve no page: the client may not be a browser of ours.
    if path.startswith(("/api", PEER_ROOT)) or problem.status_code == 421:
        return problem_response(problem)
    return problem_page(request, problem)
