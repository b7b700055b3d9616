"""A mailbox of plain values, and an observer who scans it now and then and gets no events."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from itertools import count
from random import Random
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spamguard.config.options import Action
from spamguard.folders.maildir import base_name_key, file_key, parse_file_name
from spamguard.folders.reconcile import (
    Arrival,
    FileKey,
    FolderLesson,
    ReconcileRules,
    Reconciliation,
    Sighting,
    reconcile,
)
from spamguard.folders.roles import HAM_ROLE, NEUTRAL_ROLE, SPAM_ROLE, TRASH_ROLE, FolderKind, Role
from spamguard.folders.scan import compare_listing
from spamguard.keys import SignedVerdict

ROLES = {
    "": HAM_ROLE,
    ".Archive": HAM_ROLE,
    ".Junk": SPAM_ROLE,
    ".Junk.Old": SPAM_ROLE,
    ".News": Role(FolderKind.CLASS, "newsletters"),
    ".Undecided": NEUTRAL_ROLE,
    ".Trash": TRASH_ROLE,
    ".Projects": NEUTRAL_ROLE,
}
FOLDERS = tuple(ROLES)
FILING = ReconcileRules(ROLES.__getitem__, we_file=True)
NOT_FILING = ReconcileRules(ROLES.__getitem__)


def keys_of(files: Iterable[str]) -> NDArray[np.int64]:
    return np.array([file_key(file) for file in files], np.int64)


def signed(label: str, name: str, action: Action = Action.TAG) -> SignedVerdict:
    return SignedVerdict(label, 5.0, action, name)


class Mail(NamedTuple):
    """The content of a file."""

    digest: bytes
    signed: SignedVerdict | None = None
    received: int = 0


class Memory(Protocol):
    def present(self, folder: str) -> Iterable[int]: ...
    def copies(self, digests: Iterable[bytes], gone: Collection[FileKey]) -> list[Sighting]: ...
    def apply(self, outcome: Reconciliation) -> None: ...


class Plain:
    """Sightings in a dictionary."""

    def __init__(self) -> None:
        self.all: dict[FileKey, Sighting] = {}

    def present(self, folder: str) -> Iterable[int]:
        return [copy.name for copy in self.all.values() if copy.folder == folder and not copy.gone]

    def copies(self, digests: Iterable[bytes], gone: Collection[FileKey]) -> list[Sighting]:
        wanted = set(digests) | {self.all[missed].digest for missed in gone}
        return [copy for copy in self.all.values() if copy.digest in wanted]

    def apply(self, outcome: Reconciliation) -> None:
        for removed in outcome.removed:
            del self.all[removed.folder, removed.name]
        self.all |= {(copy.folder, copy.name): copy for copy in outcome.updated}


class Mailbox:
    """Files that users and servers move, and what scans have learnt."""

    def __init__(self, rules: ReconcileRules = FILING, memory: Memory | None = None) -> None:
        self.files: dict[tuple[str, str], Mail] = {}
        self.votes: dict[bytes, str] = {}
        self.lessons: list[FolderLesson] = []
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

    def scan(self, *folders: str) -> Reconciliation:
        return self.look({folder: self.listing(folder) for folder in folders or FOLDERS})

    def look(self, listings: dict[str, list[str]], *, first: bool = False) -> Reconciliation:
        """Scan once and find these names; files that went since are not looked for."""
        arrivals: list[Arrival] = []
        gone: set[FileKey] = set()
        for folder, listing in listings.items():
            known = np.array(sorted(self.memory.present(folder)), np.int64)
            new, missed = compare_listing(known, keys_of(listing))
            gone |= {(folder, name) for name in missed}
            arrivals += [
                self._arrival(folder, listing[index])
                for index in new
                if (folder, listing[index]) in self.files
            ]
        now = self._clock.randrange(1000, 2000)  # clocks are put right, forward and back
        digests = [arrival.digest for arrival in arrivals]
        outcome = reconcile(
            self.memory.copies(digests, gone), arrivals, gone, self._rules, now, first=first
        )
        self.memory.apply(outcome)
        again = reconcile(
            self.memory.copies(digests, set()), arrivals, gone, self._rules, now, first=first
        )
        assert again == Reconciliation([], [], [])
        self.lessons += outcome.lessons
        self.votes |= {lesson.digest: lesson.label for lesson in outcome.lessons}
        return outcome

    def _arrival(self, folder: str, name: str) -> Arrival:
        parsed = parse_file_name(name)
        assert parsed is not None
        return Arrival(folder, base_name_key(parsed.base), *self.files[folder, name])


def stem(name: str) -> str:
    """A file name without sizes and flags."""
    return re.split("[,:!;]", name)[0]
