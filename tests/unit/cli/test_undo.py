"""`undo` takes back what one user has taught."""

from __future__ import annotations

import pytest

from spamguard.engine.filter import Filter
from spamguard.engine.prepare import ExampleReader


def test_an_earlier_vote_is_in_force_again(run, taught, new_spam):
    run(taught, "learn", "--as", "spam", "--user", "anna", new_spam)
    with Filter.open(taught) as spam_filter:
        teaching = ExampleReader(spam_filter.key).read_example(new_spam.read_bytes())
        spam_filter.learn_examples([teaching], "ham", user="anna", origin="folder INBOX")
    out = run(taught, "undo", "--user", "anna", "--origin", "folder").out
    assert (
        out == "anna: took back 1 vote; on 1 of these messages an earlier vote is in force again\n"
    )
    with Filter.open(taught) as spam_filter:
        vote = spam_filter.ledger.get_vote(teaching.digest, "anna")
        assert (vote.label, vote.origin) == ("spam", "cli")


def _interrupted(_: Filter) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_settling_is_made_up_for(run, status_of, taught, new_spam, monkeypatch):
    run(taught, "learn", "--as", "ham", "--user", "anna", new_spam)
    with monkeypatch.context() as patched:
        patched.setattr(Filter, "settle", _interrupted)
        assert run(taught, "undo", "--user", "anna").status == 130
    assert status_of(taught)["unsettled"] == 2
    assert run(taught, "undo", "--user", "anna", "--dry-run").status == 0
    assert status_of(taught)["unsettled"] == 2
    assert run(taught, "undo", "--user", "anna").out == "anna: nothing to take back\n"
    assert status_of(taught)["unsettled"] == 0


def test_an_empty_name_does_not_mean_the_site(run, taught):
    """With an unset variable, `undo --user "$WHO"` used to take back the site's votes."""
    assert run(taught, "undo", "--user", "", "--dry-run").failed("--user is empty", "'(the site)'")
    assert (
        run(taught, "undo", "--user", "(the site)", "--dry-run").out
        == "(the site): would take back 120 votes\n"
    )


def test_the_site_is_named_alike_everywhere(run, taught, new_spam):
    """`learn` used to take the name of the site for that of a user."""
    assert run(taught, "learn", "--as", "ham", "--user", "(the site)", new_spam).status == 0
    assert [
        vote["user"] for vote in run(taught, "explain", "--json", new_spam).lines[0]["taught"]
    ] == [""]
    assert run(taught, "forget", "--user", "(the site)", new_spam).out == "forgot 1 message\n"


def test_wrong_usage(run, state, tmp_path):
    assert run(state, "undo", "--user", "nobody").failed("'nobody' has taught nothing", "status")
    assert run(tmp_path / "none", "undo", "--user", "x").failed("no filter there")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--since", "whenever"), "'whenever' is no time"),
        (("--until", "2999-01-01"), "still to come"),
        (("--node", "mx1"), "one of the arguments --user --node"),
    ],
)
def test_arguments_that_make_no_sense(run, state, capsysbinary, words, message):
    with pytest.raises(SystemExit, match="2"):
        run(state, "undo", "--user", "x", *words)
    assert message.encode() in capsysbinary.readouterr().err
