"""HTTP/1.1 itself: uvicorn's protocol on a socket of ours, with clocks of our own on every connection.

uvicorn waits for ever for the rest of a header, and for a reader that has stopped reading. Must never hold more than so many connections,
or one that does nothing.
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
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from spamguard.reception.clients import ConnectionLimits
from spamguard.web.access.asking import HEADER_BYTES
from spamguard.web.access.problems import answer, problem

CONNECTIONS = 256
HEADER_SECONDS = 10.0  # from the first to the last byte of a header, and to the first of the next request
IDLE_SECONDS = 8  # between two requests
STUCK_SECONDS = 30.0  # in which nothing of an answer could be sent
_LOOK_SECONDS = 1.0
HANDSHAKES = 128  # at once: the oldest goes. They come before the connections that are counted, and each has a file descriptor
_HANDSHAKE_SECONDS = 10.0
_NO_MORE_SECONDS = 1.0  # until it is tried again to accept, when there is none left
_END_SECONDS = 0.7  # for what is being answered when it ends: who has asked for that waits for a second


class Server:
    """app: what answers."""

    def __init__(self, app: ASGIApp) -> None:
        for name in ("uvicorn.error", "python_multipart"):  # what these say of clients is none of our log's business
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
            h11_max_incomplete_event_size=HEADER_BYTES,
        )
        self._config.load()
        self._state = ServerState()
        self._limits = ConnectionLimits[_Connection](CONNECTIONS, CONNECTIONS, lambda connection: connection.transport.abort())
        self._beginning: OrderedDict[asyncio.Task[Any], None] = OrderedDict()  # oldest first
        self._accepting: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Answer on this socket, which listens, from now on; it is the server's."""
        listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listening, tls))

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    own, _ = await loop.sock_accept(listening)
                except OSError:
                    await asyncio.sleep(_NO_MORE_SECONDS)
                    continue
                if len(self._beginning) >= HANDSHAKES:
                    self._beginning.popitem(last=False)[0].cancel()
                began = loop.create_task(
                    loop.connect_accepted_socket(self._connection, own, ssl=tls, ssl_handshake_timeout=_HANDSHAKE_SECONDS if tls else None)
                )
                self._beginning[began] = None
                began.add_done_callback(partial(self._begun, own))
                await asyncio.sleep(0)  # many may wait to be accepted: others go on meanwhile

    def _begun(self, own: socket.socket, began: asyncio.Task[Any]) -> None:
        self._beginning.pop(began, None)
        if began.cancelled() or began.exception() is not None:  # whoever does not speak TLS is none of our log's business either
            own.close()

    def _connection(self) -> _Connection:
        return _Connection(self._config, self._state, self._limits)

    async def end(self) -> None:
        """Accept no more, finish what is being answered, soon."""
        if self._accepting is None:
            return
        ended = [self._accepting, *self._beginning]
        for task in ended:
            task.cancel()
        await asyncio.wait(ended)
        for connection in list(self._state.connections):
            connection.shutdown()
        tasks = list(self._state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=_END_SECONDS)
        for connection in list(self._state.connections):
            connection.transport.abort()


class _Connection(H11Protocol):
    """One connection, looked at every second. waiting: since when no request is there, on the loop's clock."""

    transport: asyncio.Transport
    waiting: float

    def __init__(self, config: uvicorn.Config, state: ServerState, limits: ConnectionLimits[_Connection]) -> None:
        super().__init__(config, state, {})
        self._limits = limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.waiting = self.loop.time()
        own = transport.get_extra_info("socket")
        if own is not None:  # asyncio forgets it for some: head and body of an answer are two pieces, the second must not wait
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._limits.enter(self, "") is not None:
            transport.abort()
        super().connection_made(transport)
        self._unsent, self._stuck = 0, self.waiting
        self._clock = self.loop.call_later(_LOOK_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clock.cancel()
        self._limits.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.conn.our_state is h11.ERROR or self.transport.is_closing():
            return
        super().data_received(data)

    def on_response_complete(self) -> None:
        self.waiting = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """What is no HTTP, or too long. Called while the error is being handled, which knows which of these it is."""
        error = sys.exc_info()[1]
        status = getattr(error, "error_status_hint", 400)
        with suppress(h11.LocalProtocolError):  # another answer has begun: this one cannot be told
            told = answer(problem(status, "this is not a request that is understood here"))
            fields = [*told.raw_headers, (b"connection", b"close")]
            self.transport.write(self.conn.send(h11.Response(status_code=status, headers=fields)) or b"")
            self.transport.write(self.conn.send(h11.Data(data=bytes(told.body))) or b"")
            self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")
        self.transport.close()

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def idle_since(self) -> float | None:
        """As of `clients.Idling`: only who has shown who they are has a transaction, as others may be slow on purpose."""
        spare = self.idle or self.cycle.scope["state"].get("visitor") is None
        return self.waiting if spare else None

    def _look(self) -> None:
        now = self.loop.time()
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent < self._unsent:
            self._stuck = now
        self._unsent = unsent
        if (self.idle and not unsent and now - self.waiting > HEADER_SECONDS) or now - self._stuck > STUCK_SECONDS:
            self._cut_off()
            return
        self._clock = self.loop.call_later(_LOOK_SECONDS, self._look)

    def _cut_off(self) -> None:
        """At once: else the kernel would keep what could not be sent, and go on trying."""
        own = self.transport.get_extra_info("socket")
        if own is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
