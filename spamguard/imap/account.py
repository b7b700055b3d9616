"""One account, kept in step: what came is judged, and where the account says so, spam is moved.

`AccountWatch.step` does what is due, with two connections: one has INBOX open and one Junk, or for
a moment another folder; between steps both wait in IDLE. What IDLE tells is a hint: a folder is
always compared with the records by its UIDs, and now and then all are asked for by STATUS, so that
a server that keeps silent costs minutes.

In the mode *look* nothing is ever written there. A move is written down before the command
(`records.Intent`). After a crash the folders tell what became of it: a message in Junk has been
moved; one that still lies in INBOX stays there, since its user may have put it back; what lies in
neither is gone.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from hashlib import blake2b
from pathlib import Path
from urllib.parse import quote

from spamguard.config.accounts import Account, Mode, UnreadMoves
from spamguard.errors import SpamguardError
from spamguard.imap.connection import (
    SILENCE_SECONDS,
    Connection,
    FetchedMessage,
    ImapError,
    batches,
    connect,
)
from spamguard.imap.folders import MAX_FOLDERS, account_folders, find_junk
from spamguard.imap.judge import NO_VERDICT, Answer, NoVerdictError
from spamguard.imap.records import FolderRow, Found, Intent, Records, Waiting
from spamguard.imap.status import AccountStatus
from spamguard.log import WarnOnce

_log = logging.getLogger("spamguard.imap")

RENEW_SECONDS = 540.0  # of an IDLE: some servers hang up before 10 minutes
POLL_SECONDS = 300.0  # between two looks at all folders
_RELIST_SECONDS = 1800.0  # between two lists of folders
_SOON_SECONDS = 1.0  # after something was told while we were busy
_LINGER_SECONDS = 2.0  # until IDLE after a message was read: the next one may follow
_PORTION = 5000  # messages that are written down at once when a folder is first listed
_BATCH = 20  # messages that are judged in a step
_MAX_TRIES = 5  # to judge one message
_RETRY_SECONDS = (1.0, 60.0, 120.0, 300.0, 900.0, 3600.0)  # after a connection was lost
_REFUSED_SECONDS = 1200.0  # after a refused login
_DOOR_SECONDS = 5.0  # after no verdict could be had
_OLD_SECONDS = 3600.0  # by so much the server's clock may be slow
_DAILY_BYTES = 500_000_000  # unless the provider lets more be fetched
_FINGERPRINT = "RFC822.SIZE INTERNALDATE BODY.PEEK[HEADER.FIELDS (MESSAGE-ID)]"


@dataclass
class RecentMessages:
    """Messages that were fetched just now, for those who want them again: each once."""

    limit: int = 16 << 20
    _messages: OrderedDict[tuple[str, str], bytes] = field(default_factory=OrderedDict)
    _size: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, account: str, name: str, raw: bytes) -> None:
        with self._lock:
            self._messages[account, name] = raw
            self._size += len(raw)
            while self._size > self.limit:
                self._size -= len(self._messages.popitem(last=False)[1])

    def take(self, account: str, name: str) -> bytes | None:
        with self._lock:
            raw = self._messages.pop((account, name), None)
            self._size -= len(raw or b"")
            return raw


class AccountWatch:
    """One account. Any thread may call `step` and `read`; they wait for each other.

    Attributes
    ----------
    due
        When `step` is to be called again, by the monotonic clock, if no socket is readable before.
    silence
        How many seconds the server may keep silent.
    """

    def __init__(
        self,
        account: Account,
        directory: Path,
        ask: Callable[[bytes, str], Answer],
        tell: Callable[[AccountWatch, Collection[str] | None], object],
        recent: RecentMessages,
    ) -> None:
        self.account = account
        self.records = Records(directory / f"{quote(account.name, safe='@')}.sqlite")
        self.due = 0.0
        self.silence = SILENCE_SECONDS
        self.status = AccountStatus(mode=account.mode)
        self._ask, self._tell, self._recent = ask, tell, recent
        self._wire = threading.Lock()
        self._connections: list[Connection] = []  # that of INBOX and the other one
        self._keywords: frozenset[str] = frozenset()
        self._junk = ""
        self._folders: dict[int, FolderRow] = {}
        self._dirty: set[int] = set()
        self._unread: set[int] = set()  # folders of messages that could not be read
        self._statuses: dict[int, str] = {}  # of folders, noted once they were looked at
        self._shut: set[int] = set()  # folders that cannot be opened
        self._poll_at = self._relist_at = 0.0
        self._failures = 0
        self._tries: dict[str, int] = {}
        self._fetched = (0, 0)  # day, bytes
        self._warnings = WarnOnce(_log)
        self._take_folders()
        if not self.records.fact("added"):
            self.records.set_fact("added", str(int(time.time())))
        self._added = int(self.records.fact("added")) - _OLD_SECONDS

    def close(self) -> None:
        with self._wire:
            self._disconnect()
            self.records.close()

    def sockets(self) -> list[int]:
        """The sockets on which the server may tell of something."""
        found = [each.fileno() for each in list(self._connections) if each.is_idle]
        return [number for number in found if number >= 0]

    @property
    def is_listed(self) -> bool:
        """Whether it is known what lies where."""
        rows = self._folders.values()
        return bool(rows) and all(row.uidvalidity or row.id in self._shut for row in rows)

    # ---- a step

    def step(self) -> None:
        """Do what is due, whatever happens."""
        pause = RENEW_SECONDS
        with self._wire:
            try:
                pause = self._step()
                self.status.trouble = ""
                if time.time() - self.status.connected_since > _RETRY_SECONDS[1]:
                    self._failures = 0  # else it hangs up at once, each time
                self._warnings.clear("account")
            except ImapError as error:
                if error.refused:
                    remedy = self.account.provider.refusal
                    pause = self._fail(f"{error}: {remedy}", _REFUSED_SECONDS)
                else:
                    pause = self._fail(str(error))
            except NoVerdictError as error:
                pause = self._fail(str(error), _DOOR_SECONDS, keep=True)
            except SpamguardError as error:  # no password, or trouble with our own file
                pause = self._fail(str(error), _REFUSED_SECONDS)
            except Exception:  # noqa: BLE001  the other accounts go on
                _log.exception("%s: a fault", self.account.name)
                pause = self._fail("a fault of ours, see the log")
        self.due = time.monotonic() + pause

    def _fail(self, text: str, pause: float = 0.0, *, keep: bool = False) -> float:
        if not keep:
            self._disconnect()
            pause = pause or _RETRY_SECONDS[min(self._failures, len(_RETRY_SECONDS) - 1)]
            self._failures += 1
        if keep or self._failures > 1 or pause > 1.0:
            self.status.trouble = text
            self._warnings.warn("account", "%s: %s", self.account.name, text)
        return pause

    def _step(self) -> float:
        self._connect()
        for connection in self._connections:
            if connection.is_idle:
                connection.end_idle()
            elif connection.folder:
                connection.noop()
            if connection.changed and connection.folder:
                self._mark_dirty(connection.folder[0])
            connection.changed = False
        now = time.monotonic()
        if now >= self._relist_at:
            self._list_folders()
            self._relist_at = now + _RELIST_SECONDS
        if now >= self._poll_at:
            self._poll()
            self._poll_at = now + POLL_SECONDS
        self._look_and_settle()
        waits = self._judge()
        if self._dirty:  # after our own moves
            self._look_and_settle()
        unread, self._unread = self._unread, set()
        self._tell_folders(unread)
        self._refresh_status()
        if waits:
            return 0.0
        return min(self._wait(), max(0.0, self._poll_at - time.monotonic()))

    def _look_and_settle(self) -> None:
        intents = self.records.intents()
        self._dirty.update(number for each in intents for number in (each.source, each.target))
        self._look()
        for intent in intents:
            self._settle(intent)

    def _mark_dirty(self, raw: str) -> None:
        self._dirty.update(row.id for row in self._folders.values() if row.raw == raw)

    # ---- connections

    def _connect(self) -> None:
        if self._connections and not any(each.closed for each in self._connections):
            return
        self._disconnect()
        for _ in range(2):
            self._connections.append(connect(self.account, self.silence))
        self._poll_at = self._relist_at = 0.0
        self.status.connected_since = int(time.time())

    def _disconnect(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections = []
        self.status.connected_since = 0

    def _open(self, folder: FolderRow) -> tuple[Connection, int]:
        """The connection that has this folder open, and its UIDVALIDITY now."""
        connection = self._connections[0 if folder.is_inbox else 1]
        writes = folder.is_inbox and self.account.mode is not Mode.LOOK
        if connection.folder == (folder.raw, writes) and folder.uidvalidity:
            connection.noop()  # until then the server may hide what came
            return connection, folder.uidvalidity
        selected = None
        if writes:
            with self._warning("nothing is moved or flagged"):
                selected = connection.select(folder.raw, readonly=False)
        selected = selected or connection.select(folder.raw)
        if folder.is_inbox:
            self._keywords = selected.keywords
        return connection, selected.uidvalidity

    def _wait(self) -> float:
        """Let the server tell of changes; in how many seconds to look again without that."""
        waiting = [each for each in self._connections if each.folder]
        # What was told by the way is not told again in IDLE.
        if any(each.changed or each.idle() for each in waiting):
            return _SOON_SECONDS
        return RENEW_SECONDS if all(each.is_idle for each in waiting) else 60.0

    # ---- folders

    def _list_folders(self) -> None:
        listed = self._connections[1].list_folders()
        found = account_folders(self.account, listed)
        self._junk = find_junk(found, listed)
        watched = [each for each in found if each.is_watched]
        if not any(each.directory == "" for each in found):  # each server has it: half an answer
            raise ImapError("the server lists no INBOX", lost=True)
        watched.sort(key=lambda each: (each.role.label == "", each.directory))
        if self.records.set_folders(watched[:MAX_FOLDERS]):
            self._tell(self, None)
        self._take_folders()

    def _take_folders(self) -> None:
        self._folders = {row.id: row for row in self.records.folders()}

    def _poll(self) -> None:
        """Find folders in which something has changed since they were last looked at."""
        rows = list(self._folders.values())
        statuses = self._connections[1].statuses([row.raw for row in rows])
        for row in rows:
            status = " ".join(map(str, statuses.get(row.raw, ())))
            if not row.uidvalidity or not status or status != row.status:
                self._dirty.add(row.id)
                self._statuses[row.id] = status
        self.records.forget_old()

    def _look(self) -> None:
        """Bring the records of folders up to date in which something may have changed."""
        was_listed = self.is_listed
        for connection, raw in zip(self._connections, ("INBOX", self._junk), strict=True):
            if connection.folder is None or connection.folder[0].upper() != raw.upper():
                self._mark_dirty(raw)  # nobody tells what happens there
        # INBOX last: what was moved there from elsewhere is known by then. But where folders are
        # labels, what came is new there, whatever else is on it.
        # Of the others Junk, in which IDLE goes on.
        for row in sorted(self._dirty, key=self._folders_key):
            self._dirty.discard(row)
            if row not in self._folders:
                continue
            try:
                self._look_at(self._folders[row])
            except ImapError as error:
                if error.lost:
                    self._dirty.add(row)
                    raise
                self._shut.add(row)
                raw = self._folders[row].raw
                self._warnings.warn("folder", "%s: %s: %s", self.account.name, raw, error)
                self._relist_at = min(self._relist_at, time.monotonic() + 60.0)
        if self.is_listed and not was_listed:
            self._tell(self, None)

    def _folders_key(self, number: int) -> tuple[bool, bool, int]:
        row = self._folders.get(number)
        has_labels = self.records.fact("names") == "X-GM-MSGID"
        is_junk = row is not None and row.raw == self._junk
        return row is not None and row.is_inbox is not has_labels, is_junk, number

    def _look_at(self, folder: FolderRow) -> None:
        connection, uidvalidity = self._open(folder)
        connection.changed = False
        item = connection.find_id_item()
        if self.records.fact("names") != (item or "-"):
            if self.records.fact("names"):
                _log.info("%s: names its messages otherwise: they count as old", self.account.name)
                self.records.begin_anew()
                self._take_folders()
                self._dirty.update(self._folders)
                folder = self._folders[folder.id]
            self.records.set_fact("names", item or "-")
        listed, present = self.records.uids(folder), connection.search("ALL")
        unseen, deleted = set(connection.search("UNSEEN")), set(connection.search("DELETED"))

        def flags_of(uid: int) -> str:
            return "S" * (uid not in unseen) + "T" * (uid in deleted)

        before = listed if uidvalidity == folder.uidvalidity else {}
        gone = listed.keys() - (before.keys() & set(present))
        flags = {
            uid: text
            for uid, known in before.items()
            if uid not in gone and (text := flags_of(uid)) != known
        }
        new = [uid for uid in present if uid not in before]
        found, missing = dict[int, Found](), len(new)
        for batch in batches(new):
            items = f"UID INTERNALDATE {item}" if item else f"UID {_FINGERPRINT}"
            answers = connection.fetch(batch, items)
            missing -= len(answers)
            found.update({uid: _name(answer, item) for uid, answer in answers.items()})
            flags.update({uid: text for uid in answers if (text := flags_of(uid))})
            if not folder.uidvalidity and len(found) >= _PORTION:
                self.records.update(folder, 0, found, gone, flags, self._added)
                found, flags, gone = {}, {}, set()
        touched = self.records.update(folder, uidvalidity, found, gone, flags, self._added)
        status = self._statuses.pop(folder.id, folder.status)
        status = "" if missing else status  # what was left out is asked for again
        if status != folder.status:
            self.records.set_status(folder, status)
        self._take_folders()
        if touched:
            self.status.last_change = int(time.time())
            self._tell_folders(touched)

    def _tell_folders(self, numbers: Collection[int]) -> None:
        if self.is_listed:
            rows = (self._folders.get(number) for number in numbers)
            self._tell(self, [row.directory for row in rows if row])

    # ---- judging and moving

    def _judge(self) -> bool:
        """Judge what is new in INBOX; whether there is more of it."""
        inbox = next((row for row in self._folders.values() if row.is_inbox), None)
        waiting = self.records.waiting(inbox, _BATCH + 1) if inbox and inbox.uidvalidity else []
        if inbox is None or not waiting:
            return False
        connection, uidvalidity = self._open(inbox)
        if uidvalidity != inbox.uidvalidity:  # these UIDs are of other messages now
            self._dirty.add(inbox.id)
            return False
        target = next((row for row in self._folders.values() if row.raw == self._junk), None)
        writes = bool(connection.folder and connection.folder[1])
        moves = writes and self.account.mode is Mode.MOVE and connection.can_move
        for message in waiting[:_BATCH]:
            raw = self._fetch_new(connection, message)
            if raw is None:
                self._dirty.add(inbox.id)
                continue
            digest = _hash(raw)
            answer = NO_VERDICT
            if not self.records.is_judged(digest):
                try:
                    answer = self._ask(raw, self.account.name)
                except NoVerdictError:
                    if not self._count_try(message.name):
                        raise
                self.records.count(judged=1, spam=int(answer.is_spam))
            intent = None
            if answer.is_spam and moves and target is not None:
                intent = Intent(message.name, inbox.id, message.uid, target.id)
            self.records.set_judged(message.name, digest, answer, intent)
            self._tries.pop(message.name, None)
            self._recent.put(self.account.name, message.name, raw)
            del raw  # two may be too large
            if intent is not None and target is not None:
                self._move(connection, intent, target)
            elif writes and self.account.mode is Mode.FLAG and answer.field:
                self._flag(connection, message.uid, answer)
        self._tell_folders([inbox.id])
        return len(waiting) > _BATCH

    def _fetch_new(self, connection: Connection, message: Waiting) -> bytes | None:
        try:
            raw = self._fetch(connection, message.uid)
        except ImapError as error:
            if error.lost and self._count_try(message.name):  # perhaps by this very message
                self.records.set_judged(message.name)
            raise
        if raw is None and self._count_try(message.name):
            self.records.set_judged(message.name)
        return raw

    def _count_try(self, name: str) -> bool:
        """Whether a message was tried often enough."""
        self._tries[name] = self._tries.get(name, 0) + 1
        return self._tries[name] >= _MAX_TRIES

    def _move(self, connection: Connection, intent: Intent, target: FolderRow) -> None:
        self._dirty.update((intent.source, intent.target))
        with self._warning(f"spam cannot be moved to {target.raw}"):
            connection.move(intent.uid, target.raw)

    def _settle(self, intent: Intent) -> None:
        """End a move of ours, by where the message lies now that both folders were looked at."""
        if intent.source in self._dirty or intent.target in self._dirty:
            return
        places = self.records.places(intent.name)
        settled = intent.target in places or intent.source not in places
        if intent.target in places and places.get(intent.source) == intent.uid:
            # It was copied, and we got no further.
            source = self._folders[intent.source]
            connection, uidvalidity = self._open(source)
            if uidvalidity == source.uidvalidity:
                with self._warning("a copy of spam stays in INBOX"):
                    connection.remove(intent.uid)
            self._dirty.add(intent.source)
        if not settled:
            _log.info("%s: a message that was to be moved stays where it is", self.account.name)
        self.records.end_intent(intent, settled=settled)
        self.records.count(moved=int(intent.target in places))
        self._tell_folders([intent.source, intent.target])

    def _flag(self, connection: Connection, uid: int, answer: Answer) -> None:
        wanted = "$Junk" if answer.is_spam else "$NotJunk"
        if answer.label == "unsure" or not self._keywords & {"\\*", wanted.lower()}:
            return
        with self._warning("cannot be flagged"):
            connection.add_flags(uid, [wanted])

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

    def _refresh_status(self) -> None:
        for name in ("judged", "spam", "moved"):
            setattr(self.status, name, int(self.records.fact(name) or 0))
        self.status.waiting = self.records.count_waiting()
        self.status.disagreed = self.records.count_disagreed(self._junk)

    # ---- messages

    def read(self, folder: FolderRow, name: str) -> bytes:
        """A message that is shown in a folder, our field before it. OSError: it cannot be had now.

        FileNotFoundError: it is not there.
        """
        place = self.records.find(folder, name)
        if place is None:
            raise FileNotFoundError(errno.ENOENT, "no such message", name)
        lies_in, uid, ours = place
        raw = self._recent.take(self.account.name, name)
        if raw is None:
            if not self._wire.acquire(timeout=10.0):
                self._note_unread(folder, name)
                raise BlockingIOError(errno.EAGAIN, "the server takes long", self.account.name)
            try:
                if not self._connections:
                    raise ConnectionError(errno.ENOTCONN, "not connected", self.account.name)
                connection = self._connections[0 if lies_in.is_inbox else 1]
                connection.end_idle()
                connection, uidvalidity = self._open(lies_in)
                if uidvalidity == lies_in.uidvalidity:
                    raw = self._fetch(connection, uid)
            except ImapError as error:
                raise OSError(errno.EIO, str(error), name) from error
            finally:
                if raw is None:
                    self._note_unread(folder, name)
                if self._connections:
                    self.due = time.monotonic() + _LINGER_SECONDS
                self._wire.release()
        if raw is None:
            raise FileNotFoundError(errno.ENOENT, "no such message", name)
        if self.records.note_read(name, _hash(raw)):
            self._recent.put(self.account.name, name, raw)
        # A first line that begins with a blank would become the tail of our field.
        return ours + b"\r\n" + raw if ours and raw[:1] not in (b" ", b"\t") else raw

    def _note_unread(self, folder: FolderRow, name: str) -> None:
        self._unread.add(folder.id)
        self.records.note_unread(name)

    def note_known(self, folder: FolderRow) -> None:
        """The watcher knows what was shown in a folder: what was read there and has been moved on
        is shown where it is now.
        """
        self._tell_folders(self.records.note_known(folder))

    def _fetch(self, connection: Connection, uid: int) -> bytes | None:
        today, fetched = int(time.time() // 86_400), self._fetched
        fetched = fetched if fetched[0] == today else (today, 0)
        if fetched[1] > (self.account.provider.daily_bytes or _DAILY_BYTES):
            raise ImapError("as much as may be was fetched today: the rest waits for tomorrow")
        raw = connection.fetch_message(uid)
        self._fetched = today, fetched[1] + len(raw or b"")
        return raw

    @property
    def hides_unread(self) -> bool:
        """Whether unread mail in Junk may have been moved there by the provider."""
        return bool(self.account.provider.filters) and (
            self.account.unread_moves is UnreadMoves.WAIT
        )

    def folder(self, directory: str) -> FolderRow | None:
        """The folder of this name among ours."""
        rows: Mapping[str, FolderRow] = {row.directory: row for row in self._folders.values()}
        return rows.get(directory)

    def folders(self) -> list[FolderRow]:
        return list(self._folders.values())


# ---- names of messages


def _name(answer: FetchedMessage, item: str) -> Found:
    """What stays the same when a message is moved: the server's own id; else its size, when it
    came, and its Message-ID.
    """
    date = answer.attribute(b"INTERNALDATE").strip(b'"')
    try:
        came = parsedate_to_datetime(date.decode("ascii").replace("-", " ", 2)).timestamp()
    except ValueError:
        came = 0.0
    known = answer.attribute(item.encode()) if item else b""
    if not known:
        message_id = b"".join(b"".join(answer.literals).split()).lower()
        known = b" ".join((answer.attribute(b"RFC822.SIZE"), date, message_id))
    return Found(blake2b(known, digest_size=16).hexdigest(), came)


def _hash(raw: bytes) -> bytes:
    return blake2b(raw, digest_size=16).digest()
