"""Undoing a user: what remains is what would be there without those votes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spamguard.engine import filter  # noqa: A004  the module is called so
from spamguard.engine.filter import Filter
from spamguard.learning.undo import (
    VoteSelection,
    reverse_votes,
    undo_votes,
)
from spamguard.ledger import codec
from spamguard.ledger.votes import NewVote
from spamguard.records import EXTRACTOR
from tests.unit.filters import held, mail, opened

MAIL = [raw for _, raw in mail(8)]
NOW = int(time.time()) - 10_000
Step = tuple[str, int, str | None]
"""User, number of the message, what it is (None: taken back)."""

steps = st.lists(
    st.tuples(
        st.sampled_from(["anna", "ben", ""]),
        st.integers(0, 6),
        st.sampled_from(["ham", "spam", "news", None]),
    ),
    max_size=24,
)


def do(
    spam_filter: Filter,
    history: Sequence[tuple[int, Step]],
    monkeypatch: pytest.MonkeyPatch,
    settle_at: int = -1,
) -> None:
    """Each step at its time, in seconds after NOW."""
    for at, (user, number, label) in history:
        with monkeypatch.context() as patched:
            patched.setattr(filter, "time", SimpleNamespace(time=lambda at=at: NOW + at))
            ready = spam_filter._reader.read_example(MAIL[number])
            if label is None:
                spam_filter.forget_digests([ready.digest], user=user)
            else:
                spam_filter.learn_examples(
                    [ready], label, user=user, origin="folder Junk" if number % 2 else "cli"
                )
        if at == settle_at:
            spam_filter.settle()


def take_back(
    spam_filter: Filter, chosen: VoteSelection, **how: bool
) -> list[tuple[str | None, str | None]]:
    digests = spam_filter.ledger.users.voted_digests(chosen.user, chosen.since)
    done = [each for batch in undo_votes(spam_filter, digests, chosen, **how) for each in batch]
    return [(each.old_label, each.new_label) for each in done]


@pytest.mark.slow
@settings(
    deadline=None,
    max_examples=20,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    steps,
    st.integers(0, 24),
    st.none() | st.integers(0, 24),
    st.integers(-1, 24),
    st.sampled_from(["", "folder Junk", "folder"]),
)
def test_undone_votes_leave_no_trace(monkeypatch, history, cut, end, settle_at, origin):
    timed = [(-1, ("cleo", 7, "spam")), *enumerate(history)]
    chosen = VoteSelection("anna", NOW + cut, origin, 0 if end is None else NOW + end)
    without = [
        (at, step)
        for at, step in timed
        if not (
            step[0] == "anna"
            and cut <= at < (len(timed) if end is None else end)
            and (not origin or (step[1] % 2 and step[2]))
        )
    ]
    with (
        TemporaryDirectory() as place,
        opened(Path(place) / "one") as first,
        opened(Path(place) / "other") as second,
    ):
        do(first, timed, monkeypatch, settle_at)
        do(second, without, monkeypatch)
        take_back(first, chosen)
        events = first.ledger.last_seq()
        first.settle()
        second.settle()
        assert held(first) == held(second)
        assert take_back(first, chosen) == []
        assert first.ledger.last_seq() == events


def test_undoing_a_retraction_brings_the_vote_back(tmp_path, monkeypatch):
    with opened(tmp_path) as spam_filter:
        do(spam_filter, [(0, ("anna", 0, "ham")), (5, ("anna", 0, None))], monkeypatch)
        assert take_back(spam_filter, VoteSelection("anna", NOW + 5)) == [(None, "ham")]


def test_a_reversal_goes_by_version_not_by_time(tmp_path, monkeypatch):
    with opened(tmp_path) as spam_filter:
        do(spam_filter, [(9, ("anna", 0, "ham")), (2, ("anna", 0, "spam"))], monkeypatch)
        votes = spam_filter.ledger.users.all_votes("anna", spam_filter._reader.digest(MAIL[0]))
        assert reverse_votes(votes, VoteSelection("anna", NOW + 5), 1)[-1].label == "spam"
        (vote,) = reverse_votes(votes, VoteSelection("anna", NOW + 1), 77)
        assert (vote.label, vote.time) == (None, 77)


def said(spam_filter: Filter, *history: tuple[str | None, str], start: int = 0) -> None:
    """Of one message by anna: class and origin, a second apart."""
    for at, (label, origin) in enumerate(history, start):
        digest = spam_filter._reader.digest(MAIL[0])
        features = codec.pack(spam_filter._reader.read_example(MAIL[0]).features) if label else b""
        spam_filter.ledger.append(
            [NewVote(digest, "anna", label, features, b"", origin, NOW + at, EXTRACTOR)]
        )


def test_what_a_forgetting_had_taken_back_comes_with_it(tmp_path):
    with opened(tmp_path) as spam_filter:
        said(spam_filter, ("ham", "page"), (None, "cli"), ("spam", "folder Junk"))
        assert take_back(spam_filter, VoteSelection("anna", origin="folder")) == [("spam", None)]
        assert take_back(spam_filter, VoteSelection("anna", origin="cli")) == [(None, "ham")]
