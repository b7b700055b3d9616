"""The loop that learns from folders: something has changed, so look; what a person moved becomes a
vote.

Events only say where to look, and not even that is needed: everything is looked at now and then.
Must never write into a mailbox, and never let one wait long while another is looked at: every look
is taken in small steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from itertools import chain, count
from math import inf
from operator import attrgetter

from spamguard.config.options import Settings
from spamguard.engine.filter import Filter
from spamguard.errors import MailboxesError, SpamguardError
from spamguard.folders import doveconf, roles
from spamguard.folders.lessons import FolderTeacher
from spamguard.folders.mailbox_scan import OWN_FILES, MailboxScanner, MailboxState, next_pause
from spamguard.folders.mailboxes import (
    CLOSED_WARNING,
    Changes,
    FolderKind,
    Issue,
    Mailbox,
    Mailboxes,
    clear_issues,
    is_below,
)
from spamguard.folders.reextract import Reextractor
from spamguard.folders.roles import find_unmatched_watches, watch_rules
from spamguard.folders.scan import FolderScanner
from spamguard.folders.sightings import SIGHTINGS_FILE, Sightings, SightingsResetError
from spamguard.folders.status_file import StatusFile
from spamguard.learning.lessons import LessonService, NewClass
from spamguard.log import WarnOnce

_log = logging.getLogger("spamguard.folders")


RETRY_SECONDS = 15.0  # after trouble of our own, such as a full disk
_REEXTRACT_ISSUE = "lessons of an older version"
_BROKER_ISSUE = "whoever opens mailboxes"


# after which it is heard what has changed meanwhile: to list 20,000 mailboxes takes minutes
MAX_TURN_SECONDS = 0.5


class Schedule:
    """The mailboxes there are. Whoever changes anything of one that its `next` follows from says so
    to `plan`.
    """

    def __init__(self) -> None:
        self.mailboxes: dict[Mailbox, MailboxState] = {}
        self._heap: list[
            tuple[float, int, MailboxState]
        ] = []  # a heap; of each that is not new or due one comes at its `next`, or before
        self._numbers = count()
        self._due: dict[Mailbox, MailboxState] = {}
        self._new: dict[Mailbox, MailboxState] = {}

    def add(self, mailbox: Mailbox, when: float) -> None:
        """It is to be looked at then for the first time."""
        box = self.mailboxes[mailbox] = MailboxState(mailbox, when)
        self.plan(box)

    def remove(self, mailbox: Mailbox) -> None:
        """It is not there any more."""
        del self.mailboxes[mailbox]
        self._due.pop(mailbox, None)
        self._new.pop(mailbox, None)

    def plan(self, box: MailboxState) -> None:
        """It is to be looked at when its `next` says."""
        self._due.pop(box.mailbox, None)
        if box.is_new:
            self._new[box.mailbox] = box
        else:
            self._new.pop(box.mailbox, None)
            self._push(box)

    def _push(self, box: MailboxState) -> None:
        """Put it on the heap, unless it stands there with an earlier time: a busy mailbox would
        fill it with idle entries.
        """
        if not box.heap_times or box.next_due < box.heap_times[-1]:
            box.heap_times.append(box.next_due)
            heappush(self._heap, (box.next_due, next(self._numbers), box))

    def note_change(self, box: MailboxState) -> None:
        """Something has changed in it."""
        box.has_changes = True
        self.plan(box)

    def next_due(self) -> float:
        """When the first is to be looked at, or before."""
        if self._due or self._new:
            return 0.0
        return self._heap[0][0] if self._heap else inf

    def take_due(self, now: float) -> Iterator[MailboxState]:
        """Those that are due: all in which something was just moved, then those that have waited
        longest, while there is time.

        Those that begin, one after the other: a step in any case, and what time is left.
        """
        while self._heap and self._heap[0][0] <= now:
            _, _, box = heappop(self._heap)
            box.heap_times.pop()
            if box.is_new or self.mailboxes.get(box.mailbox) is not box:
                continue
            if box.next_due <= now:
                self._due[box.mailbox] = box
            else:
                self._push(box)
        due, beginners = list(self._due.values()), list(self._new.values())
        others = sorted((box for box in due if not box.has_changes), key=attrgetter("tended"))
        yield from [box for box in due if box.has_changes]
        until = time.monotonic() + MAX_TURN_SECONDS
        for box in chain(beginners[:1], others, _until_scanned(beginners)):
            yield box
            if time.monotonic() > until:
                return


def _until_scanned(beginners: Iterable[MailboxState]) -> Iterator[MailboxState]:
    """One after the other, each until its first look is over: so only one of them holds all names
    of its files in memory.
    """
    for box in beginners:
        while box.is_new:
            yield box


class Watcher:
    """Watches all mailboxes of the settings. settle: called when lessons wait for settling, not too
    often.

    A mailbox that was never seen before teaches nothing at first, except where our own signature
    tells what a person has undone.
    """

    def __init__(
        self,
        spam_filter: Filter,
        settings: Settings,
        mailboxes: Mailboxes,
        settle: Callable[[], object],
    ) -> None:
        self._mailboxes = mailboxes
        self._warnings = WarnOnce(_log)
        self._sightings = Sightings.open(settings.state / SIGHTINGS_FILE, replace_damaged=True)
        self._reset_count = 0
        self._scanner = FolderScanner(mailboxes, spam_filter.key, self._warnings)
        self._status_file = StatusFile(settings.state, self._warnings)
        self._lessons = LessonService(spam_filter, settle)
        self._teacher = FolderTeacher(
            spam_filter,
            self._lessons,
            self._sightings,
            self._scanner,
            [watch.lessons_per_day for watch in settings.watch],
            self._status_file,
        )
        self._reextractor = Reextractor(spam_filter, self._sightings, self._scanner)
        server = doveconf.read()
        for note in doveconf.find_obstacles(server, settings, mailboxes):
            _log.info("%s", note)
        self._rules = watch_rules(settings, server.special_uses)
        self._find_unmatched = partial(find_unmatched_watches, settings)
        self._mailbox_scanner = MailboxScanner(
            spam_filter,
            self._rules,
            mailboxes,
            self._sightings,
            self._scanner,
            self._teacher,
            self._warnings,
            self._search_soon,
        )
        self._schedule = Schedule()
        self._search_due = 0.0
        self._unreadable: set[str] = (
            set()
        )  # directories on the way to mailboxes that cannot be looked at
        self._pause = 0.0  # before that is tried again
        self._define_classes()

    def run_once(self, timeout: float) -> bool:
        """Wait until something is to be done, for so many seconds at most, and do that; whether
        there was anything.
        """
        waiting = max(0.0, min(timeout, self._next_due() - time.monotonic()))
        self._take_changes(self._mailboxes.wait_for_changes(min(waiting, 3600.0)))
        now = time.monotonic()
        busy = self._search_due <= now
        if busy:
            self._find_mailboxes(now)
        for box in self._schedule.take_due(now):
            self._step_mailbox(box, now)
            busy = True
        busy = busy or self._reextract()
        if self._reset_count != self._sightings.reset_count:
            self._restart_all()
        self._lessons.request_settling()
        self._status_file.beat(len(self._schedule.mailboxes))
        return busy

    def close(self) -> None:
        """Give the sightings back."""
        self._sightings.close()

    # ---- when to look

    def _next_due(self) -> float:
        renew = self._reextractor.due if self._schedule.mailboxes else inf
        return min(
            self._search_due,
            self._lessons.settling_due,
            renew,
            self._status_file.next_beat,
            self._schedule.next_due(),
        )

    def _take_changes(self, changes: Changes) -> None:
        """Something may have changed: look after the debounce."""
        now = time.monotonic()
        boxes = self._schedule.mailboxes
        if changes.everything:
            _log.info("events were lost: looking at everything")
            self._search_due = now
            for box in boxes.values():
                box.next_rescan = now
                self._schedule.plan(box)
        if changes.users:
            self._search_due = min(
                self._search_due, now + min(entry.watch.debounce for entry in self._rules)
            )
        told: dict[Mailbox, MailboxState] = {}
        for mailbox in changes.mailboxes & boxes.keys():
            box = told[mailbox] = boxes[mailbox]
            box.folders_due = min(box.folders_due, now + self._rules[mailbox.watch].watch.debounce)
        for place in changes.folders:
            entry = self._rules[place.mailbox.watch] if place.mailbox in boxes else None
            if entry is not None and entry.role(place.directory).kind is not FolderKind.IGNORED:
                box = told[place.mailbox] = boxes[place.mailbox]
                box.schedule_folder(place, now + entry.watch.debounce)
        for box in told.values():
            self._schedule.note_change(box)

    def _find_mailboxes(self, now: float) -> None:
        """Take in new mailboxes; those that went are not looked at any more, what was learnt from
        them stays.
        """
        self._search_due = now + min((entry.watch.rescan for entry in self._rules), default=inf)
        try:
            found, closed = (
                set(self._mailboxes.find_mailboxes()),
                self._mailboxes.unreadable_directories(),
            )
        except (SpamguardError, OSError) as error:
            self._warnings.warn(
                _BROKER_ISSUE, "%s; what is moved meanwhile is found when that is mended", error
            )
            self._search_due = now + RETRY_SECONDS
            return
        self._warnings.clear(_BROKER_ISSUE)
        self._retry_unreadable(closed, now)
        for text in self._find_unmatched(found):
            self._warnings.warn(("idle", text), "%s", text)
        known = set(self._schedule.mailboxes)
        gone = known - found
        for mailbox in gone:
            self._schedule.remove(mailbox)
            self._scanner.forget_mailbox(mailbox)
        clear_issues(self._warnings, lambda issue: issue.mailbox in gone)
        for mailbox in sorted(found - known):
            self._schedule.add(mailbox, now)
        with suppress(SpamguardError):
            self._sightings.prune(int(time.time()))
            for path in self._sightings.forget_missing(
                {mailbox.path for mailbox in found}, int(time.time()), closed
            ):
                _log.info(
                    "%s: has not been there for 30 days: what lay in it is forgotten, what was learnt from it stays",
                    path,
                )

    def _retry_unreadable(self, closed: Mapping[str, str], now: float) -> None:
        """What cannot be looked at soon, and ever later while nothing else joins it; the mailboxes
        below as soon as it can be.
        """
        for path in self._unreadable - closed.keys():
            self._warnings.clear(path)
        for path, why in closed.items():
            self._warnings.note(path, CLOSED_WARNING, path, why)
        if closed or self._unreadable:
            below = {
                mailbox for mailbox in self._schedule.mailboxes if is_below(mailbox.path, closed)
            }
            for box in [
                box
                for box in self._schedule.mailboxes.values()
                if box.unreadable != (box.mailbox in below)
            ]:
                box.unreadable = not box.unreadable
                self._abandon(box, now)
                self._schedule.plan(box)
            clear_issues(self._warnings, lambda issue: issue.mailbox in below)
        if closed:
            self._pause = next_pause(
                self._pause if closed.keys() <= self._unreadable else 0.0, self._search_due - now
            )
            self._search_due = now + self._pause
        self._unreadable = set(closed)

    def _search_soon(self) -> None:
        self._search_due = 0.0

    # ---- one mailbox

    def _step_mailbox(self, box: MailboxState, now: float) -> None:
        """A step of what is due."""
        box.tended = now
        try:
            self._advance(box, now)
        except MailboxesError:  # told where mailboxes are looked for
            self._search_soon()
            self._abandon(box, time.monotonic() + RETRY_SECONDS)
        except (
            SightingsResetError
        ):  # of which it is told, and which ends what is under way in all of them
            pass
        except SpamguardError as error:  # of our own files
            self._warnings.warn(
                OWN_FILES, "%s; what was moved is found again when that is mended", error
            )
            self._abandon(box, time.monotonic() + RETRY_SECONDS)
        except OSError as error:
            told = "%s: cannot be looked at (%s): moves in it teach nothing"
            self._warnings.warn(Issue(box.mailbox), told, box.mailbox.path, error.strerror)
            box.pause = next_pause(box.pause, self._rules[box.mailbox.watch].watch.rescan)
            self._abandon(box, time.monotonic() + box.pause)
        else:
            self._warnings.clear(Issue(box.mailbox))
        box.has_changes = box.has_changes and (
            box.work is not None or bool(box.due) or box.folders_due < inf
        )
        self._schedule.plan(box)

    def _restart_all(self) -> None:
        """Nothing is known of any of them any more."""
        self._reset_count = self._sightings.reset_count
        for box in self._schedule.mailboxes.values():
            self._abandon(box, 0.0)
            self._schedule.plan(box)

    def _abandon(self, box: MailboxState, again: float) -> None:
        """What is under way: the same lessons, and the same evidence, are found at the next look."""
        box.work = None
        box.next_rescan = again
        self._scanner.forget_mailbox(box.mailbox)

    def _advance(self, box: MailboxState, now: float) -> None:
        """One step of what is under way or due."""
        if box.work is None:
            box.work = self._mailbox_scanner.scan_due(box, now)
        for _ in box.work:
            return
        box.work = None

    def _reextract(self) -> bool:
        """A step of reading anew what an older version had read; whether there was one to take."""
        if self._reextractor.due > time.monotonic() or not self._schedule.mailboxes:
            return False
        try:
            self._lessons.changed += self._reextractor.step(self._schedule.mailboxes)
        except SpamguardError as error:
            self._warnings.warn(
                _REEXTRACT_ISSUE,
                "%s; lessons of an older version are read anew when that is mended",
                error,
            )
            self._reextractor.due = time.monotonic() + RETRY_SECONDS
        else:
            self._warnings.clear(_REEXTRACT_ISSUE)
        return True

    def _define_classes(self) -> None:
        for label in {text for entry in self._rules for _, text in entry.watch.folders}:
            if roles.parse_role(label).kind is FolderKind.CLASS:
                self._lessons.open_class(label, NewClass.CREATE)
