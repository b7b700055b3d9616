"""Receipts become tables, and first scores the bound on good mail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spamguard.bayes.experts import EXPERTS
from spamguard.engine import fold
from spamguard.errors import LedgerError
from spamguard.ledger import codec
from spamguard.ledger.votes import Lesson
from spamguard.mail.content import NUMBERS, TRAITS
from spamguard.records import EXTRACTOR, Features, Vote
from tests.unit.filters import opened


def test_scores_of_a_receipt_come_back_in_the_experts_own_steps() -> None:
    steps = np.resize(
        [0, 1, -1, 3072, -3072, 255], (3, len(EXPERTS))
    )  # news, spam, and all that is unwanted
    classes = ["ham", "spam", "news"]
    lesson = Lesson(b"x", "ham", b"", fold.pack_first_scores(steps, classes))
    assert fold.read_first_scores(lesson, classes).tolist() == steps[:2].ravel().tolist()
    assert (
        fold.read_first_scores(lesson, ["ham", "spam", "promo"]).tolist() == []
    )  # as many classes, but others


@pytest.mark.parametrize(
    ("traits", "numbers"),
    [
        ([0] * 9, [0] * 15),
        ([0] * 10, [0] * 16),
        ([16] + [0] * 9, [0] * 15),
        ([0] * 10, [-1] + [0] * 14),
        ([0] * 10, [256] + [0] * 14),
    ],
)
def test_a_receipt_that_our_extractor_cannot_have_made_is_told(
    tmp_path: Path, traits: list[int], numbers: list[int]
) -> None:
    assert (len(TRAITS), len(NUMBERS)) == (10, 15)
    packed = codec.pack(
        Features(np.zeros(0, np.uint32), np.array(traits, np.uint8), np.array(numbers, np.int16))
    )
    with pytest.raises(LedgerError, match="not made by this extractor"):
        fold.unpack_features([packed])
    with opened(tmp_path) as spam_filter:
        spam_filter.ledger.merge(
            [Vote(b"d", "", 1, "elsewhere", "spam", packed, b"", "", 0, EXTRACTOR)]
        )
        with pytest.raises(LedgerError, match="not made by this extractor"):
            spam_filter.settle()
