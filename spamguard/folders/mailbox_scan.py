"""Looking for evidence: messages that somebody answered, flagged, read and left, or gave a keyword,
taught once as that says.

It is weaker than any word of a person: of a message about which its user has ever said anything, or
taken back what was said, it teaches nothing. Only names of files tell it; a message is read when it
is to be taught, and at no other time.

Looking at one mailbox: what has come and gone in its folders since the last look, and what a person
said by that.

Must never write into a mailbox, and takes every look in small steps, so that no mailbox waits long
while another is looked at.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import NamedTuple, TypeVar

import numpy as np

from spamguard.engine.filter import Filter
from spamguard.folders.lessons import STEP_SECONDS, FolderTeacher
from spamguard.folders.mailboxes import (
    DOUBT,
    Folder,
    FolderKind,
    Issue,
    Mailbox,
    Mailboxes,
    Role,
    clear_issues,
    describe_folder,
    display_folder,
    parse_file_name,
)
from spamguard.folders.reconcile import (
    EVIDENCE_LABELS,
    Arrival,
    EvidenceSign,
    FileKey,
    FilingDetector,
    FolderLesson,
    MoveTarget,
    ReconcileRules,
    Sighting,
    reconcile,
    tagged_spam,
)
from spamguard.folders.roles import EvidenceRule, WatchRule, choose_sign, find_signs
from spamguard.folders.scan import FolderScan, FolderScanner, FoundFile
from spamguard.folders.sightings import EVIDENCE_DONE, Sightings
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.log import WarnOnce
from spamguard.storage import batches

_log = logging.getLogger("spamguard.folders")


EVIDENCE_BATCH_SIZE = 200  # messages asked about, and taught, at once
_NO_KEYWORD_NAMES = (
    "%s: messages have keywords, but no dovecot-keywords says which: spam_evidence teaches nothing there. Dovecot's CONTROL= (since 2.4 "
    "mail_control_path) keeps that file elsewhere: leave it out, or let Dovecot tell by IMAPSieve"
)


class _EvidenceFile(NamedTuple):
    """A message and what it shows."""

    found_file: FoundFile
    signs: frozenset[EvidenceSign]


class EvidenceTeacher:
    """Weighs the evidence in mailboxes."""

    def __init__(
        self,
        mailboxes: Mailboxes,
        ledger: SqliteLedger,
        sightings: Sightings,
        scanner: FolderScanner,
        teacher: FolderTeacher,
        warnings: WarnOnce,
    ) -> None:
        self._mailboxes = mailboxes
        self._ledger = ledger
        self._sightings = sightings
        self._scanner = scanner
        self._teacher = teacher
        self._warnings = warnings
        self._nameless: set[Folder] = set()  # with keywords, whose names are not there
        self._warned_watches: set[int] = set()  # entries of `watch` of which that was said

    def prepare(self, place: Folder, what: EvidenceRule) -> None:
        """Before a look: where messages were read long enough ago, all names are to be told."""
        long_ago = time.time() - what.read_after
        if EvidenceSign.READ in what.signs and self._sightings.has_mark_before(
            place.mailbox.path, place.directory, long_ago
        ):
            self._scanner.forget_folder(place)

    def teach(
        self,
        mailbox: Mailbox,
        renamed: Mapping[Folder, Sequence[FoundFile]],
        into: Callable[[Folder], MoveTarget],
        what: EvidenceRule,
        *,
        everything: bool,
    ) -> Generator[None, None, None]:
        """Teach what the messages of changed names show, some at a step. everything: they are all
        that there are.

        What is there when all of a mailbox is looked at for this evidence for the first time
        teaches nothing. LedgerError, SightingsError: what was not taught shows again once
        `Scanner.forget` was called.
        """
        begun = self._sightings.evidence_rule(mailbox.path) == str(what)
        for place, found in renamed.items():
            for some in batches(
                list(self._find_evidence(place, found, into(place), what)), EVIDENCE_BATCH_SIZE
            ):
                marks = dict.fromkeys((one.found_file.name for one in some), EVIDENCE_DONE)
                if begun:
                    marks = yield from self._teach_batch(place, some, into(place), what)
                self._sightings.update_marks(mailbox.path, place.directory, marks, ())
                yield
        if everything and not begun:
            self._sightings.set_evidence_rule(mailbox.path, str(what))

    def finished_digests(self, mailbox: Mailbox, copies: Iterable[Sighting]) -> set[bytes]:
        """Of which messages the evidence teaches nothing any more, by what is remembered of them.

        New copies of them get the same mark (`Sightings.update`): what showed evidence before that
        was asked for teaches nothing wherever it is moved.
        """
        marks = self._sightings.read_marks
        return {
            one.digest
            for one in copies
            if marks(mailbox.path, one.folder, [one.name]).get(one.name) == EVIDENCE_DONE
        } - {b""}

    def _find_evidence(
        self, place: Folder, found: Sequence[FoundFile], into: MoveTarget, what: EvidenceRule
    ) -> Iterator[_EvidenceFile]:
        """Those of which anything may be learnt yet."""
        last = {one.name: one for one in found}  # of a name in `new` and in `cur` the latter
        keywords = self._read_keywords(place, last.values(), what)
        keys = np.fromiter(last, np.int64, len(last))
        there = keys[
            np.isin(keys, self._sightings.name_keys(place.mailbox.path, place.directory))
        ].tolist()
        marks = self._sightings.read_marks(place.mailbox.path, place.directory, there)
        over: set[int] = set()  # marks that are of no more use
        for key in there:
            if marks.get(key) == EVIDENCE_DONE:
                continue
            shows = frozenset(
                sign
                for sign in find_signs(_file_flags(last[key]), keywords, what)
                if (sign, into) in EVIDENCE_LABELS
            )
            if EvidenceSign.READ not in shows and key in marks:
                over.add(key)
            if shows:
                yield _EvidenceFile(last[key], shows)
        self._sightings.update_marks(place.mailbox.path, place.directory, {}, over)

    def _read_keywords(
        self, place: Folder, found: Iterable[FoundFile], what: EvidenceRule
    ) -> Mapping[str, str]:
        """Names of the keywords that these messages have. Where one is not known yet, all are told
        again at the next look.
        """
        letters = (
            {letter for one in found for letter in _file_flags(one) if letter.islower()}
            if what.keywords
            else set()
        )
        if not letters:
            return {}
        try:
            keywords = self._mailboxes.read_keywords(place)
        except FileNotFoundError:
            return {}
        except OSError as error:
            closed = "%s: keywords cannot be read (%s): they teach nothing"
            self._warnings.warn(
                Issue(place, "keywords", transient=True),
                closed,
                describe_folder(place),
                error.strerror,
            )
            keywords = {}
        else:
            self._warn_nameless(place, keywords)
        if letters - keywords.keys():
            self._scanner.forget_folder(place)
        return keywords

    def _warn_nameless(self, place: Folder, keywords: Mapping[str, str]) -> None:
        """Once for each entry of `watch`, when there are no names at the second look either: at the
        first they may be on their way.
        """
        if keywords:
            self._nameless.discard(place)
        elif place not in self._nameless:
            self._nameless.add(place)
        elif place.mailbox.watch not in self._warned_watches:
            self._warned_watches.add(place.mailbox.watch)
            self._warnings.warn(
                Issue(place, "names", transient=True), _NO_KEYWORD_NAMES, describe_folder(place)
            )

    def _teach_batch(
        self, place: Folder, shown: Sequence[_EvidenceFile], into: MoveTarget, what: EvidenceRule
    ) -> Generator[None, None, dict[int, int]]:
        """Teach them; the marks to be made."""
        user, now = place.mailbox.user, int(time.time())
        marks = self._read_times(place, shown, now)
        said = {
            one.found_file.name: _choose_sign(one, into, marks, now - what.read_after)
            for one in shown
        }
        digests = self._sightings.find_digests(
            place.mailbox.path, place.directory, [name for name, lesson in said.items() if lesson]
        )
        heard = {
            digest for digest in digests.values() if self._ledger.get_vote(digest, user) is not None
        }
        lessons: dict[bytes, tuple[FolderLesson, FoundFile]] = {}
        for one in shown:
            telling, digest = said[one.found_file.name], digests.get(one.found_file.name, b"")
            if telling and digest and digest not in heard:
                sign, label = telling
                lessons.setdefault(
                    digest,
                    (
                        FolderLesson(
                            digest,
                            label,
                            place.directory,
                            one.found_file.name,
                            str(sign),
                            str(sign),
                        ),
                        one.found_file,
                    ),
                )
        done = heard | (
            yield from self._teacher.teach_evidence(place.mailbox, list(lessons.values()))
        )
        return marks | {name: EVIDENCE_DONE for name, digest in digests.items() if digest in done}

    def _read_times(
        self, place: Folder, shown: Sequence[_EvidenceFile], now: int
    ) -> dict[int, int]:
        """When those that are read were first seen so; a clock that was wrong makes none wait for
        longer than it has to.
        """
        names_read = {one.found_file.name for one in shown if EvidenceSign.READ in one.signs}
        known = self._sightings.read_marks(place.mailbox.path, place.directory, names_read)
        return {name: min(known.get(name, now), now) for name in names_read}


def _choose_sign(
    one: _EvidenceFile, into: MoveTarget, read: Mapping[int, int], long_ago: float
) -> tuple[EvidenceSign, str] | None:
    left = read.get(one.found_file.name, 0) <= long_ago
    return choose_sign(one.signs if left else one.signs - {EvidenceSign.READ}, into)


def _file_flags(found: FoundFile) -> str:
    name = parse_file_name(found.file.name)
    return name.flags if name else ""


# messages read at once: some tenths of a second, in which other mailboxes wait; of large ones fewer
READ_BATCH_SIZE = 200
RECONCILE_BATCH_SIZE = 1000  # messages whose comings and goings are thought about at once: the same
OWN_FILES = "our own files"
"""What is warned of when they cannot be read or written."""

_FILING_ISSUE, _FOLDERS_ISSUE = "filing", "folders"  # of a mailbox
_NOT_FILED_WARNING = (
    "%s: most of what we call spam comes into INBOX, although `we_file` says that it is put into Junk on delivery: see the log of what "
    "delivers there. Until it is filed, spam in INBOX is not taken for what somebody has put back"
)
_EMPTY_WARNING = "%s: none of its folders are there any more, moves teach nothing: is the disk mounted? Should mail come back, it is watched again"

_MAX_DOUBTS = 20
_DOUBTFUL_WARNING = (
    "%s %s: nothing says what this folder is for, so what is moved into it teaches nothing: if people put spam there, say so under `watch` "
    "(folders: {'%s': spam}), if not, that it is neutral"
)


FIRST_RETRY_SECONDS = 5.0  # before what could not be looked at is tried again
ResultT = TypeVar("ResultT")
ScanSteps = Generator[None, None, ResultT]
"""Goes on by a step each time: some tenths of a second."""


@dataclass(slots=True, eq=False)
class MailboxState:
    """What the loop knows of a mailbox. Times are those of `time.monotonic`.

    next_rescan: when all its folders are looked at, whatever was told. folders_due: when it is
    looked for folders that came or went. places: its folders. due: those with changes, each with
    the time to look at it. work: the rest of a look that is under way. is_new: that is the first
    look ever. told: something has changed that was not looked at yet. tended: when its last step
    was taken. planned: times at which it stands on the schedule's heap, latest first. closed: it
    lies below a directory that cannot be looked at. pause: seconds before a folder that could not
    be looked at is tried again, 0 while all can be.
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
    heap_times: list[float] = field(default_factory=list)
    unreadable: bool = False
    pause: float = 0.0
    filing: FilingDetector = field(default_factory=FilingDetector)

    def schedule_folder(self, place: Folder, when: float) -> None:
        """Look at a folder at a time, or before."""
        self.due[place] = min(self.due.get(place, inf), when)

    @property
    def next_due(self) -> float:
        """When something is to be done about it."""
        if self.unreadable:
            return inf
        if self.work is not None:
            return 0.0
        return min([self.next_rescan, self.folders_due, *self.due.values()])


