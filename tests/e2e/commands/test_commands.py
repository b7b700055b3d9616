"""The commands one after another, as processes of their own: interrupted, or without a reader.

What needs no process is in tests/unit/cli.
"""

from __future__ import annotations

import io
import json
import signal
import subprocess
from pathlib import Path

import pytest

from spamguard.engine.filter import Filter
from tests.e2e.commands.command import (
    COMMAND,
    ENVIRONMENT,
    assert_receipts_and_tables_agree,
)
from tests.support.commands import spamguard
from tests.support.processes import has_open
from tests.support.waiting import eventually


def test_a_walk_through_all_commands(state, tmp_path, corpus):
    file = tmp_path / "file"
    done = spamguard(state, "learn", corpus)
    assert (done.returncode, done.stderr) == (0, b"")
    assert spamguard(state, "judge", corpus / "data").returncode == 1
    message = (corpus / "data" / "00001").read_bytes()
    assert spamguard(state, "filter", stdin=message).stdout.endswith(message)
    assert b"sum" in spamguard(state, "explain", corpus / "data" / "00001").stdout
    assert spamguard(state, "backup", file).returncode == 0
    assert spamguard(tmp_path / "other", "restore", file).returncode == 0
    assert spamguard(tmp_path / "other", "import", file).stdout == b"imported 0 receipts\n"
    assert spamguard(state, "forget", corpus / "data").returncode == 0
    assert spamguard(state, "rebuild").returncode == 0
    classes = json.loads(spamguard(state, "status", "--json").stdout)["classes"]
    assert [row["messages"] for row in classes.values()] == [0, 0]


def test_a_reader_that_goes_away_is_no_error(taught, corpus):
    line = [*COMMAND, "--state", str(taught), "judge", *[str(corpus / "data")] * 20]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as judge:
        judge.stdout.readline()
        judge.stdout.close()
        assert judge.stderr.read() == b""
    assert judge.returncode == 141


def test_an_interrupt_leaves_no_traceback(state, corpus):
    mail = as_mbox(corpus, 20)
    with subprocess.Popen(
        [*COMMAND, "--state", str(state), "learn", "--as", "ham", "-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as learn:
        learn.stdin.write(mail)
        learn.stdin.flush()
        eventually(lambda: has_open(learn.pid, state / "ledger.sqlite"), "it has begun")
        learn.send_signal(signal.SIGINT)
        assert learn.stderr.read() == b""
    assert learn.returncode == 130
    assert_receipts_and_tables_agree(state)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_ended_command_removes_its_drafts(taught, corpus, tmp_path, number):
    """Filters on trial take a hundred megabytes."""
    (tmp_path / "tmp").mkdir()
    line = [*COMMAND, "--state", str(taught), "evaluate", "--protocol", "split"]
    line += [str(corpus)] * 60
    with subprocess.Popen(
        line,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**ENVIRONMENT, "TMPDIR": str(tmp_path / "tmp")},
    ) as process:
        place = tmp_path / "tmp"  # which Python tries with a file first
        eventually(lambda: any(map(Path.is_dir, place.iterdir())), "it has begun")
        process.send_signal(number)
        assert process.stderr.read() == b""
    assert process.returncode == 130
    assert list((tmp_path / "tmp").iterdir()) == []
    with Filter.open(taught) as spam_filter:
        assert sum(spam_filter.status().classes.values()) == 400


def as_mbox(corpus, number):
    """The first messages of the corpus as an mbox."""
    bytes_io = io.BytesIO()
    for path in sorted((corpus / "data").iterdir())[:number]:
        bytes_io.write(b"From a@example.org Thu Jan  4 10:11:12 2024\n" + path.read_bytes() + b"\n")
    return bytes_io.getvalue()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_json_in_every_locale(taught, tmp_path, encoding):
    message = tmp_path / "café 中 \U0001f600.eml"
    message.write_bytes("Subject: x\n\ngrüße 中文 \U0001f600\n".encode())
    for command in ("judge", "explain"):
        line = [*COMMAND, "--state", str(taught), command, "--json", str(message)]
        done = subprocess.run(
            line,
            capture_output=True,
            env={**ENVIRONMENT, "PYTHONIOENCODING": encoding},
            check=False,
        )
        assert json.loads(done.stdout.decode("utf-8"))["name"] == str(message)
    assert ("\U0001f600" in done.stdout.decode()) == (encoding == "utf-8")
