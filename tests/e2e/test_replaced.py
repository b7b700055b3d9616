"""Another version is installed while the daemon runs: mail goes on, modules of the two versions are
not mixed, and the log says once to restart.
"""

from __future__ import annotations

import os
import shutil
import signal
import smtplib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.e2e.daemon import ENVIRONMENT, ROOT, Daemon
from tests.e2e.ports import free_port
from tests.support.processes import children
from tests.support.waiting import PATIENCE, eventually

NOTE = "another spamguard was installed than the one that runs: restart it"


@contextmanager
def running(place: Path, port: int) -> Iterator[Daemon]:
    """One worker and one scorer, of a copy of the package."""
    shutil.copytree(
        ROOT / "spamguard", place / "lib/spamguard", ignore=shutil.ignore_patterns("__pycache__")
    )
    listener = {
        "listen": f"smtp://127.0.0.1:{port}",
        "position": "standalone",
        "next_hop": f"maildir:{place}/Maildir",
    }
    settings = {
        "state": str(place / "state"),
        "workers": 1,
        "listeners": [listener],
    }
    (place / "c.yaml").write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-P", "-m", "spamguard", "run", "--config", str(place / "c.yaml")]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env={**ENVIRONMENT, "PYTHONPATH": str(place / "lib")},
            cwd="/",
        )
    try:
        daemon = Daemon(process, place / "state", place / "log")
        daemon.lines("serving")
        yield daemon
    finally:
        process.kill()
        process.wait()


def send(port: int, number: int) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE) as client:
        client.sendmail(
            "a@x.example",
            "b@y.example",
            f"Subject: {number}\r\nMessage-ID: <{number}@x.example>\r\n\r\nlantern\r\n",
        )


def child(parent: int, module: str) -> int:
    (found,) = [
        child
        for child in children(parent)
        if module.encode() in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    return found


@pytest.fixture
def port() -> int:
    return free_port()


def test_a_running_daemon_loads_nothing_of_the_new_version(tmp_path: Path, port: int) -> None:
    with running(tmp_path, port) as daemon:
        send(port, 0)
        daemon.lines("verdict=unsure")
        package = tmp_path / "lib/spamguard"
        shutil.move(package, tmp_path / "before")
        shutil.copytree(tmp_path / "before", package, ignore=shutil.ignore_patterns("__init__.py"))
        (package / "__init__.py").write_text('__version__ = "9.9"\n')
        daemon.lines(NOTE)
        send(port, 1)
        daemon.lines("verdict=unsure", 2)
        os.kill(daemon.process.pid, signal.SIGHUP)
        daemon.lines("the old settings stay in force")
        worker = child(daemon.process.pid, "spamguard.daemon.worker")
        os.kill(child(worker, "spamguard.proxy.scorer"), signal.SIGKILL)
        daemon.lines("a scorer cannot be started: " + NOTE)
        assert daemon.log().count(NOTE) == 3, "from master, reload, and worker"
        eventually(lambda: daemon.process.poll() is not None)
        assert daemon.process.returncode == 1, "so that systemd starts the new one"
        assert "Traceback" not in daemon.log()
        assert len(list((tmp_path / "Maildir/new").iterdir())) == 2
