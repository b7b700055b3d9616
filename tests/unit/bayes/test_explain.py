"""Why, on tables alone: the parts of a judgement sum to it, for any two classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.bayes import experts, logistic
from spamguard.bayes.explain import break_down, bucket_parts
from spamguard.bayes.fusion import fuse, score_message
from spamguard.bayes.tables import Tables, make_evidence
from spamguard.records import Features
from tests.unit.bayes.lessons import features, made_up, replayed
from tests.unit.bayes.support import repeatable, seeds

CLASSES = ("ham", "spam", "alpha", "zoo")


def settled(seed: int) -> Tables:
    tables = replayed(made_up(seed, 60, CLASSES))
    tables.fusion_biases += np.arange(1, len(tables.classes)) * 9999
    return tables


@repeatable
@given(seeds, st.sampled_from((0, 1, 30, 300)), st.sampled_from((1, 2)), st.sampled_from((0, 3)))
def test_parts_sum_to_the_log_odds_of_unwanted_mail_whichever_classes_are_told(
    seed: int, tokens: int, favoured: int, against: int
) -> None:
    tables = settled(seed % 5)
    known = experts.estimate_parameters(tables, {"spam", "alpha"})
    seen = make_evidence(features(np.random.default_rng(seed), tokens), tables.bits)
    ham, spam, alpha, zoo = fuse(tables, known, seen)
    found = break_down(score_message(tables, known, seen), tables, known, seen, favoured, against)
    exact = pytest.approx(np.logaddexp(spam, alpha) - np.logaddexp(ham, zoo), abs=1e-9)
    assert found.log_odds == exact
    assert found.prior + found.experts.sum() == exact
    assert (
        found.prior + found.biases + found.buckets.sum() + found.traits.sum() + found.numbers.sum()
        == exact
    )


@repeatable
@given(seeds)
def test_an_expert_s_share_is_the_sum_of_its_features(seed: int) -> None:
    tables = settled(seed % 5)
    seen = make_evidence(features(np.random.default_rng(seed)), tables.bits)
    known = experts.estimate_parameters(tables)
    found = break_down(score_message(tables, known, seen), tables, known, seen, 1, 0)
    assert found.experts[-2] == pytest.approx(found.traits.sum(), abs=1e-9)
    assert found.experts[-1] == pytest.approx(found.numbers.sum(), abs=1e-9)
    assert found.experts[:-2].sum() == pytest.approx(found.buckets.sum() + found.biases, abs=1e-9)


@pytest.mark.parametrize(("sign", "kept"), [(1, experts.MAX_SCORE_NATS), (-1, None)])
def test_a_clipped_expert_shares_out_what_was_kept(sign: int, kept: float | None) -> None:
    tables = settled(1)
    tables.rows[:, 2] = sign * 1000 * logistic.ONE
    seen = make_evidence(features(np.random.default_rng(2)), tables.bits)
    known = experts.estimate_parameters(tables)
    found = break_down(score_message(tables, known, seen), tables, known, seen, 1, 0)
    assert sign * (sign * found.scores[4:8]).max() == (
        known.bounds.min_score / experts.STEPS_PER_NAT if kept is None else kept
    )
    whole = (
        found.prior + found.biases + found.buckets.sum() + found.traits.sum() + found.numbers.sum()
    )
    assert whole == pytest.approx(found.log_odds, abs=1e-9)


@pytest.mark.parametrize("words", [12, 0])
def test_what_no_other_expert_confirms_counts_for_nothing(words: int) -> None:
    """Words of good mail alone, or none at all, in what all else knows for spam."""
    tables = replayed(made_up(1, 60))
    borders = np.arange(5) << (tables.bits - 2)
    tables.rows[: borders[1]] = 40, 0, -3 * logistic.ONE, 0
    tables.rows[borders[1] :] = 0, 40, 3 * logistic.ONE, 0
    tokens = [
        np.arange(first, first + number)
        for first, number in zip(borders, (words, 12, 12, 12), strict=False)
    ]
    shifted = np.concatenate(tokens).astype(np.uint32) << np.uint32(32 - tables.bits)
    message = Features(shifted, np.zeros(3, np.uint8), np.zeros(2, np.int16))
    seen, known = make_evidence(message, tables.bits), experts.estimate_parameters(tables)
    weighed = score_message(tables, known, seen)
    found = break_down(weighed, tables, known, seen, 1, 0)
    assert found.scores[0] == 0
    assert not found.buckets[:words].any()
    assert (found.buckets[words:] > 0).all()
    assert bucket_parts(weighed, tables, known, seen, 1, 0) == pytest.approx(found.buckets)
    whole = (
        found.prior + found.biases + found.buckets.sum() + found.traits.sum() + found.numbers.sum()
    )
    assert whole == pytest.approx(found.log_odds, abs=1e-9)


def test_counts_are_those_of_the_tables() -> None:
    tables = settled(3)
    seen = make_evidence(features(np.random.default_rng(4)), tables.bits)
    known = experts.estimate_parameters(tables)
    found = break_down(score_message(tables, known, seen), tables, known, seen, 1, 0)
    assert found.counts[:2].T.tolist() == tables.rows[seen.buckets, :2].tolist()
    assert found.counts.shape == (4, len(seen.buckets))
