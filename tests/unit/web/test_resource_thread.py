"""Resource threads: work is waited for so long, and a broken resource is opened again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from spamguard.errors import BusyError, LedgerError
from spamguard.web.service import ResourceThread
from tests.support.waiting import PATIENCE


class Tool:
    """Counts how often it was opened, and how many are open."""

    opened = 0
    open_now = 0

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        Tool.opened += 1
        Tool.open_now += 1

    def close(self) -> None:
        assert self.thread == threading.get_ident()
        Tool.open_now -= 1


@pytest.fixture
def thread() -> Iterator[ResourceThread[Tool]]:
    Tool.opened = Tool.open_now = 0
    resource_thread = ResourceThread("test", Tool)
    yield resource_thread
    asyncio.run(resource_thread.close())
    assert Tool.open_now == 0


def test_a_failed_open_is_retried() -> None:
    left = [2]

    def opened() -> Tool:
        left[0] -= 1
        if left[0] >= 0:
            raise LedgerError("not yet")
        return Tool()

    async def run() -> None:
        trying = ResourceThread("test", opened)
        for _ in range(2):
            with pytest.raises(LedgerError, match="not yet"):
                await trying.run(lambda _: 1)
        assert await trying.run(lambda _: 1) == 1
        await trying.close()

    asyncio.run(run())


def test_waiting_too_long_gets_an_error(thread: ResourceThread[Tool]) -> None:
    async def run() -> None:
        done: list[int] = []
        go_on = threading.Event()
        slow = asyncio.create_task(thread.run(lambda _: go_on.wait(PATIENCE)))
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="too long"):
            await thread.run(lambda _: done.append(1), 0.05)
        go_on.set()
        await slow
        await thread.run(lambda _: None)
        assert done == []  # nobody waited for it any more

    asyncio.run(run())
