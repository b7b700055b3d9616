"""The threads and processes that work for the service, and whose mail a person may see.

Blocking work runs in a `ResourceThread`. Each thread opens its own filter or `ReadConnection` and
shares it with no other thread. The queue is short: a caller that finds it full, or waits too long,
gets BusyError, so work never piles up. Threads are our own because pools of `concurrent.futures`
queue without bound. Uploaded messages are judged by an `UploadScanner`, in scorer processes of its
own; this process never parses mail itself. An `AsyncTtlCache` keeps the result of slow work.

`Visibility` decides whose mail a person may see. An operator sees all mail; other people see mail
sent to them, and of its recipients only themselves. An address belongs to the first candidate who
has ever voted (as for `personal` verdicts) and to the person who asks. So two people may see the
mail of an address until the first candidate votes.

A `ReadConnection` must never write to the ledger or the history. Nobody may be shown an address or
a message that is not theirs.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from spamguard import errors, keys
from spamguard.aio import run_in_thread
from spamguard.config.options import Settings
from spamguard.engine.filter import Filter
from spamguard.engine.fold import unpack_features
from spamguard.engine.prepare import Example
from spamguard.errors import BusyError, LedgerError, UsageError
from spamguard.ledger.queries import UserQueries
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.mail.message import PREFIX_SEARCH_BYTES, remove_subject_prefix
from spamguard.proxy.history import HISTORY_FILE
from spamguard.proxy.history_search import HistorySearch, recipient_pattern
from spamguard.proxy.scorer import NotScanned, ScanOptions
from spamguard.proxy.scorer_pool import ScorerPool
from spamguard.records import MAX_WORDS, Scan
from spamguard.storage import KEY_FILE, LEDGER_FILE, SPOOL_DIRECTORY, Spool
from spamguard.users import UserResolver
from spamguard.web.auth import Person

_log = logging.getLogger("spamguard.web")

# ---- threads

MAX_WAITING = 64  # pieces of work in the queue
WAIT_SECONDS = 20.0
# After these errors the resource is opened anew: somebody may have mended or restored a file.
_BROKEN_ERRORS = (errors.HistoryError, errors.LedgerError, errors.TableError)


ResourceT = TypeVar("ResourceT")
Result = TypeVar("Result")


class ResourceThread(Generic[ResourceT]):
    """One or more threads that work off one queue, each with a resource of its own.

    open_resource: called in the thread that will use the resource, when there is work for it.
    """

    def __init__(self, name: str, open_resource: Callable[[], ResourceT], threads: int = 1) -> None:
        self._open = open_resource
        self._queue = queue.Queue[tuple[Future[Any], Callable[[ResourceT], object]] | None](
            MAX_WAITING
        )
        self._threads = [
            threading.Thread(target=self._work_loop, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    async def run(
        self, work: Callable[[ResourceT], Result], timeout_seconds: float = WAIT_SECONDS
    ) -> Result:
        """Return or raise what the work does in a thread.

        BusyError: the queue is full, or the time is up. Work that has begun may still finish.
        """
        future: Future[Result] = Future()
        try:
            self._queue.put_nowait((future, work))
        except queue.Full:
            raise BusyError("too many requests at once: try again in a moment") from None
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), timeout_seconds)
        except TimeoutError:
            raise BusyError("this takes too long now: try again later") from None

    def close(self, seconds: float = 2.0) -> None:
        """Finish the waiting work, for so many seconds at most. Idempotent."""
        deadline = time.monotonic() + seconds
        for _ in self._threads:
            with suppress(queue.Full):
                self._queue.put(None, timeout=max(0.0, deadline - time.monotonic()))
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work_loop(self) -> None:
        resource: ResourceT | None = None
        while (item := self._queue.get()) is not None:
            future, work = item
            if future.set_running_or_notify_cancel():  # otherwise nobody waits any more
                try:
                    resource = resource or self._open()
                    future.set_result(work(resource))
                except Exception as error:  # noqa: BLE001  the caller gets it
                    future.set_exception(error)
                    if isinstance(error, _BROKEN_ERRORS) or not isinstance(
                        error, errors.SpamguardError
                    ):
                        _close_logged(resource)
                        resource = None
        _close_logged(resource)


def _close_logged(resource: Any) -> None:
    if resource is not None:
        try:
            resource.close()
        except errors.SpamguardError as error:
            _log.error("%s", error)


# ---- a cache

Value = TypeVar("Value")

ERROR_TTL_SECONDS = 2.0
"""The time for which an error is kept, at most."""


class AsyncTtlCache(Generic[Value]):
    """Keeps the result of a slow async call.

    load: the call; never runs twice at once. ttl_seconds: how long a result is good; an error is
    good for less. timeout: how many seconds `get` waits.
    """

    def __init__(
        self, load: Callable[[], Awaitable[Value]], ttl_seconds: float, timeout: float
    ) -> None:
        self._load = load
        self._ttl_seconds = ttl_seconds
        self._timeout = timeout
        self._task: asyncio.Task[Value] | None = None
        self._expires_at = 0.0

    async def get(self) -> Value:
        """The result, or the error of the call; BusyError: it takes too long."""
        loop = asyncio.get_running_loop()
        if self._task is None or (self._task.done() and loop.time() >= self._expires_at):
            self._task = loop.create_task(self._reload())
            # asyncio would log an error that comes when nobody waits any more.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            return await asyncio.wait_for(asyncio.shield(self._task), self._timeout)
        except TimeoutError:
            raise BusyError("this takes too long now: try again later") from None

    async def _reload(self) -> Value:
        seconds = min(self._ttl_seconds, ERROR_TTL_SECONDS)
        try:
            value = await self._load()
            seconds = self._ttl_seconds
        finally:
            self._expires_at = asyncio.get_running_loop().time() + seconds
        return value


# ---- reading

_BATCH_SIZE = 5000  # votes


class ReadConnection:
    """History and ledger, open for one thread. Use `open`.

    The history's connection knows the class that each message is taught as (`catch_up`).
    """

    def __init__(self, history: HistorySearch, ledger: SqliteLedger) -> None:
        self.history = history
        self.ledger = ledger
        self._last_seq = 0
        _, self._log_state = ledger.read_end()

    @classmethod
    def open(cls, settings: Settings) -> ReadConnection:
        """Open the files in the state directory, and create those that are missing."""
        ensure_filter(settings.state)
        key = keys.load_key(settings.state / KEY_FILE, create=False)
        ledger = SqliteLedger.open(settings.state / LEDGER_FILE, keys.key_fingerprint(key))
        limits = settings.history
        history = HistorySearch.open(settings.state / HISTORY_FILE, limits.size, limits.age)
        return cls(history, ledger)

    def close(self) -> None:
        """Close both."""
        self.history.close()
        self.ledger.close()

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


def ensure_filter(state: Path) -> None:
    """Create the filter before the first lesson; scorers do not."""
    if not (state / LEDGER_FILE).exists():
        Filter.open(state).close()


# ---- uploaded messages

_MAX_MESSAGES = 32  # judged at once
_MAX_MESSAGES_PER_PERSON = 8  # judged at once for a person who is not an operator
_NEW_FILTER_SECONDS = 5.0  # within which scorers find a filter that has just been created
_RETRY_SECONDS = 0.2
# Reasons of `NotScanned` that may be gone when the person tries again.
_TEMPORARY_REASONS = ("busy", "stopping", "no-model", "unreadable", "crashed", "timeout")


class UploadScanner:
    """Judges uploaded messages in a scorer pool of its own, whose scorers start with the first one.

    spam_threshold: as in `Policy`. settle: called when lessons wait for settling, or when there are
    no usable tables.
    """

    def __init__(
        self, settings: Settings, spam_threshold: float, settle: Callable[[], object]
    ) -> None:
        self._pool = ScorerPool(settings.state, settings.scoring)
        self._options = ScanOptions(spam_threshold, settings.authserv_ids, words=MAX_WORDS)
        self._settle = settle
        self._state = settings.state
        self._running = Counter[Person]()

    async def close(self) -> None:
        """Stop the scorers."""
        await self._pool.close()

    async def scan(self, message: Spool, person: Person, users: tuple[str, ...] = ()) -> Scan:
        """Judge a message as its sender wrote it, without a prefix that we put before its subject.

        UsageError: the message cannot be judged. BusyError: the message cannot be judged now.
        """
        max_messages = _MAX_MESSAGES if person.operator else _MAX_MESSAGES_PER_PERSON
        if self._running.total() >= _MAX_MESSAGES or self._running[person] >= max_messages:
            raise BusyError("too many messages are being judged: try again in a moment")
        self._running[person] += 1
        try:
            head = message.read_start(PREFIX_SEARCH_BYTES)
            original_head = remove_subject_prefix(head)
            if original_head is head:
                return await self._scan(message, users)
            with closing(Spool(self._state / SPOOL_DIRECTORY)) as copy:
                await run_in_thread(_copy_message, message, copy, original_head, len(head))
                return await self._scan(copy, users)
        except OSError as error:
            raise BusyError(f"the message cannot be stored: {error.strerror}") from error
        finally:
            self._running -= Counter((person,))  # and no person with a count of zero remains

    async def _scan(self, message: Spool, users: tuple[str, ...]) -> Scan:
        await run_in_thread(ensure_filter, self._state)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _NEW_FILTER_SECONDS
        while True:
            result = await self._pool.judge(message, users=users, options=self._options)
            no_model = isinstance(result, NotScanned) and result.reason == "no-model"
            if not no_model or loop.time() > deadline:
                break
            await asyncio.sleep(_RETRY_SECONDS)
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


# ---- whose mail a person may see

# A refresh takes one or two index lookups for each user, 70 ms for 20,000 users.
_REFRESH_SECONDS = 5.0


class Visibility:
    """Decides whose mail a person may see. Call `refresh` first.

    aliases: addresses and their users, as in `Settings`.
    """

    def __init__(self, aliases: Sequence[tuple[str, str]]) -> None:
        self._aliases = aliases
        self._resolver = UserResolver(aliases)
        self._users: frozenset[str] = frozenset()
        self._fresh_until = 0.0

    def refresh(self, users: UserQueries) -> None:
        """Read the names of all users, unless they are fresh. Any thread may call it."""
        now = time.monotonic()
        if now >= self._fresh_until:
            self._users = frozenset(users.last_vote_times())
            self._fresh_until = now + _REFRESH_SECONDS

    def owner(self, address: str) -> str:
        """Return the user whose mail an address has: who has voted or has an alias; "" if none."""
        users, aliased = self._users, {user for _, user in self._aliases}
        candidates = self._resolver.candidates(address)
        return next((name for name in candidates if name in users or name in aliased), "")

    def visible_addresses(self, person: Person, addresses: Iterable[str]) -> tuple[str, ...]:
        """Return the addresses that a person may see."""
        users = self._users
        return tuple(
            address
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
        for address, user in self._aliases:
            if user == person.name and address.startswith("*@"):
                parts.append(recipient_pattern(address[1:], at_end=True))
            elif user == person.name:
                parts += _address_parts(address)
        return list(dict.fromkeys(parts))


def _address_parts(address: str) -> list[str]:
    """Match an address, or a local part alone, also with an extension (`+news`)."""
    local_part, at, _ = address.rpartition("@")
    signs = "+" if at else "@+"
    return [
        recipient_pattern(address, at_start=True, at_end=True),
        *(recipient_pattern((local_part or address) + sign, at_start=True) for sign in signs),
    ]


def example_from_scan(scan: Scan) -> Example:
    """The message of a scan, as an example to learn."""
    if not scan.packed:
        raise LedgerError("the scorer returned no features of the message")
    return Example(scan.digest, unpack_features([scan.packed])[0])
