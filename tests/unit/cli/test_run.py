"""`run`: the daemon started by hand, from the port to the Maildir, and why it cannot start."""

from __future__ import annotations

import smtplib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.daemon import one_listener
from tests.e2e.ports import free_port

pytestmark = pytest.mark.slow

MESSAGE = (
    b"From: a@example.org\r\nTo: b@example.org\r\nSubject: hello\r\n\r\nfirst line\r\n..dots\r\n"
)
SECONDS = 60.0


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "spamguard", *map(str, arguments)]


def fails(*arguments: object) -> tuple[int, str]:
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.fixture
def port() -> int:
    return free_port()


@contextmanager
def running(directory: Path, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon that serves; its log is `directory/log`."""
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen(command(*arguments), stderr=log) as process,
    ):
        try:
            until = time.monotonic() + SECONDS
            while b"serving" not in (directory / "log").read_bytes():
                assert process.poll() is None, (directory / "log").read_text()
                assert time.monotonic() < until
                time.sleep(0.05)
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(SECONDS)


def send(port: int) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=SECONDS) as client:
        client.sendmail("a@example.org", ["b@example.org"], MESSAGE)


def test_mail_comes_into_the_maildir_of_the_file(tmp_path: Path, port: int) -> None:
    words = one_listener(tmp_path / "state", port, f"maildir:{tmp_path}/mail")
    with running(tmp_path, "run", *words):
        send(port)
    assert len(list((tmp_path / "mail" / "new").iterdir())) == 1


def test_an_address_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        words = one_listener(tmp_path / "state", port, f"maildir:{tmp_path}/mail")
        status, stderr = fails("run", *words)
    assert status == 2
    assert stderr == (
        f"spamguard: cannot listen on smtp://127.0.0.1:{port} (Address already in use): "
        "stop what listens there, or choose another address of this machine; a port below 1024 "
        "needs root, and the directory of a path must belong to us\n"
    )


def limited(mebibytes: int, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    """Run a command with a limit on address space and the message as its input."""
    line = ["sh", "-c", f'ulimit -v {mebibytes << 10}; exec "$@"', "sh", *command(*arguments)]
    return subprocess.run(line, input=MESSAGE, capture_output=True, check=False, timeout=SECONDS)


def test_too_low_a_limit_on_memory_is_one_line(tmp_path: Path) -> None:
    """The daemon used to restart its processes for ever, each with a traceback."""
    (tmp_path / "message").write_bytes(MESSAGE)
    commands = [
        (78, ("run",)),  # which systemd does not start again
        (2, ("learn", "--as", "ham", tmp_path / "message")),
        (2, ("judge", tmp_path / "message")),
    ]
    for status, arguments in commands:
        done = limited(220, "--state", tmp_path / "state", *arguments)
        assert done.returncode == status
        (line,) = done.stderr.decode().splitlines()
        assert "the limit on memory (`ulimit -v`, LimitAS= of systemd) is too low: raise it" in line
    assert not (tmp_path / "state").exists()


def test_mail_passes_the_filter_below_any_limit_on_memory(tmp_path: Path) -> None:
    """A library that numpy loads used to end the process, and the mail was not passed on."""
    done = limited(100, "--state", tmp_path / "state", "filter")
    assert done.returncode == 0
    assert done.stdout.endswith(MESSAGE)
    assert done.stderr.count(b"\n") == 1
