"""`teach-folders`: mail that people filed before the daemon watched."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import pytest

from corpora import synthetic
from spamguard.config.values import KeptLessons
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import ExampleReader
from spamguard.learning.undo import age_votes
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


def test_a_dry_run_counts_and_teaches_nothing(teach, state, home):
    done = teach("--dry-run", f"{home}/*/Maildir")
    assert done.out == (
        "anna: would teach 2 in Archive as ham, 2 in INBOX as ham, 3 in Junk as "
        "spam\nben: would teach 1 in Junk as spam\n"
    )
    with Filter.open(state) as spam_filter:
        assert spam_filter.ledger.last_seq() == 0


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


def test_it_teaches_in_the_name_of_the_owner_and_once(teach, state, home):
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    done = teach(f"{home}/*/Maildir")
    assert (
        done.out
        == "anna: taught 4 messages as ham, 3 messages as spam\nben: taught 1 message as spam\n"
    )
    assert (
        teach(f"{home}/*/Maildir").out
        == "anna: taught nothing (7 already known)\nben: taught nothing (1 already known)\n"
    )
    again = teach("--json", f"{home}/*/Maildir").json
    assert [(row["user"], sum(row["taught"].values()), row["known"]) for row in again] == [
        ("anna", 0, 7),
        ("ben", 0, 1),
    ]
    with Filter.open(state) as spam_filter:
        votes = {(vote.user, vote.label) for vote in spam_filter.ledger.all_votes()}
        digest = ExampleReader(spam_filter.key).digest(MAIL[3])
        assert (
            spam_filter.ledger.get_vote(digest, "anna").label,
            spam_filter.ledger.get_vote(digest, "ben").label,
        ) == ("ham", "spam")
    assert votes == {("anna", "spam"), ("anna", "ham"), ("ben", "spam")}
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before


def test_retracted_messages_are_not_taught_again(teach, run, state, home):
    teach(f"{home}/*/Maildir")
    run(state, "undo", "--user", "anna", "--since", "1h")
    anna, ben = teach("--json", f"{home}/*/Maildir").json
    assert (set(anna["taught"].values()), anna["known"], anna["taken_back"]) == ({0}, 0, 7)
    assert (set(ben["taught"].values()), ben["known"], ben["taken_back"]) == ({0}, 1, 0)
    junk = home / "anna" / "Maildir" / ".Junk"
    run(state, "learn", "--user", "anna", "--as", "spam", junk)
    assert "(3 already known, 4 taken back before, and left so)" in teach(f"{home}/*/Maildir").out


def test_messages_that_have_aged_are_taught_again(teach, state, home):
    """Nobody has taken these back."""
    teach(f"{home}/a*/Maildir")
    with Filter.open(state) as spam_filter:
        assert age_votes(spam_filter, KeptLessons(days=1), time.time() + 1) == 0
        for vote in list(spam_filter.ledger.all_votes()):
            old = vote._replace(node="elsewhere", clock=vote.clock + 100, time=5)
            spam_filter.ledger.merge([old])
        assert age_votes(spam_filter, KeptLessons(days=1), time.time() + 1) == 7
    dry, taught = (
        teach(*more, "--json", f"{home}/a*/Maildir").json for more in (["--dry-run"], [])
    )
    assert (dry[0]["taken_back"], taught[0]["taken_back"]) == (0, 0)
    assert sum(taught[0]["taught"].values()) == 7


def test_a_message_that_has_just_arrived_is_taught_too(run, state, tmp_path):
    (maildir(tmp_path / "Maildir", ".Junk") / ".Junk" / "cur" / "1.x:2,S").write_bytes(MAIL[0])
    assert run(state, "teach-folders", tmp_path / "Maildir").out.endswith(
        ": taught 1 message as spam\n"
    )


def test_roles_of_a_configuration(teach, state, home, tmp_path):
    file = tmp_path / "spamguard.yaml"
    file.write_text(
        "listeners: [{listen: 'smtp://127.0.0.1:1', position: standalone, next_hop: 'lmtp:/x'}]\n"
        f"watch: [{{maildir: '{home}/anna/Maildir', user: a@example.org, folders: "
        f"{{Projects: work, Junk: ignored, INBOX: neutral}}}}]\n"
    )
    done = teach("--config", file)
    assert done.out == "a@example.org: taught 2 messages as ham, 2 messages as work\n"


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
