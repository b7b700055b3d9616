"""What is held back, by id and by recipient, in memory: a look at the list must not take longer the more is held.

The directory is listed again when it has changed, and each note read once: whom a message was sent to never changes.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock

from spamguard.quarantine import Quarantine

AT_ONCE = 500  # notes that one look reads, some 20 ms
_SETTLED = 1_000_000_000  # nanoseconds: what changes twice within a tick of the kernel's clock bears one time


class Index:
    """Of one quarantine; any thread may ask."""

    def __init__(self, quarantine: Quarantine) -> None:
        self._quarantine = quarantine
        self._ids: Sequence[str] = ()  # oldest first
        self._changed = -1  # when, as the directory told it when it was listed
        self._recipients: dict[str, Sequence[str]] = {}  # by id, as far as notes were read
        self._lock = Lock()

    def newest(self, before: str, limit: int, theirs: Callable[[str], bool]) -> tuple[Sequence[str], str]:
        """The newest of the ids before that one of messages to any recipient that is theirs, newest first, looked for until so many notes
        were read for the first time; and the one down to which these are all, "" for all there are."""
        ids, known, mine = self._listed(), self._recipients, cache(theirs)
        found: list[str] = []
        read = 0
        for at in range(bisect_left(ids, before) - 1, -1, -1):
            if len(found) == limit or read == AT_ONCE:
                return found, ids[at + 1]
            recipients = known.get(ids[at])
            if recipients is None:
                recipients = self._read(ids[at])
                read += 1
            if any(map(mine, recipients)):
                found.append(ids[at])
        return found, ""

    def _listed(self) -> Sequence[str]:
        with self._lock:
            changed = self._quarantine.changed()
            if changed != self._changed:
                self._ids = sorted(self._quarantine.ids())
                self._changed = changed if time.time_ns() - changed > _SETTLED else -1
                there = frozenset(self._ids)
                self._recipients = {name: told for name, told in self._recipients.items() if name in there}
            return self._ids

    def _read(self, name: str) -> Sequence[str]:
        """Nobody, if it is damaged or has gone meanwhile."""
        for entry in self._quarantine.of([name]):
            told = [sys.intern(one.address) for one in entry.envelope.recipients]
            with self._lock:  # else another thread might be going through them
                self._recipients[name] = told
            return told
        return ()
