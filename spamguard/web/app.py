"""Page and API put together: what answers the requests of one process."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router

from spamguard.settings import Web
from spamguard.web import pages
from spamguard.web.access import problems
from spamguard.web.access.contract import Problem
from spamguard.web.access.door import Door
from spamguard.web.access.guard import Guard
from spamguard.web.access.store import Store
from spamguard.web.api.routes import routes
from spamguard.web.service.contract import Monitor, Service

_FOR_PROGRAMS = (414, 421, 431, 505)  # statuses for which no page is made: who asked may not be a browser that we want to speak to


def application(web: Web, spool: Path, service: Service, store: Store, monitor: Monitor) -> Guard:
    """spool: directory for messages that are handed over."""
    door = Door(store, frozenset(web.proxy.operators if web.proxy else ()))
    inside = Router([*routes(service, monitor, web.limits.message_bytes), *pages.routes(service, monitor, door)], redirect_slashes=False)
    return Guard(inside, web, door, spool, show)


def show(request: Request, problem: Problem) -> Response:
    """A problem as whoever asked reads it: a program, or a person."""
    if request.url.path.startswith("/api") or problem.status in _FOR_PROGRAMS:
        return problems.answer(problem)
    return pages.failed(request, problem)
