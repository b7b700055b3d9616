"""A mailbox of plain values, and somebody who looks at it now and then and is told nothing else."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from itertools import count
from random import Random
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spamguard.folders.names import key, key_of, message
from spamguard.folders.reconcile import Outcome, Rules, compare, reconcile
from spamguard.folders.roles import HAM, NEUTRAL, SPAM, TRASH
from spamguard.folders.sightings import Sightings
from spamguard.folders.values import Arrival, Copy, Key, Kind, Lesson, Role
from spamguard.settings import Action
from spamguard.signature import Signed

ROLES = {
    "": HAM,
    ".Archive": HAM,
    ".Junk": SPAM,
    ".Junk.Old": SPAM,
    ".News": Role(Kind.CLASS, "newsletters"),
    ".Undecided": NEUTRAL,
    ".Trash": TRASH,
    ".Projects": NEUTRAL,
}
FOLDERS = tuple(ROLES)
FILING = Rules(ROLES.__getitem__, we_file=True)
NOT_FILING = Rules(ROLES.__getitem__)


def keys_of(files: Iterable[str]) -> NDArray[np.int64]:
    return np.array([key_of(file) for file in files], np.int64)


def signed(label: str, name: str, action: Action = Action.TAG) -> Signed:
    return Signed(label, 5.0, action, name)


class Mail(NamedTuple):
    """What a file holds."""

    digest: bytes
    signed: Signed | None = None
    received: int = 0


class Memory(Protocol):
    def present(self, folder: str) -> Iterable[int]: ...
    def copies(self, digests: Iterable[bytes], gone: Collection[Key]) -> list[Copy]: ...
    def apply(self, outcome: Outcome) -> None: ...


class Plain:
    """Sightings in a dictionary."""

    def __init__(self) -> None:
        self.all: dict[Key, Copy] = {}

    def present(self, folder: str) -> Iterable[int]:
        return [copy.name for copy in self.all.values() if copy.folder == folder and not copy.gone]

    def copies(self, digests: Iterable[bytes], gone: Collection[Key]) -> list[Copy]:
        wanted = set(digests) | {self.all[missed].digest for missed in gone}
        return [copy for copy in self.all.values() if copy.digest in wanted]

    def apply(self, outcome: Outcome) -> None:
        for removed in outcome.removed:
            del self.all[removed.folder, removed.name]
        self.all |= {(copy.folder, copy.name): copy for copy in outcome.kept}


class Stored:
    """Sightings in their file."""

    def __init__(self, store: Sightings) -> None:
        self.store = store

    def present(self, folder: str) -> Iterable[int]:
        return self.store.names("anna", folder).tolist()

    def copies(self, digests: Iterable[bytes], gone: Collection[Key]) -> list[Copy]:
        return self.store.copies("anna", digests, gone)

    def apply(self, outcome: Outcome) -> None:
        self.store.update("anna", outcome.kept, [(copy.folder, copy.name) for copy in outcome.removed])


class Mailbox:
    """Files that people and servers move, and what was learnt by looking."""

    def __init__(self, rules: Rules = FILING, memory: Memory | None = None) -> None:
        self.files: dict[tuple[str, str], Mail] = {}
        self.votes: dict[bytes, str] = {}
        self.lessons: list[Lesson] = []
        self.memory = memory or Plain()
        self._rules = rules
        self._numbers = count(1)
        self._clock = Random(1)

    def base(self) -> str:
        return f"17{next(self._numbers):08}.M1P2.host,S=12,W=13"

    def put(self, folder: str, mail: Mail, name: str = "") -> str:
        name = name or self.base()
        self.files[folder, name] = mail
        return name

    def rename(self, folder: str, name: str, to: str, changed: str = "") -> str:
        self.files[to, changed or name] = self.files.pop((folder, name))
        return changed or name

    def listing(self, folder: str) -> list[str]:
        return [name for where, name in self.files if where == folder]

    def scan(self, *folders: str) -> Outcome:
        return self.look({folder: self.listing(folder) for folder in folders or FOLDERS})

    def look(self, listings: dict[str, list[str]], *, first: bool = False) -> Outcome:
        """One scan that found these names; files that went since are passed over."""
        arrivals: list[Arrival] = []
        gone: set[Key] = set()
        for folder, listing in listings.items():
            known = np.array(sorted(self.memory.present(folder)), np.int64)
            new, missed = compare(known, keys_of(listing))
            gone |= {(folder, name) for name in missed}
            arrivals += [self._arrival(folder, listing[index]) for index in new if (folder, listing[index]) in self.files]
        now = self._clock.randrange(1000, 2000)  # clocks are put right, forward and back
        digests = [arrival.digest for arrival in arrivals]
        outcome = reconcile(self.memory.copies(digests, gone), arrivals, gone, self._rules, now, first=first)
        self.memory.apply(outcome)
        again = reconcile(self.memory.copies(digests, set()), arrivals, gone, self._rules, now, first=first)
        assert again == Outcome([], [], [])
        self.lessons += outcome.lessons
        self.votes |= {lesson.digest: lesson.label for lesson in outcome.lessons}
        return outcome

    def _arrival(self, folder: str, name: str) -> Arrival:
        parsed = message(name)
        assert parsed is not None
        return Arrival(folder, key(parsed.base), *self.files[folder, name])


def stem(name: str) -> str:
    """Of a file's name, without sizes and flags."""
    return re.split("[,:!;]", name)[0]
