"""What is known of one account: which message lies where, and what was done about it. A SQLite
file for each.

A message has a name that stays the same wherever it is moved. `places` says in which folders it
lies, under which UID; that is a cache of what the server says. `messages` says how we stand with
it (`State`), and `intents` what we were about to move: each is on the disk before the command.

Only judged messages are shown to the watcher of folders. Old mail is not, so that nobody fetches
it all. Only when such a message is moved to where moving teaches is it shown, first where it was
before, and once it has been read there, where it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from spamguard.database import ClosedOnExit, Database, Schema
from spamguard.errors import SpamguardError
from spamguard.imap.folders import AccountFolder
from spamguard.imap.judge import NO_VERDICT, Answer

_KEPT_SECONDS = 90 * 86_400  # what lies nowhere is remembered for so long


class RecordsError(SpamguardError):
    """The file of an account cannot be opened, read or written."""


class State(IntEnum):
    """How we stand with a message."""

    OLD = 0  # it was there before us: neither judged nor shown
    NEW = 1  # it is to be judged, and not shown before that
    SHOWN = 2
    MOVED = 3  # old, and moved since: shown where it was, until it has been read


RECORDS_SCHEMA = Schema(
    kind="account",
    error=RecordsError,
    application_id=0x7367_696D,  # "sgim"
    version=1,
    tables="""
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
-- uidvalidity is 0 until all of a folder was listed
CREATE TABLE folders (
    id INTEGER PRIMARY KEY, raw TEXT NOT NULL UNIQUE, directory TEXT NOT NULL,
    label TEXT NOT NULL, uidvalidity INTEGER NOT NULL DEFAULT 0, status TEXT NOT NULL DEFAULT ''
);
CREATE TABLE places (
    folder INTEGER NOT NULL, uid INTEGER NOT NULL, name TEXT NOT NULL,
    flags TEXT NOT NULL DEFAULT '', PRIMARY KEY (folder, uid)
) WITHOUT ROWID;
CREATE INDEX places_of_name ON places (name, folder);
CREATE TABLE messages (
    name TEXT PRIMARY KEY, state INTEGER NOT NULL, folder INTEGER NOT NULL, seen INTEGER NOT NULL,
    hash BLOB, field BLOB NOT NULL DEFAULT x'', spam INTEGER
) WITHOUT ROWID;
CREATE INDEX messages_in_state ON messages (state) WHERE state IN (1, 3);
CREATE INDEX messages_of_hash ON messages (hash) WHERE hash IS NOT NULL;
CREATE TABLE intents (
    name TEXT PRIMARY KEY, source INTEGER NOT NULL, uid INTEGER NOT NULL, target INTEGER NOT NULL
) WITHOUT ROWID;
""",
)


class FolderRow(NamedTuple):
    """A folder that is watched. uidvalidity: 0 until all of it was listed."""

    id: int
    raw: str
    directory: str
    label: str  # the class that its messages are of, "" for none
    uidvalidity: int
    status: str  # what the server said of it when it was last listed

    @property
    def is_inbox(self) -> bool:
        return not self.directory


class Found(NamedTuple):
    """A message that is new in a folder."""

    name: str
    came: float  # when the server got it, seconds since 1970; 0: it does not say


class Intent(NamedTuple):
    """A move of ours that is not known to have ended."""

    name: str
    source: int
    uid: int
    target: int


class Waiting(NamedTuple):
    """A message to be judged."""

    name: str
    uid: int


class Records(ClosedOnExit):
    """The file of one account. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self._database = Database.open(path, RECORDS_SCHEMA, shared=True)
        # SQLite makes files elsewhere for large changes, to which the process has no right.
        self._database.execute("PRAGMA temp_store = MEMORY")
        self._lock = threading.RLock()

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._database.query(statement, values)

    def _write(self, *statements: tuple[str, tuple[object, ...]]) -> None:
        with self._lock, self._database.transaction():
            for statement, values in statements:
                self._database.execute(statement, values)

    # ---- facts

    def fact(self, name: str) -> str:
        """A fact about the account; "": it is not known."""
        rows = self._query("SELECT value FROM facts WHERE name = ?", name)
        return str(rows[0][0]) if rows else ""

    def set_fact(self, name: str, value: str) -> None:
        self._write(("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value)))

    def count(self, **numbers: int) -> None:
        """Add to facts that are numbers."""
        add = (
            "INSERT INTO facts VALUES (?1, ?2) "
            "ON CONFLICT DO UPDATE SET value = CAST(value AS INTEGER) + ?2"
        )
        self._write(*((add, (name, number)) for name, number in numbers.items()))

    def begin_anew(self) -> None:
        """Forget where messages lie: they have other names from now on. What is there is old."""
        self._write(("DELETE FROM places", ()), ("UPDATE folders SET uidvalidity = 0", ()))

    # ---- folders

    def folders(self) -> list[FolderRow]:
        rows = self._query("SELECT * FROM folders ORDER BY directory")
        return [FolderRow(*row) for row in rows]

    def set_folders(self, folders: Iterable[AccountFolder]) -> bool:
        """Take on the folders that are to be watched; whether any came or went."""
        wanted = {each.raw: (each.directory, each.role.label) for each in folders}
        known = {row.raw: row for row in self.folders()}
        gone = [known[raw].id for raw in known.keys() - wanted.keys()]
        with self._lock, self._database.transaction():
            for number in gone:
                self._database.execute("DELETE FROM places WHERE folder = ?", (number,))
                self._database.execute("DELETE FROM folders WHERE id = ?", (number,))
            self._database.executemany(
                "INSERT INTO folders (raw, directory, label) VALUES (?1, ?2, ?3) "
                "ON CONFLICT (raw) DO UPDATE SET directory = ?2, label = ?3",
                [(raw, *values) for raw, values in wanted.items()],
            )
        before = {(row.raw, row.directory) for row in known.values()}
        return before != {(raw, directory) for raw, (directory, _) in wanted.items()}

    def set_status(self, folder: FolderRow, status: str) -> None:
        self._write(("UPDATE folders SET status = ? WHERE id = ?", (status, folder.id)))

    # ---- listing

    def uids(self, folder: FolderRow) -> dict[int, str]:
        """The UIDs in a folder, with flags: S for seen, T for deleted."""
        return dict(self._query("SELECT uid, flags FROM places WHERE folder = ?", folder.id))

    def update(
        self,
        folder: FolderRow,
        uidvalidity: int,
        found: Mapping[int, Found],
        gone: Collection[int],
        flags: Mapping[int, str],
        added: float,
    ) -> set[int]:
        """Bring a folder up to date; the folders in which something is shown otherwise now.

        Parameters
        ----------
        uidvalidity
            0: more is to come.
        found
            Messages that are new there, by UID.
        flags
            Those that have changed, by UID.
        added
            What came to the server before is old, wherever it appears.
        """
        names = {each.name for each in found.values()}
        unknown = sum(
            not self._query("SELECT 1 FROM messages WHERE name = ?", each) for each in names
        )
        lost = folder.uidvalidity not in (0, uidvalidity)
        # Where all UIDs are others and hardly a name is known, names are not what they were.
        are_others = unknown > max(20, 0.9 * len(names))
        is_first = not folder.uidvalidity or (lost and are_others)
        touched = {folder.id} if gone or flags else set[int]()
        with self._lock, self._database.transaction():
            execute = self._database.execute
            self._database.executemany(
                "DELETE FROM places WHERE folder = ? AND uid = ?",
                [(folder.id, uid) for uid in gone],
            )
            for uid, each in sorted(found.items()):
                touched |= self._take_in(folder, uid, each, added, is_first=is_first)
            self._database.executemany(
                "UPDATE places SET flags = ? WHERE folder = ? AND uid = ?",
                [(text, folder.id, uid) for uid, text in flags.items()],
            )
            if folder.is_inbox and gone:  # what went before it was judged is as if it had been
                new = "SELECT p.folder FROM messages m JOIN places p USING (name) WHERE m.state = 1"
                touched.update(row[0] for row in execute(new))
                execute(
                    "UPDATE messages SET state = 2 WHERE state = 1 "
                    "AND name NOT IN (SELECT name FROM places WHERE folder = ?)",
                    (folder.id,),
                )
            execute("UPDATE folders SET uidvalidity = ? WHERE id = ?", (uidvalidity, folder.id))
        return touched

    def _take_in(
        self, folder: FolderRow, uid: int, found: Found, added: float, *, is_first: bool
    ) -> set[int]:
        """Note a message that is new in a folder; the folders that show something else then."""
        execute, name = self._database.execute, found.name
        twin = "SELECT 1 FROM places WHERE name = ? AND folder = ?"
        if is_copy := execute(twin, (name, folder.id)).fetchone() is not None:
            name = f"{name}~{uid}"
        execute(
            "INSERT OR REPLACE INTO places (folder, uid, name) VALUES (?, ?, ?)",
            (folder.id, uid, name),
        )
        select = (
            "SELECT state, folder, folder IN (SELECT id FROM folders) FROM messages WHERE name = ?"
        )
        state, origin, is_watched = execute(select, (name,)).fetchone() or (None, 0, False)
        if state is None:
            is_old = (is_first or 0 < found.came < added) and not is_copy
            state = State.OLD if is_old else State.NEW if folder.is_inbox else State.SHOWN
            execute(
                "INSERT INTO messages (name, state, folder, seen) VALUES (?, ?, ?, ?)",
                (name, state, folder.id, int(time.time())),
            )
            return {folder.id} if state is State.SHOWN else set()
        if state != State.OLD:
            return {folder.id}
        if is_first or origin == folder.id:
            return set()
        # Which folder it came from matters only where coming teaches.
        if folder.label and is_watched:
            execute("UPDATE messages SET state = 3 WHERE name = ?", (name,))
            return {origin}
        execute("UPDATE messages SET folder = ? WHERE name = ?", (folder.id, name))
        return set()

    def forget_old(self) -> None:
        """Forget messages that have lain nowhere for long."""
        now = int(time.time())
        lies = (
            "UPDATE messages SET seen = ? WHERE seen < ? "
            "AND EXISTS (SELECT 1 FROM places p WHERE p.name = messages.name)"
        )
        self._write(
            (lies, (now, now - 86_400)),
            ("DELETE FROM messages WHERE seen < ?", (now - _KEPT_SECONDS,)),
        )

    # ---- what is shown

    def shown(self, folder: FolderRow, *, hide_unread: bool) -> list[tuple[str, str]]:
        """Names and flags of messages for the watcher of folders.

        Parameters
        ----------
        hide_unread
            Not those that nobody has read and we did not call spam: the provider may have moved
            them there.
        """
        here = self._query(
            "SELECT p.name, p.flags FROM places p JOIN messages m ON p.name = m.name "
            "WHERE p.folder = ? AND m.state = 2 "
            "AND p.name NOT IN (SELECT name FROM intents) "
            "AND (NOT ? OR m.spam OR p.flags LIKE '%S%')",
            *(folder.id, hide_unread),
        )
        return here + self._query(
            "SELECT name, '' FROM messages m WHERE state = 3 AND folder = ? "
            "AND EXISTS (SELECT 1 FROM places p WHERE p.name = m.name)",
            folder.id,
        )

    def find(self, folder: FolderRow, name: str) -> tuple[FolderRow, int, bytes] | None:
        """Where a message that is shown in a folder lies, its UID there and our field; None: it is
        not there any more.
        """
        rows = self._query(
            "SELECT f.id, f.raw, f.directory, f.label, f.uidvalidity, f.status, p.uid, m.field "
            "FROM messages m JOIN places p ON p.name = m.name JOIN folders f ON f.id = p.folder "
            "WHERE m.name = ?1 AND ((m.state = 2 AND p.folder = ?2) "
            "OR (m.state = 3 AND m.folder = ?2)) ORDER BY p.folder = ?2 LIMIT 1",
            *(name, folder.id),
        )
        return (FolderRow(*rows[0][:6]), rows[0][6], rows[0][7]) if rows else None

    def note_read(self, name: str, digest: bytes) -> bool:
        """A message was read to be shown; whether it will be wanted elsewhere, too."""
        self._write(("UPDATE messages SET hash = ? WHERE name = ? AND state > 1", (digest, name)))
        return bool(self._query("SELECT 1 FROM messages WHERE name = ? AND state = 3", name))

    def note_unread(self, name: str) -> None:
        """A message could not be read: if it was before, a watcher that was killed has read it."""
        self._write(("UPDATE messages SET hash = NULL WHERE name = ? AND state = 3", (name,)))

    def note_known(self, folder: FolderRow) -> set[int]:
        """What was read in a folder is known there; the folders that show something else now."""
        with self._lock:
            touched = self._query(
                "SELECT DISTINCT p.folder FROM messages m JOIN places p ON p.name = m.name "
                "WHERE m.state = 3 AND m.hash IS NOT NULL AND m.folder = ?",
                folder.id,
            )
            if not touched:
                return set()
            change = "UPDATE messages SET state = 2 WHERE state = 3 AND hash IS NOT NULL "
            self._write((change + "AND folder = ?", (folder.id,)))
        return {folder.id, *(row[0] for row in touched)}

    # ---- judging and moving

    def waiting(self, folder: FolderRow, limit: int) -> list[Waiting]:
        rows = self._query(
            "SELECT m.name, p.uid FROM messages m JOIN places p ON p.name = m.name "
            "WHERE m.state = 1 AND p.folder = ? ORDER BY p.uid LIMIT ?",
            *(folder.id, limit),
        )
        return [Waiting(*row) for row in rows]

    def count_waiting(self) -> int:
        return int(self._query("SELECT count(*) FROM messages WHERE state = 1")[0][0])

    def is_judged(self, digest: bytes) -> bool:
        """Whether a message of just these bytes is not new."""
        found = self._query("SELECT 1 FROM messages WHERE hash = ? AND state != 1", digest)
        return bool(found)

    def set_judged(
        self,
        name: str,
        digest: bytes = b"",
        answer: Answer = NO_VERDICT,
        intent: Intent | None = None,
    ) -> None:
        """Note a verdict, and with it what we are about to do. It is on the disk then."""
        # Spam that stays must not look like spam that we filed and somebody has put back.
        field = b"" if answer.is_spam and intent is None else answer.field
        judged = (
            "UPDATE messages SET state = 2, hash = ?, field = ?, spam = ? WHERE name = ?",
            (digest, field, answer.is_spam if answer.field else None, name),
        )
        intend = ("INSERT OR REPLACE INTO intents VALUES (?, ?, ?, ?)", intent or ())
        self._write(judged, *([intend] if intent else []))

    def intents(self) -> list[Intent]:
        return [Intent(*row) for row in self._query("SELECT * FROM intents")]

    def places(self, name: str) -> dict[int, int]:
        """The UID of a message in each folder in which it lies."""
        return dict(self._query("SELECT folder, uid FROM places WHERE name = ?", name))

    def end_intent(self, intent: Intent, *, settled: bool) -> None:
        """A move has ended, or was given up: then nobody can tell any more who put the message
        where it is, so it must not look like one that we filed.
        """
        drop = ("DELETE FROM intents WHERE name = ?", (intent.name,))
        unsign = ("UPDATE messages SET field = x'' WHERE name = ?", (intent.name,))
        self._write(drop, *([] if settled else [unsign]))

    def count_disagreed(self, junk: str) -> int:
        """Judged messages of which we think otherwise than the folder they lie in says."""
        return int(
            self._query(
                "SELECT count(*) FROM messages m JOIN places p ON p.name = m.name "
                "JOIN folders f ON f.id = p.folder WHERE f.label != '' AND m.spam != (f.raw = ?)",
                junk,
            )[0][0]
        )
