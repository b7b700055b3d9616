"""Counters of all processes of a daemon, in memory that they share.

Each worker has a slot, and each task of the other processes, such as watching folders; one process
alone adds to a slot, and readers sum the slots (`sum_slots`). A slot outlives its process: the next
one goes on adding where that left off, so no sum ever goes down.

Each process also writes its heartbeat into its slot, by which others see whether it works
(`find_stuck`, `find_absent`).

The layout of a slot is the structure `_Layout`. Its words of eight bytes are aligned, so each is
read and written whole. A number with a name of its own, such as that of a class, is a row: the name
and the number; a row whose number is zero is not there yet.

It is written by hand because prometheus_client takes a lock for each increment, and keeps a file of
each process that has ended.

Must never take a lock or make a system call on the way of a message.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from ctypes import c_char, c_int64
from operator import add
from typing import Any, NamedTuple

STAGES = ("receive", "judge", "hand_on")
BUCKET_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0),
)
"""Upper bounds of the latency histograms, in seconds; one more bucket is for longer times."""
_BUCKET_COUNT = len(BUCKET_BOUNDS) + 1
_MAX_ERRORS, _ERROR_BYTES = 4, 240  # last errors of next hops; bytes of the text of one
_ROW_FIELDS = {"messages": (48, 48), "next_hop_errors": (24, 128), "lessons": (64, 48)}
"""Each field of rows: how many it may have, and the bytes of a name."""
_SEPARATOR = "\x1f"  # between the two parts of a name


class _Stage(ctypes.Structure):
    _fields_ = (("buckets", c_int64 * _BUCKET_COUNT), ("microseconds", c_int64))


class _Error(ctypes.Structure):
    _fields_ = (("time", c_int64), ("text", c_char * _ERROR_BYTES))  # time: seconds since 1970


def _rows_type(max_rows: int, name_bytes: int) -> Any:
    class Row(ctypes.Structure):
        _fields_ = (("name", c_char * name_bytes), ("number", c_int64))

    return Row * max_rows


class _Layout(ctypes.Structure):
    _fields_ = (
        ("pid", c_int64),  # of its process, 0: none; only the master writes it
        ("began", c_int64),  # when that process was started, seconds since 1970; 0: never used
        ("beat", c_int64),  # when the process was last alive: nanoseconds of the monotonic clock
        ("scoring", c_int64),  # 1 while it can have messages judged
        ("bytes", c_int64),
        ("stages", _Stage * len(STAGES)),
        ("errors", _Error * _MAX_ERRORS),
        ("seq", c_int64),  # of the last lesson counted, plus one; 0: none was
        *((field, _rows_type(*sizes)) for field, sizes in _ROW_FIELDS.items()),
    )


SLOT_BYTES = 16_384  # whole pages, so that no two processes write to one
# For workers of the present settings and of older ones that drain; unused slots take no memory.
MAX_SLOTS = 2500
# Slots of tasks. The web process has two (metrics; page and API) and the learner two (folders;
# lessons).
MASTER_SLOT, REPORTER_SLOT, WEB_SLOT, WATCHER_SLOT, TEACHER_SLOT, _FIRST_WORKER_SLOT = range(6)
OTHER_ROW = ("other", "other")
"""Counts what finds no row."""

RowName = tuple[str, str]


class CounterSlot:
    """The counters of a worker or a task. Only its process adds to them.

    memory: of the board. number: of the slot.
    """

    def __init__(self, memory: Any, number: int) -> None:
        self.number = number
        self._memory = memory
        self._slot = _Layout.from_buffer(memory, number * SLOT_BYTES)
        self._rows = {field: dict(self._iter_rows(field)) for field in _ROW_FIELDS}
        self._error_indexes: dict[str, int] = {}

    # ---- adding

    def count_message(self, verdict: str, action: str, size: int) -> None:
        """Count a message that has passed. size: bytes received."""
        self._add("messages", (verdict, action))
        self._slot.bytes += size

    def add_seconds(self, stage: int, seconds: float) -> None:
        """Count one duration. stage: index into `STAGES`."""
        durations = self._slot.stages[stage]
        durations.buckets[bisect_left(BUCKET_BOUNDS, seconds)] += 1
        durations.microseconds += int(seconds * 1e6)

    def count_next_hop_error(self, endpoint: str, kind: str, text: str, now: int) -> None:
        """Count an error of a next hop. text: what happened. now: seconds since 1970."""
        self._add("next_hop_errors", (endpoint[:90], kind))
        index = self._error_indexes.setdefault(endpoint, len(self._error_indexes) % _MAX_ERRORS)
        error = self._slot.errors[index]
        error.text = f"{endpoint}: {text}".encode()[:_ERROR_BYTES]
        error.time = now

    def count_lessons(self, label: str, origin: str, number: int) -> None:
        """Count lessons of one class and origin."""
        self._add("lessons", (label, origin), number)

    def beat(self, now: int, *, scoring: bool = True) -> None:
        """Say that this process is alive.

        now: nanoseconds of the monotonic clock. scoring: whether it can have messages judged.
        """
        self._slot.beat = now
        self._slot.scoring = scoring

    def assign(self, pid: int, now: float) -> None:
        """Give the slot to a process; 0: to none. For the master. now: seconds since 1970."""
        self._slot.beat = self._slot.scoring = 0
        self._slot.began = int(now)
        self._slot.pid = pid

    @property
    def seq(self) -> int:
        """The number of the last lesson counted; -1: none was."""
        return int(self._slot.seq) - 1

    @seq.setter
    def seq(self, value: int) -> None:
        self._slot.seq = value + 1

    def _add(self, field: str, name: RowName, number: int = 1) -> None:
        rows = self._rows[field]
        if name not in rows:
            encoded = _SEPARATOR.join(name).encode()
            max_rows, name_bytes = _ROW_FIELDS[field]
            if len(rows) >= max_rows - 1 or len(encoded) > name_bytes:
                name, encoded = OTHER_ROW, _SEPARATOR.join(OTHER_ROW).encode()
            if name not in rows:
                rows[name] = getattr(self._slot, field)[len(rows)]
                rows[name].name = encoded
        rows[name].number += number

    # ---- reading

    @property
    def pid(self) -> int:
        """The id of its process; 0: none."""
        return int(self._slot.pid)

    @property
    def began(self) -> int:
        """When its last process was started or ended, seconds since 1970; 0: it was never used."""
        return int(self._slot.began)

    @property
    def last_beat(self) -> int:
        """When its process was last alive, nanoseconds of the monotonic clock; 0: never."""
        return int(self._slot.beat)

    @property
    def scoring(self) -> bool:
        """Whether its process can have messages judged."""
        return bool(self._slot.scoring)

    @property
    def bytes(self) -> int:
        """Bytes received."""
        return int(self._slot.bytes)

    def read_rows(self, field: str) -> Iterator[tuple[RowName, int]]:
        """Names and numbers of the rows.

        field: messages (verdict, action), next_hop_errors (endpoint, kind), lessons (class,
        origin).
        """
        return ((name, row.number) for name, row in self._iter_rows(field) if row.number)

    def read_stage(self, stage: int) -> tuple[list[int], float]:
        """The number of durations in each bucket (`BUCKET_BOUNDS`), and the seconds of all."""
        durations = self._slot.stages[stage]
        return list(durations.buckets), durations.microseconds / 1e6

    def read_errors(self) -> Iterator[tuple[int, str]]:
        """Time in seconds since 1970, and text, of the last errors of next hops."""
        for error in self._slot.errors:
            if error.time:
                yield error.time, error.text.decode("utf-8", "replace")

    def _iter_rows(self, field: str) -> Iterator[tuple[RowName, Any]]:
        """Name of each row, and the row."""
        for row in getattr(self._slot, field):
            first, _, second = row.name.decode("utf-8", "replace").partition(_SEPARATOR)
            if not first:
                return
            yield (first, second), row


class CounterBoard:
    """The slots of all processes of one daemon.

    The master makes the board and gives out slots; children inherit the open file.
    """

    def __init__(self, descriptor: int) -> None:
        """Map the file. descriptor: stays open, and the caller's."""
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, MAX_SLOTS * SLOT_BYTES)

    @classmethod
    def create(cls) -> CounterBoard:
        """An empty board, in a file without a name."""
        descriptor = os.memfd_create("counters")
        os.ftruncate(descriptor, MAX_SLOTS * SLOT_BYTES)
        return cls(descriptor)

    def slot(self, number: int) -> CounterSlot:
        """The slot of this number."""
        return CounterSlot(self._memory, number)

    def free_slot(self) -> CounterSlot:
        """A slot without a process. OSError: there is none for now."""
        for number in range(_FIRST_WORKER_SLOT, MAX_SLOTS):
            if not _Layout.from_buffer(self._memory, number * SLOT_BYTES).pid:
                return self.slot(number)
        raise OSError("too many processes to count for")

    def used_slots(self) -> Iterator[CounterSlot]:
        """All slots that were ever used, also those of processes that have ended."""
        for number in range(MAX_SLOTS):
            slot = self.slot(number)
            if number >= _FIRST_WORKER_SLOT and not slot.began:
                return
            yield slot

    def worker_slots(self) -> Iterator[CounterSlot]:
        """The slots of the workers that have not ended."""
        return (
            slot for slot in self.used_slots() if slot.number >= _FIRST_WORKER_SLOT and slot.pid
        )


