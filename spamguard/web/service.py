"""Everything that the page and the API can do, on the state directory of this machine.

Each call names the person who makes it. Nobody sees mail that is not theirs, and nobody changes
anything in another person's name.

Blocking work runs in threads: one thread owns a filter, with which it teaches and explains; two
threads read history and ledger. Scorer processes read and judge mail.

Errors: UsageError for bad input, NotAllowedError for what the person may not do, NotThereError for
an unknown id or somebody else's (nobody can tell which), BusyError for "try again in a moment".
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

from spamguard import log
from spamguard.aio import run_in_thread
from spamguard.config.options import Policy, Settings, TeachSettings
from spamguard.delivery.quarantine import QuarantineEntry
from spamguard.engine.filter import Filter
from spamguard.engine.fold import unpack_features
from spamguard.engine.policy import UNSURE
from spamguard.engine.prepare import Example
from spamguard.errors import NotAllowedError, SpamguardError, UsageError
from spamguard.learning.lessons import LessonService, NewClass
from spamguard.learning.undo import VoteSelection, undo_votes
from spamguard.ledger.senders import label_class, make_sender_vote
from spamguard.ledger.votes import NO_STANDING
from spamguard.proxy.history import HistoryRow
from spamguard.proxy.history_search import example_from_row, row_digest
from spamguard.records import EXTRACTOR, Explanation, Scan, Vote, Word
from spamguard.storage import BATCH_SIZE, Spool
from spamguard.users import HISTORY_ORIGIN, RELEASE_ORIGIN, SENDER_NATS, WEB_ORIGIN
from spamguard.web import models, statistics
from spamguard.web.auth import Person, require_operator
from spamguard.web.models import JudgementDetails, LessonReceipt
from spamguard.web.quarantine import QuarantineQueries
from spamguard.web.queries import (
    HistoryQueries,
    Search,
    can_teach,
    check_class,
    known_classes,
    was_learnt,
)
from spamguard.web.workers import (
    WAIT_SECONDS,
    AsyncTtlCache,
    ReadConnection,
    ResourceThread,
    UploadScanner,
    Visibility,
    example_from_scan,
)

_log = logging.getLogger("spamguard.web")

_MODEL_SECONDS = 60.0  # for which numbers of the ledger are fresh; they cost more
_MAX_COUNT_SECONDS = 0.2  # for a number of the navigation: a history may be long
_MAX_WAIT_SECONDS = 0.5  # of a page for these numbers
UNSURE_DAYS = 14
_READ_THREADS = 2
_MAX_WORDS = 60  # told with a verdict
_UNDO_BATCH = 4 * BATCH_SIZE  # messages
_DRAIN_SECONDS = 0.5  # for unfinished work at the end: a reload waits for it

Result = TypeVar("Result")


class Service:
    """The service of one process. Any number of tasks may use it at once.

    settle: tells the master that lessons wait for settling. ask_daemon: returns the status of the
    daemon, or None; may block.
    """

    def __init__(
        self, settings: Settings, settle: Callable[[], object], ask_daemon: Callable[[], object]
    ) -> None:
        first = settings.listeners[0] if settings.listeners else Policy()
        open_filter = partial(Filter.open, settings.state, spam_threshold=first.spam_threshold)
        open_reading = partial(ReadConnection.open, settings)
        self.keep_held = settings.quarantine.keep  # days
        self._authserv_ids, self._personal = settings.believed_servers, settings.personal
        self._settle = settle
        self._ask_daemon = ask_daemon
        self._filter = ResourceThread("filter", open_filter)
        self._readers = ResourceThread("reading", open_reading, _READ_THREADS)
        self._scanner = UploadScanner(settings, first.spam_threshold, settle)
        self._visibility = Visibility(settings.aliases)
        self._quarantine = QuarantineQueries(settings, self._visibility)
        is_held = self._quarantine.is_waiting
        self._history = HistoryQueries(self._visibility, settings.history, is_held)
        self._max_lessons = (settings.teach or TeachSettings()).lessons_per_day
        self._text_previews = asyncio.Semaphore(2)
        self._releases: set[asyncio.Task[models.ReleaseResult]] = set()
        self._clear_cache()

    async def close(self) -> None:
        """Finish unfinished work, within a moment."""
        if self._releases:
            await asyncio.wait(self._releases, timeout=_DRAIN_SECONDS)
        await self._scanner.close()
        resources = (self._filter, self._readers)
        await asyncio.gather(*(asyncio.to_thread(r.close, _DRAIN_SECONDS) for r in resources))

    async def _read(self, work: Callable[[ReadConnection], Result]) -> Result:
        """Run work that depends on what mail a person may see."""

        def look(reading: ReadConnection) -> Result:
            self._visibility.refresh(reading.ledger.users)
            return work(reading)

        return await self._readers.run(look)

    # ---- uploaded messages

    async def judge(self, person: Person, message: Spool) -> models.Opinion:
        """Judge a message."""
        scan = await self._scan(person, message)
        standings = await self._readers.run(
            lambda reading: reading.ledger.users.find_standings([scan.digest], person.voter)
        )
        standing = standings.get(scan.digest, NO_STANDING)
        verdict = scan.personal.get(self._verdict_user(person), scan.verdict)
        return models.Opinion(
            **asdict(verdict),
            digest=scan.digest.hex(),
            taught=standing.label or "",
            own=standing.user_label or "",
            words=models.word_parts(scan.words[:_MAX_WORDS]),
        )

    async def explain(self, person: Person, message: Spool) -> Explanation:
        """Explain the verdict on a message; counts of rare words are for operators only."""
        scan = await self._scan(person, message)
        lesson = example_from_scan(scan)
        return await self._explain(person, lambda _: lesson, scan.words, scan.sender)

    async def learn(self, person: Person, message: Spool, label: str) -> LessonReceipt:
        """Teach a message in the person's name; an operator teaches for the site (user "")."""
        scan = await self._scan(person, message)
        lesson = example_from_scan(scan)
        return await self._learn(person, lambda _: lesson, label, WEB_ORIGIN, scan.sender)

    async def forget(self, person: Person, digest: str) -> LessonReceipt:
        """Take back the person's vote on a message. An earlier vote does not come back.

        digest: the message digest, in hexadecimal.
        """
        if not re.fullmatch("[0-9A-Fa-f]{32}", digest):
            raise UsageError("this is not a message digest, which has 32 hexadecimal digits")
        return await self._forget(person, lambda _: bytes.fromhex(digest), WEB_ORIGIN)

    async def _scan(self, person: Person, message: Spool) -> Scan:
        user = self._verdict_user(person)
        return await self._scanner.scan(message, person, (user,) if user else ())

    async def _explain(
        self,
        person: Person,
        lesson: Callable[[Filter], Example],
        words: Sequence[Word],
        sender: bytes,
    ) -> Explanation:
        texts, user = {word.token: word.text for word in words}, self._verdict_user(person)
        why = await self._filter.run(
            lambda spam_filter: spam_filter.explain_features(
                lesson(spam_filter).features, texts, user, sender
            )
        )
        return why if person.operator else statistics.mask_rare_words(why)

    def _verdict_user(self, person: Person) -> str:
        return person.name if self._personal and not person.operator else ""

    # ---- messages that passed

    async def history(self, person: Person, search: Search) -> models.JudgementPage:
        """Return a page of the messages that passed."""

        def look(reading: ReadConnection) -> models.JudgementPage:
            rows, following = self._history.find_rows(reading, person, search)
            return models.JudgementPage(self._history.judgements(reading, person, rows), following)

        return await self._read(look)

    async def unsure(self, person: Person, search: Search | None = None) -> models.JudgementPage:
        """Return the unsure mail of the last days that nobody has spoken about."""
        search = search or Search()
        since = search.since or time.time() - UNSURE_DAYS * 86_400
        search = replace(search, label=UNSURE, since=since, limit=models.MAX_ROWS)
        page = await self.history(person, search)
        rows = [row for row in page.judgements if row.can_teach and not row.taught]
        return replace(page, judgements=rows)

    async def judgement(self, person: Person, verdict_id: str) -> JudgementDetails:
        """Return one of them, with its words."""
        return (await self._row(person, verdict_id))[1]

    async def find_user(self, address: str, mail_from: str) -> tuple[str, str]:
        """Return user and own address of the user whose mail an address has, as of `queries`."""
        return await self._read(
            lambda reading: self._history.find_user(reading, address, mail_from)
        )

    async def why(self, person: Person, verdict_id: str) -> tuple[JudgementDetails, Explanation]:
        """Return a message that passed, and why it would get its verdict now."""
        row, judgement = await self._row(person, verdict_id)
        held = await self._read_held(person, verdict_id) if judgement.held else None

        def lesson(spam_filter: Filter) -> Example:
            if held and not judgement.can_teach:
                return example_from_scan(held)
            return example_from_row(spam_filter, row)

        words = row.words + (held.words if held else ())
        return judgement, await self._explain(person, lesson, words, row.sender_digest)

    async def _read_held(self, person: Person, verdict_id: str) -> Scan | None:
        with suppress(SpamguardError, OSError):  # gone meanwhile, or too many are being judged
            entry = await self._read(lambda _: self._quarantine.entry(person, verdict_id))
            with closing(self._quarantine.open_message(entry)) as message:
                return await self._scan(person, message)
        return None

    async def learn_passed(self, person: Person, verdict_id: str, label: str) -> LessonReceipt:
        """Teach a message that passed, with the features that the history has stored."""
        row, _ = await self._row(person, verdict_id)
        lesson = partial(example_from_row, row=row)
        return await self._learn(person, lesson, label, HISTORY_ORIGIN, row.sender_digest)

    async def forget_passed(self, person: Person, verdict_id: str) -> LessonReceipt:
        """Take back the person's vote on a message that passed."""
        row, _ = await self._row(person, verdict_id)
        return await self._forget(person, partial(row_digest, row=row), HISTORY_ORIGIN)

    async def say_of_sender(self, person: Person, verdict_id: str, label: str) -> LessonReceipt:
        """Keep what the person says of the sender of a message; label "": take that back."""
        row, message = await self._row(person, verdict_id)
        if not message.authenticated:
            raise UsageError("nobody has authenticated this sender, so no word about it counts")
        digest, nats = row.sender_digest, SENDER_NATS.get(label)
        vote = make_sender_vote(digest, person.voter, nats, HISTORY_ORIGIN, int(time.time()))
        limit = self._max_lessons if label else 0

        def work(_: Filter, service: LessonService) -> LessonReceipt:
            changed = was_learnt(service.submit_vote(vote, limit), limit)
            return LessonReceipt(digest.hex(), label, changed, message.sender_word)

        return await self._change_filter(work)

    async def _row(self, person: Person, verdict_id: str) -> tuple[HistoryRow, JudgementDetails]:
        def look(reading: ReadConnection) -> tuple[HistoryRow, JudgementDetails]:
            row = self._history.get(reading, person, verdict_id)
            return row, self._describe(reading, person, row)

        return await self._read(look)

    def _describe(
        self, reading: ReadConnection, person: Person, row: HistoryRow, held: Sequence[str] = ()
    ) -> JudgementDetails:
        details = self._history.judgements(reading, person, [row], held)[0]
        is_ours = row.fingerprint == reading.ledger.fingerprint and self._authserv_ids
        if row.sender_digest and is_ours and (self._personal or person.operator):
            label = reading.ledger.standing_label(row.sender_digest, person.voter)
            details = replace(details, authenticated=True, sender_word=label_class(label))
        return details

    # ---- lessons

    async def _learn(
        self,
        person: Person,
        lesson: Callable[[Filter], Example],
        label: str,
        origin: str,
        sender: bytes = b"",
    ) -> LessonReceipt:
        user, judged_for = person.voter, self._verdict_user(person)

        def work(spam_filter: Filter, service: LessonService) -> LessonReceipt:
            example, limit = lesson(spam_filter), self._max_lessons
            check_class(spam_filter.ledger, label)
            before = spam_filter.ledger.get_vote(example.digest, user)
            (outcome,) = service.submit(
                [example], label, user, origin, new_class=NewClass.REFUSE, lessons_per_day=limit
            )
            changed = was_learnt(outcome, limit)
            verdict = spam_filter.judge_features(example.features, judged_for, sender)
            return LessonReceipt(example.digest.hex(), label, changed, _label(before), verdict)

        return await self._change_filter(work)

    async def _forget(
        self, person: Person, digest: Callable[[Filter], bytes], origin: str
    ) -> LessonReceipt:
        user, judged_for = person.voter, self._verdict_user(person)

        def work(spam_filter: Filter, service: LessonService) -> LessonReceipt:
            message = digest(spam_filter)
            vote = spam_filter.ledger.get_vote(message, user)
            (changed,) = service.retract([message], user, origin, _label(vote))
            verdict = None  # without usable features in the receipt
            if vote is not None and vote.packed and vote.extractor == EXTRACTOR:
                verdict = spam_filter.judge_features(unpack_features([vote.packed])[0], judged_for)
            return LessonReceipt(message.hex(), "", changed, _label(vote), verdict)

        return await self._change_filter(work)

    async def undo(
        self, person: Person, user: str, since: float, *, dry: bool = False
    ) -> Sequence[LessonReceipt]:
        """Take back all votes of a user since a time; only operators may name another user."""
        if not person.operator and user != person.name:
            raise NotAllowedError("only operators may take back lessons of other people")
        chosen = VoteSelection(user, int(since))
        digests = await self._filter.run(
            lambda spam_filter: spam_filter.ledger.users.voted_digests(chosen.user, chosen.since)
        )

        def work(
            spam_filter: Filter, service: LessonService, batch: Sequence[bytes]
        ) -> list[LessonReceipt]:
            batches = undo_votes(spam_filter, batch, chosen, dry_run=dry)
            votes = [vote for undone in batches for vote in undone]
            if votes and not dry:
                service.changed += len(votes)
                _log.info("undo user=%s messages=%d", log.quote_value(user), len(votes))
            return [
                LessonReceipt(vote.digest.hex(), vote.new_label or "", True, vote.old_label or "")
                for vote in votes
            ]

        receipts: list[LessonReceipt] = []
        for start in range(0, len(digests), _UNDO_BATCH):  # other work waits for each batch
            batch = digests[start : start + _UNDO_BATCH]
            receipts += await self._change_filter(partial(work, batch=batch))
        return receipts

    async def _change_filter(self, work: Callable[[Filter, LessonService], Result]) -> Result:
        def teach(spam_filter: Filter) -> Result:
            # It asks for settling at once: the person looks at the page.
            service = LessonService(spam_filter, self._settle, pause=0.0, logger=_log)
            result = work(spam_filter, service)
            service.request_settling()
            return result

        result = await self._filter.run(teach)
        self._clear_cache()
        return result

    async def classes(
        self,
        person: Person,  # noqa: ARG002  every method of the API has it
    ) -> Mapping[str, bool]:
        """Return whether each class that can be taught is unwanted."""
        return await self._readers.run(lambda reading: known_classes(reading.ledger))

    # ---- numbers

    def _clear_cache(self) -> None:
        """Drop the numbers of the ledger, so that a lesson shows at once."""
        self._users = AsyncTtlCache(
            lambda: self._readers.run(statistics.summarize_users), _MODEL_SECONDS, WAIT_SECONDS
        )

    async def today(self, person: Person, hours: int = 24) -> models.Today:
        """Return numbers of the last hours."""
        self._history.check_searchable(person, Search())
        return await self._read(
            lambda reading: statistics.summarize_hours(reading, self._visibility, person, hours)
        )

    async def waiting(self, person: Person) -> models.Waiting:
        """Count what waits for the person; what is not known at once is left out."""
        unsure = self.unsure(person, Search(seconds=_MAX_COUNT_SECONDS))
        held = self.quarantine(person)
        counts = asyncio.gather(_count_page(unsure), _count_page(held))
        try:
            return models.Waiting(*await asyncio.wait_for(counts, _MAX_WAIT_SECONDS))
        except TimeoutError:
            return models.Waiting()

    async def model(self, person: Person) -> models.Model:
        """Return what has been learnt."""
        users = await self._users.get()
        return await self._filter.run(
            partial(statistics.summarize_model, users=users, person=person)
        )

    async def status(self, person: Person) -> Mapping[str, Any]:
        """Return the status of filter and daemon (`spamguard status --json`); for operators."""
        require_operator(person)
        filter_status = await self._filter.run(statistics.filter_status)
        return {**filter_status, "daemon": await run_in_thread(self._ask_daemon)}

    # ---- quarantine

    async def quarantine(
        self, person: Person, search: Search | None = None
    ) -> models.QuarantinePage:
        """Return a page of the held messages, newest first."""
        found = search or Search()
        return await self._read(lambda reading: self._quarantine.list_page(reading, person, found))

    async def held(self, person: Person, verdict_id: str) -> models.HeldMessageDetails:
        """Return one of them, with its header section."""
        return await self._read(lambda reading: self._quarantine.get(reading, person, verdict_id))

    async def preview_held(self, person: Person, verdict_id: str) -> str:
        """Return its text as a reader sees it, bounded; "" if there is none."""
        entry = await self._read(lambda _: self._quarantine.entry(person, verdict_id))
        async with self._text_previews:
            return await run_in_thread(self._quarantine.preview, entry)

    async def release(self, person: Person, verdict_id: str) -> models.ReleaseResult:
        """Deliver a held message to the recipients that lack it, and learn it as ham.

        A person who is not an operator may do so only if all of these are theirs. It is finished
        even if the person hangs up.
        """
        entry = await self._read(lambda _: self._quarantine.entry(person, verdict_id))
        self._quarantine.check_release(person, entry)
        task = asyncio.create_task(self._release(person, entry))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)
        return await asyncio.shield(task)

    async def _release(self, person: Person, entry: QuarantineEntry) -> models.ReleaseResult:
        now, released = await self._quarantine.release(person, entry)
        if not now.delivered:
            return released
        try:
            return replace(released, taught=await self._learn_held(person, now))
        except (SpamguardError, OSError) as error:  # the release counts all the same
            _log.warning("%s: was released, but not learnt: %s", entry.id, error)
            return released

    async def _learn_held(self, person: Person, entry: QuarantineEntry) -> bool:
        """Learn a message as ham, from its features in the history or by judging it again."""

        def find_row(reading: ReadConnection) -> HistoryRow | None:
            row = reading.history.find(entry.id)
            return row if row and can_teach(row, reading.ledger.fingerprint) else None

        row = await self._readers.run(find_row)
        if row is None:
            with closing(self._quarantine.open_message(entry)) as message:
                scanned = example_from_scan(await self._scan(person, message))

        def lesson(spam_filter: Filter) -> Example:
            return example_from_row(spam_filter, row) if row else scanned

        return (await self._learn(person, lesson, "ham", RELEASE_ORIGIN)).changed

    async def delete(self, person: Person, verdict_id: str) -> None:
        """Delete a held message; for operators only."""
        await self._read(lambda _: self._quarantine.delete(person, verdict_id))


async def _count_page(look: Awaitable[models.JudgementPage | models.QuarantinePage]) -> str:
    try:
        page = await look
    except (SpamguardError, OSError):  # the list of this mail tells of it
        return ""
    if isinstance(page, models.QuarantinePage):
        number = sum(not message.released for message in page.messages)
    else:
        number = len(page.judgements)
    return f"{number:,}{'+' if page.following or page.absent else ''}" if number else ""


def _label(vote: Vote | None) -> str:
    return vote.label or "" if vote is not None else ""
