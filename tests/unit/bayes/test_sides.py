"""Wanted and unwanted as wholes: splitting one of them into classes changes nothing of what
counting says of the other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from spamguard.bayes import experts, fusion
from spamguard.bayes.experts import EXPERTS, STEPS_PER_NAT
from spamguard.bayes.fusion import fuse, fuse_batch
from spamguard.bayes.tables import (
    N_TOKEN_SETS,
    Sides,
    Tables,
    append_unwanted_log_odds,
    batch_features,
    make_evidence,
    partition_classes,
    sum_by_side,
)
from tests.unit.bayes.lessons import BITS, Taught, empty, folded, made_up, replayed

COUNTING = [*range(N_TOKEN_SETS), *range(2 * N_TOKEN_SETS, len(EXPERTS))]


def split_up(lessons: list[Taught]) -> list[Taught]:
    """Every third ham is news, every fourth spam a swindle."""
    further = {("ham", 0): "news", ("spam", 1): "swindle"}
    return [
        Taught(further.get((label, at % (3 if label == "ham" else 4)), label), said)
        for at, (label, said) in enumerate(lessons)
    ]


def test_ham_is_always_wanted_and_spam_never() -> None:
    assert partition_classes(["ham", "spam", "a", "b", "c"], {"ham", "b"}) == Sides(
        [0, 2, 4], [1, 3]
    )


def test_values_of_a_side_are_those_of_its_classes_together() -> None:
    sides = partition_classes(["ham", "spam", "a", "b"], {"b"})
    assert sum_by_side(np.array([[1, 10], [2, 20], [3, 30], [4, 40]]), sides).tolist() == [
        [4, 40],
        [6, 60],
    ]
    odds = append_unwanted_log_odds(np.log([[2.0], [3.0], [4.0]]), sides)
    np.testing.assert_allclose(np.exp(odds[:, 0]), [2, 3, 4, 6 / 4])


def test_what_counting_says_of_unwanted_mail_does_not_depend_on_how_a_side_is_sorted() -> None:
    lessons, messages = made_up(1, 80), [lesson.features for lesson in made_up(2, 20)]
    whole, parted = folded(lessons), folded(split_up(lessons))
    two, four = (
        experts.estimate_parameters(whole),
        experts.estimate_parameters(parted, {"spam", "swindle"}),
    )
    placed = batch_features(messages, BITS)
    before, after = (
        experts.batch_scores(whole, two, placed),
        experts.batch_scores(parted, four, placed),
    )
    assert (before.shape[1], after.shape[1]) == (1, 4)
    assert after[:, -1, COUNTING].tolist() == before[:, -1, COUNTING].tolist()


@pytest.mark.parametrize("settle", [folded, replayed])
def test_many_messages_are_judged_as_each_of_them(settle: Callable[[list[Taught]], Tables]) -> None:
    tables = settle(split_up(made_up(3, 80)))
    known = experts.estimate_parameters(tables, {"spam", "swindle"})
    messages = [lesson.features for lesson in made_up(4, 10)]
    alone = [fuse(tables, known, make_evidence(features, BITS)) for features in messages]
    assert fuse_batch(tables, known, batch_features(messages, BITS)) == alone


def test_shares_of_the_classes_of_a_side_sum_to_one() -> None:
    tables = replayed(split_up(made_up(5, 80)))
    scores = np.random.default_rng(6).integers(-3072, 3073, (7, 3, len(EXPERTS)))
    shares = np.exp(
        fusion.class_log_shares(
            tables, partition_classes(tables.classes, {"spam", "swindle"}), scores
        )
    )
    np.testing.assert_allclose(
        sum_by_side(shares.T, partition_classes(tables.classes, {"spam", "swindle"})), 1.0
    )
    assert (
        np.exp(
            fusion.class_log_shares(
                empty(), partition_classes(["ham", "spam"], {"spam"}), scores[:, :1]
            )
        )
        == 1
    ).all()


def test_a_class_of_few_lessons_is_held_back() -> None:
    tables = replayed(split_up(made_up(5, 80)))
    sides = partition_classes(tables.classes, {"spam", "swindle"})
    for_news = np.zeros((1, 3, len(EXPERTS)), np.int64)
    for_news[:, tables.classes.index("news") - 1] = 4 * STEPS_PER_NAT
    sure = fusion.class_log_shares(tables, sides, for_news)
    tables.messages[tables.classes.index("news")] = 1
    assert (fusion.class_log_shares(tables, sides, for_news) < sure)[
        0, tables.classes.index("news")
    ]


def test_weights_for_sides_and_for_classes_are_learnt_apart() -> None:
    tables = replayed(split_up(made_up(7, 80)))
    of_sides, of_classes = (
        tables.fusion_weights[some].copy()
        for some in (slice(len(EXPERTS)), slice(len(EXPERTS), None))
    )
    biases = tables.fusion_biases.copy()
    assert len(of_classes) == len(of_sides) == len(EXPERTS)
    scores = np.zeros((2, 3, len(EXPERTS)), np.int64)
    scores[:, :2, 0] = 300
    news = tables.classes.index("news")
    fusion.update_class_weights(
        scores, np.array([news, 1]), tables, partition_classes(tables.classes, {"spam", "swindle"})
    )
    assert tables.fusion_weights[: len(EXPERTS)].tolist() == of_sides.tolist()
    assert tables.fusion_weights[len(EXPERTS)] > of_classes[0]
    assert tables.fusion_biases[news - 1] > biases[news - 1]
    assert tables.fusion_biases[0] == biases[0]
