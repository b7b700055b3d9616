"""One lesson per digest, whatever the order and repetition of its votes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard.ledger.votes import (
    Lesson,
    lesson_changes,
    votes_in_force,
)
from spamguard.records import Vote
from tests.contract.ledgers import fold, resolve_lesson, winning_votes

fixed = settings(derandomize=True, deadline=None, max_examples=200)


def vote(label, user="", clock=1, *, node="n", digest=b"d", extractor=1) -> Vote:
    packed = f"{digest!r} {user} {clock} {node}".encode() if label else b""
    return Vote(
        digest, user, clock, node, label, packed, b"s" if label else b"", "test", 0, extractor
    )


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
