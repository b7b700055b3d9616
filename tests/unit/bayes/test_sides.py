"""Wanted and unwanted as wholes: splitting one of them into classes changes nothing of what
counting says of the other.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spamguard.bayes import experts
from spamguard.bayes.experts import score_message
from spamguard.bayes.fusion import fuse, fuse_batch
from spamguard.bayes.tables import (
    Tables,
)
from tests.unit.bayes.lessons import Taught, folded, made_up, replayed


def split_up(lessons: list[Taught]) -> list[Taught]:
    """Every third ham is news, every fourth spam a swindle."""
    further = {("ham", 0): "news", ("spam", 1): "swindle"}
    return [
        Taught(further.get((label, at % (3 if label == "ham" else 4)), label), said)
        for at, (label, said) in enumerate(lessons)
    ]


@pytest.mark.parametrize("settle", [folded, replayed])
def test_many_messages_are_judged_as_each_of_them(settle: Callable[[list[Taught]], Tables]) -> None:
    tables = settle(split_up(made_up(3, 80)))
    known = experts.estimate_parameters(tables, frozenset({"spam", "swindle"}))
    messages = [lesson.features for lesson in made_up(4, 10)]
    alone = [fuse(score_message(known, features)) for features in messages]
    assert fuse_batch(known, messages) == alone
