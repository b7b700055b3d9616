"""`teach-folders`: mail that people filed before the daemon watched."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from corpora import synthetic
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import ExampleReader
from spamguard.records import EXTRACTOR
from tests.unit.folders.maildirs import deliver, maildir

MAIL = [raw for _, raw in synthetic.generate(30, 8)]


@pytest.fixture
def home(tmp_path):
    """Two users. anna filed 3 as spam, archived 2, read 2 of 3 in INBOX; one is in two classes."""
    anna = maildir(
        tmp_path / "home" / "anna" / "Maildir", ".Junk", ".Archive", ".Trash", ".Projects"
    )
    ben = maildir(tmp_path / "home" / "ben" / "Maildir", ".Junk")
    for folder, part, messages in (
        (anna / ".Junk", "new", MAIL[0:2]),
        (anna / ".Junk", "cur", MAIL[2:3]),
        (anna / ".Archive", "cur", MAIL[3:5]),
        (anna / ".Trash", "cur", MAIL[5:7]),
        (anna / ".Projects", "cur", MAIL[7:9]),
        (anna, "new", MAIL[9:10]),
        (ben / ".Junk", "cur", MAIL[3:4]),
    ):
        for raw in messages:
            deliver(folder, raw, part)
    for raw in (*MAIL[10:12], MAIL[0]):
        deliver(anna, raw, "cur", "RS")
    deliver(anna, MAIL[12], "cur", "F")
    return tmp_path / "home"


@pytest.fixture
def teach(run, state, monkeypatch):
    monkeypatch.setattr("spamguard.folders.scan.QUIET_SECONDS", 0.0)
    return lambda *arguments: run(state, "teach-folders", *arguments)


def test_a_dry_run_needs_no_filter_and_makes_none(run, home, tmp_path):
    assert (
        run(tmp_path / "none", "teach-folders", "--dry-run", f"{home}/b*/Maildir").out
        == "ben: would teach 1 in Junk as spam\n"
    )
    assert not (tmp_path / "none").exists()


def test_a_dry_run_counts_new_messages_only(teach, run, status_of, state, home):
    """It used to count known and retracted messages too."""
    junk, inbox = home / "anna" / "Maildir" / ".Junk", home / "anna" / "Maildir"
    run(state, "learn", "--user", "anna", "--as", "spam", junk)
    run(state, "forget", "--user", "anna", junk / "cur")
    run(state, "learn", "--user", "anna", "--as", "spam", inbox / ".Archive")
    deliver(junk, MAIL[20])
    deliver(junk, MAIL[20])
    expected = (
        "anna: would teach 2 in Archive as ham, 2 in INBOX as ham, 1 in Junk as spam "
        "(3 already known, 1 taken back before, and left so)\n"
    )
    events = status_of(state)["events"]
    assert teach("--dry-run", f"{home}/a*/Maildir").out == expected
    assert status_of(state)["events"] == events
    assert teach(f"{home}/a*/Maildir").out == expected.replace(
        "would teach 2 in Archive as ham, 2 in INBOX as ham, 1 in Junk as spam",
        "taught 4 messages as ham, 1 message as spam",
    )
    assert teach("--dry-run", f"{home}/a*/Maildir").out.startswith(
        "anna: would teach nothing (8 already known, 1 taken back"
    )


@pytest.mark.slow
def test_the_filter_of_the_configuration_is_taught(run, status_of, home, tmp_path, monkeypatch):
    monkeypatch.setenv("SPAMGUARD_STATE", str(tmp_path / "mine"))
    file = tmp_path / "x.yaml"
    file.write_text(
        f"state: {tmp_path}/daemons\nscanners: [{{listen: "
        f"'spamd://127.0.0.1:783'}}]\nwatch: ['{home}/*/Maildir']\n"
    )
    assert run(None, "teach-folders", "--config", file).status == 0
    assert not (tmp_path / "mine").exists()
    assert [user["user"] for user in status_of(tmp_path / "daemons")["users"]] == ["anna", "ben"]
    assert run(tmp_path / "third", "teach-folders", "--config", file).status == 0
    assert run(tmp_path / "third", "status").status == 0


def test_slips(teach, state, home, tmp_path):
    assert teach().failed("MAILDIR", "--config")
    assert teach(tmp_path / "nowhere").failed("nowhere", "no Maildir")
    assert teach(f"{home}/anna/Maildir", tmp_path / "nowhere").failed("nowhere", "no Maildir")
    (tmp_path / "no-maildir" / "mail").mkdir(parents=True)
    assert teach(tmp_path / "no-maildir").failed("no-maildir", "no Maildir")
    assert teach("--dry-run", f"{tmp_path}/no-m*").failed("no-m", "no Maildir")
    assert teach(home / "anna").failed("anna", "no Maildir")  # but what one lies in
    file = tmp_path / "x.yaml"
    file.write_text(
        "listeners: [{listen: 'smtp://127.0.0.1:1', position: standalone, next_hop: 'lmtp:/x'}]\n"
    )
    assert teach("--config", file).failed("x.yaml", "watch")


def test_votes_of_an_earlier_extractor_are_read_again_and_keep_their_class(
    run, status_of, teach, state, home
):
    with Filter.open(state) as spam_filter:
        ready = [
            ExampleReader(spam_filter.key).read_example(raw) for raw in (MAIL[0], MAIL[1], MAIL[20])
        ]
        spam_filter.learn_examples(
            ready, "ham", user="anna", origin="web"
        )  # two of them lie in Junk
        spam_filter.learn_examples(ready[:1], "spam", user="ben", origin="web")
    with closing(sqlite3.connect(state / "ledger.sqlite")) as db, db:
        db.execute("UPDATE events SET extractor = extractor - 1, packed = x'00'")
        db.execute("DELETE FROM meta WHERE key LIKE 'tables.%'")
    assert (
        "\n2 lessons from before an upgrade that reads mail otherwise: no use until "
        "the mail is read again"
    ) in run(state, "status").out
    dry = (
        "anna: would teach 2 in Archive as ham, 2 in INBOX as ham, 1 in Junk as spam "
        "(2 already known)\n"
    )
    assert teach("--dry-run", f"{home}/a*/Maildir").out == dry
    done = teach(f"{home}/a*/Maildir")
    assert done.out == "anna: taught 6 messages as ham, 1 message as spam\n"
    with Filter.open(state) as spam_filter:
        votes = [
            spam_filter.ledger.get_vote(example.digest, user)
            for user, example in (("anna", ready[0]), ("anna", ready[2]), ("ben", ready[0]))
        ]
        assert [(vote.label, vote.origin, vote.extractor) for vote in votes] == [
            ("ham", "web", EXTRACTOR),
            ("ham", "web", EXTRACTOR - 1),
            ("spam", "web", EXTRACTOR - 1),
        ]
    assert status_of(state)["outdated"] == 1
