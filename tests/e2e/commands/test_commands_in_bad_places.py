"""Commands where the filter is damaged, the disk is full, or the directory belongs
to another user.
"""

from __future__ import annotations

import mailbox
import resource

import pytest

from spamguard.engine.filter import Filter
from tests.e2e.commands.command import (
    NOBODY,
    alone,
    assert_failed,
    assert_receipts_and_tables_agree,
)
from tests.e2e.ports import open_directory
from tests.support.commands import spamguard


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
        ["backup", taught / "file"],
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
    done = alone(state, "learn", corpus, preexec_fn=limit_files(size))
    assert_failed(done, str(state))
    with Filter.open(state) as spam_filter:
        assert spam_filter.ledger.last_seq() < 400
    assert_receipts_and_tables_agree(state)
    assert not list(state.glob(".*.new"))
    assert spamguard(state, "learn", corpus).returncode == 0
    with Filter.open(state) as spam_filter:
        assert spam_filter.ledger.last_seq() == 400


@pytest.mark.parametrize("command", [["backup", "file"], ["rebuild"]])
def test_a_full_disk_otherwise(taught, tmp_path, command):
    done = alone(taught, *command, preexec_fn=limit_files(1 << 15), cwd=tmp_path)
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


def as_nobody(state, *arguments, stdin=b""):
    return spamguard(state, *arguments, stdin=stdin, user=NOBODY)


@pytest.mark.parametrize("mode", [0o000, 0o555])
def test_a_directory_that_cannot_be_written(public, mode):
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


def test_mail_that_may_not_be_read(public):
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
