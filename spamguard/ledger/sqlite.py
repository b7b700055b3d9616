"""The ledger in one SQLite file: every vote ever cast here, in the order in which it was committed.

Must never change or reorder an event (`compact` drops those that can no longer matter), never let a half batch be seen,
and never let an error of SQLite or the system out as anything but a `LedgerError`.

Any number of processes may read and write at once (WAL, busy timeout). One object belongs to one thread of one
process: open another after a fork. Reading goes in short transactions of some hundred events, so that a reader that
walks the whole log neither keeps the WAL from being written back nor blocks its own process's writes; walks are
consistent all the same, because events up to a given seq never change.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from spamguard import ages
from spamguard.batches import batches
from spamguard.errors import LedgerError
from spamguard.ledger import schema, statements, wordlists
from spamguard.ledger.arriving import by_its_own_name, usable
from spamguard.ledger.asking import ranges
from spamguard.ledger.failures import explained, failure
from spamguard.ledger.lessons import Change, Lesson, NewVote, lessons, versioned
from spamguard.ledger.scores import Scores
from spamguard.ledger.users import Users
from spamguard.ledger.walk import Walk, whole
from spamguard.records import Vote
from spamguard.sqlitefile import transaction

_DROPPED = "ledger.dropped"  # meta key: how many events compacting took, since it is counted
_CHUNK = 128  # events per reading transaction: some 500 kB of receipts
_MERGE_CHUNK = 256  # votes per writing transaction of a merge
_RESERVED = "ledger."  # meta keys that begin so are the ledger's own


class SqliteLedger:
    """Receipts in a SQLite file. Every method raises LedgerError: one line, naming file and remedy."""

    def __init__(self, path: Path, db: sqlite3.Connection, fingerprint: str) -> None:
        """Use `open`."""
        self.path = path
        self.fingerprint = fingerprint
        self._db = db
        self._process = os.getpid()
        with explained(path):
            self.node = self._meta("ledger.node")
            self._seen = self._state()
            self._file = self._found()

    @classmethod
    def open(cls, path: Path, fingerprint: str, *, durable: bool = True) -> Self:
        """The ledger at `path`, created (mode 0600) when there is none.

        fingerprint: of the installation's key. durable: a committed vote survives a power cut; without it the last
        votes may be lost in one, never the file (SQLite: synchronous FULL, NORMAL), and writing is three times as fast.
        LedgerError: another key, another schema version, not a ledger, or a place that cannot be read and written.
        """
        db = schema.connect(path, fingerprint, durable=durable)
        try:
            return cls(path, db, fingerprint)
        except BaseException:
            db.close()
            raise

    def close(self) -> None:
        """Gives the file back; any later call is a LedgerError."""
        self._refuse_fork()
        with explained(self.path):
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # Writing

    def append(self, votes: Sequence[NewVote], *, unless_voted_since: int | None = None) -> list[bool]:
        """Casts votes in one transaction, all or none; per vote whether it changed anything.

        A vote changes nothing when its key's winning vote has the same label and features of the same or a newer
        extractor, or when it takes back what was never taught or already taken back. Later votes see earlier ones.
        unless_voted_since: the number of an event. A vote also changes nothing when its user has voted on its message, or taken
        a vote back, after that event; 0: ever.
        """
        if not votes:
            return []
        with self._transaction("BEGIN IMMEDIATE"):
            return self._append(votes, unless_voted_since=unless_voted_since)

    @contextmanager
    def alone(self, *, anew: bool = False) -> Iterator[Callable[[Sequence[NewVote]], list[bool]]]:
        """What casts votes as `append` does, in view of what nobody else can change before the end; all that is cast within, or none.

        anew: also those that change nothing."""
        with self._transaction("BEGIN IMMEDIATE"):
            yield partial(self._append, anew=anew)

    def _append(self, votes: Sequence[NewVote], *, unless_voted_since: int | None = None, anew: bool = False) -> list[bool]:
        before = clock = self._clock()
        changed = []
        for vote in votes:
            changed.append(anew or not self._stands(vote, unless_voted_since))
            if changed[-1]:
                clock += 1
                self._insert(versioned(vote, clock, self.node))
        if clock > before:
            self._set_meta("ledger.clock", str(clock))
        return changed

    def merge(self, votes: Iterable[Vote]) -> int:
        """Takes in votes that already have versions, in any order, any number of times; how many were new here.

        One that was compacted here counts as new again; it changes no lesson, since what superseded it still stands.
        Commits some hundred at a time: when it fails half way, merging the same votes again completes it. The clock
        rises to the highest seen (Lamport, "Time, clocks, and the ordering of events", CACM 1978).
        """
        return sum(self._merge_chunk(chunk) for chunk in batches(usable(votes), _MERGE_CHUNK))

    def _merge_chunk(self, votes: list[Vote]) -> int:
        with self._transaction("BEGIN IMMEDIATE"):
            added = sum(self._take_in(vote) for vote in votes)
            clock = max(vote.clock for vote in votes)
            if clock > self._clock():
                self._set_meta("ledger.clock", str(clock))
        return added

    def _take_in(self, vote: Vote) -> bool:
        """Whether a vote from elsewhere, or what it says if its version is known, is new here."""
        if self._insert(vote):
            return True
        standing = Vote(*self._db.execute(statements.VOTE_OF_VERSION, (vote.digest, vote.user, *vote.version)).fetchone())
        return standing != vote and sum(self._insert(by_its_own_name(one)) for one in (standing, vote)) > 0

    def _stands(self, vote: NewVote, unless_voted_since: int | None = None) -> bool:
        """Whether the winning vote of this key says the same already, or was cast after that event."""
        row = next(iter(self._ask(statements.STANDING_LABEL, (vote.digest, vote.user))), None)
        if row is not None and unless_voted_since is not None and row[2] > unless_voted_since:
            return True
        if row is None or row[0] is None:
            return vote.label is None
        return bool(row[0] == vote.label and row[1] >= vote.extractor)

    def _insert(self, vote: Vote) -> bool:
        return self._db.execute(statements.INSERT_VOTE, vote).rowcount > 0

    def compact(self, upto_seq: int, replaced_before: int | None = None) -> int:
        """Drops events that no longer matter to readers that have folded at least `upto_seq`; how many.

        An event goes when a higher version of its key stands at or before `upto_seq` too: at every later point that
        one wins, so no later lesson, before or after, can differ. Winners stay, tombstones among them, or a vote that
        arrives late from another node would come back to life. Readers that had folded less are refused from then
        on (`changes_after`). The room is used again, the file does not shrink. replaced_before: what was superseded
        later than that (seconds since 1970) stays, so that whoever did it can be undone; but not what was only read anew.
        """
        with self._transaction("BEGIN IMMEDIATE"):
            upto = min(upto_seq, self.last_seq())
            dropped = self._db.execute(statements.DROP_SUPERSEDED, {"upto": upto, "before": replaced_before}).rowcount
            if dropped:
                self._set_meta("ledger.compacted", str(max(upto, self._compacted())))
                self._set_meta(_DROPPED, str(int(self.get_meta(_DROPPED) or 0) + dropped))
        return dropped

    def believed(self, now: float) -> int:
        """The time by which votes grow old (`ages`), seconds since 1970."""
        with self._transaction("BEGIN IMMEDIATE"):
            return int(ages.believed(self._db, now))

    # Reading

    def grown(self) -> bool:
        """Whether anything was committed, here or by another process, since the last call; takes microseconds.

        True once per change: the caller that is told folds everything there is. A write that failed may count as one.
        """
        self._refuse_fork()
        try:  # as `explained` does, which takes longer: this is asked before every verdict
            state = self._state()
        except sqlite3.Error as error:
            raise failure(self.path, error) from error
        grown = state != self._seen
        self._seen = state
        return grown

    def _state(self) -> tuple[int, int]:
        """Moves when another connection commits (the first) and when this one writes (the second)."""
        ((version,),) = self._db.execute("PRAGMA data_version")
        return version, self._db.total_changes

    def last_seq(self) -> int:
        """The number of the last event; 0 when there is none."""
        return int(self._ask(statements.LAST_SEQ)[0][0])

    def last_time(self) -> int:
        """When the last event was cast, seconds since 1970; 0 when there is none."""
        rows = self._ask(statements.LAST_TIME)
        return int(rows[0][0]) if rows else 0

    def vote(self, digest: bytes, user: str) -> Vote | None:
        """The vote in force of this user on this message (its label is None when it was taken back), or None."""
        rows = self._ask(statements.STANDING_VOTE, (digest, user))
        return Vote(*rows[0]) if rows else None

    @property
    def users(self) -> Users:
        """The same votes, asked for by who has cast them."""
        return Users(self._ask)

    @property
    def scores(self) -> Scores:
        """What was said of messages before they were taught."""
        return Scores(self._ask)

    def word_lists(self, upto_seq: int | None = None) -> list[wordlists.WordList]:
        """What other filters knew, as brought here by the events up to `upto_seq` (default: all)."""
        return wordlists.standing(self._ask, self.last_seq() if upto_seq is None else upto_seq)

    def touched(self, digest: bytes, after: int, before: int) -> bool:
        """Whether there is an event on this message between two numbers, both excluded."""
        return bool(self._ask(statements.TOUCHED, (digest, after, before)))

    def votes(self) -> Iterator[Vote]:
        """Every vote that was there at the start, in the order of the log."""
        seq, end = 0, self.last_seq()
        while rows := self._ask(statements.EVENTS_BETWEEN, (seq, end, _CHUNK)):
            seq = rows[-1][0]
            yield from (Vote(*row[1:]) for row in rows)

    def changes_after(self, seq: int, *, extractor: int | None = None) -> Iterator[Change]:
        """What each event after `seq` changes (`lessons.changes`), in order, up to the last event there is at the start.

        extractor: features of this version only (`lessons.lesson`).
        LedgerError: `seq` is beyond the end (an older ledger was restored), or events after it were compacted; then
        what was folded must be thrown away and folding begin at 0.
        """
        end = self.last_seq()
        if seq > end:
            raise self._start_again(f"it ends at event {end}, the tables hold {seq}")
        walk = Walk(self._ask)
        first, dropped = seq, self.get_meta(_DROPPED)
        while seq < end:
            with self._transaction("BEGIN"):
                if first or dropped != self.get_meta(_DROPPED):  # who begins anew meets no event that was dropped before
                    self._refuse_compacted(seq)  # else what the walk keeps might have been dropped
                rows = self._db.execute(statements.EVENTS_BETWEEN, (seq, end, _CHUNK)).fetchall()
                found = walk.step(seq, [(row[0], Vote(*row[1:])) for row in rows], extractor)
            if not found:  # what was the last event has been compacted meanwhile
                return
            seq = found[-1][0]
            yield from found

    @contextmanager
    def kept_pages(self) -> Iterator[None]:
        """Within, what was read of the file stays in memory, up to 24 MB, for who reads all of it and out of its order."""
        ((usual,),) = self._ask("PRAGMA cache_size")
        self._ask("PRAGMA cache_size = -24576")  # KiB: some 8,000 receipts
        try:
            yield
        finally:
            self._ask(f"PRAGMA cache_size = {int(usual)}")  # and frees what is more

    def lessons(self, extractor: int | None = None, upto_seq: int | None = None, *, backwards: bool = False) -> Iterator[Lesson]:
        """Every lesson that the events up to `upto_seq` (default: all there are at the start) teach, in order of digest, or backwards.

        extractor: features of this version only (`lessons.lesson`). LedgerError: events after `upto_seq` were compacted.
        """
        upto = self.last_seq() if upto_seq is None else upto_seq
        for after, last in ranges(self._ask, backwards=backwards):
            with self._transaction("BEGIN"):
                self._refuse_compacted(upto)
                found = self._lessons_between(after, last, upto, extractor)
            yield from reversed(found) if backwards else found
        self._refuse_compacted(upto)

    def _lessons_between(self, after: bytes, last: bytes, upto: int, extractor: int | None) -> list[Lesson]:
        events = (after, last, upto)
        single = self._db.execute(statements.LESSONS_OF_DIGESTS, events)
        found = [Lesson(*row[:4]) for row in single if row[1] is not None and extractor in (None, row[4])]
        votes = map(Vote._make, self._db.execute(statements.EVENTS_OF_DIGESTS, events))
        found += lessons(votes, extractor, partial(whole, self._ask))
        return sorted(found, key=attrgetter("digest"))

    def lesson_counts(self, extractor: int | None = None, upto_seq: int | None = None) -> dict[str, int]:
        """How many `lessons` each class has; a class without any is absent."""
        upto = self.last_seq() if upto_seq is None else upto_seq
        with self._transaction("BEGIN"):
            self._refuse_compacted(upto)
            counts = Counter(dict(self._db.execute(statements.LABELS_OF_EVENTS, {"upto": upto, "extractor": extractor})))
            # Nearly every message has one event, which is its lesson.
            several = map(Vote._make, self._db.execute(statements.VOTES_OF_SEVERAL_EVENTS, (upto,)))
            for _, cast in groupby(several, attrgetter("digest")):
                votes = list(cast)
                counts.subtract(vote.label for vote in votes if extractor in (None, vote.extractor))
                counts.update(taught.label for taught in lessons(votes, extractor))
        return {label: count for label, count in counts.items() if label is not None and count}

    def size(self) -> int:
        """Bytes of the file, with what is still in its log."""
        return int(self._ask("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")[0][0])

    # Classes and notes

    def classes(self) -> dict[str, bool]:
        """Each class and whether it is unwanted, by name."""
        return {name: bool(unwanted) for name, unwanted in self._ask("SELECT name, unwanted FROM classes ORDER BY name")}

    def define_class(self, name: str, unwanted: bool) -> None:
        """Makes a class known, or changes whether it is unwanted."""
        with self._transaction("BEGIN IMMEDIATE"):
            self._db.execute(statements.DEFINE_CLASS, (name, unwanted))

    def get_meta(self, key: str) -> str | None:
        """What `set_meta` was given for this key, or None."""
        rows = self._ask("SELECT value FROM meta WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else None

    def set_meta(self, key: str, value: str) -> None:
        """Keeps a short text under a key of the caller's, in its own transaction."""
        self._refuse_reserved(key)
        with self._transaction("BEGIN IMMEDIATE"):
            self._set_meta(key, value)

    def drop_meta(self, keys: Iterable[str]) -> None:
        """Forgets what `set_meta` was given for these keys, as far as there is anything."""
        with self._transaction("BEGIN IMMEDIATE"):
            self._db.executemany("DELETE FROM meta WHERE key = ?", ((key,) for key in keys if not key.startswith(_RESERVED)))

    def replace_meta(self, key: str, expected: str | None, value: str) -> bool:
        """As `set_meta`, but only if the value still is the expected one (None: there is none); whether it was."""
        self._refuse_reserved(key)
        with self._transaction("BEGIN IMMEDIATE"):
            row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            as_expected = (row[0] if row else None) == expected
            if as_expected:
                self._set_meta(key, value)
        return as_expected

    def _refuse_reserved(self, key: str) -> None:
        if key.startswith(_RESERVED):
            raise LedgerError(f"ledger {self.path}: meta keys that begin with {_RESERVED!r} are its own: choose another")

    # The rim

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        self._refuse_fork()
        with explained(self.path), transaction(self._db, begin):
            if begin != "BEGIN" and self._found() != self._file:  # nobody would ever read what was written, with success for an answer
                raise LedgerError(f"ledger {self.path}: it was moved, removed or replaced while it was open: restart what uses it")
            yield

    def _found(self) -> tuple[int, int] | None:
        """Which file is found by the ledger's name now."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _ask(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        self._refuse_fork()
        with explained(self.path):
            return self._db.execute(sql, values).fetchall()

    def _refuse_fork(self) -> None:
        """A connection that a fork carried over shares locks and file positions with its parent and damages the file."""
        if os.getpid() != self._process:
            raise LedgerError(f"ledger {self.path}: it was opened by process {self._process}: open it anew after a fork")

    def _meta(self, key: str) -> str:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise failure(self.path, sqlite3.DatabaseError(f"no {key}"))
        return str(row[0])

    def _number(self, key: str) -> int:
        try:
            return int(self._meta(key))
        except ValueError as error:
            raise failure(self.path, sqlite3.DatabaseError(f"{key} is no number")) from error

    def _set_meta(self, key: str, value: str) -> None:
        self._db.execute(statements.SET_META, (key, value))

    def _clock(self) -> int:
        """The highest clock of any event ever seen here."""
        return self._number("ledger.clock")

    def _compacted(self) -> int:
        """Readers between 0 and here can no longer be served."""
        return self._number("ledger.compacted")

    def _refuse_compacted(self, seq: int) -> None:
        if 0 < seq < self._compacted():
            raise self._start_again(f"events up to {self._compacted()} were compacted, the tables hold {seq}")

    def _start_again(self, why: str) -> LedgerError:
        return LedgerError(f"ledger {self.path}: {why}: run `spamguard rebuild`")
