"""What people said, taught: the lessons of one look at a mailbox become votes, and only then are its sightings brought up to date.

A crash anywhere in between is made good by the next look: it finds the same lessons, and casting a vote twice changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
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
from spamguard.folders.sightings import Sightings
from spamguard.folders.values import EVIDENCE_ORIGIN, ORIGIN, Copy, Key, Lesson
from spamguard.prepare import Teaching, chunks

STEP_SECONDS = 0.5  # after which a step is over: a message that is large once it is unpacked takes a second
_REMEMBER = 512  # votes cast before the sightings follow; until then a crash would make us cast them again

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
        *,
        first: bool = False,
    ) -> Generator[None, None, None]:
        """Everything that follows from one look, some lessons at a step; `looked` gets whether messages have moved on.

        before: what was remembered of these messages. first: of the first look, which may be one at a
        mailbox that has moved: what it tells is older than whatever its user has said, or has taken back.
        LedgerError, SightingsError: what was not taught will be found again.
        """
        changes = _Changes(outcome, before)
        self._sightings.update(mailbox.path, *changes.of(changes.digests - {lesson.digest for lesson in outcome.lessons}))
        taught: list[bytes] = []
        for batch in _batches(outcome.lessons):
            admitted = self._allowance.admitted(mailbox, batch)
            messages = self._messages(mailbox, admitted, looked)
            while learnt := self._learn(mailbox.user, messages, changes.came_from, unheard=first):
                taught += learnt
                yield
            taught += {lesson.digest for lesson in batch} - {lesson.digest for lesson in admitted}  # not taken, and not asked for again
            if len(taught) >= _REMEMBER:
                self._sightings.update(mailbox.path, *changes.of(taught))
                taught = []
            yield
        self._sightings.update(mailbox.path, *changes.of(taught))

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
            while learnt := self._learn(mailbox.user, messages, lambda digest: display(places[digest].place.directory), unheard=True):
                done.update(learnt)
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

    def _learn(self, user: str, messages: Iterator[_Taught], came_from: Callable[[bytes], str], *, unheard: bool) -> list[bytes]:
        """Messages that all go into one folder, as many as a step has time for; the digests of what is in the ledger now.

        unheard: gives way to whatever was said, perhaps meanwhile and through another door.
        """
        until = time.monotonic() + STEP_SECONDS
        lessons: list[Lesson] = []
        ready: list[Teaching] = []
        for chunk in chunks(messages, attrgetter("raw")):  # few are held at once, however large they are
            lessons += [one.lesson for one in chunk]
            ready += self._scanner.preparer.all_ready([one.raw for one in chunk])
            if time.monotonic() > until:
                break
        if not lessons:
            return []
        first = lessons[0]
        changed = self._filter.learn_ready(ready, first.label, user=user, origin=_origin(first), unheard=unheard)
        self.votes += sum(changed)
        for lesson in compress(lessons, changed):
            _tell(user, lesson, came_from(lesson.digest))
        return [lesson.digest for lesson in lessons]


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


def _tell(user: str, lesson: Lesson, source: str) -> None:
    """One line for each lesson."""
    log.lesson(_log, user, {"from": source, "to": display(lesson.folder)}, lesson.label, lesson.digest, lesson.why)


def _origin(lesson: Lesson) -> str:
    where = display(lesson.folder)
    return f"{EVIDENCE_ORIGIN} {lesson.evidence} {where}" if lesson.evidence else f"{ORIGIN} {where}"


def _batches(lessons: Iterable[Lesson]) -> Iterator[list[Lesson]]:
    """Those of one folder and kind, some at a time."""
    into = attrgetter("label", "folder", "evidence")
    for _, same in groupby(sorted(lessons, key=into), into):
        yield from batches(same)
