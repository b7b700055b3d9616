"""What several layers need of the file system: files that nobody else may read, and names that are
on the disk.

Acting with somebody else's rights for a moment, where root looks after others: who owns a directory
may put anything into it.

What our SQLite files have in common: how they are opened, written in one transaction, and what is
said when that fails.

SQLite believes what lies beside a file: a journal may name files that it deletes. So where root
opens one in somebody else's directory, that must be done with the owner's rights, up to the log of
a file in mode WAL; from then on it looks for no journal.

Many things, some at a time.

The time by which a database tells how old something is, before it removes it for that.

It is the system's clock, unless that has jumped forward by more than a day since the last look.
Then it stays at the last time that was believed, until the clock has gone on for a day from where
it jumped to; a clock that is set right meanwhile has removed nothing. The database keeps this, so
that a restart changes nothing. After a pause of more than a day, things are removed a day later.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar
from urllib.parse import quote

from spamguard.errors import SpamguardError, error_text, is_disk_full

if TYPE_CHECKING:  # the mailbox broker imports this module, and no database
    import sqlite3

KEY_FILE, LEDGER_FILE, SPOOL_DIRECTORY = "key", "ledger.sqlite", "spool"
"""Names in the state directory that many know: what signs and hashes, what was taught, and the
directory of messages that are being handed over. Of what else lies there the name stands where it
is made.
"""

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What only writing raises: the disk is full, or somebody's share of it, or the file may not be
larger.
"""

_DRAFT_NAME = re.compile(r"\..+\.new(?:-journal|-wal|-shm)?")
_DRAFT_MAX_AGE_SECONDS = 3600.0  # seconds since anybody has written to one, after which nobody will
_FD_DIRECTORY = Path(
    "/proc/self/fd"
)  # by which a file without a name gets one; not there in a bare chroot
_NO_TMPFILE_ERRNOS = (
    errno.EISDIR,
    errno.EOPNOTSUPP,
)  # kernel or file system without O_TMPFILE: open(2)


def create_private(path: Path) -> BinaryIO:
    """A new file, mode 0600, to be written. FileExistsError when there is one; OSError when it
    cannot be made.

    What root makes belongs to the owner of the directory, if the system lets it: an administrator
    who teaches the filter of a service must not take it away from the service.
    """
    return open(path, "xb", opener=_open_private)


def _open_private(name: str, flags: int) -> int:
    return _chown_to_directory(os.open(name, flags, 0o600), Path(name).parent)


def _chown_to_directory(descriptor: int, directory: Path) -> int:
    if os.geteuid() == 0:
        with suppress(OSError):
            owner = directory.stat()
            os.chown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


@contextmanager
def name_path_in_errors(path: Path) -> Iterator[None]:
    """What only writing raises names this path, where the system, asked to write, names none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in DISK_FULL_ERRNOS:
            error.filename = str(path)
        raise


def open_unnamed(directory: Path) -> int | None:
    """A new file without a name, as `create_private`, to be read and written; None where there are
    none. OSError when it cannot be made.
    """
    try:
        return _chown_to_directory(
            os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), directory
        )
    except OSError as error:
        if error.errno not in _NO_TMPFILE_ERRNOS:
            raise
    return None


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def draft_file(path: Path) -> Iterator[Path]:
    """A name beside this one, for what gets this one once it is whole. What still has it in the end
    is removed, or left to `sweep_drafts` where that is refused.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        yield draft
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def create_once(path: Path, fill: Callable[[Path], object]) -> None:
    """A private file, whole before it has its name: `fill` is given a draft. Of several processes
    that make it at once the first counts, and the others lose quietly. OSError: it cannot be made.
    """
    with draft_file(path) as draft, suppress(FileExistsError):
        create_private(draft).close()
        fill(draft)
        path.hardlink_to(draft)


