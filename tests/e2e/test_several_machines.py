"""The steps of systemd/README.md and of config/compose that set up several machines, as they stand.

PostgreSQL and spamguard are the real ones. What would reach other machines or containers is a
function of the shell that does the same here: `systemctl`, `su`, `scp`, `ssh`, `docker`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
import yaml

from spamguard.config.load import load_settings
from spamguard.engine.filter import Filter
from tests.e2e import daemon
from tests.e2e.ports import free_port
from tests.e2e.test_readme import block
from tests.support.postgres import PostgresServer, needs_postgres, programs, running_server
from tests.support.waiting import COMMAND_SECONDS, eventually

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "config/compose"
SERVICES = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
NODES = ["mx1", "mx2", "mx3"]
UID = 5000
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other accounts can reach."""
    directory = Path(tempfile.mkdtemp(prefix="spamguard-several-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def type_in(commands: str, functions: str, **variables: str) -> str:
    """What a shell prints of these commands; each must succeed."""
    program = f'spamguard() {{ {sys.executable} -m spamguard "$@"; }}\n{functions}\n{commands}'
    environment = {**daemon.ENVIRONMENT, **variables}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def drop_all(server: PostgresServer) -> None:
    """Leave the server as it was."""
    with psycopg.connect(server.superuser_dsn("postgres"), autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS spamguard WITH (FORCE)")
        for role in ("spamguard_node", "spamguard_owner"):
            admin.execute(f"DROP ROLE IF EXISTS {role}".encode())


# ---- systemd/README.md


@pytest.fixture
def states(server: PostgresServer, place: Path) -> Iterator[dict[str, Path]]:
    """The state directories of three nodes, after all steps; the first was taught before."""
    daemon.taught(place / "mx1")
    passwords = place / "pgpass"
    passwords.write_text("*:*:*:spamguard_owner:of the owner\n")
    passwords.chmod(0o600)
    psql = f"{programs()}/psql -q -h {server.directory} -p {server.port} -U postgres postgres"
    functions = f"""
        systemctl() {{ [ "$*" = 'stop spamguard.socket spamguard' ]; }}
        scp() {{ cp "${{1/mx1:/}}" "$2"; }}
        ssh() {{ [ "$1" = mx1 ]; shift; "$@"; }}
        su() {{ PGHOST={server.directory} PGPORT={server.port} PGUSER=postgres bash -c "$3"; }}
        createuser() {{ {programs()}/createuser "${{@/--pwprompt/--login}}"; }}
        createdb() {{ {programs()}/createdb "$@"; }}
        psql() {{ {programs()}/psql "$@"; }}
        export -f createuser createdb psql
    """
    type_in(block("tested: shared database"), functions)
    type_in(f"{psql} -c \"ALTER ROLE spamguard_owner PASSWORD 'of the owner'\"", "")
    states = {}
    for node in NODES:
        states[node] = place / node
        states[node].mkdir(mode=0o700, exist_ok=True)
        steps = block(
            "tested: shared first node" if node == "mx1" else "tested: shared other nodes"
        )
        steps = re.sub(r"(?<!mx1:)(?<!cat )/var/lib/spamguard", str(states[node]), steps)
        steps = steps.replace("/var/lib/spamguard", str(states["mx1"]))
        steps = steps.replace("/root/", f"{place}/").replace("-o spamguard", "-o root")
        address = f"host=localhost hostaddr=127.0.0.1 port={server.port}"
        steps = steps.replace("host=db.example", f"{address} sslrootcert={server.authority}")
        state = str(states[node])  # which the service's configuration would name
        lines = type_in(steps, functions, PGPASSFILE=str(passwords), SPAMGUARD_STATE=state)
        lines = lines.partition("shared:")[2]
        (place / f"{node}.yaml").write_text(f"shared:{lines}")
    yield states
    drop_all(server)


@needs_postgres
@needs_root
def test_the_steps_make_three_machines_that_learn_as_one(states: dict[str, Path]) -> None:
    (raw,) = daemon.unseen("spam", 1)
    with ExitStack() as stack:
        for state in states.values():
            port = free_port()
            file = state.with_suffix(".yaml")
            listener = f"{{listen: 'rspamd://127.0.0.1:{port}'}}"
            file.write_text(f"workers: 1\nscanners: [{listener}]\n{file.read_text()}")
            stack.enter_context(daemon.running(state, "--config", str(file), port=port))

        def status(node: str) -> dict[str, object]:
            return dict(json.loads(daemon.command(states[node], "shared", "status", "--json")))

        def is_equal(position: int) -> bool:
            told = [status(node) for node in NODES]
            return (
                all((each["position"], each["waiting"]) == (told[0]["last"], 0) for each in told)
                and int(str(told[0]["position"])) >= position
            )

        eventually(lambda: is_equal(daemon.MESSAGES), "the lessons of the first are everywhere")
        before = status("mx1")["position"]
        with Filter.open(states["mx3"]) as teacher:
            teacher.learn(raw, "ham")
        eventually(lambda: is_equal(int(str(before)) + 1), "the lesson of the third too")
        eventually(lambda: len(status("mx2")["nodes"]) == 3, "the nodes know each other")  # type: ignore[arg-type]
    verdicts = set()
    for state in states.values():
        with Filter.open(state) as one:
            verdicts.add(one.judge(raw).log_odds)
            counts = one.status().classes
            assert sum(counts.values()) == daemon.MESSAGES + 1
    assert len(verdicts) == 1
    for state in states.values():
        assert "do not have" not in daemon.command(state, "shared", "leave")


# ---- config/compose


def steps_of(file: Path) -> str:
    """The commands in the head of a snippet."""
    head = file.read_text().partition("\nx-image")[0]
    return "\n".join(re.findall(r"^#     (.*)$", head, re.M))


@needs_postgres
@needs_root
def test_the_steps_of_compose(server: PostgresServer, place: Path) -> None:
    """With the account, the directories and the order of the containers."""
    with psycopg.connect(server.superuser_dsn("postgres"), autocommit=True) as admin:
        admin.execute("CREATE ROLE spamguard_owner LOGIN SUPERUSER PASSWORD 'of the owner'")
        admin.execute("CREATE DATABASE spamguard OWNER spamguard_owner")
    for node in ("owner", *NODES):
        (place / node).mkdir(mode=0o700)
        os.chown(place / node, UID, UID)
    checkout = place / "checkout"  # where the account can read it
    checkout.mkdir()
    steps = steps_of(COMPOSE / "compose.yaml").replace("cd config/compose", f"cd {place}")
    assert steps.count("docker compose run") == 3
    steps = steps.replace("/cluster/", f"{place}/cluster/")
    address = f"host=localhost hostaddr=127.0.0.1 port={server.port}"
    steps = steps.replace("host=database", address)
    functions = f"""
        docker() {{
            shift
            [ "$1" = run ] || {{ echo "$*"; return; }}
            [ "$2" = --rm ]; shift 2
            program=spamguard
            [ "$1" != --entrypoint ] || {{ program=$2; shift 2; }}
            node=$1; shift
            line=("${{@//\\/var\\/lib\\/spamguard/{str(place).replace("/", chr(92) + "/")}/$node}}")
            as_account env PYTHONPATH={checkout} SPAMGUARD_STATE={place}/$node \\
                "$(program_$program)" "${{line[@]}}"
        }}
        program_spamguard() {{ echo {place}/spamguard; }}
        program_cp() {{ echo cp; }}
        as_account() {{
            unshare --mount sh -c 'mount --bind {ROOT} {checkout} && cd {checkout} && exec "$@"' - \
                setpriv --reuid {UID} --regid {UID} --clear-groups "$@"
        }}
    """
    command = place / "spamguard"
    python = sys.executable.replace(str(ROOT), str(checkout))
    command.write_text(f'#!/bin/sh\nexec {python} -m spamguard "$@"\n')
    command.chmod(0o755)
    told = type_in(steps, functions, PGPASSWORD="of the owner")
    assert "up --detach --wait mx1 mx2 mx3" in told
    assert (place / "cluster/password").stat().st_uid == UID
    assert "OWNER_PASSWORD=" in (place / ".env").read_text()
    keys = {(place / node / "key").read_bytes() for node in ("owner", *NODES)}
    assert len(keys) == 1
    # The configuration of the nodes says what `join` has printed.
    shared = yaml.safe_load(told.rpartition("shared:")[2].partition("up --detach")[0])
    text = (COMPOSE / "spamguard.yaml").read_text()
    ours = yaml.safe_load(text)["shared"]
    assert ours["password_file"] == "/cluster/password"
    assert (shared["tls"], ours["tls"]) == ("no", False)  # YAML 1.1 reads a bare `no` as that
    assert "user=spamguard_node" in ours["database"]
    file = place / "check.yaml"
    file.write_text(text.replace("/cluster/", f"{place}/cluster/"))
    assert load_settings(file).shared is not None
    drop_all(server)
