"""What monitors ask over HTTP: whether all is well, and metrics for Prometheus.

`HealthReporter` answers `/healthz` with what the master says of the processes, `/readyz` from the
filter and the next hops too, and `/metrics` from what the processes have counted and the filter
knows. `FilterProbe` opens the filter each time, which also shows that it is usable.

`monitor_config` and `page_config` say how uvicorn serves this, and page and API: few connections,
and no waiting for a header without limit. On loopback these pages
must be asked by address or as localhost: otherwise a page of another site whose name leads here
(DNS rebinding) could read the answer in a browser on this machine.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import h11
import uvicorn
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
from spamguard.counters import BUCKET_BOUNDS, STAGES, Counters, DaemonReport, Durations, pairs
from spamguard.delivery.smtp import find_unreachable
from spamguard.engine.filter import Filter
from spamguard.errors import LedgerError, SpamguardError
from spamguard.imap.status import AccountStatus, read_status
from spamguard.records import Status
from spamguard.storage import LEDGER_FILE
from spamguard.users import SUBMITTED_ORIGINS, Origin
from spamguard.web.numbers import DaemonHealth, check_daemon

if TYPE_CHECKING:
    from spamguard.shared.status import SharedStatus

_log = logging.getLogger("spamguard.metrics")

# ---- health

_PROBE_TIMEOUT = 5.0
Value = TypeVar("Value")


class HealthReporter:
    """Answers monitors, and the page about the same. Belongs to one event loop.

    ask: asks the master, may block. tell: tells the master what this process has counted.
    """

    def __init__(
        self,
        settings: Settings,
        ask: Callable[[], DaemonReport],
        tell: Callable[[Counters], None],
    ) -> None:
        self._settings = settings
        self._hops = [listener.next_hop for listener in settings.listeners]
        # Threads of their own: monitors are answered while the page keeps all others busy.
        self._ask = partial(_run, ThreadPoolExecutor(1, "ask"), ask)
        probe = FilterProbe(settings.state, tell).probe
        self._probe = partial(_run, ThreadPoolExecutor(1, "probe"), probe)

    async def _look_at_filter(self) -> FilterReport | str:
        """Return what the filter knows, or what is wrong with it."""
        try:
            return await asyncio.wait_for(self._probe(), _PROBE_TIMEOUT)
        except TimeoutError:
            return "state: it takes too long to open the filter"
        except (SpamguardError, OSError) as error:
            return f"state: {error}"

    async def metrics(self, accept: str) -> Response:
        report = await self._look_at_filter()
        settings = self._settings
        accounts = read_status(settings.state).values() if settings.accounts else None
        daemon, shared = await self._ask(), self._read_shared()
        return MetricsPage(daemon, report, shared, accounts).encode(accept)

    async def health(self, _: str) -> Response:
        """Answer /healthz: whether all processes work."""
        daemon = await self._ask()
        return _health_answer([*daemon.stuck, *daemon.absent], "alive")

    async def ready(self, _: str) -> Response:
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
        from spamguard.shared import status  # noqa: PLC0415  on such nodes only

        return status.read_status(self._settings.state)

    async def look(self) -> DaemonHealth:
        daemon, report, hops = await self._look_everywhere()
        found = [*hops, *([report] if isinstance(report, str) else ())]
        shared = self._read_shared()
        found += shared.notes(time.time()) if shared else ()
        return await asyncio.to_thread(check_daemon, self._settings, daemon, found)

    async def _look_everywhere(self) -> tuple[DaemonReport, FilterReport | str, list[str]]:
        hops = find_unreachable(self._hops, log.hostname())
        return await asyncio.gather(self._ask(), self._look_at_filter(), hops)


async def _run(threads: Executor, work: Callable[[], Value]) -> Value:
    return await asyncio.get_running_loop().run_in_executor(threads, work)


def _health_answer(problems: list[str], well: str, notes: Iterable[str] = ()) -> Response:
    """Return a line for each problem; these may quote names of files, so make them printable.

    notes: of what does no harm to mail.
    """
    lines = [f"{log.printable(line)}\n" for line in [*(problems or [well]), *notes]]
    return PlainTextResponse("".join(lines), 503 if problems else 200)


# ---- the filter

PERSON_ORIGINS = (Origin.FOLDER, Origin.RELEASE, *SUBMITTED_ORIGINS)
"""First words of the origins of lessons that people gave one by one, not in bulk."""
_MAX_EVENTS = 20_000  # votes counted in one look
_MAX_ORIGIN_LENGTH = 12  # letters of an origin's first word


class FilterReport(NamedTuple):
    """The status of ledger and tables, and when a person last taught (seconds since 1970)."""

    status: Status
    last_taught: int | None


class FilterProbe:
    """Looks at one filter, for one thread at a time, and counts its lessons.

    tell: as of `HealthReporter`.
    """

    def __init__(self, state: Path, tell: Callable[[Counters], None]) -> None:
        self._state, self._tell = state, tell
        self._counters, self._seq = Counters(), -1  # the last event that was counted; -1: none
        self._last_taught: int | None = None

    def probe(self) -> FilterReport:
        file = self._state / LEDGER_FILE
        if not file.exists():  # only a lesson creates it
            raise LedgerError(f"ledger {file}: there is none")
        with Filter.open(self._state) as spam_filter:
            # Count lessons since the last look; the first look counts none.
            users, last = spam_filter.ledger.users, spam_filter.ledger.last_position()
            if not 0 <= self._seq <= last:  # never counted, or an older ledger was restored
                self._last_taught, self._seq = users.last_vote_time(PERSON_ORIGINS), last
            upto = min(last, self._seq + _MAX_EVENTS)
            for label, origin, number, newest in users.votes_by_origin(self._seq, upto):
                first = origin.partition(" ")[0].strip(",")[:_MAX_ORIGIN_LENGTH]
                self._counters.count_lessons(label, first or "other", number)
                if first in PERSON_ORIGINS:
                    self._last_taught = max(self._last_taught or 0, newest)
            self._seq = upto
            self._tell(self._counters)
            return FilterReport(spam_filter.status(), self._last_taught)


# ---- metrics


class Gauge(NamedTuple):
    """A metric: what Prometheus gets and its documentation are made from this.

    read: gets its number, None for nothing to tell; with labels, their values and a number for each
    sample. A histogram has `Durations` for a number.
    """

    name: str
    about: str
    read: Callable[[Any], Any]
    labels: Sequence[str] = ()
    kind: type[Any] = GaugeMetricFamily


CounterMetric = partial(Gauge, kind=CounterMetricFamily)

DAEMON_METRICS = (
    Gauge(
        "spamguard_build_info",
        "Version of the program; always 1.",
        lambda _: [([__version__], 1)],
        ["version"],
    ),
    Gauge(
        "spamguard_start_time_seconds",
        "When the daemon started, in seconds since 1970.",
        attrgetter("began"),
    ),
    Gauge(
        "spamguard_workers",
        "Processes that speak SMTP, draining ones included.",
        attrgetter("workers"),
    ),
    CounterMetric(
        "spamguard_messages_total",
        "Messages handled, by verdict (a class, unsure, not-scanned) and action "
        "(none: not judged).",
        # Present from the beginning: Prometheus' rates miss the first increase of a new series.
        lambda daemon: {
            ("not-scanned", "none"): 0,
            **dict(pairs(daemon.counters.messages)),
        }.items(),
        ["verdict", "action"],
    ),
    CounterMetric(
        "spamguard_message_bytes_total",
        "Bytes of the messages handled, as received.",
        attrgetter("counters.bytes"),
    ),
    Gauge(
        "spamguard_stage_seconds",
        "How long a message took to receive, judge and deliver.",
        lambda daemon: zip(zip(STAGES, strict=True), daemon.counters.stages, strict=True),
        ["stage"],
        HistogramMetricFamily,
    ),
    CounterMetric(
        "spamguard_next_hop_errors_total",
        "Failed connections, lost connections and timeouts of next hops; refusals do not count.",
        lambda daemon: pairs(daemon.counters.next_hop_errors),
        ["next_hop", "kind"],
    ),
    CounterMetric(
        "spamguard_lessons_total",
        "Lessons since the daemon started, by class and origin, those of commands included.",
        lambda daemon: pairs(daemon.counters.lessons),
        ["class", "origin"],
    ),
)
"""Of a `DaemonReport`: what the processes of the daemon have counted."""

STATE_METRICS = (
    Gauge(
        "spamguard_state_usable",
        "Whether ledger and tables could be opened.",
        lambda report: int(isinstance(report, FilterReport)),
    ),
)
"""Of a `FilterReport`, or of what is wrong with the filter."""

FILTER_METRICS = (
    Gauge(
        "spamguard_class_messages",
        "Messages taught, by class.",
        lambda report: (([name], number) for name, number in report.status.classes.items()),
        ["class"],
    ),
    Gauge(
        "spamguard_unsettled_events",
        "Lessons that are not settled yet.",
        attrgetter("status.unsettled"),
    ),
    Gauge(
        "spamguard_last_lesson_by_person_timestamp_seconds",
        "When a person last taught, not in bulk, in seconds since 1970.",
        attrgetter("last_taught"),
    ),
    Gauge(
        "spamguard_table_load_ratio",
        "Share of buckets in use.",
        lambda report: (([name], share) for name, share in report.status.used.items()),
        ["tokens"],
    ),
    Gauge("spamguard_ledger_bytes", "Size of the ledger.", attrgetter("status.ledger_bytes")),
    Gauge(
        "spamguard_tables_bytes",
        "Size of the tables on the disk.",
        attrgetter("status.tables_bytes"),
    ),
)
"""Of a `FilterReport`."""

SHARED_METRICS = (
    Gauge(
        "spamguard_shared_log_age_seconds",
        "Time since the shared log could last be read.",
        lambda shared: shared.age(time.time()),
    ),
    Gauge(
        "spamguard_shared_pending",
        "Lessons that other nodes do not have yet.",
        attrgetter("waiting"),
    ),
    Gauge(
        "spamguard_shared_absent_nodes",
        "Other nodes that the shared log was not told of for a minute.",
        lambda shared: len(shared.absent),
    ),
    Gauge(
        "spamguard_shared_alarms",
        "Troubles of the shared log that an operator must look at.",
        lambda shared: len(shared.alarms),
    ),
    Gauge(
        "spamguard_shared_forged_rows",
        "Rows of the shared database that no node wrote, and that are ignored.",
        attrgetter("forged"),
    ),
)
"""Of the `SharedStatus` of a node that shares its lessons with others."""

ACCOUNT_METRICS = (
    Gauge(
        "spamguard_accounts_connected",
        "Accounts at IMAP servers with a connection now.",
        lambda accounts: sum(bool(account.connected_since) for account in accounts),
    ),
    Gauge(
        "spamguard_accounts_in_trouble",
        "Accounts at IMAP servers that cannot be used as they should.",
        lambda accounts: sum(bool(account.trouble) for account in accounts),
    ),
    Gauge(
        "spamguard_accounts_waiting",
        "Messages in accounts that are not judged yet.",
        lambda accounts: sum(account.waiting for account in accounts),
    ),
    Gauge(
        "spamguard_accounts_moved",
        "Messages that were moved to Junk in accounts, since these were added.",
        lambda accounts: sum(account.moved for account in accounts),
    ),
)
"""Of the `AccountStatus` of all accounts: together, because their names are people's."""


