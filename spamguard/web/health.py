"""Whether filter, processes and next hops are well, for `/healthz`, `/readyz`, `status` and page.

`FilterProbe` opens the filter each time, which also shows that it is usable. It only reads, never
creates a filter, and counts lessons from where it stopped the last time, so it does not take longer
the more was taught. `find_unwell` looks at the heartbeats of the processes, `find_unreachable` at
the next hops. `HealthReporter` answers monitors from all three; answers are cached for some seconds
(`AsyncTtlCache`) and have a deadline, so that asking often costs nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from spamguard import log
from spamguard.config.options import Endpoint, Hop, Protocol, Settings
from spamguard.counters import (
    MASTER_SLOT,
    REPORTER_SLOT,
    TEACHER_SLOT,
    WATCHER_SLOT,
    WEB_SLOT,
    CounterBoard,
    CounterSlot,
)
from spamguard.delivery.next_hop import DeliveryError
from spamguard.errors import LedgerError, SpamguardError
from spamguard.log import hostname
from spamguard.storage import LEDGER_FILE
from spamguard.users import SUBMITTED_ORIGINS

if TYPE_CHECKING:  # the master imports this module, and never numpy
    from spamguard.engine.filter import Filter
    from spamguard.records import Status

_FILTER_CACHE_SECONDS = 5.0
_HOPS_CACHE_SECONDS = 10.0  # each probe is a session that the next hop may log
_PROBE_TIMEOUT = 5.0


class MonitorAnswer(NamedTuple):
    """An answer to a monitor. status: of HTTP."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class HealthReporter:
    """Answers monitors, and the API and page about the same. Belongs to one event loop."""

    def __init__(self, settings: Settings, board: CounterBoard) -> None:
        self._board = board
        self._hops = [listener.next_hop for listener in settings.listeners]
        self._filter_probe = FilterProbe(settings.state, board.slot(REPORTER_SLOT))
        # A thread of its own: monitors are answered while the page keeps all others busy.
        self._thread = ThreadPoolExecutor(1, "probe")
        self._filter_cache = AsyncTtlCache(
            self._probe_filter, _FILTER_CACHE_SECONDS, _PROBE_TIMEOUT
        )
        self._hops_cache = AsyncTtlCache(self._probe_next_hops, _HOPS_CACHE_SECONDS, _PROBE_TIMEOUT)

    async def metrics(self, accept: str = "") -> MonitorAnswer:
        """Answer /metrics. accept: formats that the client accepts, as in its header field."""
        from spamguard.web.metrics import encode_metrics  # noqa: PLC0415  not in the master

        report = await self._get_filter()
        readable = None if isinstance(report, str) else report
        return MonitorAnswer(200, *encode_metrics(self._board, readable, accept))

    async def health(self) -> MonitorAnswer:
        """Answer /healthz: whether all processes are alive."""
        return _health_answer(self.find_unwell(), "alive")

    async def ready(self) -> MonitorAnswer:
        """Answer /readyz: whether mail can be judged and delivered."""
        report, hops = await asyncio.gather(self._get_filter(), self._get_next_hops())
        state = [report] if isinstance(report, str) else []
        stuck = find_stuck(self._board, time.monotonic_ns())
        return _health_answer([*stuck, *state, *find_missing_scorers(self._board), *hops], "ready")

    def find_unwell(self) -> list[str]:
        """Return the lines of /healthz: one for each process that does not work."""
        return find_unwell(self._board, time.monotonic_ns())

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
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._filter_probe.probe)

    async def _probe_next_hops(self) -> list[str]:
        return await find_unreachable(self._hops, hostname())


