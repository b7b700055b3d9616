"""Rows of the shared log are written into a joined ledger.

`Application.apply` is one transaction, and what it leaves of positioned events is a function of the
rows alone, whatever is provisional here (`ledger.shared` says why that matters). An own event that
comes back from the log leaves `pending`. A provisional event whose key and version another vote has
taken gets the node that it will have when it comes.

Must never trust a row: what no node wrote, or cannot be decoded, takes its position and is skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from spamguard.database import Database
from spamguard.errors import LedgerError
from spamguard.ledger import schema
from spamguard.ledger.arriving import MAX_CLOCK_STEP, with_unique_node
from spamguard.ledger.events import (
    START,
    LogRow,
    Mark,
    decode_event,
    encode_event,
    next_chain,
)
from spamguard.ledger.schema import PROVISIONAL
from spamguard.ledger.votes import CLASS_KEY_RANGE, CLASS_VERSION, classes_in_force
from spamguard.records import Vote

_KEPT_MARKS = 1000  # the last ones, and every one at a multiple of it


class ForkError(LedgerError):
    """The shared log does not go on where this copy of it ends."""


class JoinedFile:
    """What a joined ledger holds of the shared log."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def head(self) -> Mark:
        """The last position that was applied."""
        rows = self._db.query(f"{schema.MARKS} LIMIT 1")
        return Mark(*rows[0]) if rows else START

    def marks(self) -> list[Mark]:
        """The positions whose chain is kept, the newest first."""
        return [Mark(*row) for row in self._db.query(schema.MARKS)]

    def holds_mark(self, mark: Mark) -> bool:
        """Whether the log up to this mark still is what it was then."""
        rows = self._db.query(schema.MARK_AT, (mark.position,))
        return mark == START or rows == [(mark.chain,)]

    def classes_upto(self, seq: int) -> dict[str, bool]:
        """The classes that events up to a number define, and whether each is unwanted."""
        rows = self._db.query(schema.EVENTS_OF_KEYS, (*CLASS_KEY_RANGE, seq))
        return classes_in_force(Vote(*columns) for _, *columns in rows)

    # ---- within a transaction

    def _update_classes(self, digests: Collection[bytes]) -> None:
        """Define the classes that votes of these digests are about as the winning votes say."""
        in_force = self.classes_upto(2**63 - 1) if digests else {}
        for digest in digests:
            name = digest.decode().removeprefix("class:")
            if name in in_force:
                self._db.execute(schema.DEFINE_CLASS, (name, in_force[name]))
            else:
                self._db.execute("DELETE FROM classes WHERE name = ?", (name,))

    def _find(self, vote: Vote) -> tuple[int, Vote] | None:
        """Number and vote of the event of this key and version."""
        values = (vote.digest, vote.user, *vote.version)
        row = self._db.execute(schema.EVENT_OF_VERSION, values).fetchone()
        return (row[0], Vote(*row[1:])) if row else None

    def _size(self) -> tuple[int, int]:
        """Number and bytes of the events that wait."""
        ((number, size),) = self._db.query(schema.PENDING_SIZE)
        return number, int(size)

    def _text(self, name: str) -> str:
        rows = self._db.query(schema.META_VALUE, (f"ledger.{name}",))
        return str(rows[0][0]) if rows else ""

    def _number(self, name: str) -> int:
        return int(self._text(name) or 0)

    def _set(self, name: str, value: str) -> None:
        self._db.execute(schema.SET_META, (f"ledger.{name}", value))

    def _error(self, problem: str) -> LedgerError:
        return LedgerError(f"ledger {self._db.path}: {problem}")


