"""The process behind page and API (`python -m spamguard.daemon.serving CHANNEL SETTINGS MASTER COUNTERS`).

Started by the master, apart from the mail. Must never be needed for mail to flow. SIGTERM, which comes with a reload too, lets it finish
what it is answering, within a second.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from functools import partial

from spamguard.daemon import desk, parent, sockets
from spamguard.daemon.reporting import Reporter
from spamguard.doors.smtp.tls import Certificates
from spamguard.errors import SpamguardError
from spamguard.files import SPOOL
from spamguard.metrics import liveness
from spamguard.metrics.counters import REPORTER, SERVER, Board
from spamguard.settings import Settings, Web
from spamguard.web.access import link
from spamguard.web.access.store import Store
from spamguard.web.app import application
from spamguard.web.server import Server
from spamguard.web.service.local import LocalService

RETRY_SECONDS = 15.0  # when the address cannot be had, or the certificate not be read
_BEAT_SECONDS = 1.0
_LOW_PORT = "page and API open their port without root's rights: take one from 1024 on, and let a reverse proxy or a firewall lead to it"

_log = logging.getLogger("spamguard.web")


class Monitor:
    """What the API tells monitors (`contract.Monitor`). Lessons are counted once, by the process that monitors ask if there is one."""

    def __init__(self, settings: Settings, board: Board) -> None:
        self._board = board
        self._reporter = Reporter(settings, board, (board if settings.metrics is None else Board.create()).slot(REPORTER))

    def beat(self) -> None:
        """Page and API are there."""
        self._board.slot(SERVER).beat(time.monotonic_ns())

    async def page(self) -> tuple[bytes, str]:
        """As /metrics of that process."""
        found = await self._reporter.metrics()
        return found.body, found.content_type

    async def wrong(self) -> list[str]:
        """As /healthz."""
        return liveness.unwell(self._board, time.monotonic_ns())


def main(arguments: Sequence[str]) -> int:
    """Serve until ended."""
    with parent.begun(arguments) as (settings, to_master, board):
        os.nice(5)  # mail that flows goes first
        if settings.web is None:
            return 1
        tempfile.tempdir = str(settings.state / SPOOL)  # for what forms bring: /tmp may be memory, and is not where mail is kept apart
        asyncio.run(_serve(settings, settings.web, Monitor(settings, board), parent.wish_to_settle(to_master)))
    return 0


async def _serve(settings: Settings, web: Web, monitor: Monitor, settle: Callable[[], None]) -> None:
    """Until SIGTERM, whatever fails meanwhile."""
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    while not ending.is_set():
        try:
            async with _open(settings, web, monitor, settle) as certificates:
                _log.info("page and API on %s, for people %s", web, link.address(web))
                while not ending.is_set():
                    monitor.beat()
                    if certificates is not None:
                        certificates.renew()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(ending.wait(), _BEAT_SECONDS)
        except (SpamguardError, OSError) as error:
            _log.error("page and API cannot be served (%s): trying again", _in_words(web, error))
            with suppress(TimeoutError):
                await asyncio.wait_for(ending.wait(), RETRY_SECONDS)


@asynccontextmanager
async def _open(settings: Settings, web: Web, monitor: Monitor, settle: Callable[[], None]) -> AsyncIterator[Certificates | None]:
    """Everything that is needed, and the server that answers with it."""
    certificates = Certificates(web.tls) if web.tls else None
    with closing(Store.open(settings.state)) as store, closing(sockets.listening(web.place.host, web.place.port)) as listening:
        service = LocalService(settings, settle, partial(desk.ask, settings.state))
        server = Server(application(web, settings.state / SPOOL, service, store, monitor))
        await service.start()
        try:
            await server.start(listening, certificates.context if certificates else None)
            yield certificates
        finally:
            await server.end()
            await service.close()


def _in_words(web: Web, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EACCES and web.place.port < 1024:
        return _LOW_PORT
    told = error.strerror if isinstance(error, OSError) else None
    return f"{web}: {told or error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
