"""Uploaded messages, and the lessons that people give on the page or through the API.

A scorer process reads and judges an uploaded message; this process never parses mail itself. A
lesson is taught in the name of the person who gives it. It counts towards the same daily limit as
lessons from other places.

Must never teach in another person's name, and never teach a class that the filter does not have.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial

from spamguard import log
from spamguard.bayes.tables import BASE_CLASSES
from spamguard.config.options import Settings
from spamguard.delivery.base import run_in_thread
from spamguard.engine.filter import Filter
from spamguard.engine.fold import unpack_features
from spamguard.engine.policy import unwanted_classes
from spamguard.engine.prepare import Example
from spamguard.errors import BusyError, LedgerError, NotAllowedError, UsageError
from spamguard.learning import undo
from spamguard.learning.lessons import LessonOutcome, LessonService, NewClass
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.mail.message import PREFIX_SEARCH_BYTES, remove_subject_prefix
from spamguard.proxy.base import NotScanned
from spamguard.proxy.scorer_pool import ScorerPool
from spamguard.records import EXTRACTOR, Scan, Vote
from spamguard.storage import SPOOL_DIRECTORY, Spool
from spamguard.web.models import LessonReceipt, Person
from spamguard.web.readers import ensure_filter

_log = logging.getLogger("spamguard.web")

MAX_WORDS = 30  # words for spam, and words for ham, in the explanation of an uploaded message
_MAX_MESSAGES = 32  # judged at once
_MAX_MESSAGES_PER_PERSON = 8  # judged at once for a person who is not an operator
_NEW_FILTER_SECONDS = 5.0  # within which scorers find a filter that has just been created
_RETRY_SECONDS = 0.2
# Reasons of `NotScanned` that may be gone when the person tries again.
_TEMPORARY_REASONS = ("busy", "stopping", "no-model", "unreadable", "crashed", "timeout")


class UploadScanner:
    """Judges uploaded messages in a scorer pool of its own. Call `start` first.

    Parameters
    ----------
    one_wrong_in
        As in `Policy`.
    settle
        Called when lessons wait for settling, or when there are no usable tables.
    """

    def __init__(self, settings: Settings, one_wrong_in: int, settle: Callable[[], object]) -> None:
        self._pool = ScorerPool(settings.state, settings.scoring, one_wrong_in, words=MAX_WORDS)
        self._settle = settle
        self._state = settings.state
        self._has_filter = False
        self._running = Counter[Person]()

    async def start(self) -> None:
        """Start the scorers."""
        await self._pool.start()

    async def close(self) -> None:
        """Stop the scorers."""
        await self._pool.close()

    async def scan(self, message: Spool, person: Person, users: Sequence[str] = ()) -> Scan:
        """Judge a message as its sender wrote it, without a prefix that we put before its subject.

        Raises
        ------
        UsageError
            The message cannot be judged.
        BusyError
            The message cannot be judged now.
        """
        max_messages = _MAX_MESSAGES if person.operator else _MAX_MESSAGES_PER_PERSON
        if self._running.total() >= _MAX_MESSAGES or self._running[person] >= max_messages:
            raise BusyError("too many messages are being judged: try again in a moment")
        if not message.size:
            raise UsageError("there is no message: nothing was uploaded")
        self._running[person] += 1
        try:
            head = message.read_start(PREFIX_SEARCH_BYTES)
            original_head = remove_subject_prefix(head)
            if original_head is head:
                return await self._scan(message, users)
            with closing(Spool(self._state / SPOOL_DIRECTORY)) as copy:
                work = partial(_copy_message, message, copy, original_head, len(head))
                await run_in_thread(work)
                return await self._scan(copy, users)
        except OSError as error:
            raise BusyError(f"the message cannot be stored: {error.strerror}") from error
        finally:
            self._running[person] -= 1
            self._running += Counter()  # drops people with a count of zero

    async def _scan(self, message: Spool, users: Sequence[str]) -> Scan:
        if not self._has_filter:
            await run_in_thread(partial(ensure_filter, self._state))
            self._has_filter = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _NEW_FILTER_SECONDS
        result = await self._pool.judge(message, b"", users)
        while isinstance(result, NotScanned) and result.reason == "no-model":
            if loop.time() > deadline:
                break
            await asyncio.sleep(_RETRY_SECONDS)
            result = await self._pool.judge(message, b"", users)
        if result.settle:
            self._settle()
        if not isinstance(result, NotScanned):
            return result
        if result.reason in _TEMPORARY_REASONS:
            raise BusyError(f"messages cannot be judged now ({result.reason}): try again soon")
        raise UsageError(f"this message cannot be judged ({result.reason})")


def _copy_message(message: Spool, copy: Spool, head: bytes, skip: int) -> None:
    copy.write(head)
    for chunk in message.chunks(skip):
        copy.write(chunk)


def example_from_scan(scan: Scan) -> Example:
    """Return the message as a lesson needs it. LedgerError: the features are unusable."""
    if not scan.packed:
        raise LedgerError("the scorer returned no features of the message")
    return Example(scan.digest, unpack_features([scan.packed])[0])


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


def lesson_service(spam_filter: Filter, settle: Callable[[], object]) -> LessonService:
    """For one request. It asks for settling at once: the person looks at the page."""
    return LessonService(spam_filter, settle, pause=0.0, logger=_log)


def learn_message(
    spam_filter: Filter,
    service: LessonService,
    example: Example,
    label: str,
    user: str,
    origin: str,
    lessons_per_day: int,
    judged_for: str,
) -> LessonReceipt:
    """Teach one message.

    Parameters
    ----------
    lessons_per_day
        Lessons of the user within 24 hours; 0 for no limit.
    judged_for
        The user whose verdict the receipt shows.

    Raises
    ------
    NotAllowedError
        The user has reached the daily limit.
    """
    check_class(spam_filter.ledger, label)
    before = spam_filter.ledger.get_vote(example.digest, user)
    (outcome,) = service.submit(
        [example],
        label,
        user,
        origin,
        new_class=NewClass.REFUSE,
        lessons_per_day=lessons_per_day,
    )
    if outcome is LessonOutcome.OVER_QUOTA:
        raise NotAllowedError(
            f"you have given {lessons_per_day:,} lessons within 24 hours, which is the limit "
            "(lessons_per_day): come again tomorrow"
        )
    changed = outcome is LessonOutcome.LEARNT
    verdict = spam_filter.judge_features(example.features, judged_for)
    return LessonReceipt(example.digest.hex(), label, changed, _vote_label(before), verdict)


def forget_message(
    spam_filter: Filter,
    service: LessonService,
    digest: bytes,
    user: str,
    origin: str,
    judged_for: str,
) -> LessonReceipt:
    """Take back the user's vote on a message. An earlier vote does not come back."""
    vote = spam_filter.ledger.get_vote(digest, user)
    label = _vote_label(vote)
    (changed,) = service.retract([digest], user, origin, label)
    verdict = None  # without usable features in the receipt
    if vote is not None and vote.packed and vote.extractor == EXTRACTOR:
        verdict = spam_filter.judge_features(unpack_features([vote.packed])[0], judged_for)
    return LessonReceipt(digest.hex(), "", changed, label, verdict)


def undo_batch(
    spam_filter: Filter,
    service: LessonService,
    digests: Sequence[bytes],
    chosen: undo.VoteSelection,
    *,
    dry: bool,
) -> list[LessonReceipt]:
    """Take back the chosen votes on these messages; pass few at once, as other work waits."""
    undone = [
        vote
        for batch in undo.undo_votes(spam_filter, digests, chosen, dry_run=dry)
        for vote in batch
    ]
    if undone and not dry:
        service.changed += len(undone)
        _log.info("undo user=%s messages=%d", log.quote_value(chosen.user), len(undone))
    return [
        LessonReceipt(vote.digest.hex(), vote.new_label or "", True, vote.old_label or "")
        for vote in undone
    ]


def parse_digest(text: str) -> bytes:
    """Read a message digest in hexadecimal. UsageError: the text is not one."""
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != 16:
        raise UsageError("this is not a message digest, which has 32 hexadecimal digits")
    return digest


def _vote_label(vote: Vote | None) -> str:
    return vote.label or "" if vote is not None else ""
