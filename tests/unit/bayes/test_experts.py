"""What the experts say of one message, and of many at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from spamguard.bayes import experts, logistic
from spamguard.bayes.experts import (
    EXPERTS,
    MAX_LEAD_NATS,
    MAX_SCORE_NATS,
    STEPS_PER_NAT,
    WANTED_FLOOR_NATS,
    ExpertParts,
    Floats,
    score_bounds,
)
from spamguard.bayes.fusion import score_message
from spamguard.bayes.tables import (
    N_TOKEN_SETS,
    BucketRows,
    Evidence,
    Tables,
    batch_features,
    make_evidence,
    partition_classes,
    read_rows,
)
from spamguard.records import TOKEN_SETS, Features
from tests.unit.bayes.lessons import (
    BITS,
    NUMBERS,
    TRAITS,
    Taught,
    empty,
    features,
    folded,
    made_up,
    replayed,
)
from tests.unit.bayes.support import repeatable, seeds

CLASSES = ("ham", "spam", "news")
TWO = partition_classes(["ham", "spam"], {"spam"})


def seen_by(tables: Tables, seed: int, tokens: int = 30) -> tuple[Evidence, ExpertParts]:
    seen = make_evidence(features(np.random.default_rng(seed), tokens), tables.bits)
    return seen, experts.feature_parts(
        experts.estimate_parameters(tables), seen, read_rows(tables, seen.buckets)
    )


def sums_by_hand(tables: Tables, seen: Evidence, parts: ExpertParts) -> Floats:
    """Each expert's log-odds with loops and no numpy tricks, (K-1, EXPERTS)."""
    found = np.zeros((len(tables.classes) - 1, len(EXPERTS)))
    for other in range(len(found)):
        for kind in range(N_TOKEN_SETS):
            mine = [
                at
                for at, bucket in enumerate(seen.buckets.tolist())
                if bucket >> (tables.bits - 2) == kind
            ]
            many = max(len(mine), 1)
            found[other, kind] = sum(parts.multinomial[other, at] for at in mine) / many**0.75
            weights = sum(int(parts.logistic[other, at]) for at in mine) / many**0.5
            found[other, N_TOKEN_SETS + kind] = (
                weights + tables.biases[other, kind]
            ) / logistic.ONE
        found[other, -2] = sum(parts.categorical) / TRAITS**0.5
        found[other, -1] = sum(parts.gaussian) / NUMBERS**0.5
    return found


@repeatable
@given(seeds, st.sampled_from((0, 1, 2, 3, 30, 300)))
def test_scores_are_the_damped_sums_of_their_parts_clipped_and_rounded(
    seed: int, tokens: int
) -> None:
    tables = folded(made_up(seed, 12))
    seen, parts = seen_by(tables, seed + 1, tokens)
    trust = experts.side_confidence(tables.messages, TWO)
    found = np.array(experts.two_class_scores(parts, seen, tables.biases, score_bounds(trust)))
    assert found.shape == (1, len(EXPERTS))
    (row,) = exact = np.clip(
        sums_by_hand(tables, seen, parts), -WANTED_FLOOR_NATS / np.sqrt(trust), MAX_SCORE_NATS
    )
    confirming = sorted(
        row[
            [
                number
                for number in range(2 * N_TOKEN_SETS)
                if number % N_TOKEN_SETS != TOKEN_SETS.index("grams")
            ]
        ]
    )
    row[: 2 * N_TOKEN_SETS] = np.maximum(
        row[: 2 * N_TOKEN_SETS], min(confirming[2] - MAX_LEAD_NATS / np.sqrt(trust), 0)
    )
    assert (
        np.abs(found / STEPS_PER_NAT - exact).max() <= 1.5 / STEPS_PER_NAT + 1e-6
    )  # of the score, of the third's and of how far ahead it may be


