"""What monitors ask over HTTP: whether all is well, and metrics for Prometheus.

`HealthReporter` answers `/healthz` with what the master says of the processes, `/readyz` from the
filter and the next hops too, and `/metrics` from what the processes have counted and the filter
knows.
Answers are cached for some seconds (`AsyncTtlCache`) and have a deadline, so that asking often
costs nothing. `FilterProbe` opens the filter each time, which also shows that it is usable. It only
reads, never creates a filter, and counts lessons from where it stopped the last time, so it does
not take longer the more was taught.

`create_monitor_app` makes a small ASGI application of the three pages, and `monitor_config` says
how uvicorn serves it: one request for each connection, few connections, each for some seconds at
most. On loopback the pages must be asked by address or as localhost: otherwise a page of another
site whose name leads here (DNS rebinding) could read the answer in a browser on this machine.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import h11
import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from spamguard import __version__, log
from spamguard.config.options import Settings
from spamguard.counters import BUCKET_BOUNDS, STAGES, Counters, DaemonReport, pairs
from spamguard.delivery.smtp import find_unreachable
from spamguard.engine.filter import Filter
from spamguard.errors import BusyError, LedgerError, SpamguardError
from spamguard.records import Status
from spamguard.storage import LEDGER_FILE
from spamguard.users import SUBMITTED_ORIGINS
from spamguard.web.health import DaemonHealth, check_daemon
from spamguard.web.workers import AsyncTtlCache

if TYPE_CHECKING:
    from spamguard.shared.status import SharedStatus

_log = logging.getLogger("spamguard.metrics")

# ---- health

_FILTER_CACHE_SECONDS = 5.0
_DAEMON_CACHE_SECONDS = 0.5
_HOPS_CACHE_SECONDS = 10.0  # each probe is a session that the next hop may log
_PROBE_TIMEOUT = 5.0


class HealthReporter:
    """Answers monitors, and the API and page about the same. Belongs to one event loop.

    Parameters
    ----------
    settings
        Of the daemon.
    ask
        Asks the master, and may take a moment.
    tell
        Tells the master what this process has counted.
    """

    def __init__(
        self,
        settings: Settings,
        ask: Callable[[], DaemonReport],
        tell: Callable[[Counters], None],
    ) -> None:
        self._settings = settings
        hops = [listener.next_hop for listener in settings.listeners]
        probe = FilterProbe(settings.state, ask, tell)
        # Threads of its own: monitors are answered while the page keeps all others busy.
        self._threads = ThreadPoolExecutor(2, "probe")
        self._filter_cache = AsyncTtlCache(
            lambda: asyncio.get_running_loop().run_in_executor(self._threads, probe.probe),
            _FILTER_CACHE_SECONDS,
            _PROBE_TIMEOUT,
        )
        self._daemon_cache = AsyncTtlCache(
            lambda: asyncio.get_running_loop().run_in_executor(self._threads, ask),
            _DAEMON_CACHE_SECONDS,
            _PROBE_TIMEOUT,
        )
        self._hops_cache = AsyncTtlCache(
            lambda: find_unreachable(hops, log.hostname()), _HOPS_CACHE_SECONDS, _PROBE_TIMEOUT
        )

    async def metrics(self, accept: str = "") -> Response:
        """Answer /metrics. accept: formats that the client accepts, as in its header field."""
        report = await self._get_filter()
        readable = None if isinstance(report, str) else report
        daemon = await self._get_daemon()
        body, kind = encode_metrics(daemon, readable, accept, self._read_shared())
        return Response(body, headers={"Content-Type": kind})

    async def health(self) -> Response:
        """Answer /healthz: whether all processes are alive."""
        return _health_answer(await self.find_unwell(), "alive")

    async def ready(self) -> Response:
        """Answer /readyz: whether mail can be judged and delivered.

        It can without the shared log, but for a node that joins it: further lines tell of that.
        """
        daemon, report, hops = await self._look_everywhere()
        state = [report] if isinstance(report, str) else []
        problems = [*daemon.stuck, *state, *daemon.missing_scorers, *hops]
        shared = self._read_shared()
        notes = list(shared.notes(time.time())) if shared else []
        if shared and shared.joining:
            problems, notes = [*problems, *notes], []
        return _health_answer(problems, "ready", notes)

    def _read_shared(self) -> SharedStatus | None:
        if self._settings.shared is None:
            return None
        from spamguard.shared.status import read_status  # noqa: PLC0415  on such nodes only

        return read_status(self._settings.state)

    async def find_unwell(self) -> list[str]:
        """Return the lines of /healthz: one for each process that does not work."""
        daemon = await self._get_daemon()
        return [*daemon.stuck, *daemon.absent]

    async def look(self) -> DaemonHealth:
        """Look at each part of the daemon, for operators."""
        daemon, report, hops = await self._look_everywhere()
        trouble, last_taught = (report, None) if isinstance(report, str) else ("", report[1])
        return await asyncio.to_thread(
            check_daemon, self._settings, daemon, trouble, last_taught, hops
        )

    async def _look_everywhere(self) -> tuple[DaemonReport, FilterReport | str, list[str]]:
        return await asyncio.gather(
            self._get_daemon(), self._get_filter(), self._find_unreachable()
        )

    async def _get_daemon(self) -> DaemonReport:
        try:
            return await self._daemon_cache.get()
        except BusyError:
            return DaemonReport()

    async def _get_filter(self) -> FilterReport | str:
        """Return the state of the filter, or what is wrong with it."""
        try:
            return await self._filter_cache.get()
        except (SpamguardError, OSError) as error:
            return f"state: {error}"

    async def _find_unreachable(self) -> list[str]:
        try:
            return await self._hops_cache.get()
        except BusyError as error:
            return [f"next hops: {error}"]


def _health_answer(problems: list[str], well: str, notes: Iterable[str] = ()) -> Response:
    """Return a line for each problem; these may quote names of files, so make them printable.

    notes: of what does no harm to mail.
    """
    lines = [f"{log.printable(line)}\n" for line in [*(problems or [well]), *notes]]
    return PlainTextResponse("".join(lines), 503 if problems else 200)


# ---- the filter

PERSON_ORIGINS = ("folder", "quarantine", *SUBMITTED_ORIGINS)
"""First words of the origins of lessons that people gave one by one, not in bulk."""
_MAX_EVENTS = 20_000  # votes counted in one look
_MAX_ORIGIN_LENGTH = 12  # letters of an origin's first word


class FilterReport(NamedTuple):
    """The status of ledger and tables, and when a person last taught (seconds since 1970)."""

    status: Status
    last_taught: int | None


class FilterProbe:
    """Looks at one filter, for one thread at a time, and counts its lessons.

    Parameters
    ----------
    state
        The directory of the filter.
    ask, tell
        As of `HealthReporter`. The process before this one has told how far it had counted.
    """

    def __init__(
        self, state: Path, ask: Callable[[], DaemonReport], tell: Callable[[Counters], None]
    ) -> None:
        self._state, self._ask, self._tell = state, ask, tell
        self._counters: Counters | None = None  # None: before the first look
        self._last_taught: int | None = None

    def probe(self) -> FilterReport:
        """Look at the filter. SpamguardError: ledger or tables are unusable."""
        file = self._state / LEDGER_FILE
        if not file.exists():  # only a lesson creates it
            raise LedgerError(f"ledger {file}: there is none")
        with Filter.open(self._state) as spam_filter:
            # Count lessons since the last look; the first look counts none.
            users, last = spam_filter.ledger.users, spam_filter.ledger.last_position()
            if self._counters is None:
                self._last_taught = users.last_vote_time(PERSON_ORIGINS)
                self._counters = Counters(seq=self._ask().counters.seq)
            counters = self._counters
            if not 0 <= counters.seq <= last:  # never counted, or an older ledger was restored
                counters.seq = last
            upto = min(last, counters.seq + _MAX_EVENTS)
            for label, origin, number, newest in users.votes_by_origin(counters.seq, upto):
                first = origin.partition(" ")[0].strip(",")[:_MAX_ORIGIN_LENGTH]
                counters.count_lessons(label, first or "other", number)
                if first in PERSON_ORIGINS:
                    self._last_taught = max(self._last_taught or 0, newest)
            counters.seq = upto
            self._tell(counters)
            return FilterReport(spam_filter.status(), self._last_taught)


# ---- metrics


@dataclass(eq=False)
class _DaemonCollector(Collector):
    """What the daemon tells Prometheus at one moment."""

    daemon: DaemonReport
    report: FilterReport | None
    shared: SharedStatus | None

    def collect(self) -> Iterator[Metric]:
        if self.daemon.began:
            yield from counter_metrics(self.daemon)
        yield from filter_metrics(self.report)
        if self.shared is not None:
            yield from _shared_metrics(self.shared, time.time())


def encode_metrics(
    daemon: DaemonReport,
    report: FilterReport | None,
    accept: str,
    shared: SharedStatus | None = None,
) -> tuple[bytes, str]:
    """Return the page, and its content type, in a format that a client accepts.

    accept: its header field; "": Prometheus' text format 0.0.4. shared: of a node that shares its
    lessons with others.
    """
    registry = CollectorRegistry()
    registry.register(_DaemonCollector(daemon, report, shared))
    try:
        encode, content_type = choose_encoder(accept)
    except TypeError:  # the version that the client names is no number
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


def counter_metrics(daemon: DaemonReport) -> Iterator[Metric]:
    """Yield what the processes of the daemon have counted."""
    totals = daemon.counters
    yield _by(
        GaugeMetricFamily,
        "spamguard_build_info",
        "Version of the program; always 1.",
        ["version"],
        [(__version__, 1)],
    )
    yield GaugeMetricFamily(
        "spamguard_start_time_seconds",
        "When the daemon started, in seconds since 1970.",
        daemon.began,
    )
    yield GaugeMetricFamily(
        "spamguard_workers",
        "Processes that speak SMTP, draining ones included.",
        daemon.workers,
    )
    yield _by(
        CounterMetricFamily,
        "spamguard_messages_total",
        "Messages handled, by verdict (a class, unsure, not-scanned) and action "
        "(none: not judged).",
        ("verdict", "action"),
        # Present from the beginning: Prometheus' rates miss the first increase of a new series.
        {("not-scanned", "none"): 0, **dict(pairs(totals.messages))}.items(),
    )
    yield CounterMetricFamily(
        "spamguard_message_bytes_total",
        "Bytes of the messages handled, as received.",
        totals.bytes,
    )
    about = "How long a message took to receive, judge and deliver."
    stages = HistogramMetricFamily("spamguard_stage_seconds", about, labels=["stage"])
    bounds = [*map(str, BUCKET_BOUNDS), "+Inf"]
    for stage, durations in zip(STAGES, totals.stages, strict=True):
        buckets = list(zip(bounds, accumulate(durations.buckets), strict=True))
        stages.add_metric([stage], buckets, durations.seconds)
    yield stages
    yield _by(
        CounterMetricFamily,
        "spamguard_next_hop_errors_total",
        "Failed connections, lost connections and timeouts of next hops; refusals do not count.",
        ("next_hop", "kind"),
        pairs(totals.next_hop_errors),
    )
    yield _by(
        CounterMetricFamily,
        "spamguard_lessons_total",
        "Lessons since the daemon started, by class and origin, those of commands included.",
        ("class", "origin"),
        pairs(totals.lessons),
    )


def filter_metrics(report: FilterReport | None) -> Iterator[Metric]:
    """Yield what the filter knows; None if it could not be read."""
    usable = int(report is not None)
    about = "Whether ledger and tables could be opened."
    yield GaugeMetricFamily("spamguard_state_usable", about, usable)
    if report is None:
        return
    status, person = report
    yield _by(
        GaugeMetricFamily,
        "spamguard_class_messages",
        "Messages taught, by class.",
        ["class"],
        status.classes.items(),
    )
    yield GaugeMetricFamily(
        "spamguard_unsettled_events", "Lessons that are not settled yet.", status.unsettled
    )
    if person is not None:
        about = "When a person last taught, not in bulk, in seconds since 1970."
        yield GaugeMetricFamily("spamguard_last_lesson_by_person_timestamp_seconds", about, person)
    yield _by(
        GaugeMetricFamily,
        "spamguard_table_load_ratio",
        "Share of buckets in use.",
        ["tokens"],
        status.used.items(),
    )
    yield GaugeMetricFamily("spamguard_ledger_bytes", "Size of the ledger.", status.ledger_bytes)
    yield GaugeMetricFamily(
        "spamguard_tables_bytes", "Size of the tables on the disk.", status.tables_bytes
    )


def _shared_metrics(shared: SharedStatus, now: float) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "spamguard_shared_log_age_seconds",
        "Time since the shared log could last be read.",
        shared.age(now),
    )
    yield GaugeMetricFamily(
        "spamguard_shared_pending", "Lessons that other nodes do not have yet.", shared.waiting
    )
    yield GaugeMetricFamily(
        "spamguard_shared_absent_nodes",
        "Other nodes that the shared log was not told of for a minute.",
        len(shared.absent),
    )
    yield GaugeMetricFamily(
        "spamguard_shared_alarms",
        "Troubles of the shared log that an operator must look at.",
        len(shared.alarms),
    )
    yield GaugeMetricFamily(
        "spamguard_shared_forged_rows",
        "Rows of the shared database that no node wrote, and that are ignored.",
        shared.forged,
    )


def _by(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    about: str,
    labels: Sequence[str],
    samples: Iterable[tuple[str | tuple[str, ...], float]],
) -> Metric:
    """Make a metric with a sample for each value of a label, or for several."""
    metric = kind(name, about, labels=labels)
    for values, number in samples:
        metric.add_metric([values] if isinstance(values, str) else values, number)
    return metric


# ---- the application

# Names that need no name server.
_LOCAL_HOST = re.compile(r"(?:localhost|[0-9.]+|\[[0-9a-f:.]+\])(?::[0-9]{0,5})?", re.IGNORECASE)

MonitorPage = Callable[[str], Awaitable[Response]]
"""Answers a request, given what it accepts."""


def monitor_pages(reporter: HealthReporter) -> dict[str, MonitorPage]:
    """Return the pages by path."""
    return {
        "/metrics": reporter.metrics,
        "/healthz": lambda _: reporter.health(),
        "/readyz": lambda _: reporter.ready(),
    }


def create_monitor_app(pages: dict[str, MonitorPage], *, on_loopback: bool) -> ASGIApp:
    """Make the application that answers GET and HEAD of these pages."""
    listing = PlainTextResponse("".join(f"{path}\n" for path in pages), 404)
    routes = [
        Route(path, partial(_respond, page, on_loopback), methods=["GET"])
        for path, page in pages.items()
    ]
    return Router(routes, redirect_slashes=False, default=listing)


async def _respond(page: MonitorPage, on_loopback: bool, request: Request) -> Response:
    if on_loopback and not all(map(_LOCAL_HOST.fullmatch, request.headers.getlist("host"))):
        return PlainTextResponse("on loopback, ask by address or as localhost\n", 421)
    try:
        return await page(request.headers.get("accept", ""))
    except Exception:  # noqa: BLE001  an error in a page is ours, not the client's
        _log.exception("a fault in answering %s", request.url.path)
        return PlainTextResponse("a fault, see the log\n", 500)


# ---- how it is served

MAX_CONNECTIONS = 16
REQUEST_TIMEOUT = 10.0  # seconds, for a request and its answer
MAX_REQUEST_BYTES = 8192


class FewConnections(H11Protocol):
    """One connection of few: others that need its place end it, unless it works on an answer.

    uvicorn's `limit_concurrency` turns away clients that ask, not clients that are silent; and it
    waits without limit for a header, and for a reader.
    """

    timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        if len(self.connections) >= cast("int", self.limit_concurrency):
            silent = [
                each
                for each in self.connections
                if isinstance(each, FewConnections) and each is not self and each.is_silent
            ]
            if silent:  # the one that has been silent for longest goes
                oldest = min(silent, key=lambda each: each.timer.when())
                self.connections.discard(oldest)  # now: a request may come before its loss is told
                oldest.transport.abort()
        self.watch(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.timer.cancel()
        super().connection_lost(exc)

    @property
    def is_silent(self) -> bool:
        """Whether a header is awaited."""
        return self.conn.their_state is h11.IDLE and not self.transport.is_closing()

    def watch(self, _: object) -> None:
        """End the connection in time, whatever it does."""
        self.timer = self.loop.call_later(REQUEST_TIMEOUT, self.transport.abort)


plain_config = partial(
    uvicorn.Config,
    ws="none",
    lifespan="off",
    log_config=None,
    access_log=False,
    proxy_headers=False,
    server_header=False,
)


def monitor_config(app: ASGIApp) -> uvicorn.Config:
    """Say how uvicorn serves the application."""
    return plain_config(
        app,
        http=FewConnections,
        headers=[
            ("Connection", "close"),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ],
        h11_max_incomplete_event_size=MAX_REQUEST_BYTES,
        limit_concurrency=MAX_CONNECTIONS + 1,  # answers for clients that have hung up count too
        timeout_graceful_shutdown=0,
    )
