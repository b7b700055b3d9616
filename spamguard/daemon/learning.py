"""Learns what waits: lessons that were accepted, and those that were left while nobody was there.

A lesson is removed once it is in the ledger; a crash in between teaches it again, which changes nothing. Must never lose one because
of trouble of ours, and never let one that cannot be learnt keep the others waiting.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from spamguard import log
from spamguard.engine import Filter
from spamguard.errors import SpamguardError, UnknownClassError
from spamguard.folders import refusals
from spamguard.folders.refusals import Refusals
from spamguard.prepare import Preparer, Teaching, chunks
from spamguard.teaching.lesson import BROUGHT, PIPED, Lesson

SETTLE_SECONDS = 60.0  # between two wishes to settle

_log = logging.getLogger("spamguard.teaching")


class Box(Protocol):
    """Where lessons wait: `teaching.queue.Queue`, `teaching.dropped.DropBox`."""

    def names(self) -> list[str]:
        """Of all of them; they sort by age. OSError."""

    def take(self, name: str) -> Lesson | None:
        """One of them, None when it is not there (yet). ValueError: it is no lesson; OSError."""

    def remove(self, name: str) -> None:
        """It was learnt, or never can be. OSError."""


class _Waiting(NamedTuple):
    name: str
    box: Box
    lesson: Lesson


class Learner:
    """Teaches a filter. settle: called when lessons wait for settling, not too often. most: lessons of a user in a day; 0: no limit."""

    def __init__(self, spam_filter: Filter, boxes: Sequence[Box], settle: Callable[[], object], most: int = 0) -> None:
        self._filter = spam_filter
        self._boxes = boxes
        self._settle = settle
        self._most = most
        self._preparer = Preparer(spam_filter.key)
        self._settled = 0.0
        self._unsettled = False
        self._hopeless: set[str] = set()
        self._told: set[int] = set()
        self._unread: set[str] = set()
        self._refusals = Refusals(refusals.dropped(spam_filter.directory))

    def turn(self) -> int:
        """Learn everything that waits; how many lessons that were. SpamguardError: trouble of ours, what was not learnt still waits."""
        done = 0
        for batch in _batches(self._waiting()):
            done += len(batch)
            self._learn(batch)
        self._unsettled = self._unsettled or done > 0
        self._settle_now_and_then()
        return done

    def _waiting(self) -> Iterator[_Waiting]:
        """In the order in which they were said."""
        found = sorted((name, number) for number, box in enumerate(self._boxes) for name in self._names(number, box))
        self._unread.intersection_update(name for name, _ in found)
        for name, number in found:
            if (lesson := self._taken(self._boxes[number], name)) is not None:
                yield _Waiting(name, self._boxes[number], lesson)

    def _names(self, number: int, box: Box) -> list[str]:
        """Trouble with one place is told once, and leaves the others alone."""
        try:
            found = box.names()
        except OSError as error:
            if number not in self._told:
                _log.error("lessons cannot be taken from %s: %s", error.filename, error.strerror)
            self._told.add(number)
            return []
        self._told.discard(number)
        return [name for name in found if name not in self._hopeless]

    def _taken(self, box: Box, name: str) -> Lesson | None:
        try:
            found = box.take(name)
        except ValueError as error:
            self._drop(box, name, str(error))
            return None
        except OSError as error:  # told of one of them, and tried again
            if not self._unread:
                _log.error("the lesson %s cannot be read: %s; others like it are not told", ascii(name), error.strerror)
            self._unread.add(name)
            return None
        self._unread.discard(name)
        return found

    def _learn(self, batch: Sequence[_Waiting]) -> None:
        try:
            done = self._taught(batch) if batch[0].lesson.label else self._forgotten(batch)
        except UnknownClassError as error:
            self._refuse(batch, str(error))
            return
        except SpamguardError:
            raise
        except Exception:  # of these only; the next start tries again  # noqa: BLE001
            _log.exception("a fault in learning %d lessons: they wait for the next start", len(batch))
            self._hopeless.update(one.name for one in batch)
            return
        for one, digest, new in done:
            label, user, origin, _ = one.lesson
            what = ("learnt" if label else "forgotten") if new else "known"
            log.lesson(_log, user, {"by": origin}, label, digest, what)
            self._remove(one.box, one.name)

    def _taught(self, batch: Sequence[_Waiting]) -> list[tuple[_Waiting, bytes, bool]]:
        """Each that was admitted, its digest, and whether it has changed anything."""
        first = batch[0].lesson
        if first.origin == PIPED:
            self._check_known(first.label)
        admitted = self._admitted(batch, self._preparer.all_ready([one.lesson.raw for one in batch]))
        changed = self._filter.learn_ready([lesson for _, lesson in admitted], first.label, user=first.user, origin=first.origin)
        return [(one, lesson.digest, new) for (one, lesson), new in zip(admitted, changed, strict=True)]

    def _check_known(self, label: str) -> None:
        """UnknownClassError unless there is such a class: any account may hand lessons over, and every class costs memory and time."""
        if label not in self._filter.classes:
            self._filter.check_class(label)  # tells what was meant, if it looks like a slip of the pen
            raise UnknownClassError(f"there is no class {label!r} here; `spamguard learn --as {label}` makes one")

    def _forgotten(self, batch: Sequence[_Waiting]) -> list[tuple[_Waiting, bytes, bool]]:
        first = batch[0].lesson
        digests = [self._preparer.digest(one.lesson.raw) for one in batch]
        return list(zip(batch, digests, self._filter.forget_ready(digests, user=first.user, origin=first.origin), strict=True))

    def _admitted(self, batch: Sequence[_Waiting], ready: Sequence[Teaching]) -> list[tuple[_Waiting, Teaching]]:
        """Those that their user may still teach today; the others go. What stands already changes nothing, and costs nothing.

        What nobody in particular says is said by whoever runs the site: for that there is no limit.
        """
        pairs = list(zip(batch, ready, strict=True))
        first = batch[0].lesson
        if not self._most or not first.user:
            return pairs
        users, now = self._filter.ledger.users, int(time.time())
        taken, refused = users.within(self._most, first.user, BROUGHT, now, pairs, lambda pair: (pair[1].digest, first.label))
        for one, _ in refused:
            self._remove(one.box, one.name)
        if refused:
            told = "%s has taught %d messages within 24 hours (lessons_per_day): %d more are dropped; `spamguard learn` has no limit"
            _log.warning(told, first.user, self._most, len(refused))
            self._note(first, len(refused), refusals.LIMIT)
        return taken

    def _refuse(self, batch: Sequence[_Waiting], why: str) -> None:
        """Whoever handed them over was told that all is well: people must be able to see that it was not."""
        first = batch[0].lesson
        for one in batch:
            self._remove(one.box, one.name)
        _log.warning("%d lessons of %s by %s are dropped: %s", len(batch), ascii(first.user), first.origin, why)
        self._note(first, len(batch), why)

    def _note(self, lesson: Lesson, number: int, why: str) -> None:
        """For `status`."""
        self._refusals.add(lesson.user, lesson.origin, number, why)
        try:
            refusals.note_dropped(self._filter.directory, self._refusals)
        except OSError as error:
            _log.error("%s: cannot be written (%s): `status` does not see what is dropped", refusals.DROPPED, error.strerror)

    def _drop(self, box: Box, name: str, why: str) -> None:
        _log.warning("%s was left as a lesson and is none: %s", ascii(name), why)
        self._remove(box, name)

    def _remove(self, box: Box, name: str) -> None:
        try:
            box.remove(name)
        except OSError as error:
            _log.error("%s cannot be removed (%s): it is not looked at again", ascii(name), error.strerror)
            self._hopeless.add(name)

    def _settle_now_and_then(self) -> None:
        now = time.monotonic()
        if self._unsettled and now >= self._settled + SETTLE_SECONDS:
            self._settled, self._unsettled = now, False
            if self._filter.settling_due():
                self._settle()


def _batches(waiting: Iterator[_Waiting]) -> Iterator[list[_Waiting]]:
    """Neighbours that are said by one user to be one thing, some at a time."""
    for _, same in groupby(waiting, lambda one: one.lesson[:3]):
        yield from chunks(same, lambda one: one.lesson.raw)