@repeatable
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), seeds)
def test_sums_of_runs_with_empty_ones_anywhere(sizes: list[int], seed: int) -> None:
    terms = np.random.default_rng(seed).integers(-100, 100, (2, sum(sizes)))
    ends = np.cumsum(sizes)
    found = experts.run_sums(terms, ends - sizes, np.array(sizes))
    assert found.tolist() == [
        [sum(row[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
        for row in terms.tolist()
    ]


def test_sums_of_32_bits_do_not_overflow() -> None:
    terms = np.full((1, 100_000), 1 << 28, np.int32)
    assert experts.run_sums(terms, np.array([0]), np.array([100_000])).tolist() == [[100_000 << 28]]


@repeatable
@given(seeds)
def test_features_never_seen_say_nothing(seed: int) -> None:
    tables = folded(made_up(seed, 10, CLASSES))
    strangers = np.flatnonzero(
        ~np.vstack([tables.rows[:, :2].T, *(column[:, 0] for column in tables.columns)]).any(axis=0)
    )
    seen = make_evidence(
        Features(
            (strangers << (32 - BITS)).astype(np.uint32),
            np.zeros(TRAITS, np.uint8),
            np.zeros(NUMBERS, np.int16),
        ),
        BITS,
    )
    parts = experts.feature_parts(
        experts.estimate_parameters(tables), seen, read_rows(tables, seen.buckets)
    )
    assert not parts.multinomial.any()
    assert not parts.logistic.any()


def test_tables_that_were_taught_nothing_say_nothing() -> None:
    seen, parts = seen_by(empty(), 1)
    assert not np.any(experts.two_class_scores(parts, seen, empty().biases, score_bounds(1.0)))


@pytest.mark.parametrize(("nats", "kept"), [(100, MAX_SCORE_NATS), (-100, -WANTED_FLOOR_NATS)])
def test_scores_are_clipped_and_no_expert_decides_that_mail_is_wanted(
    nats: int, kept: float
) -> None:
    tables = empty()
    tables.biases[:] = nats * logistic.ONE
    seen, parts = seen_by(tables, 2)
    assert (
        experts.two_class_scores(parts, seen, tables.biases, score_bounds(1.0))[0][
            N_TOKEN_SETS : 2 * N_TOKEN_SETS
        ]
        == [kept * STEPS_PER_NAT] * N_TOKEN_SETS
    )


def of_spam(*nats: float) -> list[float]:
    """What counts of these scores for spam against ham, many lessons of each having been taught."""
    scores = np.zeros((1, 1, len(EXPERTS)), np.int64)
    scores[..., : len(nats)] = np.array(nats) * STEPS_PER_NAT
    found: list[float] = (
        experts.bound_scores(scores, score_bounds(1.0))[0, 0] / STEPS_PER_NAT
    ).tolist()
    return found[: len(nats)]


def test_good_words_move_a_verdict_by_no_more_than_a_third_expert_confirms() -> None:
    """Two experts that are wholly sure of good mail do not outweigh those that are not."""
    others = [3, 12, 4, -1, 2, 1]
    assert (
        of_spam(-12, -12, *others)
        == of_spam(-5, -5, *others)
        == [-1 - MAX_LEAD_NATS, -1 - MAX_LEAD_NATS, *others]
    )
    assert of_spam(-12, *others, 0) == [1 - MAX_LEAD_NATS, *others, 0]


def test_letters_of_good_words_confirm_nothing() -> None:
    assert of_spam(-12, 3, 4, -12, -12, 3, 4, -12) == [0, 3, 4, 0, 0, 3, 4, 0]
    assert of_spam(-12, 3, -1, -12, -12, 3, 4, -12) == [
        -1 - MAX_LEAD_NATS,
        3,
        -1,
        -1 - MAX_LEAD_NATS,
        -1 - MAX_LEAD_NATS,
        3,
        4,
        -1 - MAX_LEAD_NATS,
    ]


def test_no_expert_is_turned_round() -> None:
    assert of_spam(-12, -3, 4, 9, 9, 9, 9, 9) == [0, 0, 4, 9, 9, 9, 9, 9]


def test_what_three_experts_say_for_good_mail_counts_as_far_as_the_floor() -> None:
    assert of_spam(-12, -4.5, -4, 9, 9, 9, 9, 9) == [-WANTED_FLOOR_NATS, -4.5, -4, 9, 9, 9, 9, 9]


def test_a_single_expert_may_be_sure_of_spam() -> None:
    assert of_spam(11, 0, 0, 0, 0, 0, 0, 0) == [11, 0, 0, 0, 0, 0, 0, 0]


def test_of_more_classes_only_what_is_said_of_unwanted_mail_is_bounded() -> None:
    scores = np.random.default_rng(1).integers(-3072, 3073, (50, 3, len(EXPERTS)))
    found = experts.bound_scores(scores, score_bounds(1.0))
    assert found[:, :2].tolist() == scores[:, :2].tolist()
    assert found[:, 2:].tolist() == experts.bound_scores(scores[:, 2:], score_bounds(1.0)).tolist()


def test_classes_are_told_apart_however_far_all_of_them_are_from_the_first() -> None:
    raw = np.array([[40.0], [37.0], [10.0], [2.0]])  # three classes against ham, and unwanted mail
    assert (experts.quantise_scores(raw)[:, 0] / STEPS_PER_NAT).tolist() == [12, 9, 0, 2]


@pytest.mark.parametrize(
    ("raw", "kept"),
    [(0.0, 0), (1 / 512 - 1e-9, 0), (1.0, 256), (-1.004, -257), (99.0, 3072), (-1e300, -3072)],
)
def test_rounding(raw: float, kept: int) -> None:
    assert experts.quantise_scores(np.array([[raw]])).tolist() == [[kept]]


@repeatable
@given(seeds)
def test_a_multinomial_part_is_the_ratio_of_smoothed_rates(seed: int) -> None:
    random = np.random.default_rng(seed)
    totals = random.integers(1, 10_000, (3, N_TOKEN_SETS))
    counts = random.integers(0, 5, (3, 8))
    sizes = np.array([2, 2, 2, 2])
    shares = experts.multinomial_shares(totals)
    found = experts.multinomial_parts(counts, 1.0 / shares, sizes)
    each = shares.repeat(sizes, axis=1)
    smoothed = (counts + experts.PSEUDO_COUNT * each) / each
    np.testing.assert_allclose(found, np.log(smoothed[1:] / smoothed[0]), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(shares.sum(axis=0), 1.0)


@repeatable
@given(seeds)
def test_ratios_of_traits_and_numbers_are_those_of_the_formulas(seed: int) -> None:
    lessons = made_up(seed, 25, CLASSES)
    tables = folded(lessons)
    known = experts.estimate_parameters(tables)
    for at, name in enumerate(tables.classes[1:]):
        for trait in range(TRAITS):
            ratios = [
                probability(lessons, name, trait, value) / probability(lessons, "ham", trait, value)
                for value in range(16)
            ]
            np.testing.assert_allclose(
                np.exp(known.class_estimates.traits[at, trait]), ratios, rtol=1e-9
            )
    mine, ham = (
        [lesson.features.numbers for lesson in lessons if lesson.label == name]
        for name in ("spam", "ham")
    )
    if mine and ham:
        values = np.arange(256)[:, np.newaxis]
        np.testing.assert_allclose(
            known.class_estimates.numbers[0].T,
            density(values, mine) - density(values, ham),
            rtol=1e-9,
            atol=1e-9,
        )


def probability(lessons: list[Taught], name: str, trait: int, value: int) -> float:
    mine = [lesson.features.traits[trait] for lesson in lessons if lesson.label == name]
    return (mine.count(value) + experts.TRAIT_ALPHA) / (len(mine) + 16 * experts.TRAIT_ALPHA)


def density(values: NDArray[np.int64], samples: list[NDArray[np.int16]]) -> Floats:
    mean, variance = (
        np.mean(samples, axis=0),
        np.maximum(np.var(samples, axis=0), experts.MIN_NUMBER_VARIANCE),
    )
    return np.asarray(-0.5 * (values - mean) ** 2 / variance - 0.5 * np.log(variance))


def test_what_traits_and_numbers_say_sums_to_the_same_in_any_order() -> None:
    _, parts = seen_by(folded(made_up(7, 30)), 8)
    for row in (parts.categorical, parts.gaussian):
        assert sum(row) == sum(reversed(row)) == math.fsum(row)


def test_one_message_is_told_of_traits_and_numbers_what_many_are() -> None:
    tables = folded(made_up(7, 30))
    seen, parts = seen_by(tables, 8)
    known = experts.estimate_parameters(tables).side_estimates
    assert [parts.categorical] == experts.look_up_ratios(known.traits, seen.traits).tolist()
    assert [parts.gaussian] == experts.look_up_ratios(known.numbers, seen.numbers).tolist()


def test_a_constant_number_gives_no_certainty() -> None:
    tables = folded(lesson._replace(label="ham") for lesson in made_up(3, 2))
    known = experts.estimate_parameters(tables)
    assert np.isfinite(known.side_estimates.numbers).all()


@repeatable
@given(seeds)
def test_many_messages_are_looked_up_as_one_is(seed: int) -> None:
    ratios = np.random.default_rng(seed).normal(size=(2, 5, 16))
    values = np.random.default_rng(seed).integers(0, 16, (7, 5))
    found = experts.look_up_ratios(ratios, values)
    assert found.shape == (2, 7, 5)
    for at, one in enumerate(values):
        assert found[:, at].tolist() == experts.look_up_ratios(ratios, one).tolist()


def test_a_hundred_thousand_features() -> None:
    tokens = np.unique(np.random.default_rng(4).integers(0, 2**32, 100_000, dtype=np.uint32))
    tables = folded(made_up(4, 10))
    seen = make_evidence(
        Features(tokens, np.zeros(TRAITS, np.uint8), np.zeros(NUMBERS, np.int16)), BITS
    )
    rows = read_rows(tables, seen.buckets)
    assert isinstance(rows, BucketRows)
    known = experts.estimate_parameters(tables)
    scores = experts.two_class_scores(
        experts.feature_parts(known, seen, rows), seen, tables.biases, known.bounds
    )
    assert np.abs(scores).max() <= MAX_SCORE_NATS * STEPS_PER_NAT


def test_confidence_rises_with_the_lessons_of_the_rarer_side() -> None:
    found = [
        experts.side_confidence(np.array(messages), TWO)
        for messages in ((0, 0), (0, 100), (1, 100), (5, 5), (1000, 50))
    ]
    assert found == sorted(found)
    assert found[0] == found[1] == 1 / 3
    assert 0.9 < found[-1] < 1
    assert experts.side_confidence(np.array([100, 7]), TWO) == experts.side_confidence(
        np.array([7, 100]), TWO
    )


def test_confidence_among_more_classes_is_that_of_both_sides_as_wholes() -> None:
    sides = partition_classes(["ham", "spam", "news"], {"spam"})
    assert experts.side_confidence(np.array([0, 500, 400]), sides) == 401 / 403
    assert experts.side_confidence(np.array([500, 1, 500]), sides) == 2 / 4


def test_the_floor_is_deeper_while_a_side_has_few_lessons() -> None:
    floors = [
        -score_bounds(experts.side_confidence(np.array(messages), TWO)).min_score
        for messages in ((100, 0), (100, 3), (1000, 1000))
    ]
    assert floors == sorted(floors, reverse=True)
    assert (
        WANTED_FLOOR_NATS * STEPS_PER_NAT <= floors[-1] < 1.01 * WANTED_FLOOR_NATS * STEPS_PER_NAT
    )
    assert floors[0] < MAX_SCORE_NATS * STEPS_PER_NAT


def one_by_one(tables: Tables, features: Features) -> list[list[int]]:
    return score_message(
        tables, experts.estimate_parameters(tables), make_evidence(features, BITS)
    ).scores


@pytest.mark.parametrize("classes", [("ham", "spam"), ("ham", "spam", "news")])
@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize("push", [0, 9, -9])
def test_scores_are_those_of_each_message(count: int, push: int, classes: tuple[str, ...]) -> None:
    tables = replayed(made_up(3, 100, classes))
    tables.biases += push * logistic.ONE  # beyond the floor
    messages = [lesson.features for lesson in made_up(4, count)]
    known = experts.estimate_parameters(tables)
    found = experts.bound_scores(
        experts.batch_scores(tables, known, batch_features(messages, BITS)), known.bounds
    )
    assert found.tolist() == [one_by_one(tables, features) for features in messages]


def test_places_are_those_of_each_message() -> None:
    messages = [lesson.features for lesson in made_up(5, 30)]
    nothing = Features(np.zeros(0, np.uint32), messages[0].traits, messages[0].numbers)
    messages[3:3] = [nothing]
    placed = batch_features([*messages, nothing], BITS)
    alone = [make_evidence(features, BITS) for features in (*messages, nothing)]
    assert placed.sizes.tolist() == [seen.sizes.tolist() for seen in alone]
    assert placed.buckets.tolist() == [bucket for seen in alone for bucket in seen.buckets.tolist()]
