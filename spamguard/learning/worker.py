"""Learns the lessons that wait: those in the queue, and those that programs left in a directory
while the daemon was down.

A lesson is removed once it is in the ledger. A crash in between teaches it again, which changes
nothing. Must never lose a lesson because of local trouble, such as a full disk, and never let a
lesson that cannot be learnt keep the others waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from spamguard.engine.filter import Filter
from spamguard.engine.prepare import ExampleReader, batch_by_size
from spamguard.errors import SpamguardError, UnknownClassError
from spamguard.learning import refusals
from spamguard.learning.lessons import LessonOutcome, LessonService, NewClass
from spamguard.learning.refusals import RefusalLog
from spamguard.users import PIPE_ORIGIN, QueuedLesson

_log = logging.getLogger("spamguard.teaching")


class LessonSource(Protocol):
    """Where lessons wait: `LessonQueue` and `LessonSpool` of `learning.queue`."""

    def names(self) -> list[str]:
        """Of all lessons; they sort by age. OSError."""

    def take(self, name: str) -> QueuedLesson | None:
        """A lesson; None: it is not there (yet). ValueError: the file is no lesson; OSError."""

    def remove(self, name: str) -> None:
        """The lesson was learnt, or never can be. OSError."""


class _WaitingLesson(NamedTuple):
    name: str
    source: LessonSource
    lesson: QueuedLesson


class Learner:
    """Teaches a filter what waits. settle: asks for settling, not too often.

    lessons_per_day: of each user, 0: no limit.
    """

    def __init__(
        self,
        spam_filter: Filter,
        sources: Sequence[LessonSource],
        settle: Callable[[], object],
        lessons_per_day: int = 0,
    ) -> None:
        self._lessons = LessonService(spam_filter, settle, logger=_log)
        self._sources = sources
        self._lessons_per_day = lessons_per_day
        self._extractor = ExampleReader(spam_filter.key)
        self._skipped: set[str] = set()  # until the next start
        self._failed_sources: set[int] = set()
        self._unreadable: set[str] = set()
        self._state = spam_filter.directory
        self._refusals = RefusalLog(refusals.read_dropped(self._state))

    def run_once(self) -> int:
        """Learn everything that waits; how many lessons that were. SpamguardError: local trouble,
        what was not learnt still waits.
        """
        done = 0
        # neighbours that say the same by the word of the same user are learnt together
        for _, same in groupby(self._iter_waiting(), lambda waiting: waiting.lesson[:3]):
            for batch in batch_by_size(same, lambda waiting: waiting.lesson.raw):
                done += len(batch)
                self._learn(batch)
        self._lessons.request_settling()
        return done

    def _iter_waiting(self) -> Iterator[_WaitingLesson]:
        """In the order in which the lessons were said."""
        waiting = sorted(
            (name, number)
            for number, source in enumerate(self._sources)
            for name in self._list_names(number, source)
        )
        self._unreadable.intersection_update(name for name, _ in waiting)
        for name, number in waiting:
            if (lesson := self._take(self._sources[number], name)) is not None:
                yield _WaitingLesson(name, self._sources[number], lesson)

    def _list_names(self, number: int, source: LessonSource) -> list[str]:
        """Trouble with one source is logged once, and the others go on."""
        try:
            names = source.names()
        except OSError as error:
            if number not in self._failed_sources:
                _log.error("lessons cannot be taken from %s: %s", error.filename, error.strerror)
            self._failed_sources.add(number)
            return []
        self._failed_sources.discard(number)
        return [name for name in names if name not in self._skipped]

    def _take(self, source: LessonSource, name: str) -> QueuedLesson | None:
        try:
            lesson = source.take(name)
        except ValueError as error:
            _log.warning("%s was left as a lesson and is none: %s", ascii(name), error)
            self._remove(source, name)
            return None
        except OSError as error:  # one of them is logged; all are tried again
            if not self._unreadable:
                _log.error(
                    "the lesson %s cannot be read: %s; others like it are not told",
                    ascii(name),
                    error.strerror,
                )
            self._unreadable.add(name)
            return None
        self._unreadable.discard(name)
        return lesson

    def _learn(self, batch: Sequence[_WaitingLesson]) -> None:
        try:
            over_quota = self._submit(batch)
        except UnknownClassError as error:
            user, origin = batch[0].lesson.user, batch[0].lesson.origin
            _log.warning(
                "%d lessons of %s by %s are dropped: %s", len(batch), ascii(user), origin, error
            )
            self._record_refusal(batch[0].lesson, len(batch), str(error))
        except SpamguardError:
            raise
        except Exception:  # noqa: BLE001  these only wait for the next start
            _log.exception(
                "a fault in learning %d lessons: they wait for the next start", len(batch)
            )
            self._skipped.update(waiting.name for waiting in batch)
            return
        else:
            if over_quota:
                _log.warning(
                    "%s has taught %d messages within 24 hours (lessons_per_day): "
                    "%d more are dropped; `spamguard learn` has no limit",
                    batch[0].lesson.user,
                    self._lessons_per_day,
                    over_quota,
                )
                self._record_refusal(batch[0].lesson, over_quota, refusals.OVER_QUOTA)
        for waiting in batch:
            self._remove(waiting.source, waiting.name)

    def _submit(self, batch: Sequence[_WaitingLesson]) -> int:
        """Teach, or take back; how many lessons are over quota."""
        label, user, origin, _ = batch[0].lesson
        raws = [waiting.lesson.raw for waiting in batch]
        if not label:
            self._lessons.retract([self._extractor.digest(raw) for raw in raws], user, origin)
            return 0
        outcomes = self._lessons.submit(
            self._extractor.read_examples(raws),
            label,
            user,
            origin,
            # any account of the machine may use the pipe; the other ways name configured classes
            new_class=NewClass.REFUSE if origin == PIPE_ORIGIN else NewClass.UNLESS_SIMILAR,
            lessons_per_day=self._lessons_per_day,
        )
        return outcomes.count(LessonOutcome.OVER_QUOTA)

    def _record_refusal(self, lesson: QueuedLesson, number: int, why: str) -> None:
        """For `status`: the client was told that the lesson is taken."""
        self._refusals.add(lesson.user, lesson.origin, number, why)
        try:
            refusals.write_dropped(self._state, self._refusals)
        except OSError as error:
            _log.error(
                "%s: cannot be written (%s): `status` does not see what is dropped",
                refusals.DROPPED_FILE,
                error.strerror,
            )

    def _remove(self, source: LessonSource, name: str) -> None:
        try:
            source.remove(name)
        except OSError as error:
            _log.error(
                "%s cannot be removed (%s): it is not looked at again", ascii(name), error.strerror
            )
            self._skipped.add(name)
