"""Receipts become tables, and first scores the bound on good mail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spamguard.bayes import experts, fusion
from spamguard.bayes.experts import EXPERTS
from spamguard.bayes.tables import empty_tables, partition_classes
from spamguard.engine import fold
from spamguard.engine.filter import Filter
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


MAIL = mail(90)
SIDES = partition_classes(["ham", "spam"], {"spam"})


def test_scores_of_many_classes_are_fused_to_the_log_odds_of_the_verdict(taught: Filter) -> None:
    messages = [raw for _, raw in MAIL[60:]]
    scores = taught.first_scores([taught._reader.read_example(raw) for raw in messages])
    assert taught.fuse_scores(scores) == pytest.approx(
        [taught.judge(raw).log_odds for raw in messages]
    )


def test_scores_of_a_time_with_fewer_classes_count(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, MAIL[:40])
        messages = [raw for _, raw in MAIL[60:]]
        scores = spam_filter.first_scores(
            [spam_filter._reader.read_example(raw) for raw in messages]
        )
        before = spam_filter.fuse_scores(scores)
        spam_filter.define_class("promo", unwanted=True)
        teach(spam_filter, [("promo", MAIL[40][1])])
        assert spam_filter.fuse_scores([b"", b"\0" * 5, *scores]) == pytest.approx(
            before, rel=0.1
        )  # one lesson more, with somewhat other trust


def test_of_scores_of_other_classes_what_was_said_of_unwanted_mail_counts(tmp_path: Path) -> None:
    """One class went and another came: scores of the one are no scores of the other."""
    messages = [raw for _, raw in MAIL[60:]]
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, MAIL[:40])
        spam_filter.define_class("promo", unwanted=True)
        spam_filter.define_class("news", unwanted=False)
        promo = [raw for _, raw in MAIL[40:50]]
        teach(spam_filter, [("promo", raw) for raw in promo])
        scores = spam_filter.first_scores(
            [spam_filter._reader.read_example(raw) for raw in messages]
        )
        spam_filter.forget_digests([spam_filter._reader.digest(raw) for raw in promo])
        teach(spam_filter, [("news", promo[0])])
        assert spam_filter._store.tables.classes == ["ham", "spam", "news"]
        size = 2 * len(experts.EXPERTS)
        assert (
            spam_filter.fuse_scores(scores).tolist()
            == spam_filter.fuse_scores([row[2 * size : 3 * size] for row in scores]).tolist()
        )


def test_scores_of_more_classes_from_before_they_had_a_mark_are_those_of_spam() -> None:
    rows = [bytes([number]) * 2 * len(experts.EXPERTS) for number in range(3)]
    assert fold.unwanted_row(rows[1] + rows[2]) == rows[1]
    assert fold.unwanted_row(b"".join(rows) + b"mark") == rows[2]
    assert (
        fold.unwanted_row(b"")
        == fold.unwanted_row(b"mark")
        == fold.unwanted_row(rows[0][:-1])
        == b""
    )
