"""Lessons that scanner doors take: whether they say anything new, and onto the disk with those that do. Runs in threads.

Must never say that a lesson is taken before it is on the disk, and never hold more than a few names of those that wait.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from enum import Enum, auto
from pathlib import Path

from spamguard import secret
from spamguard.errors import LedgerError, SpamguardError
from spamguard.ledger import SqliteLedger
from spamguard.records import EXTRACTOR
from spamguard.spool import Spool
from spamguard.teaching.lesson import MOST_BYTES, Header, is_class, is_user
from spamguard.teaching.queue import DIRECTORY, Queue

_REMEMBERED = 1000

_log = logging.getLogger("spamguard.teaching")


class Taught(Enum):
    """What came of a lesson."""

    LEARNT = auto()  # it is on the disk, and is learnt by and by
    KNOWN = auto()  # it says nothing new
    FORBIDDEN = auto()  # this client may not teach
    IMPOSSIBLE = auto()  # it can never be learnt
    LATER = auto()  # local trouble


class Lessons:
    """All that a process takes. state: directory of the filter."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._queue = Queue(state / DIRECTORY)
        self._lock = threading.Lock()
        self._waiting: OrderedDict[tuple[bytes, str], tuple[str, str]] = OrderedDict()  # the last lesson, and its name in the queue

    def take(self, message: Spool, label: str, user: str, origin: str, digest: bytes) -> Taught:
        """label: "" takes back what was said. origin: the way it came. digest: of the message, b"" where it is not known. OSError."""
        if not 0 < message.size <= MOST_BYTES or (label and not is_class(label)) or (user and not is_user(user)):
            return Taught.IMPOSSIBLE
        if digest and self._says(digest, user) == label:
            return Taught.KNOWN
        name = self._queue.put(Header(label, message.size, user), origin, message.chunks())
        self._remember(digest, user, label, name)
        _log.info("lesson user=%s by=%s class=%s message=%s: taken", user, origin, label or "-", digest.hex()[:12])
        return Taught.LEARNT

    def learnt(self) -> dict[str, int]:
        """How many lessons each class has; nothing where that cannot be told."""
        try:
            with self._ledger() as ledger:
                return ledger.lesson_counts()
        except SpamguardError as error:
            _log.warning("how much was learnt cannot be told: %s", error)
            return {}

    def _ledger(self) -> SqliteLedger:
        """LedgerError; there is none yet: it is never made from here."""
        path, key = self._state / "ledger.sqlite", secret.load(self._state / "key", create=False)
        if not path.exists():
            raise LedgerError(f"{path}: is not there yet")
        return SqliteLedger.open(path, secret.fingerprint(key))

    def _remember(self, digest: bytes, user: str, label: str, name: str) -> None:
        with self._lock:
            self._waiting[digest, user] = label, name
            self._waiting.move_to_end((digest, user))
            while len(self._waiting) > _REMEMBERED:
                self._waiting.popitem(last=False)

    def _says(self, digest: bytes, user: str) -> str | None:
        """What this user has said of the message, "" where that is nothing; None: it cannot be known."""
        with self._lock:
            label, name = self._waiting.get((digest, user), ("", ""))
        if name and self._queue.waits(name):
            return label
        try:
            with self._ledger() as ledger:
                votes = ledger.users.votes(user, digest)
        except SpamguardError as error:
            _log.warning("whether a lesson is known cannot be told: %s", error)
            return None
        if votes and votes[0].label and votes[0].extractor < EXTRACTOR:
            return None  # it is worth saying again
        return (votes[0].label or "") if votes else ""
