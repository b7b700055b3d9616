"""Teaches the lessons of a look at a mailbox, so that a crash at any point loses none and repeats none.

Sightings and ledger are two files, so no transaction covers both. The order of writes is:

1. One transaction in the file of the sightings brings them up to date and adds the votes that follow from this, features included,
   as pending votes.
2. One transaction in the ledger casts the pending votes.
3. The pending votes are dropped from the file of the sightings.

A crash before 1 has written nothing: the next look sees the same change again. After 1 the message may go where it likes, the vote needs
it no longer, and the next look starts from where the message was seen. Whatever ends the process between 1 and 3, or fails there, such
as a full disk, every look begins with steps 2 and 3 for what is pending, and no vote becomes pending before they have succeeded. Step 2
is safe to repeat: a pending vote gives way to every vote of the same user on the same message that the ledger has got since it was
decided, be it the same vote or a newer one by another door. Both files wait for the disk, so a power cut changes nothing about this.

What evidence says needs no pending votes: such a vote gives way to whatever its user ever said, and the ledger is asked before each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import compress, groupby
from operator import attrgetter
from typing import NamedTuple

from spamguard import log
from spamguard.batches import batches
from spamguard.engine import Filter
from spamguard.folders.allowance import Allowance
from spamguard.folders.contract import Mailbox, Place
from spamguard.folders.names import display
from spamguard.folders.reconcile import Outcome
from spamguard.folders.scan import Found, Looked, Scanner
from spamguard.folders.sightings import PendingVote, Sightings
from spamguard.folders.values import EVIDENCE_ORIGIN, ORIGIN, Copy, Key, Lesson
from spamguard.ledger import NewVote
from spamguard.prepare import Teaching, chunks

STEP_SECONDS = 0.5  # after which a step is over: a message that is large once it is unpacked takes a second
_LEFT_OVER = "lessons that were decided before a stop or a failure, and are taught now: %d"

_log = logging.getLogger("spamguard.folders")


class _Taught(NamedTuple):
    """A lesson and its message."""

    lesson: Lesson
    raw: bytes


class Teacher:
    """Casts votes in the name of the users of mailboxes."""

    def __init__(self, spam_filter: Filter, sightings: Sightings, scanner: Scanner, allowance: Allowance) -> None:
        self._filter = spam_filter
        self._allowance = allowance
        self._sightings = sightings
        self._scanner = scanner
        self.votes = 0  # that changed anything, so far

    def teach(
        self,
        mailbox: Mailbox,
        outcome: Outcome,
        looked: Looked,
        before: Sequence[Copy],
        done: Collection[bytes],
        *,
        first: bool = False,
    ) -> Generator[None, None, None]:
        """Everything that follows from one look, some lessons at a step; `looked` gets whether messages have moved on.

        before: what was remembered of these messages. done: as of `Sightings.update`. first: of the first look, which may be one at a
        mailbox that has moved: what it tells is older than whatever its user has said, or has taken back.
        LedgerError, SightingsError: what was not taught is taught before the next look, or found by it.
        """
        changes = _Changes(outcome, before)
        admitted = sorted(self._allowance.admitted(mailbox, outcome.lessons), key=_into)
        teaches_nothing = changes.digests - {lesson.digest for lesson in admitted}
        self._sightings.update(mailbox.path, *changes.of(teaches_nothing), done=done)
        messages = self._messages(mailbox, admitted, looked)
        while ready := self._ready(messages):
            self.cast_pending()  # those of another mailbox, which the ledger may have refused meanwhile
            decided_at = 0 if first else self._filter.ledger.last_seq()
            pending = [
                PendingVote(vote, decided_at, changes.came_from(lesson.digest), display(lesson.folder), lesson.why)
                for lesson, vote in self._votes(mailbox.user, ready)
            ]
            digests = [one.vote.digest for one in pending]
            self._sightings.update(mailbox.path, *changes.of(digests), done=done, votes=pending)
            self.cast_pending()
            yield

    def cast_left_over(self) -> None:
        """Cast the votes that a stop or a failure left pending, and tell how many that were."""
        if taught := self.cast_pending():
            _log.info(_LEFT_OVER, taught)

    def cast_pending(self) -> int:
        """Cast the pending votes, if there are any; how many of them changed anything."""
        pending = self._sightings.pending()
        if not pending:
            return 0
        changed = self._filter.cast([one.vote for one in pending], unless_voted_since=pending[0].decided_at)
        self.votes += sum(changed)
        for one in compress(pending, changed):
            _tell(one.vote, one.came_from, one.came_to, one.why)
        self._sightings.drop_pending()
        return sum(changed)

    def _messages(self, mailbox: Mailbox, lessons: Iterable[Lesson], looked: Looked) -> Iterator[_Taught]:
        """Those that can still be read; `looked` gets whether there are others."""
        for lesson in lessons:
            place, new = Place(mailbox, lesson.folder), looked.new.get(lesson.key)
            file = new.file if new else self._scanner.files(place, (lesson.name,)).get(lesson.name)
            raw = self._scanner.message(place, file, lesson.digest) if file else None
            if raw is not None:
                yield _Taught(lesson, raw)
            else:
                looked.again = True

    def weigh(self, mailbox: Mailbox, lessons: Sequence[tuple[Lesson, Found]]) -> Generator[None, None, set[bytes]]:
        """Teach what evidence says; of which messages that is done with, because it is taught or beyond what this user may teach.

        A mail program may have taken our own word for it: evidence that what we called spam is spam teaches nothing.
        """
        places = {lesson.digest: found for lesson, found in lessons}
        done: set[bytes] = set()
        for batch in _batches(lesson for lesson, _ in lessons):
            admitted = self._allowance.admitted(mailbox, batch)
            done |= {lesson.digest for lesson in batch} - {lesson.digest for lesson in admitted}
            messages = self._not_our_own(admitted, places, done)
            while ready := self._ready(messages):
                votes = self._votes(mailbox.user, ready)
                changed = self._filter.cast([vote for _, vote in votes], unless_voted_since=0)
                self.votes += sum(changed)
                for lesson, vote in compress(votes, changed):
                    _tell(vote, display(places[lesson.digest].place.directory), display(lesson.folder), lesson.why)
                done.update(vote.digest for _, vote in votes)
                yield
        return done

    def _not_our_own(self, lessons: Iterable[Lesson], places: Mapping[bytes, Found], ours: set[bytes]) -> Iterator[_Taught]:
        """Those that can be read and do not only repeat our own verdict. ours: gets the digests of those that do."""
        for lesson in lessons:
            message = self._scanner.read_signed(places[lesson.digest].place, places[lesson.digest].file)
            if message is None or message.digest != lesson.digest:
                continue
            if message.is_our_own(lesson.label, self._filter.unwanted):
                ours.add(lesson.digest)
            else:
                yield _Taught(lesson, message.raw)

    def _ready(self, messages: Iterator[_Taught]) -> list[tuple[Lesson, Teaching]]:
        """Lessons with the features of their messages, as many as a step has time for."""
        until = time.monotonic() + STEP_SECONDS
        ready: list[tuple[Lesson, Teaching]] = []
        for chunk in chunks(messages, attrgetter("raw")):  # few are held at once, however large they are
            prepared = self._scanner.preparer.all_ready([one.raw for one in chunk])
            ready += zip((one.lesson for one in chunk), prepared, strict=True)
            if time.monotonic() > until:
                break
        return ready

    def _votes(self, user: str, ready: Iterable[tuple[Lesson, Teaching]]) -> list[tuple[Lesson, NewVote]]:
        """The lessons with their votes."""
        votes: list[tuple[Lesson, NewVote]] = []
        for (label, *_), some in groupby(ready, lambda one: _into(one[0])):
            lessons, teachings = zip(*some, strict=True)
            cast = self._filter.new_votes(teachings, label, user=user, origin=_origin(lessons[0]))
            votes += zip(lessons, cast, strict=True)
        return votes


class _Changes:
    """What is to be remembered, and what no longer, by digest."""

    def __init__(self, outcome: Outcome, before: Sequence[Copy]) -> None:
        self._kept: dict[bytes, list[Copy]] = {}
        self._removed: dict[bytes, list[Copy]] = {}
        self._last: dict[bytes, Copy] = {}
        for copy in outcome.kept:
            self._kept.setdefault(copy.digest, []).append(copy)
        for copy in outcome.removed:
            self._removed.setdefault(copy.digest, []).append(copy)
        for copy in sorted(before, key=attrgetter("gone", "seen")):
            self._last[copy.digest] = copy
        self.digests = self._kept.keys() | self._removed.keys()

    def of(self, digests: Iterable[bytes]) -> tuple[list[Copy], list[Key]]:
        """Those of some messages."""
        some = list(digests)
        kept = [copy for digest in some for copy in self._kept.get(digest, ())]
        return kept, [copy.key for digest in some for copy in self._removed.get(digest, ())]

    def came_from(self, digest: bytes) -> str:
        """The folder a message was in before, for people."""
        return display(self._last[digest].folder) if digest in self._last else "-"


def _tell(vote: NewVote, came_from: str, came_to: str, why: str) -> None:
    """One line for each lesson."""
    log.lesson(_log, vote.user, {"from": came_from, "to": came_to}, vote.label or "", vote.digest, why)


def _into(lesson: Lesson) -> tuple[str, str, str]:
    """What the lessons of one call of `Filter.new_votes` have in common."""
    return lesson.label, lesson.folder, lesson.evidence


def _origin(lesson: Lesson) -> str:
    where = display(lesson.folder)
    return f"{EVIDENCE_ORIGIN} {lesson.evidence} {where}" if lesson.evidence else f"{ORIGIN} {where}"


def _batches(lessons: Iterable[Lesson]) -> Iterator[list[Lesson]]:
    """Those of one folder and kind, some at a time."""
    for _, same in groupby(sorted(lessons, key=_into), _into):
        yield from batches(same)
