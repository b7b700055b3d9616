"""`learn` and `forget`: votes, messages to the user, and refusals that teach nothing."""

from __future__ import annotations

import mailbox

import pytest

from spamguard.cli import common
from spamguard.engine.filter import Filter
from tests.unit.cli.conftest import lessons, new_mail


def test_a_corpus_brings_its_classes_along(run, state, corpus, counts):
    done = run(state, "learn", corpus)
    assert done.status == 0
    assert (
        done.out == f"taught {counts['ham']} messages as ham, {counts['spam']} messages as spam\n"
    )
    assert done.err == ""
    assert lessons(state) == counts


def test_a_new_filter_gives_a_note(run, tmp_path):
    """Most often root means the daemon's filter: lessons to a new one would have no effect."""
    done = run(tmp_path / "new", "learn", "--as", "spam", "-", stdin=new_mail("spam")[0])
    note = (
        f"spamguard: note: {tmp_path}/new is a new filter; another one, such as the "
        "daemon's, is named by --state or $SPAMGUARD_STATE\n"
    )
    assert done.err == note
    assert run(tmp_path / "new", "learn", "--as", "spam", "-", stdin=new_mail("spam")[0]).err == ""


def test_teaching_twice_changes_nothing(run, taught, corpus, counts):
    done = run(taught, "learn", "--json", corpus)
    assert done.json == {
        "taught": {"ham": 0, "spam": 0},
        "known": counts,
        "refused": 0,
        "deleted": 0,
        "settled": False,
        "dry_run": False,
    }
    assert lessons(taught) == counts


def test_the_same_mail_from_an_mbox_and_a_maildir(run, taught, corpus, counts):
    assert run(taught, "learn", "--json", "--as", "ham", corpus / "ham.mbox").json["known"] == {
        "ham": counts["ham"]
    }
    done = run(taught, "learn", "--as", "spam", corpus / "spam")
    assert done.out == f"taught 0 messages as spam ({counts['spam']} already known)\n"


def test_standard_input(run, state):
    done = run(state, "learn", "--as", "spam", "-", stdin=new_mail("spam")[0])
    assert (done.status, done.out) == (0, "taught 1 message as spam\n")


def test_several_paths_and_a_tree(run, state, tmp_path):
    for number, raw in enumerate(new_mail("ham", 6)):
        path = tmp_path / "tree" / str(number % 2) / f"{number}.eml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    assert (
        run(state, "learn", "--as", "ham", tmp_path / "tree" / "0", tmp_path / "tree" / "1").out
        == "taught 6 messages as ham\n"
    )


def test_teaching_as_another_class_moves_a_message(run, taught, corpus, counts):
    run(taught, "learn", "--as", "ham", corpus / "spam")
    assert lessons(taught) == {"ham": sum(counts.values()), "spam": 0}


def test_users_outvote_one_another(run, taught, corpus, counts):
    for user in ("anna", "ben"):
        assert run(taught, "learn", "--as", "ham", "--user", user, corpus / "spam").status == 0
    assert lessons(taught)["spam"] == 0
    assert (
        run(taught, "forget", "--user", "ben", "--json", corpus / "spam").json["forgotten"]
        == counts["spam"]
    )
    assert lessons(taught) == {"ham": counts["ham"], "spam": 0}  # one against one teaches nothing


def test_a_new_class_is_wanted_unless_declared_unwanted(run, status_of, state, corpus):
    run(state, "learn", "--as", "newsletter", corpus / "ham.mbox")
    run(state, "learn", "--as", "fraud", "--unwanted", corpus / "spam")
    classes = status_of(state)["classes"]
    assert (classes["newsletter"]["unwanted"], classes["fraud"]["unwanted"]) == (False, True)
    assert run(state, "judge", corpus / "spam").status == 1


def test_a_slip_of_the_pen(run, taught, corpus, counts):
    assert run(taught, "learn", "--as", "spma", corpus / "spam").failed(
        "did you mean 'spam'", "--new"
    )
    assert lessons(taught) == counts
    assert run(taught, "learn", "--as", "spma", "--new", corpus / "spam").status == 0
    assert lessons(taught)["spma"] == counts["spam"]


@pytest.mark.parametrize("label", ["Spam", "unsure", "", "a b", "x" * 40, "é"])
def test_impossible_class_names(run, taught, corpus, label):
    assert run(taught, "learn", "--as", label, corpus / "spam").failed("cannot be a class")


def test_ham_stays_wanted(run, taught, corpus):
    assert run(taught, "learn", "--as", "ham", "--unwanted", corpus / "spam").failed(
        "always wanted"
    )


