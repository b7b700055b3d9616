"""Where each message of each mailbox was last seen: a SQLite file of its own, so that a restart knows what happened meanwhile.

The votes that follow from new sightings are written in the same transaction, as pending, and leave the file when they are in the ledger
(`lessons` states the order of writes). So no sighting is ever committed without the votes that follow from it.

Must never let an error of SQLite or the system out as anything but a `SightingsError`, and never keep more in memory than the 64-bit
keys of the names. What is committed survives a power cut (WAL, synchronous FULL). Whoever learns from it has it mended: a damaged one
is set aside, and all is looked at as if for the first time.
"""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard import ages
from spamguard.folders.contract import lies_below
from spamguard.folders.sightingsfile import SightingsError, opened, set_aside
from spamguard.folders.values import Copy
from spamguard.ledger import NewVote
from spamguard.sqlitefile import cache_explained, is_damage, transaction

FILE = "sightings.sqlite"
"""Its name in the state directory."""

GONE_SECONDS = 30 * 86_400  # for so long a message that went may yet appear elsewhere

DONE = 0
"""As a mark: the evidence that this message shows teaches nothing any more."""

Names = NDArray[np.int64]

_FOLDERS = "FROM folders f JOIN mailboxes m ON f.mailbox = m.id WHERE m.name = ?"
_FOLDER = f"SELECT f.id {_FOLDERS} AND f.name = ?"
_SELECT = (
    "SELECT f.name, s.name, digest, delivery, origin, waiting, followed, seen, gone "
    "FROM sightings s JOIN folders f ON s.folder = f.id WHERE s.folder"
)
_PUT = "INSERT OR REPLACE INTO sightings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PENDING = "digest, user, label, packed, scores, origin, time, extractor, decided_at, came_from, came_to, why"
_PUT_PENDING = f"INSERT INTO pending ({_PENDING}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608  words of our own
_NAMED = "folder = ? AND name IN (SELECT value FROM json_each(?))"  # at once: a question for each takes four times as long
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


class BegunAnewError(SightingsError):
    """They were damaged, which is mended, and know nothing now."""


