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
_SLOW_SECONDS = 3600  # by so much a server's clock may be slow


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
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
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
    hash BLOB, field BLOB NOT NULL DEFAULT x'', judged INTEGER, spam INTEGER
) WITHOUT ROWID;
CREATE INDEX messages_judged ON messages (judged, spam) WHERE judged NOT NULL;
CREATE INDEX messages_in_state ON messages (state) WHERE state IN (1, 3);
CREATE INDEX messages_of_hash ON messages (hash) WHERE hash IS NOT NULL;
CREATE TABLE intents (
    name TEXT PRIMARY KEY, source INTEGER NOT NULL, uid INTEGER NOT NULL, target INTEGER NOT NULL
) WITHOUT ROWID;
""",
)


_COUNT = "INSERT INTO facts VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = value + ?2"


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
    flags: str = ""  # S for seen, T for deleted


class Place(NamedTuple):
    """Where a message lies."""

    folder: FolderRow
    uid: int
    field: bytes  # ours, that belongs before it


class Intent(NamedTuple):
    """A move of ours that is not known to have ended."""

    name: str
    source: int
    uid: int
    target: int


class Records(ClosedOnExit):
    """The file of one account. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self._database = Database.open(path, RECORDS_SCHEMA, shared=True)
        # SQLite makes files elsewhere for large changes, to which the process has no right.
        self._database.execute("PRAGMA temp_store = MEMORY")
        self._lock = threading.RLock()
        self._write(("INSERT OR IGNORE INTO facts VALUES ('added', ?)", (int(time.time()),)))
        ((added,),) = self._query("SELECT value FROM facts WHERE name = 'added'")
        self._old_before = added - _SLOW_SECONDS

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

    # ---- numbers

    def numbers(self, junk: str) -> dict[str, int]:
        """As of `AccountStatus`."""
        return dict(
            self._query(
                "WITH recent AS (SELECT spam FROM messages WHERE judged NOT NULL "
                "ORDER BY judged DESC LIMIT 100) "
                "SELECT name, value FROM facts WHERE name != 'added' "
                "UNION ALL SELECT 'recent', count(*) FROM recent "
                "UNION ALL SELECT 'recent_spam', count(*) FROM recent WHERE spam "
                "UNION ALL SELECT 'waiting', count(*) FROM messages WHERE state = 1 "
                "UNION ALL SELECT 'disagreed', count(*) FROM messages m "
                "CROSS JOIN places p USING (name) JOIN folders f ON f.id = p.folder "
                "WHERE m.judged NOT NULL AND f.label != '' AND m.spam != (f.raw = ?)",
                junk,
            )
        )

    # ---- folders

    def folders(self) -> list[FolderRow]:
        rows = self._query("SELECT * FROM folders ORDER BY directory")
        return [FolderRow(*row) for row in rows]

    def set_folders(self, folders: Iterable[AccountFolder]) -> None:
        """Take on the folders that are to be watched."""
        wanted = {each.raw: (each.directory, each.role.label) for each in folders}
        gone = [(row.id,) for row in self.folders() if row.raw not in wanted]
        with self._lock, self._database.transaction():
            self._database.executemany("DELETE FROM places WHERE folder = ?", gone)
            self._database.executemany("DELETE FROM folders WHERE id = ?", gone)
            self._database.executemany(
                "INSERT INTO folders (raw, directory, label) VALUES (?1, ?2, ?3) "
                "ON CONFLICT (raw) DO UPDATE SET directory = ?2, label = ?3 "
                "WHERE directory != ?2 OR label != ?3",
                [(raw, *values) for raw, values in wanted.items()],
            )

    # ---- listing

    def uids(self, folder: FolderRow) -> dict[int, str]:
        """The UIDs in a folder, with flags: S for seen, T for deleted."""
        return dict(self._query("SELECT uid, flags FROM places WHERE folder = ?", folder.id))

    def update(
        self,
        folder: FolderRow,
        uidvalidity: int,
        status: str,
        found: Mapping[int, Found],
        gone: Collection[int],
        flags: Mapping[int, str],
    ) -> set[int]:
        """Bring a folder up to date; the folders in which something is shown otherwise now.

        Parameters
        ----------
        uidvalidity
            0: more is to come.
        status
            What the server said of it.
        found
            Messages that are new there, by UID.
        flags
            Those that have changed, by UID.
        """
        touched = {folder.id} if found or gone or flags else set[int]()
        with self._lock, self._database.transaction():
            execute, many = self._database.execute, self._database.executemany
            many(
                "DELETE FROM places WHERE folder = ? AND uid = ?",
                [(folder.id, uid) for uid in gone],
            )
            for uid, each in sorted(found.items()):
                touched |= self._take_in(folder, uid, each)
            many(
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
            execute(
                "UPDATE folders SET uidvalidity = ?, status = ? WHERE id = ?",
                (uidvalidity, status, folder.id),
            )
        return touched

    def _take_in(self, folder: FolderRow, uid: int, found: Found) -> set[int]:
        """Note a message that is new in a folder; the other folder that shows something else."""
        execute, name, is_first = self._database.execute, found.name, not folder.uidvalidity
        twin = "SELECT 1 FROM places WHERE name = ? AND folder = ?"
        if is_copy := execute(twin, (name, folder.id)).fetchone() is not None:
            name = f"{name}~{uid}"
        execute(
            "INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?)",
            (folder.id, uid, name, found.flags),
        )
        select = (
            "SELECT state, folder, folder IN (SELECT id FROM folders) FROM messages WHERE name = ?"
        )
        state, origin, is_watched = execute(select, (name,)).fetchone() or (None, 0, False)
        if state is None:
            is_old = (is_first or 0 < found.came < self._old_before) and not is_copy
            state = State.OLD if is_old else State.NEW if folder.is_inbox else State.SHOWN
            execute(
                "INSERT INTO messages (name, state, folder, seen) VALUES (?, ?, ?, ?)",
                (name, state, folder.id, int(time.time())),
            )
        elif state == State.OLD and not is_first and origin != folder.id:
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

    def find(self, folder: FolderRow, name: str) -> Place | None:
        """Where a message lies that is shown in a folder; None: it is not there any more."""
        rows = self._query(
            "SELECT f.*, p.uid, m.field FROM messages m JOIN places p USING (name) "
            "JOIN folders f ON f.id = p.folder "
            "WHERE m.name = ?1 AND ((m.state = 2 AND p.folder = ?2) "
            "OR (m.state = 3 AND m.folder = ?2)) ORDER BY p.folder = ?2 LIMIT 1",
            *(name, folder.id),
        )
        return Place(FolderRow(*rows[0][:6]), *rows[0][6:]) if rows else None

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

    def waiting(self, folder: FolderRow, limit: int) -> list[tuple[str, int]]:
        """Names and UIDs of messages to be judged."""
        return self._query(
            "SELECT m.name, p.uid FROM messages m JOIN places p ON p.name = m.name "
            "WHERE m.state = 1 AND p.folder = ? ORDER BY p.uid LIMIT ?",
            *(folder.id, limit),
        )

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
        verdict = (time.time_ns(), answer.is_spam) if answer.field else (None, None)
        self._write(
            (
                "UPDATE messages SET state = 2, hash = ?, field = ?, judged = ?, spam = ? "
                "WHERE name = ?",
                (digest, field, *verdict, name),
            ),
            (_COUNT, ("judged", int(answer.field != b""))),
            (_COUNT, ("spam", int(answer.is_spam))),
            *([("INSERT OR REPLACE INTO intents VALUES (?, ?, ?, ?)", intent)] if intent else []),
        )

    def intents(self) -> list[Intent]:
        return [Intent(*row) for row in self._query("SELECT * FROM intents")]

    def places(self, name: str) -> dict[int, int]:
        """The UID of a message in each folder in which it lies."""
        return dict(self._query("SELECT folder, uid FROM places WHERE name = ?", name))

    def end_intent(self, intent: Intent) -> None:
        """A move has ended, or was given up: then nobody can tell any more who put the message
        where it is, so it must not look like one that we filed.
        """
        places = self.places(intent.name)
        settled = intent.target in places or intent.source not in places
        unsign = ("UPDATE messages SET field = x'' WHERE name = ?", (intent.name,))
        self._write(
            ("DELETE FROM intents WHERE name = ?", (intent.name,)),
            (_COUNT, ("moved", int(intent.target in places))),
            *([] if settled else [unsign]),
        )
