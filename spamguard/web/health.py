"""Whether all is well, in words.

`check_daemon` looks at the listeners, the other processes, folders and disk, and at the latency of
messages; what it is told of filter and next hops comes from `HealthReporter`, which asks them.
`judge_health` puts the problems of these parts beside what the model lacks. *Today* shows what it
says.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

from spamguard.config.options import Settings
from spamguard.counters import BUCKET_BOUNDS, STAGES, DaemonReport
from spamguard.engine import snapshot
from spamguard.learning.status_files import read_watcher_status
from spamguard.storage import describe_disk
from spamguard.web.models import Model

# ---- the daemon

_LASTING_SECONDS = 120  # most troubles of the watcher pass sooner
_STAGE_NAMES = {"receive": "received", "judge": "judged", "hand_on": "delivered"}


class PartHealth(NamedTuple):
    """A part of the daemon, and how it is. time: when that was, seconds since 1970; None: now.

    problems: a line for each; without any the part is well.
    """

    name: str
    detail: str
    problems: Sequence[str] = ()
    time: float | None = None


class StageTimes(NamedTuple):
    """How long a stage of a message takes: half of all messages, and 95 of 100, take no longer.

    Seconds; upper bounds of buckets.
    """

    name: str
    half: float
    most: float


class DaemonHealth(NamedTuple):
    """The daemon when it was looked at. looked_at, began: seconds since 1970. messages: since it
    began. stages: empty before the first message.
    """

    looked_at: float
    began: int
    messages: int
    parts: Sequence[PartHealth]
    stages: Sequence[StageTimes]

    @property
    def problems(self) -> list[str]:
        """All problems."""
        return [line for part in self.parts for line in part.problems]


def check_daemon(
    settings: Settings,
    report: DaemonReport,
    filter_trouble: str,
    last_taught: int | None,
    unreachable: Sequence[str],
) -> DaemonHealth:
    """Look at all parts; it reads files. last_taught: when a person taught, not in bulk."""
    listening = [*(each.listen for each in settings.listeners)]
    listening += [each.listen for each in settings.scanners]
    hops = dict.fromkeys(str(each.next_hop.to) for each in settings.listeners)
    filter_detail = "the ledger can be read" + (", a person last taught" if last_taught else "")
    try:
        disk, remedy = describe_disk(settings.state, snapshot.snapshot_bytes(settings.state))
    except OSError as error:
        disk, remedy = f"{settings.state}: {error.strerror}", "see `spamguard doctor`"
    parts = [
        PartHealth(
            "Listeners",
            ", ".join(map(str, listening)),
            [*report.stuck, *report.missing_scorers],
        ),
        PartHealth("Other processes", "all have been heard lately", report.absent),
        *([_check_folders(settings)] if settings.watch else ()),
        *([PartHealth("Next hops", ", ".join(hops), unreachable)] if hops else ()),
        PartHealth("Filter", filter_detail, [filter_trouble] * bool(filter_trouble), last_taught),
        *([_check_shared(settings)] if settings.shared else ()),
        PartHealth("Disk", disk, [f"disk: {disk}: {remedy}"] * bool(remedy)),
    ]
    return DaemonHealth(
        time.time(),
        report.began,
        sum(report.counters.messages.values()),
        parts,
        [
            StageTimes(_STAGE_NAMES[name], quantile(buckets, 0.5), quantile(buckets, 0.95))
            for name, durations in zip(STAGES, report.counters.stages, strict=True)
            if any(buckets := durations.buckets)
        ],
    )


def _check_folders(settings: Settings) -> PartHealth:
    """What the watcher has written; that it runs is told by its heartbeat."""
    status, now = read_watcher_status(settings.state), time.time()
    if status is None:
        return PartHealth("Folders", "no watcher has been seen yet")
    lasting = [
        f"folders: {f'{trouble.user}: ' if trouble.user else ''}{trouble.text}"
        for trouble in status.troubles
        if now - trouble.since >= _LASTING_SECONDS
    ]
    detail = f"mailboxes watched: {status.mailboxes:,}, last"
    return PartHealth("Folders", detail, lasting, status.seen)


def _check_shared(settings: Settings) -> PartHealth:
    """What the courier has written."""
    from spamguard.shared.status import read_status  # noqa: PLC0415  on such nodes only

    status, now = read_status(settings.state), time.time()
    others = max(0, len(status.nodes) - 1)
    waiting = f", {status.waiting:,} lessons to be sent" if status.waiting else ""
    detail = f"other nodes: {others}, {status.position:,} events{waiting}, last read"
    return PartHealth("Shared log", detail, list(status.notes(now)), status.contact or None)


def quantile(counts: Sequence[int], share: float) -> float:
    """The upper bound of the bucket in which that share of all durations ends, in seconds."""
    needed = share * sum(counts)
    bounds = (*BUCKET_BOUNDS, inf)
    return next(
        bound for bound, so_far in zip(bounds, accumulate(counts), strict=True) if so_far >= needed
    )


# ---- the model

_SETTLE_LATE = 0.2  # of all lessons: twice what makes settling due
_MIN_UNSETTLED = 20


def judge_health(daemon: DaemonHealth | None, model: Model) -> list[str]:
    """Say what needs something to be done, in sentences: all is well if there is none.

    daemon: None for people who are not operators.
    """
    worries = daemon.problems if daemon else []
    if model.missing:
        worries.append(f"{model.missing[0].upper()}{model.missing[1:]}.")
    lessons = sum(row.messages for row in model.classes.values())
    if lessons and model.unsettled > max(_MIN_UNSETTLED, _SETTLE_LATE * lessons):
        worries.append(
            f"{model.unsettled:,} lessons wait for settling, more than is usual. If the number "
            "does not fall within an hour, see the log of the daemon."
        )
    return worries
