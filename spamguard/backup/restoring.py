"""Puts a backup in the place of what is in a state directory: proved first, then at once, what was there kept aside.

Must never touch what is there before the new one has been read to its last receipt, and never under a running daemon. The new ledger
takes its name in one rename. Where the old key is another, a machine that stops between the two renames leaves a ledger and a key that
refuse each other in one clear line; restoring again finishes it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from spamguard import secret
from spamguard.backup.archive import NAMES, SIGHTINGS, Advance, Archive, Header
from spamguard.engine import Filter
from spamguard.errors import LedgerError, SourceError, TableError, UsageError
from spamguard.files import KEY, LEDGER, naming, sync_directory
from spamguard.ledger.failures import explained
from spamguard.model import directory
from spamguard.owner import as_owner_of
from spamguard.sqlitefile import connect

_DRAFT = ".restore-"
_BESIDES = ("-wal", "-shm", "-journal")
_WAIT_SECONDS = 2.0


@contextmanager
def proved(archive: Archive, header: Header, state: Path, advance: Advance) -> Iterator[Path]:
    """A directory in the state directory in which the backup is a filter that works: every receipt read, all tables made.

    It is a node of its own from now on: where it came from may live on, and no two may give the same version to two votes.
    Until the end, root has the rights of who owns the state directory only, and follows nothing that lies there any further.
    SourceError: it is no filter, or there is no room for it. UsageError: somebody else restores there. LedgerError: nobody can.
    """
    directory.make(state)
    with as_owner_of(state), _alone(state):
        for left in state.glob(f"{_DRAFT}*"):  # of one that was killed
            shutil.rmtree(left, ignore_errors=True)
        with _draft(state) as draft:
            with naming(state):
                archive.extract(draft, advance)
            try:
                _prove(draft, header)
            except (LedgerError, TableError) as error:
                raise SourceError(f"{error}; nothing was restored") from error
            yield draft


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Nobody else restores there until the end; a killed one holds nothing."""
    descriptor = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"{state}: another `restore` is at work there: wait for it") from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _draft(state: Path) -> Iterator[Path]:
    draft = state / f"{_DRAFT}{secrets.token_hex(4)}"
    draft.mkdir(mode=0o700)
    try:
        _give_to_owner_of(state, draft)
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _prove(draft: Path, header: Header) -> None:
    if secret.fingerprint(secret.load(draft / KEY, create=False)) != header.fingerprint:
        raise SourceError("the key in the backup is not the one it was taught with; nothing was restored")
    Filter.open(draft, load=False).close()  # an older ledger is migrated, a newer one or none refused
    _make_new_node(draft / LEDGER)
    with Filter.open(draft, load=False) as spam_filter:
        spam_filter.settle()


def _give_to_owner_of(state: Path, draft: Path) -> None:
    if os.geteuid() == 0:
        owner = state.stat()
        os.chown(draft, owner.st_uid, owner.st_gid)


def _make_new_node(ledger: Path) -> None:
    with closing(sqlite3.connect(ledger)) as db, db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'ledger.node'", (secrets.token_hex(8),))
        db.execute("DELETE FROM meta WHERE key LIKE 'tables.%'")  # which of the tables of that place counted


def refuse_to_overwrite(state: Path, *, replace: bool) -> None:
    """UsageError: there is something to be put aside, and nobody has said that it may be."""
    there = [name for name in (LEDGER, KEY) if (state / name).exists()]
    if there and not replace:
        raise UsageError(f"{state}: has a {there[0]} already: say --replace to put it aside, or name another directory with --state")


@contextmanager
def _to_ourselves(ledger: Path) -> Iterator[None]:
    """Nobody else has the ledger open, and its log is written back into it. UsageError: somebody has; LedgerError: it cannot be opened.

    A damaged one cannot be asked; then it is as it is.
    """
    if not ledger.exists():
        yield
        return
    with explained(ledger):
        asked = connect(ledger, _WAIT_SECONDS)
    with closing(asked) as db:
        try:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")  # refused while any other connection is there, and kept until the end
            db.execute("BEGIN EXCLUSIVE")
            db.execute("COMMIT")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                raise UsageError(f"{ledger}: a daemon or a command has it open: stop it, then restore") from error
        except sqlite3.DatabaseError:
            pass
        yield


def put_in_place(draft: Path, state: Path, refuse: Callable[[], None]) -> Path | None:
    """The backup's files instead of those in the state directory; where those are kept, None if there were none.

    refuse: raises if somebody is at work there after all. UsageError: somebody has the ledger open; LedgerError: the disk refuses.
    Either way what had been there is in force, or both are found by their names.
    """
    with _to_ourselves(state / LEDGER):
        refuse()
        return _swap(draft, state)


def _swap(draft: Path, state: Path) -> Path | None:
    try:
        aside = _keep_aside(state)
        stale = list(state.glob("tables-*.bin"))
        for path in draft.glob("tables-*.bin"):
            path.rename(state / path.name)
        for name in (SIGHTINGS, LEDGER, KEY):  # what was seen first: seen twice does no harm, not seen would
            _put(draft / name, state / name)
        sync_directory(state)
        for path in stale:
            path.unlink(missing_ok=True)
        return aside
    except OSError as error:
        raise LedgerError(f"{state}: cannot be restored into ({error.strerror}): look at the disk and its permissions") from error


def _keep_aside(state: Path) -> Path | None:
    """Second names for what is there, in a directory named after the time."""
    there = [path for name in NAMES for path in (state / name, *(state / f"{name}{end}" for end in _BESIDES)) if path.exists()]
    there += state.glob("tables-*.bin")
    if not there:
        return None
    aside = state / f"before-restore-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    aside.mkdir(mode=0o700)
    _give_to_owner_of(state, aside)
    for path in there:
        (aside / path.name).hardlink_to(path)
    sync_directory(aside)
    return aside


def _put(new: Path, path: Path) -> None:
    """A database's log belongs to the file that had the name before."""
    for end in _BESIDES:
        path.with_name(path.name + end).unlink(missing_ok=True)
    if new.exists():
        with new.open("rb") as file:
            os.fsync(file.fileno())
        new.replace(path)
    else:
        path.unlink(missing_ok=True)
