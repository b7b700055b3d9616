"""The web process: page and API, and what monitors ask.

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
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import (
    closing,
    nullcontext,
    suppress,
)
from functools import partial
from importlib import import_module
from ipaddress import ip_address

import uvicorn

from spamguard import process
from spamguard.config.options import DigestPeriod, HostPort, Settings, Web
from spamguard.daemon import status
from spamguard.daemon.children import Channel, Message
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


def main(settings: Settings, channel: Channel) -> None:
    """Serve until this process is ended."""
    channel.begin_service()
    # uvicorn has no limit for clients in a TLS handshake, which have descriptors already.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    # The probes need these. Both import numpy, which stays broken when two threads import it first.
    for module in ("spamguard.engine.filter", "spamguard.delivery.smtp"):
        import_module(module)
    # for uploads: /tmp may be memory, and the spool is where mail is kept private
    tempfile.tempdir = str(settings.state / SPOOL_DIRECTORY)
    asyncio.run(_serve(settings, channel))
    # No exit as usual: a reload must not wait for threads whose work nobody waits for.
    os._exit(0)


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
            serve = partial(_serve_monitors, settings.metrics, reporter, ending)
            servers.create_task(_keep_serving(settings.metrics, serve, ending))
        if settings.web is not None:
            serve = partial(_serve_page, settings, settings.web, reporter, channel, ending)
            servers.create_task(_keep_serving(settings.web, serve, ending))


async def _wait(ending: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(ending.wait(), seconds)


async def _keep_serving(
    address: HostPort | Web, serve: Callable[[], Awaitable[None]], ending: asyncio.Event
) -> None:
    """Serve until the end; after an error, try again."""
    while not ending.is_set():
        try:
            await serve()
        except (SpamguardError, OSError) as error:
            _log.error(
                "cannot serve on %s (%s): trying again; a port below 1024 needs root's rights: let "
                "a reverse proxy or a firewall lead to a higher one",
                address,
                error_text(error),
            )
            await _wait(ending, RETRY_SECONDS)


async def _serve_monitors(
    address: HostPort, reporter: HealthReporter, ending: asyncio.Event
) -> None:
    app = create_monitor_app(
        monitor_pages(reporter), on_loopback=ip_address(address.host).is_loopback
    )
    listening = process.listen(address.host, address.port)
    _metrics_log.info("monitors may ask http://%s/metrics, /healthz and /readyz", address)
    await serve_http(monitor_config(app), listening, ending)


async def serve_http(
    config: uvicorn.Config, listening: socket.socket, ending: asyncio.Event
) -> None:
    """Serve on a listening socket, which is closed in the end."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it writes about clients only
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[assignment]  # signals are this process's
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(sockets=[listening]))
        await ending.wait()
        server.should_exit = True


async def _serve_page(
    settings: Settings,
    web: Web,
    reporter: HealthReporter,
    channel: Channel,
    ending: asyncio.Event,
) -> None:
    """Serve page and API."""
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
        peers, settle = None, channel.request_settling
        if settings.shared is None:
            service = Service(settings, settle)
        else:
            from spamguard.web.nodes import open_nodes  # noqa: PLC0415  for several machines only

            service, peers = open_nodes(settings, settle)
        mailer = Mailer(settings, web, service) if web.mail_from else None
        spool = settings.state / SPOOL_DIRECTORY
        app = create_app(web, spool, service, store, reporter, mailer, peers)
        config = page_config(app, listening, certificates.context if certificates else None)
        serving = asyncio.create_task(serve_http(config, listening, ending))
        mailing = [asyncio.create_task(mailer.run())] if mailer else []
        if mailer and (web.digest is not DigestPeriod.NONE or web.digest_to):
            digests = DigestSender(web, mailer, service)
            mailing.append(asyncio.create_task(digests.run()))
        _log.info("page and API on %s, for people %s", web, web.page_url)
        try:
            while not ending.is_set():
                channel.send(Message(task="page"))
                if certificates is not None:
                    certificates.reload()
                await _wait(ending, 1.0)
            await serving
        finally:
            for task in (serving, *mailing):
                task.cancel()
            await service.close()
