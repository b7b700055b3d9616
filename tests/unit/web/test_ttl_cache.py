"""A slow look is done once for many who ask, and not waited for without end."""

from __future__ import annotations

import asyncio

import pytest

from spamguard.web import workers
from spamguard.web.workers import AsyncTtlCache


class Looking:
    def __init__(self, error: Exception | None = None) -> None:
        self.times = 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.ended = False
        self._error = error

    async def look(self) -> int:
        self.times += 1
        await asyncio.sleep(0)
        await self.may_end.wait()
        self.ended = True
        if self._error is not None:
            raise self._error
        return self.times


@pytest.mark.parametrize(("seconds", "times"), [(600.0, 1), (0.0, 3)])
def test_errors_are_kept_too_but_shortly(
    monkeypatch: pytest.MonkeyPatch, seconds: float, times: int
) -> None:
    """What was wrong for a moment must not be told for a minute."""
    monkeypatch.setattr(workers, "ERROR_TTL_SECONDS", seconds)

    async def run() -> None:
        looking = Looking(error=OSError("x"))
        lately = AsyncTtlCache(looking.look, ttl_seconds=60, timeout=20)
        for _ in range(3):
            with pytest.raises(OSError, match="x"):
                await lately.get()
        assert looking.times == times

    asyncio.run(run())
