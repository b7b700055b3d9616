"""Pages of the history and of the quarantine, for people who may see only their own mail.

Lists run from new to old, page by page. A page ends after a number of rows or after a time limit,
and says where the next page begins. That place is an id that tells nothing of other people's mail.

`QuarantineIndex` keeps ids and recipients in memory, because a list must not take longer the more
messages are held. It lists the directory again only after a change, and reads each note once: the
recipients of a message never change.

Nobody may be shown a recipient that is not theirs, when mail of others came, or unprintable text.
"""

from __future__ import annotations

import logging
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from threading import Lock
from typing import TypeVar

from spamguard.bayes.tables import BASE_CLASSES
from spamguard.config.options import Action, HistorySettings, Hop, Settings
from spamguard.delivery.quarantine import DIRECTORY, Quarantine, QuarantineEntry
from spamguard.delivery.smtp import create_next_hop
from spamguard.engine.policy import unwanted_classes
from spamguard.errors import BusyError, NotAllowedError, NotThereError, QuarantineError, UsageError
from spamguard.keys import MAX_ID_TIME, RANDOM_BYTES, id_time, is_id, new_id
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import NO_STANDING
from spamguard.log import hostname, quote_value
from spamguard.proxy import history
from spamguard.proxy.delivery_log import decode_author, decode_subject
from spamguard.proxy.history import HistoryRow, fold_text, printable, readable
from spamguard.proxy.history_search import HistoryFilter, first_id
from spamguard.records import EXTRACTOR
from spamguard.storage import Spool
from spamguard.web import models
from spamguard.web.auth import Person, require_operator
from spamguard.web.models import HeldMessage, Judgement, JudgementDetails
from spamguard.web.workers import ReadConnection, Visibility

_log = logging.getLogger("spamguard.web")

AFTER_LAST_ID = "~"
"""Greater than every id."""
PAGE_SECONDS = 2.0
"""After which a page ends, full or not."""
_STEP_SECONDS = 60


Row = TypeVar("Row", HistoryRow, HeldMessage)


def page_start(before: str) -> str:
    """Return where a page begins: at an id, or for "" at the newest row. UsageError: no id."""
    if before and not is_id(before):
        raise UsageError("before: this is not a verdict id")
    return before or AFTER_LAST_ID


def find_page(
    look: Callable[[str, int], tuple[Sequence[Row], str]], start: str, limit: int
) -> tuple[list[Row], str]:
    """Return the rows of a page, and where the next page begins; "" after the last page.

    look: called with an id and a number: returns up to so many rows before that id, and the id down
    to which it has searched; "" for everything.
    """
    limit, deadline = max(1, min(limit, models.MAX_ROWS)), time.monotonic() + PAGE_SECONDS
    rows: list[Row] = []
    searched_to = start
    while True:
        more, searched_to = look(searched_to, limit - len(rows))
        rows += more
        following = next_page_start(searched_to, rows[-1].id if rows else "")
        late = time.monotonic() >= deadline and following < start
        if len(rows) >= limit or not following or late:
            return rows, following


