"""One account, kept in step: what came is judged, and where the account says so, spam is moved.

`AccountWatch.step` does what is due. Every five minutes all folders are listed with their
numbers, so that a server that keeps silent in IDLE costs minutes.

In the mode *look* nothing is ever written there. A move is written down before the command
(`records.Intent`). After a crash the folders tell what became of it: a message in Junk has been
moved; one that still lies in INBOX stays there, since its user may have put it back; what lies in
neither is gone.
"""

from __future__ import annotations

import errno
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from spamguard.config.accounts import Account, Mode, UnreadMoves
from spamguard.errors import SpamguardError
from spamguard.folders.roles import FolderKind
from spamguard.imap.bodies import Body, RecentBodies
from spamguard.imap.connection import Connection, ImapError
from spamguard.imap.folders import MAX_FOLDERS, account_folders, find_junk
from spamguard.imap.judge import NO_VERDICT, Answer, NoVerdictError
from spamguard.imap.line import Line
from spamguard.imap.listing import list_folder
from spamguard.imap.records import FolderRow, Intent, Records
from spamguard.imap.status import AccountStatus
from spamguard.log import WarnOnce

_log = logging.getLogger("spamguard.imap")

POLL_SECONDS = 300.0  # between two looks at all folders
_LINGER_SECONDS = 2.0  # until IDLE after a message was read: the next one may follow
_BATCH = 20  # messages that are judged in a step
_MAX_TRIES = 5  # to judge one message
_RETRY_SECONDS = (1.0, 60.0, 120.0, 300.0, 900.0, 3600.0)  # after a connection was lost
_STEADY_SECONDS = 60.0  # a connection that ends before was of no use
_REFUSED_SECONDS = 1200.0  # after a refused login
_DOOR_SECONDS = 5.0  # after no verdict could be had
_READ_SECONDS = 10.0  # that who reads a message waits for a step


