"""A slow look is done once for many who ask, and not waited for without end."""

from __future__ import annotations

import asyncio

import pytest

from spamguard import lately as module
from spamguard.lately import Lately


class Looking:
    def __init__(self, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.times = 0
        self._seconds = seconds
        self._error = error

    async def look(self) -> int:
        self.times += 1
        await asyncio.sleep(self._seconds)
        if self._error is not None:
            raise self._error
        return self.times


def test_one_look_for_all_who_ask() -> None:
    async def run() -> None:
        looking = Looking(0.05)
        lately = Lately(looking.look, seconds=60, patience=20)
        assert await asyncio.gather(*(lately.get() for _ in range(20))) == [1] * 20
        assert await lately.get() == 1
        assert looking.times == 1

    asyncio.run(run())


def test_it_is_looked_at_again_later() -> None:
    async def run() -> None:
        lately = Lately(Looking().look, seconds=0, patience=20)
        assert [await lately.get() for _ in range(3)] == [1, 2, 3]

    asyncio.run(run())


@pytest.mark.parametrize(("seconds", "times"), [(600.0, 1), (0.0, 3)])
def test_errors_are_kept_too_but_shortly(monkeypatch: pytest.MonkeyPatch, seconds: float, times: int) -> None:
    """What was wrong for a moment must not be told for a minute."""
    monkeypatch.setattr(module, "ERROR_SECONDS", seconds)

    async def run() -> None:
        looking = Looking(error=OSError("x"))
        lately = Lately(looking.look, seconds=60, patience=20)
        for _ in range(3):
            with pytest.raises(OSError, match="x"):
                await lately.get()
        assert looking.times == times

    asyncio.run(run())


def test_who_waits_in_vain_starts_no_second_look() -> None:
    async def run() -> None:
        looking = Looking(1.0)
        lately = Lately(looking.look, seconds=0, patience=0.05)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await lately.get()
        assert looking.times == 1
        await asyncio.sleep(1.2)
        assert looking.times == 1

    asyncio.run(run())
