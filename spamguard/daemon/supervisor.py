"""The master's children: the workers, and the services that run once beside them.

`Child` is one process and its channel. `Supervisor` keeps the wanted number of workers: it replaces
one that ends, kills one that is silent, and after a reload starts workers with the new settings
before the old ones drain. `SupervisedProcess` keeps one process running; it restarts it.
Nothing here has a thread or a timer: the master's selector calls when a channel can be read, and
the master calls `maintain` when `next_start` says so, and at least once a second.

It is written by hand because `multiprocessing` knows no heartbeat, and no replacing of workers
while old ones drain.

Must never wait for a worker, never tell a worker to drain before its successors accept, and never
make mail depend on a service.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import NamedTuple

from spamguard import log
from spamguard import process as children
from spamguard.config.options import Settings
from spamguard.counters import CounterBoard, CounterSlot
from spamguard.process import BEAT_BYTE, READY_BYTE, SETTLE_BYTE

_log = logging.getLogger("spamguard.daemon")

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 60.0  # before a service is started again


@dataclass(eq=False)
class Child:
    """A process of this package and our end of its channel.

    process, channel: as `process.start_child` returns them. on_bytes: called with the bytes that
    the process sends over its channel.
    """

    process: subprocess.Popen[bytes]
    channel: socket.socket
    _selector: selectors.BaseSelector
    _on_bytes: Callable[[bytes], None]

    def __post_init__(self) -> None:
        self.started_at = time.monotonic()
        self._selector.register(self.channel, selectors.EVENT_READ, self._receive)

    def describe_exit(self) -> str:
        """Say how the process ended, as a verb phrase."""
        status = self.process.returncode
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"has exited with status {status}"

    def close(self) -> None:
        """Close the channel."""
        with suppress(KeyError):
            self._selector.unregister(self.channel)
        self.channel.close()

    def _receive(self) -> None:
        try:
            data = self.channel.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._on_bytes(data)
        else:  # it is ending
            self._selector.unregister(self.channel)


class _Backoff:
    """The pause before the next start, twice as long after each failure."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self._errors = log.WarnOnce(_log, logging.ERROR)
        self.pause = self.resume_at = 0.0

    def start(self, name: str, start: Callable[[], None]) -> None:
        """Start the process, or try again after the next pause."""
        try:
            start()
        except OSError as error:  # no memory or no processes left: that passes
            self.lengthen()
            self._errors.report("cannot start %s: %s; tried again every now and then", name, error)
        else:
            self._errors.clear()

    def lengthen(self) -> None:
        self.pause = min(max(self._first, 2 * self.pause), self._longest)
        self.resume_at = time.monotonic() + self.pause

    def reset(self) -> None:
        self.pause = self.resume_at = 0.0

    def remaining(self) -> float:
        return max(0.0, self.resume_at - time.monotonic())


