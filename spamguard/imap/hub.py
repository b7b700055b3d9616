"""All accounts in one process: a poll(2) of the sockets that wait in IDLE, and four threads that do
what is due. A slow server keeps one thread, for as long as a command may take.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from spamguard.config.accounts import Account
from spamguard.config.options import ACCOUNTS_DIRECTORY, ACCOUNTS_DOOR
from spamguard.folders import broker
from spamguard.folders.broker import BrokerSession
from spamguard.imap import judge
from spamguard.imap.account import AccountWatch, RecentMessages
from spamguard.imap.judge import Answer
from spamguard.imap.mailboxes import ImapMailboxes
from spamguard.imap.status import AccountStatus, write_status
from spamguard.log import WarnOnce

_log = logging.getLogger("spamguard.imap")

_THREADS = 4
_STATUS_SECONDS = 5.0
_FAULT_SECONDS = 5.0  # until the watcher may ask again, which then looks at everything


class Hub:
    """The accounts of a state directory; the caller closes them.

    Parameters
    ----------
    ask
        Judges a message of a user; None: the daemon's own door does.
    """

    def __init__(
        self,
        state: Path,
        accounts: Sequence[Account],
        ask: Callable[[bytes, str], Answer] | None = None,
    ) -> None:
        self._state, self._accounts = state, accounts
        directory = state / ACCOUNTS_DIRECTORY
        directory.mkdir(mode=0o700, exist_ok=True)
        ask = ask or partial(judge.ask, state / ACCOUNTS_DOOR)
        recent = RecentMessages()
        self.watches = [
            AccountWatch(account, directory, ask, self._tell, recent) for account in accounts
        ]
        self._listeners: set[ImapMailboxes] = set()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="imap")
        self._busy: set[AccountWatch] = set()
        self._wakeup, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._stopping = False
        self._written: dict[str, AccountStatus] = {}
        self._status_at = 0.0
        self._warnings = WarnOnce(_log)

    def run(self, beat: Callable[[], object]) -> None:
        """Keep all accounts in step until `stop`.

        Parameters
        ----------
        beat
            Called at least every five seconds.
        """
        while not self._stopping:
            beat()
            self._write_status()
            poller = select.poll()
            poller.register(self._wakeup, select.POLLIN)
            waiting: dict[int, AccountWatch] = {}
            for watch in self.watches:
                if watch not in self._busy:
                    waiting |= dict.fromkeys(watch.sockets(), watch)
            for descriptor in waiting:
                poller.register(descriptor, select.POLLIN)
            idle = [watch.due for watch in self.watches if watch not in self._busy]
            pause = min([_STATUS_SECONDS, *(due - time.monotonic() for due in idle)])
            events = {descriptor for descriptor, _ in poller.poll(max(0.0, pause) * 1000)}
            if self._wakeup.fileno() in events:
                self._wakeup.recv(4096)
            now = time.monotonic()
            ready = {waiting[number] for number in events & waiting.keys()}
            ready |= {watch for watch in self.watches if watch.due <= now}
            for watch in ready - self._busy:
                self._busy.add(watch)
                self._pool.submit(self._step, watch)

    def stop(self) -> None:
        self._stopping = True
        self._wake()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        for watch in self.watches:
            watch.close()
        self._wakeup.close()
        self._waker.close()

    def _step(self, watch: AccountWatch) -> None:
        try:
            watch.step()
        finally:
            self._busy.discard(watch)
            self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self._waker.send(b"\0")

    def _tell(self, watch: AccountWatch, directories: Collection[str] | None) -> None:
        for listener in list(self._listeners):
            listener.tell(watch, directories)

    def _write_status(self) -> None:
        if time.monotonic() < self._status_at:
            return
        self._status_at = time.monotonic() + _STATUS_SECONDS
        statuses = {watch.account.name: replace(watch.status) for watch in self.watches}
        if statuses != self._written:
            try:
                write_status(self._state, statuses)
                self._written = statuses
                self._warnings.clear("status")
            except OSError as error:
                self._warnings.warn("status", "the status cannot be written: %s", error.strerror)

    # ---- the watcher of folders

    def serve(self, listening: socket.socket) -> None:
        """Show the accounts to whoever may reach the socket, each in a thread, until it closes."""
        while True:
            try:
                channel, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(channel,), daemon=True).start()

    def _serve(self, channel: socket.socket) -> None:
        with channel, closing(self.open_mailboxes()) as mailboxes:
            try:
                fingerprint = broker.fingerprint_watches(broker.account_watches(self._accounts))
                BrokerSession(channel, mailboxes).run(fingerprint)
            except (ValueError, OSError) as error:
                _log.debug("a client has gone: %s", error)
            except Exception:  # noqa: BLE001  a fault of ours must not end the other sessions
                _log.exception("a fault in answering a client")
                time.sleep(_FAULT_SECONDS)
            finally:
                self._listeners.discard(mailboxes)

    def open_mailboxes(self) -> ImapMailboxes:
        """The accounts, as they are shown to one watcher."""
        mailboxes = ImapMailboxes(self.watches)
        self._listeners.add(mailboxes)
        return mailboxes
