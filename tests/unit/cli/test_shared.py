"""`shared`: the database of several machines, made, joined and left, with a real PostgreSQL.

The owner of the database is no superuser, but may create roles. The server has no role of nodes at
first.
"""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from spamguard.engine.filter import Filter
from tests.support.postgres import PostgresServer, needs_postgres, running_server

pytestmark = needs_postgres
NODE = "spamguard_node"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server


@dataclass
class Empty:
    """A database without tables, and how its owner and its nodes connect."""

    server: PostgresServer
    name: str

    @property
    def node(self) -> str:
        return (
            f"host=localhost hostaddr=127.0.0.1 port={self.server.port} dbname={self.name} "
            f"sslrootcert={self.server.authority}"
        )

    @property
    def owner(self) -> str:
        return f"{self.node} user=spamguard_owner"

    def query(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement as superuser."""
        dsn = self.server.superuser_dsn(self.name)
        with psycopg.connect(dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def database(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Empty]:
    empty = Empty(server, f"several_{tmp_path.name}")
    with psycopg.connect(server.superuser_dsn("postgres"), autocommit=True) as admin:
        admin.execute("CREATE ROLE spamguard_owner LOGIN CREATEROLE PASSWORD 'of the owner'")
        admin.execute(f'CREATE DATABASE "{empty.name}" OWNER spamguard_owner'.encode())
        passwords = tmp_path / "pgpass"
        passwords.write_text("*:*:*:spamguard_owner:of the owner\n")
        passwords.chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(passwords))
        yield empty
        admin.execute(f'DROP DATABASE "{empty.name}" WITH (FORCE)'.encode())
        admin.execute(f"DROP ROLE IF EXISTS {NODE}".encode())
        admin.execute("DROP ROLE spamguard_owner")


def connects(database: Empty, password_file: Path) -> bool:
    """Whether a node can log in with the password of the file, and read."""
    words = {"user": NODE, "password": password_file.read_text().strip(), "sslmode": "verify-full"}
    try:
        with psycopg.connect(database.node, **words) as connection:
            return connection.execute("SELECT last FROM spamguard.log").fetchone() == (0,)
    except psycopg.OperationalError:
        return False


# ---- init


def test_init_makes_tables_and_a_role_whose_password_is_in_a_file_alone(
    run, state, database, server
):
    done = run(state, "shared", "init", database.owner)
    file = state / "database-password"
    assert done.status == 0, done.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    password = file.read_text().strip()
    assert len(password) > 20
    assert password not in done.out + done.err + server.log()
    assert str(file) in done.out
    assert connects(database, file)
    with Filter.open(state) as one:
        key, bits = one.ledger.fingerprint, one.min_bits
    assert database.query("SELECT fingerprint, bits, schema_version FROM spamguard.cluster") == [
        (key, bits, 1)
    ]
    role = "SELECT rolsuper OR rolcreaterole OR rolcreatedb FROM pg_roles WHERE rolname = '%s'"
    assert database.query(role % NODE) == [(False,)]


def test_init_again_changes_nothing(run, state, database):
    assert run(state, "shared", "init", database.owner, "--json").json["new"]
    cluster = database.query("SELECT * FROM spamguard.cluster")
    password = (state / "database-password").read_text()
    done = run(state, "shared", "init", database.owner, "--json")
    assert (done.status, done.err, done.json["new"]) == (0, "", False)
    assert (state / "database-password").read_text() == password
    assert database.query("SELECT * FROM spamguard.cluster") == cluster


def test_a_role_that_is_there_gets_the_password_of_the_file(run, state, database, tmp_path):
    database.query(f"CREATE ROLE {NODE}")
    file = tmp_path / "password"
    file.write_text("chosen before\n")
    done = run(state, "shared", "init", database.owner, "--password-file", file)
    assert (done.status, done.err) == (0, "")
    assert connects(database, file)


def test_a_role_that_is_there_gets_a_new_password_with_a_note(run, state, database):
    database.query(f"CREATE ROLE {NODE} LOGIN PASSWORD 'another'")
    done = run(state, "shared", "init", database.owner)
    assert done.status == 0
    assert "has got a new password" in done.err
    assert connects(database, state / "database-password")


def test_an_owner_who_may_not_create_roles_needs_one_that_is_there(run, state, database, tmp_path):
    database.query("ALTER ROLE spamguard_owner NOCREATEROLE")
    done = run(state, "shared", "init", database.owner)
    assert done.failed("ALTER ROLE spamguard_owner CREATEROLE")
    assert not (state / "database-password").exists()
    database.query(f"CREATE ROLE {NODE} LOGIN PASSWORD 'by the superuser'")
    assert run(state, "shared", "init", database.owner).failed("write the one that it has into")
    file = tmp_path / "password"
    file.write_text("by the superuser\n")
    done = run(state, "shared", "init", database.owner, "--password-file", file)
    assert (done.status, done.err) == (0, "")
    assert connects(database, file)


def test_a_database_of_another_key_is_refused(run, state, database, tmp_path):
    assert run(state, "shared", "init", database.owner).status == 0
    Filter.open(tmp_path / "other", _bits=16).close()
    done = run(tmp_path / "other", "shared", "init", database.owner)
    assert done.failed("belongs to key", "name another database")
    assert not (tmp_path / "other" / "database-password").exists()


# ---- upgrade


def test_upgrade_brings_back_what_an_older_version_lacks_and_may_be_repeated(run, state, database):
    assert run(state, "shared", "upgrade", database.owner).failed("spamguard shared init")
    run(state, "shared", "init", database.owner)
    database.query(
        "DROP FUNCTION spamguard.burn_link; UPDATE spamguard.cluster SET schema_version = 0"
    )
    events = database.query("SELECT * FROM spamguard.log")
    assert run(state, "shared", "upgrade", database.owner, "--json").json == {
        "before": 0,
        "after": 1,
    }
    assert run(state, "shared", "upgrade", database.owner, "--json").json == {
        "before": 1,
        "after": 1,
    }
    right = f"SELECT has_function_privilege('{NODE}', 'spamguard.burn_link(text)', 'EXECUTE')"
    assert database.query(right) == [(True,)]
    assert database.query("SELECT * FROM spamguard.log") == events


def test_a_newer_database_is_left_as_it_is(run, state, database):
    run(state, "shared", "init", database.owner)
    database.query("UPDATE spamguard.cluster SET schema_version = 99")
    for command in ("init", "upgrade"):
        assert run(state, "shared", command, database.owner).failed("99", "newer version")


# ---- connections that fail


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("dbname=", "dbname=no_", ("no such database",)),
        ("user=spamguard_owner", "user=nobody", ("~/.pgpass",)),
        ("port=", "port=1", ("cannot be reached", "invalid port")),
        ("sslrootcert=", "sslmode=prefer sslrootcert=", ("sslmode=prefer", "verify-full")),
        ("sslrootcert=", "password=secret sslrootcert=", ("--password-file",)),
        ("host=localhost", "host=other.example", ("certificate", "host")),
        ("dbname=", "options=-cx=1 dbname=", ("options",)),
        ("host=localhost", "word", ("DSN",)),
    ],
)
def test_a_wrong_string_gets_one_line_with_the_remedy(run, state, database, old, new, words):
    done = run(state, "shared", "init", database.owner.replace(old, new))
    assert done.failed(*words), done.err
    assert "secret" not in done.err
    assert not (state / "database-password").exists()


def test_another_authority_is_refused(run, state, database, server, tmp_path):
    dsn = database.owner.replace(str(server.authority), "system")
    assert run(state, "shared", "init", dsn).failed("authority")
    dsn = database.owner.replace(str(server.authority), str(tmp_path / "none.pem"))
    assert run(state, "shared", "init", dsn).failed("a file that can be read")


def test_without_the_driver_the_remedy_is_told(state, tmp_path):
    (tmp_path / "psycopg.py").write_text("raise ModuleNotFoundError(name='psycopg')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from spamguard.cli import main; "
    code += f"sys.exit(main(['--state', {str(state)!r}, 'shared', 'upgrade', 'dbname=x']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "spamguard: needs psycopg: pip install 'spamguard[shared]'\n"
