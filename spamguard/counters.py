"""What the processes of a daemon count, and what the master tells of them.

Each process sends its `Counters` with its heartbeat. The master adds up the last ones of each and
those of all that have ended, so no sum goes down. `DaemonReport` is what it answers to the page and
to monitors. By hand, because prometheus_client takes a lock for each increment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from operator import add

from msgspec import Struct, field

STAGES = ("receive", "judge", "hand_on")
RECEIVE_STAGE, JUDGE_STAGE, DELIVER_STAGE = range(len(STAGES))
BUCKET_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0),
)
"""Upper bounds of the latency histograms, in seconds; one more bucket is for longer times."""
_MAX_ROWS = 64  # of names that are counted apart; what is beyond counts as `_OTHER`
_OTHER = "other other"
_MAX_ERROR_LENGTH = 240


class Durations(Struct):
    """How many durations are in each bucket of `BUCKET_BOUNDS`, and the seconds of all."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKET_BOUNDS) + 1))
    seconds: float = 0.0


class Counters(Struct):
    """Numbers since a process, or the daemon, began."""

    # By two names with a blank between them (`pairs`): verdict and action, endpoint and kind of
    # error, class and origin.
    messages: dict[str, int] = {}
    bytes: int = 0
    stages: list[Durations] = field(default_factory=lambda: [Durations() for _ in STAGES])
    next_hop_errors: dict[str, int] = {}
    last_errors: dict[str, tuple[int, str]] = {}  # of each endpoint, with seconds since 1970
    lessons: dict[str, int] = {}

    def count_message(self, verdict: str, action: str, size: int) -> None:
        _count(self.messages, f"{verdict} {action}")
        self.bytes += size

    def add_seconds(self, stage: int, seconds: float) -> None:
        durations = self.stages[stage]
        durations.buckets[bisect_left(BUCKET_BOUNDS, seconds)] += 1
        durations.seconds += seconds

    def count_next_hop_error(self, endpoint: str, kind: str, text: str, now: int) -> None:
        _count(self.next_hop_errors, f"{endpoint} {kind}")
        self.last_errors[endpoint] = now, f"{endpoint}: {text}"[:_MAX_ERROR_LENGTH]

    def count_lessons(self, label: str, origin: str, number: int) -> None:
        _count(self.lessons, f"{label} {origin}", number)

    def add(self, other: Counters) -> None:
        self.bytes += other.bytes
        self.last_errors |= other.last_errors
        for mine, more in (
            (self.messages, other.messages),
            (self.next_hop_errors, other.next_hop_errors),
            (self.lessons, other.lessons),
        ):
            for name, number in more.items():
                _count(mine, name, number)
        for stage, durations in zip(self.stages, other.stages, strict=True):
            stage.buckets = [*map(add, stage.buckets, durations.buckets)]
            stage.seconds += durations.seconds


def _count(rows: dict[str, int], name: str, number: int = 1) -> None:
    if name not in rows and len(rows) >= _MAX_ROWS:
        name = _OTHER
    rows[name] = rows.get(name, 0) + number


def pairs(rows: Mapping[str, int]) -> list[tuple[tuple[str, str], int]]:
    """The two names of each row, and its number, in the order of names.

    >>> pairs({"spam tag": 2, "ham none": 1})
    [(('ham', 'none'), 1), (('spam', 'tag'), 2)]
    """
    found = []
    for name, number in sorted(rows.items()):
        first, _, second = name.rpartition(" ")
        found.append(((first, second), number))
    return found


class DaemonReport(Struct):
    """The running daemon, as its master tells of it."""

    began: int = 0  # seconds since 1970; 0: the master does not answer
    workers: int = 0
    counters: Counters = field(default_factory=Counters)
    # A line for each process that mail depends on and that does not work, and for each other one
    # that should run and does not.
    stuck: list[str] = field(default_factory=lambda: ["master: it does not answer"])
    absent: list[str] = []
    scoring: bool = False  # a worker can have messages judged

    @property
    def missing_scorers(self) -> list[str]:
        return [] if self.scoring else ["scorers: none is ready"]
