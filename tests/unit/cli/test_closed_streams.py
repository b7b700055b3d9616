"""Commands started with standard input, output or error closed.

Text for one stream must never go to another stream, or into a file of ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MAIL = b"Subject: x\n\nbody\n"


def closed(descriptor: int, state: Path, *arguments: object) -> tuple[int, bytes, bytes]:
    """Run a command without this descriptor; return exit status, output and errors."""
    line = [sys.executable, "-m", "spamguard", "--state", str(state), *map(str, arguments)]
    shell = ["sh", "-c", f'exec "$@" {descriptor}>&-', "sh", *line]
    done = subprocess.run(
        shell,
        input=MAIL,
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_no_error_text_gets_into_the_mail(tmp_path):
    (tmp_path / "file").write_text("")
    status, out, _ = closed(2, tmp_path / "file" / "below", "filter")
    assert (status, out) == (0, b"X-Spamguard: not-scanned; reason=LedgerError\n" + MAIL)


def test_without_output_the_delivery_agent_keeps_the_mail(state):
    status, _, err = closed(1, state, "filter")
    assert status == 75
    assert err == b"spamguard: the message could not be passed on: Bad file descriptor\n"


def test_without_input_the_delivery_agent_tries_again(state):
    assert closed(0, state, "filter") == (
        75,
        b"",
        b"spamguard: the message could not be passed on: Bad file descriptor\n",
    )
    status, _, err = closed(0, state, "teach-pipe", "--as", "spam", "--spool", "/nowhere")
    assert (status, err.count(b"\n")) == (75, 1)


@pytest.mark.parametrize(
    ("descriptor", "command"),
    [
        (0, ("learn", "--as", "ham", "-")),
        (0, ("judge", "-")),
        (1, ("judge", "-")),
        (1, ("backup", "-")),
    ],
)
def test_a_closed_stream_is_an_error_of_one_line(state, descriptor, command):
    status, out, err = closed(descriptor, state, *command)
    assert (status, out, err.count(b"\n")) == (2, b"", 1)
    assert err.startswith(b"spamguard: ")
    assert b"Bad file descriptor" in err


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("asked", [("--help",), ("--version",), ("judge", "--help")])
def test_help_on_a_full_disk(asked, unbuffered):
    """From Python 3.12 on argparse ignores errors while it writes, so an unbuffered one is lost."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "spamguard", *asked],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
            check=False,
        )
    expected = b"spamguard: No space left on device: make room and try again\n"
    assert (done.returncode, done.stderr) in [(2, expected)] + ([(0, b"")] if unbuffered else [])