@contextmanager
def unnamed_file(path: Path) -> Iterator[tuple[BinaryIO, Callable[[], None]]]:
    """A private file, to be written, and what gives it this name, which nothing has: call it once
    the file is flushed. Without that nothing is left, even of one whose writer is killed; a draft
    where there are no files without names. OSError: it cannot be made, or the name is taken.
    """
    descriptor = open_unnamed(path.parent) if _FD_DIRECTORY.is_dir() else None
    if descriptor is None:
        with draft_file(path) as draft, create_private(draft) as file:
            yield file, partial(path.hardlink_to, draft)
        return
    with os.fdopen(descriptor, "wb") as file:
        link = _FD_DIRECTORY / str(descriptor)
        yield (
            file,
            partial(os.link, link, path, src_dir_fd=descriptor),
        )  # which makes Python follow that link


@contextmanager
def create_atomically(path: Path) -> Iterator[BinaryIO]:
    """The same with the name when the block ends well."""
    with unnamed_file(path) as (file, name):
        yield file
        file.flush()
        name()


def remove_stale_drafts(directory: Path) -> None:
    """Remove files that were to get another name when they were whole (.NAME.new) and that nobody
    lived to finish. OSError: it cannot be looked at.
    """
    with os.scandir(directory) as entries:
        drafts = [entry for entry in entries if _DRAFT_NAME.fullmatch(entry.name)]
    for draft in drafts:
        with suppress(OSError):  # it was finished meanwhile, or stays: it harms nobody
            found = draft.stat(follow_symlinks=False)
            if (
                stat.S_ISREG(found.st_mode)
                and time.time() - found.st_mtime > _DRAFT_MAX_AGE_SECONDS
            ):
                Path(draft.path).unlink()


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose rights to act with; of no use unless we are root. groups: further ones."""

    user: int
    group: int
    groups: tuple[int, ...] = ()

    @contextmanager
    def impersonate(self) -> Iterator[None]:
        """With these rights, in this process."""
        if os.geteuid() != 0 or self.user == 0:
            yield
            return
        groups = os.getgroups()
        group = os.getegid()
        os.setgroups([self.group, *self.groups])
        os.setegid(self.group)
        os.seteuid(self.user)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(group)
            os.setgroups(groups)


def directory_owner(path: Path) -> Owner:
    """OSError: there is no such directory."""
    found = path.stat()
    return Owner(found.st_uid, found.st_gid, _group_ids(found.st_uid, found.st_gid))


def account_owner(account: pwd.struct_passwd) -> Owner:
    """With the groups that the account is in."""
    return Owner(account.pw_uid, account.pw_gid, _group_ids(account.pw_uid, account.pw_gid))


def _group_ids(user: int, group: int) -> tuple[int, ...]:
    if (
        os.geteuid() != 0
    ):  # nobody else can take them on, and who is in which group may be asked of another machine
        return ()
    try:
        return tuple(os.getgrouplist(pwd.getpwuid(user).pw_name, group))
    except KeyError:  # it has no name here
        return ()


@contextmanager
def as_directory_owner(directory: Path) -> Iterator[None]:
    """With the rights of its owner; but where the owner cannot get there only root can put anything
    into it. OSError: as `owner_of`.
    """
    owner = directory_owner(directory)
    with owner.impersonate():
        gets_there = os.access(directory, os.X_OK, effective_ids=True)
    with owner.impersonate() if gets_there else nullcontext():
        yield


def open_database(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """Opens an existing file only: SQLite must not create one, which would have the wrong
    permissions.
    """
    import sqlite3  # noqa: PLC0415  see above

    return sqlite3.connect(
        f"file:{quote(os.fsencode(path.absolute()))}?mode=rw",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
    )


def enable_wal(db: sqlite3.Connection) -> None:
    """Mode WAL, in which readers and writers do not wait for each other; nothing if the file has it
    already, unless somebody meddled.

    Of a new file last: closing says nothing when a full disk keeps what is in the log out of the
    file.
    """
    db.execute("PRAGMA journal_mode = WAL")


def copy_database(path: Path, target: Path, busy_seconds: float) -> None:
    """Copy the database at `path`, as it is at one moment whoever writes, into an empty file, and
    wait for the disk.
    """
    with (
        closing(_open_for_copy(path, busy_seconds)) as source,
        closing(open_database(target, busy_seconds)) as new,
    ):
        source.backup(new)
    with target.open("rb") as written:
        os.fsync(written.fileno())


def _open_for_copy(path: Path, busy_seconds: float) -> sqlite3.Connection:
    with as_directory_owner(path.parent):
        db = open_database(path, busy_seconds)
        try:
            db.execute("BEGIN")
            db.execute("SELECT 1 FROM sqlite_schema").fetchone()
        except BaseException:
            db.close()
            raise
    return db


@contextmanager
def transaction(db: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """All of what is done inside, or nothing."""
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite itself has rolled back after some errors
            db.execute("ROLLBACK")
        raise


@contextmanager
def map_cache_errors(what: str, path: Path, error_type: type[SpamguardError]) -> Iterator[None]:
    """Whatever fails with a file that may be thrown away leaves as one line that names it and the
    remedy.
    """
    import sqlite3  # noqa: PLC0415  see above

    try:
        yield
    except (sqlite3.Error, OSError, ValueError, TypeError, OverflowError) as error:
        raise error_type(f"{what} {path}: {_cache_remedy(error)} [{error_text(error)}]") from error


def is_corruption(error: BaseException | None) -> bool:
    """Whether what SQLite says is that there is no sense in the file."""
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def _cache_remedy(error: Exception) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_FULL") or is_disk_full(error):
        return "the disk is full: make room"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "another process kept the file locked for too long: try again"
    if is_corruption(error) or name.startswith("SQLITE_ERROR"):
        return "the file is damaged: move it away and restart the daemon, a new one will be made"
    return "the file cannot be read or written: check its directory, its permissions and the disk"


BATCH_SIZE = (
    64  # messages of a transaction (bench_ledger.py: 36,000 receipts/s, one by one 3,800/s)
)

Item = TypeVar("Item")


def batches(items: Iterable[Item], size: int = BATCH_SIZE) -> Iterator[list[Item]]:
    """The items in lists of `size`, the last one shorter."""
    pending = iter(items)
    while batch := list(islice(pending, size)):
        yield batch


_CREATE_CLOCK = "CREATE TABLE IF NOT EXISTS clock (believed REAL NOT NULL, doubted REAL NOT NULL)"
_MAX_JUMP_SECONDS = 86_400.0
_SAVE_SECONDS = 3600.0  # seconds: not each look is worth a page in the log


class _TrustedClock(NamedTuple):
    """believed: the last time that was. doubted: the first time that was not, since then; 0: there
    is none.
    """

    believed: float
    doubted: float = 0.0


def trusted_time(db: sqlite3.Connection, now: float) -> float:
    """The time to go by; call it within a transaction. now: of the system's clock, seconds since
    1970.
    """
    db.execute(_CREATE_CLOCK)
    row = db.execute("SELECT believed, doubted FROM clock").fetchone()
    before = _TrustedClock(*row) if row else _TrustedClock(now)
    after = _advance_clock(before, now)
    if row is None:
        db.execute("INSERT INTO clock VALUES (?, ?)", after)
    elif after.doubted != before.doubted or abs(after.believed - before.believed) > _SAVE_SECONDS:
        db.execute("UPDATE clock SET believed = ?, doubted = ?", after)
    return after.believed


def _advance_clock(clock: _TrustedClock, now: float) -> _TrustedClock:
    jumped = now > clock.believed + _MAX_JUMP_SECONDS
    if not jumped or (clock.doubted and now >= clock.doubted + _MAX_JUMP_SECONDS):
        return _TrustedClock(now)
    return _TrustedClock(clock.believed, min(clock.doubted or now, now))
