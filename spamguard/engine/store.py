"""The state directory: the tables of this process, kept up with the ledger, and their snapshots.

Every process holds its own tables, so nobody reads half a lesson. Snapshots save other processes
the folding. Only teaching writes them; judging never writes. A line in the ledger says which
snapshot counts. It is replaced only if it is still the line expected, so of two writers one wins
and an older settled state never replaces a newer one.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from spamguard.bayes import fusion
from spamguard.bayes.replay import LEARNER_VERSION
from spamguard.bayes.tables import Tables, empty_tables
from spamguard.engine import snapshot
from spamguard.engine.fold import build_tables, fold_changes
from spamguard.errors import LedgerError, TableError, remedy
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.mail.content import NUMBERS, TRAITS
from spamguard.records import EXTRACTOR, TOKEN_SETS, Status
from spamguard.storage import remove_stale_drafts

_log = logging.getLogger("spamguard.model")

BITS_RANGE = range(8, 29)
"""Sizes of tables: fewer buckets than 2**8 tell no words apart, more than 2**28 take gigabytes."""
META_PREFIXES = ("tables", "goodmail", "renewed")
"""Notes of the ledger that belong to one extractor.

They say which snapshot counts, how good mail looked, and how far older votes were renewed.
"""
UNDO_SECONDS = 30 * 86_400  # for so long a vote that was replaced can come back (`undo`)
_DIRECTORY_REMEDY = "choose a state directory you may write to"
_SNAPSHOT_KEY = f"tables.{EXTRACTOR}"
_MAX_TAIL_EVENTS = 2000  # events folded at opening in about 0.3 s; more are saved as a snapshot
_MAX_ATTEMPTS = 5


# ---- the directory


def make_state_directory(place: Path) -> None:
    """Make a state directory if it is not there yet. LedgerError: there cannot be one."""
    with _map_directory_errors(place):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)


def is_new_state(place: Path, ledger: Path) -> bool:
    """Whether there is no ledger yet; its directory is made. LedgerError: it cannot be used."""
    make_state_directory(place)
    with _map_directory_errors(place):
        return not ledger.exists()


@contextmanager
def _map_directory_errors(place: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise LedgerError(f"{place}: is no directory: {_DIRECTORY_REMEDY}") from error
    except OSError as error:
        advice = remedy(error, _DIRECTORY_REMEDY)
        raise LedgerError(f"{place}: cannot be used ({error.strerror}): {advice}") from error


def snapshot_bytes(place: Path) -> int:
    """The bytes of the snapshots on the disk, without holes."""
    size = 0
    for path in place.glob("tables-*.bin"):
        with suppress(FileNotFoundError):  # another process has replaced it
            size += 512 * path.stat().st_blocks
    return size


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


@dataclass(frozen=True, slots=True)
class SnapshotStamp:
    """The contents of a snapshot.

    file: its name. seq: the last event folded. settled: the last event of the settled state it
    descends from; lineage: the name of that state. Same lineage and same seq mean the same bits.
    learner: version of what settled it. taken_back: lessons taken back since then, without another
    in their place.
    """

    file: str = ""
    seq: int = 0
    settled: int = 0
    lineage: str = ""
    learner: int = LEARNER_VERSION
    taken_back: int = 0

    @classmethod
    def parse(cls, line: str) -> SnapshotStamp:
        """Read a line of the ledger. TableError: it is damaged."""
        try:
            # the first versions had fewer fields, later ones may have more
            values = {"learner": 0, "taken_back": 0, **json.loads(line)}
            return cls(**{field.name: values[field.name] for field in fields(cls)})
        except (ValueError, TypeError, KeyError) as error:
            raise TableError(
                f"the ledger's note of its tables cannot be read ({error}): run `spamguard rebuild`"
            ) from error


class TableStore:
    """This process's tables. They start empty; `catch_up` loads and folds.

    Parameters
    ----------
    directory : where snapshots lie.
    min_bits : tables of few lessons have 2**min_bits buckets. Each settling may change the size;
        `tables.bits` has it.
    durable : snapshots are on the disk before they count.
    """

    def __init__(
        self, directory: Path, ledger: SqliteLedger, min_bits: int, *, durable: bool
    ) -> None:
        self._directory = directory
        self._ledger = ledger
        self._durable = durable
        self.min_bits = min_bits
        self._is_current = False  # whether all that is known to have been committed is folded
        self._reset()

    def _reset(self) -> None:
        self._snapshot_line: str | None = None  # the line of the snapshot these tables come from
        self.stamp = SnapshotStamp()
        self.seq = 0  # last event folded
        self.taken_back = 0  # lessons, since the last settling, without another in their place
        self.tables = empty_tables(self.min_bits, len(TRAITS), len(NUMBERS), fusion.START_WEIGHTS)

    @property
    def unsettled(self) -> int:
        """Events folded since the last settling."""
        return self.seq - self.stamp.settled

    @property
    def has_other_learner(self) -> bool:
        """Whether a version has settled that learns otherwise than this one."""
        return self.stamp.learner != LEARNER_VERSION

    def refresh(self) -> bool:
        """Fold what was taught since the last call, here or in another process.

        Returns whether anything was committed at all; takes microseconds when nothing was. Events
        that could not be folded are tried again at the next call.
        """
        if self._ledger.has_grown():
            self._is_current = False
        if self._is_current:
            return False
        self.catch_up()
        return True

    def catch_up(self) -> None:
        """Map the current snapshot and fold the events after it.

        TableError, LedgerError: one of them is damaged.
        """
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            line = self._ledger.get_meta(_SNAPSHOT_KEY)
            from_nothing = self.seq == 0
            try:
                self._fold_from(line)
            except (LedgerError, TableError):
                # Our tables may not fit the ledger any more (an older one was restored), or a
                # newer snapshot was published meanwhile and the older one removed.
                unchanged = from_nothing and self._ledger.get_meta(_SNAPSHOT_KEY) == line
                if attempt == _MAX_ATTEMPTS or unchanged:
                    raise
            else:
                return

    def _fold_from(self, line: str | None) -> None:
        try:
            self._map_snapshot(line)
            settled = self.stamp.settled
            last, taken_back = fold_changes(
                self.tables,
                self._ledger.changes_after(self.seq, extractor=EXTRACTOR),
                lambda digest, seq: self._ledger.has_event_between(digest, settled, seq),
            )
            self.seq, self.taken_back = last or self.seq, self.taken_back + taken_back
            self._is_current = True
        except BaseException:
            self._reset()  # some of it may be folded already, and nothing may be folded twice
            raise

    def _map_snapshot(self, line: str | None) -> None:
        """Map the current snapshot, unless our tables are ahead of it in the same lineage."""
        if line is None or line == self._snapshot_line:
            return
        stamp = SnapshotStamp.parse(line)
        if stamp.lineage != self.stamp.lineage or stamp.seq > self.seq:
            self.tables = snapshot.read_snapshot(self._directory / stamp.file)
            self.seq, self.taken_back = stamp.seq, stamp.taken_back
        self._snapshot_line, self.stamp = line, stamp

    def save_if_long_tail(self) -> None:
        """Write a snapshot when opening would have to fold many events; call it after teaching."""
        if self.seq - self.stamp.seq >= _MAX_TAIL_EVENTS:
            stamp = replace(
                self._new_stamp(self.seq, self.stamp.settled, self.stamp.lineage),
                learner=self.stamp.learner,
                taken_back=self.taken_back,
            )
            self._publish(self.tables, stamp, self._snapshot_line)

    # Settling

    def settle(self) -> None:
        """Replay everything in canonical order and publish the outcome.

        Every process takes it up before its next judgement. Reads only the ledger, so it mends
        damaged tables too.
        """
        upto = self._ledger.last_seq()
        try:
            settled = build_tables(self._ledger, upto, self.min_bits)
            lineage = secrets.token_hex(8)
            line = self._ledger.get_meta(_SNAPSHOT_KEY)
            while not self._is_settled_beyond(line, upto):
                if self._publish(settled, self._new_stamp(upto, upto, lineage), line):
                    break
                line = self._ledger.get_meta(_SNAPSHOT_KEY)
        except LedgerError:
            # unless another process has settled more meanwhile, and compacted what we were reading
            if not self._is_settled_beyond(self._ledger.get_meta(_SNAPSHOT_KEY), upto):
                raise
        self._ledger.compact(upto, self._ledger.trusted_time(time.time()) - UNDO_SECONDS)
        self._drop_older_extractors()
        self.catch_up()

    def _drop_older_extractors(self) -> None:
        """Remove notes and snapshots of older extractors, now that there are settled tables.

        The notes go first, or they would name files that are gone. An older version can still make
        its tables from the ledger.
        """
        older = range(1, EXTRACTOR)
        self._ledger.drop_meta(f"{note}.{number}" for number in older for note in META_PREFIXES)
        for number in older:
            for path in self._directory.glob(f"tables-{number}-*.bin"):
                _remove_file(path)

    def _is_settled_beyond(self, line: str | None, seq: int) -> bool:
        """Whether another process has settled more.

        A line that is damaged, or names events that the ledger has lost, does not count.
        """
        with suppress(TableError):
            return (
                line is not None
                and seq < SnapshotStamp.parse(line).settled <= self._ledger.last_seq()
            )
        return False

    def adopt(self, tables: Tables) -> None:
        """Publish tables from elsewhere as if the events so far had taught them."""
        seq = self._ledger.last_seq()
        lineage = secrets.token_hex(8)
        while not self._publish(
            tables, self._new_stamp(seq, seq, lineage), self._ledger.get_meta(_SNAPSHOT_KEY)
        ):
            pass  # another process was first: the last to adopt counts

    def _new_stamp(self, seq: int, settled: int, lineage: str) -> SnapshotStamp:
        file = f"tables-{EXTRACTOR}-{seq}-{secrets.token_hex(4)}.bin"
        return SnapshotStamp(file, seq, settled, lineage)

    def _publish(self, tables: Tables, stamp: SnapshotStamp, expected: str | None) -> bool:
        """Write a snapshot and give it its line in the ledger; then remove older files.

        Returns False when another process was first.
        """
        path = self._directory / stamp.file
        try:
            # drafts first: on a disk that they have filled nothing could be written
            remove_stale_drafts(self._directory)
            snapshot.write_snapshot(path, tables, durable=self._durable)
        except OSError as error:
            advice = remedy(error, "look at the disk and its permissions")
            raise TableError(
                f"{path}: cannot be written ({error.strerror}); "
                f"what was taught is safe in the ledger: {advice}"
            ) from error
        # Listed before ours counts: a file that another process writes afterwards may be the
        # current one by the time we remove.
        paths = self._directory.glob(f"tables-{EXTRACTOR}-*.bin")
        older = [other for other in paths if other != path]
        line = json.dumps(asdict(stamp))
        if not self._ledger.replace_meta(_SNAPSHOT_KEY, expected, line):
            _remove_file(path)
            return False
        self._snapshot_line, self.stamp, self.tables = line, stamp, tables
        self.seq, self.taken_back = stamp.seq, stamp.taken_back
        loss = snapshot.record_loss(self._directory, self._ledger)
        if loss is not None:  # noted before the files that prove it are removed
            what = snapshot.describe_loss(loss)
            _log.error("%s: %s: %s", self._ledger.path, what, snapshot.LOSS_REMEDY)
        for other in older:
            _remove_file(other)
        return True


def _remove_file(path: Path) -> None:
    """Remove a snapshot if possible: one file too many does no harm."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def filter_status(
    place: Path, ledger: SqliteLedger, store: TableStore, unwanted: frozenset[str]
) -> Status:
    """What a filter knows and how full it is, as far as the store has folded its ledger."""
    tables = store.tables
    quarter = len(tables.rows) // len(tables.vocabulary)
    defined = dict.fromkeys(ledger.classes(), 0)
    taught = dict(zip(tables.classes, tables.messages.tolist(), strict=True))
    return Status(
        classes=defined | taught,
        unwanted=unwanted,
        buckets=len(tables.rows),
        vocabulary=dict(zip(TOKEN_SETS, tables.vocabulary.tolist(), strict=True)),
        used=dict(zip(TOKEN_SETS, (tables.vocabulary / quarter).tolist(), strict=True)),
        events=ledger.last_seq(),
        unsettled=store.unsettled,
        ledger_bytes=ledger.file_bytes(),
        tables_bytes=snapshot_bytes(place),
        extractor=EXTRACTOR,
        fingerprint=ledger.fingerprint,
    )
