"""The master: owns the listening sockets and the children, and reads the configuration.

It is synchronous and small: one loop that waits for signals and for children, and once a second
does what is due. It opens the sockets as root, gives up root's rights, starts the workers, the
learner and the web process, and settles the filter by a short-lived process. SIGHUP reads the
configuration again; a configuration with mistakes changes nothing.

Must never read from the network, never import numpy, never wait for a worker, and never give up a
listening socket that the configuration still names.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from spamguard import __version__, log, native, process
from spamguard.config.options import ACCOUNTS_DOOR, Settings
from spamguard.counters import Counters, DaemonReport
from spamguard.daemon import startup, status
from spamguard.daemon.children import Service
from spamguard.errors import ConfigError, SpamguardError, StartError, error_lines
from spamguard.process import Notifier, ReplacedError
from spamguard.storage import LEDGER_FILE

_log = logging.getLogger("spamguard.daemon")

_SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
# In which workers and scorers have the processor to themselves, since the first client waits.
_FIRST_SCORER_TIMEOUT = 10.0
_TICK_SECONDS = 1.0  # between two rounds of what is due
_SETTLE_SECONDS = 60.0  # between two starts of the process that settles
_MAX_SILENCE_SECONDS = 10.0  # of a worker or the page, for systemd and monitors
_TASKS = {
    "page": (_MAX_SILENCE_SECONDS, "page and API: nobody serves them"),
    # Many lessons, and a long look at many mailboxes, delay heartbeats.
    "lessons": (150.0, "lessons: nobody learns them"),
    "folders": (150.0, "folders: nobody watches them"),
    "moves": (150.0, "accounts: nobody learns from moves there"),
    "accounts": (150.0, "accounts: nobody looks after them"),
}
"""The tasks of other processes: for how long each may be silent, and what that means."""


class Master:
    """The daemon.

    Parameters
    ----------
    read
        Reads the configuration; raises ConfigError.
    drain_seconds
        From the wish to stop to killing workers.
    on_ready
        Called once, when the daemon serves; must not wait.
    """

    def __init__(
        self,
        read: Callable[[], Settings],
        *,
        drain_seconds: float = 8.0,
        on_ready: Callable[[Settings], None] | None = None,
    ) -> None:
        self._read = read
        self._on_ready = on_ready
        self._drain_seconds = drain_seconds
        self._selector = selectors.DefaultSelector()
        self._began = 0
        self._workers = Service(
            "worker", self._selector, longest_pause=5.0, silent=20.0, overlaps=True
        )
        self._settler = Service("settle", self._selector, once=True)
        others = [Service(name, self._selector) for name in ("learner", "web", "courier", "imap")]
        self._learner, self._web, self._courier, self._imap = others
        self._services = [self._workers, self._settler, *others]
        self._notifier = Notifier(None)
        self._sockets: dict[startup.Address, socket.socket] = {}
        self._next_settling = self._next_tidying = self._kill_at = 0.0
        self._announced = self._serves = False
        self._starts_all = False  # a scorer is ready, so the other processes may start
        self._replaced_warning = log.WarnOnce(_log, logging.ERROR)
        self._exit_status = 0

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT and return the exit status.

        ConfigError, StartError: nothing has been started.
        """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
        settings = startup.read_apart(self._read)
        if shortage := process.memory_shortage(serving=True):
            raise ConfigError(shortage)
        self._notifier = Notifier.from_environment(os.environ)
        with ExitStack() as stack:
            stack.callback(self._selector.close)
            stack.callback(lambda: startup.close_all(self._sockets.values()))
            # before it can be reached: who has connected may expect an orderly stop
            wakeups = stack.enter_context(process.signal_socket(_SIGNALS))
            self._selector.register(
                wakeups, selectors.EVENT_READ, lambda: self._handle_signals(wakeups)
            )
            self._open_sockets(settings, below_state=False)
            uid = os.getuid()
            startup.drop_privileges(settings)
            if os.getuid() != uid:  # root can read files that this user cannot
                settings = startup.read_apart(self._read)
            startup.check_program()
            self._open_sockets(settings)
            self._state_lock = stack.enter_context(status.lock_state(settings.state))
            _log.info("spamguard %s (kernel: %s)", __version__, native.implementation())
            for service in self._services:  # none is left, for whatever reason this process ends
                stack.callback(service.end)
            stack.callback(self._workers.kill)
            self._create_filter(settings)
            self._starts_all_at = time.monotonic() + _FIRST_SCORER_TIMEOUT
            self._began = int(time.time())
            status.answer_clients(settings.state, self._selector, self._describe, stack)
            self._begin(settings)
            while self._workers.children or not self._workers.stopping:
                self._run_once()
        _log.info("stopped")
        return self._exit_status

    def _run_once(self) -> None:
        services = self._services if self._starts_all else [self._workers]
        next_start = min(service.next_start() for service in services)
        tick = _TICK_SECONDS if self._starts_all else 0.1
        for key, _ in self._selector.select(min(tick, next_start)):
            key.data()
        for service in services:
            service.maintain()
        if self._workers.stopping:
            if self._kill_at and time.monotonic() > self._kill_at:
                self._kill_at = 0.0
                self._workers.kill()
            return
        self._announce()
        now = time.monotonic()
        if self._starts_all:
            self._settle_if_due()
        elif self._workers.is_scoring or now > self._starts_all_at:
            # The others start as soon as mail is judged, or that takes long.
            self._starts_all = True
        # systemd counts from the first ping on, and starting has a time limit of its own.
        if self._serves and not self._find_stuck():
            self._notifier.ping_watchdog()
        self._check_installation()

    def _handle_signals(self, wakeups: socket.socket) -> None:
        received = wakeups.recv(4096)  # the number of each signal is a byte
        if signal.SIGTERM in received or signal.SIGINT in received:
            self._stop()
        elif signal.SIGHUP in received and not self._workers.stopping:
            self._reload()

    # ---- settings

    def _open_sockets(self, settings: Settings, *, below_state: bool = True) -> None:
        """Listen where the settings say; in the state directory only once it is there and ours.

        A socket that they no longer name stays open until its workers drain.
        """
        own = settings.state / ACCOUNTS_DOOR
        listens = [door.listen for door in settings.doors]
        endpoints = [each for each in listens if below_state or each.path != own]
        if not self._sockets:
            self._sockets = startup.take_inherited()
            startup.check_inherited(self._sockets, endpoints)
        self._sockets |= startup.open_all(endpoints, self._sockets)

    def _begin(self, settings: Settings) -> None:
        self._settings = settings
        self._announced = False
        addresses = [startup.endpoint_address(door.listen) for door in settings.doors]
        self._workers.begin(
            settings,
            # One for two cores: each has a scorer beside it (RESULTS.md, "How many workers").
            settings.workers or (len(os.sched_getaffinity(0)) + 1) // 2,
            files=[self._sockets[address].fileno() for address in addresses],
        )
        teaching = {
            "folders": settings.watch,
            "moves": settings.accounts,
            "lessons": settings.accepts_lessons,
        }
        tasks = [task for task, is_configured in teaching.items() if is_configured]
        self._learner.begin(settings, bool(tasks), tasks=tasks)
        page = ["page"] if settings.web else []
        self._web.begin(settings, bool(settings.web or settings.metrics), tasks=page)
        self._courier.begin(settings, bool(settings.shared))
        accounts = ["accounts"] if settings.accounts else []
        self._imap.begin(settings, len(accounts), tasks=accounts)

    def _reload(self) -> None:
        """Take on new settings, or keep the old ones if the new ones cannot be used."""
        _log.info("reading the configuration anew")
        self._notifier.reloading()
        try:
            process.check_installation()
            settings = startup.read_apart(self._read)
            if (settings.state, settings.user) != (self._settings.state, self._settings.user):
                # this process has given up the rights that it would need
                raise StartError("`state` and `user` cannot change while running: restart for that")
            self._open_sockets(settings)
        except (SpamguardError, OSError) as error:
            for problem in error_lines(error):
                _log.error("%s", problem)
            _log.error("the old settings stay in force")
            self._notifier.ready(
                f"{self._describe_doors()}; the new configuration is not in force, see the log"
            )
        else:
            self._begin(settings)

    def _announce(self) -> None:
        if self._announced or not self._workers.is_in_force:
            return
        self._announced = self._serves = True
        named = {startup.endpoint_address(door.listen) for door in self._settings.doors}
        startup.close_all(self._sockets.pop(other) for other in self._sockets.keys() - named)
        _log.info("%s", self._describe_doors())
        self._notifier.ready(self._describe_doors())
        if self._on_ready:
            self._on_ready(self._settings)
            self._on_ready = None  # not again after a reload

    def _describe_doors(self) -> str:
        doors = []
        for door in self._settings.doors:
            address = startup.format_address(startup.endpoint_address(door.listen))
            doors.append(f"{door.listen.protocol} on {address}")
        return f"serving {', '.join(doors)}"

    def _describe(self) -> dict[str, object]:
        return {
            **status.describe_daemon(self._settings),
            "stopping": self._workers.stopping,
            "workers": [
                {"pid": child.process.pid, "ready": child.message.ready}
                for child in self._workers.children
            ],
            "report": self._report(),
        }

    def _report(self) -> DaemonReport:
        counters, now = Counters(), time.monotonic()
        for service in self._services:
            service.count(counters)
        absent = [
            f"{text} for {now - heard:.0f} s"
            for service in self._services
            for task, heard in service.heard.items()
            for limit, text in [_TASKS[task]]
            if now - heard > limit
        ]
        return DaemonReport(
            self._began,
            len(self._workers.children),
            counters,
            self._find_stuck(),
            absent,
            self._workers.is_scoring,
        )

    def _find_stuck(self) -> list[str]:
        """What mail depends on and does not work."""
        now, workers = time.monotonic(), self._workers.children
        silent = [
            f"worker {worker.process.pid}: not heard for {now - worker.last_heard:.0f} s"
            for worker in workers
            if worker.message.ready and now - worker.last_heard > _MAX_SILENCE_SECONDS
        ]
        return silent if workers else ["workers: none runs"]

    # ---- processes

    def _create_filter(self, settings: Settings) -> None:
        """Create the filter of a new state directory before mail comes.

        Otherwise it would be left to chance which worker or scorer creates it.
        """
        if (settings.state / LEDGER_FILE).exists():
            return
        self._start_settling(settings)
        self._settler.maintain()
        for child in self._settler.children:
            with suppress(subprocess.TimeoutExpired):  # mail then passes unscored until it is done
                child.process.wait(20.0)

    def _settle_if_due(self) -> None:
        """Settle if a child has asked for it, or an hour is over.

        One process at a time, and not too often.
        """
        now = time.monotonic()
        asked = any(service.settling_due for service in self._services)
        is_due = asked or now >= self._next_tidying
        if is_due and not self._settler.children and now >= self._next_settling:
            for service in self._services:
                service.settling_due = False
            if asked:
                self._next_settling = now + _SETTLE_SECONDS
            self._start_settling(self._settings)

    def _start_settling(self, settings: Settings) -> None:
        """Start the process that settles; mail flows without it too."""
        # Held mail that is too old is removed, and mail that stayed is counted, every hour.
        self._next_tidying = time.monotonic() + 3600.0
        self._settler.begin(settings)

    def _check_installation(self) -> None:
        """Warn when another version has been installed; stop once no worker is left then."""
        try:
            process.check_installation()
        except ReplacedError as error:
            self._replaced_warning.report(
                "%s; until then what runs goes on, and what ends is not started again", error
            )
            if not self._workers.children:
                _log.error("no worker is left")
                self._exit_status = 1  # the service manager starts the installed version
                self._stop()
        else:
            self._replaced_warning.clear()

    def _stop(self) -> None:
        if self._workers.stopping:
            return
        _log.info("stopping")
        self._notifier.stopping()
        self._kill_at = time.monotonic() + self._drain_seconds
        self._workers.stop()
        for service in self._services[1:]:
            service.end()
        self._state_lock.close()  # the next daemon may start while our workers finish
        startup.close_all(self._sockets.values())
