"""The process that monitors ask: metrics and health over HTTP (`python -m
spamguard.daemon.monitoring CHANNEL SETTINGS MASTER COUNTERS`).

The master starts it apart from the mail. It reads the counters that the other processes keep, and
probes the filter and the next hops itself; answers are cached for some seconds. SIGTERM ends it at
once. Must never be needed for mail to flow.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module

from spamguard import __version__, log, process
from spamguard.aio import AsyncTtlCache, hostname
from spamguard.config.options import HostPort, Settings
from spamguard.counters import MASTER_SLOT, REPORTER_SLOT, CounterBoard, CounterSlot, sum_slots
from spamguard.errors import SpamguardError
from spamguard.web import metrics
from spamguard.web.metrics import FilterProbe, FilterReport, MonitorAnswer, MonitorServer

_log = logging.getLogger("spamguard.metrics")

RETRY_SECONDS = 15.0  # when the address is not available
_FILTER_CACHE_SECONDS = 5.0
_HOPS_CACHE_SECONDS = 10.0  # each probe is a session that the next hop may log
_PROBE_TIMEOUT = 5.0
# The probes need these. Both import numpy, which stays broken when two threads import it first.
_PROBE_MODULES = ("spamguard.engine.filter", "spamguard.delivery.smtp")


class HealthReporter:
    """Computes the answers.

    Parameters
    ----------
    counts
        The slot in which lessons are counted; None: that of the monitoring process.
    """

    def __init__(
        self, settings: Settings, board: CounterBoard, counts: CounterSlot | None = None
    ) -> None:
        self._board = board
        self._hops = [listener.next_hop for listener in settings.listeners]
        self._filter_probe = FilterProbe(settings.state, counts or board.slot(REPORTER_SLOT))
        self._filter_cache = AsyncTtlCache(
            self._probe_filter, _FILTER_CACHE_SECONDS, _PROBE_TIMEOUT
        )
        self._hops_cache = AsyncTtlCache(self._probe_next_hops, _HOPS_CACHE_SECONDS, _PROBE_TIMEOUT)

    async def metrics(self) -> MonitorAnswer:
        """Answer /metrics."""
        report = await self._get_filter()
        counted = metrics.counter_metrics(
            __version__,
            self._board.slot(MASTER_SLOT).began,
            sum(1 for _ in self._board.worker_slots()),
            sum_slots(self._board.used_slots()),
        )
        known = metrics.filter_metrics(None if isinstance(report, str) else report)
        return MonitorAnswer(200, metrics.encode_page([*counted, *known]), metrics.CONTENT_TYPE)

    async def health(self) -> MonitorAnswer:
        """Answer /healthz: whether all processes are alive."""
        return _health_answer(metrics.find_unwell(self._board, time.monotonic_ns()), "alive")

    async def ready(self) -> MonitorAnswer:
        """Answer /readyz: whether mail can be judged and delivered."""
        report, hops = await asyncio.gather(self._get_filter(), self._get_next_hops())
        state = [report] if isinstance(report, str) else []
        stuck = metrics.find_stuck(self._board, time.monotonic_ns())
        return _health_answer(
            [*stuck, *state, *metrics.find_missing_scorers(self._board), *hops], "ready"
        )

    async def _get_filter(self) -> FilterReport | str:
        """Return the state of the filter, or what is wrong with it."""
        try:
            return await self._filter_cache.get()
        except TimeoutError:
            return f"state: no answer within {_PROBE_TIMEOUT:.0f} s"
        except (SpamguardError, OSError) as error:
            return f"state: {error}"

    async def _get_next_hops(self) -> list[str]:
        try:
            return await self._hops_cache.get()
        except TimeoutError:
            return [f"next hops: no answer within {_PROBE_TIMEOUT:.0f} s"]

    async def _probe_filter(self) -> FilterReport:
        return await asyncio.to_thread(self._filter_probe.probe)

    async def _probe_next_hops(self) -> list[str]:
        return await metrics.find_unreachable(self._hops, hostname())


def _health_answer(problems: list[str], well: str) -> MonitorAnswer:
    """Return a line for each problem; these may quote names of files, so make them printable."""
    lines = [f"{log.printable(line)}\n" for line in problems or [well]]
    return MonitorAnswer(503 if problems else 200, "".join(lines).encode("utf-8", "replace"))


def main(arguments: Sequence[str]) -> int:
    """Serve until this process is ended."""
    with process.child_context(arguments) as (settings, _, board):
        os.nice(5)  # mail that flows goes first
        if settings.metrics is not None:
            for module in _PROBE_MODULES:
                import_module(module)
            reporter = HealthReporter(settings, board)
            pages = {
                "/metrics": reporter.metrics,
                "/healthz": reporter.health,
                "/readyz": reporter.ready,
            }
            asyncio.run(_serve(settings.metrics, MonitorServer(pages)))
    return 1


async def _serve(place: HostPort, monitor: MonitorServer) -> None:
    while True:
        try:
            server = await monitor.start(place.host, place.port)
        except OSError as error:
            text = "cannot listen on %s for monitors (%s): trying again"
            _log.error(text, place, error.strerror or error)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            _log.info("monitors may ask http://%s/metrics, /healthz and /readyz", place)
            async with server:
                await server.serve_forever()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
