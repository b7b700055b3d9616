"""A deadline that costs no timer of the loop's each time."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

import pytest

from spamguard.delivery.next_hop import DeadlineTimer
from tests.support.waiting import until


class Waiting(DeadlineTimer):
    def __init__(self) -> None:
        self.passed: list[float] = []

    def deadline_passed(self) -> None:
        self.passed.append(now())


def now() -> float:
    return asyncio.get_running_loop().time()


def test_it_passes_once() -> None:
    async def run() -> None:
        waiting = Waiting()
        waiting.set_deadline(due := now() + 0.01)
        await until(lambda: waiting.passed)
        await asyncio.sleep(0.03)
        assert len(waiting.passed) == 1
        assert waiting.passed[0] >= due

    asyncio.run(run())


@pytest.mark.parametrize("first", [0.01, 3600.0])
def test_it_is_moved_to_later_and_to_earlier(first: float) -> None:
    async def run() -> None:
        waiting = Waiting()
        waiting.set_deadline(now() + first)
        waiting.set_deadline(due := now() + 0.1)
        await until(lambda: waiting.passed)
        assert waiting.passed[0] >= due

    asyncio.run(run())


def test_lifted_it_does_not_pass_and_another_one_does() -> None:
    async def run() -> None:
        waiting = Waiting()
        waiting.set_deadline(now() + 0.01)
        waiting.clear_deadline()
        await asyncio.sleep(0.05)
        assert not waiting.passed
        waiting.set_deadline(now() + 0.01)
        await until(lambda: waiting.passed)

    asyncio.run(run())


def test_many_one_after_the_other_take_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        made: list[float] = []
        call_at = loop.call_at

        def counted(when: float, call: Callable[[], None]) -> asyncio.TimerHandle:
            made.append(when)
            return call_at(when, call)

        monkeypatch.setattr(loop, "call_at", counted)
        waiting = Waiting()
        for _ in range(1000):
            waiting.set_deadline(now() + 60)
            waiting.clear_deadline()
        assert len(made) == 1

    asyncio.run(run())


def test_forgotten_nothing_holds_it() -> None:
    async def run() -> None:
        waiting = Waiting()
        waiting.set_deadline(now() + 3600)
        waiting.cancel_deadline()
        watched = weakref.ref(waiting)
        del waiting
        assert watched() is None

    asyncio.run(run())
