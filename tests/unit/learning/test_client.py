"""`teach-pipe`: a lesson goes to the daemon, else to the directory, else it fails."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from spamguard.learning.lessons import TrainingIntake
from spamguard.learning.queue import LessonQueue
from spamguard.servers.teach import TeachingDoor, TrainingAccounts
from spamguard.users import QueuedLesson
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[3]
TIME_CONSUMING = {"numpy", "asyncio", "dataclasses", "pathlib", "json", "logging", "subprocess"}
TIME_CONSUMING |= {"spamguard.cli", "spamguard.engine.filter"}


def teach_pipe(
    place: Path, *arguments: str, raw: bytes = b"Subject: x\n\nbuy\n"
) -> subprocess.CompletedProcess[bytes]:
    places = ["--socket", str(place / "sock"), "--spool", str(place / "left")]
    line = [sys.executable, "-m", "spamguard", "teach-pipe", *places, *arguments]
    return subprocess.run(
        line, input=raw, capture_output=True, check=False, cwd=ROOT, timeout=PATIENCE
    )


def test_the_daemon_takes_it(tmp_path):
    queue = LessonQueue(tmp_path / "teach")

    async def lacks(_label: str) -> bool:
        return False

    async def run() -> None:
        door = TeachingDoor(
            TrainingIntake(tmp_path), TrainingAccounts(()), tmp_path, lambda: None, lacks
        )
        async with await door.start(tmp_path / "sock", 0o666):
            for _ in range(2):
                done = await asyncio.to_thread(
                    teach_pipe, tmp_path, "--as", "spam", "--user", "anna"
                )
                assert (done.returncode, done.stderr) == (0, b"")

    asyncio.run(run())
    assert [queue.take(name) for name in queue.names()] == [
        QueuedLesson("spam", "anna", "teach-pipe", b"Subject: x\n\nbuy\n")
    ] * 2


def test_an_unknown_class_is_a_temporary_failure(tmp_path):
    """It was taken, and dropped afterwards: only `status` said so. In the directory it would come
    to the same.
    """
    (tmp_path / "left").mkdir()
    queue = LessonQueue(tmp_path / "teach")

    async def lacks(label: str) -> bool:
        return label != "spam"

    async def run() -> None:
        door = TeachingDoor(
            TrainingIntake(tmp_path), TrainingAccounts(()), tmp_path, lambda: None, lacks
        )
        async with await door.start(tmp_path / "sock", 0o666):
            done = await asyncio.to_thread(
                teach_pipe, tmp_path, "--as", "spma", raw=b"x" * 3_000_000
            )
            assert (done.returncode, b"no class 'spma'" in done.stderr) == (75, True)
            assert (await asyncio.to_thread(teach_pipe, tmp_path, "--as", "spam")).returncode == 0

    asyncio.run(run())
    assert len(queue.names()) == 1
    assert list((tmp_path / "left").iterdir()) == []


def test_otherwise_it_is_left_in_the_directory(tmp_path):
    (tmp_path / "left").mkdir()
    assert teach_pipe(tmp_path, "--as", "ham").returncode == 0
    (file,) = (tmp_path / "left").iterdir()
    assert file.read_bytes() == b"TEACH ham 16\nSubject: x\n\nbuy\n"


@pytest.mark.parametrize(
    ("arguments", "raw", "status", "told"),
    [
        (["--as", "spam"], b"x", 75, b"neither"),
        (["--as", "SPAM"], b"x", 65, b"no class"),
        (["--as", "spam", "--user", "a\tb"], b"x", 65, b"no name"),
        (["--as", "spam"], b"", 65, b"no message"),
        ([], b"x", 2, b"--as"),
    ],
)
def test_errors_are_one_line(tmp_path, arguments, raw, status, told):
    done = teach_pipe(tmp_path, *arguments, raw=raw)
    assert done.returncode == status
    assert told in done.stderr.splitlines()[-1]
    assert b"Traceback" not in done.stderr


def test_it_loads_nothing_that_takes_time(tmp_path):
    code = (
        "import sys; before = set(sys.modules)\n"
        "arguments = ['--as', 'spam', '--spool', sys.argv[1], '--socket', '/none']\n"
        "sys.argv = ['spamguard', 'teach-pipe', *arguments]\n"
        "from spamguard.__main__ import main\n"
        "status = main(); print(status, *sorted(set(sys.modules) - before))"
    )
    (tmp_path / "left").mkdir()
    line = [sys.executable, "-S", "-c", code, str(tmp_path / "left")]
    done = subprocess.run(line, input=b"x", capture_output=True, check=True, cwd=ROOT)
    status, *loaded = done.stdout.decode().split()
    assert status == "0"
    assert not TIME_CONSUMING & set(loaded)
