"""What the folder watcher leaves for users to read: that it is there, what it could not learn, why.

A small JSON file in the state directory, for `status` and `doctor`. Must never stand in the way of
learning: what cannot be written now is written later.
"""

from __future__ import annotations

import json
import time
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from spamguard.folders.mailboxes import DOUBT, Issue
from spamguard.learning.refusals import (
    JSON_ERRORS,
    RefusalLog,
    RefusedLessons,
    parse_refusals,
    write_json,
)
from spamguard.log import StandingWarning, WarnOnce

STATUS_FILE = "watching.json"
"""Its name in the state directory."""
BEAT_SECONDS = 30.0  # between two signs of life
DEAD_AFTER_SECONDS = 150.0  # without one: a long scan of a large mailbox leaves some out

_DAY_SECONDS = 86_400
_MAX_TROUBLES = 200


@dataclass(frozen=True, slots=True)
class WatcherTrouble:
    """Why something teaches nothing.

    user: whose; "": everybody's. since: seconds since 1970. doubt: it may be as it should be.
    """

    user: str
    text: str
    since: int
    doubt: bool = False


@dataclass(frozen=True, slots=True)
class WatcherStatus:
    """The whole file.

    began, seen: first and last sign of life, seconds since 1970. mailboxes: how many are watched.
    """

    began: int = 0
    seen: int = 0
    mailboxes: int = 0
    refused: Mapping[str, RefusedLessons] = field(default_factory=dict)
    troubles: tuple[WatcherTrouble, ...] = ()

    def is_alive(self, now: float) -> bool:
        """Whether the watcher runs."""
        return abs(now - self.seen) < DEAD_AFTER_SECONDS


def read_watcher_status(state: Path) -> WatcherStatus | None:
    """The status file of a state directory; None: there is none, or it cannot be read."""
    try:
        values = json.loads((state / STATUS_FILE).read_bytes())
        return WatcherStatus(
            int(values["began"]),
            int(values["seen"]),
            int(values["mailboxes"]),
            parse_refusals(values["refused"]),
            tuple(_parse_trouble(**trouble) for trouble in values["troubles"]),
        )
    except (OSError, *JSON_ERRORS):
        return None


def _parse_trouble(user: object, text: object, since: Any, doubt: object = False) -> WatcherTrouble:
    return WatcherTrouble(str(user), str(text), int(since), bool(doubt))


class StatusFile:
    """The file of one watcher. state: the state directory."""

    def __init__(self, state: Path, warnings: WarnOnce) -> None:
        self._path = state / STATUS_FILE
        self._warnings = warnings
        self._began = int(time.time())
        self._has_changed = True
        self._written = -1, -1  # number of mailboxes, changes of the warnings
        self._last_beat = -inf
        before = read_watcher_status(state)
        self._refusals = RefusalLog(before.refused if before else {})

    @property
    def next_beat(self) -> float:
        """When to call `beat` next, on the clock of `time.monotonic`."""
        return self._last_beat + BEAT_SECONDS

    def add_refused(self, user: str, folder: str, number: int) -> bool:
        """Count lessons of a user that were not taken; whether they are the first of this day."""
        self._has_changed = True
        return self._refusals.add(user, folder, number)

    def beat(self, mailboxes: int) -> None:
        """Write the file: at once if something has changed, else now and then as a sign of life."""
        state = mailboxes, self._warnings.changes
        if not self._has_changed and state == self._written and time.monotonic() < self.next_beat:
            return
        self._written = state
        self._last_beat = time.monotonic()
        now = int(time.time())
        status = WatcherStatus(
            self._began,
            now,
            mailboxes,
            self._refusals.recent(),
            tuple(standing_troubles(self._warnings.standing(), now)),
        )
        try:
            write_json(self._path, asdict(status))
        except OSError as error:
            self._warnings.warn(
                self._path,
                "%s: cannot be written (%s): `status` does not see what is learnt",
                self._path,
                error.strerror,
            )
        else:
            self._warnings.clear(self._path)
            self._has_changed = False


def standing_troubles(
    standing: Mapping[Hashable, StandingWarning], now: int
) -> list[WatcherTrouble]:
    """The warnings about things of our own (their key is a text) and about mailboxes, the oldest
    first. Transient ones stand for a day.
    """
    troubles = []
    for key, (text, since) in standing.items():
        if isinstance(key, str):
            troubles.append(WatcherTrouble("", text, int(since)))
        elif isinstance(key, Issue) and (not key.transient or now - since < _DAY_SECONDS):
            doubt = key.kind == DOUBT
            troubles.append(WatcherTrouble(key.mailbox.user, text, int(since), doubt))
    return sorted(troubles, key=lambda trouble: trouble.since)[-_MAX_TROUBLES:]
