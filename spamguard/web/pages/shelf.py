"""What is kept for a person between two requests: a message that was handed over and not yet taught, what a click has done.

Must never grow without bound, never give one person's things to another, and never keep anything for long: it is memory of this process
alone, and whoever comes after a restart is told to do it again.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from spamguard.web.service.values import Person

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class _Kept(Generic[Thing]):
    person: Person
    until: float
    thing: Thing


class Shelf(Generic[Thing]):
    """Things by a name nobody can guess. each, most: how many are kept for one person, and in all; the oldest go first. seconds: how long.

    clock: seconds, never going back. drop: is given what is kept no longer.
    """

    def __init__(self, each: int, most: int, seconds: float, clock: Callable[[], float], drop: Callable[[Thing], None]) -> None:
        self._each, self._most, self._seconds = each, most, seconds
        self._clock, self._drop = clock, drop
        self._kept: OrderedDict[str, _Kept[Thing]] = OrderedDict()  # oldest first

    def put(self, person: Person, thing: Thing) -> str:
        """Keep it; its name."""
        self._sweep()
        mine = [name for name, kept in self._kept.items() if kept.person == person]
        for name in mine[: max(0, len(mine) - self._each + 1)]:
            self._lose(name)
        while len(self._kept) >= self._most:
            self._lose(next(iter(self._kept)))
        name = secrets.token_urlsafe(16)
        self._kept[name] = _Kept(person, self._clock() + self._seconds, thing)
        return name

    def get(self, person: Person, name: str) -> Thing | None:
        """What was kept under this name for this person."""
        self._sweep()
        kept = self._kept.get(name)
        return kept.thing if kept is not None and kept.person == person else None

    def take(self, person: Person, name: str) -> None:
        """Keep it no longer."""
        if self.get(person, name) is not None:
            self._lose(name)

    def _sweep(self) -> None:
        now = self._clock()
        while self._kept and next(iter(self._kept.values())).until <= now:
            self._lose(next(iter(self._kept)))

    def _lose(self, name: str) -> None:
        self._drop(self._kept.pop(name).thing)
