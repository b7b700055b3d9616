"""Where each message of each mailbox was last seen: a SQLite file of its own, so a restart knows
what happened meanwhile.

The votes that follow from new sightings are written in the same transaction, as pending votes, and
leave the file when they are in the ledger (`scan` states the order of writes). What is committed
survives a power cut. The file is a cache all the same: without it, all mail is scanned as if for
the first time.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.database import ClosedOnExit, Database, Schema
from spamguard.errors import SpamguardError
from spamguard.folders.changes import is_below
from spamguard.folders.reconcile import FileKey, Sighting
from spamguard.ledger.votes import NewVote

SIGHTINGS_FILE = "sightings.sqlite"
"""Its name in the state directory."""
MAX_GONE_SECONDS = 30 * 86_400  # for so long a message that went may yet appear elsewhere

_FOLDERS = "FROM folders f JOIN mailboxes m ON f.mailbox = m.id WHERE m.name = ?"
_FOLDER = f"SELECT f.id {_FOLDERS} AND f.name = ?"
_SELECT = (
    "SELECT f.name, s.name, digest, delivery, origin, waiting, followed, seen, gone "
    "FROM sightings s JOIN folders f ON s.folder = f.id WHERE s.folder"
)
_OF_DIGEST = f"IN (SELECT f.id {_FOLDERS}) AND digest = ? AND digest != x''"


class SightingsError(SpamguardError):
    """The sightings cannot be opened, read or written."""


class PendingVote(NamedTuple):
    """A vote that follows from sightings."""

    vote: NewVote
    decided_at: int  # `SqliteLedger.voting_moment` then
    came_from: str  # this and the next are for the log, folders as users know them
    came_to: str
    why: str


# ---- the file

SIGHTINGS_SCHEMA = Schema(
    kind="sightings",
    error=SightingsError,
    application_id=0x7367_7369,  # "sgsi"
    version=1,
    tables="""
