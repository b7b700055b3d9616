"""The process behind the teaching door (`python -m spamguard.daemon.teaching CHANNEL SETTINGS MASTER COUNTERS`).

Started by the master, apart from the mail. An event loop takes lessons and puts them on the disk, a thread learns them from there: no
client waits for the ledger. SIGTERM ends it at once: what was accepted lies on the disk, and what was not, its client keeps.
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

from spamguard.bayes.tables import BASE_CLASSES
from spamguard.daemon import parent
from spamguard.daemon.learning import Box, Learner
from spamguard.doors.teach import Speakers, TeachingDoor
from spamguard.engine import Filter
from spamguard.errors import SpamguardError
from spamguard.files import SPOOL
from spamguard.metrics.counters import TEACHER, Slot
from spamguard.settings import Settings, Teach
from spamguard.teaching.dropped import DropBox, learnt_by_nobody
from spamguard.teaching.queue import DIRECTORY, Queue

LOOK_SECONDS = 0.5  # for what was left in a directory, or put into the queue by another process
_BEAT_SECONDS = 1.0
RETRY_SECONDS = 15.0  # after trouble of our own, such as a full disk
_SURE_SECONDS = 1.0  # in which it is found out whether a class is there: a delivery agent waits
_PAUSE_SECONDS = 0.02

_log = logging.getLogger("spamguard.teaching")


def main(arguments: Sequence[str]) -> int:
    """Serve until ended."""
    with parent.begun(arguments) as (settings, to_master, board):
        asyncio.run(_serve(settings, parent.wish_to_settle(to_master), board.slot(TEACHER)))
    return 1


async def _serve(settings: Settings, settle: Callable[[], None], slot: Slot) -> None:
    """For ever: the door opens whatever the filter is like, and lessons are learnt whatever the door is like."""
    teach = settings.teach or Teach()
    queue, speakers, arrived = Queue(settings.state / DIRECTORY), Speakers(teach.for_others), threading.Event()
    boxes: list[Box] = [queue]
    if teach.spool is not None:
        boxes.append(DropBox(teach.spool, speakers.user))
    if settings.teach is not None and (lost := learnt_by_nobody(teach.spool)):
        _log.warning("%s", lost)
    classes = Classes(arrived.set)
    threading.Thread(
        target=_learn, args=(settings.state, boxes, settle, teach.lessons_per_day, arrived, classes), name="learner", daemon=True
    ).start()
    door = TeachingDoor(queue, speakers, settings.state / SPOOL, arrived.set, classes.lack)
    await _keep_open(door, teach.socket or settings.state / "teach.sock", teach.mode, slot)


class Classes:
    """Which there are: told by the thread that has the filter, asked by the door. wake: has that thread look at once."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._seen = frozenset(BASE_CLASSES), -inf

    def tell(self, spam_filter: Filter) -> None:
        """All there are by now. LedgerError, TableError."""
        began = time.monotonic()
        self._seen = spam_filter.classes, began

    async def lack(self, name: str) -> bool:
        """Whether there is no such class. While that cannot be found out there may be: no lesson is to be refused for that."""
        asked = time.monotonic()
        while name not in self._seen[0] and self._seen[1] < asked:
            if time.monotonic() > asked + _SURE_SECONDS:
                return False
            self._wake()
            await asyncio.sleep(_PAUSE_SECONDS)
        return name not in self._seen[0]


async def _keep_open(door: TeachingDoor, path: Path, mode: int, slot: Slot) -> None:
    """For ever. slot: where it says so."""
    while True:
        try:
            server = await door.start(path, mode)
        except OSError as error:
            _log.error(
                "%s: cannot listen there (%s): its directory must be there and belong to us; trying again", path, error.strerror or error
            )
            await asyncio.sleep(RETRY_SECONDS)
        else:
            _log.info("lessons are taken on %s", path)
            async with server:
                while True:
                    slot.beat(time.monotonic_ns())
                    await asyncio.sleep(_BEAT_SECONDS)


def _learn(state: Path, boxes: Sequence[Box], settle: Callable[[], None], most: int, arrived: threading.Event, classes: Classes) -> None:
    """For ever. The filter belongs to this thread."""
    told = ""
    while True:
        try:
            with Filter.open(state) as spam_filter:
                learner = Learner(spam_filter, boxes, settle, most)
                while True:
                    classes.tell(spam_filter)
                    learner.turn()
                    told = ""
                    arrived.wait(LOOK_SECONDS)
                    arrived.clear()
        except (SpamguardError, OSError) as error:
            if str(error) != told:
                _log.error("%s; lessons wait until that is mended", error)
            told = str(error)
        except Exception:  # a fault of ours: lessons wait, the next try may do better  # noqa: BLE001
            _log.exception("a fault in learning lessons")
        time.sleep(RETRY_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
