"""`evaluate`: figures on labelled mail."""

from __future__ import annotations

import os
from collections import Counter

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def evaluate(run, state):
    return lambda *words, **settings: run(state, "evaluate", *words, **settings)


def test_unwritable_files_are_reported_before_the_work(
    evaluate, state, corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "spamguard.engine.evaluate.run_trial", lambda *_, **__: pytest.fail("it has begun")
    )
    (tmp_path / "file").write_text("")
    for option in ("--scores", "--plots"):
        assert evaluate(corpus / "index", option, tmp_path / "file" / "below").failed(
            "cannot be written"
        )
    assert evaluate(corpus / "index", "--scores", tmp_path).failed(
        "cannot be written (Is a directory)"
    )
    (tmp_path / "scores.csv").write_text("of before")
    with pytest.raises(pytest.fail.Exception):
        evaluate(
            corpus / "index", "--scores", tmp_path / "scores.csv", "--plots", tmp_path / "plots"
        )
    assert (tmp_path / "scores.csv").read_text() == "of before"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "file",
        "plots",
        "scores.csv",
        "state",
    ]


@pytest.mark.parametrize("label", ["News", "unsure"])
def test_an_impossible_class_is_reported_with_its_message(evaluate, corpus, tmp_path, label):
    lines = (corpus / "index").read_text().splitlines()
    first, second = (corpus / line.split()[1] for line in lines[:2])
    (tmp_path / "index").write_text(f"ham {first}\n{label} {second}\n")
    assert evaluate(tmp_path / "index").failed(f"{second}: its class, '{label}'")


def test_mail_that_can_be_read_only_once_is_refused(evaluate, corpus, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for once in ("-", tmp_path / "pipe"):
        done = evaluate(
            "--ham", corpus / "ham.mbox", "--spam", once, stdin=(corpus / "ham.mbox").read_bytes()
        )
        assert done.failed(str(once), "reads its mail twice")


@pytest.fixture
def three(corpus, tmp_path):
    """An index of a part of the corpus, in which half of the spam is fraud."""
    lines = [line.split() for line in (corpus / "index").read_text().splitlines()[:60]]
    labels = (
        "fraud" if label == "spam" and number % 2 else label
        for number, (label, _) in enumerate(lines)
    )
    (tmp_path / "index").write_text(
        "".join(
            f"{label} {corpus / path}\n" for label, (_, path) in zip(labels, lines, strict=True)
        )
    )
    return tmp_path / "index"


def counted(done):
    return next((run["ham"], run["spam"]) for run in done.json["runs"].values())


def test_the_existing_filter_knows_which_classes_are_unwanted(
    run, evaluate, state, corpus, three, tmp_path
):
    held = Counter(line.split()[0] for line in three.read_text().splitlines())
    assert counted(evaluate(three, "--json")) == (held["ham"] + held["fraud"], held["spam"])
    assert run(state, "learn", "--as", "fraud", "--unwanted", corpus / "spam").status == 0
    done = evaluate(three, "--json")
    assert counted(done) == (held["ham"], held["spam"] + held["fraud"])