class Application(JoinedFile):
    """One transaction that writes rows of the log."""

    def __init__(self, database: Database, compacted: int) -> None:
        """compacted: as of `SharedLog.apply`."""
        super().__init__(database)
        self._compacted = compacted
        self._position, self._chain = self.head()
        self._clock = self._number("clock")
        self._is_changed = False  # events were inserted or dropped
        self._classes: set[bytes] = set()  # digests

    def apply(self, rows: Sequence[LogRow]) -> list[tuple[int, str]]:
        """Write rows; returns position and problem of each that was skipped. ForkError."""
        problems, start = list[tuple[int, str]](), self._position
        for row in rows:
            if self._is_next(row):
                self._position, self._chain = row.position, row.chain
                self._db.execute("INSERT INTO marks VALUES (?, ?)", (row.position, row.chain))
                if row.is_ours and (problem := self._write(row)):
                    problems.append((row.position, problem))
        if self._position == start:
            return problems
        last = self._position - _KEPT_MARKS
        self._db.execute(schema.PRUNE_MARKS, (start - _KEPT_MARKS, last, _KEPT_MARKS))
        self._set("position", str(self._position))
        self._set("clock", str(self._clock))
        self._update_classes(self._classes)
        self._update_released()
        return problems

    def _is_next(self, row: LogRow) -> bool:
        """Whether the row is to be written; not, if it is there already. ForkError."""
        if row.position <= self._position:
            for (chain,) in self._db.execute(schema.MARK_AT, (row.position,)):
                if chain != row.chain:
                    raise self._fork_error(f"has another row at position {row.position}")
            return False
        follows = row.position == self._position + 1
        is_past_gap = self._position < self._compacted and row.position <= self._compacted + 1
        if row.position >= PROVISIONAL or (
            row.chain != next_chain(self._chain, row.event) if follows else not is_past_gap
        ):
            raise self._fork_error(f"does not go on from position {self._position}")
        return True

    def _fork_error(self, problem: str) -> ForkError:
        return ForkError(f"ledger {self._db.path}: the shared log {problem}")

    def _write(self, row: LogRow) -> str:
        """Write the vote of a row; returns why it was skipped."""
        for (seq,) in self._db.execute(schema.PENDING_IDENTITY, row.event[:4]).fetchall():
            self._drop(seq)
        try:
            vote = decode_event(row.event)
        except LedgerError as error:
            return str(error)
        if vote.clock - self._clock > MAX_CLOCK_STEP:
            return f"its clock, {vote.clock}, is far above all others"
        self._clock = max(self._clock, vote.clock)
        if vote.extractor == CLASS_VERSION:
            self._classes.add(vote.digest)
        for candidate in _candidates(vote):
            standing = self._find(candidate)
            if standing is not None and standing[0] >= PROVISIONAL:
                if standing[1] == candidate:
                    self._drop(standing[0])
                else:
                    self._set_aside(*standing)
                standing = None
            if standing is None:
                self._db.execute(schema.INSERT_EVENT, (row.position, *candidate))
                self._is_changed = True
                return ""
            if standing[1] == candidate:  # it came in another shape before
                return ""
        return "its version is taken by other votes"

    def _drop(self, seq: int) -> None:
        """Remove a provisional event that the log has now."""
        self._db.execute("DELETE FROM pending WHERE seq = ?", (seq,))
        if self._db.execute("DELETE FROM events WHERE seq = ?", (seq,)).rowcount:
            self._is_changed = True

    def _set_aside(self, seq: int, vote: Vote) -> None:
        """Give a provisional event the node that it will have: another has taken its version."""
        values = (encode_event(vote).body, seq)
        self._db.execute("UPDATE pending SET body = coalesce(body, ?) WHERE seq = ?", values)
        twin = _twin(vote)
        if twin is None or self._find(twin):
            self._db.execute("DELETE FROM events WHERE seq = ?", (seq,))
        else:
            self._db.execute("UPDATE events SET node = ? WHERE seq = ?", (twin.node, seq))

    def _update_released(self) -> None:
        released = self._number("released")
        if released < PROVISIONAL or not self._is_changed:
            return
        self._set("generation", str(self._number("generation") + 1))
        if not self._db.execute(schema.EVENTS_BETWEEN, (PROVISIONAL - 1, released, 1)).fetchone():
            self._set("released", str(PROVISIONAL - 1))


def _twin(vote: Vote) -> Vote | None:
    """The vote with a node of its own; None: no log could hold it."""
    twin = with_unique_node(vote)
    try:
        encode_event(twin)
    except LedgerError:
        return None
    return twin


def _candidates(vote: Vote) -> Iterator[Vote]:
    """The vote as it is, and as it is called where another has its version."""
    yield vote
    if (twin := _twin(vote)) is not None:
        yield twin
