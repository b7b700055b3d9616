"""What the owner of the database does about the shared log: make it, and bring it up to date.

`init` and `upgrade` run `schema.sql` with the owner's rights, in one transaction, and may be
repeated. `init` also makes the role of the nodes. Its password is in a file that only the owner of
the file's directory can read; the server gets a verifier of it (SCRAM, RFC 5803), so that the
password stands in no log. `node_settings` makes the options of a node from a connection string as
people type it.

Must never run in the daemon, never show a password or replace one in a file, and never change a
database of another key or of a newer program.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from spamguard.config.shared import DatabaseTls, SharedSettings, check_database
from spamguard.config.types import check_file
from spamguard.errors import SharedError, UsageError, error_text
from spamguard.shared.connection import connection_string, explain, explain_refusal
from spamguard.shared.mac import RowMac
from spamguard.shared.postgres import SCHEMA_VERSION
from spamguard.storage import as_directory_owner, write_private

NODE_ROLE = "spamguard_node"
_PASSWORD_BYTES = 24
_TLS_BY_MODE = {"verify-full": True, "disable": False}
_SELECT_CLUSTER = "SELECT fingerprint, schema_version FROM spamguard.cluster"
_INSERT_CLUSTER = """
INSERT INTO spamguard.cluster (name, schema_version, min_writer, fingerprint, secret, bits)
VALUES (gen_random_uuid(), %s, %s, %s, sha256(convert_to(%s, 'UTF8')), %s)"""
_UPGRADE_CLUSTER = "UPDATE spamguard.cluster SET schema_version = %s, min_writer = %s"
_MAY_MAKE_OBJECTS = "SELECT has_function_privilege(%s, 'lo_create(oid)', 'EXECUTE')"

_Connection = psycopg.Connection[tuple[Any, ...]]


# ---- connection strings


def node_settings(dsn: str, password_file: Path | None = None, **usual: str) -> SharedSettings:
    """Options from a connection string as people type it. usual: what counts where the string does
    not say it. UsageError.
    """
    try:
        values = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
        if "password" in values:
            raise UsageError(
                "the DSN holds a password, which all users of this machine can see: the owner's "
                "belongs into ~/.pgpass, that of the nodes into a file (--password-file)"
            )
        mode, authority = values.pop("sslmode", "verify-full"), values.pop("sslrootcert", "")
        verify = _TLS_BY_MODE.get(mode)
        if verify is None:
            raise ValueError(
                f"sslmode={mode} believes any server: write verify-full (the default), with "
                "sslrootcert=FILE for a CA of your own, or disable for no TLS"
            )
        is_own = verify and authority not in ("", "system")
        ca = check_file(str(Path(authority).absolute())) if is_own else None
        database = check_database(make_conninfo("", **{**usual, **values}))
    except (psycopg.ProgrammingError, ValueError) as error:
        raise UsageError(f"DSN: {error_text(error)}") from error
    return SharedSettings(database, password_file, DatabaseTls(verify, ca))


@contextmanager
def _owner_connection(dsn: str) -> Iterator[_Connection]:
    """A connection with the owner's rights; what was done is committed at the end."""
    place, conninfo = connection_string(node_settings(dsn), "owner")
    try:
        connection = psycopg.connect(conninfo)
    except psycopg.Error as error:
        if "no password supplied" in str(error):
            raise SharedError(
                f"{place}: the owner needs a password: write it into ~/.pgpass, mode 0600"
            ) from error
        raise explain_refusal(place, error) from error
    try:
        with connection:
            yield connection
    except errors.InsufficientPrivilege as error:
        raise SharedError(
            f"{place}: {connection.info.user} may not do this: connect as the owner of the "
            f"database (user=… in the DSN) [{error_text(error)}]"
        ) from error
    except psycopg.Error as error:
        raise explain(place, error) from error


# ---- init


