"""`teach-pipe`: a lesson goes to the directory, else it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[3]
TIME_CONSUMING = {"numpy", "asyncio", "dataclasses", "pathlib", "json", "logging", "subprocess"}
TIME_CONSUMING |= {"spamguard.cli", "spamguard.engine.filter"}


def teach_pipe(
    place: Path, *arguments: str, raw: bytes = b"Subject: x\n\nbuy\n"
) -> subprocess.CompletedProcess[bytes]:
    spool = ["--spool", str(place / "left")]
    line = [sys.executable, "-m", "spamguard", "teach-pipe", *spool, *arguments]
    return subprocess.run(
        line, input=raw, capture_output=True, check=False, cwd=ROOT, timeout=PATIENCE
    )


@pytest.mark.parametrize(
    ("arguments", "raw", "status", "told"),
    [
        (["--as", "spam"], b"x", 75, b"left"),
        (["--as", "SPAM"], b"x", 65, b"class 'SPAM'"),
        (["--as", "spam", "--user", "a\tb"], b"x", 65, b"user 'a\\tb'"),
        (["--as", "spam"], b"", 65, b" 0 bytes"),
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
        "arguments = ['--as', 'spam', '--spool', sys.argv[1]]\n"
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
