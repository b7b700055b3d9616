"""The process behind the teaching socket: `python -m spamguard.daemon.teach CHANNEL SETTINGS MASTER
COUNTERS`.

The master starts it apart from the mail. An event loop accepts lessons and writes them to the disk;
a thread learns them from there, so that no client waits for the ledger. SIGTERM ends the process at
once: an accepted lesson lies on the disk, and the client keeps one that was not accepted.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

from spamguard import process
from spamguard.bayes.tables import BASE_CLASSES
from spamguard.config.options import Settings, TeachSettings
from spamguard.counters import TEACHER_SLOT, CounterSlot
from spamguard.engine.filter import Filter
from spamguard.errors import SpamguardError
from spamguard.learning.lessons import TrainingIntake
from spamguard.learning.queue import QUEUE_DIRECTORY, LessonQueue, LessonSpool, explain_unread_spool
from spamguard.learning.worker import Learner, LessonSource
from spamguard.servers.teach import TeachingDoor, TrainingAccounts
from spamguard.storage import SPOOL_DIRECTORY

_log = logging.getLogger("spamguard.teaching")

POLL_SECONDS = 0.5  # for lessons in a spool, or put into the queue by another process
RETRY_SECONDS = 15.0  # after an error of our own, such as a full disk
_BEAT_SECONDS = 1.0
_CLASS_TIMEOUT = 1.0  # to find out whether a class exists: a delivery agent waits
_CLASS_POLL_SECONDS = 0.02


class ClassRegistry:
    """The classes of the filter: the thread that has the filter updates them, the door reads them.

    Parameters
    ----------
    wake
        Makes that thread update at once.
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


def main(arguments: Sequence[str]) -> int:
    """Serve until this process is ended."""
    with process.child_context(arguments) as (settings, to_master, board):
        asyncio.run(_serve(settings, process.settle_requester(to_master), board.slot(TEACHER_SLOT)))
    return 1


async def _serve(settings: Settings, settle: Callable[[], None], slot: CounterSlot) -> None:
    """Keep the door open and the thread learning; neither waits for the other."""
    teach = settings.teach or TeachSettings()
    accounts, arrived = TrainingAccounts(teach.for_others), threading.Event()
    queue = LessonQueue(settings.state / QUEUE_DIRECTORY)
    classes = ClassRegistry(arrived.set)
    queues: list[LessonSource] = [queue]
    if teach.spool is not None:
        queues.append(LessonSpool(teach.spool, accounts.resolve_user))
    if settings.teach is not None and (warning := explain_unread_spool(teach.spool)):
        _log.warning("%s", warning)
    threading.Thread(
        target=_learn_forever,
        args=(settings.state, queues, settle, teach.lessons_per_day, arrived, classes),
        name="learner",
        daemon=True,
    ).start()
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


def _learn_forever(
    state: Path,
    queues: Sequence[LessonSource],
    settle: Callable[[], None],
    lessons_per_day: int,
    arrived: threading.Event,
    classes: ClassRegistry,
) -> None:
    """Learn what arrives. The filter belongs to this thread."""
    last_error = ""
    while True:
        try:
            with Filter.open(state) as spam_filter:
                learner = Learner(spam_filter, queues, settle, lessons_per_day)
                while True:
                    classes.update(spam_filter)
                    learner.run_once()
                    last_error = ""
                    arrived.wait(POLL_SECONDS)
                    arrived.clear()
        except (SpamguardError, OSError) as error:
            if str(error) != last_error:
                _log.error("%s; lessons wait until that is mended", error)
            last_error = str(error)
        except Exception:  # noqa: BLE001  a fault of ours: lessons wait, the next try may succeed
            _log.exception("a fault in learning lessons")
        time.sleep(RETRY_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
