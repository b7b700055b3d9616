"""Pages of the history, for people who may see only their own mail.

Lists run from new to old, page by page. A page ends after a number of rows or after a time limit,
and says at which id the next page begins.

Nobody may be shown a recipient that is not theirs, when mail of others came, or unprintable text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from spamguard.bayes.tables import BASE_CLASSES
from spamguard.config.options import Action, HistorySettings
from spamguard.config.types import MAILBOX
from spamguard.engine.policy import unwanted_classes
from spamguard.errors import NotAllowedError, NotThereError, UsageError
from spamguard.keys import is_id
from spamguard.learning.lessons import LessonOutcome
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import NO_STANDING
from spamguard.proxy import history
from spamguard.proxy.history import HistoryRow, fold_text
from spamguard.proxy.history_search import HistoryFilter, first_id
from spamguard.records import EXTRACTOR
from spamguard.web import models
from spamguard.web.auth import Person
from spamguard.web.models import HeldMessage, JudgementDetails
from spamguard.web.workers import ReadConnection, Visibility

AFTER_LAST_ID = "~"
"""Greater than every id."""
PAGE_SECONDS = 2.0

Row = TypeVar("Row", HistoryRow, HeldMessage)


def find_page(
    look: Callable[[str, int], tuple[Sequence[Row], str]],
    start: str,
    limit: int,
    seconds: float = PAGE_SECONDS,
) -> tuple[list[Row], str]:
    """Return the rows of a page, and where the next page begins; "" after the last page.

    look: called with an id and a number: returns up to so many rows before that id, and the id down
    to which it has searched; "" for everything. seconds: after which the page ends, full or not.
    """
    deadline = time.monotonic() + seconds
    rows: list[Row] = []
    following = start or AFTER_LAST_ID
    while True:
        more, following = look(following, limit - len(rows))
        rows += more
        if len(rows) >= limit or not following or time.monotonic() >= deadline:
            return rows, following


# ---- history


@dataclass(frozen=True)
class Search:
    """A search of the history. Empty fields do not matter; texts match anywhere, in any case.
    sender: matches `from` and `author`. label: a class, "unsure" or "not-scanned". taught: a class,
    or "any". since, until: seconds since 1970. before: a verdict id, for the next page. limit: at
    most `models.MAX_ROWS`. words: each matches subject, `from`, `author` or, for operators, a
    recipient. seconds: after which a page ends, full or not. with_clues:
    whether rows have a line of the text, and words as of `models.strongest_words`.
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
    words: tuple[str, ...] = ()
    seconds: float = PAGE_SECONDS
    with_clues: bool = False


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

    def find_rows(
        self, reading: ReadConnection, person: Person, search: Search
    ) -> tuple[list[HistoryRow], str]:
        """Return the rows of a page that a search finds, and where the next page begins."""
        self.check_searchable(person, search)
        if search.taught:
            reading.catch_up()
        since, until = max(0.0, search.since), max(0.0, search.until)
        last = first_id(until + 1.0) if until else AFTER_LAST_ID
        start = min(search.before or last, last)
        history_filter = HistoryFilter(
            sender=search.sender,
            recipient=search.recipient,
            subject=search.subject,
            label=search.label,
            taught=search.taught,
            since=since,
            until=until,
            before=start,
            parts=self._visibility.search_parts(person),
            words=search.words,
        )

        part = fold_text(search.recipient)

        def look(before: str, limit: int) -> tuple[list[HistoryRow], str]:
            page = reading.history.find_page(
                history_filter._replace(before=before), limit, with_words=search.with_clues
            )
            rows = [
                replace(row, words=models.strongest_words(row.words))
                for row in page.rows
                # Only their own addresses may match the search.
                if person.operator
                or any(
                    part in fold_text(address)
                    for address in self._visibility.visible_addresses(person, row.recipients)
                )
            ]
            return rows, page.next_before

        return find_page(look, start, search.limit, search.seconds)

    def check_searchable(self, person: Person, search: Search) -> None:
        """Raise NotAllowedError or UsageError if the history does not keep what is needed."""
        if self._settings.private:
            if not person.operator:
                raise NotAllowedError(
                    "the history keeps no addresses here, so only operators can see mail"
                )
            if search.sender or search.recipient or search.subject or search.words:
                raise UsageError(
                    "the history keeps no addresses or subjects here, so it cannot search for them"
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

    def as_seen(self, person: Person, row: HistoryRow) -> HistoryRow:
        """Return a row that a person may see, without what is hidden from them."""
        recipients = self._visibility.visible_addresses(person, row.recipients)
        # The next hop's reply may name other recipients.
        sees_all = len(recipients) == len(row.recipients) < history.MAX_RECIPIENTS
        personal = {
            user: label
            for user, label in row.personal.items()
            if person.operator or user == person.name
        }
        reply = row.reply if person.operator or sees_all else ""
        return replace(row, recipients=recipients, personal=personal, reply=reply)

    def judgements(
        self,
        reading: ReadConnection,
        person: Person,
        rows: Sequence[HistoryRow],
        held: Container[str] = (),
    ) -> list[JudgementDetails]:
        """Return rows as the person sees them. held: ids of messages that another node holds."""
        digests = [row.digest for row in rows if row.was_scanned]
        standings = reading.ledger.users.find_standings(digests, person.voter)
        fingerprint = reading.ledger.fingerprint
        judgements = []
        for row in rows:
            standing = standings.get(row.digest, NO_STANDING)
            judgement = JudgementDetails(
                **models.outcome_fields(self.as_seen(person, row)),
                id=row.id,
                taught=standing.label or "",
                own=standing.user_label or "",
                can_teach=can_teach(row, fingerprint),
                held=row.id in held or self.is_held(row),
                words=models.word_parts(row.words),
                line=row.line,
            )
            judgements.append(judgement)
        return judgements

    def is_held(self, row: HistoryRow) -> bool:
        """Whether a message still waits in the quarantine here."""
        return row.action == Action.QUARANTINE and self._is_held(row.id)

    def find_user(self, reading: ReadConnection, address: str, mail_from: str) -> tuple[str, str]:
        """Return the user whose mail an address has, and that user's own address; "" for none.

        The own address is the name, at the domain of `mail_from` if the name has none. Users have
        voted, or an alias names them. At that domain each recipient in the history is a user too;
        elsewhere a recipient may be a stranger to whom somebody has written.
        """
        home = mail_from.lower().rpartition("@")[2]
        local_part, _, domain = address.lower().rpartition("@")
        user = self._visibility.owner(address)
        if not user and domain == home:
            user = f"{local_part.partition('+')[0]}@{domain}"
            user = user if self._has_mail(reading, Person(user)) else ""
        mailbox = user if "@" in user else f"{user}@{home}"
        is_own = MAILBOX.fullmatch(mailbox) and self._visibility.may_see(Person(user), [mailbox])
        return (user, mailbox) if user and is_own else ("", "")

    def _has_mail(self, reading: ReadConnection, person: Person) -> bool:
        history_filter = HistoryFilter(parts=self._visibility.search_parts(person))

        def look(before: str, limit: int) -> tuple[list[HistoryRow], str]:
            page = reading.history.find_page(history_filter._replace(before=before), limit)
            rows = [row for row in page.rows if self._visibility.may_see(person, row.recipients)]
            return rows, page.next_before

        return bool(find_page(look, "", 1)[0])


def was_learnt(outcome: LessonOutcome, limit: int) -> bool:
    """Whether a lesson has changed anything. NotAllowedError: it was one too many for today."""
    if outcome is LessonOutcome.OVER_QUOTA:
        raise NotAllowedError(
            f"you have given {limit:,} lessons within 24 hours, which is the limit "
            "(lessons_per_day): come again tomorrow"
        )
    return outcome is LessonOutcome.LEARNT


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
