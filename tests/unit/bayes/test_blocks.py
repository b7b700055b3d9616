"""Many messages in one go say what each says by itself."""

from __future__ import annotations

import numpy as np
import pytest

from spamguard.bayes import blocks, experts, logistic
from spamguard.bayes.explanation import weigh
from spamguard.bayes.tables import Tables, evidence
from spamguard.records import Features
from tests.unit.bayes.lessons import BITS, made_up, replayed


def one_by_one(tables: Tables, features: Features) -> list[list[int]]:
    return weigh(tables, experts.parameters(tables), evidence(features, BITS)).scores


@pytest.mark.parametrize("classes", [("ham", "spam"), ("ham", "spam", "news")])
@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize("push", [0, 9, -9])
def test_scores_are_those_of_each_message(count: int, push: int, classes: tuple[str, ...]) -> None:
    tables = replayed(made_up(3, 100, classes))
    tables.biases += push * logistic.ONE  # beyond the floor
    messages = [lesson.features for lesson in made_up(4, count)]
    known = experts.parameters(tables)
    found = experts.believed(blocks.scores(tables, known, blocks.side_by_side(messages, BITS)), known.bounds)
    assert found.tolist() == [one_by_one(tables, features) for features in messages]


def test_places_are_those_of_each_message() -> None:
    messages = [lesson.features for lesson in made_up(5, 30)]
    nothing = Features(np.zeros(0, np.uint32), messages[0].traits, messages[0].numbers)
    messages[3:3] = [nothing]
    placed = blocks.side_by_side([*messages, nothing], BITS)
    alone = [evidence(features, BITS) for features in (*messages, nothing)]
    assert placed.sizes.tolist() == [seen.sizes.tolist() for seen in alone]
    assert placed.buckets.tolist() == [bucket for seen in alone for bucket in seen.buckets.tolist()]
