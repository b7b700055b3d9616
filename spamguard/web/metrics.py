"""What monitors ask over HTTP: metrics for Prometheus, and health.

`encode_metrics` writes what the processes have counted and what the filter knows, by
prometheus_client. `create_monitor_app` makes a small ASGI application of the three pages, and
`monitor_config` says how uvicorn serves it: one request for each connection, few connections, each
for some seconds at most.

On loopback the pages must be asked by address or as localhost: otherwise a page of another site
whose name leads here (DNS rebinding) could read the answer in a browser on this machine.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, cast

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

from spamguard import __version__
from spamguard.counters import BUCKET_BOUNDS, MASTER_SLOT, CounterBoard, CounterTotals, sum_slots

if TYPE_CHECKING:
    from spamguard.web.health import FilterReport, HealthReporter, MonitorAnswer

_log = logging.getLogger("spamguard.metrics")

# ---- metrics

# Present from the beginning, because Prometheus' rates miss the first increase of a new series.
_NOT_JUDGED_ROW = ("not-scanned", "none")


class DaemonCollector(Collector):
    """What the daemon tells Prometheus at one moment.

    Parameters
    ----------
    report
        What the filter knows; None if it could not be read.
    """

    def __init__(self, board: CounterBoard, report: FilterReport | None) -> None:
        self._board = board
        self._report = report

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its samples."""
        began = self._board.slot(MASTER_SLOT).began
        workers = sum(1 for _ in self._board.worker_slots())
        yield from counter_metrics(began, workers, sum_slots(self._board.used_slots()))
        yield from filter_metrics(self._report)


def encode_metrics(
    board: CounterBoard, report: FilterReport | None, accept: str
) -> tuple[bytes, str]:
    """Return the page, and its content type, in a format that a client accepts.

    accept: its header field; "": Prometheus' text format 0.0.4.
    """
    registry = CollectorRegistry()
    registry.register(DaemonCollector(board, report))
    try:
        encode, content_type = choose_encoder(accept)
    except TypeError:  # the version that the client names is no number
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


def counter_metrics(began: int, workers: int, totals: CounterTotals) -> Iterator[Metric]:
    """Yield what the processes of the daemon have counted.

    Parameters
    ----------
    began
        When the daemon started, in seconds since 1970.
    workers
        Number of processes that speak SMTP.
    """
    yield _gauge_by(
        "spamguard_build_info", "Version of the program; always 1.", "version", [(__version__, 1)]
    )
    yield GaugeMetricFamily(
        "spamguard_start_time_seconds", "When the daemon started, in seconds since 1970.", began
    )
    yield GaugeMetricFamily(
        "spamguard_workers", "Processes that speak SMTP, draining ones included.", workers
    )
    yield _counter_by(
        "spamguard_messages_total",
        "Messages handled, by verdict (a class, unsure, not-scanned) and action "
        "(none: not judged).",
        ("verdict", "action"),
        {_NOT_JUDGED_ROW: 0, **totals.messages}.items(),
    )
    yield CounterMetricFamily(
        "spamguard_message_bytes_total",
        "Bytes of the messages handled, as received.",
        totals.bytes,
    )
    yield _stage_histogram(totals)
    yield _counter_by(
        "spamguard_next_hop_errors_total",
        "Failed connections, lost connections and timeouts of next hops; refusals do not count.",
        ("next_hop", "kind"),
        totals.next_hop_errors.items(),
    )
    yield _counter_by(
        "spamguard_lessons_total",
        "Lessons since the daemon started, by class and origin, those of commands included.",
        ("class", "origin"),
        totals.lessons.items(),
    )


def filter_metrics(report: FilterReport | None) -> Iterator[Metric]:
    """Yield what the filter knows; None if it could not be read."""
    usable = int(report is not None)
    about = "Whether ledger and tables could be opened."
    yield GaugeMetricFamily("spamguard_state_usable", about, usable)
    if report is None:
        return
    status, person = report
    yield _gauge_by(
        "spamguard_class_messages", "Messages taught, by class.", "class", status.classes.items()
    )
    yield GaugeMetricFamily(
        "spamguard_unsettled_events", "Lessons that are not settled yet.", status.unsettled
    )
    if person is not None:
        about = "When a person last taught, not in bulk, in seconds since 1970."
        yield GaugeMetricFamily("spamguard_last_lesson_by_person_timestamp_seconds", about, person)
    yield _gauge_by(
        "spamguard_table_load_ratio", "Share of buckets in use.", "tokens", status.used.items()
    )
    yield GaugeMetricFamily("spamguard_ledger_bytes", "Size of the ledger.", status.ledger_bytes)
    yield GaugeMetricFamily(
        "spamguard_tables_bytes", "Size of the tables on the disk.", status.tables_bytes
    )


def _gauge_by(name: str, about: str, label: str, samples: Iterable[tuple[str, float]]) -> Metric:
    metric = GaugeMetricFamily(name, about, labels=[label])
    for value, number in samples:
        metric.add_metric([value], number)
    return metric


def _counter_by(
    name: str, about: str, labels: tuple[str, str], samples: Iterable[tuple[tuple[str, str], int]]
) -> Metric:
    metric = CounterMetricFamily(name, about, labels=labels)
    for values, number in samples:
        metric.add_metric(values, number)
    return metric


def _stage_histogram(totals: CounterTotals) -> Metric:
    about = "How long a message took to receive, judge and deliver."
    metric = HistogramMetricFamily("spamguard_stage_seconds", about, labels=["stage"])
    bounds = [*map(str, BUCKET_BOUNDS), "+Inf"]
    for stage, (counts, seconds) in totals.stages.items():
        metric.add_metric([stage], list(zip(bounds, accumulate(counts), strict=True)), seconds)
    return metric


# ---- the application

# Names that need no name server.
_LOCAL_HOST = re.compile(r"(?:localhost|[0-9.]+|\[[0-9a-f:.]+\])(?::[0-9]{0,5})?", re.IGNORECASE)

MonitorPage = Callable[[str], Awaitable["MonitorAnswer"]]
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
        answer = await page(request.headers.get("accept", ""))
    except Exception:  # noqa: BLE001  an error in a page is ours, not the client's
        _log.exception("a fault in answering %s", request.url.path)
        return PlainTextResponse("a fault, see the log\n", 500)
    return Response(answer.body, answer.status, {"Content-Type": answer.content_type})


# ---- how it is served

MAX_CONNECTIONS = 16
REQUEST_TIMEOUT = 10.0  # seconds, for a request and its answer
MAX_REQUEST_BYTES = 8192


class _MonitorConnection(H11Protocol):
    """One connection. uvicorn itself waits without limit for a request, and for a reader."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self.deadline = self.loop.call_later(REQUEST_TIMEOUT, self.transport.abort)
        if len(self.connections) > MAX_CONNECTIONS:  # the one that has been silent for longest goes
            silent = [
                each
                for each in self.connections
                if isinstance(each, _MonitorConnection) and each.cycle is None
            ]
            oldest = min(silent, key=lambda each: each.deadline.when())
            self.connections.discard(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.deadline.cancel()
        super().connection_lost(exc)


def monitor_config(app: ASGIApp) -> uvicorn.Config:
    """Say how uvicorn serves the application."""
    return uvicorn.Config(
        app,
        http=_MonitorConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=[
            ("Connection", "close"),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ],
        h11_max_incomplete_event_size=MAX_REQUEST_BYTES,
        limit_concurrency=MAX_CONNECTIONS + 1,  # answers for clients that have hung up count too
        timeout_graceful_shutdown=0,
    )
