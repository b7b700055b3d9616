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

from spamguard.config.load import load_settings
from spamguard.daemon.status import lock_state
from spamguard.engine.filter import Filter
from spamguard.shared.status import NodeStatus, SharedStatus, write_status
from tests.support.postgres import PostgresServer, needs_postgres, running_server
from tests.unit.cli.conftest import lessons, new_mail

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
        empty.query(
            "REVOKE EXECUTE ON FUNCTION lo_creat(int), lo_create(oid), lo_from_bytea(oid, bytea) "
            "FROM PUBLIC"
        )
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
        (key, bits, 3)
    ]
    role = "SELECT rolsuper OR rolcreaterole OR rolcreatedb FROM pg_roles WHERE rolname = '%s'"
    assert database.query(role % NODE) == [(False,)]


def test_the_password_of_nodes_changes_only_if_another_one_is_in_the_file(run, state, database):
    run(state, "shared", "init", database.owner)
    file = state / "database-password"
    old = file.rename(file.with_name("old"))
    assert run(state, "shared", "init", database.owner).failed("copy it from another node")
    assert not file.exists()
    assert connects(database, old)
    file.write_text("chosen by somebody\n")
    assert run(state, "shared", "init", database.owner).status == 0
    assert connects(database, file)


def test_an_owner_who_may_not_create_roles_needs_one_that_is_there(run, state, database, tmp_path):
    database.query("ALTER ROLE spamguard_owner NOCREATEROLE")
    done = run(state, "shared", "init", database.owner)
    assert done.failed("ALTER ROLE spamguard_owner CREATEROLE")
    assert not (state / "database-password").exists()
    database.query(f"CREATE ROLE {NODE} LOGIN PASSWORD 'by the superuser'")
    assert run(state, "shared", "init", database.owner).failed("write the password that it has")
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


# ---- join, status and leave


@pytest.fixture
def initialised(run, taught, database) -> Path:
    """A filter with lessons, whose key is that of the database."""
    assert run(taught, "shared", "init", database.owner).status == 0
    return taught


def secrets_of(state: Path) -> list[object]:
    return ["--key", state / "key", "--password-file", state / "database-password"]


def test_a_filter_with_lessons_joins_keeps_them_and_leaves_with_them(
    run, initialised, database, counts, clear
):
    before = {label: run(initialised, "judge", "-", stdin=raw).out for label, raw in clear.items()}
    done = run(initialised, "shared", "join", database.node)
    assert done.status == 0, done.err
    assert "120 lessons" in done.err
    assert lessons(initialised) == counts
    for label, raw in clear.items():
        assert run(initialised, "judge", "-", stdin=raw).out == before[label]
    status = run(initialised, "shared", "status", "--json").json
    assert (status["position"], status["waiting"] >= 120) == (0, True)
    assert run(initialised, "shared", "leave").failed("wait for the database", "--force")
    done = run(initialised, "shared", "leave", "--force")
    assert f"\n{status['waiting']} lessons that the others do not have" in done.out
    assert lessons(initialised) == counts
    for label, raw in clear.items():
        assert run(initialised, "judge", "-", stdin=raw).out == before[label]
    assert run(initialised, "shared", "leave").failed("learns alone", "shared join")


def said(state: Path) -> dict[str, int]:
    """Lessons in the ledger. Until a courier has copied the log, tables stand still."""
    with Filter.open(state) as one:
        return one.ledger.lesson_counts()


def test_what_one_machine_taught_is_taken_back_for_all(run, initialised, database, tmp_path):
    broken, file = tmp_path / "broken", tmp_path / "votes"
    for state in (initialised, broken):
        assert run(state, "shared", "join", database.node, *secrets_of(initialised)).status == 0
    before = said(initialised)
    run(broken, "learn", "--as", "ham", "-", stdin=new_mail("spam")[0])
    run(broken, "backup", file)
    run(initialised, "import", file)
    assert said(initialised) != before
    with Filter.open(broken) as one:
        node = NodeStatus(one.ledger.node, "mx3", "", "1", 1, 0, 0.0, "")
    write_status(initialised, SharedStatus(nodes=(node,)))
    undo = ("undo", "--node")
    done = run(initialised, *undo, "mx3", "--dry-run")
    assert done.out == "(the site): would take back 1 vote\n"
    assert run(initialised, *undo, "mx3").out == "(the site): took back 1 vote\n"
    assert said(initialised) == before
    assert "nothing to take back" in run(initialised, *undo, node.node).out
    assert run(initialised, *undo, "mx7").failed("mx7", "shared status")


