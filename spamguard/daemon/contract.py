"""What the workers need of what they run. `assembly` builds it; nothing else here knows what a door speaks."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from spamguard.metrics.counters import Slot
from spamguard.settings import Settings


class Door(Protocol):
    """Takes connections of a listening socket."""

    async def start(self) -> None:
        """Accept from now on."""

    async def drain(self, deadline: float) -> None:
        """Stop accepting, before anything else and without waiting; finish what is under way, send away who is between messages
        (421), and return when all sessions have ended. What is left at the deadline (the loop's clock) is cut off. May be called
        again meanwhile, with an earlier deadline. A connection that was accepted is served, never dropped."""


Assemble = Callable[[Settings, Sequence[socket.socket], Callable[[], None], Slot], AbstractAsyncContextManager[Sequence[Door]]]
"""Of the settings, their listening sockets in the order of `Settings.doors`, what to call when lessons wait for settling, and where this
process counts what it does, makes doors that are not open yet; leaving the context closes what stands behind them. The sockets stay
the worker's."""