@dataclass
class SupervisedProcess:
    """One process `python -m MODULE CHANNEL SETTINGS MASTER FILES…`, running whenever wanted.

    The process ends on SIGTERM at once, whatever it is doing, and by itself with this process.

    settling_due: whether the process has asked for settling.
    """

    _name: str
    _module: str
    _selector: selectors.BaseSelector
    _files: Sequence[int] = ()
    _settings: Settings | None = None
    _child: Child | None = None
    _backoff: _Backoff = field(
        default_factory=partial(_Backoff, FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
    )
    settling_due: bool = False

    @property
    def pid(self) -> int | None:
        """The id of its process; None while there is none."""
        return self._child.process.pid if self._child else None

    def begin(self, settings: Settings | None) -> None:
        """Run with these settings from now on; None: do not run."""
        if settings != self._settings:
            self.end()
        self._settings = settings
        self._backoff.reset()

    def maintain(self) -> None:
        """Notice that the process has ended, and start it when that is due."""
        if self._child is not None and (status := self._child.process.poll()) is not None:
            # One that lived so long is restarted after the first pause again.
            if time.monotonic() - self._child.started_at > 300.0:
                self._backoff.reset()
            self._backoff.lengthen()
            self._child.close()
            self._child = None
            pause = self._backoff.pause
            _log.error("%s has ended (%s): started again in %.1f s", self._name, status, pause)
        if self._settings is not None and self.next_start() == 0:
            self._backoff.start(self._name, partial(self._start, self._settings))

    def _start(self, settings: Settings) -> None:
        started = children.start_child(self._module, settings, [str(os.getpid())], self._files)
        self._child = Child(*started, self._selector, self._on_bytes)

    def next_start(self) -> float:
        """Seconds until the process is to be started; inf: it runs, or is not wanted."""
        return inf if self._child or self._settings is None else self._backoff.remaining()

    def end(self) -> None:
        """End the process, until `begin`."""
        self._settings = None
        if self._child is None:
            return
        self._child.process.terminate()
        try:
            self._child.process.wait(1.0)  # from SIGTERM to SIGKILL for a service
        except subprocess.TimeoutExpired:
            self._child.process.kill()
            self._child.process.wait()
        self._child.close()
        self._child = None

    def _on_bytes(self, data: bytes) -> None:
        self.settling_due = self.settling_due or SETTLE_BYTE in data


class WorkerTiming(NamedTuple):
    """Periods of the workers, in seconds."""

    silent: float = 20.0  # a ready worker that has not been heard for so long is killed
    starting: float = 120.0  # the same for one that is not ready yet
    fresh: float = 5.0  # a ready worker that has been heard within so long counts as alive
    # The pause before the next start when a worker lived no longer than `short_life`.
    first_pause: float = 0.1
    longest_pause: float = 5.0
    short_life: float = 5.0
    drain: float = 8.0  # from the wish to stop to killing
    settle: float = 60.0  # between two starts of the process that settles


class WorkerChild(Child):
    """A worker process; `generation` is the one it was started in."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        channel: socket.socket,
        supervisor: Supervisor,
        slot: CounterSlot,
    ) -> None:
        super().__init__(process, channel, supervisor.selector, self._on_worker_bytes)
        self.slot = slot
        self.generation = supervisor.generation
        self.last_heard = self.started_at
        self.ready = self.draining = False
        self._supervisor = supervisor

    def _on_worker_bytes(self, data: bytes) -> None:
        if BEAT_BYTE in data or READY_BYTE in data:
            self.last_heard = time.monotonic()
        self.ready = self.ready or READY_BYTE in data
        if SETTLE_BYTE in data:
            self._supervisor.settling_due = True

    def drain(self) -> None:
        """Tell it, once, to accept no more and to end when its sessions have ended.

        A second signal may come while asyncio takes its handlers away, which Python logs.
        """
        if not self.draining:
            self.draining = True
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)


@dataclass
class Supervisor:
    """All workers; after a reload also those of older generations while they drain.

    generation: counts the calls of `begin`; `settings`, `sockets` and `worker_count` are its
    arguments. settling_due: whether a worker has asked for settling.
    """

    assembly: str
    timing: WorkerTiming
    selector: selectors.BaseSelector
    board: CounterBoard
    settings: Settings | None = None
    sockets: Sequence[socket.socket] = ()
    worker_count: int = 0
    generation: int = 0
    workers: list[WorkerChild] = field(default_factory=list)
    settling_due: bool = False
    stopping: bool = False
    _backoff: _Backoff = field(init=False)

    def __post_init__(self) -> None:
        self._backoff = _Backoff(self.timing.first_pause, self.timing.longest_pause)

    def begin(self, settings: Settings, sockets: Sequence[socket.socket], number: int) -> None:
        """Want this number of workers with these settings.

        Older workers drain once all new ones accept; those that never accepted drain at once.
        """
        for worker in self.workers:
            if not worker.ready:
                worker.drain()
        self.settings, self.sockets, self.worker_count = settings, sockets, number
        self.generation += 1
        self._backoff.reset()

    def stop(self) -> None:
        """Tell all workers to drain quickly: they see end of file on their channel."""
        self.stopping = True
        for worker in self.workers:
            worker.drain()
            with suppress(OSError):
                worker.channel.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill the workers that still run; `maintain` removes them."""
        for worker in self.workers:
            _log.error("worker %d does not stop: killed", worker.process.pid)
            worker.process.kill()

    def end(self) -> None:
        """Kill all workers and wait until they have ended."""
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()
            worker.close()
        self.workers.clear()

    @property
    def is_in_force(self) -> bool:
        """Whether a worker with the present settings accepts and all older ones drain."""
        return any(worker.ready for worker in self._current_workers()) and all(
            worker.draining or worker.generation == self.generation for worker in self.workers
        )

    def all_alive(self) -> bool:
        """Whether every ready worker was heard lately; starting has a time limit of its own."""
        now = time.monotonic()
        return bool(self.workers) and all(
            now - worker.last_heard < self.timing.fresh for worker in self.workers if worker.ready
        )

    def maintain(self) -> None:
        """Remove ended workers, kill silent ones, start missing ones, let older ones drain."""
        now = time.monotonic()
        for worker in list(self.workers):
            allowed = self.timing.silent if worker.ready else self.timing.starting
            if worker.process.poll() is not None:
                self._remove_ended(worker, now)
            elif (silence := now - worker.last_heard) > allowed:
                pid = worker.process.pid
                _log.error("worker %d has been silent for %.0f s: killed", pid, silence)
                worker.process.kill()
                worker.last_heard = now
        if self.stopping:
            return
        while self.settings is not None and self.next_start() == 0:
            self._backoff.start("a worker", partial(self._start_worker, self.settings))
        if not self._count_missing() and all(worker.ready for worker in self._current_workers()):
            for worker in self.workers:
                if worker.generation != self.generation:
                    worker.drain()

    def next_start(self) -> float:
        """Seconds until a worker is to be started; inf: none is missing."""
        missing = self._count_missing() > 0 and not self.stopping
        return self._backoff.remaining() if missing else inf

    def describe(self) -> list[dict[str, object]]:
        """Return the state of each worker for `spamguard status`."""
        now = time.monotonic()
        return [
            {
                "pid": worker.process.pid,
                "ready": worker.ready,
                "draining": worker.draining,
                "silent": round(now - worker.last_heard, 1),
            }
            for worker in self.workers
        ]

    def _current_workers(self) -> list[WorkerChild]:
        return [worker for worker in self.workers if worker.generation == self.generation]

    def _count_missing(self) -> int:
        return self.worker_count - len(self._current_workers())

    def _start_worker(self, settings: Settings) -> None:
        slot = self.board.free_slot()
        files = [self.board.descriptor, *(listening.fileno() for listening in self.sockets)]
        more = [self.assembly, str(slot.number)]
        started = children.start_child("spamguard.daemon.worker", settings, more, files)
        worker = WorkerChild(*started, self, slot)
        slot.assign(worker.process.pid, time.time())
        self.workers.append(worker)

    def _remove_ended(self, worker: WorkerChild, now: float) -> None:
        self.workers.remove(worker)
        worker.slot.assign(0, time.time())
        worker.close()
        if worker.draining:
            failed = worker.process.returncode != 0
            how = worker.describe_exit() if failed else "has drained"
            _log.info("worker %d %s", worker.process.pid, how)
            return
        if now - worker.started_at < self.timing.short_life:
            self._backoff.lengthen()
        else:
            self._backoff.reset()
        pause = f" in {self._backoff.pause:.1f} s" if self._backoff.pause else ""
        how = worker.describe_exit()
        _log.error("worker %d %s: replaced%s", worker.process.pid, how, pause)
