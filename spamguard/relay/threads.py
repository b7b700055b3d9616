"""Blocking work, such as writing to the disk, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


async def finished(work: Callable[[], Result]) -> Result:
    """Blocking work, in a thread. Who is cancelled waits all the same until it is done: it reads a spool that is closed next."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise
