"""Answers GET and HEAD of a few fixed pages by HTTP/1.x (RFC 9112), one request for each connection, for monitors.

Takes nothing from a request but its method, path and Host, no body. Must never hold more than a few connections, a few kilobytes of
each, and each for some seconds.

Must never answer a stranger's page that has its own name lead here (DNS rebinding), which a browser on this machine would let it read:
who listens on loopback is asked by address, or as localhost.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple

from spamguard.reception.clients import ConnectionLimits

CONNECTIONS = 16
SECONDS = 10.0  # for a request and its answer
LONGEST = 8192  # bytes of a request
_BACKLOG = 64

_REQUEST = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,2000}) HTTP/1\.[01]\r\n")
_HOST = re.compile(rb"\r\nhost:[ \t]*([^\r]*)", re.IGNORECASE)
# What no name server is asked for.
_NOBODY_ELSES = re.compile(rb"(?:localhost|[0-9.]+|\[[0-9a-f:.]+\])(?::[0-9]{0,5})?[ \t]*", re.IGNORECASE)
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error"} | {
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
PLAIN = "text/plain; charset=utf-8"

_log = logging.getLogger("spamguard.metrics")


class Answer(NamedTuple):
    """What is answered."""

    status: int
    body: bytes
    content_type: str = PLAIN


Pages = Mapping[str, Callable[[], Awaitable[Answer]]]


@dataclass(eq=False, slots=True)
class _Client:
    """As of `clients.Idling`: idle until its request has come."""

    writer: asyncio.StreamWriter
    idle_since: float | None


class Server:
    """Serves these pages, by path."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._on_loopback = False
        self._limits = ConnectionLimits[_Client](CONNECTIONS, CONNECTIONS, lambda client: client.writer.transport.abort())

    async def start(self, host: str, port: int) -> asyncio.Server:
        """Listen there. host: an address. OSError."""
        self._on_loopback = ip_address(host).is_loopback
        return await asyncio.start_server(self._serve, host, port, backlog=_BACKLOG, limit=LONGEST)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from beginning to end."""
        client = _Client(writer, asyncio.get_running_loop().time())
        if self._limits.enter(client, "") is not None:
            writer.transport.abort()
            return
        try:
            with suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError):
                async with asyncio.timeout(SECONDS):
                    writer.write(await self._answer(reader, client))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._limits.leave(client)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, client: _Client) -> bytes:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _written(Answer(431, b"too long\n"))
        finally:
            client.idle_since = None
        match = _REQUEST.match(request)
        if match is None:
            return _written(Answer(400, b"not understood\n"))
        if match[1] not in (b"GET", b"HEAD"):
            return _written(Answer(405, b"only GET and HEAD\n"))
        if self._on_loopback and not all(map(_NOBODY_ELSES.fullmatch, _HOST.findall(request))):
            return _written(Answer(421, b"on loopback, ask by address or as localhost\n"))
        path = match[2].decode("ascii").partition("?")[0]
        return _written(await self._page(path), with_body=match[1] == b"GET")

    async def _page(self, path: str) -> Answer:
        page = self._pages.get(path)
        if page is None:
            return Answer(404, "".join(f"{one}\n" for one in self._pages).encode())
        try:
            return await page()
        except Exception:  # a fault of ours must not end the server  # noqa: BLE001
            _log.exception("a fault in answering %s", path)
            return Answer(500, b"a fault, see the log\n")


def _written(answer: Answer, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        *(["Allow: GET, HEAD"] if answer.status == 405 else []),
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    )
    return "".join(f"{line}\r\n" for line in (*head, "")).encode("ascii") + (answer.body if with_body else b"")
