"""Deadlines and blocking work, for all that runs in an event loop.

A `DeadlineTimer` moves its deadline at each step without a new timer each time; `asyncio.timeout`
costs ten times as much.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, TypeVarTuple


class DeadlineTimer(ABC):
    """Has at most one deadline, a time of the event loop's clock. Belongs to one loop."""

    _deadline: float | None = None
    _timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def deadline_passed(self) -> None:
        """Called once when the deadline passes; there is none any more."""

    def set_deadline(self, when: float) -> None:
        self._deadline = when
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._on_timer)

    def clear_deadline(self) -> None:
        self._deadline = None

    def cancel_deadline(self) -> None:
        """Remove the deadline, and have the loop let this object go."""
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        when, self._deadline = self._deadline, None
        if when is None:
            return
        if asyncio.get_running_loop().time() < when:
            self.set_deadline(when)
        else:
            self.deadline_passed()


Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


async def run_in_thread(work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """`asyncio.to_thread`, but a cancelled caller waits until the work is done: it may read a spool
    that is closed next.
    """
    running = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise
