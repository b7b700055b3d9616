"""The one way in for a lesson.

A lesson says: this message is of this class, by the word of this user. It comes by a program (left
in the spool), a scanner's protocol, forwarded mail, a folder, the page, the API or a command. Each
of these authenticates its client in its own manner and names the user; then all come here:

- `TrainingIntake.submit` is for processes that hold no filter. It puts a lesson into the queue on
  the disk. The reply goes out before the lesson is learnt, because no mail server may wait for the
  ledger.
- `Learner` takes what waits to `LessonService.submit`. A lesson is removed once it is in the
  ledger; a crash in between teaches it again, which changes nothing.
- `LessonService` is for processes that hold a filter: is the class known, is the quota of the day
  left, cast the votes, write the log line. Folders take these steps one by one, because they store
  the votes between them, so that a crash loses none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from spamguard import log
from spamguard.engine.prepare import Example, ExampleReader
from spamguard.errors import SpamguardError, UnknownClassError
from spamguard.learning import status_files
from spamguard.learning.queue import QUEUE_DIRECTORY, LessonQueue, LessonSpool
from spamguard.log import WarnOnce
from spamguard.users import (
    SUBMITTED_ORIGINS,
    LessonHeader,
    Origin,
    QueuedLesson,
)

if TYPE_CHECKING:  # doors and proxies import this module and never load a filter
    from spamguard.engine.filter import Filter
    from spamguard.ledger.votes import NewVote

_log = logging.getLogger("spamguard.teaching")

Item = TypeVar("Item")

SETTLE_SECONDS = 60.0
"""Between two requests to settle by one process that learns in the background."""


# ---- with a filter at hand


class NewClass(Enum):
    """What becomes of a lesson of a class that is not there yet."""

    REFUSE = auto()  # by programs and on the page: every class costs memory and time for all mail
    UNLESS_SIMILAR = auto()  # make it, unless its name looks like a slip of the pen
    CREATE = auto()  # by configuration or `--new`: somebody meant it


class LessonOutcome(Enum):
    """What became of a lesson."""

    LEARNT = "learnt"
    UNCHANGED = "known"  # it says nothing new
    OVER_QUOTA = "over quota"


def unknown_class(label: str) -> UnknownClassError:
    return UnknownClassError(
        f"there is no class {label!r} here; `spamguard learn --as {label}` makes one"
    )


@dataclass
class LessonService:
    """Teaches one filter, in its thread."""

    _filter: Filter
    _settle: Callable[[], object] | None = None  # asks for settling
    pause: float = SETTLE_SECONDS  # between two calls of `_settle`
    # Gets a line for each lesson; None where the caller answers a person, such as a command.
    logger: logging.Logger | None = None
    changed: int = 0  # votes that changed anything, so far
    _settled_at: float = -inf
    _settled_changes: int = 0

    def submit(
        self,
        examples: Sequence[Example],
        label: str,
        user: str,
        origin: str,
        *,
        new_class: NewClass = NewClass.UNLESS_SIMILAR,
        lessons_per_day: int = 0,
    ) -> list[LessonOutcome]:
        """Teach messages as one class, in one transaction; what became of each.

        UnknownClassError: there is no such class, and it may not be made; nothing is taught.
        """
        self.open_class(label, new_class)
        votes = self._filter.make_votes(examples, label, user=user, origin=origin)
        return self._submit_votes(votes, user, lessons_per_day)

    def submit_vote(self, vote: NewVote, lessons_per_day: int = 0) -> LessonOutcome:
        return self._submit_votes([vote], vote.user, lessons_per_day)[0]

    def _submit_votes(
        self, votes: Sequence[NewVote], user: str, lessons_per_day: int
    ) -> list[LessonOutcome]:
        admitted, _ = self.admit(
            list(enumerate(votes)),
            user,
            lessons_per_day,
            SUBMITTED_ORIGINS,
            lambda item: (item[1].digest, item[1].label or ""),
        )
        outcomes = [LessonOutcome.OVER_QUOTA] * len(votes)
        changes = self.cast([vote for _, vote in admitted])
        for (number, vote), changed in zip(admitted, changes, strict=True):
            outcomes[number] = LessonOutcome.LEARNT if changed else LessonOutcome.UNCHANGED
            self._log(user, vote.origin, vote.label or "", vote.digest, outcomes[number].value)
        return outcomes

    def retract(
        self, digests: Sequence[bytes], user: str, origin: str, old_label: str = ""
    ) -> list[bool]:
        """Take back what the user has said about messages; of each, whether there was anything. The
        old label is for the log line.
        """
        retracted = self._filter.forget_digests(digests, user=user, origin=origin)
        self.changed += sum(retracted)
        for digest, changed in zip(digests, retracted, strict=True):
            self._log(user, origin, old_label, digest, "forgotten" if changed else "known")
        return retracted

    def _log(self, user: str, origin: str, label: str, digest: bytes, outcome: str) -> None:
        if self.logger is not None:
            log.log_lesson(self.logger, user, {"by": origin}, label, digest, outcome)

    # the steps of `submit`

    def open_class(self, label: str, new_class: NewClass, *, unwanted: bool = False) -> None:
        if new_class is not NewClass.CREATE:
            self._filter.check_class(label)  # a slip of the pen: the error says what was meant
        if new_class is NewClass.REFUSE and label not in self._filter.classes:
            raise unknown_class(label)
        if unwanted:
            self._filter.define_class(label, unwanted=True)
        elif new_class is not NewClass.REFUSE:
            self._filter.ensure_class(label)

    def admit(
        self,
        lessons: Sequence[Item],
        user: str,
        lessons_per_day: int,  # 0 for no limit
        origins: Sequence[str],  # the ways of teaching that share this quota
        vote: Callable[[Item], tuple[bytes, str]],  # the digest and the class of a lesson
    ) -> tuple[list[Item], list[Item]]:
        """Split lessons into those that the user may still teach within 24 hours, and the others.

        The ledger is what is counted, which no restart forgets. A lesson that stands already costs
        nothing. The site's own word (user "") has no limit.
        """
        if not lessons_per_day or not user:
            return list(lessons), []
        return self._filter.ledger.users.apply_quota(
            lessons_per_day, user, origins, int(time.time()), lessons, vote
        )

    def cast(
        self, votes: Sequence[NewVote], *, unless_voted_since: int | None = None
    ) -> list[bool]:
        changed = self._filter.cast_votes(votes, unless_voted_since=unless_voted_since)
        self.changed += sum(changed)
        return changed

    # settling

    @property
    def settling_due(self) -> float:
        """When to call `request_settling` (`time.monotonic`); inf: nothing has changed."""
        return inf if self.changed == self._settled_changes else self._settled_at + self.pause

    def request_settling(self) -> None:
        now = time.monotonic()
        if self._settle is None or now < self.settling_due:
            return
        self._settled_at, self._settled_changes = now, self.changed
        if self._filter.is_settling_due():
            self._settle()


# ---- from the queue


class Learner:
    """Teaches a filter what waits."""

    def __init__(
        self,
        spam_filter: Filter,
        sources: Sequence[LessonSpool],
        settle: Callable[[], object],
        lessons_per_day: int = 0,  # of each user; 0 for no limit
    ) -> None:
        self._service = LessonService(spam_filter, settle, logger=_log)
        self._sources = sources
        self._lessons_per_day = lessons_per_day
        self._reader = ExampleReader(spam_filter.key)
        self._state = spam_filter.directory
        self._refusals = status_files.RefusalLog(status_files.read_dropped(self._state))
        # What cannot be read is tried again each time.
        self._warnings = WarnOnce(_log, logging.ERROR)

    def run_once(self) -> int:
        """Learn what waits and count it. After a SpamguardError the rest still waits."""
        waiting: list[tuple[str, LessonSpool]] = []
        for number, source in enumerate(self._sources):
            try:
                waiting += ((name, source) for name in source.names())
            except OSError as error:
                self._warnings.warn(
                    number, "lessons cannot be taken from %s: %s", error.filename, error.strerror
                )
            else:
                self._warnings.clear(number)
        # in the order in which it was said
        done = sum(self._take(source, name) for name, source in sorted(waiting, key=itemgetter(0)))
        self._service.request_settling()
        return done

    def _take(self, source: LessonSpool, name: str) -> bool:
        lesson = None
        try:
            lesson = source.take(name)
            if lesson is None:
                return False
        except ValueError as error:
            _log.warning("%s was left as a lesson and is none: %s", ascii(name), error)
        except OSError as error:
            self._warnings.warn(
                error.strerror,
                "%s cannot be read: %s; others like it are not told",
                ascii(name),
                error.strerror,
            )
            return False
        if lesson is not None:
            try:
                self._learn(lesson)
            except SpamguardError:
                raise
            except Exception:  # noqa: BLE001  it only waits
                _log.exception("a fault in learning a lesson: it waits for the next start")
                source.skipped.add(name)
                return True
        try:
            source.remove(name)
        except OSError as error:
            _log.error(
                "%s cannot be removed (%s): it is not looked at again", ascii(name), error.strerror
            )
        return lesson is not None

    def _learn(self, lesson: QueuedLesson) -> None:
        label, user, origin, raw = lesson
        if not label:
            self._service.retract([self._reader.digest(raw)], user, origin)
            return
        refusal = ""
        try:
            outcomes = self._service.submit(
                [self._reader.read_example(raw)],
                label,
                user,
                origin,
                # any account of the machine may use the pipe; other ways name configured classes
                new_class=NewClass.REFUSE if origin == Origin.PIPE else NewClass.UNLESS_SIMILAR,
                lessons_per_day=self._lessons_per_day,
            )
            if LessonOutcome.OVER_QUOTA in outcomes:
                refusal = status_files.OVER_QUOTA
        except UnknownClassError as error:
            refusal = str(error)
        if not refusal:
            return
        _log.warning(
            "a lesson of %s by %s is dropped: %s; `spamguard learn` can still teach it",
            ascii(user),
            origin,
            refusal,
        )
        self._refusals.add(user, origin, 1, refusal)
        try:
            status_files.write_dropped(self._state, self._refusals)
        except OSError as error:
            _log.error(
                "%s: cannot be written (%s): `status` does not see what is dropped",
                status_files.DROPPED_FILE,
                error.strerror,
            )


# ---- without a filter: into the queue


class TrainingOutcome(Enum):
    """What came of a lesson that was handed over."""

    ACCEPTED = auto()  # it is on the disk, and is learnt by and by
    FORBIDDEN = auto()  # this client may not teach
    IMPOSSIBLE = auto()  # it can never be learnt
    TRY_LATER = auto()  # local trouble


class TrainingIntake:
    """Takes lessons for the queue of one state directory; any number of threads may call it."""

    def __init__(self, state: Path) -> None:
        self._queue = LessonQueue(state / QUEUE_DIRECTORY)

    def submit(
        self, header: LessonHeader, message: Iterable[bytes], origin: str
    ) -> TrainingOutcome:
        """Return once the lesson is on the disk; OSError says that it is not. Class and quota are
        checked when it is learnt, and whether it says anything new.
        """
        if not header.is_valid():
            return TrainingOutcome.IMPOSSIBLE
        self._queue.put(header, origin, message)
        return TrainingOutcome.ACCEPTED
