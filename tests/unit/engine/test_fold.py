"""Receipts become tables, and first scores the bound on good mail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spamguard.bayes import fusion
from spamguard.bayes.experts import EXPERTS
from spamguard.bayes.tables import empty_tables
from spamguard.engine import fold
from spamguard.errors import LedgerError
from spamguard.ledger import codec
from spamguard.ledger.votes import Lesson
from spamguard.mail.content import NUMBERS, TRAITS
from spamguard.records import EXTRACTOR, Features, Vote
from tests.unit.bayes.lessons import counted
from tests.unit.filters import BITS, bits_of, mail, opened, teach


def test_how_many_events_are_folded_at_once_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, mail(40))
        teach(spam_filter, [("ham" if label == "spam" else "spam", raw) for label, raw in mail(10)])
        for chunk in (1, 7, 128):
            monkeypatch.setattr(fold, "_FOLD_BATCH", chunk)
            tables = empty_tables(BITS, len(TRAITS), len(NUMBERS), fusion.START_WEIGHTS)
            assert fold.fold_changes(
                tables,
                spam_filter.ledger.changes_after(0),
                lambda digest, seq: spam_filter.ledger.has_event_between(digest, 0, seq),
            ) == (50, 0)
            found.append(bits_of(tables))
    assert found[0] == found[1] == found[2]


def test_nothing_to_fold() -> None:
    tables = empty_tables(BITS, len(TRAITS), len(NUMBERS), fusion.START_WEIGHTS)
    assert fold.fold_changes(tables, [], lambda _digest, _seq: True) == (None, 0)
    assert fold.fold_changes(tables, [(7, None, None)], lambda _digest, _seq: True) == (7, 0)
    assert fold.unpack_features([]) == []


def test_features_come_out_of_receipts_as_they_went_in() -> None:
    random = np.random.default_rng(1)
    tokens = [
        np.unique(random.integers(0, 2**32, size, dtype=np.uint32)) for size in (0, 1, 500, 2000)
    ]
    packed = [
        Features(
            run, np.full(len(TRAITS), len(run) % 7, np.uint8), np.full(len(NUMBERS), 99, np.int16)
        )
        for run in tokens
    ]
    unpacked = fold.unpack_features([codec.pack(features) for features in packed])
    assert [features.tokens.tolist() for features in unpacked] == [
        features.tokens.tolist() for features in packed
    ]
    assert [features.traits.tolist() for features in unpacked] == [
        features.traits.tolist() for features in packed
    ]
    assert [features.numbers.tolist() for features in unpacked] == [
        features.numbers.tolist() for features in packed
    ]


def test_settled_tables_count_what_folding_counts(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, mail(60))
        teach(spam_filter, [("news", raw) for _, raw in mail(60)[:9]])
        assert counted(
            fold.build_tables(spam_filter.ledger, spam_filter.ledger.last_seq(), BITS)
        ) == counted(spam_filter._store.tables)
        assert fold.build_tables(spam_filter.ledger, 0, BITS).messages.tolist() == [0, 0]


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
