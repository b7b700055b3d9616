"""The loop that learns from folders: something has changed, so look; what a person moved becomes a vote.

Events only say where to look, and not even that is needed: everything is looked at now and then. Must never write into a mailbox,
and never let one wait long while another is looked at: every look is taken in small steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from math import inf

from spamguard.engine import Filter
from spamguard.errors import MailboxesError, SpamguardError
from spamguard.folders import doveconf, roles
from spamguard.folders.allowance import Allowance
from spamguard.folders.contract import CLOSED, Changes, Mailbox, Mailboxes, lies_below
from spamguard.folders.lessons import Teacher
from spamguard.folders.looking import OURS, Looker
from spamguard.folders.notes import Notes
from spamguard.folders.once import Matter, Once
from spamguard.folders.renewing import Renewer
from spamguard.folders.rules import entries, idle
from spamguard.folders.scan import Scanner
from spamguard.folders.schedule import Box, Schedule, longer
from spamguard.folders.sightings import FILE, BegunAnewError, Sightings
from spamguard.folders.values import Kind
from spamguard.settings import Settings

RETRY_SECONDS = 15.0  # after trouble of our own, such as a full disk
SETTLE_SECONDS = 60.0  # between two wishes to settle
_RENEWING = "lessons of an older version"
_OTHERS = "whoever opens mailboxes"
_log = logging.getLogger("spamguard.folders")


class Watcher:
    """Watches all mailboxes of the settings. settle: called when lessons wait for settling, not too often.

    A mailbox that was never seen before teaches nothing at first, except where our own signature tells what a person has undone.
    """

    def __init__(self, spam_filter: Filter, settings: Settings, mailboxes: Mailboxes, settle: Callable[[], object]) -> None:
        self._filter = spam_filter
        self._mailboxes = mailboxes
        self._settle = settle
        self._once = Once()
        self._sightings = Sightings.open(settings.state / FILE, mend=True)
        self._damaged = 0
        self._scanner = Scanner(mailboxes, spam_filter.key, self._once)
        self._notes = Notes(settings.state, self._once)
        allowance = Allowance(spam_filter.ledger, [watch.lessons_per_day for watch in settings.watch], self._notes)
        self._teacher = Teacher(spam_filter, self._sightings, self._scanner, allowance)
        self._renewer = Renewer(spam_filter, self._sightings, self._scanner)
        server = doveconf.read()
        for note in doveconf.hindrances(server, settings, mailboxes):
            _log.info("%s", note)
        self._entries = entries(settings, server.special)
        self._idle = partial(idle, settings)
        self._looker = Looker(
            spam_filter, self._entries, mailboxes, self._sightings, self._scanner, self._teacher, self._once, self._find_soon
        )
        self._schedule = Schedule()
        self._users_due = 0.0
        self._closed: set[str] = set()  # directories on the way to mailboxes that cannot be looked at
        self._pause = 0.0  # before that is tried again
        self._settled = -inf
        self._votes = 0
        self._define_classes()

    def turn(self, timeout: float) -> bool:
        """Wait until something is to be done, for so many seconds at most, and do that; whether there was anything."""
        waiting = max(0.0, min(timeout, self._next_due() - time.monotonic()))
        self._note(self._mailboxes.changes(min(waiting, 3600.0)))
        now = time.monotonic()
        busy = self._users_due <= now
        if busy:
            self._find_mailboxes(now)
        for box in self._schedule.in_turn(now):
            self._tend(box, now)
            busy = True
        busy = busy or self._renew()
        if self._damaged != self._sightings.damaged:
            self._look_at_all_anew()
        self._settle_now_and_then()
        self._notes.beat(len(self._schedule.boxes))
        return busy

    def close(self) -> None:
        """Give the sightings back."""
        self._sightings.close()

    # ---- when to look

    def _next_due(self) -> float:
        settle = self._settled + SETTLE_SECONDS if self._votes != self._teacher.votes else inf
        renew = self._renewer.due if self._schedule.boxes else inf
        return min(self._users_due, settle, renew, self._notes.due, self._schedule.next())

    def _note(self, changes: Changes) -> None:
        """Something may have changed: look after the debounce."""
        now = time.monotonic()
        boxes = self._schedule.boxes
        if changes.everything:
            _log.info("events were lost: looking at everything")
            self._users_due = now
            for box in boxes.values():
                box.next_rescan = now
                self._schedule.plan(box)
        if changes.users:
            self._users_due = min(self._users_due, now + min(entry.watch.debounce_seconds for entry in self._entries))
        told: dict[Mailbox, Box] = {}
        for mailbox in changes.mailboxes & boxes.keys():
            box = told[mailbox] = boxes[mailbox]
            box.folders_due = min(box.folders_due, now + self._entries[mailbox.watch].watch.debounce_seconds)
        for place in changes.folders:
            entry = self._entries[place.mailbox.watch] if place.mailbox in boxes else None
            if entry is not None and entry.role(place.directory).kind is not Kind.IGNORED:
                box = told[place.mailbox] = boxes[place.mailbox]
                box.soon(place, now + entry.watch.debounce_seconds)
        for box in told.values():
            self._schedule.tell(box)

    def _find_mailboxes(self, now: float) -> None:
        """Take in new mailboxes; those that went are not looked at any more, what was learnt from them stays."""
        self._users_due = now + min((entry.watch.rescan_seconds for entry in self._entries), default=inf)
        try:
            found, closed = set(self._mailboxes.users()), self._mailboxes.closed()
        except (SpamguardError, OSError) as error:
            self._once.warn(_OTHERS, "%s; what is moved meanwhile is found when that is mended", error)
            self._users_due = now + RETRY_SECONDS
            return
        self._once.over(_OTHERS)
        self._try_again(closed, now)
        for text in self._idle(found):
            self._once.warn(("idle", text), "%s", text)
        known = set(self._schedule.boxes)
        gone = known - found
        for mailbox in gone:
            self._schedule.remove(mailbox)
            self._scanner.forget(mailbox)
        self._once.over_where(lambda matter: matter.mailbox in gone)
        for mailbox in sorted(found - known):
            self._schedule.add(mailbox, now)
        with suppress(SpamguardError):
            self._sightings.prune(int(time.time()))
            for path in self._sightings.miss({mailbox.path for mailbox in found}, int(time.time()), closed):
                _log.info("%s: has not been there for 30 days: what lay in it is forgotten, what was learnt from it stays", path)

    def _try_again(self, closed: Mapping[str, str], now: float) -> None:
        """What cannot be looked at soon, and ever later while nothing else joins it; the mailboxes below as soon as it can be."""
        for path in self._closed - closed.keys():
            self._once.over(path)
        for path, why in closed.items():
            self._once.note(path, CLOSED, path, why)
        if closed or self._closed:
            below = {mailbox for mailbox in self._schedule.boxes if lies_below(mailbox.path, closed)}
            for box in [box for box in self._schedule.boxes.values() if box.closed != (box.mailbox in below)]:
                box.closed = not box.closed
                self._give_up(box, now)
                self._schedule.plan(box)
            self._once.over_where(lambda matter: matter.mailbox in below)
        if closed:
            self._pause = longer(self._pause if closed.keys() <= self._closed else 0.0, self._users_due - now)
            self._users_due = now + self._pause
        self._closed = set(closed)

    def _find_soon(self) -> None:
        self._users_due = 0.0

    # ---- one mailbox

    def _tend(self, box: Box, now: float) -> None:
        """A step of what is due."""
        box.tended = now
        try:
            self._go_on(box, now)
        except MailboxesError:  # told where mailboxes are looked for
            self._find_soon()
            self._give_up(box, time.monotonic() + RETRY_SECONDS)
        except BegunAnewError:  # of which it is told, and which ends what is under way in all of them
            pass
        except SpamguardError as error:  # of our own files
            self._once.warn(OURS, "%s; what was moved is found again when that is mended", error)
            self._give_up(box, time.monotonic() + RETRY_SECONDS)
        except OSError as error:
            told = "%s: cannot be looked at (%s): moves in it teach nothing"
            self._once.warn(Matter(box.mailbox), told, box.mailbox.path, error.strerror)
            box.pause = longer(box.pause, self._entries[box.mailbox.watch].watch.rescan_seconds)
            self._give_up(box, time.monotonic() + box.pause)
        else:
            self._once.over(Matter(box.mailbox))
        box.told = box.told and (box.work is not None or bool(box.due) or box.folders_due < inf)
        self._schedule.plan(box)

    def _look_at_all_anew(self) -> None:
        """Nothing is known of any of them any more."""
        self._damaged = self._sightings.damaged
        for box in self._schedule.boxes.values():
            self._give_up(box, 0.0)
            self._schedule.plan(box)

    def _give_up(self, box: Box, again: float) -> None:
        """What is under way: the same lessons, and the same evidence, are found at the next look."""
        box.work = None
        box.next_rescan = again
        self._scanner.forget(box.mailbox)

    def _go_on(self, box: Box, now: float) -> None:
        """One step of what is under way or due."""
        if box.work is None:
            box.work = self._looker.look_where_due(box, now)
        for _ in box.work:
            return
        box.work = None

    def _renew(self) -> bool:
        """A step of reading anew what an older version had read; whether there was one to take."""
        if self._renewer.due > time.monotonic() or not self._schedule.boxes:
            return False
        try:
            self._teacher.votes += self._renewer.step(self._schedule.boxes)
        except SpamguardError as error:
            self._once.warn(_RENEWING, "%s; lessons of an older version are read anew when that is mended", error)
            self._renewer.due = time.monotonic() + RETRY_SECONDS
        else:
            self._once.over(_RENEWING)
        return True

    def _define_classes(self) -> None:
        for label in {text for entry in self._entries for _, text in entry.watch.folders}:
            if roles.parse_role(label).kind is Kind.CLASS:
                self._filter.make_known(label)

    def _settle_now_and_then(self) -> None:
        now = time.monotonic()
        if self._votes != self._teacher.votes and now >= self._settled + SETTLE_SECONDS:
            self._settled, self._votes = now, self._teacher.votes
            if self._filter.settling_due():
                self._settle()