class Sightings:
    """Sightings by mailbox, which any string names. Belongs to one thread of one process; every method raises SightingsError."""

    def __init__(self, path: Path, db: sqlite3.Connection, *, mend: bool) -> None:
        """Use `open`."""
        self.path = path
        self.damaged = 0  # how often they were, and began anew
        self._db = db
        self._mend = mend
        self._lost = False  # set aside, with none in its place yet
        self._forget_all()

    def _forget_all(self) -> None:
        self._names: dict[int, Names] = {}  # of a folder, by its number

    @classmethod
    def open(cls, path: Path, *, mend: bool = False) -> Sightings:
        """The sightings at `path`, created (mode 0600) when there are none. mend: a damaged file, now or later, is set aside."""
        try:
            return cls(path, opened(path), mend=mend)
        except SightingsError as error:
            if not (mend and is_damage(error.__cause__)):
                raise
        set_aside(path)
        return cls(path, opened(path), mend=mend)

    def close(self) -> None:
        """Give the file back."""
        with self._explained():
            self._db.close()

    def __enter__(self) -> Sightings:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # What is known

    def mailboxes(self) -> list[str]:
        """All that were seen."""
        with self._explained():
            return sorted(os.fsdecode(name) for (name,) in self._db.execute("SELECT name FROM mailboxes"))

    def scanned(self, mailbox: str) -> bool:
        """Whether its first scan was finished."""
        with self._explained():
            return self._db.execute("SELECT 1 FROM mailboxes WHERE name = ? AND scanned", (os.fsencode(mailbox),)).fetchone() is not None

    def folders(self, mailbox: str) -> list[str]:
        """Those in which messages were when they were last scanned."""
        with self._explained():
            query = f"SELECT f.name {_FOLDERS} AND EXISTS (SELECT 1 FROM sightings WHERE folder = f.id AND gone = 0)"  # noqa: S608  words of our own
            return sorted(os.fsdecode(name) for (name,) in self._db.execute(query, (os.fsencode(mailbox),)))

    def names(self, mailbox: str, folder: str) -> Names:
        """Keys of the base names that were in a folder when it was last scanned, sorted. Not to be written to."""
        with self._explained():
            number = self._known(mailbox, folder)
            return np.empty(0, np.int64) if number is None else self._present(number)

    def copies(self, mailbox: str, digests: Iterable[bytes], gone: Iterable[tuple[str, int]]) -> list[Copy]:
        """All sightings of these digests, of these files (folder, key), and of the digests of those files."""
        of_file = f"{_SELECT} = ({_FOLDER}) AND s.name = ?"
        of_digest = f"{_SELECT} IN (SELECT f.id {_FOLDERS}) AND digest = ? AND digest != x''"
        box = os.fsencode(mailbox)
        with self._explained():
            rows = [row for folder, name in gone for row in self._db.execute(of_file, (box, os.fsencode(folder), name))]
            wanted = {row[2] for row in rows}.union(digests) - {b""}
            rows += [row for digest in wanted for row in self._db.execute(of_digest, (box, digest))]
        return list({copy.key: copy for copy in itertools.starmap(_copy, rows)}.values())

    def known(self, mailbox: str, digests: Iterable[bytes]) -> set[bytes]:
        """Those of which there are sightings."""
        return {copy.digest for copy in self.copies(mailbox, digests, ())}

    def digests(self, mailbox: str, folder: str, names: Iterable[int]) -> dict[int, bytes]:
        """Of files that are there, by their keys, as far as their messages could be read and nothing about them is waiting."""
        with self._explained():
            number = self._known(mailbox, folder)
            query = f"SELECT name, digest FROM sightings WHERE {_NAMED} AND gone = 0 AND waiting = 0 AND digest != x''"  # noqa: S608
            return dict(self._db.execute(query, (number, json.dumps(list(names)))))

    def lying(self, digests: Iterable[bytes], most: int) -> list[tuple[bytes, tuple[str, str, int]]]:
        """Of messages that are there: mailbox, folder and key of the name, at most so many of each."""
        query = (
            "SELECT m.name, f.name, s.name FROM sightings s JOIN folders f ON s.folder = f.id JOIN mailboxes m ON f.mailbox = m.id "
            "WHERE s.digest = ? AND s.digest != x'' AND s.gone = 0 LIMIT ?"
        )
        with self._explained():
            rows = [(digest, row) for digest in digests for row in self._db.execute(query, (digest, most))]
        return [(digest, (os.fsdecode(mailbox), os.fsdecode(folder), name)) for digest, (mailbox, folder, name) in rows]

    def marks(self, mailbox: str, folder: str, names: Iterable[int]) -> dict[int, int]:
        """What is known about evidence of some messages, by their keys: `DONE`, or seconds since 1970."""
        with self._explained():
            number = self._known(mailbox, folder)
            return dict(self._db.execute(f"SELECT name, since FROM marks WHERE {_NAMED}", (number, json.dumps(list(names)))))  # noqa: S608

    def marked_before(self, mailbox: str, folder: str, when: float) -> bool:
        """Whether any message has a mark of a time that is so long ago."""
        with self._explained():
            query = f"SELECT 1 FROM marks WHERE folder = ({_FOLDER}) AND since BETWEEN 1 AND ? LIMIT 1"  # noqa: S608  words of our own
            return self._db.execute(query, (os.fsencode(mailbox), os.fsencode(folder), when)).fetchone() is not None

    def weighed(self, mailbox: str) -> str:
        """The evidence that has been asked for since all of a mailbox was looked at for it; empty: it never was."""
        with self._explained():
            query = "SELECT asked FROM weighed JOIN mailboxes ON mailbox = id WHERE name = ?"
            row = self._db.execute(query, (os.fsencode(mailbox),)).fetchone()
            return str(row[0]) if row else ""

    def pending(self) -> list[PendingVote]:
        """Votes that were recorded and not yet dropped, in the order in which they were recorded."""
        with self._explained():
            rows = self._db.execute(f"SELECT {_PENDING} FROM pending ORDER BY id").fetchall()  # noqa: S608  words of our own
        return [PendingVote(NewVote(*row[:8]), *row[8:]) for row in rows]

    # What changes

    def mark(self, mailbox: str, folder: str, marks: Mapping[int, int], removed: Collection[int]) -> None:
        """Marks to be made, by key, and those to be removed."""
        if not marks and not removed:
            return
        with self._transaction():
            number = self._number(mailbox, folder)
            self._db.executemany("DELETE FROM marks WHERE folder = ? AND name = ?", ((number, name) for name in removed))
            self._db.executemany("INSERT OR REPLACE INTO marks VALUES (?, ?, ?)", ((number, *mark) for mark in marks.items()))

    def mark_weighed(self, mailbox: str, asked: str) -> None:
        """All of a mailbox was looked at for this evidence."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO weighed VALUES (?, ?)", (self._mailbox(mailbox), asked))

    def update(
        self,
        mailbox: str,
        kept: Collection[Copy],
        removed: Collection[tuple[str, int]],
        *,
        done: Collection[bytes] = (),
        votes: Iterable[PendingVote] = (),
    ) -> None:
        """Remember what has changed, all or nothing: `Outcome.kept`, `Outcome.removed` and the votes that follow from them.

        done: digests of messages whose evidence teaches nothing any more, wherever they come; kept copies of them get that mark.
        """
        if not kept and not removed:
            return
        folders = {copy.folder for copy in kept}.union(folder for folder, _ in removed)
        with self._transaction():
            numbers = {folder: self._number(mailbox, folder) for folder in folders}
            away = [(numbers[folder], name) for folder, name in removed]
            for table in ("sightings", "marks"):
                self._db.executemany(f"DELETE FROM {table} WHERE folder = ? AND name = ?", away)  # noqa: S608  words of our own
            self._db.executemany(_PUT, (_row(copy, numbers[copy.folder]) for copy in kept))
            marked = [(numbers[copy.folder], copy.name, DONE) for copy in kept if copy.digest in done and not copy.gone]
            self._db.executemany("INSERT OR REPLACE INTO marks VALUES (?, ?, ?)", marked)
            self._db.executemany(_PUT_PENDING, ((*pending.vote, *pending[1:]) for pending in votes))
            self._forget_empty({number for number, _ in away})
        for folder, number in numbers.items():
            if number in self._names:
                self._change(number, [copy for copy in kept if copy.folder == folder], [name for other, name in away if other == number])

    def drop_pending(self) -> None:
        """All pending votes are in the ledger."""
        with self._transaction():
            self._db.execute("DELETE FROM pending")

    def mark_scanned(self, mailbox: str) -> None:
        """Its first scan is finished."""
        with self._transaction():
            self._mailbox(mailbox)
            self._db.execute("UPDATE mailboxes SET scanned = 1 WHERE name = ?", (os.fsencode(mailbox),))

    def forget(self, mailbox: str) -> None:
        """Remove all that is known of a mailbox."""
        with self._transaction():
            number = self._mailbox(mailbox)
            folders = [folder for (folder,) in self._db.execute("SELECT id FROM folders WHERE mailbox = ?", (number,))]
            for table in ("sightings", "marks"):
                self._db.execute(f"DELETE FROM {table} WHERE {_OF_MAILBOX}", (number,))  # noqa: S608  words of our own
            for table in ("weighed", "missing"):
                self._db.execute(f"DELETE FROM {table} WHERE mailbox = ?", (number,))  # noqa: S608  words of our own
            self._db.execute("DELETE FROM folders WHERE mailbox = ?", (number,))
            self._db.execute("DELETE FROM mailboxes WHERE id = ?", (number,))
        for folder in folders:
            self._names.pop(folder, None)

    def prune(self, now: int) -> int:
        """Forget what went more than `GONE_SECONDS` ago; how many sightings that were. What went in the future did so by a wrong clock.

        now: seconds since 1970; ages are told by the time of `ages`.
        """
        with self._transaction():
            now = int(ages.believed(self._db, now))
            self._db.execute("UPDATE sightings SET gone = ? WHERE gone > 0 AND gone > ?", (now, now))
            old, before = "FROM sightings WHERE gone > 0 AND gone < ?", (now - GONE_SECONDS,)
            folders = [number for (number,) in self._db.execute(f"SELECT DISTINCT folder {old}", before)]
            self._db.execute(f"DELETE FROM marks WHERE (folder, name) IN (SELECT folder, name {old})", before)  # noqa: S608
            forgotten = self._db.execute(f"DELETE {old}", before).rowcount
            self._forget_empty(folders)
        return forgotten

    def miss(self, there: Collection[str], now: int, closed: Collection[str] = ()) -> list[str]:
        """Forget the mailboxes that have been missing for more than `GONE_SECONDS`; which those are.

        there: all that are not missing. closed: directories that nobody can look into; what lies below them may be there.
        """
        with self._transaction():
            now = int(ages.believed(self._db, now))
        with self._explained():
            query = "SELECT name, id, since FROM mailboxes LEFT JOIN missing ON mailbox = id"
            known = [(os.fsdecode(name), number, since) for name, number, since in self._db.execute(query)]
        back = [(number,) for name, number, since in known if name in there and since is not None]
        lost = [one for one in known if one[0] not in there and not lies_below(one[0], closed)]
        away = [(name, number, now if since is None else min(since, now), since) for name, number, since in lost]
        if back or any(since != before for _, _, since, before in away):
            with self._transaction():
                self._db.executemany("DELETE FROM missing WHERE mailbox = ?", back)
                self._db.executemany("INSERT OR REPLACE INTO missing VALUES (?, ?)", ((number, since) for _, number, since, _ in away))
        over = [name for name, _, since, _ in away if since < now - GONE_SECONDS]
        for name in over:
            self.forget(name)
        return over

    def _known(self, mailbox: str, folder: str) -> int | None:
        """The number of a folder of which anything is known."""
        row = self._db.execute(_FOLDER, (os.fsencode(mailbox), os.fsencode(folder))).fetchone()
        return row and int(row[0])

    def _number(self, mailbox: str, folder: str) -> int:
        """Of a folder, known from now on."""
        row = (self._mailbox(mailbox), os.fsencode(folder))
        self._db.execute("INSERT OR IGNORE INTO folders (mailbox, name) VALUES (?, ?)", row)
        return int(self._db.execute("SELECT id FROM folders WHERE mailbox = ? AND name = ?", row).fetchone()[0])

    def _mailbox(self, mailbox: str) -> int:
        name = os.fsencode(mailbox)
        self._db.execute("INSERT OR IGNORE INTO mailboxes (name) VALUES (?)", (name,))
        return int(self._db.execute("SELECT id FROM mailboxes WHERE name = ?", (name,)).fetchone()[0])

    def _forget_empty(self, numbers: Iterable[int]) -> None:
        """Those of some folders of which nothing is known any more: people rename and remove as many as they like."""
        for number in numbers:
            empty = "DELETE FROM folders WHERE id = ? AND NOT EXISTS (SELECT 1 FROM sightings WHERE folder = id)"
            if self._db.execute(empty, (number,)).rowcount:
                self._db.execute("DELETE FROM marks WHERE folder = ?", (number,))  # else the next folder of this number would have them
                self._names.pop(number, None)

    def _present(self, number: int) -> Names:
        if number not in self._names:
            rows = self._db.execute("SELECT name FROM sightings WHERE folder = ? AND gone = 0 ORDER BY name", (number,))
            self._names[number] = np.fromiter((name for (name,) in rows), np.int64)
        return self._names[number]

    def _change(self, number: int, kept: Collection[Copy], removed: Collection[int]) -> None:
        away = np.array([*removed, *(copy.name for copy in kept if copy.gone)], np.int64)
        here = np.array([copy.name for copy in kept if not copy.gone], np.int64)
        self._names[number] = np.union1d(np.setdiff1d(self._names[number], away, assume_unique=True), here)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._explained(), transaction(self._db):
            yield

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """BegunAnewError: the file was damaged; another is in its place."""
        try:
            with cache_explained("sightings", self.path, SightingsError):
                yield
        except SightingsError as error:
            if not (self._mend and (self._lost or is_damage(error.__cause__))):
                raise
            self._begin_anew()
            raise BegunAnewError(f"sightings {self.path}: they begin anew") from error

    def _begin_anew(self) -> None:
        """What the system refuses here, as on a full disk, is tried again at the next use: this one would stay closed for good."""
        self._lost = True
        with suppress(sqlite3.Error):
            self._db.close()
        set_aside(self.path)
        self._db = opened(self.path)
        self._lost = False
        self._forget_all()
        self.damaged += 1


def _row(copy: Copy, folder: int) -> tuple[object, ...]:
    origin = None if copy.origin is None else os.fsencode(copy.origin)
    return folder, copy.name, copy.digest, copy.delivery, origin, copy.waiting, copy.followed, copy.seen, copy.gone


def _copy(
    folder: bytes, name: int, digest: bytes, delivery: int, origin: bytes | None, waiting: int, followed: int, seen: int, gone: int
) -> Copy:
    came = None if origin is None else os.fsdecode(origin)
    return Copy(os.fsdecode(folder), name, digest, delivery, came, bool(waiting), bool(followed), seen, gone)
