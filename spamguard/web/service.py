"""Everything that the page and the API can do, on the state directory of this machine.

Each call names the person who makes it. Nobody sees mail that is not theirs, and nobody changes
anything in another person's name.

Blocking work runs in threads, each of which has its files open: two have a `Reader`, and one has a
`Desk`, a reader with a filter that teaches and explains. A lesson is one piece of work for the
desk: it finds the message, checks the rights, casts the vote and judges anew. A caller that waits
too long gets BusyError. Scorer processes read and judge uploaded mail; this process never parses
mail itself.

Errors: UsageError for bad input, NotAllowedError for what the person may not do, NotThereError for
an unknown id or somebody else's (nobody can tell which), BusyError for "try again in a moment".
"""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from spamguard import log
from spamguard.aio import run_in_thread
from spamguard.bayes.tables import BASE_CLASSES
from spamguard.config.options import Policy, Settings, TeachSettings
from spamguard.delivery.quarantine import DIRECTORY, Quarantine, QuarantineEntry
from spamguard.delivery.smtp import create_next_hop
from spamguard.engine.filter import Filter
from spamguard.engine.fold import unpack_features
from spamguard.engine.policy import UNSURE, unwanted_classes
from spamguard.engine.prepare import Example
from spamguard.errors import (
    BusyError,
    HistoryError,
    LedgerError,
    NotAllowedError,
    NotThereError,
    QuarantineError,
    SpamguardError,
    TableError,
    UnknownClassError,
    UsageError,
)
from spamguard.learning.lessons import LessonOutcome, LessonService, NewClass
from spamguard.ledger.senders import make_sender_vote, split_sender
from spamguard.ledger.votes import NO_STANDING
from spamguard.process import start_process
from spamguard.proxy.history import HistoryRow, printable
from spamguard.proxy.history_search import example_from_row, row_digest
from spamguard.proxy.scorer import NotScanned, ScanOptions
from spamguard.proxy.scorer_pool import ScorerPool
from spamguard.records import EXTRACTOR, MAX_WORDS, Explanation, Scan, Verdict, Vote, Word
from spamguard.storage import Spool
from spamguard.users import SENDER_NATS, Origin
from spamguard.web import models, numbers
from spamguard.web.auth import Person
from spamguard.web.history import EVERYTHING, MAX_TEXT, Reader, Search, ensure_filter
from spamguard.web.models import JudgementDetails, LessonReceipt

_log = logging.getLogger("spamguard.web")

UNSURE_DAYS = 14
_MAX_COUNT_SECONDS = 0.2  # for a number of the navigation: a history may be long
_MAX_WAIT_SECONDS = 0.5  # of a page for these numbers
_READ_THREADS = 2
_MAX_WORDS = 60  # told with a verdict
_PREVIEW_SECONDS = 5.0  # for the process that reads a message
_DRAIN_SECONDS = 0.5  # for unfinished work at the end: a reload waits for it

# ---- threads

WAIT_SECONDS = 20.0
# After these errors the resource is opened anew: somebody may have mended or restored a file.
_BROKEN_ERRORS = (HistoryError, LedgerError, TableError)

ResourceT = TypeVar("ResourceT")
Result = TypeVar("Result")
Run = Callable[[Callable[[Any], Result]], Awaitable[Result]]


class ResourceThread(Generic[ResourceT]):
    """A thread with a resource of its own, which it opens when there is work.

    waiting: pieces of work for which somebody waits.
    """

    def __init__(self, name: str, open_resource: Callable[[], ResourceT]) -> None:
        self.waiting = 0
        self._open = open_resource
        self._resource: Any = None
        self._pool = ThreadPoolExecutor(1, name)

    async def run(
        self, work: Callable[[ResourceT], Result], timeout_seconds: float = WAIT_SECONDS
    ) -> Result:
        """Return or raise what the work does in the thread.

        BusyError: the time is up. Work that has begun may still finish.
        """
        self.waiting += 1
        try:
            running = asyncio.get_running_loop().run_in_executor(self._pool, self._work, work)
            return await asyncio.wait_for(running, timeout_seconds)
        except TimeoutError:
            raise BusyError("this takes too long now: try again later") from None
        finally:
            self.waiting -= 1

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._pool, self._close)
        self._pool.shutdown(wait=False)

    def _work(self, work: Callable[[ResourceT], Result]) -> Result:
        if self._resource is None:
            self._resource = self._open()
        try:
            return work(self._resource)
        except Exception as error:
            if isinstance(error, _BROKEN_ERRORS) or not isinstance(error, SpamguardError):
                self._close()
            raise

    def _close(self) -> None:
        resource, self._resource = self._resource, None
        if resource is not None:
            try:
                resource.close()
            except SpamguardError as error:
                _log.error("%s", error)


