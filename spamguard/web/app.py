"""The web application, page and API together, and the server that runs it.

The application is FastAPI's, without its own pages, which load scripts of other hosts. Every
request passes `AccessMiddleware` first. Whatever goes wrong, one handler answers: `show_error`.

The server is uvicorn with limits. It must never wait for a header without limit, hold more than
`MAX_CONNECTIONS` requests, or keep an idle connection for long.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import cast

import h11
import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from spamguard.config.options import Web
from spamguard.web import api
from spamguard.web.auth import SessionManager
from spamguard.web.credentials import CredentialStore
from spamguard.web.health import HealthReporter
from spamguard.web.middleware import AccessMiddleware, log_target
from spamguard.web.pages import routes
from spamguard.web.problems import is_internal_error, problem_from_error, problem_response
from spamguard.web.service import Service

_log = logging.getLogger("spamguard.web")

# These get no page, because the client may not be a browser that we want to serve.
_JSON_ONLY_STATUSES = (414, 421, 431, 505)


def create_app(
    web: Web, spool: Path, service: Service, store: CredentialStore, monitor: HealthReporter
) -> FastAPI:
    """Put page and API together. spool: directory for uploaded messages."""
    sessions = SessionManager(store, frozenset(web.proxy.operators if web.proxy else ()))
    app = FastAPI(
        routes=[*api.router.routes, *routes.page_routes(service, monitor, sessions)],
        middleware=[Middleware(AccessMiddleware, web, sessions, spool, show_error)],
        exception_handlers={HTTPException: show_error, RequestValidationError: show_error},
        redirect_slashes=False,
        openapi_url=None,  # and with it no page of FastAPI's own
    )
    app.state.api = api.ApiContext(service, monitor, web.limits.message_size)
    return app


async def show_error(request: Request, error: Exception) -> Response:
    """Tell of an error, to a program as JSON and to a person as a page."""
    if isinstance(error, RequestValidationError):
        error = api.value_refusal(request, error)
    problem = problem_from_error(error)
    if problem.status == 500:
        _log.error("a fault in answering %s", log_target(request.scope), exc_info=error)
    elif is_internal_error(error):
        _log.error("%s", error)
    if problem.status == 405:  # the router names the methods of the first route only
        problem.headers["Allow"] = _allowed_methods(request)
    path = request.url.path
    for_programs = path.startswith("/api") and path != api.DOCS_PATH
    if for_programs or problem.status in _JSON_ONLY_STATUSES:
        return problem_response(problem)
    return routes.problem_page(request, problem)


def _allowed_methods(request: Request) -> str:
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return ", ".join(sorted(methods))


# ---- the server

MAX_CONNECTIONS = 256
MAX_EVENT_BYTES = 64 << 10  # of a header; beyond `auth`'s own limit, whose answer is a problem
HEADER_SECONDS = 10.0  # for a whole header; twice that at most
IDLE_SECONDS = 8  # between two requests
WRITE_STALL_SECONDS = 30.0  # for a client that does not read its answer
DRAIN_SECONDS = 1  # to finish answers at the end


def server_config(
    app: FastAPI, listening: socket.socket, tls: ssl.SSLContext | None = None
) -> uvicorn.Config:
    """Say how uvicorn serves the application on a listening socket."""
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it writes about clients only
    # Connections inherit both options. asyncio forgets the first, and a body must not wait for
    # ACKs; uvicorn waits without limit for those who do not read.
    stall = int(WRITE_STALL_SECONDS * 1000)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall)
    config = uvicorn.Config(
        app,
        http=_PageConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        h11_max_incomplete_event_size=MAX_EVENT_BYTES,
    )
    config.load()
    config.ssl = tls  # uvicorn would read files; this one changes when there is a new certificate
    return config


class _PageConnection(H11Protocol):
    """One connection, which ends when a header takes too long, or others need its place.

    uvicorn has no option for either: it waits for a header without limit, and `limit_concurrency`
    turns away those who ask, not those who are silent.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._check_header(None)
        if len(self.connections) >= MAX_CONNECTIONS:
            others = [one for one in self.connections if isinstance(one, _PageConnection)]
            silent = [other for other in others if other.is_silent and other is not self]
            if silent:  # the one whose header has been awaited for longest goes
                min(silent, key=lambda other: other.next_check.when()).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.next_check.cancel()
        super().connection_lost(exc)

    @property
    def is_silent(self) -> bool:
        """Whether a header is awaited."""
        return self.conn.their_state is h11.IDLE and not self.transport.is_closing()

    def _check_header(self, last_awaited: object) -> None:
        """Hang up if the same header was awaited last time. Each request has its own cycle."""
        awaited = (self.cycle,) if self.is_silent else None
        if awaited is not None and awaited == last_awaited:
            self.transport.abort()
        else:
            self.next_check = self.loop.call_later(HEADER_SECONDS, self._check_header, awaited)
