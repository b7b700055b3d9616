"""All accounts in one process: each has a thread, which waits until something is due or its server
tells of something. Four at a time do something: what servers may make us hold in memory has an end.
"""

from __future__ import annotations

import logging
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from spamguard.config.accounts import Account
from spamguard.config.options import ACCOUNTS_DIRECTORY, ACCOUNTS_DOOR
from spamguard.folders import broker
from spamguard.folders.broker import BrokerSession
from spamguard.imap import judge
from spamguard.imap.account import AccountWatch
from spamguard.imap.bodies import Body, RecentBodies
from spamguard.imap.judge import Answer
from spamguard.imap.mailboxes import ImapMailboxes
from spamguard.imap.status import AccountStatus, write_status

_log = logging.getLogger("spamguard.imap")

_AT_ONCE = 4
_BEAT_SECONDS = 5.0


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
        ask: Callable[[Body, str], Answer] | None = None,
    ) -> None:
        self._state, self._accounts = state, accounts
        directory = state / ACCOUNTS_DIRECTORY
        directory.mkdir(mode=0o700, exist_ok=True)
        ask = ask or partial(judge.ask, state / ACCOUNTS_DOOR)
        shared = (directory, ask, self._tell, RecentBodies())
        self.watches = [AccountWatch(each, *shared) for each in accounts]
        self._mailboxes = ImapMailboxes(self.watches)
        self._turns = threading.Semaphore(_AT_ONCE)

    def run(self, beat: Callable[[], object]) -> None:
        """Keep all accounts in step.

        Parameters
        ----------
        beat
            Called every five seconds; what it raises ends this.
        """
        for watch in self.watches:
            threading.Thread(target=self._keep, args=(watch,), daemon=True).start()
        written: dict[str, AccountStatus] = {}
        while True:
            beat()
            statuses = {watch.account.name: replace(watch.status) for watch in self.watches}
            if statuses != written:
                write_status(self._state, statuses)
                written = statuses
            time.sleep(_BEAT_SECONDS)

    def _keep(self, watch: AccountWatch) -> None:
        while watch.due < math.inf:  # until it is closed
            with self._turns:
                watch.step()
            while 0.0 < (pause := watch.due - time.monotonic()) < math.inf:
                poller = select.poll()
                for number in watch.line.sockets():
                    poller.register(number, select.POLLIN)
                told = poller.poll(min(_BEAT_SECONDS, pause) * 1000)
                # Who reads a message ends IDLE meanwhile, and sets another time.
                if any(number in watch.line.sockets() for number, _ in told):
                    break

    def close(self) -> None:
        for watch in self.watches:
            watch.close()

    def _tell(self, watch: AccountWatch, directories: Collection[str] | None) -> None:
        self._mailboxes.tell(watch, directories)

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
        mailboxes = self.open_mailboxes()
        with channel:
            try:
                fingerprint = broker.fingerprint_watches(broker.account_watches(self._accounts))
                BrokerSession(channel, mailboxes).run(fingerprint)
            except (ValueError, OSError) as error:
                _log.debug("a client has gone: %s", error)

    def open_mailboxes(self) -> ImapMailboxes:
        """The accounts, as they are shown to one watcher: the last one hears of changes."""
        self._mailboxes = ImapMailboxes(self.watches)
        return self._mailboxes
