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

Queries by message and user see every event at once. Readers that fold the log see provisional
events up to `ledger.released` only: an event that gets its position within `MAX_WAIT_SECONDS` is
folded once, at its position. What takes longer is released, and is in force here before others have
it. When rows are inserted below released events, `generation` rises, and readers fold anew.

The positioned events are a function of the log alone, whatever was cast here and when. Two votes of
one key and version, as copies of a state directory cast them, both stand: the earlier position
keeps the version, the later vote gets a node of its own (`arriving.with_unique_node`).

Must never drop an event that is not in the log, and never change anything outside a transaction.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

from spamguard import process
from spamguard.database import Database
from spamguard.errors import LedgerError
from spamguard.ledger import schema
from spamguard.ledger.applying import Application, JoinedFile
from spamguard.ledger.events import (
    LogRow,
    Server,
    SharedEvent,
    decode_event,
    encode_event,
)
from spamguard.ledger.schema import PROVISIONAL
from spamguard.ledger.votes import (
    CLASS_VERSION,
    SETTLING_DIGEST,
    add_version,
    make_class_vote,
)
from spamguard.records import Vote

if TYPE_CHECKING:
    from spamguard.ledger.sqlite import SqliteLedger

MAX_PENDING_EVENTS = 200_000
MAX_PENDING_BYTES = 2 << 30
MAX_WAIT_SECONDS = 0.3  # for a position, before an event is released
NUDGE_SOCKET = "courier.nudge"
"""In the state directory: a datagram there tells the courier that something waits."""
_POLL_SECONDS = 0.002
_MIN_GROWTH = 10  # events between two settlings
_BATCH_EVENTS = 512


# ---- the log


class LogCounts(NamedTuple):
    """The state of a node's copy.

    waiting, waiting_bytes: events without a position. oldest: time of the first of them. released:
    whether some of them are in force here. away: since when the log cannot be reached; 0: it can.
    joining: until the whole log is here, and settled.
    """

    position: int
    waiting: int
    waiting_bytes: int
    oldest: int
    released: bool
    generation: int
    away: int
    joining: bool


# Notes of other rooms that hold numbers of events: joining gives every event another number.
_NUMBERED_NOTES = ("tables.", "renewed.")


