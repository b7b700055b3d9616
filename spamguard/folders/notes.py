"""What the watcher leaves for people to read: that it is there, what it could not learn, and why. A small file in the state directory.

Must never stand in the way of learning: what cannot be written now is written later.
"""

from __future__ import annotations

import json
import time
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from spamguard.folders.once import DOUBT, Matter, Once, Warned
from spamguard.folders.refusals import NOT_OURS, Refusals, Refused, read_refused, write

FILE = "watching.json"
"""Its name in the state directory."""
BEAT_SECONDS = 30.0  # between two signs of life
DEAD_SECONDS = 150.0  # without one, after which nobody watches: a long look at a large mailbox lets beats out

_DAY = 86_400
_MOST_TROUBLES = 200


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something teaches nothing. user: whose; empty: everybody's. since: seconds since 1970. doubt: that may be as it should be."""

    user: str
    text: str
    since: int
    doubt: bool = False


@dataclass(frozen=True, slots=True)
class Noted:
    """The whole file. began, seen: first and last sign of life, seconds since 1970. mailboxes: how many are watched."""

    began: int = 0
    seen: int = 0
    mailboxes: int = 0
    refused: Mapping[str, Refused] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()

    def alive(self, now: float) -> bool:
        """Whether somebody watches."""
        return abs(now - self.seen) < DEAD_SECONDS


def read(state: Path) -> Noted | None:
    """What the watcher of a state directory has noted; None: nobody has ever watched there, or it cannot be read."""
    try:
        return _noted(json.loads((state / FILE).read_bytes()))
    except (OSError, *NOT_OURS):
        return None


def _noted(values: dict[str, Any]) -> Noted:
    return Noted(
        int(values["began"]),
        int(values["seen"]),
        int(values["mailboxes"]),
        read_refused(values["refused"]),
        tuple(_trouble(**one) for one in values["troubles"]),
    )


def _trouble(user: object, text: object, since: Any, doubt: object = False) -> Trouble:
    return Trouble(str(user), str(text), int(since), bool(doubt))


class Notes:
    """The file of one watcher. state: the state directory."""

    def __init__(self, state: Path, once: Once) -> None:
        self._path = state / FILE
        self._once = once
        self._began = int(time.time())
        self._changed = True
        self._told = -1, -1  # how many mailboxes, and which changes of `Once`, were written last
        self._beat = -inf
        before = read(state)
        self._refusals = Refusals(before.refused if before else {})

    @property
    def due(self) -> float:
        """When the next `beat` is to come, on the clock of `time.monotonic`."""
        return self._beat + BEAT_SECONDS

    def refused(self, user: str, folder: str, number: int) -> bool:
        """Lessons of a user were not taken; whether they are the first of this day."""
        self._changed = True
        return self._refusals.add(user, folder, number)

    def beat(self, mailboxes: int) -> None:
        """Write what there is to say, at once if something has changed, else a sign of life now and then."""
        now_told = mailboxes, self._once.changes
        if not self._changed and now_told == self._told and time.monotonic() < self.due:
            return
        self._told = now_told
        self._beat = time.monotonic()
        now = int(time.time())
        told = Noted(self._began, now, mailboxes, self._refusals.recent(), tuple(troubles(self._once.standing(), now)))
        try:
            write(self._path, asdict(told))
        except OSError as error:
            self._once.warn(self._path, "%s: cannot be written (%s): `status` does not see what is learnt", self._path, error.strerror)
        else:
            self._once.over(self._path)
            self._changed = False


def troubles(standing: Mapping[Hashable, Warned], now: int) -> Iterable[Trouble]:
    """What was warned of and stands in the way of learning: of our own things, and of mailboxes. What is passing does so for a day."""
    found = []
    for key, (text, since) in standing.items():
        if isinstance(key, str):
            found.append(Trouble("", text, int(since)))
        elif isinstance(key, Matter) and (not key.passing or now - since < _DAY):
            found.append(Trouble(key.mailbox.user, text, int(since), key.what == DOUBT))
    return sorted(found, key=lambda one: one.since)[-_MOST_TROUBLES:]
