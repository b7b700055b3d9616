"""What the filter in a state directory knows and how full it is, looked at anew each time: that shows, too, that it can be used.

Only reads. Must never create a filter, nor take longer the more was taught: lessons are counted from where the last look ended.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from spamguard.engine import Filter
from spamguard.errors import LedgerError
from spamguard.files import LEDGER
from spamguard.metrics.counters import Slot
from spamguard.records import Status
from spamguard.teaching.lesson import BROUGHT

PEOPLE = ("folder", "quarantine", *BROUGHT)
"""First words of the origins of lessons that somebody gave at the moment they saw the message; not of those taught in bulk."""
_AT_ONCE = 20_000  # events counted in one look
_LONGEST = 12  # letters of an origin's first word


class Known(NamedTuple):
    """status: of ledger and tables. person: when somebody last taught, seconds since 1970; None: nobody ever has."""

    status: Status
    person: int | None


class Looker:
    """Looks at one filter; belongs to one thread at a time. slot: where lessons are counted."""

    def __init__(self, state: Path, slot: Slot) -> None:
        self._state = state
        self._slot = slot
        self._person: int | None = None
        self._asked_for_person = False

    def look(self) -> Known:
        """As of now. SpamguardError: ledger or tables cannot be used."""
        file = self._state / LEDGER
        if not file.exists():  # it is made by whoever teaches, never from here
            raise LedgerError(f"ledger {file}: there is none")
        with Filter.open(self._state) as spam_filter:
            self._count(spam_filter)
            return Known(spam_filter.status(), self._person)

    def _count(self, spam_filter: Filter) -> None:
        """What was taught since the last look; the first one begins with now."""
        users, last = spam_filter.ledger.users, spam_filter.ledger.last_seq()
        if not self._asked_for_person:
            self._person, self._asked_for_person = users.last_taught(PEOPLE), True
        if not 0 <= self._slot.seq <= last:  # never counted, or an older ledger was restored
            self._slot.seq = last
        upto = min(last, self._slot.seq + _AT_ONCE)
        for label, origin, number, newest in users.taught(self._slot.seq, upto):
            first = origin.split(maxsplit=1)[0].strip(",")[:_LONGEST] if origin.strip() else ""
            self._slot.lesson(label, first or "other", number)
            if first in PEOPLE:
                self._person = max(self._person or 0, newest)
        self._slot.seq = upto
