"""Lessons that were refused, such as those beyond `lessons_per_day`, by user: small JSON files in
the state directory, for `status` to show.

A file is written whole under another name and then renamed, so that a reader never sees half of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from spamguard.storage import create_private, draft_file

DROPPED_FILE = "dropped.json"
"""In the state directory: refusals of lessons by programs and mail."""

OVER_QUOTA = "beyond lessons_per_day"
JSON_ERRORS = (ValueError, TypeError, KeyError, AttributeError, OverflowError)
"""Raised while reading JSON that this program has not written."""

_DAY_SECONDS = 86_400
_MAX_USERS = 10_000


@dataclass(frozen=True, slots=True)
class RefusedLessons:
    """Refused lessons of a user. number: on that day, local time. last: time of the last one,
    seconds since 1970; folder: of the last one, or its origin.
    """

    day: str
    number: int
    last: int
    folder: str
    why: str = OVER_QUOTA


class RefusalLog:
    """The refusals of today and of the day before. before: those of an earlier process."""

    def __init__(self, before: Mapping[str, RefusedLessons]) -> None:
        self._refused = dict(before)

    def add(self, user: str, folder: str, number: int, why: str = OVER_QUOTA) -> bool:
        """Count refused lessons; whether they are the first of this day."""
        now, day = int(time.time()), date.today().isoformat()
        before = self._refused.pop(user, None)
        first = before is None or before.day != day
        earlier = 0 if before is None or first else before.number
        self._refused[user] = RefusedLessons(day, earlier + number, now, folder, why)
        if len(self._refused) > _MAX_USERS:
            self._refused.pop(next(iter(self._refused)))
        return first

    def recent(self) -> dict[str, RefusedLessons]:
        """Those of the last 24 hours; forgets the others."""
        now = time.time()
        self._refused = {
            user: refused
            for user, refused in self._refused.items()
            if abs(now - refused.last) < _DAY_SECONDS
        }
        return self._refused


def parse_refusals(values: Mapping[str, Any]) -> dict[str, RefusedLessons]:
    """From JSON, by user. One of `JSON_ERRORS`."""
    return {
        str(user): RefusedLessons(
            str(fields["day"]),
            int(fields["number"]),
            int(fields["last"]),
            str(fields["folder"]),
            str(fields.get("why", OVER_QUOTA)),
        )
        for user, fields in values.items()
    }


def read_dropped(state: Path) -> dict[str, RefusedLessons]:
    """The refusals of the learner; empty when nothing is known."""
    try:
        return parse_refusals(json.loads((state / DROPPED_FILE).read_bytes()))
    except (OSError, *JSON_ERRORS):
        return {}


def write_dropped(state: Path, refusals: RefusalLog) -> None:
    """Write the refusals of the learner. OSError."""
    write_json(
        state / DROPPED_FILE, {user: asdict(refused) for user, refused in refusals.recent().items()}
    )


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replace a file. OSError."""
    with draft_file(path) as draft:
        with create_private(draft) as file:
            file.write(json.dumps(values).encode())
        draft.replace(path)
