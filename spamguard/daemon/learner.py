"""The learner: users' folders, the queue of lessons and the teaching door (`python -m
spamguard.daemon.learner CHANNEL SETTINGS MASTER COUNTERS`).

The master starts it where folders are watched or lessons accepted, apart from the mail and at low
priority. One thread watches the folders and one learns what waits in the queue; each has a filter
of its own, and opens it again after an error. The event loop takes lessons at the teaching door and
writes them to the disk, so that no client waits for the ledger. The door is here and not in the
workers: it has to know the classes, and its limits count for all clients together.

SIGTERM or the end of the master end the process at once, at any moment. The ledger alone says what
has been learnt, an accepted lesson lies on the disk, and a client keeps one that was not accepted.

Must never be needed for mail to flow. Must never let trouble with the folders keep the door or the
queue waiting, or the other way round.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from math import inf

from spamguard import process
from spamguard.bayes.tables import BASE_CLASSES
from spamguard.config.options import Settings, TeachSettings
from spamguard.counters import TEACHER_SLOT, WATCHER_SLOT, CounterSlot
from spamguard.engine.filter import Filter
from spamguard.errors import SpamguardError
from spamguard.folders import broker
from spamguard.folders.watcher import Watcher
from spamguard.learning.lessons import Learner, TrainingIntake
from spamguard.learning.queue import QUEUE_DIRECTORY, LessonQueue, LessonSpool, explain_unread_spool
from spamguard.log import WarnOnce
from spamguard.servers.teach import TeachingDoor, TrainingAccounts
from spamguard.storage import SPOOL_DIRECTORY

_log = logging.getLogger("spamguard.teaching")
_folders_log = logging.getLogger("spamguard.folders")

POLL_SECONDS = 0.5  # for lessons in a spool, or put into the queue by another process
RETRY_SECONDS = 15.0  # after an error of our own, such as a full disk
_BEAT_SECONDS = 1.0
_MOVES_WAIT = "what is moved meanwhile is found when that is mended"
_LESSONS_WAIT = "lessons wait until that is mended"
_CLASS_TIMEOUT = 1.0  # to find out whether a class exists: a delivery agent waits
_CLASS_POLL_SECONDS = 0.02


def main(arguments: Sequence[str]) -> int:
    """Learn until this process is ended."""
    with process.child_context(arguments) as (settings, request_settling, board):
        watcher = None
        if settings.watch:
            watch = partial(_watch_folders, settings, request_settling, board.slot(WATCHER_SLOT))
            watcher = _start_thread(watch, _folders_log, _MOVES_WAIT)
        if settings.accepts_lessons:
            asyncio.run(_take_lessons(settings, request_settling, board.slot(TEACHER_SLOT)))
        elif watcher is not None:
            watcher.join()
    return 1


def _start_thread(
    rounds: Callable[[], Iterator[None]], logger: logging.Logger, consequence: str
) -> threading.Thread:
    """Start a thread that goes through the rounds, which never end, and after an error begins anew.

    consequence: of an error, for the log.
    """

    def run() -> None:
        errors = WarnOnce(logger, logging.ERROR)
        while True:
            try:
                for _ in rounds():
                    errors.clear()
            except (SpamguardError, OSError) as error:
                errors.report("%s; %s", error, consequence)
            except Exception:
                logger.exception("a fault; %s", consequence)
            time.sleep(RETRY_SECONDS)

    thread = threading.Thread(target=run, name=logger.name, daemon=True)
    thread.start()
    return thread


def _watch_folders(
    settings: Settings, request_settling: Callable[[], None], slot: CounterSlot
) -> Iterator[None]:
    """Learn what users move; yield after each look."""
    with (
        Filter.open(settings.state) as spam_filter,
        closing(broker.make_mailboxes(settings.watch, settings.watch_socket)) as mailboxes,
        closing(Watcher(spam_filter, settings, mailboxes, request_settling)) as watcher,
    ):
        while True:
            watcher.run_once(inf)
            slot.beat(time.monotonic_ns())
            yield


# ---- the teaching door and the queue behind it


class ClassRegistry:
    """The classes of the filter: the thread that has the filter updates them, the door reads them.

    wake: makes that thread update at once.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._classes = frozenset(BASE_CLASSES)
        self._updated = -inf

    def update(self, spam_filter: Filter) -> None:
        """Read the classes. LedgerError, TableError."""
        started = time.monotonic()
        self._classes, self._updated = spam_filter.classes, started

    async def is_missing(self, name: str) -> bool:
        """Whether there is no such class by now.

        False while that cannot be found out: no lesson may be refused for it.
        """
        started = time.monotonic()
        while name not in self._classes and self._updated < started:
            if time.monotonic() > started + _CLASS_TIMEOUT:
                return False
            self._wake()
            await asyncio.sleep(_CLASS_POLL_SECONDS)
        return name not in self._classes


async def _take_lessons(
    settings: Settings, request_settling: Callable[[], None], slot: CounterSlot
) -> None:
    """Keep the door open, and start the thread that learns what it takes."""
    teach = settings.teach or TeachSettings()
    accounts, arrived = TrainingAccounts(teach.for_others), threading.Event()
    classes = ClassRegistry(arrived.set)
    queues: list[LessonQueue | LessonSpool] = [LessonQueue(settings.state / QUEUE_DIRECTORY)]
    if teach.spool is not None:
        queues.append(LessonSpool(teach.spool, accounts.resolve_user))
    if settings.teach is not None and (warning := explain_unread_spool(teach.spool)):
        _log.warning("%s", warning)
    learn = partial(_learn_lessons, settings, queues, request_settling, arrived, classes)
    _start_thread(learn, _log, _LESSONS_WAIT)
    spool, path = settings.state / SPOOL_DIRECTORY, teach.socket or settings.state / "teach.sock"
    intake = TrainingIntake(settings.state)
    door = TeachingDoor(intake, accounts, spool, arrived.set, classes.is_missing)
    while True:
        try:
            server = await door.start(path, teach.mode)
        except OSError as error:
            _log.error(
                "%s: cannot listen there (%s): its directory must be there and belong to us; "
                "trying again",
                path,
                error.strerror or error,
            )
            await asyncio.sleep(RETRY_SECONDS)
        else:
            _log.info("lessons are taken on %s", path)
            async with server:
                while True:
                    slot.beat(time.monotonic_ns())
                    await asyncio.sleep(_BEAT_SECONDS)


def _learn_lessons(
    settings: Settings,
    queues: Sequence[LessonQueue | LessonSpool],
    request_settling: Callable[[], None],
    arrived: threading.Event,
    classes: ClassRegistry,
) -> Iterator[None]:
    """Learn what waits; yield after each look."""
    lessons_per_day = (settings.teach or TeachSettings()).lessons_per_day
    with Filter.open(settings.state) as spam_filter:
        learner = Learner(spam_filter, queues, request_settling, lessons_per_day)
        while True:
            classes.update(spam_filter)
            learner.run_once()
            yield
            arrived.wait(POLL_SECONDS)
            arrived.clear()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
