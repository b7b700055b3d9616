"""What teaching tells its users by small JSON files in the state directory, for `status` and
`doctor`: which lessons were refused, and what stands in the way of folders. The file of the folder
watcher also says that it is alive. What cannot be written now is written later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from math import inf
from pathlib import Path

from spamguard.log import WarnOnce
from spamguard.status_file import StatusFile

DROPPED_FILE = "dropped.json"
"""In the state directory: refusals of lessons by programs and mail."""
WATCHER_FILE = "watching.json"
"""In the state directory: the status of the folder watcher."""
BEAT_SECONDS = 30.0  # between two signs of life
DEAD_AFTER_SECONDS = 150.0  # without one: a long scan of a large mailbox leaves some out
OVER_QUOTA = "beyond lessons_per_day"

_DAY_SECONDS = 86_400
_MAX_USERS = 10_000


# ---- refused lessons


@dataclass(frozen=True)
class RefusedLessons:
    """Refused lessons of a user."""

    day: str  # local time
    number: int  # on that day
    last: int  # time of the last one, seconds since 1970
    folder: str  # of the last one, or its origin
    why: str = OVER_QUOTA


@dataclass
class RefusalLog:
    """The refusals of today and of the day before, by user."""

    _refused: dict[str, RefusedLessons]

    def add(self, user: str, folder: str, number: int, why: str = OVER_QUOTA) -> bool:
        """Count refused lessons; whether they are the first of this day."""
        now, day = int(time.time()), date.today().isoformat()
        before = self._refused.pop(user, None)
        earlier = before.number if before and before.day == day else 0
        self._refused[user] = RefusedLessons(day, earlier + number, now, folder, why)
        if len(self._refused) > _MAX_USERS:
            self._refused.pop(next(iter(self._refused)))
        return not earlier

    def recent(self) -> dict[str, RefusedLessons]:
        now = time.time()
        self._refused = {
            user: refused
            for user, refused in self._refused.items()
            if abs(now - refused.last) < _DAY_SECONDS
        }
        return self._refused


_DROPPED = StatusFile(DROPPED_FILE, dict[str, RefusedLessons])


def read_dropped(state: Path) -> dict[str, RefusedLessons]:
    return _DROPPED.read(state) or {}


def write_dropped(state: Path, refusals: RefusalLog) -> None:
    _DROPPED.write(state, refusals.recent())


# ---- the folder watcher


@dataclass(frozen=True)
class WatcherTrouble:
    """Why something teaches nothing."""

    user: str  # "" for everybody
    text: str
    since: int  # seconds since 1970


@dataclass(frozen=True)
class WatcherStatus:
    """The whole file."""

    began: int  # first sign of life, seconds since 1970
    seen: int  # the last one
    mailboxes: int  # how many are watched
    refused: Mapping[str, RefusedLessons] = field(default_factory=dict)
    troubles: tuple[WatcherTrouble, ...] = ()

    def is_alive(self, now: float) -> bool:
        return abs(now - self.seen) < DEAD_AFTER_SECONDS


_WATCHER = StatusFile(WATCHER_FILE, WatcherStatus)


def read_watcher_status(state: Path) -> WatcherStatus | None:
    """The status file of a state directory; None if there is none, or it cannot be read."""
    return _WATCHER.read(state)


class WatcherFile:
    """The status file of one watcher; `list_troubles` says what its warnings mean to users."""

    def __init__(
        self, state: Path, warnings: WarnOnce, list_troubles: Callable[[], Iterable[WatcherTrouble]]
    ) -> None:
        self._state = state
        self._warnings = warnings
        self._list_troubles = list_troubles
        self._began = int(time.time())
        # Number of mailboxes, changes of the warnings; None: something else has changed.
        self._written: tuple[int, int] | None = None
        self._last_beat = -inf
        before = read_watcher_status(state)
        self._refusals = RefusalLog(dict(before.refused) if before else {})

    @property
    def next_beat(self) -> float:
        return self._last_beat + BEAT_SECONDS

    def add_refused(self, user: str, folder: str, number: int) -> bool:
        """Count lessons of a user that were not taken; whether they are the first of this day."""
        self._written = None
        return self._refusals.add(user, folder, number)

    def beat(self, mailboxes: int) -> None:
        state = mailboxes, self._warnings.changes
        if state == self._written and time.monotonic() < self.next_beat:
            return
        self._written = state
        self._last_beat = time.monotonic()
        status = WatcherStatus(
            self._began,
            int(time.time()),
            mailboxes,
            self._refusals.recent(),
            tuple(self._list_troubles()),
        )
        try:
            _WATCHER.write(self._state, status)
        except OSError as error:
            self._written = None
            self._warnings.warn(
                WATCHER_FILE,
                "%s: cannot be written (%s): `status` does not see what is learnt",
                WATCHER_FILE,
                error.strerror,
            )
        else:
            self._warnings.clear(WATCHER_FILE)
