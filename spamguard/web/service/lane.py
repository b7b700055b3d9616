"""Work that blocks, one piece after the other, in threads of its own, each with what it works with: no two threads share that.

Must never let work pile up: who comes when too much waits is told to come again, and so is who has waited for too long.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from spamguard.errors import BusyError, HistoryError, LedgerError, SpamguardError, TableError

MOST_WAITING = 64  # pieces of work
PATIENCE = 20.0  # seconds
_BROKEN = (HistoryError, LedgerError, TableError)  # after which a tool is opened anew: a file may have been mended or put back

_log = logging.getLogger("spamguard.web")


class Tool(Protocol):
    """What a thread works with."""

    def close(self) -> None:
        """Give it back."""


Held = TypeVar("Held", bound=Tool)
Result = TypeVar("Result")


class Lane(Generic[Held]):
    """opened: makes a tool, in the thread that is to use it, when there is work for it."""

    def __init__(self, name: str, opened: Callable[[], Held], threads: int = 1) -> None:
        self._opened = opened
        self._waiting: queue.Queue[tuple[Future[object], Callable[[Held], object]] | None] = queue.Queue(MOST_WAITING)
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    async def do(self, work: Callable[[Held], Result], patience: float = PATIENCE) -> Result:
        """What the work gives or raises. BusyError: it does not come to it; work that had begun may still be done."""
        future: Future[Result] = Future()
        try:
            self._waiting.put_nowait((future, work))  # type: ignore[arg-type]
        except queue.Full:
            raise BusyError("too much is asked for at once: come again in a moment") from None
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), patience)
        except TimeoutError:
            raise BusyError("it takes too long at the moment: come again later") from None

    def close(self, seconds: float = 2.0) -> None:
        """End once what waits is done, or after so long: then the process ends, and what was half done never was. Idempotent."""
        until = time.monotonic() + seconds
        for _ in self._threads:
            with suppress(queue.Full):
                self._waiting.put(None, timeout=max(0.0, until - time.monotonic()))
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        tool: Held | None = None
        while (next_one := self._waiting.get()) is not None:
            future, work = next_one
            if future.set_running_or_notify_cancel():  # else nobody waits any more
                tool = self._worked(future, work, tool)
            del next_one, future, work  # until the next comes they may hold much
        _closed(tool)

    def _worked(self, future: Future[object], work: Callable[[Held], object], tool: Held | None) -> Held | None:
        """The tool for the next piece of work, if it is still good."""
        try:
            tool = tool or self._opened()
            future.set_result(work(tool))
        except Exception as error:  # it is who waits who is told  # noqa: BLE001
            future.set_exception(error)
            if isinstance(error, _BROKEN) or not isinstance(error, SpamguardError):
                _closed(tool)
                return None
        return tool


def _closed(tool: Tool | None) -> None:
    if tool is not None:
        try:
            tool.close()
        except SpamguardError as error:
            _log.error("%s", error)
