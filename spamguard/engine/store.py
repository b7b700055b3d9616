"""The state directory: the tables of this process, kept up with the ledger, and their snapshots.

Every process holds its own tables, so nobody reads half a lesson. Snapshots save other processes
the folding: a snapshot is a cache of the ledger, written once, complete before it has a name, and
never changed. Only teaching writes them; judging never writes. A line in the ledger says which
snapshot counts. It is replaced only if it is still the line expected, so of two writers one wins
and an older settled state never replaces a newer one.

A ledger that shares its log with other machines (`ledger.shared`) differs in three ways. It is
settled at positions that are a function of the log (`SharedLog.settling_position`), so all machines
settle the same. Snapshots hold only events that have a position; where what was folded beyond these
does not stand any more, the tables are made anew. And mail waits for a few events only: where many
are to come, or the tables' events have got other positions, the tables stand still until the
process that settles has made others (`follow_shared_log`).
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spamguard.bayes import fusion
from spamguard.bayes.tables import Tables, empty_tables
from spamguard.engine.fold import build_tables, fold_changes
from spamguard.engine.snapshot import (
    SNAPSHOT_KEY,
    SnapshotStamp,
    read_snapshot,
    write_snapshot,
)
from spamguard.errors import LedgerError, TableError, remedy
from spamguard.ledger.schema import PROVISIONAL
from spamguard.ledger.sqlite import EventsMovedError, SqliteLedger
from spamguard.ledger.votes import Change
from spamguard.mail.content import NUMBERS, TRAITS
from spamguard.records import EXTRACTOR
from spamguard.storage import LEDGER_FILE, remove_stale_drafts

if TYPE_CHECKING:
    from spamguard.ledger.shared import LogState, SharedLog

BITS_RANGE = range(8, 29)
"""Sizes of tables: fewer buckets than 2**8 tell no words apart, more than 2**28 take gigabytes."""
UNDO_SECONDS = 30 * 86_400  # for so long a vote that was replaced can come back (`undo`)
_DIRECTORY_REMEDY = "choose a state directory you may write to"
_MAX_TAIL_EVENTS = 2000  # events folded at opening in about 0.3 s; more are saved as a snapshot
_MAX_ATTEMPTS = 5
# Settling is due after so many events and such a share of all lessons (corpora/RESULTS.md, "How
# often to settle"): the cost of each lesson stays the same however many there are.
_MIN_SETTLE_EVENTS = 10
_SETTLE_SHARE = 0.1
# A lesson taken back counts as so many, for its step leaves something behind (corpora/RESULTS.md,
# "Taking back").
_TAKEN_BACK_WEIGHT = 20
# Making tables anew because events have moved may take a tenth of the time, beyond a moment.
_RESET_SHARE, _FREE_SECONDS = 10, 0.05


# ---- the directory


def make_state_directory(place: Path) -> bool:
    """Make a state directory if it is not there yet; returns whether it holds no ledger.

    Raises LedgerError if it cannot be used.
    """
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        return not (place / LEDGER_FILE).exists()
    except FileExistsError as error:
        raise LedgerError(f"{place}: is no directory: {_DIRECTORY_REMEDY}") from error
    except OSError as error:
        advice = remedy(error, _DIRECTORY_REMEDY)
        raise LedgerError(f"{place}: cannot be used ({error.strerror}): {advice}") from error


def read_min_bits(ledger: SqliteLedger, bits: int) -> int:
    """The size of the tables of few lessons, chosen once by the process that creates the ledger."""
    noted = ledger.get_meta("bits")
    if noted is None:  # only then: writing would wait for a process that teaches
        ledger.replace_meta("bits", None, str(bits))
        noted = ledger.get_meta("bits")
    if noted is None or noted not in map(str, BITS_RANGE):
        raise LedgerError(
            f"ledger {ledger.path}: its note of the size of its tables is damaged: "
            "restore it from a backup"
        )
    return int(noted)


# ---- the tables


class TableStore:
    """This process's tables. They start empty; `catch_up` loads and folds.

    Tables of few lessons have 2**min_bits buckets; each settling may change that (`tables.bits`).
    With `durable`, snapshots are on the disk before they count.
    """

    def __init__(
        self, directory: Path, ledger: SqliteLedger, min_bits: int, *, durable: bool
    ) -> None:
        self._directory = directory
        self._ledger = ledger
        self._durable = durable
        self.min_bits = min_bits
        self.is_current = False  # whether all that is known to have been committed is folded
        self._log_state: LogState | None = None  # of the shared log, when it was folded last
        self.resets = 0  # how often tables were made anew, perhaps because events have moved
        self._reset_at = self._next_reset = 0.0  # when tables were, and may be, made anew
        self._reset()

    def _reset(self) -> None:
        self.resets += 1
        self._snapshot_line: str | None = None  # the line of the snapshot these tables come from
        self.stamp = SnapshotStamp()
        self.seq = 0  # last event folded
        self._position = 0  # last event folded that is not provisional
        self.taken_back = 0  # lessons, since the last settling, without another in their place
        self.tables = empty_tables(self.min_bits, len(TRAITS), len(NUMBERS), fusion.START_WEIGHTS)

    @property
    def unsettled(self) -> int:
        """Events folded since the last settling."""
        return self._position - self.stamp.settled

    def refresh(self) -> bool:
        """Fold what was taught since the last call, here or in another process.

        Returns whether anything was committed at all; takes microseconds when nothing was. Events
        that could not be folded are tried again at the next call.
        """
        if self._ledger.has_grown():
            self.is_current = False
        if self.is_current:
            return False
        self.catch_up()
        return True

    def is_settling_due(self, coming: int = 0) -> bool:
        """Whether to settle, after so many more events; never where a log is shared."""
        if self._ledger.shared is not None:
            return False
        events = self.unsettled + coming + _TAKEN_BACK_WEIGHT * self.taken_back
        lessons = int(self.tables.messages.sum()) + coming
        return events >= max(_MIN_SETTLE_EVENTS, _SETTLE_SHARE * lessons)

    def catch_up(self) -> None:
        """Map the current snapshot and fold the events after it.

        Raises TableError or LedgerError if one of them is damaged.
        """
        shared, upto = self._ledger.shared, None
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            line = self._ledger.get_meta(SNAPSHOT_KEY)
            from_nothing = self.seq == 0
            try:
                if shared is None or self._follow_log(shared, line):
                    self._fold_from(line, upto)
                    self.is_current = upto is None
            except EventsMovedError:
                # Others' lessons come in before ours just now, for some seconds. Mail does not
                # wait: it is judged by what has its place, and the next by all if that is possible.
                if shared is None or attempt == _MAX_ATTEMPTS:
                    raise
                upto = shared.head().position
            except (LedgerError, TableError):
                # Our tables may not fit the ledger any more (an older one was restored), or a
                # newer snapshot was published meanwhile and the older one removed.
                unchanged = from_nothing and self._ledger.get_meta(SNAPSHOT_KEY) == line
                if attempt == _MAX_ATTEMPTS or unchanged:
                    raise
            else:
                return

    def _follow_log(self, shared: SharedLog, line: str | None) -> bool:
        """Begin anew if the log was changed behind us; returns whether to fold."""
        state, now, stamp = shared.state(), time.monotonic(), parse_if_whole(line)
        if stamp.is_disowned and not (self._snapshot_line or self.seq):
            self._map_snapshot(line)
        is_moved = self._ledger.valid_upto(self.seq, self._log_state or state) < self.seq
        is_same = line == self._snapshot_line and not is_moved
        begin = max(stamp.seq, self._position) if is_same else stamp.seq
        is_far = state.head.position - begin > _MAX_TAIL_EVENTS
        if stamp.is_disowned or is_far:
            self.is_current = True
            return False
        if is_moved:
            if now < self._next_reset:
                return False
            self._reset()
            self._reset_at = now
        self._log_state = state
        return True

    def _fold_from(self, line: str | None, upto: int | None) -> None:
        """Map the snapshot and fold the events behind it, as far as `upto` if that is said."""
        self._map_snapshot(line)
        self._fold(self._read_changes(upto))
        if self._reset_at:
            seconds = time.monotonic() - self._reset_at
            self._next_reset = self._reset_at + _RESET_SHARE * max(0.0, seconds - _FREE_SECONDS)
            self._reset_at = 0.0

    def _fold(self, changes: Iterable[Change]) -> None:
        settled = self.stamp.settled
        try:
            last, taken_back = fold_changes(
                self.tables,
                changes,
                lambda digest, seq: self._ledger.has_event_between(digest, settled, seq),
            )
        except BaseException:
            self._reset()  # some of it may be folded already, and nothing may be folded twice
            raise
        self.seq, self.taken_back = last or self.seq, self.taken_back + taken_back
        if self._ledger.shared is None:
            self._position = self.seq

    def _read_changes(self, upto: int | None) -> Iterator[Change]:
        """The changes after those that are folded, as long as nothing moves in a shared log."""
        state = self._log_state
        for change in self._ledger.changes_after(self.seq, extractor=EXTRACTOR, state=state):
            if upto is not None and change[0] > upto:
                return
            if change[0] < PROVISIONAL:
                self._position = change[0]
            yield change

    def _map_snapshot(self, line: str | None) -> None:
        """Map the current snapshot, unless our tables are ahead of it in the same lineage."""
        stamp, ours = parse_if_whole(line), self.stamp
        if not stamp.file or line == self._snapshot_line:
            return
        is_ours = (stamp.settled, stamp.lineage) == (ours.settled, ours.lineage)
        # A settled state is mapped even if it is ours: it may have been made to mend our file.
        if not is_ours or stamp.seq > self.seq or stamp.seq == stamp.settled:
            self.tables = read_snapshot(self._directory / stamp.file)
            self.seq = self._position = stamp.seq
            self.taken_back = stamp.taken_back
        self._snapshot_line, self.stamp = line, stamp

    def save_if_long_tail(self) -> None:
        """Write a snapshot when opening would have to fold many events; call it after teaching."""
        if self.seq - self.stamp.seq >= _MAX_TAIL_EVENTS and self.seq < PROVISIONAL:
            stamp = replace(self.stamp, seq=self.seq, taken_back=self.taken_back)
            seq, state = self.seq, self._log_state
            self._publish(
                self.tables,
                stamp,
                self._snapshot_line,
                lambda: self._ledger.valid_upto(seq, state) == seq,
            )

    def follow_shared_log(self) -> bool:
        """Settle a shared log if that is due, and save what came since then if it is much.

        Returns whether it was settled. It may take long: no process that judges calls it.
        """
        shared = self._ledger.shared
        if shared is None or not is_settler_wanted(self._ledger):
            return False
        stamp = parse_if_whole(self._ledger.get_meta(SNAPSHOT_KEY))
        is_due = stamp.is_disowned or stamp.settled < shared.settling_position()
        if is_due:
            self.settle()
        position, line = shared.head().position, self._ledger.get_meta(SNAPSHOT_KEY)
        if position - parse_if_whole(line).seq >= _MAX_TAIL_EVENTS:
            self._reset()
            self._log_state = shared.state()
            self._fold_from(line, position)
            self.save_if_long_tail()
            self.is_current = False
        return is_due

    # Settling

    def settle(self) -> None:
        """Replay everything in canonical order and publish the outcome.

        Every process takes it up before its next judgement. Reads only the ledger, so it mends
        damaged tables too.
        """
        shared, (upto, state) = self._ledger.shared, self._ledger.read_end()
        if shared is not None:
            upto = shared.settling_position()

        def is_unchanged() -> bool:
            return self._ledger.valid_upto(upto, state) == upto

        try:
            settled = build_tables(self._ledger, upto, self.min_bits)
            line = self._ledger.get_meta(SNAPSHOT_KEY)
            while not self._is_settled_beyond(line, upto):
                stamp = SnapshotStamp(seq=upto, settled=upto)
                if self._publish(settled, stamp, line, is_unchanged):
                    break
                if not is_unchanged():
                    raise LedgerError(
                        f"ledger {self._ledger.path}: the shared log was mended while its lessons "
                        "were being settled: settle again"
                    )
                line = self._ledger.get_meta(SNAPSHOT_KEY)
        except LedgerError:
            # unless another process has settled more meanwhile, and compacted what we were reading
            if not self._is_settled_beyond(self._ledger.get_meta(SNAPSHOT_KEY), upto):
                raise
        self._tidy_up(upto)
        self.catch_up()

    def _is_settled_beyond(self, line: str | None, seq: int) -> bool:
        """Whether another process has settled more.

        A line that is damaged, or names events that the ledger has lost, does not count.
        """
        return seq < parse_if_whole(line).settled <= self._ledger.last_position()

    def _publish(
        self,
        tables: Tables,
        stamp: SnapshotStamp,
        expected: str | None,
        is_valid: Callable[[], bool],
    ) -> bool:
        """Write a snapshot and make it the one that counts.

        The stamp has no name of a file yet, nor that of a state just settled. Returns False when
        another process was first, or when the snapshot is not valid by then.
        """
        name = f"tables-{EXTRACTOR}-{stamp.seq}-{secrets.token_hex(4)}.bin"
        path = self._directory / name
        try:
            # drafts first: on a disk that they have filled nothing could be written
            remove_stale_drafts(self._directory)
            settled = stamp.seq == stamp.settled
            hashed = settled and self._ledger.shared is not None  # else no other machine has it
            digest = write_snapshot(path, tables, durable=self._durable, hashed=hashed)
        except OSError as error:
            advice = remedy(error, "look at the disk and its permissions")
            raise TableError(
                f"{path}: cannot be written ({error.strerror}); "
                f"what was taught is safe in the ledger: {advice}"
            ) from error
        lineage = (digest or name) if settled else stamp.lineage
        stamp = replace(stamp, file=name, lineage=lineage)
        # Listed before ours counts: a file that another process writes afterwards may be the
        # current one by the time we remove.
        others = self._directory.glob(f"tables-{EXTRACTOR}-*.bin")
        older = [other for other in others if other.name != name]
        line = json.dumps(asdict(stamp))
        if not self._ledger.replace_meta(SNAPSHOT_KEY, expected, line, is_valid):
            _remove_file(path)
            return False
        for other in older:
            _remove_file(other)
        self._snapshot_line, self.stamp, self.tables = line, stamp, tables
        self.seq = self._position = stamp.seq
        self.taken_back = stamp.taken_back
        return True

    def _tidy_up(self, settled: int) -> None:
        """Drop what settled tables make superfluous: events that were superseded long ago, and
        notes and snapshots of older extractors.

        An older version can still make its tables from the ledger.
        """
        older = range(1, EXTRACTOR)
        notes = [f"tables.{number}" for number in older]  # which snapshot counts
        # the notes go first, or they would name files that are gone
        self._ledger.compact(settled, undo_limit(self._ledger), notes)
        for number in older:
            for path in self._directory.glob(f"tables-{number}-*.bin"):
                _remove_file(path)


# ---- the snapshot that counts


def parse_if_whole(line: str | None) -> SnapshotStamp:
    """The note of a snapshot; without numbers where there is none, or it is damaged."""
    try:
        return SnapshotStamp(**json.loads(line or "{}"))
    except (ValueError, TypeError):
        return SnapshotStamp()


def is_settler_wanted(ledger: SqliteLedger) -> bool:
    """Whether a shared log is to be settled, or what came since then to be saved.

    Tables whose events have other positions now last until few events are without one: new tables
    would lack those.
    """
    shared, stamp = ledger.shared, parse_if_whole(ledger.get_meta(SNAPSHOT_KEY))
    if shared is None:
        return False
    if stamp.is_disowned:
        return shared.waiting()[0] <= _MAX_TAIL_EVENTS
    is_long = shared.head().position - stamp.seq >= _MAX_TAIL_EVENTS
    return is_long or stamp.settled < shared.settling_position()


def disown_tables(ledger: SqliteLedger, line: str | None) -> None:
    """Have tables judge until there are others, although their events get other positions.

    line: the note of their snapshot, before that.
    """
    stamp = replace(parse_if_whole(line), seq=0, settled=0, lineage="")
    if stamp.file:
        ledger.set_meta(SNAPSHOT_KEY, json.dumps(asdict(stamp)))


def undo_limit(ledger: SqliteLedger) -> int:
    """Votes that were replaced before this time, in seconds since 1970, cannot come back."""
    return ledger.trusted_time(time.time()) - UNDO_SECONDS


def _remove_file(path: Path) -> None:
    """Remove a snapshot if possible: one file too many does no harm."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
