"""How much each of many may ask: a bucket of tokens for everybody, refilled steadily. The clock is handed in.

Must never hold more than a bounded number of buckets: the one that nobody has asked of for longest goes, and is full when it comes back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

_MOST = 10_000
_SECONDS = 60.0


class Rates:
    """per_minute: what each may do in a minute, all at once if they like."""

    def __init__(self, per_minute: int) -> None:
        self._most = float(per_minute)
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, who: Hashable, now: float) -> float:
        """Seconds that they have to wait; 0: it is allowed, and counted. now: a steady clock, seconds."""
        left = self._left(who, now)
        self._buckets[who] = (max(left - 1, 0.0) if left >= 1 else left, now)
        self._buckets.move_to_end(who)
        if len(self._buckets) > _MOST:
            self._buckets.popitem(last=False)
        return 0.0 if left >= 1 else self._wait(left)

    def _left(self, who: Hashable, now: float) -> float:
        left, then = self._buckets.get(who, (self._most, now))
        return min(self._most, left + (now - then) * self._most / _SECONDS)

    def _wait(self, left: float) -> float:
        return (1 - left) * _SECONDS / self._most
