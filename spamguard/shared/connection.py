"""A connection to PostgreSQL: opened, used under a deadline, ended, and its errors explained.

A peer that neither answers nor closes is found by no setting of PostgreSQL. So every exchange has a
deadline of our own, after which the socket is shut down; libpq then ends the exchange itself. To
cancel the exchange instead would wait for the server once more.

Must never wait for the server when it closes, and never let an error of the driver out as anything
but a `SharedError`: one line with the remedy.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from spamguard.config.options import SharedSettings
from spamguard.errors import SharedError, UnavailableError, error_text

EXCHANGE_SECONDS = 5.0

_LIMITS = (
    "-c statement_timeout=5000 -c lock_timeout=3000 -c idle_in_transaction_session_timeout=10000"
)
_AUTHORITY_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora
    "/etc/ssl/ca-bundle.pem",  # openSUSE
)

_HOST_KEYS = ("host", "hostaddr", "port")
_RUN = secrets.token_hex(4)  # tells two processes of one node apart


@dataclass
class DatabaseConnection:
    """An open connection: use `open`. It belongs to one event loop; several tasks may call, one at
    a time.
    """

    _place: str
    _driver: psycopg.AsyncConnection[Any]
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_closed: bool = False

    @classmethod
    async def open(cls, place: str, conninfo: str) -> DatabaseConnection:
        """Connect. place: the database's name in errors."""
        try:
            return cls(
                place,
                await psycopg.AsyncConnection.connect(
                    make_conninfo(conninfo, options=_LIMITS),
                    autocommit=True,
                    prepare_threshold=None,
                ),
            )
        except psycopg.Error as error:
            raise explain_refusal(place, error) from error
        except OSError as error:
            raise UnavailableError(f"{place}: cannot be reached ({error_text(error)})") from error

    async def query(self, statement: LiteralString, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement, which is one transaction, and return its rows."""
        async with self._lock:
            if self._is_closed:
                raise UnavailableError(f"{self._place}: the connection is closed: connect again")
            try:
                return await self._exchange(statement, values)
            except (UnavailableError, asyncio.CancelledError):
                self.close()
                raise
            finally:
                if self._is_closed:
                    self._driver.pgconn.finish()

    async def _exchange(
        self, statement: LiteralString, values: tuple[Any, ...]
    ) -> list[tuple[Any, ...]]:
        """Await an exchange with the server; after the deadline its socket is shut down."""

        async def fetch() -> list[tuple[Any, ...]]:
            async with self._driver.cursor(binary=True) as cursor:
                await cursor.execute(statement, values or None)
                return await cursor.fetchall()

        task = asyncio.ensure_future(fetch())
        try:
            await asyncio.wait({task}, timeout=EXCHANGE_SECONDS)
        finally:
            is_late = not task.done()
            if is_late:  # or this task was cancelled
                self._shut_down()
                await asyncio.wait({task}, timeout=1.0)
                task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
                task.cancel()
        if is_late:
            raise UnavailableError(
                f"{self._place}: no answer within {EXCHANGE_SECONDS:.0f} seconds: check server and "
                "network"
            )
        try:
            return task.result()
        except psycopg.Error as error:
            raise explain(self._place, error) from error

    def close(self) -> None:
        """Close the connection at once, whatever it is doing."""
        self._is_closed = True
        if self._lock.locked():
            self._shut_down()  # `query` ends and does the rest
        else:
            self._driver.pgconn.finish()

    def _shut_down(self) -> None:
        """End the connection for the task that waits for it."""
        with (
            suppress(psycopg.Error, OSError),
            socket.socket(fileno=os.dup(self._driver.pgconn.socket)) as duplicate,
        ):
            duplicate.shutdown(socket.SHUT_RDWR)


# ---- connecting


def connection_string(settings: SharedSettings, node: str) -> tuple[str, str]:
    """The database's name in errors, and what libpq is told. SharedError."""
    try:
        place = _place(conninfo_to_dict(settings.database))
        own = {"sslmode": "disable"}
        if settings.tls.verify:
            # libpq's own default is another place than that of the system
            usual = (ssl.get_default_verify_paths().cafile, *_AUTHORITY_FILES)
            found = [path for path in usual if path and Path(path).is_file()]
            authorities = str(settings.tls.ca or next(iter(found), "system"))
            own = {"sslmode": "verify-full", "sslrootcert": authorities}
        if (file := settings.password_file) is not None:
            own["password"] = file.read_text("utf-8").partition("\n")[0].rstrip("\r")
        return place, make_conninfo(
            settings.database,
            connect_timeout=3,
            target_session_attrs="read-write",  # of several hosts the primary
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=10_000,
            application_name=f"spamguard {node} {_RUN}",
            client_encoding="UTF8",
            gssencmode="disable",
            **own,
        )
    except psycopg.Error as error:
        raise SharedError(f"shared: database: {error_text(error)}: mend it") from error
    except (OSError, UnicodeError) as error:
        raise SharedError(
            f"shared: password_file {settings.password_file}: cannot be read "
            f"({error_text(error)}): give this user read permission"
        ) from error


def each_host(conninfo: str) -> Iterator[tuple[str, str]]:
    """The same as `connection_string`, for each of the hosts."""
    values = {key: str(value) for key, value in conninfo_to_dict(conninfo).items()}
    lists = {key: values[key].split(",") for key in _HOST_KEYS if key in values}
    for number in range(max(map(len, lists.values()), default=1)):
        # A list of one counts for all hosts.
        own = {key: each[number % len(each)] for key, each in lists.items()}
        yield _place(values | own), make_conninfo("", **values | own)


def _place(values: Mapping[str, object]) -> str:
    host, port = values.get("host", "this machine"), values.get("port")
    return f"shared database {values.get('dbname', '')} on {host}{f':{port}' if port else ''}"


# ---- errors


class RefusedValueError(SharedError):
    """A function of the database refuses what it was given, and would again."""


# How a connection is refused has no code, only a text.
_REFUSAL = re.compile(
    "password authentication failed|no password supplied|pg_hba.conf|not permitted to log in"
    "|permission denied for database|certificate verify failed|does not match host name"
    "|root certificate file|does not support SSL|does not exist"
)
_NOT_READY = (
    errors.InvalidSchemaName,
    errors.UndefinedTable,
    errors.UndefinedFunction,
    errors.UndefinedColumn,
    errors.InsufficientPrivilege,
)
_TRY_AGAIN = (
    psycopg.OperationalError,  # also locks, deadlocks, time-outs and shutting down
    psycopg.InterfaceError,
    errors.ReadOnlySqlTransaction,  # it was the primary
)


def explain_refusal(place: str, error: psycopg.Error) -> SharedError:
    """Why there is no connection."""
    text = error_text(error)
    if _REFUSAL.search(text):
        return SharedError(
            f"{place}: it refuses us: check user, password_file, tls and its pg_hba.conf [{text}]"
        )
    return UnavailableError(f"{place}: cannot be reached: check server and network [{text}]")


def explain(place: str, error: psycopg.Error) -> SharedError:
    """Why a statement failed."""
    text = error_text(error)
    if isinstance(error, _NOT_READY):
        return SharedError(
            f"{place}: it is not ready for spamguard_node: run `spamguard shared init` [{text}]"
        )
    if isinstance(error, errors.DiskFull):
        return SharedError(f"{place}: its disk is full: make room there [{text}]")
    if isinstance(error, errors.InvalidParameterValue):
        return RefusedValueError(f"{place}: it refuses this [{text}]")
    if isinstance(error, _TRY_AGAIN):
        return UnavailableError(f"{place}: the connection or the server failed [{text}]")
    return SharedError(f"{place}: it refuses this: report this bug [{text}]")
