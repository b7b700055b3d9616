"""A connection to a next hop: deadlines, bounded memory, and its errors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import struct
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from spamguard.config.options import Endpoint, Protocol
from spamguard.delivery.connection import NextHopConnection, dial
from spamguard.delivery.next_hop import (
    DisconnectedError,
    NextHopTimeoutError,
    TlsHandshakeError,
    UnreachableError,
    describe_error,
)
from spamguard.smtp.envelope import Reply
from tests.e2e.ports import free_port
from tests.support.waiting import until


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[NextHopConnection, socket.socket]]:
    """A connection and its other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = await dial(Endpoint(Protocol.SMTP, *server.getsockname()), 5)
        other, _ = server.accept()
    try:
        with other:
            yield connection, other
    finally:
        connection.abort()
        await asyncio.sleep(0)


def with_connection(
    test: Callable[[NextHopConnection, socket.socket], Awaitable[None]],
) -> Callable[[], None]:
    """Give a test a connection and its other end, in an event loop."""

    async def run() -> None:
        async with connected() as (connection, other):
            await test(connection, other)

    return lambda: asyncio.run(run())


def soon(connection: NextHopConnection) -> float:
    return connection.deadline_after(0.3)


@with_connection
async def test_a_last_reply_is_read_even_if_writing_fails_first(
    connection: NextHopConnection, other: socket.socket
) -> None:
    other.sendall(b"552 5.3.4 too big\r\n")
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
    # fails at once, before the event loop has looked at what there is to read
    connection.write(b"x" * 100_000)
    assert await connection.read_reply(soon(connection)) == Reply.from_text(552, "5.3.4 too big")
    with pytest.raises(DisconnectedError):
        await connection.read_reply(soon(connection))


@with_connection
async def test_others_get_their_turn_while_a_large_message_goes_out(
    connection: NextHopConnection, other: socket.socket
) -> None:
    task = asyncio.create_task(asyncio.sleep(0))
    assert await connection.wait_writable(1)
    assert await connection.wait_writable(1)
    assert task.done()


@with_connection
async def test_there_is_no_room_until_the_other_end_reads(
    connection: NextHopConnection, other: socket.socket
) -> None:
    connection.write(b"x" * (32 << 20))
    with pytest.raises(NextHopTimeoutError):
        await connection.wait_writable(0.2)
    reading = asyncio.create_task(asyncio.to_thread(_read, other, 32 << 20))
    assert await connection.wait_writable(10)
    await reading


def _read(other: socket.socket, size: int) -> None:
    while size > 0:
        size -= len(other.recv(1 << 20))


@with_connection
async def test_a_reply_that_came_counts_although_the_connection_has_ended(
    connection: NextHopConnection, other: socket.socket
) -> None:
    other.sendall(b"250 one\r\n250 two\r\n25")
    other.close()
    await asyncio.sleep(0.05)
    assert not connection.is_quiet
    assert [(await connection.read_reply(soon(connection))).lines for _ in range(2)] == [
        (b"one",),
        (b"two",),
    ]
    with pytest.raises(DisconnectedError):
        await connection.read_reply(soon(connection))


@with_connection
async def test_what_still_waits_at_an_abort_is_never_sent(
    connection: NextHopConnection, other: socket.socket
) -> None:
    connection.write(b"x" * (32 << 20))
    connection.abort()
    with pytest.raises(DisconnectedError):
        await connection.read_reply(soon(connection))
    await asyncio.sleep(0.01)
    size = 0
    with contextlib.suppress(ConnectionResetError):
        while data := other.recv(1 << 20):
            size += len(data)
    assert size < 32 << 20


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
    connection: NextHopConnection, other: socket.socket
) -> None:
    sending = asyncio.create_task(asyncio.to_thread(other.sendall, b"250 more\r\n" * 100_000))
    for _ in range(100_000):
        assert (await connection.read_reply(connection.deadline_after(10))).code == 250
    await sending
    assert connection.is_quiet


@with_connection
async def test_the_deadline_of_one_wait_does_not_end_the_next(
    connection: NextHopConnection, other: socket.socket
) -> None:
    loop = asyncio.get_running_loop()
    loop.call_later(0.05, other.sendall, b"250 one\r\n")
    await connection.read_reply(connection.deadline_after(1))
    loop.call_later(1.3, other.sendall, b"250 two\r\n")
    assert (await connection.read_reply(connection.deadline_after(10))).lines == (b"two",)


def test_nothing_holds_a_connection_that_never_was_encrypted() -> None:
    """The deadline of the answer before is minutes away."""

    async def run() -> None:
        async with connected() as (connection, other):
            other.sendall(b"220 go ahead\r\n")
            await connection.read_reply(connection.deadline_after(3600))
            with pytest.raises(TlsHandshakeError):
                await connection.start_tls(ssl.create_default_context(), "x", 0.05)
            connection.abort()
        watched = weakref.ref(connection)
        del connection
        await until(lambda: gc.collect() >= 0 and watched() is None)

    asyncio.run(run())


@with_connection
async def test_a_connection_that_has_ended_is_not_quiet(
    connection: NextHopConnection, other: socket.socket
) -> None:
    assert connection.is_quiet
    other.close()
    await asyncio.sleep(0.05)
    assert not connection.is_quiet


def test_errors_are_described_in_words(tmp_path: Path) -> None:
    async def told(endpoint: Endpoint) -> str:
        with pytest.raises(UnreachableError) as error:
            await dial(endpoint, 5)
        return str(error.value)

    assert (
        asyncio.run(told(Endpoint(Protocol.SMTP, "127.0.0.1", free_port())))
        == "connect: Connection refused"
    )
    assert (
        asyncio.run(told(Endpoint(Protocol.LMTP, path=tmp_path / "none")))
        == "connect: No such file or directory"
    )
    assert describe_error(TimeoutError()) == "no answer in time"
    assert (
        describe_error(socket.gaierror(-2, "Name or service not known"))
        == "Name or service not known"
    )
    assert describe_error(ssl.SSLError(1, "certificate has expired")) == "certificate has expired"
    assert describe_error(None) == "closed"
