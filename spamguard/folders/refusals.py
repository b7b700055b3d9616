"""Lessons that were not taken, as those beyond `lessons_per_day`, by user: kept in small files of the state directory, for people to read.

Written whole, under another name first, so that a reader never sees half of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from spamguard.files import create_private, draft_of

DROPPED = "dropped.json"
"""In the state directory: the refusals of what programs and mail would have taught."""

LIMIT = "beyond lessons_per_day"
NOT_OURS = (ValueError, TypeError, KeyError, AttributeError, OverflowError)
"""What reading JSON raises that we have not written."""

_DAY = 86_400
_MOST = 10_000  # users whose refusals are known


@dataclass(frozen=True, slots=True)
class Refused:
    """Lessons of a user that were not taken. number: on that day, local time. last: when, seconds since 1970; folder: the last one's,
    or the way it came; why: it was not taken."""

    day: str
    number: int
    last: int
    folder: str
    why: str = LIMIT


class Refusals:
    """Those of today, and the last ones of the day before. before: those that are known."""

    def __init__(self, before: Mapping[str, Refused]) -> None:
        self._refused = dict(before)

    def add(self, user: str, folder: str, number: int, why: str = LIMIT) -> bool:
        """So many lessons were not taken; whether they are the first of this day."""
        now, day = int(time.time()), date.today().isoformat()
        before = self._refused.pop(user, None)
        first = before is None or before.day != day
        earlier = 0 if before is None or first else before.number
        self._refused[user] = Refused(day, earlier + number, now, folder, why)
        if len(self._refused) > _MOST:
            self._refused.pop(next(iter(self._refused)))
        return first

    def recent(self) -> dict[str, Refused]:
        """Those of the last 24 hours; others are forgotten."""
        now = time.time()
        self._refused = {user: one for user, one in self._refused.items() if abs(now - one.last) < _DAY}
        return self._refused


def read_refused(values: Mapping[str, Any]) -> dict[str, Refused]:
    """From what JSON gave. One of `NOT_OURS`: it is something else."""
    return {str(user): _refused(**one) for user, one in values.items()}


def _refused(day: object, number: Any, last: Any, folder: object, why: object = LIMIT) -> Refused:
    return Refused(str(day), int(number), int(last), str(folder), str(why))


def dropped(state: Path) -> dict[str, Refused]:
    """What the teaching door has refused; empty when nothing is known."""
    try:
        return read_refused(json.loads((state / DROPPED).read_bytes()))
    except (OSError, *NOT_OURS):
        return {}


def note_dropped(state: Path, refusals: Refusals) -> None:
    """Write it. OSError."""
    write(state / DROPPED, {user: asdict(one) for user, one in refusals.recent().items()})


def write(path: Path, values: Mapping[str, Any]) -> None:
    """As JSON. OSError."""
    with draft_of(path) as draft:
        with create_private(draft) as file:
            file.write(json.dumps(values).encode())
        draft.replace(path)