@dataclass(eq=False)
class MetricsPage(Collector):
    """What the daemon tells Prometheus at one moment. filter: what is wrong with it, or its report.

    shared: of a node that shares its lessons with others. accounts: where there are any.
    """

    daemon: DaemonReport
    filter: FilterReport | str
    shared: SharedStatus | None = None
    accounts: Collection[AccountStatus] | None = None

    def collect(self) -> Iterator[Metric]:
        for declared, source in (
            (DAEMON_METRICS, self.daemon if self.daemon.began else None),
            (STATE_METRICS, self.filter),
            (FILTER_METRICS, None if isinstance(self.filter, str) else self.filter),
            (SHARED_METRICS, self.shared),
            (ACCOUNT_METRICS, self.accounts),
        ):
            for name, about, read, labels, kind in declared if source is not None else ():
                found = read(source)
                metric = kind(name, about, labels=labels)
                for values, number in found if labels else [((), found)]:
                    if isinstance(number, Durations):
                        bounds = [*map(str, BUCKET_BOUNDS), "+Inf"]
                        buckets = list(zip(bounds, accumulate(number.buckets), strict=True))
                        metric.add_metric(values, buckets, number.seconds)
                    elif number is not None:
                        metric.add_metric(values, number)
                if metric.samples or labels:
                    yield metric

    def encode(self, accept: str) -> Response:
        """Write the page in a format that a client accepts, as in its header field.

        "" is Prometheus' text format 0.0.4.
        """
        try:
            encode, kind = choose_encoder(accept)
        except TypeError:  # the version that the client names is no number
            encode, kind = choose_encoder("")
        return Response(encode(self), headers={"Content-Type": kind})


