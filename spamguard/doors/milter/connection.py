"""Packets in and out of one connection, each with its deadline.

Must never wait for ever, and never keep more than a packet that is coming in and a few replies.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from contextlib import suppress

from spamguard.reception.conversation import Gone
from spamguard.wire.milter import Packet, PacketReader

_READ_BYTES = 128 << 10  # at a time
_TURN = 200  # packets in a row before others get theirs


class Connection:
    """What is said is sent before the next waiting. seconds: for a packet that has begun, and for the server to take replies."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
        self._reader = reader
        self._writer = writer
        self._seconds = seconds
        self._packets = PacketReader()
        self._said = bytearray()
        self._turns = 0
        self._socket: socket.socket | None = writer.get_extra_info("socket")
        self._acknowledge()

    async def packet(self, until: float) -> Packet:
        """The next one, if it begins before `until`, a time of the loop's clock. Gone, TimeoutError, `MalformedError`."""
        self._turns += 1
        if self._turns >= _TURN:
            self._turns = 0
            await self.flush()  # who has had its answer is idle, and may be evicted
            await asyncio.sleep(0)
        begun = False
        while (found := self._packets.next()) is None:
            await self.flush()
            if self._packets.begun and not begun:
                begun, until = True, min(until, asyncio.get_running_loop().time() + self._seconds)
            await self._read(until)
        return found

    async def _read(self, until: float) -> None:
        async with asyncio.timeout_at(until):
            data = await self._reader.read(_READ_BYTES)
        if not data:
            raise Gone
        self._acknowledge()
        self._packets.feed(data)

    def _acknowledge(self) -> None:
        """At once, what came by TCP: Postfix holds the next packet back until the last was acknowledged, and Linux would wait 40 ms.

        Asked for after every reading, as Linux forgets it.
        """
        if self._socket is not None and self._socket.family in (socket.AF_INET, socket.AF_INET6):
            with suppress(OSError):  # gone meanwhile, as the next reading tells
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def say(self, packets: Iterable[bytes]) -> None:
        """Answer, together with what else there is to say before the next waiting."""
        for one in packets:
            self._said += one

    async def flush(self) -> None:
        """Hand everything said to the server. TimeoutError when it does not take it."""
        if self._said:
            self._writer.write(bytes(self._said))
            self._said.clear()
            async with asyncio.timeout(self._seconds):
                await self._writer.drain()
