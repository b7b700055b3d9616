"""Looking at one mailbox: what has come and gone in its folders since the last look, and what a person said by that.

Must never write into a mailbox, and takes every look in small steps, so that no mailbox waits long while another is looked at.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from math import inf

from spamguard.batches import batches
from spamguard.engine import Filter
from spamguard.folders.contract import Mailbox, Mailboxes, Place
from spamguard.folders.filing import tagged
from spamguard.folders.lessons import STEP_SECONDS, Teacher
from spamguard.folders.names import display
from spamguard.folders.once import DOUBT, Matter, Once
from spamguard.folders.reconcile import Rules, reconcile
from spamguard.folders.rules import Entry
from spamguard.folders.scan import Looked, Scanner
from spamguard.folders.schedule import Box, Work, longer
from spamguard.folders.sightings import Sightings
from spamguard.folders.teaches import Into
from spamguard.folders.values import Arrival, Copy, Key, Kind, Role
from spamguard.folders.weighing import Weigher

STEP = 200  # messages read at once: some tenths of a second, in which other mailboxes wait; of large ones fewer
PIECE = 1000  # messages whose comings and goings are thought about at once: the same
OURS = "our own files"
"""What is warned of when they cannot be read or written."""

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


class Looker:
    """Looks at mailboxes, a step of one at a time. entries: those of `watch`. missed: called when there is no such mailbox any more."""

    def __init__(
        self,
        spam_filter: Filter,
        entries: Sequence[Entry],
        mailboxes: Mailboxes,
        sightings: Sightings,
        scanner: Scanner,
        teacher: Teacher,
        once: Once,
        missed: Callable[[], object],
    ) -> None:
        self._filter = spam_filter
        self._entries = entries
        self._mailboxes = mailboxes
        self._sightings = sightings
        self._scanner = scanner
        self._teacher = teacher
        self._once = once
        self._missed = missed
        self._weigher = Weigher(mailboxes, spam_filter.ledger, sightings, scanner, teacher, once)
        self._doubts: set[str] = set()  # names of folders that the log has heard of

    def look_where_due(self, box: Box, now: float) -> Work[None]:
        """At what is due in a mailbox. MailboxesError, SightingsError, LedgerError, OSError: the same is found at the next look.

        The first step of every look makes up for one that was stopped: until sightings and ledger agree, nothing else is looked at.
        """
        self._teacher.cast_left_over()
        if min(box.next_rescan, box.folders_due) <= now:
            box.next_rescan = now + self._entry(box.mailbox).watch.rescan_seconds if box.next_rescan <= now else box.next_rescan
            box.folders_due = inf
            self._find_folders(box)
        due, box.due = box.due, {}
        if not self._sightings.scanned(box.mailbox.path):
            yield from self._look_first(box) if box.places else ()
        elif due:
            looked = yield from self._look(box, due)
            yield from self._learn(box, looked)
            everything = due.keys() >= box.places
            yield from self._weigh(box, looked, everything=everything)
            if looked.closed:
                box.pause = longer(box.pause, self._entry(box.mailbox).watch.rescan_seconds)
                box.folders_due = min(box.folders_due, time.monotonic() + box.pause)
            elif everything:
                box.pause = 0.0
            if looked.again:  # all of them: a message that has moved on may have gone from any of these folders to any other
                self._look_soon(box, due, self._entry(box.mailbox).watch.debounce_seconds)

    def _find_folders(self, box: Box) -> None:
        """Look at all folders there are, and at all in which something was: what is new may have been filled before it was watched."""
        known = self._sightings.folders(box.mailbox.path)
        try:
            found = set(self._mailboxes.folders(box.mailbox))
        except FileNotFoundError:  # should it come back, that is told once it was missed
            found = set()
            self._missed()
        else:
            self._tell_empty(box.mailbox, now_empty=not found, was_empty=not known)
        self._tell_doubtful(sorted(found))
        box.places = {place for place in found if self._role(place).kind is not Kind.IGNORED}
        to_look_at = box.places.union(Place(box.mailbox, directory) for directory in known)
        concerned = {box.mailbox} | found | to_look_at
        self._once.over_where(lambda matter: matter.mailbox == box.mailbox and matter.about not in concerned)
        self._look_soon(box, to_look_at)

    def _tell_empty(self, mailbox: Mailbox, *, now_empty: bool, was_empty: bool) -> None:
        """Told until there are folders again, though what was in them has been missed by then."""
        if not now_empty:
            self._once.over(Matter(mailbox, _FOLDERS))
        elif not was_empty:
            self._once.warn(Matter(mailbox, _FOLDERS), _EMPTY, mailbox.path)

    def _tell_doubtful(self, found: Iterable[Place]) -> None:
        """One of each name, whoever's it is, and some names only: people call folders what they like. The log hears of each once."""
        doubtful = [place for place in found if self._role(place).doubtful]
        if not doubtful:
            return
        matters = [key for key in self._once.standing() if isinstance(key, Matter) and key.what == DOUBT]
        told = {display(one.about.directory) for one in matters if isinstance(one.about, Place)}
        for place in doubtful:
            name = display(place.directory)
            if name in told or len(told) >= _MOST_DOUBTS:
                continue
            told.add(name)
            if name in self._doubts or len(self._doubts) >= _MOST_DOUBTS:
                self._once.note(Matter(place, DOUBT), _DOUBTFUL, place.mailbox.path, name, name)
            else:
                self._doubts.add(name)
                self._once.warn(Matter(place, DOUBT), _DOUBTFUL, place.mailbox.path, name, name)

    def _look_first(self, box: Box) -> Work[None]:
        """Remember what lies where. What is moved meanwhile teaches nothing: it may as well have lain in two folders for long."""
        box.is_new = True
        try:
            yield  # before anything is listed: only one of those that begin holds the names of its files
            for place in sorted(box.places):
                found = (yield from self._look(box, [place])).new
                for some in batches(found.items(), PIECE):
                    yield from self._learn(box, Looked(dict(some)), first=True)
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

    def _learn(self, box: Box, looked: Looked, *, first: bool = False) -> Work[None]:
        """Teach what follows from a look."""
        arrivals = yield from self._arrivals(looked)
        if not arrivals and not looked.gone:
            return
        rules = self._rules(box.mailbox)
        rules = rules._replace(filing=not first and rules.we_file and (yield from self._filed(box, arrivals, rules)))
        for before, came in self._pieces(box.mailbox.path, arrivals, looked.gone):
            done = self._weigher.done(box.mailbox, before) if self._entry(box.mailbox).asked.signs else set()
            outcome = reconcile(before, came, looked.gone, rules, int(time.time()), first=first)
            yield from self._teacher.teach(box.mailbox, outcome, looked, before, done, first=first)
            yield
        self._once.over(OURS)

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

    def _filed(self, box: Box, arrivals: list[Arrival], rules: Rules) -> Work[bool]:
        """Whether what we call spam is seen to be put into Junk on delivery (`filing`); if most of it is not, that is told."""
        spam = tagged(arrivals, rules)
        before: set[bytes] = set()
        for some in batches(spam, PIECE):
            before |= self._sightings.known(box.mailbox.path, {one.digest for one in some})
            yield
        box.filing.see((one for one in spam if one.digest not in before), rules)
        if box.filing.fails:
            self._once.warn(Matter(box.mailbox, _FILING), _NOT_FILED, box.mailbox.path)
        elif box.filing.works:
            self._once.over(Matter(box.mailbox, _FILING))
        return box.filing.works

    def _arrivals(self, looked: Looked) -> Work[list[Arrival]]:
        """What is new, read; a step is over after so many, or after so long."""
        arrivals: list[Arrival] = []
        for some in batches(looked.new.values(), STEP):
            until = time.monotonic() + STEP_SECONDS
            for arrival in self._scanner.arrivals(some, looked):
                arrivals += [arrival] if arrival else []
                if time.monotonic() > until:
                    yield
                    until = time.monotonic() + STEP_SECONDS
            yield
        return arrivals

    def _look_soon(self, box: Box, places: Iterable[Place], seconds: float = 0.0) -> None:
        when = time.monotonic() + seconds
        for place in places:
            box.soon(place, when)

    def _rules(self, mailbox: Mailbox) -> Rules:
        entry = self._entry(mailbox)
        return Rules(entry.role, self._filter.unwanted, entry.we_file)

    def _entry(self, mailbox: Mailbox) -> Entry:
        return self._entries[mailbox.watch]

    def _role(self, place: Place) -> Role:
        return self._entry(place.mailbox).role(place.directory)