# ---- uploaded messages

# Reasons of `NotScanned` that may be gone when the person tries again.
_TEMPORARY_REASONS = ("busy", "stopping", "no-model", "unreadable", "crashed", "timeout")


def example_from_scan(scan: Scan) -> Example:
    if not scan.packed:
        raise LedgerError("the scorer returned no features of the message")
    return Example(scan.digest, unpack_features([scan.packed])[0])


# ---- lessons


class Desk(Reader):
    """A reader with a filter, which teaches and explains.

    settle: asks for settling, at once: the person looks at the page.
    """

    def __init__(
        self, settings: Settings, spam_threshold: float, settle: Callable[[], object]
    ) -> None:
        self.filter = Filter.open(settings.state, spam_threshold=spam_threshold)
        super().__init__(settings, self.filter.ledger)
        self.lessons = LessonService(self.filter, settle, pause=0.0, logger=_log)
        self._max_lessons = (settings.teach or TeachSettings()).lessons_per_day

    def judged_for(self, person: Person) -> str:
        return person.name if self.settings.personal and not person.operator else ""

    def explain(
        self, person: Person, example: Example, words: Sequence[Word], sender: bytes
    ) -> Explanation:
        texts, user = {word.token: word.text for word in words}, self.judged_for(person)
        why = self.filter.explain_features(example.features, texts, user, sender)
        return why if person.operator else numbers.mask_rare_words(why)

    def teach(
        self,
        person: Person,
        example: Example,
        label: str,
        origin: str,
        sender: bytes = b"",
        *,
        held: bool = False,
    ) -> LessonReceipt:
        """Teach a message. held: it waits in the quarantine."""
        user, limit = person.voter, self._max_lessons
        before = self.ledger.get_vote(example.digest, user)
        try:
            (outcome,) = self.lessons.submit(
                [example],
                label,
                user,
                origin,
                new_class=NewClass.REFUSE,
                lessons_per_day=limit,
            )
        except UnknownClassError as error:
            raise UsageError(
                f"{label[:40]!r} is not a class here. There are {', '.join(known_classes(self))}; "
                "`spamguard learn` makes new classes"
            ) from error
        return LessonReceipt(
            example.digest.hex(),
            label,
            self._was_learnt(outcome),
            _label(before),
            self.filter.judge_features(example.features, self.judged_for(person), sender),
            held=held and label not in self.filter.unwanted,
        )

    def teach_row(
        self,
        person: Person,
        row: HistoryRow,
        held: bool,
        *,
        label: str,
        origin: str = Origin.HISTORY,
    ) -> LessonReceipt:
        example, sender = example_from_row(self.filter, row), row.sender_digest
        return self.teach(person, example, label, origin, sender, held=held)

    def take_back_row(self, person: Person, row: HistoryRow, _: bool) -> LessonReceipt:
        return self.take_back(person, row_digest(self.filter, row), Origin.HISTORY)

    def take_back(self, person: Person, digest: bytes, origin: str) -> LessonReceipt:
        vote = self.ledger.get_vote(digest, person.voter)
        (changed,) = self.lessons.retract([digest], person.voter, origin, _label(vote))
        verdict: Verdict | None = None  # without usable features in the receipt
        if vote is not None and vote.packed and vote.extractor == EXTRACTOR:
            (features,) = unpack_features([vote.packed])
            verdict = self.filter.judge_features(features, self.judged_for(person))
        return LessonReceipt(digest.hex(), "", changed, _label(vote), verdict)

    def say_of_sender(
        self, person: Person, row: HistoryRow, held: bool, *, label: str, domain: str
    ) -> LessonReceipt:
        """Keep what the person says of a sender, or of everybody at its domain, by the digest."""
        message = self.describe(person, row, held)
        if not message.authenticated:
            raise UsageError("nobody has authenticated this sender, so no word about it counts")
        digest, *of_domain = split_sender(row.sender_digest)
        if domain:
            digest = self.filter.senders.digest(domain)
            if digest not in of_domain:
                raise UsageError(f"{domain[:40]!r} is not the domain of this sender")
        nats, now = SENDER_NATS.get(label), int(time.time())
        vote = make_sender_vote(digest, person.voter, nats, Origin.HISTORY, now)
        outcome = self.lessons.submit_vote(vote, self._max_lessons if label else 0)
        was = message.domain_word if domain else message.sender_word
        return LessonReceipt(digest.hex(), label, self._was_learnt(outcome), was)

    def _was_learnt(self, outcome: LessonOutcome) -> bool:
        """Whether a lesson has changed anything. NotAllowedError: one too many for today."""
        if outcome is LessonOutcome.OVER_QUOTA:
            raise NotAllowedError(
                f"you have given {self._max_lessons:,} lessons within 24 hours, which is the limit "
                "(lessons_per_day): come again tomorrow"
            )
        return outcome is LessonOutcome.LEARNT


