"""Blocking work, such as writing to the disk, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar
from weakref import WeakKeyDictionary

_MOST = 16  # pieces of work at once
_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor] = WeakKeyDictionary()
"""Not the event loop's own few: it looks up names there, and where nobody answers for names each takes one for many seconds."""

Result = TypeVar("Result")


async def finished(work: Callable[[], Result]) -> Result:
    """Blocking work, in a thread. Who is cancelled waits all the same until it is done: it reads a spool that is closed next."""
    loop = asyncio.get_running_loop()
    if loop not in _threads:
        _threads[loop] = ThreadPoolExecutor(_MOST, "work")
    running = loop.run_in_executor(_threads[loop], work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise
