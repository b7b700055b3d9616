"""Page and API on a port of loopback, with the real server and a service of fixed values, for tests
that speak HTTP.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp

from spamguard.config.options import HostPort, Web
from spamguard.daemon.web import serve_http
from spamguard.web.app import create_app
from spamguard.web.auth import CredentialKind, CredentialStore, Person
from spamguard.web.monitor import page_config
from tests.support.waiting import PATIENCE
from tests.unit.web.fixed import Fixed, Monitor

ROOT = "/api/v1"
MESSAGE = {"Content-Type": "message/rfc822"}
LETTER = b"Subject: hello\r\n\r\nhello\r\n"
ANNA, OPERATOR = Person("anna"), Person("olga", operator=True)
TRUST = ssl.create_default_context()  # reading the authorities takes longer than most tests


@dataclass
class Served:
    """A running server. state: directory of its store; service: its service."""

    state: Path
    port: int
    service: Any
    monitor: Monitor
    scheme: str = "http"
    verify: ssl.SSLContext = TRUST
    clients: list[httpx.Client] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"

    def secret(
        self, kind: CredentialKind, person: Person, seconds: int = 600, name: str = ""
    ) -> str:
        """A new token or link, as the commands make it."""
        store = CredentialStore.open(self.state)
        try:
            now = int(time.time())
            return store.create(
                kind, person, now, name=name or f"t{time.monotonic_ns()}", expires=now + seconds
            )
        finally:
            store.close()

    def client(self, person: Person | None = None, **fields: str) -> httpx.Client:
        """A program with a token of this person."""
        if person is not None:
            fields["Authorization"] = f"Bearer {self.secret(CredentialKind.TOKEN, person)}"
        client = httpx.Client(
            base_url=self.url, headers=fields, timeout=PATIENCE, verify=self.verify
        )
        self.clients.append(client)
        return client

    def browser(self, person: Person) -> httpx.Client:
        """Logged in by a link, as a person."""
        made = self.client(**{"Sec-Fetch-Site": "same-origin"})
        link = self.secret(CredentialKind.LINK, person)
        assert made.post("/login", data={"link": link}).status_code == 303
        return made

    def raw(self, *pieces: bytes, seconds: float = 15, end: bool = False) -> bytes:
        """The response to these bytes, sent unchanged, until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as connected:
            connected.settimeout(seconds)
            for piece in pieces:
                connected.sendall(piece)
            if end:
                connected.shutdown(socket.SHUT_WR)
            found = bytearray()
            try:
                while piece := connected.recv(65536):
                    found += piece
            except ConnectionResetError:
                pass
            return bytes(found)


@contextmanager
def served(
    state: Path,
    web: Web | None = None,
    service: Any = None,
    tls: ssl.SSLContext | None = None,
    mailer: Any = None,
) -> Iterator[Served]:
    """Run it in a thread. web: its place is not used, the port is a free one."""
    (state / "spool").mkdir(exist_ok=True)
    listening = socket.create_server(("127.0.0.1", 0))
    served = Served(
        state, listening.getsockname()[1], service or Fixed(), Monitor(), "https" if tls else "http"
    )
    settings = web or Web(HostPort("127.0.0.1", 1))

    @asynccontextmanager
    async def app(store: CredentialStore) -> AsyncIterator[ASGIApp]:
        yield create_app(settings, state / "spool", served.service, store, served.monitor, mailer)

    with running(served, listening, app, tls):
        yield served


@contextmanager
def running(
    served: Served,
    listening: socket.socket,
    app: Callable[[CredentialStore], AbstractAsyncContextManager[ASGIApp]],
    tls: ssl.SSLContext | None = None,
) -> Iterator[None]:
    """Run a server in a thread. app: makes what it serves, for as long as it runs."""
    began, ends = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        store = CredentialStore.open(served.state)
        try:
            async with app(store) as made:
                began.set()
                await serve_http(page_config(made, listening, tls), listening, ends)
        finally:
            store.close()

    def work() -> None:
        try:
            loop.run_until_complete(run())
        finally:
            began.set()
            loop.close()
            listening.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert began.wait(PATIENCE)
        yield
    finally:
        for client in served.clients:
            client.close()
        loop.call_soon_threadsafe(ends.set)
        thread.join(PATIENCE)