def test_a_message_of_no_class(run, state, corpus):
    assert run(state, "learn", corpus / "ham.mbox").failed("ham.mbox", "--as CLASS")
    assert run(state, "learn", "--unwanted", corpus).failed("--unwanted", "--as")
    assert lessons(state) == {"ham": 0, "spam": 0}


def test_an_index_that_contradicts_the_option(run, state, corpus):
    assert run(state, "learn", "--as", "spam", corpus).failed("index calls it ham")
    assert lessons(state)["spam"] == 0


def test_a_missing_path_is_an_error_before_anything_is_taught(run, tmp_path, corpus):
    done = run(
        tmp_path / "new",
        "learn",
        "--as",
        "ham",
        corpus / "ham.mbox",
        tmp_path / "nothing\n\x1b[31m",
    )
    assert done.failed(r"nothing\n\x1b[31m: no such file or directory")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", [["learn", "--as", "ham"], ["forget"]])
def test_an_empty_mailbox_is_no_mistake(run, taught, tmp_path, command):
    (tmp_path / "empty.mbox").touch()
    mailbox.Maildir(tmp_path / "maildir").close()
    done = run(taught, *command, tmp_path / "empty.mbox", tmp_path / "maildir")
    assert (done.status, done.err) == (0, "")
    assert done.out in ("taught nothing: no messages there\n", "forgot 0 messages\n")


def test_forgetting_is_as_if_it_had_never_been(run, taught, corpus, counts):
    done = run(taught, "forget", corpus / "spam", "-", stdin=new_mail("ham")[0])
    assert (done.status, done.out) == (0, f"forgot {counts['spam']} messages (1 not known)\n")
    assert lessons(taught) == {"ham": counts["ham"], "spam": 0}
    assert run(taught, "forget", "--json", corpus / "spam").json == {
        "forgotten": 0,
        "unknown": counts["spam"],
        "by_others": 0,
        "settled": False,
    }


def test_forget_reports_votes_of_others(run, taught, new_spam):
    """For a message taught by a move the administrator read only "1 not known"."""
    run(taught, "learn", "--as", "spam", "--user", "anna", new_spam)
    done = run(taught, "forget", new_spam)
    assert (done.status, "(1 not known); 1 of these stay taught by others" in done.out) == (0, True)
    assert run(taught, "forget", "--user", "anna", "--json", new_spam).json["forgotten"] == 1
    assert run(taught, "forget", new_spam).out == "forgot 0 messages (1 not known)\n"


def test_forgetting_needs_a_filter(run, tmp_path, corpus):
    assert run(tmp_path / "none", "forget", corpus / "spam").failed("no filter there", "--state")
    assert not (tmp_path / "none").exists()


def test_a_state_directory_that_is_a_file(run, corpus, tmp_path):
    (tmp_path / "file").touch()
    done = run(tmp_path / "file", "learn", "--as", "ham", corpus)
    assert (done.status, done.err) == (
        2,
        f"spamguard: {tmp_path}/file: is no directory: choose a state directory you may write to\n",
    )


def test_bulk_teaching_settles(run, state, corpus):
    assert run(state, "learn", "--json", corpus).json["settled"] is True


def test_more_than_one_batch_is_taught_whole(run, state, corpus, counts, monkeypatch):
    sizes = []
    original = Filter.cast_votes

    def watch(self, votes, **settings):
        sizes.append(len(votes))
        return original(self, votes, **settings)

    monkeypatch.setattr(Filter, "cast_votes", watch)
    run(state, "learn", "--as", "ham", corpus / "data")
    assert sizes == [64, 56]


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


# ---- what is no mail, looking only, and failures

TEXT = b"Dear diary,\nthis is no mail.\n\nFrom: nobody\n"


def test_what_is_no_mail_is_not_taught(run, taught, corpus, counts, tmp_path):
    (tmp_path / "diary.txt").write_bytes(TEXT)
    done = run(taught, "learn", "--as", "spam", tmp_path / "diary.txt")
    assert done.failed(f"{tmp_path}/diary.txt: no header field", "no mail", "--force")
    assert lessons(taught) == counts
    done = run(taught, "learn", "--as", "spam", "--force", tmp_path / "diary.txt")
    assert (done.out, done.err) == ("taught 1 message as spam\n", "")


def test_what_is_no_mail_is_counted_among_mail(run, taught, tmp_path):
    for number, raw in enumerate([TEXT, new_mail("ham")[0], b"\x7fELF\x02\x01\n\0", b"\n", b"{}"]):
        (tmp_path / f"{number}.eml").write_bytes(raw)
    done = run(taught, "learn", "--json", "--as", "ham", *sorted(tmp_path.glob("*.eml")))
    assert (done.status, done.json["taught"], done.json["refused"]) == (0, {"ham": 1}, 4)
    assert done.err == (
        f"spamguard: note: 4 of the messages are no mail, such as {tmp_path}/0.eml: no header "
        "field at all; --force teaches it all the same\n"
    )


