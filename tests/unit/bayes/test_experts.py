"""What the experts say of one message, and of many at once."""

from __future__ import annotations

import numpy as np
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
    Floats,
    ScoredMessage,
    score_message,
)
from spamguard.bayes.tables import (
    N_TOKEN_SETS,
    Evidence,
    Tables,
)
from spamguard.records import TOKEN_SETS, Features
from tests.unit.bayes.lessons import (
    BITS,
    NUMBERS,
    TRAITS,
    Taught,
    all_counts,
    features,
    folded,
    made_up,
)
from tests.unit.bayes.support import repeatable, seeds

CLASSES = ("ham", "spam", "news")


def sums_by_hand(tables: Tables, seen: Evidence, parts: ScoredMessage) -> Floats:
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
            weights = sum(int(parts.weights[other, at]) for at in mine) / many**0.5
            found[other, N_TOKEN_SETS + kind] = (
                weights + tables.biases[other, kind]
            ) / logistic.ONE
        found[other, -2] = sum(parts.traits) / TRAITS**0.5
        found[other, -1] = sum(parts.numbers) / NUMBERS**0.5
    return found


@repeatable
@given(seeds, st.sampled_from((0, 1, 2, 3, 30, 300)))
def test_scores_are_the_damped_sums_of_their_parts_clipped_and_rounded(
    seed: int, tokens: int
) -> None:
    tables = folded(made_up(seed, 12))
    known = experts.estimate_parameters(tables)
    parts = score_message(known, features(np.random.default_rng(seed + 1), tokens))
    seen, trust = parts.evidence, known.confidence
    found = np.array(parts.scores)
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
@given(seeds)
def test_features_never_seen_say_nothing(seed: int) -> None:
    tables = folded(made_up(seed, 10, CLASSES))
    strangers = np.flatnonzero(~all_counts(tables).any(axis=0))
    seen = Features(
        (strangers << (32 - BITS)).astype(np.uint32),
        np.zeros(TRAITS, np.uint8),
        np.zeros(NUMBERS, np.int16),
    )
    parts = score_message(experts.estimate_parameters(tables), seen)
    assert not parts.multinomial.any()
    assert not parts.weights.any()


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
