"""Ageing: what is older than `keep` is as if it had never been taught, and stays so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spamguard.config.values import KeptLessons
from spamguard.engine import fold
from spamguard.engine.filter import Filter
from spamguard.learning.undo import (
    VoteSelection,
    age_votes,
    undo_votes,
)
from spamguard.ledger.votes import NewVote
from tests.contract.ledgers import winning_votes
from tests.unit.filters import READER, held, mail, opened

DAY = 86_400
NOW = 1_790_000_000
MAIL = mail(60)
EXAMPLES = [READER.read_example(raw) for _, raw in MAIL]


def cast(
    spam_filter: Filter,
    number: int,
    at: int,
    *,
    user: str = "",
    label: str = "",
    origin: str = "cli",
) -> None:
    """Teach a message as of some time."""
    (vote,) = spam_filter.make_votes(
        [EXAMPLES[number]], label or MAIL[number][0], user=user, origin=origin
    )
    spam_filter.cast_votes([vote._replace(time=at)])


def numbers_in_force(spam_filter: Filter, user: str = "") -> list[int]:
    ledger = spam_filter.ledger
    return [
        number
        for number, example in enumerate(EXAMPLES)
        if (vote := ledger.get_vote(example.digest, user)) and vote.label is not None
    ]


def age(spam_filter: Filter, now: int = NOW, **kept: int) -> int:
    return age_votes(spam_filter, KeptLessons(**kept), now)


def end_undo_time(spam_filter: Filter, now: int = NOW) -> int:
    """Compact as settling does once nothing can come back any more."""
    ledger = spam_filter.ledger
    return ledger.compact(ledger.last_seq(), now + 1)


def test_a_number_may_be_exceeded_by_a_twentieth(tmp_path: Path) -> None:
    """Forgetting makes settling due, so it does not happen for each lesson."""
    with opened(tmp_path) as spam_filter:
        for number in range(41):
            cast(spam_filter, number, NOW - (60 - number) * DAY)
        assert age(spam_filter, number=40) == 0
        cast(spam_filter, 41, NOW)
        assert age(spam_filter, number=40) == 2
        assert numbers_in_force(spam_filter) == list(range(2, 42))
        assert spam_filter.is_settling_due()


def test_a_users_model_forgets_what_was_compacted_since(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        for number in range(12):
            cast(spam_filter, number, NOW - (30 - number) * DAY, user="anna")
        models = fold.UserModels(spam_filter.ledger)
        seq = spam_filter.ledger.last_seq()
        assert models.load("anna", seq, 14, 0) is not None
        age(spam_filter, days=1)
        cast(spam_filter, 12, NOW)
        end_undo_time(spam_filter)
        assert models.load("anna", spam_filter.ledger.last_seq(), 14, 0) is None


# ---- undoing, and numbers for people


def test_undoing_goes_on_where_votes_are_compacted_meanwhile(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        cast(spam_filter, 0, 5)
        cast(spam_filter, 1, NOW)
        chosen = VoteSelection("")
        digests = spam_filter.ledger.users.voted_digests(chosen.user, chosen.since)
        age(spam_filter, days=1)
        cast(spam_filter, 2, NOW)
        end_undo_time(spam_filter)
        (batch,) = undo_votes(spam_filter, digests, chosen)
        assert [each.digest for each in batch] == [EXAMPLES[1].digest]


# ---- bit for bit

Lesson = tuple[int, str, str, int]
"""Number of the message, user, class, age in days."""

lessons = st.lists(
    st.tuples(
        st.integers(0, 11),
        st.sampled_from(["", "anna", "ben"]),
        st.sampled_from(["ham", "spam", "news"]),
        st.integers(0, 40),
    ),
    max_size=30,
)


def teach(spam_filter: Filter, history: Sequence[Lesson]) -> None:
    spam_filter.define_class("news", unwanted=False)
    for number, user, label, days in history:
        cast(spam_filter, number, NOW - days * DAY, user=user, label=label)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(lessons, st.one_of(st.integers(1, 20), st.none()), st.integers(1, 40), st.booleans())
def test_as_if_the_aged_lessons_had_never_been_taught(
    history: list[Lesson], number: int | None, days: int, compacted: bool
) -> None:
    """After settling, all tables are the same bits as those of a ledger without these lessons, and
    those of a filter that has folded all of it hold the same lessons.
    """
    kept = KeptLessons(number=number) if number else KeptLessons(days=days)
    with TemporaryDirectory() as place:
        with opened(Path(place, "a")) as aged, opened(Path(place, "b")) as never:
            teach(aged, history)
            age_votes(aged, kept, NOW)
            folded = aged.status().classes
            in_force = [vote for vote in winning(aged) if vote.label is not None]
            if compacted:
                end_undo_time(aged)
            aged.settle()
            never.define_class("news", unwanted=False)
            never.ledger.merge(in_force)
            never.settle()
            assert held(aged) == held(never)
            assert aged.status().classes == folded
            for user in ("anna", "ben"):
                for example in EXAMPLES[:12]:
                    verdicts = [
                        each.judge_features(example.features, user) for each in (aged, never)
                    ]
                    assert verdicts[0] == verdicts[1]
        if number and len(in_force) > number:
            assert len(in_force) * 20 < number * 21


def winning(spam_filter: Filter) -> list[NewVote]:
    return list(winning_votes(spam_filter.ledger.all_votes()).values())  # type: ignore[arg-type]
