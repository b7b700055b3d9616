"""How much one user may teach: so many lessons within 24 hours, so that nobody poisons what others rely on.

Counted in the ledger, which no restart forgets. What is beyond is not taken up later by itself: it can be taught by hand.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from spamguard.folders.contract import Mailbox
from spamguard.folders.names import display
from spamguard.folders.notes import Notes
from spamguard.folders.values import EVIDENCE_ORIGIN, ORIGIN, Lesson
from spamguard.ledger import SqliteLedger

_log = logging.getLogger("spamguard.folders")


class Allowance:
    """limits: lessons per user within 24 hours, for each entry of `watch:`; 0: no limit."""

    def __init__(self, ledger: SqliteLedger, limits: Sequence[int], notes: Notes) -> None:
        self._ledger = ledger
        self._limits = limits
        self._notes = notes

    def admitted(self, mailbox: Mailbox, lessons: list[Lesson]) -> list[Lesson]:
        """Those that may be taught; of the others it is noted that there were some."""
        limit = self._limits[mailbox.watch]
        if not limit:
            return lessons
        now, users = int(time.time()), self._ledger.users
        taken, refused = users.within(limit, mailbox.user, (ORIGIN, EVIDENCE_ORIGIN), now, lessons, attrgetter("digest", "label"))
        into = attrgetter("folder", "label")
        for _, some in groupby(sorted(refused, key=into), into):
            self._refuse(mailbox, list(some), limit)
        return taken

    def _refuse(self, mailbox: Mailbox, lessons: list[Lesson], limit: int) -> None:
        """Lessons of one folder and class."""
        folder = lessons[0].folder
        if self._notes.refused(mailbox.user, display(folder), len(lessons)):
            told = (
                "%s: has taught %d messages within 24 hours (lessons_per_day): what is moved beyond that teaches nothing, such as "
                "what came into %s now. To teach it all the same: %s"
            )
            state = str(self._ledger.path.parent)
            command = ("spamguard", "--state", state, "learn", "--user", mailbox.user, "--as", lessons[0].label, f"{mailbox.path}/{folder}")
            _log.warning(told, mailbox.user, limit, display(folder), shlex.join(command))
