"""One mailbox: what came and went since the last scan, and what its user said by that.

A scan compares the names in a folder with those that were there last time, and opens only new
files. `MailboxScanner.step` deals with what was found, some messages at a time: read what is new,
reconcile it with the sightings, teach what follows from moves, then what follows from flags. Only a
message that teaches is taken apart for its features. What is left waits in `MailboxState`, so no
mailbox waits long while another is scanned.

A crash loses no lesson and repeats none, although no transaction covers both sightings and ledger:

1. One transaction in the file of the sightings brings them up to date and adds the votes that
   follow from this, features included, as pending votes.
2. One transaction in the ledger casts the pending votes.
3. The pending votes are dropped from the file of the sightings.

Before 1 nothing was written: the next scan finds the same change again. After 1 the message may go
anywhere. Whatever stops between 1 and 3, the next step begins with 2 and 3, and no vote becomes
pending before they have succeeded. Step 2 is safe to repeat: a pending vote gives way to every vote
of the same user on the same message that came into the ledger after it was decided.

Flags are weaker than any word of the user: of a message about which the user has ever said
anything, or taken back something, they teach nothing. So they need no pending votes. Only a flag
that is set while we watch counts, which the names of the scan before tell.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shlex
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, groupby, islice
from math import inf
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard import keys, log
from spamguard.config.options import Action, Settings, Watch
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import Example, ExampleReader, SplitMessage
from spamguard.errors import SpamguardError
from spamguard.folders.broker import Mailboxes
from spamguard.folders.maildir import (
    Folder,
    Mailbox,
    MessageFile,
    file_key,
    iter_files,
    parse_file_name,
)
from spamguard.folders.reconcile import (
    HAM_LABEL,
    Arrival,
    EvidenceSign,
    FileKey,
    FolderLesson,
    MoveTarget,
    ReconcileRules,
    Sighting,
    reconcile,
    short_hash,
)
from spamguard.folders.roles import (
    INBOX_NAME,
    FolderKind,
    RoleLookup,
    describe_folder,
    display_folder,
    folder_parts,
    is_next_hop,
    role_lookup,
)
from spamguard.folders.sightings import PendingVote, Sightings
from spamguard.learning.lessons import LessonService
from spamguard.learning.status_files import WatcherFile
from spamguard.ledger.votes import NewVote
from spamguard.log import WarnOnce
from spamguard.sources import DamagedFileError, UnreadableFileError, decompress, is_deleted
from spamguard.users import Origin

_log = logging.getLogger("spamguard.folders")

STEP_MESSAGES = 200  # of one step, which takes some tenths of a second
STEP_SECONDS = 0.5  # after which a step reads no further; one large message may take a second
STEP_BYTES = 32 << 20  # of messages in memory
MAX_FILE_BYTES = 64 << 20  # two messages that differ only beyond this are taken for one
QUIET_SECONDS = 1.0  # a file without its size in its name is whole if unchanged for so long
_ABANDONED_SECONDS = 60.0  # after which nobody will complete an incomplete file
_DAY_SECONDS = 86_400
_SIZE_FIELD = re.compile(r",S=([0-9]{1,15})(?=[,:]|$)")  # Dovecot's size of the unpacked message
_MAX_HEADER_BYTES = 64 << 10
_MAX_VERDICT_FIELDS = 4  # ours is on top, but anybody may have written more
_VERDICT_FIELD, _RECEIVED_FIELD = (
    re.compile(rb"^%b:((?:[^\r\n]|\r?\n[ \t])*)" % name, re.MULTILINE | re.IGNORECASE)
    for name in (b"X-Spamguard", b"Received")
)
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_FILING_WINDOW = 5  # messages: what a failing rule leaves in INBOX until then is taught as ham
_FILING_ISSUE, _FOLDERS_ISSUE = "filing", "folders"  # of a mailbox
OWN_FILES = "our own files"
"""Key of the warning that our own files cannot be read or written."""

Evidence = tuple["FoundFile", EvidenceSign]


class Issue(NamedTuple):
    """A trouble with a mailbox or a folder, as a key of `WarnOnce`."""

    subject: Mailbox | Folder
    kind: Hashable = ""  # which trouble; empty: it cannot be read
    transient: bool = False  # nothing will tell when it is over, as with a single file

    @property
    def mailbox(self) -> Mailbox:
        return self.subject.mailbox if isinstance(self.subject, Folder) else self.subject


def clear_issues(warnings: WarnOnce, is_over: Callable[[Issue], bool]) -> None:
    if issues := [key for key in warnings.standing() if isinstance(key, Issue) and is_over(key)]:
        warnings.clear(*issues)


# ---- names in folders


class FoundFile(NamedTuple):
    """A file of a folder. name: `file_key` of its name."""

    folder: Folder
    file: MessageFile
    name: int

    @property
    def key(self) -> FileKey:
        return self.folder.directory, self.name


@dataclass
class Findings:
    """What a scan of some folders of a mailbox has found, and is not dealt with yet."""

    folders: set[Folder] = field(default_factory=set)
    new: dict[FileKey, FoundFile] = field(default_factory=dict)
    gone: set[FileKey] = field(default_factory=set)
    evidence: list[Evidence] = field(default_factory=list)  # that renamed files show
    retry_soon: bool = False  # a file was still being written, or has moved on

    @property
    def is_pending(self) -> bool:
        return bool(self.new or self.gone or self.evidence)


_Listing = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Names of a folder: their hashes, sorted and with an end mark, and the key of each."""
_END_MARK = np.int64(np.iinfo(np.int64).max)
_EMPTY_LISTING = np.array([_END_MARK]), np.zeros(1, np.int64)


