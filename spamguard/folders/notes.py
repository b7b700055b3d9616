"""What the watcher leaves for people to read: that it is there, what it could not learn, and why. A small file in the state directory.

Written whole, under another name first, so that a reader never sees half of it. Must never stand in the way of learning: what cannot
be written now is written later.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from math import inf
from pathlib import Path
from typing import Any

from spamguard.files import create_private
from spamguard.folders.contract import Mailbox, Place
from spamguard.folders.once import Once, Warned

FILE = "watching.json"
"""Its name in the state directory."""
BEAT_SECONDS = 30.0  # between two signs of life
DEAD_SECONDS = 150.0  # without one, after which nobody watches: a long look at a large mailbox lets beats out

_DAY = 86_400
_MOST = 10_000  # users whose refusals are known
_MOST_TROUBLES = 200


@dataclass(frozen=True, slots=True)
class Refused:
    """Lessons of a user beyond the limit. number: on that day, local time. last: when, seconds since 1970; folder: the last one's."""

    day: str
    number: int
    last: int
    folder: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something teaches nothing. user: whose; empty: everybody's. since: seconds since 1970."""

    user: str
    text: str
    since: int


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
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _noted(values: dict[str, Any]) -> Noted:
    refused = {str(user): Refused(**one) for user, one in values["refused"].items()}
    return Noted(values["began"], values["seen"], values["mailboxes"], refused, tuple(Trouble(**one) for one in values["troubles"]))


class Notes:
    """The file of one watcher. state: the state directory."""

    def __init__(self, state: Path, once: Once) -> None:
        self._path = state / FILE
        self._once = once
        self._began = int(time.time())
        self._changed = True
        self._beat = -inf
        before = read(state)
        self._refused = dict(before.refused) if before else {}

    @property
    def due(self) -> float:
        """When the next `beat` is to come, on the clock of `time.monotonic`."""
        return self._beat + BEAT_SECONDS

    def refused(self, user: str, folder: str, number: int) -> bool:
        """Lessons of a user were not taken; whether they are the first of this day."""
        now, day = int(time.time()), date.today().isoformat()
        before = self._refused.pop(user, None)
        first = before is None or before.day != day
        earlier = 0 if before is None or first else before.number
        self._refused[user] = Refused(day, earlier + number, now, folder)
        if len(self._refused) > _MOST:
            self._refused.pop(next(iter(self._refused)))
        self._changed = True
        return first

    def beat(self, mailboxes: int) -> None:
        """Write what there is to say, at once if something has changed, else a sign of life now and then."""
        if not self._changed and time.monotonic() < self.due:
            return
        self._beat = time.monotonic()
        now = int(time.time())
        self._refused = {user: one for user, one in self._refused.items() if abs(now - one.last) < _DAY}
        told = Noted(self._began, now, mailboxes, self._refused, tuple(troubles(self._once.standing(), now)))
        try:
            _write(self._path, json.dumps(asdict(told)).encode())
        except OSError as error:
            self._once.warn(self._path, "%s: cannot be written (%s): `status` does not see what is learnt", self._path, error.strerror)
        else:
            self._once.over(self._path)
            self._changed = False


def troubles(standing: Mapping[Hashable, Warned], now: int) -> Iterable[Trouble]:
    """What was warned of and stands in the way of learning. A single file does so for a day: nobody comes to say that it is well."""
    found = []
    for key, (text, since) in standing.items():
        match key:
            case Mailbox(user=user) | Place(mailbox=Mailbox(user=user)):
                found.append(Trouble(user, text, int(since)))
            case (Place(mailbox=Mailbox(user=user)), _) if now - since < _DAY:
                found.append(Trouble(user, text, int(since)))
            case str():
                found.append(Trouble("", text, int(since)))
    return sorted(found, key=lambda one: one.since)[-_MOST_TROUBLES:]


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        with create_private(draft) as file:
            file.write(data)
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
