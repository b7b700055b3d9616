"""One worker process: runs the doors in one event loop, and tells the master that it does.

Started by the master as `python -m spamguard.daemon.worker ASSEMBLY SLOT CHANNEL SETTINGS COUNTERS SOCKET…`: a slot of
the counters, and numbers of inherited files. SIGTERM:
drain, and take the time it takes. End of file on the channel, as the master stops or is gone: drain, and be quick about it.

Must never accept once it drains, and never outlive its master for longer than `HURRY_SECONDS` and a bit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from importlib import import_module

from spamguard.daemon import children, parent
from spamguard.daemon.words import BEAT, READY, SETTLE
from spamguard.errors import SpamguardError
from spamguard.metrics.counters import Board, Slot
from spamguard.reception.door import Door
from spamguard.settings import Settings

BEAT_SECONDS = 1.0
PATIENCE_SECONDS = 7200.0  # after a reload: more than a whole message may take, in and out
HURRY_SECONDS = 6.0  # when the master stops or is gone; it kills after `fleet.Timing.drain`
_LAST_SECONDS = 9  # whole ones; then the kernel ends the process

Assemble = Callable[[Settings, Sequence[socket.socket], Callable[[], None], Slot], AbstractAsyncContextManager[Sequence[Door]]]
"""Of the settings, their listening sockets in the order of `Settings.doors`, what to call when lessons wait for settling, and where this
process counts what it does, makes doors that are not open yet; leaving the context closes what stands behind them. The sockets stay
the worker's."""

_log = logging.getLogger("spamguard.daemon")


class Worker:
    """What one worker process does, from start to end."""

    def __init__(
        self, settings: Settings, sockets: Sequence[socket.socket], channel: socket.socket, assemble: Assemble, counters: Slot
    ) -> None:
        self._settings = settings
        self._sockets = sockets
        self._channel = channel
        self._assemble = assemble
        self._counters = counters
        self._draining = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> None:
        """Serve until told to stop."""
        self._listen_to_master()
        beats = asyncio.create_task(self._beat())
        try:
            async with self._assemble(self._settings, self._sockets, lambda: self._tell(SETTLE), self._counters) as doors:
                await asyncio.gather(*(door.start() for door in doors))
                self._tell(READY)
                await self._draining.wait()
                await self._drain(doors)
        finally:
            beats.cancel()
            asyncio.get_running_loop().remove_reader(self._channel)

    def _listen_to_master(self) -> None:
        loop = asyncio.get_running_loop()
        self._channel.setblocking(False)
        loop.add_reader(self._channel, self._master_has_gone)
        loop.add_signal_handler(signal.SIGTERM, self._draining.set)

    def _master_has_gone(self) -> None:
        """The master never says anything: there is something to read when it is gone or wants us gone."""
        try:
            self._channel.recv(1)
        except BlockingIOError:
            return
        except OSError:  # it has gone without having heard us
            pass
        asyncio.get_running_loop().remove_reader(self._channel)
        self._draining.set()
        self._hurry.set()

    def _tell(self, what: bytes) -> None:
        with suppress(OSError):  # a master that does not read, or is gone, is not waited for
            self._channel.send(what)

    async def _beat(self) -> None:
        while True:
            self._tell(BEAT)
            await asyncio.sleep(BEAT_SECONDS)

    async def _drain(self, doors: Sequence[Door]) -> None:
        """Until all sessions have ended, or there is no more time. Others may listen in our place as soon as we do not."""
        patient = _draining(doors, PATIENCE_SECONDS)
        await asyncio.sleep(0)  # now the doors have stopped accepting
        self._leave_sockets()
        hurried = asyncio.create_task(self._hurry_up(doors))
        await asyncio.wait((patient, hurried), return_when=asyncio.FIRST_COMPLETED)
        for one in (patient, hurried):
            one.cancel()
        for error in await asyncio.gather(patient, hurried, return_exceptions=True):
            if isinstance(error, Exception):
                _log.error("draining failed", exc_info=error)

    def _leave_sockets(self) -> None:
        """Give the addresses up. Something else takes the place of each file, since the doors may still ask for its number."""
        with socket.socket() as nothing:
            for one in self._sockets:
                os.dup2(nothing.fileno(), one.fileno(), inheritable=False)

    async def _hurry_up(self, doors: Sequence[Door]) -> None:
        await self._hurry.wait()
        signal.alarm(_LAST_SECONDS)  # whatever hangs then has given no answer, so its mail comes again
        await _draining(doors, HURRY_SECONDS)


def _draining(doors: Sequence[Door], seconds: float) -> asyncio.Future[list[None]]:
    """Each door is told in the next turn of the loop."""
    deadline = asyncio.get_running_loop().time() + seconds
    return asyncio.gather(*(door.drain(deadline) for door in doors))


def main(arguments: Sequence[str]) -> int:
    """Take over what the master has left, and run."""
    parent.begin()
    _allow_files()
    assembly, slot, *numbers = arguments
    descriptors = [int(number) for number in numbers]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # a listening socket in a child would keep the address taken
    settings = children.read(descriptors[1])
    with socket.socket(fileno=descriptors[0]) as channel:
        counters = Board(descriptors[2]).slot(int(slot))
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors[3:]]
        try:
            asyncio.run(_work(settings, sockets, channel, assembly, counters))
        except (SpamguardError, OSError) as error:
            _log.error("%s", error)
            return 1
    return 0


def _allow_files() -> None:
    """As many as there may be: a connection needs up to three, and what is usual is 1,024 (systemd.exec, LimitNOFILE)."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _work(settings: Settings, sockets: Sequence[socket.socket], channel: socket.socket, assembly: str, counters: Slot) -> None:
    await Worker(settings, sockets, channel, import_module(assembly).assemble, counters).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
