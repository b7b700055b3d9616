"""A PostgreSQL of Debian's package for tests: a server of its own, with a database for each test.

The server keeps its data in a temporary directory, speaks TLS with a self-made certificate and asks
for passwords. Nothing of it outlives the tests: they kill it, but cut no power, so it need not sync
to the disk.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from spamguard.config.options import SharedSettings
from spamguard.config.shared import DatabaseTls
from spamguard.shared.mac import RowMac
from tests.support.certificates import self_signed
from tests.support.waiting import eventually
from tests.unit.filters import KEY

SCHEMA = Path(__file__).parents[2] / "spamguard/shared/schema.sql"
MAC = RowMac(KEY)
"""Of the nodes in tests."""
_ACCOUNT = "postgres"  # PostgreSQL refuses to run as root
_CONFIGURATION = """
ssl = on
ssl_cert_file = 'server.pem'
ssl_key_file = 'server.key'
listen_addresses = '127.0.0.1'
max_connections = 200
shared_buffers = 64MB
wal_level = replica
max_wal_senders = 4
"""
_ADMITTED = """
local all all trust
host all all 127.0.0.1/32 scram-sha-256
host replication all 127.0.0.1/32 scram-sha-256
"""


def programs() -> Path | None:
    """The directory with Debian's `initdb` and `postgres`, of the newest version that is there."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(found, key=lambda path: float(path.parent.name), default=None)


needs_postgres = pytest.mark.skipif(
    programs() is None, reason="needs PostgreSQL: apt-get install postgresql"
)


@dataclass
class PostgresServer:
    """A server. It listens on loopback, and on a socket in its directory for the superuser."""

    directory: Path
    port: int
    password: str = field(default_factory=lambda: secrets.token_hex(16))
    process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def authority(self) -> Path:
        """The certificate that vouches for the server, in a file that everybody may read."""
        return self.directory / "localhost.crt"

    @property
    def password_file(self) -> Path:
        """The node's password."""
        return self.directory / "password"

    def create(self, *, durable: bool) -> None:
        """Make the server's files."""
        owner = pwd.getpwnam(_ACCOUNT) if os.getuid() == 0 else None
        self.directory.chmod(0o755)
        pem = self_signed(self.directory)
        self.authority.write_bytes(pem.read_bytes().partition(b"-----BEGIN PRIVATE")[0])
        self.password_file.write_text(self.password + "\n")
        self.password_file.chmod(0o600)
        pem.unlink()
        superuser = self.directory / "superuser"
        superuser.write_text(self.password + "\n")
        if owner:
            for path in (self.directory, superuser):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        self.run("initdb", "-D", str(self.data), "-U", "postgres", "--pwfile", str(superuser),
                 "-A", "scram-sha-256", "-E", "UTF8", "--locale", "C.UTF-8",
                 "--no-sync")  # fmt: skip
        shutil.copy(self.authority, self.data / "server.pem")
        (self.directory / "localhost.key").rename(self.data / "server.key")
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(f"{_CONFIGURATION}fsync = {'on' if durable else 'off'}\n")
        (self.data / "pg_hba.conf").write_text(_ADMITTED)
        for name in ("server.pem", "server.key"):
            (self.data / name).chmod(0o600)
            if owner:
                os.chown(self.data / name, owner.pw_uid, owner.pw_gid)

    def run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs to its end."""
        done = subprocess.run(
            _line(program, *arguments),
            capture_output=True,
            check=False,
            cwd=self.directory,
            text=True,
        )
        assert done.returncode == 0, done.stderr + done.stdout

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                _line("postgres", "-D", str(self.data), "-p", str(self.port),
                      "-k", str(self.directory)),
                stdout=log, stderr=log, cwd=self.directory,
            )  # fmt: skip
        eventually(self.answers, "PostgreSQL answers")

    def answers(self) -> bool:
        """Whether the server takes connections."""
        assert self.process is None or self.process.poll() is None, self.log()
        try:
            psycopg.connect(self.superuser_dsn("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def log(self) -> str:
        """What the server has said."""
        return (self.directory / "log").read_text(errors="replace")[-5000:]

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server. SIGQUIT: as after a crash; SIGKILL: its processes end by themselves."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None

    def copy_as_standby(self, directory: Path, through: int) -> PostgresServer:
        """A server that follows this one, to be started. through: the port at which it does."""
        standby = PostgresServer(directory, free_port(), self.password)
        directory.chmod(0o755)
        if os.getuid() == 0:
            shutil.chown(directory, _ACCOUNT, _ACCOUNT)
        for file in (self.authority, self.password_file):
            shutil.copy2(file, directory)
        source = f"host=127.0.0.1 port={through} user=postgres password={self.password}"
        standby.run("pg_basebackup", "-d", source, "-D", str(standby.data), "-R", "-c", "fast")
        return standby

    def superuser_dsn(self, database: str) -> str:
        """How the superuser connects."""
        return f"host={self.directory} port={self.port} dbname={database} user=postgres"

    @contextmanager
    def database(self) -> Iterator[TestDatabase]:
        """A new database with the shared log in it."""
        database = TestDatabase(self, f"t{secrets.token_hex(6)}")
        with psycopg.connect(self.superuser_dsn("postgres"), autocommit=True) as admin:
            _make_role(admin, self.password)
            admin.execute(f'CREATE DATABASE "{database.name}"')
        database.initialise()
        yield database
        if self.process is not None:
            with psycopg.connect(self.superuser_dsn("postgres"), autocommit=True) as admin:
                admin.execute(f'DROP DATABASE "{database.name}" WITH (FORCE)')


@dataclass
class TestDatabase:
    """A database of a server."""

    __test__ = False

    server: PostgresServer
    name: str

    def recreate(self) -> None:
        """Lose everything in it; it is as new."""
        with psycopg.connect(self.server.superuser_dsn("postgres"), autocommit=True) as admin:
            admin.execute(f'DROP DATABASE "{self.name}" WITH (FORCE)')
            admin.execute(f'CREATE DATABASE "{self.name}"')
        self.initialise()

    def initialise(self) -> None:
        """Make the tables, as `spamguard shared init` does."""
        with psycopg.connect(self.owner_dsn) as owner:
            owner.execute(SCHEMA.read_bytes())
            owner.execute(
                "INSERT INTO spamguard.cluster (name, schema_version, min_writer, fingerprint, "
                "secret, bits) VALUES (%s, 3, 3, %s, sha256(%s), 20)",
                (uuid.uuid4(), MAC.fingerprint, MAC.secret.encode()),
            )

    @property
    def owner_dsn(self) -> str:
        return self.server.superuser_dsn(self.name)

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement with the owner's rights, and the key."""
        with psycopg.connect(self.owner_dsn, autocommit=True) as owner:
            show_key(owner)
            cursor = owner.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def settings(self, *ports: int, tls: bool = True) -> SharedSettings:
        """The settings of a node. ports: of proxies or of several servers; none: of this server."""
        ports = ports or (self.server.port,)
        hosts = ",".join(["localhost"] * len(ports))
        return SharedSettings(
            database=f"host={hosts} hostaddr={hosts.replace('localhost', '127.0.0.1')} "
            f"port={','.join(map(str, ports))} dbname={self.name} user=spamguard_node",
            password_file=self.server.password_file,
            tls=DatabaseTls(ca=self.server.authority) if tls else DatabaseTls(verify=False),
        )


