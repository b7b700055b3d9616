"""Commands where the filter is damaged, the disk is full, or the directory belongs
to another user.
"""

from __future__ import annotations

import json
import mailbox
import resource
import subprocess
import sys

import pytest

from spamguard.engine.filter import Filter
from tests.e2e.commands.command import (
    ENVIRONMENT,
    assert_failed,
    assert_receipts_and_tables_agree,
    spamguard,
)
from tests.e2e.ports import open_directory


def spoil(state):
    (state / "ledger.sqlite").write_bytes(b"no ledger" * 1000)


def other_schema(state):
    data = bytearray((state / "ledger.sqlite").read_bytes())
    data[60:64] = (99).to_bytes(4, "big")  # user_version in SQLite's file header
    (state / "ledger.sqlite").write_bytes(data)


def other_key(state):
    (state / "key").write_bytes(bytes(32))


def no_key(state):
    (state / "key").unlink()


def half_a_key(state):
    (state / "key").write_bytes(b"half")


DAMAGES = [
    (spoil, "not a spamguard ledger"),
    (other_schema, "schema 99"),
    (other_key, "taught with key"),
    (no_key, "key"),
    (half_a_key, "not a key"),
]


@pytest.mark.parametrize(("damage", "word"), DAMAGES)
def test_a_damaged_place(taught, corpus, damage, word):
    damage(taught)
    before = {file.name: file.read_bytes() for file in taught.iterdir()}
    for command in (
        ["learn", corpus],
        ["judge", corpus / "data"],
        ["status"],
        ["rebuild"],
        ["export", taught / "file"],
    ):
        assert_failed(spamguard(taught, *command), word)
    assert spamguard(taught, "filter", stdin=b"Subject: x\n\nx\n").stdout.endswith(
        b"\nSubject: x\n\nx\n"
    )
    assert {file.name: file.read_bytes() for file in taught.iterdir()} == before


def limit_files(size):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("size", [0, 1 << 14, 1 << 17, 1 << 19])
def test_a_full_disk_while_learning(state, corpus, size):
    done = spamguard(state, "learn", corpus, preexec_fn=limit_files(size))
    assert_failed(done, str(state))
    with Filter.open(state) as spam_filter:
        assert spam_filter.ledger.last_seq() < 400
    assert_receipts_and_tables_agree(state)
    assert not list(state.glob(".*.new"))
    assert spamguard(state, "learn", corpus).returncode == 0
    with Filter.open(state) as spam_filter:
        assert spam_filter.ledger.last_seq() == 400


@pytest.mark.parametrize("command", [["export", "file"], ["rebuild"]])
def test_a_full_disk_otherwise(taught, tmp_path, command):
    done = spamguard(taught, *command, preexec_fn=limit_files(1 << 15), cwd=tmp_path)
    assert_failed(done)
    assert [path.name for path in tmp_path.iterdir()] == ["taught"]
    assert not list(taught.glob(".*.new"))
    assert_receipts_and_tables_agree(taught)


@pytest.fixture
def public():
    """A directory in which another user can write; children run as one."""
    with open_directory() as directory:
        directory.chmod(0o777)
        yield directory


AS_NOBODY = """
import json, os, pkgutil, sys
import spamguard, tqdm
for module in pkgutil.walk_packages(spamguard.__path__, "spamguard."):
    if not module.name.endswith(("__main__", "estimators", "naive_bayes")):  # slow, and not needed
        __import__(module.name)  # another user may not be able to read it
from spamguard.cli import main
for line in sys.stdin:
    arguments, *files = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, file in enumerate(files):
            os.dup2(os.open(file, os.O_WRONLY if number else os.O_RDONLY), number)
        if os.getuid() == 0:
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
        sys.stdin = open(0)
        status = main(arguments)
        sys.stdout.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def nobody():
    """A process that has loaded everything, and forks for each command of another user."""
    with subprocess.Popen(
        [sys.executable, "-c", AS_NOBODY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
    ) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def as_nobody(nobody, tmp_path):
    def run(state, *arguments, stdin=b""):
        files = [tmp_path / name for name in ("stdin", "stdout", "stderr")]
        for file, data in zip(files, (stdin, b"", b""), strict=True):
            file.write_bytes(data)
        line = ["--state", str(state), *map(str, arguments)]
        nobody.stdin.write(json.dumps([line, *map(str, files)]) + "\n")
        nobody.stdin.flush()
        status = int(nobody.stdout.readline())
        return subprocess.CompletedProcess(
            line, status, files[1].read_bytes(), files[2].read_bytes()
        )

    return run


@pytest.mark.parametrize("mode", [0o000, 0o555])
def test_a_directory_that_cannot_be_written(public, as_nobody, mode):
    message = public / "message"
    message.write_bytes(b"Subject: x\n\nx\n")
    (public / "place").mkdir()
    (public / "place").chmod(mode)
    for state in (public / "place", public / "place" / "state"):
        for command in (["learn", "--as", "ham", message], ["judge", message], ["status"]):
            assert_failed(as_nobody(state, *command), str(public / "place"))
        done = as_nobody(state, "filter", stdin=b"Subject: x\n\nx\n")
        assert (done.returncode, done.stderr.count(b"\n")) == (0, 1)
        assert done.stdout.startswith(b"X-Spamguard: not-scanned; reason=")
        assert done.stdout.endswith(b"\nSubject: x\n\nx\n")
    (public / "place").chmod(0o755)
    assert list((public / "place").iterdir()) == []


def test_mail_that_may_not_be_read(public, as_nobody):
    state, secret = public / "state", public / "secret"
    secret.write_bytes(b"Subject: x\n\nx\n")
    assert as_nobody(state, "learn", "--as", "ham", secret).returncode == 0
    secret.chmod(0o000)
    assert_failed(
        as_nobody(state, "learn", "--as", "ham", secret), "secret: cannot be read", "permissions"
    )
    box = mailbox.Maildir(public / "box")
    box.close()
    (public / "box" / "new").chmod(0o000)
    assert_failed(as_nobody(state, "judge", public / "box"), "cannot be read")
