"""Lessons that scanner doors take: whether they say anything new, and onto the disk with those that do. Runs in threads.

Must never say that a lesson is taken before it is on the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from enum import Enum, auto
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from spamguard import log, secret
from spamguard.errors import LedgerError, SpamguardError
from spamguard.files import KEY, LEDGER
from spamguard.ledger import SqliteLedger
from spamguard.policy import unwanted_of
from spamguard.records import EXTRACTOR
from spamguard.spool import Spool
from spamguard.teaching.lesson import MOST_BYTES, Header, is_class, is_user
from spamguard.teaching.queue import DIRECTORY, Queue

_log = logging.getLogger("spamguard.teaching")


class Taught(Enum):
    """What came of a lesson."""

    LEARNT = auto()  # it is on the disk, and is learnt by and by
    KNOWN = auto()  # it says nothing new
    FORBIDDEN = auto()  # this client may not teach
    IMPOSSIBLE = auto()  # it can never be learnt
    LATER = auto()  # local trouble


class Learnt(NamedTuple):
    """lessons: by class. unwanted: classes."""

    lessons: Mapping[str, int]
    unwanted: Set[str]


class Lessons:
    """All that a process takes. state: directory of the filter."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._queue = Queue(state / DIRECTORY)

    def take(self, message: Spool, label: str, user: str, origin: str, digest: bytes) -> Taught:
        """label: "" takes back what was said. origin: the way it came. digest: of the message, b"" where it is not known. OSError."""
        if not 0 < message.size <= MOST_BYTES or (label and not is_class(label)) or (user and not is_user(user)):
            return Taught.IMPOSSIBLE
        if digest and self._says(digest, user) == label:
            return Taught.KNOWN
        self._queue.put(Header(label, message.size, user), origin, message.chunks(), _mark(digest, user) if digest else "")
        log.lesson(_log, user, {"by": origin}, label, digest, "taken")
        return Taught.LEARNT

    def learnt(self) -> Learnt:
        """Nothing where it cannot be told."""
        try:
            with self._ledger() as ledger:
                return Learnt(ledger.lesson_counts(EXTRACTOR), unwanted_of(ledger.classes()))
        except SpamguardError as error:
            _log.warning("how much was learnt cannot be told: %s", error)
            return Learnt({}, unwanted_of({}))

    def _ledger(self) -> SqliteLedger:
        """LedgerError; there is none yet: it is never made from here."""
        path, key = self._state / LEDGER, secret.load(self._state / KEY, create=False)
        if not path.exists():
            raise LedgerError(f"{path}: is not there yet")
        return SqliteLedger.open(path, secret.fingerprint(key))

    def _says(self, digest: bytes, user: str) -> str | None:
        """What this user has said of the message, "" where that is nothing; None: it cannot be known."""
        try:
            waiting = self._queue.said(_mark(digest, user))
        except LookupError:
            return None
        if waiting is not None and waiting.user == user:
            return waiting.label
        try:
            with self._ledger() as ledger:
                votes = ledger.users.votes(user, digest)
        except SpamguardError as error:
            _log.warning("whether a lesson is known cannot be told: %s", error)
            return None
        if votes and votes[0].label and votes[0].extractor < EXTRACTOR:
            return None  # it is worth saying again
        return (votes[0].label or "") if votes else ""


def _mark(digest: bytes, user: str) -> str:
    """What finds a lesson that waits, whichever process has taken it."""
    return blake2b(user.encode("utf-8", "replace"), key=digest[:64], digest_size=6).hexdigest()