def _health_answer(problems: list[str], well: str) -> MonitorAnswer:
    """Return a line for each problem; these may quote names of files, so make them printable."""
    lines = [f"{log.printable(line)}\n" for line in problems or [well]]
    return MonitorAnswer(503 if problems else 200, "".join(lines).encode("utf-8", "replace"))


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
    """Looks at one filter, for one thread at a time. slot: where lessons are counted."""

    def __init__(self, state: Path, slot: CounterSlot) -> None:
        self._state = state
        self._slot = slot
        self._last_taught: int | None = None
        self._knows_last_taught = False

    def probe(self) -> FilterReport:
        """Look at the filter. SpamguardError: ledger or tables are unusable."""
        file = self._state / LEDGER_FILE
        if not file.exists():  # only a lesson creates it
            raise LedgerError(f"ledger {file}: there is none")
        from spamguard.engine.filter import Filter  # noqa: PLC0415  loads numpy

        with Filter.open(self._state) as spam_filter:
            self._count_lessons(spam_filter)
            return FilterReport(spam_filter.status(), self._last_taught)

    def _count_lessons(self, spam_filter: Filter) -> None:
        """Count lessons since the last look; the first look counts none."""
        users, last = spam_filter.ledger.users, spam_filter.ledger.last_seq()
        if not self._knows_last_taught:
            self._last_taught, self._knows_last_taught = users.last_vote_time(PERSON_ORIGINS), True
        if not 0 <= self._slot.seq <= last:  # never counted, or an older ledger was restored
            self._slot.seq = last
        upto = min(last, self._slot.seq + _MAX_EVENTS)
        for label, origin, number, newest in users.votes_by_origin(self._slot.seq, upto):
            first = (
                origin.split(maxsplit=1)[0].strip(",")[:_MAX_ORIGIN_LENGTH]
                if origin.strip()
                else ""
            )
            self._slot.count_lessons(label, first or "other", number)
            if first in PERSON_ORIGINS:
                self._last_taught = max(self._last_taught or 0, newest)
        self._slot.seq = upto


# ---- processes

MAX_SILENCE_SECONDS = 10.0  # since the last heartbeat
_NANOSECONDS = 1_000_000_000
_OPTIONAL_PROCESSES = (
    (WEB_SLOT, MAX_SILENCE_SECONDS, "page and API: nobody serves them"),
    (TEACHER_SLOT, MAX_SILENCE_SECONDS, "the teaching door: nobody opens it"),
    # A long look at many mailboxes delays heartbeats.
    (WATCHER_SLOT, 150.0, "folders: nobody watches them"),
)


def find_unwell(board: CounterBoard, now: int) -> list[str]:
    """Describe processes that do not work. now: nanoseconds of the monotonic clock."""
    return [*find_stuck(board, now), *find_absent(board, now)]


def find_stuck(board: CounterBoard, now: int) -> list[str]:
    """Describe those that mail depends on."""
    workers = list(board.worker_slots())
    faults = [] if workers else ["workers: none runs"]
    faults += _describe_silence("master", board.slot(MASTER_SLOT), now)
    for worker in workers:
        if worker.last_beat:
            faults += _describe_silence("worker", worker, now)
    return faults


def find_absent(board: CounterBoard, now: int) -> list[str]:
    """Describe the other processes that should run and do not."""
    processes = [(board.slot(number), limit, text) for number, limit, text in _OPTIONAL_PROCESSES]
    return [
        f"{text} for {_silence_seconds(slot, now):.0f} s"
        for slot, limit, text in processes
        if slot.pid and _silence_seconds(slot, now) > limit
    ]


def _describe_silence(name: str, slot: CounterSlot, now: int) -> list[str]:
    seconds = _silence_seconds(slot, now)
    return (
        [f"{name} {slot.pid}: not heard for {seconds:.0f} s"]
        if seconds > MAX_SILENCE_SECONDS
        else []
    )


def _silence_seconds(slot: CounterSlot, now: int) -> float:
    return (now - slot.last_beat) / _NANOSECONDS


def find_missing_scorers(board: CounterBoard) -> list[str]:
    """Describe the fault that no worker has a scorer."""
    return (
        [] if any(worker.scoring for worker in board.worker_slots()) else ["scorers: none is ready"]
    )


