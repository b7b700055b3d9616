"""A backup of the installation in one file, and how to restore it.

A backup is a tar file that any `tar` unpacks: spamguard-backup.json (`BackupHeader`), key,
ledger.sqlite, sightings.sqlite where folders are watched, and SHA256SUMS of them all. A reader
knows from the header what every further byte must be, apart from the contents, which have their
checksums. So it compares, and never acts on a name, a size or a kind of file that the archive
gives.

A backup is made while the daemon runs. A restored one is first proved in a directory of its own:
every receipt is read, and all tables are made. Then its files take their names, and the old ones
are kept aside. If the old key is another, a machine that stops between the last two renames leaves
a ledger and a key that refuse each other in one clear line; restoring again finishes it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, NoReturn

import msgspec
from msgspec import Meta

from spamguard import __version__, keys
from spamguard.database import copy_database, is_corruption, open_database
from spamguard.engine import store
from spamguard.engine.filter import Filter
from spamguard.errors import LedgerError, SourceError, TableError, UsageError, error_text
from spamguard.ledger.schema import LAST_SUFFIX, LEDGER_SCHEMA
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import refuse_damaged_lessons
from spamguard.records import EXTRACTOR
from spamguard.storage import (
    KEY_FILE,
    LEDGER_FILE,
    as_directory_owner,
    create_private,
    give_to_owner,
    name_path_in_errors,
    sync_directory,
)
from spamguard.times import MAX_TIME

FORMAT_VERSION = 1
SIGHTINGS_FILE = "sightings.sqlite"
FILE_NAMES = (KEY_FILE, LEDGER_FILE, SIGHTINGS_FILE)
"""The files that a backup may hold, in this order; the last only where folders are watched."""
HEADER_MEMBER, SUMS_MEMBER = "spamguard-backup.json", "SHA256SUMS"

_MAX_HEADER_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20  # read at a time
_COPY_PREFIX, _DRAFT_PREFIX = ".spamguard-backup-", ".restore-"
_ABANDONED_SECONDS = 3600.0  # after which nobody still works on a copy
_DATABASE_SUFFIXES = ("-wal", "-shm", "-journal", LAST_SUFFIX)

Advance = Callable[[int], object]
"""Called with the number of bytes that were just written, for a progress bar."""


@dataclass(frozen=True)
class BackupHeader:
    """What the file holds."""

    format: int
    program: str
    fingerprint: str  # of the key
    time: Annotated[int, Meta(ge=0, lt=MAX_TIME)]  # seconds since 1970
    sizes: dict[str, Annotated[int, Meta(ge=0, lt=1 << 62)]]  # of each file, by name


# The file


def _lay_out(
    header: BackupHeader,
    description: bytes,
    frame: Callable[[bytes], object],
    content: Callable[[str, int], str],
) -> None:
    """Go through an archive from start to end: one layout to write it and to compare it. `frame`
    gets what is known beforehand; `content` passes a file on, and returns its checksum.
    """

    def head(name: str, length: int) -> bytes:
        member = tarfile.TarInfo(name)
        member.size, member.mtime, member.mode = length, header.time, 0o600
        return member.tobuf(tarfile.GNU_FORMAT)

    def pad(length: int) -> bytes:
        return bytes(-length % tarfile.BLOCKSIZE)

    frame(head(HEADER_MEMBER, len(description)) + description + pad(len(description)))
    sums = f"{hashlib.sha256(description).hexdigest()}  {HEADER_MEMBER}\n"
    for name, length in header.sizes.items():
        frame(head(name, length))
        sums += f"{content(name, length)}  {name}\n"
        frame(pad(length))
    end = bytes(2 * tarfile.BLOCKSIZE)
    frame(head(SUMS_MEMBER, len(sums)) + sums.encode() + pad(len(sums)) + end)


def _copy_and_hash(
    read: Callable[[int], bytes], length: int, write: Callable[[bytes], object], advance: Advance
) -> str:
    checksum = hashlib.sha256()
    for start in range(0, length, _PIECE_BYTES):
        piece = read(min(_PIECE_BYTES, length - start))
        checksum.update(piece)
        write(piece)
        advance(len(piece))
    return checksum.hexdigest()


def write_backup(
    stream: BinaryIO, files: dict[str, Path], fingerprint: str, advance: Advance
) -> int:
    sizes = {name: path.stat().st_size for name, path in files.items()}
    header = BackupHeader(FORMAT_VERSION, __version__, fingerprint, int(time.time()), sizes)
    size = 0

    def write(data: bytes) -> None:
        nonlocal size
        size += stream.write(data)

    def write_file(name: str, length: int) -> str:
        with files[name].open("rb") as file:
            return _copy_and_hash(file.read, length, write, advance)

    description = msgspec.json.format(msgspec.json.encode(header), indent=1) + b"\n"
    _lay_out(header, description, write, write_file)
    stream.flush()
    return size


@dataclass
class BackupReader:
    """A backup in a stream that can be read twice. SourceError: it is no whole backup."""

    _name: str
    _stream: BinaryIO

    def verify(self) -> BackupHeader:
        return self.extract(None, lambda _: None)

    def extract(self, directory: Path | None, advance: Advance) -> BackupHeader:
        """Write its files into a directory that has none of them; None: only check them."""

        def expect(data: bytes) -> None:
            if self._read(len(data)) != data:
                self._refuse("it is damaged")

        def take_file(name: str, length: int) -> str:
            if directory is None:
                return _copy_and_hash(self._read, length, lambda _: None, advance)
            with create_private(directory / name) as file:
                return _copy_and_hash(self._read, length, file.write, advance)

        self._stream.seek(0)
        description, header = self._read_header()
        self._stream.seek(0)
        _lay_out(header, description, expect, take_file)
        if self._stream.read(1):
            self._refuse("it is damaged")
        return header

    def _read_header(self) -> tuple[bytes, BackupHeader]:
        head = self._stream.read(tarfile.BLOCKSIZE)
        if not head.startswith(f"{HEADER_MEMBER}\0".encode()):
            self._refuse("it is not a file that `spamguard backup` wrote")
        try:
            length = tarfile.TarInfo.frombuf(head, "ascii", "replace").size
            description = self._read(length) if 0 < length <= _MAX_HEADER_BYTES else b""
            header = msgspec.json.decode(description, type=BackupHeader)
        except (tarfile.HeaderError, msgspec.DecodeError, RecursionError):
            self._refuse("its header is damaged")
        if header.format > FORMAT_VERSION:
            self._refuse(
                f"it has format {header.format}, this program reads {FORMAT_VERSION}: update "
                "spamguard"
            )
        if not {KEY_FILE, LEDGER_FILE} <= header.sizes.keys() <= set(FILE_NAMES):
            self._refuse("its header is damaged")
        return description, header

    def _read(self, length: int) -> bytes:
        data = self._stream.read(length)
        if len(data) < length:
            self._refuse("it is cut off")
        return data

    def _refuse(self, why: str) -> NoReturn:
        raise SourceError(f"{self._name}: {why}; nothing was restored")


# Making a backup


@contextmanager
def copy_state(state: Path, beside: Path) -> Iterator[dict[str, Path]]:
    """Copies of the files of a backup, each as it is at one moment, in a directory in `beside`.

    Sightings are copied before the ledger: a move in between is then seen again, and a lesson that
    stands already changes nothing. LedgerError: there is no room, or the ledger is damaged.
    """
    for abandoned in beside.glob(f"{_COPY_PREFIX}*"):  # by a killed process; it holds a key
        with suppress(OSError):
            status = abandoned.stat()
            if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(abandoned)
    with tempfile.TemporaryDirectory(prefix=_COPY_PREFIX, dir=beside) as directory:
        copies = {name: Path(directory) / name for name in FILE_NAMES if (state / name).exists()}
        key = keys.load_key(state / KEY_FILE, create=False)
        for name, copy in reversed(copies.items()):
            try:
                with create_private(copy) as file:
                    if name == KEY_FILE:
                        file.write(key)
                if name != KEY_FILE:
                    copy_database(state / name, copy)
            except (sqlite3.Error, OSError) as error:
                raise LedgerError(
                    f"{state / name}: cannot be copied to {directory}: make room there, or look"
                    f" at both [{error_text(error)}]"
                ) from error
        if damage := _find_damage(copies[LEDGER_FILE], keys.key_fingerprint(key)):
            raise LedgerError(
                f"ledger {state / LEDGER_FILE}: it is damaged, no backup was made:"
                f" restore it from an earlier one [{damage}]"
            )
        yield copies


def _find_damage(path: Path, fingerprint: str) -> str:
    try:
        with closing(sqlite3.connect(path)) as db:
            damage = " ".join(db.execute("PRAGMA integrity_check(1)").fetchone()[0].split())
    except sqlite3.Error as error:
        if not is_corruption(error):  # it cannot be read there, as on a full disk
            raise LEDGER_SCHEMA.explain(path, error) from error
        return str(error)
    if damage != "ok":
        return damage
    with SqliteLedger.open(path, fingerprint, durable=False) as ledger:
        try:
            refuse_damaged_lessons(ledger.lessons(EXTRACTOR))
        except LedgerError as error:
            return str(error)
    return ""


# Restoring


@contextmanager
def prove_backup(archive: BackupReader, state: Path, advance: Advance) -> Iterator[Path]:
    """A directory in the state directory in which the backup is a filter that works.

    The restored ledger becomes a node of its own: no two may give the same version to two votes.
    Until the end, root has only the rights of the owner of the state directory. SourceError: the
    backup is no filter or there is no room for it; LedgerError: the directory cannot be used.
    """
    store.make_state_directory(state)
    with as_directory_owner(state):
        for abandoned in state.glob(f"{_DRAFT_PREFIX}*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        draft = state / f"{_DRAFT_PREFIX}{secrets.token_hex(4)}"
        draft.mkdir(mode=0o700)
        try:
            give_to_owner(draft, state)
            with name_path_in_errors(state):
                header = archive.extract(draft, advance)
            try:
                _check_draft(draft, header)
            except (LedgerError, TableError) as error:
                raise SourceError(f"{error}; nothing was restored") from error
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _check_draft(draft: Path, header: BackupHeader) -> None:
    if keys.key_fingerprint(keys.load_key(draft / KEY_FILE, create=False)) != header.fingerprint:
        raise SourceError(
            "the key in the backup is not the one it was taught with; nothing was restored"
        )
    Filter.open(draft, _load=False).close()  # refuses a ledger of another key or schema, or none
    with closing(sqlite3.connect(draft / LEDGER_FILE)) as db, db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'ledger.node'", (secrets.token_hex(8),))
        db.execute("DELETE FROM meta WHERE key LIKE 'tables.%'")  # they name tables left behind
    with Filter.open(draft, _load=False) as spam_filter:
        spam_filter.settle()


def check_overwrite(state: Path, *, replace: bool) -> None:
    """Raise UsageError if there is a filter to put aside, and `replace` does not allow it."""
    existing = [name for name in (LEDGER_FILE, KEY_FILE) if (state / name).exists()]
    if existing and not replace:
        raise UsageError(
            f"{state}: has a {existing[0]} already:"
            " say --replace to put it aside, or name another directory with --state"
        )


def install_backup(draft: Path, state: Path) -> Path | None:
    """Put the files of a proved backup in the place of those in the state directory; where the old
    ones are kept, if there were any.

    UsageError: somebody has the ledger open. LedgerError: the disk refuses.
    """
    with _lock_ledger(state / LEDGER_FILE):
        try:
            aside = _keep_aside(state)
            stale = list(state.glob("tables-*.bin"))
            for path in draft.glob("tables-*.bin"):
                path.rename(state / path.name)
            # Sightings first: a file that is seen twice does no harm, one that is not seen would.
            for name in (SIGHTINGS_FILE, LEDGER_FILE, KEY_FILE):
                new, path = draft / name, state / name
                for end in _DATABASE_SUFFIXES:  # the log belongs to the file that had the name
                    path.with_name(path.name + end).unlink(missing_ok=True)
                if new.exists():
                    with new.open("rb") as file:
                        os.fsync(file.fileno())
                    new.replace(path)
                else:
                    path.unlink(missing_ok=True)
            sync_directory(state)
            for path in stale:
                path.unlink(missing_ok=True)
            return aside
        except OSError as error:
            raise LedgerError(
                f"{state}: cannot be restored into ({error.strerror}):"
                " look at the disk and its permissions"
            ) from error


@contextmanager
def _lock_ledger(ledger: Path) -> Iterator[None]:
    """Keep others from opening the ledger, and write its log back into it. A damaged one stays as
    it is.
    """
    if not ledger.exists():
        yield
        return
    with LEDGER_SCHEMA.errors(ledger):
        connection = open_database(ledger, 2.0)
    with closing(connection) as db:
        try:
            # refused while any other connection is there, and kept until the end
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("BEGIN EXCLUSIVE")
            db.execute("COMMIT")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                raise UsageError(
                    f"{ledger}: a daemon or a command has it open: stop it, then restore"
                ) from error
        except sqlite3.DatabaseError:
            pass
        yield


def _keep_aside(state: Path) -> Path | None:
    names = [name + end for name in FILE_NAMES for end in ("", *_DATABASE_SUFFIXES)]
    old_files = [state / name for name in names if (state / name).exists()]
    old_files += state.glob("tables-*.bin")
    if not old_files:
        return None
    aside = state / f"before-restore-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    aside.mkdir(mode=0o700)
    give_to_owner(aside, state)
    for path in old_files:
        (aside / path.name).hardlink_to(path)
    sync_directory(aside)
    return aside
