"""Makes a backup while everything goes on. Never keeps anybody from teaching, and leaves no file of its own behind."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from spamguard import __version__, secret
from spamguard.backup import archive
from spamguard.backup.archive import NAMES, SIGHTINGS, Header
from spamguard.errors import LedgerError, reported
from spamguard.files import KEY, LEDGER, create_private, naming
from spamguard.ledger import SqliteLedger
from spamguard.ledger.failures import failure
from spamguard.ledger.lessons import refuse_damaged
from spamguard.records import EXTRACTOR
from spamguard.sqlitefile import copy

_BUSY_SECONDS = 30.0
_DRAFT = ".spamguard-backup-"
_ABANDONED = 3600.0  # seconds after which nobody is still at work on one


@contextmanager
def copies(state: Path, beside: Path) -> Iterator[dict[str, Path]]:
    """Copies of what a backup holds, each as it is at one moment, by name, in a private directory in `beside`.

    Sightings are copied before the ledger: what moves in between is then seen again, and a lesson that stands already changes nothing;
    the other way round it would be lost. LedgerError: there is no room, or the state directory cannot be read.
    """
    _sweep(beside)
    with tempfile.TemporaryDirectory(prefix=_DRAFT, dir=beside) as place:
        found = {name: Path(place) / name for name in NAMES if (state / name).exists()}
        key = secret.load(state / KEY, create=False)
        with naming(beside), create_private(found[KEY]) as file:
            file.write(key)
        for name in (SIGHTINGS, LEDGER):
            if name in found:
                _copy(state / name, found[name])
        _refuse_damaged(found[LEDGER], state / LEDGER, secret.fingerprint(key))
        yield found


def _sweep(beside: Path) -> None:
    """What a killed process could not remove holds a key."""
    for left in beside.glob(f"{_DRAFT}*"):
        with suppress(OSError):
            if left.stat().st_uid == os.geteuid() and time.time() - left.stat().st_mtime > _ABANDONED:
                shutil.rmtree(left)


def _copy(path: Path, target: Path) -> None:
    try:
        create_private(target).close()
        copy(path, target, _BUSY_SECONDS)
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(f"{path}: cannot be copied to {target.parent}: make room there, or look at both [{reported(error)}]") from error


def _refuse_damaged(copied: Path, path: Path, fingerprint: str) -> None:
    """A backup of what is damaged would be found out when it is needed: all is looked at that restoring it will need."""
    try:
        with closing(sqlite3.connect(copied)) as db:
            found = " ".join(db.execute("PRAGMA integrity_check(1)").fetchone()[0].split())
    except sqlite3.Error as error:
        if not error.sqlite_errorname.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):  # it cannot be looked at there, as on a full disk
            raise failure(copied, error) from error
        found = str(error)
    if found == "ok":
        with SqliteLedger.open(copied, fingerprint, durable=False) as ledger:
            found = _damaged_receipt(ledger) or found
    if found != "ok":
        raise LedgerError(f"ledger {path}: it is damaged, no backup was made: restore it from an earlier one [{found}]")


def _damaged_receipt(ledger: SqliteLedger) -> str:
    """What is wrong with one; empty: nothing with any."""
    try:
        ledger.word_lists()
        with ledger.kept_pages():
            refuse_damaged(ledger.lessons(EXTRACTOR))
    except LedgerError as error:
        return str(error)
    return ""


def header_of(files: dict[str, Path], fingerprint: str) -> Header:
    """What a backup of these files says of itself."""
    return Header(archive.FORMAT, __version__, fingerprint, int(time.time()), {name: path.stat().st_size for name, path in files.items()})
