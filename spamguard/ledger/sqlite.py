"""The ledger in one SQLite file: every vote ever cast here, in the order of its commit.

A vote gets its version when it is appended; votes of other installations come with theirs
(`merge`), and the clock rises to the highest of all (Lamport, "Time, clocks, and the ordering of
events", CACM 1978). Readers fold the log by `changes_after`, or read `lessons` at once.

Any number of processes may read and write at the same time. Reads are short transactions of some
hundred events, so that the WAL can be written back; those of many transactions are consistent
because events up to a given number never change. Only in a ledger that shares its log (`shared`)
they get other numbers sometimes: then their readers are told to begin again.

Notes ("meta") are short texts under keys. Other rooms keep theirs here too: in the file of the
votes that a note speaks of, both are restored and lost together.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from spamguard.database import ClosedOnExit, Database
from spamguard.errors import LedgerError
from spamguard.ledger import schema
from spamguard.ledger.arriving import MAX_CLOCK_STEP, check_votes, with_unique_node
from spamguard.ledger.queries import UserQueries
from spamguard.ledger.schema import LEDGER_SCHEMA, PROVISIONAL
from spamguard.ledger.votes import (
    Change,
    Lesson,
    NewVote,
    add_version,
    make_class_vote,
    resolve_lessons,
    votes_in_force,
)
from spamguard.records import Vote
from spamguard.storage import as_directory_owner, batches

if TYPE_CHECKING:
    from spamguard.ledger.shared import LogState, SharedLog

_NUMBER_DIGITS = 20
_DROPPED_KEY = "ledger.dropped"  # meta: how many events `compact` has dropped
_LOST_KEY = "ledger.lost"  # meta: `LostEvents`, a list in JSON
_READ_BATCH = 128  # events, or digests, of one reading transaction: some 500 kB of receipts
_MERGE_BATCH = 256  # votes of one writing transaction


class LostEvents(NamedTuple):
    """events: how many. since, until: seconds since 1970 of the last event that is left (0: none
    is) and of the last one.
    """

    events: int
    since: int
    until: int


class EventsMovedError(LedgerError):
    """Events of a shared log have got other numbers while they were read."""


class LastNumber:
    """The number of the last event, in a file of its own. OSError: the file cannot be opened.

    SQLite recovers a damaged log up to its first bad frame and reports nothing. This is written
    after each commit, so it is never ahead of a ledger that has lost nothing.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with as_directory_owner(path.parent):
            opener = lambda name, _: os.open(name, flags, 0o600)  # noqa: E731
            self._file = open(path, "r+b", opener=opener)  # noqa: SIM115  until `close`

    def read(self) -> tuple[int, int]:
        """The number, 0 if none is known, and when it was written, in seconds since 1970."""
        text = os.pread(self._file.fileno(), _NUMBER_DIGITS, 0)
        return int(text) if text.isdigit() else 0, int(os.fstat(self._file.fileno()).st_mtime)

    def write(self, number: int) -> None:
        with suppress(OSError):  # what was committed is safe, and a full disk fails elsewhere
            os.pwrite(self._file.fileno(), b"%0*d" % (_NUMBER_DIGITS, number), 0)

    def close(self) -> None:
        self._file.close()


