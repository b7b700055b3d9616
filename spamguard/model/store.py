"""The tables of this process, kept up with the ledger; and the snapshots that save others the folding.

Every process holds its own tables, so nobody ever reads half a lesson. Only whoever teaches writes snapshots; judging never
writes. Which snapshot counts is a line in the ledger, replaced only if it is still the one expected, so that of two
writers one wins and the settled state is never overtaken by an older one.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from spamguard.bayes import fusion
from spamguard.bayes.replay import LEARNER
from spamguard.bayes.tables import Tables, empty_tables
from spamguard.errors import LedgerError, TableError, remedy
from spamguard.files import sweep_drafts
from spamguard.ledger import SqliteLedger
from spamguard.mail.traits import NUMBERS, TRAITS
from spamguard.model import loss, snapshot
from spamguard.model.fold import fold, settled
from spamguard.records import EXTRACTOR

_log = logging.getLogger("spamguard.model")

_KEY = f"tables.{EXTRACTOR}"
NOTES = ("tables", "goodmail", "renewed")
"""What the ledger notes, each of one extractor: which snapshot counts, how good mail looked, how far older votes were renewed."""
_LONG_TAIL = 2000  # events folded at opening in about 0.3 s; more are saved as a snapshot
_ATTEMPTS = 5
KEPT_SECONDS = 30 * 86_400  # for so long a vote that was replaced can come back (`undo`)


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a snapshot holds. file: its name. seq: last event folded. settled: last event of the settled state it descends
    from; lineage: that state's own name. Same lineage and same seq mean the same bits. learner: version of what settled it.
    taken_back: lessons that were, for none, since it was settled."""

    file: str = ""
    seq: int = 0
    settled: int = 0
    lineage: str = ""
    learner: int = LEARNER
    taken_back: int = 0


