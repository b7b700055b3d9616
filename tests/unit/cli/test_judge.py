"""`judge`: lines, JSON and exit statuses that scripts can rely on."""

from __future__ import annotations

import re
from functools import partial

import pytest

from spamguard.engine.filter import Filter


def write(path, raw):
    path.write_bytes(raw)
    return path


@pytest.fixture
def ham(tmp_path, clear):
    return write(tmp_path / "ham.eml", clear["ham"])


@pytest.fixture
def spam(tmp_path, clear):
    return write(tmp_path / "spam.eml", clear["spam"])


def test_the_exit_status_is_that_of_the_worst_verdict(run, taught, ham, spam):
    assert run(taught, "judge", ham).status == 0
    assert run(taught, "judge", spam).status == 1
    assert run(taught, "judge", ham, spam, ham).status == 1


def test_unsure_is_a_status_of_its_own(run, state, taught, ham, spam, monkeypatch):
    assert run(state, "judge", ham).status == 3
    strict = partial(Filter.open, spam_threshold=1.5)  # spam is unsure now, ham is not
    monkeypatch.setattr(Filter, "open", strict)
    assert run(taught, "judge", ham, spam).status == 3


def test_a_line_for_each(run, taught, ham, spam):
    done = run(taught, "judge", ham, spam)
    assert [
        re.fullmatch(r"(\w+) +([01]\.\d{4})  (.*)", line).group(1, 3)
        for line in done.out.splitlines()
    ] == [("ham", str(ham)), ("spam", str(spam))]
    assert done.err == ""


def test_json(run, taught, spam, corpus):
    (answer,) = run(taught, "judge", "--json", spam).lines
    assert list(answer) == ["name", "label", "probability", "log_odds", "probabilities"]
    assert (answer["name"], answer["label"]) == (str(spam), "spam")
    assert answer["probability"] == pytest.approx(answer["probabilities"]["spam"])
    assert sum(answer["probabilities"].values()) == pytest.approx(1)
    assert len(run(taught, "judge", "--json", corpus / "ham.mbox").lines) > 50


def test_the_command_agrees_with_the_library(run, taught, corpus):
    answers = run(taught, "judge", "--json", corpus / "data").lines
    with Filter.open(taught) as spam_filter:
        for number, answer in enumerate(answers, 1):
            verdict = spam_filter.judge((corpus / "data" / f"{number:05d}").read_bytes())
            assert (answer["label"], answer["probability"]) == (verdict.label, verdict.probability)


def test_a_profile(run, taught, spam):
    (plain,) = run(taught, "--profile", "bernoulli", "judge", "--json", spam).lines
    (default,) = run(taught, "judge", "--json", spam).lines
    assert plain["log_odds"] != default["log_odds"]
    assert run(taught, "--profile", "bayes", "judge", spam).failed(
        "no profile 'bayes'", "multinomial"
    )


def test_standard_input(run, taught, clear):
    assert run(taught, "judge", "-", stdin=clear["spam"]).status == 1
    assert run(taught, "judge", "-", stdin=b"").failed("standard input is empty")


@pytest.mark.parametrize("command", ["judge", "explain"])
def test_nothing_to_judge_is_not_ham(run, taught, tmp_path, command):
    (tmp_path / "empty").touch()
    assert run(taught, command, tmp_path / "empty").failed("empty: no message there")
    assert run(taught, command, tmp_path / "none").failed("none: no such file")


def test_a_new_filter_gives_a_note(run, tmp_path, ham):
    done = run(tmp_path / "typo", "judge", ham)
    assert done.status == 3
    assert done.out.startswith("unsure")
    assert (
        done.err
        == f"spamguard: note: {tmp_path / 'typo'} is a new filter that was taught nothing yet\n"
    )
    assert run(tmp_path / "typo", "judge", ham).err == ""


def test_judging_never_writes(run, taught, corpus):
    def files():
        return {
            file.name: file.read_bytes()
            for file in taught.iterdir()
            if not file.name.endswith(("-shm", "-wal"))
        }

    before = files()
    run(taught, "judge", corpus / "data")
    assert files() == before


def test_a_user_gets_a_verdict_of_their_own(run, taught, clear, tmp_path):
    path = tmp_path / "message.eml"
    path.write_bytes(clear["ham"])
    for user in ("anna", "ben", "cleo"):
        assert (
            run(
                taught, "learn", "--as", "spam" if user == "anna" else "ham", "--user", user, path
            ).status
            == 0
        )
    assert [
        run(taught, "judge", "--user", user, path).status for user in ("anna", "ben", "dora")
    ] == [1, 0, 0]
    assert run(taught, "judge", path).out == run(taught, "judge", "--user", "dora", path).out
