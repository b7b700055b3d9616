"""Whom the daemon runs as. What needs root is tried in processes of their own."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spamguard.config.options import (
    Endpoint,
    Hop,
    HostPort,
    Listener,
    Position,
    Protocol,
    Settings,
    Web,
)
from spamguard.daemon import startup
from spamguard.errors import StartError
from tests.e2e.ports import free_port, open_directory
from tests.support.waiting import PATIENCE, eventually
from tests.unit.daemon.conftest import Daemon

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")

TRY = """
import logging, os, pwd, sys
from pathlib import Path
from spamguard.daemon import startup
from spamguard.errors import SpamguardError
from spamguard.config.options import Hop, Listener, Position, Settings
from spamguard.config.values import Endpoint, Protocol
logging.basicConfig(level=logging.INFO, format="%(message)s")
state, user, host, *start = sys.argv[1:]
if start:
    os.setresuid(*[int(start[0])] * 3)
hop = Hop(Endpoint(Protocol.SMTP, "h", 25))
listener = Listener(Endpoint(Protocol.SMTP, host, 25), Position.STANDALONE, hop)
try:
    startup.drop_privileges(Settings(Path(state), (listener,), user=user))
except SpamguardError as error:
    sys.exit(str(error))
print(os.getresuid(), os.getresgid(), os.getgroups(), oct(os.umask(0)))
try:
    os.setuid(0)
except PermissionError:
    print("for good")
"""
NOBODY = pwd.getpwnam("nobody")
IDS = (
    f"{(NOBODY.pw_uid,) * 3} {(NOBODY.pw_gid,) * 3} {os.getgrouplist('nobody', NOBODY.pw_gid)} "
    "0o77\nfor good\n"
)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Where others get through: pytest's own they do not, as each run of it that begins sees to."""
    with open_directory() as directory:
        yield directory


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


def settle_in(
    state: Path, user: str = "", host: str = "127.0.0.1", *start: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", TRY, str(state), user, host, *start],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def owned(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


def test_root_becomes_the_owner_of_the_state(place: Path) -> None:
    state = place / "state"
    state.mkdir()
    os.chown(state, NOBODY.pw_uid, NOBODY.pw_gid)
    assert settle_in(state, host="192.0.2.1").stdout == IDS


def test_root_stays_root_only_on_loopback(place: Path) -> None:
    done = settle_in(place / "state", host="192.0.2.1")
    assert done.returncode == 1
    assert "will not run as root with smtp://192.0.2.1:25 open to others" in done.stderr
    done = settle_in(place / "state")
    assert done.stdout.startswith("(0, 0, 0) (0, 0, 0)")
    assert "running as root" in done.stderr
    assert settle_in(place / "state", "root", "192.0.2.1").returncode == 1


def test_without_root(place: Path) -> None:
    done = settle_in(place / "state", "", "127.0.0.1", str(NOBODY.pw_uid))
    assert done.stderr == (
        f"{place}/state: cannot be used as nobody (Permission denied): choose a state "
        "directory of that user\n"
    )
    place.chmod(0o777)
    assert settle_in(place / "state", "", "192.0.2.1", str(NOBODY.pw_uid)).returncode == 0
    assert owned(place / "state")[0] == NOBODY.pw_uid


@pytest.mark.parametrize(
    ("name", "mode"), [("state", 0o755), ("spool", 0o700), ("key", 0o600), ("ledger.sqlite", 0o644)]
)
def test_without_root_a_filter_of_another_user(place: Path, name: str, mode: int) -> None:
    state = place / "state"
    state.mkdir(mode=0o777)
    state.chmod(0o777)
    theirs = state if name == "state" else state / name
    if name == "spool":
        theirs.mkdir()
    theirs.touch()
    theirs.chmod(mode)
    done = settle_in(state, "", "127.0.0.1", str(NOBODY.pw_uid))
    told = (
        f"{state}: cannot be used as nobody (Permission denied: {name}): choose a state "
        "directory of that user\n"
    )
    assert (done.stderr, done.returncode) == (told, 1)


def test_the_whole_daemon_gives_up_root(daemon: Daemon, place: Path) -> None:
    try:
        subprocess.run(
            [sys.executable, "-c", ""],
            user="nobody",
            group=NOBODY.pw_gid,
            extra_groups=[],
            check=True,
            cwd="/",
        )
    except PermissionError:
        pytest.skip("this interpreter lies where only root can use it")
    daemon.file.chmod(0o644)
    daemon.configure(user="nobody")
    shutil.rmtree(place / "state")
    daemon.start()
    for process in (daemon.pid, *daemon.workers()):
        status = Path(f"/proc/{process}/status").read_text()
        assert (
            f"Uid:\t{NOBODY.pw_uid}\t{NOBODY.pw_uid}\t{NOBODY.pw_uid}\t{NOBODY.pw_uid}\n" in status
        )
    daemon.reload()
    daemon.logged("serving", 2)
    eventually(lambda: len(daemon.workers()) == 2)
    assert daemon.stop() == 0


def test_files_that_only_root_can_read_are_reported_at_the_start(
    daemon: Daemon, place: Path
) -> None:
    """Workers read it as the user they run as: each of them ended as soon as it had begun, again
    and again.
    """
    secret = place / "secret"
    secret.write_text("x\n")
    secret.chmod(0o600)
    scanner = {"listen": f"rspamd://127.0.0.1:{free_port()}", "password_file": str(secret)}
    daemon.configure(user="nobody", scanners=[scanner])
    daemon.file.chmod(0o644)
    shutil.rmtree(place / "state")
    daemon.start(wait=False)
    assert daemon.process is not None
    assert daemon.process.wait(PATIENCE) == 2
    assert f"'{secret}' (Permission denied)" in daemon.log()


def test_a_program_that_only_root_can_run_is_reported_at_the_start(place: Path) -> None:
    """For instance one installed below /root. The error names the cause, not the interpreter."""
    closed = place / "closed" / "python3"
    closed.parent.mkdir(mode=0o700)
    closed.symlink_to("/bin/true")
    try_it = (
        f"import os, sys; os.setresuid(*[{NOBODY.pw_uid}] * 3); sys.executable = {str(closed)!r}"
    )
    try_it = f"from spamguard.daemon import startup; {try_it}; startup.check_program()"
    done = subprocess.run(
        [sys.executable, "-c", try_it],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (
        f"{closed}: nobody, whom the daemon runs as, cannot use it: install spamguard where "
        "every user gets to"
    ) in done.stderr
    closed.parent.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", try_it], capture_output=True, text=True, check=False
    )
    assert f"{closed}: " not in done.stderr


def test_as_root_metrics_and_page_must_be_on_loopback(tmp_path: Path) -> None:
    listener = Listener(
        Endpoint(Protocol.SMTP, "127.0.0.1", 1),
        Position.STANDALONE,
        Hop(Endpoint(Protocol.SMTP, "192.0.2.1", 25)),
    )
    with pytest.raises(StartError, match=r"with 0\.0\.0\.0:9110 open to others"):
        startup.check_account(Settings(tmp_path, (listener,), metrics=HostPort("0.0.0.0", 9110)))
    with pytest.raises(StartError, match=r"with 0\.0\.0\.0:8080 open to others"):
        startup.check_account(Settings(tmp_path, (listener,), web=Web(HostPort("0.0.0.0", 8080))))
