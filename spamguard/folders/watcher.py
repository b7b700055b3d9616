"""The loop that learns from folders: something has changed, so a mailbox is scanned, and what its
user moved becomes a vote.

`Watcher` waits for events and decides which mailbox is due; `Schedule` says which of them comes
first. Events only say where to look, and not even that is needed: every mailbox is scanned now and
then. After an upgrade that reads mail otherwise, `Reextractor` uses the time that is left.

Must never write into a mailbox, never let one mailbox wait long while another is scanned (all work
goes in small steps), and never cost more because of mailboxes in which nothing happens: a site may
have 20,000, and there is a turn for every mail.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from itertools import chain
from math import inf
from operator import attrgetter

from spamguard.config.options import Settings
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import Example
from spamguard.errors import MailboxesError, SpamguardError
from spamguard.folders.broker import Mailboxes
from spamguard.folders.lessons import EvidenceTeacher, FolderTeacher
from spamguard.folders.mailbox_scan import (
    DEBOUNCE_SECONDS,
    OWN_FILES,
    RESCAN_SECONDS,
    MailboxScanner,
    MailboxState,
    watch_rules,
)
from spamguard.folders.mailboxes import CLOSED_WARNING, Changes, Folder, Mailbox
from spamguard.folders.roles import (
    FolderKind,
    find_obstacles,
    find_unmatched_watches,
    parse_role,
    read_dovecot,
)
from spamguard.folders.scan import FolderScanner, Issue, clear_issues
from spamguard.folders.sightings import SIGHTINGS_FILE, Sightings
from spamguard.learning.lessons import LessonService, NewClass
from spamguard.learning.status_files import WatcherFile, WatcherTrouble
from spamguard.learning.undo import reextract_votes
from spamguard.log import StandingWarning, WarnOnce
from spamguard.records import EXTRACTOR

_log = logging.getLogger("spamguard.folders")

RETRY_SECONDS = 15.0  # after trouble of our own, such as a full disk
MAX_TURN_SECONDS = 0.5  # after which events are read: to list 20,000 mailboxes takes minutes
_DAY_SECONDS = 86_400
_MAX_TROUBLES = 200  # in the status file
_REEXTRACT_ISSUE = "lessons of an older version"
_BROKER_ISSUE = "mailbox broker"


class Watcher:
    """Watches all mailboxes of the settings.

    A mailbox that was never scanned before teaches nothing at first, except where our own signature
    tells what its user has undone. settle: called now and then when lessons wait for settling.
    debounce: seconds between the first sign of a change and the scan.
    """

    def __init__(
        self,
        spam_filter: Filter,
        settings: Settings,
        mailboxes: Mailboxes,
        settle: Callable[[], object],
        debounce: float = DEBOUNCE_SECONDS,
    ) -> None:
        self._settings = settings
        self._debounce = debounce
        self._mailboxes = mailboxes
        self._warnings = WarnOnce(_log)
        self._sightings = Sightings.open(settings.state / SIGHTINGS_FILE, replace_damaged=True)
        self._scanner = FolderScanner(mailboxes, spam_filter.key, self._warnings)
        self._status_file = WatcherFile(
            settings.state,
            self._warnings,
            lambda: standing_troubles(self._warnings.standing(), int(time.time())),
        )
        self._lessons = LessonService(spam_filter, settle)
        teacher = FolderTeacher(
            spam_filter,
            self._lessons,
            self._sightings,
            self._scanner,
            settings.watch,
            self._status_file,
        )
        self._reextractor = Reextractor(spam_filter, self._sightings, self._scanner)
        dovecot = read_dovecot()
        for obstacle in find_obstacles(dovecot, settings, mailboxes):
            _log.info("%s", obstacle)
        self._rules = watch_rules(settings, dovecot.special_uses)
        self._mailbox_scanner = MailboxScanner(
            spam_filter,
            self._rules,
            mailboxes,
            self._sightings,
            self._scanner,
            teacher,
            EvidenceTeacher(spam_filter, self._sightings, self._scanner, teacher),
            self._warnings,
            self._search_soon,
            debounce,
        )
        self._schedule = Schedule()
        self._search_due = 0.0  # when mailboxes are looked for
        self._unreadable: set[str] = set()  # directories on the way to mailboxes
        for label in {role for rule in self._rules for _, role in rule.watch.folders}:
            if parse_role(label).kind is FolderKind.CLASS:
                self._lessons.open_class(label, NewClass.CREATE)

    def run_once(self, timeout: float) -> bool:
        """Do what is due within `timeout` seconds; whether there was anything to do."""
        due = min(self.next_due, self._lessons.settling_due, self._status_file.next_beat)
        waiting = max(0.0, min(timeout, due - time.monotonic()))
        self.take_changes(self._mailboxes.wait_for_changes(waiting))
        now = time.monotonic()
        busy = self._search_due <= now
        if busy:
            self._find_mailboxes(now)
        for state in self._schedule.take_due(now):
            self._step_mailbox(state, now)
            busy = True
        busy = busy or self._reextract()
        self._lessons.request_settling()
        self._status_file.beat(len(self._schedule.mailboxes))
        return busy

    @property
    def next_due(self) -> float:
        """When there is something to look at, on the clock of `time.monotonic`."""
        reextract = self._reextractor.due if self._schedule.mailboxes else inf
        return min(self._search_due, reextract, self._schedule.next_due())

    def close(self) -> None:
        self._sightings.close()

    # ---- what may have changed

    def take_changes(self, changes: Changes) -> None:
        """Make due what may have changed, after the debounce."""
        now = time.monotonic()
        soon, states = now + self._debounce, self._schedule.mailboxes
        if changes.everything:
            _log.info("events were lost: looking at everything")
            self._search_due = now
            for state in states.values():
                state.next_rescan = now
                self._schedule.plan(state)
        if changes.users:
            self._search_due = min(self._search_due, soon)
        changed: set[Mailbox] = set()
        for mailbox in changes.mailboxes & states.keys():
            states[mailbox].folders_due = min(states[mailbox].folders_due, soon)
            changed.add(mailbox)
        for folder in changes.folders:
            if folder.mailbox not in states:
                continue
            rule = self._rules[folder.mailbox.watch]
            if rule.role(folder.directory).kind is not FolderKind.IGNORED:
                states[folder.mailbox].schedule_folder(folder, soon)
                changed.add(folder.mailbox)
        for mailbox in changed:
            self._schedule.note_change(states[mailbox])

    # ---- which mailboxes there are

    def _search_soon(self) -> None:
        self._search_due = 0.0

    def _find_mailboxes(self, now: float) -> None:
        """Take in new mailboxes and let those go that are gone; what they taught stays."""
        self._search_due = now + RESCAN_SECONDS
        try:
            mailboxes = set(self._mailboxes.find_mailboxes())
            unreadable = self._mailboxes.unreadable_directories()
        except (SpamguardError, OSError) as error:
            self._warnings.warn(
                _BROKER_ISSUE, "%s; what is moved meanwhile is found when that is mended", error
            )
            self._search_due = now + RETRY_SECONDS
            return
        self._warnings.clear(_BROKER_ISSUE)
        if readable := self._unreadable - unreadable.keys():
            self._warnings.clear(*readable)
        for path, why in unreadable.items():
            self._warnings.note(path, CLOSED_WARNING, path, why)
        self._unreadable = set(unreadable)
        for text in find_unmatched_watches(self._settings, mailboxes):
            self._warnings.warn(("idle", text), "%s", text)
        removed = self._schedule.mailboxes.keys() - mailboxes
        for mailbox in removed:
            self._schedule.remove(mailbox)
            self._scanner.forget_mailbox(mailbox)
        clear_issues(self._warnings, lambda issue: issue.mailbox in removed)
        for mailbox in sorted(mailboxes - self._schedule.mailboxes.keys()):
            self._schedule.add(mailbox, now)
        present, today = {mailbox.path for mailbox in mailboxes}, int(time.time())
        with suppress(SpamguardError):
            self._sightings.prune(today)
            for path in self._sightings.forget_missing(present, today, unreadable):
                _log.info(
                    "%s: has not been there for 30 days: what lay in it is forgotten, "
                    "what was learnt from it stays",
                    path,
                )

    # ---- one mailbox

    def _step_mailbox(self, state: MailboxState, now: float) -> None:
        """Take one step of a scan that is under way or due."""
        state.tended = now
        try:
            if state.work is None:
                state.work = self._mailbox_scanner.scan_due(state, now)
            for _ in state.work:
                break
            else:
                state.work = None
        except MailboxesError:  # `_find_mailboxes` reports it
            self._search_soon()
            self._abandon(state, time.monotonic() + RETRY_SECONDS)
        except SpamguardError as error:
            self._warnings.warn(
                OWN_FILES, "%s; what was moved is found again when that is mended", error
            )
            self._abandon(state, time.monotonic() + RETRY_SECONDS)
        except OSError as error:
            self._warnings.warn(
                Issue(state.mailbox),
                "%s: cannot be looked at (%s): moves in it teach nothing",
                state.mailbox.path,
                error.strerror,
            )
            self._abandon(state, time.monotonic() + RESCAN_SECONDS)
        else:
            self._warnings.clear(Issue(state.mailbox))
        is_due = state.work is not None or bool(state.due) or state.folders_due < inf
        state.has_changes = state.has_changes and is_due
        self._schedule.plan(state)

    def _abandon(self, state: MailboxState, next_rescan: float) -> None:
        """Give up what is under way: the next scan finds the same."""
        state.work = None
        state.next_rescan = next_rescan
        self._scanner.forget_mailbox(state.mailbox)

    def _reextract(self) -> bool:
        """Take a step of `Reextractor`, if one is due; whether it was."""
        if self._reextractor.due > time.monotonic() or not self._schedule.mailboxes:
            return False
        try:
            self._lessons.changed += self._reextractor.step(self._schedule.mailboxes)
            self._warnings.clear(_REEXTRACT_ISSUE)
        except SpamguardError as error:
            self._warnings.warn(
                _REEXTRACT_ISSUE,
                "%s; lessons of an older version are read again when that is mended",
                error,
            )
            self._reextractor.due = time.monotonic() + RETRY_SECONDS
        return True


def standing_troubles(
    standing: Mapping[Hashable, StandingWarning], now: int
) -> list[WatcherTrouble]:
    """The warnings about things of our own (their key is a text) and about mailboxes, the oldest
    first. Transient ones stand for a day.
    """
    troubles = []
    for key, (text, since) in standing.items():
        if isinstance(key, str):
            troubles.append(WatcherTrouble("", text, int(since)))
        elif isinstance(key, Issue) and (not key.transient or now - since < _DAY_SECONDS):
            troubles.append(WatcherTrouble(key.mailbox.user, text, int(since)))
    return sorted(troubles, key=lambda trouble: trouble.since)[-_MAX_TROUBLES:]


class Schedule:
    """The mailboxes, and which of them comes next.

    After a change to anything that `MailboxState.next_due` depends on, call `plan`.
    """

    def __init__(self) -> None:
        self.mailboxes: dict[Mailbox, MailboxState] = {}
        # A heap with an entry at `next_due` for each that is neither new nor due, and older ones.
        self._heap: list[tuple[float, Mailbox]] = []
        self._due: dict[Mailbox, MailboxState] = {}
        self._new: dict[Mailbox, MailboxState] = {}

    def add(self, mailbox: Mailbox, when: float) -> None:
        """Scan a mailbox for the first time at this time."""
        state = self.mailboxes[mailbox] = MailboxState(mailbox, when)
        self.plan(state)

    def remove(self, mailbox: Mailbox) -> None:
        """Scan a mailbox no more."""
        del self.mailboxes[mailbox]
        self._due.pop(mailbox, None)
        self._new.pop(mailbox, None)

    def plan(self, state: MailboxState) -> None:
        """Scan a mailbox at its `next_due`."""
        self._due.pop(state.mailbox, None)
        if state.is_new:
            self._new[state.mailbox] = state
        else:
            self._new.pop(state.mailbox, None)
            heappush(self._heap, (state.next_due, state.mailbox))

    def note_change(self, state: MailboxState) -> None:
        """Something has changed in a mailbox: its user waits."""
        state.has_changes = True
        self.plan(state)

    def next_due(self) -> float:
        """When the first is due, or before."""
        if self._due or self._new:
            return 0.0
        return self._heap[0][0] if self._heap else inf

    def take_due(self, now: float) -> Iterator[MailboxState]:
        """The mailboxes that are due: all with changes, then those that have waited longest, as
        long as the turn lasts. One new mailbox gets a step in any case, and the time that remains.
        """
        while self._heap and self._heap[0][0] <= now:
            _, mailbox = heappop(self._heap)
            watched = self.mailboxes.get(mailbox)
            if watched is not None and not watched.is_new and watched.next_due <= now:
                self._due[mailbox] = watched
        due, new = list(self._due.values()), list(self._new.values())
        unchanged = sorted(
            (state for state in due if not state.has_changes), key=attrgetter("tended")
        )
        yield from [state for state in due if state.has_changes]
        until = time.monotonic() + MAX_TURN_SECONDS
        for state in chain(new[:1], unchanged, _until_scanned(new)):
            yield state
            if time.monotonic() > until:
                return


def _until_scanned(states: Iterable[MailboxState]) -> Iterator[MailboxState]:
    """Each until its first scan is over, so only one of them holds all its names in memory."""
    for state in states:
        while state.is_new:
            yield state


# ---- after an upgrade that reads mail otherwise

_PROGRESS_KEY = f"renewed.{EXTRACTOR}"  # in the ledger
_EVENT_BATCH_SIZE = 1000
_BATCH_SIZE = 16  # messages of a step


class Reextractor:
    """Reads the messages of outdated votes that still lie in watched folders once more.

    Goes through the ledger's events when there is nothing else to do, and stores in the ledger how
    far it has come. due: when to take the next step, on the clock of `time.monotonic`.
    """

    def __init__(self, spam_filter: Filter, sightings: Sightings, scanner: FolderScanner) -> None:
        self._filter = spam_filter
        self._sightings = sightings
        self._scanner = scanner
        self._done = int(spam_filter.ledger.get_meta(_PROGRESS_KEY) or 0)  # all events up to it
        self._read_up_to, self._end = self._done, spam_filter.ledger.last_position()
        self._waiting: list[bytes] = []  # messages of the events from `_done` to `_read_up_to`
        self._cast = 0
        self.due = 0.0 if self._done < self._end else inf

    def step(self, mailboxes: Collection[Mailbox]) -> int:
        """Cast some outdated votes again; how many. SpamguardError: the next step tries again."""
        began = time.monotonic()
        if not self._waiting:
            self._done = self._read_up_to
            self._read_up_to = min(self._done + _EVENT_BATCH_SIZE, self._end)
            self._waiting = self._filter.ledger.users.outdated_digests(
                EXTRACTOR, self._done, self._read_up_to
            )
        digests = self._waiting[:_BATCH_SIZE]
        cast = len(reextract_votes(self._filter, list(self._read_examples(mailboxes, digests))))
        self._waiting = self._waiting[_BATCH_SIZE:]
        self._cast += cast
        if not self._waiting and (cast or self._read_up_to == self._end):
            # A crash before this finds the same events again, with current votes.
            self._filter.ledger.set_meta(_PROGRESS_KEY, str(self._read_up_to))
            self._done = self._read_up_to
            if self._done == self._end and self._cast:
                _log.info(
                    "%d votes by an older version were read again from the mail in watched "
                    "folders; `spamguard status` tells what is left",
                    self._cast,
                )
        now = time.monotonic()
        self.due = inf if self._done == self._end else 2 * now - began  # as long a pause as a step
        return cast

    def _read_examples(
        self, mailboxes: Collection[Mailbox], digests: Sequence[bytes]
    ) -> Iterator[Example]:
        """Those of the messages that still lie in a folder and can be read."""
        by_path = {mailbox.path: mailbox for mailbox in mailboxes}
        copies: defaultdict[Folder, dict[int, bytes]] = defaultdict(dict)
        for digest, (path, directory, name) in self._sightings.find_present(digests):
            if path in by_path:
                copies[Folder(by_path[path], directory)][name] = digest
        found: set[bytes] = set()
        for folder, names in copies.items():
            for name, file in self._scanner.find_files(folder, names).items():
                digest = names[name]
                if digest not in found and (
                    example := self._scanner.read_example(folder, file, digest)
                ):
                    found.add(digest)
                    yield example
