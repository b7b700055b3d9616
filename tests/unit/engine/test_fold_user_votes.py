"""Mail judged for a user: by the votes of that user first. No other user's mail is touched."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.engine import fold
from spamguard.engine.filter import Filter
from tests.unit.bayes.support import assert_same, repeatable
from tests.unit.filters import mail, opened, python, teach

MAIL = mail(90)
HAM = [raw for label, raw in MAIL[60:] if label == "ham"]


def letter(number: int) -> bytes:
    """One of a campaign: the same but for a number and a word."""
    words = (
        "gardening tools for the autumn: spades, rakes, wheelbarrows and gloves; "
        "free bulbs with every order before Friday"
    )
    fields = (
        f"Message-ID: <{number}@shop.example>\nFrom: shop@shop.example\n"
        f"Subject: autumn offer {number}"
    )
    return f"{fields}\n\nDear customer number{number},\n{words}\nhttp://shop.example/autumn/{number}\n".encode()


def held_of(spam_filter: Filter, user: str) -> dict[str, object]:
    """Everything that a filter knows of a user, comparable bit for bit."""
    spam_filter._refresh()
    held = spam_filter._store
    model = spam_filter._user_models.load(user, held.seq, held.tables.bits, held.resets)
    return {} if model is None else vars(model)


@pytest.fixture
def shared(tmp_path: Path):
    """A filter that all have taught."""
    with opened(tmp_path / "state") as spam_filter:
        teach(spam_filter, MAIL[:60])
        spam_filter.settle()
        yield spam_filter


def against(spam_filter: Filter, number: int, user: str = "anna") -> None:
    """A user calls one of the campaign spam; three others call it ham."""
    for other in ("ben", "cleo", "dora"):
        spam_filter.learn(letter(number), "ham", user=other)
    spam_filter.learn(letter(number), "spam", user=user)


def test_single_experts_know_nobody(shared):
    against(shared, 1)
    with Filter.open(shared.directory, profile="multinomial", _durable=False) as other:
        assert other.judge(letter(2), user="anna") == other.judge(letter(2))
        assert other.scan(letter(2), users=("anna",)).personal == {}


# ---- a pure function of the votes in force

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(("anna", "ben")), st.integers(0, 4), st.sampled_from(("spam", "ham", None))
    ),
    max_size=14,
)


def act(spam_filter: Filter, user: str, number: int, label: str | None) -> None:
    if label is None:
        spam_filter.forget(letter(number), user=user)
    else:
        spam_filter.learn(letter(number), label, user=user)


@pytest.mark.slow
@repeatable
@given(actions=ACTIONS, shuffled=st.randoms(use_true_random=False))
def test_only_what_is_said_in_the_end_counts_in_whatever_order(tmp_path_factory, actions, shuffled):
    last = {(user, number): label for user, number, label in actions}
    final = [(user, number, label) for (user, number), label in last.items() if label is not None]
    shuffled.shuffle(final)
    place = tmp_path_factory.mktemp("two")
    with opened(place / "one") as first, opened(place / "other") as second:
        for spam_filter, said in ((first, actions), (second, final)):
            teach(spam_filter, MAIL[:8])
            for action in said:
                act(spam_filter, *action)
                spam_filter.judge(letter(9), user="anna")  # whatever it keeps in mind must follow
            spam_filter.settle()
        for user in ("anna", "ben"):
            assert_same(list(held_of(first, user).items()), list(held_of(second, user).items()))
            assert first.judge(letter(9), user=user) == second.judge(letter(9), user=user)


@pytest.mark.slow
def test_every_process_judges_alike(shared):
    code = (
        "with opened(Path(sys.argv[1])) as one:\n"
        "    from tests.unit.engine.test_fold_user_votes import letter\n"
        "    print(repr(one.judge(letter(9), user='anna').log_odds))"
    )
    for number in range(2):
        against(shared, number)
        told = python(code, str(shared.directory)).stdout
        assert re.fullmatch(r"\S+\n", told), told
        assert float(told) == shared.judge(letter(9), user="anna").log_odds


def test_no_more_is_kept_in_mind_than_there_is_room_for(shared, monkeypatch):
    users = [f"user{number}" for number in range(6)]
    teach(shared, [("spam", HAM[0])], user="anna")
    for number, user in enumerate(users):
        teach(shared, [("ham", letter(number))], user=user)
    whole = shared.scan(letter(9), users=users).personal
    for name, room in (("_MAX_TOKENS", 150), ("_MAX_USERS", 3)):
        monkeypatch.setattr(fold, name, room)
        with Filter.open(shared.directory, _durable=False) as other:
            for _ in range(2):
                assert other.scan(letter(9), users=users).personal == whole
                assert len(other._user_models._models) < 4
                assert (
                    sum(found.size for found in other._user_models._models.values())
                    == other._user_models._tokens
                )


@pytest.mark.parametrize("damage", [b"", b"\0", b"nonsense", None])
def test_who_has_a_damaged_receipt_gets_what_all_get(shared, caplog, damage):
    against(shared, 1)
    before = shared.judge(letter(2), user="ben")
    with Filter.open(shared.directory, _durable=False) as other:
        query = (
            "UPDATE events SET packed = coalesce(?, substr(packed, 1, length(packed) / 2)) "
            "WHERE user = 'anna'"
        )
        shared.ledger._db.execute(query, (damage,))
        for _ in range(2):
            scan = other.scan(letter(2), users=("anna", "ben"))
            assert scan.verdict == other.judge(letter(2), user="anna") == other.judge(letter(2))
            assert scan.personal == {"ben": before}
        assert (
            sum("anna gets the verdicts of all" in record.getMessage() for record in caplog.records)
            == 1
        )
        other.learn(HAM[0], "spam", user="ben")
        assert set(other.scan(letter(2), users=("anna", "ben")).personal) == {"ben"}


def test_much_at_once_is_heard_too(shared, monkeypatch):
    monkeypatch.setattr(fold, "_MAX_EVENTS_BEHIND", 2)
    assert shared.judge(letter(9), user="anna") == shared.judge(letter(9))
    against(shared, 1)
    assert shared.judge(letter(9), user="anna") != shared.judge(letter(9))
