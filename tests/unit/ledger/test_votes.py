"""One lesson per digest, whatever the order and repetition of its votes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard.ledger.votes import (
    Lesson,
    lesson_changes,
    resolve_lesson,
    votes_in_force,
    winning_votes,
)
from spamguard.records import Vote
from tests.contract.ledgers import fold

fixed = settings(derandomize=True, deadline=None, max_examples=200)


def vote(label, user="", clock=1, *, node="n", digest=b"d", extractor=1) -> Vote:
    packed = f"{digest!r} {user} {clock} {node}".encode() if label else b""
    return Vote(
        digest, user, clock, node, label, packed, b"s" if label else b"", "test", 0, extractor
    )


def taught(label: str, by: Vote) -> Lesson:
    return Lesson(by.digest, label, by.packed, by.scores)


@st.composite
def events(draw) -> list[Vote]:
    """Votes whose (key, version) is unique: what a node gives out."""
    key = st.tuples(
        st.sampled_from([b"d", b"e"]),
        st.sampled_from("abc"),
        st.integers(1, 4),
        st.sampled_from("mn"),
    )
    labels, extractors = st.sampled_from(["ham", "spam", "news", None]), st.sampled_from([1, 2])
    return [
        vote(draw(labels), user, clock, node=node, digest=digest, extractor=draw(extractors))
        for digest, user, clock, node in draw(st.lists(key, unique=True, max_size=14))
    ]


def test_a_vote_teaches_and_none_does_not():
    assert resolve_lesson([vote("spam")]) == taught("spam", vote("spam"))
    assert resolve_lesson([]) is None
    assert resolve_lesson([vote(None)]) is None


def test_highest_version_of_a_key_wins_by_clock_then_node():
    old, new, newest = (
        vote("spam", clock=1, node="z"),
        vote("ham", clock=2, node="a"),
        vote("news", clock=2, node="b"),
    )
    assert winning_votes([new, newest, old]) == {(b"d", ""): newest}


def test_a_tombstone_takes_the_vote_back_and_outlives_an_older_vote_that_comes_late():
    assert resolve_lesson([vote(None, clock=2), vote("spam", clock=1)]) is None


def test_majority_rules_and_a_tie_teaches_nothing():
    spam, ham, more = vote("spam", "a", 1), vote("ham", "b", 2), vote("ham", "c", 3)
    assert resolve_lesson([spam, ham]) is None
    assert resolve_lesson([spam, ham, more]) == taught("ham", ham)
    assert resolve_lesson([spam, ham, more, vote("spam", "d", 4)]) is None
    assert resolve_lesson([spam, ham, more, vote(None, "b", 4), vote(None, "c", 5)]) == taught(
        "spam", spam
    )


def test_most_votes_are_enough_without_half_of_them():
    first = vote("ham", "a", 1)
    votes = [
        first,
        vote("ham", "b", 2),
        vote("spam", "c", 3),
        vote("news", "d", 4),
        vote("other", "e", 5),
    ]
    assert resolve_lesson(votes) == taught("ham", first)


def test_features_are_those_of_the_first_who_said_so_and_still_does():
    first, second = vote("spam", "a", 1), vote("spam", "b", 2)
    assert resolve_lesson([second, first]) == taught("spam", first)
    assert resolve_lesson([second, first, vote(None, "a", 3)]) == taught("spam", second)


def test_votes_of_every_extractor_count_but_only_the_asked_for_features_are_handed_out():
    old, new, other = (
        vote("spam", "a", 1, extractor=1),
        vote("spam", "b", 2, extractor=2),
        vote("ham", "c", 3, extractor=2),
    )
    assert resolve_lesson([old, new, other]) == taught("spam", old)
    assert resolve_lesson([old, new, other], extractor=2) == taught("spam", new)
    assert (
        resolve_lesson([old, other], extractor=1) is None
    )  # a tie, though only one of the two has version 1
    assert resolve_lesson([old], extractor=2) is None


@pytest.mark.slow
@fixed
@given(events(), st.randoms(use_true_random=False), st.sampled_from([None, 1, 2]))
def test_any_order_and_repetition_of_events_gives_the_same_lessons(votes, shuffler, extractor):
    again = votes + [vote for vote in votes if shuffler.random() < 0.5]
    shuffler.shuffle(again)
    assert winning_votes(again) == winning_votes(votes)
    for digest in (b"d", b"e"):
        of_digest = [vote for vote in again if vote.digest == digest]
        assert resolve_lesson(of_digest, extractor) == resolve_lesson(
            [vote for vote in votes if vote.digest == digest], extractor
        )


def folded(found) -> dict[bytes, Lesson]:
    tables: dict[bytes, Lesson] = {}
    fold(tables, found)
    return tables


def all_lessons(votes, extractor=None) -> dict[bytes, Lesson]:
    each = {
        digest: resolve_lesson([one for one in votes if one.digest == digest], extractor)
        for digest in {one.digest for one in votes}
    }
    return {digest: one for digest, one in each.items() if one is not None}


@pytest.mark.slow
@fixed
@given(
    events(), st.integers(0, 14), st.sampled_from([None, 1, 2]), st.randoms(use_true_random=False)
)
def test_folding_changes_gives_all_lessons_wherever_the_log_is_cut(votes, cut, extractor, shuffler):
    log = list(enumerate(votes, start=1))
    shuffled = votes[:cut]
    shuffler.shuffle(shuffled)
    found = list(lesson_changes({}, log[:cut], extractor)) + list(
        lesson_changes(votes_in_force(shuffled), log[cut:], extractor)
    )
    assert [seq for seq, _, _ in found] == [seq for seq, _ in log]
    assert folded(found) == all_lessons(votes, extractor)


def test_an_event_that_changes_nothing_is_told_without_lessons():
    late = vote("ham", clock=1)
    standing = vote("spam", clock=2)
    assert list(lesson_changes(votes_in_force([standing]), [(7, late)])) == [(7, None, None)]


def test_only_lessons_that_change_are_asked_for_their_features():
    votes = [vote("spam", "a", 1), vote("spam", "b", 2), vote("ham", "c", 3), vote("spam", "d", 4)]
    asked = []

    def whole(bare):
        asked.append(bare)
        return next(one for one in votes if one.version == bare.version)

    bare = votes_in_force(one._replace(packed=b"", scores=b"") for one in votes)
    events = [(5, vote("spam", "e", 5)), (6, vote("ham", "f", 6)), (7, vote(None, "a", 7))]
    assert list(lesson_changes(bare, events, load_vote=whole)) == [
        (5, None, None),
        (6, None, None),
        (7, taught("spam", votes[0]), taught("spam", votes[1])),
    ]
    assert [one.user for one in asked] == ["a", "b"]


def test_votes_on_other_digests_do_no_harm():
    new = vote("spam")
    assert list(lesson_changes(votes_in_force([vote("ham", digest=b"x")]), [(1, new)])) == [
        (1, None, taught("spam", new))
    ]


@pytest.mark.parametrize("seed", range(5))
def test_a_crowd_that_disagrees(seed):
    rng = random.Random(seed)
    votes = [
        vote(rng.choice(["ham", "spam", None]), str(rng.randrange(40)), clock)
        for clock in range(1, 400)
    ]
    assert folded(lesson_changes({}, enumerate(votes, 1))) == all_lessons(votes)
