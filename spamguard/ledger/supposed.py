"""The ledger as it was at one moment, and then with one more vote: what a lesson would do, before anybody else hears of it.

Must never write, and never let in what is committed meanwhile: what is seen before and after must differ by that vote alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from spamguard.ledger import statements
from spamguard.ledger.asking import Ask
from spamguard.ledger.lessons import Change, NewVote, versioned
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.users import Receipt, Users
from spamguard.ledger.walk import Walk
from spamguard.records import Vote


class SupposedLedger(SqliteLedger):
    """What a judging filter asks of a ledger."""

    def __init__(self, path: Path, db: sqlite3.Connection, fingerprint: str) -> None:
        """Use `open`."""
        super().__init__(path, db, fingerprint)
        self._ask("PRAGMA query_only = ON")
        with self._transaction("BEGIN"):  # both of one moment: notes name tables, which hold no event that is not there
            self._end = super().last_seq()
            self._notes: dict[str, str] = dict(self._ask("SELECT key, value FROM meta"))
        self._supposed: Vote | None = None
        self._told = True

    def suppose(self, vote: NewVote) -> bool:
        """Put this vote at the end; whether it changes anything. Once."""
        if self._stands(vote):
            return False
        self._supposed = versioned(vote, self._clock() + 1, self.node)
        self._told = False
        return True

    def grown(self) -> bool:
        """Whether something was supposed since the last call."""
        told, self._told = self._told, True
        return not told

    def last_seq(self) -> int:
        """As it was; the vote that is supposed has the next."""
        return self._end

    def get_meta(self, key: str) -> str | None:
        """As it was."""
        return self._notes.get(key)

    def changes_after(self, seq: int, *, extractor: int | None = None) -> Iterator[Change]:
        """As of any ledger, then what is supposed."""
        yield from super().changes_after(min(seq, self._end), extractor=extractor)
        if self._supposed is not None and seq <= self._end:
            with self._transaction("BEGIN"):
                found = Walk(self._ask).step(self._end, [(self._end + 1, self._supposed)], extractor)
            yield from found

    @property
    def users(self) -> Users:
        """The votes of users, with what is supposed."""
        return Users(self._ask) if self._supposed is None else _SupposedUsers(self._ask, self._end, self._supposed)


class _SupposedUsers(Users):
    def __init__(self, ask: Ask, end: int, supposed: Vote) -> None:
        super().__init__(ask)
        self._end = end
        self._supposed = supposed

    def latest(self, user: str, upto_seq: int, extractor: int, most: int) -> list[int]:
        if user != self._supposed.user or upto_seq <= self._end:
            return super().latest(user, min(upto_seq, self._end), extractor, most)
        replaced = {seq for (seq,) in self._ask(statements.SEQS_OF_KEY, (self._supposed.digest, user))}
        others = [seq for seq in super().latest(user, self._end, extractor, most + 1) if seq not in replaced]
        return ([self._end + 1] * (self._supposed.label is not None) + others)[:most]

    def receipts(self, seqs: Sequence[int]) -> list[Receipt]:
        own = [Receipt(self._end + 1, self._supposed.label or "", self._supposed.packed)] * (self._end + 1 in seqs)
        return own + super().receipts([seq for seq in seqs if seq <= self._end])

    def heard_between(self, after: int, upto: int) -> list[str]:
        return list({*super().heard_between(after, min(upto, self._end)), *[self._supposed.user] * (upto > self._end)})
