"""Clients that connect from several addresses of loopback and say nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")


@asynccontextmanager
async def silent_clients(port: int, number: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connect so many, one after the other."""
    writers: list[asyncio.StreamWriter] = []
    readers: list[asyncio.StreamReader] = []
    try:
        for count in range(number):
            source = ADDRESSES[count % len(ADDRESSES)]
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(source, 0)
            )
            readers.append(reader)
            writers.append(writer)
        yield readers
    finally:
        for writer in writers:
            writer.transport.abort()