class CounterTotals(NamedTuple):
    """Numbers since the daemon began.

    messages: by verdict and action. stages: as by `CounterSlot.read_stage`, by name.
    next_hop_errors: by endpoint and kind. lessons: by class and origin. troubles: last errors of
    next hops, newest first: seconds since 1970, and what happened.
    """

    messages: Mapping[RowName, int]
    bytes: int
    stages: Mapping[str, tuple[list[int], float]]
    next_hop_errors: Mapping[RowName, int]
    lessons: Mapping[RowName, int]
    troubles: list[tuple[int, str]]


def sum_slots(slots: Iterable[CounterSlot]) -> CounterTotals:
    """Sum the counters of these slots, as they are now."""
    slots = list(slots)
    rows: dict[str, Counter[RowName]] = {field: Counter() for field in _ROW_FIELDS}
    stages = dict.fromkeys(STAGES, ([0] * _BUCKET_COUNT, 0.0))
    for slot in slots:
        for field, counter in rows.items():
            counter.update(dict(slot.read_rows(field)))
        for number, name in enumerate(STAGES):
            (counts, seconds), (more_counts, more_seconds) = stages[name], slot.read_stage(number)
            stages[name] = [*map(add, counts, more_counts)], seconds + more_seconds
    return CounterTotals(
        stages=stages,
        bytes=sum(slot.bytes for slot in slots),
        troubles=sorted((error for slot in slots for error in slot.read_errors()), reverse=True),
        **{field: dict(sorted(counter.items())) for field, counter in rows.items()},
    )


