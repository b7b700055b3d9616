"""The file of the sightings: how it is made, opened, and set aside when it is damaged. A cache:
what is lost is one look at all mail.

Must never open what another program has written, nor let what lies beside a damaged file into the
next one.

Where each message of each mailbox was last seen: a SQLite file of its own, so that a restart knows
what happened meanwhile.

The votes that follow from new sightings are written in the same transaction, as pending, and leave
the file when they are in the ledger (`lessons` states the order of writes). So no sighting is ever
committed without the votes that follow from it.

Must never let an error of SQLite or the system out as anything but a `SightingsError`, and never
keep more in memory than the 64-bit keys of the names. What is committed survives a power cut (WAL,
synchronous FULL). Whoever learns from it has it mended: a damaged one is set aside, and all is
looked at as if for the first time.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.database import Database, Schema, is_corruption
from spamguard.errors import SpamguardError
from spamguard.folders.mailboxes import is_below
from spamguard.folders.reconcile import Sighting
from spamguard.ledger.votes import NewVote
from spamguard.storage import as_directory_owner

_log = logging.getLogger("spamguard.folders")


DAMAGED_SUFFIX = ".damaged"  # behind the name of a damaged one

_DAMAGED_WARNING = (
    "sightings %s: they are damaged and lie in %s now: all folders are looked at as if for the first time. What was moved since they were "
    "last looked at teaches nothing"
)


class SightingsError(SpamguardError):
    """The sightings cannot be opened, read or written."""


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

-- Of messages that show evidence: when they were first seen read; 0: nothing more is to be learnt.
CREATE TABLE marks (
    folder INTEGER NOT NULL, name INTEGER NOT NULL, since INTEGER NOT NULL,
    PRIMARY KEY (folder, name)
) WITHOUT ROWID;

-- Of mailboxes: the evidence that was asked for since everything in them was looked at.
CREATE TABLE weighed (mailbox INTEGER PRIMARY KEY, asked TEXT NOT NULL);

-- Votes that follow from the sightings and were not in the ledger when this was written.
CREATE TABLE pending (
    id INTEGER PRIMARY KEY, digest BLOB NOT NULL, user TEXT NOT NULL, label TEXT NOT NULL,
    packed BLOB NOT NULL, scores BLOB NOT NULL, origin TEXT NOT NULL, time INTEGER NOT NULL,
    extractor INTEGER NOT NULL, decided_at INTEGER NOT NULL, came_from TEXT NOT NULL,
    came_to TEXT NOT NULL, why TEXT NOT NULL
);

-- Of mailboxes that are gone: since when.
CREATE TABLE missing (mailbox INTEGER PRIMARY KEY, since INTEGER NOT NULL);
""",
)


def open_sightings_file(path: Path) -> Database:
    """Open the file; make it when there is none. SightingsError."""
    db = Database.open(path, SIGHTINGS_SCHEMA)
    db.query("PRAGMA synchronous = FULL")
    return db


def set_aside(path: Path) -> None:
    """With its log, which would be taken for the next one's. SightingsError."""
    aside = path.with_name(path.name + DAMAGED_SUFFIX)
    with SIGHTINGS_SCHEMA.errors(path), as_directory_owner(path.parent):
        with suppress(FileNotFoundError):  # it lies there already, or somebody was faster
            path.replace(aside)
        for log in ("-wal", "-shm"):
            path.with_name(path.name + log).unlink(missing_ok=True)
    _log.error(_DAMAGED_WARNING, path, aside)


SIGHTINGS_FILE = "sightings.sqlite"
"""Its name in the state directory."""

MAX_GONE_SECONDS = 30 * 86_400  # for so long a message that went may yet appear elsewhere

EVIDENCE_DONE = 0
"""As a mark: the evidence that this message shows teaches nothing any more."""

NameKeys = NDArray[np.int64]

