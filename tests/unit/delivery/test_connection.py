"""A connection to a next hop: deadlines, bounded memory, and its errors."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from spamguard.config.options import Endpoint, Protocol
from spamguard.delivery.next_hop import UnreachableError
from spamguard.delivery.smtp import NextHopSession, dial
from tests.e2e.ports import free_port


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[NextHopSession, socket.socket]]:
    """A connection and its other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = await dial(Endpoint(Protocol.SMTP, *server.getsockname()), 5, 5)
        other, _ = server.accept()
    try:
        with other:
            yield connection, other
    finally:
        connection.abort()
        await asyncio.sleep(0)


def with_connection(
    test: Callable[[NextHopSession, socket.socket], Awaitable[None]],
) -> Callable[[], None]:
    """Give a test a connection and its other end, in an event loop."""

    async def run() -> None:
        async with connected() as (connection, other):
            await test(connection, other)

    return lambda: asyncio.run(run())


def test_reading_pauses_while_replies_are_unread() -> None:
    async def run() -> int:
        async with connected() as (_, other):
            other.setblocking(False)
            sent = blocked = 0
            while blocked < 20 and sent < 200 << 20:
                try:
                    sent += other.send(b"250 more\r\n" * 10_000)
                except BlockingIOError:
                    blocked += 1
                    await asyncio.sleep(0.02)
                await asyncio.sleep(0)
            return sent

    assert asyncio.run(run()) < 100 << 20


@with_connection
async def test_what_had_to_wait_is_read_in_the_end(
    connection: NextHopSession, other: socket.socket
) -> None:
    sending = asyncio.create_task(asyncio.to_thread(other.sendall, b"250 more\r\n" * 100_000))
    for _ in range(100_000):
        assert (await connection.read_reply(connection.deadline_after(10))).code == 250
    await sending
    assert connection.is_quiet


def test_errors_are_described_in_words(tmp_path: Path) -> None:
    async def told(endpoint: Endpoint) -> str:
        with pytest.raises(UnreachableError) as error:
            await dial(endpoint, 5, 5)
        return str(error.value)

    port, path = free_port(), tmp_path / "none"
    assert "refused" in asyncio.run(told(Endpoint(Protocol.SMTP, "127.0.0.1", port)))
    assert "No such file" in asyncio.run(told(Endpoint(Protocol.LMTP, path=path)))
