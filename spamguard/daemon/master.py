"""The master: owns the listening sockets, the workers and what runs beside them, reads the configuration, talks to systemd.

Synchronous and small: one loop that waits for signals and workers. Must never read from the network, never import numpy, never
wait for a worker, and never give up a listening socket that the configuration still names.
"""

from __future__ import annotations

import logging
import math
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from spamguard import installed, log, memory
from spamguard.daemon import alone, children, description, privileges, signals, sockets
from spamguard.daemon.desk import Desk
from spamguard.daemon.fleet import Fleet, Timing
from spamguard.daemon.kept import Kept
from spamguard.daemon.notify import Notifier
from spamguard.errors import ConfigError, SpamguardError, StartError, problems
from spamguard.files import LEDGER
from spamguard.installed import ReplacedError
from spamguard.metrics.counters import MASTER, SERVER, TEACHER, WATCHER, Board
from spamguard.settings import Settings

ASSEMBLY = "spamguard.daemon.assembly"
WATCHING = "spamguard.daemon.watching"
TEACHING = "spamguard.daemon.teaching"
REPORTING = "spamguard.daemon.reporting"
SERVING = "spamguard.daemon.serving"
_SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_MAKING = 20.0  # seconds that making a new filter may take
_TICK = 1.0  # seconds between two looks at what nobody tells

_log = logging.getLogger("spamguard.daemon")