class UnfinishedFileError(SpamguardError):
    """The file is still being written: read it later."""


class FolderReader:
    """Reads mailboxes with the installation's key."""

    def __init__(self, mailboxes: Mailboxes, key: bytes, warnings: WarnOnce | None = None) -> None:
        self._mailboxes = mailboxes
        self._reader = ExampleReader(key)
        self._verdict_key = keys.derive_key(key, b"verdict")
        self._warnings = warnings or WarnOnce(_log)
        self._listings: dict[Mailbox, dict[str, _Listing]] = {}  # by directory

    def compare(
        self,
        folder: Folder,
        before: NDArray[np.int64],
        found: Findings,
        evidence: Mapping[str, EvidenceSign],
    ) -> None:
        """Add what has changed in a folder, beside the sorted keys of before, to the findings; and
        which of the signs a new flag shows.
        """
        found.folders.add(folder)
        try:
            listed = self._mailboxes.list_files(folder)
        except FileNotFoundError:
            listed = {}
        except OSError as error:
            self._warnings.warn(
                Issue(folder),
                "%s: cannot be looked at (%s): moves into it teach nothing",
                describe_folder(folder),
                error.strerror,
            )
            return
        self._warnings.clear(Issue(folder))
        messages = list(iter_files(listed))
        keys, renamed = self._name_keys(folder, [message.name for message in messages])
        new, missing = compare_listing(before, keys)
        for index in new:
            file = FoundFile(folder, messages[index], int(keys[index]))
            found.new[file.key] = file
        found.gone.update((folder.directory, name) for name in missing)
        for index in renamed if evidence else ():
            file = FoundFile(folder, messages[index], int(keys[index]))
            name = None if is_deleted(file.file.name) else parse_file_name(file.file.name)
            signs = [sign for flag, sign in evidence.items() if name and flag in name.flags]
            found.evidence += ((file, sign) for sign in signs[:1])

    def _name_keys(
        self, folder: Folder, names: Sequence[str]
    ) -> tuple[NDArray[np.int64], list[int]]:
        """The key of each name, and which files have a new name since the last scan of this
        process. Keys are remembered: hashing 100,000 names takes longer than all the rest.
        """
        hashes = np.fromiter(map(hash, names), np.int64, len(names))
        listings = self._listings.setdefault(folder.mailbox, {})
        known, known_keys = listings.pop(folder.directory, _EMPTY_LISTING)
        places = np.searchsorted(known, hashes)
        fresh, keys = known[places] != hashes, known_keys[places]
        keys[fresh] = [file_key(names[index]) for index in np.flatnonzero(fresh).tolist()]
        order = np.argsort(hashes)
        if names:  # nothing is kept of empty folders: users make as many as they like
            sorted_keys = np.append(keys[order], 0)
            listings[folder.directory] = np.append(hashes[order], _END_MARK), sorted_keys
        return keys, np.flatnonzero(fresh & np.isin(keys, known_keys)).tolist()

    def forget_mailbox(self, mailbox: Mailbox) -> None:
        self._listings.pop(mailbox, None)

    def find_files(self, folder: Folder, names: Collection[int]) -> dict[int, MessageFile]:
        try:
            return {
                key: file
                for file in iter_files(self._mailboxes.list_files(folder))
                if (key := file_key(file.name)) in names
            }
        except OSError:
            return {}

    # ---- messages

    def read_arrivals(self, found: Findings) -> list[Arrival]:
        """Take new files out of the findings, and read as many as there is time for.

        A message that has moved on, is not whole yet or cannot be read now is left out. A file that
        will never be a message has no digest.
        """
        arrivals: list[Arrival] = []
        until, size = time.monotonic() + STEP_SECONDS, 0
        for file in list(islice(found.new.values(), STEP_MESSAGES)):
            del found.new[file.key]
            try:
                arrival = self.read(file.folder, file.file)
            except UnfinishedFileError:
                arrival, found.retry_soon = None, True
            if arrival is not None:
                arrivals.append(arrival)
                size += len(arrival.message.raw) if arrival.message else 0
            if time.monotonic() > until or size > STEP_BYTES:
                break
        return arrivals

    def read_example(self, folder: Folder, file: MessageFile, digest: bytes) -> Example | None:
        """The example of a message; None if the file does not hold it any more."""
        with suppress(UnfinishedFileError):
            arrival = self.read(folder, file)
            if arrival and arrival.message and arrival.digest == digest:
                return arrival.message.example()
        return None

    def read(self, folder: Folder, file: MessageFile) -> Arrival | None:
        """A file as it arrives; None if it cannot be read now. UnfinishedFileError.

        A file that will never be a message has no digest.
        """
        where = f"{describe_folder(folder)}: {file.name}"
        try:
            return self._read(folder, file)
        except UnreadableFileError as error:
            text = "%s: %s; it teaches nothing, nor do others like it"
            self._warnings.warn((folder.mailbox.path, str(error)), text, where, error)
            return Arrival(folder.directory, file_key(file.name), b"")
        except FileNotFoundError:  # it has moved on
            return None
        except OSError as error:
            is_link = error.errno == errno.ELOOP
            self._warnings.warn(
                Issue(folder, (error.errno, int(time.time()) // _DAY_SECONDS), transient=True),
                "%s: cannot be read (%s); other files like it there are not logged",
                where,
                "is a symbolic link, which is not followed" if is_link else error.strerror,
            )
            return None

    def _read(self, folder: Folder, file: MessageFile) -> Arrival:
        descriptor = self._mailboxes.open_file(folder, file)
        try:
            raw = read_message(descriptor, file.name)
        finally:
            os.close(descriptor)
        header = raw[:_MAX_HEADER_BYTES]
        if end := _BLANK_LINE.search(header):
            header = header[: end.start()]
        key = folder.directory, file_key(file.name)
        if keys.is_probe(self._verdict_key, header, time.time()):
            return Arrival(*key, b"")  # of `doctor`: it teaches nothing, wherever it is put
        message = self._reader.split(raw)
        # No two deliveries have the same topmost Received field, and mail programs leave it alone.
        received = _RECEIVED_FIELD.search(header)
        verdicts = (
            keys.verify_verdict(self._verdict_key, value[1], message.digest)
            for value in islice(_VERDICT_FIELD.finditer(header), _MAX_VERDICT_FIELDS)
        )
        return Arrival(
            *key,
            message.digest,
            next(filter(None, verdicts), None),
            short_hash(b" ".join(received[1].split())) if received else 0,
            is_deleted(file.name),
            message,
        )


def compare_listing(
    before: NDArray[np.int64], keys: NDArray[np.int64]
) -> tuple[list[int], list[int]]:
    """The new files of a folder, as indices into `keys` (`file_key` of each, 0 for what is no
    message), and of the sorted keys `before` those that have gone.

    >>> compare_listing(np.array([3, 5]), np.array([5, 0, 8]))
    ([2], [3])
    """
    messages = np.flatnonzero(keys)
    present, first = np.unique(keys[messages], return_index=True)
    new = np.sort(messages[first[~np.isin(present, before)]])
    return new.tolist(), before[~np.isin(before, present)].tolist()


def read_message(descriptor: int, name: str) -> bytes:
    """The message in a file, unpacked; at most MAX_FILE_BYTES of it. The file's name may tell its
    size. UnfinishedFileError, UnreadableFileError, OSError.
    """
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        packed = file.read(MAX_FILE_BYTES)
    # The absolute value: a clock that was set back must not make a file young for ever.
    age = abs(time.time() - os.fstat(descriptor).st_mtime)
    try:
        raw = decompress(packed, MAX_FILE_BYTES)
    except DamagedFileError:
        if age >= _ABANDONED_SECONDS:
            raise
        raw = b""
    size = _SIZE_FIELD.search(name)
    is_cut = size is not None and len(raw) < min(int(size[1]), MAX_FILE_BYTES)
    is_unfinished = (is_cut or not raw) and age < _ABANDONED_SECONDS
    if is_unfinished or (size is None and age < QUIET_SECONDS):
        raise UnfinishedFileError(name)
    if not raw:
        raise UnreadableFileError("is empty")
    return raw


# ---- one mailbox


class WatchRule(NamedTuple):
    """What an entry of `watch:` comes to."""

    watch: Watch
    role: RoleLookup
    we_file: bool  # as of `ReconcileRules`
    evidence: Mapping[str, EvidenceSign]  # that counts, by the letter in a file's name


def watch_rules(settings: Settings, special: Mapping[tuple[str, ...], str]) -> list[WatchRule]:
    """The rules of all entries, with the special uses of folders as of `find_role`."""
    rules = []
    for watch in settings.watch:
        we_file = is_next_hop(watch, settings) if watch.we_file is None else watch.we_file
        evidence = {}  # the strongest sign first
        if watch.answered_is_ham:
            evidence["R"] = EvidenceSign.ANSWERED
        if watch.flagged_is_ham:
            evidence["F"] = EvidenceSign.FLAGGED
        rules.append(WatchRule(watch, role_lookup(watch, special), we_file, evidence))
    return rules


@dataclass(eq=False)
class MailboxState:
    """What is known of a mailbox, and what is to be done in it."""

    mailbox: Mailbox
    folders: set[Folder] = field(default_factory=set)  # that are looked at
    relist: bool = True  # find out which there are, and scan them all
    due: set[Folder] = field(default_factory=set)  # to be scanned
    found: Findings = field(default_factory=Findings)
    # Whether the last messages that we tagged as spam were first seen in Junk.
    filed: deque[bool] = field(default_factory=partial(deque, maxlen=_FILING_WINDOW))


@dataclass
class MailboxScanner:
    """Scans mailboxes, and teaches in the name of their users."""

    _filter: Filter
    _rules: Sequence[WatchRule]  # by index of the entry of `watch:`
    _mailboxes: Mailboxes
    _sightings: Sightings
    _reader: FolderReader
    _service: LessonService
    _status_file: WatcherFile
    _warnings: WarnOnce
    _on_missing: Callable[[], object]  # called when a mailbox is gone
    _debounce: float

    def step(self, state: MailboxState) -> float:
        """Do some of what is to be done in a mailbox; in how many seconds there is more to do.

        After MailboxesError, SightingsError, LedgerError, OSError and `abandon` a scan finds the
        same.
        """
        # Nothing else is done until sightings and ledger agree.
        if number := self._cast_pending():
            _log.info(
                "lessons that were decided before a stop or a failure, and are taught now: %d",
                number,
            )
        mailbox = state.mailbox
        if state.relist:
            self._list_folders(state)
            state.relist = False
        first = not self._sightings.is_scanned(mailbox.path)
        if first and not state.folders:
            return inf
        found = state.found
        if not found.is_pending:
            self._scan(state, first=first)
        if found.new or found.gone:
            self._teach_moves(state, found, first=first)
        elif found.is_pending:
            self._teach_evidence(found)
        if found.is_pending or state.due:
            return 0.0
        state.found = Findings()
        if first:
            # What lies where is known. What has moved meanwhile taught nothing: it may lie in both.
            self._sightings.mark_scanned(mailbox.path)
            state.due = state.folders.copy()
            _log.info(
                "%s: seen for the first time; from now on moving its mail teaches, in the name of "
                "%s",
                mailbox.path,
                mailbox.user,
            )
            return 0.0
        if found.retry_soon:
            # All folders: a message may have moved on from any of them to any other.
            state.due = found.folders
            return self._debounce
        return inf

    def abandon(self, state: MailboxState) -> None:
        state.found, state.relist = Findings(evidence=state.found.evidence), True

    # ---- what has changed

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
        role = self._rules[mailbox.watch].role
        state.folders = {
            folder for folder in folders if role(folder.directory).kind is not FolderKind.IGNORED
        }
        state.due = state.folders.union(Folder(mailbox, directory) for directory in sighted)
        concerned = {mailbox} | folders | state.due
        clear_issues(
            self._warnings,
            lambda issue: issue.mailbox == mailbox and issue.subject not in concerned,
        )

    def _scan(self, state: MailboxState, *, first: bool) -> None:
        """Compare the names in due folders with the sightings, as long as there is time. The first
        time one folder with mail is enough: not all names must be in memory at once.
        """
        rules, evidence = self._reconcile_rules(state), self._rules[state.mailbox.watch].evidence
        found, until = state.found, time.monotonic() + STEP_SECONDS
        for folder in sorted(state.due):
            state.due.remove(folder)
            before = self._sightings.name_keys(state.mailbox.path, folder.directory)
            is_ham = rules.target(folder.directory) is MoveTarget.HAM
            self._reader.compare(folder, before, found, evidence if is_ham else {})
            if (first and found.new) or time.monotonic() > until:
                break
        # Copies that came together have names close to each other, and are decided together.
        found.new = dict(sorted(found.new.items(), key=lambda item: item[1].file.name))

    # ---- moves

    def _teach_moves(self, state: MailboxState, found: Findings, *, first: bool) -> None:
        """Reconcile some files that came, or some that went, and teach what follows.

        A mailbox that is scanned for the first time may be one that was moved, so its lessons count
        as older than everything that the user has said, or has taken back.
        """
        mailbox, rules = state.mailbox, self._reconcile_rules(state)
        arrivals = self._reader.read_arrivals(found)
        gone = [] if arrivals else list(islice(found.gone, STEP_MESSAGES))
        before = self._sightings.find(mailbox.path, (each.digest for each in arrivals), gone)
        sighted = {sighting.digest for sighting in before}
        new = (arrival for arrival in arrivals if arrival.digest not in sighted)
        filing_works = not first and rules.we_file and self._check_filing(state, new, rules)
        outcome = reconcile(
            before,
            self._note_deleted(mailbox, found, before, arrivals),
            found.gone,
            rules._replace(filing_works=filing_works),
            int(time.time()),
            first=first,
        )
        unread = set[bytes]()
        read = {arrival.key: arrival.message for arrival in arrivals}
        decided_at = 0 if first else self._filter.ledger.voting_moment()
        last = {
            sighting.digest: display_folder(sighting.folder)
            for sighting in sorted(before, key=attrgetter("gone", "seen"))
        }
        pending: list[PendingVote] = []
        for lesson in self._admit(mailbox, outcome.lessons):
            message, example = read.get(lesson.key), None
            if message is not None:
                example = message.example()
            else:  # it has been waiting there
                folder = Folder(mailbox, lesson.folder)
                if file := self._reader.find_files(folder, (lesson.name,)).get(lesson.name):
                    example = self._reader.read_example(folder, file, lesson.digest)
            if example is None:
                unread.add(lesson.digest)
                found.retry_soon = True
                continue
            vote = self._make_vote(mailbox, example, lesson, Origin.FOLDER)
            came_from, came_to = last.get(lesson.digest, "-"), display_folder(lesson.folder)
            pending.append(PendingVote(vote, decided_at, came_from, came_to, lesson.why))
        self._sightings.update(
            mailbox.path,
            [sighting for sighting in outcome.updated if sighting.digest not in unread],
            [sighting.key for sighting in outcome.removed if sighting.digest not in unread],
            pending,
        )
        self._cast_pending()
        found.gone.difference_update(gone, (sighting.key for sighting in before))
        self._warnings.clear(OWN_FILES)

    def _cast_pending(self) -> int:
        pending = self._sightings.pending_votes()
        if not pending:
            return 0
        changed = self._service.cast(
            [waiting.vote for waiting in pending], unless_voted_since=pending[0].decided_at
        )
        for waiting in compress(pending, changed):
            _log_lesson(waiting.vote, waiting.came_from, waiting.came_to, waiting.why)
        self._sightings.drop_pending()
        return sum(changed)

    def _note_deleted(
        self,
        mailbox: Mailbox,
        found: Findings,
        before: Iterable[Sighting],
        arrivals: list[Arrival],
    ) -> list[Arrival]:
        """The arrivals, marked as deleted only if another copy is not. A folder is listed once."""
        marked = {arrival.digest for arrival in arrivals if arrival.deleted}
        if not marked:
            return arrivals
        kept = {arrival.digest for arrival in arrivals if not arrival.deleted}
        copies = [
            copy
            for copy in before
            if copy.digest in marked - kept and not copy.gone and copy.key not in found.gone
        ]
        for folder in {copy.folder for copy in copies}:
            names = {copy.name: copy.digest for copy in copies if copy.folder == folder}
            files = self._reader.find_files(Folder(mailbox, folder), names)
            kept.update(names[name] for name, file in files.items() if not is_deleted(file.name))
        return [
            arrival._replace(deleted=arrival.deleted and arrival.digest in kept)
            for arrival in arrivals
        ]

    def _check_filing(
        self, state: MailboxState, new: Iterable[Arrival], rules: ReconcileRules
    ) -> bool:
        """Whether what we call spam really is put into Junk on delivery, as `we_file` says: where
        it is not, all of it would pass for mail that its user has taken out of Junk.

        Counts where messages that the mailbox never had are first seen, if we tagged them as spam.
        Within one step, filed ones count as the last.
        """
        targets = [
            rules.target(arrival.folder)
            for arrival in new
            if arrival.signed
            and arrival.signed.label in rules.unwanted
            and arrival.signed.action is Action.TAG
        ]
        state.filed.extend([False] * targets.count(MoveTarget.HAM))
        state.filed.extend([True] * targets.count(MoveTarget.UNWANTED))
        filed, not_filed = sum(state.filed), len(state.filed) - sum(state.filed)
        issue = Issue(state.mailbox, _FILING_ISSUE)
        if filed and filed >= not_filed:
            self._warnings.clear(issue)
            return True
        if not_filed > 2:  # more than a user could have moved
            self._warnings.warn(
                issue,
                "%s: most of what we call spam comes into INBOX, although `we_file` says that it "
                "is put into Junk on delivery: see the log of what delivers there. Until it is "
                "filed, spam in INBOX is not taken for what somebody has put back",
                state.mailbox.path,
            )
        return False

    # ---- evidence

    def _teach_evidence(self, found: Findings) -> None:
        """Teach what new flags show of messages about which nothing was said, as long as there is
        time.
        """
        until = time.monotonic() + STEP_SECONDS
        while found.evidence:
            (folder, file, name), sign = found.evidence[-1]
            mailbox, key = folder.mailbox, (folder.directory, name)
            lessons = [
                FolderLesson(copy.digest, HAM_LABEL, *key, sign)
                for copy in self._sightings.find(mailbox.path, (), [key])
                if copy.key == key
                and copy.digest
                and not copy.waiting
                and self._filter.ledger.get_vote(copy.digest, mailbox.user) is None
            ]
            for lesson in self._admit(mailbox, lessons):
                if example := self._reader.read_example(folder, file, lesson.digest):
                    vote = self._make_vote(mailbox, example, lesson, f"{Origin.EVIDENCE} {sign}")
                    if self._service.cast([vote], unless_voted_since=0)[0]:
                        where = display_folder(folder.directory)
                        _log_lesson(vote, where, where, sign)
            found.evidence.pop()
            if time.monotonic() > until:
                break

    # ---- lessons

    def _admit(self, mailbox: Mailbox, lessons: Sequence[FolderLesson]) -> list[FolderLesson]:
        """The lessons within the quota. The others are not taken up later by themselves: the status
        file and the log tell, the latter with the command that teaches them.
        """
        quota = self._rules[mailbox.watch].watch.lessons_per_day
        admitted, refused = self._service.admit(
            lessons,
            mailbox.user,
            quota,
            (Origin.FOLDER, Origin.EVIDENCE),
            attrgetter("digest", "label"),
        )
        folder_and_label = attrgetter("folder", "label")
        for (folder, label), group in groupby(
            sorted(refused, key=folder_and_label), folder_and_label
        ):
            name = display_folder(folder)
            if self._status_file.add_refused(mailbox.user, name, len(list(group))):
                state, path = str(self._filter.directory), f"{mailbox.path}/{folder}"
                command = ("spamguard", "--state", state, "learn", "--user", mailbox.user)
                _log.warning(
                    "%s: has taught %d messages within 24 hours (lessons_per_day): "
                    "what is moved beyond that teaches nothing, such as what came into %s now. "
                    "To teach it all the same: %s",
                    mailbox.user,
                    quota,
                    name,
                    shlex.join((*command, "--as", label, path)),
                )
        return admitted

    def _make_vote(
        self, mailbox: Mailbox, example: Example, lesson: FolderLesson, origin: str
    ) -> NewVote:
        origin = f"{origin} {display_folder(lesson.folder)}"
        (vote,) = self._filter.make_votes([example], lesson.label, user=mailbox.user, origin=origin)
        return vote

    def _reconcile_rules(self, state: MailboxState) -> ReconcileRules:
        rule = self._rules[state.mailbox.watch]
        return ReconcileRules(rule.role, self._filter.unwanted, rule.we_file)


def _log_lesson(vote: NewVote, came_from: str, came_to: str, why: str) -> None:
    way = {"from": came_from, "to": came_to}
    log.log_lesson(_log, vote.user, way, vote.label or "", vote.digest, why)


# ---- what was filed before anybody watched


class FiledMessage(NamedTuple):
    """A message where its user has put it, and the class of that folder."""

    folder: Folder
    file: MessageFile
    label: str


def find_filed(mailboxes: Mailboxes, mailbox: Mailbox, role: RoleLookup) -> list[FiledMessage]:
    """All messages of a mailbox that may teach, those of ham folders last: in INBOX only what was
    read, and nowhere what is marked as deleted.
    """
    filed: list[FiledMessage] = []
    with suppress(FileNotFoundError):
        for folder in mailboxes.list_folders(mailbox):
            kind, label = role(folder.directory)
            if kind is not FolderKind.CLASS:
                continue
            is_inbox = folder_parts(folder.directory) == INBOX_NAME
            try:
                for file in iter_files(mailboxes.list_files(folder)):
                    name = None if is_deleted(file.name) else parse_file_name(file.name)
                    if name is not None and (not is_inbox or "S" in name.flags):
                        filed.append(FiledMessage(folder, file, label))
            except FileNotFoundError:
                continue
            except OSError as error:
                _log.warning(
                    "%s: cannot be looked at (%s): it teaches nothing",
                    describe_folder(folder),
                    error.strerror,
                )
    return sorted(
        filed,
        key=lambda message: (message.label == HAM_LABEL, message.folder, message.file.name),
    )


def initial_lessons(
    reader: FolderReader, filed: Collection[FiledMessage], unwanted: Collection[str]
) -> Iterator[tuple[FiledMessage, SplitMessage | None]]:
    """Each filed message with its content, in order; None: it teaches nothing, or cannot be read.

    A message in folders of several classes is of the first. What we filed ourselves teaches
    nothing.
    """
    labels: dict[bytes, str] = {}
    for file in filed:
        message = None
        with suppress(UnfinishedFileError):
            read = reader.read(file.folder, file.file)
            if (
                read is not None
                and read.digest
                and labels.setdefault(read.digest, file.label) == file.label
                and not (read.signed and {read.signed.label, file.label} <= set(unwanted))
            ):
                message = read.message
        yield file, message