def known_classes(reader: Reader) -> Mapping[str, bool]:
    """Return whether each class that can be taught is unwanted, *spam* and *ham* first."""
    classes = reader.ledger.classes()
    unwanted = unwanted_classes(classes)
    names = (*BASE_CLASSES, *sorted(classes.keys() - set(BASE_CLASSES)))
    return {name: name in unwanted for name in names}


def _label(vote: Vote | None) -> str:
    return vote.label or "" if vote is not None else ""


# ---- the service


class Service:
    """The service of one process. Any number of tasks may use it at once.

    settle: tells the master that lessons wait for settling.
    """

    def __init__(self, settings: Settings, settle: Callable[[], object]) -> None:
        threshold = (settings.listeners[0] if settings.listeners else Policy()).spam_threshold
        self.settings = settings
        self._desk = ResourceThread("desk", partial(Desk, settings, threshold, settle))
        self._readers = [
            ResourceThread("reader", partial(Reader.open, settings)) for _ in range(_READ_THREADS)
        ]
        self._settle = settle
        self._scorers = ScorerPool(settings.state, settings.scoring)
        self._scan_options = ScanOptions(
            threshold, settings.authserv_ids, words=MAX_WORDS, unmarked=True
        )
        self._text_previews = asyncio.Semaphore(2)
        self._releases: set[asyncio.Task[models.ReleaseResult]] = set()

    async def close(self) -> None:
        if self._releases:
            await asyncio.wait(self._releases, timeout=_DRAIN_SECONDS)
        await self._scorers.close()
        threads: Sequence[ResourceThread[Any]] = (self._desk, *self._readers)
        tasks = [asyncio.create_task(thread.close()) for thread in threads]
        await asyncio.wait(tasks, timeout=_DRAIN_SECONDS)

    async def _read(self, work: Callable[[Reader], Result]) -> Result:
        return await min(self._readers, key=lambda thread: thread.waiting).run(work)

    async def _change(self, work: Callable[[Desk], Result]) -> Result:
        def change(desk: Desk) -> Result:
            result = work(desk)
            desk.lessons.request_settling()
            return result

        return await self._desk.run(change)

    # ---- uploaded messages

    async def judge(self, person: Person, message: Spool) -> models.Opinion:
        scan = await self._scan(person, message)
        standings = await self._read(
            lambda reader: reader.ledger.users.find_standings([scan.digest], person.voter)
        )
        standing = standings.get(scan.digest, NO_STANDING)
        verdict = scan.personal.get("" if person.operator else person.name, scan.verdict)
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
        example = example_from_scan(scan)
        return await self._desk.run(
            lambda desk: desk.explain(person, example, scan.words, scan.sender)
        )

    async def learn(self, person: Person, message: Spool, label: str) -> LessonReceipt:
        """Teach a message in the person's name; an operator teaches for the site (user "")."""
        scan = await self._scan(person, message)
        example = example_from_scan(scan)
        return await self._change(
            lambda desk: desk.teach(person, example, label, Origin.WEB, scan.sender)
        )

    async def forget(self, person: Person, digest: str) -> LessonReceipt:
        """Take back the person's vote on a message. An earlier vote does not come back.

        digest: the message digest, in hexadecimal.
        """
        if not re.fullmatch("[0-9A-Fa-f]{32}", digest):
            raise UsageError("this is not a message digest, which has 32 hexadecimal digits")
        return await self._change(
            lambda desk: desk.take_back(person, bytes.fromhex(digest), Origin.WEB)
        )

    async def _scan(self, person: Person, message: Spool) -> Scan:
        """Judge a message as its sender wrote it, without a prefix that we put before its subject.

        UsageError: the message cannot be judged. BusyError: the message cannot be judged now.
        """
        await run_in_thread(ensure_filter, self.settings)
        users = (person.name,) if self.settings.personal and not person.operator else ()
        result = await self._scorers.judge(message, users=users, options=self._scan_options)
        if result.settle:  # lessons wait, or there are no usable tables
            self._settle()
        if not isinstance(result, NotScanned):
            return result
        if result.reason in _TEMPORARY_REASONS:
            raise BusyError(f"messages cannot be judged now ({result.reason}): try again soon")
        raise UsageError(f"this message cannot be judged ({result.reason})")

    # ---- messages that passed

    async def history(self, person: Person, search: Search) -> models.JudgementPage:
        return await self._read(lambda reader: reader.page(person, search))

    async def unsure(self, person: Person, search: Search = EVERYTHING) -> models.JudgementPage:
        since = search.since or time.time() - UNSURE_DAYS * 86_400
        search = replace(search, label=UNSURE, since=since, limit=models.MAX_ROWS)
        page = await self.history(person, search)
        rows = [row for row in page.rows if row.can_teach and not row.taught]
        return replace(page, rows=rows)

    async def find_user(self, address: str, mail_from: str) -> tuple[str, str]:
        return await self._read(lambda reader: reader.find_user(address, mail_from))

    async def judgement(self, person: Person, verdict_id: str) -> JudgementDetails:
        return await self._on_row(self._read, person, verdict_id, Reader.describe)

    async def why(self, person: Person, verdict_id: str) -> tuple[JudgementDetails, Explanation]:
        """Return a message that passed, and why it would get its verdict now."""
        judgement = await self.judgement(person, verdict_id)
        held: Scan | None = None
        if judgement.held:
            # It may be gone meanwhile, or too many messages are being judged.
            with suppress(SpamguardError, OSError):
                entry = await self._read(lambda reader: reader.held_entry(person, verdict_id))
                held = await self._scan_held(person, entry)

        def explain(desk: Desk, person: Person, row: HistoryRow, _: bool) -> Explanation:
            if held and not judgement.can_teach:
                example = example_from_scan(held)
            else:
                example = example_from_row(desk.filter, row)
            words = row.words + (held.words if held else ())
            return desk.explain(person, example, words, row.sender_digest)

        return judgement, await self._on_row(self._desk.run, person, verdict_id, explain)

    async def learn_passed(self, person: Person, verdict_id: str, label: str) -> LessonReceipt:
        teach = partial(Desk.teach_row, label=label)
        return await self._on_row(self._change, person, verdict_id, teach)

    async def forget_passed(self, person: Person, verdict_id: str) -> LessonReceipt:
        return await self._on_row(self._change, person, verdict_id, Desk.take_back_row)

    async def say_of_sender(
        self, person: Person, verdict_id: str, label: str, domain: str = ""
    ) -> LessonReceipt:
        """Keep what the person says of the sender of a message; label "": take that back.

        domain: the sender's, if it is said of everybody there.
        """
        say = partial(Desk.say_of_sender, label=label, domain=domain)
        return await self._on_row(self._change, person, verdict_id, say)

    async def _on_row(
        self,
        run: Run[Result],
        person: Person,
        verdict_id: str,
        act: Callable[[Any, Person, HistoryRow, bool], Result],
    ) -> Result:
        """Find a message that passed, and do something with it, in one thread.

        run: runs work with a reader or the desk. act: gets that, the person, the message, and
        whether the message waits in the quarantine.
        """

        def work(reader: Reader) -> Result:
            row = reader.row(person, verdict_id)
            return act(reader, person, row, reader.is_waiting(row))

        return await run(work)

    async def classes(self) -> Mapping[str, bool]:
        return await self._read(known_classes)

    # ---- numbers

    async def today(self, person: Person, hours: int = 24) -> models.Today:
        return await self._read(lambda reader: numbers.summarize_hours(reader, person, hours))

    async def waiting(self, person: Person) -> models.Waiting:
        short = Search(seconds=_MAX_COUNT_SECONDS)
        unsure, held = self.unsure(person, short), self.quarantine(person, short)
        counts = asyncio.gather(_count_page(unsure), _count_page(held))
        try:
            return models.Waiting(*await asyncio.wait_for(counts, _MAX_WAIT_SECONDS))
        except TimeoutError:
            return models.Waiting()

    async def model(self, person: Person) -> models.Model:
        return await self._desk.run(
            lambda desk: numbers.summarize_model(desk, desk.filter.status(), person)
        )

    # ---- quarantine

    async def quarantine(
        self, person: Person, search: Search = EVERYTHING
    ) -> models.QuarantinePage:
        return await self._read(lambda reader: reader.held_page(person, search))

    async def held(self, person: Person, verdict_id: str) -> models.HeldMessageDetails:
        return await self._read(lambda reader: reader.held_details(person, verdict_id))

    async def preview_held(self, person: Person, verdict_id: str) -> str:
        """Return its text as a reader sees it, bounded; "" if there is none."""
        file = await self._read(
            lambda reader: reader.quarantine.file(reader.held_entry(person, verdict_id).id)
        )
        async with self._text_previews:
            return await run_in_thread(_preview, file)

    async def release(self, person: Person, verdict_id: str) -> models.ReleaseResult:
        """Deliver a held message to the recipients that lack it, and learn it as ham.

        A person who is not an operator may do so only if all of these are theirs. It is finished
        even if the person hangs up. UsageError: the next hop is unknown.
        """
        entry = await self._read(lambda reader: reader.releasable_entry(person, verdict_id))
        task = asyncio.create_task(self._release(person, entry))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)
        return await asyncio.shield(task)

    async def _release(self, person: Person, entry: QuarantineEntry) -> models.ReleaseResult:
        hops = {str(listener.listen): listener.next_hop for listener in self.settings.listeners}
        if entry.listener not in hops and len(set(map(str, hops.values()))) != 1:
            raise UsageError(
                f"the next hop of {entry.id} is unknown: "
                "name it with `spamguard quarantine release --next-hop`"
            )
        hop = create_next_hop(hops.get(entry.listener) or next(iter(hops.values())), log.hostname())
        held = Quarantine(self.settings.state / DIRECTORY)
        try:
            with _as_busy_error(entry):
                replies = await held.release(entry.id, hop)
                now = held.entry(entry.id)
        finally:
            await hop.close()
        by, waiting = log.quote_value(person.name), len(now.waiting)
        text = "quarantine id=%s by=%s: released to %d, %d wait"
        _log.info(text, entry.id, by, len(replies), waiting)
        recipients = [
            models.RecipientReply(printable(to.address, MAX_TEXT), printable(str(reply), MAX_TEXT))
            for to, reply in replies
        ]
        taught = False
        try:
            taught = bool(now.delivered) and await self._learn_held(person, now)
        except (SpamguardError, OSError) as error:  # the release counts all the same
            _log.warning("%s: was released, but not learnt: %s", entry.id, error)
        return models.ReleaseResult(entry.id, recipients, now.released, taught)

    async def _learn_held(self, person: Person, entry: QuarantineEntry) -> bool:
        """Learn a message as ham, from its features in the history or by judging it again."""
        teach = partial(Desk.teach_row, label="ham", origin=Origin.RELEASE)
        try:
            receipt = await Service._on_row(self, self._change, person, entry.id, teach)
        except (NotThereError, NotAllowedError, UsageError):
            example = example_from_scan(await self._scan_held(person, entry))
            receipt = await self._change(
                lambda desk: desk.teach(person, example, "ham", Origin.RELEASE)
            )
        return receipt.changed

    async def _scan_held(self, person: Person, entry: QuarantineEntry) -> Scan:
        held = Quarantine(self.settings.state / DIRECTORY)
        with closing(held.open(entry.id)) as message:
            return await self._scan(person, message)

    async def delete(self, person: Person, verdict_id: str) -> None:
        def delete(reader: Reader) -> None:
            entry = reader.held_entry(person, verdict_id)
            with _as_busy_error(entry):
                reader.quarantine.delete(entry.id)
            _log.info("quarantine id=%s by=%s: deleted", verdict_id, log.quote_value(person.name))

        if not person.operator:
            raise NotAllowedError("only operators may do this")
        await self._read(delete)


def _preview(file: Path) -> str:
    """Return the text of a message, or "" if it has none, or none within the time."""
    words = ["-m", "spamguard.web.preview", str(file)]
    try:
        with start_process(words, stdout=subprocess.PIPE) as child:
            try:
                return child.communicate(timeout=_PREVIEW_SECONDS)[0].decode("utf-8", "replace")
            finally:
                child.kill()
    except (OSError, subprocess.TimeoutExpired):
        return ""


@contextmanager
def _as_busy_error(entry: QuarantineEntry) -> Iterator[None]:
    try:
        yield
    except QuarantineError as error:
        raise BusyError(f"{entry.id} is being released now, or is gone: look again") from error


async def _count_page(look: Awaitable[models.JudgementPage | models.QuarantinePage]) -> str:
    try:
        page = await look
    except (SpamguardError, OSError):  # the list of this mail tells of it
        return ""
    number = sum(not getattr(row, "released", False) for row in page.rows)
    return f"{number:,}{'+' if page.following or page.absent else ''}" if number else ""