# ---- processes

MAX_SILENCE_SECONDS = 10.0  # since the last heartbeat
_OPTIONAL_PROCESSES = (
    (WEB_SLOT, MAX_SILENCE_SECONDS, "page and API: nobody serves them"),
    # Many lessons, and a long look at many mailboxes, delay heartbeats.
    (TEACHER_SLOT, 150.0, "lessons: nobody learns them"),
    (WATCHER_SLOT, 150.0, "folders: nobody watches them"),
)


def find_stuck(board: CounterBoard, now: int) -> list[str]:
    """Describe processes that mail depends on and that do not work.

    now: nanoseconds of the monotonic clock.
    """
    workers = list(board.worker_slots())
    faults = [] if workers else ["workers: none runs"]
    heard = [("worker", worker) for worker in workers if worker.last_beat]
    for name, slot in [("master", board.slot(MASTER_SLOT)), *heard]:
        if (seconds := _silence_seconds(slot, now)) > MAX_SILENCE_SECONDS:
            faults.append(f"{name} {slot.pid}: not heard for {seconds:.0f} s")
    return faults


def find_absent(board: CounterBoard, now: int) -> list[str]:
    """Describe the other processes that should run and do not."""
    return [
        f"{text} for {seconds:.0f} s"
        for number, limit, text in _OPTIONAL_PROCESSES
        if board.slot(number).pid and (seconds := _silence_seconds(board.slot(number), now)) > limit
    ]


def _silence_seconds(slot: CounterSlot, now: int) -> float:
    return (now - slot.last_beat) / 1e9


def find_missing_scorers(board: CounterBoard) -> list[str]:
    """Describe the fault that no worker has a scorer."""
    return (
        [] if any(worker.scoring for worker in board.worker_slots()) else ["scorers: none is ready"]
    )
