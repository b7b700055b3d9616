"""How folders teach: the lessons of a look at a mailbox become votes, and a crash at any point
loses none and repeats none.

Sightings and ledger are two files, so no transaction covers both. The order of writes is:

1. One transaction in the file of the sightings brings them up to date and adds the votes that
   follow from this, features included, as pending votes.
2. One transaction in the ledger casts the pending votes.
3. The pending votes are dropped from the file of the sightings.

A crash before 1 has written nothing: the next look sees the same change again. After 1 the message
may go where it likes, the vote needs it no longer, and the next look starts from where the message
was seen. Whatever ends the process between 1 and 3, or fails there, such as a full disk, every look
begins with steps 2 and 3 for what is pending, and no vote becomes pending before they have
succeeded. Step 2 is safe to repeat: a pending vote gives way to every vote of the same user on the
same message that the ledger has got since it was decided, be it the same vote or a newer one by
another door. Both files wait for the disk, so a power cut changes nothing about this. For this
order folders take the steps of `LessonService` one by one.

Evidence needs no pending votes: such a vote gives way to whatever its user ever said, and the
ledger is asked before each.

The second part finds what people filed before anybody watched (`teach-folders`). A message in a
folder of a class is a lesson for it, except that in INBOX only what was read and not marked as
deleted teaches, and never what we filed ourselves, as our signature tells. A message that lies in
several classes is of the first. It writes nothing.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import compress, groupby, islice
from operator import attrgetter
from typing import NamedTuple

from spamguard import log
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import Example
from spamguard.folders.mailboxes import (
    EVIDENCE_ORIGIN,
    INBOX_NAME,
    MOVE_ORIGIN,
    Folder,
    FolderKind,
    Mailbox,
    Mailboxes,
    MessageFile,
    describe_folder,
    display_folder,
    folder_parts,
    iter_files,
    parse_file_name,
)
from spamguard.folders.reconcile import FileKey, FolderLesson, Reconciliation, Sighting
from spamguard.folders.roles import RoleLookup
from spamguard.folders.scan import FolderScan, FolderScanner, FoundFile, StoredMessage
from spamguard.folders.sightings import PendingVote, Sightings
from spamguard.folders.status_file import StatusFile
from spamguard.learning.lessons import LessonService
from spamguard.ledger.votes import NewVote
from spamguard.storage import batches

_log = logging.getLogger("spamguard.folders")

STEP_SECONDS = 0.5
"""After which a step is over: a message that is large once it is unpacked takes a second."""

MAX_STEP_LESSONS = 500  # some tenths of a second

_batch_key = attrgetter("label", "folder", "evidence")  # votes with the same are made together


class FolderTeacher:
    """Casts votes in the name of the users of mailboxes.

    quotas: lessons per user within 24 hours, for each entry of `watch:`; 0: no limit.
    """

    def __init__(
        self,
        spam_filter: Filter,
        service: LessonService,
        sightings: Sightings,
        scanner: FolderScanner,
        quotas: Sequence[int],
        status_file: StatusFile,
    ) -> None:
        self._filter = spam_filter
        self._service = service
        self._sightings = sightings
        self._scanner = scanner
        self._quotas = quotas
        self._status_file = status_file

    def teach(
        self,
        mailbox: Mailbox,
        outcome: Reconciliation,
        looked: FolderScan,
        before: Sequence[Sighting],
        done: Collection[bytes],
        *,
        first: bool = False,
    ) -> Generator[None, None, None]:
        """Everything that follows from one look, some lessons at a step. Sets `looked.retry_soon`
        if messages have moved on.

        Parameters
        ----------
        before
            The sightings of these messages up to now.
        done
            As of `Sightings.update`.
        first
            Of the first look, which may be one at a mailbox that has moved: its lessons are older
            than whatever the user has said, or has taken back.

        Raises
        ------
        LedgerError, SightingsError
            What was not taught is taught before the next look, or found by it.
        """
        changes = _SightingUpdates(outcome, before)
        admitted = sorted(self._admit(mailbox, outcome.lessons), key=_batch_key)
        teaches_nothing = changes.digests - {lesson.digest for lesson in admitted}
        self._sightings.update(mailbox.path, *changes.select(teaches_nothing), done=done)
        examples = self._find_examples(mailbox, admitted, looked)
        while ready := _take_step(examples):
            # those of another mailbox, which the ledger may have refused meanwhile
            self.cast_pending()
            decided_at = 0 if first else self._filter.ledger.last_seq()
            pending = [
                PendingVote(
                    vote,
                    decided_at,
                    changes.previous_folder(lesson.digest),
                    display_folder(lesson.folder),
                    lesson.why,
                )
                for lesson, vote in self._make_votes(mailbox.user, ready)
            ]
            digests = [waiting.vote.digest for waiting in pending]
            self._sightings.update(mailbox.path, *changes.select(digests), done=done, votes=pending)
            self.cast_pending()
            yield

    def cast_leftovers(self) -> None:
        """Cast the votes that a stop or a failure left pending, and log how many that were."""
        if taught := self.cast_pending():
            _log.info(
                "lessons that were decided before a stop or a failure, and are taught now: %d",
                taught,
            )

    def cast_pending(self) -> int:
        """Cast the pending votes, if there are any; how many of them changed anything."""
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

    def teach_evidence(
        self, mailbox: Mailbox, lessons: Sequence[tuple[FolderLesson, FoundFile]]
    ) -> Generator[None, None, set[bytes]]:
        """Teach what evidence says, some lessons at a step. Returns the messages that need no other
        look, because they are taught or over quota.

        A mail program may have acted on our own verdict: evidence that spam by our verdict is spam
        teaches nothing.
        """
        files = {lesson.digest: file for lesson, file in lessons}
        done: set[bytes] = set()
        for _, same in groupby(
            sorted((lesson for lesson, _ in lessons), key=_batch_key), _batch_key
        ):
            for batch in batches(same):
                admitted = self._admit(mailbox, batch)
                done |= {lesson.digest for lesson in batch}
                done -= {lesson.digest for lesson in admitted}
                examples = self._read_evidence(admitted, files, done)
                while ready := _take_step(examples):
                    self._cast_evidence(mailbox, ready, files)
                    done.update(lesson.digest for lesson, _ in ready)
                    yield
        return done

    def _cast_evidence(
        self,
        mailbox: Mailbox,
        ready: Sequence[tuple[FolderLesson, Example]],
        files: Mapping[bytes, FoundFile],
    ) -> None:
        votes = self._make_votes(mailbox.user, ready)
        changed = self._service.cast([vote for _, vote in votes], unless_voted_since=0)
        for lesson, vote in compress(votes, changed):
            came_from = display_folder(files[lesson.digest].folder.directory)
            _log_lesson(vote, came_from, display_folder(lesson.folder), lesson.why)

    def _admit(self, mailbox: Mailbox, lessons: list[FolderLesson]) -> list[FolderLesson]:
        """Those within the quota. The others are not taken up later by themselves: they go into
        the status file, and the first of a day into the log, with the command that teaches them.
        """
        quota = self._quotas[mailbox.watch]
        admitted, refused = self._service.admit(
            lessons,
            mailbox.user,
            quota,
            (MOVE_ORIGIN, EVIDENCE_ORIGIN),
            attrgetter("digest", "label"),
        )
        folder_and_label = attrgetter("folder", "label")
        for (folder, label), same in groupby(
            sorted(refused, key=folder_and_label), folder_and_label
        ):
            shown = display_folder(folder)
            if self._status_file.add_refused(mailbox.user, shown, len(list(same))):
                state, path = str(self._filter.directory), f"{mailbox.path}/{folder}"
                command = ("spamguard", "--state", state, "learn", "--user", mailbox.user)
                _log.warning(
                    "%s: has taught %d messages within 24 hours (lessons_per_day): "
                    "what is moved beyond that teaches nothing, such as what came into %s now. "
                    "To teach it all the same: %s",
                    mailbox.user,
                    quota,
                    shown,
                    shlex.join((*command, "--as", label, path)),
                )
        return admitted

    def _find_examples(
        self, mailbox: Mailbox, lessons: Iterable[FolderLesson], looked: FolderScan
    ) -> Iterator[tuple[FolderLesson, Example]]:
        """Lessons with their examples: from the scan, else from the file if it is still there."""
        for lesson in lessons:
            example = looked.examples.pop(lesson.key, None)
            if example is None:
                folder, new = Folder(mailbox, lesson.folder), looked.new.get(lesson.key)
                names = (lesson.name,)
                file = new.file if new else self._scanner.find_files(folder, names).get(lesson.name)
                example = file and self._scanner.read_example(folder, file, lesson.digest)
            if example is not None:
                yield lesson, example
            else:
                looked.retry_soon = True

    def _read_evidence(
        self, lessons: Iterable[FolderLesson], files: Mapping[bytes, FoundFile], done: set[bytes]
    ) -> Iterator[tuple[FolderLesson, Example]]:
        """Lessons with their examples, unless the message cannot be read any more, or the lesson
        only repeats our own verdict. done: gets the digests of these repetitions.
        """
        for lesson in lessons:
            file = files[lesson.digest]
            stored = self._scanner.read_signed(file.folder, file.file)
            if stored is None or stored.digest != lesson.digest:
                continue
            if stored.repeats_our_verdict(lesson.label, self._filter.unwanted):
                done.add(lesson.digest)
            else:
                yield lesson, stored.message.example()

    def _make_votes(
        self, user: str, ready: Iterable[tuple[FolderLesson, Example]]
    ) -> list[tuple[FolderLesson, NewVote]]:
        votes: list[tuple[FolderLesson, NewVote]] = []
        for (label, folder, evidence), same in groupby(ready, lambda pair: _batch_key(pair[0])):
            lessons, examples = zip(*same, strict=True)
            origin = f"{EVIDENCE_ORIGIN} {evidence}" if evidence else MOVE_ORIGIN
            made = self._service.make_votes(
                examples, label, user, f"{origin} {display_folder(folder)}"
            )
            votes += zip(lessons, made, strict=True)
        return votes


def _take_step(
    examples: Iterator[tuple[FolderLesson, Example]],
) -> list[tuple[FolderLesson, Example]]:
    """The next examples, as many as one step has time for."""
    until = time.monotonic() + STEP_SECONDS
    taken: list[tuple[FolderLesson, Example]] = []
    for pair in islice(examples, MAX_STEP_LESSONS):
        taken.append(pair)
        if time.monotonic() > until:
            break
    return taken


class _SightingUpdates:
    """Which sightings to store and which to drop, by digest."""

    def __init__(self, outcome: Reconciliation, before: Sequence[Sighting]) -> None:
        self._updated: dict[bytes, list[Sighting]] = {}
        self._removed: dict[bytes, list[Sighting]] = {}
        for sighting in outcome.updated:
            self._updated.setdefault(sighting.digest, []).append(sighting)
        for sighting in outcome.removed:
            self._removed.setdefault(sighting.digest, []).append(sighting)
        self._last = {
            sighting.digest: sighting for sighting in sorted(before, key=attrgetter("gone", "seen"))
        }
        self.digests = self._updated.keys() | self._removed.keys()

    def select(self, digests: Iterable[bytes]) -> tuple[list[Sighting], list[FileKey]]:
        """Those of some messages."""
        chosen = list(digests)
        updated = [copy for digest in chosen for copy in self._updated.get(digest, ())]
        return updated, [copy.key for digest in chosen for copy in self._removed.get(digest, ())]

    def previous_folder(self, digest: bytes) -> str:
        """The folder a message was in before, for people."""
        return display_folder(self._last[digest].folder) if digest in self._last else "-"


def _log_lesson(vote: NewVote, came_from: str, came_to: str, why: str) -> None:
    way = {"from": came_from, "to": came_to}
    log.log_lesson(_log, vote.user, way, vote.label or "", vote.digest, why)


# ---- what was filed before anybody watched


class FiledMessage(NamedTuple):
    """A message where somebody has put it. label: the class of that folder."""

    folder: Folder
    file: MessageFile
    label: str


def find_filed(mailboxes: Mailboxes, mailbox: Mailbox, role: RoleLookup) -> list[FiledMessage]:
    """All messages that may teach, those of ham folders last.

    A folder that is deleted meanwhile has none, nor has one that cannot be read, which is logged.
    """
    filed: list[FiledMessage] = []
    with suppress(FileNotFoundError):
        for folder in mailboxes.list_folders(mailbox):
            if (folder_role := role(folder.directory)).kind is not FolderKind.CLASS:
                continue
            try:
                filed += [
                    FiledMessage(folder, file, folder_role.label)
                    for file in iter_files(mailboxes.list_files(folder))
                    if _may_teach(folder, file)
                ]
            except FileNotFoundError:
                continue
            except OSError as error:
                _log.warning(
                    "%s: cannot be looked at (%s): it teaches nothing",
                    describe_folder(folder),
                    error.strerror,
                )
    return sorted(filed, key=lambda one: (one.label == "ham", one.folder.directory, one.file.name))


def _may_teach(folder: Folder, file: MessageFile) -> bool:
    """What nobody has looked at in INBOX says nothing."""
    name = parse_file_name(file.name)
    if name is None or folder_parts(folder.directory) != INBOX_NAME:
        return name is not None
    return "S" in name.flags and "T" not in name.flags


def initial_lessons(
    scanner: FolderScanner, filed: Collection[FiledMessage], unwanted: Collection[str]
) -> Iterator[tuple[FiledMessage, StoredMessage | None]]:
    """Each with its message, in the same order; None: it teaches nothing, or cannot be read."""
    labels: dict[bytes, str] = {}
    for one in filed:
        message = scanner.read_signed(one.folder, one.file)
        if message is not None and (
            labels.setdefault(message.digest, one.label) != one.label
            or message.repeats_our_verdict(one.label, unwanted)
        ):
            message = None
        yield one, message
