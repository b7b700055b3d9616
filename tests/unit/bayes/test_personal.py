"""One user's votes beside what all have said: counted in any order, and moving only what they speak
about.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.bayes import experts, personal
from spamguard.bayes.fusion import class_difference
from spamguard.bayes.personal import (
    EVIDENCE_SCALE,
    HALF_BELIEVED_NATS,
    UserCorrection,
    UserVoteCounts,
)
from spamguard.bayes.tables import batch_features
from tests.unit.bayes.lessons import BITS, Taught, folded, made_up
from tests.unit.bayes.support import assert_same, repeatable, seeds

CLASSES = ("ham", "spam", "promo")


def said(votes: list[Taught]) -> UserVoteCounts:
    batch = batch_features([one.features for one in votes], BITS)
    by_class = personal.count_votes([one.label for one in votes], batch)
    return personal.sum_votes([(counts, 1) for counts in by_class])


def corrected(votes: list[Taught], about: Taught, lessons: list[Taught]) -> UserCorrection:
    """What votes change about a message, where all have taught these lessons."""
    known = experts.estimate_parameters(folded(lessons))
    scored = experts.score_message(known, about.features)
    return personal.compute_correction(said(votes), scored)


@repeatable
@given(seeds, st.integers(1, 12), st.randoms(use_true_random=False))
def test_the_same_votes_in_any_order_are_the_same_bits(seed, size, shuffled):
    votes = made_up(seed, size, CLASSES)
    other = list(votes)
    shuffled.shuffle(other)
    for name in UserVoteCounts.__dataclass_fields__:
        assert_same(getattr(said(votes), name), getattr(said(other), name))


@repeatable
@given(seeds, st.integers(1, 6), st.integers(0, 4), st.integers(0, 4))
def test_adding_and_taking_away_is_counting_anew(seed, stay, new, old):
    votes = made_up(seed, stay + new + old, CLASSES)
    added, gone = votes[stay : stay + new], votes[stay + new :]
    changes = [(said(some), sign) for some, sign in ((added, 1), (gone, -1)) if some]
    found, anew = (
        personal.sum_votes([(said(votes[:stay] + gone), 1), *changes]),
        said(votes[:stay] + added),
    )
    for name in UserVoteCounts.__dataclass_fields__:
        assert_same(getattr(found, name), getattr(anew, name))


def test_votes_for_a_class_that_nobody_else_knows_do_not_count():
    lessons = made_up(1, 20)
    found = corrected([lessons[0]._replace(label="promo")], lessons[0], lessons)
    assert not found.shifts.any()


@repeatable
@given(seeds, st.integers(2, 3), st.integers(1, 8))
def test_the_parts_sum_to_what_is_moved(seed, classes, size):
    lessons = made_up(seed, 12, CLASSES[:classes])
    found = corrected(made_up(seed + 1, size, CLASSES[:classes]), lessons[0], lessons)
    assert found.parts.sum(axis=1) == pytest.approx(found.shifts, abs=1e-9)
    assert found.shifts == pytest.approx(personal.shrink_evidence(found.evidence))
    for pair in ((1, 0), (0, 1), (len(found.shifts), 1)):
        joint = found.apply([0.0] * (len(found.shifts) + 1))
        assert class_difference(found.shifts, pair) == joint[pair[0]] - joint[pair[1]]


def with_words(tokens: list[int]) -> list[Taught]:
    """Nine lessons of ham and nine of spam that have these words and no others."""
    words = (np.array(tokens, np.uint32) << np.uint32(32 - BITS)).astype(np.uint32)
    both = [one._replace(label="ham") for one in made_up(1, 9)] + [
        one._replace(label="spam") for one in made_up(2, 9)
    ]
    return [one._replace(features=replace(one.features, tokens=words)) for one in both]


def test_by_hand():
    """One word, in 3 of 9 lessons of ham and in none of 9 of spam; a user has called 2 messages
    spam, both with it.
    """
    some, none = with_words([5]), with_words([])
    found = corrected([some[0]._replace(label="spam")] * 2, some[0], some[:3] + none[3:])
    plain = np.array([3 + 0.05 / 2, 0.05 / 2]) / 10
    spam = 0.9 * plain[1] + 0.1 * plain.mean()
    ham = 0.9 * plain[0] + 0.1 * plain.mean()
    assert spam < ham < (2 + spam) / (2 + 1)  # turned round
    evidence_of_it = EVIDENCE_SCALE * np.log((2 + spam) / (2 + 1) / spam)
    assert found.evidence == pytest.approx([evidence_of_it])
    assert found.shifts == pytest.approx(
        [evidence_of_it**3 / (evidence_of_it**2 + HALF_BELIEVED_NATS**2)]
    )


def test_what_everybody_has_moves_next_to_nothing():
    """Each message has the same hundred words: to have called ten such spam and none ham is no
    reason.
    """
    lessons = with_words(list(range(100)))
    found = corrected([lessons[-1]] * 10, lessons[0], lessons)
    assert len(found.token_indices) == 100
    assert abs(found.shifts[0]) < 0.01