def init(dsn: str, mac: RowMac, bits: int, password_file: Path) -> bool:
    """Make tables, functions and the role of the nodes, as far as they are not there; return
    whether that role may make large objects, which only a superuser can forbid.

    mac: of the key. bits: the least size of the tables.
    """
    with _password(password_file) as (password, is_made), _owner_connection(dsn) as connection:
        version = _check_cluster(connection, mac.fingerprint)
        if version is not None and is_made:  # a new password would lock out all nodes
            raise SharedError(
                f"the database is ready already, but {password_file} was not there: copy it from "
                "another node, or write another password for all nodes into it"
            )
        _make_role(connection, password, password_file, is_made)
        _run_schema(connection)
        if version is None:
            values = (SCHEMA_VERSION, SCHEMA_VERSION, mac.fingerprint, mac.secret, bits)
            connection.execute(_INSERT_CLUSTER, values)
        row = connection.execute(_MAY_MAKE_OBJECTS, (NODE_ROLE,)).fetchone()
    return row == (True,)


def _check_cluster(connection: _Connection, fingerprint: str) -> int | None:
    """The version of the schema; None: there is none. SharedError: it is not for this machine."""
    if connection.execute("SELECT to_regclass('spamguard.cluster')").fetchone() == (None,):
        return None
    row = connection.execute(_SELECT_CLUSTER).fetchone()
    if row is None:
        return None
    if fingerprint and row[0] != fingerprint:
        raise SharedError(
            f"the database belongs to key {row[0]}, and this machine has key {fingerprint}: name "
            "another database, or the state directory of that key"
        )
    if row[1] > SCHEMA_VERSION:
        raise SharedError(
            f"the database has schema {row[1]}, this program knows {SCHEMA_VERSION}: "
            "install the newer version of spamguard here"
        )
    return int(row[1])


def _make_role(connection: _Connection, password: str, password_file: Path, is_made: bool) -> None:
    """Without the right to change a role that is there, the password of an existing file is
    believed to be the role's.
    """
    query = "SELECT 1 FROM pg_roles WHERE rolname = %s"
    exists = connection.execute(query, (NODE_ROLE,)).fetchone() is not None
    verifier = connection.pgconn.encrypt_password(
        password.encode(), NODE_ROLE.encode(), b"scram-sha-256"
    )
    statement = sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(
        sql.SQL("ALTER" if exists else "CREATE"),
        sql.Identifier(NODE_ROLE),
        sql.Literal(verifier.decode()),
    )
    try:
        with connection.transaction():
            connection.execute(statement)
    except errors.InsufficientPrivilege as error:
        if not exists or is_made:
            owner = connection.info.user
            raise SharedError(
                f"{owner} may not make the role {NODE_ROLE} or change its password: let a "
                f"superuser run `ALTER ROLE {owner} CREATEROLE`, or write the password that it has "
                f"into {password_file}"
            ) from error


@contextmanager
def _password(file: Path) -> Iterator[tuple[str, bool]]:
    """The password in the file, and whether it was made; after an error a new file goes again."""
    try:
        with as_directory_owner(file.parent):
            is_made = not file.exists()
            if is_made:
                write_private(file, [secrets.token_urlsafe(_PASSWORD_BYTES).encode() + b"\n"])
            password = file.read_text("ascii").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeError) as error:
        advice = "name a file that can be read, or made, with a password in ASCII"
        raise UsageError(f"{file}: {error_text(error)}: {advice}") from error
    if not password:
        raise UsageError(f"{file}: its first line is empty: write the password there")
    try:
        yield password, is_made
    except BaseException:
        if is_made:
            with as_directory_owner(file.parent):
                file.unlink()
        raise


def _run_schema(connection: _Connection) -> None:
    connection.execute(files("spamguard.shared").joinpath("schema.sql").read_bytes())
    connection.execute(_UPGRADE_CLUSTER, (SCHEMA_VERSION, SCHEMA_VERSION))
    database = sql.Identifier(connection.info.dbname)
    grant = sql.SQL("GRANT CONNECT ON DATABASE {} TO {}")
    connection.execute(grant.format(database, sql.Identifier(NODE_ROLE)))


# ---- upgrade


def upgrade(dsn: str) -> tuple[int, int]:
    """Bring tables and functions up to date; return the schema version before and after."""
    with _owner_connection(dsn) as connection:
        version = _check_cluster(connection, "")
        if version is None:
            raise SharedError(
                "the database has no tables of spamguard: name another, or make them with "
                "`spamguard shared init`"
            )
        _run_schema(connection)
    return version, SCHEMA_VERSION
