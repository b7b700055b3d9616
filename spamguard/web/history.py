"""The history and the quarantine as a person may see them.

A `Reader` has history, ledger and quarantine open for one thread, and decides whose mail a person
may see. An operator sees all mail; other people see mail sent to them, and of its recipients only
themselves. An address belongs to the first candidate who has ever voted (as for `personal`
verdicts) and to the person who asks. So two people may see the mail of an address until the first
candidate votes.

Lists run from new to old, page by page. A page ends after a number of rows or after a time limit,
and says at which id the next page begins.

A `Reader` must never write to the ledger or the history. Nobody may be shown a recipient or a
message that is not theirs, when mail of others came, or unprintable text.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from math import inf
from typing import Any, Self, TypeVar

from spamguard import keys
from spamguard.config.options import Action, Settings
from spamguard.config.types import MAILBOX
from spamguard.delivery.quarantine import DIRECTORY, Quarantine, QuarantineEntry
from spamguard.engine.filter import Filter
from spamguard.errors import NotAllowedError, NotThereError, QuarantineError, UsageError
from spamguard.ledger.senders import label_class, sender_domain, split_sender
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import NO_STANDING
from spamguard.mail.headers import split_author
from spamguard.proxy.history import (
    HISTORY_FILE,
    MAX_RECIPIENTS,
    HistoryRow,
    decode_author,
    decode_subject,
    fold_text,
    printable,
    readable,
)
from spamguard.proxy.history_search import (
    HistoryFilter,
    HistorySearch,
    first_id,
    recipient_pattern,
)
from spamguard.records import EXTRACTOR
from spamguard.storage import KEY_FILE, LEDGER_FILE
from spamguard.times import parse_time
from spamguard.users import UserResolver
from spamguard.web import models
from spamguard.web.auth import Person
from spamguard.web.models import HeldMessage, JudgementDetails

AFTER_LAST_ID = "~"
"""Greater than every id."""
PAGE_SECONDS = 2.0
# A refresh takes one or two index lookups for each user, 70 ms for 20,000 users.
_REFRESH_SECONDS = 5.0
_BATCH_SIZE = 5000  # votes
MAX_READS = 500  # notes of held messages that are read at once, in about 20 ms
_MAX_KNOWN = 20_000  # held messages whose recipients are kept: these never change
MAX_TEXT = 1000  # characters of a text of a held message

Row = TypeVar("Row", HistoryRow, HeldMessage)


@dataclass(frozen=True)
class Search:
    """A search of the history. Empty fields do not matter; texts match anywhere, in any case.
    sender: matches `from` and `author`. label: a class, "unsure" or "not-scanned". taught: a class,
    or "any". since, until: seconds since 1970. before: a verdict id, for the next page. limit: at
    most `models.MAX_ROWS`. words: each matches subject, `from`, `author` or, for operators, a
    recipient. seconds: after which a page ends, full or not. with_clues: whether rows have a line
    of the text, and words as of `models.strongest_words`.
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


EVERYTHING = Search()

_MAX_WORDS = 20
SEARCH_TERMS = {
    "from": "sender",
    "to": "recipient",
    "subject": "subject",
    "verdict": "label",
    "said": "taught",
    "since": "since",
    "until": "until",
}
"""What may stand before a colon in a search, and the field of `Search` that it sets."""
SEARCH_TERM = re.compile(r'(?:([A-Za-z]+):)?(?:"([^"]*)"|(\S+))')


def parse_search(text: str, before: str = "") -> Search:
    """Read a search as the search box takes it.

    UsageError: a day is not a day, or there are too many words.

    >>> parse_search('solar from:"Ann Lee" verdict:spam').sender
    'Ann Lee'
    """
    words: list[str] = []
    values: dict[str, Any] = {"before": before}
    for term in SEARCH_TERM.finditer(text):
        value = (term[2] or term[3] or "").strip()
        name = SEARCH_TERMS.get((term[1] or "").lower())
        if name in ("since", "until"):
            try:
                values[name] = parse_time(value, datetime.now(UTC), is_end=name == "until")
            except ValueError:
                raise UsageError(f"{value} is not a day: write it as in 2026-11-20") from None
        elif name:
            values[name] = value
        elif value:
            words.append(term[0] if term[1] else value)
    if len(words) > _MAX_WORDS:
        raise UsageError(f"these are more than {_MAX_WORDS} words: leave some out")
    return Search(words=tuple(words), **values)


