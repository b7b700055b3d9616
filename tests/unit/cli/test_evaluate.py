"""`evaluate`: figures on labelled mail, and what is gained over another run on the same."""

from __future__ import annotations

import pytest

PROTOCOL = ("--protocol", "split", "--share", "0.5")


@pytest.fixture(scope="module")
def scores(corpus, tmp_path_factory):
    """A file of scores of half the corpus, all of them wrong."""
    path = tmp_path_factory.mktemp("scores") / "upside-down.csv"
    labels = [line.split()[0] for line in (corpus / "index").read_text().splitlines()]
    rows = [f"{n},{label},{label},{-1.0 if label == 'spam' else 1.0},0" for n, label in enumerate(labels, 1) if n > len(labels) // 2]
    path.write_text("n,gold,label,score,trained\n" + "\n".join(rows) + "\n")
    return path


def test_a_gain_over_another_run_is_told(run, state, corpus, scores):
    done = run(state, "evaluate", corpus / "index", *PROTOCOL, "--against", scores)
    assert done.status == 0
    assert f"1-ROCA minus that of {scores}: -" in done.out
    assert done.out.rstrip().endswith(": better")
    found = run(state, "evaluate", corpus / "index", *PROTOCOL, "--against", scores, "--json").json
    assert -100 <= found["against"]["low"] <= found["against"]["roca"] <= found["against"]["high"] < 0


def test_without_another_run_nothing_is_said_of_one(run, state, corpus, tmp_path):
    done = run(state, "evaluate", corpus / "index", *PROTOCOL, "--json", "--scores", tmp_path / "own.csv")
    assert "against" not in done.json
    again = run(state, "evaluate", corpus / "index", *PROTOCOL, "--against", tmp_path / "own.csv")
    assert again.out.rstrip().endswith("+0.0000 % (+0.0000 to +0.0000): no evidence of a difference")


def test_scores_of_other_mail_and_no_scores_are_refused(run, state, corpus, scores, tmp_path):
    assert run(state, "evaluate", corpus / "index", "--protocol", "split", "--share", "0.9", "--against", scores).failed("other mail")
    assert run(state, "evaluate", corpus / "index", "--against", tmp_path / "absent.csv").failed("cannot be read")
    assert run(state, "evaluate", corpus / "index", "--against", corpus / "index").failed("n,gold,label,score,trained")
