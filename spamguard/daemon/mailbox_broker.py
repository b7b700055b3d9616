"""The process that opens users' mailboxes, and nothing else: `spamguard open-mailboxes`,
spamguard-watch.service.

It may read every file of the machine: its unit leaves it one right of root's (CAP_DAC_READ_SEARCH,
capabilities(7)) and no other. The daemon, which parses mail, has no such right and gets descriptors
from this process over a Unix socket. Each client has a thread and a `BrokerSession`. The
configuration says which mailboxes a client may have; it is read for each client, so a reload of the
daemon, whose learner then connects again, is all that a change needs.

Must never parse mail or import a module that does, never write, never talk to a network, and never
answer anybody but root and the daemon's user.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress

from spamguard import process
from spamguard.config.options import Settings
from spamguard.daemon.startup import service_account
from spamguard.errors import ConfigError, SpamguardError, StartError, error_text
from spamguard.folders import broker
from spamguard.folders.broker import BrokerSession
from spamguard.folders.maildir import LocalMailboxes
from spamguard.log import WarnOnce
from spamguard.process import Notifier

_log = logging.getLogger("spamguard.folders")

# The daemon needs one; the next one may come before this process notices that the last has gone.
_MAX_SESSIONS = 16


class MailboxBroker:
    """The process. `read` reads the configuration, and raises ConfigError."""

    def __init__(self, read: Callable[[], Settings]) -> None:
        self._read = read
        self._notifier = Notifier.from_environment(os.environ)
        self._warnings = WarnOnce(_log)
        self._places = threading.Semaphore(_MAX_SESSIONS)

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT.

        ConfigError, StartError: nothing has been started.
        """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: sys.exit())
        settings = self._read()
        if os.geteuid() == 0:
            raise StartError(
                "will not run as root: start spamguard-watch.service, or run this as a user who "
                "has CAP_DAC_READ_SEARCH and nothing else (setpriv(1))"
            )
        with _open_socket(settings) as listening:
            self._report(settings)
            interval = self._notifier.watchdog_seconds
            listening.settimeout(interval and interval / 3)
            while True:
                with suppress(TimeoutError):
                    self._accept(listening, settings)
                self._notifier.ping_watchdog()

    def _report(self, settings: Settings) -> None:
        patterns = ", ".join(watch.maildir for watch in settings.watch) or "no mailboxes"
        status = f"opening messages of {patterns}"
        _log.info("%s for clients on %s", status, settings.watch_socket)
        self._notifier.ready(status)

    def _accept(self, listening: socket.socket, settings: Settings) -> None:
        channel, _ = listening.accept()
        _, account = process.peer_credentials(channel)
        try:
            if account not in (0, service_account(settings).pw_uid):
                raise StartError("only root and the user of the daemon may ask")
            settings = self._read()
            if not self._places.acquire(blocking=False):
                raise StartError("there are too many connections")
        except (SpamguardError, OSError) as error:
            text = error_text(error)
            self._warnings.warn((account, text), "uid %d is refused: %s", account, text)
            with channel, suppress(OSError):
                channel.setblocking(False)
                channel.send(broker.pack_error(OSError(errno.EACCES, text)))
            return
        self._report(settings)
        threading.Thread(target=self._serve, args=(channel, settings), daemon=True).start()

    def _serve(self, channel: socket.socket, settings: Settings) -> None:
        try:
            with channel, closing(LocalMailboxes(settings.watch)) as mailboxes:
                BrokerSession(channel, mailboxes).run(broker.fingerprint_watches(settings.watch))
        except ConnectionError:
            _log.debug("a client has gone while it was waiting")
        except (ValueError, OSError) as error:
            self._warnings.warn(("sent away", str(error)), "a client was sent away: %s", error)
        finally:
            self._places.release()


def _open_socket(settings: Settings) -> socket.socket:
    if settings.watch_socket is None:
        raise ConfigError(
            "`watch_socket` is not set: "
            "say where to listen, as in watch_socket: /run/spamguard-watch/mailboxes.sock"
        )
    try:
        # The peer's user id decides who may ask.
        return process.listen_at(settings.watch_socket, 0o666)
    except OSError as error:
        raise StartError(
            f"{settings.watch_socket}: cannot listen there ({error.strerror or error}): "
            "its directory must be there and belong to us"
        ) from error
