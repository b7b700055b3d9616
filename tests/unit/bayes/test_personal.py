"""One user's votes beside what all have said: counted in any order, and moving only what they speak
about.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.bayes import personal
from spamguard.bayes.personal import (
    EVIDENCE_SCALE,
    HALF_BELIEVED_NATS,
    MAX_SHIFT_NATS,
    UserCorrection,
    UserVoteCounts,
)
from spamguard.bayes.tables import batch_features, make_evidence, read_rows
from tests.unit.bayes.lessons import BITS, Taught, add, empty, folded, made_up
from tests.unit.bayes.support import assert_same, repeatable, seeds

CLASSES = ("ham", "spam", "promo")


def said(votes: list[Taught]) -> UserVoteCounts:
    return personal.count_votes(
        [one.label for one in votes], batch_features([one.features for one in votes], BITS)
    )


def corrected(votes: list[Taught], about: Taught, lessons: list[Taught]) -> UserCorrection:
    """What votes change about a message, where all have taught these lessons."""
    tables = folded(lessons)
    seen = make_evidence(about.features, BITS)
    shared = personal.token_frequencies(tables, read_rows(tables, seen.buckets).counts)
    return personal.compute_correction(said(votes), tables.classes, seen, shared)


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


def test_what_is_counted():
    votes = made_up(3, 9, CLASSES)
    found = said(votes)
    assert found.classes == tuple(sorted({one.label for one in votes}))
    assert found.votes.sum() == 9
    by_hand = {}
    for one in votes:
        for bucket in make_evidence(one.features, BITS).buckets.tolist():
            by_hand[bucket, one.label] = by_hand.get((bucket, one.label), 0) + 1
    counted = {
        (bucket, name): count
        for name, row in zip(found.classes, found.counts.tolist(), strict=True)
        for bucket, count in zip(found.buckets.tolist(), row, strict=True)
        if count
    }
    assert counted == by_hand


def test_who_has_said_nothing_about_any_of_its_tokens_changes_nothing():
    lessons = made_up(1, 20)
    one, other = lessons[0], lessons[1]
    tokens = np.setdiff1d(
        one.features.tokens >> np.uint32(32 - BITS), other.features.tokens >> np.uint32(32 - BITS)
    )
    apart = one._replace(features=replace(one.features, tokens=tokens << np.uint32(32 - BITS)))
    found = corrected([other], apart, lessons)
    assert not found.shifts.any()
    assert found.apply([0.0, -3.25]) == [0.0, -3.25]


def test_votes_about_messages_without_any_token_change_nothing():
    lessons = made_up(1, 20)
    assert not corrected([with_words([])[0]], lessons[0], lessons).shifts.any()


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
    for favoured, against in ((1, 0), (0, 1), (len(found.shifts), 1)):
        joint = found.apply([0.0] * (len(found.shifts) + 1))
        assert (
            found.class_difference(found.shifts, favoured, against)
            == joint[favoured] - joint[against]
        )


def test_more_votes_say_more_and_those_against_take_it_back():
    lessons = [one._replace(label="ham") for one in made_up(5, 15)] + [
        one._replace(label="spam") for one in made_up(6, 15)
    ]
    about, contrary = lessons[0]._replace(label="spam"), lessons[0]
    heard = [corrected([about] * times, about, lessons).shifts[0] for times in (1, 2, 4, 8)]
    assert 0 < heard[0] < heard[1] < heard[2] < heard[3] <= MAX_SHIFT_NATS
    assert 0 < corrected([about, about, contrary], about, lessons).shifts[0] < heard[1]


def test_who_agrees_adds_nothing_to_what_all_have_said():
    """Each of the words is in a third of ham only; a user has found it there too."""
    lessons = with_words([5, 6, 7])[:3] + with_words([])[3:]
    assert corrected(lessons[:1] * 4, lessons[0], lessons).shifts.tolist() == [0.0]
    assert corrected([lessons[0]._replace(label="spam")], lessons[0], lessons).shifts[0] > 0


def test_what_nobody_knows_is_as_every_user_says():
    new, lessons = with_words([5, 6, 7])[0], with_words([])
    heard = [
        corrected([new._replace(label=label)], new, lessons).shifts[0] for label in ("ham", "spam")
    ]
    assert heard[0] < 0 < heard[1]
    assert heard[0] == pytest.approx(-heard[1])


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


def test_little_is_hardly_believed_and_much_nearly_whole():
    amounts = np.array(
        [-1000.0, -HALF_BELIEVED_NATS, -1.0, 0.0, 0.5, 1.0, HALF_BELIEVED_NATS, 30.0, 1000.0]
    )
    found = personal.shrink_evidence(amounts)
    assert found.tolist() == [
        -MAX_SHIFT_NATS,
        -HALF_BELIEVED_NATS / 2,
        -found[5],
        0.0,
        found[4],
        found[5],
        HALF_BELIEVED_NATS / 2,
        found[7],
        MAX_SHIFT_NATS,
    ]
    assert (np.diff(found) > 0).all()
    assert found[5] < 0.01
    assert (np.abs(found) <= np.abs(amounts)).all()


def test_nothing_taught_yet_is_no_trouble():
    tables, one = empty(), made_up(1, 1)[0]
    seen = make_evidence(one.features, BITS)
    shared = personal.token_frequencies(tables, read_rows(tables, seen.buckets).counts)
    assert (shared > 0).all()
    assert np.isfinite(
        personal.compute_correction(said([one]), tables.classes, seen, shared).shifts
    ).all()
    add(tables, one)
    assert np.isfinite(
        personal.token_frequencies(tables, read_rows(tables, seen.buckets).counts)
    ).all()