def test_mail_with_a_damaged_header_is_taught(run, taught, tmp_path):
    (tmp_path / "one").write_bytes(b"To: you")
    (tmp_path / "box").write_bytes(b"From a Thu Jan  4 10:11:12 2024\nX-Odd: 1\n\nx")
    done = run(taught, "learn", "--json", "--as", "ham", tmp_path / "one", tmp_path / "box")
    assert (done.json["taught"], done.json["refused"]) == ({"ham": 2}, 0)


def test_what_is_marked_as_deleted_is_not_taught_and_can_be_forgotten(run, state, new_spam):
    """What was moved to Junk stays in the Inbox file of Thunderbird until that is compacted."""
    raw = new_spam.read_bytes()
    inbox = new_spam.with_name("Inbox")
    marked = b"From - Sat Nov 28 10:00:00 2026\nX-Mozilla-Status: %s\n" + raw + b"\n"
    other = raw.replace(b"Message-ID: <", b"Message-ID: <other-")
    kept = b"From - Sat Nov 28 10:00:00 2026\nX-Mozilla-Status: 0001\n" + other
    inbox.write_bytes(marked.replace(b"%s", b"0009") + kept)
    for words, verb in ((["--dry-run"], "would teach"), ([], "taught")):
        done = run(state, "learn", "--as", "ham", *words, str(inbox))
        assert done.out.startswith(f"{verb} 1 message as ham")
        assert "marked as deleted" in done.out
    done = run(state, "learn", "--as", "ham", "--json", str(inbox))
    assert (done.json["deleted"], done.json["known"]) == (1, {"ham": 1})
    run(state, "learn", "--as", "spam", str(new_spam))
    inbox.write_bytes(marked.replace(b"%s", b"0009"))
    done = run(state, "learn", "--as", "ham", str(inbox))
    assert done.status == 0
    assert "taught nothing; marked as deleted" in done.out
    assert run(state, "forget", "--json", str(inbox)).json["forgotten"] == 1


def test_a_dry_run_tells_what_would_be_taught(run, taught, corpus, counts, tmp_path):
    (tmp_path / "new.eml").write_bytes(new_mail("spam")[0])
    words = ("learn", "--as", "spam", corpus / "spam", tmp_path / "new.eml")
    would = run(taught, *words[:1], "--dry-run", *words[1:])
    assert would.out == f"would teach {counts['spam'] + 1} messages as spam\n"
    assert lessons(taught) == counts
    values = run(taught, *words[:1], "--dry-run", "--json", *words[1:]).json
    assert (values["taught"], values["dry_run"]) == ({"spam": counts["spam"] + 1}, True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [(["--as", "spma"], "did you mean 'spam'"), (["--as", "ham", "--unwanted"], "always wanted")],
)
def test_a_dry_run_fails_as_teaching_would(run, tmp_path, corpus, words, reason):
    done = run(tmp_path / "new", "learn", "--dry-run", *words, corpus / "spam")
    assert done.failed(reason)
    assert not (tmp_path / "new").exists()


def test_a_dry_run_makes_no_filter(run, tmp_path, corpus, counts):
    done = run(tmp_path / "new", "learn", "--dry-run", corpus)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"would teach {counts['ham']} messages as ham, ")
    assert not (tmp_path / "new").exists()


def test_what_was_taught_before_a_failure_stays(run, tmp_path, corpus):
    lines = [f"ham {corpus}/data/{path.name}" for path in sorted((corpus / "data").iterdir())]
    (tmp_path / "index").write_text("\n".join([*lines * 6, "ham /nowhere\n"]))
    done = run(tmp_path / "new", "learn", tmp_path / "index")
    assert done.status == 2
    assert lessons(tmp_path / "new")["ham"] > 0


def test_a_new_filter_that_another_process_opened_stays(run, tmp_path, corpus, monkeypatch):
    state = tmp_path / "new"
    original = Filter.check_class
    others = []

    def open_another(self, *words, **settings):
        others.append(Filter.open(state))
        return original(self, *words, **settings)

    monkeypatch.setattr(Filter, "check_class", open_another)
    assert run(state, "learn", "--as", "spma", corpus / "spam").status == 2
    monkeypatch.undo()
    for other in others:
        assert other.learn(new_mail("spam")[0], "spam")
        other.close()
    assert lessons(state)["spam"] == 1


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
