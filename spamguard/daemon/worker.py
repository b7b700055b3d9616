"""One worker process.

The master starts it with the numbers of the listening sockets. `assemble` starts the pool of
scorers, and has the doors built (`daemon.doors`). `Worker` runs the doors in one event loop and
tells the master that it is alive, and what it has counted. SIGTERM makes it drain and take its
time; end of file on the channel, when the master stops or is gone, makes it drain within seconds.

Must never fail because of the contents of mail or the state of the filter: a worker that does not
start takes no mail. Must never accept once it drains, and never outlive its master by much more
than HURRY_TIMEOUT.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spamguard.config.options import Settings
from spamguard.counters import Counters
from spamguard.daemon.children import Channel, Message
from spamguard.errors import SpamguardError
from spamguard.proxy.scorer_pool import ScorerPool

if TYPE_CHECKING:  # what takes long to load is loaded by `assemble`
    from spamguard.servers.listener import Door

_log = logging.getLogger("spamguard.daemon")

BEAT_SECONDS = 1.0
DRAIN_TIMEOUT = 7200.0  # after a reload: longer than one message may take, in and out
HURRY_TIMEOUT = 6.0  # when the master stops or is gone; it kills later


Assemble = Callable[
    [Settings, Sequence[socket.socket], Callable[[], None], Counters],
    AbstractAsyncContextManager[tuple[Sequence["Door"], ScorerPool]],
]
"""Builds doors that are not open yet, and the scorers behind them.

The arguments are the settings, their listening sockets in the order of `Settings.doors`, a function
that asks the master for settling, and where this process counts. Leaving the context closes
everything behind the doors; the sockets stay the worker's.
"""


@asynccontextmanager
async def assemble(
    settings: Settings,
    sockets: Sequence[socket.socket],
    settle: Callable[[], None],
    counters: Counters,
) -> AsyncIterator[tuple[Sequence[Door], ScorerPool]]:
    """Build the doors of a mail filter (`Assemble`)."""
    async with AsyncExitStack() as stack:
        pool = ScorerPool(settings.state, settings.scoring)
        stack.push_async_callback(pool.close)
        await pool.start()
        # The scorers start while this process loads the rest.
        from spamguard.daemon.doors import open_doors  # noqa: PLC0415

        yield open_doors(settings, sockets, pool, settle, counters, stack), pool


@dataclass
class Worker:
    """The life of a worker process, from start to end."""

    _settings: Settings
    _sockets: Sequence[socket.socket]
    _channel: Channel
    _assemble: Assemble
    _counters: Counters = field(default_factory=Counters)
    _draining: asyncio.Event = field(default_factory=asyncio.Event)
    _hurry: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Serve until told to drain."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._channel.socket, self._on_channel)
        loop.add_signal_handler(signal.SIGTERM, self._draining.set)
        settle = self._channel.request_settling
        try:
            async with self._assemble(self._settings, self._sockets, settle, self._counters) as (
                doors,
                scorers,
            ):
                for door in doors:
                    door.open()
                beats = asyncio.create_task(self._beat(scorers))
                await self._draining.wait()
                await self._drain(doors)
                beats.cancel()
            self._tell(ready=True, scoring=False)
        finally:
            loop.remove_reader(self._channel.socket)

    def _on_channel(self) -> None:
        """Notice end of file: the master is gone, or wants a quick end. It never sends anything."""
        try:
            self._channel.socket.recv(1)
        except BlockingIOError:
            return
        except OSError:  # the master went without reading what we had sent
            pass
        asyncio.get_running_loop().remove_reader(self._channel.socket)
        signal.alarm(9)  # then the kernel ends a process that is still in a hurry
        self._draining.set()
        self._hurry.set()

    def _tell(self, *, ready: bool, scoring: bool) -> None:
        self._channel.send(Message(ready=ready, scoring=scoring, counters=self._counters))

    async def _beat(self, scorers: ScorerPool) -> None:
        while True:
            scoring = scorers.has_ready_scorer
            self._tell(ready=True, scoring=scoring)
            if scorers.is_replaced:
                # Another worker can judge, or the installed version once no worker is left.
                self._draining.set()
            # While no scorer is ready: the master waits for that.
            await asyncio.sleep(BEAT_SECONDS if scoring else 0.1)

    async def _drain(self, doors: Sequence[Door]) -> None:
        """Wait until all sessions have ended or the time is over, and cut off the rest.

        The addresses are free for another daemon as soon as the doors do not accept. A session that
        is cut off has given no reply, so its sender tries again.
        """
        for door in doors:
            door.close()
        # Something else takes the place of each descriptor: doors may still use its number.
        with socket.socket() as unused:
            for listening in self._sockets:
                os.dup2(unused.fileno(), listening.fileno(), inheritable=False)
        ended = asyncio.gather(*(door.wait_for_sessions() for door in doors))
        hurried = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((ended, hurried), timeout=DRAIN_TIMEOUT, return_when="FIRST_COMPLETED")
        await asyncio.wait((ended,), timeout=HURRY_TIMEOUT)
        await asyncio.gather(*(door.cut_off() for door in doors))


def main(
    settings: Settings, channel: Channel, *descriptors: int, assemble: Assemble = assemble
) -> int:
    """Take over the listening sockets, and run."""
    # A connection needs up to three descriptors, and the usual limit is 1,024 (systemd.exec,
    # LimitNOFILE): raise it as far as allowed.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    sockets = [socket.socket(fileno=number) for number in descriptors]
    for listening in sockets:
        listening.set_inheritable(False)  # in a child it would keep the address taken
    try:
        asyncio.run(Worker(settings, sockets, channel, assemble).run())
    except (SpamguardError, OSError) as error:
        _log.error("%s", error)
        return 1
    return 0
