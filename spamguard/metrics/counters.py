"""Counters that several processes keep, in memory that they share: a slot for each process, which it alone adds to.

Whoever reads sums the slots. A slot outlives its process: the next one goes on adding where that left off, so that no sum ever goes
down and nobody has to carry numbers over. Must never take a lock or make a system call on the way of a message.

The layout is the table `_LAYOUT`: words of eight bytes, signed. An aligned word is read and written whole. What has a name of its own,
such as a class, is a row: a name, filled with zeros, and a number; a row whose number is zero is not there yet.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

WORD = 8  # bytes
STAGES = ("receive", "judge", "hand_on")
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0)
"""Upper bounds of the latency histograms, in seconds; one more bucket holds what took longer."""
_BUCKETS = len(BOUNDS) + 1
_STAGE = _BUCKETS + 1  # and the sum, in microseconds


class _Rows(NamedTuple):
    """Numbers with names. name: words that a name takes."""

    most: int
    name: int


_NAMED = {"messages": _Rows(48, 6), "next_hop_errors": _Rows(24, 16), "lessons": _Rows(64, 6)}
_TROUBLES, _TEXT = 4, 30  # last errors of next hops, and words of the text of one


def _words(rows: _Rows) -> int:
    return rows.most * (rows.name + 1)


# Name and words of each field of a slot, in the order in which they lie there.
_LAYOUT = {
    "pid": 1,  # whose it is, 0: nobody's; the master writes it, and nothing else
    "began": 1,  # when that process was started, seconds since 1970; 0: it was never anybody's
    "beat": 1,  # when the process was last well: nanoseconds of the monotonic clock
    "scoring": 1,  # 1 while it can have messages judged
    "bytes": 1,
    "stages": len(STAGES) * _STAGE,
    "troubles": _TROUBLES * (1 + _TEXT),  # seconds since 1970, text
    "seq": 1,  # of the last lesson counted, plus one; 0: none has been
    **{name: _words(rows) for name, rows in _NAMED.items()},
}
_SLOT = 2048  # words, so that no two processes write to one page
_AT = dict(zip(_LAYOUT, accumulate(_LAYOUT.values(), initial=0), strict=False))  # the last one is where a slot ends
SLOTS = 2500  # workers of the present settings and of older ones that still drain; memory is only taken by those in use
MASTER, REPORTER, SERVER, WATCHER, TEACHER, _FIRST = range(6)  # slots with an owner of their own
OTHER = ("other", "other")  # the row of what has no row left

Name = tuple[str, str]


class Slot:
    """The part of one process. Only its owner calls what adds."""

    def __init__(self, words: memoryview, number: int) -> None:
        self.number = number
        self._all = words
        self._words = words[number * _SLOT : (number + 1) * _SLOT]
        self._rows = {field: {name: at for at, name, _ in self._found(field)} for field in _NAMED}
        self._places: dict[str, int] = {}

    # ---- adding

    def message(self, verdict: str, action: str, size: int) -> None:
        """One message has passed. size: bytes received."""
        self._add("messages", (verdict, action))
        self._words[_AT["bytes"]] += size

    def took(self, stage: int, seconds: float) -> None:
        """stage: index into `STAGES`."""
        at = _AT["stages"] + stage * _STAGE
        self._words[at + bisect_left(BOUNDS, seconds)] += 1
        self._words[at + _BUCKETS] += int(seconds * 1e6)

    def next_hop_failed(self, endpoint: str, kind: str, text: str, now: int) -> None:
        """The next hop could not be asked. text: what happened; now: seconds since 1970."""
        self._add("next_hop_errors", (endpoint[:90], kind))
        place = self._places.setdefault(endpoint, len(self._places) % _TROUBLES)
        at = _AT["troubles"] + place * (1 + _TEXT)
        self._write(at + 1, _TEXT, f"{endpoint}: {text}".encode())
        self._words[at] = now

    def lesson(self, label: str, origin: str, number: int) -> None:
        """So many lessons of one class and origin."""
        self._add("lessons", (label, origin), number)

    def beat(self, now: int, *, scoring: bool = True) -> None:
        """This process is well. now: nanoseconds of the monotonic clock; scoring: whether it can have messages judged."""
        self._words[_AT["beat"]] = now
        self._words[_AT["scoring"]] = scoring

    def own(self, pid: int, now: float) -> None:
        """Whose it is from now on, 0: nobody's. The master's to call. now: seconds since 1970."""
        self._words[_AT["beat"]] = self._words[_AT["scoring"]] = 0
        self._words[_AT["began"]] = int(now)
        self._words[_AT["pid"]] = pid

    @property
    def seq(self) -> int:
        """Of the last lesson counted; -1: none has been."""
        return int(self._words[_AT["seq"]]) - 1

    @seq.setter
    def seq(self, value: int) -> None:
        self._words[_AT["seq"]] = value + 1

    def _add(self, field: str, name: Name, number: int = 1) -> None:
        at = self._rows[field].get(name)
        if at is None:
            at = self._new_row(field, name)
        self._words[at] += number

    def _new_row(self, field: str, name: Name) -> int:
        rows = _NAMED[field]
        encoded = "\0".join(name).encode()
        known = self._rows[field]
        if len(known) >= rows.most - 1 or len(encoded) > rows.name * WORD:
            name, encoded = OTHER, "\0".join(OTHER).encode()
            if name in known:
                return known[name]
        at = _AT[field] + len(known) * (rows.name + 1)
        self._write(at, rows.name, encoded)
        known[name] = at + rows.name
        return known[name]

    def _write(self, at: int, words: int, text: bytes) -> None:
        data = text[: words * WORD].ljust(words * WORD, b"\0")
        for number in range(words):
            self._words[at + number] = int.from_bytes(data[number * WORD : (number + 1) * WORD], "little", signed=True)

    # ---- reading

    @property
    def pid(self) -> int:
        """Whose it is, 0: nobody's."""
        return int(self._words[_AT["pid"]])

    @property
    def began(self) -> int:
        """When its last process was started or given up, seconds since 1970; 0: it was never anybody's."""
        return int(self._words[_AT["began"]])

    @property
    def heard(self) -> int:
        """When its process was last well, nanoseconds of the monotonic clock; 0: never."""
        return int(self._words[_AT["beat"]])

    @property
    def scoring(self) -> bool:
        """Whether its process can have messages judged."""
        return bool(self._words[_AT["scoring"]])

    @property
    def bytes(self) -> int:
        """Received."""
        return int(self._words[_AT["bytes"]])

    def used(self) -> Iterator[Slot]:
        """The slots of all processes of this daemon that were ever given out, the master's first."""
        for number in range(SLOTS):
            slot = Slot(self._all, number)
            if number >= _FIRST and not slot.began:
                return
            yield slot

    def named(self, field: str) -> Iterator[tuple[Name, int]]:
        """Numbers by name. field: messages (verdict, action), next_hop_errors (endpoint, kind) or lessons (class, origin)."""
        return ((name, number) for _, name, number in self._found(field) if number)

    def stage(self, stage: int) -> tuple[list[int], float]:
        """How many took up to each of `BOUNDS` and longer than the one before, those beyond all last; and seconds of all."""
        at = _AT["stages"] + stage * _STAGE
        return self._words[at : at + _BUCKETS].tolist(), self._words[at + _BUCKETS] / 1e6

    def troubles(self) -> Iterator[tuple[int, str]]:
        """Last errors of next hops: seconds since 1970, and what happened."""
        for at in range(_AT["troubles"], _AT["troubles"] + _TROUBLES * (1 + _TEXT), 1 + _TEXT):
            if self._words[at]:
                yield int(self._words[at]), self._text(at + 1, _TEXT)

    def _found(self, field: str) -> Iterator[tuple[int, Name, int]]:
        """Where the number of each row is, its name, and the number."""
        rows, start = _NAMED[field], _AT[field]
        for at in range(start, start + _words(rows), rows.name + 1):
            first, _, second = self._text(at, rows.name).partition("\0")
            if not first:
                return
            yield at + rows.name, (first, second), int(self._words[at + rows.name])

    def _text(self, at: int, words: int) -> str:
        return self._words[at : at + words].tobytes().rstrip(b"\0").decode("utf-8", "replace")


class Board:
    """The slots of all processes of one daemon. Made by the master, which alone gives them out; passed on as an open file."""

    def __init__(self, descriptor: int) -> None:
        """Map it. descriptor: stays the caller's, open."""
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, SLOTS * _SLOT * WORD)
        self._words = memoryview(self._memory).cast("q")

    @classmethod
    def create(cls) -> Board:
        """An empty one, in a file without a name."""
        descriptor = os.memfd_create("counters")
        os.ftruncate(descriptor, SLOTS * _SLOT * WORD)
        return cls(descriptor)

    def slot(self, number: int) -> Slot:
        """One of them."""
        return Slot(self._words, number)

    def free(self) -> Slot:
        """One that nobody has. OSError: all are taken, which passes."""
        for number in range(_FIRST, SLOTS):
            if not self._words[number * _SLOT + _AT["pid"]]:
                return self.slot(number)
        raise OSError("too many processes to count for")

    def used(self) -> Iterator[Slot]:
        """All that were ever given out; those of processes that have gone are among them."""
        return self.slot(MASTER).used()

    def workers(self) -> Iterator[Slot]:
        """Those of processes that speak SMTP and have not ended."""
        return (slot for slot in self.used() if slot.number >= _FIRST and slot.pid)
