"""Messages that passed, as those may see them whose mail it is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from spamguard.errors import NotAllowedError, NotThereError, UsageError
from spamguard.history import Row
from spamguard.history.looks import Wanted
from spamguard.history.row import RECIPIENTS, fold
from spamguard.ids import LAST, RANDOM_BYTES, is_id, new_id
from spamguard.ledger.users import UNHEARD, Standing
from spamguard.records import EXTRACTOR
from spamguard.settings import History as Kept
from spamguard.web.service.paging import AFTER_ALL, onward
from spamguard.web.service.reading import Reading
from spamguard.web.service.scope import Scope, voice
from spamguard.web.service.values import MOST, Found, Judgement, Known, Person, Search, WordPart

_SECONDS = 2.0  # for a search; what was found until then is a page too


class Passed:
    """kept: what the history keeps."""

    def __init__(self, scope: Scope, kept: Kept) -> None:
        self._scope = scope
        self._kept = kept

    def search(self, reading: Reading, person: Person, search: Search) -> Found:
        """A page; not a full one, with more to follow, when looking for more would take too long."""
        self.refuse(person, search)
        if search.taught:
            reading.catch_up()
        limit = max(1, min(search.limit, MOST))
        deadline = time.monotonic() + _SECONDS
        rows: list[Row] = []
        wanted = _wanted(search)._replace(parts=self._scope.parts(person))
        start = wanted.before or AFTER_ALL
        while True:
            seen = reading.history.looks.look(wanted, limit - len(rows))
            rows += [row for row in seen.rows if self._fits(person, row, search)]
            following = onward(seen.following, rows[-1].id if rows else "")
            if len(rows) >= limit or not following or (time.monotonic() >= deadline and following < start):
                return Found(self.judgements(reading, person, rows), following)
            wanted = wanted._replace(before=seen.following)

    def refuse(self, person: Person, search: Search) -> None:
        """NotAllowedError, UsageError: what is asked for is not kept, so nothing would be found."""
        if not self._kept.addresses:
            if not person.operator:
                raise NotAllowedError(
                    "no addresses are kept here (history, addresses), so nobody but operators can be shown what is theirs"
                )
            if search.sender or search.recipient:
                raise UsageError("no addresses are kept here (history, addresses): they cannot be searched for")
        if search.subject and not self._kept.subjects:
            raise UsageError("no subjects are kept here (history, subjects): they cannot be searched for")

    def one(self, reading: Reading, person: Person, name: str) -> Row:
        """All that is kept of a message. NotThereError: nothing, or it is not theirs."""
        self.refuse(person, Search())
        row = reading.history.find(name) if is_id(name) else None
        if row is None or not self.may_see(person, row):
            raise NotThereError("no message with that id has passed here, or it is not yours, or it is too long ago")
        return row

    def may_see(self, person: Person, row: Row) -> bool:
        """Whether any of it is theirs."""
        return person.operator or bool(self._scope.theirs(person, row.recipients))

    def _fits(self, person: Person, row: Row, search: Search) -> bool:
        """As `may_see`; and that others got it too is not told by their addresses being found."""
        sought = fold(search.recipient)
        return person.operator or any(sought in fold(one) for one in self._scope.theirs(person, row.recipients))

    def judgements(self, reading: Reading, person: Person, rows: Sequence[Row]) -> list[Known]:
        """Rows that they may see, as they may see them."""
        digests = [row.digest for row in rows if row.was_scanned]
        standing = reading.ledger.users.standing(digests, voice(person))
        fingerprint = reading.ledger.fingerprint
        return [self._judgement(person, row, standing.get(row.digest, UNHEARD), fingerprint) for row in rows]

    def _judgement(self, person: Person, row: Row, standing: Standing, fingerprint: str) -> Known:
        recipients = self._scope.theirs(person, row.recipients)
        alone = person.operator or len(recipients) == len(row.recipients) < RECIPIENTS  # what the next hop said may name others
        return Known(
            time=row.time,
            listener=row.listener,
            client=row.client,
            sender=row.sender,
            recipients=recipients,
            subject=row.subject,
            size=row.size,
            label=row.label,
            probability=row.probability,
            log_odds=row.log_odds,
            personal={user: label for user, label in row.personal.items() if person.operator or user == person.name},
            action=row.action,
            reply=row.reply if alone else "",
            id=row.id,
            taught=standing.label or "",
            own=standing.own or "",
            can_teach=can_teach(row, fingerprint),
            words=[WordPart(word.text, word.part) for word in row.words],
        )

    def latest(self, reading: Reading, person: Person, number: int) -> Iterator[tuple[Judgement, bytes]]:
        """The last messages that they may see and whose features can still be used, with these."""
        page = self.search(reading, person, Search(limit=number)).judgements
        usable = [one for one in page if one.can_teach]
        packed = dict(reading.history.contents([one.id for one in usable]))
        return ((one, packed[one.id]) for one in usable if one.id in packed)


def can_teach(row: Row, fingerprint: str) -> bool:
    """Whether its features are there, made by this extractor with this key."""
    return row.was_scanned and (row.extractor, row.fingerprint) == (EXTRACTOR, fingerprint)


def _wanted(search: Search) -> Wanted:
    if search.before and not is_id(search.before):
        raise UsageError("before: that is no id of a message")
    since, until = max(0.0, search.since), max(0.0, search.until)
    return Wanted(
        sender=search.sender,
        recipient=search.recipient,
        subject=search.subject,
        label=search.label,
        taught=search.taught,
        since=since,
        until=until,
        first=_name(since),
        before=min(filter(None, (search.before, _name(until + 1.0) if until else "")), default=""),
    )


def _name(seconds: float) -> str:
    """The first id of that time, "" for none: later ones are higher."""
    return new_id(min(seconds, LAST), bytes(RANDOM_BYTES)) if seconds else ""
