"""The loop that learns from folders: something has changed, so look; what a person moved becomes a vote.

Events only say where to look, and not even that is needed: everything is looked at now and then. Must never write into a mailbox,
and never let one wait long while another is looked at: every look is taken in small steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf

from spamguard.engine import Filter
from spamguard.errors import MailboxesError, SpamguardError
from spamguard.folders import doveconf, roles
from spamguard.folders.allowance import Allowance
from spamguard.folders.contract import Changes, Mailbox, Mailboxes, Place
from spamguard.folders.lessons import STEP_SECONDS, Teacher
from spamguard.folders.names import display
from spamguard.folders.notes import Notes
from spamguard.folders.once import Matter, Once
from spamguard.folders.reconcile import Rules, reconcile
from spamguard.folders.renewing import Renewer
from spamguard.folders.rules import Entry, entries
from spamguard.folders.scan import Looked, Scanner
from spamguard.folders.schedule import Box, Schedule, Work
from spamguard.folders.sightings import FILE, BegunAnewError, Sightings
from spamguard.folders.teaches import Into
from spamguard.folders.values import Arrival, Copy, Key, Kind, Role
from spamguard.folders.weighing import Weigher
from spamguard.settings import Settings

STEP = 200  # messages read at once: some tenths of a second, in which other mailboxes wait; of large ones fewer
PIECE = 1000  # messages whose comings and goings are thought about at once: the same
RETRY_SECONDS = 15.0  # after trouble of our own, such as a full disk
SETTLE_SECONDS = 60.0  # between two wishes to settle
_OURS = "our own files"
_RENEWING = "lessons of an older version"
_OTHERS = "whoever opens mailboxes"
_FILING, _FOLDERS = "filing", "folders"  # of a mailbox
_NOT_FILED = (
    "%s: most of what we call spam comes into INBOX, although `we_file` says that it is put into Junk on delivery: see the log of what "
    "delivers there. Until it is filed, spam in INBOX is not taken for what somebody has put back"
)
_EMPTY = "%s: none of its folders are there any more, moves teach nothing: is the disk mounted? Should mail come back, it is watched again"

_MOST_DOUBTS = 20
_DOUBTFUL = (
    "%s %s: nothing says what this folder is for, so what is moved into it teaches nothing: if people put spam there, say so under `watch` "
    "(folders: {'%s': spam}), if not, that it is neutral"
)

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
        self._weigher = Weigher(mailboxes, spam_filter.ledger, self._sightings, self._scanner, self._teacher, self._once)
        self._renewer = Renewer(spam_filter, self._sightings, self._scanner)
        server = doveconf.read()
        for note in server.notes:
            _log.info("%s", note)
        self._entries = entries(settings, server.special)
        self._doubts: set[str] = set()
        self._schedule = Schedule()
        self._users_due = 0.0
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
            box.folders_due = min(box.folders_due, now + self._entry(mailbox).watch.debounce_seconds)
        for place in changes.folders:
            if place.mailbox in boxes and self._role(place).kind is not Kind.IGNORED:
                box = told[place.mailbox] = boxes[place.mailbox]
                box.soon(place, now + self._entry(place.mailbox).watch.debounce_seconds)
        for box in told.values():
            self._schedule.tell(box)

    def _find_mailboxes(self, now: float) -> None:
        """Take in new mailboxes; those that went are not looked at any more, what was learnt from them stays."""
        self._users_due = now + min((entry.watch.rescan_seconds for entry in self._entries), default=inf)
        try:
            found = set(self._mailboxes.users())
        except (SpamguardError, OSError) as error:
            self._once.warn(_OTHERS, "%s; what is moved meanwhile is found when that is mended", error)
            self._users_due = now + RETRY_SECONDS
            return
        self._once.over(_OTHERS)
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
            for path in self._sightings.miss({mailbox.path for mailbox in found}, int(time.time())):
                _log.info("%s: has not been there for 30 days: what lay in it is forgotten, what was learnt from it stays", path)

    # ---- one mailbox

    def _tend(self, box: Box, now: float) -> None:
        """A step of what is due."""
        box.tended = now
        try:
            self._go_on(box, now)
        except MailboxesError:  # told where mailboxes are looked for
            self._users_due = 0.0
            self._give_up(box, time.monotonic() + RETRY_SECONDS)
        except BegunAnewError:  # of which it is told, and which ends what is under way in all of them
            pass
        except SpamguardError as error:  # of our own files
            self._once.warn(_OURS, "%s; what was moved is found again when that is mended", error)
            self._give_up(box, time.monotonic() + RETRY_SECONDS)
        except OSError as error:
            told = "%s: cannot be looked at (%s): moves in it teach nothing"
            self._once.warn(Matter(box.mailbox), told, box.mailbox.path, error.strerror)
            self._give_up(box, box.next_rescan)
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
        self._scanner.let_go()
        self._scanner.forget(box.mailbox)

    def _go_on(self, box: Box, now: float) -> None:
        """One step of what is under way or due."""
        if box.work is None:
            box.work = self._look_where_due(box, now)
        for _ in box.work:
            return
        box.work = None

    def _look_where_due(self, box: Box, now: float) -> Work[None]:
        if min(box.next_rescan, box.folders_due) <= now:
            box.next_rescan = now + self._entry(box.mailbox).watch.rescan_seconds if box.next_rescan <= now else box.next_rescan
            box.folders_due = inf
            self._find_folders(box)
        due, box.due = box.due, {}
        if not self._sightings.scanned(box.mailbox.path):
            yield from self._look_first(box) if box.places else ()
        elif due:
            looked = yield from self._look(box, due)
            again = yield from self._learn(box, looked)
            yield from self._weigh(box, looked, everything=due.keys() >= box.places)
            # all of them: what is not finished came from one of them, and may be on its way to another
            if again:
                self._look_soon(box, due, self._entry(box.mailbox).watch.debounce_seconds)

    def _find_folders(self, box: Box) -> None:
        """Look at all folders there are, and at all in which something was: what is new may have been filled before it was watched."""
        known = self._sightings.folders(box.mailbox.path)
        try:
            found = set(self._mailboxes.folders(box.mailbox))
        except FileNotFoundError:  # should it come back, that is told once it was missed
            found, self._users_due = set(), 0.0
        else:
            self._tell_empty(box.mailbox, now_empty=not found, was_empty=not known)
        there = {box.mailbox, *found}
        self._once.over_where(lambda matter: matter.mailbox == box.mailbox and matter.about not in there)
        box.places = {place for place in found if self._role(place).kind is not Kind.IGNORED}
        for place in sorted(found):
            self._tell_doubtful(place)
        self._look_soon(box, box.places.union(Place(box.mailbox, directory) for directory in known))

    def _tell_empty(self, mailbox: Mailbox, *, now_empty: bool, was_empty: bool) -> None:
        """Told until there are folders again, though what was in them has been missed by then."""
        if not now_empty:
            self._once.over(Matter(mailbox, _FOLDERS))
        elif not was_empty:
            self._once.warn(Matter(mailbox, _FOLDERS), _EMPTY, mailbox.path)

    def _tell_doubtful(self, place: Place) -> None:
        """Once for each name, whoever's it is, and for some names only: people call folders what they like."""
        name = display(place.directory)
        if len(self._doubts) < _MOST_DOUBTS and name not in self._doubts and self._role(place).doubtful:
            self._doubts.add(name)
            _log.warning(_DOUBTFUL, place.mailbox.path, name, name)

    def _look_first(self, box: Box) -> Work[None]:
        """Remember what lies where. What is moved meanwhile teaches nothing: it may as well have lain in two folders for long."""
        box.is_new = True
        try:
            yield  # before anything is listed: only one of those that begin holds the names of its files
            for place in sorted(box.places):
                found = (yield from self._look(box, [place])).new
                for start in range(0, len(found), STEP):
                    yield from self._learn(box, Looked(found[start : start + STEP]), first=True)
        finally:
            box.is_new = False
            self._scanner.forget(box.mailbox)  # so that the next look tells all names to whoever weighs them
        self._sightings.mark_scanned(box.mailbox.path)
        self._look_soon(box, box.places)
        _log.info("%s: seen for the first time; from now on moving its mail teaches, in the name of %s", box.mailbox.path, box.mailbox.user)

    def _look(self, box: Box, places: Iterable[Place]) -> Work[Looked]:
        """What has changed in these folders; a step is over when a listing has taken that long."""
        asked, looked, until = self._entry(box.mailbox).asked, Looked(), time.monotonic() + STEP_SECONDS
        for place in places:
            if weighed := asked.counts(self._into(place)):
                self._weigher.prepare(place, asked)
            known = self._sightings.names(box.mailbox.path, place.directory)
            yield from self._scanner.look(place, known, looked, weighed=weighed)
            if time.monotonic() > until:
                yield
                until = time.monotonic() + STEP_SECONDS
        return looked

    def _weigh(self, box: Box, looked: Looked, *, everything: bool) -> Work[None]:
        """Teach what follows from evidence, after what follows from moves."""
        asked = self._entry(box.mailbox).asked
        if asked.signs:
            yield from self._weigher.weigh(box.mailbox, looked.renamed, self._into, asked, everything=everything)

    def _into(self, place: Place) -> Into:
        return self._rules(place.mailbox).into(place.directory)

    def _learn(self, box: Box, looked: Looked, *, first: bool = False) -> Work[set[Place]]:
        """Teach what follows from a look; which folders to look at again."""
        arrivals = yield from self._arrivals(looked)
        if not arrivals and not looked.gone:
            return looked.again
        rules = self._rules(box.mailbox)
        rules = rules._replace(filing=not first and rules.we_file and self._filed(box, arrivals, rules))
        found = {(one.place.directory, one.name): one for one in looked.new}
        again = looked.again
        for before, came in self._pieces(box.mailbox.path, arrivals, looked.gone):
            done = self._weigher.done(box.mailbox, before) if self._entry(box.mailbox).asked.signs else set()
            outcome = reconcile(before, came, looked.gone, rules, int(time.time()), first=first)
            again |= yield from self._teacher.teach(box.mailbox, outcome, found, before, first=first)
            self._weigher.follow(box.mailbox, done, outcome.kept)
            yield
        self._scanner.let_go()
        self._once.over(_OURS)
        return again

    def _pieces(self, mailbox: str, arrivals: Iterable[Arrival], gone: Iterable[Key]) -> Iterator[tuple[list[Copy], list[Arrival]]]:
        """What is remembered of some of the messages that came or went, and what came of them: all copies of one message at once."""
        came: dict[bytes, list[Arrival]] = {}
        for arrival in arrivals:
            came.setdefault(arrival.digest, []).append(arrival)
        left = set(gone)
        while came or left:
            digests = list(islice(came, PIECE))
            keys = [] if digests else list(islice(left, PIECE))
            before = self._sightings.copies(mailbox, digests, keys)
            left.difference_update(keys, (copy.key for copy in before))
            yield before, [arrival for digest in digests for arrival in came.pop(digest)]

    def _filed(self, box: Box, arrivals: list[Arrival], rules: Rules) -> bool:
        """Whether spam is filed, as it should be, by what was seen so far; if not, that is told."""
        box.filing.see(arrivals, partial(self._sightings.known, box.mailbox.path), rules)
        if box.filing.fails:
            self._once.warn(Matter(box.mailbox, _FILING), _NOT_FILED, box.mailbox.path)
        elif box.filing.works:
            self._once.over(Matter(box.mailbox, _FILING))
        return box.filing.works

    def _arrivals(self, looked: Looked) -> Work[list[Arrival]]:
        """What is new, read; a step is over after so many, or after so long."""
        arrivals: list[Arrival] = []
        for start in range(0, len(looked.new), STEP):
            until = time.monotonic() + STEP_SECONDS
            for arrival in self._scanner.arrivals(looked.new[start : start + STEP], looked.again):
                arrivals += [arrival] if arrival else []
                if time.monotonic() > until:
                    yield
                    until = time.monotonic() + STEP_SECONDS
            yield
        return arrivals

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

    def _look_soon(self, box: Box, places: Iterable[Place], seconds: float = 0.0) -> None:
        when = time.monotonic() + seconds
        for place in places:
            box.soon(place, when)

    # ----

    def _rules(self, mailbox: Mailbox) -> Rules:
        entry = self._entry(mailbox)
        return Rules(entry.role, self._filter.unwanted, entry.we_file)

    def _entry(self, mailbox: Mailbox) -> Entry:
        return self._entries[mailbox.watch]

    def _role(self, place: Place) -> Role:
        return self._entry(place.mailbox).role(place.directory)

    def _define_classes(self) -> None:
        known = self._filter.unwanted | {"ham"} | self._filter.ledger.classes().keys()
        for label in {text for entry in self._entries for _, text in entry.watch.folders}:
            role = roles.parse_role(label)
            if role.kind is Kind.CLASS and label not in known:
                self._filter.define_class(label, unwanted=False)

    def _settle_now_and_then(self) -> None:
        now = time.monotonic()
        if self._votes != self._teacher.votes and now >= self._settled + SETTLE_SECONDS:
            self._settled, self._votes = now, self._teacher.votes
            if self._filter.settling_due():
                self._settle()
