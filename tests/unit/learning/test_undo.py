"""Undoing a user: what remains is what would be there without those votes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import permutations, product
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spamguard.engine import filter, store  # noqa: A004  the module is called so
from spamguard.engine.filter import Filter
from spamguard.errors import LedgerError
from spamguard.learning import undo
from spamguard.learning.undo import (
    UNDO_ORIGIN,
    VoteSelection,
    affected_messages,
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
    done = [
        each
        for batch in undo_votes(spam_filter, affected_messages(spam_filter, chosen), chosen, **how)
        for each in batch
    ]
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


def test_a_vote_comes_back_with_all_it_had(tmp_path, monkeypatch):
    with opened(tmp_path) as spam_filter:
        do(
            spam_filter,
            [(0, ("anna", 1, "ham")), (5, ("anna", 1, "spam")), (6, ("ben", 1, "ham"))],
            monkeypatch,
        )
        name = spam_filter._reader.digest(MAIL[1])
        first = spam_filter.ledger.users.all_votes("anna", name)[1]
        assert take_back(spam_filter, VoteSelection("anna", NOW + 5), dry_run=True) == [
            ("spam", "ham")
        ]
        assert spam_filter.ledger.last_seq() == 3
        assert take_back(spam_filter, VoteSelection("anna", NOW + 5)) == [("spam", "ham")]
        vote = spam_filter.ledger.get_vote(name, "anna")
        assert vote is not None
        assert vote._replace(clock=first.clock) == first
        assert take_back(spam_filter, VoteSelection("anna", NOW + 1)) == []
        assert take_back(spam_filter, VoteSelection("anna", NOW)) == [("ham", None)]
        vote = spam_filter.ledger.get_vote(name, "anna")
        assert vote is not None
        assert (vote.label, vote.origin, vote.packed) == (None, UNDO_ORIGIN, b"")
        assert spam_filter.status().classes["ham"] == 1


def test_taking_back_is_no_opinion_that_could_be_undone(tmp_path, monkeypatch):
    with opened(tmp_path) as spam_filter:
        do(spam_filter, [(0, ("anna", 0, "ham"))], monkeypatch)
        assert take_back(spam_filter, VoteSelection("anna")) == [("ham", None)]
        assert take_back(spam_filter, VoteSelection("anna", int(time.time()) - 100)) == []
        assert take_back(spam_filter, VoteSelection("ben")) == []


def test_what_a_node_cast_is_taken_back_for_every_user(tmp_path, monkeypatch):
    with opened(tmp_path / "a") as good, opened(tmp_path / "b") as evil:
        do(good, [(0, ("anna", 1, "ham")), (1, ("ben", 2, "ham"))], monkeypatch)
        evil.ledger.merge(good.ledger.all_votes())
        wrong = [(5, ("anna", 1, "spam")), (6, ("ben", 3, "ham")), (7, ("anna", 4, "ham"))]
        do(evil, wrong, monkeypatch)
        take_back(evil, VoteSelection("ben", NOW + 1, "cli"))
        good.ledger.merge(evil.ledger.all_votes())
        cast_again = good.ledger.get_vote(good._reader.digest(MAIL[3]), "ben")
        with good.ledger.exclusive(force=True) as cast:  # as the extractor of an upgrade does
            cast([NewVote(*cast_again[:2], *cast_again[4:])])
        keys = good.ledger.users.keys_of_node(evil.ledger.node, 0)
        assert len(keys) == 4
        last = 0
        for _ in range(2):
            last = good.ledger.last_seq()
            for user, digest in keys:
                chosen = VoteSelection(user, node=evil.ledger.node)
                for _ in undo_votes(good, [digest], chosen):
                    pass
        standing = {
            (user, number): good.ledger.standing_label(good._reader.digest(MAIL[number]), user)
            for user, number in (("anna", 1), ("ben", 2), ("ben", 3), ("anna", 4))
        }
        assert [*standing.values()] == ["ham", "ham", None, None]
        assert good.ledger.last_seq() == last


def test_undoing_a_retraction_brings_the_vote_back(tmp_path, monkeypatch):
    with opened(tmp_path) as spam_filter:
        do(spam_filter, [(0, ("anna", 0, "ham")), (5, ("anna", 0, None))], monkeypatch)
        assert take_back(spam_filter, VoteSelection("anna", NOW + 5)) == [(None, "ham")]


def test_recently_replaced_votes_survive_settling(tmp_path, monkeypatch):
    with opened(tmp_path) as spam_filter:
        do(spam_filter, [(0, ("anna", 0, "ham")), (5, ("anna", 0, "spam"))], monkeypatch, 5)
        do(spam_filter, [(6, ("anna", 1, "ham"))], monkeypatch, 6)
        assert take_back(spam_filter, VoteSelection("anna", NOW + 5)) == [
            ("spam", "ham"),
            ("ham", None),
        ]
        monkeypatch.setattr(store, "UNDO_SECONDS", 5_000)
        do(
            spam_filter,
            [(10, ("anna", 2, "ham")), (11, ("anna", 2, "spam")), (12, ("anna", 3, "spam"))],
            monkeypatch,
            12,
        )
        assert take_back(spam_filter, VoteSelection("anna", NOW + 11)) == [
            ("spam", None),
            ("spam", None),
        ]


def test_votes_cast_meanwhile_count(tmp_path, monkeypatch):
    """By another process, between looking at the votes and casting those that take back: it has to
    wait for that.
    """
    with opened(tmp_path) as first:
        do(first, [(0, ("anna", 1, "spam"))], monkeypatch)
        ready = first._reader.read_example(MAIL[1])

        def say_ham() -> None:
            with opened(tmp_path) as second:
                second.learn_examples([ready], "ham", user="anna", origin="web")

        later = Thread(target=say_ham)

        def look(votes, chosen, now):
            later.start()
            later.join(0.3)  # what need not wait is done by then
            return reverse_votes(votes, chosen, now)

        monkeypatch.setattr(undo, "reverse_votes", look)
        assert take_back(first, VoteSelection("anna", NOW)) == [("spam", None)]
        later.join()
        assert [vote.label for vote in first.ledger.users.all_votes("anna", ready.digest)] == [
            "ham",
            None,
            "spam",
        ]


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


def stands(spam_filter: Filter) -> str | None:
    vote = spam_filter.ledger.get_vote(spam_filter._reader.digest(MAIL[0]), "anna")
    assert vote is not None
    return vote.label


@pytest.mark.slow
@pytest.mark.parametrize("order", list(permutations(["folder", "page"])))
@pytest.mark.parametrize("history", list(product(["folder", "page", "cli"], repeat=3)))
def test_undone_votes_stay_undone_after_further_undoing(tmp_path, history, order):
    with opened(tmp_path) as spam_filter:
        votes = list(zip(["spam", "ham", "news"], history, strict=True))
        said(spam_filter, ("work", "cli"), *votes)
        for origin in order:
            take_back(spam_filter, VoteSelection("anna", origin=origin))
        assert (
            stands(spam_filter)
            == [label for label, origin in [("work", "cli"), *votes] if origin not in order][-1]
        )
        events = spam_filter.ledger.last_seq()
        assert [
            take_back(spam_filter, VoteSelection("anna", origin=origin)) for origin in order
        ] == [[], []]
        assert spam_filter.ledger.last_seq() == events


@pytest.mark.parametrize("order", [["folder", "cli"], ["cli", "folder"], ["folder"]])
@pytest.mark.parametrize(
    "history",
    [
        [("spam", "folder Junk"), (None, "cli")],
        [("spam", "folder Junk"), ("ham", "cli"), (None, "cli")],
        [("work", "page"), ("spam", "folder Junk"), ("ham", "cli"), (None, "page")],
        [("ham", "cli"), (None, "page"), ("spam", "folder Junk"), (None, "cli")],
    ],
)
def test_what_was_undone_does_not_come_back_with_what_had_been_forgotten(tmp_path, history, order):
    """There was nothing in force to be taken back, so that it was not noted that it had been."""
    with opened(tmp_path) as spam_filter:
        said(spam_filter, *history)
        for origin in order:
            take_back(spam_filter, VoteSelection("anna", origin=origin))
        assert (
            stands(spam_filter)
            == [None, *(label for label, origin in history if origin.split()[0] not in order)][-1]
        )
        events = spam_filter.ledger.last_seq()
        assert [
            take_back(spam_filter, VoteSelection("anna", origin=origin)) for origin in order
        ] == [[] for _ in order]
        assert spam_filter.ledger.last_seq() == events


def test_what_a_forgetting_had_taken_back_comes_with_it(tmp_path):
    with opened(tmp_path) as spam_filter:
        said(spam_filter, ("ham", "page"), (None, "cli"), ("spam", "folder Junk"))
        assert take_back(spam_filter, VoteSelection("anna", origin="folder")) == [("spam", None)]
        assert take_back(spam_filter, VoteSelection("anna", origin="cli")) == [(None, "ham")]


def test_what_comes_back_is_read_as_newly_as_what_goes(tmp_path):
    """An upgrade lies in between."""
    with opened(tmp_path) as spam_filter:
        said(spam_filter, ("ham", "page"))
        with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db, db:
            db.execute("UPDATE events SET extractor = extractor - 1, packed = x'00'")
        said(spam_filter, ("spam", "folder Junk"), start=1)
        assert take_back(spam_filter, VoteSelection("anna", origin="folder")) == [("spam", "ham")]
        vote = spam_filter.ledger.get_vote(spam_filter._reader.digest(MAIL[0]), "anna")
        assert vote is not None
        assert (vote.label, vote.origin, vote.time, vote.extractor) == (
            "ham",
            "page",
            NOW,
            EXTRACTOR,
        )
        assert spam_filter.status().classes["ham"] == 1


def test_a_ledger_whose_index_is_damaged_is_told(tmp_path):
    """The index of users tells of a message, that of keys does not."""
    with opened(tmp_path) as spam_filter:
        said(spam_filter, ("ham", "page"))
    ledger, keys = tmp_path / "ledger.sqlite", "sqlite_autoindex_events_1"
    unique = "UNIQUE (digest, user, clock, node)"
    with closing(sqlite3.connect(ledger)) as db, db:
        db.execute("PRAGMA writable_schema = ON")
        (rows,) = db.execute("SELECT * FROM sqlite_master WHERE name = ?", (keys,))
        change = "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = 'events'"
        db.execute(change, (unique, "CHECK (1)"))
        db.execute("DELETE FROM sqlite_master WHERE name = ?", (keys,))
    with closing(sqlite3.connect(ledger)) as db, db:
        db.execute("UPDATE events SET digest = x'00'")
    with closing(sqlite3.connect(ledger)) as db, db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute(change, ("CHECK (1)", unique))
        db.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", rows)
    with opened(tmp_path, load=False) as spam_filter:
        chosen = VoteSelection("anna")
        with pytest.raises(LedgerError, match="it is damaged: restore it"):
            list(undo_votes(spam_filter, affected_messages(spam_filter, chosen), chosen))
