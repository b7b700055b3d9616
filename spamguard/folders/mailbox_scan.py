"""One mailbox at a time: what came and went since the last scan, and what its user said by that.

`MailboxScanner.scan_due` is the procedure: cast what was left pending, list the folders if that is
due, scan the folders that are due, read what is new, reconcile it with the sightings, teach what
follows from moves, then what follows from evidence. `FilingDetector` sees whether what we call spam
really is put into Junk on delivery, as `we_file` says: where it is not, all spam would pass for
mail that its user has taken out of Junk.

`scan_due` is a generator: each step takes some tenths
of a second, so that no mailbox waits long while another is scanned.

Must never write into a mailbox.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import NamedTuple, TypeVar

from spamguard.config.options import Action, Settings, Watch
from spamguard.engine.filter import Filter
from spamguard.folders.broker import Mailboxes
from spamguard.folders.lessons import STEP_SECONDS, EvidenceTeacher, FolderTeacher
from spamguard.folders.mailboxes import Folder, Mailbox
from spamguard.folders.reconcile import (
    Arrival,
    EvidenceSign,
    FileKey,
    MoveTarget,
    ReconcileRules,
    Sighting,
    evidence_signs,
    reconcile,
)
from spamguard.folders.roles import (
    FolderKind,
    RoleLookup,
    is_next_hop,
    role_lookup,
)
from spamguard.folders.scan import FolderScan, FolderScanner, Issue, clear_issues
from spamguard.folders.sightings import Sightings
from spamguard.log import WarnOnce
from spamguard.sources import is_deleted
from spamguard.storage import batches

_log = logging.getLogger("spamguard.folders")

DEBOUNCE_SECONDS = 1.0  # between the first sign of a change and the scan
RESCAN_SECONDS = 600.0  # between two scans of everything: nothing tells when a folder can be read
RECONCILE_BATCH_SIZE = 1000  # messages of a step: some tenths of a second
OWN_FILES = "our own files"
"""Key of the warning that our own files cannot be read or written."""

_FILING_WINDOW = 5  # messages: what a failing rule leaves in INBOX until then is taught as ham
_FILING_ISSUE, _FOLDERS_ISSUE = "filing", "folders"  # of a mailbox
ResultT = TypeVar("ResultT")
ScanSteps = Generator[None, None, ResultT]
"""Work that goes on by one step each time: some tenths of a second."""


class WatchRule(NamedTuple):
    """What an entry of `watch:` comes to. we_file: as of `ReconcileRules`."""

    watch: Watch
    role: RoleLookup
    we_file: bool
    evidence: frozenset[EvidenceSign]


def watch_rules(settings: Settings, special: Mapping[tuple[str, ...], str]) -> list[WatchRule]:
    """The rules of all entries. special: as of `find_role`."""
    rules = []
    for watch in settings.watch:
        we_file = is_next_hop(watch, settings) if watch.we_file is None else watch.we_file
        rules.append(WatchRule(watch, role_lookup(watch, special), we_file, evidence_signs(watch)))
    return rules


class FilingDetector:
    """Whether the last messages that we tagged as spam were first seen in Junk, or in INBOX."""

    def __init__(self) -> None:
        self._filed: deque[bool] = deque(maxlen=_FILING_WINDOW)

    def observe(self, new: Iterable[Arrival], rules: ReconcileRules) -> None:
        """Take in where messages are seen for the first time that we tagged as spam, and left to
        others to put into Junk. Within one scan, filed messages count as the last.
        """
        targets = [
            rules.target(arrival.folder)
            for arrival in new
            if arrival.signed
            and arrival.signed.label in rules.unwanted
            and arrival.signed.action is Action.TAG
        ]
        self._filed.extend([False] * targets.count(MoveTarget.HAM))
        self._filed.extend([True] * targets.count(MoveTarget.UNWANTED))

    @property
    def is_working(self) -> bool:
        """Whether most of it is filed."""
        return 0 < len(self._filed) <= 2 * sum(self._filed)

    @property
    def is_failing(self) -> bool:
        """Whether more of it is not filed than a user could have moved."""
        return len(self._filed) - sum(self._filed) > 2 and not self.is_working


@dataclass(eq=False)
class MailboxState:
    """What the watcher knows about a mailbox. Times are on the clock of `time.monotonic`.

    next_rescan: when all its folders are scanned, whatever events say. folders_due: when its
    folders are listed. due: folders with changes, each with the time to scan it. work: the rest of
    a scan that is under way; is_new: it is the first ever. has_changes: something has changed that
    was not scanned yet. tended: when its last step was taken.
    """

    mailbox: Mailbox
    next_rescan: float
    folders_due: float = inf
    folders: set[Folder] = field(default_factory=set)
    due: dict[Folder, float] = field(default_factory=dict)
    work: ScanSteps[None] | None = None
    is_new: bool = False
    has_changes: bool = False
    tended: float = 0.0
    filing: FilingDetector = field(default_factory=FilingDetector)

    def schedule_folder(self, folder: Folder, when: float) -> None:
        """Scan a folder at a time, or before."""
        self.due[folder] = min(self.due.get(folder, inf), when)

    @property
    def next_due(self) -> float:
        """When there is something to do for it."""
        if self.work is not None:
            return 0.0
        return min([self.next_rescan, self.folders_due, *self.due.values()])


@dataclass
class MailboxScanner:
    """Scans mailboxes.

    rules: by index of the entry of `watch:`. on_missing: called when a mailbox is gone.
    """

    _filter: Filter
    _rules_by_watch: Sequence[WatchRule]
    _mailboxes: Mailboxes
    _sightings: Sightings
    _scanner: FolderScanner
    _teacher: FolderTeacher
    _evidence_teacher: EvidenceTeacher
    _warnings: WarnOnce
    _on_missing: Callable[[], object]
    _debounce: float

    def scan_due(self, state: MailboxState, now: float) -> ScanSteps[None]:
        """Scan what is due in a mailbox.

        The first step casts the votes that a stop left pending: nothing else is done until
        sightings and ledger agree. MailboxesError, SightingsError, LedgerError, OSError: the next
        scan finds the same.
        """
        if number := self._teacher.cast_pending():
            _log.info(
                "lessons that were decided before a stop or a failure, and are taught now: %d",
                number,
            )
        if min(state.next_rescan, state.folders_due) <= now:
            if state.next_rescan <= now:
                state.next_rescan = now + RESCAN_SECONDS
            state.folders_due = inf
            self._list_folders(state)
        due, state.due = state.due, {}
        if not self._sightings.is_scanned(state.mailbox.path):
            yield from self._scan_first(state) if state.folders else ()
        elif due:
            scan = yield from self._scan(state, due)
            yield from self._teach_moves(state, scan)
            if evidence := self._rule(state.mailbox).evidence:
                yield from self._evidence_teacher.teach(
                    state.mailbox,
                    scan.renamed,
                    evidence,
                    everything=due.keys() >= state.folders,
                )
            if scan.retry_soon:
                # All folders: a message may have moved on from any of them to any other.
                self._schedule(state, due, self._debounce)

    # ---- folders

    def _list_folders(self, state: MailboxState) -> None:
        """Make all folders due that are there, and all in which something was: a new folder may
        have been filled before it was watched.
        """
        mailbox = state.mailbox
        sighted = self._sightings.folders(mailbox.path)
        try:
            folders = set(self._mailboxes.list_folders(mailbox))
        except FileNotFoundError:
            folders = set()
            self._on_missing()
        else:
            if folders:
                self._warnings.clear(Issue(mailbox, _FOLDERS_ISSUE))
            elif sighted:
                self._warnings.warn(
                    Issue(mailbox, _FOLDERS_ISSUE),
                    "%s: none of its folders are there any more, moves teach nothing: is the disk "
                    "mounted? Should mail come back, it is watched again",
                    mailbox.path,
                )
        role = self._rule(mailbox).role
        state.folders = {
            folder for folder in folders if role(folder.directory).kind is not FolderKind.IGNORED
        }
        due = state.folders.union(Folder(mailbox, directory) for directory in sighted)
        concerned = {mailbox} | folders | due
        clear_issues(
            self._warnings,
            lambda issue: issue.mailbox == mailbox and issue.subject not in concerned,
        )
        self._schedule(state, due)

    # ---- scans

    def _scan_first(self, state: MailboxState) -> ScanSteps[None]:
        """Remember what lies where. What moves meanwhile teaches nothing: it may lie in both."""
        mailbox = state.mailbox
        state.is_new = True
        try:
            yield  # before anything is listed: only one new mailbox at a time holds its names
            for folder in sorted(state.folders):
                scan = yield from self._scan(state, [folder])
                for batch in batches(scan.new.items(), RECONCILE_BATCH_SIZE):
                    yield from self._teach_moves(state, FolderScan(dict(batch)), first=True)
        finally:
            state.is_new = False
            # The next scan reports all names as renamed, for the evidence that they show.
            self._scanner.forget_mailbox(mailbox)
        self._sightings.mark_scanned(mailbox.path)
        self._schedule(state, state.folders)
        _log.info(
            "%s: seen for the first time; from now on moving its mail teaches, in the name of %s",
            mailbox.path,
            mailbox.user,
        )

    def _scan(self, state: MailboxState, folders: Iterable[Folder]) -> ScanSteps[FolderScan]:
        evidence, rules = self._rule(state.mailbox).evidence, self._reconcile_rules(state.mailbox)
        scan, until = FolderScan(), time.monotonic() + STEP_SECONDS
        for folder in folders:
            shows_evidence = bool(evidence) and rules.target(folder.directory) is MoveTarget.HAM
            before = self._sightings.name_keys(state.mailbox.path, folder.directory)
            self._scanner.scan(folder, before, scan, with_renamed=shows_evidence)
            if time.monotonic() > until:
                yield
                until = time.monotonic() + STEP_SECONDS
        return scan

    def _teach_moves(
        self, state: MailboxState, scan: FolderScan, *, first: bool = False
    ) -> ScanSteps[None]:
        mailbox, rules = state.mailbox, self._reconcile_rules(state.mailbox)
        arrivals, sighted = yield from self._read_arrivals(mailbox, scan, rules, first=first)
        if not arrivals and not scan.gone:
            return
        new = (arrival for arrival in arrivals if arrival.digest not in sighted)
        filing_works = not first and rules.we_file and self._check_filing(state, new, rules)
        rules = rules._replace(filing_works=filing_works)
        for before, batch in self._reconcile_batches(mailbox.path, arrivals, scan.gone):
            done: set[bytes] = set()
            if self._rule(mailbox).evidence:
                done = self._evidence_teacher.finished_digests(mailbox, before)
            came = self._note_deleted(mailbox, scan, before, batch)
            outcome = reconcile(before, came, scan.gone, rules, int(time.time()), first=first)
            yield from self._teacher.teach(mailbox, outcome, scan, before, done, first=first)
            yield
        self._warnings.clear(OWN_FILES)

    def _read_arrivals(
        self, mailbox: Mailbox, scan: FolderScan, rules: ReconcileRules, *, first: bool
    ) -> ScanSteps[tuple[list[Arrival], set[bytes]]]:
        """Read what is new; the arrivals, and which of their messages the mailbox had before."""
        arrivals: list[Arrival] = []
        sighted: set[bytes] = set()

        def may_teach(arrival: Arrival) -> bool:
            was_sighted = not first and self._sightings.is_known(mailbox.path, arrival.digest)
            if was_sighted:
                sighted.add(arrival.digest)
            return rules.may_teach(arrival, was_sighted=was_sighted)

        until = time.monotonic() + STEP_SECONDS
        for new in scan.new.values():
            if arrival := self._scanner.read_arrival(new, scan, may_teach):
                arrivals.append(arrival)
            if time.monotonic() > until:
                yield
                until = time.monotonic() + STEP_SECONDS
        return arrivals, sighted

    def _note_deleted(
        self,
        mailbox: Mailbox,
        scan: FolderScan,
        before: Iterable[Sighting],
        arrivals: list[Arrival],
    ) -> list[Arrival]:
        """The arrivals, with `deleted` as it is. A folder is listed once."""
        marked = {each.key for each in arrivals if is_deleted(scan.new[each.key].file.name)}
        if not marked:
            return arrivals
        kept = {each.digest for each in arrivals if each.key not in marked}
        digests = {each.digest for each in arrivals if each.key in marked} - kept
        copies = [
            copy
            for copy in before
            if copy.digest in digests and not copy.gone and copy.key not in scan.gone
        ]
        for folder in {copy.folder for copy in copies}:
            names = {copy.name: copy.digest for copy in copies if copy.folder == folder}
            found = self._scanner.find_files(Folder(mailbox, folder), names)
            kept.update(names[name] for name, file in found.items() if not is_deleted(file.name))
        return [
            each._replace(deleted=each.key in marked and each.digest in kept) for each in arrivals
        ]

    def _check_filing(
        self, state: MailboxState, new: Iterable[Arrival], rules: ReconcileRules
    ) -> bool:
        """Whether what we call spam is put into Junk on delivery; warn if most of it is not.

        new: the arrivals of messages that the mailbox never had.
        """
        state.filing.observe(new, rules)
        issue = Issue(state.mailbox, _FILING_ISSUE)
        if state.filing.is_failing:
            self._warnings.warn(
                issue,
                "%s: most of what we call spam comes into INBOX, although `we_file` says that it "
                "is put into Junk on delivery: see the log of what delivers there. Until it is "
                "filed, spam in INBOX is not taken for what somebody has put back",
                state.mailbox.path,
            )
        elif state.filing.is_working:
            self._warnings.clear(issue)
        return state.filing.is_working

    def _reconcile_batches(
        self, mailbox: str, arrivals: Iterable[Arrival], gone: Iterable[FileKey]
    ) -> Iterator[tuple[list[Sighting], list[Arrival]]]:
        """Sightings and arrivals, with all copies of one message in one batch."""
        by_digest: dict[bytes, list[Arrival]] = {}
        for arrival in arrivals:
            by_digest.setdefault(arrival.digest, []).append(arrival)
        waiting = set(gone)
        while by_digest or waiting:
            digests = list(islice(by_digest, RECONCILE_BATCH_SIZE))
            keys = [] if digests else list(islice(waiting, RECONCILE_BATCH_SIZE))
            before = self._sightings.find(mailbox, digests, keys)
            waiting.difference_update(keys, (sighting.key for sighting in before))
            yield before, [arrival for digest in digests for arrival in by_digest.pop(digest)]

    def _schedule(
        self, state: MailboxState, folders: Iterable[Folder], seconds: float = 0.0
    ) -> None:
        when = time.monotonic() + seconds
        for folder in folders:
            state.schedule_folder(folder, when)

    # ---- rules

    def _rule(self, mailbox: Mailbox) -> WatchRule:
        return self._rules_by_watch[mailbox.watch]

    def _reconcile_rules(self, mailbox: Mailbox) -> ReconcileRules:
        rule = self._rule(mailbox)
        return ReconcileRules(rule.role, self._filter.unwanted, rule.we_file)
