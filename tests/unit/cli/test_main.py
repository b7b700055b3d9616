"""The command line as a whole: help, state directory, errors in one line, loaded modules."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from spamguard.__main__ import main as started
from spamguard.cli import common, main
from tests.support.waiting import PATIENCE


def text_of(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_without_a_command_there_is_the_help(capsys):
    whole = text_of(capsys, "--help")
    assert main([]) == common.EXIT_ERROR
    assert capsys.readouterr() == ("", whole)


def test_an_interrupt_while_a_command_is_loaded(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("spamguard.cli.main", interrupted)
    monkeypatch.setattr(sys, "argv", ["spamguard", "status"])
    assert started() == common.EXIT_INTERRUPTED


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "--words", "-1", "message"), "--words: '-1' is no whole number from 0 on"),
        (("--state", "", "status"), "--state: the name is empty"),
        (("check", ""), "FILE: the name is empty"),
        (("teach-folders", ""), "MAILDIR: the name is empty"),
    ],
)
def test_invalid_values(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_warnings_of_the_log_are_lines_on_standard_error(tmp_path):
    """A warning of the log is a line on standard error, like an error."""
    (tmp_path / "quarantine").mkdir()
    (tmp_path / "quarantine" / "0iq5r8jo4c1n2f3g.json").write_text("{")
    line = [sys.executable, "-m", "spamguard", "--state", str(tmp_path), "quarantine", "list"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(
        f"spamguard: warning: {tmp_path}/quarantine/0iq5r8jo4c1n2f3g.json: "
    )
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == ["spamguard"] * 2


@pytest.mark.parametrize("command", ["run", "open-mailboxes"])
def test_mistakes_that_keep_a_service_from_starting_are_errors_in_the_journal(tmp_path, command):
    (tmp_path / "spamguard.yaml").write_text("postion: x\n")
    line = [
        sys.executable,
        "-m",
        "spamguard",
        command,
        "--config",
        str(tmp_path / "spamguard.yaml"),
    ]
    with (tmp_path / "journal").open("wb") as stderr:
        status = os.fstat(stderr.fileno())
        environment = os.environ | {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert subprocess.run(line, env=environment, stderr=stderr, check=False).returncode == 78
    lines = (tmp_path / "journal").read_text().splitlines()
    assert lines
    assert all(line.startswith(f"<3>spamguard: {tmp_path}/spamguard.yaml:1:1: ") for line in lines)


def test_a_directory_whose_name_is_not_utf8(run, status_of, tmp_path):
    state = tmp_path / os.fsdecode(b"st\xe4te")
    assert run(state, "learn", "--as", "ham", "-", stdin=b"Subject: x\n\nx\n").status == 0
    assert status_of(state)["classes"]["ham"]["messages"] == 1
    assert run(state, "token", "list").out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["learn", "--as", "spam", ""],
        ["forget", ""],
        ["judge", ""],
        ["explain", ""],
        ["evaluate", "--ham", "", "--spam", "x"],
    ],
)
def test_an_empty_path_is_not_the_current_directory(run, taught, corpus, monkeypatch, arguments):
    monkeypatch.chdir(corpus / "data")
    assert run(taught, *arguments).failed("PATH is empty")


def test_no_home(run, monkeypatch):
    def nowhere(cls):
        raise RuntimeError

    for name in ("SPAMGUARD_STATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pathlib.Path.home", classmethod(nowhere))
    assert run(None, "status").failed("no home directory", "--state")


FAILURES = [
    (
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/a/file"),
        2,
        "spamguard: /a/file: No space left on device: make room and try again\n",
    ),
    (OSError("odd"), 2, "spamguard: odd\n"),
    (OSError(), 2, "spamguard: OSError\n"),
    (
        MemoryError(),
        2,
        (
            "spamguard: there is not enough memory: free some, or raise the limit on it "
            "(`ulimit -v`)\n"
        ),
    ),
    (KeyboardInterrupt(), 130, ""),
    (BrokenPipeError(), 141, ""),
]


@pytest.mark.parametrize(
    ("error", "status", "line"), FAILURES, ids=lambda value: type(value).__name__
)
def test_an_error_is_a_line_and_a_status(run, taught, monkeypatch, error, status, line):
    def fail(*arguments):
        raise error

    monkeypatch.setattr("spamguard.engine.filter.Filter.status", fail)
    monkeypatch.setattr(common, "discard_output", lambda: None)  # standard output is pytest's
    done = run(taught, "status")
    assert (done.status, done.raw, done.err) == (status, b"", line)


def ended(work: str) -> tuple[int, str]:
    """Run work inside `terminate_cleanly`; return exit status and output."""
    program = f"import asyncio, signal\nfrom spamguard.cli import common\n{work}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_sigterm_ends_the_process_after_clean_up() -> None:
    """The event loop only logs most errors of callbacks, and goes on."""
    work = """
async def wait():
    asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGTERM)
    await asyncio.sleep(3600)

try:
    with common.terminate_cleanly():
        try:
            asyncio.run(wait())
        finally:
            print("tidy", flush=True)
except KeyboardInterrupt:
    print("ended", flush=True)
"""
    assert ended(work) == (0, "tidy\nended\n")
