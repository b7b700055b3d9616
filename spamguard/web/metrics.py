"""Metrics in the format of Prometheus, and the small HTTP server that monitors ask.

`MonitorServer` answers GET and HEAD of a few fixed pages, one request for each connection (RFC
9112). It reads only method, path and Host, and holds few connections for some seconds at most. On
loopback it must be asked by address or as localhost: otherwise a page of another site whose name
leads here (DNS rebinding) could read the answer in a browser on this machine.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from spamguard.counters import BUCKET_BOUNDS, CounterTotals
from spamguard.limits import ConnectionLimits

if TYPE_CHECKING:
    from spamguard.web.health import FilterReport

_log = logging.getLogger("spamguard.metrics")

# ---- the text format

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]
_LABEL_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def counter(name: str, about: str, samples: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    """Write a metric that only grows; its name ends in _total."""
    return _metric(name, "counter", about, samples)


def gauge(name: str, about: str, samples: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    """Write a metric that goes up and down."""
    return _metric(name, "gauge", about, samples)


def histogram(
    name: str,
    about: str,
    bounds: Iterable[float],
    samples: Iterable[tuple[Labels, list[int], float]],
) -> Iterator[str]:
    """Write a histogram.

    Parameters
    ----------
    samples
        Labels, the number of values in each bucket (one more than bounds), and the sum of values.
    """
    yield from _metric_head(name, "histogram", about)
    ends = [*(_format_number(bound) for bound in bounds), "+Inf"]
    for labels, counts, whole in samples:
        for end, count in zip(ends, accumulate(counts), strict=True):
            yield _format_sample(f"{name}_bucket", {**labels, "le": end}, count)
        yield _format_sample(f"{name}_sum", labels, whole)
        yield _format_sample(f"{name}_count", labels, sum(counts))


def encode_page(lines: Iterable[str]) -> bytes:
    """Write the whole page (text format, version 0.0.4)."""
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _metric(
    name: str, kind: str, about: str, samples: Iterable[tuple[Labels, float]]
) -> Iterator[str]:
    yield from _metric_head(name, kind, about)
    for labels, value in samples:
        yield _format_sample(name, labels, value)


def _metric_head(name: str, kind: str, about: str) -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def _format_sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{text.translate(_LABEL_ESCAPES)}"' for key, text in labels.items())
    return (
        f"{name}{{{inside}}} {_format_number(value)}"
        if inside
        else f"{name} {_format_number(value)}"
    )


def _format_number(value: float) -> str:
    return repr(value)


# ---- our metrics

# Present from the beginning, because Prometheus' rates miss the first increase of a new series.
_NOT_JUDGED_ROW = ("not-scanned", "none")


def counter_metrics(version: str, began: int, workers: int, totals: CounterTotals) -> Iterator[str]:
    """Write what the processes of the daemon have counted.

    Parameters
    ----------
    began
        When the daemon started, in seconds since 1970.
    workers
        Number of processes that speak SMTP.
    """
    yield from gauge(
        "spamguard_build_info", "Version of the program; always 1.", [({"version": version}, 1)]
    )
    yield from gauge(
        "spamguard_start_time_seconds",
        "When the daemon started, in seconds since 1970.",
        [({}, began)],
    )
    yield from gauge(
        "spamguard_workers",
        "Processes that speak SMTP, draining ones included.",
        [({}, workers)],
    )
    yield from counter(
        "spamguard_messages_total",
        "Messages handled, by verdict (a class, unsure, not-scanned) and action "
        "(none: not judged).",
        [
            ({"verdict": verdict, "action": action}, number)
            for (verdict, action), number in {_NOT_JUDGED_ROW: 0, **totals.messages}.items()
        ],
    )
    yield from counter(
        "spamguard_message_bytes_total",
        "Bytes of the messages handled, as received.",
        [({}, totals.bytes)],
    )
    yield from histogram(
        "spamguard_stage_seconds",
        "How long a message took to receive, judge and deliver.",
        BUCKET_BOUNDS,
        [({"stage": stage}, counts, seconds) for stage, (counts, seconds) in totals.stages.items()],
    )
    yield from counter(
        "spamguard_next_hop_errors_total",
        "Failed connections, lost connections and timeouts of next hops; refusals do not count.",
        [
            ({"next_hop": endpoint, "kind": kind}, number)
            for (endpoint, kind), number in totals.next_hop_errors.items()
        ],
    )
    yield from counter(
        "spamguard_lessons_total",
        "Lessons since the daemon started, by class and origin, those of commands included.",
        [
            ({"class": label, "origin": origin}, number)
            for (label, origin), number in totals.lessons.items()
        ],
    )


def filter_metrics(report: FilterReport | None) -> Iterator[str]:
    """Write what the filter knows; None if it could not be read."""
    yield from gauge(
        "spamguard_state_usable",
        "Whether ledger and tables could be opened.",
        [({}, int(report is not None))],
    )
    if report is None:
        return
    status, person = report
    yield from gauge(
        "spamguard_class_messages",
        "Messages taught, by class.",
        [({"class": name}, number) for name, number in status.classes.items()],
    )
    yield from gauge(
        "spamguard_unsettled_events",
        "Lessons that are not settled yet.",
        [({}, status.unsettled)],
    )
    if person is not None:
        about = "When a person last taught, not in bulk, in seconds since 1970."
        yield from gauge("spamguard_last_lesson_by_person_timestamp_seconds", about, [({}, person)])
    yield from gauge(
        "spamguard_table_load_ratio",
        "Share of buckets in use.",
        [({"tokens": name}, load) for name, load in status.used.items()],
    )
    yield from gauge("spamguard_ledger_bytes", "Size of the ledger.", [({}, status.ledger_bytes)])
    yield from gauge(
        "spamguard_tables_bytes", "Size of the tables on the disk.", [({}, status.tables_bytes)]
    )


# ---- the server

MAX_CONNECTIONS = 16
REQUEST_TIMEOUT = 10.0  # seconds, for a request and its answer
MAX_REQUEST_BYTES = 8192
_BACKLOG = 64

_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,2000}) HTTP/1\.[01]\r\n")
_HOST_FIELD = re.compile(rb"\r\nhost:[ \t]*([^\r]*)", re.IGNORECASE)
# Names that need no name server.
_LOCAL_HOST = re.compile(
    rb"(?:localhost|[0-9.]+|\[[0-9a-f:.]+\])(?::[0-9]{0,5})?[ \t]*", re.IGNORECASE
)
_REASON_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
} | {
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
PLAIN_TEXT = "text/plain; charset=utf-8"


class MonitorAnswer(NamedTuple):
    """An answer to a monitor."""

    status: int
    body: bytes
    content_type: str = PLAIN_TEXT


MonitorPages = Mapping[str, Callable[[], Awaitable[MonitorAnswer]]]


@dataclass(eq=False, slots=True)
class _MonitorClient:
    """A connection, idle until its request has arrived (`limits.Evictable`)."""

    writer: asyncio.StreamWriter
    idle_since: float | None


class MonitorServer:
    """Serves pages by path."""

    def __init__(self, pages: MonitorPages) -> None:
        self._pages = pages
        self._on_loopback = False
        self._limits = ConnectionLimits[_MonitorClient](
            MAX_CONNECTIONS, MAX_CONNECTIONS, lambda client: client.writer.transport.abort()
        )

    async def start(self, host: str, port: int) -> asyncio.Server:
        """Listen on an address and port. OSError."""
        self._on_loopback = ip_address(host).is_loopback
        return await asyncio.start_server(
            self._serve, host, port, backlog=_BACKLOG, limit=MAX_REQUEST_BYTES
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _MonitorClient(writer, asyncio.get_running_loop().time())
        if self._limits.enter(client, "") is not None:
            writer.transport.abort()
            return
        try:
            with suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError):
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    writer.write(await self._answer(reader, client))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._limits.leave(client)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, client: _MonitorClient) -> bytes:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _encode_answer(MonitorAnswer(431, b"too long\n"))
        finally:
            client.idle_since = None
        match = _REQUEST_LINE.match(request)
        if match is None:
            return _encode_answer(MonitorAnswer(400, b"not understood\n"))
        if match[1] not in (b"GET", b"HEAD"):
            return _encode_answer(MonitorAnswer(405, b"only GET and HEAD\n"))
        if self._on_loopback and not all(map(_LOCAL_HOST.fullmatch, _HOST_FIELD.findall(request))):
            return _encode_answer(
                MonitorAnswer(421, b"on loopback, ask by address or as localhost\n")
            )
        path = match[2].decode("ascii").partition("?")[0]
        return _encode_answer(await self._page(path), with_body=match[1] == b"GET")

    async def _page(self, path: str) -> MonitorAnswer:
        page = self._pages.get(path)
        if page is None:
            return MonitorAnswer(404, "".join(f"{path}\n" for path in self._pages).encode())
        try:
            return await page()
        except Exception:  # noqa: BLE001  an error in a page must not end the server
            _log.exception("a fault in answering %s", path)
            return MonitorAnswer(500, b"a fault, see the log\n")


def _encode_answer(answer: MonitorAnswer, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status} {_REASON_PHRASES[answer.status]}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        *(["Allow: GET, HEAD"] if answer.status == 405 else []),
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    )
    return "".join(f"{line}\r\n" for line in (*head, "")).encode("ascii") + (
        answer.body if with_body else b""
    )
