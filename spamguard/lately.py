"""What a slow look has found lately, so that who asks often costs no more than who asks now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Found = TypeVar("Found")

ERROR_SECONDS = 2.0  # that an error is kept, at most: who asks is told to come again in a moment


class Lately(Generic[Found]):
    """look: what is looked at, never twice at once. seconds: how long that is good for, an error less. patience: seconds to wait for it."""

    def __init__(self, look: Callable[[], Awaitable[Found]], seconds: float, patience: float) -> None:
        self._look = look
        self._seconds = seconds
        self._patience = patience
        self._looking: asyncio.Task[Found] | None = None
        self._until = 0.0

    async def get(self) -> Found:
        """What was found, or is found now. TimeoutError: it takes too long; what the look raises."""
        loop = asyncio.get_running_loop()
        if self._looking is None or (self._looking.done() and loop.time() >= self._until):
            self._looking = loop.create_task(self._looked())
            self._looking.add_done_callback(_hear_out)
        return await asyncio.wait_for(asyncio.shield(self._looking), self._patience)

    async def _looked(self) -> Found:
        seconds = min(self._seconds, ERROR_SECONDS)
        try:
            found = await self._look()
            seconds = self._seconds
        finally:
            self._until = asyncio.get_running_loop().time() + seconds
        return found


def _hear_out(looked: asyncio.Task[Found]) -> None:
    """An error that comes when nobody waits any more is nobody's; asyncio would log it as a fault."""
    if not looked.cancelled():
        looked.exception()
