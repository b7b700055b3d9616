"""Ageing: what is older than `keep` is as if it had never been taught, and stays so."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spamguard.config.values import KeptLessons
from spamguard.engine import fold
from spamguard.engine.filter import Filter
from spamguard.engine.store import UNDO_SECONDS
from spamguard.learning import undo
from spamguard.learning.undo import (
    VoteSelection,
    affected_messages,
    age_votes,
    find_old_votes,
    undo_votes,
)
from spamguard.ledger.senders import make_sender_vote
from spamguard.ledger.votes import NewVote, winning_votes
from spamguard.records import AGEING_ORIGIN
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
        if ledger.standing_label(example.digest, user) is not None
    ]


def age(spam_filter: Filter, now: int = NOW, **kept: int) -> int:
    return age_votes(spam_filter, KeptLessons(**kept), now)


def end_undo_time(spam_filter: Filter, now: int = NOW) -> int:
    """Compact as settling does once nothing can come back any more."""
    ledger = spam_filter.ledger
    return ledger.compact(ledger.last_seq(), now + 1)


def test_the_oldest_go_whatever_the_order_in_which_they_came(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        for number in random.Random(1).sample(range(40), 40):
            cast(spam_filter, number, NOW - (40 - number) * DAY)
        assert age(spam_filter, number=30) == 10
        assert numbers_in_force(spam_filter) == list(range(10, 40))
        assert sum(spam_filter.status().classes.values()) == 30
        assert age(spam_filter, number=30) == 0


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


def test_a_time_is_exact_and_holds_for_every_vote(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        for number in range(20):
            cast(spam_filter, number, NOW - number * DAY, user="anna" if number % 2 else "")
        assert age(spam_filter, days=10) == 9
        assert numbers_in_force(spam_filter) == [0, 2, 4, 6, 8, 10]
        assert numbers_in_force(spam_filter, "anna") == [1, 3, 5, 7, 9]
        assert age(spam_filter, NOW + DAY, days=10) == 1


def test_a_clock_that_has_jumped_ahead_forgets_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        for number in range(5):
            cast(spam_filter, number, NOW - number * DAY)
        assert age(spam_filter, days=10) == 0
        assert age(spam_filter, NOW + 3650 * DAY, days=10) == 0


def test_what_counts_for_one_user_goes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a user the latest votes count, here five: older ones go with those of the site."""
    monkeypatch.setattr(undo, "MAX_VOTES", 5)
    with opened(tmp_path) as spam_filter:
        for number in range(10):
            cast(spam_filter, number, NOW - (100 - number) * DAY, user="anna")
        for number in range(10, 30):
            cast(spam_filter, number, NOW - (80 - number) * DAY)
        assert age(spam_filter, number=20) == 10
        assert numbers_in_force(spam_filter, "anna") == [5, 6, 7, 8, 9]
        assert numbers_in_force(spam_filter) == list(range(15, 30))
        assert age(spam_filter, number=3) == 17
        assert numbers_in_force(spam_filter, "anna") == [7, 8, 9]
        assert numbers_in_force(spam_filter) == []


def test_as_many_votes_of_a_user_are_spared_as_count() -> None:
    assert undo.MAX_VOTES == fold.MAX_VOTES


def test_classes_that_were_imported_one_after_the_other_age_together(tmp_path: Path) -> None:
    """Otherwise nothing but spam would be left of such an import."""
    with opened(tmp_path) as spam_filter:
        for number in sorted(range(60), key=lambda number: MAIL[number][0]):
            cast(spam_filter, number, NOW)
        before = spam_filter.status().classes
        age(spam_filter, number=30)
        after = spam_filter.status().classes
        assert all(0.25 < after[label] / before[label] < 0.75 for label in ("ham", "spam"))


