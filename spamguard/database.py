"""SQLite files of ours: how they are made, opened, written and copied, and what their errors mean.

A room describes its file by a `Schema`, which is data, and works with a `Database`. A new file is
made whole under another name and then linked to its own: of several processes that make it at once
one succeeds. `PRAGMA application_id` names the kind of the file and `PRAGMA user_version` its
schema; a file of another kind or schema is refused and left as it is. Every error is one line that
names the file and the remedy.

SQLite believes what lies beside a file: a journal may name files that it deletes. So where root
opens a database in another user's directory, it does so with the rights of the directory's owner,
until SQLite has opened the log of a file in mode WAL; from then on it looks for no journal.

The mailbox broker must never load this module.
"""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from spamguard.errors import SpamguardError, error_text, is_disk_full
from spamguard.storage import as_directory_owner, create_private, draft_file, sync_directory

NEW_FILE_REMEDY = "move it away and restart the daemon, a new one will be made"

_REMEDY_BY_CODE = {
    "SQLITE_FULL": "the disk is full: make room and try again, nothing was half written",
    "SQLITE_IOERR": "the disk refused to read or write: make room on it if it is full, check it, "
    "its quota and limits on file size",
    "SQLITE_BUSY": "another process kept it locked for too long: find out which one writes, "
    "or try again",
    "SQLITE_READONLY": "it may not be written: give this user write permission on the file and "
    "its directory",
    "SQLITE_CANTOPEN": "it cannot be opened: check its directory, and give this user read and "
    "write permission on both",
}
_MAX_JUMP_SECONDS = 86_400.0
# What Python raises of these very types has no code: a text that is no UTF-8, or a missing value.
_READ_ERRORS = (sqlite3.OperationalError, sqlite3.DatabaseError)


class Schema(NamedTuple):
    """What a file of one kind must be."""

    kind: str  # name of the file in errors
    error: type[SpamguardError]
    application_id: int  # this and the version are numbers in the file's header
    version: int
    tables: str  # statements that make them
    pragmas: Sequence[str] = ()  # of the file, set before its tables are made
    wal: bool = True  # readers and writers need not wait for each other
    busy_seconds: float = 5.0  # how long a statement waits for another process
    damage_remedy: str = NEW_FILE_REMEDY
    foreign_remedy: str = NEW_FILE_REMEDY  # for a file of another program

    def make_error(self, path: Path, problem: str) -> SpamguardError:
        return self.error(f"{self.kind} {path}: {problem}")

    def explain(self, path: Path, error: Exception) -> SpamguardError:
        """The schema's error for one of SQLite or the system: remedy, and in brackets the cause."""
        if is_disk_full(error):
            code = "SQLITE_FULL"
        elif isinstance(error, OSError):
            code = "SQLITE_CANTOPEN"
        else:
            default = "SQLITE_CORRUPT" if type(error) in _READ_ERRORS else ""
            code = "_".join(getattr(error, "sqlite_errorname", default).split("_")[:2])
        if code in ("SQLITE_CORRUPT", "SQLITE_ERROR"):
            advice = f"it is damaged: {self.damage_remedy}"
        elif code == "SQLITE_NOTADB":
            advice = f"it is not a spamguard {self.kind} file: {self.foreign_remedy}"
        else:
            advice = _REMEDY_BY_CODE.get(code, "it cannot be used: report this bug")
        return self.make_error(path, f"{advice} [{error_text(error)}]")

    @contextmanager
    def errors(self, path: Path) -> Iterator[None]:
        """Explain what SQLite, the system or a value that SQLite cannot hold raises inside."""
        try:
            yield
        except (sqlite3.Error, OSError, OverflowError, UnicodeError) as error:
            raise self.explain(path, error) from error