class SqliteLedger(ClosedOnExit):
    """An open ledger, for one thread of one process. Methods raise LedgerError."""

    def __init__(self, path: Path, database: Database, fingerprint: str) -> None:
        """Use `open`."""
        self.path = path
        self.fingerprint = fingerprint
        self._db = database
        self.users = UserQueries(database.query)
        self._clock = 0  # of `_casting`
        with database.errors():
            self.node = self.get_meta("ledger.node") or ""
            self._last_counters = (0, 0)
            self.has_grown()
            self._opened_file = self._current_file()
            self._last_number = LastNumber(path.with_name(path.name + schema.LAST_SUFFIX))
        self.shared = self._find_shared_log()

    @classmethod
    def open(cls, path: Path, fingerprint: str, *, durable: bool = True) -> Self:
        """Open the ledger at `path`; make it, with mode 0600, when there is none.

        fingerprint: of the installation's key. durable: whether a committed vote survives a power
        cut (SQLite: synchronous FULL). Without it a power cut may cost the last votes, never the
        file (NORMAL), and writing is three times as fast. LedgerError: the file is of another key,
        schema or program, or cannot be read and written.
        """
        with LEDGER_SCHEMA.errors(path), as_directory_owner(path.parent):
            # Looked for first: another process that makes the ledger makes the file before its log.
            names = [path.with_name(path.name + end) for end in schema.LOG_SUFFIXES]
            logs = list(filter(Path.exists, names))
            if logs and not path.exists():
                raise LEDGER_SCHEMA.make_error(
                    path,
                    f"it is gone, but its log {logs[0]} is not: put the ledger back, or move its "
                    "log away",
                )
            is_usable = path.is_file() and os.access(path, os.R_OK | os.W_OK)
            if os.path.lexists(path) and not (is_usable and os.access(path.parent, os.W_OK)):
                raise LEDGER_SCHEMA.make_error(
                    path,
                    "it must be a file that this user may read and write, in a directory that it "
                    "may write",
                )
            meta = {
                "ledger.fingerprint": fingerprint,
                "ledger.node": secrets.token_hex(8),
                "ledger.clock": "0",
                "ledger.compacted": "0",
            }
            database = Database.open(
                path,
                LEDGER_SCHEMA,
                lambda db: db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items()),
                durable=durable,
            )
            try:
                ((taught,),) = database.query(schema.FINGERPRINT)
                if taught != fingerprint:
                    raise LEDGER_SCHEMA.make_error(
                        path,
                        f"it was taught with key {taught}, this installation has {fingerprint}: "
                        "restore its key from the backup",
                    )
                return cls(path, database, fingerprint)
            except BaseException:
                database.close()
                raise

    def close(self) -> None:
        """Close the file; any later call is a LedgerError."""
        self._db.close()
        self._last_number.close()

    # ---- commits

    def has_grown(self) -> bool:
        """Whether anything was committed since the last call; takes microseconds.

        True once for each change: the caller then folds everything there is. A write that failed
        may count as a change.
        """
        before = self._last_counters
        with self._db.errors():  # commits by other connections, and writes by this one
            version = self._db.pragma("data_version")
        self._last_counters = version, self._db.connection.total_changes
        return self._last_counters != before

    def trusted_time(self, now: float) -> int:
        """The time by which votes grow old (`Database.trusted_time`), seconds since 1970."""
        with self._writing():
            return int(self._db.trusted_time(now))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction in which nobody else can write."""
        with self._db.transaction():
            # Else the votes would go where nobody ever reads them, and the caller would not know.
            if self._current_file() != self._opened_file:
                raise LEDGER_SCHEMA.make_error(
                    self.path,
                    "it was moved, removed or replaced while it was open: restart what uses it",
                )
            yield

    def _current_file(self) -> tuple[int, int] | None:
        """Device and inode of the file that has the ledger's name now."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    # ---- size

    def file_bytes(self) -> int:
        """Bytes of the file, with those still in its log."""
        return int(self._db.query(schema.FILE_BYTES)[0][0])

    # ---- notes

    def get_meta(self, key: str) -> str | None:
        """The text that `set_meta` keeps under this key."""
        rows = self._db.query(schema.META_VALUE, (key,))
        return str(rows[0][0]) if rows else None

    def set_meta(self, key: str, value: str) -> None:
        """Keep a short text under a key of the caller's."""
        if key.startswith("ledger."):
            problem = "meta keys that begin with 'ledger.' are its own: choose another"
            raise LEDGER_SCHEMA.make_error(self.path, problem)
        with self._writing():
            self._set_meta(key, value)

    def replace_meta(
        self,
        key: str,
        expected: str | None,
        value: str,
        is_valid: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Do as `set_meta` if the value still is the expected one; whether it was.

        is_valid: asked in the same transaction; False: nothing is changed either.
        """
        with self._writing():
            is_expected = self.get_meta(key) == expected and is_valid()
            if is_expected:
                self._set_meta(key, value)
        return is_expected

    def drop_meta(self, keys: Iterable[str]) -> None:
        """Remove the texts under these keys of the caller's."""
        with self._writing():
            self._db.execute(schema.DROP_META, (json.dumps(list(keys)),))

    def _set_meta(self, key: str, value: str) -> None:
        self._db.execute(schema.SET_META, (key, value))

    def _read_number(self, key: str) -> int:
        """A number that every ledger has."""
        with self._db.errors(ValueError):
            return int(self.get_meta(key) or "")

    # ---- joining

    def _find_shared_log(self) -> SharedLog | None:
        """The part that belongs to a log of many machines; None: the ledger is one machine's."""
        if not self._db.query(schema.HAS_JOINED)[0][0]:
            return None
        from spamguard.ledger.shared import SharedLog  # noqa: PLC0415  for joined ledgers only

        return SharedLog(self._db, self._writing)

    def join(self) -> None:
        """Make the ledger part of a shared log (`SharedLog.create`)."""
        from spamguard.ledger.shared import SharedLog  # noqa: PLC0415  for joined ledgers only

        now = int(time.time())
        self.append([make_class_vote(*each, now) for each in self.classes().items()])
        with self._db.errors():
            SharedLog.create(self._db)
        self.node, self.shared = self.get_meta("ledger.node") or "", self._find_shared_log()

    # ---- writing

    def append(
        self, votes: Sequence[NewVote], *, unless_voted_since: int | None = None
    ) -> list[bool]:
        """Cast votes in one transaction, all or none; of each, whether it changed anything.

        A vote changes nothing when the winning vote of its key has the same label and features of
        the same or a newer extractor, when it takes back what is not taught, or when its user has
        said anything of its message after `unless_voted_since` (`voting_moment`; 0: ever).
        """
        if not votes:
            return []
        with self._pushing(), self._casting():
            return self._append(votes, unless_voted_since=unless_voted_since)

    @contextmanager
    def exclusive(
        self, *, force: bool = False
    ) -> Iterator[Callable[[Sequence[NewVote]], list[bool]]]:
        """Yield a function that casts votes as `append` does, while nobody else can write.

        All votes that are cast inside take effect, or none. force: also those that change nothing.
        """
        with self._pushing(), self._casting():
            yield partial(self._append, force=force)

    def _append(
        self,
        votes: Sequence[NewVote],
        *,
        unless_voted_since: int | None = None,
        force: bool = False,
    ) -> list[bool]:
        changed: list[bool] = []
        digests = list({vote.digest: None for vote in votes})
        rows = self.users.query_digests(schema.VOTES_OF_DIGESTS, digests)
        in_force = votes_in_force(map(Vote._make, rows))
        for vote in votes:
            standing = in_force.get(vote.digest, {}).get(vote.user)
            label, extractor = (standing.label, standing.extractor) if standing else (None, 0)
            is_newer = label is not None and extractor < vote.extractor
            is_needed = force or label != vote.label or is_newer
            if is_needed and unless_voted_since is not None:
                for seq, clock in self._db.query(schema.LAST_WORD, (vote.digest, vote.user)):
                    moment = seq if self.shared is None else clock
                    is_needed = moment <= unless_voted_since
            changed.append(is_needed)
            if is_needed:
                self._clock += 1
                versioned = add_version(vote, self._clock, self.node)
                self._insert(versioned)
                in_force.setdefault(vote.digest, {})[vote.user] = versioned
        return changed

    def _insert(self, vote: Vote) -> bool:
        if self.shared is not None:
            return self.shared.cast(vote)
        return self._db.execute(schema.INSERT_VOTE, vote).rowcount > 0

    def merge(self, votes: Iterable[Vote]) -> int:
        """Take in votes that have versions, in any order, any number of times; how many were new.

        A vote that was compacted here counts as new again and changes no lesson. What fails half
        way is completed by merging again.
        """
        added = 0
        with self._pushing():
            for batch in batches(check_votes(votes), _MERGE_BATCH):
                with self._casting():
                    added += sum(map(self._merge_vote, batch))
                    clock = max(vote.clock for vote in batch)
                    if clock - self._clock > MAX_CLOCK_STEP:
                        raise LedgerError(
                            f"a vote to be merged has clock {clock}, far above all here: it was "
                            "made up, and would leave no number to later votes"
                        )
                    self._clock = max(clock, self._clock)
        return added

    def _merge_vote(self, vote: Vote) -> bool:
        """Whether the vote is new here, or says something new for its version."""
        if self._insert(vote):
            return True
        values = (vote.digest, vote.user, *vote.version)
        standing = Vote(*self._db.execute(schema.VOTE_OF_VERSION, values).fetchone())
        if standing == vote:
            return False
        return sum(self._insert(with_unique_node(twin)) for twin in (standing, vote)) > 0

    def compact(
        self, upto_seq: int, replaced_before: int | None = None, notes: Iterable[str] = ()
    ) -> int:
        """Drop events that no longer matter to readers that have folded at least `upto_seq`.

        An event goes when a higher version of its key stands at or before `upto_seq`. Winners stay,
        tombstones too, or a vote that arrives late from another machine would come back to life.
        Only tombstones of ageing go with all that they supersede: what comes back then ages again.
        What was superseded, or aged, after `replaced_before` stays, so that it can be undone.
        The caller's `notes` go too, as by `drop_meta`. Returns how many events went.
        """
        with self._writing():
            self._db.execute(schema.DROP_META, (json.dumps(list(notes)),))
            upto = min(upto_seq, self.last_position())
            is_joined = self.shared is not None
            values = {"upto": upto, "before": replaced_before, "joined": is_joined}
            dropped = self._db.execute(schema.DROP_AGED, values).rowcount
            dropped += self._db.execute(schema.DROP_SUPERSEDED, values).rowcount
            if dropped:
                compacted = max(upto, self._read_number("ledger.compacted"))
                self._set_meta("ledger.compacted", str(compacted))
                self._set_meta(_DROPPED_KEY, str(int(self.get_meta(_DROPPED_KEY) or 0) + dropped))
        return dropped

    # ---- reading

    def last_seq(self) -> int:
        """The number of the last event that readers may fold; 0 when there is none."""
        return int(self._db.query(schema.LAST_SEQ)[0][0])

    def last_position(self) -> int:
        """The number of the last event that has its number for good (but `SharedLog.cut`)."""
        return self.last_seq() if self.shared is None else self.shared.head().position

    def next_step(self, seq: int, size: int) -> int:
        """How far to read after an event, to read some `size` events up to `last_seq`."""
        return int(self._db.query(schema.NEXT_STEP, (seq, self.last_seq(), size))[0][0])

    def event_count(self) -> int:
        """The number of events so far."""
        waiting = 0 if self.shared is None else self.shared.waiting()[0]
        return self.last_position() + waiting

    def voting_moment(self) -> int:
        """A number for `append`: votes that are there now were cast before it.

        Where many machines vote that is the clock of versions, for numbers of events may change.
        """
        return self.last_seq() if self.shared is None else self._read_number("ledger.clock")

    def read_end(self) -> tuple[int, LogState | None]:
        """`last_seq`, and the state of the shared log at the same moment; None: there is none."""
        if self.shared is None:
            return self.last_seq(), None
        with self._db.transaction("BEGIN"):
            return self.last_seq(), self.shared.state()

    def valid_upto(self, seq: int, state: LogState | None) -> int:
        """How far a reader that has read up to an event, in an earlier state, need not read again.

        0: an older ledger was restored, or the shared log was mended.
        """
        if self.shared is None or state is None:
            return seq if seq <= self.last_seq() else 0
        now = self.shared.state()
        if now.generation != state.generation and not self.shared.holds_mark(state.head):
            return 0
        is_same = now == state or (seq < PROVISIONAL and now.generation == state.generation)
        return seq if is_same else min(seq, state.head.position)

    def compacted_seq(self) -> int:
        """The event up to which the ledger was last compacted; 0: never."""
        return self._read_number("ledger.compacted")

    def get_vote(self, digest: bytes, user: str) -> Vote | None:
        """The vote in force of this user on this message, or its tombstone."""
        return next(iter(self.users.all_votes(user, digest)), None)

    def has_digest_between(self, first: bytes, end: bytes) -> bool:
        """Whether there is an event with a digest from the first of these on, before the second."""
        return bool(self._db.query(schema.DIGEST_BETWEEN, (first, end)))

    def has_event_between(self, digest: bytes, after: int, before: int) -> bool:
        """Whether there is an event on this message between two numbers, both excluded."""
        return bool(self._db.query(schema.EVENT_BETWEEN, (digest, after, before)))

    def all_votes(self) -> Iterator[Vote]:
        """Every vote that was there at the start, in the order of the log."""
        seq, (end, state) = 0, self.read_end()
        while True:
            with self._db.transaction("BEGIN"):
                state = self._check_state(state, seq)
                rows = self._db.execute(schema.EVENTS_BETWEEN, (seq, end, _READ_BATCH)).fetchall()
            if not rows:
                return
            seq = rows[-1][0]
            yield from (Vote(*row[1:]) for row in rows)

    def changes_after(
        self, seq: int, *, extractor: int | None = None, state: LogState | None = None
    ) -> Iterator[Change]:
        """What each event after `seq` changes, up to the last event at the start.

        In a joined ledger others may come before that one meanwhile.

        extractor: as in `votes.resolve_lessons`. state: of `read_end`, in which the reader has
        folded the events up to `seq`; None: that of now. LedgerError: `seq` is beyond the end, as
        after an older ledger was restored, or events after it were compacted, or have other numbers
        now. Then the reader must throw away what it has folded and begin at 0.
        """
        before, (end, state) = state, self.read_end()
        if before is not None:
            self._check_state(before, seq)
        if seq > end:
            raise self._rebuild_error(f"it ends at event {end}, the tables hold {seq}")
        first, dropped = seq, self.get_meta(_DROPPED_KEY)
        while seq < end:
            with self._db.transaction("BEGIN"):
                state = self._check_state(state, seq)
                # A reader that began at 0 meets no event that was dropped before.
                if first or dropped != self.get_meta(_DROPPED_KEY):
                    self._check_compacted(seq)
                rows = self._db.execute(schema.EVENTS_BETWEEN, (seq, end, _READ_BATCH)).fetchall()
                events = [(row[0], Vote(*row[1:])) for row in rows]
                changes = self.users.read_changes(seq, events, extractor)
            if not changes:  # the last event has been compacted meanwhile
                return
            seq = changes[-1][0]
            yield from changes

    def lessons(
        self, extractor: int | None = None, upto_seq: int | None = None, *, backwards: bool = False
    ) -> Iterator[Lesson]:
        """Every lesson that the events up to `upto_seq` teach, in order of digest or backwards.

        extractor: as in `votes.resolve_lessons`. upto_seq: default: all events at the start.
        LedgerError: events after `upto_seq` were compacted, or got other numbers.
        """
        end, state = self.read_end()
        upto = end if upto_seq is None else upto_seq
        bounds = [b""]
        while last := self._db.query(schema.NEXT_BATCH_END, (bounds[-1], _READ_BATCH))[0][0]:
            bounds.append(last)
        step = -1 if backwards else 1
        for after, last in list(pairwise(bounds))[::step]:
            with self._db.transaction("BEGIN"):
                self._check_compacted(upto)
                self._check_state(state, upto)
                rows = self._db.execute(schema.VOTES_OF_RANGE, (after, last, upto))
                lessons = list(resolve_lessons(map(Vote._make, rows), extractor))
            yield from lessons[::step]
        self._check_compacted(upto)

    def lesson_counts(
        self, extractor: int | None = None, upto_seq: int | None = None
    ) -> dict[str, int]:
        """The number of `lessons` by class, without classes that have none."""
        upto = self.last_seq() if upto_seq is None else upto_seq
        values = {"upto": upto, "extractor": extractor}
        with self._db.transaction("BEGIN"):
            self._check_compacted(upto)
            counts: Counter[str] = Counter(
                dict(self._db.execute(schema.LABELS_OF_SINGLE_EVENTS, values))
            )
            rows = self._db.execute(schema.VOTES_OF_SEVERAL_EVENTS, values)
            lessons = resolve_lessons(map(Vote._make, rows), extractor)
            counts.update(lesson.label for lesson in lessons)
        return dict(counts)

    # ---- classes

    def classes(self) -> dict[str, bool]:
        """Each class by name, and whether it is unwanted."""
        if self.shared is not None:
            return self.shared.classes_upto()
        rows = self._db.query("SELECT name, unwanted FROM classes ORDER BY name")
        return {name: bool(unwanted) for name, unwanted in rows}

    def define_class(self, name: str, unwanted: bool) -> None:
        """Make a class, or change whether it is unwanted."""
        if self.shared is not None:
            self.append([make_class_vote(name, unwanted, int(time.time()))])
            return
        with self._writing():
            self._db.execute(schema.DEFINE_CLASS, (name, unwanted))

    # ---- events that were lost

    def find_lost(self) -> LostEvents | None:
        """The events that this file has lost since `forget_lost`; None: none is known.

        Of a joined ledger the shared log has them.
        """
        if self.shared is not None:
            return None
        with self._db.errors():
            number, until = self._last_number.read()  # first, since others may commit
        noted = self.get_meta(_LOST_KEY)
        lost = LostEvents(*json.loads(noted)) if noted else None
        if (missing := number - self.last_seq()) > 0:
            events, since = lost[:2] if lost else (0, self._db.query(schema.LAST_TIME)[0][0])
            lost = LostEvents(events + missing, since, until)
        return lost

    def forget_lost(self) -> None:
        """Somebody knows of them."""
        with self._casting():
            self._db.execute("DELETE FROM meta WHERE key = ?", (_LOST_KEY,))

    # ---- help

    @contextmanager
    def _casting(self) -> Iterator[None]:
        """A transaction that casts votes: `_clock` is the last version."""
        with self._writing():
            self._clock = clock = self._read_number("ledger.clock")
            if self.shared is None and self._last_number.read()[0] > self.last_seq():
                # their numbers are given again now
                self._set_meta(_LOST_KEY, json.dumps(self.find_lost()))
            yield
            if self._clock > clock:
                self._set_meta("ledger.clock", str(self._clock))
            last = 0 if self.shared is not None else self.last_seq()
        self._last_number.write(last)

    @contextmanager
    def _pushing(self) -> Iterator[None]:
        """Have the votes pushed to other machines that are cast inside."""
        try:
            yield
        finally:
            if self.shared is not None:
                self.shared.await_positions()

    def _check_state(self, state: LogState | None, seq: int) -> LogState | None:
        """The state of the shared log now. LedgerError: events up to this one, which a reader has
        read in an earlier state, have other numbers now.
        """
        if self.shared is None:
            return None
        if self.valid_upto(seq, state) < seq:
            raise EventsMovedError(
                f"ledger {self.path}: lessons of other machines came in before those read so far: "
                "try again"
            )
        return self.shared.state()

    def _check_compacted(self, seq: int) -> None:
        compacted = self.compacted_seq()
        if 0 < seq < compacted:
            raise self._rebuild_error(
                f"events up to {compacted} were compacted, the tables hold {seq}"
            )

    def _rebuild_error(self, problem: str) -> LedgerError:
        return LedgerError(f"ledger {self.path}: {problem}: run `spamguard rebuild`")