_FOLDERS = "FROM folders f JOIN mailboxes m ON f.mailbox = m.id WHERE m.name = ?"
_FOLDER = f"SELECT f.id {_FOLDERS} AND f.name = ?"
_SELECT = (
    "SELECT f.name, s.name, digest, delivery, origin, waiting, followed, seen, gone "
    "FROM sightings s JOIN folders f ON s.folder = f.id WHERE s.folder"
)
_INSERT = "INSERT OR REPLACE INTO sightings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PENDING_COLUMNS = "digest, user, label, packed, scores, origin, time, extractor, decided_at, came_from, came_to, why"
_INSERT_PENDING = (
    f"INSERT INTO pending ({_PENDING_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# at once: a question for each takes four times as long
_OF_NAMES = "folder = ? AND name IN (SELECT value FROM json_each(?))"
_OF_MAILBOX = "folder IN (SELECT id FROM folders WHERE mailbox = ?)"


class PendingVote(NamedTuple):
    """A vote that follows from sightings. decided_at: the last event of the ledger at that time.

    came_from, came_to, why: of the line that the log gets, folders as people know them.
    """

    vote: NewVote
    decided_at: int
    came_from: str
    came_to: str
    why: str


class SightingsResetError(SightingsError):
    """They were damaged, which is mended, and know nothing now."""


class Sightings:
    """Sightings by mailbox, which any string names. Belongs to one thread of one process; every
    method raises SightingsError.
    """

    def __init__(self, db: Database, *, replace_damaged: bool) -> None:
        """Use `open`."""
        self.path = db.path
        self.reset_count = 0  # how often they were, and began anew
        self._db = db
        self._replace_damaged = replace_damaged
        self._is_set_aside = False  # set aside, with none in its place yet
        self._clear_keys()

    def _clear_keys(self) -> None:
        self._keys: dict[int, NameKeys] = {}  # of a folder, by its number

    @classmethod
    def open(cls, path: Path, *, replace_damaged: bool = False) -> Sightings:
        """The sightings at `path`, created (mode 0600) when there are none. mend: a damaged file,
        now or later, is set aside.
        """
        try:
            return cls(open_sightings_file(path), replace_damaged=replace_damaged)
        except SightingsError as error:
            if not (replace_damaged and is_corruption(error.__cause__)):
                raise
        set_aside(path)
        return cls(open_sightings_file(path), replace_damaged=replace_damaged)

    def close(self) -> None:
        """Give the file back."""
        with self._map_errors():
            self._db.close()

    def __enter__(self) -> Sightings:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # What is known

    def mailboxes(self) -> list[str]:
        """All that were seen."""
        with self._map_errors():
            return sorted(
                os.fsdecode(name) for (name,) in self._db.execute("SELECT name FROM mailboxes")
            )

    def is_scanned(self, mailbox: str) -> bool:
        """Whether its first scan was finished."""
        with self._map_errors():
            return (
                self._db.execute(
                    "SELECT 1 FROM mailboxes WHERE name = ? AND scanned", (os.fsencode(mailbox),)
                ).fetchone()
                is not None
            )

    def folders(self, mailbox: str) -> list[str]:
        """Those in which messages were when they were last scanned."""
        with self._map_errors():
            query = f"SELECT f.name {_FOLDERS} AND EXISTS (SELECT 1 FROM sightings WHERE folder = f.id AND gone = 0)"
            return sorted(
                os.fsdecode(name) for (name,) in self._db.execute(query, (os.fsencode(mailbox),))
            )

    def name_keys(self, mailbox: str, folder: str) -> NameKeys:
        """Keys of the base names that were in a folder when it was last scanned, sorted. Not to be
        written to.
        """
        with self._map_errors():
            number = self._find_folder(mailbox, folder)
            return np.empty(0, np.int64) if number is None else self._read_keys(number)

    def find(
        self, mailbox: str, digests: Iterable[bytes], gone: Iterable[tuple[str, int]]
    ) -> list[Sighting]:
        """All sightings of these digests, of these files (folder, key), and of the digests of those
        files.
        """
        of_file = f"{_SELECT} = ({_FOLDER}) AND s.name = ?"
        of_digest = f"{_SELECT} IN (SELECT f.id {_FOLDERS}) AND digest = ? AND digest != x''"
        box = os.fsencode(mailbox)
        with self._map_errors():
            rows = [
                row
                for folder, name in gone
                for row in self._db.execute(of_file, (box, os.fsencode(folder), name))
            ]
            wanted = {row[2] for row in rows}.union(digests) - {b""}
            rows += [row for digest in wanted for row in self._db.execute(of_digest, (box, digest))]
        return list({copy.key: copy for copy in itertools.starmap(_make_sighting, rows)}.values())

    def is_known(self, mailbox: str, digest: bytes) -> bool:
        """Whether there are sightings of this message."""
        query = f"SELECT 1 FROM sightings WHERE folder IN (SELECT f.id {_FOLDERS}) AND digest = ? AND digest != x'' LIMIT 1"
        with self._map_errors():
            return self._db.execute(query, (os.fsencode(mailbox), digest)).fetchone() is not None

    def find_known(self, mailbox: str, digests: Iterable[bytes]) -> set[bytes]:
        """Those of these messages of which there are sightings."""
        return {digest for digest in digests if self.is_known(mailbox, digest)}

    def find_digests(self, mailbox: str, folder: str, names: Iterable[int]) -> dict[int, bytes]:
        """Of files that are there, by their keys, as far as their messages could be read and
        nothing about them is waiting.
        """
        with self._map_errors():
            number = self._find_folder(mailbox, folder)
            query = f"SELECT name, digest FROM sightings WHERE {_OF_NAMES} AND gone = 0 AND waiting = 0 AND digest != x''"
            return dict(self._db.execute(query, (number, json.dumps(list(names)))))

    def find_present(
        self, digests: Iterable[bytes], max_copies: int
    ) -> list[tuple[bytes, tuple[str, str, int]]]:
        """Of messages that are there: mailbox, folder and key of the name, at most so many of each."""
        query = (
            "SELECT m.name, f.name, s.name FROM sightings s JOIN folders f ON s.folder = f.id JOIN mailboxes m ON f.mailbox = m.id "
            "WHERE s.digest = ? AND s.digest != x'' AND s.gone = 0 LIMIT ?"
        )
        with self._map_errors():
            rows = [
                (digest, row)
                for digest in digests
                for row in self._db.execute(query, (digest, max_copies))
            ]
        return [
            (digest, (os.fsdecode(mailbox), os.fsdecode(folder), name))
            for digest, (mailbox, folder, name) in rows
        ]

    def read_marks(self, mailbox: str, folder: str, names: Iterable[int]) -> dict[int, int]:
        """What is known about evidence of some messages, by their keys: `DONE`, or seconds since
        1970.
        """
        with self._map_errors():
            number = self._find_folder(mailbox, folder)
            return dict(
                self._db.execute(
                    f"SELECT name, since FROM marks WHERE {_OF_NAMES}",
                    (number, json.dumps(list(names))),
                )
            )

    def has_mark_before(self, mailbox: str, folder: str, when: float) -> bool:
        """Whether any message has a mark of a time that is so long ago."""
        with self._map_errors():
            query = (
                f"SELECT 1 FROM marks WHERE folder = ({_FOLDER}) AND since BETWEEN 1 AND ? LIMIT 1"
            )
            return (
                self._db.execute(
                    query, (os.fsencode(mailbox), os.fsencode(folder), when)
                ).fetchone()
                is not None
            )

    def evidence_rule(self, mailbox: str) -> str:
        """The evidence that has been asked for since all of a mailbox was looked at for it; empty:
        it never was.
        """
        with self._map_errors():
            query = "SELECT asked FROM weighed JOIN mailboxes ON mailbox = id WHERE name = ?"
            row = self._db.execute(query, (os.fsencode(mailbox),)).fetchone()
            return str(row[0]) if row else ""

    def pending_votes(self) -> list[PendingVote]:
        """Votes that were recorded and not yet dropped, in the order in which they were recorded."""
        with self._map_errors():
            rows = self._db.execute(
                f"SELECT {_PENDING_COLUMNS} FROM pending ORDER BY id"
            ).fetchall()
        return [PendingVote(NewVote(*row[:8]), *row[8:]) for row in rows]

    # What changes

    def update_marks(
        self, mailbox: str, folder: str, marks: Mapping[int, int], removed: Collection[int]
    ) -> None:
        """Marks to be made, by key, and those to be removed."""
        if not marks and not removed:
            return
        with self._transaction():
            number = self._add_folder(mailbox, folder)
            self._db.executemany(
                "DELETE FROM marks WHERE folder = ? AND name = ?",
                ((number, name) for name in removed),
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO marks VALUES (?, ?, ?)",
                ((number, *mark) for mark in marks.items()),
            )

    def set_evidence_rule(self, mailbox: str, asked: str) -> None:
        """All of a mailbox was looked at for this evidence."""
        with self._transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO weighed VALUES (?, ?)", (self._add_mailbox(mailbox), asked)
            )

    def update(
        self,
        mailbox: str,
        updated: Collection[Sighting],
        removed: Collection[tuple[str, int]],
        *,
        done: Collection[bytes] = (),
        votes: Iterable[PendingVote] = (),
    ) -> None:
        """Remember what has changed, all or nothing: `Outcome.kept`, `Outcome.removed` and the
        votes that follow from them.

        done: digests of messages whose evidence teaches nothing any more, wherever they come; kept
        copies of them get that mark.
        """
        if not updated and not removed:
            return
        folders = {copy.folder for copy in updated}.union(folder for folder, _ in removed)
        with self._transaction():
            numbers = {folder: self._add_folder(mailbox, folder) for folder in folders}
            away = [(numbers[folder], name) for folder, name in removed]
            for table in ("sightings", "marks"):
                self._db.executemany(f"DELETE FROM {table} WHERE folder = ? AND name = ?", away)
            self._db.executemany(
                _INSERT, (_sighting_row(copy, numbers[copy.folder]) for copy in updated)
            )
            marked = [
                (numbers[copy.folder], copy.name, EVIDENCE_DONE)
                for copy in updated
                if copy.digest in done and not copy.gone
            ]
            self._db.executemany("INSERT OR REPLACE INTO marks VALUES (?, ?, ?)", marked)
            self._db.executemany(
                _INSERT_PENDING, ((*pending.vote, *pending[1:]) for pending in votes)
            )
            self._forget_empty({number for number, _ in away})
        for folder, number in numbers.items():
            if number in self._keys:
                self._update_keys(
                    number,
                    [copy for copy in updated if copy.folder == folder],
                    [name for other, name in away if other == number],
                )

    def drop_pending(self) -> None:
        """All pending votes are in the ledger."""
        with self._transaction():
            self._db.execute("DELETE FROM pending")

    def mark_scanned(self, mailbox: str) -> None:
        """Its first scan is finished."""
        with self._transaction():
            self._add_mailbox(mailbox)
            self._db.execute(
                "UPDATE mailboxes SET scanned = 1 WHERE name = ?", (os.fsencode(mailbox),)
            )

    def forget(self, mailbox: str) -> None:
        """Remove all that is known of a mailbox."""
        with self._transaction():
            number = self._add_mailbox(mailbox)
            folders = [
                folder
                for (folder,) in self._db.execute(
                    "SELECT id FROM folders WHERE mailbox = ?", (number,)
                )
            ]
            for table in ("sightings", "marks"):
                self._db.execute(f"DELETE FROM {table} WHERE {_OF_MAILBOX}", (number,))
            for table in ("weighed", "missing"):
                self._db.execute(f"DELETE FROM {table} WHERE mailbox = ?", (number,))
            self._db.execute("DELETE FROM folders WHERE mailbox = ?", (number,))
            self._db.execute("DELETE FROM mailboxes WHERE id = ?", (number,))
        for folder in folders:
            self._keys.pop(folder, None)

    def prune(self, now: int) -> int:
        """Forget what went more than `GONE_SECONDS` ago; how many sightings that were. What went in
        the future did so by a wrong clock.

        now: seconds since 1970; ages are told by the time of `ages`.
        """
        with self._transaction():
            now = int(self._db.trusted_time(now))
            self._db.execute(
                "UPDATE sightings SET gone = ? WHERE gone > 0 AND gone > ?", (now, now)
            )
            old, before = "FROM sightings WHERE gone > 0 AND gone < ?", (now - MAX_GONE_SECONDS,)
            folders = [
                number for (number,) in self._db.execute(f"SELECT DISTINCT folder {old}", before)
            ]
            self._db.execute(
                f"DELETE FROM marks WHERE (folder, name) IN (SELECT folder, name {old})",
                before,
            )
            forgotten = self._db.execute(f"DELETE {old}", before).rowcount
            self._forget_empty(folders)
        return forgotten

    def forget_missing(
        self, present: Collection[str], now: int, unreadable: Collection[str] = ()
    ) -> list[str]:
        """Forget the mailboxes that have been missing for more than `GONE_SECONDS`; which those
        are.

        there: all that are not missing. closed: directories that nobody can look into; what lies
        below them may be there.
        """
        with self._transaction():
            now = int(self._db.trusted_time(now))
        with self._map_errors():
            query = "SELECT name, id, since FROM mailboxes LEFT JOIN missing ON mailbox = id"
            known = [
                (os.fsdecode(name), number, since)
                for name, number, since in self._db.execute(query)
            ]
        back = [(number,) for name, number, since in known if name in present and since is not None]
        lost = [one for one in known if one[0] not in present and not is_below(one[0], unreadable)]
        away = [
            (name, number, now if since is None else min(since, now), since)
            for name, number, since in lost
        ]
        if back or any(since != before for _, _, since, before in away):
            with self._transaction():
                self._db.executemany("DELETE FROM missing WHERE mailbox = ?", back)
                self._db.executemany(
                    "INSERT OR REPLACE INTO missing VALUES (?, ?)",
                    ((number, since) for _, number, since, _ in away),
                )
        over = [name for name, _, since, _ in away if since < now - MAX_GONE_SECONDS]
        for name in over:
            self.forget(name)
        return over

    def _find_folder(self, mailbox: str, folder: str) -> int | None:
        """The number of a folder of which anything is known."""
        row = self._db.execute(_FOLDER, (os.fsencode(mailbox), os.fsencode(folder))).fetchone()
        return row and int(row[0])

    def _add_folder(self, mailbox: str, folder: str) -> int:
        """Of a folder, known from now on."""
        row = (self._add_mailbox(mailbox), os.fsencode(folder))
        self._db.execute("INSERT OR IGNORE INTO folders (mailbox, name) VALUES (?, ?)", row)
        return int(
            self._db.execute(
                "SELECT id FROM folders WHERE mailbox = ? AND name = ?", row
            ).fetchone()[0]
        )

    def _add_mailbox(self, mailbox: str) -> int:
        name = os.fsencode(mailbox)
        self._db.execute("INSERT OR IGNORE INTO mailboxes (name) VALUES (?)", (name,))
        return int(
            self._db.execute("SELECT id FROM mailboxes WHERE name = ?", (name,)).fetchone()[0]
        )

    def _forget_empty(self, numbers: Iterable[int]) -> None:
        """Those of some folders of which nothing is known any more: people rename and remove as
        many as they like.
        """
        for number in numbers:
            empty = "DELETE FROM folders WHERE id = ? AND NOT EXISTS (SELECT 1 FROM sightings WHERE folder = id)"
            if self._db.execute(empty, (number,)).rowcount:
                self._db.execute("DELETE FROM marks WHERE folder = ?", (number,))
                self._keys.pop(number, None)

    def _read_keys(self, number: int) -> NameKeys:
        if number not in self._keys:
            rows = self._db.execute(
                "SELECT name FROM sightings WHERE folder = ? AND gone = 0 ORDER BY name", (number,)
            )
            self._keys[number] = np.fromiter((name for (name,) in rows), np.int64)
        return self._keys[number]

    def _update_keys(
        self, number: int, kept: Collection[Sighting], removed: Collection[int]
    ) -> None:
        away = np.array([*removed, *(copy.name for copy in kept if copy.gone)], np.int64)
        here = np.array([copy.name for copy in kept if not copy.gone], np.int64)
        self._keys[number] = np.union1d(
            np.setdiff1d(self._keys[number], away, assume_unique=True), here
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._map_errors(), self._db.transaction():
            yield

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        """BegunAnewError: the file was damaged; another is in its place."""
        try:
            with SIGHTINGS_SCHEMA.errors(self.path):
                yield
        except SightingsError as error:
            if not (
                self._replace_damaged and (self._is_set_aside or is_corruption(error.__cause__))
            ):
                raise
            self._reset()
            raise SightingsResetError(f"sightings {self.path}: they begin anew") from error

    def _reset(self) -> None:
        """What the system refuses here, as on a full disk, is tried again at the next use: this one
        would stay closed for good.
        """
        self._is_set_aside = True
        with suppress(SightingsError):
            self._db.close()
        set_aside(self.path)
        self._db = open_sightings_file(self.path)
        self._is_set_aside = False
        self._clear_keys()
        self.reset_count += 1


def _sighting_row(copy: Sighting, folder: int) -> tuple[object, ...]:
    origin = None if copy.origin is None else os.fsencode(copy.origin)
    return (
        folder,
        copy.name,
        copy.digest,
        copy.delivery,
        origin,
        copy.waiting,
        copy.followed,
        copy.seen,
        copy.gone,
    )


def _make_sighting(
    folder: bytes,
    name: int,
    digest: bytes,
    delivery: int,
    origin: bytes | None,
    waiting: int,
    followed: int,
    seen: int,
    gone: int,
) -> Sighting:
    came = None if origin is None else os.fsdecode(origin)
    return Sighting(
        os.fsdecode(folder), name, digest, delivery, came, bool(waiting), bool(followed), seen, gone
    )