class AccountWatch:
    """One account. Any thread may call `step` and `read`; they wait for each other.

    Attributes
    ----------
    due
        When `step` is to be called again, by the monotonic clock, if no socket is readable before.
    """

    def __init__(
        self,
        account: Account,
        directory: Path,
        ask: Callable[[Body, str], Answer],
        tell: Callable[[AccountWatch, Collection[str] | None], object],
        recent: RecentBodies,
    ) -> None:
        self.account, self.line, self.due = account, Line(account), 0.0
        self.records = Records(directory / f"{quote(account.name, safe='@')}.sqlite")
        self.status = AccountStatus(mode=account.mode)
        self._ask, self._tell, self._recent = ask, tell, recent
        self._wire = threading.Lock()
        self._junk = ""
        self._dirty: dict[int, str] = {}  # folders to be listed, with what STATUS said, or ""
        self._unread: set[int] = set()  # folders of messages that could not be read
        self._poll_at = 0.0
        self._failures = 0
        self._tries = Counter[str]()
        self._warnings = WarnOnce(_log)

    def close(self) -> None:
        with self._wire:
            self.due = math.inf
            self.line.close()
            self.records.close()

    @property
    def is_listed(self) -> bool:
        """Whether it is known what lies where."""
        inbox = self.folder("")
        return bool(inbox and inbox.uidvalidity)

    # ---- a step

    def step(self) -> None:
        """Do what is due, whatever happens."""
        with self._wire:
            try:
                pause = self._step()
                self.status.trouble = ""
                self._warnings.clear("account")
                if time.time() - self.status.connected_since > _STEADY_SECONDS:
                    self._failures = 0
            except NoVerdictError as error:
                pause = _DOOR_SECONDS
                self._show_trouble(str(error))
            except SpamguardError as error:
                pause = self._fail(error, str(error))
            except Exception as error:  # noqa: BLE001  the other accounts go on
                _log.exception("%s: a fault", self.account.name)
                pause = self._fail(error, "a fault of ours, see the log")
            self.due = time.monotonic() + pause

    def _fail(self, error: Exception, text: str) -> float:
        """End the connections; in how many seconds to try again."""
        self.line.close()
        self.status.connected_since = 0
        pause = _RETRY_SECONDS[min(self._failures, len(_RETRY_SECONDS) - 1)]
        self._failures += 1
        if isinstance(error, ImapError) and error.refused:
            pause, text = _REFUSED_SECONDS, f"{text}: {self.account.provider.refusal}"
        if pause > _RETRY_SECONDS[0]:
            self._show_trouble(text)
        return pause

    def _show_trouble(self, text: str) -> None:
        self.status.trouble = text
        self._warnings.warn("account", "%s: %s", self.account.name, text)

    def _step(self) -> float:
        if not self.line.is_up:
            self.line.connect()
            self._poll_at = 0.0
            self.status.connected_since = int(time.time())
        told = self.line.end_wait()
        self._dirty.update({row.id: "" for row in self.folders() if row.raw in told})
        intents = self.records.intents()
        for intent in intents:
            self._dirty[intent.source] = self._dirty[intent.target] = ""
        if time.monotonic() >= self._poll_at:
            self._poll()
            self._poll_at = time.monotonic() + POLL_SECONDS
        self._look()
        for intent in intents:
            self._settle(intent)
        has_judged = self._judge()
        unread, self._unread = self._unread, set()
        self._tell_folders(unread)
        vars(self.status).update(self.records.numbers(self._junk))
        if has_judged:  # look what became of it, and whether there is more
            return 0.0
        return min(self.line.wait(), max(0.0, self._poll_at - time.monotonic()))

    @contextmanager
    def _warning(self, text: str) -> Iterator[None]:
        """Go on if the server refuses something, and tell, once until it accepts."""
        try:
            yield
            self._warnings.clear(text)
        except ImapError as error:
            if error.lost:
                raise
            self._warnings.warn(text, "%s: %s: %s", self.account.name, text, error)

    # ---- folders

    def folders(self) -> list[FolderRow]:
        return self.records.folders()

    def folder(self, directory: str) -> FolderRow | None:
        """The folder of this name among ours."""
        return next((row for row in self.folders() if row.directory == directory), None)

    def _poll(self) -> None:
        """Learn which folders there are, and in which something has changed since they were last
        looked at.
        """
        before = {row.directory for row in self.folders()}
        listed = self.line.other.list_folders()
        found = account_folders(self.account, listed)
        if not any(each.directory == "" for each in found):  # each server has it: half an answer
            raise ImapError("the server lists no INBOX")
        self._junk = find_junk(found)
        watched = [each for each in found if each.role.kind is not FolderKind.IGNORED]
        watched.sort(key=lambda each: (each.role.label == "", each.directory))
        self.records.set_folders(watched[:MAX_FOLDERS])
        if before != {row.directory for row in self.folders()}:
            self._tell(self, None)
        told = {each.raw: each.status for each in listed}
        for row in self.folders():
            status = told[row.raw] or self.line.other.status(row.raw)
            if not status or status != row.status:
                self._dirty[row.id] = status
        self.records.forget_old()

    def _look(self) -> None:
        """Bring the records of folders up to date in which something may have changed."""
        was_listed, heard = self.is_listed, self.line.heard
        for row in sorted(self.folders(), key=self._turn):
            is_deaf = row.raw not in heard and (row.is_inbox or row.raw == self._junk)
            if is_deaf or row.id in self._dirty:
                with self._warning(f"{row.raw} cannot be opened"):
                    self._look_at(row)
        self._dirty.clear()
        if self.is_listed and not was_listed:
            self._tell(self, None)

    def _turn(self, row: FolderRow) -> tuple[bool, bool, int]:
        # INBOX last: what was moved there from elsewhere is known by then. But where folders are
        # labels, what came is new there, whatever else is on it.
        # Of the others Junk, in which IDLE goes on.
        has_labels = "X-GM-EXT-1" in self.line.other.capabilities
        return row.is_inbox is not has_labels, row.raw == self._junk, row.id

    def _look_at(self, folder: FolderRow) -> None:
        connection, uidvalidity = self.line.open(folder)
        connection.changed = False
        status = self._dirty.get(folder.id, folder.status)
        touched = list_folder(connection, self.records, folder, uidvalidity, status)
        if touched:
            self.status.last_change = int(time.time())
            self._tell_folders(touched)

    def _tell_folders(self, numbers: Collection[int]) -> None:
        if self.is_listed:
            self._tell(self, [row.directory for row in self.folders() if row.id in numbers])

    # ---- judging and moving

    def _judge(self) -> bool:
        """Judge what is new in INBOX; whether there was anything."""
        inbox = self.folder("")
        if inbox is None or not (waiting := self.records.waiting(inbox, _BATCH)):
            return False
        connection, uidvalidity = self.line.open(inbox)
        if uidvalidity != inbox.uidvalidity:  # these UIDs are of other messages now
            self._dirty[inbox.id] = ""
            return True
        self.line.check_budget()
        for name, uid in waiting:
            self._judge_message(connection, inbox, name, uid)
            self._tell_folders([inbox.id])  # who reads it soon finds it among the recent ones
        return True

    def _judge_message(self, connection: Connection, inbox: FolderRow, name: str, uid: int) -> None:
        if self._tries[name] >= _MAX_TRIES:  # perhaps it ends the connection each time
            del self._tries[name]
            self.records.set_judged(name)
            return
        self._tries[name] += 1
        body = self.line.fetch(connection, uid)
        if body is None:
            self._dirty[inbox.id] = ""
            return
        answer = NO_VERDICT
        if not self.records.is_judged(body.digest):
            answer = self._ask(body, self.account.name)
        del self._tries[name]
        junk = next((row for row in self.folders() if row.raw == self._junk), None)
        intent = None
        if self.account.mode is Mode.MOVE and answer.is_spam and junk and connection.can_move:
            intent = Intent(name, inbox.id, uid, junk.id)
        self.records.set_judged(name, body.digest, answer, intent)
        self._recent.keep(self.account.name, name, body)
        if intent:
            with self._warning(f"spam cannot be moved to {self._junk}"):
                connection.move(uid, self._junk)
        elif self.account.mode is Mode.FLAG:
            self._flag(connection, uid, answer)

    def _flag(self, connection: Connection, uid: int, answer: Answer) -> None:
        wanted = "$Junk" if answer.is_spam else "$NotJunk"
        if answer.label in ("", "unsure") or not self.line.keywords & {"\\*", wanted.lower()}:
            return
        with self._warning("cannot be flagged"):
            connection.add_flag(uid, wanted.encode())

    def _settle(self, intent: Intent) -> None:
        """End a move of ours, by where the message lies now that both folders were looked at."""
        places, inbox = self.records.places(intent.name), self.folder("")
        if inbox and intent.target in places and places.get(inbox.id) == intent.uid:
            # It was copied, and we got no further.
            connection, uidvalidity = self.line.open(inbox)
            if uidvalidity == inbox.uidvalidity:
                with self._warning("a copy of spam stays in INBOX"):
                    connection.remove(intent.uid)
                    return  # and see in the next step that it has gone
        self.records.end_intent(intent)
        self._tell_folders([intent.source, intent.target])

    # ---- what the watcher of folders sees

    def shown(self, folder: FolderRow) -> list[tuple[str, str]]:
        """Names and flags of messages in a folder.

        Unread mail in Junk may have been moved there by the provider: it is not shown.
        """
        waits = self.account.provider.filters and self.account.unread_moves is UnreadMoves.WAIT
        hides = bool(waits) and folder.label not in ("", "ham")
        return self.records.shown(folder, hide_unread=hides)

    def read(self, folder: FolderRow, name: str) -> int:
        """A descriptor of a message that is shown in a folder, our field before it.

        OSError: it cannot be had now. FileNotFoundError: it is not there.
        """
        place = self.records.find(folder, name)
        body = self._recent.take(self.account.name, name)
        if place and body is None:
            try:
                body = self._fetch(place.folder, place.uid)
            finally:
                if body is None:
                    self._unread.add(folder.id)
                    self.records.note_unread(name)
        if place is None or body is None:
            raise FileNotFoundError(errno.ENOENT, "no such message", name)
        if self.records.note_read(name, body.digest):
            self._recent.keep(self.account.name, name, body)
        whole = Body()
        # A first line that begins with a blank would become the tail of our field.
        if place.field and next(body.pieces(), b"")[:1] not in (b" ", b"\t"):
            whole.write(place.field + b"\r\n")
        for piece in body.pieces():
            whole.write(piece)
        return whole.seal()

    def _fetch(self, folder: FolderRow, uid: int) -> Body | None:
        if not self._wire.acquire(timeout=_READ_SECONDS):
            raise BlockingIOError(errno.EAGAIN, "the server takes long", self.account.name)
        try:
            if not self.line.is_up:
                raise ConnectionError(errno.ENOTCONN, "not connected", self.account.name)
            self.due = time.monotonic() + _LINGER_SECONDS
            connection, uidvalidity = self.line.open(folder)
            return self.line.fetch(connection, uid) if uidvalidity == folder.uidvalidity else None
        except ImapError as error:
            raise OSError(errno.EIO, str(error), self.account.name) from error
        finally:
            self._wire.release()

    def note_known(self, folder: FolderRow) -> None:
        """The watcher knows what was shown in a folder: what was read there and has been moved on
        is shown where it is now.
        """
        self._tell_folders(self.records.note_known(folder))