class Master:
    """The daemon. read: the configuration, anew each time; ConfigError. assembly: the module whose `assemble` the workers run."""

    def __init__(self, read: Callable[[], Settings], *, assembly: str = ASSEMBLY, timing: Timing | None = None) -> None:
        self._read = read
        self._timing = timing or Timing()
        self._selector = selectors.DefaultSelector()
        self._board = Board.create()
        self._fleet = Fleet(assembly, self._timing, self._selector, self._board)
        self._watcher = Kept("the watcher of folders", WATCHING, self._selector, [self._board.descriptor])
        self._teacher = Kept("the teaching door", TEACHING, self._selector, [self._board.descriptor])
        self._reporter = Kept("the process that monitors ask", REPORTING, self._selector, [self._board.descriptor])
        self._server = Kept("page and API", SERVING, self._selector, [self._board.descriptor])
        self._beside = (self._watcher, self._teacher, self._reporter, self._server)
        self._desk = Desk(self._selector, self._told)
        self._notifier = Notifier(None)
        self._sockets: dict[sockets.Address, socket.socket] = {}
        self._gone: dict[sockets.Address, socket.socket] = {}
        self._trainer: subprocess.Popen[bytes] | None = None
        self._next_training = self._kill_at = 0.0
        self._next_word = math.inf  # until the first READY=1: systemd would count from a word on, and starting has a time of its own
        self._announced = False
        self._replaced = log.Repeated(_log)  # by what is installed now
        self._no_trainer = log.Repeated(_log)
        self._status_at_end = 0

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; the exit status. ConfigError, StartError: nothing has been started."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
        settings = self._read()
        if lacking := memory.shortage(settings.state, serving=True):
            raise ConfigError(lacking)
        self._notifier = Notifier.from_environment(os.environ)
        with ExitStack() as stack:
            stack.callback(os.close, self._board.descriptor)
            stack.callback(self._selector.close)
            stack.callback(self._close_sockets)
            self._open_first(settings)
            privileges.settle_in(settings)
            privileges.check_program()
            self._claim = alone.Claim(settings.state)
            stack.callback(self._claim.release)
            wakeups = stack.enter_context(signals.received(_SIGNALS))
            self._selector.register(wakeups, selectors.EVENT_READ, lambda: self._receive(wakeups))
            stack.callback(self._end_children)
            self._train_first(settings)
            self._board.slot(MASTER).own(os.getpid(), time.time())
            self._desk.open(settings.state)
            stack.callback(self._desk.close)
            self._begin(settings)
            while self._fleet.members or not self._fleet.stopping:
                self._turn()
        _log.info("stopped")
        return self._status_at_end

    def _turn(self) -> None:
        """Wait for something, and do what is due."""
        due = min(one.next_start() for one in (self._fleet, *self._beside))
        for key, _ in self._selector.select(min(_TICK, due, (self._notifier.watchdog_seconds or 3) / 3)):
            key.data()
        self._board.slot(MASTER).beat(time.monotonic_ns())
        self._fleet.tend()
        if self._fleet.stopping:
            if self._kill_at and time.monotonic() > self._kill_at:
                self._kill_at = 0.0
                self._fleet.kill()
            return
        for one in self._beside:
            one.tend()
        self._desk.tend()
        self._announce()
        self._settle()
        self._watchdog()
        self._look_at_ourselves()

    def _receive(self, wakeups: socket.socket) -> None:
        """Signals: each is a byte."""
        received = wakeups.recv(4096)
        if signal.SIGTERM in received or signal.SIGINT in received:
            self._stop()
        elif signal.SIGHUP in received and not self._fleet.stopping:
            self._reload()

    # ---- settings

    def _open(self, settings: Settings) -> None:
        """Listen where the settings say; what they no longer name stays open until its workers are gone."""
        if not self._sockets:
            self._gone = sockets.inherited(os.environ)
            sockets.check_inherited(self._gone, (one.endpoint for one in settings.doors))
        known = self._sockets | self._gone
        self._sockets = sockets.opened((one.endpoint for one in settings.doors), known)
        self._gone = {name: one for name, one in known.items() if name not in self._sockets}

    def _open_first(self, settings: Settings) -> None:
        """Who starts a second daemon meets its addresses first: another port would not mend that."""
        try:
            self._open(settings)
        except StartError as error:
            raise alone.explained(settings.state, error) from error

    def _begin(self, settings: Settings) -> None:
        self._settings = settings
        self._announced = False
        found = [self._sockets[sockets.address(one.endpoint)] for one in settings.doors]
        self._fleet.begin(settings, found, settings.workers or _usual_workers())
        self._watcher.begin(settings if settings.watch else None)
        self._teacher.begin(settings if settings.teaching else None)
        self._reporter.begin(settings if settings.metrics else None)
        self._server.begin(settings if settings.web else None)
        for number, wanted in ((SERVER, settings.web), (TEACHER, settings.teaching), (WATCHER, settings.watch)):
            self._board.slot(number).own(os.getpid() if wanted else 0, time.time())
            self._board.slot(number).beat(time.monotonic_ns())  # it has time to begin

    def _reload(self) -> None:
        """Take on new settings, or stay with the old ones when these cannot be used."""
        _log.info("reading the configuration anew")
        self._notifier.reloading()
        try:
            installed.check()
            settings = self._read()
            self._check_lasting(settings)
            self._open(settings)
        except (SpamguardError, OSError) as error:
            for problem in problems(error):
                _log.error("%s", problem)
            _log.error("the old settings stay in force")
            self._notifier.ready(f"{self._status()}; the new configuration is not in force, see the log")
        else:
            self._begin(settings)

    def _check_lasting(self, settings: Settings) -> None:
        """StartError for a change that only a new process can take on: this one has given up the rights it would need."""
        if (settings.state, settings.user) != (self._settings.state, self._settings.user):
            raise StartError("`state` and `user` cannot change while running: restart for that")

    def _announce(self) -> None:
        """Say so once the present settings are in force."""
        if self._announced or not self._fleet.in_force:
            return
        self._announced = True
        sockets.close(self._gone.values())
        self._gone = {}
        _log.info("%s", self._status())
        self._notifier.ready(self._status())
        self._next_word = 0.0

    def _status(self) -> str:
        where = ", ".join(
            f"{one.endpoint.protocol} on {sockets.place(one.endpoint, self._sockets[sockets.address(one.endpoint)])}"
            for one in self._settings.doors
        )
        return f"serving {where}"

    def _told(self) -> dict[str, object]:
        """For `spamguard status`."""
        return {**description.of(self._settings, self._board), "stopping": self._fleet.stopping, "workers": self._fleet.described()}

    # ---- processes

    def _train_first(self, settings: Settings) -> None:
        """A new state directory gets its filter before mail comes: scorers and workers would not know who is to make it. Of one that is
        there it is told what an upgrade has left behind, while mail flows already."""
        new = not (settings.state / LEDGER).exists()
        self._train(settings, "first")
        if new and self._trainer is not None:
            with suppress(subprocess.TimeoutExpired):  # then mail is passed on unscored until it is done
                self._trainer.wait(_MAKING)

    def _settle(self) -> None:
        """One trainer at a time, and not too often."""
        now = time.monotonic()
        if self._trainer is not None and self._trainer.poll() is not None:
            self._trainer = None
        teachers = (self._fleet, *self._beside)
        due = any(one.settling_due for one in teachers)
        if due and self._trainer is None and now >= self._next_training:
            for one in teachers:
                one.settling_due = False
            self._next_training = now + self._timing.settle
            self._train(self._settings)

    def _train(self, settings: Settings, *more: str) -> None:
        """Start a trainer; without, mail flows as well."""
        try:
            self._trainer = children.start("spamguard.daemon.trainer", [str(settings.state), *more])
        except OSError as error:
            self._no_trainer.tell("cannot start a trainer: %s", error)
        else:
            self._no_trainer.over()

    def _look_at_ourselves(self) -> None:
        """Who installs another version is told at once what that needs, not when something ends. Without a worker we are of no more use."""
        try:
            installed.check()
        except ReplacedError as error:
            self._replaced.tell("%s; until then what runs goes on, and what ends is not started again", error)
            if not self._fleet.members:
                _log.error("no worker is left")
                self._status_at_end = 1  # for whoever looks after us to start what is installed now
                self._stop()
        else:
            self._replaced.over()

    def _watchdog(self) -> None:
        """A word to systemd, thrice as often as it wants, while every worker is heard."""
        if self._notifier.watchdog_seconds and time.monotonic() >= self._next_word and self._fleet.all_heard():
            self._next_word = time.monotonic() + self._notifier.watchdog_seconds / 3
            self._notifier.alive()

    def _stop(self) -> None:
        """Accept no more, and let the workers finish."""
        if self._fleet.stopping:
            return
        _log.info("stopping")
        self._notifier.stopping()
        self._kill_at = time.monotonic() + self._timing.drain
        self._fleet.stop()
        for one in self._beside:
            one.end()
        self._claim.release()  # the next one may start while our workers finish
        self._close_sockets()

    def _close_sockets(self) -> None:
        sockets.close([*self._sockets.values(), *self._gone.values()])

    def _end_children(self) -> None:
        """Nothing of ours is left behind, whatever has ended us."""
        if self._trainer is not None:
            self._trainer.kill()
            self._trainer.wait()
        for one in self._beside:
            one.end()
        self._fleet.end()


def _usual_workers() -> int:
    """One for two cores, as each has a scorer beside it (corpora/RESULTS.md, "How many workers")."""
    return (len(os.sched_getaffinity(0)) + 1) // 2
