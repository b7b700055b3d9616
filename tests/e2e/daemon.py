"""The real `spamguard run` as a process of its own, and a taught filter for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from spamguard import keys
from spamguard.engine.filter import Filter
from spamguard.proxy.history import HISTORY_FILE, History, HistoryRow
from tests.e2e.ports import wait_for_port
from tests.support.commands import spamguard
from tests.support.waiting import COMMAND_SECONDS, PATIENCE, eventually
from tests.unit.filters import KEY, READER, files, mail

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
COMMAND = [sys.executable, "-m", "spamguard"]
SETTLE = [  # STATE: what the process of a daemon does that settles
    sys.executable,
    "-c",
    "import sys; from pathlib import Path; from spamguard import log; "
    "from spamguard.config.options import Settings; from spamguard.daemon.settle import settle; "
    "log.configure(); sys.exit(settle(Settings(Path(sys.argv[1]), ())))",
]
BITS = 16
MESSAGES = 300


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running daemon."""

    process: subprocess.Popen[bytes]
    state: Path
    file: Path

    def log(self) -> str:
        """Everything it has said."""
        return self.file.read_text(errors="replace")

    def lines(self, text: str, count: int = 1, seconds: float = PATIENCE) -> list[str]:
        """The lines of the log with this text; waits until there are `count`."""
        until = time.monotonic() + seconds
        while len(found := [line for line in self.log().splitlines() if text in line]) < count:
            assert time.monotonic() < until, (
                f"{len(found)} of {count} lines with {text!r}; the log ends:\n{self.log()[-4000:]}"
            )
            time.sleep(0.02)
        return found

    def row(self, name: str) -> HistoryRow:
        """The row of a message in the history."""
        with History.open(self.state / HISTORY_FILE, 1 << 30, 30) as history:
            eventually(lambda: history.find(name), f"{name} in the history")
            return history.find(name) or pytest.fail("it is gone again")

    def stop(self) -> int:
        """Ask it to end; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


def command(state: Path, *words: str) -> str:
    """The output of a command that succeeds."""
    done = spamguard(state, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def ask(state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command as it ended."""
    line = [*COMMAND, "--state", str(state), *words]
    return subprocess.run(
        line, env=ENVIRONMENT, check=False, capture_output=True, text=True, timeout=COMMAND_SECONDS
    )


def taught(state: Path, messages: int = MESSAGES, seed: int = 3) -> Path:
    """A filter that knows the mail of `corpora.synthetic`; its key is a known one, so that verdicts
    repeat.
    """
    state.mkdir(mode=0o700)
    for name, data in _taught_once(messages, seed).items():
        (state / name).touch(0o600)
        (state / name).write_bytes(data)
    return state


@cache
def _taught_once(messages: int, seed: int) -> dict[str, bytes]:
    """The files of a filter with which many tests begin."""
    with tempfile.TemporaryDirectory() as place:
        keys.store_key(Path(place) / "key", KEY)
        with Filter.open(Path(place), _bits=BITS, _durable=False) as spam_filter:
            for label, raw in mail(messages, seed):
                spam_filter.learn_examples([READER.read_example(raw)], label)
            spam_filter.settle()
        return files(Path(place))


def unseen(label: str, count: int, messages: int = MESSAGES, seed: int = 3) -> list[bytes]:
    """Mail of one class that `taught` has not taught, though of its kind; CRLF line ends."""
    found = [raw for name, raw in mail(messages + 8 * count + 20, seed)[messages:] if name == label]
    assert len(found) >= count
    return [raw.replace(b"\n", b"\r\n") for raw in found[:count]]


def one_listener(state: Path, port: int, hop: str, *watch: str) -> tuple[str, str]:
    """The words for a configuration in which mail comes in by SMTP and goes on to this hop."""
    file = state.with_name(f"{state.name}-{port}.yaml")
    listen = f"smtp://127.0.0.1:{port}"
    listener = {"listen": listen, "position": "standalone", "next_hop": hop}
    values = {"state": str(state), "listeners": [listener], "watch": watch}
    file.write_text(json.dumps(values))  # which is YAML, too
    return "--config", str(file)


@contextmanager
def running(
    state: Path,
    *arguments: str,
    port: int,
    log: Path | None = None,
    before: Sequence[str] = (),
    command: Sequence[str] = COMMAND,
) -> Iterator[Daemon]:
    """`spamguard run`, from when it listens on the port until SIGTERM, which must end it in time
    with success. before: words before the command. command: as of `tuned`.
    """
    file = log or state.with_name(f"{state.name}.log")
    with file.open("ab") as stream:
        process = subprocess.Popen(
            [*before, *command, "--state", str(state), "run", *arguments],
            stdout=stream,
            stderr=stream,
            env=ENVIRONMENT,
        )
    daemon = Daemon(process, state, file)
    try:
        try:
            wait_for_port(port)
        except AssertionError as error:
            raise AssertionError(f"{error}; the log ends:\n{daemon.log()[-4000:]}") from None
        yield daemon
        assert daemon.stop() == 0, daemon.log()[-4000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(PATIENCE)
