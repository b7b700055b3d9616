"""One client that asks and is answered over a stream: bytes in and out, deadlines, and a good end.

Must never hold more than some pieces for a client, never wait without a deadline, and never let one client's fault end a door.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from spamguard.reception.clients import Crowd, Load
from spamguard.settings import ScannerLimits

PIECE = 64 << 10  # bytes read at a time
_LAST_CHANCE_SECONDS = 1.0  # a door that closes still hears who is about to ask something
_HEAR_OUT_SECONDS = 1.0  # for a client to stop sending
_LINGER_SECONDS = 10.0  # for the last answer to be taken

_log = logging.getLogger("spamguard.doors")


class Leaving(Exception):  # noqa: N818  # no errors: conversations end
    """The conversation is over."""


class Gone(Leaving):
    """There is nobody left to talk to."""


class Late(Leaving):
    """The client has let a deadline pass."""


@dataclass(frozen=True, slots=True)
class House:
    """What is the same for all conversations of a door."""

    limits: ScannerLimits
    load: Load


class Conversation(ABC):
    """One client (`reception.door.Session`). address: of the connection, "" of a Unix socket."""

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter

    def __init__(self, house: House, address: str) -> None:
        self._house = house
        self.address = address
        self.draining = False
        self.idle_since: float | None = None  # from a request's first byte to its answer there is a transaction
        self._opened = False
        self._waiting: asyncio.Timeout | None = None  # for the next request
        self._ends = 0.0  # when the present request must be here
        self._sending = False  # whether the client may be about to send more when we end

    # What a protocol does.

    @abstractmethod
    async def converse(self) -> None:
        """Answer requests until there are no more of them."""

    @abstractmethod
    def turned_away(self, refused: Crowd) -> bytes:
        """What a client is told that is not served."""

    # The conversation as a whole.

    async def serve(self, connected: socket.socket, refused: Crowd | None) -> None:
        """From its first byte to its last."""
        self.idle_since = asyncio.get_running_loop().time()
        if await self._open(connected):
            await self._talk(refused)

    async def _open(self, connected: socket.socket) -> bool:
        loop = asyncio.get_running_loop()
        self._reader = asyncio.StreamReader(limit=PIECE, loop=loop)
        protocol = asyncio.StreamReaderProtocol(self._reader, loop=loop)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connected)
        except OSError as error:
            _log.info("connection lost at once: %s", error)
            connected.close()
            return False
        self._writer = asyncio.StreamWriter(transport, protocol, self._reader, loop)
        self._opened = True
        return True

    async def _talk(self, refused: Crowd | None) -> None:
        try:
            if refused is not None:
                self.leave_while_sending()
                await self.say(self.turned_away(refused))
            else:
                await self.converse()
        except Leaving:
            pass
        except Exception:  # a fault of ours must not end the door  # noqa: BLE001
            _log.exception("%s: a fault in this conversation", self.address)
        finally:
            await self._close()

    def drain(self) -> None:
        """End as soon as nothing is under way. What a client has sent that does not know yet would get no answer: it has a moment."""
        self.draining = True
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time() + _LAST_CHANCE_SECONDS)

    def abort(self) -> None:
        """Drop the client with all that was not sent."""
        if self._opened:
            self._writer.transport.abort()

    def leave_while_sending(self) -> None:
        """The client may send more. Closing upon that would be a reset, which takes the last answer away from it."""
        self._sending = True

    async def _close(self) -> None:
        self.idle_since = None
        if self._sending:
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(_HEAR_OUT_SECONDS):
                    self._writer.write_eof()
                    while await self._reader.read(PIECE):
                        pass
        self._writer.close()
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                await self._writer.wait_closed()
        except OSError:  # TimeoutError is one
            self.abort()

    # For the protocol.

    async def next(self) -> bytes:
        """The first piece of the next request; b"" when there is none: the client has gone or keeps silent, or the door closes."""
        loop = asyncio.get_running_loop()
        if self.idle_since is None:
            self.idle_since = loop.time()
        seconds = self._house.limits.command_seconds
        seconds = min(seconds, _LAST_CHANCE_SECONDS) if self.draining else seconds
        try:
            async with asyncio.timeout(seconds) as self._waiting:
                piece = await self._reader.read(PIECE)
        except OSError:  # TimeoutError is one
            return b""
        finally:
            self._waiting = None
        self.idle_since = None
        self._ends = loop.time() + self._house.limits.message_seconds
        return piece

    async def more(self) -> bytes:
        """The next piece of a request; b"" when no more comes. Gone, Late."""
        seconds = min(self._house.limits.data_seconds, self._ends - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(max(seconds, 0)):
                return await self._reader.read(PIECE)
        except TimeoutError:
            raise Late from None
        except OSError:
            raise Gone from None

    async def say(self, data: bytes) -> None:
        """Answer. Gone when the client does not take it."""
        self._writer.write(data)
        try:
            async with asyncio.timeout(self._house.limits.data_seconds):
                await self._writer.drain()
        except OSError:
            self.abort()
            raise Gone from None

    async def say_all(self, pieces: Iterable[bytes]) -> None:
        """A long answer, for which the client has as much time as for a message, however steadily it takes some. Gone."""
        try:
            async with asyncio.timeout(self._house.limits.message_seconds):
                for piece in pieces:
                    await self.say(piece)
        except TimeoutError:
            self.abort()
            raise Gone from None
