"""`judge`: lines, JSON and exit statuses that scripts can rely on."""

from __future__ import annotations

import pytest


def write(path, raw):
    path.write_bytes(raw)
    return path


@pytest.fixture
def spam(tmp_path, clear):
    return write(tmp_path / "spam.eml", clear["spam"])


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
