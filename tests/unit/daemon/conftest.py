"""A running daemon: the real master and its workers, with doors that echo."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from spamguard.engine.filter import Filter
from tests.e2e.ports import free_port
from tests.support.processes import alive, children
from tests.support.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[3]


class Client:
    """A connection to an echoing door. worker: the process that answers."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._file = self.socket.makefile("rb")
        greeting = self._file.readline().split()
        assert greeting[:1] == [b"220"], greeting
        self.worker = int(greeting[1])

    def say(self, line: str) -> None:
        self.socket.sendall(line.encode() + b"\n")

    def hear(self) -> str:
        return self._file.readline().decode().strip()

    def ask(self, line: str) -> str:
        self.say(line)
        return self.hear()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Daemon:
    """A master in a process of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.file = place / "spamguard.yaml"
        self.log_file = place / "log"
        self.ports: list[int] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.seen: set[int] = set()

    def configure(self, ports: list[int] | None = None, **others: object) -> None:
        """Write the configuration."""
        self.ports = ports or self.ports or [free_port()]
        listener = others.pop("listener", {})
        listeners = [
            {
                "listen": f"smtp://127.0.0.1:{port}",
                "position": "standalone",
                "next_hop": "maildir:/nowhere",
                **listener,
            }
            for port in self.ports
        ]
        settings = {
            "state": str(self.place / "state"),
            "workers": 2,
            "listeners": listeners,
            **others,
        }
        self.file.write_text(yaml.safe_dump(settings))

    def start(
        self,
        *timing: str,
        wait: bool = True,
        pass_fds: tuple[int, ...] = (),
        before: tuple[str, ...] = (),
        **environment: str,
    ) -> None:
        """before: words in front of the command."""
        command = [
            *before,
            sys.executable,
            str(ROOT / "tests/unit/daemon/run_master.py"),
            str(self.file),
            *timing,
        ]
        inherited = os.environ | {"PYTHONPATH": str(ROOT)} | environment
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.place, env=inherited, stderr=log, pass_fds=pass_fds
            )
        if wait:
            self.logged("serving", 1)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def workers(self) -> list[int]:
        """Of the master, those that run."""
        self.seen.update(children(self.pid))
        return [child for child in children(self.pid, "tests.unit.daemon.echo") if alive(child)]

    def log(self) -> str:
        return self.log_file.read_text()

    def logged(self, text: str, times: int = 1) -> None:
        def check() -> bool:
            assert self.process is not None
            assert self.process.poll() is None or text in self.log(), self.log()
            return self.log().count(text) >= times

        eventually(check, f"{text!r} {times} times in the log")

    def reload(self) -> None:
        os.kill(self.pid, signal.SIGHUP)

    def client(self, number: int = 0) -> Client:
        return Client(self.ports[number])

    def stop(self, sent: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(sent)
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        """Leave nothing behind."""
        if self.process is not None and self.process.poll() is None:
            self.workers()
            self.process.kill()
            self.process.wait()
        for worker in self.seen:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that is configured and not started, with a small filter."""
    Filter.open(tmp_path / "state", _bits=8, _durable=False).close()
    daemon = Daemon(tmp_path)
    daemon.configure()
    yield daemon
    daemon.end()


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as selector:
        yield selector