def find_page(
    look: Callable[[str, int], tuple[Sequence[Row], str]],
    start: str,
    limit: int,
    seconds: float,
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


def ensure_filter(settings: Settings) -> None:
    """Create the filter before the first lesson; scorers do not."""
    if not (settings.state / LEDGER_FILE).exists():
        Filter.open(settings.state).close()


class Reader:
    """History, ledger and quarantine, open for one thread. Use `open`.

    The history is opened when it is needed, so that what needs only the ledger works without it.
    Its connection knows the class that each message is taught as (`catch_up`).
    """

    def __init__(self, settings: Settings, ledger: SqliteLedger) -> None:
        self.settings, self.ledger = settings, ledger
        self.quarantine = Quarantine(settings.state / DIRECTORY)
        self._resolver = UserResolver(settings.aliases)
        self._users: frozenset[str] = frozenset()
        self._users_until = 0.0
        self._last_seq = 0
        _, self._log_state = ledger.read_end()
        self._held_recipients = lru_cache(_MAX_KNOWN)(self._read_held_recipients)

    @classmethod
    def open(cls, settings: Settings) -> Self:
        ensure_filter(settings)
        key = keys.load_key(settings.state / KEY_FILE, create=False)
        ledger = SqliteLedger.open(settings.state / LEDGER_FILE, keys.key_fingerprint(key))
        return cls(settings, ledger)

    def close(self) -> None:
        self.ledger.close()
        if "history" in vars(self):
            self.history.close()

    @cached_property
    def history(self) -> HistorySearch:
        return HistorySearch.open(self.settings.state / HISTORY_FILE)

    def catch_up(self) -> None:
        """Tell the history the class of each message: all the first time, then the changes."""
        last, state = self.ledger.read_end()
        # Less than was read if an older ledger was restored, or events have other numbers now.
        valid = self.ledger.valid_upto(self._last_seq, self._log_state)
        replace_all = valid == 0 < self._last_seq
        self._last_seq, self._log_state = valid, state
        while self._last_seq < last:
            upto = self.ledger.next_step(self._last_seq, _BATCH_SIZE)
            if upto <= self._last_seq:  # the end came nearer, and the rest is read next time
                break
            labels = self.ledger.users.changed_labels(self._last_seq, upto)
            self.history.set_lessons(labels, replace_all=replace_all)
            self._last_seq, replace_all = upto, False

    # ---- whose mail a person may see

    @property
    def users(self) -> frozenset[str]:
        now = time.monotonic()
        if now >= self._users_until:
            self._users = frozenset(self.ledger.users.last_vote_times())
            self._users_until = now + _REFRESH_SECONDS
        return self._users

    def visible_addresses(self, person: Person, addresses: Iterable[str]) -> tuple[str, ...]:
        users = self.users
        return tuple(
            printable(address, MAX_TEXT)
            for address in addresses
            if person.operator or self._resolver.could_belong_to(address, person.name, users)
        )

    def may_see(self, person: Person, addresses: Iterable[str]) -> bool:
        """Whether a person may see mail to these addresses. An operator may, even without any."""
        return person.operator or bool(self.visible_addresses(person, addresses))

    def search_parts(self, person: Person) -> Sequence[str]:
        """Return patterns, one of which is in the recipients of each message of this person.

        Other messages may match too, so check them with `may_see`. Empty: all mail is theirs.
        """
        if person.operator:
            return ()
        parts = _address_parts(person.name)
        parts += [recipient_pattern(person.name + sign, at_start=True) for sign in "@+"]
        for address, user in self.settings.aliases:
            if user == person.name and address.startswith("*@"):
                parts.append(recipient_pattern(address[1:], at_end=True))
            elif user == person.name:
                parts += _address_parts(address)
        return list(dict.fromkeys(parts))

    def find_user(self, address: str, mail_from: str) -> tuple[str, str]:
        """Return the user whose mail an address has, and that user's own address; "" for none.

        The own address is the name, at the domain of `mail_from` if the name has none. Users have
        voted, or an alias names them. At that domain each recipient in the history is a user too;
        elsewhere a recipient may be a stranger to whom somebody has written.
        """
        home = mail_from.lower().rpartition("@")[2]
        local_part, _, domain = address.lower().rpartition("@")
        known = {*self.users, *(name for _, name in self.settings.aliases)}
        user = next((name for name in self._resolver.candidates(address) if name in known), "")
        if not user and domain == home and not self.settings.history.private:
            user = f"{local_part.partition('+')[0]}@{domain}"
            user = user if self.find_rows(Person(user), Search(limit=1))[0] else ""
        mailbox = user if "@" in user else f"{user}@{home}"
        is_own = MAILBOX.fullmatch(mailbox) and self.may_see(Person(user), [mailbox])
        return (user, mailbox) if user and is_own else ("", "")

    # ---- messages that passed

    def check_searchable(self, person: Person, search: Search) -> None:
        """Raise NotAllowedError or UsageError if the history does not keep what is needed."""
        if self.settings.history.private:
            if not person.operator:
                raise NotAllowedError(
                    "the history keeps no addresses here, so only operators can see mail"
                )
            if search.sender or search.recipient or search.subject or search.words:
                raise UsageError(
                    "the history keeps no addresses or subjects here, so it cannot search for them"
                )

    def find_rows(self, person: Person, search: Search) -> tuple[list[HistoryRow], str]:
        self.check_searchable(person, search)
        if search.taught:
            self.catch_up()
        conditions = {name: getattr(search, name) for name in HistoryFilter._fields[:-2]}
        wanted = HistoryFilter(**conditions, words=search.words, parts=self.search_parts(person))
        part = fold_text(wanted.recipient)

        def look(before: str, limit: int) -> tuple[list[HistoryRow], str]:
            page = self.history.find_page(
                wanted._replace(before=before), limit, with_words=search.with_clues
            )
            rows = [
                row
                for row in page.rows
                # Only their own addresses may match the search.
                if person.operator
                or any(
                    part in fold_text(address)
                    for address in self.visible_addresses(person, row.recipients)
                )
            ]
            if search.with_clues:
                rows = [replace(row, words=models.strongest_words(row.words)) for row in rows]
            return rows, page.next_before

        return find_page(look, search.before, search.limit, search.seconds)

    def page(self, person: Person, search: Search) -> models.JudgementPage:
        rows, following = self.find_rows(person, search)
        return models.JudgementPage(self.judgements(person, rows), following)

    def row(self, person: Person, verdict_id: str) -> HistoryRow:
        """Return all that is kept of a message. NotThereError: nothing, or it is not theirs."""
        self.check_searchable(person, EVERYTHING)
        row = self.history.find(verdict_id) if keys.is_id(verdict_id) else None
        if row is None or not self.may_see(person, row.recipients):
            raise NotThereError(
                "no message with that verdict id has passed here, "
                "or it is not yours, or it is too old"
            )
        return row

    def is_waiting(self, row: HistoryRow) -> bool:
        """Whether a message still waits in the quarantine here. Damaged notes do not."""
        with suppress(QuarantineError, OSError):
            is_held = row.action == Action.QUARANTINE
            return is_held and not self.quarantine.entry(row.id).released
        return False

    def as_seen(self, person: Person, row: HistoryRow) -> HistoryRow:
        """Return a row that a person may see, without what is hidden from them."""
        if person.operator:
            return row
        recipients = self.visible_addresses(person, row.recipients)
        # The next hop's reply may name other recipients.
        sees_all = len(recipients) == len(row.recipients) < MAX_RECIPIENTS
        personal = {user: label for user, label in row.personal.items() if user == person.name}
        reply = row.reply if sees_all else ""
        return replace(row, recipients=recipients, personal=personal, reply=reply)

    def judgements(
        self, person: Person, rows: Sequence[HistoryRow], held: Iterable[str] | None = None
    ) -> list[JudgementDetails]:
        """Return rows as the person sees them.

        held: ids of those that wait in the quarantine of some node; None: look into our own.
        """
        digests = [row.digest for row in rows if row.was_scanned]
        standings = self.ledger.users.find_standings(digests, person.voter)
        if held is None:
            held = {row.id for row in rows if self.is_waiting(row)}
        judgements = []
        for row in rows:
            standing = standings.get(row.digest, NO_STANDING)
            judgement = JudgementDetails(
                **models.outcome_fields(self.as_seen(person, row)),
                id=row.id,
                taught=standing.label or "",
                own=standing.user_label or "",
                can_teach=self.can_teach(row),
                held=row.id in held,
                words=models.word_parts(row.words),
                line=row.line,
            )
            judgements.append(judgement)
        return judgements

    def describe(self, person: Person, row: HistoryRow, held: bool) -> JudgementDetails:
        (details,) = self.judgements(person, [row], [row.id] if held else ())
        settings = self.settings
        is_ours = row.fingerprint == self.ledger.fingerprint and settings.believed_servers
        if row.sender_digest and is_ours and (settings.personal or person.operator):
            said, *said_of_domain = (
                label_class(vote and vote.label)
                for digest in split_sender(row.sender_digest)
                for vote in [self.ledger.get_vote(digest, person.voter)]
            )
            details = replace(details, authenticated=True, sender_word=said)
            # kept as a digest only; the text of the author may lack an address
            domain = sender_domain(split_author(row.author)[1].strip("<>"))
            if said_of_domain and domain:
                details = replace(details, domain=domain, domain_word=said_of_domain[0])
        return details

    def can_teach(self, row: HistoryRow) -> bool:
        """Whether a row has features of this extractor, made with this key."""
        found = (row.extractor, row.fingerprint)
        return row.was_scanned and found == (EXTRACTOR, self.ledger.fingerprint)

    # ---- held mail

    def held_page(self, person: Person, search: Search) -> models.QuarantinePage:
        """Return a page of the held messages that a search finds; label and taught do not count."""
        lowest = first_id(search.since)
        ids = sorted((name for name in self.quarantine.ids() if name >= lowest), reverse=True)

        def look(before: str, limit: int) -> tuple[list[HeldMessage], str]:
            names = [name for name in ids if name < before][:MAX_READS]
            probabilities = self.history.find_probabilities(names)
            rows: list[HeldMessage] = []
            theirs = (name for name in names if self.may_see(person, self._held_recipients(name)))
            for entry in self.quarantine.read_entries(theirs):
                held = self._held_message(person, entry, probabilities)
                if _matches(held, search):
                    rows.append(held)
                if len(rows) == limit:
                    return rows, entry.id if entry.id != ids[-1] else ""
            return rows, names[-1] if len(names) == MAX_READS else ""

        return models.QuarantinePage(*find_page(look, search.before, search.limit, search.seconds))

    def _read_held_recipients(self, verdict_id: str) -> list[str]:
        entries = self.quarantine.read_entries([verdict_id])
        return [address for entry in entries for address in _recipient_addresses(entry)]

    def held_details(self, person: Person, verdict_id: str) -> models.HeldMessageDetails:
        entry = self.held_entry(person, verdict_id)
        # Only CR LF ends a line here, whatever else ends one in Unicode.
        lines = self._held_header(entry).decode("utf-8", "replace").split("\r\n")
        text = "\n".join(readable(line.replace("\t", " "), MAX_TEXT) for line in lines)
        held = self._held_message(person, entry, self.history.find_probabilities([verdict_id]))
        return models.HeldMessageDetails(**asdict(held), header=text)

    def held_entry(self, person: Person, verdict_id: str) -> QuarantineEntry:
        """Return the note of a message. NotThereError: there is none, or it is not theirs."""
        with suppress(QuarantineError):
            entry = self.quarantine.entry(verdict_id)
            if self.may_see(person, _recipient_addresses(entry)):
                return entry
        raise NotThereError("no message with that verdict id is held here, or it is not yours")

    def releasable_entry(self, person: Person, verdict_id: str) -> QuarantineEntry:
        """As `held_entry`. NotAllowedError: other people wait for the message too."""
        entry = self.held_entry(person, verdict_id)
        waiting = _waiting_addresses(entry)
        if len(self.visible_addresses(person, waiting)) < len(waiting):
            raise NotAllowedError(
                "other people wait for this message too: ask an operator to release it"
            )
        return entry

    def _held_message(
        self, person: Person, entry: QuarantineEntry, probabilities: Mapping[str, float]
    ) -> HeldMessage:
        header = self._held_header(entry)
        return HeldMessage(
            entry.id,
            entry.when,
            printable(entry.envelope.sender.address, MAX_TEXT),
            readable(decode_author(header), MAX_TEXT),
            self.visible_addresses(person, _recipient_addresses(entry)),
            self.visible_addresses(person, _waiting_addresses(entry)),
            readable(decode_subject(header), MAX_TEXT),
            entry.size,
            printable(entry.reason, MAX_TEXT),
            entry.released,
            probabilities.get(entry.id),
        )

    def _held_header(self, entry: QuarantineEntry) -> bytes:
        try:
            return self.quarantine.header(entry.id)
        except (QuarantineError, OSError):  # deleted meanwhile
            return b""


def _address_parts(address: str) -> list[str]:
    local_part, at, _ = address.rpartition("@")
    signs = "+" if at else "@+"
    return [
        recipient_pattern(address, at_start=True, at_end=True),
        *(recipient_pattern((local_part or address) + sign, at_start=True) for sign in signs),
    ]


def _matches(message: HeldMessage, search: Search) -> bool:
    senders = fold_text(f"{message.sender}\n{message.author}")
    recipients = fold_text("\n".join(message.recipients))
    subject = fold_text(message.subject)
    found = (
        (search.sender, senders),
        (search.recipient, recipients),
        (search.subject, subject),
        *((word, f"{senders}\n{recipients}\n{subject}") for word in search.words),
    )
    is_in_time = search.since <= message.time < (search.until or inf)
    return is_in_time and all(fold_text(term) in text for term, text in found)


def _recipient_addresses(entry: QuarantineEntry) -> list[str]:
    return [recipient.address for recipient in entry.envelope.recipients]


def _waiting_addresses(entry: QuarantineEntry) -> list[str]:
    recipients = _recipient_addresses(entry)
    return [recipients[number] for number in entry.waiting]
