"""The master's children, and the channel over which they speak to it.

A child is `python -m spamguard.daemon MODULE CHANNEL FILES…`: it reads its settings from standard
input and sends `Message`s, JSON objects in packets of a Unix socket. End of file there means that
the master is gone or wants the child gone; SIGTERM asks a worker to drain, and ends any other
child.

`Child` is one process, seen by the master. `Service` is a row of the master's table: the children
of one module that are wanted. It replaces one that ends, kills one that is silent, and after a
reload starts workers with the new settings before the old ones drain. `run_child` is the child's
side. Nothing here has a thread or a timer: the master's selector calls when a channel can
be read, and the master calls `maintain` when `next_start` says so, and at least once a second.

It is written by hand because `multiprocessing` knows no heartbeat, and no replacing of workers
while old ones drain.

Must never wait for a worker, never tell a worker to drain before its successors accept, and never
make mail depend on another service.
"""

from __future__ import annotations

import logging
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from math import inf

import msgspec

from spamguard import log, process
from spamguard.config.options import Settings
from spamguard.counters import Counters

_log = logging.getLogger("spamguard.daemon")

_MAX_MESSAGE_BYTES = 256 << 10
FIRST_PAUSE = 0.1  # seconds, before a child that ended is replaced


class Message(msgspec.Struct, omit_defaults=True):
    """What a child tells the master; any message says that it lives.

    Attributes
    ----------
    ready
        It accepts connections.
    scoring
        It can have messages judged.
    settle
        Lessons wait for settling.
    task
        The one of its tasks that has just done its round.
    counters
        All that it has counted.
    """

    ready: bool = False
    scoring: bool = False
    settle: bool = False
    task: str = ""
    counters: Counters | None = None


_decode = msgspec.json.Decoder(Message).decode

# ---- the child's side


class Channel:
    """A child's end of its channel. Any thread may send."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=descriptor)
        self.socket.set_inheritable(False)
        self.socket.setblocking(False)

    def send(self, message: Message) -> None:
        """Tell the master, and never wait for one that does not read, or is gone."""
        with suppress(OSError):
            self.socket.send(msgspec.json.encode(message))

    def request_settling(self) -> None:
        """Tell the master that lessons wait for settling."""
        self.send(Message(settle=True))

    def begin_service(self, niceness: int = 5) -> None:
        """Have this process end with the master, and let mail that flows go first."""
        master, _ = process.peer_credentials(self.socket)
        process.end_with_parent(master)
        os.nice(niceness)


def run_child(module: str, channel: str, *files: str) -> int:
    """Be a child: run `main` of this module. Signals of the terminal and reloads are the master's.

    The numbers are those of inherited descriptors.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    log.configure()
    settings: Settings = pickle.load(sys.stdin.buffer)  # noqa: S301  of the master
    status: int = import_module(module).main(settings, Channel(int(channel)), *map(int, files))
    return status


# ---- the master's side


