"""What a lesson would change, before it is given.

`open_what_if` shows the effect of a lesson before it is given. A second filter of the same
directory sees the ledger as it was at one moment, and then with one more vote laid over it. Nothing
is written, and no later event of the ledger is seen, so the verdicts before and after differ by
that vote alone. They are the verdicts that teaching would bring about at once, before anything is
settled.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spamguard.database import Database
from spamguard.engine.prepare import Example
from spamguard.errors import LedgerError, TableError
from spamguard.ledger import codec, schema
from spamguard.ledger.queries import ChangeWalk, UserQueries
from spamguard.ledger.schema import Query
from spamguard.ledger.sqlite import LogState, SqliteLedger
from spamguard.ledger.votes import Change, NewVote, Receipt, add_version
from spamguard.records import EXTRACTOR, Features, Verdict, Vote

if TYPE_CHECKING:
    from spamguard.engine.filter import Filter

_MAX_ATTEMPTS = 5


@contextmanager
def open_what_if(spam_filter: Filter) -> Iterator[WhatIf]:
    """Open a filter beside this one, as it is at this moment. LedgerError, TableError."""
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        try:
            ledger = OverlayLedger.open(spam_filter.ledger.path, spam_filter.ledger.fingerprint)
            try:
                subject = spam_filter.with_ledger(ledger)
            except BaseException:
                ledger.close()
                raise
            break
        except (LedgerError, TableError):  # a concurrent settling may have deleted the snapshot
            if attempt == _MAX_ATTEMPTS:
                raise
    with ledger:
        yield WhatIf(ledger, subject)


class WhatIf:
    """A filter that can be taught one lesson without anybody else seeing it. Use `open_what_if`."""

    def __init__(self, ledger: OverlayLedger, subject: Filter) -> None:
        self._ledger = ledger
        self._filter = subject

    def judge(self, messages: Sequence[Features], user: str, deadline: float) -> list[Verdict]:
        """Judge messages until the deadline (`time.monotonic`), at least the first."""
        verdicts: list[Verdict] = []
        for features in messages:
            if verdicts and time.monotonic() >= deadline:
                break
            verdicts.append(self._filter.judge_features(features, user))
        return verdicts

    def overlay(self, lesson: Example, label: str, user: str) -> bool:
        """Judge from now on as if this had been taught; returns whether it changes anything. To be
        called once.
        """
        self._filter.check_class(label)
        packed, now = codec.pack(lesson.features), int(time.time())
        return self._ledger.overlay(
            NewVote(lesson.digest, user, label, packed, b"", "", now, EXTRACTOR)
        )


class OverlayLedger(SqliteLedger):
    """A ledger as it was when it was opened, then with one more vote."""

    def __init__(self, path: Path, database: Database, fingerprint: str) -> None:
        """Use `open`."""
        super().__init__(path, database, fingerprint)
        self._db.query("PRAGMA query_only = ON")
        with self._db.transaction("BEGIN"):  # notes name tables, which hold no later event
            self._last_seq, self._state = super().last_seq(), self._read_state()
            self._meta_values: dict[str, str] = dict(self._db.query("SELECT key, value FROM meta"))
        self._overlaid_vote: Vote | None = None
        self._has_grown = False

    def overlay(self, vote: NewVote) -> bool:
        """Add this vote at the end; returns whether it changes anything. To be called once."""
        if self._is_redundant(vote):
            return False
        self._overlaid_vote = add_version(vote, self._read_number("ledger.clock") + 1, self.node)
        self._has_grown = True
        return True

    def has_grown(self) -> bool:
        """Whether a vote was laid over since the last call."""
        grown, self._has_grown = self._has_grown, False
        return grown

    def read_end(self) -> tuple[int, LogState]:
        """The end of the ledger when it was opened."""
        return self._last_seq, self._state

    def last_seq(self) -> int:
        """The last event when the ledger was opened; the vote laid over has the next number."""
        return self._last_seq

    def get_meta(self, key: str) -> str | None:
        """A note of the ledger when it was opened."""
        return self._meta_values.get(key)

    def changes_after(
        self, seq: int, *, extractor: int | None = None, generation: int | None = None
    ) -> Iterator[Change]:
        """The changes of the ledger, then that of the vote laid over."""
        first = min(seq, self._last_seq)
        yield from super().changes_after(first, extractor=extractor, generation=generation)
        if self._overlaid_vote is not None and seq <= self._last_seq:
            event = (self._last_seq + 1, self._overlaid_vote)
            with self._db.transaction("BEGIN"):
                self._check_state(self._state, self._last_seq)
                walk = ChangeWalk(self._db.query)
                changes = walk.read_changes(self._last_seq, [event], extractor)
            yield from changes

    @property
    def users(self) -> UserQueries:
        """The votes of users, with the vote laid over."""
        if self._overlaid_vote is None:
            return UserQueries(self._db.query)
        return _OverlayUserQueries(self._db.query, self._last_seq, self._overlaid_vote)


class _OverlayUserQueries(UserQueries):
    """Queries by user, with one more vote after the last event."""

    def __init__(self, query: Query, last_seq: int, vote: Vote) -> None:
        super().__init__(query)
        self._last_seq, self._seq = last_seq, last_seq + 1
        self._vote = vote

    def latest_seqs(self, user: str, upto_seq: int, extractor: int, limit: int) -> list[int]:
        vote = self._vote
        if user != vote.user or upto_seq <= self._last_seq:
            return super().latest_seqs(user, min(upto_seq, self._last_seq), extractor, limit)
        replaced = {seq for (seq,) in self._query(schema.SEQS_OF_KEY, (vote.digest, user))}
        seqs = super().latest_seqs(user, self._last_seq, extractor, limit + 1)
        overlaid = [] if vote.label is None else [self._seq]
        return [*overlaid, *(seq for seq in seqs if seq not in replaced)][:limit]

    def read_receipts(self, seqs: Sequence[int]) -> list[Receipt]:
        receipts = super().read_receipts([seq for seq in seqs if seq <= self._last_seq])
        if self._seq in seqs:
            receipts.insert(0, Receipt(self._seq, self._vote.label or "", self._vote.packed))
        return receipts

    def users_between(self, after: int, upto: int) -> list[str]:
        users = super().users_between(after, min(upto, self._last_seq))
        return users if upto <= self._last_seq else list({*users, self._vote.user})
