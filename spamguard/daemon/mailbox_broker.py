"""The process that opens users' mailboxes, and nothing else: `spamguard open-mailboxes`,
spamguard-watch.service.

It may read every file of the machine: it keeps one right of root's (CAP_DAC_READ_SEARCH,
capabilities(7)) and loses all others. The daemon, which parses mail, has no such right and gets
descriptors from this process over a Unix socket. Each client has a thread and a `BrokerSession`.
The configuration, which this process reads for itself, says which mailboxes a client may have.

The system calls are made by ctypes because python-prctl must be compiled.

Must never parse mail or import a module that does, never write, never talk to a network, and never
answer anybody but root and the daemon's user.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import pwd
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial

from spamguard import process
from spamguard.config.options import Settings
from spamguard.daemon.startup import service_account
from spamguard.errors import ConfigError, SpamguardError, StartError, error_lines
from spamguard.folders import broker
from spamguard.folders.broker import BrokerSession
from spamguard.folders.maildir import LocalMailboxes
from spamguard.log import WarnOnce
from spamguard.process import Notifier

_log = logging.getLogger("spamguard.folders")

_REFUSAL = "only the user of the daemon, as `user` or the owner of `state` tells, may ask"

# The daemon needs one; the next one may come before this process notices that the last has gone.
_MAX_SESSIONS = 16
_SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)


@dataclass
class MailboxBroker:
    """The process.

    read: reads the configuration; raises ConfigError. user: the user to become if root has started
    this process.
    """

    _read: Callable[[], Settings]
    _user: str
    _warnings: WarnOnce = field(default_factory=partial(WarnOnce, _log))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sessions: set[socket.socket] = field(default_factory=set)

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT and return the exit status.

        ConfigError, StartError: nothing has been started.
        """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
        self._notifier = Notifier.from_environment(os.environ)
        self._settings = self._read()
        with ExitStack() as stack:
            listening = stack.enter_context(_open_socket(self._settings))
            become_reader(self._user)
            wakeups = stack.enter_context(process.signal_socket(_SIGNALS))
            stack.callback(self._hang_up)
            self._report_ready()
            interval = self._notifier.watchdog_seconds
            while True:
                ready, _, _ = select.select([listening, wakeups], [], [], interval and interval / 3)
                signals = wakeups.recv(4096) if wakeups in ready else b""
                if signal.SIGTERM in signals or signal.SIGINT in signals:
                    break
                if signal.SIGHUP in signals:
                    self._reload()
                if listening in ready:
                    self._accept(listening)
                if interval:
                    self._notifier.ping_watchdog()
            self._notifier.stopping()
        _log.info("stopped")
        return 0

    def _report_ready(self) -> None:
        patterns = ", ".join(watch.maildir for watch in self._settings.watch) or "no mailboxes"
        status = f"opening messages of {patterns}"
        _log.info("%s for clients on %s", status, self._settings.watch_socket)
        self._notifier.ready(status)

    def _reload(self) -> None:
        """Take on new patterns, or keep the old ones if the configuration cannot be used."""
        self._notifier.reloading()
        try:
            settings = self._read()
            if settings.watch_socket != self._settings.watch_socket:
                raise StartError("`watch_socket` cannot change while running: restart for that")
        except (SpamguardError, OSError) as error:
            for problem in error_lines(error):
                _log.error("%s", problem)
            _log.error("the old settings stay in force")
            self._notifier.ready("the new configuration has mistakes, see the log")
            return
        self._settings = settings
        self._hang_up()  # clients connect again and get the new patterns
        self._report_ready()

    # ---- clients

    def _accept(self, listening: socket.socket) -> None:
        try:
            channel, _ = listening.accept()
        except OSError as error:  # the client has gone, or no descriptors are left: that passes
            self._warnings.warn(error.errno, "cannot take a connection: %s", error.strerror)
            time.sleep(0.1)  # after a connection could not be accepted
            return
        _, account = process.peer_credentials(channel)
        try:
            allowed = {0, service_account(self._settings).pw_uid}
        except SpamguardError as error:
            self._warnings.warn("user", "%s; until then only root may ask", error)
            allowed = {0}
        refusal = "" if account in allowed else _REFUSAL
        if refusal:
            self._warnings.warn(account, "uid %d has asked and is refused: %s", account, refusal)
        if len(self._sessions) >= _MAX_SESSIONS:
            refusal = "there are too many connections"
        if refusal:
            with channel, suppress(OSError):
                channel.setblocking(False)
                channel.send(broker.pack_error(OSError(errno.EACCES, refusal)))
            return
        with self._lock:
            self._sessions.add(channel)
        threading.Thread(target=self._serve, args=(channel, self._settings), daemon=True).start()

    def _serve(self, channel: socket.socket, settings: Settings) -> None:
        try:
            with closing(LocalMailboxes(settings.watch)) as mailboxes:
                BrokerSession(channel, mailboxes).run(broker.fingerprint_watches(settings.watch))
        except ConnectionError:
            _log.debug("a client has gone while it was waiting")
        except (ValueError, OSError) as error:
            self._warnings.warn(("sent away", str(error)), "a client was sent away: %s", error)
        except Exception:  # noqa: BLE001  a fault of ours must not end the other sessions
            _log.exception("a fault in answering a client")
        finally:
            with self._lock:
                self._sessions.discard(channel)
                channel.close()

    def _hang_up(self) -> None:
        with self._lock:
            for channel in self._sessions:
                with suppress(OSError):
                    channel.shutdown(socket.SHUT_RDWR)


def _open_socket(settings: Settings) -> socket.socket:
    if settings.watch_socket is None:
        raise ConfigError(
            "`watch_socket` is not set: "
            "say where to listen, as in watch_socket: /run/spamguard-watch/mailboxes.sock"
        )
    if process.is_listening(settings.watch_socket):
        raise StartError(
            f"{settings.watch_socket}: another `open-mailboxes` listens there: stop that one "
            "(`systemctl stop spamguard-watch` where it is a service)"
        )
    try:
        # The peer's user id decides who may ask.
        listening = process.listen_at(settings.watch_socket, 0o666)
    except OSError as error:
        raise StartError(
            f"{settings.watch_socket}: cannot listen there ({error.strerror or error}): "
            "its directory must be there and belong to us"
        ) from error
    listening.setblocking(False)
    return listening


# ---- rights

CAP_DAC_READ_SEARCH = 2
_CAPABILITY_VERSION = 0x20080522  # of the structures of capset(2): two words for each set
_PR_SET_KEEPCAPS, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 8, 24, 38  # prctl(2)


def become_reader(name: str) -> None:
    """Become a user who may read everything and has no other right of root's; as root only.

    Call this before any thread starts: capabilities belong to threads.

    StartError: there is no such user, or the kernel refuses.
    """
    if os.geteuid() != 0:
        return
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise StartError(
            f"there is no user {name!r} to run as: create it, or name another with --user"
        ) from None
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        for capability in range(64):  # the kernel refuses those that it does not know
            if capability != CAP_DAC_READ_SEARCH:
                libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
        libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.setgroups([user.pw_gid])
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
        # The effective and the permitted set; the inheritable one is empty.
        capabilities = 1 << CAP_DAC_READ_SEARCH
        header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION, 0))
        data = ctypes.create_string_buffer(
            struct.pack("6I", capabilities, capabilities, 0, 0, 0, 0)
        )
        if libc.capset(header, data) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    except OSError as error:
        raise StartError(f"cannot become {name} ({error.strerror})") from error
