"""What monitors are answered over HTTP, and clients that are slow, large, many or hostile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.responses import PlainTextResponse, Response

from spamguard import process
from spamguard.daemon.web import serve_http
from spamguard.web import monitor
from tests.support.waiting import PATIENCE


async def plain(_: str) -> Response:
    return PlainTextResponse(b"well\n")


async def unwell(_: str) -> Response:
    return Response(b"not so\n", 503, {"Content-Type": "text/x"})


async def broken(_: str) -> Response:
    raise RuntimeError("secret")


PAGES = {"/a": plain, "/b": unwell, "/broken": broken}


def served_while(work: Callable[[int], Awaitable[None]], host: str = "127.0.0.1") -> None:
    """Run something against a server on a port."""

    async def run() -> None:
        listening, ending = process.listen(host, 0), asyncio.Event()
        port = listening.getsockname()[1]
        app = monitor.create_monitor_app(PAGES, on_loopback=host == "127.0.0.1")
        server = asyncio.create_task(serve_http(monitor.monitor_config(app), listening, ending))
        try:
            await work(port)
        finally:
            ending.set()
            await server

    asyncio.run(run())


async def exchanged(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), PATIENCE)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, b"well\n"),
        (b"GET /a HTTP/1.0\r\n\r\n", 200, b"well\n"),
        (
            b"GET /a?x=1 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
            421,
            b"on loopback, ask by address or as localhost\n",
        ),
        (b"GET /b HTTP/1.0\r\n\r\n", 503, b"not so\n"),
        (b"HEAD /a HTTP/1.0\r\n\r\n", 200, b""),
        (b"GET / HTTP/1.0\r\n\r\n", 404, b"Not Found"),
        (b"GET /a/ HTTP/1.0\r\n\r\n", 404, b"Not Found"),
        (b"GET /../a HTTP/1.0\r\n\r\n", 404, b"Not Found"),
        (b"GET /" + b"a" * 3000 + b" HTTP/1.0\r\n\r\n", 404, b"Not Found"),
        (b"GET http://x/a HTTP/1.0\r\n\r\n", 404, b"Not Found"),
        (b"POST /a HTTP/1.0\r\nContent-Length: 0\r\n\r\n", 405, b"Method Not Allowed"),
        (b"DELETE /a HTTP/1.0\r\n\r\n", 405, b"Method Not Allowed"),
        (b"GET /a HTTP/1.1\r\n\r\n", 400, b"Invalid HTTP request received."),
        (b"GET /a\r\n\r\n", 400, b"Invalid HTTP request received."),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400, b"Invalid HTTP request received."),
        (
            b"GET /a HTTP/1.0\r\nX: " + b"a" * 9000,
            400,
            b"Invalid HTTP request received.",
        ),
        (b"GET /broken HTTP/1.0\r\n\r\n", 500, b"a fault, see the log\n"),
    ],
    ids=lambda value: (
        value[:20].decode("latin-1").strip() if isinstance(value, bytes) else str(value)
    ),
)
def test_requests(request_: bytes, status: int, body: bytes) -> None:
    async def work(port: int) -> None:
        head, _, found = (await exchanged(port, request_)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert found == body
        assert b"connection: close" in head.lower()
        assert b"evil" not in head
        assert (b"allow: GET, HEAD" in head or b"allow: HEAD, GET" in head) == (status == 405)

    served_while(work)


def test_elsewhere_every_host_name_is_accepted() -> None:
    async def work(port: int) -> None:
        assert b"well" in await exchanged(
            port, b"GET /a HTTP/1.1\r\nHost: mail.example.org:9110\r\n\r\n"
        )

    served_while(work, "0.0.0.0")


def test_the_oldest_connection_makes_room() -> None:
    async def work(port: int) -> None:
        idle = [
            await asyncio.open_connection("127.0.0.1", port) for _ in range(monitor.MAX_CONNECTIONS)
        ]
        await asyncio.sleep(0.1)
        assert b"well" in await exchanged(port, b"GET /a HTTP/1.0\r\n\r\n")
        assert await asyncio.wait_for(idle[0][0].read(), PATIENCE) == b""
        idle[1][1].write(b"GET /a HTTP/1.0\r\n\r\n")
        assert b"well" in await asyncio.wait_for(idle[1][0].read(), PATIENCE)
        for _, writer in idle:
            writer.close()

    served_while(work)
