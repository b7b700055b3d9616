"""Scorers: processes that judge messages for one worker, and that can be killed.

A message that hangs or crashes a scorer costs that scorer and nothing else: its `ScorerHandle`
kills it at the deadline, another one takes its place, and the message is remembered as poison.
While a scorer is stuck at one message, spare scorers judge the others. Everything here runs in the
worker's event loop; a scorer is started by exec, never by a bare fork.
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
import subprocess
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from spamguard import log, process
from spamguard.config.options import Scoring
from spamguard.delivery.next_hop import DeadlineTimer, run_in_thread
from spamguard.process import ReplacedError
from spamguard.proxy import scorer as protocol
from spamguard.proxy.scorer import NotScanned, ScanOptions, ScorerRequest
from spamguard.records import Scan
from spamguard.storage import Spool

_log = logging.getLogger("spamguard.proxy")

DEFAULT_OPTIONS = ScanOptions()
SCORER_COMMAND = ("-m", "spamguard.proxy.scorer")
_STUCK_SECONDS = 0.5  # at one message, after which a scorer is not counted on for others
_RETRY_SECONDS = 1.0  # between attempts to start scorers that end before they are ready
_QUEUE_TIMEOUT = 30.0  # that a message waits for a free scorer
_POISON_COUNT = 2  # times that a message may end a scorer
# Until poison is tried again: the machine may have been too slow, and deferred mail comes again.
_POISON_SECONDS = 3600.0
_MAX_POISON_RECORDS = 1000


@dataclass(eq=False)
class ScanJob:
    """A message that waits for its verdict."""

    message: Spool
    on_top: bytes
    users: tuple[str, ...]
    options: ScanOptions
    result: asyncio.Future[Scan | NotScanned]

    def finish(self, result: Scan | NotScanned) -> None:
        """Set the result, if anybody still waits for it."""
        if not self.result.done():
            self.result.set_result(result)


class ScorerHandle(DeadlineTimer):
    """One scorer process, and the deadline of what it does.

    message_seconds: the deadline of each message. on_change: called when it has become ready or
    stuck, has answered, or has ended. job: the one that it works on. is_stuck: it has worked on it
    for so long that it is not counted on for others. end_reason: why it ended, if it has.
    """

    def __init__(
        self,
        command: Sequence[str],
        message_seconds: float,
        on_change: Callable[[ScorerHandle], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._message_seconds = message_seconds
        self._on_change = on_change
        self._received = bytearray()
        self._unsent = memoryview(b"")
        self.job: ScanJob | None = None
        self.is_ready = self.is_stuck = self.has_ended = False
        self.end_reason = "crashed"
        self._socket, child_socket = socket.socketpair()
        with child_socket:
            try:
                descriptor = child_socket.fileno()
                arguments = [*command, str(descriptor), str(os.getpid())]
                self._process = process.start_process(arguments, [descriptor], subprocess.DEVNULL)
            except OSError:
                self._socket.close()
                raise
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._on_readable)
        self.set_deadline(self._loop.time() + 60.0)  # for a scorer to open the filter

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_free(self) -> bool:
        return self.is_ready and self.job is None and not self.has_ended

    def submit(self, job: ScanJob) -> None:
        """Have a message judged.

        Raises
        ------
        OSError
            It cannot be read.
        """
        descriptor = job.message.descriptor
        raw = job.message.read() if descriptor is None else None
        request = protocol.encode_request(ScorerRequest(raw, job.on_top, job.users, job.options))
        self.job = job
        self.set_deadline(self._loop.time() + min(_STUCK_SECONDS, self._message_seconds))
        try:
            if descriptor is not None:
                sent = socket.send_fds(self._socket, [request], [descriptor])
                request = request[sent:]
        except OSError:
            self.kill()
            return
        self._unsent = memoryview(request)
        self._write()

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._unsent) if self._unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self.kill()
            return
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._loop.add_writer(self._socket, self._write)
        else:
            self._loop.remove_writer(self._socket)

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(256 << 10)
            if not data:
                raise ConnectionError
            self._received += data
            answer = protocol.decode_answer(self._received, self.job.users if self.job else ())
            if answer is None:
                return
            if self.job is None and (self.is_ready or answer != protocol.READY):
                raise ValueError("nothing was asked")
        except (OSError, ValueError):  # it has gone, or does not keep to the protocol
            self.kill()
            return
        self._received.clear()
        if self.job is not None:
            self.job.finish(answer if isinstance(answer, Scan) else NotScanned(answer))
        self.is_ready, self.job, self.is_stuck = True, None, False
        self.clear_deadline()
        self._on_change(self)

    def deadline_passed(self) -> None:
        """A message takes long, and then too long; or the scorer does not become ready."""
        if self.job and not self.is_stuck:
            self.is_stuck = True
            self.set_deadline(self._loop.time() + max(self._message_seconds - _STUCK_SECONDS, 0.0))
            self._on_change(self)
        else:
            self.end_reason = "timeout"
            self.kill()

    def kill(self) -> None:
        """End it at once; idempotent."""
        if self.has_ended:
            return
        self.has_ended = True
        self.cancel_deadline()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._process.kill()
        self._on_change(self)

    async def wait(self) -> int:
        """The exit status, once the process is gone."""
        while (status := self._process.poll()) is None:
            await asyncio.sleep(0.01)  # between looks at whether a killed process is gone
        return status


class ScorerPool:
    """The scorers of one worker. command: of a scorer, as arguments of Python."""

    def __init__(
        self,
        state: Path,
        scoring: Scoring,
        command: Sequence[str] = SCORER_COMMAND,
    ) -> None:
        self._seconds = scoring.deadline
        self._size = scoring.scorers
        self._command = (*command, str(state))
        self._scorers: list[ScorerHandle] = []
        self._queue: deque[ScanJob] = deque()
        # How often a message has ended a scorer, and when last, by the event loop's clock.
        self._poison_records: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        self._tasks: set[asyncio.Task[object]] = set()
        self._closing = False
        self._starts_after = 0.0
        self._start_errors = log.WarnOnce(_log, logging.ERROR)
        self._replaced = False  # another installation has replaced this one: no scorer starts

    async def start(self) -> None:
        """Start the usual number of scorers; they become ready by themselves."""
        self._start_scorers()

    async def close(self) -> None:
        """End all scorers, and answer the messages that wait."""
        self._closing = True
        for scorer in list(self._scorers):
            scorer.kill()
        self._fail_queue()
        while self._tasks:
            await asyncio.gather(*self._tasks)

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

        Parameters
        ----------
        on_top : header fields, each with CRLF, that count as if they stood on top of the message.
        users : whose mail it may be, at most `scorer.MAX_USERS`; `Scan.personal` has only these.
        """
        loop = asyncio.get_running_loop()
        try:
            if self._poison_records:
                times, last = self._poison_records.get(await _fingerprint(message), (0, 0.0))
                if times >= _POISON_COUNT and loop.time() - last < _POISON_SECONDS:
                    return NotScanned("poison")
        except OSError as error:
            _log.error("a message cannot be read to be judged: %s", error)
            return NotScanned("unreadable")
        if self._closing:
            return NotScanned("stopping")
        job = ScanJob(message, on_top, users, options, loop.create_future())
        self._queue.append(job)
        self._dispatch()
        timer = loop.call_later(_QUEUE_TIMEOUT, self._on_queue_timeout, job)
        try:
            return await job.result
        finally:
            timer.cancel()

    def _on_queue_timeout(self, job: ScanJob) -> None:
        with suppress(ValueError):  # it is being judged
            self._queue.remove(job)
            job.finish(NotScanned("busy"))

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
                    scorer.submit(job)
                except OSError as error:
                    _log.error("a message cannot be read to be judged: %s", error)
                    job.finish(NotScanned("unreadable"))
        if self._queue:
            self._start_scorers()
        if not self._scorers:
            self._fail_queue()

    def _fail_queue(self) -> None:
        while self._queue:
            self._queue.popleft().finish(NotScanned("stopping" if self._closing else "crashed"))

    # ---- starting scorers

    def _start_scorers(self) -> None:
        """Start scorers up to the usual number; while messages wait, stuck ones do not count."""
        if self._closing or asyncio.get_running_loop().time() < self._starts_after:
            return
        missing = self._size - (self._count_able() if self._queue else len(self._scorers))
        # Two more than usual while others are stuck.
        for _ in range(min(missing, self._size + 2 - len(self._scorers))):
            try:
                scorer = ScorerHandle(self._command, self._seconds, self._on_change)
            except OSError as error:
                self._start_errors.report("a scorer cannot be started: %s", error)
                self._replaced = isinstance(error, ReplacedError)
                self._retry_later()
                return
            self._start_errors.clear()
            self._scorers.append(scorer)

    def _count_able(self) -> int:
        return sum(not scorer.is_stuck for scorer in self._scorers)

    def _retry_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._starts_after = loop.time() + _RETRY_SECONDS
        loop.call_at(self._starts_after + 0.01, self._start_scorers)

    # ---- events of scorers

    def _on_change(self, scorer: ScorerHandle) -> None:
        """It is ready or stuck, has answered, or has ended."""
        if scorer.has_ended:
            self._on_end(scorer)
        elif scorer.is_free and not self._queue and self._count_able() > self._size:
            scorer.kill()
        else:
            self._dispatch()

    def _on_end(self, scorer: ScorerHandle) -> None:
        self._scorers.remove(scorer)
        self._track(scorer.wait())
        if scorer.job:
            if not self._closing:
                text = "scorer %d %s while judging a message of %d bytes"
                _log.error(text, scorer.pid, scorer.end_reason, scorer.job.message.size)
            self._track(self._blame_message(scorer.job, scorer))
        if not scorer.is_ready:
            self._retry_later()
        self._start_scorers()
        self._dispatch()

    def _track(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _blame_message(self, job: ScanJob, scorer: ScorerHandle) -> None:
        """Remember the message at which a scorer ended, unless the disk is to blame.

        Another scorer gets it once more if the first one died on the spot.
        """
        if await scorer.wait() == -signal.SIGBUS:  # the tables, which it maps
            text = (
                "scorer %d could not read the tables (SIGBUS): make room on their disk, or mend it"
            )
            _log.error(text, scorer.pid)
            job.finish(NotScanned("no-model"))
            return
        times = _POISON_COUNT
        with suppress(OSError):  # nobody waits any more, and the message is gone
            name = await _fingerprint(job.message)
            times = self._poison_records.pop(name, (0, 0.0))[0] + 1
            self._poison_records[name] = times, asyncio.get_running_loop().time()
            if len(self._poison_records) > _MAX_POISON_RECORDS:
                self._poison_records.popitem(last=False)
        if self._closing:
            job.finish(NotScanned("stopping"))
        elif times < _POISON_COUNT and scorer.end_reason == "crashed" and not scorer.is_stuck:
            self._queue.appendleft(job)
            self._dispatch()
        else:
            job.finish(NotScanned(scorer.end_reason))


async def _fingerprint(message: Spool) -> bytes:
    """A digest of the bytes. OSError: they cannot be read."""

    def digest() -> bytes:
        state = blake2b(digest_size=16)
        for chunk in message.chunks():
            state.update(chunk)
        return state.digest()

    return digest() if message.descriptor is None else await run_in_thread(digest)
