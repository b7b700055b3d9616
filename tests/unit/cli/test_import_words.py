"""`import` of other filters' word lists; bogofilter itself makes the one for the slow test."""

import re
import shutil
import sqlite3
import subprocess
from contextlib import closing

import pytest

CSV = b"5,7\r\nmeeting,5,0\r\nviagra,0,7\r\nskip:x 10,1,1\r\n"
SPAM = b"Subject: x\n\nviagra viagra now\n"


@pytest.fixture
def listed(tmp_path):
    (tmp_path / "hammie.csv").write_bytes(CSV)
    return tmp_path / "hammie.csv"


def test_a_list_comes_and_goes(run, status_of, taught, listed):
    before = status_of(taught)
    assert before["imports"] == []
    assert run(taught, "import", "--dry-run", listed).out.startswith(
        "would import 2 words of 3 from spambayes ("
    )
    assert status_of(taught) == before
    assert run(taught, "import", "--name", "mine", listed).out.endswith(
        "learnt there from 5 messages of good mail and 7 of spam, as 'mine'\n"
    )
    after = status_of(taught)
    assert [(words["name"], words["words"]) for words in after["imports"]] == [("mine", 2)]
    assert after["classes"] == before["classes"]
    assert "word lists imported\nmine  2 words from spambayes (" in run(taught, "status").out
    assert run(taught, "import", "--name", "mine", "--json", listed).json["new"] is False
    assert run(taught, "undo", "--import", "mine", "--dry-run").out.startswith(
        "would take back 2 words"
    )
    assert run(taught, "undo", "--import", "mine", "--json").json["words"] == 2
    assert run(taught, "undo", "--import", "mine").failed("no word list is called 'mine'")
    assert status_of(taught)["imports"] == []


def test_a_note_names_the_missing_lessons(run, taught, tmp_path, listed):
    """After a list alone every message is unsure; once only `status` said why."""
    note = "note: everything is unsure until 3 good messages and 3 unwanted ones have been taught\n"
    assert run(tmp_path / "new", "import", listed).err.endswith(note)
    note = (
        r"spamguard: note: only plain spam is called spam, the rest is unsure: \d+ of "
        r"500 good messages have been taught\n"
    )
    assert re.fullmatch(note, run(taught, "import", listed).err)


@pytest.mark.parametrize(
    "content",
    [b"5,0\r\nmeeting,5,0\r\n", b"5,7\r\nmeeting,five,0\r\n"],
    ids=["one class", "no numbers"],
)
def test_a_bad_list_leaves_no_filter_behind(run, tmp_path, content):
    (tmp_path / "bad.csv").write_bytes(content)
    assert run(tmp_path / "new", "import", "--from", "spambayes", tmp_path / "bad.csv").status == 2
    assert not (tmp_path / "new").exists()


def test_a_list_from_a_pipe_into_a_new_filter(run, tmp_path):
    assert (
        "imported 2 words of 3 from spambayes (-)"
        in run(tmp_path / "new", "import", "-", stdin=CSV).out
    )


def test_a_dry_run_makes_no_filter(run, tmp_path, listed):
    assert run(tmp_path / "new", "import", "--dry-run", "--json", listed).json == {
        "name": "spambayes",
        "source": f"spambayes ({listed})",
        "ham": 5,
        "spam": 7,
        "words": 3,
        "used": 2,
        "new": None,
        "dry_run": True,
    }
    assert not (tmp_path / "new").exists()


def test_a_dry_run_of_an_export_takes_nothing_in(run, taught, tmp_path):
    run(taught, "export", "--with-key", tmp_path / "all")
    assert (
        run(tmp_path / "new", "import", "--dry-run", tmp_path / "all").out
        == "would import 120 receipts\n"
    )
    assert not (tmp_path / "new").exists()


def test_exported_receipts_take_their_word_lists_along(run, status_of, taught, listed, tmp_path):
    new = tmp_path / "new"
    run(taught, "import", listed)
    run(taught, "export", "--with-key", tmp_path / "all")
    assert run(new, "import", tmp_path / "all").status == 0
    assert [words["name"] for words in status_of(new)["imports"]] == ["spambayes"]
    assert set(status_of(new)["classes"]) == {"ham", "spam"}


def test_undo_takes_a_word_list_back_as_a_whole(run, taught):
    assert run(taught, "undo", "--import", "x", "--since", "2d").failed("taken back whole")


def test_names(run, taught, listed):
    assert run(taught, "import", "--name", "a b", listed).failed("cannot be the name")


def test_the_format_can_be_named(run, taught, listed):
    assert run(taught, "import", "--from", "bogofilter", listed).failed(
        "does not tell of both good mail and spam"
    )


def test_a_store_of_hashes(run, taught, tmp_path):
    with closing(sqlite3.connect(tmp_path / "bayes.sqlite")) as db:
        db.execute("CREATE TABLE tokens (token INTEGER)")
    done = run(taught, "import", tmp_path / "bayes.sqlite")
    assert done.failed("rspamd holds hashes, no words: teach from the mail itself")


needs_bogofilter = pytest.mark.skipif(
    shutil.which("bogoutil") is None, reason="bogofilter is not installed"
)


@needs_bogofilter
def test_from_bogofilter_itself(run, state, corpus, tmp_path):
    lines = [line.split() for line in (corpus / "index").read_text().splitlines()]
    for label, flag in (("spam", "-s"), ("ham", "-n")):
        names = "".join(f"{corpus / path}\n" for kind, path in lines[:80] if kind == label)
        subprocess.run(
            ["bogofilter", "-d", tmp_path, flag, "-b"], input=names, text=True, check=True
        )
    assert run(state, "import", tmp_path / "wordlist.db").failed(
        "bogoutil -d", "| spamguard import -"
    )
    dump = subprocess.run(
        ["bogoutil", "-d", tmp_path / "wordlist.db"], capture_output=True, check=True
    ).stdout
    answer = run(state, "import", "-", "--json", stdin=dump).json
    assert answer["name"] == "bogofilter"
    assert answer["ham"] + answer["spam"] == 80
    assert answer["used"] > answer["words"] / 3 > 100
    judged = [
        run(state, "judge", "--json", corpus / path).lines[0]["probability"]
        for _, path in lines[80:]
    ]
    spam = [score for score, (kind, _) in zip(judged, lines[80:], strict=True) if kind == "spam"]
    ham = [score for score, (kind, _) in zip(judged, lines[80:], strict=True) if kind == "ham"]
    assert sum(good < bad for good in ham for bad in spam) > 0.8 * len(ham) * len(spam)
    dumped = tmp_path / "list.txt"
    dumped.write_bytes(dump)
    assert run(state, "import", dumped, "--json").json["new"] is False
