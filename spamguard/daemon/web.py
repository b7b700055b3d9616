"""The process behind page and API: `python -m spamguard.daemon.web CHANNEL SETTINGS MASTER
COUNTERS`.

The master starts it apart from the mail. SIGTERM, which a reload sends too, lets it finish the
answers under way, within a second. Must never be needed for mail to flow.
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

from spamguard import process
from spamguard.config.options import Settings, Web
from spamguard.counters import REPORTER_SLOT, WEB_SLOT, CounterBoard
from spamguard.daemon import sockets, status
from spamguard.daemon.monitoring import HealthReporter
from spamguard.errors import SpamguardError
from spamguard.servers.smtp_connection import CertificateReloader
from spamguard.storage import SPOOL_DIRECTORY
from spamguard.web import auth, metrics
from spamguard.web.app import WebServer, create_app
from spamguard.web.credentials import CredentialStore
from spamguard.web.service import Service

_log = logging.getLogger("spamguard.web")

RETRY_SECONDS = 15.0  # when the address is not available, or the certificate cannot be read
_BEAT_SECONDS = 1.0


class WebMonitor:
    """The metrics and health that the API shows.

    Lessons are counted once: here only if no monitoring process runs.
    """

    def __init__(self, settings: Settings, board: CounterBoard) -> None:
        self._board = board
        lessons = board if settings.metrics is None else CounterBoard.create()
        self._reporter = HealthReporter(settings, board, lessons.slot(REPORTER_SLOT))

    def beat(self) -> None:
        """Record that page and API are served."""
        self._board.slot(WEB_SLOT).beat(time.monotonic_ns())

    async def page(self) -> tuple[bytes, str]:
        """Return what /metrics of the monitoring process returns: body and content type."""
        answer = await self._reporter.metrics()
        return answer.body, answer.content_type

    async def wrong(self) -> list[str]:
        """Return the problems that /healthz of the monitoring process names."""
        return metrics.find_unwell(self._board, time.monotonic_ns())


def main(arguments: Sequence[str]) -> int:
    """Serve until this process is ended."""
    with process.child_context(arguments) as (settings, to_master, board):
        os.nice(5)  # mail that flows goes first
        if settings.web is None:
            return 1
        # for uploads: /tmp may be memory, and the spool is where mail is kept private
        tempfile.tempdir = str(settings.state / SPOOL_DIRECTORY)
        settle = process.settle_requester(to_master)
        asyncio.run(_serve(settings, settings.web, WebMonitor(settings, board), settle))
    return 0


async def _serve(
    settings: Settings, web: Web, monitor: WebMonitor, settle: Callable[[], None]
) -> None:
    """Serve until SIGTERM; after an error, try again."""
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    while not ending.is_set():
        try:
            async with _open_server(settings, web, monitor, settle) as certificates:
                _log.info("page and API on %s, for people %s", web, auth.page_url(web))
                while not ending.is_set():
                    monitor.beat()
                    if certificates is not None:
                        certificates.reload()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(ending.wait(), _BEAT_SECONDS)
        except (SpamguardError, OSError) as error:
            _log.error(
                "page and API cannot be served (%s): trying again", describe_error(web, error)
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(ending.wait(), RETRY_SECONDS)


@asynccontextmanager
async def _open_server(
    settings: Settings, web: Web, monitor: WebMonitor, settle: Callable[[], None]
) -> AsyncIterator[CertificateReloader | None]:
    certificates = CertificateReloader(web.tls) if web.tls else None
    with (
        closing(CredentialStore.open(settings.state)) as store,
        closing(sockets.listen(web.listen.host, web.listen.port)) as listening,
    ):
        service = Service(settings, settle, partial(status.ask_daemon, settings.state))
        server = WebServer(
            create_app(web, settings.state / SPOOL_DIRECTORY, service, store, monitor)
        )
        await service.start()
        try:
            await server.start(listening, certificates.context if certificates else None)
            yield certificates
        finally:
            await server.stop()
            await service.close()


def describe_error(web: Web, error: Exception) -> str:
    """Say why page and API cannot be served."""
    if isinstance(error, OSError) and error.errno == errno.EACCES and web.listen.port < 1024:
        return (
            "page and API open their port without root's rights: take one from 1024 on, "
            "and let a reverse proxy or a firewall lead to it"
        )
    reason = error.strerror if isinstance(error, OSError) else None
    return f"{web}: {reason or error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