CREATE TABLE mailboxes (
    id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, scanned INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE folders (
    id INTEGER PRIMARY KEY, mailbox INTEGER NOT NULL, name BLOB NOT NULL, UNIQUE (mailbox, name)
);
CREATE TABLE sightings (
    folder INTEGER NOT NULL, name INTEGER NOT NULL, digest BLOB NOT NULL,
    delivery INTEGER NOT NULL, origin BLOB, waiting INTEGER NOT NULL, followed INTEGER NOT NULL,
    seen INTEGER NOT NULL, gone INTEGER NOT NULL, PRIMARY KEY (folder, name)
) WITHOUT ROWID;
CREATE INDEX digests ON sightings (digest) WHERE digest != x'';
CREATE INDEX gone ON sightings (gone) WHERE gone > 0;

-- Votes that may not be in the ledger yet.
CREATE TABLE pending (
    id INTEGER PRIMARY KEY, digest BLOB NOT NULL, user TEXT NOT NULL, label TEXT NOT NULL,
    packed BLOB NOT NULL, scores BLOB NOT NULL, origin TEXT NOT NULL, time INTEGER NOT NULL,
    extractor INTEGER NOT NULL, decided_at INTEGER NOT NULL, came_from TEXT NOT NULL,
    came_to TEXT NOT NULL, why TEXT NOT NULL
);

-- Mailboxes that are gone: since when.
CREATE TABLE missing (mailbox INTEGER PRIMARY KEY, since INTEGER NOT NULL);
""",
)


class Sightings(ClosedOnExit):
    """Sightings by mailbox, which any string names. Belongs to one thread of one process. Every
    method raises SightingsError.
    """

    def __init__(self, db: Database) -> None:
        """Use `open`."""
        self.path = db.path
        self._db = db

    @classmethod
    def open(cls, path: Path) -> Sightings:
        """Open the sightings at `path`, or make new ones."""
        return cls(Database.open(path, SIGHTINGS_SCHEMA))

    def close(self) -> None:
        self._db.close()

    # ---- queries

    def mailboxes(self) -> list[str]:
        return sorted(os.fsdecode(name) for (name,) in self._query("SELECT name FROM mailboxes"))

    def is_scanned(self, mailbox: str) -> bool:
        return bool(self._query("SELECT 1 FROM mailboxes WHERE name = ? AND scanned", mailbox))

    def folders(self, mailbox: str) -> list[str]:
        """The folders that had messages when they were last scanned."""
        present = "EXISTS (SELECT 1 FROM sightings WHERE folder = f.id AND gone = 0)"
        rows = self._query(f"SELECT f.name {_FOLDERS} AND {present}", mailbox)
        return sorted(os.fsdecode(name) for (name,) in rows)

    def name_keys(self, mailbox: str, folder: str) -> NDArray[np.int64]:
        """The sorted keys of a folder's names at its last scan."""
        query = f"SELECT name FROM sightings WHERE folder = ({_FOLDER}) AND gone = 0 ORDER BY name"
        return np.array([name for (name,) in self._query(query, mailbox, folder)], np.int64)

    def find(
        self, mailbox: str, digests: Iterable[bytes], files: Iterable[FileKey]
    ) -> list[Sighting]:
        """All sightings of these digests and of these files, and of the digests of these files."""
        rows = [
            row
            for folder, name in files
            for row in self._query(f"{_SELECT} = ({_FOLDER}) AND s.name = ?", mailbox, folder, name)
        ]
        for digest in {row[2] for row in rows}.union(digests) - {b""}:
            rows += self._query(f"{_SELECT} {_OF_DIGEST}", mailbox, digest)
        found: dict[FileKey, Sighting] = {}
        for folder, name, digest, delivery, origin, *rest in rows:
            known = None if origin is None else os.fsdecode(origin)
            sighting = Sighting(os.fsdecode(folder), name, digest, delivery, known, *rest)
            found[sighting.key] = sighting
        return list(found.values())

    def find_present(self, digests: Iterable[bytes]) -> list[tuple[bytes, tuple[str, str, int]]]:
        query = (
            "SELECT m.name, f.name, s.name FROM sightings s JOIN folders f ON s.folder = f.id "
            "JOIN mailboxes m ON f.mailbox = m.id "
            "WHERE s.digest = ? AND s.digest != x'' AND s.gone = 0 LIMIT 4"
        )
        return [
            (digest, (os.fsdecode(mailbox), os.fsdecode(folder), name))
            for digest in digests
            for mailbox, folder, name in self._query(query, digest)
        ]

    def pending_votes(self) -> list[PendingVote]:
        rows = self._query("SELECT * FROM pending ORDER BY id")
        return [PendingVote(NewVote(*row[1:9]), *row[9:]) for row in rows]

    # ---- changes

    def update(
        self,
        mailbox: str,
        updated: Collection[Sighting],
        removed: Collection[FileKey],
        votes: Iterable[PendingVote] = (),
    ) -> None:
        """Store what has changed, and the votes that follow from it: all or nothing."""
        if not updated and not removed:
            return
        folders = {sighting.folder for sighting in updated}.union(folder for folder, _ in removed)
        with self._db.transaction():
            numbers = {folder: self._add_folder(mailbox, folder) for folder in folders}
            away = [(numbers[folder], name) for folder, name in removed]
            self._db.executemany("DELETE FROM sightings WHERE folder = ? AND name = ?", away)
            self._db.executemany(
                "INSERT OR REPLACE INTO sightings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    (
                        numbers[sighting.folder],
                        *sighting[1:4],
                        None if sighting.origin is None else os.fsencode(sighting.origin),
                        *sighting[5:],
                    )
                    for sighting in updated
                ),
            )
            self._db.executemany(
                f"INSERT INTO pending VALUES (NULL{', ?' * 12})",
                ((*pending.vote, *pending[1:]) for pending in votes),
            )
            self._forget_empty({(number,) for number, _ in away})

    def drop_pending(self) -> None:
        with self._db.transaction():
            self._db.execute("DELETE FROM pending")

    def mark_scanned(self, mailbox: str) -> None:
        with self._db.transaction():
            number = self._add_mailbox(mailbox)
            self._db.execute("UPDATE mailboxes SET scanned = 1 WHERE id = ?", (number,))

    # ---- forgetting

    def forget(self, mailbox: str) -> None:
        with self._db.transaction():
            number = self._add_mailbox(mailbox)
            folders = "folder IN (SELECT id FROM folders WHERE mailbox = ?)"
            self._db.execute(f"DELETE FROM sightings WHERE {folders}", (number,))
            for table in ("missing", "folders"):
                self._db.execute(f"DELETE FROM {table} WHERE mailbox = ?", (number,))
            self._db.execute("DELETE FROM mailboxes WHERE id = ?", (number,))

    def forget_old(
        self, present: Set[str], now: int, unreadable: Collection[str] = ()
    ) -> list[str]:
        """Forget what went, and the mailboxes that have been missing, for more than
        MAX_GONE_SECONDS; the names of these. A clock that jumped is not trusted.

        Mailboxes below unreadable directories may be there.
        """
        with self._db.transaction():
            now = int(self._db.trusted_time(now))
            before = (now - MAX_GONE_SECONDS,)
            old = "FROM sightings WHERE gone > 0 AND gone < ?"
            folders = self._db.execute(f"SELECT DISTINCT folder {old}", before).fetchall()
            self._db.execute(f"DELETE {old}", before)
            self._forget_empty(folders)
            rows = self._db.execute("SELECT name, id FROM mailboxes")
            numbers = {os.fsdecode(name): number for name, number in rows}
            here = [(numbers[mailbox],) for mailbox in numbers.keys() & present]
            self._db.executemany("DELETE FROM missing WHERE mailbox = ?", here)
            missing = [
                (numbers[mailbox], now)
                for mailbox in numbers.keys() - present
                if not is_below(mailbox, unreadable)
            ]
            self._db.executemany("INSERT OR IGNORE INTO missing VALUES (?, ?)", missing)
            query = "SELECT name FROM mailboxes JOIN missing ON mailbox = id WHERE since < ?"
            over = [os.fsdecode(name) for (name,) in self._db.execute(query, before)]
        for mailbox in over:
            self.forget(mailbox)
        return over

    def _forget_empty(self, folders: Iterable[tuple[int]]) -> None:
        """Forget those of some folders that have no sightings: users make as many as they like."""
        empty = "id = ? AND NOT EXISTS (SELECT 1 FROM sightings WHERE folder = id)"
        self._db.executemany(f"DELETE FROM folders WHERE {empty}", folders)

    # ---- numbers of folders and mailboxes

    def _add_folder(self, mailbox: str, folder: str) -> int:
        row = (self._add_mailbox(mailbox), os.fsencode(folder))
        self._db.execute("INSERT OR IGNORE INTO folders (mailbox, name) VALUES (?, ?)", row)
        query = "SELECT id FROM folders WHERE mailbox = ? AND name = ?"
        return int(self._db.execute(query, row).fetchone()[0])

    def _add_mailbox(self, mailbox: str) -> int:
        row = (os.fsencode(mailbox),)
        self._db.execute("INSERT OR IGNORE INTO mailboxes (name) VALUES (?)", row)
        return int(self._db.execute("SELECT id FROM mailboxes WHERE name = ?", row).fetchone()[0])

    def _query(self, query: str, *values: object) -> list[Any]:
        encoded = [os.fsencode(value) if isinstance(value, str) else value for value in values]
        return self._db.query(query, encoded)
