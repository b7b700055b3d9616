"""What a lesson would do, before it is given: a filter beside the other one takes it, and nobody else ever hears of it.

Must never write, and never say anything else than what teaching the message would bring about at once, before anything is settled.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from spamguard.engine import Filter
from spamguard.errors import LedgerError, TableError
from spamguard.ledger import NewVote, codec
from spamguard.ledger.supposed import SupposedLedger
from spamguard.prepare import Teaching
from spamguard.records import EXTRACTOR, Features, Verdict

_ATTEMPTS = 5


class Supposing:
    """Use `supposing`."""

    def __init__(self, ledger: SupposedLedger, apart: Filter) -> None:
        self._ledger = ledger
        self._apart = apart

    def judge(self, messages: Sequence[Features], user: str, deadline: float) -> list[Verdict]:
        """As `Filter.judge_features` each, until the deadline (`time.monotonic`); at least the first."""
        found: list[Verdict] = []
        for features in messages:
            if found and time.monotonic() >= deadline:
                break
            found.append(self._apart.judge_features(features, user))
        return found

    def suppose(self, lesson: Teaching, label: str, user: str) -> bool:
        """Judge from now on as if this had been taught; whether it changes anything. Once."""
        self._apart.check_class(label)
        now = int(time.time())
        return self._ledger.suppose(NewVote(lesson.digest, user, label, codec.pack(lesson.features), b"", "", now, EXTRACTOR))


@contextmanager
def supposing(spam_filter: Filter) -> Iterator[Supposing]:
    """A filter beside this one, of the same directory, as it is at this moment. LedgerError, TableError."""
    ledger, apart = _beside(spam_filter)
    with ledger:
        yield Supposing(ledger, apart)


def _beside(spam_filter: Filter) -> tuple[SupposedLedger, Filter]:
    """Whoever settles takes away the tables that were current a moment ago: then it is begun anew."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(LedgerError, TableError):
            return _begun(spam_filter)
    return _begun(spam_filter)


def _begun(spam_filter: Filter) -> tuple[SupposedLedger, Filter]:
    ledger = SupposedLedger.open(spam_filter.ledger.path, spam_filter.ledger.fingerprint)
    try:
        return ledger, spam_filter.seen_through(ledger)
    except BaseException:
        ledger.close()
        raise