def next_pause(pause: float, max_pause: float) -> float:
    """The next pause before something is tried again; the one before, at first 0."""
    return min(max(FIRST_RETRY_SECONDS, 2 * pause), max_pause)


class MailboxScanner:
    """Looks at mailboxes, a step of one at a time. entries: those of `watch`. missed: called when
    there is no such mailbox any more.
    """

    def __init__(
        self,
        spam_filter: Filter,
        rules: Sequence[WatchRule],
        mailboxes: Mailboxes,
        sightings: Sightings,
        scanner: FolderScanner,
        teacher: FolderTeacher,
        warnings: WarnOnce,
        on_missing: Callable[[], object],
    ) -> None:
        self._filter = spam_filter
        self._rules_by_watch = rules
        self._mailboxes = mailboxes
        self._sightings = sightings
        self._scanner = scanner
        self._teacher = teacher
        self._warnings = warnings
        self._on_missing = on_missing
        self._evidence_teacher = EvidenceTeacher(
            mailboxes, spam_filter.ledger, sightings, scanner, teacher, warnings
        )
        self._doubts: set[str] = set()  # names of folders that the log has heard of

    def scan_due(self, box: MailboxState, now: float) -> ScanSteps[None]:
        """At what is due in a mailbox. MailboxesError, SightingsError, LedgerError, OSError: the
        same is found at the next look.

        The first step of every look makes up for one that was stopped: until sightings and ledger
        agree, nothing else is looked at.
        """
        self._teacher.cast_leftovers()
        if min(box.next_rescan, box.folders_due) <= now:
            box.next_rescan = (
                now + self._rule(box.mailbox).watch.rescan
                if box.next_rescan <= now
                else box.next_rescan
            )
            box.folders_due = inf
            self._find_folders(box)
        due, box.due = box.due, {}
        if not self._sightings.is_scanned(box.mailbox.path):
            yield from self._scan_first(box) if box.folders else ()
        elif due:
            looked = yield from self._scan(box, due)
            yield from self._teach_moves(box, looked)
            everything = due.keys() >= box.folders
            yield from self._teach_evidence(box, looked, everything=everything)
            if looked.unreadable:
                box.pause = next_pause(box.pause, self._rule(box.mailbox).watch.rescan)
                box.folders_due = min(box.folders_due, time.monotonic() + box.pause)
            elif everything:
                box.pause = 0.0
            # all of them: a message that has moved on may have gone from any of these folders to
            # any other
            if looked.retry_soon:
                self._schedule(box, due, self._rule(box.mailbox).watch.debounce)

    def _find_folders(self, box: MailboxState) -> None:
        """Look at all folders there are, and at all in which something was: what is new may have
        been filled before it was watched.
        """
        known = self._sightings.folders(box.mailbox.path)
        try:
            found = set(self._mailboxes.list_folders(box.mailbox))
        except FileNotFoundError:  # should it come back, that is told once it was missed
            found = set()
            self._on_missing()
        else:
            self._warn_empty(box.mailbox, now_empty=not found, was_empty=not known)
        self._warn_doubtful(sorted(found))
        box.folders = {place for place in found if self._role(place).kind is not FolderKind.IGNORED}
        to_look_at = box.folders.union(Folder(box.mailbox, directory) for directory in known)
        concerned = {box.mailbox} | found | to_look_at
        clear_issues(
            self._warnings,
            lambda issue: issue.mailbox == box.mailbox and issue.subject not in concerned,
        )
        self._schedule(box, to_look_at)

    def _warn_empty(self, mailbox: Mailbox, *, now_empty: bool, was_empty: bool) -> None:
        """Told until there are folders again, though what was in them has been missed by then."""
        if not now_empty:
            self._warnings.clear(Issue(mailbox, _FOLDERS_ISSUE))
        elif not was_empty:
            self._warnings.warn(Issue(mailbox, _FOLDERS_ISSUE), _EMPTY_WARNING, mailbox.path)

    def _warn_doubtful(self, found: Iterable[Folder]) -> None:
        """One of each name, whoever's it is, and some names only: people call folders what they
        like. The log hears of each once.
        """
        doubtful = [place for place in found if self._role(place).doubtful]
        if not doubtful:
            return
        matters = [
            key for key in self._warnings.standing() if isinstance(key, Issue) and key.kind == DOUBT
        ]
        told = {
            display_folder(one.subject.directory)
            for one in matters
            if isinstance(one.subject, Folder)
        }
        for place in doubtful:
            name = display_folder(place.directory)
            if name in told or len(told) >= _MAX_DOUBTS:
                continue
            told.add(name)
            if name in self._doubts or len(self._doubts) >= _MAX_DOUBTS:
                self._warnings.note(
                    Issue(place, DOUBT), _DOUBTFUL_WARNING, place.mailbox.path, name, name
                )
            else:
                self._doubts.add(name)
                self._warnings.warn(
                    Issue(place, DOUBT), _DOUBTFUL_WARNING, place.mailbox.path, name, name
                )

    def _scan_first(self, box: MailboxState) -> ScanSteps[None]:
        """Remember what lies where. What is moved meanwhile teaches nothing: it may as well have
        lain in two folders for long.
        """
        box.is_new = True
        try:
            # before anything is listed: only one of those that begin holds the names of its files
            yield
            for place in sorted(box.folders):
                found = (yield from self._scan(box, [place])).new
                for some in batches(found.items(), RECONCILE_BATCH_SIZE):
                    yield from self._teach_moves(box, FolderScan(dict(some)), first=True)
        finally:
            box.is_new = False
            self._scanner.forget_mailbox(
                box.mailbox
            )  # so that the next look tells all names to whoever weighs them
        self._sightings.mark_scanned(box.mailbox.path)
        self._schedule(box, box.folders)
        _log.info(
            "%s: seen for the first time; from now on moving its mail teaches, in the name of %s",
            box.mailbox.path,
            box.mailbox.user,
        )

    def _scan(self, box: MailboxState, places: Iterable[Folder]) -> ScanSteps[FolderScan]:
        """What has changed in these folders; a step is over when a listing has taken that long."""
        asked, looked, until = (
            self._rule(box.mailbox).evidence,
            FolderScan(),
            time.monotonic() + STEP_SECONDS,
        )
        for place in places:
            if weighed := asked.applies_to(self._target(place)):
                self._evidence_teacher.prepare(place, asked)
            known = self._sightings.name_keys(box.mailbox.path, place.directory)
            yield from self._scanner.scan(place, known, looked, with_renamed=weighed)
            if time.monotonic() > until:
                yield
                until = time.monotonic() + STEP_SECONDS
        return looked

    def _teach_evidence(
        self, box: MailboxState, looked: FolderScan, *, everything: bool
    ) -> ScanSteps[None]:
        """Teach what follows from evidence, after what follows from moves."""
        asked = self._rule(box.mailbox).evidence
        if asked.signs:
            yield from self._evidence_teacher.teach(
                box.mailbox, looked.renamed, self._target, asked, everything=everything
            )

    def _target(self, place: Folder) -> MoveTarget:
        return self._reconcile_rules(place.mailbox).target(place.directory)

    def _teach_moves(
        self, box: MailboxState, looked: FolderScan, *, first: bool = False
    ) -> ScanSteps[None]:
        """Teach what follows from a look."""
        rules = self._reconcile_rules(box.mailbox)
        arrivals = yield from self._read_arrivals(box.mailbox, looked, rules, first=first)
        if not arrivals and not looked.gone:
            return
        rules = rules._replace(
            filing_works=not first
            and rules.we_file
            and (yield from self._check_filing(box, arrivals, rules))
        )
        for before, came in self._reconcile_batches(box.mailbox.path, arrivals, looked.gone):
            done = (
                self._evidence_teacher.finished_digests(box.mailbox, before)
                if self._rule(box.mailbox).evidence.signs
                else set()
            )
            outcome = reconcile(before, came, looked.gone, rules, int(time.time()), first=first)
            yield from self._teacher.teach(box.mailbox, outcome, looked, before, done, first=first)
            yield
        self._warnings.clear(OWN_FILES)

    def _reconcile_batches(
        self, mailbox: str, arrivals: Iterable[Arrival], gone: Iterable[FileKey]
    ) -> Iterator[tuple[list[Sighting], list[Arrival]]]:
        """What is remembered of some of the messages that came or went, and what came of them: all
        copies of one message at once.
        """
        came: dict[bytes, list[Arrival]] = {}
        for arrival in arrivals:
            came.setdefault(arrival.digest, []).append(arrival)
        left = set(gone)
        while came or left:
            digests = list(islice(came, RECONCILE_BATCH_SIZE))
            keys = [] if digests else list(islice(left, RECONCILE_BATCH_SIZE))
            before = self._sightings.find(mailbox, digests, keys)
            left.difference_update(keys, (copy.key for copy in before))
            yield before, [arrival for digest in digests for arrival in came.pop(digest)]

    def _check_filing(
        self, box: MailboxState, arrivals: list[Arrival], rules: ReconcileRules
    ) -> ScanSteps[bool]:
        """Whether what we call spam is seen to be put into Junk on delivery (`filing`); if most of
        it is not, that is told.
        """
        spam = tagged_spam(arrivals, rules)
        before: set[bytes] = set()
        for some in batches(spam, RECONCILE_BATCH_SIZE):
            before |= self._sightings.find_known(box.mailbox.path, {one.digest for one in some})
            yield
        box.filing.observe((one for one in spam if one.digest not in before), rules)
        if box.filing.is_failing:
            self._warnings.warn(
                Issue(box.mailbox, _FILING_ISSUE), _NOT_FILED_WARNING, box.mailbox.path
            )
        elif box.filing.is_working:
            self._warnings.clear(Issue(box.mailbox, _FILING_ISSUE))
        return box.filing.is_working

    def _read_arrivals(
        self, mailbox: Mailbox, looked: FolderScan, rules: ReconcileRules, *, first: bool
    ) -> ScanSteps[list[Arrival]]:
        """Read what is new. A step is over after so many files, or after so long."""
        arrivals: list[Arrival] = []

        def may_teach(arrival: Arrival) -> bool:
            was_sighted = not first and self._sightings.is_known(mailbox.path, arrival.digest)
            return rules.may_teach(arrival, was_sighted=was_sighted)

        for batch in batches(looked.new.values(), READ_BATCH_SIZE):
            until = time.monotonic() + STEP_SECONDS
            for new in batch:
                if arrival := self._scanner.read_arrival(new, looked, may_teach):
                    arrivals.append(arrival)
                if time.monotonic() > until:
                    yield
                    until = time.monotonic() + STEP_SECONDS
            yield
        return arrivals

    def _schedule(self, box: MailboxState, places: Iterable[Folder], seconds: float = 0.0) -> None:
        when = time.monotonic() + seconds
        for place in places:
            box.schedule_folder(place, when)

    def _reconcile_rules(self, mailbox: Mailbox) -> ReconcileRules:
        entry = self._rule(mailbox)
        return ReconcileRules(entry.role, self._filter.unwanted, entry.we_file)

    def _rule(self, mailbox: Mailbox) -> WatchRule:
        return self._rules_by_watch[mailbox.watch]

    def _role(self, place: Folder) -> Role:
        return self._rule(place.mailbox).role(place.directory)
