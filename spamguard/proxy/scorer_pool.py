"""Scorers: processes that judge messages for one worker, and that can be killed.

A message that hangs or crashes a scorer costs that scorer and nothing else: it is killed at the
deadline, another one takes its place, and the message is remembered as poison. While a scorer is
stuck at one message, spare scorers judge the others. Everything here runs in callbacks of the
worker's event loop: tasks that wait for sockets cost twice as much.

It is written by hand because pools of `concurrent.futures` cannot kill one process and keep the
others.

Must never block, let a message wait for ever, let one message hold up the others, or start
processes without bound.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from time import monotonic

from spamguard import log, process
from spamguard.aio import DeadlineTimer, run_in_thread
from spamguard.config.options import Scoring
from spamguard.process import ReplacedError
from spamguard.proxy.scorer import (
    READY,
    NotScanned,
    ScanOptions,
    ScorerRequest,
    decode_answer,
    encode_frame,
)
from spamguard.records import Scan
from spamguard.storage import Spool

_log = logging.getLogger("spamguard.proxy")

DEFAULT_OPTIONS = ScanOptions()
SCORER_COMMAND = ("-m", "spamguard.proxy.scorer")  # arguments of Python
_START_SECONDS = 60.0  # for a scorer to open the filter
_STUCK_SECONDS = 0.5  # at one message, after which a scorer is not counted on for others
_RETRY_SECONDS = 1.0  # between attempts to start scorers that end before they are ready
_QUEUE_TIMEOUT = 30.0  # that a message waits for a free scorer
_WATCH_SECONDS = 0.1
_POISON_COUNT = 2  # times that a message may end a scorer
# Until poison is tried again: the machine may have been too slow, and deferred mail comes again.
_POISON_SECONDS = 3600.0
_MAX_POISON_RECORDS = 1000
# A larger message goes to the scorer as a file. The rest of a request is small, so an empty socket
# takes it whole; the machine's default for the buffer (net.core.wmem_default) may be less.
_MAX_INLINE_BYTES = 64 << 10
_SEND_BUFFER_BYTES = 256 << 10


@dataclass(eq=False)
class ScanJob:
    """A message that waits for its verdict, and the request without the message."""

    message: Spool
    request: ScorerRequest
    result: asyncio.Future[Scan | NotScanned]
    came_at: float = field(default_factory=monotonic)

    def finish(self, result: Scan | NotScanned) -> None:
        """Set the result, if anybody still waits for it."""
        if not self.result.done():
            self.result.set_result(result)


class ScorerHandle(DeadlineTimer):
    """One scorer process. It calls `on_change` when it is ready, has answered, or has ended.

    OSError if it cannot be started.
    """

    def __init__(self, command: Sequence[str], on_change: Callable[[ScorerHandle], None]) -> None:
        self._on_change = on_change
        self._received = bytearray()
        self._loop = asyncio.get_running_loop()
        self.job: ScanJob | None = None
        self.since = 0.0  # it got the job
        self.is_ready = False
        self.end_reason = ""  # while it lives
        self._socket, child_socket = socket.socketpair()
        with child_socket:
            try:
                arguments = [*command, str(os.getpid())]
                self.process = process.start_process(arguments, stdin=child_socket.fileno())
            except OSError:
                self._socket.close()
                raise
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._loop.add_reader(self._socket, self._on_readable)
        self.set_deadline(self._loop.time() + _START_SECONDS)

    @property
    def is_free(self) -> bool:
        return self.is_ready and self.job is None and not self.end_reason

    @property
    def is_stuck(self) -> bool:
        """Whether it has worked on one message for so long that others do not count on it."""
        return self.job is not None and monotonic() - self.since >= _STUCK_SECONDS

    def submit(self, job: ScanJob, seconds: float) -> None:
        """Have a message judged within so many seconds. Raises OSError if it cannot be read."""
        message, request = job.message, job.request
        with ExitStack() as stack:
            descriptors = []
            if message.descriptor is not None:
                descriptors = [message.descriptor]
            elif message.size <= _MAX_INLINE_BYTES:
                request = request._replace(message=message.read())
            else:
                file = stack.enter_context(os.fdopen(os.memfd_create("message"), "wb"))
                file.writelines(message.chunks())
                file.flush()
                descriptors = [file.fileno()]
            frame = encode_frame(request)
            self.job, self.since = job, monotonic()
            self.set_deadline(self._loop.time() + seconds)
            sent = 0
            with suppress(OSError):  # it has gone
                sent = socket.send_fds(self._socket, [frame], descriptors)
        if sent < len(frame):
            self.kill()

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(64 << 10)
            if not data:
                raise ConnectionError
            self._received += data
            answer = decode_answer(self._received, self.job.request.users if self.job else ())
            if answer is None:
                return
            if self.job is None and (self.is_ready or answer != READY):
                raise ValueError("nothing was asked")
        except (OSError, ValueError):  # it has gone, or does not keep to the protocol
            self.kill()
            return
        self._received.clear()
        self.clear_deadline()
        if self.job is not None:
            self.job.finish(answer if isinstance(answer, Scan) else NotScanned(answer))
        self.is_ready, self.job = True, None
        self._on_change(self)

    def deadline_passed(self) -> None:
        self.kill("timeout")

    def kill(self, reason: str = "crashed") -> None:
        """End it at once. Idempotent."""
        if self.end_reason:
            return
        self.end_reason = reason
        self.cancel_deadline()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self.process.kill()
        self._on_change(self)


class ScorerPool:
    """The scorers of one worker."""

    def __init__(
        self, state: Path, scoring: Scoring, command: Sequence[str] = SCORER_COMMAND
    ) -> None:
        self._seconds = scoring.deadline
        self._size = scoring.scorers
        self._command = (*command, str(state))
        self._scorers: list[ScorerHandle] = []
        self._queue: deque[ScanJob] = deque()
        # How often a message has ended a scorer, and when last.
        self._poison_records: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        self._ends: set[asyncio.Task[None]] = set()
        self._closing = False
        self._starts_after = 0.0
        self._start_errors = log.WarnOnce(_log, logging.ERROR)
        self._replaced = False  # another installation has replaced this one: no scorer starts
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Start the usual number of scorers; they become ready by themselves."""
        self._dispatch()

    async def close(self) -> None:
        """End all scorers, and answer the messages that wait."""
        self._closing = True
        for scorer in list(self._scorers):
            scorer.kill()
        self._dispatch()
        while self._ends:
            await asyncio.gather(*self._ends)
        if self._timer is not None:
            self._timer.cancel()

    @property
    def has_ready_scorer(self) -> bool:
        """Whether a scorer has opened the filter, or tried to, and accepts messages."""
        return any(scorer.is_ready for scorer in self._scorers)

    @property
    def is_replaced(self) -> bool:
        """Whether no scorer is left and none can start: another spamguard is installed by now."""
        return self._replaced and not self._scorers

    async def judge(
        self,
        message: Spool,
        on_top: bytes = b"",
        users: tuple[str, ...] = (),
        options: ScanOptions = DEFAULT_OPTIONS,
    ) -> Scan | NotScanned:
        """The scan of a message, or the reason why there is none; never raises.

        `on_top` are header fields, each with CRLF, that count as if they stood on top of the
        message. The users are those whose mail it may be; `Scan.personal` has only these.
        """
        if self._poison_records:
            with suppress(OSError):  # it cannot be read, which `_dispatch` finds too
                times, last = self._poison_records.get(await _fingerprint(message), (0, 0.0))
                if times >= _POISON_COUNT and monotonic() - last < _POISON_SECONDS:
                    return NotScanned("poison")
        if self._closing:
            return NotScanned("stopping")
        result: asyncio.Future[Scan | NotScanned] = asyncio.get_running_loop().create_future()
        request = ScorerRequest(None, on_top, users, options)
        self._queue.append(ScanJob(message, request, result))
        self._dispatch()
        return await result

    def _dispatch(self) -> None:
        """Give waiting messages to free scorers, and start scorers for the others.

        Without any scorer they fail: the next start is due later.
        """
        for scorer in list(self._scorers):
            while self._queue and scorer.is_free:
                job = self._queue.popleft()
                if job.result.done():  # nobody waits any more
                    continue
                try:
                    scorer.submit(job, self._seconds)
                except OSError as error:
                    _log.error("a message cannot be read to be judged: %s", error)
                    job.finish(NotScanned("unreadable"))
        # While messages wait, stuck scorers do not count, and there may be two more than usual.
        missing = self._size - (self._count_able() if self._queue else len(self._scorers))
        if self._closing or monotonic() < self._starts_after:
            missing = 0
        for _ in range(min(missing, self._size + 2 - len(self._scorers))):
            try:
                self._scorers.append(ScorerHandle(self._command, self._on_change))
            except OSError as error:
                self._start_errors.report("a scorer cannot be started: %s", error)
                self._replaced = isinstance(error, ReplacedError)
                self._starts_after = monotonic() + _RETRY_SECONDS
                break
            self._start_errors.clear()
        while self._queue and not self._scorers:
            self._queue.popleft().finish(NotScanned("stopping" if self._closing else "crashed"))
        is_waiting = self._queue or len(self._scorers) < self._size
        if is_waiting and self._timer is None and not self._closing:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_WATCH_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        while self._queue and monotonic() - self._queue[0].came_at >= _QUEUE_TIMEOUT:
            self._queue.popleft().finish(NotScanned("busy"))
        self._dispatch()

    def _count_able(self) -> int:
        return sum(not scorer.is_stuck for scorer in self._scorers)

    def _on_change(self, scorer: ScorerHandle) -> None:
        if scorer.end_reason:
            self._scorers.remove(scorer)
            if not scorer.is_ready:
                self._starts_after = monotonic() + _RETRY_SECONDS
            task = asyncio.get_running_loop().create_task(self._blame_message(scorer))
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)
        elif not self._queue and self._count_able() > self._size:
            scorer.kill()  # those that were stuck can judge again
            return
        self._dispatch()

    async def _blame_message(self, scorer: ScorerHandle) -> None:
        """Remember the message at which a scorer ended, unless the disk is to blame.

        Another scorer gets it once more if the first one died on the spot: it may be chance.
        """
        job, reason = scorer.job, scorer.end_reason
        died_on_the_spot = reason == "crashed" and not scorer.is_stuck
        while (status := scorer.process.poll()) is None:
            await asyncio.sleep(0.01)  # between looks at whether the killed process is gone
        if job is None:
            return
        if self._closing:
            job.finish(NotScanned("stopping"))
            return
        text = "scorer %d %s while judging a message of %d bytes"
        _log.error(text, scorer.process.pid, reason, job.message.size)
        if status == -signal.SIGBUS:  # the tables, which it maps
            text = "scorer %d could not read the tables (SIGBUS): %s"
            _log.error(text, scorer.process.pid, "make room on their disk, or mend it")
            job.finish(NotScanned("no-model"))
            return
        times = _POISON_COUNT
        with suppress(OSError):  # nobody waits any more, and the message is gone
            name = await _fingerprint(job.message)
            times = self._poison_records.pop(name, (0, 0.0))[0] + 1
            self._poison_records[name] = times, monotonic()
            if len(self._poison_records) > _MAX_POISON_RECORDS:
                self._poison_records.popitem(last=False)
        if times < _POISON_COUNT and died_on_the_spot and not self._closing:
            self._queue.appendleft(job)
            self._dispatch()
        else:
            job.finish(NotScanned(reason))


async def _fingerprint(message: Spool) -> bytes:
    def digest() -> bytes:
        state = blake2b(digest_size=16)
        for chunk in message.chunks():
            state.update(chunk)
        return state.digest()

    return digest() if message.descriptor is None else await run_in_thread(digest)
