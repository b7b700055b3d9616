"""`learn` and `forget`: votes, messages to the user, and refusals that teach nothing."""

from __future__ import annotations

import pytest

from spamguard.cli import common
from tests.unit.cli.conftest import lessons, new_mail


def test_a_new_class_is_wanted_unless_declared_unwanted(run, status_of, state, corpus):
    run(state, "learn", "--as", "newsletter", corpus / "ham.mbox")
    run(state, "learn", "--as", "fraud", "--unwanted", corpus / "spam")
    classes = status_of(state)["classes"]
    assert (classes["newsletter"]["unwanted"], classes["fraud"]["unwanted"]) == (False, True)
    assert run(state, "judge", corpus / "spam").status == 1


def test_a_message_of_no_class(run, state, corpus):
    assert run(state, "learn", corpus / "ham.mbox").failed("ham.mbox", "--as CLASS")
    assert run(state, "learn", "--unwanted", corpus).failed("--unwanted", "--as")
    assert lessons(state) == {"ham": 0, "spam": 0}


def test_an_index_that_contradicts_the_option(run, state, corpus):
    assert run(state, "learn", "--as", "spam", corpus).failed("index calls it ham")
    assert lessons(state)["spam"] == 0


def test_forget_reports_votes_of_others(run, taught, new_spam):
    """For a message taught by a move the administrator read only "1 not known"."""
    run(taught, "learn", "--as", "spam", "--user", "anna", new_spam)
    done = run(taught, "forget", new_spam)
    assert (done.status, "(1 not known); 1 of these stay taught by others" in done.out) == (0, True)
    assert run(taught, "forget", "--user", "anna", new_spam).out == "forgot 1 message\n"
    assert run(taught, "forget", new_spam).out == "forgot 0 messages (1 not known)\n"


def test_the_last_line_about_a_message_counts(run, status_of, state, tmp_path):
    (tmp_path / "one").write_bytes(new_mail("spam")[0])
    for lines, label in (
        (("ham", "spam", "ham"), "ham"),
        (("ham", "spam"), "spam"),
        (("spam", "ham"), "ham"),
    ):
        (tmp_path / "index").write_text("".join(f"{line} one\n" for line in lines))
        assert run(state, "learn", tmp_path / "index").status == 0
        classes = status_of(state)["classes"]
        assert {name: row["messages"] for name, row in classes.items()} == {
            "ham": int(label == "ham"),
            "spam": int(label == "spam"),
        }


# ---- what is no mail, and failures

TEXT = b"Dear diary,\nthis is no mail.\n\nFrom: nobody\n"


def test_what_is_no_mail_is_counted_among_mail(run, taught, tmp_path):
    for number, raw in enumerate([TEXT, new_mail("ham")[0], b"\x7fELF\x02\x01\n\0", b"\n", b"{}"]):
        (tmp_path / f"{number}.eml").write_bytes(raw)
    done = run(taught, "learn", "--as", "ham", *sorted(tmp_path.glob("*.eml")))
    assert (done.status, done.out) == (0, "taught 1 message as ham\n")
    assert done.err == (
        f"spamguard: note: 4 of the messages are no mail, such as {tmp_path}/0.eml: no header "
        "field at all\n"
    )


def test_what_is_marked_as_deleted_is_not_taught_and_can_be_forgotten(run, state, new_spam):
    """What was moved to Junk stays in the Inbox file of Thunderbird until that is compacted."""
    raw = new_spam.read_bytes()
    inbox = new_spam.with_name("Inbox")
    marked = b"From - Sat Nov 28 10:00:00 2026\nX-Mozilla-Status: %s\n" + raw + b"\n"
    other = raw.replace(b"Message-ID: <", b"Message-ID: <other-")
    kept = b"From - Sat Nov 28 10:00:00 2026\nX-Mozilla-Status: 0001\n" + other
    inbox.write_bytes(marked.replace(b"%s", b"0009") + kept)
    deleted = "; marked as deleted, and so not taught: 1\n"
    for told in ("1 message as ham", "nothing (1 already known)"):
        assert run(state, "learn", "--as", "ham", str(inbox)).out == f"taught {told}{deleted}"
    run(state, "learn", "--as", "spam", str(new_spam))
    inbox.write_bytes(marked.replace(b"%s", b"0009"))
    done = run(state, "learn", "--as", "ham", str(inbox))
    assert done.status == 0
    assert "taught nothing; marked as deleted" in done.out
    assert run(state, "forget", str(inbox)).out == "forgot 1 message\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [(["--as", "spma"], "did you mean 'spam'"), (["--as", "ham", "--unwanted"], "always wanted")],
)
def test_slips_teach_nothing(run, state, corpus, words, reason):
    assert run(state, "learn", *words, corpus / "spam").failed(reason)
    assert lessons(state) == {"ham": 0, "spam": 0}


def test_what_was_taught_before_a_failure_stays(run, tmp_path, corpus):
    lines = [f"ham {corpus}/data/{path.name}" for path in sorted((corpus / "data").iterdir())]
    (tmp_path / "index").write_text("\n".join([*lines * 6, "ham /nowhere\n"]))
    done = run(tmp_path / "new", "learn", tmp_path / "index")
    assert done.status == 2
    assert lessons(tmp_path / "new")["ham"] > 0


def test_another_filter_of_the_service_is_told(run, taught, tmp_path, monkeypatch):
    (tmp_path / "one").write_bytes(new_mail("spam")[0])
    monkeypatch.setattr(common, "SERVICE_STATE", taught)
    monkeypatch.delenv("SPAMGUARD_STATE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    note = f"spamguard: note: {tmp_path}/spamguard is not the filter of the service"
    for words in (["learn", "--as", "spam", tmp_path / "one"], ["status"]):
        done = run(None, *words)
        assert (done.status, done.err.startswith(note)) == (0, True)
        assert f"--state {taught}" in done.err
    assert note not in run(tmp_path / "spamguard", "status").err  # chosen
    assert run(taught, "status").err == ""
    monkeypatch.setattr(common, "SERVICE_STATE", tmp_path / "none")
    assert run(None, "status").err == ""
