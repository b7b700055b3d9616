"""The two connections of an account: one has INBOX open and one Junk, or for a moment another
folder. Between two steps both wait in IDLE. What IDLE tells is a hint and no more.
"""

from __future__ import annotations

import time

from spamguard.config.accounts import Account, Mode
from spamguard.imap.bodies import Body
from spamguard.imap.connection import SILENCE_SECONDS, Connection, ImapError, connect
from spamguard.imap.records import FolderRow

RENEW_SECONDS = 540.0  # of an IDLE: some servers hang up before 10 minutes
_NO_IDLE_SECONDS = 60.0
_SOON_SECONDS = 1.0  # after something was told while we were busy
_DAILY_BYTES = 500_000_000  # unless the provider lets more be fetched


class Line:
    """Both connections. ImapError: there are none any more, or a server refuses something.

    Attributes
    ----------
    silence
        How many seconds the server may keep silent.
    keywords
        The flags that may be set in INBOX.
    """

    def __init__(self, account: Account) -> None:
        self.silence = SILENCE_SECONDS
        self.keywords = frozenset[str]()
        self._account = account
        self._connections: list[Connection] = []  # that of INBOX and the other one
        self._day = self._fetched = 0

    @property
    def is_up(self) -> bool:
        return bool(self._connections) and not any(each.closed for each in self._connections)

    def connect(self) -> None:
        self.close()
        for _ in range(2):
            self._connections.append(connect(self._account, self.silence))

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections = []

    # ---- folders

    @property
    def other(self) -> Connection:
        """The one for all that is not about INBOX."""
        return self._connections[1]

    def open(self, folder: FolderRow) -> tuple[Connection, int]:
        """The connection that has this folder open, and its UIDVALIDITY now."""
        connection = self._connections[0 if folder.is_inbox else 1]
        connection.hear()  # until then the server may hide what came
        writes = folder.is_inbox and self._account.mode is not Mode.LOOK
        if connection.folder == (folder.raw, writes) and folder.uidvalidity:
            return connection, folder.uidvalidity
        selected = connection.select(folder.raw, readonly=not writes)
        if folder.is_inbox:
            self.keywords = selected.keywords
        return connection, selected.uidvalidity

    # ---- messages

    def check_budget(self) -> None:
        """ImapError: as much as may be was fetched today."""
        today = int(time.time() // 86_400)
        if today != self._day:
            self._day, self._fetched = today, 0
        if self._fetched > (self._account.provider.daily_bytes or _DAILY_BYTES):
            raise ImapError("as much as may be was fetched today: the rest waits for tomorrow")

    def fetch(self, connection: Connection, uid: int) -> Body | None:
        self.check_budget()
        body = connection.fetch_message(uid)
        self._fetched += body.size if body else 0
        return body

    # ---- waiting

    @property
    def heard(self) -> set[str]:
        """The raw names of folders of which the server tells."""
        return {each.folder[0] for each in self._connections if each.folder}

    def end_wait(self) -> set[str]:
        """Let commands be given; the raw names of folders of which something was told."""
        told = set()
        for connection in self._connections:
            connection.hear()
            if connection.changed and connection.folder:
                told.add(connection.folder[0])
            connection.changed = False
        return told

    def wait(self) -> float:
        """Let the server tell of changes; in how many seconds to look again without that."""
        waiting = [each for each in self._connections if each.folder]
        # What was told by the way is not told again in IDLE.
        if any(each.changed or each.idle() for each in waiting):
            return _SOON_SECONDS
        return RENEW_SECONDS if all(each.is_idle for each in waiting) else _NO_IDLE_SECONDS

    def sockets(self) -> list[int]:
        """The sockets on which the server may tell of something."""
        waiting = [each for each in list(self._connections) if each.is_idle]
        return [number for each in waiting if (number := each.fileno()) >= 0]
