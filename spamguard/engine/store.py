"""The state directory: the tables of this process, kept up with the ledger, and their snapshots.

Every process holds its own tables, so nobody reads half a lesson. Snapshots save other processes
the folding: a snapshot is a cache of the ledger, written once, complete before it has a name, and
never changed. Only teaching writes them; judging never writes. A line in the ledger says which
snapshot counts. It is replaced only if it is still the line expected, so of two writers one wins
and an older settled state never replaces a newer one.

A ledger that shares its log with other machines (`ledger.shared`) differs in three ways. Snapshots
hold only events that have a position in the log, so that they are the same on all machines. Where
events came in before others that were folded already, the ledger's generation rises, and the tables
are made anew from the snapshot. And while the ledger has a hold on the tables, nothing is folded:
its copy of the log does not reach up to the snapshot yet, or much of the log is to come. A stamp
without numbers is that of tables whose events have other positions by now: they judge until there
is another snapshot.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from spamguard.ledger.votes import Change, NewVote
from spamguard.mail.content import NUMBERS, TRAITS
from spamguard.records import EXTRACTOR
from spamguard.storage import LEDGER_FILE, remove_stale_drafts

if TYPE_CHECKING:
    from spamguard.ledger.shared import SharedLog

BITS_RANGE = range(8, 29)
"""Sizes of tables: fewer buckets than 2**8 tell no words apart, more than 2**28 take gigabytes."""
UNDO_SECONDS = 30 * 86_400  # for so long a vote that was replaced can come back (`undo`)
_DIRECTORY_REMEDY = "choose a state directory you may write to"
_WANTED_KEY = "settle"  # note: the events up to this one are to be settled soon
_MAX_TAIL_EVENTS = 2000  # events folded at opening in about 0.3 s; more are saved as a snapshot
_MAX_ATTEMPTS = 5
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
        self.generation: str | None = None  # of the shared log, when it was folded last
        self._reset_at = self._next_reset = 0.0  # when tables were, and may be, made anew
        self.has_work = False  # whether the process that settles should look after the snapshot
        self._reset()

    def _reset(self) -> None:
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

    def cast(
        self, votes: Sequence[NewVote], *, unless_voted_since: int | None = None
    ) -> list[bool]:
        """`SqliteLedger.append`; what the votes teach is folded without reading them again, unless
        others have taught meanwhile.
        """
        cast = self._ledger.cast(votes, unless_voted_since=unless_voted_since)
        is_known = self.is_current and self._ledger.shared is None and cast.before == self.seq
        self.is_current = False
        if is_known:
            with suppress(LedgerError, TableError):  # `catch_up` begins anew
                self._fold(cast.changes)
                self._ledger.skip_own_writes()
                self.is_current = True
        return cast.changed

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
        """Begin anew if the log was changed behind us; returns whether to fold.

        On hold, a snapshot is mapped if there are no tables yet, or if it is ahead of our copy of
        the log: else our tables know more.
        """
        generation, now = self._ledger.get_meta("ledger.generation"), time.monotonic()
        if self._ledger.get_meta("ledger.hold"):
            is_ahead = line and SnapshotStamp.parse(line).seq > shared.head().position
            if is_ahead or (self._snapshot_line is None and self.seq == 0):
                self._map_snapshot(line)
            self.is_current = self.has_work = True
            return False
        if generation != self.generation:
            if self.seq and now < self._next_reset:
                return False
            self._reset()
            self.generation = generation
            self._reset_at = now
        return True

    def _fold_from(self, line: str | None, upto: int | None) -> None:
        """Map the snapshot and fold the events behind it, as far as `upto` if that is said."""
        try:
            self._map_snapshot(line)
            if self._ledger.shared is None:
                self._fold(self._ledger.changes_after(self.seq, extractor=EXTRACTOR))
            else:
                self._fold(self._read_changes(upto))
                self.has_work = (
                    self._position - self.stamp.seq >= _MAX_TAIL_EVENTS
                    or is_settling_wanted(self._ledger, self.stamp)
                )
            self.is_current = True
            if self._reset_at:
                seconds = time.monotonic() - self._reset_at
                self._next_reset = self._reset_at + _RESET_SHARE * max(0.0, seconds - _FREE_SECONDS)
                self._reset_at = 0.0
        except BaseException:
            self._reset()  # some of it may be folded already, and nothing may be folded twice
            raise

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
        """The changes of a shared log, as long as nothing moves in it."""
        generation = int(self.generation or 0)
        for change in self._ledger.changes_after(
            self.seq, extractor=EXTRACTOR, generation=generation
        ):
            if upto is not None and change[0] > upto:
                return
            if change[0] < PROVISIONAL:
                self._position = change[0]
            yield change

    def _map_snapshot(self, line: str | None) -> None:
        """Map the current snapshot, unless our tables are ahead of it in the same lineage."""
        if line is None or line == self._snapshot_line:
            return
        stamp = SnapshotStamp.parse(line)
        ours = self.stamp
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
            shared, generation = self._ledger.shared, self.generation
            self._publish(
                self.tables,
                stamp,
                self._snapshot_line,
                lambda: shared is None or str(shared.generation) == generation,
            )

    def look_after_snapshot(self) -> bool:
        """On a joined ledger: save the events since the snapshot if they are many, and end a hold
        that has no reason any more. Returns whether tables are missing until somebody settles.

        It may take long, so no process that judges calls it.
        """
        shared, line = self._ledger.shared, self._ledger.get_meta(SNAPSHOT_KEY)
        if shared is None or not self.has_work:
            return False
        seq = 0 if line is None else SnapshotStamp.parse(line).seq
        position = shared.head().position
        if line is not None and not seq:  # new tables would lack what still waits
            return shared.waiting()[0] <= min(position // 10, _MAX_TAIL_EVENTS)
        if seq <= position:
            if is_settling_wanted(self._ledger, self.stamp):
                return True
            self._reset()
            self.generation = str(shared.generation)
            self._fold_from(line, position)
            self.save_if_long_tail()
            shared.hold("")
            self.has_work = self.is_current = False
        return False

    # Settling

    def settle(self) -> None:
        """Replay everything in canonical order and publish the outcome.

        Every process takes it up before its next judgement. Reads only the ledger, so it mends
        damaged tables too.
        """
        upto, is_unchanged = self._begin_settling()
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
        if self._ledger.shared is None:  # else all nodes tidy up alike, when this is published
            tidy_up(self._directory, self._ledger, upto, undo_limit(self._ledger))
        elif not self._ledger.shared.waiting()[0]:  # lessons that the log had already add nothing
            self._ledger.drop_meta([_WANTED_KEY])
        self.catch_up()
        self._ledger.skip_own_writes()

    def _begin_settling(self) -> tuple[int, Callable[[], bool]]:
        """The last event to settle, and a test whether the events up to it are what they were."""
        shared = self._ledger.shared
        if shared is None:
            return self._ledger.last_seq(), lambda: True
        generation, mark = shared.generation, shared.head()
        if self._ledger.get_meta("ledger.hold"):
            seq = _parse_if_whole(self._ledger.get_meta(SNAPSHOT_KEY)).seq
            if seq > mark.position:
                raise LedgerError(
                    f"ledger {self._ledger.path}: it is still being copied from the shared log: "
                    "settle when it is complete (`spamguard shared status`)"
                )
        return mark.position, lambda: shared.generation == generation or shared.holds_mark(mark)

    def _is_settled_beyond(self, line: str | None, seq: int) -> bool:
        """Whether another process has settled more.

        A line that is damaged, or names events that the ledger has lost, does not count.
        """
        return seq < _parse_if_whole(line).settled <= self._ledger.last_position()

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
        path = name_snapshot(self._directory, stamp.seq)
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
        lineage = (digest or path.name) if settled else stamp.lineage
        stamp = replace(stamp, file=path.name, lineage=lineage)
        line = install_snapshot(self._directory, self._ledger, stamp, expected, is_valid)
        if line is None:
            return False
        self._snapshot_line, self.stamp, self.tables = line, stamp, tables
        self.seq = self._position = stamp.seq
        self.taken_back = stamp.taken_back
        if self._ledger.shared is not None:
            self._ledger.shared.hold("")
        return True


# ---- the snapshot that counts


def request_settling(ledger: SqliteLedger, shared: SharedLog, last: int = 0) -> None:
    """Have the process that settles do so for all nodes, due or not, when this node has its lessons
    in the log and has read that, and to its end (`last`) if that is known.
    """
    position = max(last, shared.head().position)
    ledger.set_meta(_WANTED_KEY, str(position + shared.waiting()[0]))


def is_settling_wanted(ledger: SqliteLedger, stamp: SnapshotStamp) -> bool:
    """Whether that was requested, and has not been done yet."""
    wanted = int(ledger.get_meta(_WANTED_KEY) or 0)
    return stamp.settled < min(wanted, ledger.last_position())


def _parse_if_whole(line: str | None) -> SnapshotStamp:
    try:
        return SnapshotStamp() if line is None else SnapshotStamp.parse(line)
    except TableError:
        return SnapshotStamp()


def name_snapshot(directory: Path, seq: int) -> Path:
    """The path of a new snapshot of the events up to `seq`."""
    return directory / f"tables-{EXTRACTOR}-{seq}-{secrets.token_hex(4)}.bin"


def install_snapshot(
    directory: Path,
    ledger: SqliteLedger,
    stamp: SnapshotStamp,
    expected: str | None,
    is_valid: Callable[[], bool],
) -> str | None:
    """Give a snapshot its line in the ledger, in the place of the expected one; then remove older
    files. Returns the line; None when another process was first, or when it is not valid by then:
    then its file is removed.
    """
    # Listed before ours counts: a file that another process writes afterwards may be the current
    # one by the time we remove.
    older = [
        path for path in directory.glob(f"tables-{EXTRACTOR}-*.bin") if path.name != stamp.file
    ]
    line = json.dumps(asdict(stamp))
    if not ledger.replace_meta(SNAPSHOT_KEY, expected, line, is_valid):
        _remove_file(directory / stamp.file)
        return None
    for path in older:
        _remove_file(path)
    return line


def undo_limit(ledger: SqliteLedger) -> int:
    """Votes that were replaced before this time, in seconds since 1970, cannot come back."""
    return ledger.trusted_time(time.time()) - UNDO_SECONDS


def tidy_up(directory: Path, ledger: SqliteLedger, settled: int, before: int) -> None:
    """Drop what settled tables make superfluous: events that were superseded before a time, and
    notes and snapshots of older extractors.

    An older version can still make its tables from the ledger.
    """
    ledger.compact(settled, before)
    older = range(1, EXTRACTOR)  # the notes go first, or they would name files that are gone
    # which snapshot counts, and how far older votes were renewed
    ledger.drop_meta(f"{note}.{number}" for number in older for note in ("tables", "renewed"))
    for number in older:
        for path in directory.glob(f"tables-{number}-*.bin"):
            _remove_file(path)


def _remove_file(path: Path) -> None:
    """Remove a snapshot if possible: one file too many does no harm."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
