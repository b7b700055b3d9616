"""What has a deadline: one that is set for each wait and nearly always met, so it costs next to nothing. The event loop's own timer is
only moved when it would ring too late."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod


class Timed(ABC):
    """Has one deadline at a time; all of it belongs to one event loop."""

    _deadline: float | None = None  # a time of the loop's clock
    _timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def deadline_passed(self) -> None:
        """What happens then. There is no deadline any more."""

    def set_deadline(self, when: float) -> None:
        """In place of the one before."""
        self._deadline = when
        if self._timer is None or self._timer.when() > when:
            self._arm(when)

    def lift_deadline(self) -> None:
        """There is none. The loop holds on to this object until the last one has passed."""
        self._deadline = None

    def forget_deadline(self) -> None:
        """There is none, and the loop lets this object go."""
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._ring)

    def _ring(self) -> None:
        """For this deadline, or for one before it."""
        self._timer = None
        when, self._deadline = self._deadline, None
        if when is None:
            return
        if asyncio.get_running_loop().time() < when:
            self.set_deadline(when)
        else:
            self.deadline_passed()
