"""The web process: page and API, and what monitors ask (`python -m spamguard.daemon.web`).

The master starts it where `web` or `metrics` is configured, apart from the mail. Each of the two
has an address and a server of its own: monitors are answered while the page is busy, has no port
or is not configured. SIGTERM, which a reload sends too, lets the page finish the answers under way,
within a second. Must never be needed for mail to flow.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    nullcontext,
    suppress,
)
from functools import partial
from importlib import import_module
from ipaddress import ip_address

import uvicorn

from spamguard import process
from spamguard.config.options import HostPort, Settings, Web
from spamguard.daemon import status
from spamguard.daemon.children import Channel, Message, service_context
from spamguard.errors import SpamguardError, error_text
from spamguard.servers.listener import CertificateReloader
from spamguard.storage import SPOOL_DIRECTORY
from spamguard.web.monitor import (
    HealthReporter,
    create_monitor_app,
    monitor_config,
    monitor_pages,
    page_config,
)

_log = logging.getLogger("spamguard.web")
_metrics_log = logging.getLogger("spamguard.metrics")

RETRY_SECONDS = 15.0  # when an address is not available, or the certificate cannot be read
# The probes need these. Both import numpy, which stays broken when two threads import it first.
_PROBE_MODULES = ("spamguard.engine.filter", "spamguard.delivery.smtp")


def main(arguments: Sequence[str]) -> int:
    """Serve until this process is ended."""
    with service_context(arguments) as (settings, channel):
        # uvicorn has no limit for clients in a TLS handshake, which have descriptors already.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
        for module in _PROBE_MODULES:
            import_module(module)
        # for uploads: /tmp may be memory, and the spool is where mail is kept private
        tempfile.tempdir = str(settings.state / SPOOL_DIRECTORY)
        asyncio.run(_serve(settings, channel))
    return 0


async def _serve(settings: Settings, channel: Channel) -> None:
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    reporter = HealthReporter(
        settings,
        partial(status.ask_report, settings.state),
        lambda counters: channel.send(Message(counters=counters)),
    )
    async with asyncio.TaskGroup() as servers:
        if settings.metrics is not None:
            servers.create_task(_serve_monitors(settings.metrics, reporter, ending))
        if settings.web is not None:
            page = partial(_open_page, settings, settings.web, reporter, channel.request_settling)
            servers.create_task(_serve_page(settings.web, page, channel, ending))


async def _wait(ending: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(ending.wait(), seconds)


async def _serve_monitors(
    address: HostPort, reporter: HealthReporter, ending: asyncio.Event
) -> None:
    app = create_monitor_app(
        monitor_pages(reporter), on_loopback=ip_address(address.host).is_loopback
    )
    while not ending.is_set():
        try:
            listening = process.listen(address.host, address.port)
        except OSError as error:
            text = "cannot listen on %s for monitors (%s): trying again"
            _metrics_log.error(text, address, error.strerror or error)
            await _wait(ending, RETRY_SECONDS)
        else:
            _metrics_log.info("monitors may ask http://%s/metrics, /healthz and /readyz", address)
            await serve_http(monitor_config(app), listening, ending)


class _HttpServer(uvicorn.Server):
    """uvicorn's server, which leaves signals to this process."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


async def serve_http(
    config: uvicorn.Config, listening: socket.socket, ending: asyncio.Event
) -> None:
    """Serve on a listening socket, which is closed in the end."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it writes about clients only
    server = _HttpServer(config)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(sockets=[listening]))
        await ending.wait()
        server.should_exit = True


async def _serve_page(
    web: Web,
    open_page: Callable[[], AbstractAsyncContextManager[CertificateReloader | None]],
    channel: Channel,
    ending: asyncio.Event,
) -> None:
    """Serve page and API; after an error, try again."""
    while not ending.is_set():
        try:
            async with open_page() as certificates:
                _log.info("page and API on %s, for people %s", web, web.page_url)
                while not ending.is_set():
                    channel.send(Message(task="page"))
                    if certificates is not None:
                        certificates.reload()
                    await _wait(ending, 1.0)
        except (SpamguardError, OSError) as error:
            _log.error(
                "page and API cannot be served on %s (%s): trying again; a port below 1024 needs "
                "root's rights: let a reverse proxy or a firewall lead to a higher one",
                web,
                error_text(error),
            )
            await _wait(ending, RETRY_SECONDS)


@asynccontextmanager
async def _open_page(
    settings: Settings, web: Web, reporter: HealthReporter, settle: Callable[[], None]
) -> AsyncIterator[CertificateReloader | None]:
    from spamguard.web.app import create_app  # noqa: PLC0415  for the page only
    from spamguard.web.auth import CredentialStore  # noqa: PLC0415  for the page only
    from spamguard.web.mail import DigestSender, Mailer  # noqa: PLC0415  for the page only
    from spamguard.web.service import Service  # noqa: PLC0415  for the page only

    certificates = CertificateReloader(web.tls) if web.tls else None
    with (
        closing(CredentialStore.open(settings.state)) as store,
        closing(process.listen(web.listen.host, web.listen.port)) as listening,
    ):
        service: Service
        peers = None
        if settings.shared is None:
            service = Service(settings, settle)
        else:
            from spamguard.web.nodes import open_nodes  # noqa: PLC0415  for several machines only

            service, peers = open_nodes(settings, settle)
        mailer = Mailer(settings, web, service) if web.mail_from else None
        spool = settings.state / SPOOL_DIRECTORY
        app = create_app(web, spool, service, store, reporter, mailer, peers)
        config = page_config(app, listening, certificates.context if certificates else None)
        ending = asyncio.Event()
        serving = asyncio.create_task(serve_http(config, listening, ending))
        mailing = [asyncio.create_task(mailer.run())] if mailer else []
        if mailer and (web.digest or web.digest_to):
            digests = DigestSender(web, mailer, service)
            mailing.append(asyncio.create_task(digests.run()))
        try:
            yield certificates
        finally:
            ending.set()
            await serving
            for task in mailing:
                task.cancel()
            await service.close()


if __name__ == "__main__":
    # Not `sys.exit`: a reload must not wait for threads whose work nobody waits for.
    os._exit(main(sys.argv[1:]))
