"""The process that opens people's mailboxes, and nothing else: `spamguard open-mailboxes`, spamguard-watch.service.

It may read every file of the machine. So it parses no mail, imports nothing that does, writes nothing, talks to nobody on a network,
and answers the daemon's user and root alone; what it opens for them follows from the configuration as it reads it itself.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

from spamguard import unixsocket
from spamguard.daemon import capabilities, privileges, signals
from spamguard.daemon.notify import Notifier
from spamguard.errors import ConfigError, SpamguardError, StartError, problems
from spamguard.folders import protocol
from spamguard.folders.once import Once
from spamguard.folders.opener import LocalMailboxes
from spamguard.folders.protocol import ProtocolError
from spamguard.folders.serve import Session
from spamguard.settings import Settings

SESSIONS = 16  # at once: the daemon needs one, the next one may come before we know that it has gone
_MODE = 0o666  # who may ask is decided by who it is
_SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
_PAUSE = 0.1  # seconds, when connections cannot be taken

_log = logging.getLogger("spamguard.folders")


class Opening:
    """read: the configuration, anew each time; ConfigError. user: to become, when root has started this."""

    def __init__(self, read: Callable[[], Settings], user: str) -> None:
        self._read = read
        self._user = user
        self._notifier = Notifier(None)
        self._once = Once()
        self._lock = threading.Lock()
        self._sessions: set[socket.socket] = set()

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; the exit status. ConfigError, StartError: nothing has been started."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
        self._notifier = Notifier.from_environment(os.environ)
        self._settings = self._read()
        with ExitStack() as stack:
            listening = stack.enter_context(_listening(self._settings))
            capabilities.become_reader(self._user)
            wakeups = stack.enter_context(signals.received(_SIGNALS))
            stack.callback(self._hang_up)
            self._ready()
            while self._turn(listening, wakeups):
                pass
            self._notifier.stopping()
        _log.info("stopped")
        return 0

    def _turn(self, listening: socket.socket, wakeups: socket.socket) -> bool:
        """Wait for something and do it; False: it was the wish to end."""
        every = self._notifier.watchdog_seconds
        ready, _, _ = select.select([listening, wakeups], [], [], every and every / 3)
        signalled = wakeups.recv(4096) if wakeups in ready else b""
        if signal.SIGTERM in signalled or signal.SIGINT in signalled:
            return False
        if signal.SIGHUP in signalled:
            self._reload()
        if listening in ready:
            self._accept(listening)
        if every:
            self._notifier.alive()
        return True

    def _ready(self) -> None:
        told = f"opening messages of {', '.join(watch.maildir for watch in self._settings.watch) or 'no mailboxes'}"
        _log.info("%s for whoever asks on %s", told, self._settings.watch_socket)
        self._notifier.ready(told)

    def _reload(self) -> None:
        """Take on new patterns, or stay with the old ones when the configuration cannot be used."""
        self._notifier.reloading()
        try:
            settings = self._read()
            if settings.watch_socket != self._settings.watch_socket:
                raise StartError("`watch_socket` cannot change while running: restart for that")
        except (SpamguardError, OSError) as error:
            for problem in problems(error):
                _log.error("%s", problem)
            _log.error("the old settings stay in force")
            self._notifier.ready("the new configuration has mistakes, see the log")
            return
        others = settings != self._settings
        self._settings = settings
        if others:
            self._hang_up()  # whoever was there comes back and hears what is served now
        self._ready()

    # ---- clients

    def _accept(self, listening: socket.socket) -> None:
        try:
            channel, _ = listening.accept()
        except OSError as error:  # it has gone again, or there are no descriptors left: that passes
            self._once.warn(error.errno, "cannot take a connection: %s", error.strerror)
            time.sleep(_PAUSE)
            return
        refusal = self._refusal(unixsocket.account(channel))
        if refusal:
            with channel, suppress(OSError):
                channel.setblocking(False)
                channel.send(protocol.refusal(OSError(errno.EACCES, refusal)))
            return
        with self._lock:
            self._sessions.add(channel)
        threading.Thread(target=self._serve, args=(channel, self._settings), daemon=True).start()

    def _refusal(self, account: int) -> str:
        """Why somebody may not ask; empty: they may."""
        try:
            ours = privileges.service_account(self._settings).pw_uid
        except SpamguardError as error:
            self._once.warn("user", "%s; until then only root may ask", error)
            ours = 0
        if account not in (0, ours):
            self._once.warn(account, "uid %d has asked and is refused: `user` of the configuration, or the owner of `state`, may", account)
            return "only the user of the daemon, as `user` or the owner of `state` tells, may ask"
        with self._lock:
            return "there are too many connections" if len(self._sessions) >= SESSIONS else ""

    def _serve(self, channel: socket.socket, settings: Settings) -> None:
        """One client, in a thread of its own."""
        try:
            with closing(LocalMailboxes(settings.watch)) as mailboxes:
                Session(channel, mailboxes).run(protocol.fingerprint(settings.watch))
        except ConnectionError:
            _log.debug("a client has gone while it was waiting")
        except (ProtocolError, OSError) as error:
            self._once.warn(("sent away", str(error)), "a client was sent away: %s", error)
        except Exception:  # a fault of ours ends with this client, who may come again  # noqa: BLE001
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


def _listening(settings: Settings) -> socket.socket:
    """StartError, ConfigError."""
    if settings.watch_socket is None:
        raise ConfigError("`watch_socket` is not set: say where to listen, as in watch_socket: /run/spamguard-watch/mailboxes.sock")
    if unixsocket.is_served(settings.watch_socket):
        raise StartError(
            f"{settings.watch_socket}: another `open-mailboxes` listens there: stop that one "
            "(`systemctl stop spamguard-watch` where it is a service)"
        )
    try:
        found = unixsocket.listening(settings.watch_socket, _MODE)
    except OSError as error:
        told = f"{settings.watch_socket}: cannot listen there ({error.strerror or error}): its directory must be there and belong to us"
        raise StartError(told) from error
    found.setblocking(False)
    return found