class Child:
    """One process and our end of its channel. OSError: it cannot be started."""

    def __init__(self, service: Service, settings: Settings, files: Sequence[int]) -> None:
        self.generation = service.generation
        self.started_at = self.last_heard = time.monotonic()
        self.message = Message()  # the last one that says how it is
        self.counters = Counters()
        self.draining = False
        self._service = service
        self._channel, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        with theirs, os.fdopen(os.memfd_create("settings"), "w+b") as file:
            pickle.dump(settings, file)
            file.seek(0)
            inherited = [theirs.fileno(), *files]
            words = ["-m", "spamguard.daemon", service.module, *map(str, inherited)]
            try:
                self.process = process.start_process(words, inherited, stdin=file.fileno())
            except BaseException:
                self._channel.close()
                raise
        service.selector.register(self._channel, selectors.EVENT_READ, self._receive)

    def drain(self, *, hurry: bool = False) -> None:
        """Tell it to accept no more and to end when its sessions have ended, or within seconds.

        SIGTERM is sent once: a second one may come while asyncio takes its handlers away, which
        Python logs.
        """
        if not self.draining:
            self.draining = True
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
        if hurry:
            with suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Kill it, if it still runs, and read what it has said last."""
        self.process.kill()
        self.process.wait()
        while self._receive():
            pass
        with suppress(KeyError):
            self._service.selector.unregister(self._channel)
        self._channel.close()

    def _receive(self) -> bool:
        try:
            data = self._channel.recv(_MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:  # it is ending
            with suppress(KeyError):
                self._service.selector.unregister(self._channel)
            return False
        try:
            message = _decode(data)
        except msgspec.MsgspecError as error:
            _log.error("%s %d is killed: %s", self._service.name, self.process.pid, error)
            self.process.kill()
            return False
        self.last_heard = time.monotonic()
        self._service.settling_due |= message.settle
        if message.task:
            self._service.heard[message.task] = self.last_heard
        if message.counters is not None:
            self.message, self.counters = message, message.counters
        return True


class Service:
    """The children of one module; after a reload also those of older generations that drain.

    Parameters
    ----------
    longest_pause
        Seconds before the next start where a child lived no longer than this, at most: the first
        pause is short, and each twice as long as the last.
    silent
        Seconds after which a child that was ready, and is not heard, is killed; one that is not
        ready yet has six times as long.
    overlaps
        Whether new children start before the old ones drain.
    once
        Whether a child that has ended has done its work.

    Attributes
    ----------
    children
        Those that have not ended, or whose end was not noticed yet.
    counted
        What the children that have ended have counted.
    heard
        When each task of the children was last heard, by the monotonic clock.
    settling_due
        Whether a child has asked for settling.
    """

    def __init__(
        self,
        name: str,
        selector: selectors.BaseSelector,
        *,
        longest_pause: float = 60.0,
        silent: float = inf,
        overlaps: bool = False,
        once: bool = False,
    ) -> None:
        self.name, self.module = name, f"spamguard.daemon.{name}"
        self.selector = selector
        self._longest_pause, self._silent = longest_pause, silent
        self._overlaps, self._once = overlaps, once
        self.children: list[Child] = []
        self.counted = Counters()
        self.heard: dict[str, float] = {}
        self.settling_due = self.stopping = False
        self.generation = self._number = 0
        self._settings: Settings | None = None
        self._files: Sequence[int] = ()
        self._errors = log.WarnOnce(_log, logging.ERROR)
        self._pause = self._resume_at = 0.0

    def begin(
        self,
        settings: Settings,
        number: int = 1,
        files: Sequence[int] = (),
        tasks: Sequence[str] = (),
    ) -> None:
        """Want so many children with these settings.

        Older workers drain once all new ones accept; those that never accepted drain at once.
        Another child ends first, unless nothing has changed.

        Parameters
        ----------
        files
            Descriptors that the children inherit.
        tasks
            That must be heard from now on.
        """
        if self._overlaps:
            self.generation += 1
            for child in self.children:
                if not child.message.ready:
                    child.drain()
        elif not number or settings != self._settings:
            self.end()
        self._settings, self._number, self._files = settings, number, files
        self.heard = dict.fromkeys(tasks, time.monotonic())
        self._pause = self._resume_at = 0.0

    def stop(self) -> None:
        """Start no more children, and tell all to end quickly."""
        self.stopping = True
        for child in self.children:
            child.drain(hurry=True)

    def end(self) -> None:
        """End all children, until `begin`; each has a second for that."""
        self._number = 0
        for child in self.children:
            child.process.terminate()
        for child in self.children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(1.0)
            self._close(child)
        self.children.clear()

    def kill(self) -> None:
        """Kill the children that still run; `maintain` removes them."""
        for child in self.children:
            _log.error("%s %d does not stop: killed", self.name, child.process.pid)
            child.process.kill()

    def maintain(self) -> None:
        """Remove ended children, kill silent ones, start missing ones, let older ones drain."""
        now = time.monotonic()
        for child in list(self.children):
            allowed = self._silent if child.message.ready else 6 * self._silent
            if child.process.poll() is not None:
                self._remove_ended(child, now)
            elif (silence := now - child.last_heard) > allowed:
                pid = child.process.pid
                _log.error("%s %d has been silent for %.0f s: killed", self.name, pid, silence)
                child.process.kill()
                child.last_heard = now
        while self._settings is not None and self.next_start() == 0:
            try:
                child = Child(self, self._settings, self._files)
            except OSError as error:  # no memory or no processes left: that passes
                self._lengthen_pause()
                text = "cannot start the %s: %s; tried again every now and then"
                self._errors.report(text, self.name, error)
            else:
                self._errors.clear()
                self.children.append(child)
        if not self._count_missing() and all(child.message.ready for child in self._current()):
            for child in self.children:
                if child.generation != self.generation and not self.stopping:
                    child.drain()

    def next_start(self) -> float:
        """Seconds until a child is to be started; inf: none is missing."""
        missing = self._count_missing() > 0 and not self.stopping
        return max(0.0, self._resume_at - time.monotonic()) if missing else inf

    @property
    def is_in_force(self) -> bool:
        """Whether a child with the present settings accepts and all older ones drain."""
        return any(child.message.ready for child in self._current()) and all(
            child.draining or child.generation == self.generation for child in self.children
        )

    @property
    def is_scoring(self) -> bool:
        """Whether a child can have messages judged."""
        return any(child.message.scoring for child in self.children)

    def count(self, total: Counters) -> None:
        """Add what all children have counted so far."""
        for counters in (self.counted, *(child.counters for child in self.children)):
            total.add(counters)

    def _current(self) -> list[Child]:
        return [child for child in self.children if child.generation == self.generation]

    def _count_missing(self) -> int:
        return self._number - len(self._current())

    def _lengthen_pause(self) -> None:
        self._pause = min(max(FIRST_PAUSE, 2 * self._pause), self._longest_pause)
        self._resume_at = time.monotonic() + self._pause

    def _close(self, child: Child) -> None:
        child.end()
        self.counted.add(child.counters)

    def _remove_ended(self, child: Child, now: float) -> None:
        self.children.remove(child)
        self._close(child)
        status, pid = child.process.returncode, child.process.pid
        how = f"has exited with status {status}"
        if status < 0:
            how = f"was ended by {signal.Signals(-status).name}"
        if self._once:
            self._number = 0
        elif child.draining:
            _log.info("%s %d has drained, and %s", self.name, pid, how)
        else:
            if now - child.started_at < self._longest_pause:
                self._lengthen_pause()
            else:
                self._pause = self._resume_at = 0.0
            pause = f" in {self._pause:.1f} s" if self._pause else ""
            _log.error("%s %d %s: replaced%s", self.name, pid, how, pause)
