"""The web application, page and API together, and the HTTP/1.1 server that runs it.

The server is uvicorn's protocol on a socket of our own. uvicorn waits without limit for the rest of
a header, and for a client that has stopped reading; so each connection is checked once a second.

The server must never hold more than `MAX_CONNECTIONS` connections, or an idle connection for long.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
import sys
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import h11
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from spamguard.config.options import Web
from spamguard.limits import ConnectionLimits
from spamguard.web.api import api_routes
from spamguard.web.auth import MAX_HEADER_BYTES, SessionManager
from spamguard.web.credentials import CredentialStore
from spamguard.web.health import HealthReporter
from spamguard.web.middleware import AccessMiddleware
from spamguard.web.pages import routes
from spamguard.web.problems import Problem, make_problem, problem_response
from spamguard.web.service import Service

# These get no page, because the client may not be a browser that we want to serve.
_JSON_ONLY_STATUSES = (414, 421, 431, 505)


def create_app(
    web: Web, spool: Path, service: Service, store: CredentialStore, monitor: HealthReporter
) -> AccessMiddleware:
    """Put page and API together. spool: directory for uploaded messages."""
    sessions = SessionManager(store, frozenset(web.proxy.operators if web.proxy else ()))
    all_routes = [
        *api_routes(service, monitor, web.limits.message_size),
        *routes.page_routes(service, monitor, sessions),
    ]
    router = Router(all_routes, redirect_slashes=False)
    return AccessMiddleware(router, web, sessions, spool, show_problem)


def show_problem(request: Request, problem: Problem) -> Response:
    """Tell of a problem, to a program as JSON and to a person as a page."""
    if request.url.path.startswith("/api") or problem.status in _JSON_ONLY_STATUSES:
        return problem_response(problem)
    return routes.problem_page(request, problem)


# ---- the server

MAX_CONNECTIONS = 256
HEADER_SECONDS = 10.0  # for a whole header, and until the first byte of the next request
IDLE_SECONDS = 8  # between two requests
WRITE_STALL_SECONDS = 30.0  # without any progress in sending an answer
# At once; the oldest ends. They are not connections yet, but each has a file descriptor.
MAX_HANDSHAKES = 128
_HANDSHAKE_SECONDS = 10.0
_CHECK_SECONDS = 1.0
_ACCEPT_RETRY_SECONDS = 1.0  # when there are no file descriptors
_DRAIN_SECONDS = 0.7  # to finish answers at the end; the master waits for a second


class WebServer:
    """Serves an application on a listening socket."""

    def __init__(self, app: ASGIApp) -> None:
        for name in ("uvicorn.error", "python_multipart"):  # they write about clients only
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._config = uvicorn.Config(
            app,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        )
        self._config.load()
        self._state = ServerState()
        self._limits = ConnectionLimits[_WebConnection](
            MAX_CONNECTIONS, MAX_CONNECTIONS, lambda connection: connection.transport.abort()
        )
        self._handshakes: OrderedDict[asyncio.Task[Any], None] = OrderedDict()  # oldest first
        self._accept_task: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serve on a listening socket, which belongs to the server from now on."""
        listening.setblocking(False)
        self._accept_task = asyncio.create_task(self._accept(listening, tls))

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        timeout = _HANDSHAKE_SECONDS if tls else None
        with listening:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(listening)
                except OSError:
                    await asyncio.sleep(_ACCEPT_RETRY_SECONDS)
                    continue
                if len(self._handshakes) >= MAX_HANDSHAKES:
                    self._handshakes.popitem(last=False)[0].cancel()
                handshake = loop.create_task(
                    loop.connect_accepted_socket(
                        lambda: _WebConnection(self._config, self._state, self._limits),
                        accepted,
                        ssl=tls,
                        ssl_handshake_timeout=timeout,
                    )
                )
                self._handshakes[handshake] = None
                handshake.add_done_callback(partial(self._handshake_done, accepted))
                await asyncio.sleep(0)  # lets others run while many wait to be accepted

    def _handshake_done(self, accepted: socket.socket, handshake: asyncio.Task[Any]) -> None:
        """Close the socket of a failed handshake, which is not worth a line in the log."""
        self._handshakes.pop(handshake, None)
        if handshake.cancelled() or handshake.exception() is not None:
            accepted.close()

    async def stop(self) -> None:
        """Accept no more connections, and finish answers within a moment."""
        if self._accept_task is None:
            return
        cancelled = [self._accept_task, *self._handshakes]
        for task in cancelled:
            task.cancel()
        await asyncio.wait(cancelled)
        for connection in list(self._state.connections):
            connection.shutdown()
        answers = list(self._state.tasks)
        if answers:
            await asyncio.wait(answers, timeout=_DRAIN_SECONDS)
        for connection in list(self._state.connections):
            connection.transport.abort()


class _WebConnection(H11Protocol):
    """One connection. waiting_since: when its last request ended, on the loop's clock."""

    transport: asyncio.Transport
    waiting_since: float

    def __init__(
        self, config: uvicorn.Config, state: ServerState, limits: ConnectionLimits[_WebConnection]
    ) -> None:
        super().__init__(config, state, {})
        self._limits = limits

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)
        self.waiting_since = self.loop.time()
        own_socket = transport.get_extra_info("socket")
        if own_socket is not None:  # asyncio forgets it for some; the body must not wait for ACKs
            own_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._limits.enter(self, "") is not None:
            transport.abort()
        super().connection_made(transport)
        self._unsent, self._progress_time = 0, self.waiting_since
        self._check_timer = self.loop.call_later(_CHECK_SECONDS, self._check_progress)

    def connection_lost(self, exc: Exception | None) -> None:
        self._check_timer.cancel()
        self._limits.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.conn.our_state is h11.ERROR or self.transport.is_closing():
            return
        super().data_received(data)

    def on_response_complete(self) -> None:
        self.waiting_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  uvicorn gives it
        """Answer what is not HTTP, or is too long. uvicorn calls it while it handles the error."""
        status = getattr(sys.exc_info()[1], "error_status_hint", 400)
        with suppress(h11.LocalProtocolError):  # another answer has already begun
            answer = problem_response(make_problem(status, "this is not a valid HTTP request"))
            fields = [*answer.raw_headers, (b"connection", b"close")]
            head = h11.Response(status_code=status, headers=fields)
            self.transport.write(self.conn.send(head) or b"")
            self.transport.write(self.conn.send(h11.Data(data=bytes(answer.body))) or b"")
            self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")
        self.transport.close()

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def idle_since(self) -> float | None:
        """As of `limits.Evictable`. Only a visitor's request protects a connection.

        An anonymous client may be slow on purpose.
        """
        evictable = self.idle or self.cycle.scope["state"].get("visitor") is None
        return self.waiting_since if evictable else None

    def _check_progress(self) -> None:
        now = self.loop.time()
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent < self._unsent:
            self._progress_time = now
        self._unsent = unsent
        silent = self.idle and not unsent and now - self.waiting_since > HEADER_SECONDS
        if not silent and now - self._progress_time <= WRITE_STALL_SECONDS:
            self._check_timer = self.loop.call_later(_CHECK_SECONDS, self._check_progress)
            return
        own_socket = self.transport.get_extra_info("socket")
        if own_socket is not None:  # resets the connection: the kernel does not try any longer
            own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
