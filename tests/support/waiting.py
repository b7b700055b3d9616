"""Waiting for events in another process, thread or task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 30.0  # seconds until a wait gives up, on a busy core too
COMMAND_SECONDS = 300.0  # for a whole command: it may install packages, or teach thousands


def eventually(check: Callable[[], object], what: str = "", seconds: float = PATIENCE) -> None:
    """Wait until the check is true. AssertionError if it never is. what: the condition in words.

    It pauses as long as a check takes, so that what it waits for has the core meanwhile.
    """
    began = time.monotonic()
    until = began + seconds
    while not check():
        assert time.monotonic() < until, f"never so: {what or check}"
        time.sleep(max(0.02, time.monotonic() - began))
        began = time.monotonic()


async def until(check: Callable[[], object], what: str = "", seconds: float = PATIENCE) -> None:
    """The same for events in this event loop."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"never so: {what or check}"
        await asyncio.sleep(0.005)


async def drain(door: Any, seconds: float) -> None:
    """End a door as a worker does."""
    door.close()
    await door.wait_for_sessions(seconds)
    await door.cut_off()