# ---- the application

# Names that need no name server.
_LOCAL_HOST = re.compile(r"(?:localhost|[0-9.]+|\[[0-9a-f:.]+\])(?::[0-9]{0,5})?", re.IGNORECASE)

MonitorPage = Callable[[str], Awaitable[Response]]
"""Answers a request, given what it accepts."""


def monitor_pages(reporter: HealthReporter) -> dict[str, MonitorPage]:
    return {
        "/metrics": reporter.metrics,
        "/healthz": reporter.health,
        "/readyz": reporter.ready,
    }


def create_monitor_app(pages: dict[str, MonitorPage], *, on_loopback: bool) -> ASGIApp:
    routes = [
        Route(path, partial(_respond, page, on_loopback), methods=["GET"])
        for path, page in pages.items()
    ]
    return Router(routes, redirect_slashes=False)


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
MAX_REQUEST_BYTES = 8192
HEADER_SECONDS = 10.0  # for a whole header; twice that at most


class FewConnections(H11Protocol):
    """One connection of few: others that need its place end it, unless it works on an answer.

    It also ends when a header takes too long. uvicorn's `limit_concurrency` turns away clients that
    ask, not clients that are silent; and it waits without limit for a header.
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
        return self.conn.their_state is h11.IDLE and not self.transport.is_closing()

    def watch(self, last_awaited: object) -> None:
        """Hang up if the same header was awaited last time. Each request has its own cycle."""
        awaited = (self.cycle,) if self.is_silent else None
        if awaited is not None and awaited == last_awaited:
            self.transport.abort()
        else:
            self.timer = self.loop.call_later(HEADER_SECONDS, self.watch, awaited)


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


# ---- how page and API are served

MAX_PAGE_CONNECTIONS = 256
MAX_EVENT_BYTES = 64 << 10  # of a header; beyond `requests`' own limit, whose answer is a problem
IDLE_SECONDS = 8  # between two requests
WRITE_STALL_SECONDS = 30.0  # for a client that does not read its answer
DRAIN_SECONDS = 1  # to finish answers at the end


def page_config(
    app: ASGIApp, listening: socket.socket, tls: ssl.SSLContext | None = None
) -> uvicorn.Config:
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it writes about clients only
    # Connections inherit both options. asyncio forgets the first, and a body must not wait for
    # ACKs; uvicorn waits without limit for clients that do not read.
    stall = int(WRITE_STALL_SECONDS * 1000)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall)
    config = plain_config(
        app,
        http=FewConnections,
        limit_concurrency=MAX_PAGE_CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        h11_max_incomplete_event_size=MAX_EVENT_BYTES,
    )
    config.load()
    config.ssl = tls  # uvicorn would read files; this one changes when there is a new certificate
    return config