def test_the_lines_that_join_prints_are_a_configuration(run, initialised, database, tmp_path):
    lines = run(initialised, "shared", "join", database.node).out
    file = tmp_path / "spamguard.yaml"
    file.write_text(
        f"state: {initialised}\nscanners: [{{listen: milter://127.0.0.1:11332}}]\n{lines}"
    )
    shared = load_settings(file).shared
    assert shared is not None
    assert shared.password_file == initialised / "database-password"
    assert shared.tls.ca == database.server.authority
    assert run(initialised, "shared", "join", database.node).out == lines  # again


def test_another_key_is_refused_and_nothing_is_made(run, initialised, state, database, tmp_path):
    (tmp_path / "key").write_bytes(bytes(32))
    words = ["--password-file", initialised / "database-password"]
    new = tmp_path / "new"
    done = run(new, "shared", "join", database.node, "--key", tmp_path / "key", *words)
    assert done.failed("belongs to the key", "copy the key of another node")
    assert not new.exists()
    done = run(state, "shared", "join", database.node, *secrets_of(initialised))
    assert done.failed("another key", "teach-folders")
    assert run(new, "shared", "join", database.node).failed("--key FILE")
    assert run(new, "shared", "join", database.node, "--key", new / "no").failed("no key there")
    assert not new.exists()


def test_a_wrong_or_missing_password_is_refused(run, initialised, database, tmp_path):
    new, key = tmp_path / "new", ["--key", initialised / "key"]
    done = run(new, "shared", "join", database.node, *key)
    assert done.failed("database-password", "--password-file")
    (tmp_path / "password").write_text("wrong\n")
    words = [*key, "--password-file", tmp_path / "password"]
    done = run(new, "shared", "join", database.node, *words)
    assert done.failed("it refuses us: check user")
    assert not new.exists()


@pytest.mark.parametrize(("version", "words"), [(1, "shared upgrade"), (4, "update spamguard")])
def test_an_older_or_newer_database_is_refused(run, initialised, database, version, words):
    database.query(
        f"UPDATE spamguard.cluster SET schema_version = {version}, min_writer = {version}"
    )
    assert run(initialised, "shared", "join", database.node).failed(words)
    assert run(initialised, "shared", "status").failed("learns alone")


def test_a_database_without_tables_is_refused(run, state, database, tmp_path):
    (tmp_path / "password").write_text("word\n")
    database.query(f"CREATE ROLE {NODE} LOGIN PASSWORD 'word'")
    done = run(state, "shared", "join", database.node, "--password-file", tmp_path / "password")
    assert done.failed("is not ready", "shared init")


def test_tables_of_another_size_are_refused(run, initialised, database):
    database.query("UPDATE spamguard.cluster SET bits = 20")
    assert run(initialised, "shared", "join", database.node).failed("2**16", "2**20")


def test_a_running_daemon_keeps_its_state(run, initialised, database):
    lock = lock_state(initialised)
    for words in (["join", database.node], ["leave"]):
        assert run(initialised, "shared", *words).failed("another daemon", "systemctl stop")
    lock.close()
    assert run(initialised, "shared", "join", database.node).status == 0


# ---- upgrade


def test_upgrade_brings_back_what_an_older_version_lacks_and_may_be_repeated(run, state, database):
    assert run(state, "shared", "upgrade", database.owner).failed("spamguard shared init")
    run(state, "shared", "init", database.owner)
    database.query("DROP FUNCTION spamguard.burn_link; UPDATE spamguard.cluster SET min_writer = 1")
    events = database.query("SELECT * FROM spamguard.log")
    assert run(state, "shared", "upgrade", database.owner).status == 0
    assert run(state, "shared", "upgrade", database.owner).status == 0
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
        ("dbname=", "dbname=no_", ("it refuses us",)),
        ("sslrootcert=", "sslmode=prefer sslrootcert=", ("sslmode=prefer", "verify-full")),
        ("sslrootcert=", "password=secret sslrootcert=", ("--password-file",)),
        ("host=localhost", "word", ("DSN",)),
    ],
)
def test_a_wrong_string_gets_one_line_with_the_remedy(run, state, database, old, new, words):
    done = run(state, "shared", "init", database.owner.replace(old, new))
    assert done.failed(*words), done.err
    assert "secret" not in done.err
    assert not (state / "database-password").exists()


def test_without_the_driver_the_remedy_is_told(state, tmp_path):
    (tmp_path / "psycopg.py").write_text("raise ModuleNotFoundError(name='psycopg')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from spamguard.cli import main; "
    code += f"sys.exit(main(['--state', {str(state)!r}, 'shared', 'upgrade', 'dbname=x']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "spamguard: needs psycopg: pip install 'spamguard[shared]'\n"
