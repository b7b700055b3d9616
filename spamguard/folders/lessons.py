"""How folders teach: what follows from a scan becomes votes, and a crash loses none, repeats none.

`FolderTeacher` casts the votes that follow from moves. Sightings and ledger are two files,
so no transaction covers both. The order of writes is:

1. One transaction in the file of the sightings brings them up to date and adds the votes that
   follow from this, features included, as pending votes.
2. One transaction in the ledger casts the pending votes.
3. The pending votes are dropped from the file of the sightings.

A crash before 1 has written nothing: the next scan finds the same change again. After 1 the message
may go anywhere, because the vote does not need it any more, and the next scan starts from where the
message was seen. If the process ends between 1 and 3, or fails there, as on a full disk, every scan
begins with steps 2 and 3 for what is pending, and no vote becomes pending before they have
succeeded. Step 2 is safe to repeat: a pending vote gives way to every vote of the same user on the
same message that came into the ledger after it was decided, be it the same vote or a newer one by
another door. Both files wait for the disk, so a power cut changes nothing about this. For this
order folders take the steps of `LessonService` one by one.

`EvidenceTeacher` casts the votes that follow from flags: somebody answered or flagged a message.
Evidence is weaker than any word of its user: of a message about which the user has ever said
anything, or taken back something, it teaches nothing. So it needs no pending votes. It is taught
once. File names alone show it; a message is read only to be taught.

Must never teach beyond the quota, and never take more than some tenths of a second at a time.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, groupby, islice
from operator import attrgetter

import numpy as np

from spamguard import log
from spamguard.config.options import Watch
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import Example
from spamguard.folders.mailboxes import Folder, Mailbox, parse_file_name
from spamguard.folders.reconcile import (
    EVIDENCE_ORIGIN,
    HAM_LABEL,
    MOVE_ORIGIN,
    EvidenceSign,
    FileKey,
    FolderLesson,
    Reconciliation,
    Sighting,
    find_sign,
)
from spamguard.folders.roles import display_folder
from spamguard.folders.scan import FolderScan, FolderScanner, FoundFile
from spamguard.folders.sightings import PendingVote, Sightings
from spamguard.learning.lessons import LessonService
from spamguard.learning.status_files import WatcherFile
from spamguard.ledger.votes import NewVote
from spamguard.sources import is_deleted
from spamguard.storage import batches

_log = logging.getLogger("spamguard.folders")

EVIDENCE_BATCH_SIZE = 200  # messages
STEP_SECONDS = 0.5  # after which a step ends; one large message may take a second
MAX_STEP_LESSONS = 500  # some tenths of a second

_group_key = attrgetter("label", "folder", "evidence")  # votes of one group are made together


@dataclass
class FolderTeacher:
    """Casts votes in the name of the users of mailboxes.

    watches: the entries of `watch:`, which say how many lessons a user may teach within 24 hours.
    """

    _filter: Filter
    _service: LessonService
    _sightings: Sightings
    _scanner: FolderScanner
    _watches: Sequence[Watch]
    _status_file: WatcherFile

    # ---- moves

    def teach(
        self,
        mailbox: Mailbox,
        outcome: Reconciliation,
        scan: FolderScan,
        before: Sequence[Sighting],
        done: Collection[bytes],
        *,
        first: bool = False,
    ) -> Generator[None, None, None]:
        """Teach what follows from one scan, some lessons at a step. Sets `scan.retry_soon` if
        messages have moved on.

        before: the sightings of these messages up to now. done: as of `Sightings.update`. first:
        the mailbox is scanned for the first time. It may be one that was moved, so its lessons
        count as older than everything that the user has said, or has taken back. LedgerError,
        SightingsError: what was not taught is taught before the next scan, or found by it.
        """
        last = {
            sighting.digest: display_folder(sighting.folder)
            for sighting in sorted(before, key=attrgetter("gone", "seen"))
        }
        admitted = sorted(self.admit(mailbox, outcome.lessons), key=_group_key)
        changed = {sighting.digest for sighting in chain(outcome.updated, outcome.removed)}
        teaches_nothing = changed.difference(lesson.digest for lesson in admitted)
        self._sightings.update(mailbox.path, *_select(outcome, teaches_nothing), done=done)
        examples = self._find_examples(mailbox, admitted, scan)
        while ready := _take_step(examples):
            self.cast_pending()  # of another mailbox, if the ledger has refused them meanwhile
            decided_at = 0 if first else self._filter.ledger.voting_moment()
            pending = [
                PendingVote(
                    vote,
                    decided_at,
                    last.get(lesson.digest, "-"),
                    display_folder(lesson.folder),
                    lesson.why,
                )
                for lesson, vote in self._make_votes(mailbox.user, ready)
            ]
            digests = {waiting.vote.digest for waiting in pending}
            self._sightings.update(
                mailbox.path, *_select(outcome, digests), done=done, votes=pending
            )
            self.cast_pending()
            yield

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

    def _find_examples(
        self, mailbox: Mailbox, lessons: Iterable[FolderLesson], scan: FolderScan
    ) -> Iterator[tuple[FolderLesson, Example]]:
        """Lessons with their examples: from the scan, else from the file if it is still there."""
        for lesson in lessons:
            example = scan.examples.pop(lesson.key, None)
            if example is None:
                folder, new = Folder(mailbox, lesson.folder), scan.new.get(lesson.key)
                names = (lesson.name,)
                file = new.file if new else self._scanner.find_files(folder, names).get(lesson.name)
                example = file and self._scanner.read_example(folder, file, lesson.digest)
            if example is not None:
                yield lesson, example
            else:
                scan.retry_soon = True

    # ---- for moves and evidence

    def cast_evidence(self, user: str, ready: Sequence[tuple[FolderLesson, Example]]) -> None:
        """Cast votes, unless the user has ever said anything about the message."""
        votes = self._make_votes(user, ready)
        changed = self._service.cast([vote for _, vote in votes], unless_voted_since=0)
        for lesson, vote in compress(votes, changed):
            folder = display_folder(lesson.folder)
            _log_lesson(vote, folder, folder, lesson.why)

    def admit(self, mailbox: Mailbox, lessons: list[FolderLesson]) -> list[FolderLesson]:
        """The lessons within the quota. The others are not taken up later by themselves: they go
        into the status file, and the first of a day into the log, with the command that teaches
        them.
        """
        quota = self._watches[mailbox.watch].lessons_per_day
        admitted, refused = self._service.admit(
            lessons,
            mailbox.user,
            quota,
            (MOVE_ORIGIN, EVIDENCE_ORIGIN),
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

    def _make_votes(
        self, user: str, ready: Iterable[tuple[FolderLesson, Example]]
    ) -> list[tuple[FolderLesson, NewVote]]:
        votes: list[tuple[FolderLesson, NewVote]] = []
        for (label, folder, evidence), group in groupby(ready, lambda pair: _group_key(pair[0])):
            lessons, examples = zip(*group, strict=True)
            origin = f"{EVIDENCE_ORIGIN} {evidence}" if evidence else MOVE_ORIGIN
            made = self._filter.make_votes(
                examples, label, user=user, origin=f"{origin} {display_folder(folder)}"
            )
            votes += zip(lessons, made, strict=True)
        return votes


def _take_step(
    examples: Iterator[tuple[FolderLesson, Example]],
) -> list[tuple[FolderLesson, Example]]:
    """The next examples, as many as one step has time for."""
    until = time.monotonic() + STEP_SECONDS
    batch: list[tuple[FolderLesson, Example]] = []
    for pair in islice(examples, MAX_STEP_LESSONS):
        batch.append(pair)
        if time.monotonic() > until:
            break
    return batch


def _log_lesson(vote: NewVote, came_from: str, came_to: str, why: str) -> None:
    way = {"from": came_from, "to": came_to}
    log.log_lesson(_log, vote.user, way, vote.label or "", vote.digest, why)


def _select(
    outcome: Reconciliation, digests: Collection[bytes]
) -> tuple[list[Sighting], list[FileKey]]:
    """The updated sightings, and the keys of the removed ones, of some messages."""
    updated = [sighting for sighting in outcome.updated if sighting.digest in digests]
    return updated, [sighting.key for sighting in outcome.removed if sighting.digest in digests]


# ---- evidence


@dataclass
class EvidenceTeacher:
    """Teaches what flags say."""

    _filter: Filter
    _sightings: Sightings
    _scanner: FolderScanner
    _teacher: FolderTeacher

    def teach(
        self,
        mailbox: Mailbox,
        renamed: Mapping[Folder, Sequence[FoundFile]],
        signs: Collection[EvidenceSign],
        *,
        everything: bool,
    ) -> Generator[None, None, None]:
        """Teach what the messages with new names show, some at a step.

        What is there when all of a mailbox is scanned for these signs for the first time teaches
        nothing. everything: these are all messages. LedgerError, SightingsError: what was not
        taught shows again after `FolderScanner.forget_mailbox`.
        """
        rule = " ".join(sorted(signs))
        has_begun = self._sightings.evidence_rule(mailbox.path) == rule
        for folder, files in renamed.items():
            evidence = self._find_evidence(folder, files, signs)
            for batch in batches(list(evidence), EVIDENCE_BATCH_SIZE):
                done = {file.name for file, _ in batch}
                if has_begun:
                    done = yield from self._teach_batch(folder, batch)
                self._sightings.mark_done(*_key(folder), done)
                yield
        if everything and not has_begun:
            self._sightings.set_evidence_rule(mailbox.path, rule)

    def finished_digests(self, mailbox: Mailbox, sightings: Iterable[Sighting]) -> set[bytes]:
        """The messages whose evidence is done with, by the marks of their files.

        New copies of them get the same mark (`Sightings.update`): evidence that was shown before
        anybody asked for it teaches nothing, wherever the message is moved.
        """
        return {
            sighting.digest
            for sighting in sightings
            if self._sightings.done_names(mailbox.path, sighting.folder, [sighting.name])
        } - {b""}

    def _find_evidence(
        self, folder: Folder, files: Sequence[FoundFile], signs: Collection[EvidenceSign]
    ) -> Iterator[tuple[FoundFile, EvidenceSign]]:
        """The messages that may yet teach something."""
        last = {file.name: file for file in files}  # of a name in `new` and in `cur` the latter
        keys = np.fromiter(last, np.int64, len(last))
        present = keys[np.isin(keys, self._sightings.name_keys(*_key(folder)))].tolist()
        done = self._sightings.done_names(*_key(folder), present)
        for key in present:
            if key not in done and (sign := find_sign(_flags(last[key]), signs)):
                yield last[key], sign

    def _teach_batch(
        self, folder: Folder, batch: Sequence[tuple[FoundFile, EvidenceSign]]
    ) -> Generator[None, None, set[int]]:
        """Teach some messages; the files whose evidence is done with: taught, or over quota."""
        digests = self._sightings.find_digests(*_key(folder), [file.name for file, _ in batch])
        user, ledger = folder.mailbox.user, self._filter.ledger
        done = {digest for digest in digests.values() if ledger.get_vote(digest, user) is not None}
        files = {file.name: file.file for file, _ in batch}
        lessons: dict[bytes, FolderLesson] = {}
        for file, sign in batch:
            digest = digests.get(file.name)
            if digest and digest not in done and digest not in lessons:
                lessons[digest] = FolderLesson(
                    digest, HAM_LABEL, folder.directory, file.name, sign, sign
                )
        wanted = sorted(lessons.values(), key=_group_key)
        admitted = self._teacher.admit(folder.mailbox, wanted)
        done.update(lesson.digest for lesson in set(wanted).difference(admitted))
        examples = (
            (lesson, example)
            for lesson in admitted
            if (example := self._scanner.read_example(folder, files[lesson.name], lesson.digest))
        )
        while ready := _take_step(examples):
            self._teacher.cast_evidence(user, ready)
            done.update(lesson.digest for lesson, _ in ready)
            yield
        return {name for name, digest in digests.items() if digest in done}


def _key(folder: Folder) -> tuple[str, str]:
    """A folder as `Sightings` names it."""
    return folder.mailbox.path, folder.directory


def _flags(file: FoundFile) -> str:
    name = None if is_deleted(file.file.name) else parse_file_name(file.file.name)
    return name.flags if name else ""
