"""Which mailbox is to be looked at when, and who goes first. Knows no folders and reads no clock but to see that a turn is over.

Must never cost more for the mailboxes in which nothing happens: a site may have 20,000, and a turn comes with every mail.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain, count
from math import inf
from operator import attrgetter
from typing import TypeVar

from spamguard.folders.contract import Mailbox, Place
from spamguard.folders.filing import Filing

AGAIN_SECONDS = 5.0  # before what could not be looked at is tried again
TURN_SECONDS = 0.5  # after which it is heard what has changed meanwhile: to list 20,000 mailboxes takes minutes

Result = TypeVar("Result")
Work = Generator[None, None, Result]
"""Goes on by a step each time: some tenths of a second."""


@dataclass(slots=True, eq=False)
class Box:
    """What the loop knows of a mailbox. Times are those of `time.monotonic`.

    next_rescan: when all its folders are looked at, whatever was told. folders_due: when it is looked for folders that came or went.
    places: its folders. due: those with changes, each with the time to look at it.
    work: the rest of a look that is under way. is_new: that is the first look ever.
    told: something has changed that was not looked at yet. tended: when its last step was taken.
    planned: times at which it stands on the schedule's heap, latest first.
    closed: it lies below a directory that cannot be looked at. pause: seconds before a folder that could not be looked at is tried
    again, 0 while all can be.
    """

    mailbox: Mailbox
    next_rescan: float
    folders_due: float = inf
    places: set[Place] = field(default_factory=set)
    due: dict[Place, float] = field(default_factory=dict)
    work: Work[None] | None = None
    is_new: bool = False
    told: bool = False
    tended: float = 0.0
    planned: list[float] = field(default_factory=list)
    closed: bool = False
    pause: float = 0.0
    filing: Filing = field(default_factory=Filing)

    def soon(self, place: Place, when: float) -> None:
        """Look at a folder at a time, or before."""
        self.due[place] = min(self.due.get(place, inf), when)

    @property
    def next(self) -> float:
        """When something is to be done about it."""
        if self.closed:
            return inf
        if self.work is not None:
            return 0.0
        return min([self.next_rescan, self.folders_due, *self.due.values()])


def longer(pause: float, longest: float) -> float:
    """The next pause before something is tried again; the one before, at first 0."""
    return min(max(AGAIN_SECONDS, 2 * pause), longest)


class Schedule:
    """The mailboxes there are. Whoever changes anything of one that its `next` follows from says so to `plan`."""

    def __init__(self) -> None:
        self.boxes: dict[Mailbox, Box] = {}
        self._coming: list[tuple[float, int, Box]] = []  # a heap; of each that is not new or due one comes at its `next`, or before
        self._numbers = count()
        self._due: dict[Mailbox, Box] = {}
        self._new: dict[Mailbox, Box] = {}

    def add(self, mailbox: Mailbox, when: float) -> None:
        """It is to be looked at then for the first time."""
        box = self.boxes[mailbox] = Box(mailbox, when)
        self.plan(box)

    def remove(self, mailbox: Mailbox) -> None:
        """It is not there any more."""
        del self.boxes[mailbox]
        self._due.pop(mailbox, None)
        self._new.pop(mailbox, None)

    def plan(self, box: Box) -> None:
        """It is to be looked at when its `next` says."""
        self._due.pop(box.mailbox, None)
        if box.is_new:
            self._new[box.mailbox] = box
        else:
            self._new.pop(box.mailbox, None)
            self._come_upon(box)

    def _come_upon(self, box: Box) -> None:
        """Put it on the heap, unless it stands there with an earlier time: a busy mailbox would fill it with idle entries."""
        if not box.planned or box.next < box.planned[-1]:
            box.planned.append(box.next)
            heappush(self._coming, (box.next, next(self._numbers), box))

    def tell(self, box: Box) -> None:
        """Something has changed in it."""
        box.told = True
        self.plan(box)

    def next(self) -> float:
        """When the first is to be looked at, or before."""
        if self._due or self._new:
            return 0.0
        return self._coming[0][0] if self._coming else inf

    def in_turn(self, now: float) -> Iterator[Box]:
        """Those that are due: all in which something was just moved, then those that have waited longest, while there is time.

        Those that begin, one after the other: a step in any case, and what time is left.
        """
        while self._coming and self._coming[0][0] <= now:
            _, _, box = heappop(self._coming)
            box.planned.pop()
            if box.is_new or self.boxes.get(box.mailbox) is not box:
                continue
            if box.next <= now:
                self._due[box.mailbox] = box
            else:
                self._come_upon(box)
        due, beginners = list(self._due.values()), list(self._new.values())
        others = sorted((box for box in due if not box.told), key=attrgetter("tended"))
        yield from [box for box in due if box.told]
        until = time.monotonic() + TURN_SECONDS
        for box in chain(beginners[:1], others, _until_seen(beginners)):
            yield box
            if time.monotonic() > until:
                return


def _until_seen(beginners: Iterable[Box]) -> Iterator[Box]:
    """One after the other, each until its first look is over: so only one of them holds all names of its files in memory."""
    for box in beginners:
        while box.is_new:
            yield box