def next_page_start(searched_to: str, last: str) -> str:
    """Return where the next page begins, without telling the id or time of other people's mail.

    It is the end of the minute of `searched_to`, but not beyond `last`. searched_to: the id, of
    anybody's message, down to which all was searched; "" for everything. last: the oldest row that
    was found; "" for none.
    """
    if not searched_to:
        return ""
    minute = min((int(id_time(searched_to)) // _STEP_SECONDS + 1) * _STEP_SECONDS, MAX_ID_TIME)
    return min(filter(None, (new_id(minute, bytes(RANDOM_BYTES)), last)))


# ---- quarantine

MAX_READS = 500  # notes that one search reads, in about 20 ms
# Two changes within a tick of the kernel's clock leave the same time on the directory.
_SETTLED_NANOSECONDS = 1_000_000_000


class QuarantineIndex:
    """Ids and recipients of one quarantine. Any thread may use it."""

    def __init__(self, quarantine: Quarantine) -> None:
        self._quarantine = quarantine
        self._ids: Sequence[str] = ()  # oldest first
        self._changed_at = -1  # of the directory, when it was listed
        self._recipients: dict[str, Sequence[str]] = {}  # by id, of notes that were read
        self._lock = Lock()

    def newest(
        self, before: str, limit: int, is_visible: Callable[[str], bool]
    ) -> tuple[Sequence[str], str]:
        """Return the newest ids before `before` with a visible recipient, newest first.

        The second value is the id down to which it has searched, "" for everything. It stops after
        reading `MAX_READS` notes for the first time.
        """
        ids, by_id, is_theirs = self._list_ids(), self._recipients, cache(is_visible)
        visible_ids: list[str] = []
        reads = 0
        for at in range(bisect_left(ids, before) - 1, -1, -1):
            if len(visible_ids) == limit or reads == MAX_READS:
                return visible_ids, ids[at + 1]
            recipients = by_id.get(ids[at])
            if recipients is None:
                recipients = self._read_recipients(ids[at])
                reads += 1
            if any(map(is_theirs, recipients)):
                visible_ids.append(ids[at])
        return visible_ids, ""

    def _list_ids(self) -> Sequence[str]:
        with self._lock:
            changed_at = self._quarantine.changed_at()
            if changed_at != self._changed_at:
                self._ids = sorted(self._quarantine.ids())
                settled = time.time_ns() - changed_at > _SETTLED_NANOSECONDS
                self._changed_at = changed_at if settled else -1
                ids = frozenset(self._ids)
                self._recipients = {
                    verdict_id: recipients
                    for verdict_id, recipients in self._recipients.items()
                    if verdict_id in ids
                }
            return self._ids

    def _read_recipients(self, verdict_id: str) -> Sequence[str]:
        for entry in self._quarantine.read_entries([verdict_id]):
            recipients = [sys.intern(recipient.address) for recipient in entry.envelope.recipients]
            with self._lock:  # another thread may be iterating over the dictionary
                self._recipients[verdict_id] = recipients
            return recipients
        return ()  # damaged, or gone meanwhile


_MAX_TEXT = 1000  # characters


class QuarantineQueries:
    """The quarantine as a person may see it. All but `release` blocks."""

    def __init__(self, settings: Settings, visibility: Visibility) -> None:
        self._quarantine = Quarantine(settings.state / DIRECTORY)
        self._hops = {str(listener.listen): listener.next_hop for listener in settings.listeners}
        self._visibility = visibility
        self._index = QuarantineIndex(self._quarantine)

    def list_page(self, person: Person, before: str, limit: int) -> models.QuarantinePage:
        """Return a page of held messages."""

        def is_visible(address: str) -> bool:
            return self._visibility.may_see(person, [address])

        def look(before: str, limit: int) -> tuple[list[HeldMessage], str]:
            ids, searched_to = self._index.newest(before, limit, is_visible)
            entries = self._quarantine.read_entries(ids)
            held = [self._held_message(person, entry, self._header(entry)) for entry in entries]
            return held, searched_to

        return models.QuarantinePage(*find_page(look, page_start(before), limit))

    def get(self, person: Person, verdict_id: str) -> models.HeldMessageDetails:
        """Return a message with its header section."""
        entry = self.entry(person, verdict_id)
        header = self._header(entry)
        # Only CR LF ends a line here, whatever else ends one in Unicode.
        lines = header.decode("utf-8", "replace").split("\r\n")
        text = "\n".join(readable(line.replace("\t", " "), _MAX_TEXT) for line in lines)
        return models.HeldMessageDetails(
            **asdict(self._held_message(person, entry, header)), header=text
        )

    def entry(self, person: Person, verdict_id: str) -> QuarantineEntry:
        """Return the note of a message. NotThereError: there is none, or it is not theirs."""
        with suppress(QuarantineError):
            entry = self._quarantine.entry(verdict_id)
            if self._visibility.may_see(person, _recipient_addresses(entry)):
                return entry
        raise NotThereError("no message with that verdict id is held here, or it is not yours")

    def is_waiting(self, verdict_id: str) -> bool:
        """Whether a message still waits for release. Damaged notes do not."""
        with suppress(QuarantineError, OSError):
            return not self._quarantine.entry(verdict_id).released
        return False

    def check_release(self, person: Person, entry: QuarantineEntry) -> None:
        """Raise NotAllowedError if other people wait for the message too."""
        waiting = _waiting_addresses(entry)
        if len(self._visibility.visible_addresses(person, waiting)) < len(waiting):
            raise NotAllowedError(
                "other people wait for this message too: ask an operator to release it"
            )

    def delete(self, person: Person, verdict_id: str) -> None:
        """Delete a message for good; for operators only."""
        require_operator(person)
        entry = self.entry(person, verdict_id)
        with _as_busy_error(entry):
            self._quarantine.delete(entry.id)
        _log.info("quarantine id=%s by=%s: deleted", verdict_id, quote_value(person.name))

    def open_message(self, entry: QuarantineEntry) -> Spool:
        """Open the message; the caller closes it. QuarantineError, OSError."""
        return self._quarantine.open(entry.id).spool

    async def release(
        self, person: Person, entry: QuarantineEntry
    ) -> tuple[QuarantineEntry, models.ReleaseResult]:
        """Deliver a message to those who wait, and return its new note.

        UsageError: the next hop is unknown.
        """
        hop = create_next_hop(self._find_next_hop(entry), hostname())
        try:
            with _as_busy_error(entry):
                replies = await self._quarantine.release(entry.id, hop)
                now = self._quarantine.entry(entry.id)
        finally:
            await hop.close()
        by, waiting = quote_value(person.name), len(now.waiting)
        text = "quarantine id=%s by=%s: released to %d, %d wait"
        _log.info(text, entry.id, by, len(replies), waiting)
        recipients = []
        for recipient, reply in replies:
            lines = b" ".join(reply.lines).decode("utf-8", "replace")
            reply_text = printable(f"{reply.code} {lines}", _MAX_TEXT)
            address = printable(recipient.address, _MAX_TEXT)
            recipients.append(models.RecipientReply(address, reply_text))
        return now, models.ReleaseResult(entry.id, recipients, now.released, taught=False)

    def _find_next_hop(self, entry: QuarantineEntry) -> Hop:
        if entry.listener in self._hops:
            return self._hops[entry.listener]
        if len(set(map(str, self._hops.values()))) == 1:
            return next(iter(self._hops.values()))
        raise UsageError(
            f"the next hop of {entry.id} is unknown: "
            "name it with `spamguard quarantine release --next-hop`"
        )

    def _held_message(self, person: Person, entry: QuarantineEntry, header: bytes) -> HeldMessage:
        def visible(addresses: Sequence[str]) -> tuple[str, ...]:
            addresses = self._visibility.visible_addresses(person, addresses)
            return tuple(printable(address, _MAX_TEXT) for address in addresses)

        return HeldMessage(
            entry.id,
            entry.when,
            printable(entry.envelope.sender.address, _MAX_TEXT),
            readable(decode_author(header), _MAX_TEXT),
            visible(_recipient_addresses(entry)),
            visible(_waiting_addresses(entry)),
            readable(decode_subject(header), _MAX_TEXT),
            entry.size,
            printable(entry.reason, _MAX_TEXT),
            entry.released,
        )

    def _header(self, entry: QuarantineEntry) -> bytes:
        try:
            return self._quarantine.header(entry.id)
        except (QuarantineError, OSError):  # deleted meanwhile
            return b""


def _recipient_addresses(entry: QuarantineEntry) -> list[str]:
    return [recipient.address for recipient in entry.envelope.recipients]


def _waiting_addresses(entry: QuarantineEntry) -> list[str]:
    recipients = _recipient_addresses(entry)
    return [recipients[number] for number in entry.waiting]


@contextmanager
def _as_busy_error(entry: QuarantineEntry) -> Iterator[None]:
    try:
        yield
    except QuarantineError as error:
        raise BusyError(f"{entry.id} is being released now, or is gone: look again") from error


# ---- history


@dataclass(frozen=True, slots=True)
class Search:
    """A search of the history. Empty fields do not matter; texts match anywhere, in any case.
    sender: matches `from` and `author`. label: a class, "unsure" or "not-scanned". taught: a class,
    or "any". since, until: seconds since 1970. before: a verdict id, for the next page. limit: at
    most `models.MAX_ROWS`.
    """

    sender: str = ""
    recipient: str = ""
    subject: str = ""
    label: str = ""
    taught: str = ""
    since: float = 0.0
    until: float = 0.0
    before: str = ""
    limit: int = 50


class HistoryQueries:
    """The history as a person may see it.

    settings: what the history keeps. is_held: whether the message with an id waits in the
    quarantine.
    """

    def __init__(
        self, visibility: Visibility, settings: HistorySettings, is_held: Callable[[str], bool]
    ) -> None:
        self._visibility = visibility
        self._settings = settings
        self._is_held = is_held

    def search(
        self, reading: ReadConnection, person: Person, search: Search
    ) -> models.JudgementPage:
        """Return a page of the messages that a search finds."""
        self.check_searchable(person, search)
        if search.taught:
            reading.catch_up()
        since, until = max(0.0, search.since), max(0.0, search.until)
        last = first_id(until + 1.0) if until else AFTER_LAST_ID
        start = min(page_start(search.before), last)
        history_filter = HistoryFilter(
            sender=search.sender,
            recipient=search.recipient,
            subject=search.subject,
            label=search.label,
            taught=search.taught,
            since=since,
            until=until,
            first=first_id(since) if since else "",
            before=start,
            parts=self._visibility.search_parts(person),
        )

        def look(before: str, limit: int) -> tuple[list[HistoryRow], str]:
            page = reading.history.find_page(history_filter._replace(before=before), limit)
            rows = [row for row in page.rows if self._is_visible(person, row, search)]
            return rows, page.next_before

        rows, following = find_page(look, start, search.limit)
        return models.JudgementPage(self.judgements(reading, person, rows), following)

    def check_searchable(self, person: Person, search: Search) -> None:
        """Raise NotAllowedError or UsageError if the history does not keep what is needed."""
        if not self._settings.addresses:
            if not person.operator:
                raise NotAllowedError(
                    "the history keeps no addresses here (history, addresses), "
                    "so only operators can see mail"
                )
            if search.sender or search.recipient:
                raise UsageError(
                    "the history keeps no addresses here (history, addresses), "
                    "so it cannot search for them"
                )
        if search.subject and not self._settings.subjects:
            raise UsageError(
                "the history keeps no subjects here (history, subjects), "
                "so it cannot search for them"
            )

    def get(self, reading: ReadConnection, person: Person, verdict_id: str) -> HistoryRow:
        """Return all that is kept of a message. NotThereError: nothing, or it is not theirs."""
        self.check_searchable(person, Search())
        row = reading.history.find(verdict_id) if is_id(verdict_id) else None
        if row is None or not self._visibility.may_see(person, row.recipients):
            raise NotThereError(
                "no message with that verdict id has passed here, "
                "or it is not yours, or it is too old"
            )
        return row

    def _is_visible(self, person: Person, row: HistoryRow, search: Search) -> bool:
        """Whether a person may see a row. Only their own addresses may match the search."""
        part = fold_text(search.recipient)
        return person.operator or any(
            part in fold_text(address)
            for address in self._visibility.visible_addresses(person, row.recipients)
        )

    def judgements(
        self, reading: ReadConnection, person: Person, rows: Sequence[HistoryRow]
    ) -> list[JudgementDetails]:
        """Return rows that a person may see, without what is hidden from them."""
        digests = [row.digest for row in rows if row.was_scanned]
        standings = reading.ledger.users.find_standings(digests, person.voter)
        fingerprint = reading.ledger.fingerprint
        judgements = []
        for row in rows:
            standing = standings.get(row.digest, NO_STANDING)
            recipients = self._visibility.visible_addresses(person, row.recipients)
            # The next hop's reply may name other recipients.
            sees_all = len(recipients) == len(row.recipients) < history.MAX_RECIPIENTS
            outcome = models.outcome_fields(row) | {
                "recipients": recipients,
                "personal": {
                    user: label
                    for user, label in row.personal.items()
                    if person.operator or user == person.name
                },
                "reply": row.reply if person.operator or sees_all else "",
            }
            judgement = JudgementDetails(
                **outcome,
                id=row.id,
                taught=standing.label or "",
                own=standing.user_label or "",
                can_teach=can_teach(row, fingerprint),
                held=row.action == Action.QUARANTINE and self._is_held(row.id),
                words=models.word_parts(row.words),
            )
            judgements.append(judgement)
        return judgements

    def find_by_digest(
        self, reading: ReadConnection, person: Person, digests: Sequence[str]
    ) -> Mapping[str, Judgement]:
        """Return the newest message of each digest, where the person may see it."""
        parts = self._visibility.search_parts(person)
        rows = reading.history.find_newest(map(bytes.fromhex, digests), parts)
        newest = {
            row.digest.hex(): row
            for row in reversed(rows)
            if self._visibility.may_see(person, row.recipients)
        }
        judgements = self.judgements(reading, person, list(newest.values()))
        return dict(zip(newest, judgements, strict=True))

    def latest(
        self, reading: ReadConnection, person: Person, number: int
    ) -> Iterator[tuple[Judgement, bytes]]:
        """Return the last visible messages whose features are usable, with these features."""
        page = self.search(reading, person, Search(limit=number)).judgements
        usable = [judgement for judgement in page if judgement.can_teach]
        packed = dict(reading.history.read_features([judgement.id for judgement in usable]))
        return ((judgement, packed[judgement.id]) for judgement in usable if judgement.id in packed)


def can_teach(row: HistoryRow, fingerprint: str) -> bool:
    """Whether a row has features of this extractor, made with this key."""
    return row.was_scanned and (row.extractor, row.fingerprint) == (EXTRACTOR, fingerprint)


# ---- classes


def known_classes(ledger: SqliteLedger) -> Mapping[str, bool]:
    """Return whether each class that can be taught is unwanted, *spam* and *ham* first."""
    classes = ledger.classes()
    unwanted = unwanted_classes(classes)
    names = (*BASE_CLASSES, *sorted(classes.keys() - set(BASE_CLASSES)))
    return {name: name in unwanted for name in names}


def check_class(ledger: SqliteLedger, label: str) -> None:
    """Raise UsageError if there is no such class.

    `LessonService` checks the same; here a person gets the list of classes, and before the message
    is read.
    """
    classes = known_classes(ledger)
    if label not in classes:
        raise UsageError(
            f"{label[:40]!r} is not a class here. There are {', '.join(classes)}; "
            "`spamguard learn` makes new classes"
        )
