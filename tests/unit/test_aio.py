"""Work that blocks, beside the event loop."""

from __future__ import annotations

import asyncio
import threading

from spamguard.aio import run_in_thread
from tests.support.waiting import PATIENCE, until


def test_who_is_cancelled_waits_until_the_work_is_done() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        go_on.wait(PATIENCE)
        done.append(True)

    async def main() -> None:
        task = asyncio.create_task(run_in_thread(work))
        await until(begun.is_set)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
        go_on.set()
        await asyncio.wait([task])
        assert task.cancelled()
        assert done == [True]

    asyncio.run(main())
