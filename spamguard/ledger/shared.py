"""A node's copy of the log that many machines share, and its events that have no position there.

The shared log gives every event a position: 1, 2, 3 …, the same for all. In a joined ledger
`events.seq` is that position. An event that has none yet is *provisional*: its number is
PROVISIONAL or above, and a row of `pending` says that the courier has to push it. `apply` writes
rows of the log in their order; an own event among them leaves `pending` and takes its position. So
a row leaves `pending` only when it was read from the log: lost answers and repeated pushes do no
harm.

Where the chains of log and copy differ, the log was restored, or another server took over without
the last rows. Then `cut` makes what stands behind the last common position provisional again, and
it is pushed once more.

Queries by message and user see every event at once. Readers that fold the log see what has its
position; who casts waits a moment for that (`await_positions`). While the log is away (`set_away`),
they also see all that is provisional. When the log is there again, or has moved on, they throw that
away and fold anew (`SqliteLedger.valid_upto`).

The positioned events are a function of the log alone, whatever was cast here and when. Two votes of
one key and version, as copies of a state directory cast them, both stand: the earlier position
keeps the version, the later vote gets a node of its own (`arriving.with_unique_node`).

Must never drop an event that is not in the log, and never change anything outside a transaction.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

from spamguard import process
from spamguard.database import Database
from spamguard.errors import LedgerError
from spamguard.ledger import schema
from spamguard.ledger.arriving import MAX_CLOCK_STEP, with_unique_node
from spamguard.ledger.events import (
    START,
    LogRow,
    Mark,
    Server,
    SharedEvent,
    decode_event,
    encode_event,
    next_chain,
)
from spamguard.ledger.schema import LAST, LEDGER_SCHEMA, PROVISIONAL
from spamguard.ledger.votes import (
    CLASS_KEY_RANGE,
    SETTLING_DIGEST,
    classes_in_force,
)
from spamguard.records import Vote

if TYPE_CHECKING:
    from spamguard.ledger.sqlite import SqliteLedger

MAX_WAIT_SECONDS = 1.0  # for a turn of the courier
COURIER_SOCKET = "courier.sock"
"""In the state directory: where the courier hears requests, a line of JSON each."""
_MIN_GROWTH = 10  # events between two settlings
_KEPT_MARKS = 1000  # the last ones, and every one at a multiple of it


# ---- the log


class LogCounts(NamedTuple):
    """The state of a node's copy.

    waiting: events without a position. oldest: time of the first of them. joining: until the whole
    log is here, and settled.
    """

    position: int
    waiting: int
    oldest: int
    joining: bool


class LogState(NamedTuple):
    """generation: how often events have got other positions. head: the end of this copy. away:
    since when the log cannot be reached, and what waits is in force here; "": it can be reached.
    """

    generation: int
    head: Mark
    away: str


class ForkError(LedgerError):
    """The shared log does not go on where this copy of it ends."""


class SharedLog:
    """The part of a joined ledger that belongs to the shared log: `SqliteLedger.shared`.

    Methods for the courier open their transactions. LedgerError: as of `SqliteLedger`.
    """

    def __init__(
        self, database: Database, writing: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Use `SqliteLedger.open`. writing: opens a transaction in which nobody else can write."""
        self._db = database
        self._writing = writing
        self._has_cast = False  # what is not awaited yet

    @staticmethod
    def create(database: Database) -> None:
        """Make a ledger, which is part of none, part of a shared log.

        All that it holds becomes provisional and waits to be pushed. The node gets another name,
        because a copy of this file may join as well.
        """
        with database.transaction():
            for statement in schema.JOINED_TABLES:
                database.execute(statement)
            log = SharedLog(database, database.transaction)
            database.execute("UPDATE events SET seq = seq + ?", (PROVISIONAL - 1,))
            log._insert_pending(PROVISIONAL - 1, LAST)
            database.execute(schema.DROP_NUMBERED_NOTES)
            values = {
                "node": secrets.token_hex(8),
                "compacted": "0",
                "position": "0",
                "generation": "1",
            }
            values |= {"away": str(int(time.time())), "joining": "yes"}
            for name, value in values.items():
                log._set(name, value)

    def leave(self, *, force: bool = False) -> None:
        """Make the ledger one of a single machine. LedgerError: events wait to be pushed.

        force: the waiting events stay here, and are not pushed.
        """
        with self._writing():
            waiting, _ = self.waiting()
            if waiting and not force:
                problem = f"{waiting:,} events have not reached the shared log yet"
                raise LEDGER_SCHEMA.make_error(self._db.path, problem)
            self._db.execute("DELETE FROM classes")
            self._db.executemany(schema.DEFINE_CLASS, self.classes_upto().items())
            offset = PROVISIONAL - 1 - self._number("position")
            self._db.execute("UPDATE events SET seq = seq - ? WHERE seq > ?", (offset, offset))
            for statement in schema.LEAVE:
                self._db.execute(statement)

    # ---- what is here

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

    def classes_upto(self, seq: int = LAST) -> dict[str, bool]:
        """The classes that events up to a number define, and whether each is unwanted."""
        rows = self._db.query(schema.EVENTS_OF_KEYS, (*CLASS_KEY_RANGE, seq))
        return classes_in_force(Vote(*columns) for _, *columns in rows)

    # ---- casting, within a transaction of the ledger

    def cast(self, vote: Vote) -> bool:
        """Add a vote; whether its key and version are new here. LedgerError: others refuse it."""
        event = encode_event(vote)
        decode_event(event)
        if self._find(vote):
            return False
        seq = self._db.execute(schema.INSERT_PENDING, _pending_columns(event)).lastrowid or 0
        self._db.execute(schema.INSERT_EVENT, (seq, *vote))
        self._has_cast = True
        return True

    def await_positions(self) -> None:
        """Have what was cast pushed, and wait until it is back from the log, if that is soon.

        Call it after the commit. Where no courier runs, the log is away.
        """
        has_cast, self._has_cast = self._has_cast, False
        if not has_cast or self._text("away"):
            return
        try:
            path = self._db.path.with_name(COURIER_SOCKET)
            process.ask(path, b'{"do":"turn"}', MAX_WAIT_SECONDS)
        except (TimeoutError, BlockingIOError):  # it is busy
            pass
        except OSError:
            self.set_away(int(time.time()))

    # ---- for the courier

    def read_pending(self, max_events: int, max_bytes: int) -> list[SharedEvent]:
        """The oldest events that wait, at least one if there is any."""
        events, size = list[SharedEvent](), 0
        for row in self._db.query(schema.OLDEST_PENDING, (max_events,)):
            body = row[5] or encode_event(Vote(*row[7:])).body
            size += len(body)
            if events and size > max_bytes:
                break
            events.append(SharedEvent._make((*row[:5], body)))
        return events

    def waiting(self) -> tuple[int, int]:
        """How many events wait, and the time of the oldest; 0: none does."""
        ((number, oldest),) = self._db.query(schema.WAITING)
        return number, oldest or 0

    def counts(self) -> LogCounts:
        """The state of this copy, for people."""
        return LogCounts(self.head().position, *self.waiting(), self._text("joining") != "")

    def set_away(self, since: int | None) -> None:
        """Note since when the log cannot be reached, and all that waits is in force; None: it can
        be reached.
        """
        self._note("away", "" if since is None else self._text("away") or str(since))

    def server(self) -> Server | None:
        """The server of the highest timeline that this node has seen."""
        system, _, timeline = self._text("server").partition(" ")
        return Server(int(system), int(timeline)) if timeline else None

    def note_server(self, server: Server) -> None:
        """From now on, only this one, and its successors, hold the log."""
        self._note("server", f"{server.system} {server.timeline}")

    def end_joining(self) -> None:
        """Note that the whole log is here, and settled."""
        self._note("joining", "")

    def settling_position(self) -> int:
        """Up to which position tables are to be settled: a function of the log alone.

        The first one at which the log has grown by a tenth since the last such, or that of a later
        request (`make_settling_vote`).
        """
        ((due,),) = self._db.query(schema.LAST_POSITION_OF_DIGEST, (SETTLING_DIGEST,))
        position, last = self.head().position, 0
        while (following := last + max(_MIN_GROWTH, last // 10)) <= position:
            last = following
        return max(last, int(due))

    def apply(self, rows: Sequence[LogRow], compacted: int = 0) -> list[tuple[int, str]]:
        """Write the next rows of the log; returns position and problem of each that was skipped.

        What this leaves of positioned events is a function of the rows alone. An own event that
        comes back leaves `pending`. compacted: up to this position the log may have gaps.
        ForkError: the rows do not go on where this copy ends; nothing was written.
        """
        problems = list[tuple[int, str]]()
        with self._writing():
            start = mark = self.head()
            clock = self._number("clock")
            for row in rows:
                if not self._is_next(row, mark, compacted):
                    continue
                mark = Mark(row.position, row.chain)
                self._db.execute("INSERT INTO marks VALUES (?, ?)", mark)
                if not row.is_ours:
                    continue
                for (seq,) in self._db.execute(schema.PENDING_IDENTITY, row.event[:4]).fetchall():
                    self._drop(seq)
                try:
                    vote = decode_event(row.event)
                    if vote.clock - clock > MAX_CLOCK_STEP:
                        raise LedgerError(f"its clock, {vote.clock}, is far above all others")
                    clock = max(clock, vote.clock)
                    self._place(row.position, vote)
                except LedgerError as error:
                    problems.append((row.position, str(error)))
            if mark != start:
                last = mark.position - _KEPT_MARKS
                values = (start.position - _KEPT_MARKS, last, _KEPT_MARKS)
                self._db.execute(schema.PRUNE_MARKS, values)
                self._set("position", str(mark.position))
                self._set("clock", str(clock))
        return problems

    def cut(self, position: int) -> None:
        """Make all events behind a position provisional again: the log has gone on otherwise there.

        They come before the events that wait already. position: 0, or of a mark.
        """
        with self._writing():
            head = self.head()
            if position >= head.position:
                return
            # The cut events take the next numbers, and those that wait come behind them.
            ((last,),) = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'pending'")
            ((first,),) = self._db.execute("SELECT coalesce(min(seq), 0) FROM pending")
            behind = last + head.position - position + 1 - first
            self._db.execute(schema.MOVE_EVENTS, (behind, PROVISIONAL, LAST))
            self._db.execute(schema.MOVE_PENDING, (behind,))
            self._db.execute(schema.MOVE_EVENTS, (last - position, position + 1, PROVISIONAL - 1))
            self._insert_pending(last, last + head.position - position)
            self._db.execute(schema.RESERVE_NUMBERS, (last + head.position - position,))
            self._db.execute("DELETE FROM marks WHERE position > ?", (position,))
            self._set("position", str(position))
            self._set("compacted", str(min(position, self._number("compacted"))))
            self._set("generation", str(self._number("generation") + 1))

    # ---- for the ledger

    def state(self) -> LogState:
        """By which readers find that what they have read has moved."""
        ((generation, away, position, chain),) = self._db.query(schema.LOG_STATE)
        return LogState(generation, Mark(position, chain), away)

    # ---- within a transaction

    def _insert_pending(self, after: int, upto: int) -> None:
        for seq, *columns in self._db.execute(schema.EVENTS_BETWEEN, (after, upto, -1)):
            event = encode_event(Vote(*columns))
            self._db.execute(schema.INSERT_PENDING_AT, (seq, *_pending_columns(event)))

    def _is_next(self, row: LogRow, mark: Mark, compacted: int) -> bool:
        """Whether the row is to be written; not, if it is there already. ForkError."""
        if row.position <= mark.position:
            known = self._db.execute(schema.MARK_AT, (row.position,)).fetchall()
            if known in ([], [(row.chain,)]):
                return False
            problem = f"has another row at position {row.position}"
        else:
            is_right = mark.position < compacted and row.position <= compacted + 1
            if row.position == mark.position + 1:
                is_right = row.chain == next_chain(mark.chain, row.event)
            if is_right and row.position < PROVISIONAL:
                return True
            problem = f"does not go on from position {mark.position}"
        raise ForkError(f"ledger {self._db.path}: the shared log {problem}")

    def _place(self, position: int, vote: Vote) -> None:
        """Give a vote its position, under a node of its own where another has its version."""
        for candidate in _candidates(vote):
            standing = self._find(candidate)
            if standing is not None and standing[0] >= PROVISIONAL:
                if standing[1] == candidate:
                    self._drop(standing[0])
                else:
                    self._set_aside(*standing)
                standing = None
            if standing is None:
                self._db.execute(schema.INSERT_EVENT, (position, *candidate))
                return
            if standing[1] == candidate:  # it came in another shape before
                return
        raise LedgerError("its version is taken by other votes")

    def _drop(self, seq: int) -> None:
        self._db.execute("DELETE FROM pending WHERE seq = ?", (seq,))
        self._db.execute("DELETE FROM events WHERE seq = ?", (seq,))

    def _set_aside(self, seq: int, vote: Vote) -> None:
        """Give a provisional event the node that it will have: another has taken its version."""
        values = (encode_event(vote).body, seq)
        self._db.execute("UPDATE pending SET body = coalesce(body, ?) WHERE seq = ?", values)
        twin = _twin(vote)
        if twin is None or self._find(twin):
            self._db.execute("DELETE FROM events WHERE seq = ?", (seq,))
        else:
            self._db.execute("UPDATE events SET node = ? WHERE seq = ?", (twin.node, seq))

    def _find(self, vote: Vote) -> tuple[int, Vote] | None:
        values = (vote.digest, vote.user, *vote.version)
        row = self._db.execute(schema.EVENT_OF_VERSION, values).fetchone()
        return (row[0], Vote(*row[1:])) if row else None

    def _text(self, name: str) -> str:
        rows = self._db.query(schema.META_VALUE, (f"ledger.{name}",))
        return str(rows[0][0]) if rows else ""

    def _number(self, name: str) -> int:
        return int(self._text(name) or 0)

    def _note(self, name: str, value: str) -> None:
        if self._text(name) != value:
            with self._writing():
                self._set(name, value)

    def _set(self, name: str, value: str) -> None:
        self._db.execute(schema.SET_META, (f"ledger.{name}", value))


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


def _pending_columns(event: SharedEvent) -> tuple[object, ...]:
    return (*event[:5], len(event.body))


def joined_log(ledger: SqliteLedger) -> SharedLog:
    """The ledger's copy of the shared log. LedgerError: it has none."""
    if ledger.shared is None:
        raise LedgerError(f"ledger {ledger.path}: it has not joined: run `spamguard shared join`")
    return ledger.shared
