"""The service (`contract.Service`) on the state directory of this machine.

What blocks is done in lanes: one thread teaches and explains by a filter of its own, some look into history and ledger. Mail is read
and judged in scorers. Must never do anything in a person's name that they may not, however it is asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

from spamguard import __version__, times
from spamguard.batches import BATCH
from spamguard.engine import Filter
from spamguard.errors import BusyError, NotAllowedError, SpamguardError, UsageError
from spamguard.history import Row
from spamguard.lately import Lately
from spamguard.ledger.users import UNHEARD, Standing
from spamguard.prepare import Teaching
from spamguard.quarantine import Entry
from spamguard.records import Explanation, Scan, Word
from spamguard.relay.threads import finished
from spamguard.remembered import digest as digest_of
from spamguard.remembered import lesson as lesson_of
from spamguard.settings import Settings, Teach
from spamguard.spool import Spool
from spamguard.teaching.lesson import PASSED, WEB
from spamguard.undo import Chosen
from spamguard.undo import messages as messages_of
from spamguard.web.service import numbers, scanning, teaching, words
from spamguard.web.service.holding import Holding
from spamguard.web.service.lane import PATIENCE, Lane
from spamguard.web.service.passed import Passed, can_teach
from spamguard.web.service.preview import LATEST, preview
from spamguard.web.service.reading import Reading
from spamguard.web.service.scanning import Scanning
from spamguard.web.service.scope import Scope, operators_only, voice
from spamguard.web.service.values import (
    Considered,
    Counted,
    Found,
    HeldBack,
    Judgement,
    Known,
    Model,
    Opinion,
    Person,
    Receipt,
    Released,
    Search,
    Shown,
    Today,
    Why,
    WordPart,
)

_SECONDS = 10.0  # that numbers of the last hours are good for
_LONGER = 60.0  # those of all that was learnt: they go through an index of all votes
_MOST_KNOWN = 64  # numbers of the last hours, of so many people
_READERS = 2  # threads
_UNDO = 4 * BATCH  # messages that are undone at once
_LAST_SECONDS = 0.5  # for what has begun, at the end: whoever reloads waits for it
_RELEASED = "quarantine"  # origin of lessons, as of the command

_log = logging.getLogger("spamguard.web")

Result = TypeVar("Result")


class LocalService:
    """settle: tells the master that lessons wait for settling. daemon: what the master says of itself, or None; it may block."""

    def __init__(self, settings: Settings, settle: Callable[[], object], daemon: Callable[[], object]) -> None:
        one_wrong_in = settings.listeners[0].policy.one_wrong_in if settings.listeners else 0
        scope = Scope(settings.aliases)
        self._settings = settings
        self._settle = settle
        self._daemon = daemon
        self._filter = Lane("filter", partial(Filter.open, settings.state, one_wrong_in=one_wrong_in))
        self._reading = Lane("reading", partial(Reading.open, settings), _READERS)
        self._scanning = Scanning(settings, one_wrong_in, settle)
        self._holding = Holding(settings, scope)
        self._passed = Passed(scope, settings.history, self._holding.waits)
        self._scope = scope
        self._lessons_per_day = (settings.teach or Teach()).lessons_per_day
        self._previewing: set[Person] = set()  # one each: others' lessons wait for it
        self._releases: set[asyncio.Task[Released]] = set()
        self._forget_numbers()

    async def start(self) -> None:
        """Before anything is asked."""
        await self._scanning.start()

    async def close(self) -> None:
        """Finish what has begun, soon."""
        if self._releases:
            await asyncio.wait(self._releases, timeout=_LAST_SECONDS)
        await self._scanning.close()
        await asyncio.gather(*(asyncio.to_thread(lane.close, _LAST_SECONDS) for lane in (self._filter, self._reading)))

    async def _look(self, work: Callable[[Reading], Result]) -> Result:
        """For what depends on whose mail it is."""

        def look(reading: Reading) -> Result:
            self._scope.catch_up(reading.ledger.users)
            return work(reading)

        return await self._reading.do(look)

    # ---- messages that are handed over

    async def judge(self, person: Person, message: Spool) -> Opinion:
        """As in `contract.Service`, like all that follow."""
        scan = await self._scan(person, message)
        standing = await self._standing(scan, voice(person))
        verdict = scan.personal.get(self._judged_for(person), scan.verdict)
        return Opinion(
            verdict.label,
            verdict.probability,
            verdict.log_odds,
            verdict.probabilities,
            digest=scan.digest.hex(),
            taught=standing.label or "",
            own=standing.own or "",
            words=[WordPart(word.text, word.part) for word in scan.words],
        )

    async def _standing(self, scan: Scan, user: str) -> Standing:
        said = await self._reading.do(lambda reading: reading.ledger.users.standing([scan.digest], user))
        return said.get(scan.digest, UNHEARD)

    async def explain(self, person: Person, message: Spool) -> Why:
        scan = await self._scan(person, message)
        lesson = scanning.lesson(scan)
        return Why(None, await self._explained(person, lambda _: lesson, scan.words))

    async def learn(self, person: Person, message: Spool, label: str) -> Receipt:
        await self._reading.do(lambda reading: teaching.check_class(reading.ledger, label))
        lesson = scanning.lesson(await self._scan(person, message))
        return await self._learn(person, lambda _: lesson, label, WEB)

    async def forget(self, person: Person, digest: str) -> Receipt:
        name = teaching.digest_of(digest)
        return await self._forget(person, lambda _: name, WEB)

    async def _explained(self, person: Person, lesson: Callable[[Filter], Teaching], known: Sequence[Word]) -> Explanation:
        texts, user = {word.token: word.text for word in known}, self._judged_for(person)
        why = await self._filter.do(lambda found: found.explain_features(lesson(found).features, texts, user))
        return why if person.operator else words.without_few(why)

    async def preview(self, person: Person, message: Spool, label: str) -> Considered:
        if person in self._previewing:
            raise BusyError("a preview for you is being made: come again when it is done")
        self._previewing.add(person)
        try:
            return await self._preview(person, message, label)
        finally:
            self._previewing.discard(person)

    async def _preview(self, person: Person, message: Spool, label: str) -> Considered:
        await self._reading.do(lambda reading: teaching.check_class(reading.ledger, label))
        scan = await self._scan(person, message)
        lesson, user, judged_for = scanning.lesson(scan), voice(person), self._judged_for(person)
        latest = await self._look(lambda reading: list(self._latest(reading, person)))
        why = await self._explained(person, lambda _: lesson, scan.words)
        told = await self._filter.do(lambda found: preview(found, lesson, label, user, judged_for, latest))
        return Considered(told, why, (await self._standing(scan, user)).own or "")

    def _latest(self, reading: Reading, person: Person) -> list[tuple[Judgement, bytes]]:
        """Nothing where nothing may be shown: a preview of the message itself is worth something too."""
        try:
            return list(self._passed.latest(reading, person, LATEST))
        except NotAllowedError:
            return []

    async def _scan(self, person: Person, message: Spool) -> Scan:
        user = self._judged_for(person)
        return await self._scanning.scan(message, person, (user,) if user else ())

    def _judged_for(self, person: Person) -> str:
        return person.name if self._settings.personal and not person.operator else ""

    # ---- messages that passed

    async def history(self, person: Person, search: Search) -> Found:
        return await self._look(lambda reading: self._passed.search(reading, person, search))

    async def judgement(self, person: Person, name: str) -> Known:
        return (await self._row(person, name))[1]

    async def passed(self, person: Person, digests: Sequence[str]) -> Mapping[str, Judgement]:
        return await self._look(lambda reading: self._passed.of_digests(reading, person, digests))

    async def why(self, person: Person, name: str) -> Why:
        row, judgement = await self._row(person, name)
        return Why(judgement, await self._explained(person, lambda found: lesson_of(found, row), row.words))

    async def learn_passed(self, person: Person, name: str, label: str) -> Receipt:
        row, _ = await self._row(person, name)
        return await self._learn(person, lambda found: lesson_of(found, row), label, PASSED)

    async def forget_passed(self, person: Person, name: str) -> Receipt:
        row, _ = await self._row(person, name)
        return await self._forget(person, lambda found: digest_of(found, row), PASSED)

    async def _row(self, person: Person, name: str) -> tuple[Row, Known]:
        def found(reading: Reading) -> tuple[Row, Known]:
            row = self._passed.one(reading, person, name)
            return row, self._passed.judgements(reading, person, [row])[0]

        return await self._look(found)

    # ---- lessons

    async def _learn(self, person: Person, lesson: Callable[[Filter], Teaching], label: str, origin: str) -> Receipt:
        user, judged_for, most = voice(person), self._judged_for(person), self._lessons_per_day
        return await self._taught(lambda found: teaching.learn(found, lesson(found), label, user, origin, most, judged_for))

    async def _forget(self, person: Person, digest: Callable[[Filter], bytes], origin: str) -> Receipt:
        user, judged_for = voice(person), self._judged_for(person)
        return await self._taught(lambda found: teaching.forget(found, digest(found), user, origin, judged_for))

    async def undo(self, person: Person, user: str, since: float, *, dry: bool = False) -> Sequence[Receipt]:
        if not person.operator and user != person.name:
            raise NotAllowedError("only operators may take back what others have taught")
        if not 0 <= since <= times.LATEST:
            raise UsageError("since: seconds since 1970 are expected")
        chosen = Chosen(user, int(since))
        digests = await self._filter.do(lambda found: messages_of(found, chosen))
        done: list[Receipt] = []
        for start in range(0, len(digests), _UNDO):
            work = partial(teaching.undo_some, digests=digests[start : start + _UNDO], chosen=chosen, dry=dry)
            done += await (self._filter.do(work) if dry else self._taught(work))
        return done

    async def _taught(self, work: Callable[[Filter], Result]) -> Result:
        result, due = await self._filter.do(lambda found: (work(found), found.settling_due()))
        self._forget_numbers()
        if due:
            self._settle()
        return result

    async def classes(self, person: Person) -> Mapping[str, bool]:  # noqa: ARG002
        return await self._reading.do(lambda reading: teaching.classes(reading.ledger))

    # ---- numbers

    def _forget_numbers(self) -> None:
        """Somebody has taught here: they will want to see it."""
        self._today: OrderedDict[Hashable, Lately[Today]] = OrderedDict()
        self._learnt = Lately(lambda: self._reading.do(numbers.taught), _LONGER, PATIENCE)

    async def today(self, person: Person, hours: int = 24) -> Today:
        self._passed.refuse(person, Search())
        key = (person.operator or person.name, hours)
        if key not in self._today:
            look = partial(numbers.today, scope=self._scope, person=person, hours=hours)
            self._today[key] = Lately(lambda: self._look(look), _SECONDS, PATIENCE)
        while len(self._today) > _MOST_KNOWN:
            self._today.popitem(last=False)
        return await _in_time(self._today[key].get())

    async def model(self, person: Person) -> Model:
        learnt = await _in_time(self._learnt.get())
        return await self._filter.do(lambda found: numbers.model(found, learnt, person))

    async def words(self, person: Person, word: str) -> Sequence[Counted]:
        return await self._filter.do(partial(words.counted, word=word, fewest=1 if person.operator else words.FEWEST))

    async def status(self, person: Person) -> Mapping[str, Any]:
        operators_only(person)
        return {**await self._filter.do(_status), "daemon": await finished(self._daemon)}

    # ---- quarantine

    async def quarantine(self, person: Person, before: str = "", limit: int = 50) -> HeldBack:
        return await self._look(lambda _: self._holding.list(person, before, limit))

    async def held(self, person: Person, name: str) -> Shown:
        return await self._look(lambda _: self._holding.one(person, name))

    async def release(self, person: Person, name: str) -> Released:
        entry = await self._look(lambda _: self._holding.entry(person, name))
        self._holding.may_release(person, entry)
        release = asyncio.create_task(self._release(person, entry))  # who asks may hang up: it is done all the same
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)
        return await asyncio.shield(release)

    async def _release(self, person: Person, entry: Entry) -> Released:
        now, released = await self._holding.release(person, entry)
        if not now.delivered:
            return released
        try:
            return replace(released, taught=await self._learn_held(person, now))
        except (SpamguardError, OSError) as error:  # it has been released: that is what counts
            _log.warning("%s: was released and is not learnt: %s", entry.id, error)
            return released

    async def _learn_held(self, person: Person, entry: Entry) -> bool:
        """Whether that was new. By what the history has of it, else it is read again."""
        row = await self._reading.do(lambda reading: _usable(reading, entry.id))
        if row is not None:
            return (await self._learn(person, lambda found: lesson_of(found, row), "ham", _RELEASED)).changed
        with closing(self._holding.message(entry)) as message:
            lesson = scanning.lesson(await self._scan(person, message))
        return (await self._learn(person, lambda _: lesson, "ham", _RELEASED)).changed

    async def delete(self, person: Person, name: str) -> None:
        await self._look(lambda _: self._holding.delete(person, name))


async def _in_time(looking: Awaitable[Result]) -> Result:
    try:
        return await looking
    except TimeoutError:
        raise BusyError("it takes too long at the moment: come again later") from None


def _usable(reading: Reading, name: str) -> Row | None:
    row = reading.history.find(name)
    return row if row is not None and can_teach(row, reading.ledger.fingerprint) else None


def _status(spam_filter: Filter) -> dict[str, Any]:
    """Under the names that `spamguard status --json` has."""
    found = spam_filter.status()
    return {
        "key": found.fingerprint,
        "versions": {"program": __version__, "extractor": found.extractor},
        "classes": {name: asdict(one) for name, one in numbers.classes(found).items()},
        "events": found.events,
        "unsettled": found.unsettled,
        "receipts": not spam_filter.adopted,
        "buckets": found.buckets,
        "tables": {name: asdict(one) for name, one in numbers.tables(found).items()},
        "bytes": {"ledger": found.ledger_bytes, "tables": found.tables_bytes},
    }