class TableStore:
    """This process's tables. directory: where snapshots lie. least: size of tables of few lessons, 2**least buckets; how large they
    are, the tables say: each settling may change it. durable: snapshots are on the disk before they count. Starts empty."""

    def __init__(self, directory: Path, ledger: SqliteLedger, least: int, *, durable: bool) -> None:
        self._directory = directory
        self._ledger = ledger
        self._durable = durable
        self.least = least
        self._current = False  # whether all that is known to have been committed is folded
        self._start_again()

    def _start_again(self) -> None:
        self._line: str | None = None  # the ledger's line about the snapshot that we descend from
        self.stamp = Stamp()
        self.seq = 0  # last event folded
        self.taken_back = 0  # lessons, for none, since the last settling
        self.tables = empty_tables(self.least, len(TRAITS), len(NUMBERS), fusion.START)

    @property
    def unsettled(self) -> int:
        """Events folded since the last settling."""
        return self.seq - self.stamp.settled

    @property
    def is_of_another_learner(self) -> bool:
        """Whether a version has settled that learns otherwise than this one."""
        return self.stamp.learner != LEARNER

    def refresh(self) -> bool:
        """Fold what was taught since the last call, here or in another process; whether anything was committed at all.

        Microseconds when nothing was. What could not be folded is tried again at the next call.
        """
        if self._ledger.grown():
            self._current = False
        if self._current:
            return False
        self.catch_up()
        return True

    def catch_up(self) -> None:
        """Take the current snapshot and fold the events after it. TableError, LedgerError: one of them is damaged."""
        for attempt in range(1, _ATTEMPTS + 1):
            line = self._ledger.get_meta(_KEY)
            from_nothing = self.seq == 0
            try:
                self._fold_from(line)
            except (LedgerError, TableError):
                # What we held may not fit the ledger any more (an older one was restored), or a newer snapshot was published
                # meanwhile and what it replaces removed.
                if attempt == _ATTEMPTS or (from_nothing and self._ledger.get_meta(_KEY) == line):
                    raise
            else:
                return

    def _fold_from(self, line: str | None) -> None:
        try:
            self._take_snapshot(line)
            changes = self._ledger.changes_after(self.seq, extractor=EXTRACTOR)
            settled = self.stamp.settled
            last, taken_back = fold(self.tables, changes, lambda digest, seq: self._ledger.touched(digest, settled, seq))
            self.seq, self.taken_back = last or self.seq, self.taken_back + taken_back
            self._current = True
        except BaseException:
            self._start_again()  # some of it may have been folded already: nothing may ever be folded twice
            raise

    def _take_snapshot(self, line: str | None) -> None:
        """Map the ledger's current snapshot, unless what we hold descends from the same settled state and is ahead of it."""
        if line is None or line == self._line:
            return
        stamp = _stamp(line)
        if stamp.lineage != self.stamp.lineage or stamp.seq > self.seq:
            self.tables = snapshot.read(self._directory / stamp.file)
            self.seq, self.taken_back = stamp.seq, stamp.taken_back
        self._line, self.stamp = line, stamp

    def save_long_tail(self) -> None:
        """Write a snapshot when opening would have to fold many events; call it after teaching."""
        if self.seq - self.stamp.seq >= _LONG_TAIL:
            stamp = self._new_stamp(self.seq, self.stamp.settled, self.stamp.lineage)
            self._publish(self.tables, replace(stamp, learner=self.stamp.learner, taken_back=self.taken_back), self._line)

    def settle(self) -> None:
        """Replay everything in canonical order and publish the outcome; every process swaps before its next judgement.

        Looks at nothing but the ledger, so it mends damaged tables too.
        """
        upto = self._ledger.last_seq()
        try:
            self._publish_settled(settled(self._ledger, upto, self.least), upto)
        except LedgerError:
            if not self._settled_later(self._ledger.get_meta(_KEY), upto):
                raise  # else another process has settled more meanwhile, and compacted what we were reading
        self._ledger.compact(upto, self._ledger.believed(time.time()) - KEPT_SECONDS)
        self._drop_older_extractors()
        self.catch_up()

    def _drop_older_extractors(self) -> None:
        """What nobody reads any more, since there are settled tables of this one. Should somebody go back, the ledger is still there:
        so the notes go first, which would name files that are not."""
        older = range(1, EXTRACTOR)
        self._ledger.drop_meta(f"{note}.{number}" for number in older for note in NOTES)
        for number in older:
            for path in self._directory.glob(f"tables-{number}-*.bin"):
                _remove(path)

    def _publish_settled(self, tables: Tables, upto: int) -> None:
        lineage = secrets.token_hex(8)
        line = self._ledger.get_meta(_KEY)
        while not self._settled_later(line, upto) and not self._publish(tables, self._new_stamp(upto, upto, lineage), line):
            line = self._ledger.get_meta(_KEY)

    def _settled_later(self, line: str | None, seq: int) -> bool:
        """Whether another process has settled more. A line that is damaged, or names events that the ledger has lost, does not count."""
        with suppress(TableError):
            return line is not None and seq < _stamp(line).settled <= self._ledger.last_seq()
        return False

    def adopt(self, tables: Tables) -> None:
        """Publish tables from elsewhere as if they were what the events so far had taught."""
        seq = self._ledger.last_seq()
        lineage = secrets.token_hex(8)
        while not self._publish(tables, self._new_stamp(seq, seq, lineage), self._ledger.get_meta(_KEY)):
            pass  # somebody else was first: what is adopted last counts

    def _new_stamp(self, seq: int, settled_to: int, lineage: str) -> Stamp:
        return Stamp(f"tables-{EXTRACTOR}-{seq}-{secrets.token_hex(4)}.bin", seq, settled_to, lineage)

    def _publish(self, tables: Tables, stamp: Stamp, expected: str | None) -> bool:
        """Write a snapshot and give it its line in the ledger, unless somebody else was first; older files are removed."""
        path = self._directory / stamp.file
        try:
            sweep_drafts(self._directory)  # first: on a disk that they have filled nothing could be written
            snapshot.write(path, tables, durable=self._durable)
        except OSError as error:
            told = remedy(error, "look at the disk and its permissions")
            raise TableError(f"{path}: cannot be written ({error.strerror}); what was taught is safe in the ledger: {told}") from error
        line = json.dumps(asdict(stamp))
        # Listed before ours counts: what another process writes afterwards may be the current one by the time we remove.
        older = [other for other in self._directory.glob(f"tables-{EXTRACTOR}-*.bin") if other != path]
        if not self._ledger.replace_meta(_KEY, expected, line):
            _remove(path)  # unless the faster one has done it already
            return False
        self._line, self.stamp, self.tables, self.seq, self.taken_back = line, stamp, tables, stamp.seq, stamp.taken_back
        self._note_loss()
        for other in older:
            _remove(other)
        return True

    def _note_loss(self) -> None:
        """Before the files that prove it are removed."""
        if (found := loss.note(self._directory, self._ledger)) is not None:
            _log.error("%s: %s: %s", self._ledger.path, loss.describe(found), loss.REMEDY)


def _remove(path: Path) -> None:
    """One file too many harms nobody, and what counts has been published."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _stamp(line: str) -> Stamp:
    try:
        said = {"learner": 0, "taken_back": 0, **json.loads(line)}  # the first versions did not say that
        return Stamp(**{field.name: said[field.name] for field in fields(Stamp)})  # later ones may say more
    except (ValueError, TypeError, KeyError) as error:
        raise TableError(f"the ledger's note of its tables cannot be read ({error}): run `spamguard rebuild`") from error
