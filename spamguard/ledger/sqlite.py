"""Votes from elsewhere, looked at before they are kept: one that cannot be read would stop every
reader for good.

Pure. Must never refuse what a ledger of this version could hold by itself.

The ledger in one SQLite file: every vote ever cast here, in the order in which it was committed.

Must never change or reorder an event (`compact` drops those that can no longer matter), never let a
half batch be seen, and never let an error of SQLite or the system out as anything but a
`LedgerError`.

Any number of processes may read and write at once (WAL, busy timeout). One object belongs to one
thread of one process: open another after a fork. Reading goes in short transactions of some hundred
events, so that a reader that walks the whole log neither keeps the WAL from being written back nor
blocks its own process's writes; walks are consistent all the same, because events up to a given seq
never change.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from spamguard import storage
from spamguard.errors import LedgerError
from spamguard.ledger import codec, schema, wordlists
from spamguard.ledger.queries import ChangeWalk, ScoreQueries, UserQueries, load_vote
from spamguard.ledger.schema import digest_ranges, ledger_error, map_ledger_errors
from spamguard.ledger.votes import Change, Lesson, NewVote, add_version, resolve_lessons
from spamguard.log import MAX_TIME
from spamguard.records import Vote
from spamguard.storage import batches, transaction

_MAX_CLOCK = 2**62  # leaves the ledger room to count on in SQLite's 64 bits


def check_vote(vote: Vote) -> None:
    """LedgerError if readers would stumble over it."""
    if not vote.digest or (vote.label is None and vote.packed):
        raise LedgerError(
            "a vote to be merged is about no message, or has features though it is taken back: export it anew"
        )
    if not 0 < vote.clock < _MAX_CLOCK:
        raise LedgerError(
            f"a vote to be merged has clock {vote.clock}: it must be between 1 and 2**62"
        )
    if not 0 <= vote.time < MAX_TIME:
        raise LedgerError(
            f"a vote to be merged has time {vote.time}: it must be in seconds since 1970, before the year 10000"
        )
    if wordlists.is_word_list(vote.extractor):
        wordlists.check_list_vote(vote)
    elif vote.label == wordlists.WORD_LIST_LABEL:
        raise LedgerError("a vote to be merged is called a word list and is none: export it anew")
    elif vote.label is not None:
        codec.check_receipt(vote.packed)


def check_votes(votes: Iterable[Vote]) -> Iterator[Vote]:
    """The same votes; LedgerError at the first that a ledger would refuse."""
    for vote in votes:
        check_vote(vote)
        yield vote


def with_unique_node(vote: Vote) -> Vote:
    """A vote whose version another one has too, as if a node of its own had cast it, which is named
    after what it says.

    Copies of a node's files, or files that a power cut or an old copy set back, give a version
    again. Wherever both votes come together, in whatever order, the same one wins.
    """
    return vote._replace(
        node=f"{vote.node}+{blake2b(repr(vote).encode(), digest_size=8).hexdigest()}"
    )


_DROPPED_KEY = "ledger.dropped"  # meta key: how many events compacting took, since it is counted
_READ_BATCH = 128  # events per reading transaction: some 500 kB of receipts
_MERGE_BATCH = 256  # votes per writing transaction of a merge
_RESERVED_PREFIX = "ledger."  # meta keys that begin so are the ledger's own


class SqliteLedger:
    """Receipts in a SQLite file. Every method raises LedgerError: one line, naming file and remedy."""

    def __init__(self, path: Path, db: sqlite3.Connection, fingerprint: str) -> None:
        """Use `open`."""
        self.path = path
        self.fingerprint = fingerprint
        self._db = db
        self._pid = os.getpid()
        with map_ledger_errors(path):
            self.node = self._read_meta("ledger.node")
            self._last_counters = self._change_counters()
            self._opened_file = self._current_file()

    @classmethod
    def open(cls, path: Path, fingerprint: str, *, durable: bool = True) -> Self:
        """The ledger at `path`, created (mode 0600) when there is none.

        fingerprint: of the installation's key. durable: a committed vote survives a power cut;
        without it the last votes may be lost in one, never the file (SQLite: synchronous FULL,
        NORMAL), and writing is three times as fast. LedgerError: another key, another schema
        version, not a ledger, or a place that cannot be read and written.
        """
        db = schema.open_ledger_file(path, fingerprint, durable=durable)
        try:
            return cls(path, db, fingerprint)
        except BaseException:
            db.close()
            raise

    def close(self) -> None:
        """Gives the file back; any later call is a LedgerError."""
        self._check_process()
        with map_ledger_errors(self.path):
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Writing

    def append(
        self, votes: Sequence[NewVote], *, unless_voted_since: int | None = None
    ) -> list[bool]:
        """Casts votes in one transaction, all or none; per vote whether it changed anything.

        A vote changes nothing when its key's winning vote has the same label and features of the
        same or a newer extractor, or when it takes back what was never taught or already taken
        back. Later votes see earlier ones. unless_voted_since: the number of an event. A vote also
        changes nothing when its user has voted on its message, or taken a vote back, after that
        event; 0: ever.
        """
        if not votes:
            return []
        with self._transaction("BEGIN IMMEDIATE"):
            return self._append(votes, unless_voted_since=unless_voted_since)

    @contextmanager
    def exclusive(
        self, *, force: bool = False
    ) -> Iterator[Callable[[Sequence[NewVote]], list[bool]]]:
        """What casts votes as `append` does, in view of what nobody else can change before the end;
        all that is cast within, or none.

        anew: also those that change nothing.
        """
        with self._transaction("BEGIN IMMEDIATE"):
            yield partial(self._append, force=force)

    def _append(
        self,
        votes: Sequence[NewVote],
        *,
        unless_voted_since: int | None = None,
        force: bool = False,
    ) -> list[bool]:
        before = clock = self._clock()
        changed = []
        for vote in votes:
            changed.append(force or not self._is_redundant(vote, unless_voted_since))
            if changed[-1]:
                clock += 1
                self._insert(add_version(vote, clock, self.node))
        if clock > before:
            self._set_meta("ledger.clock", str(clock))
        return changed

    def merge(self, votes: Iterable[Vote]) -> int:
        """Takes in votes that already have versions, in any order, any number of times; how many
        were new here.

        One that was compacted here counts as new again; it changes no lesson, since what superseded
        it still stands. Commits some hundred at a time: when it fails half way, merging the same
        votes again completes it. The clock rises to the highest seen (Lamport, "Time, clocks, and
        the ordering of events", CACM 1978).
        """
        return sum(self._merge_chunk(chunk) for chunk in batches(check_votes(votes), _MERGE_BATCH))

    def _merge_chunk(self, votes: list[Vote]) -> int:
        with self._transaction("BEGIN IMMEDIATE"):
            added = sum(self._merge_vote(vote) for vote in votes)
            clock = max(vote.clock for vote in votes)
            if clock > self._clock():
                self._set_meta("ledger.clock", str(clock))
        return added

    def _merge_vote(self, vote: Vote) -> bool:
        """Whether a vote from elsewhere, or what it says if its version is known, is new here."""
        if self._insert(vote):
            return True
        standing = Vote(
            *self._db.execute(
                schema.VOTE_OF_VERSION, (vote.digest, vote.user, *vote.version)
            ).fetchone()
        )
        return (
            standing != vote
            and sum(self._insert(with_unique_node(one)) for one in (standing, vote)) > 0
        )

    def _is_redundant(self, vote: NewVote, unless_voted_since: int | None = None) -> bool:
        """Whether the winning vote of this key says the same already, or was cast after that event."""
        row = next(iter(self._query(schema.STANDING_LABEL, (vote.digest, vote.user))), None)
        if row is not None and unless_voted_since is not None and row[2] > unless_voted_since:
            return True
        if row is None or row[0] is None:
            return vote.label is None
        return bool(row[0] == vote.label and row[1] >= vote.extractor)

    def _insert(self, vote: Vote) -> bool:
        return self._db.execute(schema.INSERT_VOTE, vote).rowcount > 0

    def compact(self, upto_seq: int, replaced_before: int | None = None) -> int:
        """Drops events that no longer matter to readers that have folded at least `upto_seq`; how
        many.

        An event goes when a higher version of its key stands at or before `upto_seq` too: at every
        later point that one wins, so no later lesson, before or after, can differ. Winners stay,
        tombstones among them, or a vote that arrives late from another node would come back to
        life. Readers that had folded less are refused from then on (`changes_after`). The room is
        used again, the file does not shrink. replaced_before: what was superseded later than that
        (seconds since 1970) stays, so that whoever did it can be undone; but not what was only read
        anew.
        """
        with self._transaction("BEGIN IMMEDIATE"):
            upto = min(upto_seq, self.last_seq())
            dropped = self._db.execute(
                schema.DROP_SUPERSEDED, {"upto": upto, "before": replaced_before}
            ).rowcount
            if dropped:
                self._set_meta("ledger.compacted", str(max(upto, self._compacted_seq())))
                self._set_meta(_DROPPED_KEY, str(int(self.get_meta(_DROPPED_KEY) or 0) + dropped))
        return dropped

    def trusted_time(self, now: float) -> int:
        """The time by which votes grow old (`ages`), seconds since 1970."""
        with self._transaction("BEGIN IMMEDIATE"):
            return int(storage.trusted_time(self._db, now))

    # Reading

    def has_grown(self) -> bool:
        """Whether anything was committed, here or by another process, since the last call; takes
        microseconds.

        True once per change: the caller that is told folds everything there is. A write that failed
        may count as one.
        """
        self._check_process()
        try:  # as `explained` does, which takes longer: this is asked before every verdict
            state = self._change_counters()
        except sqlite3.Error as error:
            raise ledger_error(self.path, error) from error
        grown = state != self._last_counters
        self._last_counters = state
        return grown

    def _change_counters(self) -> tuple[int, int]:
        """Moves when another connection commits (the first) and when this one writes (the second)."""
        ((version,),) = self._db.execute("PRAGMA data_version")
        return version, self._db.total_changes

    def last_seq(self) -> int:
        """The number of the last event; 0 when there is none."""
        return int(self._query(schema.LAST_SEQ)[0][0])

    def last_time(self) -> int:
        """When the last event was cast, seconds since 1970; 0 when there is none."""
        rows = self._query(schema.LAST_TIME)
        return int(rows[0][0]) if rows else 0

    def get_vote(self, digest: bytes, user: str) -> Vote | None:
        """The vote in force of this user on this message (its label is None when it was taken
        back), or None.
        """
        rows = self._query(schema.STANDING_VOTE, (digest, user))
        return Vote(*rows[0]) if rows else None

    @property
    def users(self) -> UserQueries:
        """The same votes, asked for by who has cast them."""
        return UserQueries(self._query)

    @property
    def scores(self) -> ScoreQueries:
        """What was said of messages before they were taught."""
        return ScoreQueries(self._query)

    def word_lists(self, upto_seq: int | None = None) -> list[wordlists.WordList]:
        """What other filters knew, as brought here by the events up to `upto_seq` (default: all)."""
        return wordlists.lists_in_force(
            self._query, self.last_seq() if upto_seq is None else upto_seq
        )

    def has_event_between(self, digest: bytes, after: int, before: int) -> bool:
        """Whether there is an event on this message between two numbers, both excluded."""
        return bool(self._query(schema.EVENT_BETWEEN, (digest, after, before)))

    def all_votes(self) -> Iterator[Vote]:
        """Every vote that was there at the start, in the order of the log."""
        seq, end = 0, self.last_seq()
        while rows := self._query(schema.EVENTS_BETWEEN, (seq, end, _READ_BATCH)):
            seq = rows[-1][0]
            yield from (Vote(*row[1:]) for row in rows)

    def changes_after(self, seq: int, *, extractor: int | None = None) -> Iterator[Change]:
        """What each event after `seq` changes (`lessons.changes`), in order, up to the last event
        there is at the start.

        extractor: features of this version only (`lessons.lesson`). LedgerError: `seq` is beyond
        the end (an older ledger was restored), or events after it were compacted; then what was
        folded must be thrown away and folding begin at 0.
        """
        end = self.last_seq()
        if seq > end:
            raise self._rebuild_error(f"it ends at event {end}, the tables hold {seq}")
        walk = ChangeWalk(self._query)
        first, dropped = seq, self.get_meta(_DROPPED_KEY)
        while seq < end:
            with self._transaction("BEGIN"):
                if first or dropped != self.get_meta(
                    _DROPPED_KEY
                ):  # who begins anew meets no event that was dropped before
                    self._check_compacted(seq)  # else what the walk keeps might have been dropped
                rows = self._db.execute(schema.EVENTS_BETWEEN, (seq, end, _READ_BATCH)).fetchall()
                found = walk.read_changes(
                    seq, [(row[0], Vote(*row[1:])) for row in rows], extractor
                )
            if not found:  # what was the last event has been compacted meanwhile
                return
            seq = found[-1][0]
            yield from found

    @contextmanager
    def large_page_cache(self) -> Iterator[None]:
        """Within, what was read of the file stays in memory, up to 24 MB, for who reads all of it
        and out of its order.
        """
        ((usual,),) = self._query("PRAGMA cache_size")
        self._query("PRAGMA cache_size = -24576")  # KiB: some 8,000 receipts
        try:
            yield
        finally:
            self._query(f"PRAGMA cache_size = {int(usual)}")  # and frees what is more

    def lessons(
        self, extractor: int | None = None, upto_seq: int | None = None, *, backwards: bool = False
    ) -> Iterator[Lesson]:
        """Every lesson that the events up to `upto_seq` (default: all there are at the start)
        teach, in order of digest, or backwards.

        extractor: features of this version only (`lessons.lesson`). LedgerError: events after
        `upto_seq` were compacted.
        """
        upto = self.last_seq() if upto_seq is None else upto_seq
        for after, last in digest_ranges(self._query, backwards=backwards):
            with self._transaction("BEGIN"):
                self._check_compacted(upto)
                found = self._lessons_between(after, last, upto, extractor)
            yield from reversed(found) if backwards else found
        self._check_compacted(upto)

    def _lessons_between(
        self, after: bytes, last: bytes, upto: int, extractor: int | None
    ) -> list[Lesson]:
        events = (after, last, upto)
        single = self._db.execute(schema.LESSONS_OF_DIGESTS, events)
        found = [
            Lesson(*row[:4]) for row in single if row[1] is not None and extractor in (None, row[4])
        ]
        votes = map(Vote._make, self._db.execute(schema.EVENTS_OF_DIGESTS, events))
        found += resolve_lessons(votes, extractor, partial(load_vote, self._query))
        return sorted(found, key=attrgetter("digest"))

    def lesson_counts(
        self, extractor: int | None = None, upto_seq: int | None = None
    ) -> dict[str, int]:
        """How many `lessons` each class has; a class without any is absent."""
        upto = self.last_seq() if upto_seq is None else upto_seq
        with self._transaction("BEGIN"):
            self._check_compacted(upto)
            counts = Counter(
                dict(
                    self._db.execute(
                        schema.LABELS_OF_EVENTS, {"upto": upto, "extractor": extractor}
                    )
                )
            )
            # Nearly every message has one event, which is its lesson.
            several = map(Vote._make, self._db.execute(schema.VOTES_OF_SEVERAL_EVENTS, (upto,)))
            for _, cast in groupby(several, attrgetter("digest")):
                votes = list(cast)
                counts.subtract(vote.label for vote in votes if extractor in (None, vote.extractor))
                counts.update(taught.label for taught in resolve_lessons(votes, extractor))
        return {label: count for label, count in counts.items() if label is not None and count}

    def file_bytes(self) -> int:
        """Bytes of the file, with what is still in its log."""
        return int(
            self._query("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")[
                0
            ][0]
        )

    # Classes and notes

    def classes(self) -> dict[str, bool]:
        """Each class and whether it is unwanted, by name."""
        return {
            name: bool(unwanted)
            for name, unwanted in self._query("SELECT name, unwanted FROM classes ORDER BY name")
        }

    def define_class(self, name: str, unwanted: bool) -> None:
        """Makes a class known, or changes whether it is unwanted."""
        with self._transaction("BEGIN IMMEDIATE"):
            self._db.execute(schema.DEFINE_CLASS, (name, unwanted))

    def get_meta(self, key: str) -> str | None:
        """What `set_meta` was given for this key, or None."""
        rows = self._query("SELECT value FROM meta WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else None

    def set_meta(self, key: str, value: str) -> None:
        """Keeps a short text under a key of the caller's, in its own transaction."""
        self._check_key(key)
        with self._transaction("BEGIN IMMEDIATE"):
            self._set_meta(key, value)

    def drop_meta(self, keys: Iterable[str]) -> None:
        """Forgets what `set_meta` was given for these keys, as far as there is anything."""
        with self._transaction("BEGIN IMMEDIATE"):
            self._db.executemany(
                "DELETE FROM meta WHERE key = ?",
                ((key,) for key in keys if not key.startswith(_RESERVED_PREFIX)),
            )

    def replace_meta(self, key: str, expected: str | None, value: str) -> bool:
        """As `set_meta`, but only if the value still is the expected one (None: there is none);
        whether it was.
        """
        self._check_key(key)
        with self._transaction("BEGIN IMMEDIATE"):
            row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            as_expected = (row[0] if row else None) == expected
            if as_expected:
                self._set_meta(key, value)
        return as_expected

    def _check_key(self, key: str) -> None:
        if key.startswith(_RESERVED_PREFIX):
            raise LedgerError(
                f"ledger {self.path}: meta keys that begin with {_RESERVED_PREFIX!r} are its own: choose another"
            )

    # The rim

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        self._check_process()
        with map_ledger_errors(self.path), transaction(self._db, begin):
            if (
                begin != "BEGIN" and self._current_file() != self._opened_file
            ):  # nobody would ever read what was written, with success for an answer
                raise LedgerError(
                    f"ledger {self.path}: it was moved, removed or replaced while it was open: restart what uses it"
                )
            yield

    def _current_file(self) -> tuple[int, int] | None:
        """Which file is found by the ledger's name now."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _query(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        self._check_process()
        with map_ledger_errors(self.path):
            return self._db.execute(sql, values).fetchall()

    def _check_process(self) -> None:
        """A connection that a fork carried over shares locks and file positions with its parent and
        damages the file.
        """
        if os.getpid() != self._pid:
            raise LedgerError(
                f"ledger {self.path}: it was opened by process {self._pid}: open it anew after a fork"
            )

    def _read_meta(self, key: str) -> str:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise ledger_error(self.path, sqlite3.DatabaseError(f"no {key}"))
        return str(row[0])

    def _read_number(self, key: str) -> int:
        try:
            return int(self._read_meta(key))
        except ValueError as error:
            raise ledger_error(self.path, sqlite3.DatabaseError(f"{key} is no number")) from error

    def _set_meta(self, key: str, value: str) -> None:
        self._db.execute(schema.SET_META, (key, value))

    def _clock(self) -> int:
        """The highest clock of any event ever seen here."""
        return self._read_number("ledger.clock")

    def _compacted_seq(self) -> int:
        """Readers between 0 and here can no longer be served."""
        return self._read_number("ledger.compacted")

    def _check_compacted(self, seq: int) -> None:
        if 0 < seq < self._compacted_seq():
            raise self._rebuild_error(
                f"events up to {self._compacted_seq()} were compacted, the tables hold {seq}"
            )

    def _rebuild_error(self, why: str) -> LedgerError:
        return LedgerError(f"ledger {self.path}: {why}: run `spamguard rebuild`")
