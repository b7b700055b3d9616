"""The counters of all processes in one sum, as of now. Values out; the slots are only read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spamguard.metrics.counters import BOUNDS, STAGES, Name, Slot


@dataclass(frozen=True, slots=True)
class Totals:
    """Since the daemon began. messages: by verdict and action; next_hop_errors: by endpoint and kind; lessons: by class and origin.

    stages: by name, how many took up to each of `counters.BOUNDS` and longer than the one before, and seconds of all. troubles: last
    errors of next hops, the newest first: seconds since 1970, and what happened.
    """

    messages: Mapping[Name, int]
    bytes: int
    stages: Mapping[str, tuple[list[int], float]]
    next_hop_errors: Mapping[Name, int]
    lessons: Mapping[Name, int]
    troubles: list[tuple[int, str]]


def total(slots: Iterable[Slot]) -> Totals:
    """The sum of these."""
    found = list(slots)
    return Totals(
        _named(found, "messages"),
        sum(slot.bytes for slot in found),
        {name: _stage(found, number) for number, name in enumerate(STAGES)},
        _named(found, "next_hop_errors"),
        _named(found, "lessons"),
        sorted((trouble for slot in found for trouble in slot.troubles()), reverse=True),
    )


def _named(slots: Iterable[Slot], field: str) -> Mapping[Name, int]:
    counter: Counter[Name] = Counter()
    for slot in slots:
        counter.update(dict(slot.named(field)))
    return dict(sorted(counter.items()))


def _stage(slots: Iterable[Slot], number: int) -> tuple[list[int], float]:
    counts, seconds = [0] * (len(BOUNDS) + 1), 0.0
    for slot in slots:
        some, took = slot.stage(number)
        counts = [one + more for one, more in zip(counts, some, strict=True)]
        seconds += took
    return counts, seconds
