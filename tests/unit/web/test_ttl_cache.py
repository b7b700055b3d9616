"""A slow look is done once for many who ask, and not waited for without end."""

from __future__ import annotations

import asyncio
import gc

import pytest

from spamguard.errors import BusyError
from spamguard.web import workers
from spamguard.web.workers import AsyncTtlCache
from tests.support.waiting import until


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


def test_one_look_for_all_who_ask() -> None:
    async def run() -> None:
        looking = Looking()
        lately = AsyncTtlCache(looking.look, ttl_seconds=60, timeout=20)
        assert await asyncio.gather(*(lately.get() for _ in range(20))) == [1] * 20
        assert await lately.get() == 1
        assert looking.times == 1

    asyncio.run(run())


def test_it_is_looked_at_again_later() -> None:
    async def run() -> None:
        lately = AsyncTtlCache(Looking().look, ttl_seconds=0, timeout=20)
        assert [await lately.get() for _ in range(3)] == [1, 2, 3]

    asyncio.run(run())


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


@pytest.mark.parametrize("fails", [False, True])
def test_who_waits_in_vain_starts_no_second_look_and_no_error_is_left_over(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        looking = Looking(OSError("x") if fails else None)
        lately = AsyncTtlCache(looking.look, ttl_seconds=0, timeout=0.02)
        looking.may_end.clear()
        for _ in range(3):
            with pytest.raises(BusyError):
                await lately.get()
        looking.may_end.set()
        await until(lambda: looking.ended)
        assert looking.times == 1

    asyncio.run(run())
    gc.collect()
    assert caplog.text == ""