@dataclass
class Database:
    """An open file. It belongs to one thread of one process; any number of processes may open it.

    `execute` and `executemany` explain no errors: call them within `errors` or `transaction`.
    """

    path: Path
    schema: Schema
    connection: sqlite3.Connection

    @classmethod
    def open(
        cls,
        path: Path,
        schema: Schema,
        fill: Callable[[sqlite3.Connection], object] = lambda _: None,
        *,
        durable: bool = True,
        shared: bool = False,
    ) -> Self:
        """Open the file; make it, with mode 0600, when there is none.

        Raises the schema's error if it cannot be opened, or is of another kind or schema.

        Parameters
        ----------
        fill
            Writes the first rows of a new file.
        durable
            Whether what is committed survives a power cut (SQLite: synchronous FULL). Without it a
            power cut may cost the last transactions, never the file (NORMAL, with a WAL).
        shared
            Threads may share it, if the caller lets one at a time use it.
        """
        with schema.errors(path), as_directory_owner(path.parent):
            if not path.exists():
                # Never in place: a reader could meet a file without tables, and closing any
                # descriptor of a file drops the locks that other connections of this process hold.
                with draft_file(path) as draft:
                    create_private(draft).close()
                    _fill_file(draft, schema, fill)
                    with suppress(FileExistsError):  # another process has made it meanwhile
                        path.hardlink_to(draft)
                sync_directory(path.parent)
            opened = open_database(path, schema.busy_seconds, shared=shared)
            database = cls(path, schema, opened)
            try:
                if database.pragma("application_id") != schema.application_id:
                    problem = f"it is not a spamguard {schema.kind} file: {schema.foreign_remedy}"
                    raise schema.make_error(path, problem)
                if (version := database.pragma("user_version")) != schema.version:
                    problem = f"it has schema {version}, this program reads {schema.version} only: "
                    remedy = f"use the spamguard that wrote it, or {schema.foreign_remedy}"
                    raise schema.make_error(path, problem + remedy)
                if schema.wal:
                    database.pragma("journal_mode = WAL")
                database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            except BaseException:
                database.connection.close()
                raise
        return database

    def close(self) -> None:
        with self.errors():
            self.connection.close()

    @contextmanager
    def errors(self, *decoding: type[Exception]) -> Iterator[None]:
        """Explain errors (`Schema.errors`); errors in `decoding` tell of damaged rows."""
        try:
            with self.schema.errors(self.path):
                yield
        except decoding as error:
            problem = f"it is damaged: {self.schema.damage_remedy} [{error_text(error)}]"
            raise self.schema.make_error(self.path, problem) from error

    @contextmanager
    def transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
        """All that is done inside takes effect, or nothing."""
        with self.errors():
            connection = self.connection
            connection.execute(begin)
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite itself rolls back after some errors
                    connection.execute("ROLLBACK")
                raise

    def query(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
        with self.errors():
            return self.connection.execute(statement, values).fetchall()

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        return self.connection.execute(statement, values)

    def executemany(self, statement: str, rows: Iterable[Any]) -> sqlite3.Cursor:
        return self.connection.executemany(statement, rows)

    def pragma(self, name: str) -> Any:
        ((value,),) = self.connection.execute(f"PRAGMA {name}")
        return value

    def trusted_time(self, now: float) -> float:
        """The time by which rows grow old, as the system's clock says `now`; within a transaction.

        If the clock has jumped forward by more than a day since the last call, it stays at the last
        time that was believed, until the clock has gone on for a day from there; if somebody sets
        it right meanwhile, nothing was removed for its sake. The file keeps this, so a restart
        changes nothing.
        """
        self.execute(
            "CREATE TABLE IF NOT EXISTS clock (believed REAL NOT NULL, doubted REAL NOT NULL)"
        )
        # The last time that was believed, and the first one since then that was not, or 0.
        row = self.execute("SELECT believed, doubted FROM clock").fetchone()
        believed, doubted = row or (now, 0.0)
        is_jump = now > believed + _MAX_JUMP_SECONDS
        if is_jump and not (doubted and now >= doubted + _MAX_JUMP_SECONDS):
            after = (believed, min(doubted or now, now))
        else:
            after = (now, 0.0)
        self.execute("DELETE FROM clock")
        self.execute("INSERT INTO clock VALUES (?, ?)", after)
        return float(after[0])


class ClosedOnExit(ABC):
    """What holds a database: the end of a `with` closes it."""

    @abstractmethod
    def close(self) -> None:
        """Close the files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _fill_file(draft: Path, schema: Schema, fill: Callable[[sqlite3.Connection], object]) -> None:
    with closing(open_database(draft, schema.busy_seconds)) as connection:
        for pragma in schema.pragmas:
            connection.execute(f"PRAGMA {pragma}")
        connection.execute(f"PRAGMA application_id = {schema.application_id}")
        connection.execute(f"PRAGMA user_version = {schema.version}")
        connection.executescript(f"BEGIN; {schema.tables}")
        fill(connection)
        connection.execute("COMMIT")
        if schema.wal:
            # Last: closing reports nothing when a full disk keeps the log out of the file.
            connection.execute("PRAGMA journal_mode = WAL")


# ---- files whose schema is not looked at


def open_database(path: Path, busy_seconds: float, *, shared: bool = False) -> sqlite3.Connection:
    """Open an existing file only: SQLite would create one with the wrong permissions."""
    return sqlite3.connect(
        f"file:{quote(os.fsencode(path.absolute()))}?mode=rw",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=not shared,
    )


def copy_database(path: Path, target: Path) -> None:
    """Copy a database, as it is at one moment, into an empty file on the disk. Others may write."""
    with ExitStack() as stack:
        with as_directory_owner(path.parent):
            source = stack.enter_context(closing(open_database(path, 30.0)))
            source.execute("BEGIN")
            source.execute("SELECT 1 FROM sqlite_schema").fetchone()  # opens its log
        source.backup(stack.enter_context(closing(open_database(target, 30.0))))
    with target.open("rb") as written:
        os.fsync(written.fileno())


def is_corruption(error: BaseException | None) -> bool:
    """Whether SQLite says that there is no sense in the file."""
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
