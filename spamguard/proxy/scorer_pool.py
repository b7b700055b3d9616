"""Scorers: processes that judge messages for one worker, and that can be killed.

Each scorer has a task, which takes one message after the other from a queue. A message that hangs
or crashes a scorer costs that scorer and nothing else: it is killed at the deadline, another one
takes its place, and the message is remembered as poison. While a scorer is stuck at one message,
spare scorers judge the others.

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
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from pathlib import Path
from time import monotonic

from spamguard import log, process
from spamguard.aio import run_in_thread
from spamguard.config.options import Scoring
from spamguard.process import ReplacedError
from spamguard.proxy.scorer import (
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
_POISON_COUNT = 2  # times that a message may end a scorer
# Until poison is tried again: the machine may have been too slow, and deferred mail comes again.
_POISON_SECONDS = 3600.0
_MAX_POISON_RECORDS = 1000


@dataclass(eq=False)
class ScanJob:
    """A message that waits for its verdict, and the request without the message."""

    message: Spool
    fingerprint: bytes
    request: ScorerRequest
    result: asyncio.Future[Scan | NotScanned]

    def finish(self, result: Scan | NotScanned) -> None:
        """Set the result, if anybody still waits for it."""
        if not self.result.done():
            self.result.set_result(result)


class ScorerProcess:
    """One scorer process. Once it is lost, an OSError, an EOFError or a ValueError says so."""

    def __init__(self, command: Sequence[str]) -> None:
        self.busy_since = inf  # at its present message
        self.socket, child_socket = socket.socketpair()
        self.socket.setblocking(False)
        with child_socket:
            try:
                arguments = [*command, str(os.getpid())]
                self.process = process.start_process(arguments, stdin=child_socket.fileno())
            except OSError:
                self.socket.close()
                raise

    @property
    def is_stuck(self) -> bool:
        """Whether it has worked on one message for so long that others do not count on it."""
        return monotonic() - self.busy_since >= _STUCK_SECONDS

    async def judge(self, job: ScanJob) -> Scan | NotScanned:
        message, request = job.message, job.request
        descriptors = [] if message.descriptor is None else [message.descriptor]
        if not descriptors:
            request = request._replace(message=message.read())
        self.busy_since = monotonic()
        frame = encode_frame(request)
        sent = socket.send_fds(self.socket, [frame], descriptors)
        await asyncio.get_running_loop().sock_sendall(self.socket, frame[sent:])
        answer = await self.read_answer(request.users)
        self.busy_since = inf
        return answer if isinstance(answer, Scan) else NotScanned(answer)

    async def read_answer(self, users: Collection[str] = ()) -> Scan | str:
        received = bytearray()
        while (answer := decode_answer(received, users)) is None:
            piece = await asyncio.get_running_loop().sock_recv(self.socket, 64 << 10)
            if not piece:
                raise EOFError("it has ended")
            received += piece
        return answer

    async def kill(self) -> int:
        """End it at once; its exit status. Idempotent."""
        self.socket.close()
        self.process.kill()
        return await run_in_thread(self.process.wait)


class ScorerPool:
    """The scorers of one worker."""

    def __init__(
        self, state: Path, scoring: Scoring, command: Sequence[str] = SCORER_COMMAND
    ) -> None:
        self._seconds = scoring.deadline
        self._size = scoring.scorers
        self._command = (*command, str(state))
        self._queue: asyncio.Queue[ScanJob] = asyncio.Queue()
        self._jobs: set[ScanJob] = set()  # all that have no result
        self._tasks: set[asyncio.Task[None]] = set()
        self._scorers: set[ScorerProcess] = set()  # those that are ready
        # How often a message has ended a scorer, and when last; the oldest first.
        self._poison_records: dict[bytes, tuple[int, float]] = {}
        self._closing = False
        self._start_errors = log.WarnOnce(_log, logging.ERROR)
        self._replaced = False  # another installation has replaced this one: no scorer starts

    def start(self) -> None:
        """Start scorers until as many as usual can be counted on, two more than usual at most.

        They become ready by themselves. Once there are some, this is only for messages that wait.
        """
        if self._tasks and self._queue.empty():
            return
        missing = min(self._size - self._count_able(), self._size + 2 - len(self._tasks))
        for _ in range(missing):
            task = asyncio.create_task(self._run_scorer())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all scorers, and answer the messages that wait."""
        self._closing = True
        self._finish_jobs("stopping")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def has_ready_scorer(self) -> bool:
        """Whether a scorer has opened the filter, or tried to, and accepts messages."""
        return bool(self._scorers)

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
        """The scan of a message, or the reason why there is none. OSError: it cannot be read.

        `on_top` are header fields, each with CRLF, that count as if they stood on top of the
        message. The users are those whose mail it may be; `Scan.personal` has only these.
        """
        # Poison need not be told from its like.
        start = b"%d %b" % (message.size, message.read_start(64 << 10))
        fingerprint = blake2b(start).digest()
        times, last = self._poison_records.get(fingerprint, (0, 0.0))
        if times >= _POISON_COUNT and monotonic() - last < _POISON_SECONDS:
            return NotScanned("poison")
        if self._closing:
            return NotScanned("stopping")
        request = ScorerRequest(None, on_top, users, options)
        result = asyncio.get_running_loop().create_future()
        job = ScanJob(message, fingerprint, request, result)
        self._jobs.add(job)
        self._queue.put_nowait(job)
        self.start()
        try:
            async with asyncio.timeout(_QUEUE_TIMEOUT + self._seconds):
                return await job.result
        except TimeoutError:
            return NotScanned("busy")
        finally:
            self._jobs.discard(job)

    def _count_able(self) -> int:
        return len(self._tasks) - sum(scorer.is_stuck for scorer in self._scorers)

    def _finish_jobs(self, reason: str) -> None:
        for job in self._jobs:
            job.finish(NotScanned(reason))

    async def _run_scorer(self) -> None:
        """Start a scorer and have it judge; once it is lost start another, unless they are enough.

        Without any scorer all messages fail: the next attempt is due later.
        """
        while self._count_able() <= self._size:
            try:
                scorer = ScorerProcess(self._command)
                try:
                    async with asyncio.timeout(_START_SECONDS):
                        await scorer.read_answer()
                    self._start_errors.clear()
                    self._scorers.add(scorer)
                    await self._serve(scorer)
                finally:
                    self._scorers.discard(scorer)
                    await scorer.kill()
            except (OSError, EOFError, ValueError) as error:
                self._start_errors.report("a scorer cannot be started: %s", error)
                self._replaced = isinstance(error, ReplacedError)
                if not self._scorers:
                    self._finish_jobs("crashed")
                await asyncio.sleep(_RETRY_SECONDS)

    async def _serve(self, scorer: ScorerProcess) -> None:
        """Have a scorer judge until it is lost, or there are more than are needed."""
        while self._count_able() <= self._size or not self._queue.empty():
            job = await self._next_job(scorer)
            if job is None:
                return
            if job.result.done():  # nobody waits any more
                continue
            timer = asyncio.get_running_loop().call_later(_STUCK_SECONDS, self.start)
            try:
                async with asyncio.timeout(self._seconds):
                    job.finish(await scorer.judge(job))
            except (OSError, EOFError, ValueError) as error:
                # It has gone, or is too slow, or does not keep to the protocol.
                await self._blame_message(job, scorer, is_late=isinstance(error, TimeoutError))
                return
            finally:
                timer.cancel()

    async def _next_job(self, scorer: ScorerProcess) -> ScanJob | None:
        """The next message, or None once the scorer has ended or speaks unasked."""
        loop, getter = asyncio.get_running_loop(), asyncio.create_task(self._queue.get())
        loop.add_reader(scorer.socket, getter.cancel)
        try:
            await asyncio.wait([getter])
        finally:
            loop.remove_reader(scorer.socket)
            getter.cancel()
        return None if getter.cancelled() else getter.result()

    async def _blame_message(self, job: ScanJob, scorer: ScorerProcess, *, is_late: bool) -> None:
        """Remember the message at which a scorer ended, unless the disk is to blame.

        Another scorer gets it once more if the first one died on the spot: it may be chance.
        """
        died_on_the_spot, reason = not scorer.is_stuck, "timeout" if is_late else "crashed"
        status, size = await scorer.kill(), job.message.size
        text = "scorer %d %s while judging a message of %d bytes"
        _log.error(text, scorer.process.pid, reason, size)
        if status == -signal.SIGBUS:  # the tables, which it maps
            _log.error("the tables cannot be read (SIGBUS): make room on their disk, or mend it")
            job.finish(NotScanned("no-model"))
            return
        times = self._poison_records.pop(job.fingerprint, (0, 0.0))[0] + 1
        self._poison_records[job.fingerprint] = times, monotonic()
        if len(self._poison_records) > _MAX_POISON_RECORDS:
            del self._poison_records[next(iter(self._poison_records))]
        if times < _POISON_COUNT and died_on_the_spot:
            self._queue.put_nowait(job)
        else:
            job.finish(NotScanned(reason))