# ---- next hops

HOP_TIMEOUT = 3.0  # seconds, for the greeting of a next hop


async def find_unreachable(hops: Iterable[Hop], hostname: str) -> list[str]:
    """Describe next hops that do not greet, or Maildirs that cannot be written."""
    return [
        f"next hop {endpoint}: {trouble}"
        for endpoint, trouble in (await probe_next_hops(hops, hostname)).items()
        if trouble
    ]


async def probe_next_hops(hops: Iterable[Hop], hostname: str) -> dict[Endpoint, str]:
    """Return the fault of each next hop, or "". Only a greeting is sent to it.

    hostname: ours.
    """
    different = {hop.to: hop for hop in hops}
    answers = await asyncio.gather(*(_probe_next_hop(hop, hostname) for hop in different.values()))
    return dict(zip(different, answers, strict=True))


async def _probe_next_hop(hop: Hop, hostname: str) -> str:
    try:
        if hop.to.protocol is Protocol.MAILDIR:
            return await asyncio.wait_for(
                asyncio.to_thread(_find_unwritable, hop.to.path or Path("/")), HOP_TIMEOUT
            )
        await _greet_next_hop(hop, hostname)
    except TimeoutError:
        return f"no answer within {HOP_TIMEOUT:.0f} s"
    except DeliveryError as trouble:
        return str(trouble)
    return ""


async def _greet_next_hop(hop: Hop, hostname: str) -> None:
    from spamguard.delivery.smtp import SessionOpener  # noqa: PLC0415  loads numpy

    quick = replace(hop, connect=HOP_TIMEOUT, command=HOP_TIMEOUT)
    session = await asyncio.wait_for(SessionOpener(quick, hostname).open(), HOP_TIMEOUT)
    await session.quit()  # waits for a second at most


def _find_unwritable(maildir: Path) -> str:
    """Accept a missing Maildir if it can be created, as the first message does."""
    paths = [path for path in (maildir / "tmp", maildir / "new") if path.exists()]
    paths = paths or [next(path for path in (maildir, *maildir.parents) if path.exists())]
    return "; ".join(
        f"{path} may not be written" for path in paths if not os.access(path, os.W_OK | os.X_OK)
    )


# ---- a cache

Value = TypeVar("Value")

ERROR_TTL_SECONDS = 2.0
"""The time for which an error is kept, at most."""


class AsyncTtlCache(Generic[Value]):
    """Keeps the result of a slow async call.

    Parameters
    ----------
    load
        The call; never runs twice at once.
    ttl_seconds
        How long a result is good; an error is good for less.
    timeout
        How many seconds `get` waits.
    """

    def __init__(
        self, load: Callable[[], Awaitable[Value]], ttl_seconds: float, timeout: float
    ) -> None:
        self._load = load
        self._ttl_seconds = ttl_seconds
        self._timeout = timeout
        self._task: asyncio.Task[Value] | None = None
        self._expires_at = 0.0

    async def get(self) -> Value:
        """The result, or the error of the call; TimeoutError: it takes too long."""
        loop = asyncio.get_running_loop()
        if self._task is None or (self._task.done() and loop.time() >= self._expires_at):
            self._task = loop.create_task(self._reload())
            self._task.add_done_callback(_consume_error)
        return await asyncio.wait_for(asyncio.shield(self._task), self._timeout)

    async def _reload(self) -> Value:
        seconds = min(self._ttl_seconds, ERROR_TTL_SECONDS)
        try:
            value = await self._load()
            seconds = self._ttl_seconds
        finally:
            self._expires_at = asyncio.get_running_loop().time() + seconds
        return value


def _consume_error(task: asyncio.Task[Value]) -> None:
    """asyncio would log an error that comes when nobody waits any more."""
    if not task.cancelled():
        task.exception()
