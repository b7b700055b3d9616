"""Messages that passed, as those may see them whose mail it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from spamguard.errors import NotAllowedError, NotThereError, UsageError
from spamguard.history import Row
from spamguard.history.looks import Wanted
from spamguard.history.row import RECIPIENTS, fold
from spamguard.ids import LAST, RANDOM_BYTES, is_id, new_id
from spamguard.ledger.users import UNHEARD, Standing
from spamguard.records import EXTRACTOR
from spamguard.settings import Action
from spamguard.settings import History as Kept
from spamguard.web.service.paging import AFTER_ALL, beginning, page
from spamguard.web.service.reading import Reading
from spamguard.web.service.scope import Scope, voice
from spamguard.web.service.values import Found, Judgement, Known, Person, Search, WordPart


class Passed:
    """kept: what the history keeps. is_held: whether a message of that id waits in the quarantine."""

    def __init__(self, scope: Scope, kept: Kept, is_held: Callable[[str], bool]) -> None:
        self._scope = scope
        self._kept = kept
        self._is_held = is_held

    def search(self, reading: Reading, person: Person, search: Search) -> Found:
        """A page."""
        self.refuse(person, search)
        if search.taught:
            reading.catch_up()
        wanted = _wanted(search)._replace(parts=self._scope.parts(person))

        def look(before: str, limit: int) -> tuple[list[Row], str]:
            seen = reading.history.looks.look(wanted._replace(before=before), limit)
            return [row for row in seen.rows if self._fits(person, row, search)], seen.following

        rows, following = page(look, wanted.before, search.limit)
        return Found(self.judgements(reading, person, rows), following)

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
        if row is None or not self._scope.may_see(person, row.recipients):
            raise NotThereError("no message with that id has passed here, or it is not yours, or it is too long ago")
        return row

    def _fits(self, person: Person, row: Row, search: Search) -> bool:
        """Whether they may see it, and that others got it too is not told by their addresses being found."""
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
            author=row.author,
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
            held=row.action == Action.QUARANTINE and self._is_held(row.id),
            words=[WordPart(word.text, word.part) for word in row.words],
        )

    def of_digests(self, reading: Reading, person: Person, digests: Sequence[str]) -> Mapping[str, Judgement]:
        """As in `contract.Service`."""
        found = reading.history.looks.newest_of(map(bytes.fromhex, digests), self._scope.parts(person))
        newest = {row.digest.hex(): row for row in reversed(found) if self._scope.may_see(person, row.recipients)}
        return dict(zip(newest, self.judgements(reading, person, list(newest.values())), strict=True))

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
        before=min(beginning(search.before), _name(until + 1.0) if until else AFTER_ALL),
    )


def _name(seconds: float) -> str:
    """The first id of that time, "" for none: later ones are higher."""
    return new_id(min(seconds, LAST), bytes(RANDOM_BYTES)) if seconds else ""
