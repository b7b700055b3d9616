"""The loop that learns from folders: something has changed, so a mailbox is scanned, and what its
user moved becomes a vote.

`Watcher` waits for events and asks `ScanQueue` which mailbox comes next; `scan.MailboxScanner` does
a small step there. Events only say where to look, and not even that is needed: every mailbox is
scanned now and then. After an upgrade that reads mail otherwise, `Reextractor` uses the time that
is left.

A site may have 20,000 mailboxes, and there is a turn for every mail: nothing here costs more
because of mailboxes in which nothing happens.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from math import inf

from spamguard.config.options import Settings
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import Example
from spamguard.errors import MailboxesError, SpamguardError
from spamguard.folders.broker import Mailboxes
from spamguard.folders.maildir import CLOSED_WARNING, Changes, Folder, Mailbox
from spamguard.folders.roles import (
    DovecotSettings,
    FolderKind,
    find_obstacles,
    find_unmatched_watches,
    parse_role,
    read_dovecot,
)
from spamguard.folders.scan import (
    OWN_FILES,
    FolderReader,
    Issue,
    MailboxScanner,
    MailboxState,
    clear_issues,
    watch_rules,
)
from spamguard.folders.sightings import SIGHTINGS_FILE, Sightings
from spamguard.learning.lessons import LessonService, NewClass
from spamguard.learning.status_files import WatcherFile, WatcherTrouble
from spamguard.learning.undo import reextract_votes
from spamguard.log import StandingWarning, WarnOnce
from spamguard.records import EXTRACTOR

_log = logging.getLogger("spamguard.folders")

DEBOUNCE_SECONDS = 1.0  # between the first sign of a change and the scan
RESCAN_SECONDS = 600.0  # between two scans of everything: nothing tells when a folder can be read
RETRY_SECONDS = 15.0  # after trouble of our own, such as a full disk
MAX_TURN_SECONDS = 0.5  # after which events are read: to list 20,000 mailboxes takes minutes
_DAY_SECONDS = 86_400
_MAX_TROUBLES = 200  # in the status file
_REEXTRACT_ISSUE = "lessons of an older version"
_BROKER_ISSUE = "mailbox broker"


class Watcher:
    """Watches all mailboxes of the settings. One that was never scanned before teaches nothing at
    first, except where our own signature tells what its user has undone.
    """

    def __init__(
        self,
        spam_filter: Filter,
        settings: Settings,
        mailboxes: Mailboxes,
        settle: Callable[[], object],  # called now and then when lessons wait for it
        debounce: float = DEBOUNCE_SECONDS,
        dovecot: DovecotSettings | None = None,  # None: ask this machine's
    ) -> None:
        self._settings = settings
        self._debounce = debounce
        self._mailboxes = mailboxes
        self._warnings = WarnOnce(_log)
        self._sightings = Sightings.open(settings.state / SIGHTINGS_FILE)
        self._reader = FolderReader(mailboxes, spam_filter.key, self._warnings)
        self._status_file = WatcherFile(
            settings.state,
            self._warnings,
            lambda: standing_troubles(self._warnings.standing(), int(time.time())),
        )
        self._lessons = LessonService(spam_filter, settle)
        self._reextractor = Reextractor(spam_filter, self._sightings, self._reader)
        dovecot = read_dovecot() if dovecot is None else dovecot
        for obstacle in find_obstacles(dovecot, settings, mailboxes):
            _log.info("%s", obstacle)
        self._rules = watch_rules(settings, dovecot.special_uses)
        self._scanner = MailboxScanner(
            spam_filter,
            self._rules,
            mailboxes,
            self._sightings,
            self._reader,
            self._lessons,
            self._status_file,
            self._warnings,
            self._search_soon,
            debounce,
        )
        self._queue = ScanQueue()
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
        for state in self._queue.take_due(now):
            busy = True
            wait = self._step(state)
            self._queue.schedule(
                state, time.monotonic() + (RETRY_SECONDS if wait is None else wait)
            )
        while rescanned := self._queue.next_rescan(time.monotonic()):
            busy = True
            wait = self._step(rescanned)
            if wait is None:
                self._queue.pause_rescans(time.monotonic() + RETRY_SECONDS)
            elif wait:
                self._queue.end_rescan(time.monotonic() + wait)
            if time.monotonic() > now + MAX_TURN_SECONDS:
                break
        if not busy and self._queue.mailboxes and self._reextractor.due <= now:
            busy = True
            try:
                self._lessons.changed += self._reextractor.step(self._queue.mailboxes)
                self._warnings.clear(_REEXTRACT_ISSUE)
            except SpamguardError as error:
                self._warnings.warn(
                    _REEXTRACT_ISSUE,
                    "%s; lessons of an older version are read again when that is mended",
                    error,
                )
                self._reextractor.due = time.monotonic() + RETRY_SECONDS
        self._lessons.request_settling()
        self._status_file.beat(len(self._queue.mailboxes))
        return busy

    @property
    def next_due(self) -> float:
        """When there is something to look at, on the clock of `time.monotonic`."""
        reextract = self._reextractor.due if self._queue.mailboxes else inf
        return min(self._search_due, reextract, self._queue.next_due())

    def close(self) -> None:
        self._sightings.close()

    # ---- what may have changed

    def take_changes(self, changes: Changes) -> None:
        soon, states = time.monotonic() + self._debounce, self._queue.mailboxes
        if changes.everything:
            _log.info("events were lost: looking at everything")
            self._search_due = 0.0
            self._queue.rescan_all()
        if changes.users:
            self._search_due = min(self._search_due, soon)
        for mailbox in changes.mailboxes & states.keys():
            states[mailbox].relist = True
            self._queue.schedule(states[mailbox], soon)
        for folder in changes.folders:
            if folder.mailbox in states:
                role = self._rules[folder.mailbox.watch].role(folder.directory)
                if role.kind is not FolderKind.IGNORED:
                    states[folder.mailbox].due.add(folder)
                    self._queue.schedule(states[folder.mailbox], soon)

    # ---- which mailboxes there are

    def _search_soon(self) -> None:
        self._search_due = 0.0

    def _find_mailboxes(self, now: float) -> None:
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
        removed = self._queue.mailboxes.keys() - mailboxes
        for mailbox in removed:
            self._queue.remove(mailbox)
            self._reader.forget_mailbox(mailbox)
        clear_issues(self._warnings, lambda issue: issue.mailbox in removed)
        known: Collection[str] = ()
        present, today = {mailbox.path for mailbox in mailboxes}, int(time.time())
        with suppress(SpamguardError):
            for path in self._sightings.forget_old(present, today, unreadable):
                _log.info(
                    "%s: has not been there for 30 days: what lay in it is forgotten, "
                    "what was learnt from it stays",
                    path,
                )
            known = set(self._sightings.mailboxes())
        # Where something may have been moved while nobody looked comes first.
        new = mailboxes - self._queue.mailboxes.keys()
        self._queue.add(sorted(new, key=lambda mailbox: (mailbox.path not in known, mailbox)))

    # ---- one mailbox

    def _step(self, state: MailboxState) -> float | None:
        """Do a step in a mailbox; in how many seconds there is more to do, None: there is trouble
        that no mailbox is the cause of.
        """
        pause = None
        try:
            seconds = self._scanner.step(state)
            self._warnings.clear(Issue(state.mailbox))
            return seconds
        except MailboxesError:  # `_find_mailboxes` reports it
            self._search_soon()
        except SpamguardError as error:
            self._warnings.warn(
                OWN_FILES, "%s; what was moved is found again when that is mended", error
            )
        except OSError as error:
            self._warnings.warn(
                Issue(state.mailbox),
                "%s: cannot be looked at (%s): moves in it teach nothing",
                state.mailbox.path,
                error.strerror,
            )
            pause = inf
        self._scanner.abandon(state)
        return pause


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


class ScanQueue:
    """Which mailbox comes next. Those in which something has changed, whose users wait, are in a
    heap by the time when they are due. The others are scanned now and then, one after another, so
    only one that is scanned for the first time holds all its names in memory.
    """

    def __init__(self) -> None:
        self.mailboxes: dict[Mailbox, MailboxState] = {}
        self._heap: list[tuple[float, Mailbox]] = []
        self._due: dict[Mailbox, float] = {}  # entries of the heap that count
        self._rescans: OrderedDict[Mailbox, float] = OrderedDict()  # when, the first one first
        self._rescanned: MailboxState | None = None
        self._paused_until = 0.0

    def add(self, mailboxes: Sequence[Mailbox]) -> None:
        for mailbox in reversed(mailboxes):
            self.mailboxes[mailbox] = MailboxState(mailbox)
            self._rescans[mailbox] = 0.0
            self._rescans.move_to_end(mailbox, last=False)

    def remove(self, mailbox: Mailbox) -> None:
        state = self.mailboxes.pop(mailbox)
        self._due.pop(mailbox, None)
        self._rescans.pop(mailbox)
        if self._rescanned is state:
            self._rescanned = None

    def schedule(self, state: MailboxState, when: float) -> None:
        """Let a mailbox be due at a time, or before; inf: it need not be."""
        if when < self._due.get(state.mailbox, inf):
            self._due[state.mailbox] = when
            heappush(self._heap, (when, state.mailbox))

    def rescan_all(self) -> None:
        self._rescans = OrderedDict.fromkeys(self._rescans, 0.0)
        self._paused_until = 0.0

    def next_due(self) -> float:
        """When the first is due, or before."""
        rescan = 0.0 if self._rescanned else next(iter(self._rescans.values()), inf)
        return min(max(rescan, self._paused_until), self._heap[0][0] if self._heap else inf)

    def take_due(self, now: float) -> list[MailboxState]:
        """The mailboxes in which something has changed that are due now, each once."""
        taken = []
        while self._heap and self._heap[0][0] <= now:
            when, mailbox = heappop(self._heap)
            if self._due.get(mailbox) == when:
                del self._due[mailbox]
                taken.append(self.mailboxes[mailbox])
        return taken

    def next_rescan(self, now: float) -> MailboxState | None:
        """The mailbox to scan whatever events say, until `end_rescan`; None: none is due."""
        if now < self._paused_until:
            return None
        mailbox, when = next(iter(self._rescans.items()), (None, inf))
        if self._rescanned is None and mailbox is not None and when <= now:
            self._rescans[mailbox] = now + RESCAN_SECONDS
            self._rescans.move_to_end(mailbox)
            self._rescanned = self.mailboxes[mailbox]
            self._rescanned.relist = True
        return self._rescanned

    def end_rescan(self, when: float) -> None:
        """The scan is over; the mailbox is due at a time, or it need not be (inf)."""
        if self._rescanned is not None:
            self.schedule(self._rescanned, when)
            self._rescanned = None

    def pause_rescans(self, until: float) -> None:
        """Nothing can be scanned now: the same mailbox comes again, and none before it."""
        self._paused_until = until


# ---- after an upgrade that reads mail otherwise

_EVENT_BATCH_SIZE = 10_000
_BATCH_SIZE = 16  # messages of a step


class Reextractor:
    """Reads the messages of outdated votes that still lie in watched folders once more: goes
    through the events that the ledger has at the start. Those that are nowhere stay outdated.
    """

    def __init__(self, spam_filter: Filter, sightings: Sightings, reader: FolderReader) -> None:
        self._filter = spam_filter
        self._sightings = sightings
        self._reader = reader
        self._read_up_to, self._end = 0, spam_filter.ledger.last_position()
        self._waiting: list[bytes] = []  # messages of the last batch of events
        self.due = 0.0 if self._end else inf

    def step(self, mailboxes: Collection[Mailbox]) -> int:
        began = time.monotonic()
        if not self._waiting:
            upto = self._read_up_to + _EVENT_BATCH_SIZE
            self._waiting = self._filter.ledger.users.outdated_digests(
                EXTRACTOR, self._read_up_to, upto
            )
            self._read_up_to = upto
        by_path = {mailbox.path: mailbox for mailbox in mailboxes}
        copies: defaultdict[Folder, dict[int, bytes]] = defaultdict(dict)
        present = self._sightings.find_present(self._waiting[:_BATCH_SIZE])
        for digest, (path, directory, name) in present:
            if path in by_path:
                copies[Folder(by_path[path], directory)][name] = digest
        examples: dict[bytes, Example] = {}
        for folder, names in copies.items():
            for name, file in self._reader.find_files(folder, names).items():
                digest = names[name]
                if digest not in examples and (
                    example := self._reader.read_example(folder, file, digest)
                ):
                    examples[digest] = example
        cast = len(reextract_votes(self._filter, list(examples.values())))
        self._waiting = self._waiting[_BATCH_SIZE:]
        is_over = not self._waiting and self._read_up_to >= self._end
        now = time.monotonic()
        self.due = inf if is_over else 2 * now - began  # as long a pause as a step
        return cast