def test_words_about_senders_do_not_age(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        word = make_sender_vote(b"snd" + bytes(13), "anna", -6, "cli", 5)
        spam_filter.cast_votes([word])
        cast(spam_filter, 0, 5)
        assert age(spam_filter, days=1) == 1
        assert spam_filter.ledger.standing_label(word.digest, "anna") == "(sender -6)"


def test_a_vote_that_is_cast_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as spam_filter:
        cast(spam_filter, 0, 5, label="spam")

        def find_and_teach(*arguments: object) -> list[int]:
            found = find_old_votes(*arguments)  # type: ignore[arg-type]
            cast(spam_filter, 0, NOW, label="ham")
            return found

        monkeypatch.setattr(undo, "find_old_votes", find_and_teach)
        assert age(spam_filter, days=1) == 0
        assert spam_filter.ledger.standing_label(EXAMPLES[0].digest, "") == "ham"


def test_what_is_taught_again_is_simply_taught(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        cast(spam_filter, 0, 5, user="anna", label="spam")
        age(spam_filter, days=1)
        (lesson,) = spam_filter.learn_examples([EXAMPLES[0]], "ham", user="anna")
        assert lesson
        assert age(spam_filter, days=1) == 0
        assert numbers_in_force(spam_filter, "anna") == [0]


def test_a_move_that_waited_while_a_vote_aged_is_learnt(tmp_path: Path) -> None:
    """Ageing is no word of the user's, who has said nothing since."""
    with opened(tmp_path) as spam_filter:
        cast(spam_filter, 0, 5, user="anna", label="spam")
        seq = spam_filter.ledger.last_seq()
        (vote,) = spam_filter.make_votes([EXAMPLES[0]], "ham", user="anna")
        age(spam_filter, days=1)
        assert spam_filter.cast_votes([vote], unless_voted_since=0) == [False]
        assert spam_filter.cast_votes([vote], unless_voted_since=seq) == [True]


def test_a_vote_that_comes_back_ages_again(tmp_path: Path) -> None:
    with opened(tmp_path / "here") as spam_filter, opened(tmp_path / "there") as other:
        cast(spam_filter, 0, 5)
        votes = list(spam_filter.ledger.all_votes())
        age(spam_filter, days=1)
        assert spam_filter.ledger.merge(votes) == 0  # the tombstone wins
        cast(spam_filter, 1, NOW)  # the last event always stays
        assert end_undo_time(spam_filter) == 2
        assert spam_filter.ledger.get_vote(EXAMPLES[0].digest, "") is None
        assert spam_filter.ledger.merge(votes) == 1
        assert numbers_in_force(spam_filter) == [0, 1]
        assert age(spam_filter, days=1) == 1
        assert numbers_in_force(spam_filter) == [1]
        # another machine that takes the tombstone in forgets too
        other.ledger.merge([*votes, *spam_filter.ledger.all_votes()])
        assert numbers_in_force(other) == [1]


def test_compacting_drops_all_that_has_aged(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        for number in range(30):
            cast(spam_filter, number, NOW - (100 - number) * DAY)
            cast(spam_filter, number, NOW - (99 - number) * DAY, label="news")
        age(spam_filter, number=20)
        spam_filter.settle()
        before, ledger = held(spam_filter), spam_filter.ledger
        assert ledger.ages.count_aged() == (10, NOW)
        assert ledger.compact(ledger.last_seq(), NOW) == 0
        assert end_undo_time(spam_filter) == 19  # the last event stays, or its number came twice
        assert ledger.ages.count_aged() == (1, NOW)
        assert ledger.last_seq() == 70
        spam_filter.settle()
        assert held(spam_filter) == before
        assert spam_filter.find_loss() is None


def test_compacting_keeps_tombstones_of_votes_that_are_not_folded_yet(tmp_path: Path) -> None:
    """Those who fold such a late vote must all see the tombstone, or none of them."""
    with opened(tmp_path) as spam_filter:
        cast(spam_filter, 0, 5)
        (vote,) = spam_filter.ledger.all_votes()
        age(spam_filter, days=1)
        folded = spam_filter.ledger.last_seq()
        spam_filter.ledger.merge([vote._replace(node="elsewhere", clock=1)])
        cast(spam_filter, 1, NOW)
        assert spam_filter.ledger.compact(folded) == 1  # the vote that was replaced
        assert numbers_in_force(spam_filter) == [1]
        assert spam_filter.ledger.compact(folded + 1) == 2
        assert numbers_in_force(spam_filter) == [1]


def test_a_users_model_forgets_what_was_compacted_since(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        for number in range(12):
            cast(spam_filter, number, NOW - (30 - number) * DAY, user="anna")
        models = fold.UserModels(spam_filter.ledger)
        seq = spam_filter.ledger.last_seq()
        assert models.load("anna", seq, 14) is not None
        age(spam_filter, days=1)
        cast(spam_filter, 12, NOW)
        end_undo_time(spam_filter)
        assert models.load("anna", spam_filter.ledger.last_seq(), 14) is None


# ---- undoing, and numbers for people


def undone(spam_filter: Filter, user: str = "", since: int = 0, origin: str = "") -> int:
    chosen = VoteSelection(user, since, origin)
    digests = affected_messages(spam_filter, chosen)
    return sum(len(batch) for batch in undo_votes(spam_filter, digests, chosen))


@pytest.mark.parametrize("origin", ["", "cli", AGEING_ORIGIN])
def test_undoing_brings_nothing_back(tmp_path: Path, origin: str) -> None:
    with opened(tmp_path) as spam_filter:
        cast(spam_filter, 0, 5, label="ham")
        cast(spam_filter, 0, 6, label="spam")
        cast(spam_filter, 1, 7, label="spam")
        age(spam_filter, days=1)
        before = list(spam_filter.ledger.all_votes())
        for since in (0, 6, NOW):
            assert undone(spam_filter, since=since, origin=origin) == 0
        assert numbers_in_force(spam_filter) == []
        assert list(spam_filter.ledger.all_votes()) == before


def test_undoing_what_was_taught_again_does_not_bring_back_what_had_aged(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        cast(spam_filter, 0, 5, label="ham")
        age(spam_filter, days=1)
        cast(spam_filter, 0, NOW, label="spam")
        assert undone(spam_filter, since=NOW) == 1
        assert numbers_in_force(spam_filter) == []


def test_undoing_goes_on_where_votes_are_compacted_meanwhile(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        cast(spam_filter, 0, 5)
        cast(spam_filter, 1, NOW)
        chosen = VoteSelection("")
        digests = affected_messages(spam_filter, chosen)
        age(spam_filter, days=1)
        cast(spam_filter, 2, NOW)
        end_undo_time(spam_filter)
        (batch,) = undo_votes(spam_filter, digests, chosen)
        assert [each.digest for each in batch] == [EXAMPLES[1].digest]


def test_numbers_for_people(tmp_path: Path) -> None:
    """Lessons in force go; that they were cast stays true; ageing is nobody's word."""
    with opened(tmp_path) as spam_filter:
        for number in range(6):
            cast(spam_filter, number, NOW - (6 - number) * DAY, user="anna", origin="folder Junk")
        users = spam_filter.ledger.users
        age(spam_filter, days=3)
        assert sum(users.count_lessons()["anna"].values()) == 3
        assert [n for n in users.count_by_day().values() if n] == [1, 1, 1]
        assert users.last_vote_times() == {"anna": NOW - DAY}
        assert sum(users.count_by_hour("anna", 0, NOW + DAY).values()) == 6
        assert len(users.latest_votes("anna", 0, NOW + DAY, 10)) == 6
        assert users.count_votes("anna", "folder", 0, NOW + DAY, 100) == 6
        assert users.count_votes("anna", AGEING_ORIGIN, 0, NOW + DAY, 100) == 0
        assert sum(row[2] for row in users.votes_by_origin(0, spam_filter.ledger.last_seq())) == 6
        assert users.voted_digests("anna", NOW) == []
        labels = users.changed_labels(6, spam_filter.ledger.last_seq())
        assert labels == {example.digest: None for example in EXAMPLES[:3]}
        assert list(users.votes_on_message(EXAMPLES[0].digest)) == []
        assert len(list(users.votes_on_message(EXAMPLES[5].digest))) == 1
        assert spam_filter.forget_digests([EXAMPLES[0].digest], user="anna") == [False]


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


def test_only_tombstones_have_aged(tmp_path: Path) -> None:
    """A program may name the origin of its lessons as it likes."""
    with opened(tmp_path) as spam_filter:
        cast(spam_filter, 0, NOW, origin=AGEING_ORIGIN)
        cast(spam_filter, 1, NOW)
        (vote, _) = spam_filter.ledger.all_votes()
        assert not vote.has_aged
        assert end_undo_time(spam_filter) == 0
        assert undone(spam_filter, origin=AGEING_ORIGIN) == 1


def test_settling_forgets_for_good_after_thirty_days(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        for number in range(30):
            cast(spam_filter, number, NOW - (100 - number) * DAY)
        age(spam_filter, NOW - UNDO_SECONDS - 60, number=20)
        cast(spam_filter, 30, NOW)
        ledger = spam_filter.ledger
        ledger.compact(ledger.last_seq(), NOW - UNDO_SECONDS)
        assert len(list(ledger.all_votes())) == 21