def show_key(connection: psycopg.Connection[Any]) -> None:
    """Let this connection call the functions of the shared log."""
    connection.execute("SELECT set_config('spamguard.secret', %s, false)", (MAC.secret,))


def _make_role(admin: psycopg.Connection[Any], password: str) -> None:
    if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = 'spamguard_node'").fetchone():
        admin.execute(f"CREATE ROLE spamguard_node LOGIN PASSWORD '{password}'".encode())


def _line(program: str, *arguments: str) -> list[str]:
    directory = programs()
    assert directory is not None
    line = [str(directory / program), *arguments]
    if os.getuid() != 0:
        return line
    rights = ["setpriv", "--reuid", _ACCOUNT, "--regid", _ACCOUNT, "--clear-groups"]
    return [*rights, "--pdeathsig", "INT", *line]


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="spamguard-pg-"))  # which others may enter
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def running_server(*, durable: bool = False) -> Iterator[PostgresServer]:
    """A server that runs until the end. durable: its data would survive a power cut."""
    with _directory() as directory:
        server = PostgresServer(directory, free_port())
        try:
            server.create(durable=durable)
            server.start()
            yield server
        finally:
            server.stop(signal.SIGQUIT)


@contextmanager
def running_standby(primary: PostgresServer, through: int) -> Iterator[PostgresServer]:
    """A server that follows another one, asynchronously, at this port."""
    with _directory() as directory:
        standby = primary.copy_as_standby(directory, through)
        try:
            standby.start()
            yield standby
        finally:
            standby.stop(signal.SIGQUIT)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The server of this session."""
    with running_server() as server:
        yield server


@pytest.fixture
def shared_database(postgres_server: PostgresServer) -> Iterator[TestDatabase]:
    """A database of this test, with an empty shared log."""
    with postgres_server.database() as database:
        yield database