class SharedLog(JoinedFile):
    """The part of a joined ledger that belongs to the shared log: `SqliteLedger.shared`.

    Methods for the courier open their transactions. LedgerError: as of `SqliteLedger`.
    """

    def __init__(
        self, database: Database, writing: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Use `SqliteLedger.open`. writing: opens a transaction in which nobody else can write."""
        super().__init__(database)
        self._writing = writing
        self._cast_seqs = (0, 0)  # the first and last that were cast and not awaited
        self._is_away = False

    @staticmethod
    def create(database: Database) -> None:
        """Make a ledger part of a shared log. It must be opened anew afterwards.

        All that it holds becomes provisional and waits to be pushed. The node gets another name,
        because a copy of this file may join as well.
        """
        with database.transaction():
            if database.execute(schema.HAS_JOINED).fetchone()[0]:
                raise LedgerError(f"ledger {database.path}: it has joined a shared log already")
            for statement in schema.JOINED_TABLES:
                database.execute(statement)
            log = SharedLog(database, database.transaction)
            database.execute("UPDATE events SET seq = seq + ?", (PROVISIONAL - 1,))
            log._insert_pending(PROVISIONAL - 1, 2**63 - 1)
            for note in _NUMBERED_NOTES:
                database.execute("DELETE FROM meta WHERE substr(key, 1, ?) = ?", (len(note), note))
            node = secrets.token_hex(8)
            values = {"node": node, "compacted": "0", "position": "0", "generation": "1"}
            for name, value in {**values, "away": "", "joining": "yes"}.items():
                log._set(name, value)
            log._cast_classes(node)
            log._set("released", str(max(log._last_provisional(), PROVISIONAL - 1)))

    def _cast_classes(self, node: str) -> None:
        """Cast votes for the classes that are defined otherwise, or by no vote."""
        rows = self._db.execute("SELECT name, unwanted FROM classes ORDER BY name").fetchall()
        voted, clock, now = self.classes_upto(2**63 - 1), self._number("clock"), int(time.time())
        for name, unwanted in rows:
            if voted.get(name) != bool(unwanted):
                clock += 1
                self.cast(add_version(make_class_vote(name, bool(unwanted), now), clock, node))
        self._set("clock", str(clock))

    def leave(self, *, force: bool = False) -> None:
        """Make the ledger one of a single machine. LedgerError: events wait to be pushed.

        force: the waiting events stay here, and are not pushed.
        """
        with self._writing():
            waiting, _ = self._size()
            if waiting and not force:
                raise self._error(f"{waiting:,} events have not reached the shared log yet")
            offset = PROVISIONAL - 1 - self._number("position")
            self._db.execute("UPDATE events SET seq = seq - ? WHERE seq > ?", (offset, offset))
            for statement in schema.LEAVE:
                self._db.execute(statement)

    # ---- casting, within a transaction of the ledger

    def begin_casting(self) -> None:
        """Prepare a transaction that casts. LedgerError: too much waits already."""
        self._is_away = self._text("away") != ""
        waiting, size = self._size()
        if waiting >= MAX_PENDING_EVENTS or size >= MAX_PENDING_BYTES:
            raise self._error(
                f"{waiting:,} events wait for the shared log, no more can be kept: look at "
                "`spamguard shared status`"
            )

    def cast(self, vote: Vote) -> bool:
        """Add a vote; whether its key and version are new here. LedgerError: others refuse it."""
        event = encode_event(vote)
        decode_event(event)
        if self._find(vote):
            return False
        seq = self._db.execute(schema.INSERT_PENDING, _pending_columns(event)).lastrowid or 0
        self._db.execute(schema.INSERT_EVENT, (seq, *vote))
        self._cast_seqs = (self._cast_seqs[0] or seq, seq)
        if vote.extractor == CLASS_VERSION:
            self._update_classes([vote.digest])
        if self._is_away:
            self._set("released", str(seq))
        return True

    def await_positions(self) -> None:
        """Have what was cast pushed, and release it if it has no position soon.

        Call it after the commit.
        """
        seqs, self._cast_seqs = self._cast_seqs, (0, 0)
        if seqs == (0, 0) or self._is_away:
            return
        deadline = time.monotonic() + (MAX_WAIT_SECONDS if self._nudge() else 0.0)
        while self._db.query(schema.WAITING_BETWEEN, seqs):
            if time.monotonic() >= deadline:
                with self._writing():
                    if self._db.execute(schema.WAITING_BETWEEN, seqs).fetchone():
                        self._release(seqs[1])
                return
            time.sleep(_POLL_SECONDS)

    def _nudge(self) -> bool:
        """Whether a courier has been told; without one it is no use to wait."""
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        try:
            with (
                process.short_path(self._db.path.parent) as directory,
                socket.socket(socket.AF_UNIX, kind) as channel,
            ):
                channel.sendto(b"", str(directory / NUDGE_SOCKET))
        except BlockingIOError:  # many have nudged it
            return True
        except OSError:
            return False
        return True

    def _release(self, seq: int) -> None:
        """Let readers fold the provisional events up to this one."""
        if seq > self._number("released"):
            self._set("released", str(seq))

    # ---- for the courier

    def read_pending(self, max_events: int, max_bytes: int) -> list[SharedEvent]:
        """The oldest events that wait, at least one if there is any."""
        events, size = list[SharedEvent](), 0
        for seq, *identity, kept in self._db.query(schema.OLDEST_PENDING, (max_events,)):
            body = kept
            if body is None:
                found = self._db.query(schema.EVENT_AT, (seq,))
                if not found:  # it has got its position since
                    continue
                body = encode_event(Vote(*found[0])).body
            size += len(body)
            if events and size > max_bytes:
                break
            events.append(SharedEvent._make((*identity, body)))
        return events

    def waiting(self) -> tuple[int, int]:
        """How many events wait, and the time of the oldest; 0: none does."""
        rows = self._db.query("SELECT time FROM pending ORDER BY seq LIMIT 1")
        return self._size()[0], int(rows[0][0]) if rows else 0

    def counts(self) -> LogCounts:
        """The state of this copy, for people."""
        with self._db.transaction("BEGIN"):
            _, oldest = self.waiting()
            released, generation = self._number("released"), self._number("generation")
            away, joining = int(self._text("away") or 0), self._text("joining") != ""
            sizes = (self._number("position"), *self._size(), oldest)
        return LogCounts(*sizes, released >= PROVISIONAL, generation, away, joining)

    def set_away(self, since: int | None) -> None:
        """Note since when the log cannot be reached; None: it can. All that waits is released."""
        value = "" if since is None else str(since)
        if self._text("away") == value:
            return
        with self._writing():
            self._set("away", value)
            if value:
                self._release(self._last_provisional())

    def server(self) -> Server | None:
        """The server of the highest timeline that this node has seen."""
        system, _, timeline = self._text("server").partition(" ")
        return Server(int(system), int(timeline)) if timeline else None

    def note_server(self, server: Server) -> None:
        """From now on, only this one, and its successors, hold the log."""
        if self.server() != server:
            with self._writing():
                self._set("server", f"{server.system} {server.timeline}")

    def end_joining(self) -> None:
        """Note that the whole log is here, and settled."""
        if self._text("joining"):
            with self._writing():
                self._set("joining", "")

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

        compacted: up to this position the log may have gaps. ForkError: the rows do not go on where
        this copy ends; nothing was written.
        """
        if not rows:
            return []
        with self._writing():
            return Application(self._db, compacted).apply(rows)

    def cut(self, position: int) -> None:
        """Make all events behind a position provisional again: the log has gone on otherwise there.

        They come before the events that wait already, and all are released.
        """
        with self._writing():
            head = self.head()
            if position and not self._db.execute(schema.MARK_AT, (position,)).fetchone():
                raise self._error(f"no chain is kept of position {position}: cut at a mark")
            if position >= head.position:
                return
            # The cut events take the next numbers, and those that wait come behind them.
            ((last,),) = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'pending'")
            ((first,),) = self._db.execute("SELECT coalesce(min(seq), 0) FROM pending")
            behind = last + head.position - position + 1 - first
            self._db.execute(schema.MOVE_EVENTS, (behind, PROVISIONAL, 2**63 - 1))
            self._db.execute(schema.MOVE_PENDING, (behind,))
            self._db.execute(schema.MOVE_EVENTS, (last - position, position + 1, PROVISIONAL - 1))
            self._insert_pending(last, last + head.position - position)
            self._db.execute(schema.RESERVE_NUMBERS, (last + head.position - position,))
            self._db.execute("DELETE FROM marks WHERE position > ?", (position,))
            self._set("position", str(position))
            self._set("compacted", str(min(position, self._number("compacted"))))
            self._set("released", str(max(self._last_provisional(), PROVISIONAL - 1)))
            self._set("generation", str(self._number("generation") + 1))

    # ---- for the ledger

    @property
    def generation(self) -> int:
        """Rises when events before the last one that readers have folded were inserted or cut."""
        return int(self._text("generation"))

    # ---- within a transaction

    def _insert_pending(self, after: int, upto: int) -> None:
        """Have the events after one number up to another pushed."""
        while rows := self._db.execute(
            schema.EVENTS_BETWEEN, (after, upto, _BATCH_EVENTS)
        ).fetchall():
            for seq, *columns in rows:
                event = encode_event(Vote(*columns))
                self._db.execute(schema.INSERT_PENDING_AT, (seq, *_pending_columns(event)))
            after = rows[-1][0]

    def _last_provisional(self) -> int:
        ((seq,),) = self._db.execute("SELECT coalesce(max(seq), 0) FROM events")
        return int(seq) if seq >= PROVISIONAL else 0


def _pending_columns(event: SharedEvent) -> tuple[object, ...]:
    return (*event[:5], len(event.body))


def joined_log(ledger: SqliteLedger) -> SharedLog:
    """The ledger's copy of the shared log. LedgerError: it has none."""
    if ledger.shared is None:
        raise LedgerError(f"ledger {ledger.path}: it has not joined: run `spamguard shared join`")
    return ledger.shared
