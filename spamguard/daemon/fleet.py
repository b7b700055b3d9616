"""The workers, as the master sees them: started, heard, replaced, told to drain, killed.

Must never wait for any of them, and never tell a worker to drain before those that take its place accept.
"""

from __future__ import annotations

import logging
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

from spamguard import log
from spamguard.daemon import children
from spamguard.daemon.words import BEAT, READY, SETTLE
from spamguard.metrics.counters import Board, Slot
from spamguard.settings import Settings

_DESCRIBED = 200  # workers

_log = logging.getLogger("spamguard.daemon")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. silent: a worker not heard for so long is killed; starting: the same for one that is not ready yet, twice as long each
    time one was killed for it, up to longest_starting. fresh: heard within so long, it counts as well. first_pause, longest_pause:
    before the next start when a worker dies within `short_life`. drain: from the wish to stop to killing. settle: between two trainers."""

    silent: float = 20.0
    starting: float = 120.0
    longest_starting: float = 600.0
    fresh: float = 5.0
    first_pause: float = 0.1
    longest_pause: float = 5.0
    short_life: float = 5.0
    drain: float = 8.0
    settle: float = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What the workers of one generation run on."""

    generation: int
    settings: Settings
    sockets: Sequence[socket.socket]
    number: int


@dataclass(slots=True, eq=False)
class Member:
    """One worker process. heard: when last. slot: where it counts. starting: as `Timing` has it, for this one."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    slot: Slot
    generation: int
    born: float
    heard: float
    starting: float
    ready: bool = False
    draining: bool = False


@dataclass(slots=True)
class Fleet:
    """All workers, those of older settings too while they drain. settling_due: one has said so. starting: for the next one.

    trouble: why none can be started. tended: when last.
    """

    assembly: str
    timing: Timing
    selector: selectors.BaseSelector
    board: Board
    plan: Plan | None = None
    members: list[Member] = field(default_factory=list)
    settling_due: bool = False
    pause: float = 0.0
    resume: float = 0.0
    trouble: log.Repeated = field(default_factory=lambda: log.Repeated(_log))
    stopping: bool = False
    tended: float = inf
    starting: float = field(init=False)

    def __post_init__(self) -> None:
        self.starting = self.timing.starting

    def begin(self, settings: Settings, sockets: Sequence[socket.socket], number: int) -> None:
        """From now on workers with these settings; those of before go once these are ready, or at once where they never were."""
        for member in self.members:
            if not member.ready and not member.draining:
                self._drain(member)
        self.plan = Plan(self.plan.generation + 1 if self.plan else 1, settings, sockets, number)
        self.pause = self.resume = 0.0

    def stop(self) -> None:
        """Tell all to drain, and to be quick."""
        self.stopping = True
        for member in self.members:
            self._drain(member)
            with suppress(OSError):
                member.channel.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """End what is left."""
        for member in self.members:
            _log.error("worker %d does not stop: killed", member.process.pid)
            member.process.kill()

    @property
    def in_force(self) -> bool:
        """Whether a worker with the present settings accepts, and all with older ones have been told to drain."""
        return any(member.ready for member in self._present()) and all(
            member.draining or self._is_present(member) for member in self.members
        )

    def all_heard(self) -> bool:
        """Whether every worker was heard of late, as far as it is ready: who starts has a time of its own."""
        now = time.monotonic()
        return bool(self.members) and all(now - member.heard < self.timing.fresh for member in self.members if member.ready)

    def tend(self) -> None:
        """Whatever is due: bury the dead, kill the silent, start who is missing, send the old ones home."""
        now = time.monotonic()
        stopped = now - self.tended
        self.tended = now
        for member in list(self.members):
            if stopped > self.timing.silent / 2:  # with all of the machine or container, as it seems: whoever is well needs a moment
                member.heard = min(member.heard + stopped, now)
            if member.process.poll() is not None:
                self._bury(member, now)
            elif now - member.heard > (self.timing.silent if member.ready else member.starting):
                self._end_silent(member, now)
        if not self.stopping:
            self._start_missing(now)
            self._retire()

    def described(self) -> list[dict[str, object]]:
        """For people; of very many some."""
        now = time.monotonic()
        return [
            {"pid": one.process.pid, "ready": one.ready, "draining": one.draining, "silent": round(now - one.heard, 1)}
            for one in self.members[:_DESCRIBED]
        ]

    def next_start(self) -> float:
        """Seconds until a worker is to be started."""
        return max(0.0, self.resume - time.monotonic()) if self._missing() > 0 and not self.stopping else inf

    def end(self) -> None:
        """Kill all that are left, and wait for that."""
        for member in self.members:
            member.process.kill()
            member.process.wait()
            member.channel.close()
        self.members.clear()

    # ----

    def _is_present(self, member: Member) -> bool:
        return self.plan is not None and member.generation == self.plan.generation

    def _present(self) -> list[Member]:
        return [member for member in self.members if self._is_present(member)]

    def _missing(self) -> int:
        return self.plan.number - len(self._present()) if self.plan else 0

    def _all_ready(self) -> bool:
        return not self._missing() and all(member.ready for member in self._present())

    def _start_missing(self, now: float) -> None:
        while self.plan is not None and self._missing() > 0 and now >= self.resume:
            try:
                self.members.append(self._start(self.plan, now))
            except OSError as error:  # no memory or no processes left: that passes
                self._wait(now, short=True)
                self.trouble.tell("cannot start a worker: %s; tried again every now and then", error)
            else:
                self.trouble.over()

    def _start(self, plan: Plan, now: float) -> Member:
        slot = self.board.free()
        files = [self.board.descriptor, *(one.fileno() for one in plan.sockets)]
        before = [self.assembly, str(slot.number)]
        process, channel = children.start_with("spamguard.daemon.worker", plan.settings, before, files=files)
        slot.own(process.pid, time.time())
        member = Member(process, channel, slot, plan.generation, now, now, self.starting)
        self.selector.register(channel, selectors.EVENT_READ, lambda: self._hear(member))
        return member

    def _end_silent(self, member: Member, now: float) -> None:
        """Kill it. If it had not begun yet, the machine may be slow: the next one gets more time, else none would ever come up."""
        _log.error("worker %d has been silent for %.0f s: killed", member.process.pid, now - member.heard)
        member.process.kill()
        member.heard = now
        if not member.ready:
            self.starting = min(2 * member.starting, self.timing.longest_starting)

    def _hear(self, member: Member) -> None:
        try:
            said = member.channel.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:  # it is ending
            self.selector.unregister(member.channel)
            return
        if BEAT in said or READY in said:
            member.heard = time.monotonic()
        member.ready = member.ready or READY in said
        self.settling_due = self.settling_due or SETTLE in said

    def _bury(self, member: Member, now: float) -> None:
        self.members.remove(member)
        member.slot.own(0, time.time())
        with suppress(KeyError):
            self.selector.unregister(member.channel)
        member.channel.close()
        if member.draining:
            _log.info("worker %d %s", member.process.pid, _end(member) if member.process.returncode else "has drained")
            return
        self._wait(now, short=now - member.born < self.timing.short_life)
        _log.error("worker %d %s: replaced%s", member.process.pid, _end(member), f" in {self.pause:.1f} s" if self.pause else "")

    def _wait(self, now: float, *, short: bool) -> None:
        """Before the next start: not at all, or for longer each time workers die at once."""
        self.pause = min(max(self.timing.first_pause, 2 * self.pause), self.timing.longest_pause) if short else 0.0
        self.resume = now + self.pause

    def _retire(self) -> None:
        """The old ones drain once all of the new ones accept."""
        if self._all_ready():
            for member in self.members:
                if not self._is_present(member) and not member.draining:
                    self._drain(member)

    def _drain(self, member: Member) -> None:
        member.draining = True
        with suppress(ProcessLookupError):
            member.process.send_signal(signal.SIGTERM)


def _end(member: Member) -> str:
    status = member.process.returncode
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"has exited with status {status}"
